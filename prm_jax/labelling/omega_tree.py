"""One problem's tree of OmegaPRM (Luo et al. 2024, arXiv 2406.06592).

The search repeatedly takes the rollout with a wrong answer that most likely
should have been right, finds its first wrong step by binary search, and adds
the positions that it tried as states. Their wrong rollouts can be taken next.

  MC(s)    share of right ones among the rollouts from state s
  Q(s, r)  alpha^(1 - MC(s)) * beta^(len(r) / L), len(r) in tokens
  U(s)     c_puct * sqrt(sum of N over all states) / (1 + N(s))

  select       remove the (s, r) with the highest Q + U from the pool
  search       if MC(s at the middle) > 0, the error is after it, else before
  maintain     N(s) + 1 for the selected s alone, nothing is backed up; new
               rollouts with 0 < MC(s) < 1 join the pool

The paper's pool has "all rollouts", and it aims at the "supposed-to-be-correct
wrong-answer" ones. Only these have a first error to find, so only these join
here. A rollout that the token budget cut has no answer and a torn last step: it
counts in MC(s) and doesn't join.

`search` is a generator that asks for rollouts; omega_prm drives many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
import dataclasses
import functools
import math
from typing import NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import prefix_rollouts
from prm_jax.labelling.prefix_rollouts import Rollout
from prm_jax.runtime import verbs

Steps = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Options(verbs.Value):
  """How a problem is searched, with the paper's constants.

  Args:
    completions: The number of rollouts after each prefix of steps that a search
      tries, k.
    root_rollouts: The number of rollouts that start at the problem, before any
      step; solutions in --input count as such; a problem with all or none of
      them right is left out.
    searches: The most binary searches for each problem.
    max_rollouts: Begin no further search in a problem after this many rollouts
      (default: no limit).
    alpha: In (0, 1].
    beta: In (0, 1].
    length: L, in tokens.
    c_puct: At least 0.
    segments: End a search when the steps that may hold the first error have
      fewer tokens than the average of the problem's first rollouts divided by
      this (the paper uses about 16); 0 searches down to single steps.
    hard: Give label 1 to each step before the first error and label 0 to the
      error; otherwise a step's label is the share of right rollouts after it,
      if a search tried that step.

  Raises:
    InputError: A number is out of range.
  """

  first_is_whole = False

  completions: verbs.Count = 8
  root_rollouts: verbs.Count = 32
  searches: verbs.Count = 100
  max_rollouts: verbs.Count | None = None
  alpha: verbs.ShareAbove0 = dataclasses.field(
    default=0.5, metadata=verbs.NO_OPTION
  )
  beta: verbs.ShareAbove0 = dataclasses.field(
    default=0.9, metadata=verbs.NO_OPTION
  )
  length: verbs.Count = dataclasses.field(default=500, metadata=verbs.NO_OPTION)
  c_puct: verbs.NotNegative = dataclasses.field(
    default=0.125, metadata=verbs.NO_OPTION
  )
  segments: verbs.Natural = 0
  hard: bool = False


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

  Args:
    selected: The rollout.
    num_right: The number of steps up to the last state with MC > 0.
    num_wrong: The number of steps up to the end of the part with the first
      error, by default one more; None if a state on the way had no rollout with
      a known end.
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

  Args:
    states: Every prefix that was rolled out from, among them the root ().
    paths: The results of the searches.
    visits: N(s).
    duplicates: The wrong rollouts that didn't join the pool, because their text
      had joined before.
    left: The pool when the search ended.
  """

  states: dict[Steps, State]
  paths: tuple[Path, ...]
  visits: dict[Steps, int]
  duplicates: int
  left: int


class Request(NamedTuple):
  """The first steps of a solution, and how many rollouts from there.

  Args:
    whole: The solution; None is the problem alone.
    num_steps: The number of steps.
    num_rollouts: The number of rollouts.
  """

  whole: schema.Solution | None
  num_steps: int
  num_rollouts: int


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
  count_tokens: schema.CountTokens | None = None,
) -> Search:
  """Yields requests for rollouts, is sent the rollouts, and returns the tree.

  Args:
    given: Existing rollouts of the problem alone.
    options: The constants.
    count_tokens: Counts the tokens of steps; see omega_prm.label.

  Raises:
    InputError: A rollout doesn't say how many tokens it has, or segments are
      asked for, and there is no count_tokens.
  """
  missing = max(options.root_rollouts - len(given), 0)
  drawn = (yield Request(None, 0, missing)) if missing else ()
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
  """Removes the candidate with the highest Q + U from the pool and returns it.

  Both are computed again for every candidate, because a visit changes the U of
  all states. Of equals the first that joined is taken.
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
  """Halves the rollout until only its first wrong step is left; adds the states.

  A state that an earlier search rolled out isn't rolled out again.
  """
  steps = selected.rollout.steps
  low, high = len(selected.state.steps), len(steps)
  while high - low > 1:
    if least and count_tokens(steps[low:high]) < least:
      break
    middle = (low + high) // 2
    at = steps[:middle]
    if at not in states:
      rollouts = yield Request(selected.rollout, middle, completions)
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
  """Returns the tokens of an average solution divided by segments; 0 for none."""
  if not options.segments:
    return 0.0
  if count_tokens is None:
    raise errors.InputError(
      f"segments={options.segments}: the tokens of steps must be counted; give a"
      " count_tokens"
    )
  whole = [count_tokens(r.solution.steps) for r in root.rollouts]
  return sum(whole) / len(whole) / options.segments
