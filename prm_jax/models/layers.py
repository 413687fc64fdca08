"""The parts of a decoder layer except attention."""

from __future__ import annotations

from collections.abc import Callable
import functools
import math
from typing import Any

from flax import linen as nn
import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax.models import matmul
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding

_fan_in = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def _param(
  module: nn.Module,
  name: str,
  init: Callable,
  axes: tuple[str | None, ...],
  *shape: int,
) -> Any:
  """Returns a parameter whose axes have logical names.

  It is created in float32; what was imported may be bfloat16 or float16. It is
  converted where it is used, so that nothing but the memory differs.
  """
  boxed = nn.with_logical_partitioning(init, axes)
  return module.param(name, boxed, shape, jnp.float32)


class Dense(nn.Module):
  """x @ kernel (+ bias), in the compute dtype; out_dtype rounds the sums.

  Rows are flattened to two dimensions first, because XLA's CPU backend runs the
  backward pass of a plain matmul several times faster than that of a
  three-dimensional contraction.

  Args:
    features: The size of the output.
    axes: The logical names of the kernel's axes.
    dtype: The type of the matmul.
    use_bias: Whether there is a bias.
    out_dtype: The type of the output.
    lora: Adds scale * (x @ lora_a) @ lora_b, which is 0 initially.
  """

  features: int
  axes: tuple[str, str]
  dtype: str
  use_bias: bool = False
  out_dtype: str | None = None
  lora: model_config.Lora | None = None

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
    rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
    out_dtype = self.out_dtype or self.dtype
    if self.has_variable("params", matmul.TRANSPOSED):
      held: Array = self.get_variable("params", matmul.TRANSPOSED)
      turned = jnp.asarray(held, self.dtype)
      y = matmul.by_transposed(rows, turned, out_dtype)
    else:
      kernel = _param(
        self, "kernel", _fan_in, self.axes, x.shape[-1], self.features
      )
      y = matmul.matmul(rows, jnp.asarray(kernel, self.dtype), out_dtype)
    if self.use_bias:
      zeros = nn.initializers.zeros
      bias = _param(self, "bias", zeros, self.axes[1:], self.features)
      y = y + bias.astype(y.dtype)
    if self.lora is not None:
      y = y + self._adapted(rows).astype(y.dtype)
    return y.reshape(*x.shape[:-1], self.features)

  def _adapted(self, rows: Float[Array, "R D"]) -> Float[Array, "R F"]:
    """Returns what the adapter adds; its axes are the kernel's own."""
    assert self.lora is not None
    zeros, rank = nn.initializers.zeros, self.lora.rank
    axes_a, axes_b = (self.axes[0], None), (None, self.axes[1])
    a = _param(self, "lora_a", _fan_in, axes_a, rows.shape[-1], rank)
    b = _param(self, "lora_b", zeros, axes_b, rank, self.features)
    inner = matmul.matmul(rows, jnp.asarray(a, self.dtype), self.dtype)
    return matmul.matmul(
      self.lora.scale * inner, jnp.asarray(b, self.dtype), self.dtype
    )


class RMSNorm(nn.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale, computed in float32.

  Args:
    epsilon: What is added to the mean square.
    offset: Whether the factor is 1 + scale.
  """

  epsilon: float
  offset: bool = False

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    init = nn.initializers.zeros if self.offset else nn.initializers.ones
    scale = _param(self, "scale", init, ("norm",), x.shape[-1])
    scale = scale.astype(jnp.float32)
    factor = 1 + scale if self.offset else scale
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + self.epsilon) * factor
    return normed.astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = dict(
  silu=nn.silu, gelu_tanh=functools.partial(nn.gelu, approximate=True)
)


class GatedMLP(nn.Module):
  """down(activation(gate(x)) * up(x))."""

  config: model_config.ModelConfig

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    c = self.config
    inward = ("embed", "mlp")

    def dense(name: str, features: int, axes: tuple[str, str]) -> Dense:
      return Dense(
        features, axes, c.compute_dtype, lora=c.lora(name), name=name
      )

    gate = dense("gate", c.d_ff, inward)(x)
    up = dense("up", c.d_ff, inward)(x)
    hidden = matmul.gated(ACTIVATIONS[c.activation], gate, up)
    return dense("down", c.d_model, ("mlp", "embed"))(hidden)


class Embedding(nn.Module):
  """The token table; `attend` is the tied LM head."""

  config: model_config.ModelConfig

  def setup(self):
    c = self.config
    init = nn.initializers.normal(c.d_model**-0.5)
    axes = ("vocab", "embed")
    self.table = _param(self, "table", init, axes, c.vocab_size, c.d_model)

  def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    scale = self.config.d_model**0.5 if self.config.scale_embedding else None

    def look_up(table, tokens):
      x = matmul.rows_of(table, tokens)
      x = x if scale is None else x * scale
      return x.astype(self.config.compute_dtype)

    table = jnp.asarray(self.table)
    axis = _channels_axis(table, tokens)
    if axis is not None:
      return _look_up_by_channel(look_up, table, tokens, axis)
    table = nn.with_logical_constraint(table, ("vocab", "embed_act"))
    return look_up(table, tokens)

  def attend(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
    rows = x.reshape(-1, x.shape[-1])
    logits = matmul.by_transposed(rows, self.table.astype(x.dtype), jnp.float32)
    return logits.reshape(*x.shape[:-1], -1)


def _channels_axis(
  table: Float[Array, "V D"], tokens: Int[Array, "B T"]
) -> str | None:
  """Returns the mesh axis that splits a table's channels and the batch.

  Returns None if there is none, if the vocabulary is split as well, or if the
  sizes don't divide.
  """
  mesh = jax.sharding.get_abstract_mesh()
  # One by one: within one call a mesh axis is given away once.
  specs = [
    nn.logical_to_mesh_axes((name,)) for name in ("vocab", "embed", "batch")
  ]
  if mesh.empty or None in specs:
    return None
  vocabulary, channels, rows = (spec[0] for spec in specs if spec is not None)
  if not isinstance(channels, str) or channels not in rows:
    return None
  splits = (
    mesh.shape[channels] > 1
    and mesh.shape.get(vocabulary, 1) == 1
    and table.shape[1] % mesh.shape[channels] == 0
    and tokens.shape[0] % sharding.num_parts(mesh, rows) == 0
  )
  return channels if splits else None


def _look_up_by_channel(
  look_up: Callable[[Array, Array], Array],
  table: Float[Array, "V D"],
  tokens: Int[Array, "B T"],
  axis: str,
) -> Float[Array, "B T D"]:
  """Returns look_up(table, tokens) without gathering the table.

  Every device looks up its channels of all rows along the axis, and swaps
  them for all channels of its own rows. What is sent is as large as the
  result; a gathered table, and the sum of its gradients, would be as large as
  the vocabulary.
  """

  def on_device(table, tokens):
    everyones = jax.lax.all_gather(tokens, axis, axis=0, tiled=True)
    channels = look_up(table, everyones)
    return jax.lax.all_to_all(
      channels, axis, split_axis=0, concat_axis=2, tiled=True
    )

  rows = nn.logical_to_mesh_axes(("batch", "length"))
  assert rows is not None
  return jax.shard_map(
    on_device,
    in_specs=(jax.sharding.PartitionSpec(None, axis), rows),
    out_specs=jax.sharding.PartitionSpec(*rows, None),
    check_vma=False,
  )(table, tokens)


class ScoreHead(nn.Module):
  """One or several float32 logits per position. Zero initially, so P = 1/2."""

  classes: int = 1
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T ..."]:
    zeros, width = nn.initializers.zeros, x.shape[-1]
    kernel = _param(self, "kernel", zeros, ("embed", None), width, self.classes)
    logits = jnp.einsum("BTD,Dk->BTk", x.astype(jnp.float32), kernel)
    if self.use_bias:
      logits += _param(self, "bias", zeros, (None,), self.classes)
    return logits[..., 0] if self.classes == 1 else logits


class MLPScoreHead(nn.Module):
  """Linear, ReLU, Linear to logits, in float32 (Qwen2.5-Math-PRM's head)."""

  classes: int = 1

  @nn.compact
  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T ..."]:
    inner = Dense(
      x.shape[-1], ("embed", "embed_act"), "float32", True, name="inner"
    )
    hidden = nn.relu(inner(x.astype(jnp.float32)))
    return ScoreHead(self.classes, name="outer")(hidden)


def softcap(logits: Array, cap: float | None) -> Array:
  """Returns cap * tanh(logits / cap), or the logits if there is no cap."""
  return logits if cap is None else cap * jnp.tanh(logits / cap)


def rope_frequencies(
  c: model_config.ModelConfig, local: bool = False
) -> Float[Array, " half"]:
  """Returns the angle by which a position rotates each pair of channels.

  Args:
    c: The shape of the model.
    local: Whether the layers have a window, which may have a base of their own.

  Returns:
    Radians per position.
  """
  if local and c.rope_local_theta is not None:
    return base_frequencies(c.head_dim, c.rope_local_theta)
  frequencies = base_frequencies(c.head_dim, c.rope_theta)
  if c.rope_scaling == "linear":
    return frequencies / c.rope_factor
  if c.rope_scaling == "llama3":
    return _llama3_frequencies(frequencies, c)
  return frequencies


def base_frequencies(head_dim: int, theta: float) -> Float[Array, " half"]:
  """Returns radians per position: theta^(-2i / head_dim) of the i-th pair."""
  return theta ** (-jnp.arange(0, head_dim, 2) / head_dim)


def _llama3_frequencies(
  frequencies: Float[Array, " half"], c: model_config.ModelConfig
) -> Float[Array, " half"]:
  """Returns Llama 3.1's: slow turns over the factor, fast ones as they are.

  turns: how often a pair turns within the length of the first training.
  Between the bounds the share that is kept goes linearly from 0 to 1.
  """
  turns = frequencies * (c.rope_original_tokens / (2 * math.pi))
  low, high = c.rope_low_freq_factor, c.rope_high_freq_factor
  kept = jnp.clip((turns - low) / (high - low), 0, 1)
  return kept * frequencies + (1 - kept) * frequencies / c.rope_factor


def rope_tables(
  positions: Int[Array, "*shape"], frequencies: Float[Array, " half"]
) -> tuple[Float[Array, "*shape half"], Float[Array, "*shape half"]]:
  """Returns cos and sin of the rotary angles (Su et al. 2021), float32."""
  angles = positions[..., None].astype(jnp.float32) * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def rotate(
  x: Float[Array, "*shape heads C"],
  cos: Float[Array, "*shape half"],
  sin: Float[Array, "*shape half"],
) -> Float[Array, "*shape heads C"]:
  """Returns x with channel i and i + C/2 rotated as a pair."""
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cos, sin = cos[..., None, :], sin[..., None, :]
  turned = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
