"""Rewards land on the token that closes their step, whoever gives them."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import rl_tiny

from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy import sampler
from prm_jax.rl import rewards
from prm_jax.testbed import arithmetic
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib

BYTES = tokenizer_lib.Bytes()
CODEC = codecs.SeparatorCodec(BYTES)


def _completion(ids, stopped="end"):
  ids = np.asarray(ids, np.int32)
  return sampler.Completion(ids, np.zeros(len(ids), np.float32), stopped)


def _written(steps, words=BYTES, end=True):
  ids = []
  for step in steps:
    ids += [*words.encode(step), words.separator]
  return _completion([*ids, words.eos] if end else ids)


def _solution(completion, words=BYTES, problem="p", **more):
  steps = own_form.split_steps(completion.tokens, words)
  extra = dict(stopped=completion.stopped, num_tokens=len(completion.tokens))
  return schema.Solution("s", problem, tuple(steps), extra=extra, **more)


def _length_score(solutions):
  """A reward model of which each score tells its step: its length over 100."""
  return [
    schema.StepScores(tuple(len(step) / 100 for step in s.steps))
    for s in solutions
  ]


VERIFIER = rewards.Verifier(
  verify=lambda solutions: [s.steps[-1:] == ("yes",) for s in solutions],
  find_answer=lambda s: s.steps[-1] if s.steps else None,
)
FUNCTIONS = rewards.RewardFunctions(VERIFIER, prm=_length_score)


def _with_verifier(**fields):
  verifier = dataclasses.replace(VERIFIER, **fields)
  return dataclasses.replace(FUNCTIONS, verifier=verifier)


def _collect(
  completions, functions=FUNCTIONS, samples=1, max_tokens=64, **fields
):
  config = rewards.RewardConfig(**dict(prm=1.0) | fields)
  solutions = [_solution(c) for c in completions]
  outputs = rewards.score(
    solutions, completions, CODEC, functions, prm_cut=config.prm_cut
  )
  return rewards.collect(
    outputs, completions, config, samples=samples, max_tokens=max_tokens
  )


@hypothesis.given(
  st.lists(st.sampled_from([BYTES.separator, BYTES.eos, 65, 66]), max_size=12)
)
def test_there_is_one_closing_token_for_each_step_of_a_completion(ids):
  ends = CODEC.places(np.asarray(ids, np.int32)).step_ends
  steps = own_form.split_steps(ids, BYTES)
  assert len(ends) == len(steps)
  assert all(0 <= end < len(ids) for end in ends)
  assert (np.diff(ends) > 0).all()


def test_a_steps_reward_is_at_its_separator():
  found, left_out = _collect([_written(["abc", "de"])])
  assert not left_out
  assert found.step_mask.sum() == 2
  assert found.step_ends[0, :2].tolist() == [3, 6]
  np.testing.assert_allclose(found.steps[0, :2], [0.03, 0.02], rtol=1e-6)
  assert found.token_mask.sum() == 8


def test_signed_scores_go_from_minus_1_to_1():
  found, _ = _collect([_written(["abc"])], prm_form="signed", prm=2.0)
  assert found.steps[0, 0] == pytest.approx(2 * (2 * 0.03 - 1))


@pytest.mark.parametrize("cut", ["line", "paragraph"])
def test_a_reward_model_may_cut_the_text_into_other_steps(cut):
  # Two of the policy's steps hold two lines and one paragraph each.
  completion = _written(["one\ntwo", "", "three\nfour"])
  found, _ = _collect([completion], prm_cut=cut)
  ids = completion.tokens.tolist()
  separators = [i for i, x in enumerate(ids) if x == BYTES.separator]
  ends = found.step_ends[0][found.step_mask[0]].tolist()
  scores = found.steps[0][found.step_mask[0]]
  if cut == "line":
    # "two" and "four" end at the last token of the policy's step.
    assert len(ends) == 4
    np.testing.assert_allclose(scores, [0.03, 0.03, 0.05, 0.04], rtol=1e-6)
    assert ends[0] == 2
    assert separators[0] - 1 <= ends[1] <= separators[0]
  else:
    assert len(ends) == 2
    np.testing.assert_allclose(scores, [0.07, 0.1], rtol=1e-5)
  assert separators[-1] - 1 <= ends[-1] <= separators[-1]


def test_a_reward_model_of_another_vocabulary_reads_the_same_text():
  words = rl_tiny.tokenizer()
  random = np.random.default_rng(0)
  solved = arithmetic.solve(rl_tiny.problems(num=1)[0], random)
  ids = codecs.SeparatorCodec(words).prompt(solved).tokens
  prompt = own_form.prompt(solved.problem, words)
  completion = _completion([*ids[len(prompt) :], words.eos])
  seen = []

  def by_bytes(solutions):
    for s in solutions:
      encoded = encoding.encode(
        s.problem,
        s.steps,
        BYTES,
        encoding.EncodingConfig(template=own_form.OWN),
      )
      seen.append(BYTES.decode(encoded.tokens))
    return [schema.StepScores((0.5,) * len(s.steps)) for s in solutions]

  solution = _solution(completion, words, solved.problem)
  outputs = rewards.score(
    [solution],
    [completion],
    codecs.SeparatorCodec(words),
    dataclasses.replace(FUNCTIONS, prm=by_bytes),
  )
  assert seen == [solved.problem + "".join(solved.steps)]
  assert len(outputs.ends[0]) == len(solved.steps)
  ends = [completion.tokens[i] for i in outputs.ends[0]]
  assert ends == [words.separator] * len(ends)


@pytest.mark.parametrize(
  ("form", "least"), [("probability", 0), ("signed", -1)]
)
def test_a_solution_without_a_step_counts_as_a_wrong_step_and_isnt_shown(
  form, least
):
  shown = []

  def score(solutions):
    shown.extend(solutions)
    return _length_score(solutions)

  functions = dataclasses.replace(FUNCTIONS, prm=score, orm=score)
  completions = [_completion([BYTES.eos]), _written(["yes"])]
  found, left_out = _collect(
    completions, functions, orm=1.0, verifier=1.0, prm_form=form
  )
  assert not left_out
  assert all(s.steps for s in shown)
  assert found.step_mask.sum(1).tolist() == [1, 1]
  assert (found.steps[0, 0], found.step_ends[0, 0]) == (least, 0)
  np.testing.assert_allclose(found.outcome, [0, 1.03], rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_isnt_finite_leaves_its_solution_out_and_is_counted(bad):
  functions = dataclasses.replace(
    FUNCTIONS,
    prm=lambda x: [schema.StepScores((y,)) for y in (0.5, bad, 0.5)[: len(x)]],
  )
  found, left_out = _collect([_written(["a"])] * 3, functions)
  assert left_out == dict(left_out_not_finite=1.0)
  assert found.counts.tolist() == [True, False, True]
  assert np.isfinite(found.steps).all()


def test_an_answer_that_cant_be_told_is_left_out_where_it_is_rewarded():
  functions = _with_verifier(verify=lambda x: [None, True])
  completions = [_written(["yes"])] * 2
  found, left_out = _collect(completions, functions, verifier=1.0)
  assert left_out == dict(left_out_unverifiable=1.0)
  assert found.counts.tolist() == [False, True]
  found, left_out = _collect(completions, functions)
  assert not left_out


def test_problems_too_easy_or_too_hard_teach_nothing_if_so_configured():
  completions = [_written([x]) for x in ("yes", "yes", "no", "yes", "no", "no")]
  found, left_out = _collect(
    completions, samples=2, verifier=1.0, accuracy_range=(0.2, 0.8)
  )
  assert left_out == dict(left_out_accuracy_out_of_range=4.0)
  assert found.counts.tolist() == [False, False, True, True, False, False]


def test_format_and_length_are_rewarded_as_told():
  ended, cut = _written(["yes"]), _written(["yes"], end=False)
  cut = dataclasses.replace(cut, stopped="length")
  found, _ = _collect(
    [ended, cut], format=0.5, length=1.0, length_from=3, max_tokens=10
  )
  np.testing.assert_allclose(found.outcome, [0.5 - 0.2, -0.1], rtol=1e-5)


def test_exact_steps_and_a_models_own_steps_are_both_rewarded():
  functions = _with_verifier(
    exact=lambda x: [schema.StepScores((1.0,) * len(s.steps)) for s in x]
  )
  found, _ = _collect([_written(["ab", "c"])], functions, exact=1.0)
  np.testing.assert_allclose(found.steps[0, :2], [1.02, 1.01], rtol=1e-6)
  found, _ = _collect(
    [_written(["a\nb"])], functions, exact=1.0, prm_cut="line"
  )
  # Two lines of the model's, one step of the policy's: three rewards.
  assert found.steps[0].sum() == pytest.approx(0.01 + 0.01 + 1)
  assert found.step_mask.sum() == 3
