"""Writes LoRA adapters and a head in PEFT's form, without their base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import class_names
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import safetensors_io
from prm_jax.huggingface import to_hf_config
from prm_jax.models import model_config as model_config
from prm_jax.runtime import files


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
  if same:
    names = (
      name
      for name, x in huggingface.export_tensors(family, plain, params)
      if name not in tensors.entries
      or tensors.entries[name].shape != x.shape
      or not np.array_equal(tensors.read(name).astype(x.dtype), x)
    )
    other = next(names, None)
  if other is not None:
    raise errors.InputError(
      f"`base={base}`: {other} isn't that of {source}, in which more than the"
      " adapters was trained, or which has another base; export without `base`,"
      " which merges the adapters"
    )


def save(
  folder: pathlib.Path,
  base: pathlib.Path,
  source: pathlib.Path,
  family: str,
  model: model_config.ModelConfig,
  params: Any,
  kind: str,
  head: Mapping[str, np.ndarray],
  *,
  base_model: str,
  dtype: str,
) -> None:
  """Writes an adapter's folder.

  Args:
    folder: The folder.
    base: The Hugging Face folder of the base.
    source: The checkpoint folder, for messages.
    family: The family of the model.
    model: The shape of the model, with its adapters.
    params: Its parameters.
    kind: What the model is for, as heads.tensors names it.
    head: The tensors of its head, which is kept whole.
    base_model: The name of the base, or its folder.
    dtype: The type of the numbers.

  Raises:
    InputError: The model isn't the base with adapters, PEFT has no task for its
      head or the base names its classes otherwise, the dtype isn't that of
      training, or the disk is full.
  """
  if dtype != "float32":
    raise errors.InputError(
      f"`dtype={dtype}`: adapters are exported in float32, as they were trained;"
      " leave it out"
    )
  merges = "export without `base`, which merges the adapters"
  if kind not in peft_adapters.TASKS or "v_head.summary.weight" in head:
    raise errors.InputError(
      f"{source}: PEFT has no task for its head; {merges}"
    )
  check_base(family, model, params, base, source)
  if kind == "TokenClassification":  # no other head has several classes
    raw = huggingface.read_config(base).raw
    named = class_names.order(raw, len(head["score.weight"]), base)
    if [*named] != sorted(named):
      raise errors.InputError(
        f"{base}: its config.json names the class of right steps first, and the"
        f" adapter's head has it last; {merges}"
      )
  whole = ((f"{peft_adapters.PREFIX}{name}", x) for name, x in head.items())
  safetensors_io.write_tensors(
    folder,
    [*_lora_tensors(family, model, params), *whole],
    dtype=dtype,
    max_shard_bytes=1 << 62,  # PEFT has one file
    single=peft_adapters.WEIGHTS,
  )
  rows = peft_adapters.rows_of(family, model.lora_targets)
  modules = [row.name.split(".")[-2] for row in rows]
  alpha = model.lora_alpha
  record = dict(
    peft_type="LORA",
    task_type=peft_adapters.TASKS[kind],
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
  files.write_json(folder / peft_adapters.CONFIG, record)


def _lora_tensors(
  family: str, model: model_config.ModelConfig, params: Any
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields an adapter's tensors by their names, float32."""
  for row in peft_adapters.rows_of(family, model.lora_targets):
    group = params
    for name in row.path[:-1]:
      group = group[name]
    for ours, letter in (("lora_a", "A"), ("lora_b", "B")):
      stacked = np.asarray(group[ours], np.float32)
      for layer, x in enumerate(stacked):
        yield (
          peft_adapters.tensor_name(row, layer, letter),
          np.ascontiguousarray(x.T),
        )
