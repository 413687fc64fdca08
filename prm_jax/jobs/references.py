"""The right answers of problems, gathered from several places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import equality
from prm_jax.records import jsonl
from prm_jax.runtime import files


@dataclasses.dataclass(frozen=True)
class Claim:
  """A place that says what the right answer of a problem is.

  Args:
    problem: The problem's text.
    answer: The answer.
    where: The place, as an error says it.
  """

  problem: str
  answer: str
  where: str


def of(claims: Iterable[Claim]) -> dict[str, str]:
  """Returns the answer of each problem's text, as the first place says it.

  Args:
    claims: What all places say.

  Raises:
    InputError: Two of them say different answers to the same text.
  """
  first: dict[str, Claim] = {}
  for claim in claims:
    before = first.setdefault(claim.problem, claim)
    is_same = before.answer == claim.answer
    if not is_same and not equality.equal(before.answer, claim.answer):
      raise errors.InputError(
        f"{claim.where}: the reference answer is {claim.answer!r}, but at"
        f" {before.where} it was {before.answer!r} for the same problem; keep"
        " one"
      )
  return {problem: claim.answer for problem, claim in first.items()}


def read(path: files.PathLike | None) -> Iterator[Claim]:
  """Yields the answers in a file of problems.

  Args:
    path: The file, one problem a line; None has none.
  """
  for where, record in () if path is None else files.read_records(path):
    problem = jsonl.problem_from_record(record, where)
    if problem.answer is not None:
      yield Claim(problem.problem, problem.answer, where)


def claimed(
  solutions: Sequence[schema.Solution], named: str
) -> Iterator[Claim]:
  """Yields what solutions say of their problems' answers.

  Args:
    solutions: The solutions, some with a reference answer.
    named: What a solution's id follows in an error, as "FILE: solution".

  Raises:
    InputError: A reference answer is no text.
  """
  for s in solutions:
    answer = s.extra.get(schema.REFERENCE)
    if answer is None:
      continue
    where = f"{named} {s.id!r}"
    if not isinstance(answer, str):
      raise errors.InputError(
        f'{where}: "{schema.REFERENCE}" must be str, found'
        f" {type(answer).__name__}"
      )
    yield Claim(s.problem, answer, where)


def of_all(solutions: Sequence[schema.Solution]) -> dict[str, str]:
  """Returns the reference answers of solutions in memory; all must have one.

  Args:
    solutions: The solutions.

  Raises:
    InputError: One has none, or two of a problem differ.
  """
  known = of(claimed(solutions, "solution"))
  for s in solutions:
    if s.problem not in known:
      raise errors.InputError(
        f"solution {s.id!r}: extra has no {schema.REFERENCE!r}; give the right"
        " answer of its problem"
      )
  return known
