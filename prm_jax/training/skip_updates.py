"""Skips updates that have no target or aren't finite, and, if asked to, spikes."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import struct
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float
import optax

Params = Any

# Of so many updates, and of half as many at the least: OLMo-core's
# SkipStepOptimizer and MaxText's skip_step_on_spikes have the same.
WINDOW = 128


@struct.dataclass
class Recent:
  """The losses and gradient norms of the last updates, to compare with.

  A spike is a loss or gradient norm that exceeds their mean by more than
  `above` of their standard deviations. The bound is then stored instead of the
  value, so one spike doesn't raise the next bound much, and a level that has
  changed for good counts as normal after some tens of updates.

  Args:
    values: The losses and norms in a ring, float32 [2, WINDOW].
    number: How many values the whole run stored, an int32 scalar.
    outliers: How many of them were spikes, an int32 scalar.
    above: The number of standard deviations.
  """

  values: Any
  number: Any
  outliers: Any
  above: float = struct.field(pytree_node=False)

  @classmethod
  def none(cls, above: float) -> Recent:
    # An array each: an update is given them to write over.
    number, outliers = (jnp.zeros((), jnp.int32) for _ in range(2))
    return cls(jnp.zeros((2, WINDOW)), number, outliers, above)

  def bounds(self) -> Float[Array, " 2"]:
    """Returns the largest allowed loss and norm; inf after few updates."""
    used = jnp.arange(WINDOW) < self.number
    count = jnp.minimum(self.number, WINDOW)
    mean = self.values.sum(1, where=used) / jnp.maximum(count, 1)
    squares = jnp.square(self.values - mean[:, None]).sum(1, where=used)
    deviation = jnp.sqrt(squares / jnp.maximum(count - 1, 1))
    enough = self.number >= WINDOW // 2
    return jnp.where(enough, mean + self.above * deviation, jnp.inf)

  def after(
    self, loss: Array, norm: Array, counts: Array
  ) -> tuple[Bool[Array, ""], Recent]:
    """Returns whether an update is a spike, and the values after it.

    Args:
      loss: The update's loss.
      norm: The norm of its gradient.
      counts: Whether the update is compared and stored.
    """
    values = jnp.stack([loss, norm]).astype(jnp.float32)
    bounds = self.bounds()
    outlier = (values > bounds).any() & counts
    place = self.number % WINDOW
    entered = self.values.at[:, place].set(jnp.minimum(values, bounds))
    return outlier, dataclasses.replace(
      self,
      values=jnp.where(counts, entered, self.values),
      number=self.number + counts.astype(jnp.int32),
      outliers=self.outliers + outlier.astype(jnp.int32),
    )


@struct.dataclass
class Skipped:
  """The number of skipped updates, and what a spike is compared with.

  No field has an array type, because jax also puts shardings here.

  Args:
    total: The number in the whole run of those that weren't finite or were
      spikes, an int32 scalar.
    in_a_row: The number of these since the last update that was made, an int32
      scalar.
    recent: A Recent; None if spikes aren't skipped.
    empty: The number in the whole run of those without a target, an int32
      scalar. The last field, so that saves without it can be read.
  """

  total: Any
  in_a_row: Any
  recent: Any
  empty: Any

  @classmethod
  def none(cls, above: float | None = None) -> Skipped:
    """Returns the counts at the start of a run.

    Args:
      above: The number of standard deviations of a spike (see Recent); None if
        spikes aren't skipped.
    """
    recent = None if above is None else Recent.none(above)
    total, in_a_row, empty = (jnp.zeros((), jnp.int32) for _ in range(3))
    return cls(total, in_a_row, recent, empty)

  def judge(
    self, finite: Array, loss: Array, norm: Array, has_targets: Any = True
  ) -> tuple[Array, Skipped]:
    """Returns whether an update is fit to be made, and the counts after it.

    One without a target is fit, but has nothing to learn from: it isn't made,
    isn't compared, is counted as empty, and in_a_row doesn't change.

    Args:
      finite: Whether its loss and gradient are finite.
      loss: Its loss.
      norm: The norm of its gradient.
      has_targets: Whether the batch has any target.
    """
    is_finite, recent = finite, self.recent
    if recent is not None:
      outlier, recent = recent.after(loss, norm, finite & has_targets)
      is_finite = finite & ~outlier
    bad = (~is_finite).astype(jnp.int32)
    in_a_row = jnp.where(is_finite & has_targets, 0, self.in_a_row + bad)
    empty = is_finite & jnp.logical_not(has_targets)
    return is_finite, Skipped(
      self.total + bad, in_a_row, recent, self.empty + empty.astype(jnp.int32)
    )

  @property
  def metrics(self) -> dict[str, Array]:
    counts = dict(
      skipped_total=self.total,
      skipped_in_a_row=self.in_a_row,
      skipped_empty=self.empty,
    )
    if self.recent is not None:
      counts["skipped_outliers"] = self.recent.outliers
    return counts


def apply_if(
  is_made: Array,
  optimizer: optax.GradientTransformation,
  grads: Params,
  opt_state: Any,
  trained: Params,
) -> tuple[Params, Any]:
  """Returns parameters and optimizer state after an update.

  Unless is_made, both are returned unchanged, to the bit, whatever the
  gradients hold.
  """
  updates, new_state = optimizer.update(grads, opt_state, trained)
  new = optax.apply_updates(trained, updates)
  return jax.tree.map(
    lambda new, old: jnp.where(is_made, new, old),
    (new, new_state),
    (trained, opt_state),
  )
