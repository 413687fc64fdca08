"""config.json to a ModelConfig.

What changes the computation and has no place in ModelConfig is refused by its
name. Both spellings of RoPE are read: that of released checkpoints (rope_theta,
rope_scaling) and that of transformers 5 (rope_parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.huggingface import families
from prm_jax.models import model_config as model_config
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import limits

CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Source:
  """The content of a folder's config.json.

  Args:
    family: One of families.FAMILIES.
    model: The shape of the model.
    architecture: The first entry of architectures, "" if there is none.
    raw: All of config.json.
  """

  family: str
  model: model_config.ModelConfig
  architecture: str
  raw: Mapping[str, Any]


ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# The fields of a scaled RoPE: their name -> ours and its type.
_ROPE_FIELDS: Mapping[str, tuple[str, type]] = dict(
  factor=("rope_factor", float),
  low_freq_factor=("rope_low_freq_factor", float),
  high_freq_factor=("rope_high_freq_factor", float),
  original_max_position_embeddings=("rope_original_tokens", int),
)
# Those of each kind.
ROPE_SCALINGS = dict(
  default={}, linear=dict(factor=_ROPE_FIELDS["factor"]), llama3=_ROPE_FIELDS
)

# Fields that change what is computed, and what they must be for ours to be the
# same. attention_bias puts one on the output projection, too.
_REFUSED: Mapping[str, tuple[Any, ...]] = dict(
  attention_bias=(False, None),
  mlp_bias=(False, None),
  partial_rotary_factor=(1, None),
  use_bidirectional_attention=(False, None),
  quantization_config=(None,),
  num_experts=(None, 0),
  num_local_experts=(None, 0),
  is_encoder_decoder=(False, None),
  add_cross_attention=(False, None),
  vision_config=(None,),
  text_config=(None,),
)


def read_config(folder: files.PathLike) -> Source:
  """Returns what config.json describes; no code that it names is ever run.

  Raises:
    InputError: it is missing or damaged, or names what we can't represent.
  """
  path = foreign_files.find(folder, CONFIG)
  if path is None:
    raise errors.InputError(
      f"{folder}: has no {CONFIG}; give the folder of a Hugging Face checkpoint"
    )
  raw = files.read_json(path)
  try:
    return _source(raw)
  except errors.InputError as e:
    raise errors.InputError(f"{path}: {e}") from None


def _source(raw: Mapping[str, Any]) -> Source:
  family = raw.get("model_type")
  if not isinstance(family, str) or family not in families.FAMILIES:
    raise errors.InputError(
      f"model_type={family!r}: can be imported are {', '.join(families.FAMILIES)}"
    )
  for name, allowed in _REFUSED.items():
    if raw.get(name) not in allowed:
      value = " ".join(repr(raw[name]).split())
      value = value if len(value) <= 60 else value[:57] + "..."
      raise errors.InputError(
        f"{name}={value}: our {family} doesn't have it; expected {allowed[0]}"
      )
  names = raw.get("architectures") or [""]
  if not isinstance(names, list) or not isinstance(names[0], str):
    raise errors.InputError(
      f"architectures={names!r}: expected a list of names"
    )
  return Source(family, model_of(family, raw), names[0], raw)


def model_of(family: str, raw: Mapping[str, Any]) -> model_config.ModelConfig:
  """Returns the model that config.json describes.

  Raises:
    InputError: a field is missing, of another type, or can't be represented.
  """

  def get(name: str, *kinds: type) -> Any:
    return _field(raw, families.FAMILIES[family].defaults, name, *kinds)

  num_heads, d_model = get("num_attention_heads", int), get("hidden_size", int)
  head_dim = get("head_dim", int, type(None))
  if head_dim is None:
    if num_heads < 1 or d_model % num_heads:
      raise errors.InputError(
        f"hidden_size={d_model} isn't a multiple of"
        f" num_attention_heads={num_heads}; give head_dim"
      )
    head_dim = d_model // num_heads
  num_kv_heads = get("num_key_value_heads", int, type(None))
  gemma = family.startswith("gemma")
  return model_config.ModelConfig(
    vocab_size=get("vocab_size", int),
    d_model=d_model,
    num_layers=get("num_hidden_layers", int),
    num_heads=num_heads,
    num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
    head_dim=head_dim,
    d_ff=get("intermediate_size", int),
    norm_epsilon=get("rms_norm_eps", float),
    tie_embedding=get("tie_word_embeddings", bool),
    activation=_activation(get, "hidden_activation" if gemma else "hidden_act"),
    **families.FAMILIES[family].fixed,
    **(_gemma(family, raw, get, head_dim) if gemma else {}),
    **_windows(family, raw, get),
    **_rope(family, raw, get),
  )


def _field(
  raw: Mapping[str, Any], defaults: Mapping[str, Any], name: str, *kinds: type
) -> Any:
  """Returns a field of one of the kinds; a whole number is a float, too."""
  if name not in raw and name not in defaults:
    raise errors.InputError(f"has no {name}")
  value = raw.get(name, defaults.get(name))
  kind = int if isinstance(value, int) and float in kinds else type(value)
  if kind not in (*kinds, int if float in kinds else None):
    wanted = " or ".join(k.__name__ for k in kinds)
    raise errors.InputError(f"{name}={value!r}: expected {wanted}")
  return float(value) if kind is int and float in kinds else value


def _activation(get: Any, name: str) -> str:
  value = get(name, str)
  checks.check_choice(name, value, list(ACTIVATIONS))
  return ACTIVATIONS[value]


def _gemma(
  family: str, raw: Mapping[str, Any], get: Any, head_dim: int
) -> dict[str, Any]:
  """Returns the scale of the queries and the soft caps."""
  scalar = get("query_pre_attn_scalar", float)
  if not scalar > 0:
    raise errors.InputError(f"query_pre_attn_scalar={scalar}: expected above 0")
  attention_softcap = None
  if family == "gemma2":
    attention_softcap = get("attn_logit_softcapping", float, type(None))
  elif raw.get("attn_logit_softcapping") is not None:
    # transformers' Gemma 3 reads the field and doesn't use it.
    raise errors.InputError(
      f"attn_logit_softcapping={raw['attn_logit_softcapping']}: {family} has"
      " no such cap; expected null"
    )
  return dict(
    query_scale=None if scalar == head_dim else scalar**-0.5,
    final_softcap=get("final_logit_softcapping", float, type(None)),
    attention_softcap=attention_softcap,
  )


LAYER_TYPES = ("full_attention", "sliding_attention")


def _windows(family: str, raw: Mapping[str, Any], get: Any) -> dict[str, Any]:
  """Returns window and global_layers."""
  if "sliding_window" not in families.FAMILIES[family].defaults:
    return {}
  num_layers = get("num_hidden_layers", int)
  if not 1 <= num_layers <= limits.MODEL_LAYERS:
    raise errors.InputError(
      f"num_hidden_layers={num_layers}: expected 1 to {limits.MODEL_LAYERS:,}"
    )
  window = get("sliding_window", int, type(None))
  types = raw.get("layer_types")
  if family == "mistral":
    kind = LAYER_TYPES[window is not None]
    usual = [kind] * num_layers
    if types not in (None, usual):
      raise errors.InputError(f"layer_types: a mistral's are all {kind}")
    types = usual
  if family.startswith("qwen") and not get("use_sliding_window", bool):
    window = None
  if types is None and family.startswith("qwen"):
    first = num_layers if window is None else get("max_window_layers", int)
    types = [LAYER_TYPES[i >= first] for i in range(num_layers)]
  elif types is None:
    pattern = get("sliding_window_pattern", int)
    if pattern < 1:
      raise errors.InputError(
        f"sliding_window_pattern={pattern}: give 1 or more"
      )
    types = [LAYER_TYPES[(i + 1) % pattern > 0] for i in range(num_layers)]
  if not isinstance(types, list) or len(types) != num_layers:
    raise errors.InputError(
      f"layer_types: expected {num_layers}, one per layer"
    )
  for kind in types:
    checks.check_choice("layer_types", kind, LAYER_TYPES)
  if LAYER_TYPES[1] not in types:
    return {}
  if window is None:
    raise errors.InputError("layer_types: sliding_attention without a window")
  everywhere = [i for i, kind in enumerate(types) if kind == LAYER_TYPES[0]]
  return dict(window=window, global_layers=tuple(everywhere))


def _rope(family: str, raw: Mapping[str, Any], get: Any) -> dict[str, Any]:
  """Returns the fields of RoPE, from transformers' old or new spelling."""
  parameters = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
  local: dict[str, Any] = {}
  nested = isinstance(parameters, dict) and any(
    kind in parameters for kind in LAYER_TYPES
  )
  if family == "gemma3_text":
    local = dict(rope_theta=get("rope_local_base_freq", float))
    if nested:
      sliding = parameters.get("sliding_attention") or {}
      if not isinstance(sliding, dict):
        raise errors.InputError(
          f"rope_parameters.sliding_attention={sliding!r}: expected an object"
        )
      local |= sliding
      parameters = parameters.get("full_attention") or {}
      if local.get("rope_type", "default") != "default":
        raise errors.InputError(
          f"rope_parameters: rope_type={local['rope_type']!r} in layers with a"
          " window: expected default"
        )
  elif nested:
    raise errors.InputError(
      f"rope_parameters: our {family} has the same RoPE in all layers"
    )
  if not isinstance(parameters, dict):
    raise errors.InputError(
      f"rope_parameters={parameters!r}: expected an object"
    )
  if parameters.get("partial_rotary_factor", 1) != 1:
    raise errors.InputError("partial_rotary_factor: RoPE must turn every pair")
  default = dict(rope_theta=get("rope_theta", float))
  theta = _field(parameters, default, "rope_theta", float)
  rope = dict(rope_theta=theta, **_rope_scaling(parameters, raw))
  if local and _windows(family, raw, get):
    rope["rope_local_theta"] = _field(local, {}, "rope_theta", float)
  return rope


def _rope_scaling(
  parameters: Mapping[str, Any], raw: Mapping[str, Any]
) -> dict[str, Any]:
  kind = parameters.get("rope_type", parameters.get("type", "default"))
  checks.check_choice("rope_type", kind, list(ROPE_SCALINGS))
  if kind == "default":
    return {}
  defaults = {}
  if raw.get("max_position_embeddings") is not None:
    longest = raw["max_position_embeddings"]
    defaults["original_max_position_embeddings"] = longest
  return dict(rope_scaling=kind) | {
    field: _field(parameters, defaults, hf_field, type_)
    for hf_field, (field, type_) in ROPE_SCALINGS[kind].items()
  }
