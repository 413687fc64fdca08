"""The demo's comparison on samples made by hand."""

import json

import pytest

from prm_jax import schema
from prm_jax.demo import comparison

MODELS = ("prm", "prm_mc", "orm")


def _sample(problem, steps, labels, outcome):
  return schema.Solution(
    id="x",
    problem=problem,
    steps=steps,
    labels=labels,
    answer="1" if outcome else "2",
    outcome=outcome,
    extra=dict(log_prob_mean=-0.5, log_prob_min=-1.0),
  )


def _rows(scores, judged=()):
  return [schema.StepScores(tuple(x), judged=judged) for x in scores]


def _evaluate(rows, step_scores, aggregates):
  """Returns the results and the scores of the samples."""
  samples = [s for row in rows for s in row]
  scores = comparison.solution_scores(step_scores, aggregates, samples)
  ranking = comparison.rankings(step_scores, aggregates, scores)
  found = comparison.evaluate(rows, step_scores, scores, ranking, seed=0)
  return found, scores


def test_a_policy_that_never_errs_has_results_too():
  rows = [
    [_sample(p, ("a", "b"), (1.0, 1.0), True) for _ in range(4)] for p in "pq"
  ]
  step_scores = {n: _rows([[0.9, 0.8]] * 8) for n in MODELS}
  aggregates = dict.fromkeys(MODELS, "product")
  results, scores = _evaluate(rows, step_scores, aggregates)
  assert scores["prm"] == pytest.approx([0.72] * 8)
  assert set(scores["logprob"]) == {-0.5}
  assert set(scores["logprob_min"]) == {-1.0}
  assert results["policy"]["right_by_luck"] is None
  assert results["false_positive_share"] == dict.fromkeys(step_scores, 0.0)
  assert results["step_auroc"] == dict(prm=None, prm_mc=None)
  json.dumps(results, allow_nan=False)


def test_false_positives_are_the_right_answers_with_a_wrong_step():
  """Of two problems the PRM picks an honest answer and a lucky one."""
  good = _sample("p", ("a", "b"), (1.0, 1.0), True)
  lucky = _sample("q", ("a", "b"), (0.0, 0.0), True)
  wrong = _sample("p", ("a", "b"), (1.0, 0.0), False)
  rows = [[good, wrong], [lucky, wrong]]
  step_scores = {
    "prm": _rows([[0.9, 0.9], [0.5, 0.5]] * 2),
    "prm_mc": _rows([[0.5, 0.5], [0.9, 0.9]] * 2),
    "orm": _rows([[0.9, 0.9], [0.5, 0.5]] * 2),
  }
  aggregates = dict(prm="product", prm_mc="product", orm="last")
  results, _ = _evaluate(rows, step_scores, aggregates)
  assert results["false_positive_share"]["prm"] == 0.5
  assert results["false_positive_share"]["prm_mc"] is None  # picks none right
  assert results["accuracy"]["prm"] == [0.5, 1.0]
  assert results["accuracy"]["prm_mc"] == [0.5, 0.0]
  assert results["policy"]["right_by_luck"] == pytest.approx(1 / 3)
  assert results["policy"]["all_steps_right"] == 0.25


def test_samples_are_chosen_by_log_odds_and_calibration_is_of_judged_steps():
  """All probabilities round to 1; of the wrong samples a step isn't judged."""
  good = _sample("p", ("a", "b"), (1.0, 1.0), True)
  bad = _sample("p", ("a", "b"), (1.0, 0.0), False)
  rows = [[bad, good], [bad, good]]
  of_model = [
    schema.StepScores((1.0, 1.0), logits=(18.0, 30.0), judged=(True, False)),
    schema.StepScores((1.0, 1.0), logits=(19.0, 30.0)),
  ]
  step_scores = dict.fromkeys(MODELS, of_model * 2)
  results, scores = _evaluate(rows, step_scores, dict.fromkeys(MODELS, "min"))
  assert results["accuracy"]["prm"] == [0.5, 1.0]
  assert set(scores["prm"]) == {1.0}
  # Equal votes of the two, as their probabilities are.
  assert results["accuracy"]["weighted_prm"] == [0.5, 0.5]
  assert results["calibration_steps"]["prm"] == dict(
    counted=6, not_judged=2, after_error=0
  )
  assert results["step_brier"]["prm"] == 0
  records = list(comparison.sample_records(rows[0], step_scores, scores))
  assert records[0]["judged"]["prm"] == [True, False]
  assert records[0]["step_logits"]["prm"] == [18.0, 30.0]
  assert records[0]["solution_scores"]["prm"] == 1.0
