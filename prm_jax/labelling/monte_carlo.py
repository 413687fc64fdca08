"""Monte-Carlo step labels (Math-Shepherd, Wang et al. 2024, arXiv 2312.08935).

The value of a step is the share of K completions, sampled after it, that end in
the right answer (soft estimation). The hard label says whether the value is
above a threshold, which is 0 in the paper (hard estimation). A value estimates
how promising the prefix is, not whether it is right: a wrong prefix that often
ends right by chance has a value above 0.

Rollouts come in rounds over all prefixes that still need some. A prefix's id in
a round is made of its text and the round's number, and seeds its samples. So
equal prefixes get equal rollouts in every run, and a run that stops early draws
the first rounds of one that doesn't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import math

from prm_jax import schema
from prm_jax.labelling import prefix_rollouts
from prm_jax.labelling.prefix_rollouts import Tally
from prm_jax.runtime import verbs
from prm_jax.text import answers

# A problem's text and the texts of its steps so far.
Key = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Options(verbs.Value):
  """How many rollouts to draw, and what labels they become.

  Args:
    completions: The most rollouts after each step; the last step has none, its
      label is whether the solution's own answer is right.
    hard: Label a step 1 if the share is above --threshold, else 0, instead of
      the share itself.
    threshold: With --hard, the share above which a step is right, at least 0
      and less than 1; Math-Shepherd's is 0, and Zhang et al. 2025 (arXiv
      2501.07301) find no better one.
    stop_early: With --hard, draw no more rollouts from a step when its label
      can't change.
    max_width: Without --hard, draw no more rollouts from a step when the share's
      confidence interval is at most this wide, above 0 and at most 1 (default:
      always draw all).
    confidence: The level of the interval of --max_width, above 0 and less than
      1.
    rounds: The number of rollouts in each round; None is one round of all, or
      with stop_early or max_width 1, 1, 2, 4, ... up to all. Runs whose rounds
      begin the same draw the same rollouts in these.
    stop_at_zero: Draw no rollouts and write no labels for the steps after the
      first one whose label is 0.

  Raises:
    InputError: A number is out of range, or an option has no effect.
  """

  first_is_whole = False

  completions: verbs.Count = 8
  hard: bool = False
  threshold: verbs.ShareBelow1 = 0.0
  stop_early: bool = False
  max_width: float | None = None
  confidence: verbs.ShareInside = 0.95
  rounds: tuple[int, ...] | None = dataclasses.field(
    default=None, metadata=verbs.NO_OPTION
  )
  stop_at_zero: bool = False

  def _faults(self) -> Iterator[str]:
    if self.threshold and not self.hard:
      yield (
        f"threshold={self.threshold}: soft labels have none; take hard labels"
      )
    if self.stop_early and not self.hard:
      yield (
        "stop_early is for hard labels; soft ones stop at an interval: give"
        " max_width"
      )
    if self.max_width is not None and (
      self.hard or not 0 < self.max_width <= 1
    ):
      yield (
        f"max_width={self.max_width}: expected soft labels, and a width above"
        " 0 and at most 1; hard labels stop by stop_early"
      )
    if self.rounds is not None and (
      min(self.rounds, default=0) < 1 or sum(self.rounds) != self.completions
    ):
      yield (
        f"rounds={self.rounds}: expected counts of 1 or more that sum up to"
        f" completions={self.completions}"
      )

  @property
  def stops(self) -> bool:
    """Whether a prefix may get fewer rollouts than K."""
    return self.stop_early or self.max_width is not None

  def sizes(self) -> tuple[int, ...]:
    """Returns the number of rollouts of a prefix in each round."""
    if self.rounds is not None:
      return self.rounds
    return doubling(self.completions) if self.stops else (self.completions,)


def label(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  verify: schema.Verify,
  options: Options,
  *,
  find_answer: schema.FindAnswer = answers.of_solution,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions with labels, in order, and the work that it took.

  The last step is judged by the outcome itself. Equal prefixes of a problem are
  rolled out once. Ratings are removed, because they would hide the labels. A
  label is None if no rollout has a known end.

  extra gets, with one entry for each step: `values`, the soft labels, if labels
  are hard; `rollouts`, the number drawn after the step, if a prefix may stop
  early; `intervals`, [low, high] of the value, with max_width.

  The work has `prefixes` and `distinct_prefixes` of the solutions, the counts
  of `roll_out`, `rollouts_saved` of completions * distinct_prefixes, and
  `unlabelled`, distinct prefixes and whole solutions without a label.

  Args:
    solutions: The solutions to label.
    generate: Completes prefixes.
    verify: Whether whole solutions end in the right answer.
    options: How many rollouts to draw, and what labels they become.
    find_answer: Returns the answer that a completion states, to count those
      without one.
    progress: Called with the number of prefixes that are finished.

  Raises:
    ValueError: generate or verify returns another number than asked for.
  """
  first = distinct_prefixes(solutions)
  tallies: dict[Key, Tally] = {}
  work: Counter[str] = Counter()
  for ks in _groups(solutions, options):
    _open(tallies, solutions, ks, options)
    for number, size in enumerate(options.sizes()):
      asked = [key for key, t in tallies.items() if not _settled(t, options)]
      starts = [
        prefix_rollouts.prefix(first[key], len(key) - 1, round_number=number)
        for key in asked
      ]
      # One text may be cut into other steps in two solutions.
      distinct: dict[str, schema.Solution] = {}
      for start in starts:
        distinct.setdefault(start.id, start)
      rows, done = prefix_rollouts.roll_out(
        list(distinct.values()), size, generate, verify, find_answer
      )
      work.update(done)
      by_id = dict(zip(distinct, rows, strict=True))
      for key, start in zip(asked, starts, strict=True):
        tallies[key] = prefix_rollouts.tally(by_id[start.id], tallies[key])
      waiting = sum(not _settled(t, options) for t in tallies.values())
      progress(sum(len(key) - 1 <= ks[-1] for key in first) - waiting)
      if not waiting:
        break
  labelled, unlabelled = _labelled(solutions, tallies, verify, options)
  at_most = options.completions * len(first)
  return labelled, dict(
    prefixes=sum(max(len(s.steps) - 1, 0) for s in solutions),
    distinct_prefixes=len(first),
    **prefix_rollouts.counts(work),
    rollouts_saved=at_most - work["rollouts"],
    unlabelled=unlabelled,
  )


def distinct_prefixes(
  solutions: Sequence[schema.Solution],
) -> dict[Key, schema.Solution]:
  """Returns the prefixes to roll out from, and the first solution of each.

  Args:
    solutions: The solutions to label.

  Returns:
    The solutions by the problem's text and those of the prefix's steps.
  """
  first: dict[Key, schema.Solution] = {}
  for s in solutions:
    for k in range(1, len(s.steps)):
      first.setdefault(_key(s, k), s)
  return first


def num_prefixes(solutions: Sequence[schema.Solution]) -> int:
  """Returns how many distinct prefixes there are to roll out from."""
  return len(distinct_prefixes(solutions))


def doubling(completions: int) -> tuple[int, ...]:
  """Returns rounds of 1, 1, 2, 4, ... that sum up to completions."""
  sizes: list[int] = []
  while sum(sizes) < completions:
    sizes.append(min(max(sum(sizes), 1), completions - sum(sizes)))
  return tuple(sizes)


@functools.cache
def interval(right: int, known: int, confidence: float) -> tuple[float, float]:
  """Returns bounds of p for `right` successes in `known` independent trials.

  With at least probability `confidence` p is within the bounds at every number
  of trials at once, so also at one at which the bounds made the trials stop.
  The bounds hold those p at which the martingale B(right + 1, wrong + 1) /
  p^right (1 - p)^wrong, a mixture of likelihood ratios under a uniform prior,
  hasn't reached 1 / (1 - confidence) (Robbins 1970; Waudby-Smith and Ramdas
  2020). This is so for each prefix, not for all of them together.
  """
  wrong = known - right
  log_beta = (
    math.lgamma(right + 1) + math.lgamma(wrong + 1) - math.lgamma(known + 2)
  )

  def is_out(p: float) -> bool:
    log_likelihood = (right * math.log(p) if right else 0.0) + (
      wrong * math.log1p(-p) if wrong else 0.0
    )
    return log_beta - log_likelihood >= -math.log1p(-confidence)

  def edge(inside: float, outside: float) -> float:
    for _ in range(50):
      middle = (inside + outside) / 2
      if is_out(middle):
        outside = middle
      else:
        inside = middle
    return outside

  share = right / known if known else 0.5
  low = edge(share, 0.0) if right else 0.0
  high = edge(share, 1.0) if wrong else 1.0
  return low, high


# --- Labels -------------------------------------------------------------------


def _key(solution: schema.Solution, k: int) -> Key:
  return (solution.problem, *prefix_rollouts.texts(solution)[:k])


def _groups(solutions, options) -> list[list[int]]:
  """Returns the numbers of steps whose prefixes are rolled out together."""
  longest = max((len(s.steps) for s in solutions), default=0)
  lengths = list(range(1, longest))
  if options.stop_at_zero:
    return [[k] for k in lengths]
  return [lengths] if lengths else []


def _open(tallies, solutions, ks, options) -> None:
  """Enters the prefixes of k steps, except those after a step of label 0."""
  for k in ks:
    for s in solutions:
      if k < len(s.steps) and not _is_stopped(s, k, tallies, options):
        tallies.setdefault(_key(s, k), Tally())


def _settled(t: Tally, options: Options) -> bool:
  """Returns whether a prefix needs no further rollouts."""
  left = options.completions - t.drawn
  if not left:
    return True
  if options.stop_early:
    # However the rest ends, also if some of its ends are unknown.
    least = t.right / (t.known + left)
    most = (t.right + left) / (t.known + left)
    return least > options.threshold or most <= options.threshold
  if options.max_width is not None and t.known:
    low, high = interval(t.right, t.known, options.confidence)
    return high - low <= options.max_width
  return False


def _hardened(value: float | None, options: Options) -> float | None:
  if value is None or not options.hard:
    return value
  return float(value > options.threshold)


def _is_stopped(solution, k, tallies, options) -> bool:
  """Returns whether a label 0 before step k leaves step k without a label."""
  if not options.stop_at_zero:
    return False
  shorter = (tallies.get(_key(solution, j)) for j in range(1, k))
  return any(t and _hardened(t.value, options) == 0 for t in shorter)


def _labelled(
  solutions, tallies, verify, options
) -> tuple[list[schema.Solution], int]:
  """Returns the solutions with labels, and how many labels are missing."""
  ends = [
    i
    for i, s in enumerate(solutions)
    if s.steps and not _is_stopped(s, len(s.steps), tallies, options)
  ]
  verdicts = prefix_rollouts.verdicts_of([solutions[i] for i in ends], verify)
  outcomes = dict(zip(ends, verdicts, strict=True))
  unlabelled = sum(t.value is None for t in tallies.values())
  unlabelled += sum(verdict is None for verdict in verdicts)
  labelled = []
  for i, s in enumerate(solutions):
    path = [tallies.get(_key(s, k), Tally()) for k in range(1, len(s.steps))]
    values = [t.value for t in path]
    if s.steps:
      outcome = outcomes.get(i)
      values.append(None if outcome is None else float(outcome))
    labels = [_hardened(value, options) for value in values]
    extra = prefix_rollouts.plain_extra(s)
    if options.hard:
      extra["values"] = values
    if options.stops:
      extra["rollouts"] = [t.drawn for t in path] + [0] * bool(s.steps)
    if options.max_width is not None:
      bounds = [
        list(interval(t.right, t.known, options.confidence))
        if t.known
        else None
        for t in path
      ]
      extra["intervals"] = bounds + [None] * bool(s.steps)
    labelled.append(
      dataclasses.replace(
        s, labels=tuple(labels), ratings=None, source="monte_carlo", extra=extra
      )
    )
  return labelled, unlabelled
