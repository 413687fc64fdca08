"""Label Studio: tasks with spans of a text, labelled by people.

The JSON export of Label Studio (labelstud.io/guide/task_format), a list of
tasks {id, data, annotations: [{completed_by, was_cancelled, result}],
predictions}. Each annotation is a solution; its steps are the annotation's
spans, in the order of the text.

  data: id, problem (or question) and the text, in `text` or in another field
    whose characters are those of the spans. HTML is read as its text.
  result: spans of type labels, with value.start and value.end of a Text, and of
    type hypertextlabels, with value.globalOffsets of a HyperText. Offsets count
    characters as Python does.
  labels of a span: right, neutral and wrong, or a word for one of these, are
    ratings 1, 0 and -1; `step` is none. Other labels say something else of a
    step (its function, its error) and are kept in extra["step_labels"].

What is written can be imported, with this labelling configuration:

  <View>
    <Text name="problem" value="$problem"/>
    <Labels name="label" toName="text">
      <Label value="right" hotkey="1" background="green"/>
      <Label value="neutral" hotkey="2" background="orange"/>
      <Label value="wrong" hotkey="3" background="red"/>
      <Label value="step" hotkey="4" background="gray"/>
    </Labels>
    <Style>.htx-text { white-space: pre-wrap; }</Style>
    <Text name="text" value="$text"/>
  </View>
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import label_studio_spans
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_WORDS: dict[int | None, tuple[str, ...]] = {
  1: ("right", "correct", "good", "1", "+1", "+"),
  0: ("neutral", "okay", "ok", "0"),
  -1: ("wrong", "incorrect", "bad", "error", "-1", "-"),
  None: ("step",),
}
_RATING = {word: rating for rating, words in _WORDS.items() for word in words}
_TASK = ("data", "annotations", "predictions")
_PROBLEMS = ("problem", "question")
_BETWEEN_STEPS = "\n\n"


def read(
  path: files.PathLike, left_out: Counter[str] | None = None
) -> Iterator[schema.Solution]:
  """Yields a solution for each annotation.

  The id is ID/ANNOTATOR, where ID is data's or else the task's; without an
  annotator ID alone. raw_text is the whole text. extra has annotator (the e-mail
  address or number in completed_by), group, step_labels (each step's labels that
  are no ratings), the task's other fields, and in "label_studio" those of data
  and of the annotation, and results that are no spans. If nobody annotated a
  task, its first prediction gives the steps, without labels.

  Args:
    path: The file.
    left_out: Counts "skipped_annotations", "annotations_without_a_span",
      "tasks_without_annotations", "predictions" (another one than is read) and
      "texts_outside_every_step" (the characters stay in raw_text).

  Raises:
    InputError: Spans overlap, or aren't in the text.
  """
  left_out = Counter() if left_out is None else left_out
  seen: dict[str, str] = {}
  for where, task in record_files.read_records(path):
    data = fields.field(task, where, "data", dict)
    fallback = fields.row_id("label_studio", path, where)
    name = fields.field(data, f"{where}: data", "id", str, int, default=None)
    if name is None:
      name = fields.field(task, where, "id", str, int, default=fallback)
    for solution in _solutions(task, data, where, str(name), left_out):
      if solution.id in seen:  # One person's second annotation of a task.
        told = solution.extra.get("label_studio", {}).get("annotation", {})
        annotation = told.get("id", "second")
        solution = dataclasses.replace(
          solution, id=f"{solution.id}/{annotation}"
        )
      fields.unique_id(seen, solution.id, where)
      yield solution


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _task(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes tasks to import, all or none; returns their number.

  A path that ends in .json becomes one list, which Label Studio imports; any
  other one JSON Lines. Neighbours that are annotations of one task become one.
  A solution with ratings or labels becomes an annotation; without them a
  prediction, whose spans have the label step, from which people begin. Labels 1
  and 0 are written as right and wrong, and come back as ratings. The form has no
  place for answer, outcome and source; without raw_text and spans a blank line
  is put between steps.

  Raises:
    InputError: A step is empty, a label is neither 0 nor 1, or the annotator is
      no number or e-mail address, by which Label Studio knows its users.
  """
  tasks: list[dict[str, Any]] = []
  for task in map(_task, solutions):
    last = tasks[-1] if tasks else {}
    same = all(
      last.get(k) == task.get(k) for k in {*last, *task} - {"annotations"}
    )
    if same and "annotations" in last and "annotations" in task:
      last["annotations"] += task["annotations"]
    else:
      tasks.append(task)
  if str(path).removesuffix(".gz").endswith(".json"):
    files.write_json(path, tasks)
    return len(tasks)
  return files.write_records(path, tasks)


# --- Reading ----------------------------------------------------------------


def _solutions(
  task: dict[str, Any],
  data: dict[str, Any],
  where: str,
  name: str,
  left_out: Counter[str],
) -> Iterator[schema.Solution]:
  annotations = label_studio_spans.records(task, where, "annotations")
  predictions = label_studio_spans.records(task, where, "predictions")
  is_annotated = False
  for i, annotation in enumerate(annotations):
    at = f"{where}: annotations[{i}]"
    if fields.field(annotation, at, "was_cancelled", bool, default=False):
      left_out["skipped_annotations"] += 1
      continue
    is_annotated = True
    solution = _solution(task, data, annotation, at, name, left_out)
    if solution is None:
      left_out["annotations_without_a_span"] += 1
    else:
      yield solution
  if is_annotated:
    return
  found = None
  if predictions:
    at = f"{where}: predictions[0]"
    found = _solution(task, data, predictions[0], at, name, left_out)
    if len(predictions) > 1:
      left_out["predictions"] += len(predictions) - 1
  if found is None:
    left_out["tasks_without_annotations"] += 1
  else:
    yield dataclasses.replace(found, ratings=None)


def _solution(
  task: dict[str, Any],
  data: dict[str, Any],
  annotation: dict[str, Any],
  at: str,
  name: str,
  left_out: Counter[str],
) -> schema.Solution | None:
  """Returns what an annotation says; None if it has no span."""
  regions, others = label_studio_spans.regions(annotation, at)
  if not regions:
    return None
  where = at.rpartition(": ")[0]
  field, text = label_studio_spans.text_of(
    data, regions, where, ("id", *_PROBLEMS)
  )
  ends = [0, *(r.end for r in regions)]
  starts = [*(r.start for r in regions), len(text)]
  outside = sum(bool(text[a:b].strip()) for a, b in zip(ends, starts))
  if outside:
    left_out["texts_outside_every_step"] += outside
  problem = next((x for x in _PROBLEMS if isinstance(data.get(x), str)), None)
  annotator = _annotator(annotation, at)
  ratings, labels = _said(regions)
  of_task = fields.beyond(task, *_TASK)
  of_annotation = {
    k: v for k, v in annotation.items() if k not in ("result", "completed_by")
  }
  of_data = {k: v for k, v in data.items() if k not in ("id", field, problem)}
  question = "" if problem is None else data[problem]
  return schema.Solution(
    id=name if annotator is None else f"{name}/{annotator}",
    problem=question,
    steps=tuple(text[r.start : r.end] for r in regions),
    ratings=ratings,
    source="label_studio",
    raw_text=text,
    spans=tuple((r.start, r.end) for r in regions),
    extra=fields.given(
      group=fields.group(question),
      annotator=annotator,
      step_labels=labels,
      label_studio=fields.given(
        data=of_data or None,
        annotation=of_annotation or None,
        results=others or None,
      )
      or None,
    )
    | of_task,
  )


def _annotator(annotation: dict[str, Any], at: str) -> str | None:
  by = fields.field(annotation, at, "completed_by", int, dict, default=None)
  if isinstance(by, dict):
    here = f"{at}.completed_by"
    email = fields.field(by, here, "email", str, default=None)
    by = email or fields.field(by, here, "id", int)
  return None if by is None else str(by)


def _said(
  regions: list[label_studio_spans.Region],
) -> tuple[tuple[int | None, ...] | None, list[list[str]] | None]:
  """Returns the ratings of the steps, and their labels if some are no ratings."""
  ratings: list[int | None] = []
  for region in regions:
    known = [x.strip().lower() for x in region.labels]
    values = {_RATING[x] for x in known if x in _RATING} - {None}
    if len(values) > 1:
      raise errors.InputError(
        f"{region.at}: the labels {', '.join(region.labels)} contradict each"
        " other; keep one"
      )
    ratings.append(values.pop() if values else None)
  others = [
    [x for x in r.labels if x.strip().lower() not in _RATING] for r in regions
  ]
  return (
    None if {*ratings} == {None} else tuple(ratings),
    others if any(others) else None,
  )


# --- Writing ----------------------------------------------------------------


def _task(solution: schema.Solution) -> dict[str, Any]:
  """Returns a task with the solution as its only annotation or prediction."""
  extra = solution.extra
  annotator = extra.get(schema.ANNOTATOR)
  text, spans = _placed(solution)
  if not solution.steps or not all(solution.steps):
    raise fields.cannot_hold(
      solution, "no step or an empty one, and Label Studio labels characters"
    )
  ratings = _ratings(solution)
  said = extra.get("label_studio", {})
  others = extra.get("step_labels", [[]] * len(spans))
  _check_extra(solution, said, others)
  name = solution.id.removesuffix(f"/{annotator}")
  result = [
    dict(
      id=f"{solution.id}/{i}",
      from_name="label",
      to_name="text",
      type="labels",
      value=dict(
        start=start,
        end=end,
        text=text[start:end],
        labels=_labels(None if ratings is None else ratings[i], others[i]),
      ),
    )
    for i, (start, end) in enumerate(spans)
  ]
  body = dict(said.get("annotation", {}))
  if annotator is not None:
    body["completed_by"] = _completed_by(solution, str(annotator))
  body["result"] = result + list(said.get("results", []))
  is_said = ratings is not None or annotator is not None
  data = dict(id=name, problem=solution.problem, text=text)
  row = {
    "data": data | dict(said.get("data", {})),
    "annotations" if is_said else "predictions": [body],
  }
  return fields.rejoin(solution, row)


def _check_extra(solution: schema.Solution, said: Any, others: Any) -> None:
  is_ours = isinstance(said, Mapping) and all(
    isinstance(said.get(name, {}), Mapping) for name in ("data", "annotation")
  )
  if not is_ours or not isinstance(said.get("results", []), list | tuple):
    raise fields.cannot_hold(
      solution, 'extra "label_studio" isn\'t what was read; rename it'
    )
  if not isinstance(others, list | tuple) or not (
    len(others) == len(solution.steps)
    and all(isinstance(x, list | tuple) for x in others)
    and all(isinstance(word, str) for x in others for word in x)
  ):
    raise fields.cannot_hold(
      solution, 'extra "step_labels" must be a list of labels for each step'
    )


def _placed(
  solution: schema.Solution,
) -> tuple[str, tuple[schema.Span, ...]]:
  """Returns the text of all steps, and where each is."""
  if solution.raw_text is not None and solution.spans is not None:
    return solution.raw_text, solution.spans
  spans, start = [], 0
  for step in solution.steps:
    spans.append((start, start + len(step)))
    start += len(step) + len(_BETWEEN_STEPS)
  return _BETWEEN_STEPS.join(solution.steps), tuple(spans)


def _labels(rating: int | None, others: Sequence[str]) -> list[str]:
  words = [] if rating is None else [_WORDS[rating][0]]
  return [*words, *others] or [_WORDS[None][0]]


def _ratings(solution: schema.Solution) -> tuple[int | None, ...] | None:
  if solution.ratings is not None or solution.labels is None:
    return solution.ratings
  if any(x not in (0, 1, None) for x in solution.labels):
    raise fields.cannot_hold(
      solution,
      "a label that is neither 0 nor 1; Label Studio's are right and wrong",
    )
  return tuple(None if x is None else int(2 * x - 1) for x in solution.labels)


def _completed_by(
  solution: schema.Solution, annotator: str
) -> int | dict[str, str]:
  if annotator.isascii() and annotator.isdecimal():
    return int(annotator)
  if "@" not in annotator:
    raise fields.cannot_hold(
      solution,
      f"annotator {annotator!r}: Label Studio's users are numbers or e-mail"
      " addresses; give one of these",
    )
  return dict(email=annotator)
