"""Step scores of solutions, by a checkpoint or from a file, and their origin."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import hashlib
import pathlib
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.data.formats import fields
from prm_jax.inference import scorer as scorer_lib
from prm_jax.runtime import files
from prm_jax.runtime import progress


@dataclasses.dataclass(frozen=True)
class Scored:
  """Step scores and their origin.

  Args:
    step_scores: One list for each solution.
    by: The checkpoint or file that they come from, as plain data.
  """

  step_scores: list[list[float]]
  by: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
  """Where step scores come from: a checkpoint or a file, one of both.

  Args:
    checkpoint: The folder of a reward model.
    scores: A file that `prm-jax score` wrote.
    step: The checkpoint's step; None is the latest one.

  Raises:
    InputError: Both or none are given, or a step without a checkpoint.
  """

  checkpoint: pathlib.Path | None
  scores: files.PathLike | None
  step: int | None = None

  def __post_init__(self):
    if (self.checkpoint is None) == (self.scores is None):
      raise errors.InputError("give either `checkpoint` or `scores`")
    if self.step is not None and self.checkpoint is None:
      raise errors.InputError(f"`step={self.step}`: give `checkpoint` with it")


def step_scores(solutions: Sequence[schema.Solution], source: Source) -> Scored:
  """Returns the step scores of solutions, and where they come from.

  `by` has the checkpoint with its step and fingerprint, or the file with its
  sha256.
  """
  checkpoint, path, step = source.checkpoint, source.scores, source.step
  if path is not None:
    # First: it refuses a file that can't be read.
    scores = read_scores(path, solutions)
    with open(path, "rb") as f:
      digest = hashlib.file_digest(f, "sha256").hexdigest()
    return Scored(scores, {"scores": str(path), "sha256": digest})
  assert checkpoint is not None
  scorer = scorer_lib.load(checkpoint, step)
  by = {
    "checkpoint": str(checkpoint),
    "program": scorer.program,
    "step": saves.saved_steps(checkpoint)[-1] if step is None else step,
    "fingerprint": model_json.fingerprint(checkpoint, scorer.params),
  }
  with progress.showing("score", len(solutions)) as update:
    rows = scorer.score(solutions, progress=update)
    return Scored([list(row.scores) for row in rows], by)


def samples(
  solutions: Sequence[schema.Solution],
  scored: Scored,
  predictions: Sequence[Any],
  targets: Sequence[Any],
) -> list[dict[str, Any]]:
  """Returns a sample of each solution; a target of None isn't known."""
  return [
    dict(
      id=solution.id,
      scores=scores,
      prediction=prediction,
      target=target,
      right=None if target is None else prediction == target,
    )
    for solution, scores, prediction, target in zip(
      solutions, scored.step_scores, predictions, targets, strict=True
    )
  ]


def read_scores(
  path: files.PathLike, solutions: Sequence[schema.Solution]
) -> list[list[float]]:
  """Returns the step scores of a scores.jsonl, in the solutions' order.

  Raises:
    InputError: a solution has no scores, not one per step or two rows of
      them, or a score isn't in [0, 1].
  """
  by_id: dict[str, list[float]] = {}
  seen: dict[str, str] = {}
  for where, record in files.read_records(path):
    if not isinstance(record.get("step_scores"), list) or "id" not in record:
      raise errors.InputError(
        f'{where}: expected {{"id", "step_scores": [float]}}, as'
        " `prm-jax score` writes it"
      )
    for i, score in enumerate(record["step_scores"]):
      is_number = isinstance(score, int | float) and not isinstance(score, bool)
      if not (is_number and 0 <= score <= 1):
        raise errors.InputError(
          f'{where}: "step_scores"[{i}] is {reprlib.repr(score)}; expected'
          " P(correct so far) in [0, 1]"
        )
    identity = fields.unique_id(seen, str(record["id"]), where)
    by_id[identity] = [float(x) for x in record["step_scores"]]
  out = []
  for s in solutions:
    if s.id not in by_id:
      raise errors.InputError(f"{path}: no scores for solution {s.id!r}")
    if len(by_id[s.id]) != len(s.steps):
      raise errors.InputError(
        f"{path}: {len(by_id[s.id])} scores for the {len(s.steps)} steps of"
        f" solution {s.id!r}; score the same file again"
      )
    out.append(by_id[s.id])
  return out
