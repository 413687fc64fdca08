"""Lines with a digest: damage is noticed, and costs no other line."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.runtime import checked_lines

RECORDS = [
  dict(step=1, loss_nats=0.5, text='a ", "crc32": "00000000"}'),
  dict(step=2, loss_nats=None, text="\u00e9\u2028 \\n"),
  dict(step=3, loss_nats=1e-7, text=""),
]
LINES = [checked_lines.line_of(json.dumps(x)).encode() for x in RECORDS]


def _scanned(content):
  return list(checked_lines.scan(io.BytesIO(content)))


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
  lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.booleans())
def test_a_record_comes_back_from_its_line(record, ascii_only):
  text = json.dumps(record, ensure_ascii=ascii_only)
  line = checked_lines.line_of(text)
  (found,) = _scanned(line.encode("utf-8", "surrogatepass"))
  assert line.count("\n") == 1 and not found.is_torn
  assert json.dumps(found.record) == json.dumps(record)
  # Any JSON reader still reads it, with one field more.
  assert json.loads(line).keys() == record.keys() | {"crc32"}


def test_no_flipped_bit_gives_another_record_or_costs_another_line():
  """Every bit of three lines, and what remains of the others."""
  whole = b"".join(LINES)
  for place in range(8 * len(whole)):
    content = bytearray(whole)
    content[place // 8] ^= 1 << place % 8
    found = _scanned(bytes(content))
    used = [x.record for x in found if x.record is not None]
    assert all(x in RECORDS for x in used), bytes(content)
    at = sum(place // 8 >= len(b"".join(LINES[:n])) for n in (1, 2, 3))
    lost = {at, at + 1} if whole[place // 8] == ord("\n") else {at}
    assert {0, 1, 2} - lost <= {RECORDS.index(x) for x in used}


@pytest.mark.parametrize("cut", range(1, len(LINES[2]) + 1))
def test_only_the_end_of_a_file_is_torn(cut):
  found = _scanned(b"".join(LINES)[:-cut])
  assert [x.record for x in found[:2]] == RECORDS[:2]
  assert [x.is_torn for x in found] == [False, False] + [True] * (
    len(found) - 2
  )
  assert all(x.record is None for x in found[2:])


@pytest.mark.parametrize(
  "bad",
  [b"{}\n", b"\n", b"\0\0\n", b"[1]\n", b"[" * 99_999 + b"\n", LINES[0][9:]],
)
def test_a_bad_line_that_isnt_the_last_is_damaged_not_torn(bad):
  found = _scanned(LINES[0] + bad + LINES[1])
  assert [x.record for x in found] == [RECORDS[0], None, RECORDS[1]]
  assert not any(x.is_torn for x in found)
  assert [x.number for x in found] == [1, 2, 3]
  assert b"".join(x.content for x in found) == LINES[0] + bad + LINES[1]


def test_a_last_line_of_another_content_is_damaged_not_torn():
  """A kill leaves no whole line with a wrong digest."""
  *_, last = _scanned(LINES[0] + LINES[1].replace(b'"step": 2', b'"step": 3'))
  assert last.record is None and not last.is_torn


def test_a_line_without_a_digest_is_damaged():
  plain = json.dumps(RECORDS[0]).encode() + b"\n"
  used = [x.record for x in _scanned(b"".join([plain, *LINES, plain]))]
  assert used == [None, *RECORDS, None]


def test_a_reader_names_the_damaged_line(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(b"".join(LINES).rstrip(b"\n"))
  assert [x for _, x in checked_lines.read(path)] == RECORDS
  where = [x for x, _ in checked_lines.read(path)]
  assert where == [f"{path}:{number}" for number in (1, 2, 3)]
  path.write_bytes(LINES[0] + LINES[1][:-9])
  assert [x for _, x in checked_lines.read(path)] == RECORDS[:1]
  for bad in (LINES[1].replace(b"2", b"3", 1), b"\xff\n"):
    path.write_bytes(LINES[0] + bad)
    with pytest.raises(errors.InputError) as e:
      list(checked_lines.read(path))
    assert str(e.value).startswith(f"{path}:2: damaged")
    assert "\n" not in str(e.value)
  with pytest.raises(errors.InputError, match="no such file"):
    list(checked_lines.read(tmp_path / "none.jsonl"))


def test_many_numbers_are_counted_not_listed():
  assert checked_lines.named([3, 5]) == "3, 5"
  assert checked_lines.named(range(1, 2_001)) == (
    "1, 2, 3, 4, 5, 6, 7, 8 and 1,992 more"
  )


def test_line_ends_of_two_bytes_do_not_turn_the_check_off():
  content = b"".join(LINES).replace(b"\n", b"\r\n")
  assert [x.record for x in _scanned(content)] == RECORDS
  damaged = _scanned(content.replace(b"0.5", b"0.7"))
  assert [x.record for x in damaged] == [None, *RECORDS[1:]]


def test_a_line_that_another_program_wrote_again_is_damaged():
  again = json.dumps(json.loads(LINES[0]), separators=(",", ":")).encode()
  assert _scanned(again + b"\n" + LINES[1])[0].record is None


@pytest.mark.parametrize(
  ("steps", "said"),
  [
    ((1, 2, 2), ":3: the train record of step 2 is there twice"),
    ((1, 3, 2), ":3: the train record of step 2 comes after one of step 3"),
    ((1, 2, 4), None),
  ],
)
def test_a_record_of_metrics_has_one_place(tmp_path, steps, said):
  path = tmp_path / "metrics.jsonl"
  records = [dict(step=step, kind="train") for step in steps]
  # Those of another kind, and what has no step, have places of their own.
  records += [dict(step=steps[-1], kind="eval"), dict(kind="eval"), {"a": 1}]
  lines = [checked_lines.line_of(json.dumps(x)) for x in records]
  path.write_text("".join(lines))
  if said is None:
    found = [record for _, record in checked_lines.read_metrics(path)]
    assert found == records
    return
  with pytest.raises(errors.InputError) as caught:
    list(checked_lines.read_metrics(path))
  assert str(caught.value).startswith(f"{path}{said}")
