"""Attention of new tokens to keys and values in caches.

`Past` is for sampling, one new token a sample: it keeps every sample's tail in
columns of its own, which is enough for samples that begin together, and its
`Pages` keep older tokens, as many as there are, for samples of different ages.
`Branches` is for scoring: many new tokens, which continue paths in pages.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int, UInt16

from prm_jax.models import layers
from prm_jax.models.visibility import Window

# The logit of a key that isn't seen.
UNSEEN = -1e30


class Pages(NamedTuple):
  """Keys and values of tokens before the tails of T columns.

  A page holds T columns of one sample. There are M pages for all samples, so
  the work depends on the number of tokens and not on the longest sample (Kwon
  et al. 2023).

  Args:
    k: The keys.
    v: The values.
    owner: The sample of each page, b * N + n.
    distance: The distance to the owner's newest token, as in Past; -1
      throughout in a page without an owner.
  """

  k: Float[Array, "M K T C"]
  v: Float[Array, "M K T C"]
  owner: Int[Array, " M"]
  distance: Int[Array, "M T"]


class Past(NamedTuple):
  """The keys and values that one layer's decoding sees.

  N samples share the prefix keys, and each has a tail of its own. A distance
  says how many tokens before a sample's newest one a key is on its path; it is
  -1 if the sample doesn't see the key. The newest token's own key goes to
  `column` of the tails, at distance 0. The tails have one axis for B, N and K,
  because an axis of length 1 among them made XLA copy all tails at every token.

  Args:
    prefix_k: The keys of the prefixes.
    prefix_v: The values of the prefixes.
    own_k: The keys of the tails.
    own_v: The values of the tails.
    prefix_distance: The distances of the prefix keys.
    own_distance: The distances of the tails' keys.
    column: The column of the newest token.
    pages: See Pages; None if the tails hold everything.
  """

  prefix_k: Float[Array, "B K P C"]
  prefix_v: Float[Array, "B K P C"]
  own_k: Float[Array, "B*N*K S C"]
  own_v: Float[Array, "B*N*K S C"]
  prefix_distance: Int[Array, "B N P"]
  own_distance: Int[Array, "B N S"]
  column: Int[Array, ""]
  pages: Pages | None = None

  @property
  def own(self) -> tuple[Array, Array]:
    """The keys and values of the tails."""
    return self.own_k, self.own_v

  def append(
    self, k: Float[Array, "B N K C"], v: Float[Array, "B N K C"]
  ) -> Past:
    """Returns the past with the new token's key and value in its tails.

    Attention must read the result and not the old arrays, so that XLA may write
    in place; in the other order it copied every cache at every token. All tails
    take the token in one column, for the same reason.
    """
    at = (0, self.column, 0)
    k, v = (x.reshape(-1, 1, x.shape[-1]) for x in (k, v))
    return self._replace(
      own_k=jax.lax.dynamic_update_slice(self.own_k, k, at),
      own_v=jax.lax.dynamic_update_slice(self.own_v, v, at),
    )

  def attend(
    self,
    q: Float[Array, "B N H C"],
    window: Window | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
  ) -> Float[Array, "B N H C"]:
    """Returns the attention of each newest token to prefix, pages and tail.

    Args:
      q: The queries.
      window: The size of the window; distances are the past's.
      scale: The factor of the logits.
      softcap: See layers.softcap.
    """
    B, N, H, C = q.shape
    K = self.prefix_k.shape[1]
    q = q.reshape(B, N, K, H // K, C) * (C**-0.5 if scale is None else scale)
    attend = _attend if self.pages is None else _attend_pages
    return attend(self, q, window, softcap).reshape(B, N, H, C)


class Branches(NamedTuple):
  """The keys and values that one layer's new tokens see, when they branch.

  A row holds any number of branches. Each continues a path of its own through
  pages of S tokens that were computed before. Distances are those of Past.

  Args:
    k: The keys of all pages of all layers; uint16 is the bits of bfloat16.
    v: The values.
    first: The layer's first page.
    pages: The pages that each row reads, counted from the layer's first one.
    page_distance: The distances of the pages' keys; P is NP * S.
    own_distance: The distances of the row's own keys.
    own_k: The row's own keys; None before `append`.
    own_v: The row's own values; None before `append`.
  """

  k: Float[Array, "LM S K C"] | UInt16[Array, "LM S K C"]
  v: Float[Array, "LM S K C"] | UInt16[Array, "LM S K C"]
  first: Int[Array, ""]
  pages: Int[Array, "B NP"]
  page_distance: Int[Array, "B T P"]
  own_distance: Int[Array, "B T T"]
  own_k: Float[Array, "B T K C"] | None = None
  own_v: Float[Array, "B T K C"] | None = None

  @property
  def own(self) -> tuple[Array, Array]:
    """The row's own keys and values."""
    assert self.own_k is not None
    assert self.own_v is not None
    return self.own_k, self.own_v

  def append(
    self, k: Float[Array, "B T K C"], v: Float[Array, "B T K C"]
  ) -> Branches:
    """Returns the past with the new tokens' keys and values."""
    return self._replace(own_k=k, own_v=v)

  def attend(
    self,
    q: Float[Array, "B T H C"],
    window: Window | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
  ) -> Float[Array, "B T H C"]:
    """Returns the attention of each new token to its path.

    Args:
      q: The queries.
      window: The size of the window; distances are the past's.
      scale: The factor of the logits.
      softcap: See layers.softcap.
    """
    own_k, own_v = self.own
    B, T, H, C = q.shape
    K = own_k.shape[2]
    q = q.reshape(B, T, K, H // K, C) * (C**-0.5 if scale is None else scale)
    page = self.first + self.pages
    page_k, page_v = (
      _of_bits(x[page]).reshape(B, -1, K, C) for x in (self.k, self.v)
    )

    def logits(k: Array, distance: Array) -> Array:
      products = jnp.einsum("BTKGC,BPKC->BKGTP", q, k, **_F32)
      return _seen(products, distance[:, None, None], window, softcap)

    def sums(weights: Array, v: Array) -> Array:
      weights = weights.astype(q.dtype)
      return jnp.einsum("BKGTP,BPKC->BTKGC", weights, v, **_F32)

    to_pages = logits(page_k, self.page_distance)
    to_own = logits(own_k, self.own_distance)
    weights = jax.nn.softmax(jnp.concatenate([to_pages, to_own], -1), axis=-1)
    P = page_k.shape[1]
    out = sums(weights[..., :P], page_v) + sums(weights[..., P:], own_v)
    return out.astype(q.dtype).reshape(B, T, H, C)


def _of_bits(x: Array) -> Array:
  """Returns keys or values that may be held as bits."""
  if x.dtype != jnp.uint16:
    return x
  return jax.lax.bitcast_convert_type(x, jnp.bfloat16)


_F32 = dict(preferred_element_type=jnp.float32)


def _attend(
  past: Past,
  q: Float[Array, "B N K G C"],
  window: Window | None,
  softcap: float | None,
) -> Float[Array, "B N K G C"]:
  """Returns the attention to prefix and tail."""
  B, N, K, G, C = q.shape
  P, R = past.prefix_k.shape[2], B * N * K
  to_prefix = jnp.einsum("BNKGC,BKPC->BNKGP", q, past.prefix_k, **_F32)
  to_own = jnp.einsum(
    "RGC,RSC->RGS", q.reshape(R, G, C), past.own_k, **_F32
  ).reshape(B, N, K, G, -1)

  def seen(logits, distance):
    return _seen(logits, distance[:, :, None, None], window, softcap)

  logits = jnp.concatenate(
    [seen(to_prefix, past.prefix_distance), seen(to_own, past.own_distance)],
    axis=-1,
  )
  weights = jax.nn.softmax(logits, axis=-1).astype(q.dtype)
  of_prefix = _of_prefix(weights[..., :P], past.prefix_v).astype(q.dtype)
  of_own = jnp.einsum(
    "RGS,RSC->RGC", weights[..., P:].reshape(R, G, -1), past.own_v
  )
  return of_prefix + of_own.reshape(q.shape)


def _attend_pages(
  past: Past,
  q: Float[Array, "B N K G C"],
  window: Window | None,
  softcap: float | None,
) -> Float[Array, "B*N K G C"]:
  """Returns the attention to prefix, pages and tail.

  One softmax over three parts: they have a maximum and a sum in common.
  """
  assert past.pages is not None
  pages_k, pages_v, owner, page_distance = past.pages
  B, N, K, G, C = q.shape
  R = B * N * K
  by_sample = q.reshape(B * N, K, G, C)

  def logits(terms, q, k, distance):
    products = jnp.einsum(terms, q, k, **_F32)
    distance = distance.reshape(-1, 1, 1, distance.shape[-1])
    products = products.reshape(len(distance), K, G, -1)
    return _seen(products, distance, window, softcap)

  to_prefix = logits(
    "BNKGC,BKPC->BNKGP", q, past.prefix_k, past.prefix_distance
  )
  to_own = logits(
    "RGC,RSC->RGS", q.reshape(R, G, C), past.own_k, past.own_distance
  )
  to_pages = logits("MKGC,MKTC->MKGT", by_sample[owner], pages_k, page_distance)
  owns = jnp.arange(B * N)[:, None] == owner
  # A sample sees its newest token, so its maximum isn't that of nothing.
  top = jnp.maximum(to_prefix.max(-1), to_own.max(-1))
  of_pages = jnp.where(owns[..., None, None], to_pages.max(-1), UNSEEN)
  top = jnp.maximum(top, of_pages.max(1))[..., None]

  of_prefix, of_own = jnp.exp(to_prefix - top), jnp.exp(to_own - top)
  of_pages = jnp.exp(to_pages - top[owner])

  def sums(terms, weights, v):
    return jnp.einsum(terms, weights.astype(q.dtype), v, **_F32)

  weights = of_prefix.reshape(B, N, K, G, -1).astype(q.dtype)
  out = _of_prefix(weights, past.prefix_v).reshape(by_sample.shape)
  own_sums = sums("RGS,RSC->RGC", of_own.reshape(R, G, -1), past.own_v)
  out += own_sums.reshape(by_sample.shape)
  to_owner = owns.astype(jnp.float32)
  page_sums = sums("MKGT,MKTC->MKGC", of_pages, pages_v)
  out += jnp.einsum("NM,MKGC->NKGC", to_owner, page_sums)
  mass = of_prefix.sum(-1) + of_own.sum(-1)
  # As another array, or XLA would make one product of both, and to that end
  # copy the sums next to the masses.
  to_owner = jax.lax.optimization_barrier(to_owner)
  mass += jnp.einsum("NM,MKG->NKG", to_owner, of_pages.sum(-1))
  return (out / mass[..., None]).astype(q.dtype)


def _of_prefix(
  weights: Float[Array, "B N K G P"], v: Float[Array, "B K P C"]
) -> Float[Array, "B N K G C"]:
  """Returns the weighted sums of the prefixes' values.

  Bfloat16 goes as one matrix for each prefix and head: XLA's CPU backend has no
  product of bfloat16 in the other form.
  """
  if weights.dtype != jnp.bfloat16:
    return jnp.einsum("BNKGP,BKPC->BNKGC", weights, v, **_F32)
  B, N, K, G, P = weights.shape
  rows = weights.swapaxes(1, 2).reshape(B, K, N * G, P)
  sums = jnp.einsum("BKRP,BKPC->BKRC", rows, v, **_F32)
  return sums.reshape(B, K, N, G, -1).swapaxes(1, 2)


def _seen(
  logits: Array, distance: Array, window: Window | None, softcap: float | None
) -> Array:
  """Returns the logits after their soft cap, UNSEEN where a key isn't seen."""
  sees = distance >= 0
  if window is not None:
    sees &= distance < window.size
  return jnp.where(sees, layers.softcap(logits, softcap), UNSEEN)
