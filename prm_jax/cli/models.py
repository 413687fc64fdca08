"""Loads the models that a command's options name.

What is computed in another type than the checkpoint names says so in what
journals depend on. So a run that asks for the checkpoint's own type resumes one
that asks for none.
"""

from __future__ import annotations

import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.cli import model_arguments
from prm_jax.evaluation import scores
from prm_jax.inference import checkpoint as checkpoint_lib
from prm_jax.inference import sampler
from prm_jax.inference import score_sources
from prm_jax.inference import scorer as scorer_lib
from prm_jax.runtime import files


def policy(name: str, how: model_arguments.Models) -> sampler.Sampler:
  """Returns the policy of a checkpoint folder.

  Args:
    name: The folder.
    how: How it is loaded.
  """
  folder = files.local_path(name)
  return sampler.load(folder, how.step, compute_dtype=how.dtype)


def asked(name: str, how: model_arguments.Models) -> dict[str, Any]:
  """Returns what is known of `depends_on` before the model is loaded.

  Args:
    name: What the option names; of what is no checkpoint folder nothing is
      known.
    how: How it will be loaded.
  """
  folder = pathlib.Path(name)
  if not (folder / model_json.DESCRIPTION).is_file():
    return {}
  own = model_json.read_description(folder).model.compute_dtype
  return dict(compute_dtype=None if how.dtype == own else how.dtype)


def depends_on(
  role: str, name: str, how: model_arguments.Models, loaded: sampler.Sampler
) -> dict[str, Any]:
  """Returns what a policy's texts and likelihoods depend on, as plain data.

  Args:
    role: What the policy is here.
    name: Its folder.
    how: How it was loaded.
    loaded: The policy.
  """
  folder = files.local_path(name)
  known = {k: x for k, x in asked(name, how).items() if x is not None}
  return {role: model_json.fingerprint(folder, loaded.params)} | known


def scorer(
  folder: files.PathLike, how: model_arguments.Models, layout: str
) -> scorer_lib.Scorer:
  """Returns the reward model of a checkpoint folder.

  Args:
    folder: The folder.
    how: How it is loaded.
    layout: See scorer.load.
  """
  return scorer_lib.load(
    folder,
    how.step,
    layout,
    compute_dtype=how.dtype,
    batch_tokens=how.batch_tokens,
  )


def score(name: str, how: model_arguments.Models) -> score_sources.Loaded:
  """Returns what scores steps under a name, and what its scores depend on.

  Args:
    name: See score_sources.load_score.
    how: How it is loaded, if it is a checkpoint. It has no step: the latest
      save is taken.
  """
  dtype = None
  if is_checkpoint(name):
    dtype = asked(name, how).get("compute_dtype")
  return score_sources.load(name, compute_dtype=dtype)


def is_checkpoint(name: str) -> bool:
  """Returns whether a name is neither a server's address nor a function's.

  Args:
    name: See score_sources.load_score.
  """
  score_sources.check(name)
  return score_sources.is_checkpoint(name)


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
