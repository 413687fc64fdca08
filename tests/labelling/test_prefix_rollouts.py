"""A prefix is its text: ids tell different ones apart, and nothing else."""

import itertools

from prm_jax import schema
from prm_jax.labelling import prefix_rollouts


def test_equal_prefixes_have_one_id_whoever_asks():
  steps = ("so 1 + 1 = 2", "answer 2")
  one = schema.Solution("a", "How many?", steps, source="policy")
  other = schema.Solution(
    "b", "How many?", (*steps, "more"), (1.0, 0.0, 0.0), extra=dict(level=3)
  )
  for k in range(3):
    first = steps[:k]
    assert (
      prefix_rollouts.prefix(one, first).id
      == prefix_rollouts.prefix(other, first).id
    )
    assert prefix_rollouts.prefix(other, first).labels is None


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
    prefix_rollouts.prefix(s, s.steps, round_number=number).id
    for s, number in itertools.product(solutions, range(3))
  ]
  assert len(set(ids)) == len(ids)


def test_no_prefix_is_no_call():
  def fail(*_):
    raise AssertionError

  assert prefix_rollouts.roll_out([], 3, fail, fail, fail) == (
    [],
    dict(rollouts=0),
  )
