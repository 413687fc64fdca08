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
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("query_pre_attn_scalar", "transformers_version", "head_dim"),
  ]
)


def families_of(model: model_config.ModelConfig) -> list[str]:
  """Returns the families that have such a model, the plainest first."""
  return [
    family for family in families.FAMILIES if _misfit(family, model) is None
  ]


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
  own = _record(family, model)
  name = architecture or families.FAMILIES[family].causal_lm
  return kept | own | dict(architectures=[name], torch_dtype=dtype)


def _misfit(family: str, model: model_config.ModelConfig) -> str | None:
  """Returns the first field that would be lost, with its value."""
  model = _canonical(model)
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


def _record(family: str, model: model_config.ModelConfig) -> dict[str, Any]:
  gemma = family.startswith("gemma")
  hf_names = {own: name for name, own in from_hf_config.ACTIVATIONS.items()}
  record: dict[str, Any] = {
    "model_type": family,
    "vocab_size": model.vocab_size,
    "hidden_size": model.d_model,
    "intermediate_size": model.d_ff,
    "num_hidden_layers": model.num_layers,
    "num_attention_heads": model.num_heads,
    "num_key_value_heads": model.num_kv_heads,
    "head_dim": model.head_dim,
    "hidden_activation" if gemma else "hidden_act": hf_names[model.activation],
    "rms_norm_eps": model.norm_epsilon,
    "tie_word_embeddings": model.tie_embedding,
    "rope_theta": model.rope_theta,
    "rope_scaling": _rope_scaling_record(model),
  }
  if gemma:
    is_gemma2 = family == "gemma2"
    record |= dict(
      query_pre_attn_scalar=_scalar(model),
      final_logit_softcapping=model.final_softcap,
      attn_logit_softcapping=model.attention_softcap if is_gemma2 else None,
    )
  if family == "gemma3_text":
    record["rope_local_base_freq"] = model.rope_local_theta or model.rope_theta
  return record | _windows_record(family, model)


def _scalar(model: model_config.ModelConfig) -> int:
  """Returns query_pre_attn_scalar: transformers takes whole numbers only."""
  if model.query_scale is None:
    return model.head_dim
  return max(1, round(model.query_scale**-2))


def _rope_scaling_record(model: model_config.ModelConfig) -> dict | None:
  if model.rope_scaling == "none":
    return None
  return dict(rope_type=model.rope_scaling) | {
    hf_field: getattr(model, field)
    for hf_field, (field, _) in from_hf_config.ROPE_SCALINGS[
      model.rope_scaling
    ].items()
  }


def _windows_record(
  family: str, model: model_config.ModelConfig
) -> dict[str, Any]:
  windowed = model.windowed
  types = [from_hf_config.LAYER_TYPES[x] for x in windowed]
  if "sliding_window" not in families.FAMILIES[family].defaults:
    return {}
  if family == "mistral":
    return dict(sliding_window=model.window if all(windowed) else None)
  if family.startswith("qwen"):
    return dict(
      use_sliding_window=any(windowed),
      sliding_window=model.window,
      max_window_layers=[*windowed, True].index(True),
      layer_types=types,
    )
  record: dict[str, Any] = dict(
    sliding_window=4096 if model.window is None else model.window,
    layer_types=types,
  )
  for every in range(1, model.num_layers + 2):
    if windowed == tuple((i + 1) % every > 0 for i in range(len(windowed))):
      record["sliding_window_pattern"] = every
  return record
