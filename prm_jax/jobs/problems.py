"""The file of problems that a policy solves."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import files


def read(
  path: files.PathLike, limit: int | None, taken: Sequence[str]
) -> list[schema.Problem]:
  """Returns a file's problems, each with an id of its own.

  Args:
    path: The file, one JSON object per line.
    limit: The most problems; None is all.
    taken: Fields that solutions get, besides those of all solutions.

  Raises:
    InputError: A line is no problem, an id comes twice, or a problem has a field
      that its solutions get.
  """
  problems = []
  seen: dict[str, str] = {}
  own = {f.name for f in dataclasses.fields(schema.Solution)} - {"extra"}
  for where, record in files.read_records(path):
    problem = jsonl.problem_from_record(record, where)
    clash = problem.extra.keys() & {
      *own,
      *taken,
      schema.REFERENCE,
      schema.SAMPLED,
    }
    if clash:
      raise errors.InputError(
        f"{where}: {', '.join(sorted(clash))}: a sampled solution has such a"
        " field of its own; give the problem's another name"
      )
    fields.unique_id(seen, problem.id, where)
    problems.append(problem)
  return sources.first(problems, limit, path)
