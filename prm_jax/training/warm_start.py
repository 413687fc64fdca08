"""The parameters that a run begins with, if it is given any."""

from __future__ import annotations

from typing import Any

from flax import traverse_util
import jax

from prm_jax import errors
from prm_jax.models import lora
from prm_jax.runtime import distributed
from prm_jax.training import program as program_lib
from prm_jax.training import trainable


def warm_start(params: Any, init_from: Any) -> Any:
  """Returns params in which leaves are replaced by those of init_from.

  A model with more layers takes the given ones as its lowest layers. The
  further layers add nothing at first, because their output matrices are zero.

  Raises:
    InputError: A leaf has another shape, or no leaf is in both.
  """
  given = common(params, init_from)

  def choose(path, leaf):
    value = given.get(path)
    if value is None:
      return leaf
    names = [entry.key for entry in path]
    # A copy: the first update donates its input.
    leaf = distributed.whole(leaf)
    if "output" in names or "down" in names:
      leaf[:] = 0
    leaf[: len(value)] = value
    return leaf

  return jax.tree_util.tree_map_with_path(choose, params)


def common(params: Any, init_from: Any) -> dict[Any, Any]:
  """Returns path -> leaf of init_from, for the leaves that are also in params.

  Raises:
    InputError: A leaf has another shape, or no leaf is in both.
  """
  given = dict(jax.tree_util.tree_flatten_with_path(init_from)[0])
  wanted = dict(jax.tree_util.tree_flatten_with_path(params)[0])
  for path in given.keys() - wanted.keys():
    if path[-1].key in lora.NAMES:
      raise errors.InputError(
        f"init_from: its kernels go with adapters"
        f" ({'/'.join(x.key for x in path)}) that this model lacks; give both"
        " the same model.lora_rank and lora_targets, or merge them first"
      )
  common = {}
  for path, leaf in wanted.items():
    value = given.get(path)
    if value is None:
      continue
    names = [entry.key for entry in path]
    grows = "layers" in names and leaf.shape[1:] == value.shape[1:]
    if value.shape != leaf.shape and not (grows and len(leaf) > len(value)):
      raise errors.InputError(
        f"init_from: {'/'.join(names)} is {value.shape}, this model's"
        f" {leaf.shape}; give both the same model config"
      )
    common[path] = value
  if not common:
    raise errors.InputError("init_from: no parameter in common")
  return common


def check_frozen(
  program: program_lib.Program, params: Any, init_from: Any
) -> None:
  """Refuses a run in which a frozen parameter isn't given.

  Raises:
    InputError: A frozen parameter would keep its random initial value.
  """
  given = traverse_util.flatten_dict(init_from)
  _, frozen = trainable.split(params, program.trains)
  for path, leaf in traverse_util.flatten_dict(frozen).items():
    if path not in given or given[path].shape != leaf.shape:
      raise errors.InputError(
        f"init_from: doesn't give the whole of {'/'.join(path)}, which isn't"
        " trained and would stay as it was drawn; start from a checkpoint with"
        " this model's trunk, or set trainable='all'"
      )
