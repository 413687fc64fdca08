"""The trees of a search as one HTML page, on which a person walks them."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.reports import html
from prm_jax.reports import solution_cards
from prm_jax.runtime import files
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice
from prm_jax.search import search_results as search_results
from prm_jax.search import tree as tree_lib

# The most problems whose tree a page has, unless the caller says it.
NUM_TREES = 20

_WAYS = dict(
  best="Best-scored", weighted="Weighted vote", majority="Majority vote"
)
_UNKNOWN = "not known"
_OUTCOMES = {
  None: html.Cell("–", title="not judged"),
  True: html.Cell("✓ right", css="right"),
  False: html.Cell("✗ wrong", css="wrong"),
}
# So many characters of an answer are shown in a table; the tree has all.
_ANSWER_CHARACTERS = 80
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


class _Row(NamedTuple):
  """A node's line.

  Args:
    anchor: The id of its element.
    css: Its classes.
    fill: The colour of its score.
    is_open: Whether what is below it is shown at first.
    score: Its score.
    steps: The text of each step that it adds; if there are several, its score
      and colour, too.
    tags: What is marked on it.
    facts: What else is known of it.
    ahead: The steps that were written after it only to score it.
    num_closed: How many elements end after it, its own included.
  """

  anchor: str
  css: str
  fill: str
  is_open: bool
  score: str
  steps: Sequence[tuple[str, str, str]]
  tags: Sequence[html.Cell]
  facts: str
  ahead: Sequence[str]
  num_closed: int


def write(
  path: files.PathLike,
  results: Sequence[schema.Solution],
  *,
  most: int = NUM_TREES,
) -> None:
  """Writes the page of a search, all or nothing.

  Args:
    path: The file to write.
    results: What solutions.result returned, or a file of them holds.
    most: The most problems whose tree is shown, the first ones.

  Raises:
    InputError: There is no result, one isn't the result of a search, or the
      file can't be written.
  """
  html.write(path, render(results, most=most))


def render(results: Sequence[schema.Solution], *, most: int = NUM_TREES) -> str:
  """Returns the page.

  Args:
    results: See write.
    most: See write.

  Raises:
    InputError: See write.
  """
  if not results:
    raise errors.InputError("there is no result of a search; give one or more")
  rows = [search_results.from_solution(s, f"problem {s.id!r}") for s in results]
  shown = rows[: max(most, 0)]
  left_out = ""
  if len(shown) < len(rows):
    counts = dict(shown=len(shown), num=len(rows))
    left_out = html.sentence("search_left_out", counts)
  values = dict(threshold=solution_cards.THRESHOLD, left_out=left_out)
  trees = [
    html.Section("search_tree", _search(i, r), dict(id=r.solution.id))
    for i, r in enumerate(shown)
  ]
  return html.page(
    "What a search wrote",
    "prm-jax search",
    _summary(rows),
    [html.Section("searched", _table(rows, len(shown)), values), *trees],
    _tiles(rows),
    "Right answers, by how the answer is chosen among the candidates.",
  )


def _summary(results: Sequence[search_results.Result]) -> str:
  nodes = sum(len(r.tree.nodes) - 1 for r in results)
  tokens = sum(bill_lib.sampled(r.tree.bill) for r in results)
  values = dict(
    nodes=_count(nodes, "node"),
    trees=_count(len(results), "tree"),
    tokens=f"{tokens:,}",
  )
  return html.sentence("searched", values)


def _count(num: int, noun: str) -> str:
  return f"{num:,} {noun}" + "s" * (num != 1)


def _tiles(results: Sequence[search_results.Result]) -> html.Markup:
  """Returns the share of right answers by each way to choose them."""
  tiles = []
  for i, (how, name) in enumerate(_WAYS.items()):
    outcomes = [r.answers[how].outcome for r in results]
    judged = [x for x in outcomes if x is not None]
    if judged:
      share = f"{html.percent(sum(judged) / len(judged))} %"
      small = f"{sum(judged)} of {len(judged)}"
      tiles.append((name, html.Cell(share, small, f"k{i}")))
  return html.pairs(tiles, "tiles")


def _table(
  results: Sequence[search_results.Result], num_shown: int
) -> html.Markup:
  """Returns a table of problems, with links to those that have a tree here."""
  rows = []
  for i, r in enumerate(results):
    name = html.Cell(r.solution.id, css="text")
    if i < num_shown:
      jump = html.part("jump", f"p{i}", r.solution.id)
      name = html.Cell("", css="text", mark=jump)
    rows.append(
      [
        name,
        _text(r.solution.answer, "none"),
        _text(r.solution.extra.get(schema.REFERENCE), _UNKNOWN),
        _OUTCOMES[r.solution.outcome],
        f"{len(r.tree.nodes) - 1:,}",
        f"{bill_lib.sampled(r.tree.bill):,}",
      ]
    )
  head = ["problem", "answer", "reference", "", "nodes", "tokens"]
  return html.table("Problems", head, rows, "full walk answers")


def _text(value: Any, without: str) -> html.Cell:
  """Returns an answer's cell, with the beginning of a long one."""
  text = without if value is None else str(value)
  if len(text) > _ANSWER_CHARACTERS:
    text = f"{text[:_ANSWER_CHARACTERS]}…"
  return html.Cell(text, css="text")


# --- One problem ------------------------------------------------------------


def _search(number: int, result: search_results.Result) -> html.Markup:
  """Returns the markup of one problem's search."""
  tree, anchor = result.tree, f"p{number}"
  depths = _depths(tree)
  return html.part(
    "search",
    anchor,
    result.solution.problem,
    _answers(anchor, result),
    _bill(result.bill),
    _facts(result),
    max(depths),
    _rows(anchor, result, depths),
  )


def _answers(anchor: str, result: search_results.Result) -> html.Markup:
  """Returns a table of the reference answer and of those chosen."""
  reference = _text(result.solution.extra.get(schema.REFERENCE), _UNKNOWN)
  rows: list[list[Any]] = [["Reference", reference, "", "", ""]]
  for how in choice.SELECTIONS:
    answer = result.answers[how]
    node: Any = "no candidate"
    score = ""
    if answer.node is not None:
      link = html.part("jump", f"{anchor}n{answer.node}", f"node {answer.node}")
      node = html.Cell("", mark=link)
      score = f"{result.tree.nodes[answer.node].score:.3f}"
    outcome = _OUTCOMES[answer.outcome]
    rows.append([_WAYS[how], _text(answer.text, "none"), outcome, node, score])
  head = ["answer", "", "", "of", "its score"]
  return html.table("Answers", head, rows, "full walk answers")


def _bill(bill: Mapping[str, Mapping[str, int | None]]) -> html.Markup:
  """Returns a table of what each model did."""

  def text(num: int | None) -> str:
    return _UNKNOWN if num is None else f"{num:,}"

  rows = []
  for name, counts in bill.items():
    read, once = counts["read"], counts["read_once"]
    reused = None if read is None or once is None else read - once
    numbers = (counts["calls"], counts["sampled"], read, once, reused)
    rows.append([_model(name), *map(text, numbers)])
  head = ["model", "calls", "sampled", "read", "computed", "reused"]
  return html.table("Bill, in tokens", head, rows, "full walk")


def _facts(result: search_results.Result) -> html.Markup:
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
  return html.pairs(rows, "facts")


# --- The tree ---------------------------------------------------------------


def _depths(tree: tree_lib.Tree) -> list[int]:
  """Returns how far each node is from the root."""
  depths = [0]
  for node in tree.nodes[1:]:
    assert node.parent is not None
    depths.append(depths[node.parent] + 1)
  return depths


def _rows(
  anchor: str, result: search_results.Result, depths: Sequence[int]
) -> list[_Row]:
  """Returns the lines of a tree, each before those below it.

  They are a flat list, because a tree may be deeper than Python's stack.
  """
  tree = result.tree
  order = _preorder(tree)
  path = {*tree.ancestors(result.chosen or 0)}
  leading = {n for c in {*tree.candidates} for n in tree.ancestors(c)}
  num_below = [0] * len(tree.nodes)
  for node in reversed(tree.nodes[1:]):  # children come after their parents
    assert node.parent is not None
    num_below[node.parent] += 1 + num_below[node.id]
  times = Counter(tree.candidates)
  rows = []
  for i, number in enumerate(order):
    node = tree.nodes[number]
    following = depths[order[i + 1]] if i + 1 < len(order) else 1
    steps = _steps(tree, node)
    css = "path" if number in path else "" if number in leading else "lost"
    rows.append(
      _Row(
        f"{anchor}n{number}",
        f"{css} many".strip() if len(steps) > 1 else css,
        solution_cards.fill(node.score),
        number in path,
        f"{node.score:.3f}",
        steps,
        _tags(result, node, times[number], num_below[number]),
        _node_facts(tree, node),
        node.ahead,
        depths[number] - following + 1,
      )
    )
  return rows


def _preorder(tree: tree_lib.Tree) -> list[int]:
  """Returns the nodes but the root, each before its children."""
  order, stack = [], [*reversed(tree.children[0])]
  while stack:
    order.append(stack.pop())
    stack.extend(reversed(tree.children[order[-1]]))
  return order


def _steps(
  tree: tree_lib.Tree, node: tree_lib.Node
) -> list[tuple[str, str, str]]:
  """Returns the text, the score and the colour of each step of a node."""
  assert node.parent is not None
  begun = tree.nodes[node.parent].num_steps
  steps, scores = node.solution.steps[begun:], node.step_scores[begun:]
  if len(steps) < 2:
    return [(text or "(empty)", "", "") for text in steps or ("(no step)",)]
  return [
    (text, f"{score:.3f}", solution_cards.fill(score))
    for text, score in zip(steps, scores, strict=True)
  ]


def _tags(
  result: search_results.Result, node: tree_lib.Node, times: int, below: int
) -> list[html.Cell]:
  """Returns what is marked on a node's line.

  Args:
    result: The search.
    node: The node.
    times: How often it counts as a candidate.
    below: The number of nodes below it.
  """
  tags = []
  if node.id == result.chosen:
    tags.append(html.Cell("chosen", css="chosen"))
  ways = {how: result.answers[how] for how in choice.SELECTIONS}
  own = {how: a for how, a in ways.items() if a.node == node.id}
  tags += [html.Cell(_WAYS[how].lower()) for how in own]
  for outcome in {a.outcome for a in own.values()} - {None}:
    tags.append(_OUTCOMES[outcome])
  if times:
    tags.append(html.Cell("candidate" + f" × {times}" * (times > 1)))
  if node.stopped in _CUT:
    tags.append(html.Cell(f"cut: {_CUT[node.stopped]}"))
  if below:
    tags.append(html.Cell(f"{below:,} below"))
  elif node.is_open and not times:
    tags.append(html.Cell("not continued"))
  elif not times:
    tags.append(html.Cell("ended, " * node.ended + "no candidate"))
  return tags


def _node_facts(tree: tree_lib.Tree, node: tree_lib.Node) -> str:
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
  return " · ".join(facts)


def _model(name: str) -> str:
  return "the PRM" if name == bill_lib.SCORER else name
