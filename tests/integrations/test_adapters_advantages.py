"""Each trainer's hook gets advantages of the steps that end later.

The other libraries aren't installed: see test_adapters.py.
"""

import asyncio
import sys
import types

import numpy as np
import pytest
import scored

from prm_jax import errors
from prm_jax.integrations import placement
from prm_jax.integrations import prime_rl
from prm_jax.integrations import scoring
from prm_jax.integrations import slime
from prm_jax.integrations import tinker
from prm_jax.integrations import token_credit
from prm_jax.integrations import tunix

MORE = dict(score_texts=scored.score_texts, decode=scored.DECODE)
PROCESS = token_credit.process_advantages(
  scoring.score_responses(
    *(scored.score_texts, scored.DECODE, [scored.PROBLEM] * 3, scored.IDS)
  )
)


# --- prime-rl ---------------------------------------------------------------


def node(role, text, ids=(), mask=(), sampled=False):
  message = types.SimpleNamespace(role=role, content=text)
  return types.SimpleNamespace(
    message=message, sampled=sampled, token_ids=[*ids], mask=[*mask]
  )


def test_prime_rl_gets_an_advantage_for_each_sampled_token():
  traces = []
  for reward, text, ids in zip((1.0, 0.0, 0.5), scored.TEXTS, scored.IDS):
    # The generation prompt is the assistant node's first tokens.
    asked = node("user", scored.PROBLEM, [9, 9], [False] * 2)
    mask = [False] + [True] * len(ids)
    said = node("assistant", text, [8, *ids], mask, sampled=True)
    traces.append(types.SimpleNamespace(nodes=[asked, said], reward=reward))
  out = prime_rl.trace_advantages(traces, **MORE)
  for row, own, outcome in zip(out, PROCESS, (0.5, -0.5, 0.0), strict=True):
    assert row == pytest.approx([x + outcome for x in own])


# --- slime ------------------------------------------------------------------


def slime_samples():
  """Two groups of three, of which the second says the same each time."""
  samples = []
  groups = [
    *zip(scored.TEXTS, scored.IDS),
    *[(scored.TEXTS[1], scored.IDS[1])] * 3,
  ]
  for i, (text, ids) in enumerate(groups):
    sample = types.SimpleNamespace(
      index=i,
      group_index=i // 3,
      prompt=scored.CHAT,
      tokens=[7, 7, *ids],
      response=text,
      response_length=len(ids),
      loss_mask=None,
      reward=None,
    )
    sample.get_reward_value = lambda args, s=sample: s.reward[args.reward_key]
    samples.append(sample)
  return samples


ARGS = types.SimpleNamespace(reward_key="score")


def test_slimes_reward_is_a_score_with_the_steps():
  samples, rm = slime_samples(), slime.custom_rm(*MORE.values())
  for sample in samples:
    sample.reward = asyncio.run(rm(ARGS, sample))
  assert [sample.reward["score"] for sample in samples[:3]] == [0.5, 1.0, 0.0]
  assert samples[0].reward["step_rewards"] == [0.75, 0.5]
  mean = slime.custom_rm(*MORE.values(), aggregate="mean")
  assert asyncio.run(mean(ARGS, samples[0]))["score"] == 0.625
  masked = slime_samples()[0]
  masked.loss_mask = [1] * 14 + [0] * 8  # its second line
  assert asyncio.run(rm(ARGS, masked))["step_rewards"] == [0.75]


@pytest.mark.parity  # needs torch
def test_slimes_advantages_travel_as_rewards():
  torch = pytest.importorskip("torch")
  samples, rm = slime_samples(), slime.custom_rm(*MORE.values())
  for sample in samples:
    sample.reward = asyncio.run(rm(ARGS, sample))
  scores, rows = slime.post_process(ARGS, samples)
  assert scores == [0.5, 1.0, 0.0, 1.0, 1.0, 1.0]
  equal = [[0.0] * len(scored.IDS[1])] * 3
  for row, own in zip(rows, PROCESS + equal, strict=True):
    assert row.dtype == torch.float32
    assert row.tolist() == pytest.approx(own, abs=1e-6)
  data = dict(rewards=rows, kl=[torch.zeros(len(row)) for row in rows])
  slime.set_advantages(ARGS, data)
  for row, a, r in zip(rows, data["advantages"], data["returns"], strict=True):
    assert a.tolist() == r.tolist() == row.tolist()
  # Tokens of a tool stand between, and have none.
  masked = slime_samples()[:3]
  masked[0].tokens[16:16] = [9, 9]
  masked[0].response_length += 2
  masked[0].loss_mask = [1] * 14 + [0] * 2 + [1] * 8
  for sample in masked:
    sample.reward = asyncio.run(rm(ARGS, sample))
  _, (row, *_) = slime.post_process(ARGS, masked)
  assert row[14:16].tolist() == [0, 0]
  assert [*row[:14].tolist(), *row[16:].tolist()] == rows[0].tolist()
  samples[1].reward = 1.0
  with pytest.raises(errors.InputError, match="sample 1: its reward has no"):
    slime.post_process(ARGS, samples)


@pytest.mark.parity  # needs torch
def test_slimes_rank_with_a_part_of_a_response_takes_that_part(monkeypatch):
  torch = pytest.importorskip("torch")
  package = types.ModuleType("slime.backends.megatron_utils")
  asked = []

  def slice_log_prob_with_cp(row, total_length, response_length):
    asked.append((total_length, response_length))
    return row[:2]

  package.cp_utils = types.SimpleNamespace(
    slice_log_prob_with_cp=slice_log_prob_with_cp
  )
  for name in ("slime", "slime.backends"):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
  monkeypatch.setitem(sys.modules, package.__name__, package)
  data = dict(
    rewards=[torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])],
    kl=[torch.zeros(2), torch.zeros(2)],
    total_lengths=[5, 6],
    response_lengths=[2, 3],
  )
  slime.set_advantages(ARGS, data)
  assert [x.tolist() for x in data["advantages"]] == [[1.0, 2.0]] * 2
  assert asked == [(6, 3)]


# --- Tunix, Tinker ----------------------------------------------------------


def test_tunix_gets_an_aggregate_and_advantages_of_tokens():
  reward = tunix.reward_fn(scored.score_texts, problem_column="question")
  columns = dict(question=np.array([scored.PROBLEM] * 3), mode="train")
  out = reward(prompts=["<user>?"] * 3, completions=scored.TEXTS, **columns)
  assert out == [0.5, 1.0, 0.0] and reward.__name__ == "prm"
  plain = tunix.reward_fn(scored.score_texts)
  assert plain(prompts=[scored.PROBLEM] * 3, completions=scored.TEXTS) == out

  width = 24
  ids = np.array([[*row, *[0] * (width - len(row))] for row in scored.IDS * 2])
  mask = ids != 0
  more = dict(num_generations=3, **MORE)
  rows = tunix.step_advantages([scored.PROBLEM] * 6, ids, mask, **more)
  assert rows.shape == (6, width) and rows.dtype == np.float32
  np.testing.assert_allclose(rows, placement.align(PROCESS * 2, mask))
  with pytest.raises(errors.InputError, match="6 responses aren't groups of 4"):
    more["num_generations"] = 4
    tunix.step_advantages([scored.PROBLEM] * 6, ids, mask, **more)


@pytest.fixture
def tinker_types(monkeypatch):
  """What we call of the package `tinker`."""
  library = types.ModuleType("tinker")
  library.Datum = types.SimpleNamespace
  library.ModelInput = types.SimpleNamespace(from_ints=list)
  monkeypatch.setitem(sys.modules, "tinker", library)


def test_tinkers_targets_are_one_token_later(tinker_types):
  prompt = [5, 6, 7]
  samples = [
    types.SimpleNamespace(tokens=ids, logprobs=[-0.5] * len(ids))
    for ids in scored.IDS
  ]
  out = tinker.step_data(
    scored.PROBLEM, prompt, samples, outcomes=[1.0, 0.0, 0.5], **MORE
  )
  for datum, ids, own, outcome in zip(
    out, scored.IDS, PROCESS, (0.5, -0.5, 0.0), strict=True
  ):
    inputs = datum.loss_fn_inputs
    assert [*datum.model_input, ids[-1]] == [*prompt, *ids]
    assert inputs["target_tokens"].tolist() == [*prompt, *ids][1:]
    expected = [0, 0, *(x + outcome for x in own)]
    np.testing.assert_allclose(inputs["advantages"], expected, rtol=1e-6)
    assert inputs["logprobs"].tolist() == [0, 0] + [-0.5] * len(ids)
    assert inputs["advantages"].dtype == np.float32
    assert inputs["target_tokens"].dtype == np.int64
  plain = tinker.step_data(scored.PROBLEM, prompt, samples, **MORE)
  np.testing.assert_allclose(
    plain[0].loss_fn_inputs["advantages"][2:], PROCESS[0], rtol=1e-6
  )


def test_tinkers_samples_need_log_probabilities(tinker_types):
  with pytest.raises(errors.InputError, match="needs a log-probability"):
    tinker.datum([1], [2, 3], None, [0.0, 0.0])
  with pytest.raises(errors.InputError, match="needs a log-probability"):
    tinker.datum([1], [2, 3], [-1.0], [0.0, 0.0])
