"""Training runs of tests, their stages' fields side by side."""

import dataclasses

from prm_jax.training import batches
from prm_jax.training import programs
from prm_jax.training import train_config

_PACKING = dict(
  rows="batch_size",
  sequence_length="sequence_length",
  share_prefixes="share_prefixes",
)


def run(program="prm", **fields) -> train_config.TrainConfig:
  """Returns a run; fields: of TrainConfig, its packing and its objective."""
  kind = programs.KINDS[program].objective
  own = {f.name for f in dataclasses.fields(kind)}
  if "labels" not in own:  # what tests give all programs alike
    fields.pop("labels", None)
  objective = {k: fields.pop(k) for k in [*fields] if k in own}
  packing = {_PACKING[k]: fields.pop(k) for k in [*fields] if k in _PACKING}
  return train_config.TrainConfig(
    objective=kind(**objective),
    packing=batches.PackingConfig(**packing),
    **fields,
  )


def encode_rows(config, solutions, tokenizer, seed, sources=None):
  """Returns batches.encode_rows of a run's stages."""
  return batches.encode_rows(
    config.objective,
    config.packing,
    config.encoding,
    solutions,
    tokenizer,
    seed,
    sources,
  )
