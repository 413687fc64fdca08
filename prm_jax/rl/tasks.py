"""The problems of a run, and the verifier that says which answer is right."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import contextlib
import dataclasses

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import pool
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.rl import rewards
from prm_jax.runtime import checks
from prm_jax.scoring import score_sources
from prm_jax.testbed import arithmetic
from prm_jax.text import answers

# The testbed, as a source of problems and as their grader.
ARITHMETIC = "arithmetic"


@dataclasses.dataclass(frozen=True)
class ProblemsConfig:
  """Where the problems come from, and what says which answer is right.

  Args:
    train: The source of the training problems; see read_problems.
    evaluation: The source of the held-out problems; see read_problems.
    num_evaluation: The number of held-out problems that each evaluation
      answers, greedily.
    grader: One of pool.GRADERS; a function of the user's, FILE.py:FUNCTION or
      MODULE:FUNCTION (see score_sources.load_verify); or ARITHMETIC, the
      testbed's verifier, which knows right steps, too.
  """

  train: str
  evaluation: str
  num_evaluation: int = 200
  grader: str = "rules"

  def __post_init__(self):
    checks.check_counts(self, ("num_evaluation",), "problems.")


def read_problems(source: str) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the problems of a source, as solutions without steps, and counts.

  Args:
    source: problems:FILE, in our own format; any corpus (FORMAT:FILE), of which
      the problems of right solutions are taken; or arithmetic:SPLIT:COUNT,
      which makes problems of the testbed.

  Returns:
    The problems and counts of `distinct`. The count "of wrong solutions" is
    that of a corpus's records whose problem isn't taken.

  Raises:
    InputError: The source can't be read, or holds no problem.
  """
  kind, colon, rest = source.partition(":")
  if kind == ARITHMETIC:
    return distinct(_drawn(source, rest), source)
  if kind == "problems" and colon:
    return distinct(jsonl.read_problems(rest), source)
  skipped: collections.Counter[str] = collections.Counter()
  problems, counts = distinct(_of_right_solutions(source, skipped), source)
  return problems, dict(skipped) | counts


def _drawn(source: str, rest: str) -> list[schema.Problem]:
  """Returns problems of the testbed: `rest` is SPLIT:COUNT."""
  split, _, count = rest.partition(":")
  if not count.isdecimal():
    raise errors.InputError(
      f"{source}: expected {ARITHMETIC}:SPLIT:COUNT, such as"
      f" {ARITHMETIC}:train:2000"
    )
  random = np.random.default_rng(0)
  return arithmetic.problems(int(count), split, arithmetic.Task(), random)


def _of_right_solutions(
  source: str, skipped: collections.Counter[str]
) -> Iterator[schema.Problem]:
  for s in sources.open_source(source):
    if s.outcome and s.answer is not None:
      yield schema.Problem(s.id, s.problem, s.answer)
    else:
      skipped["of wrong solutions"] += 1


def distinct(
  problems: Iterable[schema.Problem], source: str
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns each problem's text once, as a solution without steps, and counts.

  Args:
    problems: The records. The answer of a text is the first that a record has.
    source: The name of the source in an error.

  Returns:
    The problems, and the counts above 0: "met before", records whose text an
    earlier record has; "without an answer", problems.

  Raises:
    InputError: There is no problem.
  """
  starts: dict[str, schema.Solution] = {}
  duplicates = 0
  for p in problems:
    known = starts.get(p.problem)
    duplicates += known is not None
    if known is None or not has_answer(known):
      extra = {schema.REFERENCE: p.answer}
      starts[p.problem] = schema.Solution(p.id, p.problem, (), extra=extra)
  if not starts:
    raise errors.InputError(
      f"{source}: holds no problem with a right answer; give problems:FILE"
      ' with "answer" fields, or a corpus of right solutions'
    )
  without = sum(not has_answer(p) for p in starts.values())
  counts = {"met before": duplicates, "without an answer": without}
  return list(starts.values()), {what: n for what, n in counts.items() if n}


def has_answer(problem: schema.Solution) -> bool:
  return problem.extra[schema.REFERENCE] is not None


def check_disjoint(
  problems: Iterable[schema.Solution], held_out: Iterable[schema.Solution]
) -> None:
  """Refuses held-out problems that are also trained on."""
  texts = {p.problem for p in problems}
  both = sum(p.problem in texts for p in held_out)
  if both:
    raise errors.InputError(
      f"problems.evaluation: {both} of its problems are trained on; give others"
    )


@contextlib.contextmanager
def open_verifier(grader: str) -> Iterator[rewards.Verifier]:
  """Yields what checks answers; a grader's process ends with the context.

  Args:
    grader: See ProblemsConfig.
  """
  if grader == ARITHMETIC:
    yield rewards.Verifier(
      verify=arithmetic.verify,
      find_answer=arithmetic.final_answer,
      exact=arithmetic.verifier,
    )
    return
  if score_sources.is_function(grader):
    verify, identity = score_sources.load_verify(grader)
    yield rewards.Verifier(
      verify, answers.of_solution, needs_answers=False, identity=identity
    )
    return
  with pool.Grader(grader) as workers:

    def verify(solutions):
      references = [s.extra.get(schema.REFERENCE) for s in solutions]
      grades = pool.grade_solutions(workers, solutions, references)
      return pool.outcomes(grades)

    yield rewards.Verifier(verify, answers.of_solution)
