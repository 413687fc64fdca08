"""What a job reads, as values: a file of solutions, a file of problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

from prm_jax import schema
from prm_jax.jobs import shards
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
  limit: verbs.Natural | None = dataclasses.field(
    default=None, metadata=dict(metavar="N")
  )

  @property
  def stored_at(self) -> pathlib.Path:
    """Where the file is, in other formats the folder."""
    from prm_jax.data import sources

    return sources.stored_at(self.path)

  def read(
    self, shard: str = "0/1"
  ) -> tuple[list[schema.Solution], Mapping[str, int]]:
    """Returns the solutions of a shard, and what the reader left out.

    Args:
      shard: The part of the problems, "i/n".
    """
    from prm_jax.data import sources

    part = shards.parse(shard)
    solutions, left_out = sources.read(self.format, self.path, self.limit)
    return [s for s in solutions if part.holds(s.problem)], left_out


@dataclasses.dataclass(frozen=True)
class Problems(verbs.Value):
  """Problems in a file.

  Args:
    path: A file, one JSON object per line with id, problem and, if it is known,
      answer; - is the standard input.
    limit: Use only the first N problems of --input (default: all).
  """

  path: verbs.Input
  limit: verbs.Natural | None = dataclasses.field(
    default=None, metadata=dict(metavar="N")
  )

  def read(self, taken: Sequence[str]) -> list[schema.Problem]:
    """Returns the problems, each with an id of its own.

    Args:
      taken: Fields that solutions get, besides those of all solutions.
    """
    from prm_jax.jobs import problems

    return problems.read(self.path, self.limit, taken)
