"""Laws of Label Studio's tasks: spans are steps, and nothing said is lost."""

import collections
import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import label_studio

TEXT = "So 2.\n\nNow 4. End"


def _span(start, end, *labels, text=TEXT, **value):
  spanned = dict(start=start, end=end, labels=[*labels], text=text[start:end])
  return dict(type="labels", id="r", from_name="l", to_name="t",
              value=spanned | value)  # fmt: skip


def _task(*annotations, **fields):
  data = dict(id="x", problem="p", text=TEXT)
  return dict(id=7, data=data, annotations=[*annotations]) | fields


def _by(name, *result, **fields):
  return dict(completed_by=name, result=[*result]) | fields


STEPS = (_span(0, 5, "right"), _span(7, 13, "wrong"))


def _read(write_rows, *tasks):
  left_out = collections.Counter()
  return [*label_studio.read(write_rows(*tasks), left_out)], dict(left_out)


def test_spans_are_steps_in_the_order_of_the_text(write_rows):
  task = _task(_by(1, *STEPS[::-1]), _by(dict(id=2, email="b@c.d"), STEPS[1]))
  (first, second), left_out = _read(write_rows, task)
  assert (first.id, first.problem) == ("x/1", "p")
  assert first.steps == ("So 2.", "Now 4.") and first.ratings == (1, -1)
  assert first.raw_text == TEXT and first.spans == ((0, 5), (7, 13))
  assert first.extra[schema.ANNOTATOR] == "1"
  assert second.id == "x/b@c.d" and second.extra["annotator"] == "b@c.d"
  assert first.extra["fields"] == {"id": 7}
  # " End", and for the second also "So 2."; blanks are nobody's.
  assert left_out == {"texts_outside_every_step": 3}


@pytest.mark.parametrize(
  "labels, rating",
  [(["Right"], 1), (["+1"], 1), (["neutral"], 0), (["INCORRECT"], -1),
   (["step"], None), ([], None), (["step", "wrong"], -1)],
)  # fmt: skip
def test_words_are_ratings_and_step_is_none(labels, rating, write_rows):
  steps = _span(0, 5, *labels), _span(7, 13, "right")
  (one,), _ = _read(write_rows, _task(_by(1, *steps)))
  assert one.ratings == (rating, 1) and "step_labels" not in one.extra


def test_other_labels_are_kept_and_are_no_ratings(write_rows):
  typed = _span(0, 5, "Plan", "wrong"), _span(7, 13, "Check")
  (one,), _ = _read(write_rows, _task(_by(1, *typed)))
  assert one.ratings == (-1, None)
  assert one.extra["step_labels"] == [["Plan"], ["Check"]]
  (one,), _ = _read(write_rows, _task(_by(1, typed[1])))
  assert one.ratings is None


def test_an_unlabelled_or_missing_value_of_labels_is_no_rating(write_rows):
  bare = _span(0, 5)
  del bare["value"]["labels"]
  (one,), _ = _read(write_rows, _task(_by(1, bare)))
  assert one.ratings is None


HTML = "<div>So <b>2</b>.</div><p>Now&nbsp;4 &lt; 5.<br>End</p>"


def test_html_is_read_as_the_text_that_offsets_count(write_rows):
  places = ((0, 5, "So 2."), (5, 16, "Now\\n 4 < 5."), (16, 19, "End"))
  spans = [
    dict(type="hypertextlabels", value=dict(
      start="/div[1]/text()[1]", startOffset=0, end="/p[1]", endOffset=3,
      globalOffsets=dict(start=a, end=b), text=text, hypertextlabels=["right"],
    ))
    for a, b, text in places
  ]  # fmt: skip
  task = _task(_by(1, *spans), data=dict(question="q", content=HTML, n=3))
  (one,), left_out = _read(write_rows, task)
  assert one.steps == ("So 2.", "Now\xa04 < 5.\n", "End")
  assert one.problem == "q" and one.id == "7/1" and left_out == {}
  assert one.extra["label_studio"]["data"] == {"n": 3}


def test_what_is_no_annotation_of_spans_is_counted(write_rows):
  choice = dict(type="choices", value=dict(choices=["hard"]))
  tasks = [
    _task(_by(1, *STEPS, was_cancelled=True)),
    _task(_by(1, choice)),
    _task(),
  ]
  assert _read(write_rows, *tasks) == (
    [],
    dict(
      skipped_annotations=1,
      annotations_without_a_span=1,
      tasks_without_annotations=2,
    ),
  )
  (one,), _ = _read(write_rows, _task(_by(1, *STEPS, choice)))
  assert one.extra["label_studio"]["results"] == [choice]


def test_a_models_prediction_is_never_a_rating(write_rows):
  guess = dict(model_version="m", result=[*STEPS])
  task = _task(predictions=[guess, guess])
  (one,), left_out = _read(write_rows, task)
  assert one.steps == ("So 2.", "Now 4.") and one.ratings is None
  assert one.id == "x" and left_out["predictions"] == 1
  skipped = _by(1, was_cancelled=True)
  (one,), _ = _read(write_rows, _task(skipped, predictions=[guess]))
  assert one.ratings is None
  (one,), _ = _read(write_rows, _task(_by(1, STEPS[1]), predictions=[guess]))
  assert one.ratings == (-1,)


def test_a_second_annotation_by_one_person_has_an_id_of_its_own(write_rows):
  task = _task(_by(1, *STEPS, id=5), _by(1, *STEPS, id=6))
  found, _ = _read(write_rows, task)
  assert [s.id for s in found] == ["x/1", "x/1/6"]


def _bad(*spans, **fields):
  return _task(_by(2, *spans), **fields)


@pytest.mark.parametrize(
  "task, message",
  [
    (_bad(_span(0, 5), _span(4, 8)), "span 4..8 overlaps with 0..5"),
    (_bad(_span(0, 99, text=TEXT)), "span 0..99 isn't in data.text"),
    (_bad(_span(3, 3)), "span 3..3 isn't in data.text"),
    (_bad(_span(-2, 3)), "span -2..3 isn't in data.text"),
    (_bad(_span(0, 5, text="So 3.")), "or its text differs"),
    (_bad(_span(0, 5, "right", "bad")), "right, bad contradict each other"),
    (_bad(_span(0, 5) | {"value": dict(start="0", end=5)}), '"start" must be int'),
    (_bad(STEPS[0], data=dict(id="x")), '"data" has no text'),
    (_bad(dict(type="hypertextlabels", value={})), '"globalOffsets" is missing'),
    (_task(5), "annotations[0] must be an object"),
    (_task(_by("me", *STEPS)), '"completed_by" must be int or dict'),
    (_task(_by({}, *STEPS)), '"id" is missing'),
    (dict(id=3), '"data" is missing'),
  ],
)  # fmt: skip
def test_a_bad_task_is_one_line_with_its_place(task, message, write_rows):
  with pytest.raises(errors.InputError) as caught:
    _read(write_rows, _task(_by(1, *STEPS), data=_task()["data"] | {"id": "y"}),
          task)  # fmt: skip
  told = str(caught.value)
  assert ":2: " in told and message in told and "\n" not in told


# --- Writing ----------------------------------------------------------------

WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


@st.composite
def _solutions(draw):
  found = []
  for i in range(draw(st.integers(1, 4))):
    steps = draw(st.lists(WORD, min_size=1, max_size=3).map(tuple))
    n = len(steps)
    name = draw(st.sampled_from([None, "1", "12", "a@b.c"]))
    extra = {} if name is None else {schema.ANNOTATOR: name}
    if draw(st.booleans()):
      words = st.lists(st.sampled_from(["Plan", "Typo"]), max_size=2)
      extra["step_labels"] = draw(st.lists(words, min_size=n, max_size=n))
    rating = st.sampled_from([-1, 0, 1, None])
    ratings = draw(
      st.none() | st.lists(rating, min_size=n, max_size=n).map(tuple)
    )
    found.append(
      schema.Solution(
        f"{i}" if name is None else f"{i}/{name}",
        draw(WORD),
        steps,
        ratings=ratings,
        extra=extra,
      )
    )
  return found


@settings(max_examples=80, deadline=None)
@given(solutions=_solutions(), end=st.sampled_from(["jsonl", "json"]))
def test_what_is_written_reads_back_the_same(solutions, end, folder):
  path = folder / f"tasks.{end}"
  label_studio.write(path, solutions)
  again = [*label_studio.read(path)]
  for a, b in zip(solutions, again, strict=True):
    assert (a.id, a.problem, a.steps) == (b.id, b.problem, b.steps)
    assert a.extra.get("annotator") == b.extra.get("annotator")
    none = (None,) * len(a.steps)
    assert (a.ratings or none) == (b.ratings or none)
    words = a.extra.get("step_labels", [])
    assert b.extra.get("step_labels", []) == (words if any(words) else [])


def test_an_export_is_written_back_with_all_its_annotations(write_rows, folder):
  choice = dict(type="choices", value=dict(choices=["hard"]))
  task = _task(
    _by(1, *STEPS, choice, id=5, lead_time=2.5), _by(2, STEPS[0]), project=3
  )
  task["data"]["topic"] = "sums"
  found, _ = _read(write_rows, task)
  assert label_studio.write(folder / "out.json", found) == 1
  (written,) = json.loads((folder / "out.json").read_text())
  assert written["data"] == task["data"] and written["project"] == 3
  assert written["annotations"][0]["lead_time"] == 2.5
  assert written["annotations"][0]["result"][-1] == choice
  again = [*label_studio.read(folder / "out.json")]
  assert again == found


def test_unlabelled_steps_are_predictions_to_begin_from(folder):
  given_ = schema.Solution("x", "p", ("a", "b"))
  label_studio.write(folder / "out.json", [given_])
  (task,) = json.loads((folder / "out.json").read_text())
  assert "annotations" not in task
  spans = task["predictions"][0]["result"]
  assert [x["value"]["labels"] for x in spans] == [["step"], ["step"]]
  assert len({x["id"] for x in spans}) == 2
  assert [x["value"]["start"] for x in spans] == [0, 3]
  assert task["data"] == dict(id="x", problem="p", text="a\n\nb")


def test_labels_are_right_and_wrong(folder):
  given_ = schema.Solution("x", "p", ("a", "b", "c"), (1.0, 0.0, None))
  label_studio.write(folder / "out.json", [given_])
  (same,) = label_studio.read(folder / "out.json")
  assert same.ratings == (1, -1, None)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(steps=()), "no step or an empty one"),
    (dict(steps=("a", "")), "no step or an empty one"),
    (dict(labels=(0.5, None)), "neither 0 nor 1"),
    (dict(extra=dict(annotator="ann")), "numbers or e-mail addresses"),
    (dict(extra=dict(label_studio=3)), '"label_studio" isn\'t what was read'),
    (dict(extra=dict(step_labels=["a"])), "a list of labels for each step"),
    (dict(extra=dict(step_labels=[[1], []])), "a list of labels for each step"),
  ],
)
def test_what_it_cannot_hold_is_refused(changes, message, folder):
  given_ = schema.Solution(
    **(dict(id="x", problem="p", steps=("a", "b")) | changes)
  )
  with pytest.raises(errors.InputError, match="solution 'x'") as caught:
    label_studio.write(folder / "no.json", [given_])
  assert message in str(caught.value)
  assert not (folder / "no.json").exists()


# --- The real export --------------------------------------------------------


@pytest.mark.real_data
def test_every_span_of_rt_seg_is_a_step(folder, public_data):
  path = public_data("rt_seg", "annotated_data.json.gz")
  left_out = collections.Counter()
  found = [*label_studio.read(path, left_out)]
  assert len(found) == 62 and sum(len(s.steps) for s in found) == 2_766
  assert {s.extra["annotator"] for s in found} == {"1", "8"}
  functions = {x for s in found for of in s.extra["step_labels"] for x in of}
  assert len(functions) == 8 and all(s.ratings is None for s in found)
  assert left_out == {"texts_outside_every_step": 44}
  label_studio.write(folder / "rt_seg.json", found)
  again = [*label_studio.read(folder / "rt_seg.json")]
  assert [(s.id, s.steps, s.spans) for s in again] == [
    (s.id, s.steps, s.spans) for s in found
  ]
