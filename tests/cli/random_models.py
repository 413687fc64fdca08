"""A policy and a PRM with random weights, for tests of commands."""

import dataclasses
import pathlib

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

BYTES = tokenizer_lib.Bytes()
MODEL = model_config.ModelConfig(
  vocab_size=BYTES.vocab_size,
  d_model=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  d_ff=8,
  scan=False,
)


def write(folder: pathlib.Path, max_tokens: int = 64) -> pathlib.Path:
  """Writes the checkpoint folders policy/ and prm/, and returns the folder.

  Args:
    folder: The folder.
    max_tokens: The longest solution in tokens.
  """
  for name, program, heads in (
    ("policy", "sft", ()),
    ("prm", "prm", ("step",)),
  ):
    random = np.random.default_rng(0)
    params = jax.tree.map(
      lambda x, random=random: jnp.asarray(
        random.normal(size=x.shape), x.dtype
      ),
      jax.eval_shape(
        lambda heads=heads: meta.unbox(
          transformer.init(jax.random.key(0), MODEL, heads)
        )
      ),
    )
    where = folder / name
    where.mkdir()
    model_json.write_description(
      where,
      model_json.Description(
        program=program,
        model=MODEL,
        encoding=dataclasses.asdict(
          encoding.EncodingConfig(max_tokens=max_tokens)
        ),
        tokenizer=BYTES.save(where),
        aggregate="min",
      ),
    )
    saves.save_params(where, params)
  return folder
