"""Parameters from a checkpoint's tensors and back, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import re
from typing import Any

from flax import traverse_util
from flax.core import meta
import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from prm_jax import errors
from prm_jax.huggingface import families
from prm_jax.huggingface import from_hf_config
from prm_jax.huggingface import safetensors_io
from prm_jax.huggingface import to_hf_config
from prm_jax.models import model_config
from prm_jax.models import transformer

Params = Any


def abstract_params(
  model: model_config.ModelConfig, lm_head: bool = True
) -> Params:
  """Returns shapes of trunk and, unless tied, LM head, boxed with axis names.

  sharding.of_state makes `load_params`'s shardings of them.
  """
  heads = ("lm",) if lm_head else ()
  return jax.eval_shape(
    lambda key: transformer.init(key, model, heads), jax.random.key(0)
  )


def tensor_shapes(
  family: str, model: model_config.ModelConfig, lm_head: bool = True
) -> dict[str, tuple[int, ...]]:
  """Returns the names and shapes of the tensors that a checkpoint must have."""
  shapes = traverse_util.flatten_dict(
    meta.unbox(abstract_params(model, lm_head))
  )
  return _tensor_shapes(families.rows(family, model, lm_head), shapes)


def load_params(
  tensors: safetensors_io.Tensors,
  family: str,
  model: model_config.ModelConfig,
  *,
  shardings: Any = None,
  lm_head: bool = True,
  dtype: str | None = "float32",
) -> tuple[Params, list[str]]:
  """Returns parameters, and the names of the tensors it didn't use.

  The host holds one tensor at a time: layers are cast, transposed and stacked
  on the device. On a mesh a process reads only the parts that its devices hold.

  Args:
    tensors: The tensors of the folder.
    family: The family of the model.
    model: The shape of the model.
    shardings: A NamedSharding for each leaf of abstract_params(model, lm_head);
      None puts all on the first device.
    lm_head: Whether the LM head is read; otherwise it is among the unused
      names.
    dtype: The dtype of the parameters. None keeps that of the tensors; if a
      parameter's layers differ in it, the parameter is float32, which holds
      each of them exactly.

  Raises:
    InputError: A tensor is missing, has another shape or dtype than config and
      family say, or holds a number that isn't finite.
  """
  shapes = traverse_util.flatten_dict(
    meta.unbox(abstract_params(model, lm_head))
  )
  table = families.rows(family, model, lm_head)
  used = _check(tensors, _tensor_shapes(table, shapes))
  used |= _check_tied(tensors, model) if lm_head else set()
  places = {} if shardings is None else traverse_util.flatten_dict(shardings)
  first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  params = {
    row.path: _load(
      tensors, row, shapes[row.path].shape, places.get(row.path, first), dtype
    )
    # The vocabulary's first: they are read whole, and at the end would be beside
    # all other parameters.
    for row in sorted(table, key=lambda row: row.per_layer)
  }
  ignored = [re.escape(x).replace(r"\{\}", r"\d+") for x in families.IGNORED]
  left = [
    name
    for name in tensors.names
    if name not in used and not any(re.fullmatch(x, name) for x in ignored)
  ]
  return traverse_util.unflatten_dict(params), left


def export_tensors(
  family: str, model: model_config.ModelConfig, params: Params
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of trunk and LM head under their names there, float32.

  Other heads in params are the caller's, and so is an LM head that's absent.

  Raises:
    InputError: the family has no such model.
  """
  to_hf_config.check(family, model)
  flat = traverse_util.flatten_dict(params)
  table = [
    row
    for row in families.rows(family, model)
    if row.path in flat or row.path != ("lm_head", "kernel")
  ]
  for row in table:
    if not row.per_layer:
      yield row.name, _host(flat[row.path], row)
  for layer in range(model.num_layers):
    for row in table:
      if row.per_layer:
        yield row.name.format(layer), _host(flat[row.path][layer], row)


def _host(x: Any, row: families.Row) -> np.ndarray:
  x = np.asarray(jax.device_get(x))
  return np.ascontiguousarray(x.T if row.transpose else x)


def _tensor_shapes(
  table: Sequence[families.Row], shapes: Mapping[tuple[str, ...], Any]
) -> dict[str, tuple[int, ...]]:
  hf_shapes = {}
  for row in table:
    shape = shapes[row.path].shape
    layers = range(shape[0]) if row.per_layer else [None]
    own = shape[1:] if row.per_layer else shape
    for layer in layers:
      hf_shapes[row.name.format(layer)] = own[:: -1 if row.transpose else 1]
  return hf_shapes


def _check(
  tensors: safetensors_io.Tensors, wanted: Mapping[str, tuple[int, ...]]
) -> set[str]:
  """Returns the names of the tensors wanted; all must be there and fit."""
  for name, shape in wanted.items():
    if name not in tensors.entries:
      raise errors.InputError(f"{tensors.folder}: {name} is missing")
    entry = tensors.entries[name]
    if entry.shape != shape:
      raise errors.InputError(
        f"{entry.file}: {name} is {list(entry.shape)};"
        f" {from_hf_config.CONFIG} says {list(shape)}"
      )
    tensors.size(name)  # refuses dtypes that aren't ours
  return set(wanted)


def _check_tied(
  tensors: safetensors_io.Tensors, model: model_config.ModelConfig
) -> set[str]:
  """Returns the LM head's name where it repeats the embedding."""
  head, table = "lm_head.weight", "model.embed_tokens.weight"
  if not model.tie_embedding or head not in tensors.entries:
    return set()
  num_rows = model.vocab_size
  shapes = {tensors.entries[x].shape for x in (head, table)}
  slices = (
    (slice(i, min(i + 4096, num_rows)),) for i in range(0, num_rows, 4096)
  )
  if len(shapes) == 1 and all(
    np.array_equal(tensors.read(head, x), tensors.read(table, x))
    for x in slices
  ):
    return {head}
  raise errors.InputError(
    f"{tensors.folder}: {head} isn't the embedding, though {from_hf_config.CONFIG}"
    " says tie_word_embeddings; set it to false to use both"
  )


def _load(
  tensors: safetensors_io.Tensors,
  row: families.Row,
  shape: tuple[int, ...],
  sharding: Any,
  dtype: str | None,
) -> jax.Array:
  """Returns one parameter, stacked over its layers."""
  names = [row.name]
  if row.per_layer:
    names = [row.name.format(layer) for layer in range(shape[0])]
  dtype = dtype or tensors.common_dtype(names)
  place = _part_sharding(row, len(shape), sharding)
  ours, blank, put = _programs(shape, dtype, row.transpose, sharding)
  if not row.per_layer:
    whole = _part(tensors, row.name, place)
    if not row.transpose and whole.dtype == dtype:
      return whole
    return jax.block_until_ready(ours(whole))
  stack = blank()
  for layer, name in enumerate(names):
    # Waits, or the host would read ahead of the device and hold it all.
    stack = jax.block_until_ready(
      put(stack, _part(tensors, name, place), layer)
    )
  return stack


@functools.lru_cache(maxsize=64)
def _programs(
  shape: tuple[int, ...], dtype: str, transpose: bool, sharding: Any
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
  """Returns what makes a parameter of a tensor, or a stack of those of layers.

  Returns:
    A tensor as we have it; an empty stack; the stack with one more layer.
  """

  def ours(part):
    return (part.T if transpose else part).astype(dtype)

  def insert(stack, part, layer):
    return jax.lax.dynamic_update_index_in_dim(stack, ours(part), layer, 0)

  jit = functools.partial(jax.jit, out_shardings=sharding)
  blank = jit(lambda: jnp.zeros(shape, dtype))
  return jit(ours), blank, jit(insert, donate_argnums=0)


def _part(
  tensors: safetensors_io.Tensors, name: str, sharding: Any
) -> jax.Array:
  """Returns one tensor on the devices, each part of it read once."""
  parts: dict[str, np.ndarray] = {}

  def read(index: tuple[slice, ...] | None) -> np.ndarray:
    key = str(index)
    if key not in parts:
      parts[key] = tensors.read(name, index)
    return parts[key]

  shape = tensors.entries[name].shape
  return jax.make_array_from_callback(shape, sharding, read)


def _part_sharding(row: families.Row, ndim: int, sharding: Any) -> Any:
  """Returns how one layer's tensor, as it's on disk, lies on the devices."""
  if not isinstance(sharding, NamedSharding):
    return sharding
  spec = (*sharding.spec, *(None,) * (ndim - len(sharding.spec)))
  spec = spec[1:] if row.per_layer else spec
  return NamedSharding(sharding.mesh, P(*spec[:: -1 if row.transpose else 1]))
