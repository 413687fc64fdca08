"""What the test samples and their scores say: results, pages, records.

The comparison's arithmetic is that of evaluation; here is which models are
compared, at which N, and what a reader is shown of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax import schema
from prm_jax import voting
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import step_metrics
from prm_jax.jobs import score as score_lib
from prm_jax.records import jsonl

StepScores = Mapping[str, Sequence[schema.StepScores]]


def solution_scores(
  step_scores: StepScores,
  aggregates: Mapping[str, str],
  samples: Sequence[schema.Solution],
) -> dict[str, np.ndarray]:
  """Returns one score per sample by each model, and the policy's own.

  log_prob_mean and log_prob_min over a sample's tokens know no arithmetic:
  what they reach is owed to the policy, not to labels.
  """
  scores = {
    name: np.array([voting.aggregate(s.scores, aggregates[name]) for s in rows])
    for name, rows in step_scores.items()
  }
  scores["logprob"] = np.array([s.extra["log_prob_mean"] for s in samples])
  scores["logprob_min"] = np.array([s.extra["log_prob_min"] for s in samples])
  return scores


def rankings(
  step_scores: StepScores,
  aggregates: Mapping[str, str],
  scores: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns what orders the samples: log-odds, as scores near 1 round to 1.

  The policy's log-probabilities are their own order.
  """
  return dict(scores) | {
    name: np.array(voting.ranking_scores(rows, aggregates[name]))
    for name, rows in step_scores.items()
  }


def evaluate(
  rows: Sequence[Sequence[schema.Solution]],
  step_scores: StepScores,
  scores: Mapping[str, np.ndarray],
  ranking: Mapping[str, np.ndarray],
  seed: int,
) -> dict[str, Any]:
  """Returns the results.

  `ranking` chooses the best of n; the scores, which are probabilities, weigh
  votes.
  """
  shape = len(rows), len(rows[0])
  samples = [s for row in rows for s in row]
  correct = np.array([s.outcome for s in samples]).reshape(shape)
  flawed = np.array([not (s.labels or (0,))[-1] for s in samples])
  by_problem = {name: x.reshape(shape) for name, x in ranking.items()}
  ns = [2**k for k in range(shape[1].bit_length())]
  last = ns[-1]
  pairs = [
    ("prm", "orm", last),
    ("prm", "majority", last),
    ("prm", "orm", min(4, last)),
    ("prm", "prm_mc", last),
    ("prm_mc", "orm", last),
  ]
  answers = [[s.answer for s in row] for row in rows]
  results = best_of_n.evaluate(
    by_problem,
    correct,
    answers,
    ns,
    pairs=[p for p in pairs if {p[0], p[1]} <= {*scores, "majority"}],
    weights={
      n: scores[n].reshape(shape) for n in ("prm", "orm") if n in scores
    },
    seed=seed,
  )
  if last >= 64:
    curve = voting.best_of_n(by_problem["prm"], correct, [last, 64])
    results["paired"][f"prm_at_{last}_minus_prm_at_64"] = (
      best_of_n.paired_difference(curve[:, 0], curve[:, 1], seed=seed)
    )
  results["false_positive_share"] = {
    name: best_of_n.picked_false_positive_share(
      by_problem[name], correct, flawed.reshape(shape), [last]
    )[0]
    for name in step_scores
  }
  results |= _of_steps(rows, step_scores)
  results["policy"] = dict(
    outcome=float(correct.mean()),
    all_steps_right=float(1 - flawed.mean()),
    right_by_luck=float(correct.reshape(-1)[flawed].mean())
    if flawed.any()
    else None,
    distinct_samples=len({(s.problem, *s.steps) for s in samples}),
  )
  return results


def _of_steps(rows, step_scores):
  """Returns how well the models tell steps."""
  problems = [i for i, row in enumerate(rows) for _ in row]
  labels = [s.labels or () for row in rows for s in row]
  measured = {
    name: step_metrics.evaluate(
      [x.scores for x in of_model],
      labels,
      judged=[x.judged for x in of_model],
      problems=problems,
      num_resamples=200,
    )
    for name, of_model in step_scores.items()
    if name != "orm"
  }
  names = {f"step_{m}": m for m in ("auroc", "auprc_error", "brier", "ece")}
  names["min_on_last_share"] = "min_on_last_share"
  results = {
    name: {model: metrics[metric] for model, metrics in measured.items()}
    for name, metric in names.items()
  }
  results["calibration_steps"] = {
    model: {
      "counted": metrics["num_steps_calibration"],
      "not_judged": metrics["num_steps_not_judged"],
      "after_error": metrics["num_steps_after_error"],
    }
    for model, metrics in measured.items()
  }
  results["reliability"] = {
    model: metrics["reliability"] for model, metrics in measured.items()
  }
  return results


def sample_records(
  samples: Sequence[schema.Solution],
  step_scores: StepScores,
  scores: Mapping[str, np.ndarray],
) -> Iterator[dict[str, Any]]:
  """Yields each sample with every model's scores of its steps and of it."""
  for i, s in enumerate(samples):
    record = jsonl.record_from_solution(s)
    of_models = {n: score_lib.fields_of(x[i]) for n, x in step_scores.items()}
    for field in ("step_scores", "step_logits", "judged"):
      record[field] = {n: x[field] for n, x in of_models.items()}
    record["solution_scores"] = {n: float(x[i]) for n, x in scores.items()}
    yield record
