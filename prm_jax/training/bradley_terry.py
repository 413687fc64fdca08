"""The Bradley-Terry program: the better of two solutions gets the higher score.

It trains the head of a PRM or an ORM on pairs (rows.preference_pairs) and
writes a checkpoint of that program. Only differences of logits are learned: the
sigmoid of a logit ranks solutions, but 1/2 isn't a threshold.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.training import losses
from prm_jax.training import program


def sums(
  objective: Any, logits: Array, batch: batch_lib.Batch
) -> program.LossSums:
  """Returns the sums over pairs; the objective has a margin, or None for 0."""
  targets = logits, batch.labels, batch.weights, groups(batch)
  margin = objective.margin or 0.0
  total, weight = losses.bradley_terry(*targets, margin=margin)
  in_order, _ = losses.pairs_in_order(*targets)
  return total, weight, dict(in_order=in_order)


def groups(batch: batch_lib.Batch) -> batch_lib.ArrayLike:
  """Returns the batch's pair_group; refuses a batch that has none."""
  if batch.pair_group is None:
    raise errors.InputError(
      "the rows hold no pairs: encode them with rows.preference_pairs.group"
    )
  return batch.pair_group


def finish(sums) -> dict[str, float]:
  """Returns the share of pairs in order."""
  return dict(accuracy=program.share(sums["in_order"], sums["weight"]))


# Of a margin it is no likelihood, and one name serves all margins.
KIND = program.LossKind(
  sums, finish, in_nats=False, reads=("margin",), compares=True
)
