"""The demo's comparison on samples made by hand."""

import json

import numpy as np
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
  return found[0], scores


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


def test_the_showcase_begins_with_the_failures_of_the_prm():
  good = _sample("p", ("a",), (1.0,), True)
  bad = _sample("p", ("b",), (0.0,), False)
  lucky = _sample("p", ("c",), (0.0,), True)
  rows = [[good, bad], [bad, good], [good, lucky], [good, bad]]
  prm = np.array([0.1, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.1])
  orm = np.array([0.9, 0.1, 0.9, 0.1, 0.1, 0.9, 0.9, 0.1])
  step_scores = dict(
    prm=_rows([[x] for x in prm]), orm=_rows([[x] for x in orm])
  )
  problems = [schema.Problem(str(i), "p", "1") for i in range(4)]
  shown = comparison.showcase(
    problems, rows, step_scores, dict(prm=prm, orm=orm)
  )
  assert [(x["picked_by"], x["steps"]) for x in shown] == [
    ("prm", ["b"]),
    ("orm", ["b"]),
    ("orm", ["c"]),
    ("prm", ["a"]),
  ]
  assert shown[0]["step_scores"] == dict(prm=[0.9], orm=[0.1])
  assert shown[0]["judged"] == dict(prm=[True], orm=[True])


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


@pytest.mark.parametrize(
  "counts, shown_kinds",
  [
    (dict(prm=12), dict(prm=10)),  # nothing else to fill with
    (dict(prm=5, orm=5, lucky=1), dict(prm=5, orm=4, lucky=1)),
    (dict(prm=1, orm=3, lucky=7), dict(prm=1, orm=3, lucky=6)),
    (
      dict(prm=9, orm=9, lucky=9, right=9),
      dict(prm=3, orm=4, lucky=2, right=1),
    ),
    (dict(prm=2, orm=1), dict(prm=2, orm=1)),  # there are no more
  ],
)
def test_the_showcase_has_ten_solutions_where_there_are_ten(
  counts, shown_kinds
):
  good = _sample("p", ("good",), (1.0,), True)
  bad = _sample("p", ("bad",), (0.0,), False)
  lucky = _sample("p", ("lucky",), (0.0,), True)
  # The PRM picks the first of two samples, the ORM the second.
  kinds = dict(
    prm=[bad, good], orm=[good, bad], lucky=[good, lucky], right=[good, good]
  )
  rows = [
    row for kind, row in kinds.items() for _ in range(counts.get(kind, 0))
  ]
  prm, orm = np.array([0.9, 0.1] * len(rows)), np.array([0.1, 0.9] * len(rows))
  shown = comparison.showcase(
    [schema.Problem(str(i), "p", "1") for i in range(len(rows))],
    rows,
    dict(prm=_rows([[x] for x in prm])),
    dict(prm=prm, orm=orm),
  )
  name = {
    ("prm", "bad"): "prm",
    ("orm", "bad"): "orm",
    ("orm", "lucky"): "lucky",
    ("prm", "good"): "right",
  }
  found = [name[x["picked_by"], x["steps"][0]] for x in shown]
  assert found == [k for k, n in shown_kinds.items() for _ in range(n)]
