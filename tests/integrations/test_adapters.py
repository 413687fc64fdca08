"""Each trainer's hook gets rewards on the tokens that complete steps.

The other libraries aren't installed: small stand-ins have the fields and the
calls that their source has at the commits that docs/integrations.md names.
"""

import asyncio
import math
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import scored
import turns_cases

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import openrlhf
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import skyrl
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import trl
from prm_jax.integrations import turn_rewards
from prm_jax.integrations import verl

DECODE, TEXTS = scored.DECODE, scored.TEXTS
IDS, ENDS = scored.IDS, scored.ENDS
MORE = dict(score_texts=scored.score_texts, decode=DECODE)


def test_the_examples_steps_end_where_they_say():
  for text, ids, ends in zip(TEXTS, IDS, ENDS):
    lines = [DECODE(ids[: end + 1]).split("\n")[-1] for end in ends]
    assert lines == text.split("\n")[: len(ends)]


def assert_placed(rows, rewards, ends=ENDS):
  """Each row has these rewards at the tokens that end its steps, else 0."""
  for row, ids, places, values in zip(rows, IDS, ends, rewards, strict=True):
    expected = [0.0] * len(ids)
    for place, value in zip(places, values):
      expected[place] = value
    assert row == pytest.approx(expected)


DELTA = [(0.25, 0.5), (1.0,), ()]


def test_trl_gets_an_aggregate_of_texts_and_of_chats():
  reward = trl.reward_func(scored.score_texts, aggregate="mean", name="mine")
  assert reward.__name__ == "mine"
  asked = dict(completion_ids=IDS, trainer_state=None, answer=["7"] * 3)
  texts = reward(prompts=[scored.PROBLEM] * 3, completions=TEXTS, **asked)
  answers = [[dict(role="assistant", content=text)] for text in TEXTS]
  # What a tool said is no part of a completion.
  answers[0].append(dict(role="tool", content="\n7 [0.1]"))
  trainer_chats = reward(
    prompts=[scored.CHAT] * 3, completions=answers, **asked
  )
  assert texts == trainer_chats == [0.625, 1.0, 0.0]


def test_trls_loss_that_takes_no_advantages_of_tokens_is_refused():
  class Trainer:
    use_liger_kernel = True

  make = trl.with_step_advantages(Trainer, scored.score_texts)
  with pytest.raises(errors.InputError, match="use_liger_kernel=True"):
    make()


@pytest.mark.parity  # needs torch
def test_trls_rows_are_those_of_its_process_without_tokens_of_tools(
  monkeypatch,
):
  torch = pytest.importorskip("torch")
  from accelerate import utils

  # The group of process 0, then that of this one.
  others = [
    turn_rewards.placed(schema.StepScores(x), [1] * len(x))
    for x in ((0.125, 0.25), (0.5,), (1.0, 0.0))
  ]
  monkeypatch.setattr(utils, "gather_object", lambda rows: others + rows)
  tool = [*b"[0.9]\n"]
  ids = [IDS[0][:14] + tool + IDS[0][14:], *IDS[1:]]
  width = max(map(len, ids))
  padded = [[*row, *[0] * (width - len(row))] for row in ids]
  mask = [[1] * len(row) + [0] * (width - len(row)) for row in ids]
  is_tool = [14 <= i < 14 + len(tool) for i in range(width)]
  written = [[0 if x else 1 for x in is_tool], *[[1] * width] * 2]
  outcomes = torch.tensor([1.0, -1.0, 0.0])

  class Trainer:
    use_liger_kernel = False
    num_generations = num_generations_eval = 3
    processing_class = scored.TOKENIZER
    model = types.SimpleNamespace(training=True)
    accelerator = types.SimpleNamespace(process_index=1)

    def _generate_and_score_completions(self, inputs):
      return dict(
        completion_ids=torch.tensor(padded),
        completion_mask=torch.tensor(mask),
        tool_mask=torch.tensor(written),
        advantages=outcomes,
      )

  make = trl.with_step_advantages(
    Trainer, scored.score_texts, process_weight=0.5
  )
  inputs = [dict(prompt=scored.CHAT)] * 3
  out = make()._generate_and_score_completions(inputs)["advantages"]
  responses = scoring.score_responses(
    scored.score_texts, DECODE, [scored.PROBLEM] * 3, IDS
  )
  both = np.array(mask, bool) & np.array(written, bool)
  rows = placement.align(token_credit.process_advantages(responses), both)
  np.testing.assert_allclose(
    out.numpy(), outcomes.numpy()[:, None] + 0.5 * rows, atol=1e-6
  )
  assert rows[0].any() and not rows[0][is_tool].any()


# --- SkyRL ------------------------------------------------------------------


def skyrl_output(rewards):
  return dict(
    prompt_token_ids=[[1]] * 3,
    response_ids=IDS,
    rewards=rewards,
    loss_masks=[[1] * len(ids) for ids in IDS],
    is_last_step=None,
  )


def test_skyrl_gets_a_list_of_a_reward_for_each_token():
  asked = dict(prompts=[scored.CHAT] * 3)
  out = skyrl.with_step_rewards(asked, skyrl_output([0.0, 0.0, 0.0]), **MORE)
  assert_placed(out["rewards"], DELTA)
  assert all(type(x) is float for row in out["rewards"] for x in row)
  assert out["response_ids"] is IDS
  # The environment's reward stays at the last token, or where it was.
  both = skyrl.with_step_rewards(asked, skyrl_output([2.0, 3.0, 4.0]), **MORE)
  rows = [[0.0] * len(ids) for ids in IDS]
  for row, value in zip(rows, (2.0, 3.0, 4.0)):
    row[-1] = value
  assert [row[-1] for row in both["rewards"]] == [2.0, 3.0, 4.0]
  lists = skyrl.with_step_rewards(asked, skyrl_output(rows), **MORE)
  assert lists["rewards"] == both["rewards"]
  # A response that was cut ends with a step.
  cut = skyrl_output([2.0]) | dict(
    response_ids=[IDS[0][:-1]], loss_masks=[[1] * (len(IDS[0]) - 1)]
  )
  out = skyrl.with_step_rewards(dict(prompts=[scored.CHAT]), cut, **MORE)
  assert out["rewards"][0][-1] == 2.5
  half = skyrl.with_step_rewards(
    asked, skyrl_output([0.0] * 3), process_weight=0.5, **MORE
  )
  assert math.fsum(half["rewards"][0]) == 0.375


def test_skyrls_tokens_of_tools_get_nothing():
  output = skyrl_output([0.0] * 3)
  tool = [*b"tool [0.9]\n"]
  output["response_ids"] = [IDS[0][:14] + tool + IDS[0][14:], *IDS[1:]]
  output["loss_masks"][0] = [1] * 14 + [0] * len(tool) + [1] * 8
  out = skyrl.with_step_rewards(dict(prompts=[scored.CHAT] * 3), output, **MORE)
  row = out["rewards"][0]
  assert row[:14] + row[14 + len(tool) :] == pytest.approx(
    skyrl.with_step_rewards(
      dict(prompts=[scored.CHAT] * 3), skyrl_output([0.0] * 3), **MORE
    )["rewards"][0]
  )
  assert not any(row[14 : 14 + len(tool)])


def test_skyrls_training_on_single_turns_is_refused():
  output = skyrl_output([0.0] * 3) | dict(is_last_step=[True] * 3)
  with pytest.raises(errors.InputError, match="step_wise_trajectories=true"):
    skyrl.with_step_rewards(dict(prompts=[scored.CHAT] * 3), output, **MORE)


# --- verl -------------------------------------------------------------------


def test_verl_gets_one_reward_with_the_problem_of_its_data():
  score = verl.compute_score(scored.score_texts)
  asked = dict(data_source="gsm8k", solution_str=TEXTS[0], ground_truth="7")
  extra = dict(question=scored.PROBLEM, index=3)
  assert score(**asked, extra_info=extra) == dict(score=0.5, steps=2.0)
  mean = verl.compute_score(scored.score_texts, aggregate="mean")
  assert mean(**asked, extra_info=extra) == dict(score=0.625, steps=2.0)
  for extra in ({}, None):
    with pytest.raises(errors.InputError, match="no 'question'; name the"):
      score(**asked, extra_info=extra)


def verl_config(*, enable=True, pool=False, path="mine.py"):
  model = types.SimpleNamespace(enable=enable, enable_resource_pool=pool)
  function = types.SimpleNamespace(path=path)
  reward = types.SimpleNamespace(
    reward_model=model, custom_reward_function=function
  )
  return types.SimpleNamespace(reward=reward)


class Batch(list):
  """Rows of verl's DataProto; a slice is one, too."""

  def __getitem__(self, key):
    found = super().__getitem__(key)
    return Batch(found) if isinstance(key, slice) else found


@pytest.fixture
def verl_base(monkeypatch):
  """The class that verl's reward managers have as their base."""

  class RewardManagerBase:
    def __init__(self, config, tokenizer, compute_score):
      self.config, self.tokenizer = config, tokenizer
      self.loop = asyncio.get_event_loop()

  package = "verl.experimental.reward_loop.reward_manager"
  names = package.split(".")
  for k in range(1, len(names) + 1):
    monkeypatch.setitem(
      sys.modules, ".".join(names[:k]), types.ModuleType(names[k - 1])
    )
  base = types.SimpleNamespace(RewardManagerBase=RewardManagerBase)
  monkeypatch.setattr(sys.modules[package], "base", base, raising=False)


def verl_item(ids, width, prompt):
  row = np.array([*ids, *[0] * (width - len(ids))])
  mask = np.array([1] * (prompt + len(ids)) + [0] * (width - len(ids)))
  return types.SimpleNamespace(
    batch=dict(responses=row, attention_mask=mask),
    non_tensor_batch=dict(raw_prompt=scored.CHAT),
  )


def test_verls_reward_manager_gives_a_reward_for_each_token(verl_base):
  make = verl.step_reward_manager(scored.score_texts)

  async def run():
    manager = make(
      *(verl_config(), scored.TOKENIZER, None),
      reward_router_address="localhost:1",
      reward_model_tokenizer=None,
    )
    items = [verl_item(ids, 24, prompt=5) for ids in IDS]
    return [await manager.run_single(Batch([item])) for item in items]

  outputs = asyncio.run(run())
  rows = [output["reward_score"] for output in outputs]
  assert_placed(rows, DELTA)
  infos = [output["reward_extra_info"]["step_reward"] for output in outputs]
  assert infos == [0.75, 1.0, 0.0]


def test_verls_row_has_a_reward_at_the_end_of_each_of_an_agents_turns(
  verl_base,
):
  make = verl.turn_reward_manager(
    turns_cases.score, between=turns_cases.BETWEEN
  )
  (ids, mask), padding = turns_cases.tokens(), [0] * 5
  item = types.SimpleNamespace(
    batch=dict(
      responses=np.array(ids + padding),
      response_mask=np.array(mask + padding),
      attention_mask=np.array([0, 1, 1] + [1] * len(ids) + padding),
    ),
    non_tensor_batch=dict(raw_prompt=np.array(turns_cases.PROMPT, object)),
  )

  async def run():
    manager = make(verl_config(), scored.TOKENIZER, None)
    return await manager.run_single(Batch([item]))

  out = asyncio.run(run())
  assert out["reward_score"] == turns_cases.expected(turns_cases.DELTA)
  extra = dict(out["reward_extra_info"])
  assert extra.pop("step_reward") == 0.75
  assert len(extra) == 5 and extra["prm_turn_min"] == 0.25


@pytest.mark.parity  # needs torch
def test_verls_tensor_has_them_at_the_masks_tokens(verl_base):
  torch = pytest.importorskip("torch")
  mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
  out = verl.rows_to_tensor([[0.0, 0.5, 0.0], [0.25]], mask)
  assert out.dtype == torch.float32
  assert out.tolist() == [[0, 0.5, 0, 0], [0.25, 0, 0, 0]]
  # Of a whole batch, whose prompts are padded on their left.
  make = verl.step_reward_manager(scored.score_texts)
  prompts = torch.tensor([[0, 1], [0, 1]])
  batch = dict(prompts=prompts, attention_mask=torch.cat([prompts, mask], 1))
  data = types.SimpleNamespace(batch=batch)
  rows = [[0.0, 0.5, 0.0], [0.25]]
  assert make.assemble_rm_scores(data, rows).tolist() == out.tolist()


@pytest.mark.parametrize(
  "config, message",
  [
    (verl_config(enable=False), "only from a colocated reward model"),
    (verl_config(pool=True), "only from a colocated reward model"),
    (verl_config(path=None), "without reward.custom_reward_function.path"),
  ],
)
def test_where_verl_takes_one_reward_the_manager_is_refused(config, message):
  with pytest.raises(errors.InputError, match=message):
    verl.check_colocated(config)


# --- OpenRLHF ---------------------------------------------------------------

OPEN, CLOSE = "<|im_start|>user\n", "<|im_end|>"
PROMPT = f"{OPEN}{scored.PROBLEM}{CLOSE}\n<|im_start|>assistant\n"


@pytest.mark.parity  # needs torch
def test_openrlhf_gets_a_tensor_of_the_response_alone():
  torch = pytest.importorskip("torch")
  reward = openrlhf.reward_func(
    scored.score_texts,
    aggregate="min",
    problem_of=trainer_chats.between(OPEN, CLOSE),
    ends=(CLOSE, "</s>"),
  )
  query = f"{PROMPT}{TEXTS[0]}{CLOSE}</s>"
  out = reward([query], [PROMPT], ["7"])
  assert out["rewards"].tolist() == out["scores"].tolist() == [0.5]
  assert out["rewards"].dtype == torch.float32
  assert out["extra_logs"]["steps"].tolist() == [2.0]
  with pytest.raises(errors.InputError, match="doesn't begin with its prompt"):
    reward([query[3:]], [PROMPT], ["7"])


def test_a_question_is_found_in_a_rendered_chat():
  find = trainer_chats.between(OPEN, CLOSE)
  earlier = f"{OPEN}hello{CLOSE}\n<|im_start|>assistant\nyes{CLOSE}\n"
  assert find(earlier + PROMPT) == scored.PROBLEM
  for text in ("plain", OPEN + "no end"):
    with pytest.raises(errors.InputError, match="no text between"):
      find(text)


# --- All --------------------------------------------------------------------


def test_no_adapter_imports_jax_or_the_other_library():
  folder = pathlib.Path(scoring.__file__).parent
  names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
  assert len(names) == 16
  modules = ", ".join(f"prm_jax.integrations.{name}" for name in names)
  others = {"jax", "torch", *names}
  code = f"import sys, {modules}; print({{*sys.modules}} & {others})"
  run = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
  )
  assert run.stdout == "set()\n", run.stdout + run.stderr
