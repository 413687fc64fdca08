"""One problem's tree of OmegaPRM (Luo et al. 2024, arXiv 2406.06592).

Of the rollouts with a wrong answer the tree takes up the one that most
deserved to be right, finds its first wrong step by binary search, and adds the
positions of the search before it as states, whose own wrong rollouts may be
taken up next:

  MC(s)    share of right ones among the rollouts from state s
  Q(s, r)  alpha^(1 - MC(s)) * beta^(len(r) / L), len(r) in tokens
  U(s)     c_puct * sqrt(sum of N over all states) / (1 + N(s))

  select       the (s, r) of the pool with the highest Q + U, and take it out
  search       MC(s at the middle) > 0: the error stands behind it, else before
  maintain     N(s) + 1 for the selected s alone, nothing is backed up; new
               rollouts with 0 < MC(s) < 1 join the pool

The paper's pool is of "all rollouts", and its aim the "supposed-to-be-correct
wrong-answer" ones; only these have a first error to be found, so only these
join. A rollout that its token budget cut off has no answer and a torn last
step: it counts against MC(s) and doesn't join.

`search` is a generator that asks for rollouts; omega_prm drives many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
import dataclasses
import functools
import math

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import prefix_rollouts
from prm_jax.labelling.prefix_rollouts import Rollout
from prm_jax.runtime import checks

Steps = tuple[str, ...]
# Tokens of the text of some steps, with what separates them.
CountTokens = Callable[[Sequence[str]], int]


@dataclasses.dataclass(frozen=True)
class Options:
  """The paper's constants.

  completions: k, the rollouts of a state.
  root_rollouts: of the problem alone; a problem with none or all of these
    right is dropped. Solutions that are given count among them.
  searches: the most of a problem. max_rollouts: no search of a problem begins
    when it has drawn as many; None is no such limit.
  alpha, beta: in (0, 1]. length: L, tokens. c_puct: at least 0.
  segments: a search ends when the part with the error is shorter than one of so
    many segments of the problem's average solution (the paper cuts into about
    16); 0 goes down to single steps.
  hard: labels are 1 for every step before the first wrong one and 0 for that,
    instead of MC of the states alone.

  Raises:
    InputError: a number is out of range.
  """

  completions: int = 8
  root_rollouts: int = 32
  searches: int = 100
  max_rollouts: int | None = None
  alpha: float = 0.5
  beta: float = 0.9
  length: int = 500
  c_puct: float = 0.125
  segments: int = 0
  hard: bool = False

  def __post_init__(self):
    counts = ("completions", "root_rollouts", "searches", "length")
    checks.check_counts(self, counts)
    at_most_1 = "above 0 and at most 1"
    checks.check(self, ("alpha", "beta"), lambda x: 0 < x <= 1, at_most_1)
    checks.check_natural(self, ("c_puct", "segments"))
    if self.max_rollouts is not None:
      checks.check_counts(self, ("max_rollouts",))


@dataclasses.dataclass(frozen=True)
class State:
  """A prefix of solutions and the rollouts from it."""

  steps: Steps
  rollouts: tuple[Rollout, ...]

  @functools.cached_property
  def value(self) -> float | None:
    """MC(s); None if no rollout has a known end."""
    return prefix_rollouts.tally(self.rollouts).value


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A wrong rollout (s, r) of the pool; num_tokens is len(r)."""

  state: State
  rollout: schema.Solution
  num_tokens: int


@dataclasses.dataclass(frozen=True)
class Path:
  """The result of a search in a rollout.

  num_right: the steps up to the last state with MC > 0. num_wrong: the steps
  up to the end of the part that holds the first error, by default one more;
  None if a state on the way had no rollout with a known end.
  """

  selected: Candidate
  num_right: int
  num_wrong: int | None

  @property
  def steps(self) -> Steps:
    """The steps of the rollout."""
    return self.selected.rollout.steps


@dataclasses.dataclass(frozen=True)
class Tree:
  """The finished search of a problem.

  states: every prefix that was rolled out from, the root () among them.
  visits: N(s). duplicates: wrong rollouts that did not join the pool, since
  their text had joined before. left: the pool when the search ended.
  """

  states: dict[Steps, State]
  paths: tuple[Path, ...]
  visits: dict[Steps, int]
  duplicates: int
  left: int


# A prefix's steps, and how many rollouts from there.
Request = tuple[Steps, int]
Search = Generator[Request, Sequence[Rollout] | None, Tree]


def quality(value: float, num_tokens: int, options: Options) -> float:
  """Returns Q(s, r) for MC(s) and len(r) in tokens (eq. 2)."""
  shrinks = options.beta ** (num_tokens / options.length)
  return options.alpha ** (1 - value) * shrinks


def exploration(visits: int, all_visits: int, options: Options) -> float:
  """Returns U(s) for N(s) and the sum of N over all states (eq. 3)."""
  return options.c_puct * math.sqrt(all_visits) / (1 + visits)


def search(
  given: Sequence[Rollout],
  options: Options,
  count_tokens: CountTokens | None = None,
) -> Search:
  """Yields requests for rollouts, is sent these, and returns the tree.

  given: rollouts of the problem alone that are there already.

  Raises:
    InputError: a rollout doesn't say how many tokens it has, or segments are
      wanted, and there is no count_tokens.
  """
  missing = max(options.root_rollouts - len(given), 0)
  drawn = (yield (), missing) if missing else ()
  num_drawn = missing
  root = State((), (*given, *(drawn or ())))
  states: dict[Steps, State] = {(): root}
  visits: Counter[Steps] = Counter()
  paths: list[Path] = []
  known: set[Steps] = set()
  pool, duplicates = _candidates(root, known, count_tokens)
  least = _least_tokens(root, options, count_tokens)
  while pool and len(paths) < options.searches:
    if options.max_rollouts is not None and num_drawn >= options.max_rollouts:
      break
    selected = _select(pool, visits, options)
    before = set(states)
    path = yield from _first_error(
      selected, states, options.completions, least, count_tokens
    )
    paths.append(path)
    visits[selected.state.steps] += 1
    for steps in [s for s in states if s not in before]:
      num_drawn += len(states[steps].rollouts)
      joining, again = _candidates(states[steps], known, count_tokens)
      pool += joining
      duplicates += again
  return Tree(states, tuple(paths), dict(visits), duplicates, len(pool))


def _select(
  pool: list[Candidate], visits: Counter[Steps], options: Options
) -> Candidate:
  """Takes the candidate with the highest Q + U out of the pool.

  Both are computed again for every candidate: a visit anywhere changes the U
  of all states. Of equals the first that joined is taken.
  """
  total = sum(visits.values())

  def priority(i: int) -> float:
    state = pool[i].state
    assert state.value is not None  # or it would not have joined
    q = quality(state.value, pool[i].num_tokens, options)
    return q + exploration(visits[state.steps], total, options)

  return pool.pop(max(range(len(pool)), key=priority))


def _candidates(
  state: State, known: set[Steps], count_tokens
) -> tuple[list[Candidate], int]:
  """Returns the state's rollouts that join the pool, and how many are known.

  known: texts that joined before; the first error of these would be the same.
  """
  out: list[Candidate] = []
  duplicates = 0
  value = state.value
  if value is None or not 0 < value < 1:
    return out, duplicates
  for rollout in state.rollouts:
    whole = rollout.solution
    if (
      rollout.is_right is not False
      or whole.extra.get("ended") is False
      or len(whole.steps) <= len(state.steps)
    ):
      continue
    if whole.steps in known:
      duplicates += 1
      continue
    known.add(whole.steps)
    num = _num_tokens(whole, len(state.steps), count_tokens)
    out.append(Candidate(state, whole, num))
  return out, duplicates


def _first_error(
  selected: Candidate,
  states: dict[Steps, State],
  completions: int,
  least: float,
  count_tokens,
) -> Generator[Request, Sequence[Rollout] | None, Path]:
  """Halves the rollout until its first wrong step is left; adds the states.

  A state that an earlier search rolled out is not rolled out again.
  """
  steps = selected.rollout.steps
  low, high = len(selected.state.steps), len(steps)
  while high - low > 1:
    if least and count_tokens(steps[low:high]) < least:
      break
    middle = (low + high) // 2
    at = steps[:middle]
    if at not in states:
      rollouts = yield at, completions
      states[at] = State(at, tuple(rollouts or ()))
    value = states[at].value
    if value is None:
      return Path(selected, low, None)
    if value > 0:
      low = middle
    else:
      high = middle
  return Path(selected, low, high)


def _num_tokens(whole: schema.Solution, start: int, count_tokens) -> int:
  num = whole.extra.get("num_tokens")
  if num is not None:
    return num
  if count_tokens is None:
    raise errors.InputError(
      f"solution {whole.id!r}: its tokens are not counted, and the search"
      ' needs their number; give extra "num_tokens", or a count_tokens'
    )
  return count_tokens(whole.steps[start:])


def _least_tokens(root: State, options: Options, count_tokens) -> float:
  """Returns the tokens of one of `segments` of an average solution; 0: of none."""
  if not options.segments:
    return 0.0
  if count_tokens is None:
    raise errors.InputError(
      f"segments={options.segments}: the tokens of steps must be counted; give a"
      " count_tokens"
    )
  whole = [count_tokens(r.solution.steps) for r in root.rollouts]
  return sum(whole) / len(whole) / options.segments
