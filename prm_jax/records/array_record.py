"""Solutions that stay in their files: an ArrayRecord data set, read by number.

A data set is what `tfds_builders` writes: a folder with dataset_info.json. What
is computed over all of its records (digests, lengths) takes a few bytes for
each record. It is kept in .prm_jax in that folder, under a name that depends on
the content.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any, TypeVar

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.runtime import inputs
from prm_jax.runtime import json_text

INFO = "dataset_info.json"
FEATURE = "solution"
# TFDS makes it of the name of the class tfds_records.Solutions.
NAME = "solutions"
BLOCK = 1024  # records that are read at once when all of them are

Item = TypeVar("Item")


class ReadByNumber(Sequence[Item]):
  """A sequence whose items are read by number, many in one call."""

  @abc.abstractmethod
  def read(self, numbers: Sequence[int]) -> list[Item]:
    """Returns the items of these numbers; one call is faster than many."""

  def __getitem__(self, number):
    size = len(self)
    if isinstance(number, slice):
      return self.read(range(*number.indices(size)))
    if not -size <= number < size:
      raise IndexError(number)
    return self.read([number % size])[0]

  def __iter__(self) -> Iterator[Item]:
    for start in range(0, len(self), BLOCK):
      yield from self.read(range(start, min(start + BLOCK, len(self))))


def solution_from_features(
  features: Mapping[str, Any], where: str
) -> schema.Solution:
  """Returns the solution of a record, the inverse of tfds_records.record.

  Raises:
    InputError: The record is another data set's, or damaged.
  """
  try:
    content = features[FEATURE]
    text = content.decode() if isinstance(content, bytes) else content
    fields = json_text.parse(text)
    if not isinstance(fields, dict):
      raise TypeError
  except (KeyError, TypeError, AttributeError, ValueError):
    raise errors.InputError(
      f'{where}: no feature "{FEATURE}" that holds a JSON object; build the data'
      " with prm-jax data build"
    ) from None
  return jsonl.solution_from_record(fields, where)


def pick(items: Sequence[Item], numbers: np.ndarray) -> list[Item]:
  """Returns the items of these numbers, in one call if that is faster."""
  if isinstance(items, ReadByNumber):
    return items.read(numbers.tolist())
  return [items[i] for i in numbers.tolist()]


@dataclasses.dataclass(frozen=True, eq=False)
class Stored(ReadByNumber[schema.Solution]):
  """The solutions of one split, in the order of the records.

  Args:
    path: The data set's folder, or SPLIT in it. Without SPLIT it is the only
      split, or train.
  """

  path: pathlib.Path

  def __post_init__(self):
    self._split  # noqa: B018  what can't be read is refused now

  @property
  def folder(self) -> pathlib.Path:
    return self.path if (self.path / INFO).exists() else self.path.parent

  @property
  def kept_in(self) -> pathlib.Path:
    """Where what is computed over all records is kept."""
    return self.folder / ".prm_jax"

  @functools.cached_property
  def _builder(self) -> Any:  # a tfds.core.DatasetBuilder
    if not (self.folder / INFO).exists():
      raise errors.InputError(
        f"{self.path}: no {INFO} there; give the folder that prm-jax data build"
        " wrote, or FOLDER/SPLIT"
      )
    # TFDS opens them by their paths: dataset_info.json, and the records.
    for path in sorted(self.folder.iterdir()):
      if not path.is_dir():
        inputs.check_regular(path)
    # Not above: few read such data, and its import takes 0.2 s.
    import tensorflow_datasets as tfds

    try:
      return tfds.builder_from_directory(str(self.folder))
    except Exception as e:  # TFDS has many errors for damaged data
      reason = " ".join(str(e).split())[:200]
      raise errors.InputError(
        f"{self.folder}: can't be read as a dataset: {reason}; build it again"
      ) from e

  @functools.cached_property
  def _split(self) -> str:
    splits = list(self._builder.info.splits)
    sizes = [x.num_examples for x in self._builder.info.splits.values()]
    if not splits or min(sizes) < 0:
      raise errors.InputError(
        f"{self.folder}: {INFO} has no splits, or one of a negative length;"
        " build it again"
      )
    if self.folder != self.path:
      if self.path.name not in splits:
        raise errors.InputError(
          f"{self.folder}: no split {self.path.name!r}; it has"
          f" {', '.join(splits)}"
        )
      return self.path.name
    if len(splits) == 1:
      return splits[0]
    if "train" in splits:
      return "train"
    raise errors.InputError(
      f"{self.folder}: which split? write {self.folder / splits[0]} for one of"
      f" {', '.join(splits)}"
    )

  @functools.cached_property
  def _source(self):
    import tensorflow_datasets as tfds

    if self._builder.info.file_format is not (
      tfds.core.file_adapters.FileFormat.ARRAY_RECORD
    ):
      raise errors.InputError(
        f"{self.folder}: not ArrayRecord; build it again with"
        " tfds build --file_format=array_record"
      )
    self._check_length()
    return self._builder.as_data_source(split=self._split)

  def _check_length(self) -> None:
    """Refuses a dataset_info.json with another number than the files hold."""
    from array_record.python import array_record_module

    split = self._builder.info.splits[self._split]
    held = 0
    for path in split.filepaths:
      try:
        reader = array_record_module.ArrayRecordReader(str(path))
        held += reader.num_records()
        reader.close()
      except (RuntimeError, ValueError, OSError) as e:
        reason = " ".join(str(e).split())[:200]
        raise errors.InputError(
          f"{self.folder}: damaged records: {reason}; build it again"
        ) from e
    if held != split.num_examples:
      raise errors.InputError(
        f"{self.folder / INFO}: says that split {self._split!r} has"
        f" {split.num_examples:,} records, and its files hold {held:,}; build"
        " it again"
      )

  @property
  def name(self) -> str:
    """The data set's name, or its config's if the data set is our own."""
    info = self._builder.info
    general = info.name == NAME
    return info.config_name if general and info.config_name else info.name

  def __len__(self) -> int:
    return self._builder.info.splits[self._split].num_examples

  def read(self, numbers: Sequence[int]) -> list[schema.Solution]:
    """Returns the solutions of these records.

    Raises:
      InputError: A record can't be read or doesn't hold a solution.
    """
    source = self._source
    try:
      rows = source.__getitems__([int(i) for i in numbers])
    except (RuntimeError, ValueError, IndexError, OSError) as e:
      reason = " ".join(str(e).split())[:200]
      raise errors.InputError(
        f"{self.folder}: damaged records: {reason}; build it again"
      ) from e
    return [
      solution_from_features(row, f"{self.path}: record {i}")
      for i, row in zip(numbers, rows, strict=True)
    ]

  @functools.cached_property
  def fingerprint(self) -> str:
    """The digest of the split's files."""
    whole = hashlib.sha256(self._split.encode())
    for path in sorted(self.folder.glob(f"*-{self._split}.array_record*")):
      whole.update(path.name.encode())
      with open(path, "rb") as f:
        whole.update(hashlib.file_digest(f, "sha256").digest())
    return whole.hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(ReadByNumber[schema.Solution]):
  """Some solutions of several sequences, which are numbered one after another.

  Args:
    parts: The sequences.
    numbers: The numbers of the chosen solutions, in their order, int64 [N].
  """

  parts: Sequence[Sequence[schema.Solution]]
  numbers: np.ndarray

  @functools.cached_property
  def _ends(self) -> np.ndarray:
    return np.cumsum([len(part) for part in self.parts])

  @functools.cached_property
  def is_stored(self) -> bool:
    """Whether any of the sequences stays in its files."""
    used = np.unique(np.searchsorted(self._ends, self.numbers, side="right"))
    return any(isinstance(self.parts[k], Stored) for k in used)

  def __len__(self) -> int:
    return len(self.numbers)

  def read(self, numbers: Sequence[int]) -> list[schema.Solution]:
    """Returns the solutions of these numbers; one call for each sequence."""
    wanted = self.numbers[np.asarray(numbers, np.int64)]
    part_numbers = np.searchsorted(self._ends, wanted, side="right")
    solutions: dict[int, schema.Solution] = {}
    for k in np.unique(part_numbers):
      part = self.parts[k]
      of_part = np.flatnonzero(part_numbers == k)
      rows = pick(part, wanted[of_part] - (self._ends[k] - len(part)))
      solutions.update(zip(of_part.tolist(), rows, strict=True))
    return [solutions[i] for i in range(len(wanted))]

  @property
  def stored(self) -> list[Stored]:
    return [part for part in self.parts if isinstance(part, Stored)]

  @functools.cached_property
  def fingerprint(self) -> str:
    """The digest of all solutions; for stored ones, that of their files."""
    whole = hashlib.sha256(self.numbers.tobytes())
    for part in self.parts:
      if isinstance(part, Stored):
        whole.update(part.fingerprint.encode())
        continue
      for one in part:
        text = json.dumps(jsonl.record_from_solution(one))
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()
