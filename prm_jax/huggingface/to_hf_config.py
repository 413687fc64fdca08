"""A ModelConfig as config.json, in the spelling that every reader knows."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.huggingface import families
from prm_jax.huggingface import from_hf_config
from prm_jax.models import model_config as model_config

# Fields that `record` writes itself, or that no longer hold in an export.
_OWN = frozenset(
  [
    *("architectures", "auto_map", "dtype", "torch_dtype", "model_type"),
    *("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq"),
    *("layer_types", "sliding_window", "sliding_window_pattern"),
    *("_sliding_window_pattern", "use_sliding_window", "max_window_layers"),
    *("hidden_act", "hidden_activation", "quantization_config"),
    "transformers_version",
  ]
)


def families_of(model: model_config.ModelConfig) -> list[str]:
  """Returns the families that have such a model, the plainest first."""
  return [x for x in families.FAMILIES if _misfit(x, model) is None]


def check(family: str, model: model_config.ModelConfig) -> None:
  """Raises InputError if the family has no such model."""
  misfit = _misfit(family, model)
  if misfit is not None:
    able = ", ".join(families_of(model)) or "no other family"
    raise errors.InputError(f"{family} has no {misfit}; it fits {able}")


def is_same(
  model: model_config.ModelConfig, other: model_config.ModelConfig
) -> bool:
  """Returns whether two models have the same trunk."""
  return _canonical(model) == _canonical(other)


def record(
  family: str,
  model: model_config.ModelConfig,
  *,
  dtype: str,
  architecture: str | None = None,
  extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """Returns config.json of a model.

  Args:
    family: The family of the model.
    model: The shape of the model.
    dtype: The type of its numbers.
    architecture: The class that loads it; None is the family's with an LM head.
    extra: Further fields (max_position_embeddings, token ids, labels, or all of
      a Source's raw). Fields that describe the model come from `model`.

  Raises:
    InputError: The family has no such model.
  """
  check(family, model)
  kept = {k: v for k, v in (extra or {}).items() if k not in _OWN}
  value = families.FAMILIES[family]
  names = [architecture or value.classes["CausalLM"]]
  own = dict(architectures=names, torch_dtype=dtype)
  return kept | _record(value, model) | own


def _misfit(name: str, model: model_config.ModelConfig) -> str | None:
  """Returns the first field that would be lost, with its value."""
  family, model = families.FAMILIES[name], _canonical(model)
  back = _canonical(from_hf_config.model_of(family, _record(family, model)))
  for field in dataclasses.fields(model):
    value = getattr(model, field.name)
    if getattr(back, field.name) != value:
      return f"model.{field.name}={value!r}"
  return None


def _canonical(model: model_config.ModelConfig) -> model_config.ModelConfig:
  """Returns the model with what doesn't matter at its default."""
  free = ["step_classes", "step_head", "step_tokens", "outcome_head"]
  free += ["compute_dtype", "remat", "scan", "attention"]
  if not model.lora_rank:
    free += ["lora_alpha", "lora_targets"]
  if model.query_scale == model.head_dim**-0.5:
    free += ["query_scale"]
  if model.window is not None and not any(model.windowed):
    free += ["window", "global_layers", "rope_local_theta"]
  unscaled = model.rope_scaling == "none"
  if unscaled and model.rope_local_theta == model.rope_theta:
    free += ["rope_local_theta"]
  scalings = from_hf_config.ROPE_SCALINGS
  used = scalings["default" if unscaled else model.rope_scaling]
  free += [
    field_name
    for hf_field, (field_name, _) in scalings["llama3"].items()
    if hf_field not in used
  ]
  defaults: dict[str, Any] = {
    f.name: f.default for f in dataclasses.fields(model)
  }
  return dataclasses.replace(model, **{name: defaults[name] for name in free})


def _record(
  family: families.Family, model: model_config.ModelConfig
) -> dict[str, Any]:
  activations = {own: name for name, own in from_hf_config.ACTIVATIONS.items()}
  record: dict[str, Any] = {
    "model_type": family.name,
    **{x: getattr(model, ours) for x, (ours, *_) in family.fields.items()},
    "num_key_value_heads": model.num_kv_heads,
    "head_dim": model.head_dim,
    family.activation: activations[model.activation],
    "rope_theta": model.rope_theta,
    "rope_scaling": None,
  }
  if model.rope_scaling != "none":
    fields = from_hf_config.ROPE_SCALINGS[model.rope_scaling]
    scaled = {name: getattr(model, own) for name, (own, _) in fields.items()}
    record["rope_scaling"] = dict(rope_type=model.rope_scaling) | scaled
  if family.scales_queries:
    # transformers takes whole numbers only.
    scale = model.query_scale
    scalar = max(1, round(scale**-2)) if scale else model.head_dim
    record["query_pre_attn_scalar"] = scalar
  if family.has_local_rope:
    record["rope_local_base_freq"] = model.rope_local_theta or model.rope_theta
  if family.windows is not None:
    record |= family.windows.record(model)
  return record
