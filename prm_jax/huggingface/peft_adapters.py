"""LoRA adapters in PEFT's form, beside the model that they adapt.

An adapter folder has adapter_config.json and adapter_model.safetensors: for each
adapted matrix lora_A [rank, in] and lora_B [out, rank], and modules that were
trained whole, such as a score head. The base stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import re
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import families
from prm_jax.huggingface import safetensors_io
from prm_jax.models import model_config as model_config
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# What a model is for -> PEFT's word for it.
TASKS = dict(
  CausalLM="CAUSAL_LM",
  TokenClassification="TOKEN_CLS",
  SequenceClassification="SEQ_CLS",
)
# Fields that change what is computed, and what they must be for ours to be the
# same.
_REFUSED: Mapping[str, tuple[Any, ...]] = dict(
  peft_type=("LORA",),
  bias=("none", None),
  lora_bias=(False, None),
  use_dora=(False, None),
  # pissa, olora, loftq and corda change the base.
  init_lora_weights=(True, False, None, "gaussian", "orthogonal", "eva"),
  fan_in_fan_out=(False, None),
  rank_pattern=({}, None),
  alpha_pattern=({}, None),
  layer_replication=(None,),
  trainable_token_indices=(None, []),
  target_parameters=(None, []),
  alora_invocation_tokens=(None,),
)


@dataclasses.dataclass(frozen=True)
class Opened:
  """A model, or a base model with an adapter.

  Args:
    config: Its config; with an adapter the base's, with the architecture that
      is adapted.
    tensors: Its tensors; with an adapter the base's, and the adapter's whole
      modules in place of those of the same name.
    fields: The fields of ModelConfig that say what is adapted.
    adapter: The tensors of the adapter; None without one.
  """

  config: huggingface.Source
  tensors: huggingface.Tensors
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  adapter: huggingface.Tensors | None = None


def base_name(folder: pathlib.Path) -> str | None:
  """Returns what an adapter's folder says its base is; None if it is no adapter.

  Args:
    folder: The folder.
  """
  path = foreign_files.find(folder, CONFIG)
  if path is None or foreign_files.find(folder, "config.json") is not None:
    return None
  return str(files.read_json(path).get("base_model_name_or_path") or "its base")


# --- In ---------------------------------------------------------------------


def opened(folder: pathlib.Path, base: pathlib.Path | None) -> Opened:
  """Returns a model, or a base model with an adapter.

  Args:
    folder: The Hugging Face folder of the model, or of the adapter.
    base: That of the adapter's base; None without an adapter.

  Raises:
    InputError: A file is missing or damaged, an adapter has no base, or it
      isn't plain LoRA of matrices that ours can adapt.
  """
  if base is None:
    name = base_name(folder)
    if name is not None:
      raise errors.InputError(
        f"{folder}: a PEFT adapter without the model that it adapts; give"
        f" `base` too, the folder or the Hub's name of {name}"
      )
    return Opened(
      huggingface.read_config(folder), huggingface.open_tensors(folder)
    )
  where = foreign_files.find(folder, CONFIG)
  if where is None:
    raise errors.InputError(
      f"{folder}: `base={base}`: holds no {CONFIG}, so it is no adapter; leave"
      " `base` out"
    )
  config = huggingface.read_config(base)
  kept, fields = read_config(where, config)
  adapter = _open(folder)
  targets, whole = _split(adapter, config)
  entries = huggingface.open_tensors(base).entries
  return Opened(
    kept,
    huggingface.Tensors(base, {**entries, **whole}),
    fields | dict(lora_targets=targets),
    adapter,
  )


def read_config(
  where: pathlib.Path, config: huggingface.Source
) -> tuple[huggingface.Source, dict[str, Any]]:
  """Returns what adapter_config.json says.

  Args:
    where: The file.
    config: The base's config.

  Returns:
    The config with the architecture that is adapted, and rank and alpha as
    fields of ModelConfig.

  Raises:
    InputError: A field is missing, or asks for what ours can't do.
  """
  record = files.read_json(where)
  for name, allowed in _REFUSED.items():
    if record.get(name) not in allowed:
      value = " ".join(str(record.get(name)).split())[:60]
      raise errors.InputError(
        f"{where}: {name}={value}: ours are plain LoRA; expected"
        f" {allowed[0]!r}; merge the adapter with PEFT, and import that"
      )
  architecture = _architecture(config, record.get("task_type"), where)
  rank = _number(record, "r", where, int)
  alpha = float(_number(record, "lora_alpha", where, int, float))
  # The scale is alpha / rank, or alpha / sqrt(rank).
  alpha *= math.sqrt(rank) if record.get("use_rslora") else 1
  fields = dict(lora_rank=rank, lora_alpha=alpha)
  return dataclasses.replace(config, architecture=architecture), fields


def add_params(
  params: Mapping[str, Any], adapted: Opened, dtype: str | None
) -> dict[str, Any]:
  """Returns parameters with those of the adapter.

  Args:
    params: The parameters of the base.
    adapted: The base with its adapter.
    dtype: The dtype of the adapter's parameters; None is that of its tensors.

  Raises:
    InputError: A tensor has another shape than rank and base say, or holds a
      number that isn't finite.
  """
  model = dataclasses.replace(adapted.config.model, **adapted.fields)
  adapter = adapted.adapter
  assert adapter is not None
  copy: dict[str, Any] = jax.tree.map(lambda x: x, params)
  for row in rows_of(adapted.config.family, model.lora_targets):
    group: Any = copy
    for name in row.path[:-1]:
      group = group[name]
    num_layers, num_in, num_out = group["kernel"].shape
    for ours, letter in (("lora_a", "A"), ("lora_b", "B")):
      names = [tensor_name(row, i, letter) for i in range(num_layers)]
      shape = (model.lora_rank, num_in)
      if letter == "B":
        shape = (num_out, model.lora_rank)
      for name in names:
        found = adapter.entries[name].shape
        if found != shape:
          raise errors.InputError(
            f"{adapter.folder / WEIGHTS}: {name} is {list(found)}; its"
            f" rank and its base say {list(shape)}"
          )
      stacked = np.stack([adapter.read(name).T for name in names])
      to = dtype or adapter.common_dtype(names)
      group[ours] = jnp.asarray(stacked, to)
  return copy


def _open(folder: pathlib.Path) -> huggingface.Tensors:
  path = foreign_files.find(folder, WEIGHTS)
  if path is None:
    raise errors.InputError(
      f"{folder}: has no {WEIGHTS}; save the adapter with safetensors (a pickle"
      " is never opened)"
    )
  return safetensors_io.open_file(path)


def _split(
  adapter: huggingface.Tensors, config: huggingface.Source
) -> tuple[tuple[str, ...], dict[str, safetensors_io.Entry]]:
  """Returns the matrices that are adapted, and modules that are whole."""
  lora = {
    tensor_name(row, i, letter): row.path[-2]
    for row in rows_of(config.family, model_config.LORA_TARGETS)
    for i in range(config.model.num_layers)
    for letter in "AB"
  }
  targets = {lora[name] for name in adapter.names if name in lora}
  missing = [
    name
    for name, target in lora.items()
    if target in targets and name not in adapter.entries
  ]
  if missing or not targets:
    lacks = f"lacks {missing[0]}" if missing else "adapts no matrix of ours"
    raise errors.InputError(
      f"{adapter.folder / WEIGHTS}: {lacks}; ours adapt a matrix in all layers:"
      " merge the adapter with PEFT, and import that"
    )
  whole = {}
  for name, entry in adapter.entries.items():
    if name in lora:
      continue
    own = re.sub(r"\.modules_to_save(\.default)?\b", "", name)
    if not own.startswith(PREFIX) or ".lora_" in own:
      raise errors.InputError(
        f"{adapter.folder / WEIGHTS}: {name}: no matrix that ours adapt, nor a"
        " module that was trained whole; merge the adapter with PEFT, and import"
        " that"
      )
    own = own.removeprefix(PREFIX)
    whole[own] = dataclasses.replace(entry, name=name)
  return tuple(x for x in model_config.LORA_TARGETS if x in targets), whole


def _number(
  record: Mapping[str, Any], name: str, where: pathlib.Path, *kinds: type
) -> Any:
  value: Any = record.get(name)
  if type(value) not in kinds or not value > 0:
    raise errors.InputError(f"{where}: {name}={value!r}: expected above 0")
  return value


def _architecture(
  config: huggingface.Source, task: object, where: pathlib.Path
) -> str:
  """Returns the class that is adapted: the base's, or that of the task."""
  if task is None:
    return config.architecture
  for kind, name in TASKS.items():
    if name == task:
      return huggingface.FAMILIES[config.family].classes.get(kind, f"For{kind}")
  raise errors.InputError(
    f"{where}: task_type={task!r}: expected one of {', '.join(TASKS.values())}"
  )


def rows_of(family: str, targets: Sequence[str]) -> list[families.Row]:
  """Returns the rows of the matrices that can be adapted."""
  return [
    row
    for row in huggingface.FAMILIES[family].rows
    if row.per_layer and row.path[-1] == "kernel" and row.path[-2] in targets
  ]


def tensor_name(row: families.Row, layer: int, letter: str) -> str:
  module = row.name.format(layer).removesuffix(".weight")
  return f"{PREFIX}{module}.lora_{letter}.weight"
