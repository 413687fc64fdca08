"""Turns of agents: which are wrong, where the first is, which of two is right.

The measures of turns are AgentProcessBench's (arXiv 2603.14465), whose ratings
are 1, 0 and -1. A reward model tells two classes apart, right and wrong, so that
StepAcc comes in two forms: without the turns rated 0, and with them as right.
Every rated turn counts, after a first error, too, since an error counts there
only until it is corrected. The measure of pairs is ToolPRMBench's (arXiv
2601.12294).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import tool_prm_bench
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics

Ratings = Sequence[int | None]
MEASURES = (
  *("step_acc", "step_acc_neutral_good", "balanced_acc"),
  *("first_err_acc", "auroc"),
)


def ratings_of(solution: schema.Solution) -> tuple[int | None, ...]:
  """Returns the rating of each turn; a label is 1 from 0.5 on, else -1."""
  if solution.ratings is not None:
    return tuple(solution.ratings)
  if solution.labels is None:
    return (None,) * len(solution.steps)
  return tuple(
    None if x is None else 1 if x >= schema.THRESHOLD else -1
    for x in solution.labels
  )


def first_error(ratings: Ratings) -> int | None:
  """Returns the first turn rated -1; -1 if none is, None if it isn't known.

  Args:
    ratings: The rating of each turn, None where nobody rated it.
  """
  for i, rating in enumerate(ratings):
    if rating is None or rating < 0:
      return None if rating is None else i
  return -1


def evaluate(
  step_scores: Sequence[Sequence[float]],
  ratings: Sequence[Ratings],
  *,
  units: Sequence[Hashable] | None = None,
  threshold: float = schema.THRESHOLD,
  num_resamples: int = 2_000,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns the MEASURES, their 95 % intervals and the counts.

  step_acc is the share of the turns rated 1 or -1 that are on their side of the
  threshold; step_acc_neutral_good that of all rated turns, where 0 is right;
  balanced_acc the mean of the shares of the right and of the wrong ones;
  first_err_acc the share of the trajectories whose first wrong turn, or none,
  is predicted; auroc P(a turn rated 1 outscores one rated -1).

  Args:
    step_scores: [trajectory][turn], P(right).
    ratings: [trajectory][turn], 1, 0 or -1, None where nobody rated the turn.
    units: What each trajectory belongs to, the unit of the bootstrap; without
      it each trajectory stands alone.
    threshold: A turn below it is predicted to be wrong.
    num_resamples: The number of resamples.
    seed: Their seed.

  Raises:
    InputError: The lengths differ, or a score isn't in [0, 1].
  """
  if len(step_scores) != len(ratings):
    raise errors.InputError(
      f"scores of {len(step_scores)} trajectories but ratings of"
      f" {len(ratings)}; score the same file that holds the ratings"
    )
  for i, (own, rated) in enumerate(zip(step_scores, ratings)):
    step_metrics.check_scores(own, len(rated), f"trajectory {i} (from 0)")
  units = range(len(ratings)) if units is None else units
  hits, of = _counts(step_scores, ratings, threshold)
  truth = [first_error(x) for x in ratings]
  predicted = step_metrics.predicted_first_errors(step_scores, threshold)
  known = np.array([x is not None for x in truth], bool)
  found = np.array([x == y for x, y in zip(predicted, truth)], bool)
  scores, correct, trajectory = _of_two_kinds(step_scores, ratings)
  share = processbench_metrics.resampler(units, num_resamples, seed)

  def measured(ratio: Callable[..., Any]) -> dict[str, Any]:
    return dict(
      step_acc=ratio(hits[1] + hits[-1], of[1] + of[-1]),
      step_acc_neutral_good=ratio(sum(hits.values()), sum(of.values())),
      balanced_acc=(ratio(hits[1], of[1]) + ratio(hits[-1], of[-1])) / 2,
      first_err_acc=ratio(found, known),
    )

  interval = {k: bootstrap.interval(x) for k, x in measured(share).items()}
  interval["auroc"] = step_metrics.auroc_interval(
    scores,
    correct,
    bootstrap.numbered(units)[trajectory],
    num_resamples,
    seed,
  )
  num = {rating: int(x.sum()) for rating, x in of.items()}
  return step_metrics.defined(
    dict(
      num_trajectories=len(ratings),
      num_turns_right=num[1],
      num_turns_neutral=num[0],
      num_turns_wrong=num[-1],
      num_turns_unrated=sum(map(len, ratings)) - sum(num.values()),
      num_with_error=sum(x is not None and x >= 0 for x in truth),
      num_first_error_unknown=truth.count(None),
      threshold=threshold,
      **measured(_ratio),
      auroc=step_metrics.auroc(scores, correct),
      interval=interval,
    )
  )


def evaluate_pairs(
  last_scores: Sequence[float],
  solutions: Sequence[schema.Solution],
  *,
  num_resamples: int = 2_000,
  seed: int = 0,
) -> dict[str, Any] | None:
  """Returns how often the chosen one of two actions scores higher.

  A tie is half right. The mean over the subsets (sources) is unweighted, as
  published. Trajectories whose other one is missing are counted.

  Args:
    last_scores: The score of each trajectory's last turn.
    solutions: The trajectories; those of a pair have extra["pair"] and
      extra["choice"], as formats.tool_prm_bench reads them.
    num_resamples: The number of resamples of a subset's problems.
    seed: Their seed.

  Returns:
    {"subsets": {name: {"num", "accuracy", "interval"}}, "mean",
    "mean_interval", "num_incomplete"}; None if there is no pair.
  """
  pairs: dict[tuple[str, Any], dict[str, int]] = {}
  for i, solution in enumerate(solutions):
    if solution.extra.get("choice") in tool_prm_bench.CHOICES:
      key = solution.source, solution.extra.get("pair")
      pairs.setdefault(key, {})[solution.extra["choice"]] = i
  whole = {k: x for k, x in pairs.items() if len(x) == 2}
  if not whole:
    return None
  subsets, draws = {}, []
  for i, name in enumerate(dict.fromkeys(subset for subset, _ in whole)):
    own = [x for (subset, _), x in whole.items() if subset == name]
    gaps = [last_scores[x["chosen"]] - last_scores[x["rejected"]] for x in own]
    won = (np.sign(gaps) + 1) / 2
    units = units_of([solutions[x["chosen"]] for x in own])
    share = processbench_metrics.resampler(units, num_resamples, seed + i)
    draws.append(share(won, np.ones(len(own))))
    subsets[name] = dict(
      num=len(own),
      accuracy=float(won.mean()),
      interval=bootstrap.interval(draws[-1]),
    )
  return step_metrics.defined(
    dict(
      subsets=subsets,
      mean=float(np.mean([x["accuracy"] for x in subsets.values()])),
      mean_interval=bootstrap.interval(np.mean(draws, axis=0)),
      num_incomplete=len(pairs) - len(whole),
    )
  )


def units_of(solutions: Sequence[schema.Solution]) -> list[str]:
  """Returns the unit of the bootstrap of each: its problem, or itself."""
  return [x.problem if x.problem.strip() else x.id for x in solutions]


# --- Private ----------------------------------------------------------------


def _counts(
  step_scores: Sequence[Sequence[float]],
  ratings: Sequence[Ratings],
  threshold: float,
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
  """Returns each trajectory's turns predicted as rated, and all, by rating.

  A turn rated 0 is predicted so if it isn't predicted to be wrong.
  """
  hits: dict[int, np.ndarray] = {}
  of: dict[int, np.ndarray] = {}
  for rating in (1, 0, -1):
    of_rating = [
      [score >= threshold for score, x in zip(scores, rated) if x == rating]
      for scores, rated in zip(step_scores, ratings)
    ]
    hits[rating] = np.array([x.count(rating >= 0) for x in of_rating], np.int64)
    of[rating] = np.array([len(x) for x in of_rating], np.int64)
  return hits, of


def _of_two_kinds(
  step_scores: Sequence[Sequence[float]], ratings: Sequence[Ratings]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the scores of the turns rated 1 or -1, which is 1, and of whom."""
  turns = [
    (score, rating > 0, i)
    for i, (scores, rated) in enumerate(zip(step_scores, ratings))
    for score, rating in zip(scores, rated)
    if rating
  ]
  return (
    np.array([x for x, _, _ in turns], np.float64),
    np.array([x for _, x, _ in turns], bool),
    np.array([x for _, _, x in turns], np.int64),
  )


def _ratio(hits: np.ndarray, of: np.ndarray) -> float:
  return float(hits.sum() / of.sum()) if of.sum() else np.nan
