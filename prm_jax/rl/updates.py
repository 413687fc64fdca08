"""The updates on the rows of one rollout, by a policy loss.

A step of the program takes a rollout and makes epochs x minibatches updates on
it, in one compiled call. Its rows come in microbatches of one shape. A
minibatch uses only as many of them as its solutions fill, so empty ones cost
nothing.

The policy's own parameters are at the top of params, with a value head if the
critic shares its trunk. Whole models of the other roles are in "reference",
"critic" and "implicit". The reference is never trained; if it is the base of
the policy's adapters, it has no parameters of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

from flax import struct
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped
import optax

from prm_jax import batch as batch_lib
from prm_jax.batch import ArrayLike
from prm_jax.models import lora
from prm_jax.models import model_config as model_config
from prm_jax.models import narrow_stacks
from prm_jax.models import transformer
from prm_jax.rl import advantages
from prm_jax.rl import policy_losses as policy_losses
from prm_jax.rl import rows as rows_lib
from prm_jax.runtime import checks
from prm_jax.training import losses
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib
from prm_jax.training import skip_updates
from prm_jax.training import trainable

REFERENCE, CRITIC, IMPLICIT = trainable.REFERENCE, "critic", "implicit"
ROLES = (REFERENCE, CRITIC, IMPLICIT)


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
  """The updates of a run, except what each of them minimises.

  Args:
    policy: The policy's optimizer.
    critic: The critic's optimizer.
    implicit: The implicit PRM's optimizer.
    rollouts: The number of rollouts of the whole run.
    epochs: The number of passes over each rollout.
    trainable: Which of the policy's parameters are trained.
    temperature: The temperature at which rollouts are sampled.
    num_solutions: The number of solutions of a rollout.
    moving_decay: The decay of the moving baseline.
    implicit_beta: The beta of an implicit PRM.
  """

  policy: optimizer_lib.OptimizerConfig
  critic: optimizer_lib.OptimizerConfig
  implicit: optimizer_lib.OptimizerConfig
  rollouts: int
  epochs: int = 1
  trainable: str = "all"
  temperature: float = 1.0
  num_solutions: int = 1
  moving_decay: float = 0.9
  implicit_beta: float = 0.05

  def __post_init__(self):
    checks.check_counts(self, ("epochs",))
    checks.check_positive(self, ("implicit_beta",))


@struct.dataclass
class Rollout:
  """The rows of one rollout, all [B, T]; B = rows x minibatches x microbatches.

  Row (r * minibatches + m) * microbatches + j is row r of microbatch j of
  minibatch m.

  Args:
    batch: Its labels hold the outcome, its weights the loss weights: 0 at
      tokens that the policy didn't sample.
    old_log_probs: The log-probability that a token was sampled with, in nats.
    reference: The reference's log-probability, in nats.
    advantages: The advantage of each token.
    values: The critic's values at the rollout.
    returns: The critic's targets.
    implicit_weights: The weight of its solution, at each token that an implicit
      PRM sums over.
    totals: The return of the whole solution, where `firsts` is true.
    firsts: Whether a token is the first of a solution that counts.
  """

  batch: batch_lib.Batch
  old_log_probs: Float[ArrayLike, "B T"]
  reference: Float[ArrayLike, "B T"]
  advantages: Float[ArrayLike, "B T"]
  values: Float[ArrayLike, "B T"]
  returns: Float[ArrayLike, "B T"]
  implicit_weights: Float[ArrayLike, "B T"]
  totals: Float[ArrayLike, "B T"]
  firsts: Bool[ArrayLike, "B T"]


@struct.dataclass
class Controller:
  """What a run keeps between updates besides parameters.

  Args:
    kl_weight: The coefficient of the KL.
    mean: The moving baseline.
  """

  kl_weight: Any
  mean: Any


class Models(NamedTuple):
  """The models of the roles that have parameters; None for an absent one."""

  policy: model_config.ModelConfig
  critic: model_config.ModelConfig | None = None
  implicit: model_config.ModelConfig | None = None
  reference: model_config.ModelConfig | None = None


def policy_of(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the policy's own parameters."""
  return {k: v for k, v in params.items() if k not in ROLES}


def reference_of(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the reference's parameters.

  If there are none of its own, it is the policy with its adapters off.
  """
  if REFERENCE in params:
    return params[REFERENCE]
  return lora.without(policy_of(params))


def rollout_step(
  state: program_lib.TrainState,
  rollout: Rollout,
  *,
  models: Models,
  loss: policy_losses.LossConfig,
  shape: rows_lib.RowsConfig,
  update: UpdateConfig,
  optimizer: optax.GradientTransformation,
  trains: trainable.Trains,
) -> tuple[program_lib.TrainState, program_lib.Metrics]:
  """Returns the state after all updates on a rollout, and their metrics.

  An update that is skipped changes nothing and is counted. A minibatch without
  a solution that counts is skipped too, but isn't a failure.
  """
  trained, frozen = trainable.split(state.params, trains)
  controller = state.opt_state["controller"]
  leaves, treedef = jax.tree.flatten(rollout)
  parts = [_in_microbatches(leaf, shape) for leaf in leaves]

  def loss_sums(trained, rows):
    params = trainable.join(trained, frozen)
    return _loss(models, loss, update, params, rows, controller.kl_weight)

  gradient = narrow_stacks.kept(jax.grad(loss_sums, has_aux=True))
  used = _num_used(_in_microbatches(rollout.batch.parent, shape))

  def update_once(carry, minibatch):
    trained, opt_state, skipped = carry

    def of_microbatch(j):
      rows = [part[minibatch, j] for part in parts]
      return gradient(trained, jax.tree.unflatten(treedef, rows))

    grads, sums = _summed(of_microbatch, used[minibatch])
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"])
    some = sums["drawn"] > 0
    is_finite, skipped = skipped.judge(
      finite, sums["loss"], norm, has_targets=some
    )
    # Without a solution the moments and the decay would still make a step.
    is_made = is_finite & some
    trained, opt_state = skip_updates.apply_if(
      is_made, optimizer, grads, opt_state, trained
    )
    empty = (is_finite & ~is_made).astype(jnp.float32)
    sums |= dict(grad_norm=norm, skipped=1.0 - is_finite, empty=empty)
    return (trained, opt_state, skipped), sums

  order = jnp.tile(jnp.arange(shape.minibatches), update.epochs)
  carry = (trained, state.opt_state["optimizer"], state.skipped)
  carry, sums = jax.lax.scan(update_once, carry, order)
  trained, opt_state, skipped = carry
  metrics = _metrics(sums)
  controller = _next_controller(
    controller, rollout, metrics, loss=loss, update=update
  )
  new = program_lib.TrainState(
    state.step + 1,
    trainable.join(trained, frozen),
    dict(optimizer=opt_state, controller=controller),
    skipped,
  )
  return new, metrics | dict(kl_weight=controller.kl_weight, **skipped.metrics)


def _next_controller(
  controller: Controller,
  rollout: Rollout,
  metrics: program_lib.Metrics,
  *,
  loss: policy_losses.LossConfig,
  update: UpdateConfig,
) -> Controller:
  """Returns the KL's coefficient and the moving baseline after a rollout."""
  kl_weight = controller.kl_weight
  if loss.kl_target is not None:
    adapted = policy_losses.adapted(
      kl_weight,
      metrics["kl_nats"],
      target=loss.kl_target,
      horizon=loss.kl_horizon,
      solutions=update.num_solutions,
    )
    kl_weight = jnp.where(jnp.isfinite(adapted), adapted, kl_weight)
  _, mean = advantages.moving(
    controller.mean, rollout.totals, rollout.firsts, update.moving_decay
  )
  mean = jax.tree.map(
    lambda new, old: jnp.where(jnp.isfinite(new), new, old),
    mean,
    controller.mean,
  )
  return Controller(kl_weight, mean)


def _loss(models, loss, update, params, rows: Rollout, kl_weight):
  """Returns a microbatch's part of the loss and of the metrics."""
  batch = rows.batch
  weights = jnp.asarray(batch.weights)
  outputs = transformer.token_outputs(
    models.policy,
    policy_of(params),
    batch,
    values=loss.critic == "shared",
    temperature=update.temperature,
  )
  log_probs = outputs.log_probs
  policy_loss = policy_losses.POLICY_LOSSES[loss.kind]
  total, _, stopped = policy_loss.sums(
    log_probs, rows.old_log_probs, rows.advantages, weights, loss
  )
  drawn = (weights > 0).astype(jnp.float32)
  entropy = (outputs.entropies * weights).sum()
  sums = dict(policy_loss=total, clipped=stopped, entropy_nats=entropy)
  total -= loss.entropy * entropy
  if loss.kl_placement == "loss":
    distance = policy_losses.kl(
      log_probs, rows.reference, weights, estimator=loss.kl_estimator
    )
    total += kl_weight * (distance * weights).sum()
  if models.reference is not None:
    k3 = policy_losses.kl(log_probs, rows.reference, weights, estimator="k3")
    sums["kl_nats"] = (k3 * drawn).sum()
  values = outputs.values
  if models.critic is not None:
    values = transformer.token_values(models.critic, params[CRITIC], batch)
  if values is not None:
    error, _ = policy_losses.value_loss(
      values, rows.values, rows.returns, weights, clip=loss.value_clip
    )
    total += loss.value * error
    sums["value_loss"] = error
  if models.implicit is not None:
    total += _implicit_loss(models.implicit, update.implicit_beta, params, rows)
  log_ratios = policy_losses.log_ratios(log_probs, rows.old_log_probs, weights)
  sums |= dict(
    loss=total,
    weight=weights.sum(),
    drawn=drawn.sum(),
    old_policy_kl=((jnp.exp(log_ratios) - 1 - log_ratios) * drawn).sum(),
    max_log_ratio=jnp.abs(log_ratios).max(),
  )
  return total, sums


def _implicit_loss(model, beta, params, rows: Rollout):
  """Returns PRIME's cross-entropy of outcomes, weighted by solution."""
  model_params = params[IMPLICIT]
  log_pi = transformer.token_log_probs(model, model_params, rows.batch)
  reference = jax.lax.stop_gradient(rows.reference)
  total, _ = losses.implicit_ce(
    log_pi - reference,
    rows.batch.labels,
    rows.implicit_weights,
    rows.batch.visible_until,
    beta=beta,
  )
  return total


def _in_microbatches(
  values: Shaped[ArrayLike, "B T"], shape: rows_lib.RowsConfig
) -> Shaped[Array, "minibatches J rows T"]:
  """Returns an array of rows as [minibatch, microbatch, row, token]."""
  values = jnp.asarray(values)
  parts = values.reshape(
    shape.batch_size, shape.minibatches, -1, values.shape[-1]
  )
  return parts.transpose(1, 2, 0, 3)


def _num_used(
  parent: Int[Array, "minibatches J rows T"],
) -> Int[Array, " minibatches"]:
  """Returns how many microbatches of each minibatch aren't empty."""
  in_use = (parent >= 0).any((2, 3))
  number = jnp.arange(1, in_use.shape[1] + 1)
  return jnp.where(in_use, number, 0).max(1)


def _summed(function: Callable, used: Int[Array, ""]):
  """Returns the sums of a function over the microbatches in use.

  "max_log_ratio" is the maximum instead.
  """

  def add(carry):
    j, (grads, sums) = carry
    more, new = function(j)
    grads = jax.tree.map(jnp.add, grads, more)
    largest = jnp.maximum(sums["max_log_ratio"], new["max_log_ratio"])
    sums = jax.tree.map(jnp.add, sums, new) | dict(max_log_ratio=largest)
    return j + 1, (grads, sums)

  shapes = jax.eval_shape(function, 0)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  _, sums = jax.lax.while_loop(lambda c: c[0] < used, add, (0, zeros))
  return sums


def _metrics(sums) -> program_lib.Metrics:
  """Returns the metrics of a rollout's updates.

  They are means over the updates that learned something, nan if none did.
  max_log_ratio is that of the first update, whose policy sampled the rollout.
  """
  learned = (sums["skipped"] == 0) & (sums["drawn"] > 0)

  def mean(values):
    return jnp.where(learned, values, 0).sum() / learned.sum()

  per_token = {"kl_nats", "old_policy_kl"} & sums.keys()
  weighted = {"clipped", "entropy_nats"}
  metrics = {k: mean(sums[k]) for k in ("policy_loss", "loss", "grad_norm")}
  metrics |= {k: mean(sums[k] / sums["drawn"].clip(1)) for k in per_token}
  metrics |= {k: mean(sums[k] / sums["weight"].clip(1e-9)) for k in weighted}
  if "value_loss" in sums:
    metrics["value_loss"] = mean(sums["value_loss"])
  return dict(
    metrics,
    skipped_updates=sums["skipped"].sum(),
    empty_updates=sums["empty"].sum(),
    max_log_ratio=sums["max_log_ratio"][0],
  )
