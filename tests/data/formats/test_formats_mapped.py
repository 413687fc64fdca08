"""A mapping finds the fields of a solution, or says where they aren't."""

import json

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import sources
from prm_jax.data.formats import mapped

# The fields are those of Mr-Ben, the texts our own.
MR_BEN = {
  "Question_UUID": "q7",
  "Question": "What is 2 + 3 * 4?",
  "Options": "A: 20\nB: 14",
  "Sampled_Model": "small",
  "Model_Solution_Steps": ["Step 1: 2 + 3 = 5", "Step 2: 5 * 4 = 20", "A"],
  "Model_Solution_Correctness": "incorrect",
  "Model_Solution_First_Error_Step": "1",
}
MAP = (
  "problem=Question+Options,steps=Model_Solution_Steps,"
  "outcome=Model_Solution_Correctness,"
  "first_error_from_1=Model_Solution_First_Error_Step"
)


@pytest.fixture
def read(tmp_path):
  def read(mapping, *records, text=None):
    path = tmp_path / "mine.jsonl"
    lines = (json.dumps(record) + "\n" for record in records)
    path.write_text("".join(lines) if text is None else text)
    return sources.read(f"map({mapping})", path)[0]

  return read


def test_mr_bens_fields_become_a_solution(read):
  (solution,) = read(MAP, MR_BEN)
  assert solution == schema.Solution(
    id="map/mine:1",
    problem="What is 2 + 3 * 4?\nA: 20\nB: 14",
    steps=tuple(MR_BEN["Model_Solution_Steps"]),
    labels=(0.0, None, None),
    outcome=False,
    source="map",
    extra={
      "group": solution.extra["group"],
      "fields": {"Question_UUID": "q7", "Sampled_Model": "small"},
    },
  )


def test_records_inside_one_object_are_found(read):
  text = json.dumps({"q7": [MR_BEN, MR_BEN], "q8": [MR_BEN]}, indent=2)
  solutions = read(f"rows=*.*,{MAP}", text=text)
  assert [s.id for s in solutions] == [f"map/mine:{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize(
  "first_error, labels",
  [
    (0, (0.0, None)),
    ("1", (1.0, 0.0)),
    (1.0, (1.0, 0.0)),
    (-1, (1.0, 1.0)),
    ("N/A", (1.0, 1.0)),
    (" ", None),
    (None, None),
  ],
)
def test_a_first_error_is_right_before_wrong_there_and_unknown_after(
  first_error, labels, read
):
  record = dict(q="p", s=["a", "b"], e=first_error)
  (solution,) = read("problem=q,steps=s,first_error=e", record)
  assert solution.labels == labels


@pytest.mark.parametrize(
  "name, error, message",
  [
    ("first_error", 3, "the 2 steps are counted from 0; if 3 says that no"),
    ("first_error_from_1", 3, "the 2 steps are counted from 1; if 3 says"),
    ("first_error", "?", "'e', which `map` takes as first_error, is '?'"),
    ("first_error", True, "is True"),
    ("first_error", 0.5, "is 0.5"),
  ],
)
def test_a_first_error_outside_the_steps_is_refused(name, error, message, read):
  with pytest.raises(errors.InputError, match=r":1: ") as caught:
    read(f"problem=q,steps=s,{name}=e", dict(q="p", s=["a", "b"], e=error))
  assert message in str(caught.value)


# What three solutions of two steps say, and the labels that they have.
ALL_WRONG_AT = [(0.0, None), (1.0, 0.0), (1.0, 1.0)]


@pytest.mark.parametrize(
  "told, mapping",
  [
    ((0, 1, -1), "first_error=e"),
    ((1, 2, -1), "first_error_from_1=e"),
    ((1, 2, 0), "first_error_from_1=e,none=0"),
    (("1", "2", "0.0"), "first_error_from_1=e,none=0"),
    ((1, 2, "N/A"), "first_error_from_1=e,none=0"),
    ((0, 1, 99), "first_error=e,none=99"),
    ((0, 1, "All Right"), "first_error=e,none=all right"),
    ((0, 1, False), "first_error=e,none=false"),
  ],
)
def test_each_way_to_count_first_errors_has_a_mapping(told, mapping, read):
  records = [dict(q=f"p{e}", s=["a", "b"], e=e) for e in told]
  solutions = read(f"problem=q,steps=s,{mapping}", *records)
  assert [s.labels for s in solutions] == ALL_WRONG_AT


@pytest.mark.parametrize("first", ["first_error", "first_error_from_1"])
def test_the_advice_leads_to_the_mapping_from_1_with_0_for_none(first, read):
  """Each message is followed as far as it goes, with none=0 where it says."""
  records = [dict(q=f"p{e}", s=["a", "b"], e=e) for e in (0, 1, 2)]
  mapping, tried = f"{first}=e", []
  while mapping not in tried:
    tried.append(mapping)
    try:
      solutions = read(f"problem=q,steps=s,{mapping}", *records)
    except errors.InputError as e:
      assert "add none=0" in str(e)
      if "map first_error_from_1" in str(e):
        mapping = "first_error_from_1=e"
      mapping += ",none=0"
  assert mapping == "first_error_from_1=e,none=0"
  assert [s.labels for s in solutions] == [ALL_WRONG_AT[i] for i in (2, 0, 1)]


def test_a_value_for_none_that_is_a_step_is_refused(read):
  record = dict(q="p", s=["a", "b"], e=0)
  with pytest.raises(errors.InputError, match=r"map first_error_from_1$"):
    read("problem=q,steps=s,first_error=e,none=0", record)
  record["e"] = 2
  with pytest.raises(errors.InputError, match=r"none=2 has no place here$"):
    read("problem=q,steps=s,first_error_from_1=e,none=2", record)


@pytest.mark.parametrize(
  "told, is_warned",
  [
    ((0, 0, 0, 1, 2, 1), True),
    ((0, 0, 0, 1, 2, -1), False),
    ((0, 0, 1, 2, 1, 2), False),  # few
    ((0, 0, 0, *(1, 2) * 6), False),  # a fifth, as among wrong solutions
  ],
)
def test_zeros_without_a_word_for_none_are_warned_of(
  told, is_warned, read, caplog
):
  records = [dict(q=f"p{e}", s=["a", "b", "c"], e=e) for e in told]
  read("problem=q,steps=s,first_error=e", *records)
  advice = "map first_error_from_1=e,none=0"
  assert [advice in message for message in caplog.messages] == [
    True
  ] * is_warned
  # From 1 a 0 can't be read in silence.
  caplog.clear()
  read("problem=q,steps=s,first_error_from_1=e,none=0", *records)
  assert not caplog.messages


def test_steps_in_one_text_are_cut_at_the_separator(read):
  record = dict(q="p", s="one, two\n\nthree\n\n \n\n")
  (solution,) = read(r"problem=q,steps=s,separator=\n\n", record)
  assert solution.steps == ("one, two", "three")
  (solution,) = read(r"problem=q,steps=s,separator=\x2c", record)
  assert solution.steps == ("one", "two\n\nthree")
  with pytest.raises(errors.InputError, match=r":1: the steps are one text"):
    read("problem=q,steps=s", record)


def test_a_path_goes_into_objects_and_lists(read):
  record = {
    "input": {"text": "p", "more": 1},
    "a.b": 7,
    "turns": [{"t": "one", "ok": True}, {"t": "two", "ok": "-"}],
  }
  (solution,) = read(
    "problem=input.text,steps=turns.*.t,labels=turns.*.ok,id=a.b", record
  )
  assert (solution.problem, solution.id) == ("p", "7")
  assert (solution.steps, solution.labels) == (("one", "two"), (1.0, 0.0))
  # Of what isn't taken whole, nothing is lost.
  fields = {name: record[name] for name in ("input", "turns")}
  assert solution.extra["fields"] == fields


def test_an_entry_without_the_field_is_refused_not_left_out(read):
  record = dict(q="p", turns=[dict(t="one"), dict(u="two")])
  with pytest.raises(errors.InputError, match=r"no 'turns.\*.t', which `map`"):
    read("problem=q,steps=turns.*.t", record)


@pytest.mark.parametrize(
  "value, message",
  [
    (dict(labels=[1]), "1 labels for 2 steps"),
    (dict(labels=[1, -1]), "expected labels in [0, 1]; -1, 0 and 1"),
    (dict(labels=[1, "maybe"]), "expected one of true, correct"),
    (dict(labels="good"), "expected a list"),
    (dict(ratings=[1, 2]), "expected -1, 0, 1 or null"),
    (dict(ratings=[True, False]), "expected -1, 0, 1 or null"),
    (dict(outcome="perhaps"), "expected one of true, correct"),
    (dict(outcome=[1]), "expected one of true, correct"),
    (dict(answer={}), "expected a text or a number"),
    (dict(source=3), "expected a text"),
  ],
)
def test_a_value_of_another_form_is_one_line(value, message, read):
  ((name, _),) = value.items()
  record = dict(q="p", s=["a", "b"]) | value
  with pytest.raises(errors.InputError, match=r":1: ") as caught:
    read(f"problem=q,steps=s,{name}={name}", record)
  assert message in str(caught.value)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "mapping, message",
  [
    ("problem=q", "steps is missing"),
    ("problem=q,steps=s,step=s", "'step' is no field"),
    ("problem=q,steps=s,problem=r", "is there twice"),
    ("problem=q,steps", "has no ="),
    ("problem=q,steps=", "steps has no path"),
    ("problem=q,steps=s,separator=", "separator is empty"),
    ("problem=q,steps=s,separator=\\", "begins an escape"),
    ("problem=q,steps=s,labels=a,ratings=b", "labels and ratings both"),
    ("problem=q,steps=s,first_error=e,none=", "none is empty"),
    ("problem=q,steps=s,labels=e,none=0", "none=0 is a value of the first"),
  ],
)
def test_a_mapping_of_another_form_is_refused(mapping, message):
  with pytest.raises(errors.InputError) as caught:
    mapped.parse_mapping(mapping)
  assert message in str(caught.value)


def test_a_separator_may_hold_any_character(read):
  (solution,) = read("problem=q,steps=s,separator=→", dict(q="p", s="a→b"))
  assert solution.steps == ("a", "b")


def test_a_mapped_source_of_a_config_is_read(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.jsonl").write_text(json.dumps(dict(q="p", s="a:b")))
  source = "map(problem=q,steps=s,separator=:):a.jsonl"
  (solution,) = sources.open_source(source)
  assert solution.steps == ("a", "b")
  assert sources.source_names([source], [[solution]]) == ["map"]
