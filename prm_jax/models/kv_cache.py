"""Attention of the newest token of each sample to what is in caches.

`Past` keeps every sample's tail in columns of its own: for samples that begin
together. `PagedPast` keeps what is long ago in pages, as many as there is to
see: for samples of any age.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax.models import layers
from prm_jax.models.blockwise_attention import Window

# The logit of a key that isn't seen.
UNSEEN = -1e30


class Past(NamedTuple):
  """What one layer's decoding looks back on.

  N samples share the prefix keys, each with its own tail, and each sees of
  both what its distances say: how many tokens of its own path back from its
  newest token a key stands, -1 where it isn't seen. The newest token's own
  key goes to `column` of the tails, at distance 0. The tails have one axis
  for B, N and K: an axis of length 1 among them made XLA copy all tails at
  every token.
  """

  prefix_k: Float[Array, "B K P C"]
  prefix_v: Float[Array, "B K P C"]
  own_k: Float[Array, "B*N*K S C"]
  own_v: Float[Array, "B*N*K S C"]
  prefix_distance: Int[Array, "B N P"]
  own_distance: Int[Array, "B N S"]
  column: Int[Array, ""]

  @property
  def own(self) -> tuple[Array, Array]:
    return self.own_k, self.own_v

  def append(
    self, k: Float[Array, "B N K C"], v: Float[Array, "B N K C"]
  ) -> Past:
    """Returns the past with the new token's key and value in its tails.

    Attention reads the result, not what was there before: so XLA may write
    in place; the other order made it copy every cache at every token. All
    tails take it in one column, for the same reason.
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
    """Returns the attention of each newest token to prefix and tail.

    window: its size; the distances are the past's.
    """
    B, N, H, C = q.shape
    K, P = self.prefix_k.shape[1:3]
    G, R = H // K, B * N * K
    q = q.reshape(B, N, K, G, C) * (C**-0.5 if scale is None else scale)
    f32 = dict(preferred_element_type=jnp.float32)
    to_prefix = jnp.einsum("BNKGC,BKPC->BNKGP", q, self.prefix_k, **f32)
    to_own = jnp.einsum(
      "RGC,RSC->RGS", q.reshape(R, G, C), self.own_k, **f32
    ).reshape(B, N, K, G, -1)

    def seen(logits, distance):
      return _seen(logits, distance[:, :, None, None], window, softcap)

    logits = jnp.concatenate(
      [seen(to_prefix, self.prefix_distance), seen(to_own, self.own_distance)],
      axis=-1,
    )
    weights = jax.nn.softmax(logits, axis=-1).astype(q.dtype)
    of_prefix = jnp.einsum("BNKGP,BKPC->BNKGC", weights[..., :P], self.prefix_v)
    of_own = jnp.einsum(
      "RGS,RSC->RGC", weights[..., P:].reshape(R, G, -1), self.own_v
    )
    return of_prefix.reshape(B, N, H, C) + of_own.reshape(B, N, H, C)


class PagedPast(NamedTuple):
  """A past whose tails hold T columns; what was there before is in pages.

  A page holds T columns of one sample, its `owner`: b * N + n. There are M
  pages for all samples, so that the work follows the tokens that there are
  and not the longest sample's (Kwon et al. 2023). distance: as in Past, to
  the owner's newest token; a page without an owner has -1 throughout.
  """

  near: Past
  pages_k: Float[Array, "M K T C"]
  pages_v: Float[Array, "M K T C"]
  owner: Int[Array, " M"]
  distance: Int[Array, "M T"]

  @property
  def own(self) -> tuple[Array, Array]:
    return self.near.own

  def append(
    self, k: Float[Array, "B N K C"], v: Float[Array, "B N K C"]
  ) -> PagedPast:
    """Returns the past with the new token in its tails: see Past.append."""
    return self._replace(near=self.near.append(k, v))

  def attend(
    self,
    q: Float[Array, "B N H C"],
    window: Window | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
  ) -> Float[Array, "B N H C"]:
    """Returns the attention of each newest token to prefix, pages and tail.

    One softmax over three parts: they have a maximum and a sum in common.
    """
    near = self.near
    B, N, H, C = q.shape
    K = near.prefix_k.shape[1]
    G, R = H // K, B * N * K
    q = q.reshape(B * N, K, G, C) * (C**-0.5 if scale is None else scale)
    f32 = dict(preferred_element_type=jnp.float32)

    def logits(terms, q, k, distance):
      found = jnp.einsum(terms, q, k, **f32)
      distance = distance.reshape(-1, 1, 1, distance.shape[-1])
      found = found.reshape(len(distance), K, G, -1)
      return _seen(found, distance, window, softcap)

    to_prefix = logits(
      "BNKGC,BKPC->BNKGP",
      q.reshape(B, N, K, G, C),
      near.prefix_k,
      near.prefix_distance,
    )
    to_own = logits(
      "RGC,RSC->RGS", q.reshape(R, G, C), near.own_k, near.own_distance
    )
    to_pages = logits(
      "MKGC,MKTC->MKGT", q[self.owner], self.pages_k, self.distance
    )
    owns = jnp.arange(B * N)[:, None] == self.owner
    # A sample sees its newest token, so its maximum isn't that of nothing.
    top = jnp.maximum(to_prefix.max(-1), to_own.max(-1))
    of_pages = jnp.where(owns[..., None, None], to_pages.max(-1), UNSEEN)
    top = jnp.maximum(top, of_pages.max(1))[..., None]

    of_prefix, of_own = jnp.exp(to_prefix - top), jnp.exp(to_own - top)
    of_pages = jnp.exp(to_pages - top[self.owner])
    out = jnp.einsum(
      "BNKGP,BKPC->BNKGC",
      of_prefix.reshape(B, N, K, G, -1).astype(q.dtype),
      near.prefix_v,
      **f32,
    ).reshape(q.shape)
    out += jnp.einsum(
      "RGS,RSC->RGC",
      of_own.reshape(R, G, -1).astype(q.dtype),
      near.own_v,
      **f32,
    ).reshape(q.shape)
    paged = jnp.einsum(
      "MKGT,MKTC->MKGC", of_pages.astype(q.dtype), self.pages_v, **f32
    )
    to_owner = owns.astype(jnp.float32)
    out += jnp.einsum("NM,MKGC->NKGC", to_owner, paged)
    mass = of_prefix.sum(-1) + of_own.sum(-1)
    mass += jnp.einsum("NM,MKG->NKG", to_owner, of_pages.sum(-1))
    return (out / mass[..., None]).astype(q.dtype).reshape(B, N, H, C)


AnyPast = Past | PagedPast


def _seen(
  logits: Array, distance: Array, window: Window | None, softcap: float | None
) -> Array:
  """Returns the logits under their soft cap, UNSEEN where not seen."""
  sees = distance >= 0
  if window is not None:
    sees &= distance < window.size
  return jnp.where(sees, layers.softcap(logits, softcap), UNSEEN)
