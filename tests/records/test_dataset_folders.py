"""The folders of Hugging Face `datasets` are read as the file of a split."""

import json

import pyarrow
from pyarrow import ipc
from pyarrow import parquet
import pytest

from prm_jax import errors
from prm_jax.cli import main
from prm_jax.records import dataset_folders
from prm_jax.records import record_files
from prm_jax.records import sources


def _rows(first, num):
  return [
    dict(problem=f"{i}+1?", steps=[f"so {i + 1}"], ok=True)
    for i in range(first, first + num)
  ]


def _parquet(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _arrow(path, rows, make=ipc.new_stream):
  path.parent.mkdir(parents=True, exist_ok=True)
  table = pyarrow.Table.from_pylist(rows)
  with make(str(path), table.schema) as f:
    f.write_table(table, 2)


def _hub(folder, inside=""):
  """Parquet files as the Hub has them, of two splits."""
  for i in range(2):
    name = f"train-{i:05}-of-00002.parquet"
    _parquet(folder / inside / name, _rows(3 * i, 3))
  _parquet(folder / inside / "test.parquet", _rows(9, 1))


def _hub_in_data(folder):
  _hub(folder, "data")


def _converted(folder):
  """A folder of Parquet files for each split, as the Hub converts them."""
  for i in range(2):
    _parquet(folder / "train" / f"{i:04}.parquet", _rows(3 * i, 3))
  _parquet(folder / "test" / "0000.parquet", _rows(9, 1))


def _saved(folder):
  """What DatasetDict.save_to_disk writes."""
  for split, parts in (("train", 2), ("test", 1)):
    names = [f"data-{i:05}-of-{parts:05}.arrow" for i in range(parts)]
    for i, name in enumerate(names):
      rows = _rows(3 * i, 3) if split == "train" else _rows(9, 1)
      _arrow(folder / split / name, rows)
    state = dict(_data_files=[dict(filename=name) for name in names])
    (folder / split / "state.json").write_text(json.dumps(state))
  splits = dict(splits=["train", "test"])
  (folder / "dataset_dict.json").write_text(json.dumps(splits))


MAKE = dict(
  hub=_hub, hub_in_data=_hub_in_data, converted=_converted, saved=_saved
)


@pytest.mark.parametrize("name", MAKE)
def test_a_split_is_all_its_files_in_order(name, tmp_path):
  MAKE[name](tmp_path)
  train = tmp_path / "train"
  found = list(record_files.read_records(train))
  assert [row for _, row in found] == _rows(0, 6)
  assert [where for where, _ in found] == [f"{train}:{i}" for i in range(1, 7)]
  assert [x for _, x in record_files.read_records(tmp_path / "test")] == (
    _rows(9, 1)
  )
  with pytest.raises(errors.InputError, match=r"splits (test|train), t") as e:
    list(record_files.read_records(tmp_path))
  assert "\n" not in str(e.value)
  with pytest.raises(errors.InputError, match="no such file"):
    list(record_files.read_records(tmp_path / "validation"))


@pytest.mark.parametrize("name", MAKE)
def test_a_folder_of_one_split_needs_no_name(name, tmp_path):
  MAKE[name](tmp_path)
  for path in sorted(tmp_path.rglob("*")):
    if "test" in path.relative_to(tmp_path).as_posix() and path.is_file():
      path.unlink()
  listed = tmp_path / "dataset_dict.json"
  if listed.exists():
    listed.write_text(json.dumps(dict(splits=["train"])))
  found = [row for _, row in record_files.read_records(tmp_path)]
  assert found == _rows(0, 6)


def test_a_command_and_a_config_take_a_split(tmp_path, monkeypatch, capsys):
  _hub(tmp_path / "hub", "data")
  words = ["data", "convert", "hub/train", "--map=problem=problem,steps=steps"]
  (tmp_path / "work").mkdir()
  # Found there, or below PRM_JAX_DATA.
  for folder, root in (("", "none"), ("work", "")):
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("PRM_JAX_DATA", str(tmp_path / root))
    assert main.main([*words, "--to=jsonl", "--output=out.jsonl"]) == 0
    assert "6 solutions of hub/train" in capsys.readouterr().out
  source = "map(problem=problem,steps=steps):hub/train"
  ids = [s.id for s in sources.open_source(source)]
  assert ids == [f"map/train:{i}" for i in range(1, 7)]
  assert sources.paths_of([source]) == [tmp_path / "hub"]


def test_one_arrow_file_is_read_in_both_its_formats(tmp_path):
  for make in (ipc.new_stream, ipc.new_file):
    _arrow(tmp_path / "x", _rows(0, 5), make)
    found = [row for _, row in record_files.read_records(tmp_path / "x")]
    assert found == _rows(0, 5)


def _lost_shard(folder):
  _hub(folder)
  (folder / "train-00001-of-00002.parquet").unlink()


def _lost_arrow(folder):
  _saved(folder)
  (folder / "train" / "data-00001-of-00002.arrow").unlink()


def _state(value):
  def make(folder):
    _saved(folder)
    (folder / "train" / "state.json").write_text(json.dumps(value))

  return make


def _cut(folder):
  _saved(folder)
  path = folder / "train" / "data-00001-of-00002.arrow"
  path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (_lost_shard, "1 of 2 files are there"),
    (_lost_arrow, "no such file"),
    (_state({}), "names of files"),
    (_state(dict(_data_files=[dict(filename="../test/x")])), "names of files"),
    (_state(dict(_data_files=[], _indices_data_files=[{}])), "by an index"),
    (_cut, "data-00001-of-00002.arrow: damaged table after row"),
  ],
)
def test_a_split_that_isnt_whole_is_refused_in_one_line(
  make, message, tmp_path
):
  make(tmp_path)
  with pytest.raises(errors.InputError, match=message) as e:
    list(record_files.read_records(tmp_path / "train"))
  assert "\n" not in str(e.value)


def test_other_paths_are_of_no_split(tmp_path):
  (tmp_path / "a.jsonl").touch()
  for path in ("a.jsonl", "b.jsonl", ".", "no/such"):
    assert dataset_folders.files_of(tmp_path / path) is None
