"""The results of searches as they are read: every field is checked."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice as answers_lib
from prm_jax.search import records
from prm_jax.search import tree as tree_lib

_STOPPED = (*tree_lib.OPEN, *tree_lib.ENDED, *tree_lib.CUT)
_FIELDS: Mapping[str, type] = dict(
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
    answers: The answer by each of answers.SELECTIONS.
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
    for name in _FIELDS:
      if name not in record:
        raise _refused(where, f'it has no "{name}"')
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
  for name, kind in _FIELDS.items():
    if not isinstance(extra.get(name), kind):
      raise _refused(where, f'it has no "{name}"')
  if extra["select"] not in answers_lib.SELECTIONS:
    raise _refused(where, f'"select" is {extra["select"]!r}')
  tree = records.tree_from_record(extra["tree"], where)
  _check_tree(tree, where)
  answers = {
    how: _answer(extra["answers"].get(how), tree, f'{where}: "answers.{how}"')
    for how in answers_lib.SELECTIONS
  }
  models, flops = extra["bill"].get("models"), extra["bill"].get("flops")
  dtypes = extra["bill"].get("compute_dtype")
  if (
    not _is_bill(models)
    or not checks.is_a(flops, float | None)
    or not isinstance(dtypes, Mapping)
    or not all(checks.is_a(x, str | None) for x in dtypes.values())
  ):
    raise _refused(where, '"bill" isn\'t one')
  if not all(_is_candidate(x, tree) for x in extra["candidates"]):
    raise _refused(where, '"candidates" has one that isn\'t one')
  chosen = answers[extra["select"]].node
  steps = () if chosen is None else tree.nodes[chosen].solution.steps
  if steps != solution.steps:
    raise _refused(where, '"steps" aren\'t those of the chosen node')
  return Result(solution, tree, answers, models, flops, dtypes, chosen)


def _refused(where: str, why: str) -> errors.InputError:
  return errors.InputError(
    f"{where}: isn't the result of a search: {why}; give a file that `prm-jax"
    " search` wrote"
  )


def _check_tree(tree: tree_lib.Tree, where: str) -> None:
  """Refuses a tree with values that tree_from_record doesn't look at."""
  if not isinstance(tree.stopped, str) or not _is_spent(tree.unused):
    raise _refused(where, '"stopped" or "unused" of its tree isn\'t one')
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
        raise _refused(where, f'"{name}" of node {node.id} isn\'t one')


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


def _answer(record: object, tree: tree_lib.Tree, where: str) -> Answer:
  if isinstance(record, Mapping):
    text, node = record.get("answer"), record.get("node")
    outcome = record.get("outcome")
    if (
      checks.is_a(text, str | None)
      and checks.is_a(node, int | None)
      and (node is None or 0 < node < len(tree.nodes))
      and checks.is_a(outcome, bool | None)
    ):
      return Answer(text, node, outcome)
  raise _refused(where, "expected an answer, its node and its outcome")


def _is_candidate(record: object, tree: tree_lib.Tree) -> bool:
  return (
    isinstance(record, Mapping)
    and checks.is_a(record.get("node"), int)
    and 0 < record["node"] < len(tree.nodes)
    and checks.is_a(record.get("answer"), str | None)
    and checks.is_a(record.get("outcome"), bool | None)
    and checks.is_a(record.get("score"), float)
  )
