"""The update of a training run, as its config describes it."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import ml_collections

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config as model_config
from prm_jax.plan import compile as plan_compile
from prm_jax.runtime import config_files
from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.training import program as program_lib
from prm_jax.training import programs
from prm_jax.training import train_config
from prm_jax.training import train_run_config
from prm_jax.training import trainable


def read(
  given: verbs.Config, vocab_size: int | None = None
) -> plan_compile.Update:
  """Returns the update of the run that a config describes.

  Args:
    given: The config.
    vocab_size: The number of token ids; None is as the config says.

  Raises:
    InputError: It can't be read, or nothing says the vocabulary's size.
  """

  def form(fields: ml_collections.ConfigDict) -> config_files.Form:
    if train_run_config.names_rl(fields):
      raise errors.InputError(
        f"{given.name}: reinforcement learning runs in one process; plan knows"
        " the programs sft, prm, orm and implicit"
      )
    return train_run_config.form(fields)

  config = given.filled(form, train_run_config.prepare)
  if config.init_from and not vocab_size:
    start = files.local_path(config.init_from)
    vocab_size = model_json.read_description(start).model.vocab_size
  vocab_size = vocab_size or config.tokenizer.vocab_size
  if not vocab_size:
    raise errors.InputError(
      f"{given.name}: tokenizer.vocab_size=0: give `vocab_size`, or the size there"
    )
  types = None
  if config.init_from:
    types = saves.types(files.local_path(config.init_from))
  return update_of(train_run_config.from_config(config), vocab_size, types)


def update_of(
  run: train_config.TrainConfig,
  vocab_size: int,
  types: Mapping[tuple[str, ...], Any] | None = None,
) -> plan_compile.Update:
  """Returns the update of a run.

  Args:
    run: The run.
    vocab_size: The number of its tokenizer's ids.
    types: The types of the parameters that it starts from, by their paths, in
      which it holds what isn't trained; None is float32.
  """
  given = dict(types or {})
  given |= {(trainable.REFERENCE, *path): x for path, x in given.items()}

  def make(model, microbatches):
    changed = dataclasses.replace(run, microbatches=microbatches)
    program = train_config.make_program(changed, model)
    return program_lib.holding(program, given)

  return plan_compile.Update(
    make,
    model_config.ModelConfig(vocab_size=vocab_size, **run.model),
    batch_size=run.packing.batch_size,
    sequence_length=run.packing.sequence_length,
    microbatches=run.microbatches,
    mesh=run.mesh,
    steps=run.fit.steps,
    pairs=run.objective.compares is not None,
    notes=() if given or _trains_all(run) else (_FROZEN,),
  )


_FROZEN = (
  "what isn't trained is planned in float32, as init_from names no folder; held"
  " in bfloat16, as most published weights are, it takes half"
)


def _trains_all(run: train_config.TrainConfig) -> bool:
  kind = programs.KINDS[programs.name_of(run.objective)]
  return run.trainable == "all" and not kind.has_reference
