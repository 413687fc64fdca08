"""Aggregates step scores to a solution's score, and N solutions to an answer.

Accuracy at n is an expectation over the subsets of n among a problem's N
samples. Best-of-n and pass@n are computed exactly, without trials. Votes are
exact at n = 1 and n = N, and averaged over random subsets otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
import logging
import math
from typing import get_args

from jaxtyping import Float, Int, Shaped
import numpy as np

from prm_jax import errors
from prm_jax import schema

_logger = logging.getLogger(__name__)

AGGREGATES = get_args(schema.Aggregate)
# The aggregates that a step which the model doesn't judge can raise.
READS_UNJUDGED = ("last", "mean")
# Sums of the same weights in another order differ by rounding; totals this
# close to the largest are ties.
_TIE = 1e-12
# Those of the scores 1 and 0, so that sums and softmax stay finite.
_MAX_LOG_ODDS = 1000.0


def aggregate(step_scores: Sequence[float], how: str) -> float:
  """Returns a solution's score from the scores of its steps.

  PRMs that learned human labels work best with product or min, PRMs that
  learned Monte-Carlo labels with last (arXiv 2501.07301, Table 13).

  Args:
    step_scores: P(correct so far) of each step, in [0, 1].
    how: One of AGGREGATES: product, min, last or mean.

  Returns:
    The score, in [0, 1]: 0.0 for a solution without steps, NaN if a step's
    score is NaN and counts.

  Raises:
    InputError: `how` is unknown.
  """
  _check_aggregate(how)
  if len(step_scores) == 0:
    return 0.0
  if how == "product":
    return float(math.prod(step_scores))
  if how == "min":
    return float(np.min(step_scores))
  if how == "last":
    return float(step_scores[-1])
  return math.fsum(step_scores) / len(step_scores)


def ranking_scores(
  solutions: Sequence[schema.StepScores], how: str
) -> list[float]:
  """Returns numbers that order solutions as the exact aggregates would.

  Float32 probabilities are all 1.0 from log-odds of 17 on, so aggregates of
  them tie where the model doesn't. These numbers come from the log-odds, in
  float64: product is the sum of log P (nats), min and last are the log-odds of
  one step (nats), mean is -mean(1 - P). They only rank: weigh votes by
  `aggregate`, which is a probability.

  Args:
    solutions: The step scores of the solutions that are compared. If one with
      steps has no logits, the result is `aggregate` of each.
    how: One of AGGREGATES.

  Returns:
    One number for each solution, higher is better: NaN if a step that counts is
    NaN; the lowest number (-inf, or -1 for mean) for a solution without steps.

  Raises:
    InputError: `how` is unknown.
  """
  _check_aggregate(how)
  if any(x.logits is None for x in solutions if len(x)):
    return [aggregate(x.scores, how) for x in solutions]
  return [_ranking_score(x.logits or (), how) for x in solutions]


def log_odds(solution: schema.StepScores, how: str) -> float:
  """Returns the log-odds of a solution's score.

  They are computed from the steps' log-odds, in float64, if the scorer gives
  these. So they differ where scores round to 1, and order solutions as
  ranking_scores does.

  Args:
    solution: The step scores.
    how: One of AGGREGATES.

  Returns:
    ln(s / (1 - s)) of the aggregate s, in nats, at least -1000 and at most 1000;
    -1000 for a solution without steps, NaN if a step that counts is NaN.

  Raises:
    InputError: `how` is unknown.
  """
  _check_aggregate(how)
  if not len(solution):
    return -_MAX_LOG_ODDS
  if solution.logits is None:
    score = aggregate(solution.scores, how)
    wrong = 1 - score
  else:
    rank = _ranking_score(solution.logits, how)
    if how in ("min", "last"):
      return float(np.clip(rank, -_MAX_LOG_ODDS, _MAX_LOG_ODDS))
    # The logarithm of the score, or the mean of 1 - P with a minus sign.
    score = math.exp(rank) if how == "product" else 1 + rank
    wrong = -math.expm1(rank) if how == "product" else -rank
    if how == "product" and not score:  # the logarithm is still exact
      return max(rank, -_MAX_LOG_ODDS)
  if not (score and wrong):
    return _MAX_LOG_ODDS if score else -_MAX_LOG_ODDS
  return math.log(score) - math.log(wrong)


def warn_of_unjudged(solutions: Sequence[schema.StepScores], how: str) -> None:
  """Logs a warning if steps that aren't judged can raise solutions' scores.

  After its first score below 0.5, a PRM whose training ignored the steps after
  a first error wasn't trained to judge a step, and may call it right. `last` is
  the score of such a step alone, and `mean` counts it in full. It can't raise
  `product` or `min` above the score of the doubted step. Of a model that
  learned the last step alone, all but `last` read steps that aren't judged.

  Args:
    solutions: The step scores of each solution.
    how: One of AGGREGATES.
  """
  judged = [x.judged for x in solutions if x.judged]
  of = f"of {len(solutions):,} solutions"
  after = sum(not x[-1] for x in judged)
  if after and how in READS_UNJUDGED:
    _logger.warning(
      f"warning: `aggregate={how}` reads steps that the model wasn't trained to"
      f" judge (after its first score below 0.5) in {after:,} {of}; use min or"
      " product, or a model trained with"
      " objective.labels.after_first_error='bad' (docs/prm.md)"
    )
  before = sum(x[-1] and not all(x) for x in judged)
  if before and how != "last":
    _logger.warning(
      f"warning: `aggregate={how}` reads steps that the model wasn't trained to"
      f" judge (all but the last) in {before:,} {of}; `aggregate=last` reads"
      " what it learned (docs/evaluation.md)"
    )


def best(scores: Sequence[float]) -> int:
  """Returns the index of the highest score; of equal scores, the first.

  Args:
    scores: One score for each solution.

  Returns:
    The index, counted from 0.

  Raises:
    InputError: There is no score, or a score is NaN.
  """
  if len(scores) == 0:
    raise errors.InputError("no solution to choose from; give at least one")
  if any(math.isnan(score) for score in scores):
    raise errors.InputError("a solution's score is NaN; fix the scores")
  return max(range(len(scores)), key=scores.__getitem__)


def best_of_n(
  scores: Shaped[np.ndarray, "P N"],
  correct: Shaped[np.ndarray, "P N"],
  ns: Sequence[int],
) -> Float[np.ndarray, "P n"]:
  """Returns P(the best-scored of n samples is correct) for each problem and n.

  This is the mean over all subsets of n samples: with the scores in descending
  order, the i-th best of N is the winner of C(N - i, n - 1) of the C(N, n)
  subsets. Among equal scores the choice is uniform, so each counts as their
  mean.

  Args:
    scores: The score of each of the N samples of P problems. -inf never wins
      against a finite score.
    correct: Whether each sample is correct, as 0/1 or bool. With other values
      the result is their expectation under the choice.
    ns: The sizes of the subsets, each in 1..N.

  Returns:
    Probabilities in [0, 1], one row for each problem and one column for each n.

  Raises:
    InputError: A score is NaN, or an n is out of range.
  """
  scores = np.asarray(scores, np.float64)
  if np.isnan(scores).any():
    raise errors.InputError(
      f"{int(np.isnan(scores).sum())} sample scores are NaN; use -inf for a"
      " sample that must never win"
    )
  num_problems, num_samples = scores.shape
  shares = _winner_shares(num_samples, ns)
  order = np.argsort(-scores, axis=1, kind="stable")
  ranked = np.take_along_axis(np.asarray(correct, np.float64), order, axis=1)
  ranked_scores = np.take_along_axis(scores, order, axis=1)
  is_new = np.ones(scores.shape, bool)
  is_new[:, 1:] = ranked_scores[:, 1:] != ranked_scores[:, :-1]
  group = np.cumsum(is_new.ravel()) - 1  # groups never span two problems
  sizes = np.bincount(group)
  means = np.bincount(group, weights=ranked.ravel()) / sizes
  return means[group].reshape(num_problems, num_samples) @ shares


def pass_at_n(
  correct: Shaped[np.ndarray, "P N"], ns: Sequence[int]
) -> Float[np.ndarray, "P n"]:
  """Returns P(at least one of n samples is correct) for each problem and n.

  This is 1 - C(N - c, n) / C(N, n) for c correct samples, the unbiased estimate
  of arXiv 2107.03374, equation 1. No choice among the samples can do better:
  it is best-of-n with a perfect score.

  Args:
    correct: Whether each of the N samples of P problems is correct, as 0/1 or
      bool.
    ns: The sizes of the subsets, each in 1..N.

  Returns:
    Probabilities in [0, 1], one row for each problem and one column for each n.

  Raises:
    InputError: An n is out of range.
  """
  return best_of_n(correct, correct, ns)


def majority_vote(answers: Sequence[Hashable | None]) -> Hashable | None:
  """Returns the most frequent answer.

  Args:
    answers: As for weighted_vote, of which this is the case of equal weights.

  Returns:
    The answer, or None if there is no answer at all.
  """
  return weighted_vote(answers, [1.0] * len(answers))


def weighted_vote(
  answers: Sequence[Hashable | None], weights: Sequence[float]
) -> Hashable | None:
  """Returns the answer whose samples weigh most, argmax_a sum_i [a_i = a] w_i.

  Args:
    answers: The answer of each sample, None for a sample without one. They are
      compared with ==, so apply grading.equality.canonical first.
    weights: The weight of each sample, finite and at least 0.

  Returns:
    The answer; of equal totals the one that comes first. None never wins: the
    result is None only if there is no answer at all.

  Raises:
    InputError: A weight is negative or not finite.
  """
  classes, names = _classes(answers)
  if not names:
    return None
  valid = classes >= 0
  checked = _checked_weights(weights)
  totals = np.bincount(classes[valid], checked[valid], minlength=len(names))
  return names[int(np.argmax(totals >= totals.max() * (1 - _TIE)))]


def vote_accuracy(
  answers: Sequence[Sequence[Hashable | None]],
  right: Shaped[np.ndarray, "P N"],
  weights: Shaped[np.ndarray, "P N"] | None,
  ns: Sequence[int],
  *,
  seed: int = 0,
  num_subsets: int = 32,
) -> Float[np.ndarray, "P n"]:
  """Returns P(the vote among n samples is right) for each problem and n.

  The result is exact at n = 1 and n = N. Otherwise it is the mean over random
  subsets: the first n of each of num_subsets permutations, so two votes with
  equal seeds are compared on equal subsets. Answers with equal totals share the
  win evenly. A subset without any answer is wrong.

  Args:
    answers: The answers of the N samples of P problems, [P][N], None for a
      sample without one. They are compared with ==, so apply
      grading.equality.canonical first.
    right: Whether each sample's answer is right, as 0/1 or bool. If samples
      with equal answers differ, the answer counts as their mean.
    weights: The weight of each sample, finite and at least 0, for the weighted
      vote; None for the majority vote.
    ns: The numbers of samples that vote, each in 1..N.
    seed: The seed of the permutations.
    num_subsets: The number of permutations.

  Returns:
    Probabilities in [0, 1], one row for each problem and one column for each n.

  Raises:
    InputError: An n is out of range, or a weight is negative or not finite.
  """
  right = np.asarray(right, np.float64)
  num_problems, num_samples = right.shape
  _check_ns(ns, num_samples)
  if weights is None:
    weights = np.ones(right.shape)
  weights = _checked_weights(weights)
  rng = np.random.default_rng(seed)
  result = np.empty((num_problems, len(ns)))
  for p in range(num_problems):
    orders = rng.permuted(
      np.tile(np.arange(num_samples), (num_subsets, 1)), axis=1
    )
    classes, names = _classes(answers[p])
    result[p] = _vote_curve(
      classes, len(names), right[p], weights[p], ns, orders
    )
  return result


# --- Private ----------------------------------------------------------------


def _check_aggregate(how: str) -> None:
  if how not in AGGREGATES:
    raise errors.InputError(
      f"aggregate {how!r} is unknown; choose one of {', '.join(AGGREGATES)}"
    )


def _ranking_score(logits: Sequence[float], how: str) -> float:
  """Returns a number that rises with the exact aggregate of sigmoids."""
  if len(logits) == 0:
    return -1.0 if how == "mean" else -math.inf
  x = np.asarray(logits, np.float64)
  if how == "min":
    return float(np.min(x))
  if how == "last":
    return float(x[-1])
  with np.errstate(invalid="ignore"):  # NaN stays NaN
    if how == "product":
      return math.fsum(-np.logaddexp(0.0, -x))
    # 1 - P = sigmoid(-x), which doesn't round to 0 as P rounds to 1.
    return -math.fsum(np.exp(-np.logaddexp(0.0, x))) / len(x)


def _check_ns(ns: Sequence[int], num_samples: int) -> None:
  for n in ns:
    if not 1 <= n <= num_samples:
      raise errors.InputError(
        f"n = {n} with {num_samples} samples per problem; choose n within"
        f" 1..{num_samples}"
      )


def _checked_weights(weights: Sequence[float] | np.ndarray) -> np.ndarray:
  weights = np.asarray(weights, np.float64)
  if not (np.isfinite(weights) & (weights >= 0)).all():
    raise errors.InputError(
      "vote weights must be finite and >= 0; exponentiate log-probabilities"
    )
  return weights


def _winner_shares(
  num_samples: int, ns: Sequence[int]
) -> Float[np.ndarray, "N n"]:
  """Returns C(N - i, n - 1) / C(N, n) for the ranks i = 1..N."""
  _check_ns(ns, num_samples)
  left = np.arange(num_samples - 1, 0, -1)  # samples ranked below rank i
  columns = []
  for n in ns:
    ratios = np.maximum(left - n + 1, 0) / left
    columns.append(n / num_samples * np.cumprod(np.append(1.0, ratios)))
  return np.stack(columns, axis=1)


def _classes(
  answers: Sequence[Hashable | None],
) -> tuple[Int[np.ndarray, " N"], list[Hashable]]:
  """Returns the index of each sample's answer, -1 for None, and the answers."""
  index: dict[Hashable, int] = {}
  classes = np.array(
    [-1 if a is None else index.setdefault(a, len(index)) for a in answers],
    dtype=np.int64,
  )
  return classes, list(index)


def _vote_curve(classes, num_classes, right, weights, ns, orders):
  """Returns one problem's P(the vote of n is right) for each n."""
  num_samples, num_subsets = len(classes), len(orders)
  valid = classes >= 0
  if not valid.any():
    return np.zeros(len(ns))
  # From here on, class num_classes stands for "no answer" and is cut off.
  classes = np.where(valid, classes, num_classes)
  width = num_classes + 1
  sizes = np.bincount(classes, minlength=width)[:num_classes]
  is_right = np.bincount(classes, right, minlength=width)[:num_classes] / sizes

  totals = np.zeros((num_subsets, width))
  counts = np.zeros((num_subsets, width))
  cells = classes[orders] + width * np.arange(num_subsets)[:, None]
  accuracy = {1: np.where(valid, np.append(is_right, 0.0)[classes], 0.0).mean()}
  seen = 0
  for n in sorted(set(ns) - {1, num_samples}):
    new = cells[:, seen:n].ravel()
    new_weights = weights[orders[:, seen:n]].ravel()
    counts += np.bincount(new, minlength=counts.size).reshape(counts.shape)
    totals += np.bincount(new, new_weights, counts.size).reshape(counts.shape)
    seen = n
    accuracy[n] = _right_share(
      totals[:, :num_classes], counts[:, :num_classes], is_right
    ).mean()
  if num_samples > 1:
    totals = np.bincount(classes, weights, minlength=width)[None, :num_classes]
    accuracy[num_samples] = _right_share(totals, sizes[None], is_right)[0]
  return np.array([accuracy[n] for n in ns])


def _right_share(
  totals: Float[np.ndarray, "S K"],
  counts: Shaped[np.ndarray, "S K"],
  is_right: Float[np.ndarray, " K"],
) -> Float[np.ndarray, " S"]:
  """Returns how right the winners in each subset are; ties share evenly."""
  present = counts > 0
  top = np.where(present, totals, -1.0).max(axis=1, keepdims=True)
  winners = present & (totals >= top * (1 - _TIE))
  return winners @ is_right / np.maximum(winners.sum(axis=1), 1)
