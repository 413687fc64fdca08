"""The children of a round: the models write and score them.

A model is called once for the children of all problems. What the call took for
a child is added to the child's cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.search import bill as bill_lib
from prm_jax.search import known_tokens
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib


@dataclasses.dataclass(eq=False)
class Child:
  """A child that is being made.

  Args:
    tree: The tree that it will be added to.
    known: What the models know of the problem.
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

  tree: tree_lib.Tree
  known: known_tokens.KnownTokens
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
    return f"{self.tree.problem.id}/{self.path}"

  @property
  def scored(self) -> schema.Solution:
    """What is scored."""
    return self.solution if self.ahead is None else self.ahead

  def pay(self, model: str, spent: bill_lib.Spent) -> None:
    """Adds to the cost."""
    self.cost = bill_lib.add(self.cost, {model: spent})


def write(
  children: Sequence[Child],
  policies: Mapping[str, search_models.Policy],
  *,
  max_steps: int,
  max_tokens: int | None,
) -> None:
  """Has the policies write, one call for each policy and kind.

  Args:
    children: The children.
    policies: The policies, by their names.
    max_steps: See search_limits.Limits.
    max_tokens: See search_limits.Limits.

  Raises:
    InputError: A policy gives no counts.
  """
  for name, whole in sorted({(c.writer, c.whole) for c in children}):
    chosen = [c for c in children if (c.writer, c.whole) == (name, whole)]
    policy = policies[name]
    generate = policy.whole if whole else policy.step
    prefixes = [(c.id, c.solution) for c in chosen]
    for child, new in zip(
      chosen, _one_each(generate, prefixes, name), strict=True
    ):
      child.pay(name, child.known.add_completion(name, child.solution, new))
      child.stopped = _why_stopped(child, new, max_steps, max_tokens)
      child.solution = new


def look_ahead(
  children: Sequence[Child],
  policies: Mapping[str, search_models.Policy],
  num: int,
) -> None:
  """Writes the steps that look ahead, for children that can be continued.

  Args:
    children: The children, written.
    policies: The policies, by their names.
    num: The number of steps; see search_limits.Limits.

  Raises:
    InputError: A policy has no greedy steps, or gives no counts.
  """
  ahead = [child for child in children if child.stopped == "step"]
  for number in range(num):
    for name in sorted({child.writer for child in ahead}):
      chosen = [child for child in ahead if child.writer == name]
      generate = policies[name].greedy_step
      if generate is None:
        raise errors.InputError(
          f"lookahead={num}: the policy {name!r} has no greedy steps; give a"
          " policy that has"
        )
      prefixes = [(f"{c.id}+{number}", c.scored) for c in chosen]
      for child, new in zip(
        chosen, _one_each(generate, prefixes, name), strict=True
      ):
        child.pay(name, child.known.add_completion(name, child.scored, new))
        child.ahead = new
    ahead = [c for c in ahead if c.ahead and c.ahead.extra["stopped"] == "step"]


def score(children: Sequence[Child], verifier: search_models.Verifier) -> None:
  """Scores children, all in one call.

  Args:
    children: The children, written.
    verifier: What scores them.

  Raises:
    ValueError: There is another number of scores.
  """
  if not children:
    return
  rows = verifier.score([child.scored for child in children])
  for child, row in zip(children, rows, strict=True):
    if len(row) != len(child.scored.steps):
      raise ValueError(
        f"{child.id}: {len(row)} scores of {len(child.scored.steps)} steps"
      )
    child.scores = row
    child.pay(bill_lib.SCORER, child.known.add_scored(child.scored))


def node(child: Child, number: int, aggregate: str) -> tree_lib.Node:
  """Returns a child as a node of its tree.

  Args:
    child: The child, written and scored.
    number: The number of the node.
    aggregate: How step scores become its score; see voting.aggregate.

  Raises:
    InputError: The score is NaN.
  """
  assert child.scores is not None
  chance = voting.aggregate(child.scores.scores, aggregate)
  log_odds = voting.log_odds(child.scores, aggregate)
  if math.isnan(chance) or math.isnan(log_odds):
    raise errors.InputError(
      f"problem {child.tree.problem.id!r}, node {child.path}: its score is NaN;"
      " fix the scorer"
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
    score=chance,
    log_odds=log_odds,
    ahead=child.scored.steps[num:],
    cost=child.cost,
  )


def _why_stopped(
  child: Child, new: schema.Solution, max_steps: int, max_tokens: int | None
) -> str:
  """Returns why a child can't be continued, or "step"."""
  if new.extra["ended"]:
    stopped = str(new.extra["stopped"])
    return stopped if stopped in tree_lib.ENDED else "end"
  if child.whole or new.extra["stopped"] == "length":
    return "length"
  begun = child.parent.solution
  if (new.steps, new.raw_text) == (begun.steps, begun.raw_text):
    return "empty"
  if max_tokens is not None:
    written = new.extra["num_tokens"] + sum(
      child.tree.nodes[n].solution.extra["num_tokens"]
      for n in child.tree.ancestors(child.parent.id)
    )
    if written >= max_tokens:
      return "length"
  return "step" if len(new.steps) < max_steps else "steps"


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
