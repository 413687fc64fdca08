"""Plots and tables hold the numbers of the results, and no others."""

import csv
import io
import json

import numpy as np
import pytest

import prm_jax
from prm_jax import schema
from prm_jax.evaluation import evaluate_processbench
from prm_jax.evaluation import prmbench_metrics
from prm_jax.evaluation import result_figures
from prm_jax.evaluation import tables
from prm_jax.evaluation import views

_CLASSES = tuple(prmbench_metrics.SHORT)


def _solution(i, **fields):
  """Returns one of 90 solutions of 30 problems from two sources."""
  return schema.Solution(
    f"s{i}",
    f"{i // 3} + 1?",
    ("a", "bb", "ccc"),
    labels=(1.0, float(i % 4 > 0), float(i % 2)),
    answer=str(i % 3),
    outcome=i % 3 == 1,
    source=f"source {i % 5 % 2}",
    extra=dict(classification=_CLASSES[i % 8]),
    **fields,
  )


SOLUTIONS = [_solution(i) for i in range(90)]


def _score(solutions):
  return [
    schema.StepScores(
      tuple(
        float(np.clip(label + random.normal(), -1, 2) + 1) / 3
        for label in s.labels
      )
    )
    for s, random in (
      (s, np.random.default_rng(int(s.id[1:]))) for s in solutions
    )
  ]


def _evaluated(kind):
  if kind == "processbench":
    subsets = dict(gsm8k=SOLUTIONS[:40], math=SOLUTIONS[40:])
    return evaluate_processbench.EvaluateProcessBench()(subsets, _score)
  verbs = dict(
    steps=prm_jax.EvaluateSteps,
    prmbench=prm_jax.EvaluatePRMBench,
    turns=prm_jax.EvaluateTurns,
    best_of_n=prm_jax.EvaluateBestOfN,
  )
  return verbs[kind]()(SOLUTIONS, _score)


KINDS = {
  "steps": views.STEPS,
  "processbench": views.PROCESSBENCH,
  "prmbench": views.PRMBENCH,
  "turns": views.TURNS,
  "best_of_n": views.BEST_OF_N,
}


@pytest.fixture(scope="module")
def evaluations():
  return {kind: _evaluated(kind) for kind in KINDS}


def _numbers(value):
  """Yields every number in a JSON value."""
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list):
    for x in value:
      yield from _numbers(x)
  elif value is not None and not isinstance(value, str | bool):
    yield value


def _lines(panel):
  return {line.label: line for line in panel.lines}


# --- Tables -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_table_is_one_of_the_results(
  kind, evaluations, tmp_path
):
  results = evaluations[kind].results
  path = tmp_path / "t.csv"
  tables.write(path, KINDS[kind].table(results))
  rows = [*csv.DictReader(io.StringIO(path.read_text()))]
  written = [
    float(x) for r in rows for x in (r["value"], r["low"], r["high"]) if x
  ]
  assert len(written) > 20
  # As JSON has them, to the last digit.
  known = {*map(float, _numbers(json.loads(json.dumps(results))))}
  assert {*written} <= known


# Kind, row, measure, and where the results have its value and interval.
PLACES = [
  ("steps", "model", "auroc", ("auroc",), ("auroc_interval",)),
  ("steps", "model", "ece", ("ece",), None),
  (
    *("steps", "step_length", "auroc", ("baselines", "step_length", "auroc")),
    ("baselines", "step_length", "auroc_interval"),
  ),
  (
    *("steps", "model on source 1", "auroc", ("sources", "source 1", "auroc")),
    ("sources", "source 1", "auroc_interval"),
  ),
  (
    *("processbench", "model, fixed: math", "acc_err"),
    ("model", "fixed", "subsets", "math", "acc_err"),
    ("model", "fixed", "subsets", "math", "interval", "acc_err"),
  ),
  (
    *("processbench", "step_index, tuned: mean", "f1"),
    ("step_index", "tuned", "mean_f1"),
    ("step_index", "tuned", "mean_f1_interval"),
  ),
  (
    *("processbench", "model, tuned: gsm8k", "located"),
    *(
      ("model", "tuned", "subsets", "gsm8k", "right_answer_wrong_process", *x)
      for x in (("located",), ("interval", "located"))
    ),
  ),
  (
    *("prmbench", "circular", "prm_score"),
    ("classes", "circular", "prm_score"),
    ("classes", "circular", "interval"),
  ),
  ("prmbench", "overall", "num_steps", ("overall", "num_steps"), None),
  ("turns", "model", "step_acc", ("step_acc",), ("interval", "step_acc")),
  (
    *("turns", "step_index", "auroc", ("baselines", "step_index", "auroc")),
    ("baselines", "step_index", "interval", "auroc"),
  ),
  (
    *("best_of_n", "majority", "accuracy_at_2"),
    ("accuracy", "majority", 1),
    ("interval", "majority", 1),
  ),
  (
    *("best_of_n", "model_minus_majority_at_2", "accuracy_at_2"),
    ("paired", "model_minus_majority_at_2", "mean"),
    None,
  ),
]


@pytest.mark.parametrize(
  ("kind", "row", "measure", "value", "interval"),
  PLACES,
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_number_stands_in_its_row_and_column(
  kind, row, measure, value, interval, evaluations
):
  def at(place):
    found = evaluations[kind].results
    for key in place:
      found = found[key]
    return found

  table = KINDS[kind].table(evaluations[kind].results)
  number = dict(table.rows)[row][measure]
  assert measure in table.columns
  assert number.value == at(value) is not None
  if interval is not None:
    assert [number.low, number.high] == at(interval)


# --- Plots ------------------------------------------------------------------


def test_calibration_is_the_reliability_of_the_results(evaluations):
  rows = evaluations["steps"].results["reliability"]
  calibration, *_ = result_figures.of_steps(evaluations["steps"]).panels
  (line,) = calibration.lines
  assert list(line.x) == [row["mean_score"] for row in rows]
  assert list(line.y) == [row["share_correct"] for row in rows]


@pytest.mark.parametrize("kind", ["steps", "turns"])
def test_the_area_under_the_roc_is_the_auroc_of_the_results(kind, evaluations):
  figure = KINDS[kind].figure(evaluations[kind])
  (roc,) = [p for p in figure.panels if p.title.startswith("ROC")]
  (line,) = roc.lines
  auroc = evaluations[kind].results["auroc"]
  assert np.trapezoid(line.y, line.x) == pytest.approx(auroc, abs=1e-12)
  assert f"AUROC {auroc:.3f} [" in line.label


def test_a_roc_of_many_scores_has_few_points_and_the_same_area():
  random = np.random.default_rng(0)
  scores, correct = random.random(5_000), random.random(5_000) < 0.5
  scores[correct] **= 0.5
  results = dict(auroc=0.0, auroc_interval=None)
  (line,) = result_figures._roc("steps", scores, correct, results).lines
  right, wrong = np.sort(scores[correct]), np.sort(scores[~correct])
  auroc = np.searchsorted(wrong, right).mean() / len(wrong)
  assert len(line.x) <= 400
  assert np.trapezoid(line.y, line.x) == pytest.approx(auroc, abs=1e-3)
  assert (line.x[0], line.y[0], line.x[-1], line.y[-1]) == (0, 0, 1, 1)


@pytest.mark.parametrize("kind", ["steps", "processbench", "turns"])
def test_first_errors_by_position_are_those_of_the_samples(kind, evaluations):
  samples = evaluations[kind].samples
  panel = KINDS[kind].figure(evaluations[kind]).panels[-1]
  assert panel.title == "First errors by position"
  lines = _lines(panel)
  for place in range(3):
    by = {
      "labelled": [x["target"] == place for x in samples],
      "predicted": [x["prediction"] == place for x in samples],
      "predicted, and right": [
        x["right"] and x["target"] == place for x in samples
      ],
    }
    for name, hits in by.items():
      assert lines[name].y[place] == sum(hits)
  assert sum(lines["labelled"].y) > 20


def test_f1_at_the_thresholds_of_the_results_is_theirs_with_its_interval(
  evaluations,
):
  results = evaluations["processbench"].results["model"]
  panel, _ = result_figures.of_processbench(evaluations["processbench"]).panels
  lines = _lines(panel)
  assert lines.keys() == {"gsm8k", "math", "mean"}
  for rule in ("fixed", "tuned"):
    subsets = results[rule]["subsets"]
    threshold = subsets["math"]["threshold"]
    assert threshold in panel.marks
    at = lines["math"].x.index(threshold)
    for name, x in subsets.items():
      line = lines[name]
      assert line.y[at] == x["f1"]
      assert [line.low[at], line.high[at]] == x["interval"]["f1"]
    mean = lines["mean"]
    assert mean.y[at] == pytest.approx(results[rule]["mean_f1"], abs=1e-15)
    assert [mean.low[at], mean.high[at]] == results[rule]["mean_f1_interval"]
  # Nowhere else is an interval known.
  assert np.isfinite(lines["math"].low).sum() == len(panel.marks)


def test_a_subset_without_errors_has_no_f1_to_draw():
  right = [
    schema.Solution(f"s{i}", "p", ("a",), labels=(1.0,)) for i in range(4)
  ]
  verb = prm_jax.EvaluateProcessBench(tune_on="math")
  found = verb(dict(gsm8k=right, math=SOLUTIONS), _score)
  panel, _ = result_figures.of_processbench(found).panels
  assert _lines(panel).keys() == {"math"}


def test_prmscores_are_those_of_the_results(evaluations):
  results = evaluations["prmbench"].results
  classes, of_all = result_figures.of_prmbench(evaluations["prmbench"]).panels
  (line,) = classes.lines
  scored = {x["short"]: x for x in results["classes"].values()}
  scored["all"] = results["overall"]
  assert list(classes.x_names) == [*scored]
  assert list(line.y) == [x["prm_score"] for x in scored.values()]
  ends = [list(x) for x in zip(line.low, line.high)]
  assert ends == [x["interval"] for x in scored.values()]
  (line,) = of_all.lines
  at = line.x.index(results["threshold"])
  assert line.y[at] == results["overall"]["prm_score"]
  assert [line.low[at], line.high[at]] == results["overall"]["interval"]


def test_best_of_n_has_every_curve_with_its_band(evaluations):
  results = evaluations["best_of_n"].results
  (panel,) = result_figures.of_best_of_n(evaluations["best_of_n"]).panels
  lines = _lines(panel)
  assert lines.keys() == results["accuracy"].keys()
  for name, line in lines.items():
    assert list(line.x) == results["n"] == list(panel.x_ticks)
    assert list(line.y) == results["accuracy"][name]
    ends = [list(x) for x in zip(line.low, line.high)]
    assert ends == results["interval"][name]


def test_pairs_are_drawn_by_subset_with_their_intervals():
  solutions = [
    schema.Solution(
      f"s{pair}{choice}",
      f"p{pair}",
      ("a",),
      labels=(float(choice == "chosen"),),
      source=("x", "y")[pair % 2],
      extra=dict(pair=pair, choice=choice),
    )
    for pair in range(12)
    for choice in ("chosen", "rejected")
  ]

  def score(rows):
    random = np.random.default_rng(0)
    return [schema.StepScores((float(random.random()),)) for _ in rows]

  found = prm_jax.EvaluateTurns()(solutions, score)
  panel = result_figures.of_turns(found).panels[-1]
  (line,) = panel.lines
  pairs = found.results["pairs"]
  assert list(panel.x_names) == ["x", "y", "mean"]
  expected = [x["accuracy"] for x in pairs["subsets"].values()]
  assert list(line.y) == [*expected, pairs["mean"]]
  assert [line.low[-1], line.high[-1]] == pairs["mean_interval"]
  rows = dict(views.TURNS.table(found.results).rows)
  assert rows["pairs of y"]["pairs"].value == expected[1]
  assert rows["model"]["pairs"].value == pairs["mean"]


def test_what_isnt_defined_is_left_out():
  """All is right, and nothing is predicted to be wrong: no ROC, no error."""
  right = [_solution(i) for i in range(1, 90, 4)]
  right = [s for s in right if min(s.labels) == 1]

  def score(rows):
    return [schema.StepScores((0.75,) * 3) for _ in rows]

  found = prm_jax.EvaluateSteps()(right, score)
  panels = result_figures.of_steps(found).panels
  assert [p.title for p in panels] == ["Calibration"]
  assert not result_figures.of_turns(
    prm_jax.EvaluateTurns()(right, score)
  ).panels
