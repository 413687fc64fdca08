"""Solutions that stay in their files are those that were written."""

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import tfds_records
from prm_jax.records import array_record

pytestmark = pytest.mark.usefixtures("printed_log")


@pytest.fixture(autouse=True)
def _quiet():
  tfds_records.quiet(bars=False)


def _solutions(num, prefix=""):
  return [
    schema.Solution(f"{prefix}{i}", f"p{i // 3}", ("é", str(i)), (1.0, None))
    for i in range(num)
  ]


def _folder(tmp_path, **splits):
  return tfds_records.write(tmp_path, "x", splits)


def test_it_is_the_sequence_that_was_written(tmp_path, monkeypatch):
  monkeypatch.setattr(array_record, "BLOCK", 7)
  expected = _solutions(30)
  found = array_record.Stored(_folder(tmp_path, train=expected))
  assert len(found) == 30
  assert list(found) == expected
  assert found[-1] == expected[-1] and found[3:9:2] == expected[3:9:2]
  numbers = np.random.default_rng(0).permutation(30).tolist()
  assert found.read(numbers) == [expected[i] for i in numbers]
  for number in (30, -31):
    with pytest.raises(IndexError):
      found[number]


def test_a_split_is_written_below_the_folder(tmp_path):
  both = _folder(tmp_path, train=_solutions(3), test=_solutions(2))
  assert (
    len(array_record.Stored(both))
    == len(array_record.Stored(both / "train"))
    == 3
  )
  assert len(array_record.Stored(both / "test")) == 2
  only = _folder(tmp_path / "b", dev=_solutions(4))
  assert len(array_record.Stored(only)) == 4
  neither = _folder(tmp_path / "c", a=_solutions(1), b=_solutions(1))
  for path, words in (
    (both / "dev", "no split 'dev'; it has"),
    (neither, "which split?"),
    (tmp_path / "none", "no dataset_info.json there"),
  ):
    with pytest.raises(errors.InputError, match=words) as caught:
      array_record.Stored(path)
    assert "\n" not in str(caught.value)


def test_chosen_solutions_come_from_all_parts_in_the_order_of_their_numbers(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(array_record, "BLOCK", 4)
  a, b, c = _solutions(5, "a"), _solutions(1, "b"), _solutions(6, "c")
  parts = [a, array_record.Stored(_folder(tmp_path, train=b)), [], c]
  numbers = np.random.default_rng(1).permutation(12)[:10]
  found = array_record.Chosen(parts, numbers)
  expected = [(a + b + c)[i] for i in numbers]
  assert len(found) == 10 and list(found) == expected
  assert found[2] == expected[2] and found[-1] == expected[-1]
  assert found.read([9, 0, 9]) == [expected[i] for i in (9, 0, 9)]


def test_a_fingerprint_follows_the_content_alone(tmp_path):
  rows = _solutions(3)
  same = [
    array_record.Stored(_folder(tmp_path / name, train=rows))
    for name in ("a", "b")
  ]
  other = array_record.Stored(_folder(tmp_path / "c", train=_solutions(3, "x")))
  assert same[0].fingerprint == same[1].fingerprint != other.fingerprint
  every = np.arange(6)
  prints = [
    array_record.Chosen([part, rows], numbers).fingerprint
    for part, numbers in (
      (same[0], every),
      (same[1], every),
      (other, every),
      (same[0], every[::-1]),
    )
  ]
  assert prints[0] == prints[1] and len(set(prints)) == 3
  changed = [*rows[:2], schema.Solution("2", "p", ("z",))]
  assert (
    array_record.Chosen([same[0], changed], every).fingerprint not in prints
  )


def _overwritten(content):
  return content[:200] + b"\x55" * 400 + content[600:]


@pytest.mark.parametrize(
  "damage",
  [
    _overwritten,
    lambda x: b"",
    lambda x: x[: len(x) // 2],
    lambda x: x[:-10],
  ],
  ids=["overwritten", "empty", "half", "10 bytes less"],
)
def test_damaged_records_are_refused_in_one_line(damage, tmp_path):
  folder = _folder(tmp_path, train=_solutions(50))
  (file,) = folder.glob("*.array_record*")
  file.write_bytes(damage(file.read_bytes()))
  with pytest.raises(errors.InputError, match=r"damaged|can't be read") as e:
    list(array_record.Stored(folder))
  assert "\n" not in str(e.value) and str(folder) in str(e.value)


@pytest.mark.parametrize("number", [20, 31, 50])
def test_another_number_of_records_than_the_files_hold_is_refused(
  number, tmp_path
):
  """A changed digit of dataset_info.json never leaves records out."""
  folder = _folder(tmp_path, train=_solutions(30), test=_solutions(3))
  path = folder / "dataset_info.json"
  text = path.read_text()
  path.write_text(text.replace('"30"', f'"{number}"'))
  assert path.read_text() != text
  with pytest.raises(errors.InputError) as e:
    list(array_record.Stored(folder))
  message = str(e.value)
  assert message.startswith(f"{path}: says that split 'train' has {number} rec")
  assert "hold 30" in message and "\n" not in message
  assert len(list(array_record.Stored(folder / "test"))) == 3
