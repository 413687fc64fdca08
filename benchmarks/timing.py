"""Costs of variants that take turns, their ratios, and where they were run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any, NamedTuple

from prm_jax import environment
from prm_jax import schema


class Cost(NamedTuple):
  """Seconds on the clock, and of this process on all its cores."""

  wall: float
  cpu: float


def alternate(
  variants: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, list[Cost]]:
  """Returns each variant's cost in every round. Compile them before.

  A variant that returns a Cost has measured itself.
  """
  costs: dict[str, list[Cost]] = {name: [] for name in variants}
  for _ in range(rounds):
    for name, run in variants.items():
      wall, cpu = time.perf_counter(), time.process_time()
      own = run()
      spent = Cost(time.perf_counter() - wall, time.process_time() - cpu)
      costs[name].append(own if isinstance(own, Cost) else spent)
  return costs


def spread(values: Iterable[float]) -> dict[str, float]:
  values = [float(f"{x:.4g}") for x in values]
  return dict(
    min=min(values), median=statistics.median(values), max=max(values)
  )


def rate(amount: float, costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  """Returns the spread over rounds of amount per second."""
  return {
    clock: spread(amount / getattr(cost, clock) for cost in costs)
    for clock in Cost._fields
  }


def seconds(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  return {c: spread(getattr(x, c) for x in costs) for c in Cost._fields}


def ratio(
  slow: Sequence[Cost], fast: Sequence[Cost], work: float = 1.0
) -> dict[str, dict[str, float]]:
  """Returns how many times faster, round by round.

  work: what the fast one gets done in its time, over what the slow one does.
  """
  pairs = list(zip(slow, fast, strict=True))
  return {
    clock: spread(
      work * getattr(a, clock) / getattr(b, clock) for a, b in pairs
    )
    for clock in Cost._fields
  }


def provenance(script: str, args: argparse.Namespace) -> dict[str, Any]:
  """Returns command, settings, versions and machine; no path of ours."""
  output = {"--output", f"--output={args.output}", str(args.output)}
  words = [word for word in sys.argv[1:] if word not in output]
  return dict(
    command=" ".join(["python", f"benchmarks/{script}", *words]),
    settings={
      name: value if isinstance(value, int | float | list) else str(value)
      for name, value in vars(args).items()
      if name not in ("output", "config") and value is not None
    },
    versions=environment.versions() | dict(revision=environment.revision()),
    machine=environment.machine() | dict(processor=_processor()),
    load_average_before=[round(x, 2) for x in os.getloadavg()],
  )


def finish(result: dict[str, Any], output: pathlib.Path | None) -> None:
  """Adds the load that is left, and writes the result where it is wanted."""
  result["load_average_after"] = [round(x, 2) for x in os.getloadavg()]
  if output:
    schema.write_json(output, result)
    print(f"results: {output}")


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor() or "unknown"
  known = dict(line.split(":", 1) for line in lines if ":" in line)
  fields = {name.strip(): value.strip() for name, value in known.items()}
  name = fields.get("model name", platform.machine())
  return (
    f"{name}, family {fields.get('cpu family')} model {fields.get('model')}"
  )


def show(result: Mapping[str, Any]) -> str:
  """Returns a suite's counts, then its measured numbers, as plain text."""
  lines = []
  for name, counts in result["counts"].items():
    said = ", ".join(
      f"{v:,} {k}" if isinstance(v, int) else f"{k} {v:.4g}"
      for k, v in counts.items()
    )
    lines.append(f"  {name}: {said}")
  lines.append(f"  {'':42}{'wall min':>10}{'median':>10}{'max':>10}")
  for name, x in result["measured"].items():
    said = "".join(f"{v:10.4g}" for v in x["wall"].values())
    cpu = x["cpu"]["median"]
    lines.append(f"  {name:42}{said}   by CPU time {cpu:.4g}")
  return "\n".join(lines)
