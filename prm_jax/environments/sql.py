"""A database that an agent asks by SQL, and exact verdicts on its turns.

The agent has one tool, sql(query), and ends with a turn without a call, which
states the answer. What the agent asks changes nothing, so each turn is judged
by itself. A turn is right exactly if

- it has calls, and each is sql with a query that runs within the limits, and
  either reads the schema and no data, or has the answer in its first row, in
  one column on the task's database and on all of its variants. So a query that
  hits the answer by chance, or only finds a part of it, is wrong;
- or it has none, and states the exact answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.environments import database
from prm_jax.environments import shop_tasks
from prm_jax.grading import equality
from prm_jax.text import answers
from prm_jax.text import messages as messages_lib

TOOL: Mapping[str, Any] = dict(
  type="function",
  function=dict(
    name="sql",
    description="Runs one SELECT of SQLite on the database, which can't be"
    f" changed. At most {database.MAX_ROWS} rows are shown.",
    parameters=dict(
      type="object",
      properties=dict(query=dict(type="string")),
      required=["query"],
    ),
  ),
)
SYSTEM = (
  "Find the answer in the database with the tool sql; sqlite_master holds its"
  ' schema. Then end with the line "Answer: " and the answer, which is a number'
  " or a name."
)


def openings(seeds: Iterable[int]) -> list[schema.Solution]:
  """Returns trajectories without a turn, each a question on a database.

  Args:
    seeds: The seed of each task, from 0 to 2**32 - 1.

  Returns:
    A trajectory for each, with the right answer in extra["reference_answer"].

  Raises:
    InputError: A seed is out of range.
  """
  result = []
  for seed in seeds:
    task = shop_tasks.task(seed)
    messages = (
      schema.Message("system", SYSTEM),
      schema.Message("user", task.problem),
    )
    result.append(
      messages_lib.trajectory(
        messages,
        id=f"sql-{seed}",
        tools=(TOOL,),
        extra={schema.REFERENCE: str(task.answer)},
      )
    )
  return result


@dataclasses.dataclass(frozen=True)
class SQL:
  """The world of questions on databases: a turns.Environment.

  Its state is the task, which no turn changes.
  """

  def begin(self, opening: schema.Solution) -> shop_tasks.Task:
    """Returns the task of an opening; see Environment.begin."""
    return shop_tasks.of_problem(opening.problem)

  def act(
    self, state: shop_tasks.Task, turn: schema.Message
  ) -> tuple[shop_tasks.Task, tuple[schema.Message, ...]]:
    """Returns the task, and results of calls; see Environment.act."""
    return state, tuple(
      schema.Message(
        "tool", _run(state.databases[0], call).text, answers=call.id
      )
      for call in turn.calls
    )

  def answer(self, trajectory: schema.Solution) -> str | None:
    """Returns what a last turn without a call states; see Environment.answer."""
    last = (trajectory.messages or (None,))[-1]
    return None if last is None else _stated(last)

  def outcome(self, trajectory: schema.Solution) -> bool:
    """Returns whether the answer is the exact one; see Environment.outcome."""
    task = shop_tasks.of_problem(trajectory.problem)
    return equality.equal(self.answer(trajectory), str(task.answer))


def judge(trajectory: schema.Solution) -> schema.Solution:
  """Returns a trajectory with exact labels of its turns, answer and outcome.

  Args:
    trajectory: A trajectory of SQL, whose steps are whole turns.

  Returns:
    The trajectory; a label is 1 for a right turn and 0 for a wrong one.

  Raises:
    InputError: It isn't one.
  """
  if trajectory.messages is None or trajectory.spans is not None:
    raise errors.InputError(
      f"solution {trajectory.id!r}: no trajectory of whole turns; only turns"
      " are judged"
    )
  task = shop_tasks.of_problem(trajectory.problem)
  turns = [x for x in trajectory.messages if x.role == "assistant"]
  return dataclasses.replace(
    trajectory,
    labels=tuple(float(_is_right(task, turn)) for turn in turns),
    ratings=None,
    answer=SQL().answer(trajectory),
    outcome=SQL().outcome(trajectory),
  )


def _is_right(task: shop_tasks.Task, turn: schema.Message) -> bool:
  if not turn.calls:
    return equality.equal(_stated(turn), str(task.answer))
  return all(_is_right_call(task, call) for call in turn.calls)


def _is_right_call(task: shop_tasks.Task, call: schema.Call) -> bool:
  columns: set[int] | None = None
  for content, answer in zip(task.databases, task.answers, strict=True):
    result = _run(content, call)
    if result.is_look_up:
      return True
    row = result.rows[0] if result.rows else ()
    holding = {
      i
      for i, value in enumerate(row)
      # A text isn't a number, and 3.0 is 3.
      if isinstance(value, str) == isinstance(answer, str) and value == answer
    }
    columns = holding if columns is None else columns & holding
    if not columns:
      return False
  return True


def _run(content: bytes, call: schema.Call) -> database.Result:
  """Returns what a call gives; a wrong call is an error in words."""
  if call.name != "sql":
    return database.Result(error="no such tool; call sql")
  query = call.arguments.get("query")
  if not isinstance(query, str) or len(call.arguments) > 1:
    return database.Result(error="sql takes one argument, query, a text")
  return database.run(content, query)


def _stated(turn: schema.Message) -> str | None:
  if turn.role != "assistant" or turn.calls:
    return None
  return answers.extract(turn.text)
