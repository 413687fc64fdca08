"""Hugging Face checkpoint folders, in and out.

  read_config(folder)                     -> Source: family, model, ...
  open_tensors(folder)                    -> Tensors: headers only
  load_params(tensors, family, model)     -> parameters, names left over
  export_tensors(family, model, params)   -> (name, array), one by one
  save(folder, family, model, tensors)    writes config.json and safetensors

One table per family (families.FAMILIES) holds for both directions. Only
safetensors are read or written: a pickle is never opened, and no code that a
config.json names is run.

These names are those of `folders`, which loads numpy and jax when one of them
is first used: the command line's start doesn't wait for it.
"""

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
  from prm_jax.huggingface.folders import *  # noqa: F403


_OF_FOLDERS = (
  *("abstract_params", "export_tensors", "families_of", "load_params"),
  *("open_tensors", "read_config", "save", "tensor_shapes"),
  *("DTYPES", "FAMILIES", "Source", "Tensors"),
)


def __getattr__(name: str) -> Any:
  if name not in _OF_FOLDERS:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(f"{__name__}.folders"), name)
