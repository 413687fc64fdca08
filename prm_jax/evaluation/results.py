"""What an evaluation writes, results.json and samples.jsonl, and where to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import importlib
import pathlib
from types import ModuleType
from typing import Any

from prm_jax import errors
from prm_jax.evaluation import tables
from prm_jax.jobs import journal_head
from prm_jax.runtime import files
from prm_jax.runtime import outputs


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The results of an evaluation, and a sample for each solution.

  Args:
    results: The content of results.json, except what describes the run.
    samples: {"id", "step_scores", "step_logits", "judged", "prediction",
      "target", "right", ...} of each solution; right is None if the target
      isn't known.
  """

  results: dict[str, Any]
  samples: list[dict[str, Any]]


SAMPLE_FIELDS = ("id", "step_scores", "prediction", "target", "right")


def samples_path(output: pathlib.Path) -> pathlib.Path:
  """Returns the default path of the samples that belong to some results.

  It is samples.jsonl for results.json, and other_samples.jsonl for other.json
  or other_results.json, in the same folder.
  """
  stem = output.name.removesuffix(".gz").removesuffix(".json")
  kept = stem.removesuffix("results")
  prefix = kept if kept != stem or not stem else f"{stem}_"
  return output.with_name(f"{prefix}samples.jsonl")


def figure_files() -> ModuleType:
  """Returns what draws plots: reports/figure_files.py."""
  return importlib.import_module("prm_jax.reports.figure_files")


def check(
  output: pathlib.Path,
  more: Mapping[str, pathlib.Path],
  inputs: Iterable[files.PathLike | None],
) -> None:
  """Refuses to replace anything but the outputs of an earlier evaluation.

  `check_same` then refuses to replace those of another one.

  Args:
    output: The file of results.
    more: The other outputs by option: samples, plot, table.
    inputs: What is read.

  Raises:
    InputError: outputs.check refuses one, or one is there already and isn't of
      this kind.
  """
  written = dict(output=output, **more)
  outputs.check(written, inputs)
  for option, path in written.items():
    if str(path) == files.STDOUT or not path.exists():
      continue
    if not _is_ours(option, path):
      raise errors.InputError(
        f"{path}: is there already and wasn't written by an evaluation; give"
        f" another `{option}`"
      )


def check_same(
  output: pathlib.Path,
  more: Mapping[str, pathlib.Path],
  evaluated: Mapping[str, Any],
) -> None:
  """Refuses to replace the results and other outputs of another evaluation.

  Args:
    output: The file of results.
    more: See check.
    evaluated: What these results depend on, as plain data.

  Raises:
    InputError: The results that are there depend on something else, or another
      output isn't that which these results were written with.
  """
  how = "or `fresh=True` to replace them"
  errors.raise_first(f"{x}, {how}" for x in _others(output, more, evaluated))


def _others(
  output: pathlib.Path,
  more: Mapping[str, pathlib.Path],
  evaluated: Mapping[str, Any],
) -> Iterator[str]:
  """Yields what is there of another evaluation."""
  before: dict[str, Any] = {}
  if str(output) != files.STDOUT and output.exists():
    results = files.read_json(output)
    before = results["run"]
    if different := _differences(before["evaluated"], evaluated):
      by = results.get("scored_by", {})
      place = by.get("checkpoint", by.get("scores"))
      yield (
        f"{output}: holds the results of another evaluation, by {place}:"
        f" {'; '.join(different)}; give another `output`"
      )
  for option, path in more.items():
    if not path.exists():
      continue
    if files.digest_of(path) != before.get(f"{option}_sha256"):
      yield (
        f"{path}: holds {_HELD[option]} of the results in {output}; give another"
        f" `{option}`"
      )


# What another evaluation's outputs hold.
_HELD = dict(
  samples="samples that aren't those",
  plot="a plot that isn't the one",
  table="a table that isn't the one",
)


def _differences(
  before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
  """Returns in words what differs; of another kind that alone."""
  names = ["kind"] if before.get("kind") != now["kind"] else [*before, *now]
  return journal_head.differences(
    *({k: x[k] for k in names if k in x} for x in (before, now))
  )


def _is_ours(option: str, path: pathlib.Path) -> bool:
  """Returns whether an evaluation wrote a file as this output."""
  if option == "plot":
    return figure_files().is_figure(path)
  if option == "table":
    return tables.is_table(path)
  return (_is_results if option == "output" else _is_samples)(path)


def _is_results(path: pathlib.Path) -> bool:
  try:
    run = files.read_json(path).get("run")
  except errors.InputError:
    return False
  return isinstance(run, dict) and isinstance(run.get("evaluated"), dict)


def _is_samples(path: pathlib.Path) -> bool:
  try:
    record = next(iter(files.read_records(path)), ("", {}))[1]
  except errors.InputError:
    return False
  return set(SAMPLE_FIELDS) <= set(record)
