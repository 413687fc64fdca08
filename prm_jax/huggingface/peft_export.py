"""Writes LoRA adapters and a head in PEFT's form, without their base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import huggingface
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
    kind: What the model is for, of peft_adapters.TASKS.
    base_model: The name of the base, or its folder.
    dtype: The type of the numbers.

  Raises:
    InputError: A number doesn't fit the dtype, or the disk is full.
  """
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
