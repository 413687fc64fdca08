"""The kinds of programs in one table, with all that differs between them.

No other code distinguishes programs: whatever differs between them is a field
of program.Kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import pathlib
from typing import Any

from flax.core import meta
import jax
from jax import numpy as jnp
from jaxtyping import Array
import optax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.training import implicit_prm
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import program
from prm_jax.training import sft
from prm_jax.training import skip_updates
from prm_jax.training import trainable as trainable_lib

KINDS: Mapping[str, program.Kind] = dict(
  sft=sft.KIND,
  prm=prm.KIND,
  orm=orm.KIND,
  implicit=implicit_prm.KIND,
  # rl/ trains it; its saves hold critic and reference, too.
  rl=program.Kind(("lm",), writes=True, saves_more=True),
)
# Those whose checkpoints hold a policy.
POLICIES = tuple(k for k, kind in KINDS.items() if kind.writes)
# Those that training/ trains, on stored solutions.
SUPERVISED = tuple(k for k, kind in KINDS.items() if kind.objective)


def named(name: str, where: object) -> program.Kind:
  """Returns the kind with a name.

  Args:
    name: The name.
    where: Where the name was read, for the message.

  Raises:
    InputError: There is no such kind.
  """
  if name not in KINDS:
    raise errors.InputError(
      f"{where}: program={name!r}: expected one of {', '.join(KINDS)}"
    )
  return KINDS[name]


def with_article(name: str) -> str:
  """Returns "a prm", "an sft": most names are read letter by letter."""
  return f"{'a' if name.startswith('p') else 'an'} {name}"


def name_of(objective: program.Objective) -> str:
  """Returns the name of an objective's program."""
  (name,) = (k for k in SUPERVISED if KINDS[k].objective is type(objective))
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
  """
  kind = KINDS[name_of(objective)]
  assert kind.loss is not None
  loss = kind.loss(objective, model)
  trains = trainable_lib.chosen(trainable, model, kind.heads)

  def init(key: Array) -> program.TrainState:
    params = transformer.init(key, model, kind.heads)
    trained, _ = trainable_lib.split(params, trains)
    if kind.has_reference:
      # A copy: the update donates the state, each array of it once.
      reference = jax.tree.map(jnp.copy, params)
      params = {**params, trainable_lib.REFERENCE: reference}
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

  def finish(sums: dict[str, Any]) -> dict[str, float]:
    own = {k: v for k, v in sums.items() if "/" not in k}
    return loss.finish(own) | program.finish_sources(loss.finish, sums)

  step = functools.partial(
    program.train_step,
    loss_sums=loss_sums,
    optimizer=optimizer,
    microbatches=microbatches,
    trains=trains,
  )
  return program.Program(
    init, step, finish, trains, evaluate, label_sums=label_sums
  )


def load_params(
  folder: pathlib.Path,
  description: model_json.Description | None = None,
  *,
  step: saves.Step = None,
  dtype: str | None = None,
  apart: bool = False,
) -> Any:
  """Returns a checkpoint's parameters alone, on the default device.

  Args:
    folder: The checkpoint folder.
    description: The content of its model.json; None reads it.
    step: The training step; see saves.chosen.
    dtype: The dtype of the parameters; None is that of the saved ones, which
      may be bfloat16 if they were imported.
    apart: Whether each layer's parameters are arrays of their own.

  Raises:
    DamagedError: The parameters aren't what was saved.
    InputError: There is no checkpoint, or it isn't of the described model.
  """
  folder = pathlib.Path(folder)
  description = description or model_json.read_description(folder)
  kind = named(description.program, folder / model_json.DESCRIPTION)
  abstract = jax.eval_shape(
    lambda key: meta.unbox(
      transformer.init(key, description.model, kind.heads)
    ),
    jax.random.key(0),
  )
  if kind.has_reference:
    abstract = {**abstract, trainable_lib.REFERENCE: abstract}
  return saves.load_params(
    folder,
    abstract,
    description=description,
    step=step,
    partly=kind.saves_more,
    dtype=dtype,
    apart=apart,
  )
