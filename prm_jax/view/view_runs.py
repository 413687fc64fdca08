"""The metrics of runs, as curves of few points, and results as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import math
import sys
from typing import Any

# A curve has no more points: means of successive records, if needed.
MAX_POINTS = 200


def curves(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns the curves of each metric of a run.

  Args:
    records: The records of metrics.jsonl.

  Returns:
    Of each metric its name and its lines; a line has the kind of its records
    (train or eval) and points [step, value], of values that are known and
    finite.
  """
  metrics: dict[str, dict[str, list[tuple[float, float]]]] = {}
  for record in records:
    step, kind = record.get("step", 0), str(record.get("kind"))
    for name, value in record.items():
      if name != "step" and _is_known(step) and _is_known(value):
        points = metrics.setdefault(name, {}).setdefault(kind, [])
        points.append((float(step), float(value)))
  return [
    dict(
      name=name,
      lines=[dict(kind=k, points=_few(points)) for k, points in lines.items()],
    )
    for name, lines in metrics.items()
  ]


def _is_known(value: Any) -> bool:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return is_number and abs(value) <= sys.float_info.max / MAX_POINTS


def _few(points: Sequence[tuple[float, float]]) -> list[list[float]]:
  """Returns the means of successive points, so that there are few."""
  size = math.ceil(len(points) / MAX_POINTS)
  bins = [points[i : i + size] for i in range(0, len(points), size or 1)]
  return [[sum(x) / len(bin_) for x in zip(*bin_)] for bin_ in bins]


def lines(results: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns the values of an evaluation as names and texts.

  Args:
    results: The content of results.json.
  """
  return list(_flat(results, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
  if isinstance(value, Mapping) and value:
    for key, inner in value.items():
      yield from _flat(inner, f"{name}.{key}" if name else str(key))
  else:
    yield name, _text(value)


def _text(value: Any) -> str:
  if isinstance(value, list):
    return ", ".join(
      f"({_text(x)})" if isinstance(x, list) else _text(x) for x in value
    )
  if isinstance(value, float):
    return f"{value:.6g}"
  return "–" if value is None else str(value)
