"""PRMBench's scores: the published ones, and a slow count of the steps."""

import json

import numpy as np
import pytest

from prm_jax import errors
from prm_jax.evaluation import prmbench_metrics

CLASSES = tuple(prmbench_metrics.SHORT)

# The benchmark's own table (README of ssmisya/PRMBench): the nine classes in
# its order, and the means that it prints for the three categories.
PUBLISHED = {
  "Skywork-PRM-7B": (
    [35.7, 41.2, 36.7, 29.1, 30.6, 34.4, 36.8, 37.4, 88.8],
    [38.4, 32.7, 54.3],
  ),
  "MathShepherd-Mistral-7B": (
    [44.0, 50.3, 49.4, 44.5, 41.3, 47.7, 47.2, 48.6, 86.1],
    [47.1, 45.7, 60.7],
  ),
  "RLHFlow-PRM-Deepseek-8B": (
    [46.4, 48.9, 55.7, 55.0, 53.2, 66.2, 49.0, 55.4, 99.8],
    [47.6, 57.5, 68.1],
  ),
  "GPT-4o": (
    [57.0, 62.4, 72.0, 69.7, 70.7, 71.1, 62.5, 65.7, 99.2],
    [59.7, 70.9, 75.8],
  ),
}
SHORT = ["NR", "NCL", "ES", "SC", "DC", "CI", "PS", "DR", "MS"]


def test_the_nine_classes_stand_as_in_the_papers_tables():
  assert list(prmbench_metrics.SHORT.values()) == SHORT


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_category_is_the_mean_of_its_classes_as_published(model):
  scores, printed = PUBLISHED[model]
  of_class = dict(zip(CLASSES, scores, strict=True))
  for members, mean in zip(prmbench_metrics.CATEGORIES.values(), printed):
    found = np.mean([of_class[name] for name in members])
    assert found == pytest.approx(mean, abs=0.101)  # both sides are rounded


def _random(seed, num=200):
  rng = np.random.default_rng(seed)
  classes = [*CLASSES, "correct", *rng.choice([*CLASSES, "correct"], num)]
  scores, labels = [], []
  for kind in classes:
    size = int(rng.integers(1, 7))
    wrong = rng.random(size) < 0.3
    if kind in ("multi_solutions", "correct"):
      wrong[:] = False
    labels.append([float(not w) for w in wrong])
    scores.append((rng.integers(0, 11, size) / 10).tolist())
  return scores, labels, classes


def _slow_score(said, truth, all_right):
  """PRMScore from precision and recall, a list of booleans each."""

  def f1(positive):
    hits = sum(a == b == positive for a, b in zip(said, truth))
    precision = hits / sum(a == positive for a in said)
    recall = hits / sum(b == positive for b in truth)
    return 2 * precision * recall / (precision + recall)

  return f1(True) if all_right else (f1(True) + f1(False)) / 2


def test_every_score_is_that_of_a_slow_count():
  scores, labels, classes = _random(0)
  found = prmbench_metrics.evaluate(scores, labels, classes)
  json.dumps(found, allow_nan=False)

  def steps(names):
    of = [i for i, kind in enumerate(classes) if kind in names]
    said = [score > 0.5 for i in of for score in scores[i]]
    return said, [label == 1 for i in of for label in labels[i]]

  by_class = {}
  for name in CLASSES:
    all_right = name == "multi_solutions"
    by_class[name] = _slow_score(*steps({name}), all_right)
    of_class = found["classes"][name]
    assert of_class["prm_score"] == pytest.approx(by_class[name])
    said, truth = steps({name})
    assert of_class["num_steps"] == len(said)
    assert of_class["num_wrong_steps"] == truth.count(False)
    assert of_class["num_solutions"] == classes.count(name)
    right = [a for a, b in zip(said, truth) if b]
    assert of_class["right_step_accuracy"] == pytest.approx(np.mean(right))
  for category, members in prmbench_metrics.CATEGORIES.items():
    mean = np.mean([by_class[name] for name in members])
    of_category = found["categories"][category]
    assert of_category["prm_score"] == pytest.approx(mean)
  overall = _slow_score(*steps(set(CLASSES)), False)
  assert found["overall"]["prm_score"] == pytest.approx(overall)
  assert found["missing"] == []
  # The controls are beside it all.
  control = found["control"]
  assert "prm_score" not in control
  assert control["right_step_accuracy"] == np.mean(steps({"correct"})[0])
  alone = prmbench_metrics.evaluate(
    *zip(*[x for x in zip(scores, labels, classes) if x[2] != "correct"])
  )
  for part in (alone["overall"], found["overall"]):
    del part["interval"]  # other draws of other problems
  assert alone["overall"] == found["overall"] and alone["control"] is None


def test_an_interval_holds_its_score_and_is_that_of_the_problems():
  scores, labels, classes = _random(1, num=400)
  found = prmbench_metrics.evaluate(scores, labels, classes)
  for part in (
    found["overall"],
    *found["categories"].values(),
    *found["classes"].values(),
  ):
    low, high = part["interval"]
    assert low < part["prm_score"] < high
  # Copies of a problem narrow nothing.
  copied = prmbench_metrics.evaluate(
    scores * 3, labels * 3, classes * 3, problems=[*range(len(classes))] * 3
  )
  assert copied["overall"]["interval"] == pytest.approx(
    found["overall"]["interval"]
  )


def test_a_step_at_the_threshold_is_predicted_wrong():
  assert prmbench_metrics.predicted_right([0.5, 0.51, 0.0]).tolist() == [
    False,
    True,
    False,
  ]


def test_saying_that_all_is_right_has_no_negative_f1():
  found = prmbench_metrics.evaluate(
    [[1.0, 1.0], [1.0]], [[1, 0], [1]], ["circular", "multi_solutions"]
  )
  circular, multi = (found["classes"][n] for n in found["classes"])
  assert circular["f1"] == pytest.approx(2 / 3)
  assert circular["negative_f1"] == 0
  assert circular["prm_score"] == pytest.approx(1 / 3)
  assert circular["first_error_accuracy"] == 0
  # No wrong step and none predicted: not 0, not 1, but nothing to measure.
  assert multi["negative_f1"] is None and multi["prm_score"] == 1
  assert multi["first_error_accuracy"] is None
  assert found["categories"]["simplicity"]["prm_score"] is None
  assert found["missing"][0] == "redundency" and len(found["missing"]) == 7


def test_steps_behind_the_first_error_count():
  found = prmbench_metrics.evaluate(
    [[0.9, 0.1, 0.9, 0.1]], [[1, 0, 0, 1]], ["deception"]
  )["classes"]["deception"]
  assert found["right_step_accuracy"] == found["wrong_step_accuracy"] == 0.5
  assert found["first_error_accuracy"] == 1
  assert found["prm_score"] == pytest.approx(0.5)


@pytest.mark.parametrize(
  ("scores", "labels", "kind", "message"),
  [
    ([0.5], [1], "redundancy", "is 'redundancy'; expected one of redund"),
    ([0.5], [1, 0], "circular", "1 scores for 2 steps"),
    ([0.5], [0.7], "circular", "0 or 1, on every step"),
    ([0.5], [None], "circular", "0 or 1, on every step"),
  ],
)
def test_bad_input_is_named(scores, labels, kind, message):
  with pytest.raises(errors.InputError, match=message):
    prmbench_metrics.evaluate([scores], [labels], [kind])
