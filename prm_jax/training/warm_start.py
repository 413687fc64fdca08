"""The parameters that a run begins with, if it is given any."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import dataclasses
from typing import Any

from flax import traverse_util
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax.models import lora
from prm_jax.models import sharding
from prm_jax.runtime import distributed
from prm_jax.training import program as program_lib
from prm_jax.training import trainable


def first_state(
  program: program_lib.Program,
  placed: program_lib.Placed,
  mesh: jax.sharding.Mesh,
  key: jax.Array,
  init_from: Any,
  *,
  donate: bool = False,
) -> program_lib.TrainState:
  """Returns the state that a run begins with; what is given isn't drawn.

  Args:
    program: The program.
    placed: Its place on the mesh.
    mesh: The devices.
    key: The random key of what isn't given.
    init_from: The given parameters, or None.
    donate: See warm_start.
  """
  target = placed.target.params
  given = {} if init_from is None else common(target, init_from)

  def undrawn(path: Any, leaf: Any) -> bool:
    return path in given and given[path].shape == leaf.shape

  whole = jax.tree_util.tree_map_with_path(undrawn, target)

  def drawn(state):
    params = jax.tree.map(
      lambda w, x: None if w else x, whole, meta.unbox(state.params)
    )
    return dataclasses.replace(state, params=params)

  draw = sharding.jit(
    lambda key: drawn(meta.unbox(program.init(key))),
    mesh,
    in_shardings=(sharding.replicated(mesh),),
    out_shardings=drawn(placed.shardings),
  )
  state = draw(key)
  if init_from is None:
    return state
  params = jax.tree.map(
    lambda w, shape, x: shape if w else x, whole, target, state.params
  )
  params = warm_start(params, init_from, donate=donate)
  return dataclasses.replace(state, params=params)


def warm_start(params: Any, init_from: Any, *, donate: bool = False) -> Any:
  """Returns params in which leaves are replaced by those of init_from.

  They get the types and places of the leaves that they replace. A model with
  more layers takes the given ones as its lowest layers. The further layers add
  nothing at first, because their output matrices are zero.

  Args:
    params: Arrays. Of those that init_from has whole, shapes with type and
      sharding are enough.
    init_from: The given parameters. An array may be in several places.
    donate: Whether their arrays are used up: an array that needs no conversion
      is moved, not copied, and all others are freed.

  Raises:
    InputError: A leaf has another shape, or no leaf is in both.
  """
  given = common(params, init_from)
  uses = collections.Counter(map(id, given.values()))
  if donate:
    free(init_from, kept=given.values())

  def choose(path, leaf):
    value = given.get(path)
    if value is None:
      return leaf
    uses[id(value)] -= 1
    is_last = donate and not uses[id(value)]
    if value.shape != leaf.shape:
      chosen = sharding.put(_grown(path, leaf, value), leaf.sharding)
    else:
      placed = sharding.put(value, leaf.sharding)
      if is_last and placed.dtype == leaf.dtype:
        return placed
      # A copy: the first update donates its input.
      chosen = jnp.array(placed, leaf.dtype, copy=True)
    if is_last:
      free(jax.block_until_ready((chosen, value))[1])
    return chosen

  return jax.tree_util.tree_map_with_path(choose, params)


def free(init_from: Any, kept: Iterable[Any] = ()) -> None:
  """Frees the arrays of a tree on their devices, except those to be kept."""
  ids = set(map(id, kept))
  for leaf in jax.tree.leaves(init_from):
    if isinstance(leaf, jax.Array) and id(leaf) not in ids:
      leaf.delete()


def _grown(path: Any, leaf: Any, value: Any) -> np.ndarray:
  """Returns the leaf of a deeper model whose lowest layers are given."""
  names = [entry.key for entry in path]
  grown = distributed.whole(leaf)
  if "output" in names or "down" in names:
    grown[:] = 0
  grown[: len(value)] = value
  return grown


def common(params: Any, init_from: Any) -> dict[Any, Any]:
  """Returns path -> leaf of init_from, for the leaves that are also in params.

  Raises:
    InputError: A leaf has another shape, or no leaf is in both.
  """
  given = dict(jax.tree_util.tree_flatten_with_path(init_from)[0])
  wanted = dict(jax.tree_util.tree_flatten_with_path(params)[0])
  errors.raise_first(_misfits(given, wanted))
  return {path: given[path] for path in wanted if path in given}


def _misfits(given, wanted) -> Iterator[str]:
  """Yields how given parameters don't fit a model's."""
  for path in given.keys() - wanted.keys():
    if path[-1].key in lora.NAMES:
      yield (
        f"init_from: its kernels go with adapters"
        f" ({'/'.join(x.key for x in path)}) that this model lacks; give both"
        " the same model.lora_rank and lora_targets, or merge them first"
      )
  shared = [path for path in wanted if path in given]
  for path in shared:
    leaf, value = wanted[path], given[path]
    names = [entry.key for entry in path]
    grows = "layers" in names and leaf.shape[1:] == value.shape[1:]
    if value.shape != leaf.shape and not (grows and len(leaf) > len(value)):
      yield (
        f"init_from: {'/'.join(names)} is {value.shape}, this model's"
        f" {leaf.shape}; give both the same model config"
      )
  if not shared:
    yield "init_from: no parameter in common"


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
