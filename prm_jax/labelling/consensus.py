"""Consensus of two labellers: keeps solutions with the same first error.

Zhang et al. 2025 (arXiv 2501.07301): Monte-Carlo labels estimate how promising
a step is, an LLM judge's labels whether it is right; if both find the first
error at the same step, the solution is likely to be labelled well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
import logging
from typing import Any, Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import report
from prm_jax.records import jsonl
from prm_jax.runtime import checks
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ConsensusJob(verbs.Value):
  """Which two files of labelled solutions are compared, and where to write.

  Args:
    input: A file of labelled solutions; give the option twice, once for each
      labeller.
    output: The JSON Lines file of solutions to write.
    format: The format of --input; docs/data.md lists the formats, such as jsonl
      and prm800k.
    limit: Use only the first N solutions of each --input (default: all).
  """

  input: tuple[verbs.Input, ...]
  output: verbs.Output
  format: str = "jsonl"
  limit: verbs.Natural | None = None

  def __post_init__(self):
    super().__post_init__()
    if len(self.input) != 2:
      raise errors.InputError(
        f"{len(self.input)} x `input`: give two, the same solutions as two"
        " labellers label them"
      )


@dataclasses.dataclass(frozen=True)
class Consensus(verbs.Verb):
  """Keeps the solutions in which two labellers find the same first error.

  Or both find none (Zhang et al. 2025, arXiv 2501.07301).

  Args:
    above_a: A number, at least 0 and less than 1: a step of the first --input
      is right if its label is greater than it; 0 suits Monte-Carlo labels.
    above_b: The same for the second --input; 0.5 suits a judge's labels.
    labels: The labels to write: hard (1 before the first error, 0 at it, none
      after it), or those of the first --input (a) or of the second (b).

  Example:
    prm-jax label consensus --input=monte_carlo.jsonl --above_a=0 \\
      --input=judge.jsonl --above_b=0.5 --output=agreed.jsonl
  """

  above_a: float
  above_b: float
  labels: Literal["hard", "a", "b"] = "hard"

  def __post_init__(self):
    super().__post_init__()
    below_1 = "at least 0 and less than 1"
    checks.check(self, ("above_a", "above_b"), lambda x: 0 <= x < 1, below_1)

  def __call__(
    self, a: Sequence[schema.Solution], b: Sequence[schema.Solution]
  ) -> list[schema.Solution]:
    """Returns the solutions that are kept, in a's order.

    Args:
      a: See agree.
      b: See agree.
    """
    return self.agree(a, b)[0]

  def run(self, job: ConsensusJob) -> None:
    """Compares two files.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import agreement_texts

    of = [job_inputs.Solutions(x, job.format, job.limit) for x in job.input]
    outputs.check(dict(output=job.output), [x.stored_at for x in of])
    (a, left_out), (b, more) = (x.read_some() for x in of)
    first, second = map(str, job.input)
    kept, counts = self.agree(a, b, names=(first, second))
    jsonl.write_solutions(job.output, kept)
    _logger.info(
      f"{job.output}: {len(kept):,} solutions on which a and b agree"
    )
    _logger.info("a: %s", first)
    _logger.info("b: %s", second)
    report.counted(counts)
    report.left_out(Counter(left_out) + Counter(more))
    results = self.agreement(a, b)
    if results is not None:
      told = agreement_texts.texts(results, "labellers")
      verbs.log_text(_logger, "\n".join(["", *told]))

  def agree(
    self,
    a: Sequence[schema.Solution],
    b: Sequence[schema.Solution],
    *,
    names: tuple[str, str] = ("a", "b"),
  ) -> tuple[list[schema.Solution], dict[str, int]]:
    """Returns the solutions on whose first error both agree, in a's order.

    The counts say for every id whether it was kept, or why not. They add up to
    the number of different ids.

    Args:
      a: The solutions as one labeller labels them.
      b: The same solutions as another labels them, in any order.
      names: The names of a and b in errors, such as their files.

    Returns:
      The solutions that are kept, and the counts.

    Raises:
      InputError: An id comes twice or stands for two different solutions, or a
        solution has ratings instead of labels.
    """
    of_a, of_b = (
      _by_id(x, name) for x, name in zip((a, b), names, strict=True)
    )
    counts = Counter(kept=0)
    if missing := sum(id_ not in of_a for id_ in of_b):
      counts["missing_in_a"] = missing
    kept = []
    for id_, one in of_a.items():
      if id_ not in of_b:
        counts["missing_in_b"] += 1
        continue
      other = of_b[id_]
      _check_same(one, other, names)
      result = _compare(
        first_error(one, self.above_a), first_error(other, self.above_b)
      )
      if not one.steps:
        result = "without_steps"
      counts[result] += 1
      if result == "kept":
        kept.append(_labelled(one, other, self.labels, self.above_a))
    return kept, dict(counts)

  def agreement(
    self, a: Sequence[schema.Solution], b: Sequence[schema.Solution]
  ) -> dict[str, Any] | None:
    """Returns how far a and b agree; see evaluation.agreement.measured.

    Args:
      a: See agree.
      b: See agree.

    Returns:
      The agreement on right and wrong steps of the solutions that both have;
      None if there is none.
    """
    from prm_jax.evaluation import agreement
    from prm_jax.records import sources

    judged = ((a, "a", self.above_a), (b, "b", self.above_b))
    return agreement.measured(
      agreement.Judgement(
        name,
        solution.id,
        sources.problem_key(solution.problem),
        _sides(solution, above),
      )
      for solutions, name, above in judged
      for solution in solutions
    )


def first_error(solution: schema.Solution, above: float) -> int | None:
  """Returns where the first step is whose label isn't above a value.

  Args:
    solution: The solution.
    above: A step is right if its label is above this.

  Returns:
    The index, -1 if all steps are right; None if that depends on a missing
    label.
  """
  from prm_jax.evaluation import agreement

  return agreement.first_error(_sides(solution, above), bool)


def _sides(solution: schema.Solution, above: float) -> tuple[float | None, ...]:
  """Returns 1 for each label that is above a value, 0 for another label."""
  labels = solution.labels or (None,) * len(solution.steps)
  return tuple(None if x is None else float(x > above) for x in labels)


def _by_id(
  solutions: Sequence[schema.Solution], name: str
) -> dict[str, schema.Solution]:
  by_id: dict[str, schema.Solution] = {}
  for i, solution in enumerate(solutions):
    if solution.id in by_id:
      raise errors.InputError(
        f"{name}: solution {i} (from 0): id {solution.id!r} comes twice; give"
        " each solution an id of its own"
      )
    if solution.ratings is not None:
      raise errors.InputError(
        f"{name}: solution {solution.id!r} has ratings, which hide its labels;"
        " write them as labels first"
      )
    by_id[solution.id] = solution
  return by_id


def _check_same(
  a: schema.Solution, b: schema.Solution, names: tuple[str, str]
) -> None:
  both = f"{names[0]}: solution {a.id!r} and {names[1]}: solution {b.id!r}"
  if a.problem != b.problem:
    what = "the problem differs"
  elif len(a.steps) != len(b.steps):
    what = f"{len(a.steps)} and {len(b.steps)} steps"
  elif a.steps != b.steps:
    pairs = enumerate(zip(a.steps, b.steps))
    what = f"step {next(i for i, (x, y) in pairs if x != y)} (from 0) differs"
  else:
    return
  raise errors.InputError(
    f"{both} aren't the same solution: {what}; label the same file twice"
  )


def _compare(a: int | None, b: int | None) -> str:
  """Returns kept, or the reason why not, from two first errors."""
  if a is None or b is None:
    who = "both" if a is b else "a" if a is None else "b"
    return f"unlabelled_in_{who}"
  if a == b:
    return "kept"
  if -1 in (a, b):
    return f"error_only_in_{'b' if a < 0 else 'a'}"
  return f"earlier_error_in_{'a' if a < b else 'b'}"


def _labelled(
  a: schema.Solution, b: schema.Solution, labels: str, above_a: float
) -> schema.Solution:
  if labels != "hard":
    return a if labels == "a" else b
  error = first_error(a, above_a)
  assert error is not None  # else it wouldn't have been kept
  n = len(a.steps)
  hard: list[float | None] = [1.0] * n
  if error >= 0:
    hard[error:] = [0.0, *[None] * (n - error - 1)]
  return dataclasses.replace(a, labels=tuple(hard), source="consensus")
