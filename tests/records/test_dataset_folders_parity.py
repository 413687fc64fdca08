"""What `datasets` itself saves is read. Needs the extra `parity`."""

import pytest

from prm_jax.records import record_files

# Not `datasets` alone: tests/datasets would be taken for it.
pytest.importorskip("datasets.arrow_dataset")
import datasets

pytestmark = pytest.mark.parity


def test_what_datasets_writes_is_read(tmp_path):
  rows = [dict(problem=f"{i}?", steps=["a", "b"], score=0.5) for i in range(7)]
  data = datasets.Dataset.from_list(rows)
  # An index that isn't the order of the file is applied when it is saved.
  data = data.select(range(6, -1, -1))
  both = datasets.DatasetDict(train=data, test=data.select([0]))
  both.save_to_disk(tmp_path / "saved", num_shards=dict(train=2, test=1))
  data.save_to_disk(tmp_path / "alone")
  data.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
  for path in ("saved/train", "alone", "hub", "hub/train"):
    found = [row for _, row in record_files.read_records(tmp_path / path)]
    assert found == rows[::-1], path
