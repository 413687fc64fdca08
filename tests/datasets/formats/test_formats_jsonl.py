"""Solutions and problems survive their files; bad lines end in one line."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.runtime import files

# Everything that UTF-8 can hold, with what line-wise readers trip over.
TEXT = st.text(
  st.characters(codec="utf-8")
  | st.sampled_from('\n\r\t\x00\x85\u2028\u2029\ufeff\U0001f600"\\')
)
LABEL = st.none() | st.floats(0, 1)
RATING = st.none() | st.sampled_from([-1, 0, 1])
JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats(allow_nan=False, allow_infinity=False)
  | TEXT,
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
  ),
  max_leaves=5,
)


def _extra(noun):
  own = {field.name for field in dataclasses.fields(noun)} - {"extra"}
  names = TEXT.filter(lambda name: name not in own)
  return st.dictionaries(names, JSON, max_size=3)


@st.composite
def solutions(draw):
  steps = draw(st.lists(TEXT, max_size=4).map(tuple))

  def one_each(values):
    rows = st.lists(values, min_size=len(steps), max_size=len(steps))
    return draw(st.none() | rows.map(tuple))

  return schema.Solution(
    id=draw(TEXT),
    problem=draw(TEXT),
    steps=steps,
    labels=one_each(LABEL),
    answer=draw(st.none() | TEXT),
    outcome=draw(st.none() | st.booleans()),
    source=draw(TEXT),
    ratings=one_each(RATING),
    extra=draw(_extra(schema.Solution)),
  )


def _one_line(error) -> str:
  message = str(error.value)
  assert "\n" not in message
  return message


# --- Round trips ------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@given(written=st.lists(solutions(), max_size=3))
def test_solutions_read_back_as_they_were_written(name, written, folder):
  assert jsonl.write_solutions(folder / name, written) == len(written)
  assert jsonl.read_solutions(folder / name) == written


@given(
  written=st.lists(
    st.builds(
      schema.Problem,
      id=TEXT,
      problem=TEXT,
      answer=st.none() | TEXT,
      extra=_extra(schema.Problem),
    ),
    max_size=3,
  )
)
def test_problems_read_back_as_they_were_written(written, folder):
  jsonl.write_problems(folder / "problems.jsonl", written)
  assert jsonl.read_problems(folder / "problems.jsonl") == written


def test_further_fields_pass_through_in_their_place(tmp_path):
  line = {"id": "a", "problem": "p", "steps": ["s"], "labels": [0.5]}
  line |= {"answer": None, "outcome": None, "source": ""}
  line |= {"extra": {"x": [1]}, "votes": 3}
  files.write_records(tmp_path / "in", [line])
  found = jsonl.read_solutions(tmp_path / "in")
  assert found[0].extra == {"extra": {"x": [1]}, "votes": 3}
  jsonl.write_solutions(tmp_path / "out", found)
  assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


@pytest.mark.parametrize(
  "sampled",
  [3, [], {}, {"ids": "1"}, {"ids": ""}, {"ids": [True]}, {"ids": [-1]}],
)
def test_ids_that_are_none_are_refused_at_their_record(sampled, tmp_path):
  """Later they'd be those of a prefix, whose id is in no input."""
  line = {"id": "a", "problem": "p", "steps": ["s"], "sampled": sampled}
  files.write_records(tmp_path / "in", [line])
  # Without its own text a solution isn't continued from ids.
  assert jsonl.read_solutions(tmp_path / "in")[0].extra["sampled"] == sampled
  line |= {"raw_text": "s", "spans": [[0, 1]]}
  files.write_records(tmp_path / "in", [{"id": 1, **line}, line])
  with pytest.raises(errors.InputError) as error:
    jsonl.read_solutions(tmp_path / "in")
  assert f'{tmp_path / "in"}:1: "sampled" must be' in _one_line(error)


def test_whole_numbers_become_labels_and_an_integer_id_a_string(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(
    '{"id":7,"problem":"","steps":["",""],"labels":[1,0],"ratings":[1.0,0]}'
  )
  (found,) = jsonl.read_solutions(path)
  assert (found.id, found.labels, found.ratings) == ("7", (1.0, 0.0), (1, 0))
  assert [type(x) for x in found.labels + found.ratings] == [
    float,
    float,
    int,
    int,
  ]


# --- Bad lines --------------------------------------------------------------

GOOD = '{"id":"a","problem":"p","steps":["s","t"]}'


def _with(**fields) -> str:
  return json.dumps(json.loads(GOOD) | fields)


def _without(name: str) -> str:
  return json.dumps({k: v for k, v in json.loads(GOOD).items() if k != name})


def _labels(text: str) -> str:
  return GOOD[:-1] + f',"labels":{text}}}'


BAD_LINES = {
  "cut short": (GOOD[:-1], "not JSON: Expecting ',' delimiter at column 42"),
  "two in one": (GOOD + GOOD, "not JSON: Extra data at column 43"),
  "a list": ("[]", "expected a JSON object, found list"),
  "null": ("null", "expected a JSON object, found NoneType"),
  "nested": ("[" * 200_000, "nested too deeply"),
  "no id": (_without("id"), 'field "id" is missing; give a str or int'),
  "no problem": (_without("problem"), 'field "problem" is missing; give a str'),
  "no steps": (_without("steps"), 'field "steps" is missing; give a list'),
  "id null": (_with(id=None), 'field "id" is null; give a str or int'),
  "id true": (_with(id=True), '"id" must be str or int, found bool'),
  "id float": (_with(id=1.5), '"id" must be str or int, found float'),
  "problem": (_with(problem=["p"]), '"problem" must be str, found list'),
  "steps text": (_with(steps="s"), '"steps" must be list, found str'),
  "step number": (_with(steps=["s", 3]), '"steps"[1] must be str, found int'),
  "answer": (_with(answer=4), '"answer" must be str, found int'),
  "outcome": (_with(outcome=1), '"outcome" must be bool, found int'),
  "source": (_with(source=[]), '"source" must be str, found list'),
  "labels text": (_labels('"10"'), '"labels" must be list, found str'),
  "labels short": (_labels("[1]"), '"labels" has 1 entries for 2 steps'),
  "labels long": (_labels("[1,1,1]"), '"labels" has 3 entries for 2 steps'),
  "label high": (_labels("[1,1.01]"), '"labels"[1] is 1.01; expected P('),
  "label low": (_labels("[-1,0]"), '"labels"[0] is -1; expected P('),
  "label true": (_labels("[true,0]"), '"labels"[0] is True; expected P('),
  "label text": (_labels('["0.5",0]'), "\"labels\"[0] is '0.5'; expected P("),
  "label list": (_labels("[[1],0]"), '"labels"[0] is [1]; expected P('),
  "label NaN": (_labels("[1,NaN]"), "not JSON: NaN is no number of JSON"),
  "label inf": (_labels("[-Infinity,0]"), "-Infinity is no number of JSON"),
  "label 1e999": (_labels("[0,1e999]"), "1e999 is beyond the largest number"),
  "400 digits": (_labels(f"[{'9' * 400},0]"), "a number of 400 characters"),
  "300 digits": (_labels(f"[{'9' * 300},0]"), '"labels"[0] is 9999'),
  "5,000 digits": (_labels(f"[{'9' * 5000},0]"), "a number of 5,000 char"),
  "rating": (_with(ratings=[2, 0]), '"ratings"[0] is 2; expected -1, 0, 1'),
  "half rating": (_with(ratings=[0.5, 0]), '"ratings"[0] is 0.5; expected -1'),
  "bool rating": (_with(ratings=[True, 0]), '"ratings"[0] is True; expected'),
  "path rating": (_with(path_ratings=[2]), '"path_ratings"[0] is 2; expected'),
  "path list": (_with(path_ratings=[[]]), '"path_ratings"[0] is []; expected'),
  "path text": (_with(path_ratings="x"), '"path_ratings" must be list'),
  "path long": (_with(path_ratings=[1, 1, 1]), "has 3 entries for 2 steps"),
  "a name twice": (
    GOOD[:-1] + ',"steps":["u"]}',
    '"steps" occurs twice in an object; keep one of them',
  ),
  "twice within": (GOOD[:-1] + ',"x":[{"y":1,"y":1}]}', '"y" occurs twice'),
  "NUL": (GOOD.replace("p", "\x00"), "not JSON: Invalid control character"),
  "surrogate": (_with(problem="\ud83d"), "a lone surrogate"),
  "in a name": (_with(**{"\udfff": 1}), "a lone surrogate"),
}


@pytest.mark.parametrize("line, message", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_one_line_that_names_file_and_line(
  line, message, tmp_path
):
  path = tmp_path / "a.jsonl"
  path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n", encoding="utf-8")
  with pytest.raises(errors.InputError) as error:
    jsonl.read_solutions(path)
  said = _one_line(error)
  assert said.startswith(f"{path}:3: ")
  assert message in said
  assert len(said) < len(str(path)) + 200


@pytest.mark.parametrize(
  "line, message",
  [
    ('{"id":"a"}', 'field "problem" is missing; give a str'),
    ('{"id":false,"problem":"p"}', '"id" must be str or int, found bool'),
    ('{"id":"a","problem":"p","answer":4}', '"answer" must be str, found int'),
  ],
)
def test_a_bad_problem_is_one_line_that_names_file_and_line(
  line, message, tmp_path
):
  path = tmp_path / "a.jsonl"
  path.write_text(line)
  with pytest.raises(errors.InputError) as error:
    jsonl.read_problems(path)
  assert _one_line(error).startswith(f"{path}:1: ")
  assert message in str(error.value)


@given(
  start=st.integers(0, 60),
  length=st.integers(0, 20),
  middle=st.binary(max_size=8)
  | st.text(alphabet='[]{}:,"\\\n 0truefalsnudidE+-.').map(str.encode),
)
def test_a_damaged_line_is_read_or_ends_in_one_line(
  start, length, middle, folder
):
  path = folder / "damaged.jsonl"
  good = _labels("[1,null]").encode()
  path.write_bytes(good[:start] + middle + good[start + length :])
  try:
    jsonl.read_solutions(path)
  except errors.InputError as e:
    assert "\n" not in str(e)
    assert str(e).startswith(f"{path}:")


def test_a_file_that_can_not_be_read_is_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"none\.jsonl: no such file"):
    jsonl.read_solutions(tmp_path / "none.jsonl")
  with pytest.raises(errors.InputError, match="can't be read: Is a directory"):
    jsonl.read_solutions(tmp_path)
