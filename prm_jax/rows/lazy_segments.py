"""Segments that are read and encoded when a batch needs them.

A first pass over the data keeps, for every segment, only its solutions and its
number of tokens: some 20 bytes. Rows are packed by these lengths, and a batch
reads the records of its own rows. The segments equal, bit for bit, those that
`packing` makes of the same solutions in memory.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import hashlib
import itertools
import json

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.records import kept_arrays
from prm_jax.rows import packing
from prm_jax.runtime import json_text
from prm_jax.runtime import progress
from prm_jax.text import encoding

# Solutions, each for itself, to examples and the counts of what is in them.
Encode = Callable[
  [Iterable[schema.Solution]], tuple[list[encoding.Example], Counter[str]]
]


def made(
  solutions: Sequence[schema.Solution],
  encoded: Encode,
  sources: np.ndarray,
  tree_tokens: int | None,
) -> tuple[list[packing.Segment], np.ndarray, Counter[str]]:
  """Returns all segments in memory, the source of each, and the counts.

  Args:
    solutions: The solutions.
    encoded: Encodes solutions.
    sources: See index.
    tree_tokens: See index.
  """
  counts: Counter[str] = Counter()
  examples: dict[int, list[encoding.Example]] = {}
  segments: list[packing.Segment] = []
  segment_sources: list[int] = []
  bounds = np.flatnonzero(np.diff(sources)) + 1
  starts = [0, *bounds.tolist(), len(solutions)]
  # A run of one source is encoded at once.
  for start, stop in itertools.pairwise(starts):
    if start == stop:
      continue
    some = progress.through("encode", solutions[start:stop], stop - start)
    run, run_counts = encoded(some)
    counts.update(run_counts)
    source = int(sources[start])
    if tree_tokens is None:
      segments += [packing.chain(example) for example in run]
      segment_sources += [source] * len(run)
    else:
      examples.setdefault(source, []).extend(run)
  for source, group in sorted(examples.items()):
    trees = packing.trees(group, tree_tokens or 0)
    segments += trees
    segment_sources += [source] * len(trees)
  return segments, np.asarray(segment_sources, np.int32), counts


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
  """What packing needs to know of P segments of M solutions.

  Args:
    members: The solutions of the first segment, then of the next, int64 [M].
    starts: Where each segment's members begin, int64 [P + 1].
    lengths: The number of tokens of each segment, int32 [P].
    sources: The source of each segment, int32 [P].
    counts: The counts of Encode.
  """

  members: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray
  sources: np.ndarray
  counts: Counter[str]


def index(
  solutions: Sequence[schema.Solution],
  encoded: Encode,
  sources: np.ndarray,
  tree_tokens: int | None,
) -> Index:
  """Returns the index of the segments of all solutions.

  Trees need a second pass over the groups that have several members.

  Args:
    solutions: The solutions.
    encoded: Encodes solutions.
    sources: The source of each solution, int32 [number of solutions].
    tree_tokens: None makes one segment for each solution. Otherwise solutions
      of one group and source share their prefixes, in trees of at most this
      many tokens.
  """
  counts: Counter[str] = Counter()
  # Some bytes for each, where a list holds an object.
  numbers, lengths, groups = array.array("q"), array.array("i"), bytearray()
  with progress.showing("index", len(solutions)) as update:
    for number, solution in enumerate(solutions):
      examples, new_counts = encoded([solution])
      counts.update(new_counts)
      for example in examples:
        numbers.append(number)
        lengths.append(len(example))
        if tree_tokens is not None:
          groups.extend(_group(example, int(sources[number])))
      if number % array_record.BLOCK == 0:
        update(number)
  members = np.frombuffer(numbers, np.int64)
  sizes = np.ones(len(members), np.int64)
  tokens = np.frombuffer(lengths, np.int32)
  if tree_tokens is not None:
    members, sizes, tokens = _trees(
      solutions,
      encoded,
      sources,
      members,
      tokens,
      np.frombuffer(bytes(groups), "S16"),
      tree_tokens,
    )
  starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
  return Index(members, starts, tokens, sources[members[starts[:-1]]], counts)


def _group(example: encoding.Example, source: int) -> bytes:
  text = f"{source} {example.group}".encode("utf-8", "surrogatepass")
  return hashlib.sha256(text).digest()[:16]


def _trees(solutions, encoded, sources, members, lengths, groups, tree_tokens):
  """Returns the members, sizes and tokens of the trees, group after group."""
  _, first, of_group = np.unique(groups, return_index=True, return_inverse=True)
  # Source after source, groups in the order of their first solution, each in
  # that of its own.
  first = first[of_group.ravel()]
  order = np.lexsort((first, sources[members]))
  bounds = np.flatnonzero(np.diff(first[order])) + 1
  tree_members, sizes, tokens = [np.zeros(0, np.int64)], [], []
  with progress.showing("index trees", len(members)) as update:
    done = 0
    for mine in np.split(order, bounds) if len(order) else ():
      done += len(mine)
      update(done)
      if len(mine) == 1:
        tree_members.append(members[mine])
        sizes.append(1)
        tokens.append(lengths[mine[0]])
        continue
      examples, _ = encoded(array_record.pick(solutions, members[mine]))
      for which, segment in packing.cut(examples, tree_tokens):
        tree_members.append(members[mine[which]])
        sizes.append(len(which))
        tokens.append(len(segment))
  return (
    np.concatenate(tree_members),
    np.asarray(sizes, np.int64),
    np.asarray(tokens, np.int32),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Segments(array_record.ReadByNumber[packing.Segment]):
  """The segments of an index, each of which is made when it is read."""

  solutions: Sequence[schema.Solution]
  encoded: Encode
  table: Index
  trees: bool

  def __len__(self) -> int:
    return len(self.table.lengths)

  def read(self, numbers: Sequence[int]) -> list[packing.Segment]:
    """Returns these segments; all their solutions are read at once.

    Raises:
      InputError: The index is of other data.
    """
    spans = [
      slice(self.table.starts[i], self.table.starts[i + 1]) for i in numbers
    ]
    wanted = [self.table.members[span] for span in spans]
    solutions = iter(array_record.pick(self.solutions, np.concatenate(wanted)))
    segments = []
    for number, members in zip(numbers, wanted, strict=True):
      examples, _ = self.encoded([next(solutions) for _ in members])
      segment = None
      if len(examples) == len(members):
        # One tree holds them all: the index was made so.
        segment = (
          packing.tree(examples) if self.trees else packing.chain(examples[0])
        )
      if segment is None or len(segment) != self.table.lengths[number]:
        raise errors.InputError(
          f"segment {number} isn't what the index says; remove the data's"
          " folder .prm_jax"
        )
      segments.append(segment)
    return segments


def kept_index(
  solutions: array_record.Chosen,
  encoded: Encode,
  sources: np.ndarray,
  tree_tokens: int | None,
  fields: dict[str, object],
  *,
  fresh: bool = False,
) -> Index:
  """Returns the index, which is kept in the folder of the first stored part.

  Args:
    solutions: The solutions.
    encoded: Encodes solutions.
    sources: See index.
    tree_tokens: See index.
    fields: Everything else that determines how solutions are encoded.
    fresh: Whether the index is made again if it was kept.
  """

  def compute():
    table = index(solutions, encoded, sources, tree_tokens)
    counts = np.asarray(json.dumps(table.counts))
    return vars(table) | dict(counts=counts)

  key = kept_arrays.description(
    dict(
      version=1,
      solutions=solutions.fingerprint,
      sources=hashlib.sha256(sources.tobytes()).hexdigest(),
      tree_tokens=tree_tokens,
      **fields,
    )
  )
  folder = solutions.stored[0].kept_in
  arrays = kept_arrays.kept(folder, "index", key, compute, fresh=fresh)
  try:
    counts = Counter(json_text.parse(str(arrays.pop("counts"))))
    if any(x.ndim != 1 or x.dtype.kind != "i" for x in arrays.values()):
      raise TypeError
    return Index(**arrays, counts=counts)
  except (KeyError, TypeError, ValueError):
    raise errors.InputError(
      f"{folder}: holds an index of another form; remove that"
      " folder, and it is made again"
    ) from None
