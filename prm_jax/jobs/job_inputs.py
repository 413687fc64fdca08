"""What a job reads, as values: a file of solutions, a file of problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import shards
from prm_jax.runtime import files
from prm_jax.runtime import verbs


@dataclasses.dataclass(frozen=True)
class Solutions(verbs.Value):
  """Solutions in a file.

  Args:
    path: A file; - is the standard input.
    format: The format of --input; docs/data.md lists the formats, such as jsonl
      and prm800k.
    limit: Use only the first N solutions of --input (default: all).
  """

  path: verbs.Input
  format: str = "jsonl"
  limit: verbs.Natural | None = None

  @property
  def stored_at(self) -> pathlib.Path:
    """Where the file is, in other formats the folder."""
    from prm_jax.records import sources

    return sources.stored_at(self.path)

  def read(
    self, shard: str = "0/1"
  ) -> tuple[list[schema.Solution], Mapping[str, int]]:
    """Returns the solutions of a shard, and what the reader left out.

    Args:
      shard: The part of the problems, "i/n".
    """
    from prm_jax.records import sources

    part = shards.parse(shard)
    solutions, left_out = sources.read(self.format, self.path, self.limit)
    return [s for s in solutions if part.holds(s.problem)], left_out

  def read_some(
    self, *, takes_problems: bool = False
  ) -> tuple[list[schema.Solution], Mapping[str, int]]:
    """Returns all solutions, and what the reader left out; refuses none.

    Args:
      takes_problems: Whether a row of our own format may be a problem, without
        "steps"; it becomes a solution without steps.

    Raises:
      InputError: There is no solution.
    """
    from prm_jax.records import sources

    left_out: Mapping[str, int] = {}
    if takes_problems and self.format == "jsonl":
      path = sources.find(self.path)
      solutions = sources.first(_with_problems(path), self.limit, path)
    else:
      solutions, left_out = sources.read(self.format, self.path, self.limit)
    if not solutions:
      raise errors.InputError(
        f"{self.path}: holds no solution; there is no work"
      )
    return solutions, left_out


def _with_problems(path: files.PathLike) -> list[schema.Solution]:
  """Returns the solutions of a file, a problem as one without steps."""
  from prm_jax.records import fields
  from prm_jax.records import jsonl

  out, seen = [], dict[str, str]()
  for where, record in files.read_records(path):
    if "steps" in record:
      s = jsonl.solution_from_record(record, where)
    else:
      problem = jsonl.problem_from_record(record, where)
      extra = {**problem.extra, schema.REFERENCE: problem.answer}
      s = schema.Solution(problem.id, problem.problem, (), extra=extra)
    fields.unique_id(seen, s.id, where)
    out.append(s)
  return out


@dataclasses.dataclass(frozen=True)
class Problems(verbs.Value):
  """Problems in a file.

  Args:
    path: A file, one JSON object per line with id, problem and, if it is known,
      answer; - is the standard input.
    limit: Use only the first N problems of --input (default: all).
  """

  path: verbs.Input
  limit: verbs.Natural | None = None

  def read(self, taken: Sequence[str]) -> list[schema.Problem]:
    """Returns the problems, each with an id of its own.

    Args:
      taken: Fields that solutions get, besides those of all solutions.
    """
    from prm_jax.jobs import problems

    return problems.read(self.path, self.limit, taken)


def starts(problems: Sequence[schema.Problem]) -> list[schema.Solution]:
  """Returns problems as solutions without steps, with the right answers known.

  Args:
    problems: The problems.
  """
  return [
    schema.Solution(
      *(p.id, p.problem, ()),
      extra=dict(p.extra)
      | ({} if p.answer is None else {schema.REFERENCE: p.answer}),
    )
    for p in problems
  ]
