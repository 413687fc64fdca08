"""Which targets are compared: alternatives after a prefix, or solutions.

A pair is two targets of one group with different labels. Both must be in one
row, where the loss finds them by their number in `pair_group`. The numbers are
distinct over all examples, so packing never renumbers them.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Iterable, Sequence
import dataclasses

from jaxtyping import Float
import numpy as np

from prm_jax.rows import packing
from prm_jax.text import encoding

KINDS = ("alternatives", "solutions")


def group(
  examples: Sequence[encoding.Example], kind: str
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples that can be compared, with groups, and the counts.

  An example ends at its last target that is compared. Alternatives without an
  alternative of another label weigh 0.

  Args:
    examples: The examples.
    kind: alternatives compares the steps that follow the same prefix, token by
      token; solutions compares the last targets of one problem's solutions.
  """
  members = defaultdict(list)
  for i, example in enumerate(examples):
    places = _alternatives if kind == "alternatives" else _solution
    for key, position in places(example):
      members[key].append((i, position))
  made: list[np.ndarray | None] = [None] * len(examples)
  counts: Counter[str] = Counter()
  number = 0
  for rivals in members.values():
    labels = np.array([examples[i].labels[p] for i, p in rivals])
    if labels.min() == labels.max():
      continue
    number += 1
    counts["pairs"] += round(num_ordered(labels, np.ones(len(labels))))
    for i, position in rivals:
      array = made[i]
      if array is None:
        made[i] = array = np.zeros(len(examples[i]), np.int32)
      array[position] = number
  kept = []
  for example, array in zip(examples, made, strict=True):
    if array is None:
      counts["solutions without a rival"] += 1
    else:
      weights = example.weights
      if kind == "alternatives":
        weights = np.where(array > 0, weights, 0).astype(np.float32)
      example = dataclasses.replace(example, weights=weights, pair_group=array)
      kept.append(encoding.until_last_target(example))
  counts["groups of rivals"] = number
  return kept, counts


def _alternatives(example):
  """Yields each step's prefix, and the position of its score."""
  ends = np.flatnonzero(example.step_end)
  starts = [example.prompt_tokens, *(int(end) + 1 for end in ends[:-1])]
  for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
    if example.weights[end] > 0:
      yield (k, example.tokens[:start].tobytes()), int(end)


def _solution(example):
  """Yields the problem, and the position of the last target."""
  # As a text: beside a solution its last tokens may differ.
  yield example.problem.strip(), int(np.flatnonzero(example.weights)[-1])


def num_ordered(
  labels: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> float:
  """Returns the weight of all pairs of a group whose labels differ."""
  by_label: dict[float, float] = defaultdict(float)
  for label, weight in zip(labels, weights, strict=True):
    by_label[float(label)] += float(weight)
  total = sum(by_label.values())
  return (total**2 - sum(w**2 for w in by_label.values())) / 2


def num_pairs(segments: Iterable[packing.Segment]) -> float:
  """Returns how many pairs have both members in one segment."""
  count = 0.0
  for segment in segments:
    if segment.pair_group is None:
      continue
    for number in np.unique(segment.pair_group[segment.pair_group > 0]):
      at = segment.pair_group == number
      count += num_ordered(segment.labels[at], segment.weights[at])
  return count


def together(
  segments: Sequence[packing.Segment], sequence_length: int
) -> list[packing.Segment]:
  """Returns segments joined so that what is compared shares a row if it fits.

  Joined segments don't see each other. If there are too many for a row, those
  with a higher label and those with a lower one are taken in turn; num_pairs of
  the result shows how many pairs the cut has lost.
  """
  parts: list[list[packing.Segment]] = []
  for members in _connected(segments):
    parts.append([])
    room = sequence_length
    for segment in _in_turn([segments[i] for i in members]):
      if len(segment) > room:
        parts.append([])
        room = sequence_length
      parts[-1].append(segment)
      room -= len(segment)
  return [packing.join(part) for part in parts]


def _connected(segments: Sequence[packing.Segment]) -> list[list[int]]:
  """Returns the numbers of the segments that groups connect, in order."""
  leader = list(range(len(segments)))

  def find(i: int) -> int:
    while leader[i] != i:
      leader[i] = i = leader[leader[i]]
    return i

  first: dict[int, int] = {}
  for i, segment in enumerate(segments):
    if segment.pair_group is None:
      continue
    for number in np.unique(
      segment.pair_group[segment.pair_group > 0]
    ).tolist():
      a, b = find(first.setdefault(number, i)), find(i)
      leader[max(a, b)] = min(a, b)
  connected: dict[int, list[int]] = defaultdict(list)
  for i in range(len(segments)):
    connected[find(i)].append(i)
  return list(connected.values())


def _in_turn(members: list[packing.Segment]) -> list[packing.Segment]:
  """Returns the segments by their first group, with its labels in turn."""
  seen: Counter[tuple[int, float]] = Counter()
  keys = []
  for i, segment in enumerate(members):
    if segment.pair_group is None:
      return members
    at = int(np.flatnonzero(segment.pair_group)[0])
    place = int(segment.pair_group[at]), float(segment.labels[at])
    keys.append((place[0], seen[place], -place[1], i))
    seen[place] += 1
  return [members[key[-1]] for key in sorted(keys)]
