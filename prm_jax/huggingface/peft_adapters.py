"""LoRA adapters in PEFT's form, in and out, beside the model that they adapt.

An adapter folder has adapter_config.json and adapter_model.safetensors: for each
adapted matrix lora_A [rank, in] and lora_B [out, rank], and modules that were
trained whole, such as a score head. The base stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import pathlib
import re
from typing import Any

from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import families
from prm_jax.huggingface import safetensors_io
from prm_jax.huggingface import to_hf_config
from prm_jax.models import config as model_config
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
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
  fan_in_fan_out=(False, None),
  rank_pattern=({}, None),
  alpha_pattern=({}, None),
  layer_replication=(None,),
  trainable_token_indices=(None, []),
  target_parameters=(None, []),
  alora_invocation_tokens=(None,),
)


@dataclasses.dataclass(frozen=True)
class Adapted:
  """A base model with an adapter.

  Args:
    config: The base's config, with the architecture that is adapted.
    tensors: The base's tensors, and the adapter's whole modules in place of
      those of the same name.
    fields: The fields of ModelConfig that say what is adapted.
    adapter: The tensors of the adapter.
  """

  config: huggingface.Source
  tensors: huggingface.Tensors
  fields: Mapping[str, Any]
  adapter: huggingface.Tensors


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


def read(folder: pathlib.Path, base: pathlib.Path) -> Adapted:
  """Returns a base model with an adapter.

  Args:
    folder: The adapter's folder.
    base: The Hugging Face folder of its base.

  Raises:
    InputError: A file is missing or damaged, or the adapter isn't plain LoRA of
      matrices that ours can adapt.
  """
  where = foreign_files.find(folder, CONFIG)
  if where is None:
    raise errors.InputError(
      f"{folder}: `base={base}`: holds no {CONFIG}, so it is no adapter; leave"
      " `base` out"
    )
  record = files.read_json(where)
  for name, allowed in _REFUSED.items():
    if record.get(name) not in allowed:
      raise errors.InputError(
        f"{where}: {name}={str(record.get(name))[:60]}: ours are plain LoRA;"
        f" expected {allowed[0]!r}; merge the adapter with PEFT, and import that"
      )
  config = huggingface.read_config(base)
  adapter = _open(folder)
  targets, whole = _split(adapter, config)
  fields = dict(
    lora_rank=_number(record, "r", where, int),
    lora_alpha=_alpha(record, where),
    lora_targets=targets,
  )
  entries = huggingface.open_tensors(base).entries
  architecture = _architecture(config, record.get("task_type"), where)
  return Adapted(
    dataclasses.replace(config, architecture=architecture),
    huggingface.Tensors(base, {**entries, **whole}),
    fields,
    adapter,
  )


def add_params(
  params: Mapping[str, Any], adapted: Adapted, dtype: str | None
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
  copy: dict[str, Any] = _copied(params)
  for row in _rows(adapted.config.family, model.lora_targets):
    group: Any = copy
    for name in row.path[:-1]:
      group = group[name]
    num_layers, num_in, num_out = group["kernel"].shape
    for ours, letter in (("lora_a", "A"), ("lora_b", "B")):
      names = [_name(row, i, letter) for i in range(num_layers)]
      shape = (model.lora_rank, num_in)
      if letter == "B":
        shape = (num_out, model.lora_rank)
      for name in names:
        _check_shape(adapted.adapter, name, shape)
      stacked = np.stack([adapted.adapter.read(name).T for name in names])
      to = dtype or adapted.adapter.common_dtype(names)
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
    _name(row, i, letter): row.path[-2]
    for row in _rows(config.family, model_config.LORA_TARGETS)
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
    if not own.startswith(_PREFIX) or ".lora_" in own:
      raise errors.InputError(
        f"{adapter.folder / WEIGHTS}: {name}: no matrix that ours adapt, nor a"
        " module that was trained whole; merge the adapter with PEFT, and import"
        " that"
      )
    own = own.removeprefix(_PREFIX)
    whole[own] = dataclasses.replace(entry, name=name)
  return tuple(x for x in model_config.LORA_TARGETS if x in targets), whole


def _alpha(record: Mapping[str, Any], where: pathlib.Path) -> float:
  """Returns lora_alpha; the scale is alpha / rank, or alpha / sqrt(rank)."""
  alpha = float(_number(record, "lora_alpha", where, int, float))
  rank = _number(record, "r", where, int)
  return alpha * math.sqrt(rank) if record.get("use_rslora") else alpha


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
      causal_lm = huggingface.FAMILIES[config.family].causal_lm
      return causal_lm.replace("CausalLM", kind)
  raise errors.InputError(
    f"{where}: task_type={task!r}: expected one of {', '.join(TASKS.values())}"
  )


def _rows(family: str, targets: Sequence[str]) -> list[families.Row]:
  """Returns the rows of the matrices that can be adapted."""
  return [
    row
    for row in huggingface.FAMILIES[family].rows
    if row.per_layer and row.path[-1] == "kernel" and row.path[-2] in targets
  ]


def _name(row: families.Row, layer: int, letter: str) -> str:
  module = row.name.format(layer).removesuffix(".weight")
  return f"{_PREFIX}{module}.lora_{letter}.weight"


def _check_shape(
  adapter: huggingface.Tensors, name: str, shape: tuple[int, ...]
) -> None:
  found = adapter.entries[name].shape
  if found != shape:
    raise errors.InputError(
      f"{adapter.folder / WEIGHTS}: {name} is {list(found)}; its rank and its"
      f" base say {list(shape)}"
    )


def _copied(tree: Any) -> Any:
  """Returns a copy of the dicts of a tree."""
  if isinstance(tree, Mapping):
    return {name: _copied(leaf) for name, leaf in tree.items()}
  return tree


# --- Out --------------------------------------------------------------------


def check_base(
  family: str,
  model: model_config.ModelConfig,
  params: Any,
  base: pathlib.Path,
  source: pathlib.Path,
) -> None:
  """Refuses a base that isn't the model without its adapters, bit for bit.

  Args:
    family: The family of the model.
    model: The shape of the model.
    params: Its parameters.
    base: The Hugging Face folder of the base.
    source: The checkpoint folder, for messages.

  Raises:
    InputError: The model has no adapters, or something else was trained, too.
  """
  if not model.lora_rank:
    raise errors.InputError(
      f"{source}: has no adapters, so it has no `base={base}`; leave it out"
    )
  config = huggingface.read_config(base)
  tensors = huggingface.open_tensors(base)
  plain = dataclasses.replace(model, lora_rank=0)
  same = config.family == family and to_hf_config.is_same(plain, config.model)
  other = None if same else "its config.json"
  if other is None:
    other = _first_other(family, plain, params, tensors)
  if other is not None:
    raise errors.InputError(
      f"`base={base}`: {other} isn't that of {source}, in which more than the"
      " adapters was trained, or which has another base; export without `base`,"
      " which merges the adapters"
    )


def _first_other(
  family: str,
  model: model_config.ModelConfig,
  params: Any,
  tensors: huggingface.Tensors,
) -> str | None:
  """Returns the name of a tensor that isn't the base's, None if all are."""
  for name, x in huggingface.export_tensors(family, model, params):
    entry = tensors.entries.get(name)
    if entry is None or entry.shape != x.shape:
      return name
    if not np.array_equal(tensors.read(name).astype(x.dtype), x):
      return name
  return None


def save(
  folder: pathlib.Path,
  family: str,
  model: model_config.ModelConfig,
  params: Any,
  head: Mapping[str, np.ndarray],
  *,
  kind: str,
  base_model: str,
  dtype: str,
) -> None:
  """Writes an adapter's folder.

  Args:
    folder: The folder.
    family: The family of the model.
    model: The shape of the model.
    params: Its parameters.
    head: The tensors of its head, which is kept whole.
    kind: What the model is for, of TASKS.
    base_model: The name of the base, or its folder.
    dtype: The type of the numbers.

  Raises:
    InputError: A number doesn't fit the dtype, or the disk is full.
  """
  whole = ((f"{_PREFIX}{name}", x) for name, x in head.items())
  safetensors_io.write_tensors(
    folder,
    [*_lora_tensors(family, model, params), *whole],
    dtype=dtype,
    max_shard_bytes=1 << 62,  # PEFT has one file
    single=WEIGHTS,
  )
  rows = _rows(family, model.lora_targets)
  modules = [row.name.split(".")[-2] for row in rows]
  alpha = model.lora_alpha
  record = dict(
    peft_type="LORA",
    task_type=TASKS[kind],
    base_model_name_or_path=base_model,
    r=model.lora_rank,
    lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
    lora_dropout=0.0,
    target_modules=modules,
    modules_to_save=sorted({name.partition(".")[0] for name in head}) or None,
    bias="none",
    use_rslora=False,
    use_dora=False,
    fan_in_fan_out=False,
    inference_mode=True,
  )
  files.write_json(folder / CONFIG, record)


def _lora_tensors(
  family: str, model: model_config.ModelConfig, params: Any
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields an adapter's tensors by their names, float32."""
  for row in _rows(family, model.lora_targets):
    group = params
    for name in row.path[:-1]:
      group = group[name]
    for ours, letter in (("lora_a", "A"), ("lora_b", "B")):
      stacked = np.asarray(group[ours], np.float32)
      for layer, x in enumerate(stacked):
        yield _name(row, layer, letter), np.ascontiguousarray(x.T)
