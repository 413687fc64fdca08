"""generation_config.json: which ids end a text, and how a model is sampled."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax.checkpoints import sampling_defaults
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

NAME = "generation_config.json"
# What our sampler doesn't do, and the value that means nothing is done.
_IGNORED: Mapping[str, float] = dict(
  repetition_penalty=1,
  no_repeat_ngram_size=0,
  typical_p=1,
  epsilon_cutoff=0,
  eta_cutoff=0,
  num_beams=1,
  penalty_alpha=0,
)


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
  """What a folder's generation_config.json asks for.

  Args:
    ends: The ids that end a text.
    sampling: Those of sampling_defaults.NAMES that it has. do_sample=false is
      temperature 0.
    ignored: What it asks for that our sampler doesn't do, as "name=value".
  """

  ends: tuple[int, ...] = ()
  sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
  ignored: tuple[str, ...] = ()


def read(folder: pathlib.Path) -> GenerationConfig:
  """Returns what a folder's file asks for; nothing if there is no file.

  Raises:
    InputError: A number is none, or out of its range.
  """
  path = foreign_files.find(folder, NAME)
  if path is None:
    return GenerationConfig()
  record = files.read_json(path)
  sampling = {
    name: record[name]
    for name in sampling_defaults.NAMES
    if record.get(name) is not None
  }
  errors.raise_first(sampling_defaults.faults(sampling, path))
  if record.get("do_sample") is False:
    # What the others say is how one would sample.
    length = {k: v for k, v in sampling.items() if k == "max_new_tokens"}
    sampling = dict(temperature=0, **length)
  ignored = (
    f"{name}={reprlib.repr(record[name])}"
    for name, neutral in _IGNORED.items()
    if record.get(name) is not None and record[name] != neutral
  )
  return GenerationConfig(_ends(record, path), sampling, tuple(ignored))


def _ends(record: Mapping[str, Any], path: pathlib.Path) -> tuple[int, ...]:
  """Returns eos_token_id, an id or a list of them."""
  listed = record.get("eos_token_id")
  ids = listed if isinstance(listed, list) else [listed]
  if listed is None:
    return ()
  for i in ids:
    if type(i) is not int or i < 0:
      raise errors.InputError(
        f"{path}: eos_token_id is {reprlib.repr(listed)}; expected a token's id,"
        " or a list of them; correct the file"
      )
  return tuple(ids)
