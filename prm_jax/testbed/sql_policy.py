"""An agent that errs at known rates, whose success can be computed exactly.

It asks for the schema first, then asks a query, and states what the first row
of its result says. It knows the right query, so it needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
import random

from prm_jax import errors
from prm_jax import schema
from prm_jax.environments import shop_tasks
from prm_jax.runtime import checks

LOOK_UP = "SELECT name, sql FROM sqlite_master"


@dataclasses.dataclass(frozen=True)
class SQLPolicy:
  """Writes turns of SQL trajectories: a turns.Policy.

  Args:
    wrong_query: P(a query answers another question).
    malformed: P(a query doesn't run); it asks another one then.
    wrong_answer: P(it states an answer that is wrong, whatever the result says).

  Raises:
    InputError: A rate isn't in [0, 1], or the first two sum up to more than 1.
  """

  wrong_query: float = 0.2
  malformed: float = 0.2
  wrong_answer: float = 0.1

  def __post_init__(self):
    names = ("wrong_query", "malformed", "wrong_answer")
    checks.check_shares(self, names)
    if self.wrong_query + self.malformed > 1:
      raise errors.InputError(
        f"wrong_query={self.wrong_query} and malformed={self.malformed} sum up"
        " to more than 1; lower one"
      )

  def __call__(
    self, trajectories: Sequence[schema.Solution], seeds: Sequence[int]
  ) -> list[schema.Message]:
    """Returns the next turn of each trajectory."""
    return [
      self._turn(x, random.Random(seed))
      for x, seed in zip(trajectories, seeds, strict=True)
    ]

  def success(self, turns_left: int) -> float:
    """Returns P(the answer is right) after a look-up or a malformed query.

    Args:
      turns_left: The most turns that follow.
    """
    if turns_left < 2:
      return 0.0
    right = 1 - self.wrong_query - self.malformed
    again = self.malformed * self.success(turns_left - 1)
    return right * (1 - self.wrong_answer) + again

  def _turn(
    self, trajectory: schema.Solution, rng: random.Random
  ) -> schema.Message:
    task = shop_tasks.of_problem(trajectory.problem)
    draw = rng.random()
    last = (trajectory.messages or ())[-1]
    turns = [x for x in trajectory.messages or () if x.role == "assistant"]
    if not turns:
      return query(LOOK_UP)
    asked = turns[-1].calls[-1].arguments.get("query")
    if last.text.startswith("error") or asked == LOOK_UP:
      if draw < self.wrong_query:
        return query(task.wrong_query)
      if draw < self.wrong_query + self.malformed:
        return query(task.query.replace("SELECT", "SELEKT", 1))
      return query(task.query)
    value = json.loads(last.text)["rows"][0][0]
    if draw < self.wrong_answer:
      known = task.answer
      value = known + 1 if isinstance(known, int) else f"not {known}"
    return schema.Message("assistant", f"Answer: {value}")


def query(text: str) -> schema.Message:
  """Returns a turn that asks a query.

  Args:
    text: The query.
  """
  call = schema.Call("sql", dict(query=text), id="1")
  return schema.Message("assistant", "", calls=(call,))
