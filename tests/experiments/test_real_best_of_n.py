"""A PRM chooses among a policy's answers beside what reads no mathematics."""

import pathlib

import numpy as np
import pytest

from prm_jax import schema

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


def _sampled(problem, i, answer):
  return schema.Solution(
    f"{problem}/{i}",
    problem,
    ("so it is",) * (i + 1),
    answer=answer,
    outcome=answer == "1",
    extra=dict(log_prob_mean=-1.0 - (answer == "1")),
  )


def test_one_good_score_beats_the_majority_and_likelihood():
  import real_best_of_n

  of_problem = ["2", "2", "2", "1", "3", "4", "5", "2"]
  solutions = [
    _sampled(p, i, answer)
    for p in ("a", "b")
    for i, answer in enumerate(of_problem)
  ]
  rows = []
  for s in solutions:
    scores = np.full(len(s.steps), 0.9 if s.outcome else 0.1)
    rows.append(
      schema.StepScores(
        tuple(scores), tuple(np.log(scores / (1 - scores))), None
      )
    )
  found = real_best_of_n.judged(solutions, rows)
  accuracy = {name: curve[-1] for name, curve in found["accuracy"].items()}
  assert accuracy["oracle"] == accuracy["prm_min"] == 1
  assert accuracy["majority"] == accuracy["likelihood"] == 0
  assert accuracy["weighted_prm_min"] == 1  # 0.9 against four times 0.1
  assert found["accuracy"]["prm_min"][0] == 1 / 8
  assert found["paired"]["prm_min_minus_majority_at_8"]["mean"] == 1
  read = [
    dict(id=s.id, kind="sound" if s.outcome else "lucky") for s in solutions
  ]
  read[0]["kind"] = "slip"
  told = real_best_of_n.lucky(solutions, rows, read)
  assert told == dict(
    sound=2, lucky=13, slip=1, auroc=1.0, auroc_interval=[1.0, 1.0]
  )
  assert "| oracle | 12.5 [12.5, 12.5]" in real_best_of_n.table(found)
