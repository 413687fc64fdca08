"""Questions on small databases of shops, each with its exact answer, by seed.

A database has customers and their orders, and perhaps products and shops; its
tables and columns have one of several names, so a query needs a look-up of the
schema. A task has variants of its database: the same schema and names, and
other cities, kinds and orders. What answers the question on all of them answers
it by what it says, not by chance (a distilled test suite, as in Zhong et al.
2020, arXiv 2010.02840).

Answers are integers or names. Ties are broken by name, in the question too, and
NULL is a city that isn't known or an order that isn't shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import random
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax.environments import database
from prm_jax.runtime import checks

NUM_VARIANTS = 8

_WORDS = dict(
  customers=("customers", "clients", "buyers"),
  orders=("orders", "purchases", "sales"),
  products=("products", "articles", "goods"),
  shops=("shops", "stores", "branches"),
  city=("city", "town", "place"),
  amount=("amount", "price_paid", "euros"),
  shipped=("shipped", "shipped_on", "sent_on"),
)
_CUSTOMERS = ("Ann", "Ben", "Cal", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida")
_CITIES = ("Bonn", "Lyon", "Oslo", "Turin")
_PRODUCTS = ("bowl", "chair", "cup", "desk", "fork", "lamp", "pan", "rug")
_SHOPS = ("East", "North", "South", "West")
_ORDER = (
  "customer_id INTEGER NOT NULL, product_id INTEGER NOT NULL,"
  " shop_id INTEGER NOT NULL, {amount} INTEGER NOT NULL, {shipped} TEXT"
)


_BOUGHT = "FROM {orders} AS o JOIN {customers} AS c ON c.id = o.customer_id"
_OF_CITY = f"{_BOUGHT} WHERE c.{{city}} = '{{City}}'"
_OF_ONE = f"{_BOUGHT} WHERE c.name = '{{Customer}}'"
_IN_SHOP = (
  f"{_BOUGHT} JOIN {{shops}} AS s ON s.id = o.shop_id WHERE s.name = '{{Shop}}'"
)
# The tables that a question needs (customers and orders, then products, then
# shops), the question, what answers it, and a query with an error that people
# make. Words in braces are those of the task.
_QUESTIONS = (
  (
    2,
    "What is the sum of the amounts of all orders by customers from {City}? It"
    " is 0 if there are none.",
    f"SELECT COALESCE(SUM(o.{{amount}}), 0) {_OF_CITY}",
    f"SELECT COUNT(o.{{amount}}) {_OF_CITY}",
  ),
  (
    2,
    "Which customer placed the most orders? Of several, name the first in the"
    " alphabet.",
    f"SELECT c.name {_BOUGHT} GROUP BY c.id"
    " ORDER BY COUNT(*) DESC, c.name LIMIT 1",
    f"SELECT c.name {_BOUGHT} GROUP BY c.id"
    " ORDER BY COUNT(*) DESC, c.name DESC LIMIT 1",
  ),
  (
    2,
    "How many customers placed no order?",
    "SELECT COUNT(*) FROM {customers}"
    " WHERE id NOT IN (SELECT customer_id FROM {orders})",
    "SELECT COUNT(*) FROM {customers}",
  ),
  (
    2,
    "How many orders by customers from {City} have not been shipped?",
    f"SELECT COUNT(*) {_OF_CITY} AND o.{{shipped}} IS NULL",
    f"SELECT COUNT(*) {_OF_CITY} AND o.{{shipped}} = NULL",
  ),
  (
    3,
    "How many different products did {Customer} order?",
    f"SELECT COUNT(DISTINCT o.product_id) {_OF_ONE}",
    f"SELECT COUNT(o.product_id) {_OF_ONE}",
  ),
  (
    4,
    "How many orders in the shop {Shop} are by customers from the city of this"
    " shop?",
    f"SELECT COUNT(*) {_IN_SHOP} AND s.{{city}} = c.{{city}}",
    f"SELECT COUNT(*) {_IN_SHOP}",
  ),
)
_PROBLEM = re.compile(r"Database ([0-9]{1,10})\. .+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Task:
  """A question on a database.

  Args:
    problem: The seed and the question.
    answer: The exact answer.
    query: A query whose first row is the answer.
    wrong_query: A query whose first row isn't, by an error in it.
    databases: The database, and its variants.
    answers: The answer on each of them.
  """

  problem: str
  answer: int | str
  query: str
  wrong_query: str
  databases: tuple[bytes, ...]
  answers: tuple[int | str, ...]


@functools.lru_cache(maxsize=256)
def task(seed: int) -> Task:
  """Returns the task of a seed.

  Args:
    seed: The seed, from 0 to 2**32 - 1.

  Raises:
    InputError: The seed is out of range.
  """
  checks.check_seed(seed)
  tasks = (_draw(seed, attempt) for attempt in itertools.count())
  return next(x for x in tasks if _tells_answers_apart(x))


def of_problem(problem: str) -> Task:
  """Returns the task that a text is the problem of.

  Args:
    problem: The text.

  Raises:
    InputError: It is no task's.
  """
  match = _PROBLEM.fullmatch(problem)
  if match and int(match[1]) <= checks.MAX_SEED:
    task_of_seed = task(int(match[1]))
    if task_of_seed.problem == problem:
      return task_of_seed
  raise errors.InputError(
    f"{reprlib.repr(problem)} is no question on a database; give one as"
    " environments.shop_tasks.task makes it"
  )


def _tells_answers_apart(drawn: Task) -> bool:
  wrong = _first(drawn.databases[0], drawn.wrong_query)
  # No constant may pass for what answers the question.
  return wrong != drawn.answer and len({*drawn.answers}) > 2


def _draw(seed: int, attempt: int) -> Task:
  rng = random.Random(f"shop {seed} {attempt}")
  num_tables = rng.randint(2, 4)
  known = [x for x in _QUESTIONS if x[0] <= num_tables]
  _, text, query, wrong = rng.choice(known)
  customers = rng.sample(_CUSTOMERS, rng.randint(6, 9))
  words = {word: rng.choice(names) for word, names in _WORDS.items()}
  words["Customer"] = rng.choice(customers)
  words["City"], words["Shop"] = rng.choice(_CITIES), rng.choice(_SHOPS)
  databases = tuple(
    _database(rng, num_tables, words, customers)
    for _ in range(NUM_VARIANTS + 1)
  )
  query = query.format_map(words)
  answers = tuple(_first(x, query) for x in databases)
  return Task(
    problem=f"Database {seed}. {text.format_map(words)}",
    answer=answers[0],
    query=query,
    wrong_query=wrong.format_map(words),
    databases=databases,
    answers=answers,
  )


def _database(
  rng: random.Random, num_tables: int, words: dict[str, str], customers
) -> bytes:
  """Returns a database with rows drawn at random."""
  # Some customers have no orders, and a NULL city isn't known.
  buyers = rng.sample(range(1, len(customers) + 1), rng.randint(3, 6))
  orders = [
    (
      rng.choice(buyers),
      rng.randint(1, len(_PRODUCTS)),
      rng.randint(1, len(_SHOPS)),
      5 * rng.randint(1, 20),
      rng.choice((f"2024-03-{rng.randint(1, 28):02}", None)),
    )
    for _ in range(rng.randint(20, 40))
  ]
  tables = (
    ("orders", _ORDER, orders),
    (
      "customers",
      "name TEXT NOT NULL, {city} TEXT",
      [(x, rng.choice((*_CITIES, None))) for x in customers],
    ),
    ("products", "name TEXT NOT NULL", [(x,) for x in _PRODUCTS]),
    (
      "shops",
      "name TEXT NOT NULL, {city} TEXT NOT NULL",
      [(x, rng.choice(_CITIES)) for x in _SHOPS],
    ),
  )
  statements: list[tuple[str, Sequence[Sequence[Any]]]] = []
  for word, columns, rows in tables[:num_tables]:
    table, columns = words[word], columns.format_map(words)
    marks = ", ".join("?" * (len(rows[0]) + 1))
    numbered = [(i, *row) for i, row in enumerate(rows, 1)]
    statements += [
      (f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {columns})", ()),
      (f"INSERT INTO {table} VALUES ({marks})", numbered),
    ]
  return database.make(statements)


def _first(content: bytes, query: str) -> Any:
  return database.run(content, query).rows[0][0]
