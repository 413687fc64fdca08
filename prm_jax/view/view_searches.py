"""The trees of searches as pages show them: steps first, then what they cost."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import re
from typing import Any
import unicodedata

from prm_jax import schema
from prm_jax.search import bill as bill_lib
from prm_jax.search import search_results
from prm_jax.search import tree as tree_lib
from prm_jax.view import view_samples

WAYS = dict(
  best="Best-scored", weighted="Weighted vote", majority="Majority vote"
)
_UNKNOWN = "not known"
# Why a node that isn't continued ends, on its line and in its facts.
_CUT = dict(length="most tokens", empty="added nothing", steps="most steps")
_STOPPED = dict(
  root="",
  step="the step ended",
  end="the policy ended the solution",
  stop="a stop text ended the solution",
  length="cut at the most tokens",
  empty="the policy added nothing",
  steps="cut at the most steps",
)
_OVER = dict(rule="by its rule", budget="by its budget")

# Of a problem, the first steps of a labelled solution -> whether the last of
# them is right.
Truth = Mapping[str, Mapping[tuple[str, ...], bool]]


def known_steps(samples: Iterable[view_samples.Sample]) -> Truth:
  """Returns which steps are known to be right or wrong, from labels.

  Args:
    samples: The samples of all files. The first that labels a step counts.
  """
  known: dict[str, dict[tuple[str, ...], bool]] = {}
  for sample in samples:
    of_problem = known.setdefault(sample.solution.problem, {})
    for labels in sample.labels.values():
      _note(of_problem, sample.solution.steps, labels)
  return known


def _note(
  of_problem: dict[tuple[str, ...], bool],
  steps: tuple[str, ...],
  labels: Sequence[float | None],
) -> None:
  for i, label in enumerate(labels, 1):
    if label is not None:
      of_problem.setdefault(steps[:i], label >= schema.THRESHOLD)


def file_row(
  name: str, results: Sequence[search_results.Result]
) -> dict[str, Any]:
  """Returns what the head of a file's table says of its searches.

  Args:
    name: The name of the file.
    results: Its results.

  Returns:
    The numbers of nodes, trees and sampled tokens, and the right answers by
    each way to choose them, among those that were judged.
  """
  ways = []
  for how, text in WAYS.items():
    outcomes = [r.answers[how].outcome for r in results]
    judged = [x for x in outcomes if x is not None]
    if judged:
      ways.append([text, sum(judged), len(judged)])
  return dict(
    name=name,
    nodes=sum(len(r.tree.nodes) - 1 for r in results),
    trees=len(results),
    tokens=sum(bill_lib.sampled(r.tree.bill) for r in results),
    ways=ways,
  )


def row(name: str, result: search_results.Result) -> dict[str, Any]:
  """Returns what the table shows of a search.

  Args:
    name: The name of the file.
    result: The search.
  """
  solution = result.solution
  return dict(
    key=f"{solution.id} ({name})",
    file=name,
    id=solution.id,
    answer=solution.answer,
    reference=_text(solution.extra.get(schema.REFERENCE)),
    outcome=solution.outcome,
    nodes=len(result.tree.nodes) - 1,
    tokens=bill_lib.sampled(result.tree.bill),
  )


def content(
  name: str, result: search_results.Result, known: Truth
) -> dict[str, Any]:
  """Returns what the page of a search shows.

  Args:
    name: The name of the file.
    result: The search.
    known: What is known of steps.
  """
  answers = []
  for how, text in WAYS.items():
    answer = result.answers[how]
    score = None
    if answer.node is not None:
      score = result.tree.nodes[answer.node].score
    answers.append([text, answer.text, answer.outcome, answer.node, score])
  return dict(
    file=name,
    id=result.solution.id,
    problem=result.solution.problem,
    reference=_text(result.solution.extra.get(schema.REFERENCE)),
    answers=answers,
    chosen=result.chosen,
    bill=_bill(result.bill),
    facts=_facts(result),
    rounds=_rounds(result.tree),
    nodes=_nodes(result, known),
  )


def _text(value: Any) -> str | None:
  return None if value is None else str(value)


def _bill(bill: Mapping[str, Mapping[str, int | None]]) -> list[list[str]]:
  """Returns of each model its calls, and the tokens that it wrote and read."""

  def text(num: int | None) -> str:
    return _UNKNOWN if num is None else f"{num:,}"

  rows = []
  for name, counts in bill.items():
    read, once = counts["read"], counts["read_once"]
    reused = None if read is None or once is None else read - once
    numbers = (counts["calls"], counts["sampled"], read, once, reused)
    rows.append([_model(name), *map(text, numbers)])
  return rows


def _facts(result: search_results.Result) -> list[tuple[str, str]]:
  tree = result.tree
  flops = _UNKNOWN if result.flops is None else f"{float(result.flops):.4g}"
  rows = [
    ("FLOPs of all models, with caches", flops),
    ("rounds", f"{len(tree.rounds):,}"),
    ("nodes", f"{len(tree.nodes) - 1:,}"),
    ("candidates", f"{len(tree.candidates):,}"),
    ("ended", _OVER.get(tree.stopped, "not yet")),
  ]
  if known := [(n, x) for n, x in result.compute_dtype.items() if x]:
    types = ", ".join(f"{_model(name)} {dtype}" for name, dtype in known)
    rows.append(("computed in", types))
  if tree.unused:
    vain = f"{bill_lib.sampled(tree.unused):,} tokens, not in the bill"
    rows.append(("sampled in vain, past the budget", vain))
  return rows


def _rounds(tree: tree_lib.Tree) -> list[list[str]]:
  """Returns of each round what was continued, what stayed, what was new."""
  rows, before = [], 1
  for round_, size in zip(tree.rounds, tree.sizes, strict=True):
    continued = [
      f"{x.node} (× {x.num}{', whole' * x.whole})" for x in round_.expansions
    ]
    stayed = map(str, round_.carried)
    rows.append(
      [", ".join(continued), ", ".join(stayed), f"{size - before:,} new nodes"]
    )
    before = size
  return rows


# --- The tree ----------------------------------------------------------------


def _nodes(result: search_results.Result, known: Truth) -> list[dict[str, Any]]:
  """Returns the nodes of a tree but the root, each after its parent."""
  tree = result.tree
  right = dict(known.get(result.solution.problem, {}))
  _note(
    right,
    result.solution.steps,
    view_samples.labels_of(result.solution) or (),
  )
  path = {*tree.ancestors(result.chosen or 0)}
  leading = {n for c in {*tree.candidates} for n in tree.ancestors(c)}
  num_below = [0] * len(tree.nodes)
  for node in reversed(tree.nodes[1:]):  # children come after their parents
    assert node.parent is not None
    num_below[node.parent] += 1 + num_below[node.id]
  times = Counter(tree.candidates)
  like = _groups(tree, path)
  wrong_at: list[bool] = [False]
  nodes = []
  for node in tree.nodes[1:]:
    assert node.parent is not None
    steps = _steps(tree, node, right)
    is_wrong = any(x[2] is False for x in steps)
    first = is_wrong and not wrong_at[node.parent]
    wrong_at.append(is_wrong or wrong_at[node.parent])
    tags = _tags(result, node, times[node.id], num_below[node.id])
    nodes.append(
      dict(
        id=node.id,
        parent=node.parent,
        like=like[node.id],
        score=node.score,
        steps=steps,
        is_first_wrong=first,
        is_path=node.id in path,
        is_lost=node.id not in leading,
        tags=tags,
        facts=_node_facts(tree, node),
        ahead=list(node.ahead),
      )
    )
  return nodes


def normal(text: str) -> str:
  """Returns what is equal of texts that a person reads as the same.

  Case, dollars, blanks that no two words need, and marks at the end are left
  out; nothing that is a part of a number is.

  Args:
    text: The text.
  """
  text = unicodedata.normalize("NFKC", text).casefold().replace("$", " ")
  text = re.sub(r"(?<!\w) | (?!\w)", "", " ".join(text.split()))
  return text.rstrip(".,;:!") or text


def _groups(tree: tree_lib.Tree, path: set[int]) -> list[int]:
  """Returns for each node the sibling that stands for it, often itself.

  Siblings are alike if their steps are, as `normal` says. The one on the path
  to the chosen solution stands for them, or else the best-scored.
  """
  alike: dict[Any, list[tree_lib.Node]] = {}
  for node in tree.nodes[1:]:
    assert node.parent is not None
    begun = tree.nodes[node.parent].num_steps
    added = tuple(map(normal, node.solution.steps[begun:]))
    alike.setdefault((node.parent, added), []).append(node)
  like = [0] * len(tree.nodes)
  for members in alike.values():
    best = max(members, key=lambda x: (x.id in path, x.score))
    for member in members:
      like[member.id] = best.id
  return like


def _steps(
  tree: tree_lib.Tree,
  node: tree_lib.Node,
  right: Mapping[tuple[str, ...], bool],
) -> list[tuple[str, float, bool | None]]:
  """Returns each step of a node, its score, and whether it is right, if known."""
  assert node.parent is not None
  begun = tree.nodes[node.parent].num_steps
  steps = node.solution.steps
  return [
    (steps[i], node.step_scores[i], right.get(steps[: i + 1]))
    for i in range(begun, len(steps))
  ]


def _tags(
  result: search_results.Result, node: tree_lib.Node, times: int, below: int
) -> list[str]:
  """Returns what is marked on a node's line.

  Args:
    result: The search.
    node: The node.
    times: How often it counts as a candidate.
    below: The number of nodes below it.
  """
  tags = ["chosen"] if node.id == result.chosen else []
  own = {how: a for how, a in result.answers.items() if a.node == node.id}
  tags += [WAYS[how].lower() for how in own]
  for outcome in {a.outcome for a in own.values()} - {None}:
    tags.append("right answer" if outcome else "wrong answer")
  if times:
    tags.append("candidate" + f" × {times}" * (times > 1))
  if node.stopped in _CUT:
    tags.append(f"cut: {_CUT[node.stopped]}")
  if not times and not below:
    ended = "ended, " * node.ended + "no candidate"
    tags.append("not continued" if node.is_open else ended)
  return tags


def _node_facts(tree: tree_lib.Tree, node: tree_lib.Node) -> list[str]:
  """Returns what is known of a node beside its text and score."""
  facts = [
    f"node {node.id}, path {node.path}",
    f"step {node.num_steps}",
    f"round {bisect.bisect_right(tree.sizes, node.id) + 1}",
    f"written by {node.writer}",
    _STOPPED[node.stopped],
    f"log-odds {node.log_odds:+.2f}",
  ]
  for name, spent in node.cost.items():
    parts = [f"{spent.sampled:,} sampled"] if spent.sampled else []
    if spent.read:
      parts.append(f"{spent.read:,} read, {spent.read_once:,} computed")
    tokens = ", ".join(parts) or _UNKNOWN
    facts.append(f"tokens of {_model(name)}: {tokens}")
  return facts


def _model(name: str) -> str:
  return "the PRM" if name == bill_lib.SCORER else name
