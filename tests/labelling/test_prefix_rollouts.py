"""A prefix is its text: ids tell different ones apart, and nothing else."""

import itertools

from prm_jax import schema
from prm_jax.labelling import prefix_rollouts
from prm_jax.text import messages


def test_equal_prefixes_have_one_id_whoever_asks():
  steps = ("so 1 + 1 = 2", "answer 2")
  one = schema.Solution("a", "How many?", steps, source="policy")
  other = schema.Solution(
    "b", "How many?", (*steps, "more"), (1.0, 0.0, 0.0), extra=dict(level=3)
  )
  for k in range(3):
    prefix = prefix_rollouts.prefix(other, k)
    assert prefix_rollouts.prefix(one, k).id == prefix.id
    assert prefix.steps == steps[:k]
    assert prefix.labels is None


def test_ids_tell_problems_steps_and_rounds_apart():
  solutions = [
    schema.Solution("a", problem, steps)
    for problem in ("p", "p\n", "p ab")
    for steps in (
      (),
      ("a", "b"),
      ("ab",),
      ("b", "a"),
      ("a", "b", ""),
      ("\ud800",),
    )
  ]
  ids = [
    prefix_rollouts.prefix(s, len(s.steps), round_number=number).id
    for s, number in itertools.product(solutions, range(3))
  ]
  assert len(set(ids)) == len(ids)


def test_a_prefix_of_a_text_goes_on_to_the_next_step():
  text = "\n one,\ntwo \n\n\n three"
  spans = ((2, 6), (7, 10), (15, 20))
  steps = tuple(text[a:b] for a, b in spans)
  whole = schema.Solution("a", "p", steps, raw_text=text, spans=spans)
  for k, ends in ((1, 7), (2, 15), (3, 20)):
    prefix = prefix_rollouts.prefix(whole, k)
    assert (prefix.steps, prefix.spans) == (steps[:k], spans[:k])
    assert prefix.raw_text == text[:ends]
  alone = prefix_rollouts.prefix(whole, 0)
  assert (alone.steps, alone.raw_text, alone.spans) == ((), None, None)
  # Other white space between equal steps is another text, with other samples.
  other = schema.Solution("a", "p", steps)
  assert (
    prefix_rollouts.prefix(whole, 2).id != prefix_rollouts.prefix(other, 2).id
  )


def test_no_prefix_is_no_call():
  def fail(*_):
    raise AssertionError

  assert prefix_rollouts.roll_out([], 3, fail, fail, fail) == (
    [],
    dict(rollouts=0),
  )


def _conversation(result, system="You are terse.", **fields):
  call = dict(id="1", function=dict(name="sql", arguments={}))
  return messages.trajectory(
    [
      dict(role="system", content=system),
      dict(role="user", content="How many?"),
      dict(role="assistant", tool_calls=[call], **fields),
      dict(role="tool", content=result),
      dict(role="assistant", content="Two."),
    ]
  )


def test_what_was_said_between_equal_turns_tells_prefixes_apart():
  one = _conversation("2")
  others = [
    _conversation("3"),
    _conversation("2", system="You are kind."),
    _conversation("2", reasoning="Let me see."),
  ]
  assert all(x.steps == one.steps for x in others)

  def known_of(solution, k):
    id_ = prefix_rollouts.prefix(solution, k).id
    return id_, prefix_rollouts.texts(solution)[:k]

  for other, first_that_differs in zip(others, (2, 1, 1)):
    for k in (1, 2):
      is_same = known_of(one, k) == known_of(other, k)
      assert is_same == (k < first_that_differs), (other, k)
      for a, b in zip(known_of(one, k), known_of(other, k)):
        assert (a == b) == is_same
  opening = prefix_rollouts.prefix(one, 0)
  assert opening.id == prefix_rollouts.prefix(others[0], 0).id
  assert opening.id != prefix_rollouts.prefix(others[1], 0).id
