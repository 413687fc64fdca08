"""Our own JSON Lines form, as `schema` defines it: nothing is lost.

The reader adds the group where the file has none and insists on unique ids,
because scores are matched to solutions by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import dataclasses

from prm_jax import schema
from prm_jax.data.formats import fields


def read(path: schema.PathLike) -> Iterator[schema.Solution]:
  """Yields the solutions of a file; raises InputError at a bad line."""
  seen: dict[str, str] = {}
  for where, record in schema.read_records(path):
    solution = schema.solution_from_record(record, where)
    fields.claim(seen, solution.id, where)
    group = fields.group(solution.problem)
    yield dataclasses.replace(
      solution, extra={"group": group, **solution.extra}
    )


def check(solution: schema.Solution) -> None:
  """Raises nothing: the form holds every solution."""
  del solution


def write(path: schema.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all solutions or none; returns their number."""
  return schema.write_solutions(path, solutions)
