"""A task's answer is exact: an independent reading of the tables agrees."""

from collections import Counter
import sqlite3

import pytest

from prm_jax import errors
from prm_jax.environments import database
from prm_jax.environments import shop_tasks

SEEDS = range(20)


def _tables(content):
  """Returns rows by table, in its order: orders, customers, products, shops."""
  connection = sqlite3.connect(":memory:")
  connection.deserialize(content)
  names = [x for (x,) in connection.execute("SELECT name FROM sqlite_master")]
  return [connection.execute(f"SELECT * FROM {x}").fetchall() for x in names]


def _by_hand(problem, content):
  """Returns the answer, computed in Python from the question's words."""
  orders, customers, *others = _tables(content)
  name = {i: x for i, x, _ in customers}
  city = {i: x for i, _, x in customers}
  text = problem.partition(". ")[2]
  words = text.replace("?", " ").replace(".", " ").split()
  if text.startswith("What is the sum"):
    of = words[words.index("from") + 1]
    return sum(x[4] for x in orders if city[x[1]] == of)
  if text.startswith("Which customer"):
    counts = Counter(name[x[1]] for x in orders)
    return min(counts, key=lambda x: (-counts[x], x))
  if "placed no order" in text:
    return len({*name} - {x[1] for x in orders})
  if "have not been shipped" in text:
    of = words[words.index("from") + 1]
    return sum(city[x[1]] == of and x[5] is None for x in orders)
  if "different products" in text:
    of = words[words.index("did") + 1]
    return len({x[2] for x in orders if name[x[1]] == of})
  assert "in the shop" in text
  of = words[words.index("shop") + 1]
  ((shop, town),) = [(i, t) for i, x, t in others[1] if x == of]
  return sum(x[3] == shop and city[x[1]] == town for x in orders)


def test_the_answers_are_those_of_a_program_without_sql():
  kinds, num_ties = Counter(), 0
  for seed in SEEDS:
    task = shop_tasks.task(seed)
    for content, answer in zip(task.databases, task.answers, strict=True):
      assert _by_hand(task.problem, content) == answer
    assert task.answer == task.answers[0]
    kinds[task.query.partition("FROM")[0]] += 1
    if "DESC" in task.query:
      for content in task.databases:
        counts = Counter(x[1] for x in _tables(content)[0])
        num_ties += [*counts.values()].count(max(counts.values())) > 1
  # All questions, and ties, are among them.
  assert len(kinds) >= 4 and num_ties


def test_tasks_are_those_of_their_seeds():
  first = [shop_tasks.task(seed) for seed in SEEDS]
  shop_tasks.task.cache_clear()
  assert [shop_tasks.task(seed) for seed in SEEDS[:9]] == first[:9]
  assert len({x.problem for x in first}) == len(first)
  assert all(shop_tasks.of_problem(x.problem) == x for x in first[:5])


def test_databases_have_two_to_four_tables_and_variants_their_schema():
  query = "SELECT sql FROM sqlite_master"
  nums = set()
  for seed in SEEDS:
    schemas = [
      database.run(x, query).rows for x in shop_tasks.task(seed).databases
    ]
    assert len({*schemas}) == 1 and len(schemas) == shop_tasks.NUM_VARIANTS + 1
    nums.add(len(schemas[0]))
  assert nums == {2, 3, 4}


def test_a_text_that_is_no_tasks_problem_is_refused():
  problem = shop_tasks.task(3).problem
  for text in (
    "How many?",
    problem.replace("Database 3", "Database 4"),
    f"{problem} ",
    "Database 4294967296. How many customers placed no order?",
  ):
    with pytest.raises(errors.InputError, match="is no question on a database"):
      shop_tasks.of_problem(text)
