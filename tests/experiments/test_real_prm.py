"""Laws of the PRM from published weights: tuning and judging its runs."""

import json
import math
import pathlib

import numpy as np
import pytest

from prm_jax import schema

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


def _rated(*ratings, path=None):
  extra = {} if path is None else dict(path_ratings=list(path))
  steps = [f"step {k}" for k in range(len(ratings))]
  return schema.Solution("s", "1 + 1?", steps, ratings=ratings, extra=extra)


def test_the_threshold_is_tuned_on_solutions_labelled_up_to_their_first_error():
  import real_prm_results

  solutions = [
    _rated(1, 0, 1),
    _rated(1, -1, None),
    _rated(1, None, 1),
    _rated(None, None, -1),  # an alternative to the third step of a good path
    _rated(None, None, 1, path=(1, -1)),
    _rated(None, None, 1, path=(1, None)),
  ]
  numbers, errors = real_prm_results.whole_errors(solutions)
  assert numbers == [0, 1, 3, 4]
  assert errors == [-1, 1, 2, 1]


def test_the_loss_of_a_run_is_of_labelled_steps_alone():
  import real_prm

  found = real_prm.measured(
    [np.array([2.0, -1.0, 9.0]), np.array([0.0])],
    [_rated(1, -1, None), _rated(0)],
  )
  losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log(2)]
  assert found["steps"] == 3
  assert found["right"] == pytest.approx(2 / 3)
  assert found["loss_nats"] == pytest.approx(np.mean(losses))
  assert found["auroc"] == 1.0


def test_the_rate_is_that_of_least_loss_on_held_out_problems(tmp_path):
  import real_prm

  rates = real_prm.ARMS["qwen/lora"].rates
  bench = real_prm.Bench(None, None, tmp_path, tmp_path, tmp_path)
  for losses in ((0.5, 0.4), (None, 0.6)):
    for rate, loss in zip(rates, losses, strict=True):
      run = real_prm.Run("qwen/lora", rate, 0)
      point = dict(held_out=dict(loss_nats=loss))
      (tmp_path / f"{run.name}.json").write_text(json.dumps(point))
    assert real_prm.best_rate(bench, "qwen/lora") == rates[1]


def test_no_tested_problem_is_trained_on():
  import real_prm

  config = real_prm.get_config()
  assert set(real_prm.TESTS.values()) <= set(config.data.exclude)
  assert config.data.holdout > 0
