"""Solutions and problems survive their files; bad files end in one line."""

import dataclasses
import gzip
import json
import math
import os
import types

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.data.formats import jsonl
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """One folder for hypothesis' many runs."""
  return tmp_path_factory.mktemp("schema")


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


def test_blank_lines_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"a":2}\n{"a":3}')
  assert list(files.read_records(path)) == [
    (f"{path}:1", {"a": 1}),
    (f"{path}:4", {"a": 2}),
    (f"{path}:5", {"a": 3}),
  ]


def test_a_field_of_our_own_can_not_hide_in_extra():
  with pytest.raises(errors.InputError, match="'a': extra holds labels, steps"):
    schema.Solution("a", "p", (), extra={"steps": [], "labels": []})
  with pytest.raises(errors.InputError, match="'a': extra holds answer"):
    schema.Problem("a", "p", extra={"answer": "4"})


@pytest.mark.parametrize("name", ["labels", "ratings"])
def test_a_solution_has_one_judgement_per_step(name):
  with pytest.raises(errors.InputError, match=f"1 {name} for 2 steps"):
    schema.Solution("a", "p", ("x", "y"), **{name: (1,)})


@pytest.mark.parametrize(
  "labels, threshold, expected",
  [
    ((), 0.5, -1),
    ((1.0, None, 0.5), 0.5, -1),
    ((1.0, None, 0.49, 0.0), 0.5, 2),
    ((None, 0.0), 0.5, 1),
    ((0.9, 0.8), 0.85, 1),
  ],
)
def test_the_first_error_is_the_first_label_below_the_threshold(
  labels, threshold, expected
):
  assert schema.first_error(labels, threshold) == expected


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
  "no id": (_without("id"), 'missing field "id" (str or int)'),
  "no problem": (_without("problem"), 'missing field "problem" (str)'),
  "no steps": (_without("steps"), 'missing field "steps" (list)'),
  "id null": (_with(id=None), '"id" must be str or int, found null'),
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
  "label 1e999": (_labels("[0,1e999]"), '"labels"[1] is inf; expected P('),
  "400 digits": (_labels(f"[{'9' * 400},0]"), '"labels"[0] is 9999'),
  "5,000 digits": (_labels(f"[{'9' * 5000},0]"), "not JSON: Exceeds the limit"),
  "rating": (_with(ratings=[2, 0]), '"ratings"[0] is 2; expected -1, 0, 1'),
  "half rating": (_with(ratings=[0.5, 0]), '"ratings"[0] is 0.5; expected -1'),
  "bool rating": (_with(ratings=[True, 0]), '"ratings"[0] is True; expected'),
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
    ('{"id":"a"}', 'missing field "problem" (str)'),
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


def test_whole_characters_may_be_written_as_escapes(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(r'{"text": "\ud83d\ude00 \\ud83d"}')
  assert list(files.read_records(path)) == [
    (f"{path}:1", {"text": "\U0001f600 \\ud83d"})
  ]


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


# --- Bad files --------------------------------------------------------------


def test_a_line_of_64_mib_is_read_or_named(tmp_path):
  path = tmp_path / "a.jsonl"
  huge = _with(problem="p" * (64 << 20))
  path.write_text(f"{GOOD}\n{huge}\n{huge[:-1]}\n")
  records = files.read_records(path)
  assert [len(next(records)[1]["problem"]) for _ in range(2)] == [1, 64 << 20]
  with pytest.raises(errors.InputError) as error:
    next(records)
  assert _one_line(error).startswith(f"{path}:3: not JSON")
  assert len(str(error.value)) < len(str(path)) + 200


def test_bytes_that_are_not_utf_8_are_found_in_their_own_line(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'{"a":1}\n' * 5_000 + b'{"a":"\xff"}\n')
  with pytest.raises(errors.InputError) as error:
    list(files.read_records(path))
  assert _one_line(error).startswith(f"{path}:5001: not UTF-8 at column 7")
  with (
    pytest.raises(errors.InputError, match="not UTF-8"),
    files.open_text(path) as f,
  ):
    f.read()


LINES = b"".join(b'{"a":"%032x"}\n' % (i * i**i) for i in range(60))
PACKED = gzip.compress(LINES)


@pytest.mark.parametrize(
  "content",
  [
    PACKED[: len(PACKED) // 2],
    PACKED[:40] + bytes(40) + PACKED[80:],
    PACKED[:-8] + bytes(8),
    LINES,
  ],
  ids=["cut", "deflate", "checksum", "not gzip"],
)
def test_a_broken_gzip_file_is_one_line_that_names_file_and_line(
  content, tmp_path
):
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(content)
  with pytest.raises(errors.InputError) as error:
    list(files.read_records(path))
  said = _one_line(error)
  assert said.startswith(f"{path}:") and "broken gzip" in said
  assert said[len(str(path)) + 1].isdigit()
  with (
    pytest.raises(errors.InputError, match="broken gzip"),
    files.open_text(path) as f,
  ):
    f.read()


def test_a_file_that_can_not_be_read_is_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"none\.jsonl: no such file"):
    jsonl.read_solutions(tmp_path / "none.jsonl")
  with pytest.raises(errors.InputError, match="can't be read: Is a directory"):
    jsonl.read_solutions(tmp_path)


# --- Writing ----------------------------------------------------------------


@pytest.mark.parametrize(
  "value, message",
  [
    (math.nan, "can't be written as JSON"),
    (-math.inf, "can't be written as JSON"),
    ("\ud800", "a lone surrogate"),
    ({"\udfff": 1}, "a lone surrogate"),
  ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_no_file_can_hold_is_one_line_and_the_old_file_stays(
  value, message, name, tmp_path
):
  path = tmp_path / name
  path.write_bytes(b"old")
  with pytest.raises(errors.InputError) as error:
    files.write_records(path, [{"a": 1}, {"a": value}])
  assert _one_line(error).startswith(f"{path}:2: ")
  assert message in str(error.value)
  with pytest.raises(errors.InputError, match=message):
    files.write_json(path, value)
  assert path.read_bytes() == b"old"
  assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_ends_in_gz_is_gzipped_the_same_each_time(tmp_path):
  records = [{"a": "ки \u2581"}, {"a": None}]
  for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl.gz"):
    assert files.write_records(tmp_path / name, records) == 2
  plain = (tmp_path / "a.jsonl").read_bytes()
  packed = (tmp_path / "a.jsonl.gz").read_bytes()
  assert gzip.decompress(packed) == plain
  assert (tmp_path / "b.jsonl.gz").read_bytes() == packed
  # Neither a name nor a time is in the header (RFC 1952).
  assert packed[3] == 0 and packed[4:8] == bytes(4)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(
  name, tmp_path
):
  path = tmp_path / name
  path.write_bytes(b"old")
  with pytest.raises(KeyError), files.replacing(path) as f:
    f.write("half" * 10_000)
    raise KeyError
  assert path.read_bytes() == b"old"
  assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stands_until_the_block_ends(tmp_path):
  path = tmp_path / "a.bin"
  path.write_bytes(b"old")
  with files.replacing(path, "wb") as f:
    f.write(b"new")
    f.flush()
    assert path.read_bytes() == b"old"
  assert path.read_bytes() == b"new"
  assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made_and_a_link_stays_a_link(tmp_path):
  path = tmp_path / "deep" / "er" / "a.json"
  files.write_json(path, {"a": [1]})
  assert json.loads(path.read_text()) == {"a": [1]}
  link = tmp_path / "link.json"
  link.symlink_to(path)
  files.write_json(link, 2)
  assert link.is_symlink() and json.loads(path.read_text()) == 2


def test_a_path_that_can_not_be_written_is_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  for path, message in (
    (tmp_path, "not a regular file"),
    ("/dev/null", "not a regular file"),
    (tmp_path / "file" / "a.json", "can't be written: a folder on its path"),
    (tmp_path / ("x" * 300), "can't be written: File name too long"),
  ):
    with pytest.raises(errors.InputError) as error:
      files.write_json(path, 1)
    assert _one_line(error).startswith(f"{path}: {message}")


def test_hosts_that_write_one_file_at_once_do_not_share_a_temporary_one(
  tmp_path, monkeypatch
):
  path, hosts = tmp_path / "a", iter("xy")
  monkeypatch.setattr(os, "getpid", lambda: 7)
  monkeypatch.setattr(
    os, "uname", lambda: types.SimpleNamespace(nodename=next(hosts))
  )
  with files.replacing(path) as first:
    first.write("first")
    with files.replacing(path) as second:
      second.write("second")
    assert path.read_text() == "second"
  assert path.read_text() == "first"
  assert list(tmp_path.iterdir()) == [path]


def test_differences_are_named_however_deep_they_are():
  a = dict(x=1, y=dict(z=[1, 2], w=None, v=dict(u=1)))
  b = dict(x=1.0, y=dict(z=[2, 1], v=3), t=0)
  assert files.differences(a, b) == {"y.z", "y.v", "t"}
  assert files.differences(b, a) == {"y.z", "y.v", "t"}
  assert files.differences(a, a) == set()
