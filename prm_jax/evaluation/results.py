"""What an evaluation writes, results.json and samples.jsonl, and where to."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import json
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """results: what results.json holds, without where it was run.

  samples: of each solution {"id", "scores", "prediction", "target", "right",
  ...}; right is None where the target isn't known.
  """

  results: dict[str, Any]
  samples: list[dict[str, Any]]


SAMPLE_FIELDS = ("id", "scores", "prediction", "target", "right")


def samples_path(output: pathlib.Path) -> pathlib.Path:
  """Returns where the samples of some results go, if nobody says where.

  samples.jsonl stands beside results.json, other_samples.jsonl beside
  other.json or other_results.json.
  """
  stem = output.name.removesuffix(".gz").removesuffix(".json")
  kept = stem.removesuffix("results")
  prefix = kept if kept != stem or not stem else f"{stem}_"
  return output.with_name(f"{prefix}samples.jsonl")


def check(
  output: pathlib.Path,
  samples: pathlib.Path,
  inputs: Iterable[files.PathLike | None],
) -> None:
  """Refuses to replace anything but the outputs of an earlier evaluation.

  Raises:
    InputError: an output is an input, both are one file, or one is there
      already and isn't of this kind.
  """
  taken = {pathlib.Path(path).resolve() for path in inputs if path}
  if output.resolve() == samples.resolve():
    raise errors.InputError(
      f"{output}: can't hold both results and samples; give another `samples`"
    )
  for path, option, is_ours in (
    (output, "`output`", _is_results),
    (samples, "`samples`", _is_samples),
  ):
    if path.resolve() in taken:
      raise errors.InputError(
        f"{path}: is read by this evaluation; give another {option}"
      )
    if path.exists() and not is_ours(path):
      raise errors.InputError(
        f"{path}: is there already and wasn't written by an evaluation; give"
        f" another {option}"
      )


def _is_results(path: pathlib.Path) -> bool:
  try:
    content = json.loads(files.read_text(path))
  except ValueError:
    return False
  run = content.get("run") if isinstance(content, dict) else None
  return isinstance(run, dict) and "command" in run


def _is_samples(path: pathlib.Path) -> bool:
  try:
    record = next(iter(files.read_records(path)), ("", {}))[1]
  except errors.InputError:
    return False
  return set(SAMPLE_FIELDS) <= set(record)
