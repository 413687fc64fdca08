"""A threshold of accepted scores, and with which models it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import logging
from typing import Any

from prm_jax import errors
from prm_jax.jobs import journal_head
from prm_jax.runtime import checks
from prm_jax.runtime import files

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Threshold:
  """The score from which a solution is accepted.

  Args:
    value: The score.
    attempts: The attempts that it was chosen for; None isn't known.
    models: What it was chosen with, as `models_of` says; None isn't known.
  """

  value: float
  attempts: int | None = None
  models: Mapping[str, Any] | None = None


def models_of(
  types: Mapping[str, str | None], claim: Mapping[str, Any] | None
) -> dict[str, Any]:
  """Returns by which models samples were drawn and scored, as plain data.

  Args:
    types: The type that each model computes in, of those of which it is known.
    claim: What the search depends on; None isn't known. The seed of samples
      makes them no others.
  """
  of = dict(claim["policies"], scorer=claim["scorer"]) if claim else {}
  models: dict[str, Any] = {
    name: {k: v for k, v in of.get(name, {}).items() if k != "seed"}
    | ({"compute_dtype": types[name]} if name in types else {})
    for name in dict(types) | of
  }
  return models | (dict(aggregate=claim["aggregate"]) if claim else {})


def check_models(
  threshold: Threshold,
  path: str,
  types: Mapping[str, str | None],
  claim: Mapping[str, Any],
) -> None:
  """Refuses a threshold that was chosen with other models, if that is known.

  Args:
    threshold: The threshold.
    path: Its file.
    types: See models_of.
    claim: See models_of.

  Raises:
    InputError: A model is another one, is sampled in another way, or computes
      in another type.
  """
  if threshold.attempts is not None and threshold.models is None:
    _logger.info(f"{path}: it isn't known with which models it was chosen")
  before = threshold.models or {}
  known = claim if "aggregate" in before else None
  different = before and journal_head.differences(
    before, models_of(types, known)
  )
  if different:
    raise errors.InputError(
      f"`threshold={path}`: was chosen with other models:"
      f" {'; '.join(different)}; choose it again with these, or give the number"
      f" alone, `threshold={threshold.value!r}`"
    )


def read_threshold(text: str) -> Threshold:
  """Returns a threshold.

  Args:
    text: A number, or the file that `prm-jax verify choose` wrote.

  Raises:
    InputError: It is neither.
  """
  try:
    return Threshold(float(text))
  except ValueError:
    record = files.read_json(text)
  threshold, attempts = record.get("threshold"), record.get("attempts")
  models = record.get("models")
  if not (
    isinstance(threshold, float | int)
    and isinstance(attempts, int)
    and isinstance(models, Mapping | None)
    and checks.is_a(threshold, float)
  ):
    raise errors.InputError(
      f"{text}: holds no threshold; give a number, or a file that `prm-jax"
      " verify choose` wrote"
    )
  return Threshold(float(threshold), int(attempts), models)
