"""Parameters as inference holds them: as they were saved, once.

A weight keeps the type of its checkpoint, except that computing in float32 also
holds float32. Decoding reads each layer's parameters as arrays of their own: a
slice of a stack would be a second copy of the layer. On a CPU this goes for
everything that reads bfloat16: XLA's CPU backend has no slices of bfloat16, and
would convert whole stacks to float32 at each call. Kernels are transposed there,
because products of few rows are faster so (models/matmul.py).
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import pathlib
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.checkpoints import leaves
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import matmul
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.training import programs

Params = Any


def load(
  folder: pathlib.Path,
  description: model_json.Description,
  model: model_config.ModelConfig,
  step: saves.Step = None,
) -> Params:
  """Returns a checkpoint's parameters, for a model that computes with them.

  Args:
    folder: The checkpoint folder.
    description: The content of its model.json.
    model: The description's model, perhaps with another compute_dtype.
    step: The training step; see saves.chosen.

  Raises:
    DamagedError: The parameters aren't what was saved.
    InputError: There is no checkpoint, or it isn't of the described model.
  """
  dtype = "float32" if model.compute_dtype == "float32" else None
  on_cpu = jax.default_backend() == "cpu"
  apart = programs.KINDS[description.program].writes
  if not apart and dtype is None and on_cpu:
    held = saves.types(folder).values()
    apart = any(x != np.float32 for x in held)
  params = programs.load_params(
    folder, description, step=step, dtype=dtype, apart=apart
  )
  if apart and on_cpu and model.compute_dtype == "bfloat16":
    return transposed(params)
  return params


def transposed(params: Params) -> Params:
  """Returns parameters in own arrays with bfloat16 kernels held transposed.

  Each kernel is freed once its transpose is made.

  Args:
    params: Parameters whose layers are own arrays, which aren't used after.
  """
  dense = {
    name: _with_transposed(params[name])
    for name in ("lm_head", "layers")
    if name in params
  }
  return {**params, **dense}


def _with_transposed(tree: Params) -> Params:
  if isinstance(tree, tuple):
    return tuple(map(_with_transposed, tree))
  if not isinstance(tree, Mapping):
    return tree
  out = {}
  for name, leaf in tree.items():
    if name == "kernel" and leaf.ndim == 2 and leaf.dtype == jnp.bfloat16:
      # Compiles nothing.
      turned = leaves.empty(leaf.shape[::-1], leaf.dtype)
      np.copyto(turned, np.asarray(leaf).T)
      out[matmul.TRANSPOSED] = jax.device_put(turned)
      leaf.delete()
    else:
      out[name] = _with_transposed(leaf)
  return out


def own_arrays(params: Params) -> Params:
  """Returns the parameters with an array of its own for each layer's part.

  The stacks are freed one after another, so that at no time two copies of more
  than one of them are in memory.

  Args:
    params: Parameters, or several models' by name, which aren't used after; no
      array is in two places.
  """
  own = {}
  for name, value in params.items():
    if name == "layers":
      own[name] = _split(value)
    elif isinstance(value, dict) and "layers" in value:
      own[name] = own_arrays(value)
    else:
      own[name] = value
  return own


def for_decoding(config: model_config.ModelConfig, params: Params) -> Params:
  """Returns parameters in transformer.for_decoding's form, made once.

  These are the parameters themselves if they have that form already, as those
  of a policy that was loaded mostly have. Those of a training run are a stack
  of layers, mostly in float32: this copies them, and they stay as they are.

  Args:
    config: The shape of the model.
    params: The parameters.
  """
  make = functools.partial(_for_decoding, config)
  if jax.eval_shape(make, params) == jax.eval_shape(lambda x: x, params):
    return params
  return make(params)


# The same function for all engines, which compile it once.
_for_decoding = jax.jit(transformer.for_decoding, static_argnums=0)


def _split(stacks: Params) -> tuple[Params, ...]:
  """Returns the tree of each layer."""
  each, structure = jax.tree.flatten(stacks)
  of_layers: list[list[jax.Array]] = [[] for _ in range(len(each[0]))]
  for stack in each:
    for layer, part in zip(of_layers, _parts(stack), strict=True):
      layer.append(part)
    stack.delete()
  return tuple(jax.tree.unflatten(structure, layer) for layer in of_layers)


def _parts(stack: jax.Array) -> list[jax.Array]:
  """Returns copies of a stack's parts, once they are made."""
  if all(device.platform == "cpu" for device in stack.devices()):
    # Compiles nothing.
    return [jax.device_put(np.array(part)) for part in np.asarray(stack)]
  return jax.block_until_ready([stack[i] for i in range(len(stack))])
