"""Which items a model makes most wanted, and a folder's scores of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
import pathlib
from typing import Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import step_scores
from prm_jax.people import judgements

Order = Literal["convincing", "uncertain", "file"]
Scores = Mapping[str, schema.StepScores]


def ordered(
  items: Sequence[judgements.Item], scores: Scores, order: Order
) -> list[judgements.Item]:
  """Returns the items, the most wanted first; equal ones as they come.

  Args:
    items: The items.
    scores: A model's scores of items of one solution, by their ids; without any
      all items are as they come.
    order: convincing: wrong answers before the others, and those with the
      highest least score first; uncertain: those with a least score near 0.5
      first; file: as they come.
  """
  if not scores or order == "file":
    return [*items]

  def wanted(item: judgements.Item) -> tuple[bool, float]:
    row = scores.get(item.id)
    least = min(row.scores, default=0.0) if row is not None else -math.inf
    if order == "uncertain":
      return False, abs(least - schema.THRESHOLD)
    return item.solutions[0].outcome is not False, -least

  return sorted(items, key=wanted)


class ScoresFile:
  """The scores of a folder, which a round of training writes anew.

  Args:
    path: The file, of the form that `prm-jax score` writes.
    items: All items, gold ones too: without its scores gold would be known.
    say: Called with what the person who runs the server must know.
    is_known: Whether what the file has now is no news.
  """

  def __init__(
    self,
    path: pathlib.Path,
    items: Sequence[judgements.Item],
    say: Callable[[str], None],
    *,
    is_known: bool,
  ):
    self._path, self._say = path, say
    self._solutions = [x.solutions[0] for x in items]
    self._state = self._now() if is_known else None

  def news(self) -> tuple[Scores, bool] | None:
    """Returns the scores if the file is another, and whether all items have some.

    None of one that is broken. Items that the pool got after the round have no
    scores.
    """
    now = self._now()
    if now is None or now == self._state:
      return None
    # What is broken is told once.
    self._state = now
    try:
      records = step_scores.read_records(self._path)
      by_id = {name: row for _, name, _, row in records}
      # Scores of other solutions alone aren't this folder's.
      known = [s for s in self._solutions if s.id in by_id] or self._solutions
      errors.raise_first(step_scores.lacking(by_id, known), f"{self._path}: ")
    except errors.InputError as e:
      self._say(f"{e}; until then the order stays as it is")
      return None
    num_new = len(self._solutions) - len(known)
    if num_new:
      self._say(
        f"{self._path}: has no scores of {num_new:,} items: the next round ranks"
        " them, and until then no scores are shown"
      )
    return {s.id: by_id[s.id] for s in known}, not num_new

  def _now(self) -> tuple[int, int, int] | None:
    """Returns what changes with the file; None if there is none."""
    try:
      found = self._path.stat()
    except OSError:
      return None
    return found.st_mtime_ns, found.st_size, found.st_ino
