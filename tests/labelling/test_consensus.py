"""Kept is exactly what two labellers agree on, and everything is counted."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import consensus

BOTH = {"above_a": 0.0, "above_b": 0.5}
LABEL = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, None])


def _solution(id_, labels, **fields):
  steps = tuple(f"step {k}" for k in range(len(labels or ())))
  return schema.Solution(
    id_, "p", fields.pop("steps", steps), labels=labels, **fields
  )


@st.composite
def _labelled_twice(draw):
  """Two labellers' sets over the same solutions, each without some of them."""
  sizes = draw(st.lists(st.integers(0, 4), max_size=6))
  sets = []
  for _ in range(2):
    found = []
    for i, n in enumerate(sizes):
      labels = draw(st.lists(LABEL, min_size=n, max_size=n).map(tuple))
      solution = _solution(str(i), labels)
      found += [solution] * draw(st.integers(0, 1))
    sets.append(draw(st.permutations(found)))
  return sets


def _oracle(labels, above):
  """The first error by its definition: all before it known to be right."""
  for i in range(len(labels)):
    if labels[i] is None:
      return "open"
    if labels[i] <= above:
      return i
  return "none"


@given(sets=_labelled_twice())
def test_kept_is_what_both_agree_on_and_the_counts_are_of_all(sets):
  a, b = sets
  kept, counts = consensus.Consensus(**BOTH).agree(a, b)
  of_b = {s.id: s for s in b}
  expected = [
    s.id
    for s in a
    if s.id in of_b
    and s.steps
    and _oracle(s.labels, 0.0) == _oracle(of_b[s.id].labels, 0.5) != "open"
  ]
  assert [s.id for s in kept] == expected
  assert counts.get("kept", 0) == len(kept)
  assert sum(counts.values()) == len({s.id for s in [*a, *b]})
  for s in kept:
    error = schema.first_error(s.labels)
    end = len(s.labels) if error < 0 else error
    assert s.labels[:end] == (1.0,) * end
    assert set(s.labels[end + 1 :]) <= {None}


@given(sets=_labelled_twice())
def test_who_is_called_a_changes_names_alone(sets):
  a, b = sets
  kept, counts = consensus.Consensus(**BOTH).agree(a, b)
  swapped, mirrored = consensus.Consensus(0.5, 0.0).agree(b, a)
  assert {s.id: s.labels for s in swapped} == {s.id: s.labels for s in kept}
  other = {"_a": "_b", "_b": "_a"}
  assert mirrored == {
    k[:-2] + other[k[-2:]] if k[-2:] in other else k: n
    for k, n in counts.items()
  }


@pytest.mark.parametrize(
  ("a", "b", "reason"),
  [
    ((1.0, 0.25), (1.0, 1.0), "kept"),  # a value above 0 is right
    ((1.0, 0.0), (1.0, 0.5), "kept"),  # half of the votes is wrong
    ((1.0, 0.0), (0.0, None), "earlier_error_in_b"),
    ((0.0, 0.0), (1.0, 0.0), "earlier_error_in_a"),
    ((1.0, 1.0), (1.0, 0.0), "error_only_in_b"),
    ((0.0, None), (1.0, 1.0), "error_only_in_a"),
    ((1.0, None), (1.0, 1.0), "unlabelled_in_a"),
    ((1.0, 1.0), (None, 0.0), "unlabelled_in_b"),
    ((None, 1.0), (None, 1.0), "unlabelled_in_both"),
    ((), (), "without_steps"),
  ],
)
def test_every_way_to_differ_has_its_own_count(a, b, reason):
  sets = [_solution("x", a)], [_solution("x", b)]
  kept, counts = consensus.Consensus(**BOTH).agree(*sets)
  assert counts == {"kept": 0} | {reason: 1}
  assert len(kept) == (reason == "kept")


def test_no_labels_at_all_are_unlabelled():
  bare = _solution("x", None, steps=("s",))
  _, counts = consensus.Consensus(**BOTH).agree([bare], [bare])
  assert counts == {"kept": 0, "unlabelled_in_both": 1}


def test_kept_labels_can_be_those_of_either_labeller():
  a, b = _solution("x", (0.75, 0.0)), _solution("x", (1.0, 0.25))
  found = {
    how: consensus.Consensus(**BOTH, labels=how)([a], [b])[0].labels
    for how in ("hard", "a", "b")
  }
  assert found == {"hard": (1.0, 0.0), "a": a.labels, "b": b.labels}


@pytest.mark.parametrize(
  ("b", "message"),
  [
    (_solution("x", (1.0,), steps=("other",)), "step 0 .from 0. differs"),
    (_solution("x", (1.0, 1.0)), "1 and 2 steps"),
    (schema.Solution("x", "q", ("step 0",), (1.0,)), "the problem differs"),
    (_solution("x", (1.0,), ratings=(1,)), "ratings"),
  ],
)
def test_what_is_not_the_same_solution_names_both_in_one_line(b, message):
  a = _solution("x", (1.0,))
  with pytest.raises(errors.InputError, match=message) as e:
    both = consensus.Consensus(**BOTH)
    both.agree([a], [b], names=("mc.jsonl", "judge.jsonl"))
  assert "judge.jsonl" in str(e.value) and "\n" not in str(e.value)
  if "ratings" not in message:
    assert "mc.jsonl" in str(e.value)


def test_an_id_that_comes_twice_is_refused():
  twice = [_solution("x", (1.0,))] * 2
  with pytest.raises(errors.InputError, match="'x' comes twice"):
    consensus.Consensus(**BOTH)(twice[:1], twice)


@pytest.mark.parametrize(
  "fields", [{"above_a": 1.0}, {"above_b": -0.1}, {"labels": "soft"}], ids=str
)
def test_arguments_that_make_no_sense_are_refused(fields):
  with pytest.raises(errors.InputError):
    consensus.Consensus(**(BOTH | fields))


def test_agreement_is_of_sides_and_of_solutions_that_both_have():
  a = [_solution("x", (0.25, 0.0)), _solution("alone", (1.0,))]
  b = [_solution("x", (0.9, 0.5))]
  results = consensus.Consensus(**BOTH).agreement(a, b)
  assert results["solutions"] == 1 and results["raters"] == 2
  assert results["alpha"]["all"]["nominal"]["value"] == 1
  assert consensus.Consensus(**BOTH).agreement(a[1:], b) is None
  # By other thresholds they differ.
  other = consensus.Consensus(0.5, 0.5).agreement(a, b)
  assert other["pairs"][0]["first_error_same"]["value"] == 0
