"""The shape of a decoder, as plain data that is saved with the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import limits

REMAT = ("none", "full", "dots")
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("auto", "reference", "blocks", "tree", "splash", "tokamax")
# Those that know no trees, only solutions one after another.
PACKED_ATTENTION = ("splash",)
STEP_HEADS = ("linear", "mlp", "tokens")
OUTCOME_HEADS = ("linear", "linear_no_bias", "mlp")
ACTIVATIONS = ("silu", "gelu_tanh")
ROPE_SCALING = ("none", "linear", "llama3")
_CHOICES = dict(
  compute_dtype=COMPUTE_DTYPES,
  remat=REMAT,
  attention=ATTENTION,
  activation=ACTIVATIONS,
  rope_scaling=ROPE_SCALING,
  step_head=STEP_HEADS,
  outcome_head=OUTCOME_HEADS,
)
# The matrices of a layer that can have adapters.
LORA_TARGETS = ("query", "key", "value", "output", "gate", "up", "down")


class Lora(NamedTuple):
  """A low-rank adapter: it adds scale * (x A) B, with A [in, rank]."""

  rank: int
  scale: float


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A pre-norm decoder like Llama, Mistral, Qwen and Gemma.

  Args:
    vocab_size: The number of token ids.
    d_model: The width of the hidden states.
    num_layers: The number of layers.
    num_heads: The number of query heads, a multiple of num_kv_heads.
    num_kv_heads: The number of key/value heads (grouped queries).
    head_dim: The number of channels of a head.
    d_ff: The width of the gated MLP.
    rope_theta: RoPE's base.
    norm_epsilon: What is added to the mean square in norms.
    qkv_bias: Whether queries, keys and values have a bias.
    qk_norm: Whether queries and keys are normed.
    tie_embedding: Whether the LM head is the embedding.
    scale_embedding: Whether embeddings are multiplied by sqrt(d_model), as in
      Gemma.
    step_classes: 1 for a scalar step logit, 2 for the difference of two (bad,
      good), 3 for bad, neutral, good.
    step_head: What scores a step: linear; mlp, which has a hidden layer and
      ReLU before it (Qwen2.5-Math-PRM); or tokens, the LM head's logits of the
      two ids in step_tokens (Math-Shepherd, RLHFlow).
    step_tokens: The ids of good and bad, for step_head tokens.
    outcome_head: What an ORM's logit is computed by: linear; linear_no_bias
      (transformers' ForSequenceClassification); or mlp, which has a hidden
      layer and ReLU before it (Qwen2.5-Math-RM).
    compute_dtype: The type of matmuls and activations. Parameters, norms,
      softmax and logits are float32.
    remat: What the backward pass computes again: none, full (every layer) or
      dots (all but the outputs of matmuls).
    scan: Whether one layer is compiled for all. Their parameters are stacked on
      a leading axis in any case.
    attention: The kind of attention (models/attention.attend); parameters don't
      depend on it.
    activation: The activation of the MLP.
    norm_offset: Whether norms multiply by 1 + scale (Gemma).
    post_norms: Whether the outputs of attention and MLP are also normed before
      they are added (Gemma).
    query_scale: The factor of queries; None is 1 / sqrt(head_dim).
    attention_softcap: The cap of attention's logits: cap * tanh(logits / cap).
    final_softcap: The same for the logits of the vocabulary.
    window: The number of tokens of its own path that a token sees, itself
      included; None is all.
    global_layers: The layers, from 0, without the window.
    rope_local_theta: RoPE's base in the layers with the window, where it is
      never scaled; None is rope_theta.
    rope_scaling: How RoPE is stretched for longer texts: none, linear (every
      angle is divided by rope_factor) or llama3 (Llama 3.1: only waves longer
      than rope_original_tokens / rope_high_freq_factor are stretched, and fully
      those beyond rope_original_tokens / rope_low_freq_factor).
    rope_factor: See rope_scaling.
    rope_low_freq_factor: See rope_scaling.
    rope_high_freq_factor: See rope_scaling.
    rope_original_tokens: See rope_scaling.
    lora_rank: The rank of the adapters of the matrices in lora_targets; 0 has
      no adapters. They add lora_alpha / lora_rank * (x A) B (Hu et al. 2021,
      eq. 3).
    lora_alpha: See lora_rank.
    lora_targets: The names of the matrices with adapters.
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
  outcome_head: str = "linear"
  compute_dtype: str = "float32"
  remat: str = "none"
  scan: bool = True
  attention: str = "auto"
  activation: str = "silu"
  norm_offset: bool = False
  post_norms: bool = False
  query_scale: float | None = None
  attention_softcap: float | None = None
  final_softcap: float | None = None
  window: int | None = None
  global_layers: tuple[int, ...] = ()
  rope_local_theta: float | None = None
  rope_scaling: str = "none"
  rope_factor: float = 1.0
  rope_low_freq_factor: float = 1.0
  rope_high_freq_factor: float = 4.0
  rope_original_tokens: int = 8192
  lora_rank: int = 0
  lora_alpha: float = 32.0
  lora_targets: tuple[str, ...] = LORA_TARGETS

  def __post_init__(self):
    errors.raise_first(self._faults())
    # A tuple in one order, also of the list that JSON has: equal models are
    # equal, and have a hash.
    ordered = (x for x in LORA_TARGETS if x in self.lora_targets)
    object.__setattr__(self, "lora_targets", tuple(ordered))

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    sizes = ("vocab_size", "d_model", "num_heads", "num_kv_heads", "head_dim")
    checks.check_at_most(self, (*sizes, "d_ff"), limits.MODEL_SIZE, "model.")
    checks.check_at_most(self, ("num_layers",), limits.MODEL_LAYERS, "model.")
    checks.check_counts(self, ("step_classes",), "model.")
    checks.check_positive(self, ("rope_theta", "norm_epsilon"), "model.")
    for name, allowed in _CHOICES.items():
      checks.check_choice(f"model.{name}", getattr(self, name), allowed)
    if self.num_heads % self.num_kv_heads:
      yield (
        f"model.num_heads={self.num_heads} isn't a multiple of"
        f" model.num_kv_heads={self.num_kv_heads}"
      )
    if self.head_dim % 2:
      yield (
        f"model.head_dim={self.head_dim}: RoPE rotates pairs; make it even"
      )
    yield from self._window_faults()
    yield from self._rope_faults()
    yield from self._step_head_faults()
    yield from self._lora_faults()

  def _window_faults(self) -> Iterator[str]:
    optional = ("query_scale", "attention_softcap", "final_softcap")
    for name in (*optional, "rope_local_theta"):
      if getattr(self, name) is not None:
        checks.check_positive(self, (name,), "model.")
    if self.window is None:
      for name in ("global_layers", "rope_local_theta"):
        if getattr(self, name) not in ((), None):
          yield (f"model.{name}={getattr(self, name)}: set model.window too")
      return
    checks.check_at_most(self, ("window",), limits.MODEL_TOKENS, "model.")
    known = range(self.num_layers)
    if sorted({*self.global_layers} & {*known}) != list(self.global_layers):
      yield (
        f"model.global_layers={self.global_layers}: expected some of the layers"
        f" 0 to {self.num_layers - 1}, each once and in order"
      )
    if self.attention in PACKED_ATTENTION:
      yield (
        f"model.attention={self.attention!r}: it knows no window, and"
        f" model.window={self.window}; use 'tree'"
      )

  def _rope_faults(self) -> Iterator[str]:
    low_to_high = ("rope_low_freq_factor", "rope_high_freq_factor")
    checks.check_positive(self, ("rope_factor", *low_to_high), "model.")
    most = limits.MODEL_TOKENS
    checks.check_at_most(self, ("rope_original_tokens",), most, "model.")
    if self.rope_low_freq_factor >= self.rope_high_freq_factor:
      yield (
        f"model.rope_low_freq_factor={self.rope_low_freq_factor}: expected"
        f" less than model.rope_high_freq_factor={self.rope_high_freq_factor}"
      )

  def _step_head_faults(self) -> Iterator[str]:
    if self.step_classes > 3:
      yield (f"model.step_classes={self.step_classes}: expected 1, 2 or 3")
    if self.step_head != "tokens":
      if self.step_tokens:
        yield (
          f"model.step_tokens={self.step_tokens}: only step_head='tokens'"
          " reads them; set it, or leave them out"
        )
      return
    good_bad = {x for x in self.step_tokens if 0 <= x < self.vocab_size}
    if len(good_bad) != 2 or len(self.step_tokens) != 2:
      yield (
        f"model.step_tokens={self.step_tokens}: step_head='tokens' needs two"
        f" different ids below {self.vocab_size}: good and bad"
      )
    if self.step_classes != 1:
      yield (
        f"model.step_classes={self.step_classes}: step_head='tokens' has one"
      )

  def _lora_faults(self) -> Iterator[str]:
    if self.lora_rank:
      checks.check_at_most(self, ("lora_rank",), limits.MODEL_SIZE, "model.")
    checks.check_positive(self, ("lora_alpha",), "model.")
    given = tuple(self.lora_targets)
    ordered = tuple(name for name in LORA_TARGETS if name in given)
    if not given or sorted(given) != sorted(ordered):
      yield (
        f"model.lora_targets={self.lora_targets!r}: expected some of"
        f" {', '.join(LORA_TARGETS)}, each once"
      )

  def lora(self, name: str) -> Lora | None:
    """Returns the adapter of the matrices with that name, or None."""
    if not self.lora_rank or name not in self.lora_targets:
      return None
    return Lora(self.lora_rank, self.lora_alpha / self.lora_rank)

  @property
  def body_parameters(self) -> int:
    """Parameters of the layers' matmuls, as FLOP counts use them."""
    attention = 2 * self.num_heads + 2 * self.num_kv_heads
    per_layer = attention * self.head_dim + 3 * self.d_ff
    return self.num_layers * self.d_model * per_layer

  @property
  def windowed(self) -> tuple[bool, ...]:
    """Which layers have the window."""
    return tuple(
      self.window is not None and layer not in self.global_layers
      for layer in range(self.num_layers)
    )


def check_trees(attention: str, why: str) -> None:
  """Raises InputError if rows may hold trees and the attention supports none.

  Args:
    attention: The kind of attention.
    why: What makes the rows trees, such as an argument and its value.
  """
  if attention in PACKED_ATTENTION:
    raise errors.InputError(
      f"model.attention={attention!r} with {why}: it sees no trees, only"
      " solutions one after another; use 'tree' or 'auto'"
    )


def from_record(record: Mapping[str, Any]) -> ModelConfig:
  """Returns the model of a dict from dataclasses.asdict, or of its JSON."""
  # JSON knows lists only.
  tuples = {k: tuple(v) for k, v in record.items() if isinstance(v, list)}
  fields = {**record, **tuples}
  checks.check_types(ModelConfig, fields, "model.")
  return ModelConfig(**fields)


def computing_in(model: ModelConfig, compute_dtype: str | None) -> ModelConfig:
  """Returns the model with another type of matmuls and activations.

  Args:
    model: The model.
    compute_dtype: One of COMPUTE_DTYPES; None changes nothing.

  Raises:
    InputError: There is no such type.
  """
  if compute_dtype is None:
    return model
  checks.check_choice("dtype", compute_dtype, COMPUTE_DTYPES)
  return dataclasses.replace(model, compute_dtype=compute_dtype)
