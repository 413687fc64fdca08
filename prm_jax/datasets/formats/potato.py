"""Potato's process rewards: what people say of each step, without its text.

Potato (github.com/davidjurgens/potato) writes prm_training_data.jsonl with
`python -m potato.export --format coding_eval`, a line for each annotator of each
item: {instance_id, annotator, mode, steps: [{index, reward, source, verified,
ai_reward, confidence}]}. It shows the items of a JSON Lines file; ours will do,
with id_key: id and steps_key: steps. So the export is read together with the
solutions that the tool was given.

  reward: 1, 0 or -1, which become ratings. 0 is a neutral step if the scheme
    has allow_neutral, and else a step that nobody marked; null is always one
    that nobody marked.
  verified: whether a person marked the step, or confirmed a model's suggestion;
    older exports lack it. A reward without it is a suggestion, and no rating.
  mode: per_step, or first_error, where the tool writes -1 for every step after
    the first wrong one: nobody judged these, and they get no rating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_MODES = ("per_step", "first_error")
# Fields of a record that a solution has elsewhere.
_OURS = ("instance_id", "annotator")


def read(
  path: files.PathLike,
  given: Iterable[schema.Solution],
  left_out: Counter[str],
) -> Iterator[schema.Solution]:
  """Yields each annotator's ratings of each solution.

  Everything but the ratings is the solution's; the id is ID/ANNOTATOR, and extra
  has the annotator and in "potato" the mode and the steps of the record. Labels
  that the tool was given are replaced.

  Args:
    path: The export.
    given: The solutions that the tool showed.
    left_out: Counts "steps_that_nobody_marked", "suggestions_that_nobody_
      verified", "steps_after_the_first_error" of mode first_error, and
      "solutions_that_nobody_annotated".

  Raises:
    InputError: A record isn't of this form, or none of the solutions has its id
      and its number of steps.
  """
  solutions = {solution.id: solution for solution in given}
  seen: dict[str, str] = {}
  annotated = set()
  for where, row in record_files.read_records(path):
    name = str(fields.field(row, where, "instance_id", str, int))
    annotator = str(fields.field(row, where, "annotator", str, int))
    if name not in solutions:
      raise errors.InputError(
        f'{where}: "instance_id" {name!r} is the id of none of the'
        f" {len(solutions):,} solutions; give the file that Potato was given"
      )
    annotated.add(name)
    solution = solutions[name]
    ratings = _ratings(row, where, len(solution.steps), left_out)
    extra = {k: v for k, v in solution.extra.items() if k != "path_ratings"}
    yield dataclasses.replace(
      solution,
      id=fields.unique_id(
        seen, f"{name}/{annotator}", where, "instance_id/annotator"
      ),
      labels=None,
      ratings=ratings,
      source="potato",
      extra=dict(group=fields.group(solution.problem))
      | extra
      | {
        schema.ANNOTATOR: annotator,
        "potato": {k: v for k, v in row.items() if k not in _OURS},
      },
    )
  if others := len(solutions) - len(annotated):
    left_out["solutions_that_nobody_annotated"] += others


def _ratings(
  row: dict[str, Any], where: str, num_steps: int, left_out: Counter[str]
) -> tuple[int | None, ...]:
  mode = fields.field(row, where, "mode", str, default=_MODES[0])
  if mode not in _MODES:
    raise errors.InputError(
      f'{where}: "mode" is {mode!r}; expected {" or ".join(_MODES)}'
    )
  steps = fields.field(row, where, "steps", list)
  if len(steps) != num_steps:
    raise errors.InputError(
      f'{where}: "steps" has {len(steps)} entries for {num_steps} steps of the'
      " solution; give the file that Potato was given, without cot_segmentation"
    )
  records = [
    fields.record(step, f'{where}: "steps"[{i}]')
    for i, step in enumerate(steps)
  ]
  # Then the scheme tells neutral steps from those that nobody marked.
  has_neutral = any(step.get("reward") is None for step in records)
  ratings: list[int | None] = []
  for i, step in enumerate(records):
    at = f'{where}: "steps"[{i}]'
    if fields.field(step, at, "index", int, default=i) != i:
      raise errors.InputError(
        f'{at}: "index" is {step["index"]}; the entries must be all steps in'
        " their order"
      )
    if mode == "first_error" and -1 in ratings:
      left_out["steps_after_the_first_error"] += 1
      ratings.append(None)
    else:
      ratings.append(_rating(step, at, has_neutral, left_out))
  return tuple(ratings)


def _rating(
  step: dict[str, Any], at: str, has_neutral: bool, left_out: Counter[str]
) -> int | None:
  reward = fields.field(step, at, "reward", int, default=None)
  if reward not in (-1, 0, 1, None):
    raise errors.InputError(
      f'{at}: "reward" is {reward}; expected -1, 0, 1 or null'
    )
  by_model = fields.field(step, at, "source", str, default=None) == "ai"
  verified = fields.field(step, at, "verified", bool, default=None)
  if verified is None:
    verified = not by_model and (has_neutral or reward != 0)
  if reward is not None and verified:
    return reward
  if by_model and reward is not None:
    left_out["suggestions_that_nobody_verified"] += 1
  else:
    left_out["steps_that_nobody_marked"] += 1
  return None
