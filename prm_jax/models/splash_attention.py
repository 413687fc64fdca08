"""Attention over packed rows by JAX's own kernel for TPUs.

Splash attention (jax.experimental.pallas) supports a causal mask and segments.
In a packed row `visible_until` is the end of a token's solution, so it also
serves as the segment's number; padding, which sees only itself, is a segment of
its own. Trees can't be expressed this way: the result for their rows is NaN,
never a wrong number.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jaxtyping import Array, Bool, Float, Int

from prm_jax.models.visibility import lengthened

# The kernel wants multiples of the width of a TPU's vector, and does best with
# long blocks; a block is skipped for what the causal mask hides, not for what
# segments do.
_LANES = 128
BLOCK = 512


def is_packed(visible_until: Int[Array, "B T"]) -> Bool[Array, " B"]:
  """Returns which rows hold solutions one after another, and no trees."""
  last = visible_until[:, :-1] == jnp.arange(1, visible_until.shape[1])
  same = visible_until[:, :-1] == visible_until[:, 1:]
  return (last | same).all(-1)


def attend(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
  *,
  scale: float | None = None,
  softcap: float | None = None,
  platform: str = "cpu",
) -> Float[Array, "B T H C"]:
  """Returns the result of attention.reference, up to rounding; NaN for trees.

  Args:
    platform: tpu, or cpu for the interpreter.
  """
  _, T, H, C = q.shape
  block = min(BLOCK, -(-T // _LANES) * _LANES)
  length = -(-T // block) * block

  def heads(x):
    after = ((0, 0), (0, length - T), (0, 0), (0, 0))
    return jnp.pad(x, after).transpose(0, 2, 1, 3)

  segments, _ = lengthened(visible_until, None, length)
  sizes = splash.BlockSizes(
    block_q=block,
    block_kv=block,
    block_q_dkv=block,
    block_kv_dkv=block,
    block_q_dq=block,
    block_kv_dq=block,
  )
  causal = splash.CausalMask((length, length))
  kernel = splash.make_splash_mha(
    splash.MultiHeadMask([causal] * H),
    head_shards=1,
    q_seq_shards=1,
    block_sizes=sizes,
    attn_logits_soft_cap=softcap,
    interpret=platform == "cpu",
  )

  def of_row(q, k, v, segments):
    return kernel(q, k, v, segment_ids=splash.SegmentIds(segments, segments))

  q = q * (C**-0.5 if scale is None else scale)
  out = jax.vmap(of_row)(heads(q), heads(k), heads(v), segments)
  out = out.transpose(0, 2, 1, 3)[:, :T]
  packed = is_packed(visible_until)[:, None, None, None]
  return jnp.where(packed, out, jnp.nan)
