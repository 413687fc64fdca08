"""The Bradley-Terry program: the better of two solutions gets the higher score.

It trains the head of a PRM or an ORM on pairs (rows.preference_pairs) and
writes a checkpoint of that program. Only differences of logits are learned: the
sigmoid of a logit ranks solutions, but 1/2 isn't a threshold.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax.training import losses
from prm_jax.training import program


def sums(
  objective: Any, logits: Array, batch: batch_lib.Batch
) -> program.LossSums:
  """Returns the sums over pairs; the objective has a margin, or None for 0."""
  assert batch.pair_group is not None, "rows.preference_pairs.group makes pairs"
  targets = logits, batch.labels, batch.weights, batch.pair_group
  margin = objective.margin or 0.0
  total, weight = losses.bradley_terry(*targets, margin=margin)
  in_order, _ = losses.pairs_in_order(*targets)
  return total, weight, dict(in_order=in_order)


def finish(sums) -> dict[str, float]:
  """Returns the share of pairs in order."""
  return dict(accuracy=program.share(sums["in_order"], sums["weight"]))


# Of a margin it is no likelihood, and one name serves all margins.
KIND = program.LossKind(
  sums, finish, in_nats=False, reads=("margin",), compares=True
)
