"""Responses are scored as the policy's own ids read, all in one call."""

import math
import threading
import types

import numpy as np
import pytest
import scored

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import chats
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.rl import returns
from prm_jax.scoring import scorer as scorer_lib

TOKENIZER = scored.Tokenizer()
DECODE = placement.decoder(TOKENIZER)
TEXT = "so 3 [0.9]\r\nthen € [0.2]\nend [0.7]"


def of(*texts, problem=scored.PROBLEM):
  ids = [[*TOKENIZER.encode(text), TOKENIZER.eos] for text in texts]
  problems = [problem] * len(texts)
  return scoring.score_responses(scored.score_texts, DECODE, problems, ids)


def test_scores_keep_their_places_and_empty_responses_have_none():
  one, none, two = of(TEXT, "", "a [0.5]")
  spans = one.scores.spans
  assert [TEXT[a:b] for a, b in spans] == [
    *("so 3 [0.9]", "then € [0.2]", "end [0.7]")
  ]
  assert none.scores.scores == () and none.token_offsets == [0]
  assert two.scores.scores == (0.5,)


def test_a_response_gets_its_judged_scores_on_its_own_tokens():
  (one,) = of(TEXT)
  placed = scoring.token_rewards(one)
  ids = [*TOKENIZER.encode(TEXT), TOKENIZER.eos]
  assert len(placed) == len(ids) and placed[-1] == 0
  at = {i: x for i, x in enumerate(placed) if x}
  # Nothing after the first score below 0.5 is judged.
  assert list(at.values()) == [0.9, 0.2]
  assert [DECODE(ids[: i + 1])[-5:] for i in at] == ["[0.9]", "[0.2]"]


def test_delta_is_that_of_returns():
  for numbers in ([0.9, 0.75, 0.5], [0.9, 0.2, 0.7], [0.3], []):
    judged = schema.judged_steps(numbers, "until_first_error")
    scores = schema.StepScores(tuple(numbers), judged=judged)
    ours = scoring.delta(scores)
    assert [x is not None for x in ours] == list(judged)
    if not numbers:
      continue
    theirs = returns.delta(np.array(numbers), np.array(judged))
    mine = [x or 0.0 for x in ours]
    np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert math.isclose(sum(mine), numbers[0])


class Model:
  """What text_scorer needs of a Scorer."""

  calls = 0
  cut = staticmethod(scoring.by_segmenter("line"))

  def score(self, solutions):
    self.calls += 1
    return scored.score(solutions)


def test_a_model_scores_all_texts_in_one_call_as_it_cuts_them():
  assert issubclass(scorer_lib.Scorer, scoring._TextScorer)
  model, texts = Model(), [TEXT, "", "a [0.5]"]
  out = scoring.text_scorer(model)([scored.PROBLEM] * 3, texts)
  assert out == scored.score_texts([scored.PROBLEM] * 3, texts)
  assert model.calls == 1
  assert scoring.text_scorer(model)([scored.PROBLEM], [""])[0].scores == ()
  assert model.calls == 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_texts_that_are_scored_one_by_one_have_the_same_scores(at_once):
  running, most, meet = [], [0], threading.Barrier(at_once, timeout=10)

  def score_text(problem, text):
    running.append(text)
    most[0] = max(most[0], len(running))
    meet.wait()
    running.remove(text)
    return scored.score_texts([problem], [text])[0]

  texts = [TEXT, "", "a [0.5]"]
  problems = [scored.PROBLEM] * 3
  out = scoring.each_text(score_text, at_once=at_once)(problems, texts)
  assert out == scored.score_texts(problems, texts)
  assert most[0] == at_once


def test_what_does_not_fit_is_refused():
  with pytest.raises(errors.InputError, match="1 problems for 2 responses"):
    scoring.score_responses(scored.score_texts, DECODE, ["p"], [[97], [98]])

  def without_spans(problems, texts):
    return [schema.StepScores((0.5,))]

  with pytest.raises(errors.InputError, match="no spans"):
    scoring.score_responses(without_spans, DECODE, ["p"], [[97]])
  with pytest.raises(errors.InputError, match="a mask of 1 places for 2 ids"):
    scoring.token_ids([1, 2], [True])


def test_ids_of_arrays_become_ints():
  assert scoring.token_ids(np.array([1, 2, 3]), [1, 0, 1]) == [1, 3]
  assert type(scoring.token_ids(np.array([1]))[0]) is int


def test_a_problem_is_the_last_user_turn():
  chat = [
    dict(role="system", content="Be brief."),
    dict(role="user", content="first"),
    dict(role="assistant", content="yes"),
    dict(role="user", content=[dict(type="text", text="2 + "), dict(text="3")]),
  ]
  assert chats.problem_of(chat) == "2 + 3"
  assert chats.problem_of(tuple(chat[:3])) == "first"
  assert chats.problem_of("2 + 3") == "2 + 3"
  with pytest.raises(
    errors.InputError, match=r"'<\|im_start\|>', so it is a ren"
  ):
    chats.problem_of("<|im_start|>user\n2 + 3<|im_end|>")
  parts = [types.SimpleNamespace(text="a"), types.SimpleNamespace(image=1)]
  message = types.SimpleNamespace(role="user", content=parts)
  assert chats.problem_of([message]) == "a"
  assert chats.text_of("plain") == "plain"
  with pytest.raises(errors.InputError, match="no user turn"):
    chats.problem_of(chat[:1])


def test_one_score_of_a_response_is_an_aggregate():
  (one,) = of(TEXT)
  assert scoring.overall(one.scores, "min") == 0.2
  assert scoring.overall(schema.StepScores(()), "min") == 0.0
