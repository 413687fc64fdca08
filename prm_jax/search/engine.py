"""The search of many problems at once: one loop for every rule.

In each round the rule of each problem's tree says which nodes are continued
(rules.py). One call of the policy writes the children of all problems, and one
call of the reward model scores them. The rule is the only part in which
strategies differ.

What a node is depends on its problem, its path and the seed alone. So a tree
doesn't depend on the other problems, their order or their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Protocol, runtime_checkable

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.runtime import checks
from prm_jax.runtime import preemption
from prm_jax.search import bill as bill_lib
from prm_jax.search import models
from prm_jax.search import tree as tree_lib

# With a budget, the children of a problem that are written before it is known
# how much the like take.
_FIRST = 4


@runtime_checkable
class Rule(Protocol):
  """A strategy: a pure function of the tree."""

  def next(self, tree: tree_lib.Tree) -> tree_lib.Round:
    """Returns what to continue; without expansions the search is over.

    Args:
      tree: The tree so far.

    Returns:
      The expansions, and what else stays.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Limits:
  """Where a search of a problem ends, whatever its rule.

  Args:
    max_steps: The most steps of a solution; a longer one is cut there.
    max_tokens: The most tokens that are sampled for a solution, over all of its
      steps; the step that reaches it is its last. None is no limit.
    budget_tokens: No child is begun once the policies have sampled as many
      tokens as this for the problem. The last one may go over it.
    budget_flops: No child is begun once the FLOPs of the bill are as many.
    lookahead: The number of greedy steps that are written after a node before
      it is scored (Snell et al. 2024, arXiv 2408.03314). They are paid for, and
      no part of the tree.

  Raises:
    InputError: A number is out of range.
  """

  max_steps: int = 64
  max_tokens: int | None = None
  budget_tokens: int | None = None
  budget_flops: int | None = None
  lookahead: int = 0

  def __post_init__(self):
    checks.check_counts(self, ("max_steps",))
    checks.check_natural(self, ("lookahead",))
    for name in ("max_tokens", "budget_tokens", "budget_flops"):
      if getattr(self, name) is not None:
        checks.check_counts(self, (name,))

  @property
  def has_budget(self) -> bool:
    """Whether a search can end before its rule ends it."""
    return self.budget_tokens is not None or self.budget_flops is not None


def search(
  problems: Sequence[schema.Solution],
  rule: Rule,
  policies: Mapping[str, models.Policy],
  verifier: models.Verifier,
  limits: Limits = Limits(),
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
  _check_problems(problems)
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
  rule: Rule,
  policies: Mapping[str, models.Policy],
  verifier: models.Verifier,
  limits: Limits = Limits(),
  *,
  max_rounds: int | None = None,
  progress: Callable[[int], None] = lambda done: None,
) -> list[tree_lib.Tree]:
  """Returns trees after further rounds, of which `search` makes all.

  A tree that was saved (records.py) goes on as if it had never stopped. One
  thing differs: of steps that looked ahead the texts between them aren't saved.
  So with lookahead and a policy that writes text, tokens of the scorer may count
  as read once more.

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
  run = _Run(policies, verifier, limits)
  searches = [run.begin(tree) for tree in trees]
  rounds = 0
  while True:
    active = [s for s in searches if not s.tree.stopped]
    progress(len(searches) - len(active))
    if not active or rounds == max_rounds:
      return [s.tree for s in searches]
    preemption.check()
    run.round(active, rule)
    rounds += 1


def _check_problems(problems: Sequence[schema.Solution]) -> None:
  """Refuses problems that can't be searched in one call."""
  seen = set()
  for problem in problems:
    if problem.id in seen:
      raise errors.InputError(
        f"problem {problem.id!r}: the id comes twice; it seeds what is drawn, so"
        " give each problem its own"
      )
    if problem.steps:
      raise errors.InputError(
        f"problem {problem.id!r}: has {len(problem.steps)} steps; a search"
        " begins at a problem without steps"
      )
    seen.add(problem.id)


@dataclasses.dataclass(eq=False)
class _Search:
  """A problem's tree, and what each model knows of it.

  Args:
    tree: The tree.
    known: The ids that each model read or wrote.
    lengths: Of each policy whose ids aren't known the steps that it read or
      wrote, with their number of tokens as a prompt.
  """

  tree: tree_lib.Tree
  known: dict[str, bill_lib.Prefixes]
  lengths: dict[str, dict[tuple[str, ...], int]]


@dataclasses.dataclass(eq=False)
class _Child:
  """A child that is being made.

  Args:
    search: Its problem's search.
    parent: Its parent.
    path: Its path.
    whole: Whether it is a whole solution.
    writer: Who writes it.
    solution: What was written; before that, what is continued.
    stopped: Why the policy stopped.
    ahead: The solution with the steps that look ahead; None if there are none.
    cost: What it took so far.
    scores: Its scores.
  """

  search: _Search
  parent: tree_lib.Node
  path: str
  whole: bool
  writer: str
  solution: schema.Solution
  stopped: str = ""
  ahead: schema.Solution | None = None
  cost: dict[str, bill_lib.Spent] = dataclasses.field(default_factory=dict)
  scores: schema.StepScores | None = None

  @property
  def id(self) -> str:
    """The id that seeds what the policy writes."""
    return f"{self.search.tree.problem.id}/{self.path}"

  @property
  def scored(self) -> schema.Solution:
    """What is scored."""
    return self.solution if self.ahead is None else self.ahead

  def pay(self, model: str, spent: bill_lib.Spent) -> None:
    """Adds to the cost."""
    self.cost = bill_lib.add(self.cost, {model: spent})


class _Run:
  """The models of a search, and their limits."""

  def __init__(
    self,
    policies: Mapping[str, models.Policy],
    verifier: models.Verifier,
    limits: Limits,
  ):
    self.policies, self.verifier, self.limits = policies, verifier, limits
    self.costs = {name: policy.cost for name, policy in policies.items()}
    self.costs[bill_lib.SCORER] = verifier.cost

  def begin(self, tree: tree_lib.Tree) -> _Search:
    """Returns a tree's search, with the ids that its nodes made known."""
    known = {name: bill_lib.Prefixes() for name in self.costs}
    lengths: dict[str, dict[tuple[str, ...], int]] = {
      name: {} for name in self.policies
    }
    for node in tree.nodes[1:]:
      assert node.parent is not None
      begun = tree.nodes[node.parent].solution
      _note_lengths(lengths[node.writer], begun, node.solution)
      scored = _with_steps(node.solution, node.ahead)
      encode = self.policies[node.writer].encode
      if encode is not None:
        known[node.writer].add(encode(begun))
        known[node.writer].add(encode(node.solution))
        known[node.writer].add(encode(scored))
      if self.verifier.encode is not None:
        known[bill_lib.SCORER].add(self.verifier.encode(scored))
    return _Search(tree, known, lengths)

  def round(self, searches: Sequence[_Search], rule: Rule) -> None:
    """Adds one round to each tree; those that are over stop."""
    pending: list[tuple[_Search, tree_lib.Round, list[_Child]]] = []
    for search in searches:
      tree = search.tree
      round_ = rule.next(tree)
      over = "" if round_.expansions else "rule"
      spent = self.limits.has_budget and self._is_spent(tree.bill)
      if tree.was_cut or (spent and not over):
        over = "budget"
      if over:
        last = dataclasses.replace(round_, expansions=())
        ended = tree_lib.grow(tree, last, (), {})
        search.tree = dataclasses.replace(ended, stopped=over)
      else:
        pending.append((search, round_, self._children(search, round_)))
    made, unused = self._write([children for _, _, children in pending])
    self._look_ahead([child for children in made for child in children])
    self._score([child for children in made for child in children])
    for (search, round_, _), children, vain in zip(
      pending, made, unused, strict=True
    ):
      first = len(search.tree.nodes)
      nodes = tuple(self._node(c, first + i) for i, c in enumerate(children))
      search.tree = tree_lib.grow(search.tree, round_, nodes, vain)

  def _children(self, search: _Search, round_: tree_lib.Round) -> list[_Child]:
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
          _Child(search, parent, path, e.whole, e.writer, parent.solution)
        )
    return children

  def _write(
    self, asked: Sequence[Sequence[_Child]]
  ) -> tuple[list[list[_Child]], list[bill_lib.Bill]]:
    """Writes children, in calls of all problems; with a budget, while it lasts.

    Children count in their order: one is begun only if those before it have
    left some of the budget. So what the tree holds doesn't depend on how many
    are written at a time; what was written in vain is returned as a bill.
    """
    left = [list(children) for children in asked]
    made: list[list[_Child]] = [[] for _ in asked]
    unused: list[bill_lib.Bill] = [{} for _ in asked]
    while any(left):
      waves = [
        children[: self._num_at_once(done, children)]
        for done, children in zip(made, left, strict=True)
      ]
      self._write_all([child for wave in waves for child in wave])
      for i, wave in enumerate(waves):
        left[i] = left[i][len(wave) :]
        if not self.limits.has_budget:
          made[i] += wave
          continue
        if not wave:
          continue
        bill = _with_costs(wave[0].search.tree, made[i])
        for child in wave:
          if self._is_spent(bill):
            unused[i] = bill_lib.add(unused[i], child.cost)
          else:
            made[i].append(child)
            bill = bill_lib.add(bill, child.cost)
        if self._is_spent(bill):
          left[i] = []
    return made, unused

  def _num_at_once(self, done: Sequence[_Child], left: Sequence[_Child]) -> int:
    """Returns how many of a problem's children to write in the next call.

    Without a budget that is all of them. With one it is about as many as it
    pays for, by what the like took so far.
    """
    if not self.limits.has_budget:
      return len(left)
    budget = self.limits.budget_tokens
    if not done or budget is None:
      return min(len(left), _FIRST)
    bills = [child.cost for child in done]
    mean = max(bill_lib.sampled(bill_lib.add(*bills)) / len(done), 1)
    rest = budget - bill_lib.sampled(_with_costs(done[0].search.tree, done))
    return min(len(left), math.ceil(rest / mean))

  def _is_spent(self, bill: bill_lib.Bill) -> bool:
    """Returns whether a budget is used up."""
    tokens, flops = self.limits.budget_tokens, self.limits.budget_flops
    if tokens is not None and bill_lib.sampled(bill) >= tokens:
      return True
    if flops is None:
      return False
    spent = bill_lib.flops(bill, self.costs)
    if spent is None:
      raise errors.InputError(
        f"budget_flops={flops}: the FLOPs of a model aren't known; give"
        " budget_tokens"
      )
    return spent >= flops

  def _write_all(self, children: Sequence[_Child]) -> None:
    """Has the policies write, one call for each policy and kind."""
    for name, whole in sorted({(c.writer, c.whole) for c in children}):
      chosen = [c for c in children if (c.writer, c.whole) == (name, whole)]
      policy = self.policies[name]
      generate = policy.whole if whole else policy.step
      for child, new in zip(
        chosen, _one_each(generate, [(c.id, c.solution) for c in chosen], name)
      ):
        self._pay_policy(child, child.solution, new)
        child.stopped = self._why_stopped(child, new)
        child.solution = new

  def _why_stopped(self, child: _Child, new: schema.Solution) -> str:
    """Returns why a child can't be continued, or "step"."""
    if new.extra["ended"]:
      stopped = str(new.extra["stopped"])
      return stopped if stopped in tree_lib.ENDED else "end"
    if child.whole or new.extra["stopped"] == "length":
      return "length"
    begun = child.parent.solution
    if (new.steps, new.raw_text) == (begun.steps, begun.raw_text):
      return "empty"
    if self.limits.max_tokens is not None:
      written = new.extra["num_tokens"] + sum(
        child.search.tree.nodes[n].solution.extra["num_tokens"]
        for n in child.search.tree.ancestors(child.parent.id)
      )
      if written >= self.limits.max_tokens:
        return "length"
    return "step" if len(new.steps) < self.limits.max_steps else "steps"

  def _look_ahead(self, children: Sequence[_Child]) -> None:
    """Writes the steps that look ahead, for children that can be continued."""
    ahead = [child for child in children if child.stopped == "step"]
    for number in range(self.limits.lookahead):
      for name in sorted({child.writer for child in ahead}):
        chosen = [child for child in ahead if child.writer == name]
        generate = self.policies[name].greedy_step
        if generate is None:
          raise errors.InputError(
            f"lookahead={self.limits.lookahead}: the policy {name!r} has no"
            " greedy steps; give a policy that has"
          )
        prefixes = [(f"{c.id}+{number}", c.scored) for c in chosen]
        for child, new in zip(chosen, _one_each(generate, prefixes, name)):
          self._pay_policy(child, child.scored, new)
          child.ahead = new
      ahead = [
        c for c in ahead if c.ahead and c.ahead.extra["stopped"] == "step"
      ]

  def _pay_policy(
    self, child: _Child, begun: schema.Solution, new: schema.Solution
  ) -> None:
    """Adds what a completion took to its child's cost."""
    num = int(new.extra["num_tokens"])
    known, read = self._read(child, begun, new)
    child.pay(
      child.writer,
      bill_lib.Spent(
        calls=1,
        sampled=num,
        read=read,
        read_once=read - known,
        # Of a prompt that isn't counted the place of new tokens isn't known.
        context=bill_lib.context(known, read + num) if read else 0,
      ),
    )

  def _read(
    self, child: _Child, begun: schema.Solution, new: schema.Solution
  ) -> tuple[int, int]:
    """Returns how many tokens of a prompt were known, and how many it has."""
    encode = self.policies[child.writer].encode
    if encode is None:
      # As a server counts it.
      lengths = child.search.lengths[child.writer]
      read = int(new.extra.get(models.PROMPT_TOKENS, 0))
      known = _num_known(lengths, begun.steps, read)
      _note_lengths(lengths, begun, new)
      return known, read
    prefixes = child.search.known[child.writer]
    ids = encode(begun)
    known = prefixes.add(ids)
    # What a policy wrote it needs not read, however it is encoded.
    prefixes.add(encode(new))
    return known, len(ids)

  def _score(self, children: Sequence[_Child]) -> None:
    """Scores children, all in one call."""
    if not children:
      return
    rows = self.verifier.score([child.scored for child in children])
    if len(rows) != len(children):
      raise ValueError(f"scores of {len(rows)} solutions, not {len(children)}")
    for child, row in zip(children, rows, strict=True):
      if len(row) != len(child.scored.steps):
        raise ValueError(
          f"{child.id}: {len(row)} scores of {len(child.scored.steps)} steps"
        )
      child.scores = row
      spent = bill_lib.Spent(calls=1)
      if self.verifier.encode is not None:
        ids = self.verifier.encode(child.scored)
        known = child.search.known[bill_lib.SCORER].add(ids)
        spent += bill_lib.Spent(
          read=len(ids),
          read_once=len(ids) - known,
          context=bill_lib.context(known, len(ids)),
        )
      child.pay(bill_lib.SCORER, spent)

  def _node(self, child: _Child, number: int) -> tree_lib.Node:
    """Returns a child as a node of the tree."""
    how = self.verifier.aggregate
    assert child.scores is not None
    score = voting.aggregate(child.scores.scores, how)
    log_odds = voting.log_odds(child.scores, how)
    if math.isnan(score) or math.isnan(log_odds):
      raise errors.InputError(
        f"problem {child.search.tree.problem.id!r}, node {child.path}: its score"
        " is NaN; fix the scorer"
      )
    num = len(child.solution.steps)
    return tree_lib.Node(
      number,
      child.parent.id,
      child.path,
      child.solution,
      stopped=child.stopped,
      writer=child.writer,
      step_scores=child.scores.scores[:num],
      score=score,
      log_odds=log_odds,
      ahead=child.scored.steps[num:],
      cost=child.cost,
    )


def _num_known(
  lengths: Mapping[tuple[str, ...], int], steps: tuple[str, ...], read: int
) -> int:
  """Returns how many tokens of a prompt a policy read or wrote before.

  Of a prompt whose steps it knows that is all of them. A separator after the
  steps that it knows counts as new.

  Args:
    lengths: The steps that it knows; see _Search.
    steps: The steps in the prompt.
    read: The tokens of the prompt.
  """
  if steps in lengths:
    return read
  begins = (steps[:n] for n in range(len(steps) - 1, -1, -1))
  return min(next((lengths[b] for b in begins if b in lengths), 0), read)


def _note_lengths(
  lengths: dict[tuple[str, ...], int],
  begun: schema.Solution,
  new: schema.Solution,
) -> None:
  """Notes what a policy read and wrote, if its server counted the prompt."""
  read = new.extra.get(models.PROMPT_TOKENS)
  if read is not None:
    lengths[begun.steps] = int(read)
    lengths.setdefault(new.steps, int(read) + int(new.extra["num_tokens"]))


def _with_costs(
  tree: tree_lib.Tree, children: Sequence[_Child]
) -> dict[str, bill_lib.Spent]:
  """Returns a tree's bill with that of children that it doesn't have yet."""
  return bill_lib.add(tree.bill, *(child.cost for child in children))


def _with_steps(
  solution: schema.Solution, steps: Sequence[str]
) -> schema.Solution:
  """Returns a solution that goes on by steps."""
  if not steps:
    return solution
  return dataclasses.replace(
    solution, steps=(*solution.steps, *steps), raw_text=None, spans=None
  )


def _one_each(
  generate: schema.Generate,
  prefixes: Sequence[tuple[str, schema.Solution]],
  name: str,
) -> Iterator[schema.Solution]:
  """Yields one completion of each prefix, under the id that seeds it.

  Raises:
    InputError: A completion has no counts.
    ValueError: There is another number of completions.
  """
  asked = [dataclasses.replace(s, id=id_) for id_, s in prefixes]
  rows = generate(asked, 1)
  if len(rows) != len(asked) or any(len(row) != 1 for row in rows):
    raise ValueError(f"the policy {name!r} gave another number of completions")
  for prefix, (new,) in zip(asked, rows, strict=True):
    lacking = [
      field
      for field in ("num_tokens", "stopped", "ended")
      if new.extra.get(field) is None
    ]
    if lacking:
      raise errors.InputError(
        f"the policy {name!r}: a completion's extra has no {lacking[0]}, which"
        " the bill and the search need; set it"
      )
    if new.steps[: len(prefix.steps)] != prefix.steps:
      raise ValueError(f"{prefix.id}: the completion has other steps before")
    yield dataclasses.replace(new, id=prefix.id)
