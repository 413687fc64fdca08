"""The shape of a decoder, as plain data: it is stored beside the weights."""

from __future__ import annotations

import dataclasses

from prm_jax import ranges
from prm_jax import schema

REMAT = ("none", "full", "dots")
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("auto", "reference", "blocks")
STEP_HEADS = ("linear", "mlp", "tokens")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A pre-norm decoder in the manner of Llama and Qwen.

  num_kv_heads: key/value heads; num_heads is a multiple (grouped queries).
  d_ff: width of the gated MLP. scale_embedding: tokens enter times
  sqrt(d_model), as in Gemma. step_head: what scores a step: linear; mlp, a
  hidden layer and ReLU before it (Qwen2.5-Math-PRM); or tokens, the LM head's
  logits of the two ids in step_tokens, good and bad (Math-Shepherd, RLHFlow).
  step_classes: 1 for a scalar step logit, 2 for the difference of two (bad,
  good), 3 for bad, neutral, good. compute_dtype: of matmuls and activations; parameters, norms,
  softmax and logits are float32. remat: what the backward pass computes
  anew: none, full (every layer), dots (all but matmul outputs). scan: one
  compiled layer for all, stacked on a leading axis; its parameters are
  stacked either way. attention: what computes it (models/attention.attend).
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float = 10_000.0
  norm_epsilon: float = 1e-6
  qkv_bias: bool = False
  qk_norm: bool = False
  tie_embedding: bool = True
  scale_embedding: bool = False
  step_classes: int = 1
  step_head: str = "linear"
  step_tokens: tuple[int, ...] = ()
  compute_dtype: str = "float32"
  remat: str = "none"
  scan: bool = True
  attention: str = "auto"

  def __post_init__(self):
    sizes = ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads")
    ranges.check_counts(
      self, (*sizes, "head_dim", "d_ff", "step_classes"), "model."
    )
    ranges.check_positive(self, ("rope_theta", "norm_epsilon"), "model.")
    self._check_step_head()
    if self.compute_dtype not in COMPUTE_DTYPES:
      raise schema.InputError(
        f"model.compute_dtype={self.compute_dtype!r}: expected one of"
        f" {', '.join(COMPUTE_DTYPES)}"
      )
    if self.num_heads % self.num_kv_heads:
      raise schema.InputError(
        f"model.num_heads={self.num_heads} isn't a multiple of"
        f" model.num_kv_heads={self.num_kv_heads}"
      )
    if self.head_dim % 2:
      raise schema.InputError(
        f"model.head_dim={self.head_dim}: RoPE rotates pairs; make it even"
      )
    if self.remat not in REMAT:
      raise schema.InputError(
        f"model.remat={self.remat!r}: expected one of {', '.join(REMAT)}"
      )
    if self.attention not in ATTENTION:
      raise schema.InputError(
        f"model.attention={self.attention!r}: expected one of"
        f" {', '.join(ATTENTION)}"
      )

  def _check_step_head(self) -> None:
    if self.step_head not in STEP_HEADS:
      raise schema.InputError(
        f"model.step_head={self.step_head!r}: expected one of"
        f" {', '.join(STEP_HEADS)}"
      )
    if self.step_classes > 3:
      raise schema.InputError(
        f"model.step_classes={self.step_classes}: expected 1, 2 or 3"
      )
    if self.step_head != "tokens":
      if self.step_tokens:
        raise schema.InputError(
          f"model.step_tokens={self.step_tokens}: only step_head='tokens'"
          " reads them; set it, or leave them out"
        )
      return
    good_bad = {x for x in self.step_tokens if 0 <= x < self.vocab_size}
    if len(good_bad) != 2 or len(self.step_tokens) != 2:
      raise schema.InputError(
        f"model.step_tokens={self.step_tokens}: step_head='tokens' needs two"
        f" different ids below {self.vocab_size}: good and bad"
      )
    if self.step_classes != 1:
      raise schema.InputError(
        f"model.step_classes={self.step_classes}: step_head='tokens' has one"
      )

  @property
  def body_parameters(self) -> int:
    """Parameters of the layers' matmuls, as FLOP counts use them."""
    attention = 2 * self.num_heads + 2 * self.num_kv_heads
    per_layer = attention * self.head_dim + 3 * self.d_ff
    return self.num_layers * self.d_model * per_layer
