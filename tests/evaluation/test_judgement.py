"""What is said of scores beside labels follows from both."""

import itertools
import re

from prm_jax.evaluation import judgement


def test_a_judgement_compares_first_doubt_and_first_error():
  for labels in itertools.product([0, 1, None], repeat=3):
    for scores in itertools.product([0.1, 0.9], repeat=3):
      wrong = [i for i in range(3) if labels[i] == 0]
      doubted = [i for i in range(3) if scores[i] < 0.5]
      said = judgement.judge(labels, scores)
      kind, line = said.kind, said.text
      late = wrong and doubted and wrong[0] < doubted[0]
      if set(labels) == {None}:
        assert kind == "open" and "No step has an exact label" in line
      elif doubted and labels[doubted[0]] is None and not late:
        assert kind == "open" and f"doubts step {doubted[0] + 1}" in line
      elif wrong[:1] == doubted[:1]:
        assert kind == "right"
        assert not wrong or f"first error, step {wrong[0] + 1} " in line
      else:
        assert kind == "wrong"
        missed = bool(wrong) and (not doubted or late)
        assert ("misses" in line) == missed
        assert ("false alarm" in line) == (not missed)
        named = {int(i) for i in re.findall(r"step (\d)", line)}
        assert named == {i + 1 for i in wrong[:1] + doubted[:1]}
      assert "\n" not in line


def test_a_right_answer_after_a_wrong_step_is_called_luck():
  assert "luck" in judgement.judge([1, 0], [0.9, 0.1], True).text
  assert "luck" in judgement.judge([1, 0], [0.9, 0.9], True).text
  assert "luck" not in judgement.judge([1, 0], [0.9, 0.1], False).text
  assert "luck" not in judgement.judge([1, 1], [0.9, 0.1], True).text
