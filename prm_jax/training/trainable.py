"""Which parameters a program trains; the others are frozen.

A frozen parameter has no gradient and no optimizer state: only the trained part
is differentiated and known to the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flax import traverse_util
import jax

from prm_jax import errors
from prm_jax.models import lora
from prm_jax.models import model_config as model_config

Params = Any
# Is the parameter at a path of names trained?
Trains = Callable[[tuple[str, ...]], bool]
TRAINABLE = ("all", "head", "lora")
# In params: the frozen model that another one is measured by.
REFERENCE = "reference"


def everything(path: tuple[str, ...]) -> bool:
  """Returns True except for a reference, which is only compared with."""
  return path[0] != REFERENCE


def chosen(
  trainable: str, model: model_config.ModelConfig, heads: Sequence[str]
) -> Trains:
  """Returns which parameters a program trains; the others are frozen.

  Args:
    trainable: all; head (the program's own head, the first stage of PURE, Cheng
      et al. 2025, arXiv 2504.15275); or lora (adapters and score head, not the
      LM head, Hu et al. 2021).
    model: The shape of the model.
    heads: The heads of the program.

  Raises:
    InputError: The model has no such parameters, or it has adapters that would
      be trained together with the matrices that they replace.
  """
  own = {f"{head}_head" for head in heads}
  problem = None
  if trainable not in TRAINABLE:
    problem = f"expected one of {', '.join(TRAINABLE)}"
  elif trainable == "lora" and not model.lora_rank:
    problem = "model.lora_rank=0 has no adapters; set it to 8, say"
  elif trainable == "all" and model.lora_rank:
    problem = (
      f"model.lora_rank={model.lora_rank}: adapters are for frozen kernels;"
      " set trainable='lora', or lora_rank=0"
    )
  elif trainable == "head" and own == {"lm_head"} and model.tie_embedding:
    problem = (
      "the LM head is the embedding table; set model.tie_embedding=False, or"
      " trainable='all' or 'lora'"
    )
  elif (
    trainable == "head" and "step_head" in own and model.step_head == "tokens"
  ):
    problem = (
      "model.step_head='tokens' is the LM's, and has no parameters of its own;"
      " set trainable='all' or 'lora'"
    )
  if problem is not None:
    raise errors.InputError(f"trainable={trainable!r}: {problem}")
  if trainable == "head":
    return lambda path: path[0] in own
  if trainable == "lora":
    scores = own - {"lm_head"}
    return lambda path: (
      everything(path) and (path[0] in scores or path[-1] in lora.NAMES)
    )
  return everything


def names_of(path: Sequence[Any]) -> tuple[str, ...]:
  """Returns the names of a leaf's path; a box around the leaf has none."""
  return tuple(x.key for x in path if isinstance(x, jax.tree_util.DictKey))


def types_of(params: Params) -> dict[tuple[str, ...], Any]:
  """Returns the type of each parameter by its path of names."""
  leaves = jax.tree_util.tree_flatten_with_path(params)[0]
  return {names_of(path): x.dtype for path, x in leaves}


def split(params: Params, trains: Trains) -> tuple[Params, Params]:
  """Returns the trained and the frozen parameters as separate trees."""
  parts: tuple[Params, Params] = ({}, {})
  for path, leaf in traverse_util.flatten_dict(params).items():
    parts[not trains(path)][path] = leaf
  return tuple(traverse_util.unflatten_dict(part) for part in parts)


def join(trained: Params, frozen: Params) -> Params:
  """Returns the parameters that `split` separated."""
  flat = [traverse_util.flatten_dict(part) for part in (trained, frozen)]
  return traverse_util.unflatten_dict(flat[0] | flat[1])
