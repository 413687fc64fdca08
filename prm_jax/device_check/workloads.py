"""Solutions with the lengths and shared prefixes of PRM800K's, in rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import itertools
import json
import pathlib
from typing import NamedTuple

import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import schema
from prm_jax.rows import packing
from prm_jax.text import encoding

# Made by benchmarks/workload_shapes.py, which says what a line is.
FILES = dict(solutions="solutions.jsonl", alternatives="alternatives.jsonl")
LAYOUTS = ("padded", "packed", "tree")


def examples(
  name: str, vocab_size: int, *, longest: int | None = None
) -> list[encoding.Example]:
  """Returns examples of real lengths and trees, of random ids.

  Args:
    name: solutions, whole ones of PRM800K's phase-2 sample; alternatives, the
      steps that phase 1 rated, each with the path before it.
    vocab_size: ids are below it.
    longest: solutions of more tokens are left out; None: none is.
  """
  path = pathlib.Path(__file__).with_name(FILES[name])
  rng = np.random.default_rng(0)
  loaded = []
  for number, line in enumerate(path.read_text().splitlines()):
    tokens = np.zeros(0, np.int32)
    for shared, length, targets in json.loads(line):
      new = rng.integers(0, vocab_size, length, dtype=np.int32)
      new[:shared] = tokens[:shared]
      if shared < min(length, len(tokens)):
        # The first id after the shared ones differs: siblings are in order.
        new[shared] = (tokens[shared] + 1) % vocab_size
      tokens = new
      if longest is not None and length > longest:
        continue
      labels, weights = np.zeros((2, length), np.float32)
      for position, label in targets:
        labels[position], weights[position] = label, 1
      loaded.append(
        encoding.Example(tokens, labels, weights, weights > 0, str(number))
      )
  return loaded


def unlabelled(ids: np.ndarray, group: str = "") -> encoding.Example:
  """Returns ids as an example without targets."""
  zeros = np.zeros(len(ids), np.float32)
  return encoding.Example(ids.astype(np.int32), zeros, zeros, zeros > 0, group)


class Placed(NamedTuple):
  """Examples in rows.

  Attributes:
    batch: the rows.
    places: of each example its row, and the indices in it of its targets.
  """

  batch: batch_lib.Batch
  places: list[tuple[int, np.ndarray]]

  def read(self, values: np.ndarray) -> list[np.ndarray]:
    """Returns what [B, T] values say at each example's targets."""
    return [values[row, at] for row, at in self.places]


def place(
  given: Sequence[encoding.Example],
  tokens: int,
  layout: str,
  *,
  rows: int | None = None,
) -> Placed:
  """Returns all examples in rows of so many tokens, their labels left out.

  Args:
    given: what is laid out; no labels, since where labels of one token differ
      a tree has it twice.
    tokens: of a row.
    layout: padded, a row each; packed, rows full of them; tree, in which
      those of one group share their prefixes.
    rows: at least so many, empty ones after the others.
  """
  blank = [
    dataclasses.replace(x, labels=np.zeros(len(x), np.float32)) for x in given
  ]
  segments = [packing.chain(x) for x in blank]
  of = [(i, np.arange(len(x))) for i, x in enumerate(blank)]
  if layout == "tree":
    segments, of = packing.placed_trees(blank, tokens)
  filled = [[i] for i in range(len(segments))]
  if layout != "padded":
    filled = packing.assign_rows([len(p) for p in segments], tokens)
  starts: dict[int, tuple[int, int]] = {}
  for number, row in enumerate(filled):
    offsets = np.cumsum([0, *(len(segments[i]) for i in row)])
    starts |= {i: (number, offset) for i, offset in zip(row, offsets)}
  filled += [[]] * ((rows or 0) - len(filled))
  batch = packing.fill([[segments[i] for i in row] for row in filled], tokens)
  places = []
  for (segment, path), x in zip(of, given, strict=True):
    number, start = starts[segment]
    places.append((number, start + path[x.weights > 0]))
  return Placed(batch, places)


class Filled(NamedTuple):
  """Batches of a workload.

  Attributes:
    batches: some of them.
    labels_per_row: of all rows that the workload fills, on average.
  """

  batches: list[batch_lib.Batch]
  labels_per_row: float


def fill(
  given: Sequence[encoding.Example],
  rows: int,
  tokens: int,
  *,
  share_prefixes: bool,
  most: int,
) -> Filled:
  """Returns batches of full rows to learn from.

  Args:
    given: examples, at least a row of them.
    rows: of a batch.
    tokens: of a row.
    share_prefixes: examples of a group share their prefixes.
    most: so many batches at most. If the examples fill less than one, its rows
      come again.
  """
  segments = [packing.chain(x) for x in given]
  if share_prefixes:
    segments = packing.trees(given, tokens)
  assigned = packing.assign_rows([len(p) for p in segments], tokens)
  # The last rows are those of short segments, which may not be full.
  order = np.random.default_rng(0).permutation(len(assigned))
  num = max(1, min(most, len(assigned) // rows))
  order = np.resize(order, num * rows)
  filled = [[segments[i] for i in assigned[r]] for r in order]
  labels = sum(float(segment.weights.sum()) for segment in segments)
  return Filled(
    [
      packing.fill(filled[start : start + rows], tokens)
      for start in range(0, len(filled), rows)
    ],
    labels / len(assigned),
  )


def solutions(
  name: str, count: int, *, longest: int | None = None
) -> list[schema.Solution]:
  """Returns solutions of real lengths whose letters are tokens.

  A tokenizer of bytes makes each letter a token, and adds control ids.

  Args:
    name: as of `examples`.
    count: how many, at most.
    longest: as of `examples`.
  """
  given = examples(name, ord("z") - ord("a") + 1, longest=longest)[:count]
  groups: dict[str, list[encoding.Example]] = defaultdict(list)
  for x in given:
    groups[x.group].append(x)
  made: list[schema.Solution] = []
  for group in groups.values():
    ids = np.stack([x.tokens[: min(map(len, group))] for x in group])
    # The problem is what all of them begin with, before any step ends.
    same = np.append((ids == ids[0]).all(0), False).argmin()
    ends = [np.flatnonzero(x.weights) + 1 for x in group]
    start = max(1, min(int(same), *(int(e[0]) - 1 for e in ends)))
    for x, cuts in zip(group, ends, strict=True):
      text = "".join(chr(ord("a") + i) for i in x.tokens)
      steps = [text[a:b] for a, b in itertools.pairwise([start, *cuts])]
      made.append(schema.Solution(str(len(made)), text[:start], tuple(steps)))
  return made


def seen_keys(batch: batch_lib.Batch) -> float:
  """Returns how many keys a token sees on average, itself included."""
  T = batch.tokens.shape[1]
  return float((batch.visible_until - np.arange(T)).mean())
