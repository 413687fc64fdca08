"""The families of decoders: the names of their tensors, and their defaults.

A family is what config.json calls model_type. The defaults that its class in
transformers has for fields missing in config.json are here, too: released
checkpoints rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.models import model_config as model_config


class Row(NamedTuple):
  """A published tensor, or one of every layer, and its place in our tree.

  Args:
    name: The tensor's name; {} is the number of the layer.
    path: The path of our parameter; under `layers` it is stacked over the
      layers.
    transpose: Whether the tensor is (out, in) and ours (in, out).
  """

  name: str
  path: tuple[str, ...]
  transpose: bool = False

  @property
  def per_layer(self) -> bool:
    return "{}" in self.name


def _row(name: str, path: str, transpose: bool = False) -> Row:
  return Row(f"{name}.weight", tuple(path.split("/")), transpose)


def _layer(name: str, path: str, transpose: bool = False) -> Row:
  return _row(f"model.layers.{{}}.{name}", f"layers/{path}", transpose)


def _bias(name: str) -> Row:
  hf_name = f"model.layers.{{}}.self_attn.{name[0]}_proj.bias"
  return Row(hf_name, ("layers", "attention", name, "bias"))


# What all of them have.
_TRUNK = (
  _row("model.embed_tokens", "embedding/table"),
  _layer("input_layernorm", "attention_norm/scale"),
  _layer("self_attn.q_proj", "attention/query/kernel", True),
  _layer("self_attn.k_proj", "attention/key/kernel", True),
  _layer("self_attn.v_proj", "attention/value/kernel", True),
  _layer("self_attn.o_proj", "attention/output/kernel", True),
  _layer("mlp.gate_proj", "mlp/gate/kernel", True),
  _layer("mlp.up_proj", "mlp/up/kernel", True),
  _layer("mlp.down_proj", "mlp/down/kernel", True),
  _row("model.norm", "final_norm/scale"),
  _row("lm_head", "lm_head/kernel", True),
)
_TWO_NORMS = (_layer("post_attention_layernorm", "mlp_norm/scale"),)
_FOUR_NORMS = (
  _layer("post_attention_layernorm", "attention_post_norm/scale"),
  _layer("pre_feedforward_layernorm", "mlp_norm/scale"),
  _layer("post_feedforward_layernorm", "mlp_post_norm/scale"),
)
_QK_NORMS = (
  _layer("self_attn.q_norm", "attention/query_norm/scale"),
  _layer("self_attn.k_norm", "attention/key_norm/scale"),
)
_QKV_BIASES = (_bias("query"), _bias("key"), _bias("value"))


class Family(NamedTuple):
  """A family of published models.

  Args:
    causal_lm: The name of its class with an LM head.
    rows: Its tensors.
    fixed: The fields of its ModelConfig that never change.
    defaults: The values of fields that config.json may lack.
  """

  causal_lm: str
  rows: tuple[Row, ...]
  fixed: Mapping[str, Any]
  defaults: Mapping[str, Any]


_DEFAULTS = dict(
  head_dim=None,
  num_key_value_heads=None,
  rms_norm_eps=1e-6,
  tie_word_embeddings=False,
  rope_theta=10_000.0,
  hidden_act="silu",
)
_QWEN = dict(
  _DEFAULTS,
  num_key_value_heads=32,
  use_sliding_window=False,
  sliding_window=4096,
  max_window_layers=28,
)
_GEMMA = dict(
  _DEFAULTS,
  head_dim=256,
  num_key_value_heads=4,
  tie_word_embeddings=True,
  hidden_activation="gelu_pytorch_tanh",
  query_pre_attn_scalar=256,
  sliding_window=4096,
)
_AS_GEMMA = dict(scale_embedding=True, norm_offset=True, post_norms=True)

FAMILIES: Mapping[str, Family] = {
  "llama": Family("LlamaForCausalLM", _TRUNK + _TWO_NORMS, {}, _DEFAULTS),
  "mistral": Family(
    "MistralForCausalLM",
    _TRUNK + _TWO_NORMS,
    {},
    dict(_DEFAULTS, num_key_value_heads=8, sliding_window=4096),
  ),
  "qwen2": Family(
    "Qwen2ForCausalLM",
    _TRUNK + _TWO_NORMS + _QKV_BIASES,
    dict(qkv_bias=True),
    _QWEN,
  ),
  "qwen3": Family(
    "Qwen3ForCausalLM",
    _TRUNK + _TWO_NORMS + _QK_NORMS,
    dict(qk_norm=True),
    dict(_QWEN, head_dim=128),
  ),
  "gemma2": Family(
    "Gemma2ForCausalLM",
    _TRUNK + _FOUR_NORMS,
    _AS_GEMMA,
    dict(
      _GEMMA,
      attn_logit_softcapping=50.0,
      final_logit_softcapping=30.0,
      sliding_window_pattern=2,
    ),
  ),
  "gemma3_text": Family(
    "Gemma3ForCausalLM",
    _TRUNK + _FOUR_NORMS + _QK_NORMS,
    dict(_AS_GEMMA, qk_norm=True),
    dict(
      _GEMMA,
      final_logit_softcapping=None,
      rope_theta=1_000_000.0,
      rope_local_base_freq=10_000.0,
      sliding_window_pattern=6,
    ),
  ),
}

# Old checkpoints of Llama hold what follows from config.json.
IGNORED = ("model.layers.{}.self_attn.rotary_emb.inv_freq",)


def rows(
  family: str, model: model_config.ModelConfig, lm_head: bool = True
) -> Sequence[Row]:
  """Returns the family's table for a model: without the LM head if it's tied."""
  untied = lm_head and not model.tie_embedding
  return [
    row for row in FAMILIES[family].rows if untied or row.path[0] != "lm_head"
  ]
