"""Reads the records of an RL run, for its page."""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.runtime import checked_lines
from prm_jax.runtime import checks

Record = dict[str, Any]


def read(workdir: pathlib.Path) -> tuple[list[Record], list[Record]]:
  """Returns the records of metrics.jsonl, and of samples.jsonl if it exists.

  Raises:
    InputError: a file is damaged, or there are no metrics.
  """
  metrics, samples = workdir / "metrics.jsonl", workdir / "samples.jsonl"
  lines = checked_lines.read(samples) if samples.exists() else ()
  for where, record in (updates := list(checked_lines.read_metrics(metrics))):
    numbers = dict.fromkeys(record, float | None)
    _check_types(where, record, numbers | dict(step=int, kind=str))
  for where, record in (shown := list(lines)):
    _check_types(where, record, _SAMPLE)
  return [r for _, r in updates], [r for _, r in shown]


# The fields of a sample that the page reads.
_SAMPLE: Mapping[str, Any] = dict(
  step=int,
  id=str,
  problem=str,
  steps=tuple[str, ...],
  right=bool | None,
  prm=tuple[float | None, ...] | None,
  prm_judged=tuple[bool, ...] | None,
  exact=tuple[float | None, ...] | None,
  total_return=float | None,
  counts=bool,
)


def _check_types(
  where: str, record: Mapping[str, Any], kinds: Mapping[str, Any]
) -> None:
  for name, kind in kinds.items():
    is_there = name in record and checks.is_a(record[name], kind)
    if not is_there or (name == "step" and record["step"] < 0):
      raise errors.InputError(
        f"{where}: {name} must be {checks.type_name(kind)}; expected a record"
        " that `prm-jax rl` wrote"
      )
