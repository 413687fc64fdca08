"""The way of trajectories: a world, labels, a PRM and an ORM of turns, a choice."""

import dataclasses

import numpy as np
import policy_folders
import pytest
import test_import_export

import prm_jax
from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.datasets import preview
from prm_jax.environments import sql
from prm_jax.environments import turns
from prm_jax.jobs import score
from prm_jax.policy import turn_policy
from prm_jax.testbed import sql_policy
from prm_jax.text import conversation_templates
from prm_jax.text import encoding

pytestmark = pytest.mark.usefixtures("one_device", "equal_programs")

CONFIG = dict(
  seed=0,
  encoding=dict(template="policy", max_tokens=2048),
  packing=dict(batch_size=2, sequence_length=2048),
  optimizer=dict(peak_lr=1e-2),
  fit=dict(steps=3, tensorboard=False),
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  """Returns the folder of a policy whose chat template writes tools."""
  folder = tmp_path_factory.mktemp("published")
  theirs = folder / "theirs"
  size = policy_folders.tokenizer("qwen3").vocab_size
  model = dataclasses.replace(test_import_export.MODEL, vocab_size=size)
  params = test_import_export._params(model, "lm")
  tensors = huggingface.export_tensors("qwen2", model, params)
  huggingface.save(theirs, "qwen2", model, tensors, dtype="float32")
  policy_folders.write(theirs, "qwen3", policy_folders.QWEN_THINKS)
  words = ("import", f"--from={theirs}", f"--to={folder / 'ours'}")
  assert main.main([*words, "--role=policy"]) == 0
  return folder / "ours"


@pytest.fixture(scope="module")
def trajectories():
  """Returns trajectories of a scripted agent with exact labels of turns."""
  world = sql.SQL()
  agent = sql_policy.SQLPolicy(wrong_query=0.3, malformed=0.2, wrong_answer=0.3)
  write = turns.generate(world, agent, seed=0, max_turns=4)
  return [sql.judge(x) for row in write(sql.openings(range(3)), 2) for x in row]


@pytest.fixture(scope="module")
def prm(one_device, policy, trajectories, tmp_path_factory):
  config = CONFIG | dict(program="prm", init_from=str(policy))
  workdir = tmp_path_factory.mktemp("prm") / "prm"
  prm_jax.train(config, trajectories, workdir)
  return prm_jax.load(str(workdir))


def test_each_turn_gets_a_score_and_no_context_does(prm, trajectories):
  for trajectory, scores in zip(trajectories, prm.score(trajectories)):
    turns_ = [x for x in trajectory.messages if x.role == "assistant"]
    assert len(scores) == len(turns_) == len(trajectory.labels)
    encoded = prm.encode(trajectory)
    end = prm.tokenizer.control("<|im_end|>")
    assert {*encoded.tokens[encoded.step_end].tolist()} == {end}


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_scores_of_turns_are_the_same_in_any_layout(layout, prm, trajectories):
  laid = dataclasses.replace(prm, layout=layout)
  expected = prm.score(trajectories)
  for a, b in zip(laid.score(trajectories), expected, strict=True):
    np.testing.assert_allclose(a.logits, b.logits, atol=2e-5)


def test_a_saved_model_reads_conversations_as_its_policy_did(prm, trajectories):
  one = trajectories[0]
  long = dataclasses.replace(prm.encoding, max_tokens=None)
  again = encoding.encode_solution(one, prm.tokenizer, long)
  assert prm.encode(one).tokens.tolist() == again.tokens.tolist()
  # What follows the last turn that fits is left out, and no more.
  two = encoding.encode_solution(
    schema.first_turns(one, 2), prm.tokenizer, long
  )
  for spare in (0, 1):
    limit = dataclasses.replace(
      long, max_tokens=len(two.tokens) - 1 + spare, truncation="truncate"
    )
    cut = encoding.encode_solution(one, prm.tokenizer, limit)
    assert len(cut.step_end) == 1 + spare


def test_targets_are_at_the_ends_of_labelled_turns_alone(prm, trajectories):
  policy_ = encoding.LabelPolicy(after_first_error="keep")
  examples, counts = encoding.prm_examples(
    trajectories, prm.tokenizer, prm.encoding, policy_
  )
  labels = [x for t in trajectories for x in t.labels if x is not None]
  assert counts["targets"] == len(labels) > len(trajectories)
  end = prm.tokenizer.control("<|im_end|>")
  for example in examples:
    assert {*example.tokens[example.weights > 0].tolist()} == {end}


@pytest.mark.parametrize("target", encoding.OUTCOME_TARGETS)
def test_an_orm_learns_at_the_tokens_of_turns_and_never_at_a_result(
  target, prm, trajectories
):
  examples, _ = encoding.orm_examples(
    trajectories, prm.tokenizer, prm.encoding, target
  )
  assert len(examples) == len(trajectories)
  for example, trajectory in zip(examples, trajectories):
    encoded = prm.encode(trajectory)
    learned = np.flatnonzero(example.weights)
    assert encoded.own[learned].all()
    np.testing.assert_allclose(example.weights.sum(), 1, rtol=1e-5)
    if target == "last_step":
      assert learned.tolist() == [encoded.step_end[-1]]


def test_an_orm_of_trajectories_chooses_among_them(
  policy, trajectories, tmp_path
):
  config = CONFIG | dict(program="orm", init_from=str(policy))
  prm_jax.train(config, trajectories, tmp_path / "orm")
  orm = prm_jax.load(str(tmp_path / "orm"))
  first = trajectories[0].problem
  group = [x for x in trajectories if x.problem == first]
  chosen = prm_jax.best_of_n(group, orm)
  assert chosen in group


def test_a_score_says_where_the_model_did_not_read_what_was_thought(prm):
  said = [
    dict(role="user", content="1 + 1?"),
    dict(role="assistant", content="2", reasoning_content="one and one"),
    dict(role="user", content="2 + 1?"),
    dict(role="assistant", content="3", reasoning_content="two and one"),
  ]
  whole = prm_jax.trajectory(said)
  (scores,) = prm.score([whole])
  assert scores.without_thinking == (True, False)
  assert score.fields_of(scores)["without_thinking"] == [True, False]
  for message in said[:2]:
    message.pop("reasoning_content", None)
  (same,) = prm.score([prm_jax.trajectory(said)])
  assert same.scores == scores.scores
  assert "without_thinking" not in score.fields_of(same)


def test_inspect_says_where_each_turn_is_read(prm, trajectories):
  one = trajectories[0]
  lines = preview.show(
    one, prm.tokenizer, prm.encoding, encoding.LabelPolicy()
  ).splitlines()
  ends = prm.encode(one).step_end
  turns_ = [x for x in lines if x.startswith("  assistant")]
  assert len(turns_) == len(ends)
  for line, end in zip(turns_, ends):
    assert f"read at {end} its end token" in line


def test_a_model_acts_in_a_world_and_its_turns_depend_on_the_seed_alone(
  policy, trajectories
):
  agent = turn_policy.TurnPolicy(
    prm_jax.load(str(policy)), prm_jax.Sampling(max_tokens=8)
  )
  # A prompt is what stands before a turn in the whole conversation.
  one = trajectories[0]
  whole = encoding.encode_solution(
    one,
    agent.policy.tokenizer,
    encoding.EncodingConfig(template=agent.template),
  )
  begun = schema.first_turns(one, 0)
  expected = whole.tokens[: whole.turns[0][0]]
  assert agent.prompt(begun).tolist() == expected.tolist()
  world = sql.SQL()
  openings = sql.openings(range(2))
  write = turns.generate(world, agent, seed=0, max_turns=2)
  rows = write(openings, 2)
  again = [write([x], 2)[0] for x in reversed(openings)]
  assert rows == again[::-1]
  said = [x.messages for row in rows for x in row]
  assert len({str(x[len(openings[0].messages) :]) for x in said}) > 1
  same = agent([begun] * 3, [7, 8, 7])
  assert same[0] == same[2] != same[1]


def test_a_result_that_the_template_does_not_write_ends_its_rollout_alone(
  policy, trajectories
):
  agent = turn_policy.TurnPolicy(
    prm_jax.load(str(policy)), prm_jax.Sampling(max_tokens=4)
  )
  refused = conversation_templates.Refused("result", "</x>", "")
  agent.conversation = dataclasses.replace(
    agent.conversation, refuses=(*agent.conversation.refuses, refused)
  )
  turn = sql_policy.query("SELECT '</x>'")
  said = (*trajectories[0].messages[:2], turn)
  result = schema.Message("tool", "</x>", answers=turn.calls[0].id)
  one = prm_jax.trajectory((*said, result))
  other = prm_jax.trajectory((*said, dataclasses.replace(result, text="x")))
  ended, going = agent([one, other], [1, 2])
  assert not ended.text and "'</x>'" in ended.record["why"]
  assert going == agent([other], [2])[0]
  # What the caller gives is refused.
  agent.conversation = dataclasses.replace(
    agent.conversation, refuses=(refused._replace(kind="user", word="?"),)
  )
  with pytest.raises(errors.InputError, match="a user's message holds"):
    agent([one], [1])


def test_a_models_text_is_a_turn_or_says_why_it_is_none(policy, trajectories):
  agent = turn_policy.TurnPolicy(prm_jax.load(str(policy)))
  begun = schema.first_turns(trajectories[0], 0)
  for text, said in (("a b", "a b"), ("a</think>b", "")):
    ids = agent.policy.tokenizer.encode(text)
    turn = agent.read(ids, begun)
    assert turn.text == said and ("why" in turn.record) == (not said)


def test_a_model_without_conversations_says_so(prm, trajectories):
  bare = dataclasses.replace(prm.encoding.template, conversation=None)
  other = dataclasses.replace(
    prm, encoding=dataclasses.replace(prm.encoding, template=bare)
  )
  with pytest.raises(errors.InputError, match="is a conversation"):
    other.score(trajectories)
