"""Adapters of parameters: merged into the kernels, left out, or put in."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax import numpy as jnp

from prm_jax.models import model_config

Params = Any
NAMES = ("lora_a", "lora_b")
FIELDS = ("lora_rank", "lora_alpha", "lora_targets")


def merge(
  model: model_config.ModelConfig, params: Params
) -> tuple[model_config.ModelConfig, Params]:
  """Returns the same function as a model without adapters.

  Each adapted kernel becomes W + alpha / rank * A B in float32, whatever type
  they have (Hu et al. 2021, section 4.1); everything else is unchanged. Logits
  agree up to the rounding of the compute dtype. A model without adapters is
  returned unchanged.
  """
  if not model.lora_rank:
    return model, params
  scale = model.lora_alpha / model.lora_rank
  default = model_config.ModelConfig
  plain = dataclasses.replace(
    model,
    lora_rank=0,
    lora_alpha=default.lora_alpha,
    lora_targets=default.lora_targets,
  )
  return plain, _merged(params, scale)


def _merged(tree: Params, scale: float) -> Params:
  if not isinstance(tree, Mapping):
    return tree
  out = {
    name: _merged(leaf, scale)
    for name, leaf in tree.items()
    if name not in NAMES
  }
  if NAMES[0] in tree:
    # Layers are stacked: [L, in, rank] times [L, rank, out].
    added = jnp.matmul(
      *(jnp.asarray(tree[name], jnp.float32) for name in NAMES),
      precision=jax.lax.Precision.HIGHEST,
    )
    out["kernel"] = jnp.asarray(out["kernel"], jnp.float32) + scale * added
  return out


def without(tree: Params) -> Params:
  """Returns the parameters of the model whose adapters are off."""
  if not isinstance(tree, Mapping):
    return tree
  return {k: without(v) for k, v in tree.items() if k not in NAMES}


def with_none(tree: Params, like: Params) -> Params:
  """Returns parameters of the same function that have adapters, which add 0.

  Args:
    tree: The parameters.
    like: Others of the same shape: where they alone have adapters, it gets some.
  """
  if isinstance(tree, tuple) and isinstance(like, tuple):
    return tuple(map(with_none, tree, like))
  if not isinstance(tree, Mapping) or not isinstance(like, Mapping):
    return tree
  added = {k: jnp.zeros_like(like[k]) for k in NAMES if k in like}
  return added | {k: with_none(v, like.get(k)) for k, v in tree.items()}
