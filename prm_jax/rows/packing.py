"""From examples to rows: segments, and which segment is in which row.

A segment is a part of a row that no token outside it sees: one example, or a
tree of examples that share prefixes, in depth-first order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np

from prm_jax import batch as batch_lib
from prm_jax.runtime import progress
from prm_jax.text import encoding


@dataclasses.dataclass(frozen=True)
class Segment:
  """The arrays of batch.Batch for a segment; indices count from its start."""

  tokens: np.ndarray
  positions: np.ndarray
  visible_until: np.ndarray
  parent: np.ndarray
  labels: np.ndarray
  weights: np.ndarray
  step_end: np.ndarray
  pair_group: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.tokens)


def chain(example: encoding.Example) -> Segment:
  """Returns one example as a segment: every token sees all tokens before it.

  Of steps that are read apart, those of its own step.
  """
  n = len(example)
  index = np.arange(n, dtype=np.int32)
  starts = np.asarray(example.starts or (0,), np.int32)
  of = np.searchsorted(starts, index, "right") - 1
  positions = index - starts[of]
  return Segment(
    tokens=example.tokens,
    positions=positions,
    visible_until=np.append(starts[1:], np.int32(n))[of],
    parent=np.where(positions == 0, np.int32(-1), index - 1),
    labels=example.labels,
    weights=example.weights,
    step_end=example.step_end,
    pair_group=example.pair_group,
  )


def branches(prefix: np.ndarray, others: Sequence[np.ndarray]) -> Segment:
  """Returns a prefix and its branches; each branch sees the prefix and itself.

  Args:
    prefix: The ids of the prefix, at least one.
    others: The ids of each branch, perhaps none. Their weight is 1.
  """
  tokens = np.concatenate([prefix, *others]).astype(np.int32)
  total, start = len(tokens), len(prefix)
  positions = np.arange(total, dtype=np.int32)
  parent = positions - 1
  until = np.full(total, total, np.int32)
  for branch in others:
    end = start + len(branch)
    positions[start:end] = len(prefix) + np.arange(len(branch))
    parent[start : min(start + 1, end)] = len(prefix) - 1
    until[start:end] = end
    start = end
  weights = np.ones(total, np.float32)
  weights[: len(prefix)] = 0
  return Segment(
    tokens=tokens,
    positions=positions,
    visible_until=until,
    parent=parent,
    labels=np.zeros(total, np.float32),
    weights=weights,
    step_end=np.zeros(total, bool),
  )


def power_of_two(num: int) -> int:
  """Returns the least power of 2 that isn't below num."""
  return 1 << max(num - 1, 0).bit_length()


def padded_length(length: int) -> int:
  """Returns the length that a row is padded to, less than a quarter more.

  There are few such lengths, and each is compiled once.
  """
  unit = max(16, 1 << max(length.bit_length() - 3, 0))
  return -(-length // unit) * unit


def trees(
  examples: Iterable[encoding.Example], max_tokens: int
) -> list[Segment]:
  """Returns segments in which examples of one group share their prefixes.

  Every example's targets are counted exactly once. If several examples put the
  same target (label and pair group) on a shared token, its weight is their sum.
  If they disagree, the token gets a duplicate leaf for each further target,
  which sees the same prefix, so that any loss equals that of the examples one
  by one. A tree larger than max_tokens becomes several segments: the path to
  the cut is repeated, and the targets of an example are all in one of them.

  Raises:
    ValueError: An example is longer than max_tokens.
  """
  groups: dict[str, list[encoding.Example]] = defaultdict(list)
  for example in examples:
    if len(example) > max_tokens:
      raise ValueError(
        f"an example of {len(example)} tokens, segments of {max_tokens}"
      )
    groups[example.group].append(example)
  return [
    segment
    for group in progress.through(
      "pack", groups.values(), len(groups), "problem"
    )
    for _, segment in cut(group, max_tokens)
  ]


def cut(
  group: Sequence[encoding.Example], max_tokens: int
) -> list[tuple[list[int], Segment]]:
  """Returns the trees of one group, each as the numbers of its examples.

  A tree depends only on its examples in that order: see `tree`.
  """
  # In lexicographic order an example shares with the one before it all that
  # it shares with any earlier one, so appending suffixes walks the trie
  # depth first. Big-endian bytes sort as the numbers do.
  order = sorted(
    range(len(group)), key=lambda i: group[i].tokens.astype(">i4").tobytes()
  )
  numbers = iter(order)
  return [
    (list(itertools.islice(numbers, count)), segment)
    for count, segment in _trees_of_group([group[i] for i in order], max_tokens)
  ]


def tree(examples: Sequence[encoding.Example]) -> Segment:
  """Returns the one tree of examples, which must be in the order of `cut`."""
  ((_, segment),) = _trees_of_group(examples, sum(map(len, examples)) + 1)
  return segment


def paths(examples: Sequence[encoding.Example]) -> list[np.ndarray]:
  """Returns the index in their `tree` of every token of each example.

  Args:
    examples: The examples in the order of `cut`. Their targets must agree,
      because a duplicate would move the indices of the tokens after it.
  """
  all_paths: list[np.ndarray] = []
  path, size = np.zeros(0, np.int64), 0
  before = np.zeros(0, np.int32)
  for example in examples:
    depth = num_common(before, example.tokens)
    new = np.arange(size, size + len(example) - depth)
    path = np.concatenate([path[:depth], new])
    size += len(new)
    all_paths.append(path)
    before = example.tokens
  return all_paths


def placed_trees(
  examples: Sequence[encoding.Example], max_tokens: int
) -> tuple[list[Segment], list[tuple[int, np.ndarray]]]:
  """Returns trees, and where in them the tokens of each example are.

  Args:
    examples: The examples. Those of one group share their prefixes; their
      targets must agree, as for `paths`.
    max_tokens: The most tokens of a tree.

  Returns:
    The trees; and for each example the number of its tree, and the index in it
    of every token, int [tokens].
  """
  groups: dict[str, list[int]] = defaultdict(list)
  for i, example in enumerate(examples):
    groups[example.group].append(i)
  segments: list[Segment] = []
  places: dict[int, tuple[int, np.ndarray]] = {}
  for group in groups.values():
    for order, segment in cut([examples[i] for i in group], max_tokens):
      members = [group[n] for n in order]
      for i, path in zip(
        members, paths([examples[i] for i in members]), strict=True
      ):
        places[i] = len(segments), path
      segments.append(segment)
  return segments, [places[i] for i in range(len(examples))]


def _pair_groups(example: encoding.Example, at: np.ndarray) -> np.ndarray:
  """Returns the pair groups of targets; 0 is no group."""
  groups = example.pair_group
  return np.zeros(len(at), np.int32) if groups is None else groups[at]


def _targets(
  example: encoding.Example, at: np.ndarray, nodes: np.ndarray
) -> Iterator[tuple[int, tuple[float, int], float]]:
  """Yields the node, the label and pair group, and the weight of targets."""
  groups = _pair_groups(example, at).tolist()
  labels, weights = example.labels[at].tolist(), example.weights[at].tolist()
  yield from zip(nodes.tolist(), zip(labels, groups), weights, strict=True)


def num_common(a: np.ndarray, b: np.ndarray) -> int:
  """Returns the number of leading tokens that are the same."""
  n = min(len(a), len(b))
  differ = a[:n] != b[:n]
  return int(differ.argmax()) if differ.any() else n


class _Builder:
  """A segment under construction: the open path and the tokens so far."""

  def __init__(self, capacity: int):
    self.size = 0
    self.path = np.zeros(0, np.int32)  # index of the open token at each depth
    self.tokens = np.zeros(capacity, np.int32)
    self.positions = np.zeros(capacity, np.int32)
    self.visible_until = np.zeros(capacity, np.int32)
    self.parent = np.full(capacity, -1, np.int32)
    self.labels = np.zeros(capacity, np.float32)
    self.weights = np.zeros(capacity, np.float32)
    self.step_end = np.zeros(capacity, bool)
    self.pair_group = np.zeros(capacity, np.int32)
    # node -> (label, pair group) -> weight
    self.other: dict[int, dict[tuple[float, int], float]] = {}
    self.duplicates = 0

  def shared(self, example: encoding.Example) -> int:
    """Returns the number of leading tokens that the open path has in common."""
    return num_common(self.tokens[self.path], example.tokens)

  def _compared(
    self, example: encoding.Example, depth: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the depths and nodes of the targets, and which differ there."""
    at = np.flatnonzero(example.weights[:depth])
    nodes = self.path[at]
    # One example's target may be compared, and another's not or with others.
    clash = (self.weights[nodes] > 0) & (
      (self.labels[nodes] != example.labels[at])
      | (self.pair_group[nodes] != _pair_groups(example, at))
    )
    return at, nodes, clash

  def conflicts(self, example: encoding.Example, depth: int) -> int:
    """Returns how many duplicates the example's targets would need."""
    at, nodes, clash = self._compared(example, depth)
    return sum(
      target not in self.other.get(node, {})
      for node, target, _ in _targets(example, at[clash], nodes[clash])
    )

  def close(self, depth: int) -> None:
    """Ends the subtrees of the open tokens from `depth` down."""
    closing = self.path[depth:]
    if self.other:
      for node in closing[::-1]:
        self.visible_until[node] = self.size
        for target, weight in self.other.pop(int(node), {}).items():
          self._add_duplicate(int(node), target, weight)
    else:
      self.visible_until[closing] = self.size
    self.path = self.path[:depth]

  def _add_duplicate(
    self, node: int, target: tuple[float, int], weight: float
  ) -> None:
    k = self.size
    self.tokens[k] = self.tokens[node]
    self.positions[k] = self.positions[node]
    self.parent[k] = self.parent[node]
    self.visible_until[k] = k + 1
    self.labels[k], self.pair_group[k] = target
    self.weights[k] = weight
    self.step_end[k] = self.step_end[node]
    self.size += 1
    self.duplicates -= 1

  def add(self, example: encoding.Example, depth: int) -> None:
    """Appends the tokens after the first `depth` and counts the targets."""
    self.duplicates += self.conflicts(example, depth)
    self.close(depth)
    n = len(example) - depth
    new = np.arange(self.size, self.size + n, dtype=np.int32)
    self.tokens[new] = example.tokens[depth:]
    self.positions[new] = np.arange(depth, len(example))
    if n:
      self.parent[new] = new - 1
      self.parent[self.size] = self.path[-1] if depth else -1
    self.size += n
    self.path = np.concatenate([self.path, new])
    self.step_end[self.path] |= example.step_end
    at, nodes, clash = self._compared(example, len(example))
    agree = nodes[~clash]
    self.pair_group[agree] = _pair_groups(example, at[~clash])
    self.labels[agree] = example.labels[at[~clash]]
    self.weights[agree] += example.weights[at[~clash]]
    for node, target, weight in _targets(example, at[clash], nodes[clash]):
      weights = self.other.setdefault(node, {})
      weights[target] = weights.get(target, 0.0) + weight

  def segment(self) -> Segment:
    self.close(0)
    # Copies, so that the room that wasn't needed is freed.
    arrays: dict[str, Any] = {
      field.name: getattr(self, field.name)[: self.size].copy()
      for field in dataclasses.fields(Segment)
    }
    if not self.pair_group.any():
      arrays["pair_group"] = None
    return Segment(**arrays)


def _trees_of_group(
  examples: Sequence[encoding.Example], max_tokens: int
) -> list[tuple[int, Segment]]:
  """Returns the trees, and the number of examples in each."""
  # A duplicate adds a token, a cut repeats a path, but neither makes the tree
  # larger than its examples one after another.
  capacity = min(max_tokens, sum(map(len, examples)) + 1)
  segments = []
  builder, count = _Builder(capacity), 0
  for example in examples:
    depth = builder.shared(example)
    room = capacity - builder.size - builder.duplicates
    need = len(example) - depth + builder.conflicts(example, depth)
    if need > room:
      segments.append((count, builder.segment()))
      builder, count = _Builder(capacity), 0
      depth = 0
    builder.add(example, depth)
    count += 1
  segments.append((count, builder.segment()))
  return segments


def join(segments: Sequence[Segment]) -> Segment:
  """Returns one segment made of several, so that packing keeps them in one row.

  They don't see each other.
  """
  if len(segments) == 1:
    return segments[0]
  row = fill([segments], sum(map(len, segments)))
  arrays: dict[str, Any] = {}
  for field in dataclasses.fields(Segment):
    array = getattr(row, field.name)
    arrays[field.name] = None if array is None else array[0]
  return Segment(**arrays)


def assign_rows(
  lengths: Sequence[int] | np.ndarray,
  sequence_length: int,
  order: Sequence[int] | np.ndarray | None = None,
) -> list[list[int]]:
  """Returns which segments share each row, by best fit, longest first.

  Args:
    lengths: The number of tokens of each segment.
    sequence_length: The number of tokens of a row.
    order: A permutation that breaks ties between equal lengths. The number of
      rows depends only on the lengths.

  Raises:
    ValueError: A segment is longer than a row.
  """
  lengths = np.asarray(lengths, np.int64)
  if len(lengths) and lengths.max() > sequence_length:
    raise ValueError(
      f"a segment of {lengths.max()} tokens, rows of {sequence_length}"
    )
  order = np.arange(len(lengths)) if order is None else np.asarray(order)
  order = order[np.argsort(-lengths[order], kind="stable")]
  rows: list[list[int]] = []
  open_rows: list[list[int]] = [
    [] for _ in range(sequence_length + 1)
  ]  # by room
  has_room = np.zeros(sequence_length + 1, bool)
  for segment in order:
    length = int(lengths[segment])
    # The smallest room that is large enough.
    fits = has_room[length:]
    room = length + int(fits.argmax()) if fits.any() else -1
    if room < 0:
      row, room = len(rows), sequence_length
      rows.append([])
    else:
      row = open_rows[room].pop()
      has_room[room] = bool(open_rows[room])
    rows[row].append(int(segment))
    open_rows[room - length].append(row)
    has_room[room - length] = True
  return rows


def fill(
  rows: Sequence[Sequence[Segment]], sequence_length: int
) -> batch_lib.Batch:
  """Returns the batch whose rows hold the given segments one after another."""
  out = batch_lib.empty(len(rows), sequence_length)
  if any(x.pair_group is not None for segments in rows for x in segments):
    zeros = np.zeros((len(rows), sequence_length), np.int32)
    out = dataclasses.replace(out, pair_group=zeros)
  for i, segments in enumerate(rows):
    start = 0
    for segment in segments:
      at = slice(start, start + len(segment))
      # Indices count from the start of the row there.
      moved = dict(
        visible_until=segment.visible_until + start,
        parent=np.where(segment.parent < 0, -1, segment.parent + start),
      )
      for name, array in (vars(segment) | moved).items():
        if array is not None:
          getattr(out, name)[i, at] = array
      start = at.stop
  return out
