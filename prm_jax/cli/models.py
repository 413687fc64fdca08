"""Loads the models that a command's options name."""

from __future__ import annotations

import pathlib

from prm_jax import errors
from prm_jax.cli import model_arguments
from prm_jax.evaluation import scores
from prm_jax.inference import checkpoint as checkpoint_lib
from prm_jax.runtime import files


def source(
  checkpoint: pathlib.Path | None,
  path: files.PathLike | None,
  how: model_arguments.Models,
) -> scores.Source:
  """Returns where step scores come from: a checkpoint, or a file of scores.

  Args:
    checkpoint: The folder of the reward model.
    path: The file.
    how: How the checkpoint is loaded.

  Raises:
    InputError: An option of a checkpoint is given without one.
  """
  given = (how.step, how.dtype, how.batch_tokens)
  if checkpoint is not None:
    model = checkpoint_lib.RewardModel(checkpoint, *given)
    return scores.Source(model, path)
  for name, value in zip(("step", "dtype", "batch_tokens"), given):
    if value is not None:
      raise errors.InputError(f"`{name}={value}`: give `checkpoint` with it")
  return scores.Source(None, path)
