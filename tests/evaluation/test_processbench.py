"""ProcessBench's measure: its identity, its threshold, its baselines."""

import gzip
import json

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics

CASES = st.lists(
  st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0]), min_size=1, max_size=4)
  .flatmap(lambda s: st.tuples(st.just(s), st.integers(-1, len(s) - 1))),
  min_size=2,
  max_size=8,
)  # fmt: skip

# F1 of GSM8K, MATH, OlympiadBench, Omni-MATH, and the printed average
# (ProcessBench's own table and later papers').
PUBLISHED = {
  "Math-Shepherd-PRM-7B": ([47.9, 29.5, 24.8, 23.8], 31.5),
  "RLHFlow-PRM-Mistral-8B": ([50.4, 33.4, 13.8, 15.8], 28.4),
  "RLHFlow-PRM-Deepseek-8B": ([38.8, 33.8, 16.9, 16.9], 26.6),
  "Skywork-PRM-1.5B": ([59.0, 48.0, 19.3, 19.2], 36.4),
  "Skywork-PRM-7B": ([70.8, 53.6, 22.9, 21.0], 42.1),
  "EurusPRM-Stage1": ([44.3, 35.6, 21.7, 23.1], 31.2),
  "EurusPRM-Stage2": ([47.3, 35.7, 21.2, 20.9], 31.3),
  "R-PRM-7B-SFT": ([77.2, 71.6, 59.6, 52.3], 65.2),
  "R-PRM-7B-DPO": ([80.7, 76.9, 63.8, 60.1], 70.4),
  "Qwen2.5-Math-PRM-7B": ([82.4, 77.6, 67.5, 66.3], 73.5),
  "GenPRM-1.5B": ([52.8, 66.6, 55.1, 54.5], 57.3),
  "GenPRM-7B, maj@8": ([81.0, 85.7, 78.4, 76.8], 80.5),
  "Qwen2.5-72B-Instruct": ([76.2, 61.8, 54.6, 52.2], 61.2),
  "Llama-3.3-70B-Instruct": ([82.9, 59.4, 46.7, 43.0], 58.0),
  "o1-mini": ([93.2, 88.9, 87.2, 82.4], 87.9),
  "Qwen2.5-Math-7B-PRM800K": ([68.2, 62.6, 50.7, 44.3], 56.5),
  "Qwen2.5-Math-PRM-72B": ([87.3, 80.6, 74.3, 71.1], 78.3),
  "QwQ-32B-Preview": ([88.0, 78.7, 57.8, 61.3], 71.5),
  "GPT-4o-0806": ([79.2, 63.6, 51.4, 53.5], 61.9),
}


# ProcessBench's own table: acc_err, acc_cor and F1 of each subset.
PUBLISHED_ACCURACIES = {
  "Math-Shepherd-PRM-7B": [
    *((32.4, 91.7, 47.9), (18.0, 82.0, 29.5)),
    *((15.0, 71.1, 24.8), (14.2, 73.0, 23.8)),
  ],
  "RLHFlow-PRM-Deepseek-8B": [
    *((24.2, 98.4, 38.8), (21.4, 80.0, 33.8)),
    *((10.1, 51.0, 16.9), (10.1, 51.9, 16.9)),
  ],
  "Skywork-PRM-7B": [
    *((61.8, 82.9, 70.8), (43.8, 69.2, 53.6)),
    *((17.9, 31.9, 22.9), (14.0, 41.9, 21.0)),
  ],
  "Qwen2.5-Math-7B-PRM800K": [
    *((53.1, 95.3, 68.2), (48.0, 90.1, 62.6)),
    *((35.7, 87.3, 50.7), (29.8, 86.1, 44.3)),
  ],
  "Llama-3.3-70B-Instruct": [
    *((72.5, 96.9, 82.9), (43.3, 94.6, 59.4)),
    *((31.0, 94.1, 46.7), (28.2, 90.5, 43.0)),
  ],
}
# (acc_err, acc_cor, F1) as later papers reprint three of these cells.
MISPRINTS = [(43.8, 62.2, 53.6), (10.9, 51.9, 16.9), (43.3, 83.2, 59.4)]


@pytest.mark.parametrize("name", PUBLISHED_ACCURACIES)
def test_each_published_f1_is_the_harmonic_mean_of_its_accuracies(name):
  cells = PUBLISHED_ACCURACIES[name]
  err, cor, f1 = np.array(cells).T
  found = processbench_metrics.harmonic_mean(err, cor)
  np.testing.assert_allclose(found, f1, atol=0.1)  # all three are rounded
  assert f1.tolist() == PUBLISHED[name][0]


def test_the_identity_finds_the_misprints_of_later_papers():
  err, cor, f1 = np.array(MISPRINTS).T
  assert np.all(abs(processbench_metrics.harmonic_mean(err, cor) - f1) > 0.5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_headline_is_the_unweighted_mean_of_the_published_f1s(name):
  f1s, average = PUBLISHED[name]
  mean = processbench_metrics.mean_f1(
    {str(i): {"f1": f1} for i, f1 in enumerate(f1s)}
  )
  assert mean == pytest.approx(average, abs=0.051)  # both sides are rounded


def test_the_headline_is_not_the_size_weighted_mean():
  # The TRL fork prints 40.4 for these, weighting by 400 and 3 x 1,000 cases.
  f1s = [36.6, 49.6, 36.1, 37.0]
  mean = processbench_metrics.mean_f1(
    {str(i): {"f1": f1} for i, f1 in enumerate(f1s)}
  )
  assert mean == pytest.approx(39.8, abs=0.051)


def test_f1_is_the_harmonic_mean_of_the_two_accuracies():
  # GSM8K's sizes: 207 solutions with an error, 193 without.
  truth = np.array([3] * 207 + [-1] * 193)
  predicted = np.array([3] * 110 + [2] * 50 + [-1] * 47 + [-1] * 184 + [0] * 9)
  result = processbench_metrics.accuracies(predicted, truth)
  assert result["acc_err"] == 110 / 207
  assert result["acc_cor"] == 184 / 193
  expected = 2 / (207 / 110 + 193 / 184)
  assert result["f1"] == pytest.approx(expected, rel=1e-12)
  # Neither the accuracy nor the F1 of "has an error" gives this number.
  assert result["f1"] != pytest.approx((110 + 184) / 400, abs=0.01)


def test_one_empty_side_is_zero_and_no_case_of_a_side_is_null():
  zero = processbench_metrics.accuracies(np.array([-1, -1]), np.array([0, -1]))
  assert zero == {"acc_err": 0.0, "acc_cor": 1.0, "f1": 0.0}
  result = processbench_metrics.evaluate([[0.9], [0.1]], [-1, -1])
  assert result["acc_err"] is None and result["f1"] is None
  assert processbench_metrics.mean_f1({"a": result, "b": {"f1": 0.5}}) is None
  json.dumps(result, allow_nan=False)


def _f1(scores, truth, threshold):
  predicted = step_metrics.predicted_first_errors(scores, threshold)
  return processbench_metrics.accuracies(predicted, np.array(truth))["f1"]


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_no_threshold_beats_the_tuned_one_on_noisy_scores(seed):
  rng = np.random.default_rng(seed)
  truth = [0, -1, *rng.integers(-1, 4, 15).tolist()]
  scores = [(rng.integers(0, 21, 4) / 20).tolist() for _ in truth]
  tuned = processbench_metrics.tune_threshold(scores, truth)
  best = max(_f1(scores, truth, t) for t in np.arange(-0.025, 1.1, 0.05))
  assert _f1(scores, truth, tuned) == pytest.approx(best, abs=1e-12)


@given(CASES)
def test_no_threshold_beats_the_tuned_one(cases):
  scores, truth = [s for s, _ in cases], [t for _, t in cases]
  assume(len({t >= 0 for t in truth}) == 2)
  tuned = processbench_metrics.tune_threshold(scores, truth)
  grid = np.arange(-0.05, 1.2, 0.05)
  best = max(_f1(scores, truth, threshold) for threshold in grid)
  assert _f1(scores, truth, tuned) == pytest.approx(best, abs=1e-12)


def test_the_tuned_threshold_lies_midway_between_the_scores_it_separates():
  scores, truth = [[0.9, 0.3], [0.8, 0.4, 0.9], [0.7, 0.6]], [1, 1, -1]
  assert processbench_metrics.tune_threshold(scores, truth) == pytest.approx(
    0.5
  )
  halved = [[score / 2 for score in s] for s in scores]
  assert processbench_metrics.tune_threshold(halved, truth) == pytest.approx(
    0.25
  )


def test_of_equally_good_thresholds_the_nearest_to_one_half_is_taken():
  scores, truth = [[0.1], [0.3], [0.6], [0.9]], [0, -1, 0, -1]
  ties = [_f1(scores, truth, threshold) for threshold in (0.2, 0.75)]
  assert ties[0] == ties[1] == pytest.approx(2 / 3)
  assert processbench_metrics.tune_threshold(scores, truth) == pytest.approx(
    0.75
  )


def test_adjacent_floats_are_still_separated():
  low = 0.5
  high = float(np.nextafter(low, 1))
  scores, truth = [[low], [high]], [0, -1]
  tuned = processbench_metrics.tune_threshold(scores, truth)
  assert _f1(scores, truth, tuned) == 1.0


def test_f1_after_tuning_ignores_a_monotone_change_of_the_scores():
  rng = np.random.default_rng(0)
  scores = [rng.random(5).tolist() for _ in range(60)]
  truth = [int(rng.integers(-1, 5)) for _ in range(60)]
  squared = [[score**2 for score in s] for s in scores]
  results = [
    _f1(s, truth, processbench_metrics.tune_threshold(s, truth))
    for s in (scores, squared)
  ]
  assert results[0] == results[1] > 0


def test_evaluate_counts_locates_and_brackets():
  rng = np.random.default_rng(1)
  truth = [int(rng.integers(-1, 4)) for _ in range(300)]
  scores = [
    [float(0.5 + 0.5 * rng.random() - 0.7 * (i == t)) % 1 for i in range(4)]
    for t in truth
  ]
  right = [bool(rng.random() < 0.5) for _ in truth]
  result = processbench_metrics.evaluate(scores, truth, right_answer=right)
  json.dumps(result, allow_nan=False)
  assert result["num_err"] == sum(t >= 0 for t in truth)
  assert result["num_cor"] == sum(t < 0 for t in truth)
  for name in ("acc_err", "acc_cor", "f1"):
    low, high = result["interval"][name]
    assert low <= result[name] <= high
  # The bootstrap's spread of a share is the binomial one.
  share, num = result["acc_err"], result["num_err"]
  low, high = result["interval"]["acc_err"]
  expected = 2 * 1.96 * (share * (1 - share) / num) ** 0.5
  assert high - low == pytest.approx(expected, rel=0.15)
  chosen = [i for i, t in enumerate(truth) if t >= 0 and right[i]]
  slice_ = result["right_answer_wrong_process"]
  assert slice_["num"] == len(chosen)
  assert slice_["detected"] == np.mean([min(scores[i]) < 0.5 for i in chosen])
  assert 0 < slice_["located"] <= slice_["detected"]


def test_copies_of_a_problem_narrow_no_interval():
  rng = np.random.default_rng(2)
  truth = [int(rng.integers(-1, 3)) for _ in range(80)]
  scores = [rng.random(3).tolist() for _ in truth]
  once = processbench_metrics.evaluate(scores, truth, problems=range(80))
  copied = processbench_metrics.evaluate(
    scores * 4, truth * 4, problems=[i % 80 for i in range(320)]
  )
  assert copied["interval"] == once["interval"]
  alone = processbench_metrics.evaluate(scores * 4, truth * 4)
  width = [
    r["interval"]["acc_cor"][1] - r["interval"]["acc_cor"][0]
    for r in (alone, once)
  ]
  assert width[0] < 0.7 * width[1]


def test_the_threshold_of_one_subset_is_applied_to_the_other():
  scores = {
    "gsm8k": [[0.9, 0.3], [0.8, 0.7]],
    "math": [[0.4, 0.9], [0.65, 0.9], [0.55, 0.2]],
  }
  truth = {"gsm8k": [1, -1], "math": [0, -1, 1]}
  report = processbench_metrics.evaluate_subsets(scores, truth, tune_on="gsm8k")
  tuned = report["tuned"]["subsets"]
  assert tuned["gsm8k"]["threshold"] == tuned["math"]["threshold"] == 0.5
  assert tuned["gsm8k"]["in_sample"] is True
  assert "in_sample" not in tuned["math"]
  assert tuned["math"]["f1"] == 1.0 == report["tuned"]["mean_f1"]
  assert report["fixed"]["subsets"]["math"]["threshold"] == 0.5
  with pytest.raises(errors.InputError, match="no subset 'omni'"):
    processbench_metrics.evaluate_subsets(scores, truth, tune_on="omni")


def _solution(*steps):
  return schema.Solution(id="0", problem="", steps=steps)


def test_trivial_baselines_predict_what_their_names_say():
  solutions = [_solution("a", "bbbb", "c"), _solution("a"), _solution("aaaaa")]

  def predicted(name, threshold):
    scores = processbench_metrics.BASELINES[name](solutions)
    assert [len(s) for s in scores] == [3, 1, 1]
    return list(step_metrics.predicted_first_errors(scores, threshold))

  assert predicted("everything_right", 1.0) == [-1, -1, -1]
  assert predicted("step_index", 0.9) == [1, -1, -1]
  assert predicted("step_index", 0.4) == [2, -1, -1]
  assert predicted("step_length", 100 / 102.5) == [1, -1, 0]


def test_saying_that_everything_is_right_has_an_f1_of_zero():
  solutions = [_solution("a", "b")] * 4
  scores = processbench_metrics.everything_right(solutions)
  result = processbench_metrics.evaluate(scores, [-1, 0, 1, -1])
  assert (result["acc_err"], result["acc_cor"], result["f1"]) == (0.0, 1.0, 0.0)


@pytest.mark.real_data
@pytest.mark.parametrize(
  ("subset", "num_err", "num_cor", "num_slice", "percent"),
  [("gsm8k", 207, 193, 7, 3.5), ("math", 594, 406, 94, 18.8)],
)
def test_the_published_counts_and_false_positives_come_out(
  subset, num_err, num_cor, num_slice, percent, public_data
):
  with gzip.open(public_data(f"processbench/{subset}.json.gz"), "rt") as f:
    cases = json.load(f)
  solutions = [_solution(*case["steps"]) for case in cases]
  truth = [case["label"] for case in cases]
  right = [case["final_answer_correct"] for case in cases]
  result = processbench_metrics.evaluate(
    processbench_metrics.step_index(solutions), truth, right_answer=right
  )
  assert (result["num_err"], result["num_cor"]) == (num_err, num_cor)
  assert result["right_answer_wrong_process"]["num"] == num_slice
  share = step_metrics.false_positive_share(
    np.array(right), np.array(truth) >= 0
  )
  assert 100 * share == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(
  ("scores", "truth", "message"),
  [
    ([[0.5]], [0, 1], "scores of 1 solutions but first errors of 2"),
    ([[0.5], [0.5]], [0, 1], r"solution 1 .* first error 1 with 1 step"),
    ([[float("nan")]], [0], r"solution 0 .* in \[0, 1\]"),
  ],
)
def test_bad_input_is_named(scores, truth, message):
  with pytest.raises(errors.InputError, match=message):
    processbench_metrics.evaluate(scores, truth)


@pytest.mark.parametrize("truth", [[0, 0], [-1, -1]])
def test_without_both_kinds_the_fixed_threshold_alone_is_measured(truth):
  """What no solution defines is None; nothing is invented for it."""
  scores = [[0.25], [0.75]]
  found = processbench_metrics.evaluate_subsets(
    {"gsm8k": scores, "math": scores},
    {"gsm8k": truth, "math": [0, -1]},
    tune_on="gsm8k",
  )
  assert found["tuned"] is None and not processbench_metrics.can_tune(truth)
  fixed = found["fixed"]["subsets"]
  assert fixed["math"]["f1"] == 1
  of_one_kind = fixed["gsm8k"]
  assert of_one_kind["acc_err"] == (0.5 if 0 in truth else None)
  assert of_one_kind["acc_cor"] == (0.5 if -1 in truth else None)
  assert of_one_kind["f1"] is None and found["fixed"]["mean_f1"] is None


def test_a_subset_without_solutions_is_refused():
  with pytest.raises(errors.InputError, match="'math' has no solutions"):
    processbench_metrics.evaluate_subsets(
      {"gsm8k": [[0.5]], "math": []},
      {"gsm8k": [0], "math": []},
      tune_on="gsm8k",
    )


def test_tuning_needs_both_kinds():
  with pytest.raises(errors.InputError, match="2 of 2 solutions have an error"):
    processbench_metrics.tune_threshold([[0.5], [0.6]], [0, 0])
