"""The search of many problems at once: one loop for every rule.

In each round the rule of each problem's tree says which nodes are continued
(rules.py). One call of the policy writes the children of all problems, and one
call of the reward model scores them (children.py). A budget may leave some out
(budget.py). What each call cost depends on what the models have read before
(known_tokens.py). The rule is the only part in which strategies differ.

What a node is depends on its problem, its path and the seed alone. So a tree
doesn't depend on the other problems, their order or their number; the scores of
a model may in their last digits, because it computes problems together. They
never depend on an earlier search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import preemption
from prm_jax.search import bill as bill_lib
from prm_jax.search import budget as budget_lib
from prm_jax.search import children as children_lib
from prm_jax.search import known_tokens
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib


def search(
  problems: Sequence[schema.Solution],
  rule: rules.Rule,
  policies: Mapping[str, search_models.Policy],
  verifier: search_models.Verifier,
  limits: search_limits.Limits = search_limits.Limits(),
  *,
  seed: int = 0,
  progress: Callable[[int], None] = lambda done: None,
) -> list[tree_lib.Tree]:
  """Returns the finished tree of each problem.

  Args:
    problems: The problems, as solutions without steps, each with an id of its
      own.
    rule: The strategy.
    policies: The policies that the rule names; most name tree.POLICY alone.
    verifier: What scores nodes.
    limits: Where a search ends.
    seed: The seed of the random numbers that rules draw.
    progress: Called after each round with the number of finished problems.

  Returns:
    The trees, in the order of the problems.

  Raises:
    InputError: Two problems have one id, a problem has steps, a score is NaN,
      the rule names a policy that isn't there, or a policy gives no counts.
  """
  errors.raise_first(_unfit(problems))
  return extend(
    [tree_lib.begin(problem, seed) for problem in problems],
    rule,
    policies,
    verifier,
    limits,
    progress=progress,
  )


def extend(
  trees: Sequence[tree_lib.Tree],
  rule: rules.Rule,
  policies: Mapping[str, search_models.Policy],
  verifier: search_models.Verifier,
  limits: search_limits.Limits = search_limits.Limits(),
  *,
  max_rounds: int | None = None,
  progress: Callable[[int], None] = lambda done: None,
) -> list[tree_lib.Tree]:
  """Returns trees after further rounds, of which `search` makes all.

  A tree that was saved (records.py) goes on as if it had never stopped. Two
  things differ. A scorer that keeps what it reads begins empty, so the last
  digits of scores may be others. And of steps that looked ahead the texts
  between them aren't saved: with lookahead and a policy that writes text, tokens
  of the scorer may count as read once more.

  Args:
    trees: The trees so far.
    rule: See search.
    policies: See search.
    verifier: See search.
    limits: See search.
    max_rounds: The most rounds; None is until all are finished.
    progress: See search.

  Returns:
    The trees, in their order.

  Raises:
    InputError: See search.
  """
  verifier.forget()
  run = _Run(rule, policies, verifier, limits)
  searches = [run.begin(tree) for tree in trees]
  rounds = 0
  while True:
    active = [s for s in searches if not s.tree.stopped]
    progress(len(searches) - len(active))
    if not active or rounds == max_rounds:
      return [s.tree for s in searches]
    preemption.check()
    run.add_round(active)
    rounds += 1


def _unfit(problems: Sequence[schema.Solution]) -> Iterator[str]:
  """Yields problems that can't be searched in one call."""
  seen = set()
  for problem in problems:
    if problem.id in seen:
      yield (
        f"problem {problem.id!r}: the id comes twice; it seeds what is drawn, so"
        " give each problem its own"
      )
    if problem.steps:
      yield (
        f"problem {problem.id!r}: has {len(problem.steps)} steps; a search"
        " begins at a problem without steps"
      )
    seen.add(problem.id)


@dataclasses.dataclass(eq=False)
class _Search:
  """A problem's tree, and what the models know of the problem."""

  tree: tree_lib.Tree
  known: known_tokens.KnownTokens


@dataclasses.dataclass(frozen=True)
class _Run:
  """The rule, the models and the limits of a search; see extend."""

  rule: rules.Rule
  policies: Mapping[str, search_models.Policy]
  verifier: search_models.Verifier
  limits: search_limits.Limits

  def begin(self, tree: tree_lib.Tree) -> _Search:
    """Returns a tree's search, with the tokens that its nodes made known."""
    known = known_tokens.KnownTokens(self.policies, self.verifier)
    for node in tree.nodes[1:]:
      assert node.parent is not None
      known.add_node(tree.nodes[node.parent].solution, node)
    return _Search(tree, known)

  def add_round(self, searches: Sequence[_Search]) -> None:
    """Adds one round to each tree; those that are over stop."""
    budget = self._budget()
    pending: list[tuple[_Search, tree_lib.Round]] = []
    for search in searches:
      round_ = self.rule.next(search.tree)
      over = _why_over(search.tree, round_, budget)
      if over:
        last = dataclasses.replace(round_, expansions=())
        ended = tree_lib.grow(search.tree, last, (), {})
        search.tree = dataclasses.replace(ended, stopped=over)
      else:
        pending.append((search, round_))
    rows, unused = budget_lib.write_within(
      budget,
      [self._children(search, round_) for search, round_ in pending],
      self._write,
    )
    children = [child for row in rows for child in row]
    children_lib.look_ahead(children, self.policies, self.limits.lookahead)
    children_lib.score(children, self.verifier)
    for (search, round_), row, vain in zip(pending, rows, unused, strict=True):
      first = len(search.tree.nodes)
      nodes = tuple(
        children_lib.node(child, first + i, self.verifier.aggregate)
        for i, child in enumerate(row)
      )
      search.tree = tree_lib.grow(search.tree, round_, nodes, vain)

  def _budget(self) -> budget_lib.Budget:
    """Returns what each problem may spend."""
    costs = {name: policy.cost for name, policy in self.policies.items()}
    costs[bill_lib.SCORER] = self.verifier.cost
    return budget_lib.Budget(
      self.limits.budget_tokens, self.limits.budget_flops, costs
    )

  def _children(
    self, search: _Search, round_: tree_lib.Round
  ) -> list[children_lib.Child]:
    """Returns the children that a round asks for, before they are written."""
    children = []
    numbers: dict[int, int] = {}
    for e in round_.expansions:
      if e.writer not in self.policies:
        raise errors.InputError(
          f"the rule asks for the policy {e.writer!r}, and there is"
          f" {', '.join(sorted(self.policies))}; give it"
        )
      parent = search.tree.nodes[e.node]
      for _ in range(e.num):
        number = numbers.get(e.node, 0)
        numbers[e.node] = number + 1
        path = tree_lib.child_path(search.tree, e.node, number)
        children.append(
          children_lib.Child(
            *(search.tree, search.known, parent, path, e.whole, e.writer),
            solution=parent.solution,
          )
        )
    return children

  def _write(self, children: Sequence[children_lib.Child]) -> None:
    """Has the policies write children within the limits of a solution."""
    children_lib.write(
      children,
      self.policies,
      max_steps=self.limits.max_steps,
      max_tokens=self.limits.max_tokens,
    )


def _why_over(
  tree: tree_lib.Tree, round_: tree_lib.Round, budget: budget_lib.Budget
) -> str:
  """Returns why a search ends before a round is made; "" if it goes on."""
  is_spent = budget.is_spent(tree.bill)
  if tree.was_cut or (is_spent and round_.expansions):
    return "budget"
  return "" if round_.expansions else "rule"
