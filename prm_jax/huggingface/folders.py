"""What a Hugging Face folder is read and written by; see the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import pathlib
from typing import Any

import numpy as np

from prm_jax.huggingface import families
from prm_jax.huggingface import from_hf_config
from prm_jax.huggingface import safetensors_io
from prm_jax.huggingface import to_hf_config
from prm_jax.huggingface import weights
from prm_jax.models import model_config as model_config
from prm_jax.runtime import checks
from prm_jax.runtime import files

FAMILIES = families.FAMILIES
Source = from_hf_config.Source
Tensors = safetensors_io.Tensors
abstract_params = weights.abstract_params
export_tensors = weights.export_tensors
families_of = to_hf_config.families_of
load_params = weights.load_params
open_tensors = safetensors_io.open_tensors
read_config = from_hf_config.read_config
tensor_shapes = weights.tensor_shapes

DTYPES = ("bfloat16", "float32", "float16")


def save(
  folder: files.PathLike,
  family: str,
  model: model_config.ModelConfig,
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  dtype: str = "bfloat16",
  max_shard_bytes: int = 2 * 10**9,
  architecture: str | None = None,
  extra: Mapping[str, Any] | None = None,
) -> int:
  """Writes a checkpoint folder; returns the bytes of its tensors.

  Each file is written whole or not at all, config.json last: without it nothing
  loads the folder.

  Args:
    folder: The folder.
    family: The family of the model.
    model: The shape of the model.
    tensors: The tensors of `export_tensors` and of the caller's head.
    dtype: One of DTYPES.
    max_shard_bytes: The largest size of a file.
    architecture: See to_hf_config.record.
    extra: See to_hf_config.record.

  Raises:
    InputError: The family has no such model, the folder holds one already, a
      number doesn't fit the dtype, or the disk is full.
  """
  checks.check_choice("dtype", dtype, DTYPES)
  folder = pathlib.Path(folder)
  safetensors_io.check_empty(folder)
  record = to_hf_config.record(
    family, model, dtype=dtype, architecture=architecture, extra=extra
  )
  num_bytes = safetensors_io.write_tensors(
    folder, tensors, dtype=dtype, max_shard_bytes=max_shard_bytes
  )
  files.write_json(folder / from_hf_config.CONFIG, record)
  return num_bytes
