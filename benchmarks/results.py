"""Where a benchmark was run, and its results in words and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
import os
import pathlib
import platform
import sys
from typing import Any

from prm_jax import errors
from prm_jax.runtime import environment
from prm_jax.runtime import files


def run(main: Callable[[], None]) -> None:
  """Runs a benchmark's main; refused input ends it with one line."""
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {e}")


def provenance(script: str, args: argparse.Namespace) -> dict[str, Any]:
  """Returns command, settings, versions and machine; no path of ours."""
  output = {"--output", f"--output={args.output}", str(args.output)}
  arguments = [word for word in sys.argv[1:] if word not in output]
  return dict(
    command=" ".join(["python", f"benchmarks/{script}", *arguments]),
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
    files.write_json(output, result)
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


def _count(name: str, value: int | float | list[int]) -> str:
  if isinstance(value, list):
    return f"{name} {' '.join(f'{x:,}' for x in value)}"
  return (
    f"{value:,} {name}" if isinstance(value, int) else f"{name} {value:.4g}"
  )


def show(result: Mapping[str, Any]) -> str:
  """Returns a suite's counts, then its measured numbers, as plain text."""
  lines = []
  for name, counts in result["counts"].items():
    text = ", ".join(_count(k, v) for k, v in counts.items())
    lines.append(f"  {name}: {text}")
  lines.append(f"  {'':42}{'wall min':>10}{'median':>10}{'max':>10}")
  for name, x in result["measured"].items():
    text = "".join(f"{v:10.4g}" for v in x["wall"].values())
    if "cpu" in x:  # not of what other processes do
      text += f"   by CPU time {x['cpu']['median']:.4g}"
    lines.append(f"  {name:42}{text}")
  return "\n".join(lines)
