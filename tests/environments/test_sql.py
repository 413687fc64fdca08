"""A turn is right if its query answers the question by what it says."""

import dataclasses
import json

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.environments import database
from prm_jax.environments import shop_tasks
from prm_jax.environments import sql
from prm_jax.environments import turns
from prm_jax.testbed import sql_policy
from prm_jax.text import messages

SEEDS = range(12)


def _played(seed, *written):
  """Returns the trajectory of these turns: queries, or texts without a call."""
  (opening,) = sql.openings([seed])
  state, said = sql.SQL().begin(opening), [*opening.messages]
  for turn in written:
    if isinstance(turn, str):
      turn = sql_policy.query(turn)
    state, results = sql.SQL().act(state, turn)
    said += [turn, *results]
  return messages.trajectory(said, id=opening.id, tools=opening.tools)


def _text(text):
  return schema.Message("assistant", text)


def _labels(seed, *written):
  return sql.judge(_played(seed, *written)).labels


def test_each_turn_is_judged_by_itself():
  for seed in SEEDS:
    task = shop_tasks.task(seed)
    wrong = f"not {task.answer}" if isinstance(task.answer, str) else "-1"
    judged = sql.judge(
      _played(
        *(seed, sql_policy.LOOK_UP, "SELEKT", task.wrong_query, task.query),
        _text(f"Answer: {task.answer}"),
      )
    )
    assert judged.labels == (1, 0, 0, 1, 1)
    assert judged.outcome and judged.answer == str(task.answer)
    judged = sql.judge(_played(seed, task.query, _text(f"Answer: {wrong}")))
    assert (judged.labels, judged.outcome) == ((1, 0), False)


def test_a_query_that_hits_the_answer_by_chance_is_wrong():
  for seed in SEEDS:
    task = shop_tasks.task(seed)
    value = task.answer
    literal = value if isinstance(value, int) else f"'{value}'"
    # It says the answer, and every other number, too; and a part of the data.
    query = f"SELECT {literal}"
    assert database.run(task.databases[0], query).rows == ((value,),)
    table = task.query.partition("FROM ")[2].split()[0]
    assert _labels(seed, query, f"SELECT * FROM {table}") == (0, 0)


def test_a_query_is_right_with_other_words_columns_and_rows():
  for seed in SEEDS:
    task = shop_tasks.task(seed)
    more = task.query.replace("SELECT ", "SELECT 'total', ", 1)
    within = f"SELECT ({task.query}) AS result, 1 UNION ALL VALUES (0, 0)"
    if within.count("SELECT") > database.MAX_SELECTS - 1:
      within = f"SELECT ({task.query}), 1"
    assert _labels(seed, more, within) == (1, 1)


def test_a_tie_that_is_broken_otherwise_is_wrong():
  (seed, *_) = (x for x in range(40) if "DESC" in shop_tasks.task(x).query)
  query = shop_tasks.task(seed).query
  without = query.replace(", c.name LIMIT", " LIMIT")
  last = query.replace(", c.name LIMIT", ", c.name DESC LIMIT")
  assert without != query != last
  assert _labels(seed, query, last) == (1, 0)


def test_each_call_of_a_turn_gets_its_own_result():
  calls = tuple(
    schema.Call("sql", dict(query=f"SELECT {i}"), id=f"c{i}") for i in range(3)
  )
  played = _played(0, schema.Message("assistant", "", calls=calls))
  for i, result in enumerate(played.messages[-3:]):
    assert (result.role, result.answers) == ("tool", f"c{i}")
    assert json.loads(result.text)["rows"] == [[i]]


@pytest.mark.parametrize(
  ("call", "said"),
  [
    (schema.Call("sqll", dict(query="SELECT 1")), "error: no such tool"),
    (schema.Call("sql", {}), "error: sql takes one argument"),
    (schema.Call("sql", dict(query=["SELECT 1"])), "error: sql takes one"),
    (schema.Call("sql", dict(query="SELECT 1", x=1)), "error: sql takes one"),
  ],
)
def test_a_wrong_call_is_told_in_words_and_is_wrong(call, said):
  turn = schema.Message("assistant", "", calls=(call,))
  played = _played(0, turn)
  assert played.messages[-1].text.startswith(said)
  assert sql.judge(played).labels == (0,)
  # One of two calls is enough to be wrong.
  look_up = sql_policy.query(sql_policy.LOOK_UP).calls[0]
  both = schema.Message("assistant", "", calls=(look_up, call))
  assert _labels(0, both) == (0,)


@pytest.mark.parametrize(
  ("stated", "is_right"),
  [
    ("Answer: {}", True),
    ("So it is.\n\nAnswer: {}.", True),
    ("Answer: **{}**", True),
    ("Answer: {}0", False),
    ("Answer: NULL", False),
    ("I can't tell.", False),
    ("Answer:", False),
    ("Answer: \0\ud800", False),
  ],
)
def test_an_answer_is_right_if_it_is_equal(stated, is_right):
  (seed, *_) = (x for x in SEEDS if shop_tasks.task(x).answer not in (0, "0"))
  turn = _text(stated.format(shop_tasks.task(seed).answer))
  judged = sql.judge(_played(seed, turn))
  assert (judged.labels, judged.outcome) == ((is_right,), is_right)


def test_only_a_last_turn_without_a_call_states_an_answer():
  task = shop_tasks.task(0)
  stated = _text(f"Answer: {task.answer}")
  played = _played(0, task.query)
  with_call = _played(
    0, dataclasses.replace(stated, calls=played.messages[2].calls)
  )
  by_user = (
    *played.messages,
    _text("Hm."),
    schema.Message("user", stated.text),
  )
  for trajectory in (
    played,
    with_call,
    schema.first_turns(with_call, 1),
    messages.trajectory(by_user),
  ):
    assert sql.SQL().answer(trajectory) is None
    assert sql.SQL().outcome(trajectory) is False


def test_what_is_no_trajectory_of_this_world_is_refused():
  with pytest.raises(errors.InputError, match="no trajectory of whole turns"):
    sql.judge(schema.Solution("a", shop_tasks.task(0).problem, ("SELECT 1",)))
  other = messages.trajectory([dict(role="user", content="How many?")])
  with pytest.raises(errors.InputError, match="no question on a database"):
    turns.reset(sql.SQL(), other)


def test_openings_know_their_answers_and_their_tool():
  for opening, seed in zip(sql.openings(SEEDS), SEEDS, strict=True):
    assert opening.problem == shop_tasks.task(seed).problem
    assert opening.extra[schema.REFERENCE] == str(shop_tasks.task(seed).answer)
    assert opening.tools == (sql.TOOL,) and not opening.steps
