"""A mapping finds the fields of a solution, or says where they aren't."""

import json
import re

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import convert
from prm_jax.datasets import data_inputs
from prm_jax.datasets.formats import mapped
from prm_jax.datasets.formats import step_numbers
from prm_jax.records import sources

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


# --- Tables of texts ----------------------------------------------------------


def _csv(tmp_path, text, mapping, name="mine.csv"):
  path = tmp_path / name
  path.write_text(text)
  return sources.read(f"map({mapping})", path)[0]


def test_csv_and_tsv_are_read_with_lists_as_json_or_python_writes_them(
  tmp_path,
):
  header = "question,cot,marks,gold"
  json_row = '"1 + 1,\nthen?","[""a"", ""b, c""]","[1, -1]",2'
  python_row = """2?,"['it''s', 'b']","[0, None]",7""".replace("''", "\\'")
  mapping = "problem=question,steps=cot,ratings=marks,answer=gold"
  text = "\n".join([header, json_row, "", python_row])
  first, second = _csv(tmp_path, text, mapping)
  assert (first.id, second.id) == ("map/mine:2", "map/mine:5")
  assert first.problem == "1 + 1,\nthen?" and first.answer == "2"
  assert first.steps == ("a", "b, c") and first.ratings == (1, -1)
  assert second.steps == ("it's", "b") and second.ratings == (0, None)
  tabs = text.replace("question,cot,marks,gold", "question\tcot\tmarks\tgold")
  tabs = (
    tabs.replace('?",', '?"\t').replace(']",', ']"\t').replace("2?,", "2?\t")
  )
  of_tabs = _csv(tmp_path, tabs, mapping, "mine.tsv")
  assert [s.steps for s in of_tabs] == [first.steps, second.steps]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "mine.csv: is empty; its first row names"),
    ("a,a\n1,2\n", "mine.csv:1: the header has the column 'a' twice"),
    ("q,s\n1\n", "mine.csv:2: 1 cells, and the header has 2"),
    ('q,s\n"1,2\n', "mine.csv:2: .*double quote not closed"),
    ("q,s\nx,\"['a'\"\n", "mine.csv:2: the steps are one text"),
  ],
)
def test_a_bad_table_of_texts_is_one_line(text, message, tmp_path):
  with pytest.raises(errors.InputError, match=message):
    _csv(tmp_path, text, "problem=q,steps=s")


# --- Several solutions, several annotators, other words ----------------------


def test_rows_of_a_record_have_its_own_fields(read):
  record = dict(
    question="q",
    chain_of_thoughts=[
      dict(steps=["a", "b"], labels=[1, 0], by="x"),
      dict(steps=["c"], labels=[1], question="own"),
    ],
  )
  mapping = "rows=chain_of_thoughts,problem=question,steps=steps,labels=labels"
  found = read(mapping, record, record)
  assert [s.id for s in found] == [f"map/mine:{i}" for i in (1, 2, 3, 4)]
  assert [s.problem for s in found[:2]] == ["q", "own"]
  assert found[0].steps == ("a", "b") and found[0].labels == (1, 0)
  assert found[0].extra["fields"] == dict(by="x")
  starred = read(
    mapping.replace("rows=chain_of_thoughts", "rows=chain_of_thoughts.*"),
    record,
  )
  assert starred == found[:2]


def test_lists_with_an_entry_for_each_solution_are_rows(read):
  record = dict(task="t", code=["a\nb", "c"], score=[1, 0], judged={"by": 3})
  mapping = "rows=code+score,problem=task,steps=code,outcome=score"
  found = read(mapping + r",separator=\n", record)
  assert [(s.steps, s.outcome) for s in found] == [
    (("a", "b"), True),
    (("c",), False),
  ]
  assert found[0].extra["fields"] == dict(judged={"by": 3})
  with pytest.raises(errors.InputError, match=r"1: .*2 of code, 1 of score"):
    read(mapping, record | dict(score=[1]))
  with pytest.raises(errors.InputError, match="score is int, expected a list"):
    read(mapping, record | dict(score=1))
  with pytest.raises(errors.InputError, match=r"leads to str.*rows=a"):
    read("rows=code,problem=task,steps=code", record)


def test_records_without_rows_are_said(read, caplog):
  found = read(
    "rows=samples,problem=q,steps=s",
    dict(q="a", samples=[]),
    dict(q="b", samples=[dict(s=["x"])]),
  )
  assert [s.problem for s in found] == ["b"]
  assert "1 records have no rows at samples" in caplog.text


def test_an_index_names_one_annotator(read):
  record = dict(
    q="?",
    s=["a", "b"],
    annotations=[dict(ratings=[1, -1]), dict(ratings=[0, 1])],
  )
  for i in (0, 1):
    (found,) = read(
      f"problem=q,steps=s,ratings=annotations.{i}.ratings", record
    )
    assert list(found.ratings) == record["annotations"][i]["ratings"]
  with pytest.raises(errors.InputError, match=r"no 'annotations\.2\.ratings'"):
    read("problem=q,steps=s,ratings=annotations.2.ratings", record)


def test_words_are_ratings_if_told(read, tmp_path):
  record = dict(q="?", s=["a", "b", "c"], r=["Good", "ok", "bad"])
  mapping = "problem=q,steps=s,ratings=r"
  with pytest.raises(errors.InputError, match="words=good=1"):
    read(mapping, record)
  (found,) = read(mapping + ",words=good:1;ok:0;bad:-1", record)
  assert found.ratings == (1, 0, -1)
  source = data_inputs.Source(
    str(tmp_path / "mine.jsonl"), map=mapping, words="good=1,ok=0,bad=-1"
  )
  assert source.read()[0] == [found]
  for words in ("good", "good=2", "good=1,Good=0"):
    with pytest.raises(errors.InputError, match="expected WORD=RATING"):
      mapped.parse_words(words)
  with pytest.raises(errors.InputError, match="map ratings=FIELD"):
    read("problem=q,steps=s,words=good:1", record)


def test_lists_of_options_are_joined(read):
  record = dict(q="Which?", options=["2", 3], more={"A": "2", "B": 3}, s=["a"])
  (found,) = read("problem=q+options,steps=s", record)
  assert found.problem == "Which?\n2\n3"
  (found,) = read("problem=q+more,steps=s", record)
  assert found.problem == "Which?\nA: 2\nB: 3"


@pytest.mark.parametrize(
  ("mapping", "record"),
  [
    (
      f"rows=*.*,{MAP},numbers=remove",
      {"q7": [MR_BEN, MR_BEN], "q8": [MR_BEN]},
    ),
    (
      r"problem=q,steps=s,separator=\n,first_error_from_1=e,none=0",
      dict(q="?", s="a\nb\nc", e=0),
    ),
    (
      "rows=annotations,problem=q,steps=s,ratings=ratings,annotator=by",
      dict(
        q="?",
        s=["a", "b"],
        annotations=[
          dict(by="x", ratings=[1, -1]),
          dict(by="y", ratings=[0, None]),
        ],
      ),
    ),
  ],
  ids=["mr_ben", "one text", "annotators"],
)
def test_what_is_mapped_reads_back_the_same_from_our_own_form(
  mapping, record, tmp_path
):
  path, output = tmp_path / "theirs.json", tmp_path / "ours.jsonl"
  path.write_text(json.dumps(record))
  done = convert.convert((f"map({mapping})", path), "jsonl", output)
  assert not done.changed
  again = sources.read("jsonl", output)[0]
  assert again == sources.read(f"map({mapping})", path)[0]
  assert len(again) == done.solutions > 0
  if "annotator" in mapping:
    assert [s.extra[schema.ANNOTATOR] for s in again] == ["x", "y"]


# --- Numbers of steps ---------------------------------------------------------


def test_numbers_are_taken_off_if_asked(read):
  (kept,) = read(MAP, MR_BEN)
  (cut,) = read(MAP + ",numbers=remove", MR_BEN)
  assert kept.steps == tuple(MR_BEN["Model_Solution_Steps"])
  assert cut.steps == ("2 + 3 = 5", "5 * 4 = 20", "A")
  with pytest.raises(errors.InputError, match="give numbers=remove"):
    read(MAP + ",numbers=yes", MR_BEN)


def test_only_a_steps_own_number_is_one():
  steps = (
    *("Step 1: a", "step 2. b", "**Step 3:** c", "**Step 4**: d"),
    *("5. e", "(6) f", "### Step 7 - g", "8", "9.5 apples", "Step 1: h"),
    *("Step 11", "12.", "Step 13 is next"),
  )
  assert step_numbers.without(steps) == (
    *("a", "b", "c", "d", "e", "f", "g", "8", "9.5 apples", "Step 1: h"),
    *("Step 11", "12.", "Step 13 is next"),
  )
  assert step_numbers.count(steps) == 7


# --- What an unfamiliar file is told ------------------------------------------


@pytest.mark.parametrize(
  "record",
  [
    MR_BEN,
    dict(input="q", steps=["a", "b"], target="4", mistake_index=1),
    dict(question="q", response="a\n\nb", label=[1, 0]),
    dict(prompt="q", completions=["a"], labels=[True], idx=3),
    dict(q_id=1, question="q", samples=[dict(steps=["a"], ratings=[1])]),
  ],
)
def test_the_mapping_that_is_guessed_reads_the_file(record, tmp_path):
  path = tmp_path / "theirs.jsonl"
  path.write_text(json.dumps(record) + "\n")
  with pytest.raises(errors.InputError) as e:
    sources.read("jsonl", path)
  text = str(e.value)
  assert all(repr(name) in text for name in record)
  [mapping] = re.findall(r"`map='(.*)'` \(a guess\)", text)
  (found,) = sources.read(f"map({mapping})", path)[0]
  assert found.problem and found.steps


def test_without_an_idea_the_message_shows_the_form(tmp_path):
  path = tmp_path / "theirs.jsonl"
  path.write_text('{"a": 1}\n')
  with pytest.raises(errors.InputError, match=r"the record has 'a'.*=FIELD'`$"):
    sources.read("jsonl", path)
