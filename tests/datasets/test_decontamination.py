"""Laws of finding a test set's problems among others."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import schema
from prm_jax.datasets import decontamination
from prm_jax.records import sources

LONG = "one two three four five six seven eight nine ten eleven twelve " * 2


def _solution(problem, name="t"):
  return schema.Solution(name, problem, ())


def _find(problem, *tests):
  index = decontamination.index(
    _solution(t, f"t{i}") for i, t in enumerate(tests)
  )
  return decontamination.find(problem, index)


def test_equal_but_for_layout_is_equal():
  found = _find("What is  $1 + 1$?", "x", "what is 1+1")
  assert found == decontamination.Overlap("t1", 1.0, is_equal=True)
  assert _find("What is $1 + 2$?", "what is 1+1") is None


def test_equal_but_for_the_form_of_its_unicode_is_equal():
  # Composed and decomposed, full-width digits, a ligature.
  pairs = {
    "Combien de caf\u00e9s?": "combien de cafe\u0301s",
    "\uff11\uff12 + 3": "12 + 3",
    "\ufb01nd x": "find x",
  }
  for ours, theirs in pairs.items():
    assert _find(ours, theirs).is_equal
  words = [f"w{i}" for i in range(20)]
  wide = " ".join(words).replace("1", "\uff11")
  assert _find(wide + " end", " ".join(words)).share > 0.9


def test_thirteen_words_in_a_row_that_cover_enough_of_the_shorter():
  words = [f"w{i}" for i in range(40)]

  def other(n):
    return [f"x{i}" for i in range(n)]

  def share(common, rest):
    text = " ".join(words[:common] + other(rest))
    found = _find(text, " ".join(words))
    assert found is None or not found.is_equal
    return found and round(found.share, 3)

  assert share(12, 1) is None  # no run of 13
  assert share(13, 0) == 1.0  # all of the shorter one
  assert share(18, 12) == 0.6
  assert share(17, 13) is None
  assert share(30, 70) == 0.75  # the test problem is the shorter one
  # Neither case nor signs make other words.
  near = ", ".join(words[:30]).upper()
  assert _find(f"{near}!", " ".join(words)).share == 1.0


def test_short_problems_are_only_ever_equal():
  problem = " ".join("abcdefghijkl")
  assert _find(problem + " m", problem) is None
  assert _find(problem, problem).is_equal


def test_a_run_that_is_repeated_is_no_more_than_all():
  found = _find(LONG * 2, LONG)
  assert found.share == 1.0 and not found.is_equal


def test_the_nearest_test_problem_is_named():
  words = [f"w{i}" for i in range(20)]
  near, nearer = " ".join([*words[:15], "x"]), " ".join([*words[:18], "y"])
  assert _find(" ".join(words), near, nearer).id == "t1"
  assert _find(" ".join(words), nearer, near).id == "t0"


WORDS = st.lists(st.sampled_from("abc"), max_size=24)


@settings(max_examples=200, deadline=None)
@given(train=WORDS, tests=st.lists(WORDS, max_size=3), shared=WORDS)
def test_the_index_finds_what_comparing_all_runs_finds(train, tests, shared):
  train, tests = shared + train, [test + shared for test in tests]
  n = decontamination.NUM_WORDS

  def covered(other):
    runs = [other[k : k + n] for k in range(len(other) - n + 1)]
    places = {
      k + i
      for k in range(len(train) - n + 1)
      if train[k : k + n] in runs
      for i in range(n)
    }
    return min(1.0, len(places) / max(1, min(len(train), len(other))))

  keys = [sources.problem_key(" ".join(test)) for test in tests]
  found = _find(" ".join(train), *map(" ".join, tests))
  if sources.problem_key(" ".join(train)) in keys:
    assert found.is_equal
    return
  best = max(map(covered, tests), default=0.0)
  assert (found.share if found else None) == (best if best >= 0.6 else None)


@pytest.mark.real_data
def test_the_known_leaks_of_the_public_sets_are_found(public_data):
  """The counts are those of the sets' own pages or of exact comparison."""

  def problems(name, *parts):
    return {s.problem: s for s in sources.read(name, public_data(*parts))[0]}

  def count(train, tests):
    index = decontamination.index(tests.values())
    found = [decontamination.find(problem, index) for problem in train]
    equal = sum(f is not None and f.is_equal for f in found)
    return equal, sum(f is not None for f in found) - equal

  phase_2 = problems("prm800k", "prm800k", "phase2_sample.jsonl.gz")
  bench = problems("processbench", "processbench", "math.json.gz")
  assert count(phase_2, bench) == (16, 3)
  math_500 = problems("math", "math500", "math500.jsonl.gz")
  phase_1 = problems("prm800k", "prm800k", "phase1_test.jsonl.gz")
  assert count(phase_1, math_500) == (98, 0)
  assert count(phase_2, math_500) == (0, 3)
