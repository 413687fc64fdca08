"""Laws of PRM800K's trees."""

import collections
import itertools
import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import prm800k
from prm_jax.runtime import files


def _step(*ratings, chosen=None, human=None, text="t{}", flagged=False):
  """Returns a raw step; the text of completion k is `text` with k in it."""
  return {
    "completions": [
      {"text": text.format(k), "rating": r, "flagged": flagged}
      for k, r in enumerate(ratings)
    ],
    "human_completion": human and {"text": human, "rating": None},
    "chosen_completion": chosen,
  }


def _row(*steps, finish_reason="solution", **fields):
  return {
    "labeler": None,
    "generation": None,
    "is_quality_control_question": False,
    "is_initial_screening_question": False,
    "question": {"problem": "P?", "ground_truth_answer": "2"},
    "label": {"steps": list(steps), "finish_reason": finish_reason},
  } | fields


def test_a_row_says_who_labelled_it_and_is_written_with_the_name(
  write_rows, folder
):
  row = _row(_step(1, -1, chosen=0), labeler="eeb1")
  found = list(prm800k.read(write_rows(row, _row(_step(1, chosen=0)))))
  names = [s.extra.get(schema.ANNOTATOR) for s in found]
  assert names == ["eeb1", "eeb1", None]
  prm800k.write(folder / "named.jsonl", found)
  again = list(prm800k.read(folder / "named.jsonl"))
  assert [s.extra.get(schema.ANNOTATOR) for s in again] == names


def _trees(write_rows, *rows, **options):
  return list(prm800k.read_trees(write_rows(*rows), **options))


def _known(tree):
  """Returns {name: (steps, ratings)} of one tree."""
  return {s.id.rpartition("/")[2]: (s.steps, s.ratings) for s in tree}


def _rated_in_row(row):
  """Yields (problem, prefix, text, rating) of each rated completion.

  An independent reading of the release's rule: go on with the chosen
  completion, with the person's if there is none, and stop at neither.
  """
  prefix = ()
  for step in row["label"]["steps"]:
    for completion in step["completions"] or ():
      if completion["rating"] is not None:
        rating = completion["rating"]
        yield row["question"]["problem"], prefix, completion["text"], rating
    if step["chosen_completion"] is not None:
      taken = step["completions"][step["chosen_completion"]]
    elif step["human_completion"]:
      taken = step["human_completion"]
    else:
      return
    prefix = (*prefix, taken["text"])


def _rated_in_tree(tree):
  for s in tree:
    for i, rating in enumerate(s.ratings):
      if rating is not None:
        yield s.problem, s.steps[:i], s.steps[i], rating


# --- One row ----------------------------------------------------------------


def test_a_row_is_its_path_and_the_alternatives_to_it(write_rows):
  (tree,) = _trees(
    write_rows,
    _row(
      _step(1, text="a{}", chosen=0),
      _step(-1, 0, 1, text="b{}", chosen=2),
      _step(-1, 0, text="c{}", chosen=1),
    ),
  )
  assert _known(tree) == {
    "path": (("a0", "b2", "c1"), (1, 1, 0)),
    "1.0": (("a0", "b0"), (None, -1)),
    "1.1": (("a0", "b1"), (None, 0)),
    "2.0": (("a0", "b2", "c0"), (None, None, -1)),
  }
  assert tree[0].id == "prm800k/rows:1/path"
  assert all(s.labels is None for s in tree)
  assert {s.problem for s in tree} == {"P?"}


def test_an_alternative_knows_of_doubts_on_its_path(write_rows):
  (tree,) = _trees(
    write_rows,
    _row(
      _step(1, chosen=0, text="a{}"),
      _step(0, 1, chosen=0, text="b{}"),
      _step(1, 1, chosen=0, text="c{}"),
    ),
  )
  extra = {s.id.rpartition("/")[2]: s.extra for s in tree}
  assert extra["2.1"]["path_ratings"] == [1, 0]
  # Nothing to know: all rated +1, or counted in the solution itself.
  assert "path_ratings" not in extra["1.1"]
  assert "path_ratings" not in extra["path"]


def test_a_step_that_a_person_wrote_is_never_rated(write_rows):
  (tree,) = _trees(
    write_rows, _row(_step(-1, human="H", text="a{}"), _step(1, chosen=0))
  )
  assert _known(tree) == {
    "path": (("H", "t0"), (None, 1)),
    "0.0": (("a0",), (-1,)),
  }


def test_the_chosen_completion_wins_over_a_written_one(write_rows):
  left_out = collections.Counter()
  row = _row(_step(1, chosen=0, human="H"))
  (tree,) = _trees(write_rows, row, left_out=left_out)
  assert left_out == {"unrated_completions": 1}
  assert _known(tree) == {"path": (("t0",), (1,))}


def test_phase_2_ends_in_the_first_error(write_rows):
  (tree,) = _trees(
    write_rows,
    _row(
      _step(1, text="a{}", chosen=0),
      _step(-1, 1, 1, text="b{}"),
      finish_reason="found_error",
    ),
  )
  assert _known(tree) == {
    "path": (("a0", "b0"), (1, -1)),
    "1.1": (("a0", "b1"), (None, 1)),
    "1.2": (("a0", "b2"), (None, 1)),
  }


def test_a_path_never_ends_in_a_completion_that_is_no_error(write_rows):
  (tree,) = _trees(
    write_rows, _row(_step(1, -1, text="a{}"), finish_reason="found_error")
  )
  assert _known(tree) == {"0.0": (("a0",), (1,)), "0.1": (("a1",), (-1,))}


@pytest.mark.parametrize("reason", ["give_up", None])
def test_a_walk_that_was_given_up_ends_before_its_alternatives(
  reason, write_rows
):
  (tree,) = _trees(
    write_rows,
    _row(_step(1, text="a{}", chosen=0), _step(-1, -1), finish_reason=reason),
  )
  assert _known(tree) == {
    "path": (("a0",), (1,)),
    "1.0": (("a0", "t0"), (None, -1)),
    "1.1": (("a0", "t1"), (None, -1)),
  }


def test_a_step_of_nulls_ends_the_walk(write_rows):
  nothing = dict.fromkeys(
    ("completions", "human_completion", "chosen_completion")
  )
  (tree,) = _trees(write_rows, _row(_step(1, chosen=0), nothing))
  assert _known(tree) == {"path": (("t0",), (1,))}


def test_equal_texts_are_kept_apart_also_from_the_path(write_rows):
  """One text, one rating and one index on the path and beside it."""
  (tree,) = _trees(
    write_rows,
    _row(
      _step(1, text="same", chosen=0),
      _step(1, -1, 1, text="same", chosen=2),
    ),
  )
  assert _known(tree) == {
    "path": (("same", "same"), (1, 1)),
    "1.0": (("same", "same"), (None, 1)),
    "1.1": (("same", "same"), (None, -1)),
  }


def test_what_is_known_of_the_row_and_the_step_is_kept(write_rows):
  (tree,) = _trees(
    write_rows,
    _row(
      _step(1, -1, chosen=0, text="a{}"),
      _step(1, chosen=0, text="Done.\n\n# Answer\n\n2", flagged=True),
      generation=6,
    ),
  )
  path, alternative = tree
  assert path.answer == "2" and alternative.answer is None
  assert path.extra["flagged"] and not alternative.extra["flagged"]
  for s in tree:
    assert s.extra["reference_answer"] == "2"
    assert s.extra["finish_reason"] == "solution"
    assert s.extra["generation"] == 6


# --- What is left out -------------------------------------------------------


def test_tests_of_the_labelers_are_left_out_and_counted(write_rows):
  step = _step(1, chosen=0)
  rows = [
    _row(step, is_quality_control_question=True),
    _row(step),
    _row(step, is_initial_screening_question=True),
    _row(step, generation=-1),
  ]
  left_out = collections.Counter()
  (tree,) = _trees(write_rows, *rows, left_out=left_out)
  assert tree[0].id == "prm800k/rows:2/path"
  assert left_out == {"quality_control_rows": 1, "screening_rows": 2}


def test_what_carries_no_rating_is_left_out_and_counted(write_rows):
  left_out = collections.Counter()
  trees = _trees(
    write_rows,
    _row(_step(None, None)),
    _row(_step(1, None, chosen=0), _step(1), _step(1, chosen=0), _step(1)),
    left_out=left_out,
  )
  assert [set(_known(tree)) for tree in trees] == [{"path", "1.0"}]
  assert left_out == {
    "unrated_completions": 3,
    "empty_rows": 1,
    "steps_after_the_end": 2,
  }


# --- Any row, and the published files ---------------------------------------

RATING = st.sampled_from([-1, 0, 1, None])


@st.composite
def raw_steps(draw):
  ratings = draw(st.lists(RATING, max_size=4))
  index = st.integers(0, len(ratings) - 1) if ratings else st.none()
  return _step(
    *ratings,
    chosen=draw(index | st.none()),
    human=draw(st.sampled_from([None, "H", "t0"])),
    text=draw(st.sampled_from(["t{}", "same"])),
  )


@settings(max_examples=200, deadline=None)
@given(
  steps=st.lists(raw_steps(), max_size=6),
  reason=st.sampled_from(["solution", "found_error", "give_up", None]),
)
def test_every_rated_completion_is_rated_once_after_its_own_prefix(
  write_rows, steps, reason
):
  row = _row(*steps, finish_reason=reason)
  trees = _trees(write_rows, row)
  found = [x for tree in trees for x in _rated_in_tree(tree)]
  assert collections.Counter(found) == collections.Counter(_rated_in_row(row))
  for tree in trees:
    assert len({s.id for s in tree}) == len(tree)
    path = tree[0].steps if tree[0].id.endswith("/path") else ()
    for s in tree[1:]:
      assert s.steps[:-1] == path[: len(s.steps) - 1]


def _content(s):
  """Returns all but the id, which names the file and line."""
  return s.problem, s.steps, s.ratings, s.answer, s.source, dict(s.extra)


@settings(max_examples=80, deadline=None)
@given(
  rows=st.lists(
    st.tuples(
      st.lists(raw_steps(), max_size=4),
      st.sampled_from(["solution", "found_error", "give_up", None]),
    ),
    max_size=3,
  )
)
def test_what_is_read_and_written_reads_the_same_or_is_refused(
  write_rows, folder, rows
):
  path = write_rows(*(_row(*steps, finish_reason=r) for steps, r in rows))
  found = list(prm800k.read(path))
  try:
    prm800k.write(folder / "again.jsonl", found)
  except errors.InputError as e:
    # An error that came behind completions that nobody rated: on the path now.
    assert "as its id says" in str(e)
    assert any(r == "found_error" for _, r in rows)
    return
  again = list(prm800k.read(folder / "again.jsonl"))
  assert list(map(_content, again)) == list(map(_content, found))


def test_solutions_that_were_no_tree_are_paths_of_their_own_rows(folder):
  solutions = [
    schema.Solution("x", "P?", ("a", "b"), ratings=(1, -1)),
    schema.Solution("y", "P?", ("a", "c"), ratings=(None, 0)),
  ]
  assert prm800k.write(folder / "own.jsonl", solutions) == 2
  found = list(prm800k.read(folder / "own.jsonl"))
  assert [(s.steps, s.ratings) for s in found] == [
    (s.steps, s.ratings) for s in solutions
  ]
  assert all(s.id.endswith("/path") for s in found)


def test_a_flag_comes_back_with_its_solution(write_rows, folder):
  row = _row(
    _step(1, -1, chosen=0, text="a{}", flagged=True), _step(1, chosen=0)
  )
  found = list(prm800k.read(write_rows(row)))
  prm800k.write(folder / "flags.jsonl", found)
  again = list(prm800k.read(folder / "flags.jsonl"))
  assert [s.extra["flagged"] for s in again] == [True, True]
  assert list(map(_content, again)) == list(map(_content, found))


def test_a_row_comes_back_with_its_flags_its_time_and_how_long_it_took(
  write_rows, folder
):
  row = _row(
    _step(1, chosen=0, text="a", flagged=True),
    _step(0, 1, chosen=0, text="b{}"),
    _step(-1, chosen=0, text="c", flagged=True),
    timestamp="2022-07-17T16:56:51.323252",
  )
  row["label"]["total_time"] = 278_270
  (path, other) = prm800k.read(write_rows(row))
  assert path.extra["flagged_steps"] == [0, 2]
  assert "flagged_steps" not in other.extra
  assert path.extra["seconds"] == 278.27
  prm800k.write(folder / "again.jsonl", [path, other])
  (again,) = map(json.loads, (folder / "again.jsonl").read_text().splitlines())
  assert again["label"] == row["label"]
  assert again["timestamp"] == row["timestamp"]
  # The fields of other sources are theirs.
  extra = dict(timestamp=3, seconds=float("nan"), flagged_steps="0")
  alone = schema.Solution("x", "P?", ("a",), ratings=(1,), extra=extra)
  prm800k.write(folder / "other.jsonl", [alone])
  assert [s.ratings for s in prm800k.read(folder / "other.jsonl")] == [(1,)]


@pytest.mark.real_data
@pytest.mark.parametrize(
  "parts, num_rows, num_solutions",
  [
    (("prm800k", "phase1_test.jsonl.gz"), 103, 3_582),
    (("prm800k", "phase2_sample.jsonl.gz"), 300, 300),
    (("formats", "samples_prm800k.jsonl"), 5, 35),
  ],
)
def test_the_published_trees_are_written_and_read_again(
  parts, num_rows, num_solutions, public_data, tmp_path
):
  # Whole files but the longest; a walk of phase 2 is one solution.
  every = prm800k.read(public_data(*parts))
  cut = 300 if "phase2_sample.jsonl.gz" in parts else None
  found = list(itertools.islice(every, cut))
  assert len(found) == num_solutions
  assert prm800k.write(tmp_path / "out.jsonl", found) == num_rows
  left_out = collections.Counter()
  again = list(prm800k.read(tmp_path / "out.jsonl", left_out=left_out))
  assert list(map(_content, again)) == list(map(_content, found))
  assert not left_out


@pytest.mark.real_data
def test_a_row_that_is_written_says_what_the_published_one_said(
  public_data, tmp_path
):
  """What stood there, what was chosen, and what a person wrote instead."""
  source = public_data("formats", "samples_prm800k.jsonl")
  rows = [row for _, row in files.read_records(source)]
  rows = [r for r in rows if not r["is_initial_screening_question"]]
  prm800k.write(tmp_path / "out.jsonl", prm800k.read(source))
  again = [row for _, row in files.read_records(tmp_path / "out.jsonl")]
  assert [r["label"]["finish_reason"] for r in rows].count("found_error")
  for a, b in zip(rows, again, strict=True):
    assert a["generation"] == b["generation"]
    for name in ("problem", "ground_truth_answer"):
      assert a["question"][name] == b["question"][name]
    said = [list(map(_said, r["label"]["steps"])) for r in (a, b)]
    # A walk that was given up ends in a step of nulls.
    while said[0][-1] == _said({}):
      said[0].pop()
    assert said[0] == said[1]


def _said(step):
  """Returns the rated completions in any order, the chosen, the written."""
  completions = step.get("completions") or []
  chosen = step.get("chosen_completion")
  return (
    sorted((c["text"], c["rating"]) for c in completions),
    None if chosen is None else completions[chosen]["text"],
    (step.get("human_completion") or {}).get("text"),
  )


@pytest.mark.real_data
@pytest.mark.parametrize(
  "name, num_rows, counts, left_out",
  [
    (
      "phase1_train",
      942,
      {1: 18_782, 0: 10_234, -1: 19_656},
      {"unrated_completions": 824, "empty_rows": 12},
    ),
    (
      "phase1_test",
      106,
      {1: 2_245, 0: 867, -1: 1_970},
      {"unrated_completions": 113, "empty_rows": 3},
    ),
    ("phase2_sample", 1_339, {1: 7_661, 0: 606, -1: 1_110}, {}),
  ],
)
def test_the_published_ratings_are_all_there_once(
  name, num_rows, counts, left_out, public_data
):
  source = public_data("prm800k", f"{name}.jsonl.gz")
  rows = [row for _, row in files.read_records(source)]
  assert len(rows) == num_rows
  missing = collections.Counter()
  trees = list(prm800k.read_trees(source, left_out=missing))
  assert missing == left_out
  assert len(trees) == num_rows - missing["empty_rows"]
  found = collections.Counter(x for t in trees for x in _rated_in_tree(t))
  assert found == collections.Counter(x for r in rows for x in _rated_in_row(r))
  by_rating = collections.Counter()
  for (*_, rating), number in found.items():
    by_rating[rating] += number
  assert by_rating == counts
  assert len({s.id for t in trees for s in t}) == sum(map(len, trees))
  assert all(len({s.problem for s in t}) == 1 for t in trees)


@pytest.mark.real_data
def test_a_path_has_no_error_but_phase_2s_last(public_data):
  phase_1 = prm800k.read(public_data("prm800k", "phase1_train.jsonl.gz"))
  paths = [s for s in phase_1 if s.id.endswith("/path")]
  assert paths and not any(-1 in s.ratings for s in paths)
  phase_2 = list(prm800k.read(public_data("prm800k", "phase2_sample.jsonl.gz")))
  assert len({s.extra["group"] for s in phase_2}) == 216
  assert sum(s.ratings[-1] == -1 for s in phase_2) == 1_110
  assert not any(-1 in s.ratings[:-1] for s in phase_2)


@pytest.mark.real_data
def test_raw_rows_of_both_phases_read_with_their_oddities(public_data):
  """A screening row, null completions, a written step, an error at the end."""
  source = public_data("formats", "samples_prm800k.jsonl")
  left_out = collections.Counter()
  trees = list(prm800k.read_trees(source, left_out=left_out))
  assert len(trees) == 5 and left_out == {"screening_rows": 1}
  assert trees[0][0].ratings == (1, None, 1, 1, 1, 1)
  assert trees[0][0].steps[1] == "We have $3p+e=1.24$ and $5p+e=1.82$."
  assert trees[0][0].answer == "29" == trees[0][0].extra["reference_answer"]
  assert trees[1][0].ratings[-1] == -1
  assert trees[1][0].extra["generation"] == 6
