"""Evaluations over files: what belongs together, and numbers by hand."""

import dataclasses
import hashlib
import json
import pathlib
import re

import numpy as np
import pytest

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import evaluate_best_of_n
from prm_jax.evaluation import evaluate_prmbench
from prm_jax.evaluation import evaluate_processbench
from prm_jax.evaluation import evaluate_steps
from prm_jax.evaluation import prmbench_metrics
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import result_tables
from prm_jax.evaluation import results as results_lib
from prm_jax.grading import pool
from prm_jax.jobs import score as score_lib
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.records import jsonl
from prm_jax.runtime import files

pytestmark = pytest.mark.usefixtures("printed_log")


def _solution(id_, problem="p", steps=("a", "b"), **fields):
  return schema.Solution(id_, problem, steps, **fields)


def _steps(path, scores, *, limit=None, seed=0, **options):
  verb = evaluate_steps.EvaluateSteps(scores=scores, seed=seed, **options)
  return verb(evaluate.read("jsonl", path, limit, seed), where=path)


def _best_of_n(path, scores, *, limit=None, seed=0, **options):
  verb = evaluate_best_of_n.EvaluateBestOfN(scores=scores, seed=seed, **options)
  read = evaluate.read("jsonl", path, limit, seed, whole_problems=True)
  return verb(read, where=path)


def _subsets(inputs, limit=None, seed=0):
  job = evaluate_processbench.ProcessBenchJob(tuple(inputs))
  return {
    name: evaluate.read("processbench", path, limit, seed)
    for name, path in job.files.items()
  }


def _processbench(inputs, scores, tune_on, *, limit=None, seed=0):
  verb = evaluate_processbench.EvaluateProcessBench(
    scores=scores, tune_on=tune_on, seed=seed
  )
  return verb(_subsets(inputs, limit, seed))


def _prmbench(paths, scores, *, limit=None, seed=0):
  verb = evaluate_prmbench.EvaluatePRMBench(scores=scores, seed=seed)
  return verb(
    [s for path in paths for s in evaluate.read("jsonl", path, limit, seed)]
  )


def _scores(path, rows):
  files.write_records(path, (dict(id=i, step_scores=s) for i, s in rows))
  return path


# --- Scores -----------------------------------------------------------------


def test_scores_come_in_the_solutions_order_whatever_the_files(tmp_path):
  path = _scores(
    tmp_path / "s.jsonl", [("b", [0.3]), ("x", [0]), ("a", [0.1, 1])]
  )
  found = step_scores_lib.read_scores(
    path, [_solution("a"), _solution("b", steps=("c",))]
  )
  assert found == [
    schema.StepScores((0.1, 1.0)),
    schema.StepScores((0.3,)),
  ]


def test_scores_with_log_odds_and_judged_are_read_as_they_were_written(
  tmp_path,
):
  rows = [
    schema.StepScores((0.5, 1.0), logits=(0.0, 40.0), judged=(True, False)),
    schema.StepScores((1e-30,), logits=(-69.0,)),
    schema.StepScores((0.25,)),
    schema.StepScores((), logits=()),
  ]
  solutions = [
    _solution(str(i), steps=("s",) * len(row)) for i, row in enumerate(rows)
  ]
  path = tmp_path / "s.jsonl"
  records = (
    dict(id=s.id) | score_lib.fields_of(row) for s, row in zip(solutions, rows)
  )
  files.write_records(path, records)
  assert step_scores_lib.read_scores(path, solutions) == rows


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(step_logits=[0.0]), '"step_logits" is [0.0]; expected a list'),
    (dict(step_logits=0.0), '"step_logits" is 0.0; expected a list'),
    (dict(step_logits=[0.0, None]), '"step_logits"[1] is None; expected the'),
    (dict(step_logits=[0.0, True]), '"step_logits"[1] is True; expected the'),
    (dict(step_logits=[10**299, 0.0]), '"step_logits"[0] is 1000'),
    (dict(step_logits=[0.0, 1.0]), "log-odds of 0.731059, but"),
    (dict(step_logits=[-1e9, 0.0]), "log-odds of 9.85968e-305, but"),
    (dict(judged=[True]), '"judged" is [True]; expected a list'),
    (dict(judged=[True, 1]), '"judged"[1] is 1; expected true or false'),
  ],
)
def test_log_odds_and_judged_that_dont_fit_are_refused(
  fields, message, tmp_path
):
  path = tmp_path / "s.jsonl"
  files.write_records(path, [dict(id="a", step_scores=[0.5, 0.5]) | fields])
  with pytest.raises(errors_lib.InputError) as caught:
    step_scores_lib.read_scores(path, [_solution("a")])
  assert message in str(caught.value) and ":1: " in str(caught.value)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "rows, message",
  [
    ([("b", [0.5, 0.5])], "no scores for solution 'a'"),
    ([("a", [0.5])], "1 scores for the 2 steps of solution 'a'"),
    ([("a", [0.5, "x"])], ":1: \"step_scores\"[1] is 'x'"),
    ([("a", [True, 0.5])], ':1: "step_scores"[0] is True'),
    ([("a", [0.5, None])], ':1: "step_scores"[1] is None'),
    ([("b", []), ("a", [0.5, -0.1])], ':2: "step_scores"[1] is -0.1'),
    ([("a", [0.5, 0.5])] * 2, ":2: \"id\" 'a' was used at"),
    ([("a", 0.5)], ':1: field "step_scores" must be list, found float'),
  ],
)
def test_scores_that_dont_fit_are_refused(rows, message, tmp_path):
  path = _scores(tmp_path / "s.jsonl", rows)
  with pytest.raises(errors_lib.InputError) as caught:
    step_scores_lib.read_scores(path, [_solution("a")])
  assert str(caught.value).startswith(str(path))
  assert message in str(caught.value)


def test_scores_come_from_a_checkpoint_or_a_file_not_both(tmp_path):
  with pytest.raises(errors_lib.InputError, match="either"):
    step_scores_lib.Source(tmp_path, tmp_path / "s.jsonl")
  with pytest.raises(errors_lib.InputError, match="either"):
    step_scores_lib.Source().step_scores([_solution("a")])


# --- Steps ------------------------------------------------------------------


@pytest.mark.parametrize(
  "neutral, num_steps, auroc",
  [("good", 3, 0.5), ("bad", 3, 1.0), ("ignore", 2, 1.0)],
)
def test_step_metrics_are_over_the_labels_that_the_policy_leaves(
  neutral, num_steps, auroc, tmp_path
):
  path = tmp_path / "in.jsonl"
  rows = [_solution("a", ratings=(1, 0)), _solution("b", ratings=(-1, None))]
  jsonl.write_solutions(path, rows)
  scores = _scores(tmp_path / "s.jsonl", [("b", [0.3, 0.9]), ("a", [0.9, 0.2])])
  found = _steps(path, scores, neutral=neutral).results
  assert (found["num_steps"], found["auroc"]) == (num_steps, auroc)
  baselines = found["baselines"]
  assert set(baselines) == {"everything_right", "step_index", "step_length"}
  assert baselines["everything_right"]["auroc"] == 0.5
  # Scores 1 and 1/2 of the first and second step, against the labels.
  by_index = dict(good=0.25, bad=0.75, ignore=0.5)[neutral]
  assert baselines["step_index"]["auroc"] == by_index


def test_each_of_several_sources_is_measured_by_itself(tmp_path):
  path = tmp_path / "in.jsonl"
  rows = [
    _solution("a", "p", labels=(1.0, 0.0), source="x"),
    _solution("b", "q", labels=(1.0, 0.0), source="y"),
    _solution("c", "r", source="z"),
  ]
  jsonl.write_solutions(path, rows)
  of_steps = [("a", [0.9, 0.1]), ("b", [0.2, 0.3]), ("c", [1, 1])]
  scores = _scores(tmp_path / "s.jsonl", of_steps)
  found = _steps(path, scores).results
  assert found["num_steps"] == 4 and found["auroc"] == 0.75
  of = found["sources"]
  assert {k: x["auroc"] for k, x in of.items()} == dict(x=1.0, y=0.0, z=None)
  assert [of[k]["num_solutions"] for k in "xyz"] == [1, 1, 1]
  assert "auroc on x " in result_tables.plain_table(found)
  jsonl.write_solutions(path, rows[:1])
  found = _steps(path, scores).results
  assert "sources" not in found


def test_steps_without_a_label_cant_be_measured(tmp_path):
  path = tmp_path / "in.jsonl"
  jsonl.write_solutions(path, [_solution("a"), _solution("b")])
  with pytest.raises(errors_lib.InputError, match="no step has a label"):
    _steps(path, "s")


def test_the_plain_table_leaves_out_lists_and_names_what_is_undefined():
  results = dict(
    auroc=0.5, num_steps=3, rows=[1], auroc_interval=[None, None], brier=None
  )
  assert result_tables.plain_table(results).split() == [
    "auroc",
    "0.5000",
    "num_steps",
    "3",
    "brier",
    "undefined",
  ]
  shown = result_tables.plain_table(dict(auroc_interval=[0.25, 0.75]))
  assert shown.split(maxsplit=1)[1] == "[0.2500, 0.7500]"
  known = dict(auroc=0.5, auroc_interval=[0.25, 0.75])
  unknown = dict(auroc=None, auroc_interval=[None, None])
  shown = result_tables.plain_table(dict(baselines=dict(a=known, b=unknown)))
  assert shown.split() == [
    *("auroc", "of", "a", "0.5000", "[0.2500,", "0.7500]"),
    *("auroc", "of", "b", "undefined"),
  ]


# --- ProcessBench -----------------------------------------------------------


def _row(id_, label, num_steps=3, right=None):
  return dict(
    id=id_,
    generator="g",
    problem=f"problem of {id_}",
    steps=[f"step {i}" for i in range(num_steps)],
    final_answer_correct=label < 0 if right is None else right,
    label=label,
  )


@pytest.fixture
def subsets(tmp_path):
  """Returns SUBSET=FILE inputs and a file with the scores of both."""
  rows = dict(
    gsm8k=[_row("g0", -1), _row("g1", 1), _row("g2", 0)],
    math=[_row("m0", -1), _row("m1", 2), _row("m2", -1, right=False)],
  )
  inputs = []
  for name, content in rows.items():
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    inputs.append(f"{name}={tmp_path / name}.json")
  scores = _scores(
    tmp_path / "s.jsonl",
    [
      ("m0", [0.9, 0.9, 0.4]),  # a false alarm at 0.5, none at 0.3
      ("m1", [0.9, 0.9, 0.1]),  # found
      ("m2", [0.9, 0.9, 0.9]),  # right
      ("g0", [0.9, 0.9, 0.4]),  # a false alarm at 0.5
      ("g1", [0.9, 0.2, 0.9]),  # found
      ("g2", [0.3, 0.2, 0.9]),  # found at 0.5
    ],
  )
  return inputs, scores


def test_processbench_by_hand_beside_its_baselines(subsets):
  inputs, scores = subsets
  found = _processbench(inputs, scores, "gsm8k").results
  assert set(found) == {"scored_by", "model", *processbench_metrics.BASELINES}
  fixed = found["model"]["fixed"]["subsets"]
  # acc_err 2 / 2, acc_cor 0 / 1 and 1 / 1, 1 / 2: harmonic means.
  assert fixed["gsm8k"]["acc_err"] == 1 and fixed["gsm8k"]["acc_cor"] == 0
  assert fixed["gsm8k"]["f1"] == 0
  assert fixed["math"]["acc_err"] == 1 and fixed["math"]["acc_cor"] == 0.5
  assert fixed["math"]["f1"] == pytest.approx(2 / 3)
  assert found["model"]["fixed"]["mean_f1"] == pytest.approx(1 / 3)
  tuned = found["model"]["tuned"]["subsets"]
  assert 0.3 < tuned["gsm8k"]["threshold"] <= 0.4
  assert tuned["gsm8k"]["f1"] == tuned["math"]["f1"] == 1
  assert tuned["gsm8k"]["in_sample"] and "in_sample" not in tuned["math"]
  baseline = found["everything_right"]["fixed"]["subsets"]["math"]
  assert (baseline["acc_cor"], baseline["acc_err"], baseline["f1"]) == (1, 0, 0)

  table = result_tables.processbench_table(found)
  assert table.count("(tuned on gsm8k)") == len(found) - 1
  assert "66.7 [0.0, 100.0]    100.0     50.0" in table and "1+2" in table
  assert "without olympiadbench, omnimath: not the headline" in table


def test_processbench_inputs_are_named_once_and_hold_the_tuned_subset(subsets):
  inputs, scores = subsets
  for bad, tune_on, message in (
    (["gsm8k.json"], "gsm8k", "SUBSET=FILE"),
    (inputs, "omnimath", "one of gsm8k, math"),
    ([inputs[0], inputs[0]], "gsm8k", "'gsm8k' is given twice"),
  ):
    with pytest.raises(errors_lib.InputError, match=message):
      _processbench(bad, scores, tune_on)


def test_a_subset_that_cant_tune_is_said_before_scoring(
  subsets, monkeypatch, caplog
):
  inputs, scores = subsets
  of_wrong = json.loads(pathlib.Path(inputs[0].partition("=")[2]).read_text())
  pathlib.Path(inputs[0].partition("=")[2]).write_text(json.dumps(of_wrong[1:]))
  score, said = step_scores_lib.Source.step_scores, []

  def spied(*args):
    said.extend(caplog.messages)
    return score(*args)

  monkeypatch.setattr(step_scores_lib.Source, "step_scores", spied)
  found = _processbench(inputs, scores, "gsm8k")
  assert said == [
    "`tune_on=gsm8k`: no threshold is tuned, since 2 of 2 solutions have an"
    " error; 0.5 alone is measured"
  ]
  gsm8k = found.results["model"]["fixed"]["subsets"]["gsm8k"]
  assert (gsm8k["acc_err"], gsm8k["acc_cor"]) == (1, None)
  table = result_tables.processbench_table(found.results)
  assert "tuned on gsm8k: solutions with an error 2, without 0" in table
  for sample in found.samples:
    assert sample["right"] is not None
    assert sample["prediction_tuned"] is sample["right_tuned"] is None


def test_a_limit_draws_from_a_sorted_file_by_seed(tmp_path):
  """As ProcessBench's files are: wrong solutions first."""
  rows = [_row(f"w{i}", 0) for i in range(40)]
  rows += [_row(f"r{i}", -1) for i in range(40)]
  drawn = {}
  for name, content in (("a", rows), ("b", rows[::-1])):
    (tmp_path / name).write_text(json.dumps(content))
    for limit, seed in ((8, 0), (12, 0), (8, 1)):
      solutions = evaluate.read("processbench", tmp_path / name, limit, seed)
      assert len(solutions) == limit
      drawn[name, limit, seed] = {s.id for s in solutions}
      order = [s["id"] for s in content]
      ids = [s.id for s in solutions]
      assert ids == sorted(ids, key=order.index)
  # The order of rows is no matter, and more include fewer.
  for limit, seed in ((8, 0), (12, 0), (8, 1)):
    assert drawn["a", limit, seed] == drawn["b", limit, seed]
    assert {i[0] for i in drawn["a", limit, seed]} == {"w", "r"}
  assert drawn["a", 8, 0] < drawn["a", 12, 0]
  assert drawn["a", 8, 0] != drawn["a", 8, 1]


def test_every_evaluation_draws_its_limit_by_seed(subsets, tmp_path):
  found = {}
  for seed in (0, 1, 2, 3):
    found[seed] = _processbench(*subsets, "math", seed=seed, limit=1)
  ids = {tuple(x["id"] for x in found[seed].samples) for seed in found}
  assert len(ids) > 1
  classes = [*prmbench_metrics.SHORT][:2]
  solutions = [
    _solution(
      f"s{i}",
      f"p{i}",
      labels=(1.0, 0.0),
      outcome=i % 2 == 0,
      extra=dict(classification=classes[i % 2]),
    )
    for i in range(12)
  ]
  path = tmp_path / "s.jsonl"
  jsonl.write(path, solutions)
  of_each = [(s.id, [0.9, 0.1]) for s in solutions]
  scores = _scores(tmp_path / "scores.jsonl", of_each)
  for evaluated, read in (
    (_steps, path),
    (_prmbench, [path]),
    (_best_of_n, path),
  ):
    drawn = [
      [x["id"] for x in evaluated(read, scores, seed=seed, limit=3).samples]
      for seed in (0, 1, 0)
    ]
    assert drawn[0] == drawn[2] != drawn[1] and len(drawn[0]) == 3


# --- Best of N --------------------------------------------------------------


def _pool(tmp_path, rows):
  """rows: (problem, source, outcome, score, num_steps) of each solution."""
  solutions = [
    _solution(
      str(i),
      problem,
      tuple("s" * num_steps),
      answer="1" if outcome else f"wrong {i}",
      outcome=outcome,
      source=source,
    )
    for i, (problem, source, outcome, _, num_steps) in enumerate(rows)
  ]
  path = tmp_path / "pool.jsonl"
  jsonl.write_solutions(path, solutions)
  scores = _scores(
    tmp_path / "s.jsonl",
    ((s.id, [row[3]] + [1] * (row[4] - 1)) for s, row in zip(solutions, rows)),
  )
  return path, scores, solutions


def test_the_source_prior_is_the_sources_accuracy_on_other_problems(tmp_path):
  rows = [
    ("p", "weak", True, 0.5, 1),
    ("p", "strong", False, 0.5, 1),
    ("q", "weak", False, 0.5, 1),
    ("q", "strong", True, 0.5, 1),
    ("q", "strong", True, 0.5, 1),
    ("r", "weak", False, 0.5, 1),
    ("r", "strong", True, 0.5, 1),
    ("r", "once", True, 0.5, 1),
  ]
  _, _, solutions = _pool(tmp_path, rows)
  assert best_of_n.source_prior(solutions).tolist() == pytest.approx(
    [0 / 2, 3 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 2 / 3, 0.5]
  )


def test_best_of_n_by_hand(tmp_path, capsys):
  rows = [
    ("p", "x", True, 0.9, 3),
    ("p", "y", False, 0.1, 1),
    ("q", "x", False, 0.9, 1),
    ("q", "y", True, 0.1, 2),
    ("q", "y", True, 1.0, 2),  # one more than p has
  ]
  path, scores, _ = _pool(tmp_path, rows)
  found = _best_of_n(path, scores).results
  assert "left out: 1 solutions, to have 2 of every problem" in (
    capsys.readouterr().out
  )
  assert found["left_out"] == 1 and found["n"] == [1, 2]
  assert found["num_problems"] == 2 and found["num_samples"] == 2
  accuracy = found["accuracy"]
  for curve in accuracy.values():
    assert curve[0] == pytest.approx(0.5)
  assert accuracy["model"][1] == pytest.approx(0.5)  # right at p, not at q
  assert accuracy["shortest"][1] == 0
  # p: x was wrong at q, y right twice; q: x was right at p, y wrong.
  assert accuracy["source_prior"][1] == 0
  assert accuracy["oracle"][1] == 1
  assert accuracy["majority"][1] == pytest.approx(0.5)  # one vote each
  assert accuracy["weighted_model"][1] == pytest.approx(0.5)
  assert "model_minus_majority_at_2" in found["paired"]
  assert "source_prior" in result_tables.best_of_n_table(found)


def test_one_source_has_no_prior_to_compare_with(tmp_path):
  rows = [("p", "x", True, 0.9, 1), ("p", "x", False, 0.1, 1)]
  path, scores, _ = _pool(tmp_path, rows)
  found = _best_of_n(path, scores).results
  assert "source_prior" not in found["accuracy"]
  assert found["accuracy"]["model"] == [0.5, 1.0]


def test_a_pool_needs_solutions_with_outcomes(tmp_path):
  path = tmp_path / "in.jsonl"
  jsonl.write_solutions(path, [_solution("a", outcome=True), _solution("b")])
  with pytest.raises(
    errors_lib.InputError, match='1 solutions have no "outcome"'
  ):
    _best_of_n(path, "s")
  jsonl.write_solutions(path, [])
  with pytest.raises(errors_lib.InputError, match="no solutions"):
    _best_of_n(path, "s")


def test_a_pool_is_ranked_by_the_aggregate_that_is_asked_for(tmp_path):
  solutions = [_solution("a", outcome=True), _solution("b", outcome=False)]
  jsonl.write_solutions(tmp_path / "in.jsonl", solutions)
  scores = _scores(tmp_path / "s.jsonl", [("a", [0.5, 0.9]), ("b", [0.8, 0.6])])

  def best(aggregate):
    path = tmp_path / "in.jsonl"
    found = _best_of_n(path, scores, aggregate=aggregate).results
    assert found["aggregate"] == aggregate or aggregate is None
    return found["accuracy"]["model"][-1]

  assert best("last") == 1 and best("min") == 0
  assert best(None) == best("product") == 0


def test_a_pool_is_ranked_by_log_odds_where_probabilities_are_all_1(tmp_path):
  """A Bradley-Terry PRM's level is free: here all its logits are above 17."""
  outcomes = [False, True, False]
  solutions = [_solution(str(i), outcome=x) for i, x in enumerate(outcomes)]
  jsonl.write_solutions(tmp_path / "in.jsonl", solutions)
  records = [
    dict(id=str(i), step_scores=[1.0, 1.0], step_logits=[low, 30.0])
    for i, low in enumerate([18.0, 19.5, 19.0])
  ]
  files.write_records(tmp_path / "s.jsonl", records)
  for how in ("product", "min", "mean"):
    found = _best_of_n(
      tmp_path / "in.jsonl", tmp_path / "s.jsonl", aggregate=how
    )
    # Of two, the right one is in two of three pairs, and wins both.
    assert found.results["accuracy"]["model"] == pytest.approx([1 / 3, 2 / 3])
    assert [x["picked"] for x in found.samples] == outcomes
    assert {x["score"] for x in found.samples} == {1.0}
  plain = (dict(r, step_logits=None) for r in records)
  files.write_records(tmp_path / "s.jsonl", plain)
  found = _best_of_n(tmp_path / "in.jsonl", tmp_path / "s.jsonl")
  assert found.results["accuracy"]["model"] == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize(
  "how, warns", [("last", True), ("mean", True), ("min", False)]
)
def test_an_aggregate_that_reads_steps_that_arent_judged_is_warned_of(
  how, warns, tmp_path, capsys
):
  solutions = [_solution(x, outcome=True) for x in "ab"]
  jsonl.write_solutions(tmp_path / "in.jsonl", solutions)
  records = [
    dict(id="a", step_scores=[0.2, 0.999], judged=[True, False]),
    dict(id="b", step_scores=[0.9, 0.8], judged=[True, True]),
  ]
  files.write_records(tmp_path / "s.jsonl", records)
  _best_of_n(tmp_path / "in.jsonl", tmp_path / "s.jsonl", aggregate=how)
  said = f"`aggregate={how}` reads steps that the model wasn't trained to judge"
  printed = capsys.readouterr().out
  assert (said in printed) == warns
  assert ("in 1 of 2 solutions" in printed) == warns


def test_samples_may_be_replaced_by_new_ones(tmp_path):
  results, samples = tmp_path / "r.json", tmp_path / "samples.jsonl"
  row = dict(id="a", step_scores=[], prediction=-1, target=-1, right=True)
  files.write_records(samples, [row])
  results_lib.check(results, dict(samples=samples), [])
  files.write_records(samples, [dict(id="a", scores=[])])
  with pytest.raises(errors_lib.InputError, match="wasn't written by an"):
    results_lib.check(results, dict(samples=samples), [])


@pytest.mark.real_data
@pytest.mark.slow
def test_a_real_pools_candidates_are_kept_or_counted(
  public_data, tmp_path, capsys
):
  """GSM8K's pool, scored by its number of steps."""
  from prm_jax.records import sources

  path = public_data("best_of_n", "gsm8k_pool_0000_0999.jsonl.gz")
  solutions, _ = sources.read("gsm8k_pool", path)
  chosen = [s for s in solutions if s.steps][:600]
  problems = list(dict.fromkeys(s.problem for s in chosen))[:-1]
  chosen = [s for s in chosen if s.problem in problems]
  jsonl.write_solutions(tmp_path / "in.jsonl", chosen)
  scores = _scores(
    tmp_path / "s.jsonl",
    ((s.id, [1 / (1 + len(s.steps))] * len(s.steps)) for s in chosen),
  )
  found = _best_of_n(tmp_path / "in.jsonl", scores).results
  assert found["num_problems"] == len(problems)
  kept = found["num_problems"] * found["num_samples"]
  assert kept + found["left_out"] == len(chosen)
  rates = {}
  for s in chosen:
    rates.setdefault(s.problem, []).append(bool(s.outcome))
  first = np.mean([np.mean(x[: found["num_samples"]]) for x in rates.values()])
  assert found["accuracy"]["model"][0] == pytest.approx(first)
  assert found["accuracy"]["source_prior"][0] == pytest.approx(first)


def test_outcomes_are_found_anew_by_the_grader_that_is_asked_for(
  tmp_path, capsys
):
  rows = [
    # answer, reference, outcome as it stands
    ("p", "0.5", "1/2", False),
    ("p", "2", "1/2", True),
    ("q", "3", "3.0", True),
    ("q", None, "3.0", None),
  ]
  solutions = [
    _solution(
      str(i),
      problem,
      answer=answer,
      outcome=outcome,
      extra={"reference_answer": reference},
    )
    for i, (problem, answer, reference, outcome) in enumerate(rows)
  ]
  path = tmp_path / "pool.jsonl"
  jsonl.write_solutions(path, solutions)
  scores = _scores(tmp_path / "s.jsonl", ((s.id, [0.5, 1]) for s in solutions))
  found = _best_of_n(path, scores, grader="rules")
  assert found.results["accuracy"]["oracle"] == [0.5, 1.0]
  assert found.results["grading"] == dict(
    grader="rules",
    right=2,
    wrong=2,
    timeout=0,
    unparsable=0,
    outcomes_changed=2,
  )
  assert [x["right"] for x in found.samples] == [True, False, True, False]
  assert found.samples[3]["grade"] == "wrong"
  table = result_tables.best_of_n_table(found.results)
  assert "graded by rules: 2 right, 2 wrong, 0 timeout" in table
  with pytest.raises(
    errors_lib.InputError, match="or `grader` and a reference"
  ):
    _best_of_n(path, scores)
  jsonl.write_solutions(path, [_solution("0", outcome=True)])
  with pytest.raises(
    errors_lib.InputError, match="'0' has no reference_answer"
  ):
    _best_of_n(path, scores, grader="rules")


def test_an_answer_that_ran_out_of_time_isnt_right_and_is_counted(
  tmp_path, monkeypatch
):
  verdicts = ["right", "timeout"]
  monkeypatch.setattr(
    pool.Grader,
    "grade",
    lambda self, pairs, _: [pool.Grade(v, (v,)) for v in verdicts],
  )
  extra = {"reference_answer": "1"}
  solutions = [_solution(i, answer=i, extra=extra) for i in "ab"]
  jsonl.write_solutions(tmp_path / "p.jsonl", solutions)
  scores = _scores(tmp_path / "s.jsonl", [("a", [0, 0]), ("b", [1, 1])])
  found = _best_of_n(tmp_path / "p.jsonl", scores, grader="rules")
  assert found.results["grading"]["timeout"] == 1
  assert found.results["accuracy"]["model"] == [0.5, 0.0]
  assert [x["grade"] for x in found.samples] == verdicts


# --- PRMBench ---------------------------------------------------------------


def _prmbench_rows():
  """Two rows of one origin, one all right, and one more problem."""
  original = {"problem": "p?", "steps": ["a", "b"]}
  return [
    _solution(
      "r1",
      "p?",
      labels=(1.0, 0.0),
      extra={
        "classification": "redundency",
        "problem_id": "p",
        "original": original,
      },
    ),
    _solution(
      "c1",
      "p?",
      labels=(0.0, 0.0),
      extra={"classification": "circular", "problem_id": "p"},
    ),
    _solution("m1", "q?", labels=(1.0, 1.0), extra={
      "classification": "multi_solutions"}),
  ]  # fmt: skip


def test_prmbench_by_hand_with_its_controls(tmp_path, capsys):
  rows = _prmbench_rows()
  jsonl.write_solutions(tmp_path / "a.jsonl", rows[:2])
  jsonl.write_solutions(tmp_path / "b.jsonl", rows[2:])
  paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
  of_rows = [("m1", [0.9, 0.9]), ("c1", [0.6, 0.2]), ("r1", [0.9, 0.5])]
  controls = [("prmbench/correct/p", [0.9, 0.1])]
  scores = _scores(tmp_path / "s.jsonl", of_rows + controls)
  found = _prmbench(paths, scores)
  results = found.results
  assert results["classes"]["redundency"]["prm_score"] == 1
  # TN 1, FP 1: F1 0 of no right step, negative F1 2 / 3.
  circular = results["classes"]["circular"]
  assert circular["f1"] == 0
  assert circular["prm_score"] == pytest.approx(1 / 3)
  simplicity = results["categories"]["simplicity"]["prm_score"]
  assert simplicity == pytest.approx(2 / 3)
  assert results["categories"]["sensitivity"]["prm_score"] is None
  assert results["classes"]["multi_solutions"]["prm_score"] == 1
  assert results["control"]["right_step_accuracy"] == 0.5
  # TP 3, FP 1, TN 2.
  overall = results["overall"]
  assert overall["prm_score"] == pytest.approx((6 / 7 + 4 / 5) / 2)
  assert [
    (x["id"], x["classification"], x["prediction"], x["target"], x["right"])
    for x in found.samples
  ] == [
    ("r1", "redundency", [1], [1], True),
    ("c1", "circular", [1], [0, 1], False),
    ("m1", "multi_solutions", [], [], True),
    ("prmbench/correct/p", "correct", [1], [], False),
  ]
  assert set(results["baselines"]) == set(processbench_metrics.BASELINES)
  table = result_tables.prmbench_table(results)
  assert "NR  redundency" in table and "correct (controls)" in table
  assert "without counterfactual" in table

  # Without scores of the controls they are left out, and that is said.
  capsys.readouterr()
  _scores(tmp_path / "s.jsonl", of_rows)
  alone = _prmbench(paths, scores).results
  assert "left out: 1 controls" in capsys.readouterr().out
  assert alone["control"] is None and alone["overall"]["f1"] == overall["f1"]


def test_prmbench_needs_a_class_and_a_label_on_every_step(tmp_path):
  row = _prmbench_rows()[0]
  for change, message in (
    (dict(extra={}), '"classification" is None'),
    (dict(extra={"classification": "redundancy"}), "'redundancy'; expected"),
    (dict(labels=None), "a label, 0 or 1, on every step"),
    (dict(labels=(1.0, None)), "a label, 0 or 1, on every step"),
    (
      dict(extra={"classification": "redundency", "original": ["a"]}),
      '"original" must be {"problem", "steps"}',
    ),
  ):
    path = tmp_path / "in.jsonl"
    jsonl.write_solutions(path, [dataclasses.replace(row, **change)])
    with pytest.raises(errors_lib.InputError, match=re.escape(message)):
      _prmbench([path], "s")
  jsonl.write_solutions(path, [row])
  with pytest.raises(errors_lib.InputError, match="was used at"):
    _prmbench([path, path], "s")


@pytest.mark.real_data
def test_published_prmbench_rows_have_the_classes_that_we_score(public_data):
  path = public_data("formats", "samples_prmbench.jsonl")
  rows = list(map(json.loads, path.read_text().splitlines()))
  kinds = [row["classification"] for row in rows]
  assert set(kinds) == set(prmbench_metrics.SHORT)
  labels = [
    [float(i not in row["error_steps"]) for i in range(1, n + 1)]
    for row in rows
    for n in [len(row["modified_process"])]
  ]
  found = prmbench_metrics.evaluate(labels, labels, kinds)
  # The truth as its own judge scores 1 everywhere.
  assert found["overall"]["prm_score"] == 1
  assert {x["prm_score"] for x in found["classes"].values()} == {1}
  assert found["missing"] == []


# --- Samples and outputs ----------------------------------------------------


def test_samples_say_what_was_predicted_what_is_true_and_who_is_right(
  subsets, tmp_path
):
  inputs, scores = subsets
  found = _processbench(inputs, scores, "gsm8k")
  first = found.samples[0]
  assert first == dict(
    id="g0",
    step_scores=[0.9, 0.9, 0.4],
    step_logits=None,
    judged=[True] * 3,
    prediction=2,
    target=-1,
    right=False,
    subset="gsm8k",
    prediction_tuned=-1,
    right_tuned=True,
  )
  assert [x["right"] for x in found.samples] == [
    *(False, True, True, False, True, True)
  ]
  for rule, name in (("fixed", "right"), ("tuned", "right_tuned")):
    for subset, x in found.results["model"][rule]["subsets"].items():
      errors = [
        s[name]
        for s in found.samples
        if s["subset"] == subset and s["target"] >= 0
      ]
      assert np.mean(errors) == x["acc_err"]

  path = tmp_path / "in.jsonl"
  rows = [_solution("a", labels=(1, 0)), _solution("b", labels=(1, None))]
  jsonl.write_solutions(path, rows)
  of_steps = _scores(tmp_path / "s.jsonl", [("a", [1, 0]), ("b", [1, 1])])
  found = _steps(path, of_steps)
  assert [
    (x["prediction"], x["target"], x["right"]) for x in found.samples
  ] == [(1, 1, True), (-1, None, None)]


def test_the_picked_sample_is_the_best_of_its_problem(tmp_path):
  rows = [
    ("p", "x", False, 0.4, 1),
    ("p", "x", True, 0.9, 1),
    ("q", "x", True, 0.5, 1),
    ("q", "x", False, 0.5, 1),
    ("q", "x", True, 0.9, 1),  # one more than p has
  ]
  path, scores, _ = _pool(tmp_path, rows)
  found = _best_of_n(path, scores)
  assert [x["picked"] for x in found.samples] == [
    *(False, True, True, False, False)
  ]
  assert [x["used"] for x in found.samples] == [True] * 4 + [False]
  assert [x["right"] for x in found.samples] == [r[2] for r in rows]
  assert found.samples[1]["score"] == 0.9


def test_a_scores_file_that_isnt_there_is_refused_in_one_line(tmp_path):
  path = tmp_path / "none.jsonl"
  with pytest.raises(errors_lib.InputError, match=r"none\.jsonl"):
    step_scores_lib.Source(scores=path).step_scores([_solution("a")])


def test_scores_are_named_by_the_digest_of_their_file(tmp_path):
  path = _scores(tmp_path / "s.jsonl", [("a", [1, 1])])
  found = step_scores_lib.Source(scores=path).step_scores([_solution("a")])
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  assert found.by == {"scores": str(path), "sha256": digest}


@pytest.mark.parametrize(
  ("output", "samples"),
  [
    ("results.json", "samples.jsonl"),
    ("out/results.json.gz", "out/samples.jsonl"),
    ("math_results.json", "math_samples.jsonl"),
    ("math.json", "math_samples.jsonl"),
  ],
)
def test_samples_stand_beside_their_results(output, samples):
  found = results_lib.samples_path(pathlib.Path(output))
  assert found == pathlib.Path(samples)


def test_nothing_but_an_evaluations_own_files_is_replaced(tmp_path):
  output, samples = tmp_path / "results.json", tmp_path / "samples.jsonl"
  results_lib.check(
    output, dict(samples=samples), [None, tmp_path / "in.jsonl"]
  )

  def refused(words, inputs=()):
    with pytest.raises(errors_lib.InputError, match=re.escape(words)):
      results_lib.check(output, dict(samples=samples), inputs)

  refused(f"{samples}: is read by this command", [samples])
  refused(f"{output}: is read by this command", [output])
  whole = '{"run": {"command": "prm-jax eval", "evaluated": {}}}'
  for content in ("", "text", "[1]", '{"run": 3}', whole.replace("{}", "1")):
    output.write_text(content)
    refused(f"{output}: is there already")
  output.write_text(whole)
  for content in ("", "text\n", '{"id": "a", "steps": []}\n'):
    samples.write_text(content)
    refused(f"{samples}: is there already")
  row = dict(id="a", step_scores=[], prediction=0, target=0, right=True)
  samples.write_text(json.dumps(row) + "\n")
  results_lib.check(output, dict(samples=samples), [])
  with pytest.raises(
    errors_lib.InputError, match="is written as `output` already"
  ):
    results_lib.check(output, dict(samples=output), [])
