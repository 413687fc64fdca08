"""Evaluations over files: what belongs together, and numbers by hand."""

import json

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.data import encode
from prm_jax.evaluation import files
from prm_jax.evaluation import processbench


def _solution(id_, problem="p", steps=("a", "b"), **fields):
  return schema.Solution(id_, problem, steps, **fields)


def _scores(path, rows):
  schema.write_records(path, (dict(id=i, step_scores=s) for i, s in rows))
  return path


# --- Scores -----------------------------------------------------------------


def test_scores_come_in_the_solutions_order_whatever_the_files(tmp_path):
  path = _scores(
    tmp_path / "s.jsonl", [("b", [0.3]), ("x", [0]), ("a", [0.1, 1])]
  )
  found = files.read_scores(
    path, [_solution("a"), _solution("b", steps=("c",))]
  )
  assert found == [[0.1, 1.0], [0.3]]


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
    ([("a", 0.5)], ':1: expected {"id", "step_scores": [float]}'),
  ],
)
def test_scores_that_dont_fit_are_refused(rows, message, tmp_path):
  path = _scores(tmp_path / "s.jsonl", rows)
  with pytest.raises(schema.InputError) as caught:
    files.read_scores(path, [_solution("a")])
  assert str(caught.value).startswith(str(path))
  assert message in str(caught.value)


def test_scores_come_from_a_checkpoint_or_a_file_not_both(tmp_path):
  for checkpoint, scores in ((None, None), (tmp_path, tmp_path / "s.jsonl")):
    with pytest.raises(schema.InputError, match="either"):
      files.step_scores([], checkpoint, scores)


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
  schema.write_solutions(path, rows)
  scores = _scores(tmp_path / "s.jsonl", [("b", [0.3, 0.9]), ("a", [0.9, 0.2])])
  policy = encode.LabelPolicy(neutral)
  found = files.steps("jsonl", path, policy, None, scores, 0)
  assert (found["num_steps"], found["auroc"]) == (num_steps, auroc)
  baselines = found["baselines"]
  assert set(baselines) == {"everything_right", "step_index", "step_length"}
  assert baselines["everything_right"]["auroc"] == 0.5
  # Scores 1 and 1/2 of the first and second step, against the labels.
  by_index = dict(good=0.25, bad=0.75, ignore=0.5)[neutral]
  assert baselines["step_index"]["auroc"] == by_index


def test_steps_without_a_label_cant_be_measured(tmp_path):
  path = tmp_path / "in.jsonl"
  schema.write_solutions(path, [_solution("a"), _solution("b")])
  with pytest.raises(schema.InputError, match="no step has a label"):
    files.steps("jsonl", path, encode.LabelPolicy(), None, "s", 0)


def test_the_plain_table_leaves_out_what_isnt_a_number():
  results = dict(
    auroc=0.5, num_steps=3, rows=[1], auroc_interval=[None, None], brier=None
  )
  assert files.plain_table(results).split() == [
    "auroc",
    "0.5000",
    "num_steps",
    "3",
  ]
  shown = files.plain_table(dict(auroc_interval=[0.25, 0.75]))
  assert shown.split(maxsplit=1)[1] == "[0.2500, 0.7500]"
  known = dict(auroc=0.5, auroc_interval=[0.25, 0.75])
  unknown = dict(auroc=None, auroc_interval=[None, None])
  shown = files.plain_table(dict(baselines=dict(a=known, b=unknown)))
  assert shown.split() == ["auroc", "of", "a", "0.5000", "[0.2500,", "0.7500]"]


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
  found = files.processbench_subsets(inputs, None, scores, "gsm8k", 0)
  assert set(found) == {"model", *processbench.BASELINES}
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

  table = files.processbench_table(found)
  assert table.count("(tuned here)") == len(found)
  assert "math 66.7" in table and "n 1+2" in table


def test_processbench_inputs_are_named_once_and_hold_the_tuned_subset(subsets):
  inputs, scores = subsets
  for bad, tune_on, message in (
    (["gsm8k.json"], "gsm8k", "SUBSET=FILE"),
    (inputs, "omnimath", "have gsm8k, math"),
    ([inputs[0], inputs[0]], "gsm8k", "'gsm8k' is given twice"),
  ):
    with pytest.raises(schema.InputError, match=message):
      files.processbench_subsets(bad, None, scores, tune_on, 0)


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
  schema.write_solutions(path, solutions)
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
  assert files._source_prior(solutions).tolist() == pytest.approx(
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
  found = files.best_of_n_pool("jsonl", path, None, scores, 0)
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
  assert "source_prior" in files.best_of_n_table(found)


def test_one_source_has_no_prior_to_compare_with(tmp_path):
  rows = [("p", "x", True, 0.9, 1), ("p", "x", False, 0.1, 1)]
  path, scores, _ = _pool(tmp_path, rows)
  found = files.best_of_n_pool("jsonl", path, None, scores, 0)
  assert "source_prior" not in found["accuracy"]
  assert found["accuracy"]["model"] == [0.5, 1.0]


def test_a_pool_needs_solutions_with_outcomes(tmp_path):
  path = tmp_path / "in.jsonl"
  schema.write_solutions(path, [_solution("a", outcome=True), _solution("b")])
  with pytest.raises(schema.InputError, match='1 solutions have no "outcome"'):
    files.best_of_n_pool("jsonl", path, None, "s", 0)
  schema.write_solutions(path, [])
  with pytest.raises(schema.InputError, match="no solutions"):
    files.best_of_n_pool("jsonl", path, None, "s", 0)


def test_a_pool_is_ranked_by_the_aggregate_that_is_asked_for(tmp_path):
  solutions = [_solution("a", outcome=True), _solution("b", outcome=False)]
  schema.write_solutions(tmp_path / "in.jsonl", solutions)
  scores = _scores(tmp_path / "s.jsonl", [("a", [0.5, 0.9]), ("b", [0.8, 0.6])])

  def best(aggregate):
    path = tmp_path / "in.jsonl"
    found = files.best_of_n_pool("jsonl", path, None, scores, 0, aggregate)
    assert found["aggregate"] == aggregate or aggregate is None
    return found["accuracy"]["model"][-1]

  assert best("last") == 1 and best("min") == 0
  assert best(None) == best("product") == 0


@pytest.mark.real_data
@pytest.mark.slow
def test_a_real_pools_candidates_are_kept_or_counted(
  public_data, tmp_path, capsys
):
  """GSM8K's pool, scored by its number of steps."""
  from prm_jax.data import corpus

  path = public_data("best_of_n", "gsm8k_pool_0000_0999.jsonl.gz")
  solutions, _ = corpus.read("gsm8k_pool", path)
  chosen = [s for s in solutions if s.steps][:600]
  problems = list(dict.fromkeys(s.problem for s in chosen))[:-1]
  chosen = [s for s in chosen if s.problem in problems]
  schema.write_solutions(tmp_path / "in.jsonl", chosen)
  scores = _scores(
    tmp_path / "s.jsonl",
    ((s.id, [1 / (1 + len(s.steps))] * len(s.steps)) for s in chosen),
  )
  found = files.best_of_n_pool("jsonl", tmp_path / "in.jsonl", None, scores, 0)
  assert found["num_problems"] == len(problems)
  kept = found["num_problems"] * found["num_samples"]
  assert kept + found["left_out"] == len(chosen)
  rates = {}
  for s in chosen:
    rates.setdefault(s.problem, []).append(bool(s.outcome))
  first = np.mean([np.mean(x[: found["num_samples"]]) for x in rates.values()])
  assert found["accuracy"]["model"][0] == pytest.approx(first)
  assert found["accuracy"]["source_prior"][0] == pytest.approx(first)
