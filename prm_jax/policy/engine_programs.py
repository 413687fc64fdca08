"""The compiled programs of the rollout engine, and the state they share.

`prefill` puts the keys and values of prompts into buffers; `decode_chunk`
draws a few tokens in every slot; `flush_tails` moves the slots' full tails
into pages (Kwon et al. 2023, PagedAttention). A group of N slots shares Q
buffers, each with a prompt: a slot sees the first `seen` tokens of its prompt,
its own pages and its own tail. policy/rollout_engine.py decides what goes where.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt
import numpy as np

from prm_jax.batch import ArrayLike
from prm_jax.models import kv_cache
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import drawing
from prm_jax.text import step_automaton

Params = Any

# Prompts that one prefill packs into its row.
PACKED = 8


class Caches(NamedTuple):
  """Keys and values of every layer, for G groups of N slots and Q buffers.

  R is one axis for groups, slots and key heads. All slots write the same column
  of their tails at a time, so a column's age in steps says whose token is in
  it, and how far back.

  Args:
    prefix: The buffers of prompts.
    own: The tails of the slots.
    pages: The pages of the slots.
    column: The next column of the tails, T if all are full.
  """

  prefix: tuple[tuple[Float[Array, "G K QP C"], Float[Array, "G K QP C"]], ...]
  own: tuple[tuple[Float[Array, "R T C"], Float[Array, "R T C"]], ...]
  pages: tuple[tuple[Float[Array, "M K T C"], Float[Array, "M K T C"]], ...]
  column: Int[Array, ""]


class Pages(NamedTuple):
  """What the pages hold: T tokens of a slot each.

  Args:
    owner: The slot, g * N + n, -1 for a free page.
    first: The number of the first column's token among the owner's, where its
      prompt's last token is 0; below 0 the column is another slot's.
  """

  owner: Int[ArrayLike, " M"]
  first: Int[ArrayLike, " M"]


class Slots(NamedTuple):
  """The state of each slot.

  A slot's i-th token is sampled with the run's key, folded with rng_words and
  i.

  Args:
    token: The next input: the last token of the prompt, then the sampled ones.
    buffer: The buffer with the prompt.
    seen: The number of tokens in the buffer that the slot sees; `token` isn't
      one of them.
    drawn: The number of tokens sampled so far.
    limit: The token budget.
    running: Whether the slot has an unfinished completion.
    rng_words: Two words of the request's id, and the number of the sample.
    stop_state: The state of text/step_automaton.py that its text leaves; 0 if
      nothing but ids and the budget ends a completion.
    event: The event of the last token; see there.
  """

  token: Int[ArrayLike, "G N"]
  buffer: Int[ArrayLike, "G N"]
  seen: Int[ArrayLike, "G N"]
  drawn: Int[ArrayLike, "G N"]
  limit: Int[ArrayLike, "G N"]
  running: Bool[ArrayLike, "G N"]
  rng_words: UInt[ArrayLike, "G N 3"]
  stop_state: Int[ArrayLike, "G N"]
  event: Int[ArrayLike, "G N"]


def empty_caches(
  config: model_config.ModelConfig,
  dtype: Any,
  *,
  groups: int,
  slots: int,
  buffers: int,
  prompt_tokens: int,
  page_tokens: int,
  pages: int = 1,
) -> Caches:
  """Returns empty caches.

  Args:
    config: The shape of the model.
    dtype: The type of keys and values.
    groups: The number of groups.
    slots: The number of slots of a group.
    buffers: The number of buffers of a group.
    prompt_tokens: The number of tokens of a buffer.
    page_tokens: T, the number of tokens of a page and of a tail.
    pages: The number of pages of a slot.
  """
  K, C = config.num_kv_heads, config.head_dim
  prefix = (groups, K, buffers * prompt_tokens, C)
  own = (groups * slots * K, page_tokens, C)
  paged = (groups * slots * pages, K, page_tokens, C)

  def blank(shape):
    # No two leaves may be one buffer: each is donated.
    return tuple(
      (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
      for _ in range(config.num_layers)
    )

  column = jnp.zeros((), jnp.int32)
  return Caches(blank(prefix), blank(own), blank(paged), column)


@functools.partial(
  jax.jit, static_argnames=("config", "width"), donate_argnames=("caches",)
)
def prefill(
  params: Params,
  caches: Caches,
  tokens: Int[ArrayLike, " T"],
  positions: Int[ArrayLike, " T"],
  visible_until: Int[ArrayLike, " T"],
  places: Int[ArrayLike, "M 3"],
  *,
  config: model_config.ModelConfig,
  width: int,
) -> Caches:
  """Returns the caches with the prompts of a packed row in their buffers.

  Args:
    params: The parameters.
    caches: The caches.
    tokens: The row.
    positions: See batch.Batch.
    visible_until: See batch.Batch.
    places: (first token in the row, group, buffer) of each prompt; spare
      entries repeat the first.
    config: The shape of the model.
    width: P, the columns of a buffer.
  """
  k, v = transformer.apply(
    config,
    params,
    tokens[None],
    positions[None],
    visible_until[None],
    method="cache",
  )
  # No slot sees what comes after a prompt's end in its buffer.
  k, v = (jnp.pad(x, ((0, 0),) * 3 + ((0, width), (0, 0))) for x in (k, v))
  layers = tuple((k[i], v[i]) for i in range(config.num_layers))

  def put(i, prefix):
    start, group, buffer = places[i]

    def into(cache, rows):
      part = jax.lax.dynamic_slice_in_dim(rows, start, width, axis=2)
      at = (group, 0, buffer * width, 0)
      return jax.lax.dynamic_update_slice(cache, part.astype(cache.dtype), at)

    return jax.tree.map(into, prefix, layers)

  prefix = jax.lax.fori_loop(0, places.shape[0], put, caches.prefix)
  return caches._replace(prefix=prefix)


# What follows runs array by array: there is never a second copy of more than
# one of them. Bits are moved, since XLA's CPU backend would convert a whole
# array of bfloat16 to float32.


def add_pages(caches: Caches, more: int) -> Caches:
  """Returns the caches, which aren't used after, with `more` further pages."""

  def grown(pages):
    return _freed(_padded(pages, more=more), pages)

  return caches._replace(pages=jax.tree.map(grown, caches.pages))


def flush_tails(caches: Caches, page: Int[ArrayLike, " GN"]) -> Caches:
  """Returns the caches with every slot's tail in its page; page M is none.

  Args:
    caches: The caches, which aren't used after.
    page: The page of each slot.
  """
  pages = jax.tree.map(
    lambda pages, own: _put(pages, own, page), caches.pages, caches.own
  )
  # Of the old one, so placed as it is: else decode_chunk is compiled twice.
  return caches._replace(pages=pages, column=caches.column * 0)


def keep(
  caches: Caches,
  groups: Int[np.ndarray, " kept"],
  pages: Int[np.ndarray, " M"],
) -> Caches:
  """Returns the caches of some groups, with some of the pages.

  Args:
    caches: The caches, which aren't used after.
    groups: The groups, in their new order.
    pages: The pages, in their new order.
  """
  num_groups, num_pages = len(caches.prefix[0][0]), len(caches.pages[0][0])

  def of(parts, index, cache):
    return jax.tree.map(
      lambda x: _freed(_parts(x, index, parts=parts), x), cache
    )

  return caches._replace(
    prefix=of(num_groups, groups, caches.prefix),
    own=of(num_groups, groups, caches.own),
    pages=of(num_pages, pages, caches.pages),
  )


def _freed(new: Array, old: Array) -> Array:
  """Returns a new array once it is made, without the old one."""
  jax.block_until_ready(new)
  old.delete()
  return new


def _bits(x: Array) -> Array:
  if x.dtype != jnp.bfloat16:
    return x
  return jax.lax.bitcast_convert_type(x, jnp.uint16)


def _of_bits(bits: Array, dtype: Any) -> Array:
  if dtype != jnp.bfloat16:
    return bits
  return jax.lax.bitcast_convert_type(bits, dtype)


@functools.partial(jax.jit, static_argnames=("more",))
def _padded(pages: Array, *, more: int) -> Array:
  after = ((0, more), (0, 0), (0, 0), (0, 0))
  return _of_bits(jnp.pad(_bits(pages), after), pages.dtype)


@functools.partial(jax.jit, donate_argnames=("pages",))
def _put(pages: Array, own: Array, page: Array) -> Array:
  tails = _bits(own).reshape(-1, *pages.shape[1:])
  put = _bits(pages).at[page].set(tails, mode="drop")
  return _of_bits(put, pages.dtype)


@functools.partial(jax.jit, static_argnames=("parts",))
def _parts(x: Array, index: Array, *, parts: int) -> Array:
  """Returns some of the equal parts of an array's first axis."""
  kept = _bits(x).reshape(parts, -1)[index]
  return _of_bits(kept, x.dtype).reshape(-1, *x.shape[1:])


@functools.partial(
  jax.jit,
  static_argnames=("config", "sampling", "ends", "width", "chunk"),
  donate_argnames=("caches",),
)
def decode_chunk(
  params: Params,
  caches: Caches,
  slots: Slots,
  pages: Pages,
  key: Key[Array, ""],
  stops: step_automaton.Table | None = None,
  *,
  config: model_config.ModelConfig,
  sampling: drawing.Sampling,
  ends: tuple[int, ...],
  width: int,
  chunk: int,
) -> tuple[
  Caches,
  Slots,
  Int[Array, "G N chunk"],
  Float[Array, "G N chunk"],
  Int[Array, ""],
]:
  """Returns the state after up to `chunk` more tokens in every slot.

  Args:
    params: The parameters in `transformer.for_decoding`'s form.
    caches: The caches.
    slots: The slots.
    pages: What the pages hold.
    key: The run's random key.
    stops: The table of text/step_automaton.py, for all ids of the model; None
      compiles nothing of it.
    config: The shape of the model.
    sampling: How to sample.
    ends: The ids that end a solution.
    width: P, the columns of a buffer.
    chunk: The most tokens of a slot.

  Returns:
    Caches, slots, the ids, their log-probabilities at T = 1, and the number of
    steps taken (fewer than chunk once nothing runs or the tails are full). A
    slot's new ids come first in its row; what follows them means nothing.
  """
  G, N = slots.token.shape
  P, T = caches.prefix[0][0].shape[2], caches.own[0][0].shape[1]
  slots = jax.tree.map(jnp.asarray, slots)
  owner, first = map(jnp.asarray, pages)
  fold = jax.vmap(jax.vmap(jax.random.fold_in))
  keys = jnp.broadcast_to(key, (G, N))
  for word in range(slots.rng_words.shape[-1]):
    keys = fold(keys, slots.rng_words[..., word])
  # Which of the buffers' columns a slot sees, and their places in a prompt.
  of_buffer, in_buffer = jnp.arange(P) // width, jnp.arange(P) % width
  seen = (of_buffer == slots.buffer[..., None]) & (
    in_buffer < slots.seen[..., None]
  )

  def is_unfinished(carry):
    i, _, column, slots = carry[:4]
    return (i < chunk) & (column < T) & slots.running.any()

  def one_token(carry):
    i, own, column, slots, out, log_probs = carry
    position = slots.seen + slots.drawn
    to_prompt = jnp.where(seen, position[..., None] - in_buffer, -1)
    age = column - jnp.arange(T)
    to_tail = jnp.where(age <= slots.drawn[..., None], age, -1)
    number = first[:, None] + jnp.arange(T)
    to_page = jnp.where(
      (owner[:, None] >= 0) & (number >= 0),
      slots.drawn.reshape(-1)[owner][:, None] - number,
      -1,
    )
    pasts = [
      kv_cache.Past(
        *(k, v, own_k, own_v, to_prompt, to_tail, column),
        kv_cache.Pages(pages_k, pages_v, owner, to_page),
      )
      for (k, v), (own_k, own_v), (pages_k, pages_v) in zip(
        caches.prefix, own, caches.pages, strict=True
      )
    ]
    logits, own = transformer.decode(
      config, params, slots.token, position, pasts
    )
    token, log_prob = drawing.draw(logits, fold(keys, slots.drawn), sampling)
    drawn = slots.drawn + slots.running
    done = drawing.is_end(token, ends) | (drawn >= slots.limit)
    if stops is not None:
      entry = stops.table[slots.stop_state, stops.kinds[token]]
      # Unsigned numbers: a plain division.
      state = (entry // step_automaton.EVENTS).astype(jnp.int32)
      event = (entry % step_automaton.EVENTS).astype(jnp.int32)
      done |= event != step_automaton.NONE
      slots = slots._replace(
        stop_state=jnp.where(slots.running, state, slots.stop_state),
        event=jnp.where(slots.running, event, slots.event),
      )
    new = slots._replace(
      token=jnp.where(slots.running, token, slots.token),
      drawn=drawn,
      running=slots.running & ~done,
    )
    out = out.at[:, :, i].set(token)
    log_probs = log_probs.at[:, :, i].set(log_prob)
    return i + 1, tuple(own), column + 1, new, out, log_probs

  carry = (
    jnp.zeros((), jnp.int32),
    caches.own,
    caches.column,
    slots,
    jnp.zeros((G, N, chunk), jnp.int32),
    jnp.zeros((G, N, chunk), jnp.float32),
  )
  steps, own, column, slots, out, log_probs = jax.lax.while_loop(
    is_unfinished, one_token, carry
  )
  caches = caches._replace(own=own, column=column)
  return caches, slots, out, log_probs, steps
