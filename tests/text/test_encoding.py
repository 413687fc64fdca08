"""The encoder: where a step is read follows from lengths, never a scan."""

import dataclasses
from unittest import mock

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import small_config

from prm_jax import errors
from prm_jax import schema
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import own_form

EVERY = pytest.mark.parametrize("name", hostile_text.TOKENIZERS)
PLACES = st.sampled_from(encoding.SCORE_POSITIONS)
STEPS = st.lists(st.just("") | hostile_text.TEXT, max_size=5)
UNLIMITED = None


def _reading(place="last_token", max_tokens=UNLIMITED, **fields):
  return encoding.EncodingConfig(
    score_position=place, max_tokens=max_tokens, template=own_form.OWN, **fields
  )


def _ids(problem, steps, tokenizer, end=False) -> list[int]:
  """The oracle of the ids: every text alone, a separator behind each."""
  ids = [tokenizer.bos, *tokenizer.encode(problem), tokenizer.separator]
  for step in steps:
    ids += [*tokenizer.encode(step), tokenizer.separator]
  return ids + [tokenizer.eos] * end


def _positions(problem, steps, tokenizer, place) -> list[int]:
  """The oracle of the read positions: from the lengths alone."""
  positions, length = [], 2 + len(tokenizer.encode(problem))
  for step in steps:
    text = len(tokenizer.encode(step))
    length += text + 1
    at_separator = place == "separator" or text == 0
    positions.append(length - (1 if at_separator else 2))
  return positions


# --- Positions --------------------------------------------------------------


@EVERY
@given(problem=hostile_text.TEXT, steps=STEPS, place=PLACES, end=st.booleans())
@example(
  problem="<extra_0>ки",
  steps=["</s>", "", "\n\n", "<sep>", "\u2581", "\ud800", "<|im_start|>"],
  place="last_token",
  end=True,
)
def test_every_step_is_read_once_where_the_lengths_say(
  name, problem, steps, place, end
):
  tokenizer = hostile_text.tokenizer(name)
  found = encoding.encode(problem, steps, tokenizer, _reading(place), end=end)
  assert found.tokens.tolist() == _ids(problem, steps, tokenizer, end)
  assert found.prompt_tokens == len(own_form.prompt(problem, tokenizer))
  expected = _positions(problem, steps, tokenizer, place)
  assert found.step_end.tolist() == expected
  assert len(found.step_end) == len(steps)
  assert np.all(np.diff([found.prompt_tokens - 1, *found.step_end]) > 0)


@EVERY
@given(problem=hostile_text.TEXT, steps=STEPS)
def test_the_only_control_ids_are_the_ledgers_own(name, problem, steps):
  tokenizer = hostile_text.tokenizer(name)
  found = encoding.encode(problem, steps, tokenizer, _reading(), end=True)
  ids = found.tokens.tolist()
  assert ids.count(tokenizer.separator) == len(steps) + 1
  assert ids.count(tokenizer.bos) == ids.count(tokenizer.eos) == 1


@EVERY
@given(
  problem=hostile_text.TEXT,
  steps=STEPS.filter(len),
  new=hostile_text.TEXT,
  where=st.integers(0, 4),
  place=PLACES,
)
def test_another_text_of_one_step_moves_no_other_boundary(
  name, problem, steps, new, where, place
):
  tokenizer = hostile_text.tokenizer(name)
  k = where % len(steps)

  def of(steps):
    return encoding.encode(problem, steps, tokenizer, _reading(place))

  before, after = of(steps), of([*steps[:k], new, *steps[k + 1 :]])
  more = len(after.tokens) - len(before.tokens)
  np.testing.assert_array_equal(after.step_end[:k], before.step_end[:k])
  np.testing.assert_array_equal(
    after.step_end[k + 1 :], before.step_end[k + 1 :] + more
  )
  start = before.step_end[k - 1] + 1 if k else before.prompt_tokens
  np.testing.assert_array_equal(after.tokens[:start], before.tokens[:start])
  rest = len(_ids("", steps[k + 1 :], tokenizer)) - 2
  np.testing.assert_array_equal(
    after.tokens[len(after.tokens) - rest :],
    before.tokens[len(before.tokens) - rest :],
  )


@EVERY
@given(problem=hostile_text.TEXT, steps=STEPS, place=PLACES)
def test_the_ids_of_the_first_steps_begin_those_of_more_steps(
  name, problem, steps, place
):
  tokenizer = hostile_text.tokenizer(name)
  encoding_config = _reading(place)
  whole = encoding.encode(problem, steps, tokenizer, encoding_config, end=True)
  for k in range(len(steps) + 1):
    part = encoding.encode(problem, steps[:k], tokenizer, encoding_config)
    n = len(part.tokens)
    np.testing.assert_array_equal(part.tokens, whole.tokens[:n])
    np.testing.assert_array_equal(part.step_end, whole.step_end[:k])


# --- Training and scoring ---------------------------------------------------


def _scored(
  solution, tokenizer, encoding_config
) -> tuple[list[int], list[int]]:
  """Returns the ids that the scorer looks at and the positions it reads."""
  model = small_config.model(tokenizer.vocab_size)
  judge = scorer.Scorer("prm", model, None, tokenizer, encoding_config)
  batches = []

  def read_position(params, batch, **static):
    del params, static
    batches.append(batch)
    rows, length = batch.tokens.shape
    positions = np.arange(length, dtype=np.float32)
    return np.broadcast_to(positions, (2, rows, length))

  with mock.patch.object(scorer, "_forward", read_position):
    (positions,) = [x.scores for x in judge.score([solution])]
  (batch,) = batches
  n = int(batch.visible_until[0, 0])
  return batch.tokens[0, :n].tolist(), [int(x) for x in positions]


@EVERY
@settings(max_examples=40)
@given(
  problem=hostile_text.TEXT,
  steps=STEPS.filter(len),
  place=PLACES,
  truncation=st.sampled_from(encoding.TRUNCATIONS),
  max_tokens=st.integers(1, 60) | st.just(UNLIMITED),
)
def test_every_training_program_sees_the_ids_and_places_of_the_scorer(
  name, problem, steps, place, truncation, max_tokens
):
  tokenizer = hostile_text.tokenizer(name)
  encoding_config = _reading(place, max_tokens, truncation=truncation)
  solution = schema.Solution(
    id="a",
    problem=problem,
    steps=tuple(steps),
    labels=(1.0,) * len(steps),
    outcome=True,
  )
  scored, read_at = _scored(solution, tokenizer, encoding_config)
  assert len(read_at) == len(steps)
  found = [
    encoding.prm_examples(
      [solution], tokenizer, encoding_config, encoding.LabelPolicy()
    ),
    encoding.orm_examples([solution], tokenizer, encoding_config, "last_step"),
    encoding.sft_examples([solution], tokenizer, encoding_config),
  ]
  for i, (examples, _) in enumerate(found):
    for example_ in examples:
      ids = example_.tokens.tolist()
      if ids[-1] == tokenizer.eos:
        assert i == 2 and len(ids) == len(scored) + 1
        ids = ids[:-1]
      assert ids == scored[: len(ids)]
      places = np.flatnonzero(example_.step_end).tolist()
      assert places == [p for p in read_at if p < len(ids)]
      assert max_tokens is None or len(example_) <= max_tokens
  if max_tokens == UNLIMITED:
    assert [len(examples) for examples, _ in found] == [1, 1, 1]


@given(
  steps=st.lists(hostile_text.TEXT, max_size=5),
  end=st.booleans(),
  name=st.sampled_from(["bytes", "sentencepiece_bpe", "byte_level"]),
)
def test_ids_that_a_policy_emits_split_into_the_steps_again(steps, end, name):
  tokenizer = hostile_text.tokenizer(name)
  found = encoding.encode("p", steps, tokenizer, _reading(), end=end)
  own = found.tokens[found.prompt_tokens :]
  expected = [tokenizer.decode(tokenizer.encode(step)) for step in steps]
  assert own_form.split_steps(own, tokenizer) == expected


def test_a_step_that_the_policy_left_open_is_a_step():
  tokenizer = hostile_text.tokenizer("bytes")
  a, b = tokenizer.encode("a"), tokenizer.encode("b")
  sep, eos = tokenizer.separator, tokenizer.eos
  for ids, expected in (
    ([*a, sep, *b], ["a", "b"]),
    ([*a, sep, *b, eos, *a], ["a", "b"]),
    ([sep, *a, sep, eos], ["", "a"]),
    ([eos], []),
    ([], []),
  ):
    assert own_form.split_steps(ids, tokenizer) == expected


# --- Too long ---------------------------------------------------------------


@given(
  lengths=st.lists(st.integers(0, 6), max_size=5),
  prompt=st.integers(0, 5),
  max_tokens=st.integers(1, 40),
  truncation=st.sampled_from(encoding.TRUNCATIONS),
  end=st.booleans(),
)
def test_as_many_whole_steps_are_kept_as_fit_or_none(
  lengths, prompt, max_tokens, truncation, end
):
  tokenizer = hostile_text.tokenizer("bytes")
  problem, steps = "p" * prompt, ["s" * n for n in lengths]
  encoding_config = _reading(max_tokens=max_tokens, truncation=truncation)
  found = encoding.encode(problem, steps, tokenizer, encoding_config, end=end)
  sizes = [
    len(_ids(problem, steps[:k], tokenizer, end and k == len(steps)))
    for k in range(len(steps) + 1)
  ]
  fitting = [k for k, size in enumerate(sizes) if size <= max_tokens]
  whole = bool(fitting) and fitting[-1] == len(steps)
  dropping = truncation == "truncate"
  if whole or (dropping and fitting and fitting[-1] > 0):
    assert len(found.step_end) == fitting[-1]
    assert len(found.tokens) == sizes[fitting[-1]]
  else:
    assert found is None


@given(
  rows=st.lists(
    st.lists(
      st.tuples(st.integers(0, 6), st.none() | st.sampled_from([0.0, 1.0])),
      max_size=4,
    ),
    max_size=6,
  ),
  max_tokens=st.integers(1, 30),
  truncation=st.sampled_from(encoding.TRUNCATIONS),
)
def test_whatever_is_left_out_is_counted(rows, max_tokens, truncation):
  tokenizer = hostile_text.tokenizer("bytes")
  solutions = [
    schema.Solution(
      id=str(i),
      problem="p",
      steps=tuple("s" * n for n, _ in row),
      labels=tuple(label for _, label in row),
      outcome=None if len(row) == 1 else True,
    )
    for i, row in enumerate(rows)
  ]
  encoding_config = _reading(max_tokens=max_tokens, truncation=truncation)
  keep = encoding.LabelPolicy(after_first_error="keep")

  examples, counts = encoding.prm_examples(
    solutions, tokenizer, encoding_config, keep
  )
  assert (
    counts["solutions"]
    == len(rows)
    == (
      len(examples)
      + counts["solutions too long"]
      + counts["solutions without a target"]
    )
  )
  assert sum(map(len, rows)) == (
    counts["targets"]
    + counts["steps without a target"]
    + counts["trailing steps dropped"]
    + counts["steps in them"]
  )
  assert counts["targets"] == sum(x.weights.sum() for x in examples)
  if truncation == "drop":
    assert not counts["trailing steps dropped"]

  examples, counts = encoding.orm_examples(
    solutions, tokenizer, encoding_config, "every_token"
  )
  assert (
    counts["solutions"]
    == len(rows)
    == (
      len(examples)
      + counts["solutions too long"]
      + counts["solutions without an outcome"]
      + counts["solutions without a step"]
    )
  )
  assert counts["targets"] == len(examples)
  # The outcome is that of all steps: no target without all of them.
  whole = [len(_ids("p", s.steps, tokenizer)) for s in solutions]
  assert sorted(map(len, examples)) == sorted(
    n
    for n, s in zip(whole, solutions)
    if n <= max_tokens and s.steps and s.outcome is not None
  )

  examples, counts = encoding.sft_examples(
    solutions, tokenizer, encoding_config
  )
  assert counts["solutions"] == len(rows)
  assert len(rows) == len(examples) + counts["solutions too long"]
  assert sum(map(len, rows)) == (
    sum(x.step_end.sum() for x in examples)
    + counts["trailing steps dropped"]
    + counts["steps in them"]
  )
  assert counts["targets"] == sum(x.weights.sum() for x in examples)


# --- Targets ----------------------------------------------------------------

N = None
RATINGS = (1, 0, -1, 1, N, 0)
# neutral -> after_first_error -> the targets of RATINGS, by hand.
FROM_RATINGS = {
  "good": {
    "ignore": (1, 1, 0, N, N, N),
    "bad": (1, 1, 0, 0, 0, 0),
    "keep": (1, 1, 0, 1, N, 1),
  },
  "bad": {
    "ignore": (1, 0, N, N, N, N),
    "bad": (1, 0, 0, 0, 0, 0),
    "keep": (1, 0, 0, 1, N, 0),
  },
  "ignore": {
    "ignore": (1, N, 0, N, N, N),
    "bad": (1, N, 0, 0, 0, 0),
    "keep": (1, N, 0, 1, N, N),
  },
  "three_way": {
    "ignore": (1, 0.5, 0, N, N, N),
    "bad": (1, 0.5, 0, 0, 0, 0),
    "keep": (1, 0.5, 0, 1, N, 0.5),
  },
}
LABELS = (0.9, N, 0.6, 0.3, 0.8)
# harden_above -> after_first_error -> the targets of LABELS, by hand.
FROM_LABELS = {
  None: {
    "ignore": (0.9, N, 0.6, 0.3, N),
    "bad": (0.9, N, 0.6, 0.3, 0),
    "keep": (0.9, N, 0.6, 0.3, 0.8),
  },
  0.7: {
    "ignore": (1, N, 0, N, N),
    "bad": (1, N, 0, 0, 0),
    "keep": (1, N, 0, 0, 1),
  },
  0.6: {
    "ignore": (1, N, 0, N, N),
    "bad": (1, N, 0, 0, 0),
    "keep": (1, N, 0, 0, 1),
  },
  0.0: {
    "ignore": (1, N, 1, 1, 1),
    "bad": (1, N, 1, 1, 1),
    "keep": (1, N, 1, 1, 1),
  },
}


def _solution(**fields):
  judged = fields.get("labels") or fields.get("ratings") or ("", "")
  return schema.Solution("a", "p", ("s",) * len(judged), **fields)


@pytest.mark.parametrize("harden_above", FROM_LABELS)
@pytest.mark.parametrize("after_first_error", encoding.AFTER_FIRST_ERROR)
@pytest.mark.parametrize("neutral", encoding.NEUTRAL)
def test_every_label_policy_gives_the_targets_of_the_table(
  neutral, after_first_error, harden_above
):
  policy = encoding.LabelPolicy(neutral, after_first_error, harden_above)
  rated = _solution(ratings=RATINGS)
  expected = FROM_RATINGS[neutral][after_first_error]
  assert encoding.step_labels(rated, policy) == list(expected)
  labelled = _solution(labels=LABELS)
  expected = FROM_LABELS[harden_above][after_first_error]
  assert encoding.step_labels(labelled, policy) == list(expected)
  both = _solution(ratings=RATINGS, labels=(0.25,) * len(RATINGS))
  assert encoding.step_labels(both, policy) == encoding.step_labels(
    rated, policy
  )
  assert encoding.step_labels(_solution(), policy) == [None, None]


@pytest.mark.parametrize(
  ("neutral", "after", "expected"),
  [
    ("bad", "ignore", [None, None, None]),
    ("bad", "bad", [None, None, 0.0]),
    ("bad", "keep", [None, None, 1.0]),
    ("good", "ignore", [None, None, 1.0]),
  ],
)
def test_an_error_on_the_path_is_before_its_alternatives(
  neutral, after, expected
):
  alternative = schema.Solution(
    "a",
    "p",
    ("x", "y", "z"),
    ratings=(None, None, 1),
    extra=dict(path_ratings=[1, 0]),
  )
  policy = encoding.LabelPolicy(neutral, after)
  assert encoding.step_labels(alternative, policy) == expected


@given(
  labels=st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=5),
  place=PLACES,
)
def test_a_prm_example_has_its_targets_where_the_steps_are_read(labels, place):
  tokenizer = hostile_text.tokenizer("bytes")
  steps = tuple("step"[:i] for i in range(len(labels)))
  solution = schema.Solution("a", "p", steps, labels=tuple(labels))
  examples, _ = encoding.prm_examples(
    [solution],
    tokenizer,
    _reading(place),
    encoding.LabelPolicy(after_first_error="keep"),
  )
  targets = {
    position: np.float32(label)
    for position, label in zip(_positions("p", steps, tokenizer, place), labels)
    if label is not None
  }
  assert len(examples) == bool(targets)
  for found in examples:
    assert set(np.flatnonzero(found.weights)) == set(targets)
    assert set(found.weights) <= {0.0, 1.0}
    for position, label in targets.items():
      assert found.labels[position] == label


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
def test_an_orm_example_has_the_outcome_at_every_token_or_the_last_step(
  outcome, place
):
  tokenizer = hostile_text.tokenizer("bytes")
  # bos p sep | a b sep | c d e sep
  solution = schema.Solution("a", "p", ("ab", "cde"), outcome=outcome)
  last = 8 if place == "last_token" else 9
  for target, places in (
    ("last_step", [last]),
    ("every_token", list(range(3, last + 1))),
  ):
    (found,), _ = encoding.orm_examples(
      [solution], tokenizer, _reading(place), target
    )
    assert np.flatnonzero(found.weights).tolist() == places
    assert found.weights.sum() == pytest.approx(1, abs=1e-6)
    assert set(found.weights[places]) == {np.float32(1 / len(places))}
    assert set(found.labels[places]) == {float(outcome)}


def test_an_sft_example_weighs_what_comes_after_the_prompt():
  tokenizer = hostile_text.tokenizer("bytes")
  solution = schema.Solution("a", "p", ("ab", ""))
  (found,), counts = encoding.sft_examples([solution], tokenizer, _reading())
  assert found.tokens[-1] == tokenizer.eos
  assert found.weights.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
  assert counts["targets"] == 5


def test_solutions_meet_in_the_group_that_they_name_or_their_problem():
  named = schema.Solution("a", "p", (), extra={"group": 7})
  assert encoding.group_of(named) == "7"
  assert encoding.group_of(dataclasses.replace(named, extra={})) == "p"


@pytest.mark.parametrize(
  "make, message",
  [
    (
      lambda: encoding.EncodingConfig(
        score_position="last", template=own_form.OWN
      ),
      "encoding.score_position='last': expected",
    ),
    (
      lambda: encoding.EncodingConfig(truncation="cut", template=own_form.OWN),
      "encoding.truncation='cut'",
    ),
    (
      lambda: encoding.EncodingConfig(max_tokens=0, template=own_form.OWN),
      "encoding.max_tokens=0",
    ),
    (lambda: encoding.LabelPolicy(neutral="ok"), "labels.neutral='ok'"),
    (
      lambda: encoding.LabelPolicy(after_first_error="x"),
      "labels.after_first_error='x'",
    ),
    (lambda: encoding.LabelPolicy(harden_above=1.0), "harden_above=1.0"),
    (
      lambda: encoding.orm_examples(
        [], hostile_text.tokenizer("bytes"), _reading(), "all"
      ),
      "outcome_target='all': expected one of every_token, last_step",
    ),
  ],
)
def test_a_setting_that_does_not_exist_is_refused_by_its_name(make, message):
  with pytest.raises(errors.InputError) as error:
    make()
  assert message in str(error.value) and "\n" not in str(error.value)


def test_an_example_ends_at_its_last_target_and_loses_nothing_before_it():
  tokenizer = hostile_text.tokenizer("bytes")
  solution = schema.Solution(
    "a", "p", ("one", "two", "three"), labels=(1.0, 0.0, None)
  )
  encoding_config = encoding.EncodingConfig(
    max_tokens=100, template=own_form.OWN
  )
  (found,), counts = encoding.prm_examples(
    [solution], tokenizer, encoding_config, encoding.LabelPolicy()
  )
  whole = encoding.encode("p", solution.steps, tokenizer, encoding_config)
  end = whole.step_end[1] + 1
  assert found.tokens.tolist() == whole.tokens[:end].tolist()
  assert len(found) == end < len(whole.tokens)
  assert np.flatnonzero(found.weights).tolist() == whole.step_end[:2].tolist()
  assert counts["targets"] == 2
