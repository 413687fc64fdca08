"""The search goes by the paper's formulas and finds the first wrong step."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import omega_tree
from prm_jax.labelling.prefix_rollouts import Rollout


def _rollout(steps, is_right, num_tokens=10, **extra):
  whole = schema.Solution(
    "r", "How many?", tuple(steps), extra=dict(num_tokens=num_tokens, **extra)
  )
  return Rollout(whole, is_right)


def _drive(search, answer):
  """Returns the tree and the requests; answer: steps, number -> rollouts."""
  requests, reply = [], None
  while True:
    try:
      request = search.send(reply)
    except StopIteration as end:
      return end.value, requests
    whole = request.whole.steps if request.whole else ()
    steps = whole[: request.num_steps]
    requests.append(steps)
    reply = answer(steps, request.num_rollouts)


def _options(**fields):
  defaults = dict(root_rollouts=2, completions=4)
  return omega_tree.Options(**defaults | fields)


def _nothing(steps, num):
  raise AssertionError(f"{num} rollouts from {steps} were asked for")


# --- Formulas -----------------------------------------------------------------


def test_the_constants_are_the_papers():
  options = omega_tree.Options()
  assert (options.alpha, options.beta, options.length) == (0.5, 0.9, 500)
  assert (options.c_puct, options.completions) == (0.125, 8)
  assert (options.searches, options.root_rollouts) == (100, 32)


def test_q_and_u_by_hand():
  options = omega_tree.Options()
  # Half right, 250 tokens: 0.5 ** 0.5 * 0.9 ** 0.5.
  assert math.isclose(omega_tree.quality(0.5, 250, options), 0.45**0.5)
  assert omega_tree.quality(1.0, 0, options) == 1
  assert math.isclose(omega_tree.quality(0.0, 500, options), 0.45)
  assert omega_tree.exploration(0, 0, options) == 0
  assert omega_tree.exploration(1, 16, options) == 0.125 * 4 / 2


# --- Binary search ------------------------------------------------------------


@given(num_steps=st.integers(1, 40), data=st.data())
def test_the_first_error_is_found_in_a_logarithm_of_the_steps(num_steps, data):
  error = data.draw(st.integers(0, num_steps - 1))
  wrong = tuple(f"step {k}" for k in range(num_steps))

  def answer(steps, num):
    # Never repaired: a prefix goes on right as long as it is right.
    right = len(steps) <= error
    return [_rollout((*steps, "end"), right)] * num

  tree, requests = _drive(
    omega_tree.search(
      [_rollout(wrong, False), _rollout(["well"], True)], _options()
    ),
    answer,
  )
  (path,) = tree.paths
  assert (path.num_right, path.num_wrong) == (error, error + 1)
  assert len(requests) <= math.ceil(math.log2(num_steps))


def test_a_state_is_rolled_out_from_once():
  """The known open copy rolls out every state twice."""
  wrongs = [("a", "b", "c", tail, "e") for tail in "xyz"]

  def answer(steps, num):
    return [_rollout((*steps, "end"), len(steps) < 4)] * num

  tree, requests = _drive(
    omega_tree.search(
      [_rollout(["ok"], True), *(_rollout(w, False) for w in wrongs)],
      _options(),
    ),
    answer,
  )
  assert len(tree.paths) == 3
  assert sorted(requests) == sorted(set(requests))
  # (a, b) and (a, b, c) are shared; each tail has its own.
  assert len(requests) == 2 + 3
  assert set(tree.states) == {(), *requests}


def test_pieces_end_the_search_before_single_steps():
  wrong = tuple(f"step {k}" for k in range(32))

  def answer(steps, num):
    return [_rollout((*steps, "end"), len(steps) <= 19)] * num

  found = []
  for segments in (0, 4, 1):
    tree, requests = _drive(
      omega_tree.search(
        [_rollout(wrong, False), _rollout(wrong[:-1], True)],
        _options(segments=segments),
        count_tokens=lambda steps: 10 * len(steps),
      ),
      answer,
    )
    (path,) = tree.paths
    assert path.num_right <= 19 < path.num_wrong
    found.append((len(requests), path.num_wrong - path.num_right))
  # An average solution has 31.5 steps; a quarter of it is 7.9.
  assert found == [(5, 1), (3, 4), (1, 16)]


def test_verdicts_that_dont_tell_end_a_search_undecided():
  wrong = ("a", "b", "c", "d")
  tree, requests = _drive(
    omega_tree.search(
      [_rollout(wrong, False), _rollout(["ok"], True)], _options()
    ),
    lambda steps, num: [_rollout((*steps, "end"), None)] * num,
  )
  assert requests == [("a", "b")]
  assert tree.paths[0].num_right == 0 and tree.paths[0].num_wrong is None


# --- The pool and the selection -----------------------------------------------


def _selected(given, options, answer=_nothing, **kwargs):
  tree, _ = _drive(omega_tree.search(given, options, **kwargs), answer)
  return [path.selected.rollout.steps for path in tree.paths], tree


def test_only_wrong_rollouts_that_ended_with_a_new_step_join_the_pool():
  chosen, tree = _selected(
    [
      _rollout(["right"], True),
      _rollout(["wrong"], False),
      _rollout(["cut off"], False, ended=False),
      _rollout(["unknown"], None),
      _rollout([], False),
      _rollout(["wrong"], False),
    ],
    _options(),
  )
  assert chosen == [("wrong",)]
  # What doesn't join counts against MC all the same, but for the unknown.
  assert tree.states[()].value == 1 / 5
  assert tree.duplicates == 1


@pytest.mark.parametrize("is_right", [True, False])
def test_nothing_is_searched_where_all_or_none_are_right(is_right):
  chosen, tree = _selected([_rollout(["a"], is_right)] * 3, _options())
  assert not chosen and tree.states[()].value == is_right


def test_length_is_in_tokens_not_words():
  """The known open copy counts words."""
  one_long_word = _rollout(["x" * 90], False, num_tokens=50)
  many_short = _rollout(["a b c d e f"], False, num_tokens=6)
  for order in ([one_long_word, many_short], [many_short, one_long_word]):
    chosen, _ = _selected([_rollout(["ok"], True), *order], _options())
    assert chosen == [many_short.solution.steps, one_long_word.solution.steps]


def test_tokens_that_nobody_counted_are_counted_or_refused():
  plain = Rollout(schema.Solution("r", "How many?", ("a", "b")), False)
  given = [_rollout(["ok"], True), plain]
  with pytest.raises(errors.InputError, match="solution 'r': its tokens"):
    _selected(given, _options(searches=1))
  _, tree = _selected(
    given,
    _options(),
    lambda steps, num: [_rollout((*steps, "end"), True)] * num,
    count_tokens=lambda steps: sum(map(len, steps)),
  )
  assert tree.paths[0].selected.num_tokens == 2
  with pytest.raises(errors.InputError, match="segments=4: the tokens"):
    _selected(given[:1] * 2, _options(segments=4))


def _tree_of_two_states(c_puct):
  """Returns what is selected from the root and from a state below it.

  Both have MC 1/2. The root's rollouts are the shorter ones.
  """
  wrongs = [(f"w{k}", f"v{k}", f"u{k}") for k in range(3)]
  given = [
    *(_rollout([f"right {k}"], True) for k in range(3)),
    *(_rollout(w, False, num_tokens=10 + k) for k, w in enumerate(wrongs)),
  ]

  def answer(steps, num):
    if steps != ("w0",):
      return [_rollout((*steps, "end"), False)] * num
    wrong = [
      _rollout((*steps, f"x{k}"), False, num_tokens=20 + k) for k in range(2)
    ]
    return [*wrong, *[_rollout((*steps, "right"), True)] * 2]

  chosen, tree = _selected(given, _options(c_puct=c_puct), answer)
  return ["".join(steps) for steps in chosen], tree


def test_every_priority_is_refreshed_at_every_selection():
  """The known open copy refreshes those of the selected state alone.

  After the root (w0) and the state below it (x0) were visited once each, both
  have the same U, and the root's shorter rollouts are first. With the root's
  U of before that visit it would be x1.
  """
  chosen, _ = _tree_of_two_states(c_puct=10.0)
  assert chosen == ["w0v0u0", "w0x0", "w1v1u1", "w0x1", "w2v2u2"]
  # Without exploration Q alone decides.
  chosen, _ = _tree_of_two_states(c_puct=0.0)
  assert chosen == ["w0v0u0", "w1v1u1", "w2v2u2", "w0x0", "w0x1"]


def test_visits_are_counted_at_selection_and_nowhere_else():
  """The known open copy counts one when a state is estimated."""
  chosen, tree = _tree_of_two_states(c_puct=10.0)
  assert tree.visits == {(): 3, ("w0",): 2}
  assert len(tree.states) > 2
  assert len(chosen) == len(set(chosen)), "none is selected twice"


def test_right_rollouts_are_no_states():
  """The known open copy adds them whole, with MC 1."""
  _, tree = _tree_of_two_states(c_puct=0.125)
  assert ("right 0",) not in tree.states
  assert ("w0", "right") not in tree.states


def test_steps_are_ours_whatever_blank_lines_they_hold():
  """The known open copy cuts at blank lines."""
  wrong = ("a\n\nb", "c", "d\n\n\n\ne", "f")
  tree, requests = _drive(
    omega_tree.search(
      [_rollout(["ok"], True), _rollout(wrong, False)], _options()
    ),
    lambda steps, num: [_rollout((*steps, "end"), True)] * num,
  )
  assert requests == [wrong[:2], wrong[:3]]
  assert tree.paths[0].num_wrong == 4


def test_the_search_ends_at_its_limits():
  wrongs = [_rollout([f"w{k}", "end"], False) for k in range(9)]
  given = [_rollout(["ok"], True), *wrongs]

  def answer(steps, num):
    return [_rollout((*steps, "end"), False)] * num

  chosen, tree = _selected(given, _options(), answer)
  assert len(chosen) == 9 and tree.left == 0
  chosen, tree = _selected(given, _options(searches=4), answer)
  assert len(chosen) == 4 and tree.left == 5
  # 4 rollouts a search: the third begins at 8, and none after it.
  chosen, _ = _selected(given, _options(max_rollouts=9), answer)
  assert len(chosen) == 3


def test_given_rollouts_take_the_place_of_drawn_ones():
  asked = []

  def answer(steps, num):
    asked.append((steps, num))
    return [_rollout(["ok"], True)] * num

  _selected([_rollout(["a"], False)] * 3, _options(root_rollouts=32), answer)
  assert asked == [((), 29)]
  asked.clear()
  _selected([_rollout(["a"], True)] * 40, _options(root_rollouts=32), answer)
  assert not asked


@pytest.mark.parametrize(
  ("fields", "match"),
  [
    (dict(completions=0), "`completions=0`: expected 1 or more"),
    (dict(root_rollouts=0), "root_rollouts=0"),
    (dict(searches=0), "searches=0"),
    (dict(length=0), "length=0"),
    (dict(alpha=0.0), "alpha=0.0`: expected above 0"),
    (dict(beta=1.5), "beta=1.5"),
    (dict(c_puct=-1.0), "c_puct=-1.0"),
    (dict(segments=-1), "segments=-1"),
    (dict(max_rollouts=0), "max_rollouts=0"),
  ],
)
def test_options_out_of_range_are_refused_in_one_line(fields, match):
  with pytest.raises(errors.InputError, match=match) as found:
    omega_tree.Options(**fields)
  assert "\n" not in str(found.value)
