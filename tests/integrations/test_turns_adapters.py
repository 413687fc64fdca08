"""Each trainer's form of a conversation gives the same three turns' rewards.

The other libraries aren't installed: what they hand over is written by hand, as
their source has it at the commits that the adapters name.
"""

import asyncio
import itertools
import types

import numpy as np
import pytest
import turns_cases

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import nemo_gym
from prm_jax.integrations import prime_rl
from prm_jax.integrations import skyrl
from prm_jax.integrations import slime
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import tunix
from prm_jax.integrations import verifiers

PROMPT, COMPLETION = turns_cases.PROMPT, turns_cases.COMPLETION
DELTA = turns_cases.DELTA
IDS, MASK = turns_cases.tokens()
METRICS = dict(
  turn_mean=0.5, turn_min=0.25, unjudged=1 / 3, first_error=1.0, num_turns=3.0
)


# --- verifiers and prime-rl --------------------------------------------------


class Model:
  """A pydantic object: its fields, and model_dump."""

  def __init__(self, **fields):
    vars(self).update(fields)

  def model_dump(self, exclude_none):
    assert exclude_none
    return {
      k: [y.model_dump(True) if isinstance(y, Model) else y for y in x]
      if isinstance(x, list)
      else x
      for k, x in vars(self).items()
      if x is not None
    }


class Trace(types.SimpleNamespace):
  def record_metric(self, name, value):
    self.metrics[name] = value


def node(role, text, num_tokens=0, sampled=False, **more):
  message = Model(role=role, content=text, reasoning_content=None, **more)
  # A template's tokens come before those that are sampled.
  mask = [False, False] + [True] * num_tokens
  return types.SimpleNamespace(message=message, sampled=sampled, mask=mask)


def trace(reward=1.0):
  """The conversation, with a second branch at its last turn."""
  calls = [Model(id="c1", name="add", arguments='{"a": 2, "b": 3}')]
  nodes = [
    node("system", "Be brief."),
    node("user", "2 + 3?"),
    node("assistant", "look [0.75]", 3, sampled=True, tool_calls=calls),
    node("tool", "5", tool_call_id="c1"),
    node("assistant", "it is 5 [0.25]", 2, sampled=True),
    node("user", "sure?"),
    node("assistant", "yes [0.5]", 1, sampled=True),
    node("assistant", "no [1.0]", 2, sampled=True),
  ]
  paths = [nodes[:7], [*nodes[:3], *nodes[3:4], nodes[7]]]
  return Trace(
    nodes=nodes,
    branches=[types.SimpleNamespace(nodes=path) for path in paths],
    tools=[Model(name="add", description="", parameters={})],
    reward=reward,
    info={},
    metrics={},
  )


def test_a_traces_info_has_a_reward_or_none_for_each_sampled_turn():
  score, asked = turns_cases.recorded()
  traces = [trace(), trace()]
  verifiers.set_turn_rewards(traces, score=score)
  for each in traces:
    assert each.info["turn_rewards"] == [0.75, 0.25, None, 1.0]
    assert each.metrics["prm/num_turns"] == 4
    assert each.metrics["prm/turn_min"] == 0.25
  assert len(asked) == 4
  function = dict(name="add", description="", parameters={})
  assert asked[0].tools == (dict(type="function", function=function),)
  assert asked[0].messages[2].calls[0].arguments == dict(a=2, b=3)


def test_prime_rl_gets_an_advantage_of_each_sampled_token_of_a_trace():
  traces = [trace(1.0), trace(0.0)]
  rows = prime_rl.turn_advantages(traces, score=turns_cases.score)
  # All turns are equal, so only the outcomes differ.
  assert rows == [[0.5] * 8, [-0.5] * 8]
  rows = prime_rl.turn_advantages(
    traces, score=turns_cases.score, advantages=token_credit.process_advantages
  )
  (z,) = token_credit.normalised([[0.75, 0.25, 1.0]])
  sums = [sum(z), z[1] + z[2], z[2], z[2]]
  expected = np.repeat(sums, [3, 2, 1, 2]) + 0.5
  np.testing.assert_allclose(rows[0], expected, atol=1e-9)
  assert traces[0].info["turn_rewards"][0] == 0.75


# --- NeMo-Gym ----------------------------------------------------------------


def gym_body():
  def message(text):
    part = dict(type="output_text", text=text, annotations=[])
    return dict(type="message", role="assistant", content=[part], id="m")

  call = dict(name="add", arguments='{"a": 2, "b": 3}', call_id="c1")
  summary = [dict(type="summary_text", text="so")]
  output = [
    dict(type="reasoning", id="r", summary=summary),
    message("look "),
    message("[0.75]"),
    dict(type="function_call", **call),
    dict(type="function_call_output", call_id="c1", output="5"),
    message("it is 5 [0.25]"),
    dict(role="user", content="sure?"),
    message("yes [0.5]"),
  ]
  asked = dict(input=PROMPT, tools=[dict(type="function", name="add")])
  return dict(responses_create_params=asked, response=dict(output=output))


def test_nemo_gym_gets_step_rewards_of_assistant_turns():
  score, asked = turns_cases.recorded()
  body = gym_body()
  out = nemo_gym.verified(body, score=score)
  assert out["step_rewards"] == DELTA and out["reward"] == 0.25
  assert out["response"] is body["response"]
  prm = {k.removeprefix("prm_"): x for k, x in out.items() if "prm_" in k}
  assert prm == pytest.approx(METRICS)
  first = asked[0].messages[2]
  assert (first.text, first.thinking) == ("look [0.75]", "so")
  assert first.calls == (schema.Call("add", dict(a=2, b=3), "c1"),)
  # What the policy read is scored: instructions, and a chat's own form.
  history = [
    *PROMPT[1:],
    turns_cases.call("[1.0]", "add", '{"a": 1, "b": 1}', "c0"),
    dict(role="tool", tool_call_id="c0", content="2"),
    dict(role="user", content="2 + 3?"),
  ]
  said = dict(input=history, instructions="Be brief.")
  episode = dict(body, responses_create_params=said)
  assert nemo_gym.verified(episode, score=score)["step_rewards"] == DELTA
  assert asked[1].messages[0] == schema.Message("system", "Be brief.")
  assert asked[1].messages[2].calls[0].arguments == dict(a=1, b=1)
  assert asked[1].messages[3] == schema.Message("tool", "2", answers="c0")
  body["response"]["output"][3].pop("arguments")
  assert nemo_gym.verified(body, score=score)["step_rewards"] == DELTA
  asked_for = dict(input="2 + 3?", tools=[dict(type="web_search")])
  episode = dict(body, responses_create_params=asked_for)
  nemo_gym.verified(episode, score=score)
  assert asked[-1].tools == (dict(type="web_search"),)
  body["response"]["output"].append(dict(type="web_search_call"))
  with pytest.raises(errors.InputError, match="of type 'web_search_call'"):
    nemo_gym.verified(body, score=score)


# --- Tunix -------------------------------------------------------------------


def test_tunix_gets_a_number_of_each_trajectory_in_atif():
  score, asked = turns_cases.recorded()
  calls = [
    dict(tool_call_id="c1", function_name="add", arguments=dict(a=2, b=3))
  ]
  result = dict(results=[dict(source_call_id="c1", content="5")])
  steps = [
    dict(step_id=1, source="system", message="Be brief."),
    dict(step_id=2, source="user", message="1 + 1?"),
    dict(step_id=3, source="agent", message="2 [1.0]", is_copied_context=True),
    dict(step_id=4, source="user", message="and then?"),
    # Written by a program and not by a model.
    dict(step_id=5, source="agent", message="go [0.0]", llm_call_count=0),
    dict(step_id=6, source="user", message="2 + 3?"),
    dict(
      step_id=7,
      source="agent",
      message="look [0.75]",
      reasoning_content="so",
      tool_calls=calls,
      observation=result,
    ),
    dict(step_id=8, source="agent", message="it is 5 [0.25]"),
  ]
  agent = dict(name="a", version="1", tool_definitions=[*turns_cases.TOOLS])
  record = dict(schema_version="ATIF-v1.7", agent=agent, steps=steps)
  none = dict(record, steps=steps[:2])
  items = [record, none]
  assert tunix.score_items(items, score=score) == [0.25, 0.0]
  assert tunix.score_items(items, score=score, aggregate="mean") == [0.5, 0.0]
  assert asked[0].tools == turns_cases.TOOLS and len(asked[0].steps) == 4
  assert asked[0].messages[6].thinking == "so"
  assert asked[0].messages[7] == schema.Message("tool", "5", answers="c1")


def test_tunix_own_trajectories_say_what_the_world_says_once():
  score, asked = turns_cases.recorded()
  calls = [dict(tool_call_id="c1", function_name="add", arguments={})]

  def said(text):
    # As create_env_step has it, at c7d8950f.
    results = [dict(content=text)]
    return dict(
      source="system", message=text, observation=dict(results=results)
    )

  steps = [
    dict(source="user", message="2 + 3?"),
    dict(source="agent", message="look [0.75]", tool_calls=calls),
    said("5"),
    dict(source="agent", message="it is 5 [0.25]"),
    said("sure?"),
    dict(source="agent", message="yes [0.5]", observation=dict(results=None)),
  ]
  assert tunix.score_items([dict(steps=steps)], score=score) == [0.25]
  assert [(x.role, x.text) for x in asked[0].messages] == [
    ("user", "2 + 3?"),
    ("assistant", "look [0.75]"),
    ("tool", "5"),
    ("assistant", "it is 5 [0.25]"),
    ("user", "sure?"),
    ("assistant", "yes [0.5]"),
  ]
  # Its agents' items hold the messages.
  step = dict(chat_completions=[*PROMPT, *COMPLETION])
  item = types.SimpleNamespace(traj=dict(steps=[dict(), step]))
  assert tunix.score_items([item], score=score, aggregate="mean") == [0.5]
  item.traj = types.SimpleNamespace(steps=[])
  with pytest.raises(
    errors.InputError, match="no chat_completions in its last"
  ):
    tunix.score_items([item], score=score)


# --- SkyRL -------------------------------------------------------------------


def skyrl_output(responses, masks, rewards, is_last_step=None):
  return dict(
    response_ids=responses,
    loss_masks=masks,
    rewards=rewards,
    is_last_step=is_last_step,
    rollout_metrics=dict(known=1.0),
  )


MORE = dict(
  score=turns_cases.score,
  decode=turns_cases.DECODE,
  between=turns_cases.BETWEEN,
)


def test_skyrls_conversation_has_a_reward_at_each_turns_end():
  asked = dict(prompts=[PROMPT])
  out = skyrl.with_turn_rewards(
    asked, skyrl_output([IDS], [MASK], [2.0]), **MORE
  )
  expected = turns_cases.expected(DELTA)
  expected[-1] += 2.0
  assert out["rewards"] == [expected]
  assert out["rollout_metrics"] == pytest.approx(
    {"known": 1.0} | {f"prm/{k}": x for k, x in METRICS.items()}
  )
  with pytest.raises(errors.InputError, match="1 prompts for 2 conversations"):
    skyrl.with_turn_rewards(
      asked, skyrl_output([IDS] * 2, [MASK] * 2, [0.0] * 2), **MORE
    )


def test_skyrls_step_wise_samples_have_the_reward_of_their_turn():
  # A sample is a turn and what is said after it.
  starts = [
    i for i in range(len(IDS)) if MASK[i] and (not i or not MASK[i - 1])
  ]
  cuts = [*starts, len(IDS)]
  parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
  own = [[0.0] * len(IDS[x]) for x in parts]
  output = skyrl_output(
    [IDS[x] for x in parts] * 2,
    [MASK[x] for x in parts] * 2,
    own * 2,
    [False, False, True] * 2,
  )
  out = skyrl.with_turn_rewards(dict(prompts=[PROMPT] * 2), output, **MORE)
  expected = turns_cases.expected(DELTA)
  assert out["rewards"] == [expected[x] for x in parts] * 2
  width = max(map(len, own))
  padded = np.array([[*x, *[0] * (width - len(x))] for x in out["rewards"]])
  padded[3] *= 0
  mask = padded * 0
  mask[:, :2] = 1
  rows = skyrl.turn_advantages(padded, mask, ["a"] * 6, output["is_last_step"])
  # Returns to go are (.75, .25, 0) and (.25, .25, 0).
  assert rows[:, 0].tolist() == rows[:, 1].tolist() == [0.5, 0, 0, -0.5, 0, 0]
  assert not rows[:, 2:].any() and rows.dtype == np.float32
  alone = skyrl.turn_advantages(
    padded, mask, [*"aaabbb"], output["is_last_step"]
  )
  assert alone[:, 0].tolist() == [0.75, 0.25, 0, 0.25, 0.25, 0]


# --- slime -------------------------------------------------------------------


def slime_sample(index=0, **fields):
  sample = types.SimpleNamespace(
    index=index,
    group_index=0,
    prompt=PROMPT,
    tokens=[7, 7, *IDS],
    response_length=len(IDS),
    loss_mask=MASK,
    metadata={},
    reward=None,
  )
  vars(sample).update(fields)
  sample.get_reward_value = lambda args: sample.reward["score"]
  return sample


def test_slimes_reward_is_that_of_its_turns():
  rm = slime.turn_rm(
    turns_cases.score, turns_cases.DECODE, between=turns_cases.BETWEEN
  )
  out = asyncio.run(rm(None, slime_sample()))
  assert out["score"] == 0.25 and out["step_rewards"] == [0.5, 0.25, None]
  assert out["prm"] == pytest.approx(METRICS)
  # With the messages of a rollout function, and a rendered prompt.
  score, asked = turns_cases.recorded()
  rm = slime.turn_rm(
    score,
    turns_cases.DECODE,
    problem_of=trainer_chats.between("<user>", "</user>"),
    messages_of=lambda sample: sample.metadata["messages"],
  )
  sample = slime_sample(
    prompt="<user>2 + 3?</user>", metadata=dict(messages=COMPLETION)
  )
  assert asyncio.run(rm(None, sample)) == out
  assert asked[0].problem == "2 + 3?" and asked[0].messages[1].calls
  sample.metadata["messages"] = COMPLETION[:3]
  with pytest.raises(errors.InputError, match="3 runs of own tokens for 2"):
    asyncio.run(rm(None, sample))
  # One that is kept from training has a score, and no rewards of turns.
  sample.metadata["messages"] = COMPLETION
  sample.loss_mask = [0] * len(sample.loss_mask)
  kept = asyncio.run(rm(None, sample))
  assert kept["score"] == out["score"]
  assert not (kept["spans"] or kept["step_rewards"] or kept["token_offsets"])


@pytest.mark.parity  # needs torch
def test_slimes_advantages_of_turns_travel_as_those_of_steps():
  pytest.importorskip("torch")
  rm = slime.turn_rm(
    turns_cases.score, turns_cases.DECODE, between=turns_cases.BETWEEN
  )
  samples = [slime_sample(0), slime_sample(1)]
  for sample in samples:
    sample.reward = asyncio.run(rm(None, sample))
  scores, rows = slime.post_process(None, samples)
  assert scores == [0.25, 0.25]
  # The rewards are .5 and .25: normalised 1 and -1.
  expected = np.array(MASK, float)
  expected[: turns_cases.ends()[0] + 1] *= 0
  np.testing.assert_allclose(
    rows[0].numpy()[: turns_cases.ends()[1] + 1],
    -expected[: turns_cases.ends()[1] + 1],
    atol=1e-5,
  )
  assert not rows[0].numpy()[turns_cases.ends()[1] + 1 :].any()
  # By turns, a group of equals has no advantage, and one alone its scores.
  _, rows = slime.post_process_turns(None, samples)
  assert not any(row.numpy().any() for row in rows)
  _, (row,) = slime.post_process_turns(None, samples[:1])
  first, second, _ = turns_cases.ends()
  assert [row.numpy()[i] for i in (first, second)] == [0.75, 0.25]
