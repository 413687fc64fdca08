"""Shards: parts of the problems, one for each of several runs.

A shard holds whole problems: those whose text's SHA-256 is its index modulo
the number of shards. The solution's id can't decide: solutions of one problem
share prefixes, whose rollouts are drawn once, on one machine. Nor can its place
in the file: a problem that is added would move the others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re

from prm_jax import errors
from prm_jax.runtime import verbs


@dataclasses.dataclass(frozen=True)
class Shard:
  """One of `count` parts of the problems; "2/8" is the third of eight."""

  index: int = 0
  count: int = 1

  def __post_init__(self):
    if not 0 <= self.index < self.count:
      raise errors.InputError(
        f"`shard={self}`: expected i/n with 0 <= i < n, such as 0/{self.count}"
      )

  def __str__(self) -> str:
    return f"{self.index}/{self.count}"

  def holds(self, problem: str) -> bool:
    """Returns whether a problem's text is of this shard."""
    digest = hashlib.sha256(problem.encode("utf-8", "surrogatepass"))
    return int(digest.hexdigest(), 16) % self.count == self.index


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharded(verbs.Value):
  """A job that may be a part of one.

  Args:
    shard: Work only on the problems of part I (0 to N - 1) of N, so that N
      processes share the work.
  """

  shard: str = dataclasses.field(default="0/1", metadata=dict(metavar="I/N"))

  @property
  def part(self) -> Shard:
    """The part."""
    return parse(self.shard)


def parse(text: str) -> Shard:
  """Returns the shard i/n; raises InputError."""
  match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
  if match is None or int(match[2]) == 0:
    raise errors.InputError(
      f"`shard={text}`: expected i/n with 0 <= i < n, such as 0/8"
    )
  return Shard(int(match[1]), int(match[2]))
