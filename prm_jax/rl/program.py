"""The RL program: REINFORCE, PPO or imitation updates on the rows of one rollout.

One step of the program takes a rollout and makes epochs x minibatches updates
on it, in one compiled call. Its rows come in microbatches of one shape; a
minibatch uses as many of them as its solutions fill, so that what isn't there
costs nothing.

Parameters: the policy's own at the top, with a value head if the critic shares
its trunk; below "reference", "critic" and "implicit" whole models of the other
roles. The reference is never trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

from flax import struct
from flax import traverse_util
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped
import optax

from prm_jax import batch as batch_lib
from prm_jax.batch import ArrayLike
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.rl import advantages
from prm_jax.rl import config as rl_config
from prm_jax.rl import losses as policy_losses
from prm_jax.training import losses
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib
from prm_jax.training import skip_updates
from prm_jax.training import trainable

Params = Any
REFERENCE, CRITIC, IMPLICIT = trainable.REFERENCE, "critic", "implicit"
ROLES = (REFERENCE, CRITIC, IMPLICIT)


@struct.dataclass
class Rollout:
  """The rows of one update, all [B, T]; B = rows x minibatches x microbatches.

  batch: its labels hold the outcome, its weights the normalisation, 0 at
  tokens that the policy didn't draw. Row (r * minibatches + m) * microbatches
  + j is row r of microbatch j of minibatch m. behaviour: the log-probability a
  token was drawn with; reference: the reference's. values, returns: of the
  critic at the rollout, and what it learns. implicit_weights: that of its
  solution at each token that an implicit PRM sums over. totals: at the first
  token of each solution that counts, where `firsts` is, the return of the
  whole.
  """

  batch: batch_lib.Batch
  behaviour: Float[ArrayLike, "B T"]
  reference: Float[ArrayLike, "B T"]
  advantages: Float[ArrayLike, "B T"]
  values: Float[ArrayLike, "B T"]
  returns: Float[ArrayLike, "B T"]
  implicit_weights: Float[ArrayLike, "B T"]
  totals: Float[ArrayLike, "B T"]
  firsts: Bool[ArrayLike, "B T"]

  @property
  def tokens(self) -> Int[ArrayLike, "B T"]:
    return self.batch.tokens

  @property
  def visible_until(self) -> Int[ArrayLike, "B T"]:
    return self.batch.visible_until

  @property
  def parent(self) -> Int[ArrayLike, "B T"]:
    return self.batch.parent


@struct.dataclass
class Controller:
  """What a run remembers between updates besides parameters.

  kl_weight: the KL's coefficient. mean: the moving baseline.
  """

  kl_weight: Any
  mean: Any


class Models(NamedTuple):
  """The models of the roles that have parameters; None where there is none."""

  policy: model_config.ModelConfig
  critic: model_config.ModelConfig | None = None
  implicit: model_config.ModelConfig | None = None
  reference: model_config.ModelConfig | None = None


def policy_of(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the policy's own parameters."""
  return {k: v for k, v in params.items() if k not in ROLES}


def heads(config: rl_config.RLConfig) -> tuple[str, ...]:
  """Returns the heads on the policy's trunk."""
  return ("lm", "value") if config.loss.critic == "shared" else ("lm",)


def make(
  models: Models, config: rl_config.RLConfig
) -> program_lib.Program[Rollout]:
  """Returns the program that learns from rollouts."""
  policy_trains = trainable.chosen(
    config.trainable, models.policy, heads(config)
  )

  def trains(path: tuple[str, ...]) -> bool:
    if path[0] in (CRITIC, IMPLICIT):
      return True
    return path[0] != REFERENCE and policy_trains(path)

  optimizer = _optimizer(config)

  def init(key: Array) -> program_lib.TrainState:
    params = transformer.init(key, models.policy, heads(config))
    if models.reference is not None:
      params[REFERENCE] = _copy_of(key, models.reference, ("lm",))
    if models.critic is not None:
      params[CRITIC] = _copy_of(key, models.critic, ("value",))
    if models.implicit is not None:
      params[IMPLICIT] = _copy_of(key, models.implicit, ("lm",))
    trained = trainable.split(params, trains)[0]
    return program_lib.TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=dict(
        optimizer=optimizer.init(trained),
        controller=Controller(
          jnp.float32(config.loss.kl), advantages.no_mean()
        ),
      ),
      skipped=skip_updates.Skipped.none(),
    )

  step = functools.partial(
    rollout_step,
    models=models,
    config=config,
    optimizer=optimizer,
    trains=trains,
  )
  return program_lib.Program(init, step, dict, trains)


def _copy_of(key, model, heads):
  # Leaves of their own: a state is donated, each array of it once.
  return transformer.init(jax.random.fold_in(key, len(heads)), model, heads)


def _optimizer(config: rl_config.RLConfig) -> optax.GradientTransformation:
  """Returns the roles' optimizers; each clips its own gradient."""
  steps = config.fit.steps * config.updates_per_rollout
  chains = dict(
    policy=config.optimizer,
    critic=config.critic_optimizer,
    implicit=config.implicit_optimizer,
  )

  def role(params):
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
      {path: path[0] if path[0] in ROLES else "policy" for path in flat}
    )

  return optax.partition(
    {name: optimizer_lib.make(x, steps) for name, x in chains.items()}, role
  )


def rollout_step(
  state: program_lib.TrainState,
  rollout: Rollout,
  *,
  models: Models,
  config: rl_config.RLConfig,
  optimizer: optax.GradientTransformation,
  trains: trainable.Trains,
) -> tuple[program_lib.TrainState, program_lib.Metrics]:
  """Returns the state after all updates on a rollout, and their metrics.

  An update that is skipped changes nothing and is counted; so is a minibatch
  without a solution that counts, which is no failure.
  """
  trained, frozen = trainable.split(state.params, trains)
  controller = state.opt_state["controller"]
  leaves, treedef = jax.tree.flatten(rollout)
  parts = [_in_microbatches(x, config) for x in leaves]

  def loss(trained, rows):
    params = trainable.join(trained, frozen)
    return _loss(models, config, params, rows, controller.kl_weight)

  gradient = jax.grad(loss, has_aux=True)
  used = _num_used(_in_microbatches(rollout.batch.parent, config))

  def update(carry, minibatch):
    trained, opt_state, skipped = carry

    def of_microbatch(j):
      rows = [x[minibatch, j] for x in parts]
      return gradient(trained, jax.tree.unflatten(treedef, rows))

    grads, sums = _summed(of_microbatch, used[minibatch])
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"])
    some = sums["drawn"] > 0
    is_finite, skipped = skipped.judge(
      finite, sums["loss"], norm, has_targets=some
    )
    # Of nothing there is still a step to make: the moments', and decay.
    has_targets = is_finite & some
    trained, opt_state = skip_updates.apply_if(
      has_targets, optimizer, grads, opt_state, trained
    )
    empty = (is_finite & ~has_targets).astype(jnp.float32)
    sums |= dict(grad_norm=norm, skipped=1.0 - is_finite, empty=empty)
    return (trained, opt_state, skipped), sums

  order = jnp.tile(jnp.arange(config.minibatches), config.epochs)
  carry = (trained, state.opt_state["optimizer"], state.skipped)
  carry, sums = jax.lax.scan(update, carry, order)
  trained, opt_state, skipped = carry
  metrics = _metrics(sums, config)
  kl_weight = controller.kl_weight
  if config.loss.kl_target is not None:
    adapted = policy_losses.adapted(
      kl_weight,
      metrics["kl_nats"],
      target=config.loss.kl_target,
      horizon=config.loss.kl_horizon,
      solutions=config.rollout.num_solutions,
    )
    kl_weight = jnp.where(jnp.isfinite(adapted), adapted, kl_weight)
  _, mean = advantages.moving(
    controller.mean, rollout.totals, rollout.firsts, config.credit.moving_decay
  )
  mean = jax.tree.map(
    lambda new, old: jnp.where(jnp.isfinite(new), new, old),
    mean,
    controller.mean,
  )
  controller = Controller(kl_weight, mean)
  new = program_lib.TrainState(
    state.step + 1,
    trainable.join(trained, frozen),
    dict(optimizer=opt_state, controller=controller),
    skipped,
  )
  return new, metrics | dict(kl_weight=kl_weight, **skipped.metrics)


def _loss(models, config, params, rows: Rollout, kl_weight):
  """Returns a microbatch's part of the loss, and of the metrics."""
  batch, c = rows.batch, config.loss
  weights = jnp.asarray(batch.weights)
  found = transformer.token_outputs(
    models.policy,
    policy_of(params),
    batch,
    values=c.critic == "shared",
    temperature=config.rollout.temperature,
  )
  log_probs = found.log_probs
  stopped = jnp.zeros(())
  if c.kind == "ppo":
    total, _, stopped = policy_losses.ppo_clip(
      log_probs,
      rows.behaviour,
      rows.advantages,
      weights,
      clip_low=c.clip_low,
      clip_high=c.clip_high,
    )
  else:
    pushed = rows.advantages
    if c.kind == "imitate":
      pushed = jnp.ones_like(log_probs)
    total, _ = policy_losses.reinforce(log_probs, pushed, weights)
  drawn = (weights > 0).astype(jnp.float32)
  entropy = (found.entropies * weights).sum()
  sums = dict(policy_loss=total, clipped=stopped, entropy_nats=entropy)
  total -= c.entropy * entropy
  if c.kl_in == "loss":
    distance = policy_losses.kl(
      log_probs, rows.reference, weights, estimator=c.kl_estimator
    )
    total += kl_weight * (distance * weights).sum()
  if models.reference is not None:
    k3 = policy_losses.kl(log_probs, rows.reference, weights, estimator="k3")
    sums["kl_nats"] = (k3 * drawn).sum()
  values = found.values
  if models.critic is not None:
    values = transformer.token_values(models.critic, params[CRITIC], batch)
  if values is not None:
    error, _ = policy_losses.value_loss(
      values, rows.values, rows.returns, weights, clip=c.value_clip
    )
    total += c.value * error
    sums["value_loss"] = error
  if models.implicit is not None:
    total += _implicit_loss(models.implicit, config, params, rows)
  drift = policy_losses.log_ratios(log_probs, rows.behaviour, weights)
  sums |= dict(
    loss=total,
    weight=weights.sum(),
    drawn=drawn.sum(),
    behaviour_kl=((jnp.exp(drift) - 1 - drift) * drawn).sum(),
    drift=jnp.abs(drift).max(),
  )
  return total, sums


def _implicit_loss(model, config, params, rows: Rollout):
  """Returns PRIME's cross-entropy of outcomes, weighed by solution."""
  model_params = params[IMPLICIT]
  log_pi = transformer.token_log_probs(model, model_params, rows.batch)
  reference = jax.lax.stop_gradient(rows.reference)
  total, _ = losses.implicit_ce(
    log_pi - reference,
    rows.batch.labels,
    rows.implicit_weights,
    rows.batch.visible_until,
    beta=config.implicit_beta,
  )
  return total


def _in_microbatches(
  x: Shaped[ArrayLike, "B T"], config: rl_config.RLConfig
) -> Shaped[Array, "minibatches J rows T"]:
  """Returns an array of rows as [minibatch, microbatch, row, token]."""
  x = jnp.asarray(x)
  x = x.reshape(config.rows, config.minibatches, -1, x.shape[-1])
  return x.transpose(1, 2, 0, 3)


def _num_used(
  parent: Int[Array, "minibatches J rows T"],
) -> Int[Array, " minibatches"]:
  """Returns how many microbatches of each minibatch hold anything."""
  in_use = (parent >= 0).any((2, 3))
  number = jnp.arange(1, in_use.shape[1] + 1)
  return jnp.where(in_use, number, 0).max(1)


def _summed(function: Callable, used: Int[Array, ""]):
  """Returns the sums of a function of microbatches, over those in use.

  The maximum, of "drift".
  """

  def add(carry):
    j, (grads, sums) = carry
    more, new = function(j)
    grads = jax.tree.map(jnp.add, grads, more)
    drift = jnp.maximum(sums["drift"], new["drift"])
    sums = jax.tree.map(jnp.add, sums, new) | dict(drift=drift)
    return j + 1, (grads, sums)

  shapes = jax.eval_shape(function, 0)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  _, found = jax.lax.while_loop(lambda c: c[0] < used, add, (0, zeros))
  return found


def _metrics(sums, config: rl_config.RLConfig) -> program_lib.Metrics:
  """Returns the metrics of a rollout's updates from those of each.

  Means over those that learned something, nan if none did; drift is the first's,
  whose policy is the one that sampled.
  """
  learned = (sums["skipped"] == 0) & (sums["drawn"] > 0)

  def mean(x):
    return jnp.where(learned, x, 0).sum() / learned.sum()

  per_token = {"kl_nats", "behaviour_kl"} & sums.keys()
  weighed = {"clipped", "entropy_nats"}
  found = {k: mean(sums[k]) for k in ("policy_loss", "loss", "grad_norm")}
  found |= {k: mean(sums[k] / sums["drawn"].clip(1)) for k in per_token}
  found |= {k: mean(sums[k] / sums["weight"].clip(1e-9)) for k in weighed}
  if "value_loss" in sums:
    found["value_loss"] = mean(sums["value_loss"])
  return dict(
    found,
    skipped_updates=sums["skipped"].sum(),
    empty_updates=sums["empty"].sum(),
    log_prob_drift=sums["drift"][0],
  )
