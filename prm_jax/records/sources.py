"""Reads the sources of solutions that a config names.

A source is written "FORMAT:PATH", where FORMAT may be map(...), a mapping of any
file's fields (formats/mapped.py). If a relative path doesn't exist, it is taken
relative to the folder in the environment variable PRM_JAX_DATA.
"arrayrecord:FOLDER" stays in its files; records.array_record reads it by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import logging
import os
import pathlib
import re
from typing import Any, TypeVar
import unicodedata

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import formats
from prm_jax.datasets.formats import agent_process_bench
from prm_jax.datasets.formats import gsm8k
from prm_jax.datasets.formats import label_studio
from prm_jax.datasets.formats import mapped
from prm_jax.datasets.formats import math_shepherd
from prm_jax.datasets.formats import potato
from prm_jax.datasets.formats import prm800k
from prm_jax.datasets.formats import prmbench
from prm_jax.datasets.formats import rlhflow
from prm_jax.datasets.formats import tool_prm_bench
from prm_jax.records import array_record
from prm_jax.records import dataset_folders
from prm_jax.records import kept_arrays
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import progress
from prm_jax.text import messages
from prm_jax.text import tokenizer as tokenizer_lib

_logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Reader = Callable[[pathlib.Path, Counter[str]], Iterable[schema.Solution]]

STORED = "arrayrecord"
# A vocabulary is learnt in memory: of data that stays in its files, from this
# many solutions, evenly spaced.
WORDS_FROM = 100_000

# These count what they can't represent; the others refuse it.
_COUNTING: dict[str, Reader] = {
  "prm800k": prm800k.read,
  "math_shepherd": math_shepherd.read,
  "prmbench": prmbench.read,
  "rlhflow": rlhflow.read,
  "agent_process_bench": agent_process_bench.read,
  "tool_prm_bench": lambda path, left_out: tool_prm_bench.read(path),
  "label_studio": label_studio.read,
  "gsm8k_pool": lambda path, left_out: gsm8k.read_pool(path),
  STORED: lambda path, left_out: array_record.Stored(path),
}


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
    if self.weights and len(self.weights) != len(self.train):
      raise errors.InputError(
        f"data.weights={self.weights}: {len(self.weights)} for"
        f" {len(self.train)} sources in data.train; give one for each, or none"
      )
    if any(not 0 < w < float("inf") for w in self.weights):
      raise errors.InputError(
        f"data.weights={self.weights}: expected numbers greater than 0; take"
        " out a source that isn't wanted"
      )
    if not 0 <= self.holdout < 1:
      raise errors.InputError(
        f"data.holdout={self.holdout}: expected a share in [0, 1)"
      )


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


# Formats that are told more than a file: how to read it, or what it is about.
_CALLED = re.compile(r"(map|potato)\((.*)\)", re.DOTALL)


def format_names() -> list[str]:
  return sorted({*formats.FORMATS, *_COUNTING})


def read(
  format_name: str, path: files.PathLike, limit: int | None = None
) -> tuple[list[schema.Solution], Counter[str]]:
  """Returns the solutions of a file, and what was left out, by reason.

  Args:
    format_name: The format.
    path: The file.
    limit: The number of solutions to read, the first ones; None reads all.

  Raises:
    InputError: The format is unknown, there is no such file, or a row is bad.
  """
  left_out: Counter[str] = Counter()
  solutions = stream(format_name, path, left_out)
  shown = progress.through(f"read {path}", solutions)
  return first(shown, limit, path), left_out


def first(
  items: Iterable[Item], limit: int | None, where: object
) -> list[Item]:
  """Returns the first items, and logs it if there are more.

  Args:
    items: The items.
    limit: Their number; None takes all.
    where: What they are read from.

  Raises:
    InputError: The limit is 0.
  """
  if limit is None:
    return list(items)
  _check_limit(limit)
  rest = iter(items)
  taken = list(itertools.islice(rest, limit))
  if next(rest, None) is not None:
    _logger.info(f"{where}: the first {limit:,} alone, see `limit`")
  return taken


def drawn(
  items: Iterable[Item],
  limit: int | None,
  seed: int,
  where: object,
  name: Callable[[Item], str],
) -> list[Item]:
  """Returns some of the items, in their order, and logs it if there are more.

  Whether an item is taken depends on the seed and on all items' names, not on
  their order: published files are sorted, wrong solutions first or class by
  class, so that their first rows are no sample of them. More items with the
  same seed include fewer.

  Args:
    items: The items.
    limit: Their number; None takes all.
    seed: The seed of the draw.
    where: What they are read from.
    name: Returns the name of an item, each of its own.

  Raises:
    InputError: The limit is 0.
  """
  items = list(items)
  if limit is None:
    return items
  _check_limit(limit)

  def place(i: int) -> bytes:
    return hashlib.sha256(f"{seed} {name(items[i])}".encode()).digest()

  if limit < len(items):
    _logger.info(
      f"{where}: {limit:,} of {len(items):,}, drawn by `seed={seed}`, see"
      " `limit`"
    )
  chosen = sorted(range(len(items)), key=place)[:limit]
  return [items[i] for i in sorted(chosen)]


def _check_limit(limit: int) -> None:
  if limit < 1:
    raise errors.InputError(f"`limit={limit}`: give 1 or more")


def stream(
  format_name: str, path: files.PathLike, left_out: Counter[str]
) -> Iterator[schema.Solution]:
  """Returns the solutions of a file one by one; counts what it leaves out."""
  return iter(reader(format_name)(find(path), left_out))


def reader(format_name: str) -> Reader:
  """Returns a function that reads a file of a format row by row.

  It also counts what it leaves out.

  Raises:
    InputError: The format is unknown, or a mapping has another form.
  """
  called = _CALLED.fullmatch(format_name)
  if called and called[1] == "map":
    parsed = mapped.parse_mapping(called[2])
    return lambda path, left_out: mapped.read(path, parsed)
  if called:
    given_format, given = _given(called[2])
    reader(given_format)
    return lambda path, left_out: potato.read(
      path, stream(given_format, given, left_out), left_out
    )
  if format_name == "potato":
    raise errors.InputError(
      "format 'potato': its export has no texts; name the file that the tool"
      " was given, as in potato(solutions.jsonl), or potato(FORMAT:FILE)"
    )
  known = format_names()
  if format_name not in known:
    near = difflib.get_close_matches(format_name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise errors.InputError(
      f"format {format_name!r}: expected one of {', '.join(known)}, or"
      f" map(problem=FIELD,...){hint}"
    )
  if format_name in _COUNTING:
    return _COUNTING[format_name]
  return lambda path, left_out: formats.FORMATS[format_name].read(path)


def left_out_texts(left_out: Mapping[str, int]) -> list[str]:
  """Returns a line for each reason to leave something out."""
  return [
    f"left out: {count:,} {reason.replace('_', ' ')}"
    for reason, count in sorted(left_out.items())
  ]


def find(path: files.PathLike) -> pathlib.Path:
  """Returns the path, or that below PRM_JAX_DATA if it doesn't exist."""
  path = pathlib.Path(path)
  if str(path) == files.STDIN:
    return path
  root = os.environ.get("PRM_JAX_DATA")
  # A dataset's split is written like a path below it.
  here = path.exists() or (path.parent / array_record.INFO).exists()
  here = here or dataset_folders.files_of(path) is not None
  if path.is_absolute() or here or not root:
    return path
  return pathlib.Path(root) / path


def stored_at(path: files.PathLike) -> pathlib.Path:
  """Returns what a path is read from: of a dataset's split, its folder."""
  path = find(path)
  if path.exists() or str(path) == files.STDIN:
    return path
  is_split = (path.parent / array_record.INFO).exists()
  is_split = is_split or dataset_folders.files_of(path) is not None
  return path.parent if is_split else path


def files_of(format_name: str, path: files.PathLike) -> list[pathlib.Path]:
  """Returns what a file of a format is read from: it, and what it is joined with.

  Args:
    format_name: The format, as in reader.
    path: The file.
  """
  called = _CALLED.fullmatch(format_name)
  given = [_given(called[2])[1]] if called and called[1] == "potato" else []
  return [stored_at(x) for x in (path, *given)]


def paths_of(sources: Sequence[str]) -> list[pathlib.Path]:
  """Returns what "FORMAT:PATH" sources are read from; skips bad ones."""
  paths = []
  for source in sources:
    with contextlib.suppress(errors.InputError):
      path = _split(source)[1]
      paths += [path] if path else []
  return [stored_at(path) for path in paths]


def read_sources(sources: Sequence[str]) -> list[schema.Solution]:
  """Returns the solutions of "FORMAT:PATH" sources; reports what it omits."""
  return [s for source in sources for s in open_source(source)]


def open_source(source: str) -> Sequence[schema.Solution]:
  """Returns the solutions of a source; reports how many, and what it omits.

  Raises:
    InputError: The text isn't "FORMAT:PATH", or the file can't be read.
  """
  format_name, path = _split(source)
  left_out: Counter[str] = Counter()
  solutions: Sequence[schema.Solution]
  if format_name == STORED:
    solutions = array_record.Stored(find(path))
  else:
    solutions, left_out = read(format_name, path)
  log_counts(source, len(solutions), left_out)
  return solutions


def log_counts(where: str, count: int, left_out: Mapping[str, int]) -> None:
  """Logs how many solutions there are, and what was left out and why."""
  reasons = ", ".join(
    f"{n:,} {why}" for why, n in sorted(left_out.items()) if n
  )
  more = f"; left out: {reasons}" if reasons else ""
  _logger.info(f"{where}: {count:,} solutions{more}")


def _split(source: str) -> tuple[str, str]:
  # A mapping may hold a colon.
  head = _CALLED.match(source.rpartition("):")[0] + ")")
  if head:
    return head[0], source.removeprefix(head[0] + ":")
  format_name, colon, path = source.partition(":")
  if not colon:
    raise errors.InputError(
      f"data source {source!r}: write it FORMAT:PATH, as in"
      " jsonl:solutions.jsonl"
    )
  return format_name, path


def _given(text: str) -> tuple[str, str]:
  """Returns the format, jsonl if there is none, and the path of a file."""
  is_path = ":" not in text
  return ("jsonl", text) if is_path else _split(text)


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
    format_name, path = _split(source)
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
  train = [open_source(source) for source in config.train]
  digests = [_digests(part) for part in train]
  problems = np.concatenate([_NONE, *(x["problems"] for x in digests)])
  index = np.arange(len(problems))
  if config.deduplicate:
    index = _distinct(np.concatenate([_NONE, *(x["records"] for x in digests)]))
    _say(len(problems) - len(index), "equal solutions")
  exclude = [_digests(open_source(source)) for source in config.exclude]
  banned = np.concatenate([_NONE, *(x["problems"] for x in exclude)])
  kept = index[~np.isin(problems[index], banned)]
  _say(len(index) - len(kept), "solutions of excluded problems")
  out = _shares(problems[kept]) < config.holdout
  evaluation = [open_source(source) for source in config.evaluation]
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
      problems.extend(problem_digest(solution.problem))
      records.extend(record_digest(solution))
    return dict(
      problems=np.frombuffer(bytes(problems), "S16"),
      records=np.frombuffer(bytes(records), "S16"),
    )

  if isinstance(part, array_record.Stored):
    key = kept_arrays.description(dict(version=2, data=part.fingerprint))
    return kept_arrays.kept(part.kept_in, "digests", key, compute)
  return compute()


# Solutions of one problem come one after another.
@functools.lru_cache(maxsize=64)
def problem_digest(problem: str) -> bytes:
  """Returns a digest that is the same for texts of one problem (problem_key).

  Args:
    problem: The text.
  """
  return hashlib.sha256(problem_key(problem).encode()).digest()[:16]


def record_digest(s: schema.Solution) -> bytes:
  """Returns a digest that is the same for equal rows.

  Args:
    s: The row. Of a trajectory everything counts that a model may read.
  """
  # 1.0 and 1 are one label in a tuple, but not in a text.
  labels = s.labels and [None if x is None else float(x) for x in s.labels]
  row: list[Any] = [s.problem, s.steps, labels, s.ratings, s.outcome]
  if s.messages is not None:
    row.append(messages.heard(s))
  text = json.dumps(row)
  return hashlib.sha256(text.encode()).digest()[:16]


def _distinct(digests: np.ndarray) -> np.ndarray:
  """Returns the last of equal digests, in the order of the first ones."""
  _, first = np.unique(digests, return_index=True)
  _, from_end = np.unique(digests[::-1], return_index=True)
  return (len(digests) - 1 - from_end)[np.argsort(first, kind="stable")]


def share(problem: str) -> float:
  """Returns a number in [0, 1) from the problem's letters and digits."""
  return float(_shares(np.asarray([problem_digest(problem)], "S16"))[0])


def _shares(digests: np.ndarray) -> np.ndarray:
  """Returns numbers in [0, 1) that depend on the problems' texts."""
  whole = np.ascontiguousarray(digests).view(np.uint8).reshape(-1, 16)
  return whole[:, :4].copy().view(">u4")[:, 0] / 2**32


def _say(count: int, what: str) -> None:
  if count:
    _logger.info(f"taken out of training: {count:,} {what}")


def problem_key(problem: str) -> str:
  """Returns a problem's letters and digits, without its layout and signs.

  Composed and decomposed, full-width and ordinary ones are the same (NFKC).

  Two texts are one problem if these are the same: in the counts of `data stats`
  and `data doctor`, in a split, in data.holdout and data.exclude, and in
  decontamination.
  """
  plain = unicodedata.normalize("NFKC", problem)
  return re.sub(r"[\W_]+", "", plain).lower()


def problems_text(num_problems: int, num_texts: int) -> str:
  """Returns the number of problems as text, and of their texts if it differs.

  Args:
    num_problems: The number of distinct problem_keys.
    num_texts: The number of distinct texts of problems.
  """
  text = f"{num_problems:,} problems"
  if num_texts == num_problems:
    return text
  return f"{text} ({num_texts:,} texts; some have the same letters and digits)"


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Which tokenizer to use.

  Args:
    kind: sentencepiece (trained on the training text), bytes, or file.
    vocab_size: The number of ids of a trained tokenizer.
    model_type: The SentencePiece model to train: bpe, unigram or word.
    path: For file, a SentencePiece model or a Hugging Face tokenizer.json.
  """

  kind: str = "sentencepiece"
  vocab_size: int = 4096
  model_type: str = "bpe"
  path: str = ""

  def __post_init__(self):
    kinds = ("sentencepiece", "bytes", "file")
    checks.check_choice("tokenizer.kind", self.kind, kinds)


def make_tokenizer(
  config: TokenizerConfig, solutions: Sequence[schema.Solution]
) -> tokenizer_lib.Tokenizer:
  """Returns the tokenizer that a config asks for."""
  if config.kind == "bytes":
    return tokenizer_lib.Bytes()
  if config.kind == "sentencepiece":
    if (
      isinstance(solutions, array_record.Chosen) and len(solutions) > WORDS_FROM
    ):
      _logger.info(f"tokenizer: learns from {WORDS_FROM:,} of the solutions")
      every = np.linspace(0, len(solutions) - 1, WORDS_FROM).astype(np.int64)
      solutions = solutions.read(every.tolist())
    texts = dict.fromkeys(t for s in solutions for t in (s.problem, *s.steps))
    if not texts:
      raise errors.InputError("tokenizer: there is no training text to learn")
    return tokenizer_lib.train_sentencepiece(
      texts, config.vocab_size, model_type=config.model_type
    )
  path = find(config.path)
  if path.suffix == ".json":
    return tokenizer_lib.HuggingFace(files.read_text(path), path=path)
  try:
    return tokenizer_lib.SentencePiece(files.read_bytes(path), path=path)
  except errors.InputError as e:
    raise errors.InputError(f"tokenizer.path={e}") from None
