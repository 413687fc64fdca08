"""Records survive their files; bad files end in one line, old ones stay."""

import gzip
import json
import math
import os
import types

import pytest

from prm_jax import errors
from prm_jax.runtime import files


def _one_line(error) -> str:
  message = str(error.value)
  assert "\n" not in message
  return message


# --- Reading ----------------------------------------------------------------


def test_blank_lines_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"a":2}\n{"a":3}')
  assert list(files.read_records(path)) == [
    (f"{path}:1", {"a": 1}),
    (f"{path}:4", {"a": 2}),
    (f"{path}:5", {"a": 3}),
  ]


def test_a_line_is_read_strictly_or_refused_by_its_number(tmp_path):
  path = tmp_path / "w"

  def parsed(text):
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return [record for _, record in files.read_records(path)]

  assert parsed('\ufeff{"a": 1}\n') == [{"a": 1}]
  for text, message in (
    ('{"a": "\udcff"}', "w:1: not UTF-8 at column 8"),
    ("[1]", "w:1: expected a JSON object, found list"),
    ("{", "w:1: not JSON: Expecting property name"),
    ("[" * 501 + "]" * 501, "w:1: nested too deeply"),
  ):
    with pytest.raises(errors.InputError) as error:
      parsed(text)
    assert _one_line(error).startswith(f"{tmp_path}/{message}")


def test_whole_characters_may_be_written_as_escapes(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(r'{"text": "\ud83d\ude00 \\ud83d"}')
  assert list(files.read_records(path)) == [
    (f"{path}:1", {"text": "\U0001f600 \\ud83d"})
  ]


def test_a_line_of_64_mib_is_read_or_named(tmp_path):
  path = tmp_path / "a.jsonl"
  huge = f'{{"problem":"{"p" * (64 << 20)}"}}'
  path.write_text(f'{{"problem":"p"}}\n{huge}\n{huge[:-1]}\n')
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
