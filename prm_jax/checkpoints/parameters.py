"""A checkpoint's parameters alone, as its kind of model has them."""

from __future__ import annotations

import pathlib
from typing import Any

from flax.core import meta
import jax

from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import transformer


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
  kind = kinds.named(description.program, folder / model_json.DESCRIPTION)
  abstract = jax.eval_shape(
    lambda key: meta.unbox(
      transformer.init(key, description.model, kind.heads)
    ),
    jax.random.key(0),
  )
  if kind.has_reference:
    abstract = {**abstract, kinds.REFERENCE: abstract}
  return saves.load_params(
    folder,
    abstract,
    description=description,
    step=step,
    partly=kind.saves_more,
    dtype=dtype,
    apart=apart,
  )
