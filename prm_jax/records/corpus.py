"""The solutions of a run: its sources, without what is held out or excluded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import logging
import pathlib

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.records import identity
from prm_jax.records import kept_arrays
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import progress

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """What to train and evaluate on.

  Args:
    train: The sources to train on.
    evaluation: The sources to evaluate on.
    exclude: Sources whose problems aren't trained on.
    holdout: The share of the training problems that is evaluated on instead,
      chosen by a hash of the problem.
    deduplicate: Whether equal rows count once.
    weights: The share of the rows from each source in `train`
      (loader.PackedDataset); None counts every solution the same.
  """

  train: tuple[str, ...]
  evaluation: tuple[str, ...] = ()
  exclude: tuple[str, ...] = ()
  holdout: float = 0.0
  deduplicate: bool = True
  weights: tuple[float, ...] = ()

  def __post_init__(self):
    errors.raise_first(self._faults(), "data.")

  def _faults(self) -> Iterator[str]:
    if self.weights and len(self.weights) != len(self.train):
      yield (
        f"weights={self.weights}: {len(self.weights)} for"
        f" {len(self.train)} sources in data.train; give one for each, or none"
      )
    if any(not 0 < w < float("inf") for w in self.weights):
      yield (
        f"weights={self.weights}: expected numbers greater than 0; take"
        " out a source that isn't wanted"
      )
    if not 0 <= self.holdout < 1:
      yield f"holdout={self.holdout}: expected a share in [0, 1)"


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The solutions of a config. A source that stays in its files is a Chosen.

  Args:
    train: The solutions to train on.
    held_out: The solutions of held-out training problems.
    evaluation: The held-out solutions, then those of the evaluation sources.
    names: The names of the sources, all different, training sources first.
    weights: The weights of the training sources, or None.
    train_sources: The number of each training solution's source, int32.
    evaluation_sources: The number of each evaluation solution's source, int32.
  """

  train: Sequence[schema.Solution]
  held_out: Sequence[schema.Solution]
  evaluation: Sequence[schema.Solution]
  names: tuple[str, ...]
  weights: tuple[float, ...]
  train_sources: np.ndarray
  evaluation_sources: np.ndarray


def source_names(
  sources: Sequence[str], opened: Sequence[Sequence[schema.Solution]]
) -> list[str]:
  """Returns short names for metrics; only equal sources have equal names.

  A name is the format's (or a stored data set's own). If several sources have
  it, the file's name is added, and a number if that isn't enough.
  """
  distinct = dict(zip(sources, opened, strict=True))
  heads, tails = {}, {}
  for source, solutions in distinct.items():
    format_name, path = sources_lib.split(source)
    heads[source] = format_name.partition("(")[0]
    if isinstance(solutions, array_record.Stored):
      heads[source] = solutions.name
    tails[source] = pathlib.Path(path).name.partition(".")[0]
  names: dict[str, str] = {}
  for source in distinct:
    name = heads[source]
    if list(heads.values()).count(name) > 1:
      name += f".{tails[source]}"
    taken = list(names.values())
    number = sum(x == name or x.startswith(f"{name}.#") for x in taken)
    names[source] = name + f".#{number + 1}" * bool(number)
  return [names[source] for source in sources]


def load(config: CorpusConfig) -> Corpus:
  """Returns the solutions that a config names; reports what it left out.

  Of a source that stays in its files only digests are held: 32 bytes for each
  solution.
  """
  train = [sources_lib.open_source(source) for source in config.train]
  digests = [_digests(part) for part in train]
  problems = np.concatenate([_NONE, *(x["problems"] for x in digests)])
  index = np.arange(len(problems))
  if config.deduplicate:
    index = _distinct(np.concatenate([_NONE, *(x["records"] for x in digests)]))
    _say(len(problems) - len(index), "equal solutions")
  exclude = [
    _digests(sources_lib.open_source(source)) for source in config.exclude
  ]
  banned = np.concatenate([_NONE, *(x["problems"] for x in exclude)])
  kept = index[~np.isin(problems[index], banned)]
  _say(len(index) - len(kept), "solutions of excluded problems")
  out = identity.shares(problems[kept]) < config.holdout
  evaluation = [sources_lib.open_source(source) for source in config.evaluation]
  names = source_names(config.train + config.evaluation, train + evaluation)
  known = list(dict.fromkeys(names))
  numbers = np.asarray([known.index(name) for name in names], np.int32)
  of = np.repeat(numbers[: len(train)], [len(part) for part in train])
  further = np.repeat(numbers[len(train) :], [len(part) for part in evaluation])
  held_out = kept[out]
  return Corpus(
    train=_chosen(train, kept[~out]),
    held_out=_chosen(train, held_out),
    evaluation=_chosen(
      [*train, *evaluation],
      np.concatenate([held_out, len(of) + np.arange(len(further))]),
    ),
    names=tuple(known),
    # A source that is named twice gets both weights.
    weights=tuple(
      sum(w for w, n in zip(config.weights, names) if n == name)
      for name in dict.fromkeys(names[: len(config.weights)])
    ),
    train_sources=of[kept[~out]],
    evaluation_sources=np.concatenate([of[held_out], further]),
  )


def _chosen(
  parts: Sequence[Sequence[schema.Solution]], index: np.ndarray
) -> Sequence[schema.Solution]:
  """Returns the chosen solutions; a list if none of them stays in its file."""
  chosen = array_record.Chosen(parts, index)
  return chosen if chosen.is_stored else list(chosen)


# --- Digests ----------------------------------------------------------------

# Sixteen bytes each; numpy leaves out zeros at the end and compares with them.
_NONE = np.zeros(0, "S16")


def _digests(part: Sequence[schema.Solution]) -> dict[str, np.ndarray]:
  """Returns the digests of problems and of whole records, each S16 [N]."""

  def compute():
    problems, records = bytearray(), bytearray()
    for solution in progress.through("compare", part, len(part)):
      problems.extend(identity.problem_digest(solution.problem))
      records.extend(identity.record_digest(solution))
    return dict(
      problems=np.frombuffer(bytes(problems), "S16"),
      records=np.frombuffer(bytes(records), "S16"),
    )

  if isinstance(part, array_record.Stored):
    key = kept_arrays.description(dict(version=2, data=part.fingerprint))
    return kept_arrays.kept(part.kept_in, "digests", key, compute)
  return compute()


def _distinct(digests: np.ndarray) -> np.ndarray:
  """Returns the last of equal digests, in the order of the first ones."""
  _, first = np.unique(digests, return_index=True)
  _, from_end = np.unique(digests[::-1], return_index=True)
  return (len(digests) - 1 - from_end)[np.argsort(first, kind="stable")]


def _say(count: int, what: str) -> None:
  if count:
    _logger.info(f"taken out of training: {count:,} {what}")
