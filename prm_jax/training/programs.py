"""The programs that train on stored solutions, in one table.

No other code distinguishes programs: whatever differs between them is a field
of Trained, or of models.kinds.Kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array
import optax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.text import encoding
from prm_jax.training import implicit_prm
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import program
from prm_jax.training import sft
from prm_jax.training import skip_updates
from prm_jax.training import trainable as trainable_lib


class Trained(NamedTuple):
  """What a kind of model is trained for, on stored solutions.

  Args:
    objective: The class of its Objective.
    losses: Its losses, by name.
    outputs: Returns what the model computes, given (model, params, batch).
    encoder: Returns the Encoder, given the objective.
  """

  objective: type
  losses: Mapping[str, program.LossKind]
  outputs: Callable[..., Array]
  encoder: Callable[..., program.Encoder]


def _of_head(method: str) -> Callable[..., Array]:
  return functools.partial(transformer.apply, method=method)


# By the names of kinds.KINDS.
TRAINED: Mapping[str, Trained] = dict(
  sft=Trained(
    *(sft.SFTConfig, sft.LOSSES, _of_head("lm_logits")),
    lambda _: encoding.sft_examples,
  ),
  prm=Trained(
    *(prm.PRMConfig, prm.LOSSES, _of_head("step_logits")), prm.encoder
  ),
  orm=Trained(
    *(orm.ORMConfig, orm.LOSSES, _of_head("outcome_logits")), orm.encoder
  ),
  implicit=Trained(
    implicit_prm.ImplicitConfig,
    implicit_prm.LOSSES,
    kinds.log_ratios,
    lambda _: encoding.implicit_examples,
  ),
)


def name_of(objective: program.Objective) -> str:
  """Returns the name of an objective's program."""
  (name,) = (k for k, x in TRAINED.items() if x.objective is type(objective))
  return name


def make(
  objective: program.Objective,
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program[batch_lib.Batch]:
  """Returns the program of an objective.

  Args:
    objective: The loss and its options.
    model: The shape of the model.
    optimizer: The optimizer of the trained parameters.
    microbatches: The number of parts that a batch is divided into; their
      gradients are added.
    trainable: Which parameters are trained; see trainable.chosen.
    sources: The names of the data's sources, each of which is measured if the
      batches say which source a token is from.

  Raises:
    InputError: The loss is three_way and model.step_classes isn't 3, or the
      other way round.
  """
  name = name_of(objective)
  kind = kinds.KINDS[name]
  loss = _loss(TRAINED[name], objective, model)
  trains = trainable_lib.chosen(trainable, model, kind.heads)

  def init(key: Array) -> program.TrainState:
    params = transformer.init(key, model, kind.heads)
    trained, _ = trainable_lib.split(params, trains)
    if kind.has_reference:
      # A copy: the update donates the state, each array of it once.
      reference = jax.tree.map(jnp.copy, params)
      params = {**params, kinds.REFERENCE: reference}
    return program.TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=optimizer.init(trained),
      skipped=skip_updates.Skipped.none(),
    )

  def loss_sums(params: Any, batch: batch_lib.Batch) -> program.LossSums:
    return program.by_source(loss, params, batch, sources)

  def evaluate(params: Any, batch: batch_lib.Batch) -> dict[str, Array]:
    total, weight, sums = loss_sums(params, batch)
    return dict(sums, total=total, weight=weight)

  def label_sums(params: Any, batch: batch_lib.Batch) -> dict[str, Array]:
    shape = jax.eval_shape(loss.outputs, params, batch)
    zeros = loss._replace(
      outputs=lambda *_: jnp.zeros(shape.shape, shape.dtype)
    )
    total, weight, sums = program.by_source(zeros, params, batch, sources)
    return dict(sums, total=total, weight=weight)

  def finish_part(sums: dict[str, Any]) -> dict[str, float]:
    mean = program.share(sums["total"], sums["weight"])
    return {loss.name: mean} | loss.finish(sums)

  def finish(sums: dict[str, Any]) -> dict[str, float]:
    own = {k: v for k, v in sums.items() if "/" not in k}
    return finish_part(own) | program.finish_sources(finish_part, sums)

  step = functools.partial(
    program.train_step,
    loss_sums=loss_sums,
    optimizer=optimizer,
    microbatches=microbatches,
    trains=trains,
    loss_name=loss.name,
  )
  return program.Program(
    init, step, finish, trains, evaluate, label_sums=label_sums
  )


def _loss(
  trained: Trained,
  objective: program.Objective,
  model: model_config.ModelConfig,
) -> program.Loss:
  kind = trained.losses[objective.loss]
  if kind.step_classes and model.step_classes not in kind.step_classes:
    raise errors.InputError(
      f"loss={objective.loss!r} with model.step_classes={model.step_classes}:"
      " three_way takes 3 classes, the other losses 1 or 2"
    )
  return program.Loss(
    functools.partial(trained.outputs, model),
    functools.partial(kind.sums, objective),
    kind.finish,
    "loss_nats" if kind.in_nats else "loss",
  )
