"""The Bradley-Terry program: the better of two solutions gets the higher score.

It trains the head of a PRM or an ORM on pairs (rows.preference_pairs) and
writes a checkpoint of that program. Only differences of logits are learned: the
sigmoid of a logit ranks solutions, but 1/2 isn't a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.training import losses
from prm_jax.training import program


def make_loss(
  outputs: Callable[[Any, batch_lib.Batch], Array], margin: float
) -> program.Loss:
  """Returns the loss of pairs.

  Args:
    outputs: A function of (params, batch) that returns logits [B, T].
    margin: See losses.bradley_terry.
  """

  def sums(logits: Array, batch: batch_lib.Batch) -> program.LossSums:
    targets = logits, batch.labels, batch.weights, groups(batch)
    total, weight = losses.bradley_terry(*targets, margin=margin)
    in_order, _ = losses.pairs_in_order(*targets)
    return total, weight, dict(in_order=in_order)

  return program.Loss(outputs, sums, finish)


def groups(batch: batch_lib.Batch) -> batch_lib.ArrayLike:
  """Returns the batch's pair_group; refuses a batch that has none."""
  if batch.pair_group is None:
    raise errors.InputError(
      "the rows hold no pairs: encode them with data.preference_pairs.group"
    )
  return batch.pair_group


def finish(sums) -> dict[str, float]:
  """Returns the loss per pair in nats, and the share of pairs in order."""
  return dict(
    loss_nats=program.share(sums["total"], sums["weight"]),
    accuracy=program.share(sums["in_order"], sums["weight"]),
  )
