"""Solutions of all files as samples: labels and scores of one side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import os
import pathlib
from typing import Any

from prm_jax import schema
from prm_jax.evaluation import judgement
from prm_jax.probes import faithfulness
from prm_jax.records import fields
from prm_jax.reports import probe_page
from prm_jax.reports import result_page
from prm_jax.view import view_inputs

# PRM800K's ratings: a neutral step isn't wrong.
_OF_RATING = {-1: 0.0, 0: 0.5, 1: 1.0, None: None}
# So many characters of a problem are in the table; the sample has all.
_PROBLEM_CHARACTERS = 200
_FACT_CHARACTERS = 500
# Fields of a record that a sample shows elsewhere, or that say nothing.
_NO_FACTS = {
  *("group", "id", "step_scores", "step_logits", "judged", "label", "labels"),
  *("problem", "steps", "num_steps", schema.SAMPLED, faithfulness.FIELD),
}


@dataclasses.dataclass
class Sample:
  """A solution, with what all files know of it.

  Args:
    key: Its address: the id, or the id and the file if another has the same.
    folder: The folder of the first file that has it.
    files: The names of the files that have it.
    solution: The solution, as the first file has it. A step whose text no file
      has is empty.
    labels: P(correct so far) of each step, in [0, 1] or None, by source.
    scores: The scores of the steps, by model.
    outcome: Whether the answer is right; None if no file knows it.
    facts: What else the files say.
    probed: What probes found of it; empty if nothing.
  """

  key: str
  folder: pathlib.Path
  files: list[str]
  solution: schema.Solution
  labels: dict[str, tuple[float | None, ...]] = dataclasses.field(
    default_factory=dict
  )
  scores: dict[str, schema.StepScores] = dataclasses.field(default_factory=dict)
  outcome: bool | None = None
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)
  probed: dict[str, Any] = dataclasses.field(default_factory=dict)


def build(inputs: view_inputs.Inputs) -> list[Sample]:
  """Returns the samples of all files, in the order of the files.

  Records of solutions with one id, problem and steps are one sample, and so are
  several annotators' of one problem and steps. Scores belong to the solution
  with their id and as many steps, in the nearest folder if there are several;
  without one, they are a sample without texts.

  Args:
    inputs: What the files hold.
  """
  samples: list[Sample] = []
  known: dict[Any, Sample] = {}
  by_id: dict[str, list[Sample]] = {}

  def begun(id_: str, name: str, solution: schema.Solution) -> Sample:
    sample = Sample(id_, inputs.paths[name].parent.absolute(), [], solution)
    samples.append(sample)
    by_id.setdefault(id_, []).append(sample)
    return sample

  for name, solutions in inputs.solutions.items():
    for solution, scores in solutions:
      by, id_ = solution.extra.get(schema.ANNOTATOR), solution.id
      same: Any = (solution.problem, solution.steps)
      if isinstance(by, str):
        id_ = id_.removesuffix(f"/{by}")
      else:
        by, same = name, (id_, *same)
      if same not in known:
        known[same] = begun(id_, name, solution)
      _add(known[same], name, scores, solution.outcome, solution.extra)
      if labels := labels_of(solution):
        known[same].labels.setdefault(by, labels)
  for name, records in inputs.scores.items():
    folder = inputs.paths[name].parent.absolute()
    for id_, scores, record in records:
      steps = _steps(record, next(iter(scores.values())))
      fitting = [x for x in by_id.get(id_, ()) if _fits(x.solution, steps)]
      if fitting:
        sample = max(fitting, key=lambda x: _nearness(x.folder, folder))
      else:
        problem = record.get("problem")
        problem = problem if isinstance(problem, str) else ""
        sample = begun(id_, name, schema.Solution(id_, problem, steps))
      right = record.get("final_answer_correct")
      right = right if isinstance(right, bool) else None
      _add(sample, name, scores, right, record)
      labels = _by_first_error(record, len(steps))
      if labels and not sample.labels:
        sample.labels[name] = labels
  _name_apart(samples)
  return samples


def labels_of(solution: schema.Solution) -> tuple[float | None, ...] | None:
  """Returns P(correct so far) of each step; None if nothing says it.

  Args:
    solution: The solution, with labels, ratings, or the first wrong step in
      extra["label"].
  """
  if solution.ratings is not None:
    # Of an alternative, the steps before it were rated on the way to another.
    before = solution.extra.get("path_ratings") or ()
    rated = itertools.zip_longest(solution.ratings, before)
    return tuple(_OF_RATING[y if x is None else x] for x, y in rated)
  if solution.labels is not None:
    return solution.labels
  return _by_first_error(solution.extra, len(solution.steps))


def _by_first_error(
  record: Mapping[str, Any], num_steps: int
) -> tuple[float | None, ...] | None:
  label = record.get("label")
  if type(label) is int and -1 <= label < num_steps:
    return fields.labels_until(label, num_steps)
  return None


def _add(
  sample: Sample,
  name: str,
  scores: Mapping[str, schema.StepScores],
  outcome: bool | None,
  facts: Mapping[str, Any],
) -> None:
  """Adds what a record knows of a sample."""
  if name not in sample.files:
    sample.files.append(name)
  for model, row in scores.items():
    taken = model in sample.scores
    sample.scores[f"{name}: {model}" if taken else model] = row
  sample.outcome = outcome if sample.outcome is None else sample.outcome
  probed = facts.get(faithfulness.FIELD)
  if isinstance(probed, dict):
    sample.probed = sample.probed or probed
  for fact, value in facts.items():
    if fact not in _NO_FACTS and fact not in scores:
      sample.facts.setdefault(fact, value)


def _steps(
  record: Mapping[str, Any], scores: schema.StepScores
) -> tuple[str, ...]:
  steps = record.get("steps")
  if isinstance(steps, list) and all(isinstance(x, str) for x in steps):
    return tuple(steps)
  return ("",) * len(scores)


def _fits(solution: schema.Solution, steps: tuple[str, ...]) -> bool:
  if any(steps) and any(solution.steps):
    return steps == solution.steps
  return len(steps) == len(solution.steps)


def _nearness(a: pathlib.Path, b: pathlib.Path) -> int:
  return len(os.path.commonpath([a, b]))


def _name_apart(samples: Sequence[Sample]) -> None:
  """Gives samples of one id addresses that differ."""
  times = Counter(sample.key for sample in samples)
  used = {key for key, num in times.items() if num == 1}
  for sample in samples:
    if times[sample.key] == 1:
      continue
    key = named = f"{sample.key} ({sample.files[0]})"
    number = 2
    while key in used:
      key, number = f"{named} {number}", number + 1
    used.add(key)
    sample.key = key


# --- As pages read them ------------------------------------------------------


def truth(samples: Sequence[Sample]) -> str | None:
  """Returns the source that labels the most steps, the first of several.

  Args:
    samples: The samples.
  """
  num: Counter[str] = Counter()
  for sample in samples:
    for source, labels in sample.labels.items():
      num[source] += sum(x is not None for x in labels)
  return max(num, key=lambda x: num[x], default=None)


def models(samples: Sequence[Sample]) -> list[str]:
  """Returns the names of all models that scored a sample.

  Args:
    samples: The samples.
  """
  return list(dict.fromkeys(name for x in samples for name in x.scores))


def true_labels(sample: Sample, source: str | None) -> tuple[float | None, ...]:
  """Returns the labels that scores are compared with.

  Args:
    sample: The sample.
    source: The source of `truth`; a sample that it doesn't label has those of
      its first source.
  """
  unknown = (None,) * len(sample.solution.steps)
  first = next(iter(sample.labels.values()), unknown)
  return sample.labels.get(source or "", first)


def row(
  sample: Sample, source: str | None, names: Sequence[str]
) -> dict[str, Any]:
  """Returns what the table shows and filters of a sample.

  Args:
    sample: The sample.
    source: The source of `truth`.
    names: The names of all models, in the order of `verdicts` and `least`.
  """
  solution, labels = sample.solution, true_labels(sample, source)
  judged = {n: _judge(sample, n, labels) for n in names if n in sample.scores}
  return dict(
    key=sample.key,
    problem=solution.problem[:_PROBLEM_CHARACTERS],
    source=solution.source or sample.files[0],
    steps=len(solution.steps),
    characters=sum(map(len, solution.steps)),
    answer=solution.answer,
    outcome=sample.outcome,
    labelled=any(x is not None for x in labels),
    lucky=judgement.is_lucky(labels, sample.outcome),
    models_disagree=_disagree([_own(x) for x in sample.scores.values()]),
    labels_disagree=_disagree(list(sample.labels.values())),
    verdicts=[judged[n].name if n in judged else None for n in names],
    least=[_least(sample.scores.get(n)) for n in names],
  )


def content(sample: Sample, source: str | None) -> dict[str, Any]:
  """Returns what the page of a sample shows.

  Args:
    sample: The sample.
    source: The source of `truth`.
  """
  solution, labels = sample.solution, true_labels(sample, source)
  shown = []
  for name, row_ in sample.scores.items():
    judged = _judge(sample, name, labels)
    shown.append(
      dict(
        name=name,
        scores=list(row_.scores),
        judged=list(row_.judged),
        logits=_logits(row_),
        kind=judged.kind,
        text=judged.text,
      )
    )
  facts = dict(answer=solution.answer, source=solution.source or None)
  probed = result_page.Page(
    sections=probe_page.sections(sample.probed) if sample.probed else ()
  )
  return dict(
    id=solution.id,
    files=sample.files,
    problem=solution.problem,
    steps=list(solution.steps),
    truth=_rights(labels),
    labels={name: list(x) for name, x in sample.labels.items()},
    models=shown,
    notes=probe_page.notes(sample.probed, len(solution.steps)),
    sections=result_page.plain(probed)["sections"],
    messages=[[x.role, x.shown] for x in solution.messages or ()],
    facts=[
      [name, _fact(value)]
      for name, value in (facts | sample.facts).items()
      if value is not None and value != ""
    ],
  )


def _logits(scores: schema.StepScores) -> list[float | None] | None:
  """Returns the log-odds, if a score is so near 0 or 1 that it lost its own."""
  if scores.logits is None or not {0.0, 1.0} & {*scores.scores}:
    return None
  return [x if math.isfinite(x) else None for x in scores.logits]


def _judge(
  sample: Sample, name: str, labels: Sequence[float | None]
) -> judgement.Judgement:
  scores = sample.scores[name]
  return judgement.judge(
    labels, scores.scores, sample.outcome, scores.judged, "The model"
  )


def _rights(labels: Sequence[float | None]) -> list[bool | None]:
  return [None if x is None else x >= schema.THRESHOLD for x in labels]


def _own(scores: schema.StepScores) -> list[float | None]:
  """Returns the scores of the steps that a model judges."""
  pairs = zip(scores.scores, scores.judged, strict=True)
  return [x if judged else None for x, judged in pairs]


def _least(scores: schema.StepScores | None) -> float | None:
  own = [x for x in _own(scores) if x is not None] if scores else []
  return round(min(own), 4) if own else None


def _disagree(rows: Sequence[Sequence[float | None]]) -> bool:
  """Returns whether a step is right by one row of values and wrong by another."""
  return any(
    {*step} >= {True, False} for step in zip(*map(_rights, rows), strict=True)
  )


def _fact(value: Any) -> str:
  if isinstance(value, str):
    text = value
  else:
    text = json.dumps(value, ensure_ascii=False, default=str)
  if len(text) > _FACT_CHARACTERS:
    return f"{text[:_FACT_CHARACTERS]}…"
  return text
