"""A model of a checkpoint folder, as the options of a command name it."""

from __future__ import annotations

import dataclasses
from typing import Literal, TYPE_CHECKING

from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.scoring import scorer


@dataclasses.dataclass(frozen=True)
class ReferencePolicy(verbs.Value):
  """A policy that another one is compared with.

  Args:
    reference: A checkpoint folder, of the policy that --checkpoint, which is a
      policy then, was trained from: a step's score is the sigmoid of beta times
      its log-ratio, for RL the progress advantage (docs/cpmi.md).
    beta: The scale of the log-ratio (with --reference).
    step_score: How the tokens of a step make its log-ratio: increment (their
      sum), mean, or cumulative (the sum of all up to its end) (with
      --reference).
  """

  reference: verbs.Local
  beta: verbs.Positive = 1.0
  step_score: Literal["increment", "mean", "cumulative"] = "increment"


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

  def load(
    self, layout: str = "padded", against: ReferencePolicy | None = None
  ) -> scorer.Scorer:
    """Returns the model.

    Args:
      layout: See saved.load.
      against: What it is compared with if it is a policy.
    """
    from prm_jax.scoring import saved

    if against is None:
      return saved.load(
        self.folder,
        self.step,
        layout,
        compute_dtype=self.dtype,
        batch_tokens=self.batch_tokens,
      )
    return saved.load_pair(
      self.folder,
      against.reference,
      self.step,
      layout,
      compute_dtype=self.dtype,
      batch_tokens=self.batch_tokens,
      beta=against.beta,
      step_score=against.step_score,
    )
