"""A conversation's turns get the scores of its trajectory, on their tokens."""

import pytest
import turns_cases

from prm_jax import client
from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.integrations import trl
from prm_jax.integrations import turn_rewards

PROMPT, COMPLETION = turns_cases.PROMPT, turns_cases.COMPLETION


def test_the_scores_are_those_of_the_trajectorys_own_turns():
  score, asked = turns_cases.recorded()
  example = [
    dict(role="user", content="1 + 1?"),
    dict(role="assistant", content="2 [0.1]"),
  ]
  first = turn_rewards.conversation(PROMPT, COMPLETION, turns_cases.TOOLS)
  second = turn_rewards.conversation([*example, *PROMPT], COMPLETION)
  nothing = turn_rewards.conversation(PROMPT, [])
  out = turn_rewards.score_turns(score, [first, nothing, second])
  assert [x.scores for x in out] == [(0.75, 0.25, 0.5), (), (0.75, 0.25, 0.5)]
  assert [x.judged for x in out] == [(True, True, False), (), (False,) * 3]
  assert len(asked) == 2 and asked[0].tools == turns_cases.TOOLS
  assert [x.role for x in asked[0].messages] == [
    *("system", "user", "assistant", "tool", "assistant", "user", "assistant")
  ]
  assert asked[0].messages[2].calls == (
    schema.Call("add", dict(a=2, b=3), "c1"),
  )


def test_what_a_policy_writes_does_not_end_a_run(caplog):
  score, asked = turns_cases.recorded()
  empty = [COMPLETION[0], COMPLETION[1], dict(role="assistant", content=" ")]
  bad = turns_cases.call("look [0.75]", "add", "not an object")
  broken = [
    bad,
    dict(role="tool", tool_call_id="c1", content="no"),
    COMPLETION[2],
  ]
  out = turn_rewards.score_turns(
    score,
    [
      turn_rewards.conversation(PROMPT, empty),
      turn_rewards.conversation(PROMPT, [dict(role="assistant", content=None)]),
      turn_rewards.conversation(PROMPT, broken),
    ],
  )
  assert [x.scores for x in out] == [(0.75, 0.0), (0.0,), (0.75, 0.25)]
  assert [x.judged for x in out] == [(True, False), (False,), (True, True)]
  assert scoring.delta(out[0]) == [0.75, None]
  assert len(asked) == 2 and "not an object" in asked[1].steps[0]
  assert [x.role for x in asked[1].messages][-2:] == ["user", "assistant"]
  assert "isn't the JSON of an object" in caplog.text
  with pytest.raises(
    errors.InputError, match="two assistant messages in a row"
  ):
    turn_rewards.score_turns(
      score, [turn_rewards.conversation(PROMPT, COMPLETION[2:3] * 2)]
    )
  with pytest.raises(errors.InputError, match="1 scores for 3 turns; give a"):
    turn_rewards.score_turns(
      lambda asked: [schema.StepScores((0.5,))],
      [turn_rewards.conversation(PROMPT, COMPLETION)],
    )


def strict(asked):
  """A schema.Score that refuses what no template with thoughts writes."""

  def score(solutions):
    for solution in solutions:
      texts = [x.text for x in solution.messages]
      asked.append((solution.messages[-1].text, solution.messages[-1].thinking))
      if any("</think>" in x or "pictures" in x for x in texts):
        raise errors.InputError("this text isn't written")
    if solutions[0].steps == ("a",):
      return [schema.StepScores((1.0,))]
    return turns_cases.score(solutions)

  return score


@pytest.mark.parametrize(
  "text, scores, judged",
  [
    ("so <think> 7 </think> [0.75]", (0.75,), (True,)),
    ("a</think>b</think>[0.25]", (0.25,), (True,)),
    ("7 [0.5] </think>", (0.0,), (False,)),
  ],
)
def test_a_turn_that_a_model_refuses_is_read_as_a_text_or_not_judged(
  text, scores, judged, caplog
):
  asked = []
  good = turn_rewards.conversation(PROMPT, COMPLETION)
  bad = turn_rewards.conversation(
    PROMPT, [dict(role="assistant", content=text)]
  )
  out = turn_rewards.score_turns(strict(asked), [good, bad, good])
  assert [x.scores for x in out] == [
    turns_cases.SCORES,
    scores,
    (0.75, 0.25, 0.5),
  ]
  assert out[1].judged == judged
  assert "conversation 1: this text isn't written; it is read" in caplog.text
  # What no policy wrote is refused as ever.
  picture = dict(type="image_url", image_url=dict(url="data:"))
  for content in (
    [dict(type="text", text="what?"), picture],
    dict(text="x"),
    5,
  ):
    other = [dict(role="user", content=content)]
    with pytest.raises(errors.InputError):
      turn_rewards.score_turns(
        turns_cases.score, [turn_rewards.conversation(other, COMPLETION[-1:])]
      )
  other = [dict(role="user", content="pictures?")]
  with pytest.raises(errors.InputError, match="this text isn't written"):
    turn_rewards.score_turns(
      strict(asked), [good, turn_rewards.conversation(other, COMPLETION[-1:])]
    )


def test_a_server_that_does_not_reply_is_asked_once():
  asked = []

  def score(solutions):
    asked.append(solutions)
    raise client.NoReplyError("no reply", "timeout")

  with pytest.raises(client.NoReplyError):
    turn_rewards.score_turns(
      score, [turn_rewards.conversation(PROMPT, COMPLETION)] * 3
    )
  assert len(asked) == 1


def test_declarations_of_tools_are_nested_as_chats_have_them():
  score, asked = turns_cases.recorded()
  flat = dict(type="function", name="add", parameters={}, strict=True)
  turn_rewards.score_turns(
    score, [turn_rewards.conversation(PROMPT, COMPLETION, [flat])]
  )
  assert asked[0].tools == turns_cases.TOOLS


def test_tokens_alone_are_a_conversation_too():
  ids, mask = turns_cases.tokens()
  out = turn_rewards.decoded(
    PROMPT, ids, mask, turns_cases.DECODE, between=turns_cases.BETWEEN
  )
  assert out.messages[2:] == (
    dict(role="assistant", content="look [0.75]"),
    dict(role="user", content="5"),
    dict(role="assistant", content="it is 5 [0.25]"),
    dict(role="user", content="sure?"),
    dict(role="assistant", content="yes [0.5]"),
  )
  assert out.own == (2, 4, 6)
  assert turns_cases.BETWEEN(" no template ") == "no template"
  # What is said before the first turn stays, and so does a prompt's <think>.
  encode = turns_cases.scored.TOKENIZER.encode
  hint, text = encode("HINT"), encode("hm</think>7")
  mask = [0] * len(hint) + [1] * len(text)
  out = turn_rewards.decoded("?", hint + text, mask, turns_cases.DECODE)
  assert [x["content"] for x in out.messages] == [
    "?",
    "HINT",
    "<think>hm</think>7",
  ]
  with pytest.raises(errors.InputError, match="a mask of 1 places for"):
    turn_rewards.decoded(PROMPT, ids, [1], turns_cases.DECODE)


def test_a_turns_reward_is_on_the_last_of_its_own_tokens():
  scores = schema.StepScores((0.75, 0.25), judged=(True, True))
  mask = [0, 1, 1, 0, 0, 1, 1, 1, 0]
  scored = turn_rewards.placed(scores, turn_rewards.run_lengths(mask))
  row = scoring.token_rewards(scored)
  assert row == [0, 0.75, 0, 0, 0.25]
  assert placement.align([row], [mask])[0].tolist() == [
    *(0, 0, 0.75, 0, 0, 0, 0, 0.25, 0)
  ]
  delta = scoring.token_rewards(scored, scoring.delta)
  assert delta == [0, 0.5, 0, 0, 0.25]
  # Each token has the sum of its turn's and later ones.
  assert (
    token_credit.token_advantages(scored, [0.5, 0.25])
    == [0.75] * 2 + [0.25] * 3
  )
  # Kept from training.
  assert scoring.token_rewards(turn_rewards.placed(scores, [])) == []
  with pytest.raises(
    errors.InputError, match="1 runs of own tokens for 2 turns"
  ):
    turn_rewards.placed(scores, turn_rewards.run_lengths([0, 1, 1, 1]))


def test_a_turn_is_compared_with_the_same_turn_of_the_others():
  rows = [(0.5, 0.5), (1.0,), (0.0, 1.0)]
  lengths = [(2, 1), (1,), (1, 2)]
  group = [
    turn_rewards.placed(schema.StepScores(x), y) for x, y in zip(rows, lengths)
  ]
  out = token_credit.to_go_advantages(group, rewards=scoring.judged)
  # Returns to go are (1, .5), (1) and (1, 1).
  assert out == [[0.0, 0.0, -0.5], [0.0], [0.0, 0.5, 0.5]]


@pytest.mark.parametrize("more", [(), (0.25,), (0.75, 1.0)])
def test_a_turn_has_no_advantage_of_the_turns_that_follow(more):
  rows = [(0.75, 0.5), (0.25, 0.25, *more)]
  group = [
    turn_rewards.placed(schema.StepScores(x), [1] * len(x)) for x in rows
  ]
  out = token_credit.to_go_advantages(group)
  assert out == [[0.5, 0.25], [-0.5, -0.25, *more]]


@pytest.mark.parametrize("rewards", [scoring.delta, scoring.judged])
def test_a_turn_that_is_not_judged_has_no_advantage_and_is_no_comparison(
  rewards,
):
  rows = [
    schema.StepScores((0.75, 0.5)),
    schema.StepScores((0.25, 0.0), judged=(True, False)),
    schema.StepScores((0.0, 0.0), judged=(False, False)),
  ]
  group = [turn_rewards.placed(x, [1, 1]) for x in rows]
  first, second, third = token_credit.to_go_advantages(group, rewards=rewards)
  assert third == [0, 0] and second[1] == 0
  # It is compared with nobody at its second turn.
  assert first[1] == 0.5 and first[0] == -second[0] > 0


def test_the_log_says_how_many_turns_come_before_the_first_error():
  rows = [
    schema.StepScores((0.75, 0.25, 0.5), judged=(True, True, False)),
    schema.StepScores(()),
    schema.StepScores((1.0,)),
  ]
  assert turn_rewards.metrics(rows) == pytest.approx(
    dict(
      turn_mean=0.75, turn_min=0.625, unjudged=1 / 6, first_error=1, num_turns=2
    )
  )
  assert set(turn_rewards.metrics([]).values()) == {0.0}


def test_trl_gets_an_aggregate_of_turns_and_logs_them():
  score, asked = turns_cases.recorded()
  reward = trl.turn_reward_func(score, tools=turns_cases.TOOLS, name="mine")
  logged = {}
  out = reward(
    prompts=[PROMPT] * 2,
    completions=[COMPLETION, COMPLETION[4:]],
    completion_ids=[[1], [2]],
    log_metric=logged.__setitem__,
  )
  assert out == [0.25, 0.5] and reward.__name__ == "mine"
  assert asked[0].tools == turns_cases.TOOLS
  assert logged["mine/turn_min"] == 0.375 and len(logged) == 5
  assert reward(prompts=[PROMPT], completions=[COMPLETION]) == [0.25]
