"""The program that learns from rollouts: its parameters and optimizers.

Its step is in rl/updates.py.
"""

from __future__ import annotations

import functools
from typing import Any

from flax import traverse_util
import jax
from jax import numpy as jnp
from jaxtyping import Array
import optax

from prm_jax.models import transformer
from prm_jax.rl import advantages
from prm_jax.rl import policy_losses as policy_losses
from prm_jax.rl import rows as rows_lib
from prm_jax.rl import updates
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib
from prm_jax.training import skip_updates
from prm_jax.training import trainable

Params = Any


def heads(loss: policy_losses.LossConfig) -> tuple[str, ...]:
  """Returns the heads on the policy's trunk."""
  return ("lm", "value") if loss.critic == "shared" else ("lm",)


def make(
  models: updates.Models,
  *,
  loss: policy_losses.LossConfig,
  shape: rows_lib.RowsConfig,
  update: updates.UpdateConfig,
  shares_reference: bool = False,
) -> program_lib.Program[updates.Rollout]:
  """Returns the program that learns from rollouts.

  Args:
    models: The models of the roles.
    loss: What an update minimises.
    shape: The shape of a rollout's rows.
    update: The optimizers, and how often they are used.
    shares_reference: Whether the reference is the policy with its adapters off;
      see updates.reference_of.
  """
  own_heads = heads(loss)
  policy_trains = trainable.chosen(update.trainable, models.policy, own_heads)

  def trains(path: tuple[str, ...]) -> bool:
    if path[0] in (updates.CRITIC, updates.IMPLICIT):
      return True
    return path[0] != updates.REFERENCE and policy_trains(path)

  optimizer = _optimizer(update, shape.minibatches)

  def init(key: Array) -> program_lib.TrainState:
    params = transformer.init(key, models.policy, own_heads)
    if models.reference is not None and not shares_reference:
      params[updates.REFERENCE] = _copy_of(key, models.reference, ("lm",))
    if models.critic is not None:
      params[updates.CRITIC] = _copy_of(key, models.critic, ("value",))
    if models.implicit is not None:
      params[updates.IMPLICIT] = _copy_of(key, models.implicit, ("lm",))
    trained = trainable.split(params, trains)[0]
    return program_lib.TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=dict(
        optimizer=optimizer.init(trained),
        controller=updates.Controller(
          jnp.float32(loss.kl), advantages.no_mean()
        ),
      ),
      skipped=skip_updates.Skipped.none(),
    )

  step = functools.partial(
    updates.rollout_step,
    models=models,
    loss=loss,
    shape=shape,
    update=update,
    optimizer=optimizer,
    trains=trains,
  )
  return program_lib.Program(
    init,
    step,
    dict,
    trains,
    updates_per_step=update.epochs * shape.minibatches,
  )


def _copy_of(key, model, heads):
  # Leaves of their own: a state is donated, each array of it once.
  return transformer.init(jax.random.fold_in(key, len(heads)), model, heads)


def _optimizer(
  update: updates.UpdateConfig, minibatches: int
) -> optax.GradientTransformation:
  """Returns the roles' optimizers; each clips its own gradient."""
  steps = update.rollouts * update.epochs * minibatches
  chains = dict(
    policy=update.policy, critic=update.critic, implicit=update.implicit
  )

  def role(params):
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
      {path: path[0] if path[0] in updates.ROLES else "policy" for path in flat}
    )

  return optax.partition(
    {name: optimizer_lib.make(chain, steps) for name, chain in chains.items()},
    role,
  )
