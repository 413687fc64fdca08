"""A reward model's scores after a change, by a scripted one."""

from prm_jax import schema
from prm_jax.probes import score_drops

SOLUTION = schema.Solution("s", "?", ("1 = 1", "2 = 2", "no", "answer 2"))
RECORD = dict(skipped=None, steps=[0, 1, 2], corrupted=["1 = 5", "2 = 4", None])


def _score(solutions):
  """A wrong step has 0.1; those after it 0.6 of what they had."""
  out = []
  for s in solutions:
    scores, factor = [], 1.0
    for step, own in zip(s.steps, (0.9, 0.8, 0.5, 0.7), strict=True):
      is_wrong = step in ("1 = 5", "2 = 4")
      scores.append(0.1 if is_wrong else own * factor)
      factor *= 0.6 if is_wrong else 1
    out.append(schema.StepScores(tuple(scores)))
  return out


def test_a_drop_is_of_the_changed_step_and_of_the_lowest_from_it_on():
  (found, nothing) = score_drops.of(
    [SOLUTION, SOLUTION], [RECORD, dict(skipped="no_answer")], _score
  )
  assert found["step_scores"] == [0.9, 0.8, 0.5, 0.7]
  assert found["score_drop"] == [0.9 - 0.1, 0.8 - 0.1, None]
  assert found["score_drop_after"] == [0.5 - 0.1, 0.5 - 0.1, None]
  assert nothing == {}


def test_a_score_that_does_not_move_has_a_drop_of_0():
  (found,) = score_drops.of(
    [SOLUTION],
    [RECORD],
    lambda x: [schema.StepScores((0.5,) * 4) for _ in x],
  )
  assert found["score_drop"] == [0.0, 0.0, None]
  assert found["score_drop_after"] == [0.0, 0.0, None]
