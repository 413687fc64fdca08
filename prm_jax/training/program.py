"""What a training program is, and the update that supervised programs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import math
from typing import (
  Any,
  Generic,
  NamedTuple,
  Protocol,
  runtime_checkable,
  TypeVar,
)

from flax import struct
from flax.core import meta
import jax
from jax import numpy as jnp
from jaxtyping import Array
import optax

from prm_jax import batch as batch_lib
from prm_jax.models import narrow_stacks
from prm_jax.models import sharding
from prm_jax.runtime import checks
from prm_jax.runtime import preemption
from prm_jax.text import encoding
from prm_jax.training import skip_updates
from prm_jax.training import trainable as trainable_lib

Params = Any
Metrics = dict[str, Array]
# Sums over the batch: the total of the loss, its weight, and further sums.
LossSums = tuple[Array, Array, dict[str, Array]]


@struct.dataclass
class TrainState:
  """Everything that an update changes.

  The optimizer has no state for parameters that aren't trained. The fields have
  no array types, because jax also puts shardings and shapes here.

  Args:
    step: The number of updates made, an int32 scalar.
    params: The parameters, a pytree.
    opt_state: The optimizer's state.
    skipped: The counts of skipped updates.
  """

  step: Any
  params: Params
  opt_state: Any
  skipped: Any


# What an update learns from: a batch_lib.Batch, or a rollout.
BatchT = TypeVar("BatchT")


@dataclasses.dataclass(frozen=True)
class Program(Generic[BatchT]):
  """Pure functions; each becomes a jitted, sharded program.

  Args:
    init: Returns the initial state, given a random key.
    step: Makes one update.
    finish: Returns metrics, given the sums of an update; nan is a metric that
      isn't defined, as a share of nothing.
    trains: Whether a step changes a parameter, given its path.
    evaluate: Returns the sums over one batch of held-out rows, which are added
      over batches before `finish`; None for a program that isn't evaluated on
      batches.
    updates_per_step: How many updates a step tries to make; an update may be
      skipped.
    label_sums: Returns what `evaluate` returns if the model's output is 0
      everywhere, given the parameters' shapes and a batch: the model isn't run.
      It shows which metrics the labels define.
  """

  init: Callable[[Array], TrainState]
  step: Callable[[TrainState, BatchT], tuple[TrainState, Metrics]]
  finish: Callable[[dict[str, Any]], dict[str, float]]
  trains: trainable_lib.Trains = trainable_lib.everything
  evaluate: Callable[[Params, BatchT], dict[str, Array]] | None = None
  updates_per_step: int = 1
  label_sums: Callable[[Params, BatchT], dict[str, Array]] | None = None


# (solutions, tokenizer, encoding config) -> examples and counts.
Encoder = Callable[..., tuple[list[encoding.Example], Counter[str]]]


@runtime_checkable
class Objective(Protocol):
  """What a program is trained for: the protocol of each program's own config.

  loss is a name in the program's LOSSES. compares says what is compared in
  pairs: alternatives, solutions or nothing. whole_solutions says that the loss
  is of whole solutions, which can't share prefixes. scoring holds the arguments
  of the program's `scores` besides a batch. judged says which steps the program
  trains the scores of, as one of schema.JUDGED.
  """

  @property
  def loss(self) -> str: ...

  @property
  def compares(self) -> str | None: ...

  @property
  def whole_solutions(self) -> bool: ...

  @property
  def scoring(self) -> dict[str, Any]: ...

  @property
  def judged(self) -> str: ...


class Loss(NamedTuple):
  """What a supervised program minimises, as sums over a batch.

  Args:
    outputs: Returns what the model computes, given (params, batch).
    sums: Returns LossSums, given (outputs, batch). Tokens of weight 0 add
      nothing.
    finish: Returns the metrics besides the loss, given sums over batches; nan
      is undefined.
    name: The name of the loss as a metric; it says the unit, if it has one.
  """

  outputs: Callable[[Params, batch_lib.Batch], Array]
  sums: Callable[[Array, batch_lib.Batch], LossSums]
  finish: Callable[[dict[str, Any]], dict[str, float]]
  name: str = "loss_nats"


class LossKind(NamedTuple):
  """A loss of an objective: a line of its program's table LOSSES.

  Args:
    sums: Returns LossSums, given (objective, outputs, batch).
    finish: Returns the metrics besides the loss, given sums; nan is undefined.
    in_nats: Whether total / weight is in nats; only then its metric is named
      loss_nats, otherwise loss.
    reads: The fields of the objective that few losses read.
    compares: Whether it is of pairs.
    whole_solutions: Whether it is of whole solutions, which can't share
      prefixes.
    step_classes: The numbers of classes of the step head that it trains; ()
      if it trains none.
  """

  sums: Callable[..., LossSums]
  finish: Callable[[dict[str, Any]], dict[str, float]] = lambda _: {}
  in_nats: bool = True
  reads: tuple[str, ...] = ()
  compares: bool = False
  whole_solutions: bool = False
  step_classes: tuple[int, ...] = ()


def check_unread(objective: Any, kinds: Mapping[str, LossKind]) -> None:
  """Refuses a field that is set and that the objective's loss doesn't read."""
  reads = kinds[objective.loss].reads
  for name in sorted({x for kind in kinds.values() for x in kind.reads}):
    readers = [k for k, kind in kinds.items() if name in kind.reads]
    if name not in reads:
      checks.check_unset(objective, (name,), " and ".join(readers))


def skipping_outliers(
  program: Program[BatchT], above: float
) -> Program[BatchT]:
  """Returns the program with spikes skipped too; see skip_updates.Recent."""

  def init(key: Array) -> TrainState:
    skipped = skip_updates.Skipped.none(above)
    return dataclasses.replace(program.init(key), skipped=skipped)

  return dataclasses.replace(program, init=init)


def holding(
  program: Program[BatchT], types: Mapping[tuple[str, ...], Any]
) -> Program[BatchT]:
  """Returns the program with frozen parameters in the types that are given.

  What is trained is float32, and so is what isn't given.

  Args:
    program: The program.
    types: The type of parameters, by their paths.
  """

  def hold(path: Any, x: Array) -> Array:
    names = trainable_lib.names_of(path)
    if program.trains(names) or names not in types:
      return x
    return x.astype(types[names])

  def init(key: Array) -> TrainState:
    state = program.init(key)
    params = jax.tree_util.tree_map_with_path(hold, state.params)
    return dataclasses.replace(state, params=params)

  return dataclasses.replace(program, init=init)


class Placed(NamedTuple):
  """A program's state on a mesh, and its update there.

  Args:
    shardings: The sharding of each leaf of the state.
    target: The state with shapes and types instead of arrays.
    step: The program's step, compiled for the mesh; it donates the state.
  """

  shardings: TrainState
  target: TrainState
  step: sharding.Sharded


def place(program: Program, mesh: jax.sharding.Mesh, key: Array) -> Placed:
  """Returns the place of a program's state on a mesh, and its compiled step."""
  abstract = jax.eval_shape(program.init, key)
  shardings = sharding.of_state(abstract, mesh)
  target = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    meta.unbox(abstract),
    shardings,
  )
  step = sharding.jit(
    program.step,
    mesh,
    in_shardings=(shardings, sharding.of_batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
    donate_argnums=(0,),
  )
  return Placed(shardings, target, step)


def added(
  sums_of: Callable[[Any], Mapping[str, Array]],
  batches: Iterable[batch_lib.Batch | batch_lib.Part],
  mesh: jax.sharding.Mesh,
  heartbeat: Callable[[], None] = lambda: None,
) -> dict[str, float]:
  """Returns sums over all batches.

  Args:
    sums_of: Returns the sums over a batch on the mesh.
    batches: The rows on the host.
    mesh: The devices.
    heartbeat: Called before each batch.
  """
  total: dict[str, float] = {}
  for rows in batches:
    heartbeat()
    preemption.check()
    sums = jax.device_get(sums_of(sharding.put_batch(rows, mesh)))
    total = {k: total.get(k, 0.0) + float(v) for k, v in sums.items()}
  return total


def share(part: float, whole: float) -> float:
  """Returns part / whole; nan, which stands for undefined, of nothing."""
  return part / whole if whole > 0 else math.nan


def accuracy(sums: Mapping[str, Any]) -> dict[str, float]:
  """Returns the share of `right` targets."""
  return dict(accuracy=share(sums["right"], sums["weight"]))


def by_source(
  loss: Loss, params: Params, batch: batch_lib.Batch, names: Sequence[str]
) -> LossSums:
  """Returns the sums over a batch and, as "NAME/KEY", over each source's part.

  A part is the batch with weight 0 at other sources' tokens. If the batch has
  one source, nothing is added and nothing more is computed.
  """
  outputs = loss.outputs(params, batch)
  total, weight, sums = loss.sums(outputs, batch)
  if batch.source is None:
    return total, weight, sums
  for k, name in enumerate(names):
    weights = jnp.where(batch.source == k, batch.weights, 0)
    part = dataclasses.replace(batch, weights=weights)
    part_total, part_weight, part_sums = loss.sums(outputs, part)
    own = dict(part_sums, total=part_total, weight=part_weight)
    sums |= {f"{name}/{key}": value for key, value in own.items()}
  return total, weight, sums


def finish_sources(
  finish: Callable[[dict[str, Any]], dict[str, float]],
  sums: Mapping[str, Any],
) -> dict[str, float]:
  """Returns the metrics of the sums of each source that has a target."""
  of_source: dict[str, dict[str, Any]] = {}
  for key, value in sums.items():
    name, slash, rest = key.rpartition("/")
    if slash:
      of_source.setdefault(name, {})[rest] = value
  return {
    f"{name}/{key}": value
    for name, part in of_source.items()
    if part["weight"] > 0
    for key, value in finish(part).items()
  }


def train_step(
  state: TrainState,
  batch: batch_lib.Batch,
  *,
  loss_sums: Callable[[Params, batch_lib.Batch], LossSums],
  optimizer: optax.GradientTransformation,
  microbatches: int = 1,
  trains: trainable_lib.Trains = trainable_lib.everything,
  loss_name: str = "loss_nats",
) -> tuple[TrainState, Metrics]:
  """Returns the next state and the metrics of one update on packed rows.

  The gradient is that of the loss summed over all microbatches, divided once by
  the summed weight, so accumulation doesn't change the update. Parameters that
  aren't trained have no gradient and don't change. If the update is skipped,
  neither any parameter nor the optimizer's state changes. It is skipped if it
  isn't finite, or if no target of the batch has weight: momentum and weight
  decay would move the parameters all the same.
  """
  trained, frozen = trainable_lib.split(state.params, trains)

  def total_loss(trained, rows):
    total, weight, sums = loss_sums(trainable_lib.join(trained, frozen), rows)
    return total, dict(sums, total=total, weight=weight)

  gradient = narrow_stacks.kept(jax.grad(total_loss, has_aux=True))
  if microbatches == 1:
    grads, sums = gradient(trained, batch)
  else:
    grads, sums = _accumulate(gradient, trained, batch, microbatches)
  weight = jnp.maximum(sums["weight"], 1e-6)
  grads = jax.tree.map(lambda g: g / weight, grads)
  norm = optax.tree.norm(grads)
  finite = jnp.isfinite(norm) & jnp.isfinite(sums["total"])
  loss = sums["total"] / weight
  some = sums["weight"] > 0
  is_finite, skipped = state.skipped.judge(finite, loss, norm, has_targets=some)
  trained, opt_state = skip_updates.apply_if(
    is_finite & some, optimizer, grads, state.opt_state, trained
  )
  metrics = {
    loss_name: jnp.where(some, loss, jnp.nan),
    "grad_norm": norm,
    **{k: v for k, v in sums.items() if k != "total"},
    **skipped.metrics,
  }
  params = trainable_lib.join(trained, frozen)
  return TrainState(state.step + 1, params, opt_state, skipped), metrics


def _accumulate(gradient, params, batch, microbatches):
  """Returns the gradients and sums, added over microbatches of rows."""
  rows = batch.tokens.shape[0] // microbatches

  # Every microbatch takes rows from all over the batch, so that it spreads
  # over the devices as the batch does.
  def split(x):
    return x.reshape(rows, microbatches, *x.shape[1:]).swapaxes(0, 1)

  def gradient_of(leaves):
    return gradient(params, jax.tree.unflatten(treedef, leaves))

  def add(carry, leaves):
    return jax.tree.map(jnp.add, carry, gradient_of(leaves)), None

  leaves, treedef = jax.tree.flatten(batch)
  parts = [split(x) for x in leaves]
  shapes = jax.eval_shape(gradient_of, [x[0] for x in parts])
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.scan(add, zeros, parts)[0]
