"""Solutions as records of a TFDS data set, ArrayRecord, without TensorFlow.

A record is one Solution in our JSON form, as the only feature "solution".
Nothing is lost (labels may be null, further fields may be anything), and
reading is fast: 67 us for a Solution against 153 us for decoding the same
fields as features of their own. Records keep their order, so solutions of one
problem stay together; training shuffles them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import json
import logging
import pathlib

import tensorflow_datasets as tfds

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import files

VERSION = tfds.core.Version("1.0.0")
# TFDS wants it; what it finds out itself needs importlib_resources, which it
# doesn't install.
CODE = pathlib.Path(__file__)
NOTES: dict[str, str] = {"1.0.0": "One solution in prm_jax's JSON per record."}


def record(solution: schema.Solution) -> dict[str, str]:
  """Returns the features of a record."""
  written = jsonl.record_from_solution(solution)
  try:
    return {
      array_record.FEATURE: json.dumps(
        written, ensure_ascii=False, allow_nan=False
      )
    }
  except ValueError as e:
    raise errors.InputError(
      f"solution {solution.id!r}: can't be written as JSON: {e}; write null"
    ) from None


def info(
  builder: tfds.core.DatasetBuilder,
  description: str,
  homepage: str = "",
  citation: str = "",
) -> tfds.core.DatasetInfo:
  """Returns the metadata of a data set of such records."""
  # Not dataset_info_from_configs(): it wants a package per builder.
  return tfds.core.DatasetInfo(
    builder=builder,
    description=description,
    features=tfds.features.FeaturesDict(
      {array_record.FEATURE: tfds.features.Text()}
    ),
    homepage=homepage or None,
    citation=citation or None,
    disable_shuffling=True,
  )


def examples(
  solutions: Iterable[schema.Solution], left_out: Counter[str], where: str
) -> Iterator[tuple[int, dict[str, str]]]:
  """Yields numbered records; finally logs what was left out."""
  count = 0
  for count, one in enumerate(solutions, 1):
    yield count - 1, record(one)
  sources.log_counts(where, count, left_out)


@dataclasses.dataclass
class Given(tfds.core.BuilderConfig):
  """The splits to write.

  Args:
    splits: The solutions of each split, read once.
    left_out: Filled with what the readers leave out, by reason.
  """

  splits: Mapping[str, Iterable[schema.Solution]] = dataclasses.field(
    default_factory=dict
  )
  left_out: Counter[str] = dataclasses.field(default_factory=Counter)


# Unregistered: without its config it is nothing.
class Solutions(  # type: ignore[call-arg]
  tfds.core.GeneratorBasedBuilder, skip_registration=True
):
  """Solutions from any source; the config names them."""

  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES

  def _info(self) -> tfds.core.DatasetInfo:
    return info(self, "Solutions in prm_jax's JSON form.")

  def _split_generators(self, dl_manager):
    del dl_manager
    given = self.builder_config
    return {split: self._generate_examples(split) for split in given.splits}

  def _generate_examples(self, split):
    given = self.builder_config
    where = f"{given.name} {split}"
    return examples(given.splits[split], given.left_out, where)


def write(
  folder: files.PathLike,
  name: str,
  splits: Mapping[str, Iterable[schema.Solution]],
  left_out: Counter[str] | None = None,
) -> pathlib.Path:
  """Writes solutions as a data set; returns its folder.

  Args:
    folder: The folder in which the data set is written.
    name: The name of the data set.
    splits: The solutions of each split.
    left_out: What the readers of the splits leave out; filled while they read.

  Raises:
    InputError: The data set is there already, or there is no solution.
  """
  counts = Counter[str]() if left_out is None else left_out
  given = Given(name=name, version=VERSION, splits=splits, left_out=counts)
  return prepare(
    Solutions(config=given, data_dir=str(folder), file_format="array_record"),
    tfds.download.DownloadConfig(),
  )


def prepare(
  builder: tfds.core.DatasetBuilder, download: tfds.download.DownloadConfig
) -> pathlib.Path:
  """Writes a data set as a whole or not at all; returns its folder."""
  folder = pathlib.Path(builder.data_dir)
  if builder.is_prepared():
    raise errors.InputError(
      f"{folder}: is there already; remove the folder to build it again"
    )
  try:
    builder.download_and_prepare(
      download_config=download, file_format="array_record"
    )
  except AssertionError as e:
    if "No examples" not in str(e):
      raise
    raise errors.InputError(f"{folder}: a split would hold no solution") from e
  except tfds.core.download.download_manager.NonMatchingChecksumError as e:
    raise errors.InputError(
      f"{folder}: a file isn't the published one: {_line(e)}; compare it by"
      " hand and give it in a manual folder"
    ) from e
  except OSError as e:
    raise errors.InputError(
      f"{folder}: can't be built: {_line(e)}; without a network, put the files"
      " into a manual folder"
    ) from e
  return folder


def quiet(bars: bool) -> None:
  """Silences TFDS's advice, and its progress bars unless `bars`."""
  logging.getLogger("absl").setLevel(logging.ERROR)
  if not bars:
    tfds.disable_progress_bar()


def _line(e: Exception) -> str:
  return " ".join(str(e).split())[:300]
