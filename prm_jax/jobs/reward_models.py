"""A model of a checkpoint folder, as the options of a command name it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.scoring import scorer


@dataclasses.dataclass(frozen=True)
class RewardModel(verbs.Value):
  """A reward model in a checkpoint folder.

  Args:
    folder: A checkpoint folder.
    step: The update whose saved parameters are used; best is the saved one with
      the best fit.best_metric of its run (default: the latest one that was
      saved).
    dtype: The type that the model computes in: float32, bfloat16 or float16;
      with float32 its weights are held so, too (default: what the folder's
      model.json names, which import takes from the weights).
    batch_tokens: The most tokens in a batch, which bounds the memory of the
      device; a longer solution is a batch of its own (default: 16384).
  """

  folder: verbs.Local
  step: verbs.Step = None
  dtype: str | None = None
  batch_tokens: verbs.Natural | None = None

  def load(self, layout: str = "padded") -> scorer.Scorer:
    """Returns the model.

    Args:
      layout: See saved.load.
    """
    from prm_jax.scoring import saved

    return saved.load(
      self.folder,
      self.step,
      layout,
      compute_dtype=self.dtype,
      batch_tokens=self.batch_tokens,
    )
