"""What files and folders hold that pages show, read and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import step_scores
from prm_jax.people import people_folder
from prm_jax.people import people_quality
from prm_jax.probes import faithfulness
from prm_jax.probes import faithfulness_records
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import checked_lines
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.search import search_results

# Folders within a run whose files are a library's.
_SKIPPED = ("checkpoints", "tensorboard")
_ENDINGS = (".json", ".jsonl")
# What a run has put aside, and said so.
_ASIDE = ".damaged.jsonl"
# The field of scores in what we write.
_OWN = "step_scores"
# What an RL run's samples.jsonl has beside the fields of a solution.
_OF_RL = {"step", "right", "prm", "prm_judged", "exact"}


class Read(NamedTuple):
  """A solution of a file, and the scores that stand in its record.

  Args:
    solution: The solution.
    scores: The scores of its steps, by the model's name.
  """

  solution: schema.Solution
  scores: Mapping[str, schema.StepScores]


class Scored(NamedTuple):
  """A record of scores alone.

  Args:
    id: The id of the solution.
    scores: The scores of its steps, by the model's name.
    record: The whole record.
  """

  id: str
  scores: dict[str, schema.StepScores]
  record: Mapping[str, Any]


class Run(NamedTuple):
  """A run of training.

  Args:
    records: The records of metrics.jsonl.
    details: What environment.json beside it says; empty if it isn't there.
  """

  records: list[dict[str, Any]]
  details: dict[str, Any]


@dataclasses.dataclass
class Inputs:
  """What was found, by the name of each file.

  Args:
    paths: The path of each file.
    solutions: Solutions, with and without labels and scores.
    scores: Scores of solutions, by their ids.
    searches: What searches wrote.
    runs: What runs recorded.
    evaluations: The content of each results.json, and of the samples beside it
      that belong to it.
    people: How well people judge, of each folder of their work.
  """

  paths: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
  solutions: dict[str, list[Read]] = dataclasses.field(default_factory=dict)
  scores: dict[str, list[Scored]] = dataclasses.field(default_factory=dict)
  searches: dict[str, list[search_results.Result]] = dataclasses.field(
    default_factory=dict
  )
  runs: dict[str, Run] = dataclasses.field(default_factory=dict)
  evaluations: dict[str, results_lib.Evaluation] = dataclasses.field(
    default_factory=dict
  )
  people: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


def read(paths: Sequence[files.PathLike]) -> Inputs:
  """Returns what files and folders hold.

  Args:
    paths: Files, and folders whose files are looked through.

  Returns:
    What can be shown; other files of folders are left out.

  Raises:
    InputError: A file is damaged, one that was named holds nothing that can be
      shown, or there is nothing at all.
  """
  kinds: dict[pathlib.Path, str] = {}
  for path in map(pathlib.Path, paths):
    for file in _files(path):
      kind = _kind(file, is_named=file == path)
      if kind:
        kinds.setdefault(file, kind)
      elif file == path:
        raise errors.InputError(
          f"{path}: holds nothing to show; give solutions, step scores, results"
          " of a search or of an evaluation, or metrics.jsonl"
        )
  if not kinds:
    raise errors.InputError(
      f"{', '.join(map(str, paths))}: holds nothing to show; give a folder with"
      " solutions, scores, searches, evaluations or runs"
    )
  inputs = Inputs()
  for file, name in _names(list(kinds)).items():
    inputs.paths[name] = file
    _READERS[kinds[file]](inputs, name, file)
  return inputs


def _files(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a file, or the files of a folder that may hold results."""
  if not path.is_dir():
    yield path
    return
  for folder, folders, names in os.walk(path):
    folders[:] = sorted(
      x for x in folders if x not in _SKIPPED and not x.startswith(".")
    )
    if people_folder.JUDGEMENTS in names:
      # The pool is in it, and gold items are nobody's to see.
      yield pathlib.Path(folder, people_folder.JUDGEMENTS)
      continue
    for name in sorted(names):
      is_hidden = name.startswith(".") or name.endswith(_ASIDE)
      if name.removesuffix(".gz").endswith(_ENDINGS) and not is_hidden:
        yield pathlib.Path(folder, name)


def _kind(path: pathlib.Path, *, is_named: bool) -> str | None:
  """Returns what a file holds, by its first record; None for something else."""
  if path.name == people_folder.JUDGEMENTS:
    return "people"
  name = path.name.removesuffix(".gz")
  is_results = name.endswith("results.json")
  is_other = name.endswith(".json") and not is_results and not is_named
  # A tokenizer's, for example, which may be large.
  if is_other and b'"evaluated"' not in files.read_bytes(path):
    return None
  _, record = next(iter(record_files.read_records(path)), ("", {}))
  if len(record.keys() & search_results.FIELDS.keys()) >= 3:
    return "search"
  if "messages" in record or {"problem", "steps"} <= record.keys():
    return "solutions"
  if checked_lines.metrics_key(record) is not None:
    return "run"
  if "id" in record and step_scores.lists_of_numbers(record):
    return "scores"
  run = record.get("run")
  if is_results or (isinstance(run, dict) and "evaluated" in run):
    return "evaluation"
  return None


def _names(paths: Sequence[pathlib.Path]) -> dict[pathlib.Path, str]:
  """Returns a name of each file: the end of its path that no other one has."""
  parts = {}
  for path in paths:
    *folders, last = path.absolute().parts
    stem = last.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    is_run = stem == "metrics" and len(folders) > 1
    parts[path] = folders if is_run else [*folders, stem]

  names: dict[pathlib.Path, str] = {}
  for num in range(1, max(map(len, parts.values())) + 1):
    ends = {path: "/".join(x[-num:]) for path, x in parts.items()}
    times = Counter(ends.values())
    for path, end in ends.items():
      if times[end] == 1:
        names.setdefault(path, end)
  return {path: names.get(path, str(path)) for path in paths}


# --- Readers ----------------------------------------------------------------


def _read_searches(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  inputs.searches[name] = [
    search_results.from_solution(x, f"{path}: problem {x.id!r}")
    for x in search_results.read(path)
  ]


def _read_run(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  records = []
  for where, record in checked_lines.read_metrics(path):
    for field, value in record.items():
      kind: Any = dict(step=int, kind=str).get(field, float | None)
      if not checks.is_a(value, kind):
        raise errors.InputError(
          f"{where}: {field} must be {checks.type_name(kind)}; expected a record"
          " that `prm-jax train` wrote"
        )
    records.append(record)
  details = path.with_name("environment.json")
  told = files.read_json(details) if details.exists() else {}
  inputs.runs[name] = Run(records, told)


def _read_evaluation(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  results = files.read_json(path)
  samples = results_lib.samples_path(path)
  run = results.get("run")
  digest = run.get("samples_sha256") if isinstance(run, dict) else None
  is_known = digest is not None and samples.exists()
  found = (
    [x for _, x in files.read_records(samples)]
    if is_known and files.digest_of(samples) == digest
    else []
  )
  inputs.evaluations[name] = results_lib.Evaluation(results, found)


def _read_people(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  """Reads what people judged; preferences aren't shown."""
  folder = people_folder.Folder(path.parent)
  if folder.task == "pairs":
    return
  found = [Read(s, {}) for s in people_folder.read(path)]
  inputs.solutions[name] = found
  if folder.task != "alternatives":
    inputs.people[name] = people_quality.report(folder)


def _read_scores(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  """Reads each field of a file that has scores, each a model's."""
  _, first = next(iter(record_files.read_records(path)))
  fields = _fields_of(first) or step_scores.lists_of_numbers(first)[:1]
  found: dict[str, Scored] = {}
  for field in fields:
    model = name if field == _OWN else f"{name}: {field}"
    for _, id_, record, row in step_scores.read_records(path, field):
      scored = found.setdefault(id_, Scored(id_, {}, record))
      scored.scores[model] = row
  inputs.scores[name] = list(found.values())


def _read_solutions(inputs: Inputs, name: str, path: pathlib.Path) -> None:
  """Reads solutions, with the scores that stand in their records."""
  records = record_files.read_records(path)
  _, first = next(iter(record_files.read_records(path)))
  if first.keys() >= _OF_RL:
    records = map(_of_rl, checked_lines.read(path))
  found = inputs.solutions.setdefault(name, [])
  for number, (where, record) in enumerate(records, 1):
    # Without an id a solution is named after its place.
    record = {"id": f"{name}:{number}"} | record
    solution = jsonl.solution_from_record(record, where)
    scores = dict(_scores_of(record, where, name, len(solution.steps)))
    if faithfulness.FIELD in record:
      probed = faithfulness_records.checked(solution, where)
      if "step_scores" in probed:
        row = tuple(probed["step_scores"])
        scores.setdefault(f"{name}: PRM", schema.StepScores(row))
    found.append(Read(solution, scores))


def _of_rl(told: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
  """Returns the record of an RL run's sample as that of a solution."""
  where, record = told
  record = dict(record)
  # The rollout of a state makes its next update.
  step = record.pop("step", None)
  update = step + 1 if isinstance(step, int) else "?"
  record["id"] = f"{record.get('id')}, update {update}"
  record["source"] = f"update {update}"
  for name, ours in dict(right="outcome", exact="labels").items():
    record[ours] = record.pop(name, None)
  prm = record.pop("prm", None)
  steps = record.get("steps")
  if not isinstance(prm, list) or not isinstance(steps, list):
    return where, record
  if len(prm) == len(steps) and None not in prm:
    record[_OWN] = dict(prm=prm)
    record["judged"] = dict(prm=record.pop("prm_judged", None))
  elif prm:
    record["prm_of_its_own_steps"] = prm
  return where, record


def _scores_of(
  record: Mapping[str, Any], where: str, name: str, num_steps: int
) -> Iterator[tuple[str, schema.StepScores]]:
  """Yields the models' names and scores in a solution's record."""
  # Of several models all are by the model's name.
  told, masks, odds = (
    record.get(field) for field in (_OWN, "judged", "step_logits")
  )
  given = dict(told) if isinstance(told, dict) else {}
  masks, odds = (x if isinstance(x, dict) else {name: x} for x in (masks, odds))
  for field in _fields_of(record) if not given else ():
    if field == _OWN:
      given[name] = record[field]
    elif len(record[field]) == num_steps:
      given[field] = record[field]
  for model, scores in given.items():
    is_one_each = isinstance(scores, list) and len(scores) == num_steps
    if not (is_one_each and all(map(_is_share, scores))):
      raise errors.InputError(
        f"{where}: the scores of {model!r} aren't one of each of the"
        f" {num_steps} steps, in [0, 1]; score the solutions again"
      )
    mask = masks.get(model)
    fits = isinstance(mask, list) and len(mask) == num_steps
    judged = tuple(x is not False for x in mask or ()) if fits else ()
    logits = _numbers(odds.get(model), num_steps)
    yield (
      model,
      schema.StepScores(tuple(map(float, scores)), logits, judged=judged),
    )


def _numbers(value: Any, num: int) -> tuple[float, ...] | None:
  """Returns a list of so many numbers; None for anything else."""
  if not isinstance(value, list) or len(value) != num:
    return None
  return tuple(map(float, value)) if all(map(_is_number, value)) else None


def _fields_of(record: Mapping[str, Any]) -> list[str]:
  """Returns the fields of a record that have scores of each step.

  Of what we write, and of solutions, these are named so; of what others write
  they are all lists of shares.
  """
  is_named = _OWN in record or "steps" in record
  return [
    x
    for x in step_scores.lists_of_numbers(record)
    if x == _OWN
    or (
      (not is_named or "score" in x)
      and record[x]
      and all(map(_is_share, record[x]))
    )
  ]


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
  return _is_number(value) and 0 <= value <= 1


_READERS = dict(
  search=_read_searches,
  run=_read_run,
  evaluation=_read_evaluation,
  people=_read_people,
  scores=_read_scores,
  solutions=_read_solutions,
)
