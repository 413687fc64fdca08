"""The state of the rollout engine as shapes, to compile its programs with."""

from __future__ import annotations

from typing import Any, NamedTuple

from flax.core import meta
import jax
from jax import numpy as jnp

from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.policy import engine_programs


class Layout(NamedTuple):
  """G groups of N slots that share Q buffers, and the pages of all slots.

  Args:
    groups: G.
    slots: N.
    buffers: Q.
    pages: The number of pages, a multiple of G N.
  """

  groups: int
  slots: int
  buffers: int
  pages: int


class State(NamedTuple):
  """What engine_programs.decode_chunk takes between parameters and options."""

  caches: Any
  slots: Any
  pages: Any
  key: Any


def weights(model: model_config.ModelConfig, kind: str) -> Any:
  """Returns the shapes of a policy's parameters as a chunk reads them.

  Args:
    model: The shape of the model.
    kind: The type in which the policy is held: bfloat16, or float32 as in
      training.
  """

  def make() -> Any:
    made = transformer.init(jax.random.key(0), model, ("lm",))
    params = jax.tree.map(lambda x: x.astype(kind), meta.unbox(made))
    return transformer.for_decoding(model, params)

  return jax.eval_shape(make)


def state(
  model: model_config.ModelConfig,
  where: Layout,
  *,
  prompt_tokens: int,
  page_tokens: int,
) -> State:
  """Returns the shapes of caches, slots, pages and key.

  Args:
    model: The policy.
    where: The numbers of everything.
    prompt_tokens: The width of a buffer.
    page_tokens: The tokens of a page, and of a tail.
  """
  G, N, Q, M = where

  def make() -> State:
    caches = engine_programs.empty_caches(
      model,
      model.compute_dtype,
      groups=G,
      slots=N,
      buffers=Q,
      prompt_tokens=prompt_tokens,
      page_tokens=page_tokens,
      pages=M // (G * N),
    )
    zeros, table = jnp.zeros((G, N), jnp.int32), jnp.zeros(M, jnp.int32)
    fields = [zeros] * len(engine_programs.Slots._fields)
    slots = engine_programs.Slots(*fields)._replace(
      running=zeros > 0, rng_words=jnp.zeros((G, N, 3), jnp.uint32)
    )
    pages = engine_programs.Pages(table, table)
    return State(caches, slots, pages, jax.random.key(0))

  return jax.eval_shape(make)
