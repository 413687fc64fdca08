"""PRM800K: people's ratings of every step, and of alternatives to it.

Lightman et al. 2023 (arXiv 2305.20050), the raw rows of the release. A row is
one walk: at each step people rated some completions (-1, 0, +1) and went on
with one of them, or with a step that they wrote. So a row is a tree, given as
solutions that share prefixes:

  the path: what the walk went on with, each step with its rating. A step that
    a person wrote has rating None: nobody rated it.
  an alternative: the path up to a step, then a completion that was not taken.
    Only that last step carries its rating.

Hence every rated completion is rated once over the tree. Completions with the
same text are kept apart: people rated some of them differently.

A walk ends at a step where nothing was taken. In phase 2 people stopped at the
first error: there finish_reason is "found_error", the first completion is the
step that the model had written, rated -1, and the path ends in it. Otherwise
the completions of that step are alternatives like any other.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import itertools
import math
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_ANSWER = "# Answer\n"
# How ids of one row end: see read_trees.
_IN_A_ROW = re.compile(r"(?P<row>.*)/(?P<place>path|\d+\.\d+)", re.S)


def read_trees(
  path: files.PathLike, left_out: collections.Counter[str] | None = None
) -> Iterator[tuple[schema.Solution, ...]]:
  """Yields each row as its path, if it has a step, then the alternatives.

  ids are "prm800k/FILE:N/path" and ".../STEP.COMPLETION", both from 0.
  answer is what follows "# Answer" in the last step. extra has group (of the
  problem: phase 2 has many rows of one), flagged (a labeler flagged a step that
  this solution rates), flagged_steps (their indices, if there are any), and, if
  known, finish_reason, generation, reference_answer, annotator, the row's
  labeler, timestamp and seconds, which the row took.

  Args:
    path: The file.
    left_out: Counts what is not in the trees: "quality_control_rows" and
      "screening_rows", which tested the labelers during the work and before it;
      "unrated_completions" that were not taken (also a person's text next to a
      chosen completion), "steps_after_the_end" (a step follows one where
      nothing was taken) and "empty_rows", of which nothing remains.
  """
  left_out = collections.Counter() if left_out is None else left_out
  for where, row in record_files.read_records(path):
    reason = _test_of_labelers(row, where)
    if reason:
      left_out[reason] += 1
      continue
    name = fields.row_id("prm800k", path, where)
    tree = _tree(row, where, name, left_out)
    if tree:
      yield tree
    else:
      left_out["empty_rows"] += 1


def read(
  path: files.PathLike, left_out: collections.Counter[str] | None = None
) -> Iterator[schema.Solution]:
  """Yields the solutions of all trees, one tree after another."""
  return itertools.chain.from_iterable(read_trees(path, left_out))


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  if not solution.steps or solution.ratings is None:
    raise fields.cannot_hold(
      solution,
      "no step or no ratings; PRM800K's form holds people's -1, 0 and 1, and"
      " other labels go into another form",
    )


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes raw rows, all or nothing; returns their number.

  Neighbours whose ids say that they were one row, as those that `read` makes,
  become one again; any other solution is the path of a row of its own. Steps,
  ratings, flags and what else `read` says of a row come back the same; a path
  that is flagged without flagged_steps is so at its last rated step. What `read`
  leaves out is gone (unrated completions, tests of the labelers), and so are the
  order of a step's completions, steps after the error at which an annotator
  stopped, and the further "fields" of another form.

  Raises:
    InputError: a solution has no ratings, or isn't what its id says: a row's
      path, or an alternative to it.
  """
  return files.write_records(path, map(_raw, _rows(solutions)))


@dataclasses.dataclass(frozen=True)
class _Completion:
  """A candidate for a step; index is None if a person wrote it."""

  text: str
  rating: int | None
  flagged: bool
  index: int | None


def _tree(row, where, name, left_out) -> tuple[schema.Solution, ...]:
  question = fields.field(row, where, "question", dict)
  label = fields.field(row, where, "label", dict)
  problem = fields.field(question, f"{where}: question", "problem", str)
  shared = _shared(row, question, label, where)

  def solution(suffix, steps, first_rated):
    unrated = (None,) * first_rated
    rated = steps[first_rated:]
    before = [step.rating for step in steps[:first_rated]]
    flags = [
      i
      for i, step in enumerate(steps)
      if i >= first_rated and step.flagged and step.rating is not None
    ]
    return schema.Solution(
      id=f"{name}/{suffix}",
      problem=problem,
      steps=tuple(step.text for step in steps),
      answer=_answer(steps[-1].text),
      source="prm800k",
      ratings=unrated + tuple(step.rating for step in rated),
      extra={
        "group": fields.group(problem),
        "flagged": any(step.flagged for step in rated),
        **({"flagged_steps": flags} if flags else {}),
        # Counted in the path's own solution; here they say whether an error
        # came before.
        **({"path_ratings": before} if {0, -1} & {*before} else {}),
        **shared,
      },
    )

  path: list[_Completion] = []
  alternatives = []
  steps = fields.field(label, f"{where}: label", "steps", list)
  for i, step in enumerate(steps):
    completions, taken = _step(step, f"{where}: label.steps[{i}]")
    goes_on = taken is not None
    if not goes_on and shared.get("finish_reason") == "found_error":
      taken = next((c for c in completions[:1] if c.rating == -1), None)
    for completion in completions:
      if completion == taken:
        continue
      if completion.rating is None:
        left_out["unrated_completions"] += 1
        continue
      suffix = f"{i}.{completion.index}"
      alternatives.append(solution(suffix, [*path, completion], len(path)))
    if taken is not None:
      path.append(taken)
    if not goes_on:
      if i + 1 < len(steps):
        left_out["steps_after_the_end"] += len(steps) - i - 1
      break
  if not path:
    return tuple(alternatives)
  return (solution("path", path, 0), *alternatives)


def _step(step, at) -> tuple[list[_Completion], _Completion | None]:
  """Returns the completions of a step and the one that was taken, if any.

  A person's text comes last; it is taken if no completion was chosen.
  """
  rows = fields.field(
    fields.record(step, at), at, "completions", list, default=[]
  )
  completions = [
    _completion(row, f"{at}.completions[{i}]", i) for i, row in enumerate(rows)
  ]
  chosen = fields.field(step, at, "chosen_completion", int, default=None)
  if chosen is not None and not 0 <= chosen < len(completions):
    raise errors.InputError(
      f'{at}: "chosen_completion" is {chosen} of {len(completions)}'
      " completions; give a 0-based index or null"
    )
  written = fields.field(step, at, "human_completion", dict, str, default=None)
  if isinstance(written, dict):
    here = f"{at}.human_completion"
    written = fields.field(written, here, "text", str, default=None)
  taken = None if chosen is None else completions[chosen]
  if written and written.strip():
    completions.append(_Completion(written, None, flagged=False, index=None))
    taken = taken or completions[-1]
  return completions, taken


def _completion(row, at, index) -> _Completion:
  rating = fields.field(fields.record(row, at), at, "rating", int, default=None)
  if rating not in (-1, 0, 1, None):
    raise errors.InputError(
      f'{at}: "rating" is {rating}; expected -1, 0, 1 or null'
    )
  return _Completion(
    text=fields.field(row, at, "text", str),
    rating=rating,
    flagged=fields.field(row, at, "flagged", bool, default=False),
    index=index,
  )


def _test_of_labelers(row, where) -> str | None:
  if fields.field(
    row, where, "is_quality_control_question", bool, default=False
  ):
    return "quality_control_rows"
  is_screening = fields.field(
    row, where, "is_initial_screening_question", bool, default=False
  )
  if is_screening or row.get("generation") == -1:
    return "screening_rows"
  return None


def _shared(row, question, label, where) -> dict[str, Any]:
  """Returns what is known of the whole row, under our names."""
  total_ms = fields.field(
    label, f"{where}: label", "total_time", int, float, default=None
  )
  return fields.given(
    finish_reason=fields.field(
      label, f"{where}: label", "finish_reason", str, default=None
    ),
    generation=fields.field(row, where, "generation", int, default=None),
    annotator=fields.field(row, where, "labeler", str, default=None),
    timestamp=fields.field(row, where, "timestamp", str, default=None),
    seconds=None if total_ms is None else total_ms / 1000,
    reference_answer=fields.field(
      question, f"{where}: question", "ground_truth_answer", str, default=None
    ),
  )


def _answer(step: str) -> str | None:
  _, heading, answer = step.rpartition(_ANSWER)
  return (answer.strip() or None) if heading else None


def _rows(solutions) -> Iterator[list[schema.Solution]]:
  """Yields the solutions of each row, the path first if there is one."""
  numbers = itertools.count()

  def row(solution):
    match = _IN_A_ROW.fullmatch(solution.id)
    return match["row"] if match else next(numbers)

  for _, tree in itertools.groupby(solutions, row):
    yield list(tree)


def _raw(tree: list[schema.Solution]) -> dict[str, Any]:
  """Returns the raw row of one tree."""
  for solution in tree:
    check(solution)
  tree = [_until_found(solution) for solution in tree]
  first = tree[0]
  match = _IN_A_ROW.fullmatch(first.id)
  has_path = not match or match["place"] == "path"
  path = first if has_path else None
  alternatives = sorted(tree[has_path:], key=lambda s: len(s.steps))
  tree = [first, *alternatives] if has_path else alternatives
  num_steps = max(len(solution.steps) for solution in tree)
  steps = [_raw_step(path, alternatives, k) for k in range(num_steps)]
  extra = first.extra
  timestamp, seconds = extra.get("timestamp"), extra.get("seconds")
  total_ms = None
  # Another source's fields may be anything.
  if isinstance(seconds, int | float) and math.isfinite(seconds):
    total_ms = round(1000 * seconds)
  row = {
    "labeler": extra.get(schema.ANNOTATOR),
    "timestamp": timestamp if isinstance(timestamp, str) else None,
    "generation": extra.get("generation"),
    "is_quality_control_question": False,
    "is_initial_screening_question": False,
    "question": {
      "problem": first.problem,
      "ground_truth_answer": extra.get("reference_answer"),
    },
    "label": {
      "steps": steps,
      "total_time": total_ms,
      "finish_reason": extra.get("finish_reason"),
    },
  }
  where = f"solution {first.id!r}"
  again = _tree(row, where, "again", collections.Counter())
  for solution, same in itertools.zip_longest(tree, again):
    if not solution or not same or _content(solution) != _content(same):
      raise fields.cannot_hold(
        solution or first,
        "isn't the path of its row or an alternative to it, as its id says, or"
        " a step is blank; give it an id of its own, or drop the blank step",
      )
  return row


def _until_found(solution: schema.Solution) -> schema.Solution:
  """Returns a solution up to the error at which its annotator stopped.

  In a row, a step without a rating is one that a person wrote; in a solution
  that wasn't one, it is what nobody looked at.
  """
  num = (_last_rated(solution) or 0) + 1
  stopped = solution.extra.get("finish_reason") == "found_error"
  stopped = stopped and not _IN_A_ROW.fullmatch(solution.id)
  ratings = solution.ratings
  if not stopped or ratings is None or ratings[num - 1] != -1:
    return solution
  return dataclasses.replace(
    solution,
    steps=solution.steps[:num],
    ratings=ratings[:num],
    raw_text=None,
    spans=None,
  )


def _content(solution: schema.Solution) -> tuple[Any, ...]:
  return solution.problem, solution.steps, solution.ratings


def _raw_step(path, alternatives, k: int) -> dict[str, Any]:
  """Returns step k of a row: what the path went on with, and the others."""
  completions = []
  written = chosen = None
  if path is not None and k < len(path.steps):
    text, rating = path.steps[k], path.ratings[k]
    is_last = k + 1 == len(path.steps)
    if rating is None:
      written = dict(text=text, rating=None, source="human", flagged=False)
    else:
      flags = path.extra.get("flagged_steps")
      if not isinstance(flags, list):
        flags = [_last_rated(path)] if path.extra.get("flagged") else []
      is_flagged = k in flags
      completions.append(dict(text=text, rating=rating, flagged=is_flagged))
      # People stopped there without choosing: see the head of this file.
      stopped = path.extra.get("finish_reason") == "found_error"
      chosen = None if is_last and rating == -1 and stopped else 0
  for s in alternatives:
    if len(s.steps) == k + 1:
      is_flagged = s.extra.get("flagged", False)
      completions.append(
        dict(text=s.steps[k], rating=s.ratings[k], flagged=is_flagged)
      )
  return dict(
    completions=completions, human_completion=written, chosen_completion=chosen
  )


def _last_rated(path: schema.Solution) -> int | None:
  rated = [k for k, x in enumerate(path.ratings or ()) if x is not None]
  return rated[-1] if rated else None
