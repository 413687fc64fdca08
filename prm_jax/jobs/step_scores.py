"""Step scores of solutions, by a checkpoint or from a file, and their origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import logging
import math
import pathlib
import reprlib
import sys
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import reward_models
from prm_jax.jobs import score as score_lib
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.scoring import scorer as scorer_lib

_logger = logging.getLogger(__name__)

# What `prm-jax score` writes, and what else has lists of numbers that aren't
# probabilities.
_OWN_FIELD = "step_scores"
_NO_SCORES = ("step_logits", "labels", "ratings", "error_steps")
# A sigmoid in float32 and its logit differ by less.
_FLOAT32_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True)
class Scored:
  """Step scores and their origin.

  Args:
    rows: The scores of each solution's steps.
    by: The checkpoint or file that they come from, as plain data.
  """

  rows: list[schema.StepScores]
  by: dict[str, Any]

  @property
  def step_scores(self) -> list[list[float]]:
    """One list for each solution."""
    return [list(row.scores) for row in self.rows]

  @property
  def judged(self) -> list[list[bool]]:
    """Whether the model was trained to judge each step, as `step_scores`."""
    return [list(row.judged) for row in self.rows]


@dataclasses.dataclass(frozen=True)
class Source(verbs.Value):
  """Where step scores come from: a checkpoint or a file, one of both.

  Args:
    checkpoint: The reward model that scores the steps, instead of --scores.
    scores: A file of step scores, instead of --checkpoint: what `prm-jax score`
      wrote, or JSON Lines, JSON or a table of records with an id and a list of
      numbers, P(correct so far) of each step.
    field: The field of --scores that has the list (default: step_scores, or
      else the first with a list of numbers).
  """

  checkpoint: reward_models.RewardModel | None = None
  scores: verbs.Named | None = None
  field: str | None = None

  def _faults(self) -> Iterator[str]:
    if self.checkpoint is not None and self.scores is not None:
      yield "give either `checkpoint` or `scores`"
    if self.field is not None and self.scores is None:
      yield f"`field={self.field}`: give `scores`, the file that has this field"

  @property
  def stored_at(self) -> files.PathLike:
    """The checkpoint's folder, or the file.

    Raises:
      InputError: None is given.
    """
    path = self.checkpoint.folder if self.checkpoint else self.scores
    if path is None:
      raise errors.InputError("give either `checkpoint` or `scores`")
    return path

  @property
  def own_aggregate(self) -> str:
    """How step scores become a solution's, as the checkpoint says."""
    from prm_jax.checkpoints import model_json

    if self.checkpoint is None:
      return "product"
    folder = pathlib.Path(self.checkpoint.folder)
    return model_json.read_description(folder).aggregate or "product"

  def step_scores(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
  ) -> Scored:
    """Returns the step scores of solutions, and where they come from.

    `by` has the checkpoint with its step, its fingerprint and the type that it
    computed in, or the file with its sha256.

    Args:
      solutions: The solutions.
      score: What scores them, instead of the checkpoint or file.

    Raises:
      InputError: There aren't scores of each step.
    """
    if score is not None:
      from prm_jax.scoring import score_checks

      rows = score(solutions)
      return Scored(score_checks.step_scores(rows, solutions, "score"), {})
    by = self.origin
    if self.checkpoint is None:
      rows = read_scores(self.stored_at, solutions, self.field)
      return Scored(rows, by)
    scorer, _ = self._loaded
    with progress.showing(
      "score", len(solutions), first="compiling and scoring"
    ) as update:
      return Scored(scorer.score(solutions, progress=update), by)

  @functools.cached_property
  def origin(self) -> dict[str, Any]:
    """Where the scores come from: `Scored.by`, before anything is scored.

    Raises:
      InputError: Neither is given, or it can't be read.
    """
    path = self.stored_at
    if self.checkpoint is not None:
      return self._loaded[1]
    with inputs.opened(path):
      pass  # It refuses a file that can't be read.
    by = {"scores": str(path), "sha256": files.digest_of(path)}
    first = next(record_files.read_records(path), _EMPTY)
    field, others = _field_of(first, self.field)
    if field == _OWN_FIELD:
      return by
    if others:
      _logger.info(
        f"{path}: the scores are those of {field!r}; `field` takes another of"
        f" {', '.join(others)}"
      )
    return by | {"field": field}

  @functools.cached_property
  def _loaded(self) -> tuple[scorer_lib.Scorer, dict[str, Any]]:
    """The checkpoint's model, and what is said of it."""
    from prm_jax.checkpoints import model_json
    from prm_jax.checkpoints import saves

    assert self.checkpoint is not None
    folder = pathlib.Path(self.checkpoint.folder)
    model_json.read_description(folder)  # refuses what is no checkpoint
    step = saves.chosen(folder, self.checkpoint.step)
    scorer = dataclasses.replace(self.checkpoint, step=step).load()
    return scorer, {
      "checkpoint": str(folder),
      "program": scorer.program,
      "step": step,
      "fingerprint": model_json.fingerprint(folder, scorer.params),
      "compute_dtype": scorer.config.compute_dtype,
    }


def samples(
  solutions: Sequence[schema.Solution],
  scored: Scored,
  predictions: Sequence[Any],
  targets: Sequence[Any],
) -> list[dict[str, Any]]:
  """Returns a sample of each solution; a target of None isn't known."""
  return [
    dict(id=solution.id)
    | score_lib.fields_of(row)
    | dict(
      prediction=prediction,
      target=target,
      right=None if target is None else prediction == target,
    )
    for solution, row, prediction, target in zip(
      solutions, scored.rows, predictions, targets, strict=True
    )
  ]


def read_scores(
  path: files.PathLike,
  solutions: Sequence[schema.Solution],
  field: str | None = None,
) -> list[schema.StepScores]:
  """Returns the step scores in a file, in the solutions' order.

  A file without step_logits or judged has scores without log-odds that count as
  judged.

  Args:
    path: The file.
    solutions: The solutions.
    field: The field that has the scores; see Source.

  Raises:
    InputError: a solution has no scores, not one per step or two rows of
      them; or read_records refuses a record.
  """
  by_id = {identity: row for _, identity, _, row in read_records(path, field)}
  errors.raise_first(lacking(by_id, solutions), f"{path}: ")
  return [by_id[s.id] for s in solutions]


def lacking(
  by_id: Mapping[str, schema.StepScores], solutions: Sequence[schema.Solution]
) -> Iterator[str]:
  """Yields why scores aren't those of solutions: one for each step.

  Args:
    by_id: The scores by the solutions' ids.
    solutions: The solutions.
  """
  for s in solutions:
    if s.id not in by_id:
      yield (
        f"no scores for solution {s.id!r}; score the whole file of solutions"
      )
    elif len(by_id[s.id]) != len(s.steps):
      yield (
        f"{len(by_id[s.id])} scores for the {len(s.steps)} steps of solution"
        f" {s.id!r}; score the same file again"
      )


def read_records(
  path: files.PathLike, field: str | None = None
) -> Iterator[tuple[str, str, dict[str, Any], schema.StepScores]]:
  """Yields the place, the id, the content and the scores of each record.

  Args:
    path: The file.
    field: The field that has the scores; see Source.

  Raises:
    InputError: A record has no id, that of another one or no list of scores; a
      score isn't in [0, 1]; there aren't as many as `num_steps` or `steps` say;
      or step_logits or judged aren't one of each score, log-odds that agree
      with it and bools.
  """
  records = record_files.read_records(path)
  read = [*itertools.islice(records, 1)]
  name, _ = _field_of(read[0] if read else _EMPTY, field)
  seen: dict[str, str] = {}
  for where, record in itertools.chain(read, records):
    identity = str(fields.field(record, where, "id", str, int))
    scores = fields.field(record, where, name, list)
    errors.raise_first(_faults(record, name, scores), f"{where}: ")
    row = _row(record, name, scores)
    yield where, fields.unique_id(seen, identity, where), record, row


def lists_of_numbers(record: Mapping[str, Any]) -> list[str]:
  """Returns the fields of a record that may hold step scores.

  Args:
    record: The record.
  """
  return [
    name
    for name, values in record.items()
    if name not in _NO_SCORES
    and isinstance(values, list)
    and all(map(_is_number, values))
  ]


# The first record of a file without one.
_EMPTY: record_files.Record = ("", {_OWN_FIELD: []})


def _field_of(
  first: record_files.Record, field: str | None
) -> tuple[str, tuple[str, ...]]:
  """Returns the field that has the scores, and the other ones that could.

  Args:
    first: The file's first record.
    field: The field that was asked for.
  """
  where, record = first
  found = lists_of_numbers(record)
  chosen = field or (_OWN_FIELD if _OWN_FIELD in record else None)
  if chosen is None and not found:
    raise errors.InputError(
      f"{where}: no field has a list of scores; expected"
      f' {{"id", "{_OWN_FIELD}": [float]}}, as `prm-jax score` writes it, or'
      " another field with P(correct so far) of each step"
    )
  chosen = chosen or found[0]
  others = tuple(name for name in found if name != chosen)
  if chosen not in record:
    has = f"; it has {', '.join(others)}" if others else ""
    raise errors.InputError(
      f"{where}: `field={chosen}`: the record has no such field{has}"
    )
  return chosen, others


def _faults(
  record: Mapping[str, Any], field: str, scores: Sequence[Any]
) -> Iterator[str]:
  """Yields what is wrong with a record's scores."""
  for i, score in enumerate(scores):
    if not (_is_number(score) and 0 <= score <= 1):
      yield (
        f'"{field}"[{i}] is {reprlib.repr(score)}; expected P(correct so far)'
        " in [0, 1]"
      )
  if field == _OWN_FIELD:
    yield from _own_faults(record, scores)
  steps, num_steps = record.get("steps"), record.get("num_steps")
  known = [] if num_steps is None else [num_steps]
  known += [len(steps)] if isinstance(steps, list) else []
  for expected in known:
    if expected != len(scores):
      yield (
        f"{len(scores)} scores for {expected} steps; give one for each step"
      )


def _own_faults(
  record: Mapping[str, Any], scores: Sequence[float]
) -> Iterator[str]:
  """Yields what is wrong with the log-odds and with what is judged."""
  for name in ("step_logits", "judged"):
    values = record.get(name)
    if values is None:
      continue
    if not isinstance(values, list) or len(values) != len(scores):
      yield (
        f'"{name}" is {reprlib.repr(values)}; expected a list with one for each'
        f" of the {len(scores)} step_scores, or null"
      )
  for i, (logit, score) in enumerate(
    zip(record.get("step_logits") or (), scores)
  ):
    if not (_is_number(logit) and abs(logit) <= sys.float_info.max):
      yield (
        f'"step_logits"[{i}] is {reprlib.repr(logit)}; expected the log-odds of'
        ' "step_scores", a finite number'
      )
    probability = 1 / (1 + math.exp(-max(logit, -700.0)))
    if abs(probability - score) > _FLOAT32_ROUNDING:
      yield (
        f'"step_logits"[{i}] is {logit}, log-odds of {probability:.6g}, but'
        f' "step_scores"[{i}] is {score}; score the same file again, or leave'
        " step_logits out"
      )
  for i, value in enumerate(record.get("judged") or ()):
    if not isinstance(value, bool):
      yield f'"judged"[{i}] is {reprlib.repr(value)}; expected true or false'


def _row(
  record: Mapping[str, Any], field: str, scores: Sequence[float]
) -> schema.StepScores:
  """Returns the step scores in a field of a record without faults."""
  if field != _OWN_FIELD:  # the log-odds are those of our own field
    return schema.StepScores(tuple(map(float, scores)))
  logits, judged = record.get("step_logits"), record.get("judged")
  return schema.StepScores(
    tuple(map(float, scores)),
    logits=None if logits is None else tuple(map(float, logits)),
    judged=tuple(judged or ()),
  )


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)
