"""How a policy is asked to sample; `drawing.Sampling` is what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, TYPE_CHECKING

from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.policy import drawing


@dataclasses.dataclass(frozen=True)
class Sampling(verbs.Value):
  """How a policy samples.

  Args:
    temperature: The temperature of sampling; 0 always takes the most likely
      token (default: what a checkpoint folder's generation_config.json said
      when it was imported, else 1).
    top_k: Sample only from this many most likely tokens; 0 keeps all tokens
      (default: as that of --temperature, else 0).
    top_p: Sample only from the most likely tokens that together have this
      probability, above 0 and at most 1, among those that --top_k keeps; 1 keeps
      all tokens (default: as that of --temperature, else 1).
    min_p: Sample only tokens that have at least this share, 0 to 1, of the most
      likely token's probability; 0 keeps all tokens (default: as that of
      --temperature, else 0).
    max_tokens: The most new tokens in each completion.
  """

  first_is_whole = False

  temperature: float | None = None
  top_k: verbs.Natural | None = None
  top_p: float | None = None
  min_p: float | None = None
  max_tokens: int = 512

  def with_defaults(self, defaults: Mapping[str, float]) -> drawing.Sampling:
    """Fills in what isn't said: as the policy says, else as ours.

    Args:
      defaults: What the policy says, by names of fields.

    Returns:
      How it samples.
    """
    from prm_jax.policy import drawing

    return drawing.sampling_of(defaults, **dataclasses.asdict(self))

  def asked(self) -> dict[str, Any]:
    """Says what was asked for as plain data; the rest isn't known yet.

    Returns:
      The record of it, of the fields that were given.
    """
    values = dataclasses.asdict(self)
    given = {k: value for k, value in values.items() if value is not None}
    record = self.with_defaults({}).record()
    return {k: record.get(k) for k in given}
