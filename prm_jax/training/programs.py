"""The kinds of programs, and what goes with each: one table.

Nothing else tells programs apart: what differs between them is a field of
program.Kind.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

from flax.core import meta
import jax

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import transformer
from prm_jax.training import implicit_prm
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import program
from prm_jax.training import sft
from prm_jax.training import trainable

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
  """Returns the kind of that name; `where` it was read, for the error."""
  if name not in KINDS:
    raise errors.InputError(
      f"{where}: program={name!r}: expected one of {', '.join(KINDS)}"
    )
  return KINDS[name]


def name_of(objective: program.Objective) -> str:
  """Returns the name of the program that an objective is of."""
  (name,) = (k for k in SUPERVISED if KINDS[k].objective is type(objective))
  return name


def load_params(
  folder: pathlib.Path,
  description: model_json.Description | None = None,
  *,
  step: int | None = None,
) -> Any:
  """Returns a checkpoint's parameters alone, on the default device.

  Args:
    folder: a checkpoint folder.
    description: what its model.json says; it is read by default.
    step: a saved step; the latest by default.

  Raises:
    DamagedError: they aren't what was saved.
    InputError: there is no checkpoint, or it isn't of the described shape.
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
    abstract = {**abstract, trainable.REFERENCE: abstract}
  return saves.load_params(folder, abstract, step=step, partly=kind.saves_more)
