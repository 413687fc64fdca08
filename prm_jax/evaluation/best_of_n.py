"""Choosing among N solutions: accuracy against n, with paired intervals.

Curves are kept per problem, [P, n], so that the same resampled problems give
the interval of every curve and of every difference: on 500 problems the
problems are a larger source of chance than the samples.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Mapping, Sequence
import logging
from typing import Any

from jaxtyping import Float, Int, Shaped
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.evaluation import bootstrap
from prm_jax.grading import equality

_logger = logging.getLogger(__name__)


def curves(
  scores: Mapping[str, Shaped[np.ndarray, "P N"]],
  correct: Shaped[np.ndarray, "P N"],
  answers: Sequence[Sequence[str | None]] | None,
  ns: Sequence[int],
  *,
  weights: Mapping[str, Shaped[np.ndarray, "P N"]] | None = None,
  seed: int = 0,
) -> dict[str, Float[np.ndarray, "P n"]]:
  """Returns P(right) per problem and n for every way to choose an answer.

  Best-of-n under each score by its own name, `majority`, `weighted_NAME`, and
  `oracle` (pass@n). Best-of-n and the oracle are exact, votes are sampled
  (voting.vote_accuracy), all on the same subsets.

  Args:
    scores: by name, one score per sample; higher is better.
    correct: is the sample's answer right.
    answers: the samples' final answers, None where there is none; they are
      pooled by equality.canonical. None leaves the votes out.
    ns: numbers of samples to choose among, each within 1..N.
    weights: by name, the weight >= 0 of each sample in the vote
      `weighted_NAME`. Weights are probabilities, and scores may be log-odds, in
      the same order (voting.ranking_scores). None means the scores themselves.
  """
  _check_shapes(scores, correct, answers)
  result = {
    name: voting.best_of_n(score, correct, ns) for name, score in scores.items()
  }
  result["oracle"] = voting.pass_at_n(correct, ns)
  if answers is None:
    return result
  pooled = [[equality.canonical(a) for a in row] for row in answers]

  def vote(weights):
    return voting.vote_accuracy(pooled, correct, weights, ns, seed=seed)

  result["majority"] = vote(None)
  weights = scores if weights is None else weights
  _check_shapes(weights, correct, None)
  for name, weight in weights.items():
    if not np.all(weight >= 0):
      raise errors.InputError(
        f"score {name!r} can't weigh votes: it is negative or NaN; give"
        " `weights`"
      )
    result[f"weighted_{name}"] = vote(weight)
  return result


def intervals(
  curves: Mapping[str, Float[np.ndarray, "P n"]], *, seed: int = 0
) -> dict[str, list[list[float]]]:
  """Returns [low, high] for each n of each curve: 95 %, over problems.

  One set of resampled problems serves all curves.
  """
  return {name: _interval(curve, seed) for name, curve in curves.items()}


def paired_difference(
  curve_a: Float[np.ndarray, " P"],
  curve_b: Float[np.ndarray, " P"],
  *,
  seed: int = 0,
) -> dict[str, float]:
  """Returns the mean of a - b over problems and its 95 % interval.

  Args:
    curve_a: One value for each problem, such as a column of `curves`.
    curve_b: The same for b, with the problems in the same order.
    seed: The seed of the bootstrap.
  """
  difference = np.asarray(curve_a, np.float64) - curve_b
  ((low, high),) = _interval(difference[:, None], seed)
  return {"mean": float(difference.mean()), "low": low, "high": high}


def picked_false_positive_share(
  scores: Shaped[np.ndarray, "P N"],
  correct: Shaped[np.ndarray, "P N"],
  flawed: Shaped[np.ndarray, "P N"],
  ns: Sequence[int],
) -> list[float | None]:
  """Returns P(a wrong step | the best of n has the right answer), for each n.

  It is exact over subsets, as best-of-n is.

  Args:
    scores: The score of each sample.
    correct: Whether each sample's answer is right.
    flawed: Whether each sample has a wrong step.
    ns: The sizes of the subsets.

  Returns:
    One share for each n; None if no right answer is ever the best.
  """
  right = np.asarray(correct, bool)
  picked = voting.best_of_n(scores, right, ns).mean(0)
  lucky = voting.best_of_n(scores, right & np.asarray(flawed, bool), ns).mean(0)
  return [float(a / b) if b else None for a, b in zip(lucky, picked)]


def evaluate(
  scores: Mapping[str, Shaped[np.ndarray, "P N"]],
  correct: Shaped[np.ndarray, "P N"],
  answers: Sequence[Sequence[str | None]] | None,
  ns: Sequence[int],
  *,
  pairs: Sequence[tuple[str, str, int]] = (),
  weights: Mapping[str, Shaped[np.ndarray, "P N"]] | None = None,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns the curves of all scores with intervals, ready for results.json.

  The keys are n, num_problems, num_samples, accuracy, interval and paired. The
  other arguments are those of `curves`.

  Args:
    pairs: (a, b, n) asks for "a_minus_b_at_n" under "paired".
  """
  of_each = curves(scores, correct, answers, ns, weights=weights, seed=seed)
  paired = {}
  for a, b, n in pairs:
    if a not in of_each or b not in of_each or n not in ns:
      raise errors.InputError(
        f"no pair {a!r}, {b!r} at n = {n}; have"
        f" {', '.join(of_each)} at {list(ns)}"
      )
    at = list(ns).index(n)
    paired[f"{a}_minus_{b}_at_{n}"] = paired_difference(
      of_each[a][:, at], of_each[b][:, at], seed=seed
    )
  return {
    "n": [int(n) for n in ns],
    "num_problems": correct.shape[0],
    "num_samples": correct.shape[1],
    "accuracy": {name: c.mean(0).tolist() for name, c in of_each.items()},
    "interval": intervals(of_each, seed=seed),
    "paired": paired,
  }


# --- Pools ------------------------------------------------------------------


def groups(
  solutions: Sequence[schema.Solution], where: object
) -> tuple[Int[np.ndarray, "P N"], int]:
  """Returns the solutions of each problem, and how many are left out.

  Args:
    solutions: The solutions, each with an outcome.
    where: What they are read from.

  Returns:
    The indices of solutions, those of a problem in a row; each has as many as
    the problem with the fewest.

  Raises:
    InputError: A solution has no outcome, or there is none.
  """
  unknown = sum(s.outcome is None for s in solutions)
  if unknown:
    raise errors.InputError(
      f'{where}: {unknown} solutions have no "outcome"; best-of-N needs each,'
      " or `grader` and a reference_answer to find it"
    )
  found: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    found[s.problem].append(i)
  if not found:
    raise errors.InputError(f"{where}: no solutions")
  num = min(map(len, found.values()))
  left_out = len(solutions) - num * len(found)
  if left_out:
    _logger.info(
      f"left out: {left_out} solutions, to have {num} of every problem"
    )
  return np.array([rows[:num] for rows in found.values()]), left_out


def trivial_scores(
  solutions: Sequence[schema.Solution],
) -> dict[str, np.ndarray]:
  """Returns scores of solutions that read no mathematics, higher is better."""
  num_steps = [len(s.steps) for s in solutions]
  num_letters = [sum(map(len, s.steps)) for s in solutions]
  result = {
    "shortest": -np.array(num_steps, np.float64),
    "shortest_text": -np.array(num_letters, np.float64),
  }
  if len({s.source for s in solutions}) > 1:
    result["source_prior"] = source_prior(solutions)
  return result


def source_prior(solutions: Sequence[schema.Solution]) -> np.ndarray:
  """Returns each solution's source's accuracy on all other problems."""
  right: Counter[Any] = Counter()
  count: Counter[Any] = Counter()
  for s in solutions:
    for group in (s.source, (s.source, s.problem)):
      right[group] += bool(s.outcome)
      count[group] += 1
  prior = []
  for s in solutions:
    own = (s.source, s.problem)
    others = count[s.source] - count[own]
    prior.append((right[s.source] - right[own]) / others if others else 0.5)
  return np.array(prior)


# --- Private ----------------------------------------------------------------


def _interval(curve, seed):
  """Returns [low, high] of the curve's mean for each n, over the problems."""
  counts = bootstrap.counts(len(curve), 2_000, seed)
  means = counts @ np.asarray(curve, np.float64) / len(curve)
  return bootstrap.interval(means)


def _check_shapes(scores, correct, answers):
  reserved = {"majority", "oracle"}
  for name, score in scores.items():
    if name in reserved or name.startswith("weighted_"):
      raise errors.InputError(
        f"a score can't be named {name!r}, a curve of that kind; rename it"
      )
    if score.shape != correct.shape:
      raise errors.InputError(
        f"score {name!r} has shape {score.shape}, correct has {correct.shape};"
        " give one score per sample, equally many samples per problem"
      )
  if answers is not None:
    shape = {len(row) for row in answers}
    if len(answers) != correct.shape[0] or shape != {correct.shape[1]}:
      raise errors.InputError(
        f"answers of {len(answers)} problems with {sorted(shape)} samples,"
        f" correct has {correct.shape}; give one answer (or null) per sample"
      )
