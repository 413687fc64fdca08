"""The compiled program of the cached scorer, and the pages that it fills."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int, UInt16

from prm_jax.batch import ArrayLike
from prm_jax.models import attention
from prm_jax.models import kv_cache
from prm_jax.models import matmul
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.training import programs

Params = Any


class Pages(NamedTuple):
  """Keys and values of every layer in M pages of S tokens, RoPE applied.

  On a CPU those of bfloat16 are their bits, uint16: XLA's CPU backend would
  convert all pages to float32 to write, or in a loop to read, a few of them.
  """

  k: Float[Array, "L M S K C"] | UInt16[Array, "L M S K C"]
  v: Float[Array, "L M S K C"] | UInt16[Array, "L M S K C"]


class Rows(NamedTuple):
  """New tokens. Each sees the first tokens of some pages, and some of its row.

  Args:
    tokens: The ids.
    positions: The number of tokens before each on its path.
    visible_until: See batch.Batch.
    pages: The pages that a row reads.
    first: The position of each page's first token.
    seen: How many tokens of each page a token sees; they are the page's first
      ones.
    places: Where a token's keys and values go, page * S + slot; M * S is
      nowhere.
  """

  tokens: Int[ArrayLike, "B T"]
  positions: Int[ArrayLike, "B T"]
  visible_until: Int[ArrayLike, "B T"]
  pages: Int[ArrayLike, "B NP"]
  first: Int[ArrayLike, "B NP"]
  seen: Int[ArrayLike, "B T NP"]
  places: Int[ArrayLike, "B T"]


def empty_pages(
  config: model_config.ModelConfig, *, pages: int, page_tokens: int
) -> Pages:
  """Returns empty pages.

  Args:
    config: The shape of the model.
    pages: M, the number of pages.
    page_tokens: S, the number of tokens of a page.
  """
  K, C = config.num_kv_heads, config.head_dim
  shape = (config.num_layers, pages, page_tokens, K, C)
  dtype = jnp.dtype(config.compute_dtype)
  if dtype == jnp.bfloat16 and matmul.platform() == "cpu":
    dtype = jnp.dtype(jnp.uint16)
  # Two arrays: each is donated.
  return Pages(*(jnp.zeros(shape, dtype) for _ in range(2)))


def with_more(pages: Pages, more: int) -> Pages:
  """Returns pages with empty ones after them.

  Args:
    pages: The pages, which aren't used after.
    more: The number of empty ones.
  """

  def grown(cache: Array) -> Array:
    after = ((0, 0), (0, more)) + ((0, 0),) * 3
    new = jax.block_until_ready(jnp.pad(cache, after))
    cache.delete()
    return new

  return Pages(*map(grown, pages))


@functools.partial(jax.jit, static_argnames=("config", "program"))
def extend(
  params: Params,
  pages: Pages,
  rows: Rows,
  *,
  config: model_config.ModelConfig,
  program: str,
) -> tuple[
  tuple[Float[Array, "L B T K C"], Float[Array, "L B T K C"]],
  Float[Array, "2 B T"],
]:
  """Returns the new tokens' keys and values, and their scores and log-odds.

  Args:
    params: The parameters.
    pages: The pages.
    rows: The new tokens.
    config: The shape of the model.
    program: The kind of the reward model.
  """
  scores_at = programs.KINDS[program].scores_at
  assert scores_at is not None
  tokens, positions, until, read, first, seen, _ = map(jnp.asarray, rows)
  L, M, S, K, C = pages.k.shape
  B, T = tokens.shape
  slot = jnp.arange(S)
  in_page = (first[..., None] + slot)[:, None]
  to_pages = jnp.where(
    slot < seen[..., None], positions[:, :, None, None] - in_page, -1
  )
  to_own = jnp.where(
    attention.visibility(until), positions[:, :, None] - positions[:, None], -1
  )
  past = kv_cache.Branches(
    k=pages.k.reshape(L * M, S, K, C),
    v=pages.v.reshape(L * M, S, K, C),
    first=jnp.zeros((), jnp.int32),
    pages=read,
    page_distance=to_pages.reshape(B, T, -1),
    own_distance=to_own,
  )
  hidden, new = transformer.extend(config, params, tokens, positions, past)
  return new, jnp.stack(scores_at(config, params, hidden))


@functools.partial(jax.jit, donate_argnames=("pages",))
def put(
  pages: Pages,
  new: tuple[Float[Array, "L B T K C"], Float[Array, "L B T K C"]],
  places: Int[ArrayLike, "B T"],
) -> Pages:
  """Returns the pages with the result of `extend` in its places.

  A program of its own: one that also reads the pages would copy all of them.
  """
  L, M, S, K, C = pages.k.shape
  to = jnp.asarray(places).reshape(-1)

  def into(cache: Array, own: Array) -> Array:
    flat = cache.reshape(L, M * S, K, C)
    own = own.reshape(L, len(to), K, C)
    if cache.dtype == jnp.uint16:
      own = jax.lax.bitcast_convert_type(own, cache.dtype)
    own = own.astype(cache.dtype)
    return flat.at[:, to].set(own, mode="drop").reshape(cache.shape)

  return Pages(*map(into, pages, new))
