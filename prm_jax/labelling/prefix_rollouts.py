"""Prefixes of solutions, with ids of their own, and rollouts from them.

A prefix's id is a digest of its text, and seeds its samples: equal prefixes get
equal rollouts in every run, batch and machine. A text that was sampled as other
ids than an equal one goes on from its own ids, so its rollouts may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
from typing import Any

from prm_jax import schema

# Fields of extra that an earlier labelling wrote.
_OF_LABELS = ("values", "rollouts", "intervals", "cpmi")


@dataclasses.dataclass(frozen=True)
class Rollout:
  """A whole solution, and whether its answer is right; None: unknown."""

  solution: schema.Solution
  is_right: bool | None


@dataclasses.dataclass(frozen=True)
class Tally:
  """How the rollouts of a prefix ended."""

  right: int = 0
  wrong: int = 0
  unverifiable: int = 0

  @property
  def known(self) -> int:
    return self.right + self.wrong

  @property
  def drawn(self) -> int:
    return self.known + self.unverifiable

  @property
  def value(self) -> float | None:
    """The share of right ends among the known ones; None if there are none."""
    return self.right / self.known if self.known else None


def tally(rollouts: Sequence[Rollout], before: Tally | None = None) -> Tally:
  """Returns the counts of the rollouts, added to those before."""
  counts = Counter(rollout.is_right for rollout in rollouts)
  before = before or Tally()
  return Tally(
    before.right + counts[True],
    before.wrong + counts[False],
    before.unverifiable + counts[None],
  )


def prefix(
  solution: schema.Solution, num_steps: int, *, round_number: int = 0
) -> schema.Solution:
  """Returns a solution's first steps as an unfinished one, to be completed.

  Its id is a digest of its text and the round. Where the whole text is known,
  the prefix has it up to the next step's beginning.

  Args:
    solution: A solution; its labels, answer and outcome aren't copied.
    num_steps: The number of steps of the prefix.
    round_number: The round.
  """
  begun = schema.first_steps(solution, num_steps)
  text: list[Any] = list(begun.steps)
  if begun.messages is not None:
    text = [list(map(_parts, begun.messages))]
  elif begun.raw_text is not None:
    text = [dict(raw_text=begun.raw_text)]
  whole = json.dumps([solution.problem, *text]).encode()
  digest = hashlib.sha256(whole).hexdigest()[:24]
  return dataclasses.replace(
    begun,
    id=f"{digest}#{round_number}",
    # A completion's statistics aren't its prefix's.
    extra=plain_extra(solution, *schema.STATISTICS),
  )


def texts(solution: schema.Solution) -> tuple[str, ...]:
  """Returns a text for each step that tells prefixes apart.

  In a trajectory it has what was said since the turn before, such as a tool's
  results: equal turns may follow different ones.

  Args:
    solution: A solution.
  """
  if solution.messages is None:
    return solution.steps
  of_turns: list[str] = []
  since_turn = []
  for message in solution.messages:
    since_turn.append(_parts(message))
    if message.role == "assistant":
      of_turns.append(json.dumps(since_turn))
      since_turn = []
  turns = schema.turns_of(solution)
  before = (None, *turns)
  return tuple(
    step if turn == last else of_turns[turn]
    for step, turn, last in zip(solution.steps, turns, before)
  )


def roll_out(
  prefixes: Sequence[schema.Solution],
  num: int,
  generate: schema.Generate,
  verify: schema.Verify,
  find_answer: schema.FindAnswer,
) -> tuple[list[list[Rollout]], Counter[str]]:
  """Returns num rollouts of each prefix, and counts of them; see `counts`.

  Raises:
    ValueError: generate or verify returns another number than asked for.
  """
  rows = generate(prefixes, num) if prefixes else []
  if len(rows) != len(prefixes):
    raise ValueError(
      f"completions of {len(rows)} prefixes, not {len(prefixes)}"
    )
  for start, row in zip(prefixes, rows, strict=True):
    if len(row) != num:
      raise ValueError(f"{start.id}: {len(row)} completions instead of {num}")
  whole = [s for row in rows for s in row]
  verdicts = iter(verdicts_of(whole, verify))
  rollouts = [[Rollout(s, next(verdicts)) for s in row] for row in rows]
  work: Counter[str] = Counter(rollouts=len(whole))
  for start, of_start in zip(prefixes, rollouts, strict=True):
    for rollout in of_start:
      s = rollout.solution
      num_tokens = s.extra.get("num_tokens")
      work["tokens"] += num_tokens or 0
      work["tokens_unknown"] += num_tokens is None
      work["no_answer"] += find_answer(s) is None
      work["unended"] += s.extra.get("ended") is False
      work["empty"] += len(s.steps) <= len(start.steps)
      work["unverifiable"] += rollout.is_right is None
  return rollouts, work


def counts(work: Mapping[str, int]) -> dict[str, int]:
  """Returns what `roll_out` counts, zeros too.

  rollouts; tokens, of those whose number is known, and tokens_unknown, the
  number of the others; no_answer, no answer in their steps; unended, their
  policy did not end them; empty, without a new step; unverifiable, unknown
  whether they are right: no value counts them.
  """
  names = (
    *("rollouts", "tokens", "tokens_unknown", "no_answer", "unended", "empty"),
    "unverifiable",
  )
  return {name: work.get(name, 0) for name in names}


def verdicts_of(
  solutions: Sequence[schema.Solution], verify: schema.Verify
) -> list[bool | None]:
  """Returns one verdict per solution.

  Raises:
    ValueError: verify returns another number of them.
  """
  verdicts = verify(solutions) if solutions else []
  if len(verdicts) != len(solutions):
    raise ValueError(f"{len(verdicts)} verdicts on {len(solutions)} solutions")
  return verdicts


def _parts(message: schema.Message) -> list[str | None]:
  return [message.role, message.thinking, message.shown]


def plain_extra(solution: schema.Solution, *others: str) -> dict[str, Any]:
  """Returns extra without the fields of labellings, and without others."""
  dropped = (*_OF_LABELS, *others)
  return {k: v for k, v in solution.extra.items() if k not in dropped}
