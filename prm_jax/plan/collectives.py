"""What a compiled program sends between chips, read from its HLO text."""

from __future__ import annotations

from collections import Counter
import math
import re
from typing import NamedTuple

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
_BITS = dict(pred=8, s4=4, u4=4, s8=8, u8=8, s16=16, u16=16, bf16=16, f16=16)
_BITS |= dict(s32=32, u32=32, f32=32, s64=64, u64=64, f64=64, c64=64)


class Sent(NamedTuple):
  """What a step sends, by kind, per chip.

  data: bytes of the largest operand or result, summed over all calls. wire:
  bytes that leave a chip where every call is a ring (bandwidth-optimal): as
  many as the data, twice for an all-reduce. calls: how often.
  """

  data: dict[str, int]
  wire: int
  calls: dict[str, int]


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\([^{]*\) -> [^{]*)?\{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(
  r"(?:calls|to_apply|called_computations|branch_computations)="
  r"\{?((?:%?[\w.\-]+(?:, )?)+)"
)


def read(hlo: str) -> Sent:
  """Returns what a compiled step sends.

  The body of a loop counts as often as it runs. A collective whose channel
  was seen before doesn't count: an asynchronous one may stand in the text
  several times.

  Raises:
    ValueError: a loop that sends runs nobody knows how often.
  """
  bodies, entry = _computations(hlo)
  data: Counter[str] = Counter()
  calls: Counter[str] = Counter()
  seen: set[tuple[str, str]] = set()
  wire = 0

  def walk(name: str, times: int | None) -> None:
    nonlocal wire
    for line in bodies.get(name, ()):
      match = _COLLECTIVE.search(line)
      if match:
        kind = match[2]
        channel = re.search(r"channel_id=(\d+)", line)
        key = (kind, channel[1] if channel else line)
        if key in seen:
          continue
        seen.add(key)
        if times is None:
          raise ValueError(
            f"a loop that sends runs nobody knows how often: {line.strip()}"
          )
        size = _bytes(line, match)
        data[kind] += size * times
        calls[kind] += times
        wire += size * times * (2 if kind == "all-reduce" else 1)
      loop = re.search(r" while\(.*body=%?([\w.\-]+)", line)
      if loop:
        trips = _trips(line, bodies)
        walk(loop[1], times * trips if times and trips else None)
        continue
      for group in _CALLED.findall(line):
        for called in group.replace("%", "").split(", "):
          walk(called, times)

  walk(entry, 1)
  return Sent(dict(data), wire, dict(calls))


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
  """Returns the lines of each computation, and the name of the first."""
  bodies: dict[str, list[str]] = {}
  entry = current = ""
  for line in hlo.splitlines():
    match = _COMPUTATION.match(line)
    if match:
      current = match[2]
      bodies[current] = []
      entry = current if match[1] else entry
    elif current:
      bodies[current].append(line)
  return bodies, entry


def _trips(line: str, bodies: dict[str, list[str]]) -> int | None:
  """Returns how often a while loop runs, where the text says so."""
  known = re.search(r'known_trip_count":?\{"?n"?:"?(\d+)', line)
  if known:
    return int(known[1])
  condition = re.search(r"condition=%?([\w.\-]+)", line)
  text = "\n".join(bodies.get(condition[1], ())) if condition else ""
  bound = re.findall(r"constant\((\d+)\)", text)
  # The counter starts at 0 and goes up by 1: so XLA writes scans.
  return int(bound[0]) if len(bound) == 1 and "direction=LT" in text else None


def _bytes(line: str, match: re.Match[str]) -> int:
  """Returns the bytes of a collective: the larger of what goes in and out."""
  sizes = [
    math.prod(int(x) for x in shape.split(",") if x) * _BITS.get(kind, 0) // 8
    for kind, shape in _ARRAY.findall(match[1])
  ]
  kind, starts = match[2], match[3]
  if starts and kind == "collective-permute":
    return sizes[0]  # then come the result and two counters
  if starts and kind == "all-gather":
    return sum(sizes[len(sizes) // 2 :])  # the operands come first
  if kind == "reduce-scatter":
    return sum(sizes) * _group(line)
  return sum(sizes)


def _group(line: str) -> int:
  """Returns how many devices take part in each of a collective's groups."""
  match = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
  if match:
    return int(match[1])
  match = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
  return len(match[1].split(",")) if match else 1
