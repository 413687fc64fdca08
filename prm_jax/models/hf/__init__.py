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

from prm_jax.models.hf.families import FAMILIES
from prm_jax.models.hf.families import read_config
from prm_jax.models.hf.families import Source
from prm_jax.models.hf.files import open_tensors
from prm_jax.models.hf.files import Tensors
from prm_jax.models.hf.weights import abstract_params
from prm_jax.models.hf.weights import export_tensors
from prm_jax.models.hf.weights import load_params

__all__ = [
  "FAMILIES",
  "Source",
  "Tensors",
  "abstract_params",
  "export_tensors",
  "load_params",
  "open_tensors",
  "read_config",
]
