"""The results of searches as they are read: every field is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice
from prm_jax.search import records
from prm_jax.search import tree as tree_lib

_STOPPED = (*tree_lib.OPEN, *tree_lib.ENDED, *tree_lib.CUT)
# What a search adds to a solution's record, and which type each has.
FIELDS: Mapping[str, type] = dict(
  answers=dict, candidates=list, select=str, bill=dict, tree=dict
)
_COUNTS = tuple(field.name for field in dataclasses.fields(bill_lib.Spent))


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer that was chosen.

  Args:
    text: The answer; None if no candidate states one.
    node: The number of the node that stands for it; None without a candidate.
    outcome: Whether it is right; None if that isn't known.
  """

  text: str | None
  node: int | None
  outcome: bool | None


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
  """The search of one problem.

  Args:
    solution: The solution that was chosen, with the problem's id.
    tree: The tree.
    answers: The answer by each of choice.SELECTIONS.
    bill: Of each model its counts, as bill.Spent names them; those of tokens
      that were read are None if its prompts aren't known.
    flops: The FLOPs of all models; None if they aren't known.
    compute_dtype: The type that each model computed in; None isn't known.
    chosen: The number of the chosen solution's node; None without a candidate.
  """

  solution: schema.Solution
  tree: tree_lib.Tree
  answers: Mapping[str, Answer]
  bill: Mapping[str, Mapping[str, int | None]]
  flops: float | None
  compute_dtype: Mapping[str, str | None]
  chosen: int | None


def read(path: files.PathLike) -> list[schema.Solution]:
  """Returns the results in a file that `prm-jax search` wrote.

  Args:
    path: The file.

  Returns:
    The solutions, in the order of the lines.

  Raises:
    InputError: The file can't be read, a line isn't the result of a search, an
      id comes twice, or there is no line.
  """
  seen: dict[str, str] = {}
  read_so_far = []
  for where, record in record_files.read_records(path):
    lacking = (x for x in FIELDS if x not in record)
    _refuse_any((f'it has no "{x}"' for x in lacking), where)
    solution = jsonl.solution_from_record(record, where)
    fields.unique_id(seen, solution.id, where)
    from_solution(solution, where)
    read_so_far.append(solution)
  if not read_so_far:
    raise errors.InputError(
      f"{path}: holds no result; give a file that `prm-jax search` wrote"
    )
  return read_so_far


def from_solution(solution: schema.Solution, where: str) -> Result:
  """Returns the result that a solution holds.

  Args:
    solution: What solutions.results returned, or its line in a file.
    where: What an error names: the file and the line.

  Returns:
    The result.

  Raises:
    InputError: It isn't the result of a search.
  """
  extra = solution.extra
  _refuse_any(_wrong_fields(extra), where)
  tree = records.tree_from_record(extra["tree"], where)
  _refuse_any(_wrong_tree(tree), where)
  answers = {}
  for how in choice.SELECTIONS:
    told = extra["answers"].get(how)
    _refuse_any(_wrong_answer(told, tree), f'{where}: "answers.{how}"')
    answers[how] = Answer(told["answer"], told["node"], told["outcome"])
  models, flops = extra["bill"].get("models"), extra["bill"].get("flops")
  dtypes = extra["bill"].get("compute_dtype")
  chosen = answers[extra["select"]].node
  steps = () if chosen is None else tree.nodes[chosen].solution.steps
  right = {
    '"bill" isn\'t one': _is_bill(models)
    and checks.is_a(flops, float | None)
    and isinstance(dtypes, Mapping)
    and all(checks.is_a(x, str | None) for x in dtypes.values()),
    '"candidates" has one that isn\'t one': all(
      _is_candidate(x, tree) for x in extra["candidates"]
    ),
    '"steps" aren\'t those of the chosen node': steps == solution.steps,
  }
  _refuse_any((why for why, fits in right.items() if not fits), where)
  return Result(solution, tree, answers, models, flops, dtypes, chosen)


def _refuse_any(faults: Iterator[str], where: str) -> None:
  fix = "; give a file that `prm-jax search` wrote"
  errors.raise_first(
    (f"isn't the result of a search: {why}{fix}" for why in faults),
    f"{where}: ",
  )


def _wrong_fields(extra: Mapping[str, object]) -> Iterator[str]:
  for name, kind in FIELDS.items():
    if not isinstance(extra.get(name), kind):
      yield f'it has no "{name}"'
  if extra["select"] not in choice.SELECTIONS:
    yield f'"select" is {extra["select"]!r}'


def _wrong_tree(tree: tree_lib.Tree) -> Iterator[str]:
  """Yields values of a tree that tree_from_record doesn't look at."""
  if not isinstance(tree.stopped, str) or not _is_spent(tree.unused):
    yield '"stopped" or "unused" of its tree isn\'t one'
  for node in tree.nodes[1:]:
    shares = (node.score, *node.step_scores)
    right = dict(
      stopped=node.stopped in _STOPPED,
      writer=isinstance(node.writer, str),
      path=isinstance(node.path, str),
      score=all(checks.is_a(x, float) and 0 <= x <= 1 for x in shares),
      step_scores=len(node.step_scores) == node.num_steps,
      log_odds=checks.is_a(node.log_odds, float),
      ahead=checks.is_a(node.ahead, tuple[str, ...]),
      cost=_is_spent(node.cost),
    )
    for name, fits in right.items():
      if not fits:
        yield f'"{name}" of node {node.id} isn\'t one'


def _is_spent(bill: bill_lib.Bill) -> bool:
  return all(
    checks.is_a(value, int)
    for spent in bill.values()
    for value in dataclasses.astuple(spent)
  )


def _is_bill(models: object) -> bool:
  return isinstance(models, Mapping) and all(
    isinstance(counts, Mapping)
    and {*_COUNTS} <= counts.keys()
    and all(checks.is_a(counts[name], int | None) for name in _COUNTS)
    for counts in models.values()
  )


def _wrong_answer(record: object, tree: tree_lib.Tree) -> Iterator[str]:
  if not (
    isinstance(record, Mapping)
    and {"answer", "node", "outcome"} <= record.keys()
    and checks.is_a(record["answer"], str | None)
    and checks.is_a(record["node"], int | None)
    and (record["node"] is None or 0 < record["node"] < len(tree.nodes))
    and checks.is_a(record["outcome"], bool | None)
  ):
    yield "expected an answer, its node and its outcome"


def _is_candidate(record: object, tree: tree_lib.Tree) -> bool:
  return (
    isinstance(record, Mapping)
    and checks.is_a(record.get("node"), int)
    and 0 < record["node"] < len(tree.nodes)
    and checks.is_a(record.get("answer"), str | None)
    and checks.is_a(record.get("outcome"), bool | None)
    and checks.is_a(record.get("score"), float)
  )
