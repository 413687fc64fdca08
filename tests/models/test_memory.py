"""Parameters beyond all memory are refused before anything is allocated."""

import jax
from jax import numpy as jnp
import pytest

from prm_jax import errors
from prm_jax.models import memory
from prm_jax.models import sharding


def test_parameters_beyond_all_memory_are_refused_and_others_arent():
  mesh = sharding.make_mesh()
  memory.check_parameters(dict(w=jnp.zeros(8)), mesh)
  huge = jax.ShapeDtypeStruct((2**31 - 1, 2**20), jnp.float32)
  with pytest.raises(errors.InputError, match=r"take 8,388,608\.0 GiB"):
    memory.check_parameters(dict(w=huge), mesh)
