"""config.json to a ModelConfig.

What changes the computation and has no place in ModelConfig is refused by its
name. Both spellings of RoPE are read: that of released checkpoints (rope_theta,
rope_scaling) and that of transformers 5 (rope_parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

from prm_jax import errors
from prm_jax.huggingface import families
from prm_jax.huggingface import layer_windows
from prm_jax.models import model_config
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
  name = raw.get("model_type")
  if not isinstance(name, str) or name not in families.FAMILIES:
    raise errors.InputError(
      f"model_type={name!r}: can be imported are {', '.join(families.FAMILIES)}"
    )
  family = families.FAMILIES[name]
  for field, allowed in {**_REFUSED, **family.refused}.items():
    if raw.get(field) not in allowed:
      value = " ".join(repr(raw[field]).split())
      value = value if len(value) <= 60 else value[:57] + "..."
      raise errors.InputError(
        f"{field}={value}: our {name} doesn't have it; expected {allowed[0]}"
      )
  names = raw.get("architectures") or [""]
  if not isinstance(names, list) or not isinstance(names[0], str):
    raise errors.InputError(
      f"architectures={names!r}: expected a list of names"
    )
  return Source(name, model_of(family, raw), names[0], raw)


def model_of(
  family: families.Family, raw: Mapping[str, Any]
) -> model_config.ModelConfig:
  """Returns the model that config.json describes.

  Raises:
    InputError: a field is missing, of another type, or can't be represented.
  """

  def get(name: str, *kinds: type) -> Any:
    return _field(raw, family.defaults, name, *kinds)

  own = {ours: get(x, *kinds) for x, (ours, *kinds) in family.fields.items()}
  num_heads, d_model = own["num_heads"], own["d_model"]
  head_dim = get("head_dim", int, types.NoneType)
  if head_dim is None:
    if num_heads < 1 or d_model % num_heads:
      raise errors.InputError(
        f"hidden_size={d_model} isn't a multiple of"
        f" num_attention_heads={num_heads}; give head_dim"
      )
    head_dim = d_model // num_heads
  num_kv_heads = get("num_key_value_heads", int, types.NoneType)
  activation = get(family.activation, str)
  checks.check_choice(family.activation, activation, list(ACTIVATIONS))
  if family.scales_queries:
    scalar = get("query_pre_attn_scalar", float)
    if not scalar > 0:
      raise errors.InputError(
        f"query_pre_attn_scalar={scalar}: expected above 0"
      )
    own["query_scale"] = None if scalar == head_dim else scalar**-0.5
  windows = _windows(family, raw, get)
  return model_config.ModelConfig(
    num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
    head_dim=head_dim,
    activation=ACTIVATIONS[activation],
    **own,
    **family.fixed,
    **windows,
    **_rope(family, raw, get, is_local=bool(windows)),
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


def _windows(
  family: families.Family, raw: Mapping[str, Any], get: layer_windows.Get
) -> dict[str, Any]:
  """Returns window and global_layers."""
  if family.windows is None:
    return {}
  num_layers = get("num_hidden_layers", int)
  if not 1 <= num_layers <= limits.MODEL_LAYERS:
    raise errors.InputError(
      f"num_hidden_layers={num_layers}: expected 1 to {limits.MODEL_LAYERS:,}"
    )
  window, listed = family.windows.read(get, num_layers, raw.get("layer_types"))
  if not isinstance(listed, list) or len(listed) != num_layers:
    raise errors.InputError(
      f"layer_types: expected {num_layers}, one per layer"
    )
  full, sliding = layer_windows.TYPES
  for kind in listed:
    checks.check_choice("layer_types", kind, layer_windows.TYPES)
  if sliding not in listed:
    return {}
  if window is None:
    raise errors.InputError(f"layer_types: {sliding} without a window")
  everywhere = [i for i, kind in enumerate(listed) if kind == full]
  return dict(window=window, global_layers=tuple(everywhere))


def _rope(
  family: families.Family,
  raw: Mapping[str, Any],
  get: layer_windows.Get,
  *,
  is_local: bool,
) -> dict[str, Any]:
  """Returns the fields of RoPE, from transformers' old or new spelling.

  is_local: Whether a layer has a window.
  """
  full = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
  sliding: Any = {}
  if isinstance(full, dict) and {*layer_windows.TYPES} & full.keys():
    if not family.has_local_rope:
      raise errors.InputError(
        f"rope_parameters: our {family.name} has the same RoPE in all layers"
      )
    full, sliding = (full.get(x) or {} for x in layer_windows.TYPES)
  for parameters in (full, sliding):
    if not isinstance(parameters, dict):
      raise errors.InputError(
        f"rope_parameters={parameters!r}: expected an object"
      )
  if sliding.get("rope_type", "default") != "default":
    raise errors.InputError(
      f"rope_parameters: rope_type={sliding['rope_type']!r} in layers with a"
      " window: expected default"
    )
  if full.get("partial_rotary_factor", 1) != 1:
    raise errors.InputError("partial_rotary_factor: RoPE must turn every pair")

  def theta(parameters: Mapping[str, Any], name: str) -> Any:
    default = dict(rope_theta=get(name, float))
    return _field(parameters, default, "rope_theta", float)

  rope = dict(rope_theta=theta(full, "rope_theta"))
  if family.has_local_rope:
    local = theta(sliding, "rope_local_base_freq")
    rope |= dict(rope_local_theta=local) if is_local else {}
  return rope | _rope_scaling(full, raw)


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
