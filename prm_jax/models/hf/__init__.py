"""Hugging Face checkpoint folders, in and out.

  read_config(folder)                     -> Source: family, model, ...
  open_tensors(folder)                    -> Tensors: headers only
  load_params(tensors, family, model)     -> parameters, names left over
  export_tensors(family, model, params)   -> (name, array), one by one
  save(folder, family, model, tensors)    writes config.json and safetensors

One table per family (families.FAMILIES) holds for both directions. Only
safetensors are read or written: a pickle is never opened, and no code that a
config.json names is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import pathlib
from typing import Any

import numpy as np

from prm_jax import schema
from prm_jax.models import config as config_lib
from prm_jax.models.hf import configuration
from prm_jax.models.hf import families
from prm_jax.models.hf import files
from prm_jax.models.hf import records
from prm_jax.models.hf import weights

FAMILIES = families.FAMILIES
Source = configuration.Source
Tensors = files.Tensors
abstract_params = weights.abstract_params
export_tensors = weights.export_tensors
families_of = records.families_of
load_params = weights.load_params
open_tensors = files.open_tensors
read_config = configuration.read_config
tensor_shapes = weights.tensor_shapes

DTYPES = ("bfloat16", "float32", "float16")


def save(
  folder: schema.PathLike,
  family: str,
  model: config_lib.ModelConfig,
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  dtype: str = "bfloat16",
  max_shard_bytes: int = 2 * 10**9,
  architecture: str | None = None,
  extra: Mapping[str, Any] | None = None,
) -> int:
  """Writes a checkpoint folder; returns the bytes of its tensors.

  tensors: those of `export_tensors` and of the caller's head. dtype: one of
  DTYPES. architecture, extra: see records.record. Each file is written
  whole or not at all, config.json last: without it nothing loads the folder.

  Raises:
    InputError: the family has no such model, the folder holds one already, a
      number doesn't fit the dtype, or the disk is full.
  """
  if dtype not in DTYPES:
    raise schema.InputError(
      f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}"
    )
  folder = pathlib.Path(folder)
  files.check_empty(folder)
  record = records.record(
    family, model, dtype=dtype, architecture=architecture, extra=extra
  )
  num_bytes = files.write_tensors(
    folder, tensors, dtype=dtype, max_shard_bytes=max_shard_bytes
  )
  schema.write_json(folder / configuration.CONFIG, record)
  return num_bytes
