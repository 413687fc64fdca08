"""Pieces that are read and encoded when a batch needs them.

A first pass over the data keeps of every piece only which solutions it is made
of and how many tokens it has: some 20 bytes. Rows are packed by the lengths,
and a batch reads the records of its own rows. The pieces are bit for bit those
that `packing` makes of the same solutions in memory.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import itertools
import json

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import array_record
from prm_jax.data import encoding
from prm_jax.data import packing
from prm_jax.runtime import progress

# Solutions, each for itself, to examples and the counts of what is in them.
Encode = Callable[
  [Sequence[schema.Solution]], tuple[list[encoding.Example], Counter[str]]
]


def made(
  solutions: Sequence[schema.Solution],
  encoded: Encode,
  sources: np.ndarray,
  tree_tokens: int | None,
) -> tuple[list[packing.Segment], np.ndarray, Counter[str]]:
  """Returns all pieces in memory, the source of each, and the counts.

  sources, tree_tokens: see index.
  """
  counts: Counter[str] = Counter()
  examples: dict[int, list[encoding.Example]] = {}
  segments: list[packing.Segment] = []
  of: list[int] = []
  bounds = np.flatnonzero(np.diff(sources)) + 1
  starts = [0, *bounds.tolist(), len(solutions)]
  # A run of one source is encoded at once.
  for start, stop in itertools.pairwise(starts):
    if start == stop:
      continue
    found, said = encoded(solutions[start:stop])
    counts.update(said)
    source = int(sources[start])
    if tree_tokens is None:
      segments += [packing.chain(example) for example in found]
      of += [source] * len(found)
    else:
      examples.setdefault(source, []).extend(found)
  for source, group in sorted(examples.items()):
    trees = packing.trees(group, tree_tokens or 0)
    segments += trees
    of += [source] * len(trees)
  return segments, np.asarray(of, np.int32), counts


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
  """What packing needs to know of P pieces of M solutions.

  members: int64 [M], the solutions of the first piece, then of the next.
  starts: int64 [P + 1], where each piece's begin. lengths: int32 [P], tokens.
  sources: int32 [P]. counts: see encode.
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
  """Returns the pieces of all solutions.

  sources: int32 [number of solutions]. tree_tokens: None is a piece for each
  solution; else solutions of one group and source share their prefixes, in
  trees of so many tokens at most. Trees take a second pass over the groups
  that have several members.
  """
  counts: Counter[str] = Counter()
  # Some bytes for each, where a list holds an object.
  numbers, lengths, groups = array.array("q"), array.array("i"), bytearray()
  with progress.showing("index", len(solutions)) as update:
    for number, solution in enumerate(solutions):
      examples, found = encoded([solution])
      counts.update(found)
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
  """Returns members, sizes and tokens of the trees, group after group."""
  _, first, of_group = np.unique(groups, return_index=True, return_inverse=True)
  # Source after source, groups in the order of their first solution, each in
  # that of its own.
  first = first[of_group.ravel()]
  order = np.lexsort((first, sources[members]))
  bounds = np.flatnonzero(np.diff(first[order])) + 1
  found, sizes, tokens = [], [], []
  with progress.showing("index trees", len(members)) as update:
    done = 0
    for mine in np.split(order, bounds) if len(order) else ():
      done += len(mine)
      update(done)
      if len(mine) == 1:
        found.append(members[mine])
        sizes.append(1)
        tokens.append(lengths[mine[0]])
        continue
      examples, _ = encoded(_read(solutions, members[mine]))
      for which, segment in packing.cut(examples, tree_tokens):
        found.append(members[mine[which]])
        sizes.append(len(which))
        tokens.append(len(segment))
  empty = [np.zeros(0, np.int64)]
  return (
    np.concatenate(empty + found),
    np.asarray(sizes, np.int64),
    np.asarray(tokens, np.int32),
  )


def _read(
  solutions: Sequence[schema.Solution], numbers: np.ndarray
) -> list[schema.Solution]:
  if isinstance(solutions, array_record.Chosen | array_record.Stored):
    return solutions.read(numbers.tolist())
  return [solutions[i] for i in numbers]


@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Sequence[packing.Segment]):
  """The pieces of an index, each made when it is asked for."""

  solutions: Sequence[schema.Solution]
  encoded: Encode
  table: Index
  trees: bool

  def __len__(self) -> int:
    return len(self.table.lengths)

  def __getitem__(self, number):
    return array_record.item(self, number)

  def __iter__(self) -> Iterator[packing.Segment]:
    return array_record.each(self)

  def read(self, numbers: Sequence[int]) -> list[packing.Segment]:
    """Returns these pieces; all their solutions are read at once.

    Raises:
      InputError: the index is of other data.
    """
    spans = [
      slice(self.table.starts[i], self.table.starts[i + 1]) for i in numbers
    ]
    wanted = [self.table.members[span] for span in spans]
    solutions = iter(_read(self.solutions, np.concatenate(wanted)))
    segments = []
    for number, members in zip(numbers, wanted, strict=True):
      examples, _ = self.encoded([next(solutions) for _ in members])
      segment = self._piece(examples) if len(examples) == len(members) else None
      if segment is None or len(segment) != self.table.lengths[number]:
        raise errors.InputError(
          f"piece {number} isn't what the index says; remove the data's folder"
          " .prm_jax"
        )
      segments.append(segment)
    return segments

  def _piece(self, examples: list[encoding.Example]) -> packing.Segment:
    if not self.trees:
      return packing.chain(examples[0])
    # They are one tree: that it fits was found when the index was made.
    return packing.tree(examples)


def kept_index(
  solutions: array_record.Chosen,
  encoded: Encode,
  sources: np.ndarray,
  tree_tokens: int | None,
  fields: dict[str, object],
) -> Index:
  """Returns the index, kept beside the first stored part.

  fields: what else than the arguments decides how solutions are encoded.
  """

  def compute():
    found = index(solutions, encoded, sources, tree_tokens)
    arrays = {f.name: getattr(found, f.name) for f in _ARRAYS}
    return arrays | dict(counts=np.asarray(json.dumps(found.counts)))

  key = array_record.description(
    dict(
      version=1,
      solutions=solutions.fingerprint,
      sources=hashlib.sha256(sources.tobytes()).hexdigest(),
      tree_tokens=tree_tokens,
      **fields,
    )
  )
  folder = solutions.stored[0].folder
  arrays = array_record.kept(folder, "index", key, compute)
  counts = Counter(json.loads(str(arrays.pop("counts"))))
  return Index(**arrays, counts=counts)


_ARRAYS = [f for f in dataclasses.fields(Index) if f.name != "counts"]
