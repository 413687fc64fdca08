"""Labels are the judge's readable votes, and every other answer is counted."""

import functools
import math
import zlib

from flax.core import meta
from hypothesis import given
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import small_config

import prm_jax
from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import llm_judge
from prm_jax.models import transformer
from prm_jax.policy import sampler
from prm_jax.testbed import arithmetic
from prm_jax.testbed import judge
from prm_jax.text import tokenizer_files

CRITIC = judge_prompts.PROCESSBENCH
STEPS = ("a", "b", "c")


def _solution(id_="x", steps=STEPS, **fields):
  return schema.Solution(id_, fields.pop("problem", "p"), steps, **fields)


def _says(texts, asked=None, **extra):
  """Returns a judge that gives these answers about any solution."""

  def generate(prefixes, n):
    if asked is not None:
      asked.extend(prefixes)
    return [
      [
        schema.Solution(
          f"{p.id}/{i}", p.problem, tuple(text.split("\n")), extra=extra
        )
        for i, text in enumerate(texts[:n])
      ]
      for p in prefixes
    ]

  return generate


def _box(error):
  return f"so \\boxed{{{error}}}"


# --- Votes ------------------------------------------------------------------


@given(
  errors=st.lists(
    st.integers(-1, 2) | st.just("unsure"), min_size=1, max_size=8
  ),
  min_votes=st.integers(1, 3),
)
def test_a_label_is_the_share_of_votes_by_which_all_is_right_so_far(
  errors, min_votes
):
  votes, texts = len(errors), [_box(error) for error in errors]
  min_votes = min(min_votes, votes)
  (found,), work = llm_judge.label(
    [_solution()], _says(texts), CRITIC, votes=votes, min_votes=min_votes
  )
  read = [error for error in errors if error != "unsure"]
  assert work["verdicts"] == votes
  assert work["unparsable"] == votes - len(read)
  assert work.get("unparsable_not_an_index", 0) == votes - len(read)
  assert found.extra["first_errors"] == read
  if len(read) < min_votes:
    assert found.labels == (None,) * 3 and work["too_few_votes"] == 1
    return
  assert work["labelled"] == 1
  for k, label in enumerate(found.labels):
    right = sum(error < 0 or k < error for error in read)
    assert label == right / len(read)


@given(errors=st.lists(st.integers(-1, 2), min_size=1, max_size=7))
def test_a_majority_is_on_the_first_errors_index(errors):
  (found,), work = llm_judge.label(
    [_solution()],
    _says([_box(error) for error in errors]),
    CRITIC,
    votes=len(errors),
    vote="majority",
  )
  counts = sorted((errors.count(x), x) for x in set(errors))
  if len(counts) > 1 and counts[-1][0] == counts[-2][0]:
    assert found.labels == (None,) * 3 and work["tied"] == 1
    return
  winner = counts[-1][1]
  assert schema.first_error(found.labels) == winner
  assert found.labels == tuple(
    float(winner < 0 or k < winner) for k in range(3)
  )


def test_an_answer_that_the_budget_cut_is_no_vote():
  (found,), work = llm_judge.label(
    [_solution()], _says([_box(0)], ended=False, num_tokens=7), CRITIC
  )
  assert found.labels == (None,) * 3
  assert work["unended"] == work["unparsable_unended"] == 1
  assert work["tokens"] == 7


def test_the_raw_text_is_read_where_the_judge_gives_it():
  generate = _says([_box(1)], text=_box(2))
  (found,), _ = llm_judge.label(
    [_solution()], generate, CRITIC, keep_texts=True
  )
  assert found.labels == (1.0, 1.0, 0.0)
  assert found.extra["critiques"] == [_box(2)]


# --- What is asked, and what comes back -------------------------------------


def test_equal_solutions_are_judged_once_and_all_come_back_in_order():
  solutions = [
    _solution("1", ratings=(1, 1, 1), extra={"mark": 1}),
    _solution("2", ("other",)),
    _solution("3", ()),
    _solution("4", labels=(0.0, 0.0, 0.0)),
    _solution("5", problem="q"),
  ]
  asked = []
  found, work = llm_judge.label(solutions, _says([_box(-1)], asked), CRITIC)
  assert [s.id for s in found] == ["1", "2", "3", "4", "5"]
  assert [s.steps for s in found] == [s.steps for s in solutions]
  assert [s.labels for s in found] == [(1,) * 3, (1,), (), (1,) * 3, (1,) * 3]
  assert {s.source for s in found} == {"judge"}
  assert {s.ratings for s in found} == {None}
  assert found[0].extra["mark"] == 1
  assert len(asked) == len({p.id for p in asked}) == work["judged"] == 3
  assert work["solutions"] == 5
  assert work["labelled"] == 4 and work["without_steps"] == 1
  for prefix in asked:
    assert prefix.steps == () and prefix.labels is prefix.outcome is None


def test_a_request_has_the_same_id_whoever_asks_beside_it():
  one, both = [], []
  llm_judge.label([_solution()], _says([_box(0)], one), CRITIC)
  others = [_solution("0", ("z",)), _solution("renamed")]
  llm_judge.label(others, _says([_box(0)], both), CRITIC)
  assert one[0] in both and len(both) == 2
  odd = _solution(steps=("\ud800",))
  llm_judge.label([odd], _says([_box(0)]), CRITIC)  # it has no UTF-8 form


def test_a_judge_that_gives_too_few_answers_is_an_error():
  with pytest.raises(ValueError, match="1 answers instead of 2"):
    llm_judge.label([_solution()], _says([_box(0)]), CRITIC, votes=2)


@pytest.mark.parametrize(
  "fields",
  [
    {"votes": 0},
    {"votes": 2, "min_votes": 3},
    {"vote": "mean"},
    {"vote": "log_likelihood"},
    {"log_likelihoods": lambda prefixes, options: []},
  ],
  ids=lambda fields: "-".join(fields),
)
def test_what_makes_no_sense_together_is_refused_in_one_line(fields):
  with pytest.raises(errors_lib.InputError) as e:
    llm_judge.label([_solution()], _says([_box(0)]), CRITIC, **fields)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  "fields", [dict(votes=0), dict(min_votes=2), dict(vote="log_likelihood")]
)
def test_a_judge_refuses_them_before_it_is_called(fields):
  with pytest.raises(errors_lib.InputError):
    prm_jax.Judge("policy", **fields)


# --- Weights ----------------------------------------------------------------


def _chain(error, n=3):
  lines = [
    f"answer {k} check a {'incorrect' if k == error else 'correct'}"
    for k in range(n if error < 0 else error + 1)
  ]
  return "\n".join([*lines, f"solution {'yes' if error < 0 else 'no'}"])


def _log_likelihoods_of(p_of, asked):
  """Returns a LogLikelihood under which the first word has probability p_of(text)."""

  def log_likelihoods(prefixes, options):
    asked.extend(("\n".join(p.steps), tuple(options)) for p in prefixes)
    assert len({p.id for p in prefixes}) == len(prefixes)
    rows = []
    for prefix in prefixes:
      p = p_of("\n".join(prefix.steps))
      # Both words have little mass beside all others.
      rows.append([math.log(p) - 5, math.log1p(-p) - 5])
    return rows

  return log_likelihoods


@given(
  errors=st.lists(st.integers(-1, 2), min_size=1, max_size=3), raw=st.booleans()
)
def test_a_weight_is_the_least_of_the_steps_so_far_averaged_over_chains(
  errors, raw
):
  def p_of(text):
    return 0.1 + 0.8 * (zlib.crc32(text.encode()) % 1_000) / 1_000

  texts = [_chain(error) for error in errors]
  asked = []

  def generate(prefixes, n):
    rows = _says(texts)(prefixes, n)
    if not raw:
      return rows
    return [
      [
        schema.Solution(s.id, s.problem, ("cut", "up"), extra={"text": text})
        for s, text in zip(row, texts, strict=True)
      ]
      for row in rows
    ]

  (found,), work = llm_judge.label(
    [_solution()],
    generate,
    judge_prompts.DIAL,
    votes=len(texts),
    log_likelihoods=_log_likelihoods_of(p_of, asked),
  )
  expected, wholes = [], []
  for text in texts:
    *lines, last = text.split("\n")
    right = []
    for k, line in enumerate(lines):
      before = "\n".join([*lines[:k], line.rpartition(" ")[0]])
      assert (before, (" correct", " incorrect")) in asked
      right.append(p_of(before))
    before = "\n".join([*lines, last.rpartition(" ")[0]])
    assert (before, (" yes", " no")) in asked
    wholes.append(p_of(before))
    right += [right[-1]] * (3 - len(right))
    expected.append([min(right[: k + 1]) for k in range(3)])
  np.testing.assert_allclose(found.labels, np.mean(expected, 0), rtol=1e-9)
  np.testing.assert_allclose(found.extra["p_yes"], np.mean(wholes), rtol=1e-9)
  assert work["weighed"] == len(asked) and work["unweighed"] == 0


def test_the_whole_is_asked_about_where_the_judge_did_not_say():
  asked = []
  text = "Step 1: fine, \\boxed{correct}."
  (found,), _ = llm_judge.label(
    [_solution(steps=("a",))],
    _says([text], text=text),
    judge_prompts.THINKPRM,
    log_likelihoods=_log_likelihoods_of(
      lambda x: 0.25 if "Is the" in x else 0.75, asked
    ),
  )
  assert [x for x, _ in asked] == [
    "Step 1: fine, \\boxed{",
    f"{text}\nIs the solution correct?",
  ]
  np.testing.assert_allclose(found.labels, [0.75])
  np.testing.assert_allclose(found.extra["p_yes"], 0.25)


def test_weights_are_probabilities_however_far_apart_the_words():
  def log_likelihoods(prefixes, options):
    return [[-1e4, 0.0] for _ in prefixes]

  (found,), _ = llm_judge.label(
    [_solution()],
    _says([_chain(-1)]),
    judge_prompts.DIAL,
    log_likelihoods=log_likelihoods,
  )
  assert found.labels == (0.0, 0.0, 0.0) and found.extra["p_yes"] == 0


def test_words_without_a_chance_make_no_weight():
  def log_likelihoods(prefixes, options):
    return [[-math.inf, -math.inf] for _ in prefixes]

  (found,), work = llm_judge.label(
    [_solution()],
    _says([_chain(-1)]),
    judge_prompts.DIAL,
    log_likelihoods=log_likelihoods,
  )
  assert found.labels == (None,) * 3 and "p_yes" not in found.extra
  assert work["unweighed"] == work["too_few_votes"] == 1


# --- On the testbed ---------------------------------------------------------


def _dial_solutions(num):
  random = np.random.default_rng(4)
  task = arithmetic.Task()
  problems = arithmetic.problems(num, "train", task, random)
  return [arithmetic.judge(arithmetic.solve(p, random, task)) for p in problems]


def _knowing(solutions):
  """Returns a judge that writes the chains which it should learn."""
  chains, _ = judge.chains(solutions)
  of = {chain.problem: chain.steps for chain in chains}

  def generate(prefixes, n):
    return [
      [schema.Solution(f"{p.id}/{i}", p.problem, of[p.problem])] * n
      for i, p in enumerate(prefixes)
    ]

  return generate


def test_a_judge_that_writes_the_right_chains_is_the_exact_verifier():
  solutions = _dial_solutions(60)
  assert {s.outcome for s in solutions} == {True, False}
  found, work = llm_judge.label(
    solutions, _knowing(solutions), judge_prompts.DIAL
  )
  assert [s.labels for s in found] == [s.labels for s in solutions]
  assert work["labelled"] == 60 and work["unparsable"] == 0
  scores = llm_judge.score(solutions, _knowing(solutions), judge_prompts.DIAL)
  assert scores == arithmetic.verifier(solutions)


@pytest.fixture(scope="module")
def policy():
  words = tokenizer_files.train_sentencepiece(
    [
      *(x for s in _dial_solutions(100) for x in (s.problem, *s.steps)),
      " ".join(judge_prompts.DIAL_WORDS),
    ],
    96,
    model_type="word",
  )
  config = small_config.model(words.vocab_size)
  random = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), config, ("lm",)))
  )
  params = jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype), shapes
  )
  return sampler.Sampler(config, params, words)


def test_a_policy_of_ours_can_be_the_judge(policy):
  """Untrained: it has no verdict, and says so; its words can be weighed."""
  solutions = _dial_solutions(2)
  generate = functools.partial(
    policy.generate,
    sampling=sampler.Sampling(max_tokens=8),
    key=jax.random.key(0),
  )
  works = []
  found = llm_judge.score(
    solutions, generate, judge_prompts.DIAL, votes=2, report=works.append
  )
  assert [x.scores for x in found] == [(0.5,) * len(s.steps) for s in solutions]
  assert not any(any(x.judged) for x in found)
  assert works[0]["unparsable"] == works[0]["verdicts"] == 4
  weights = {}

  def log_likelihoods(prefixes, options):
    rows = policy.log_likelihoods(prefixes, options)
    weights.update((p.steps, row) for p, row in zip(prefixes, rows))
    return rows

  one = solutions[:1]
  (scores,) = llm_judge.score(
    one, _knowing(one), judge_prompts.DIAL, log_likelihoods=log_likelihoods
  )
  (chain,), _ = judge.chains(one)
  right, wrong = weights[(chain.steps[0].rpartition(" ")[0],)]
  np.testing.assert_allclose(
    scores.scores[0], 1 / (1 + math.exp(wrong - right))
  )
  assert 0 < scores.scores[0] < 1 and scores.scores[0] != 0.5


def test_every_word_of_prompts_and_chains_is_in_the_judges_vocabulary(policy):
  unknown = policy.tokenizer.encode("\U0001f600")[-1]
  chains, _ = judge.chains(_dial_solutions(40))
  for chain in chains:
    for text in (chain.problem, *chain.steps):
      ids = policy.tokenizer.encode(text)
      assert len(ids) == len(text.split()) and unknown not in ids
