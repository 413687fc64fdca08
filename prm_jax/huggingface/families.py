"""The families of decoders: all in which published models differ.

A family is what config.json calls model_type. The defaults that its class in
transformers has for fields missing in config.json are here, too: released
checkpoints rely on them. No other module compares a family's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import types
from typing import Any, NamedTuple

from prm_jax.huggingface import layer_windows
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


# The fields of config.json that all of them have: ours, and their types.
_FIELDS: Mapping[str, tuple[Any, ...]] = dict(
  vocab_size=("vocab_size", int),
  hidden_size=("d_model", int),
  intermediate_size=("d_ff", int),
  num_hidden_layers=("num_layers", int),
  num_attention_heads=("num_heads", int),
  rms_norm_eps=("norm_epsilon", float),
  tie_word_embeddings=("tie_embedding", bool),
)
_FINAL_CAP = dict(
  final_logit_softcapping=("final_softcap", float, types.NoneType)
)
_ATTENTION_CAP = dict(
  attn_logit_softcapping=("attention_softcap", float, types.NoneType)
)


class Family(NamedTuple):
  """A family of published models.

  Args:
    name: What config.json calls model_type.
    classes: What a model is for, as heads.tensors names it -> its class.
    defaults: The values of fields that config.json may lack.
    rows: Its tensors.
    fixed: The fields of its ModelConfig that never change.
    fields: Fields of config.json -> those of ModelConfig, and their types.
    refused: Fields of config.json that change what is computed -> the values
      with which ours is the same.
    activation: The field of config.json that names the MLP's activation.
    windows: How config.json says which layers have a window; None has none.
    scales_queries: Whether config.json has query_pre_attn_scalar.
    has_local_rope: Whether the layers with a window have a RoPE of their own.
  """

  name: str
  classes: Mapping[str, str]
  defaults: Mapping[str, Any]
  rows: tuple[Row, ...] = _TRUNK + _TWO_NORMS
  fixed: Mapping[str, Any] = {}
  fields: Mapping[str, tuple[Any, ...]] = _FIELDS
  refused: Mapping[str, tuple[Any, ...]] = {}
  activation: str = "hidden_act"
  windows: layer_windows.Windows | None = None
  scales_queries: bool = False
  has_local_rope: bool = False


def _classes(name: str, *more: str) -> dict[str, str]:
  usual = ("CausalLM", "TokenClassification", "SequenceClassification")
  return {kind: f"{name}For{kind}" for kind in (*usual, *more)}


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

_ALL = (
  Family("llama", _classes("Llama"), _DEFAULTS),
  Family(
    "mistral",
    _classes("Mistral"),
    dict(_DEFAULTS, num_key_value_heads=8, sliding_window=4096),
    windows=layer_windows.ALL_LAYERS,
  ),
  Family(
    "qwen2",
    _classes("Qwen2", "ProcessRewardModel", "RewardModel"),
    _QWEN,
    rows=_TRUNK + _TWO_NORMS + _QKV_BIASES,
    fixed=dict(qkv_bias=True),
    windows=layer_windows.LATER_LAYERS,
  ),
  Family(
    "qwen3",
    _classes("Qwen3"),
    dict(_QWEN, head_dim=128),
    rows=_TRUNK + _TWO_NORMS + _QK_NORMS,
    fixed=dict(qk_norm=True),
    windows=layer_windows.LATER_LAYERS,
  ),
  Family(
    "gemma2",
    _classes("Gemma2"),
    dict(
      _GEMMA,
      attn_logit_softcapping=50.0,
      final_logit_softcapping=30.0,
      sliding_window_pattern=2,
    ),
    rows=_TRUNK + _FOUR_NORMS,
    fixed=_AS_GEMMA,
    fields={**_FIELDS, **_FINAL_CAP, **_ATTENTION_CAP},
    activation="hidden_activation",
    windows=layer_windows.ALL_BUT_EVERY_NTH,
    scales_queries=True,
  ),
  Family(
    "gemma3_text",
    # It has no class for token classification.
    dict(
      CausalLM="Gemma3ForCausalLM",
      SequenceClassification="Gemma3TextForSequenceClassification",
    ),
    dict(
      _GEMMA,
      final_logit_softcapping=None,
      rope_theta=1_000_000.0,
      rope_local_base_freq=10_000.0,
      sliding_window_pattern=6,
    ),
    rows=_TRUNK + _FOUR_NORMS + _QK_NORMS,
    fixed=dict(_AS_GEMMA, qk_norm=True),
    fields={**_FIELDS, **_FINAL_CAP},
    # transformers reads the field and doesn't use it.
    refused=dict(attn_logit_softcapping=(None,)),
    activation="hidden_activation",
    windows=layer_windows.ALL_BUT_EVERY_NTH,
    scales_queries=True,
    has_local_rope=True,
  ),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}

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
