"""What was computed is read back as it was, or made again."""

import hashlib
import io
import os

import numpy as np

from prm_jax.records import kept_arrays


def test_no_flipped_bit_of_what_was_kept_is_used(tmp_path, caplog):
  """Places all over the file; and a file under the name of another key."""
  arrays = dict(a=np.arange(5), b=np.asarray("text"))
  kept_arrays.kept(tmp_path, "name", "k", lambda: arrays)
  (path,) = tmp_path.iterdir()
  content = path.read_bytes()
  made = 0

  def again():
    nonlocal made
    made += 1
    return arrays

  places = range(0, len(content), 3)
  for place in places:
    changed = bytearray(content)
    changed[place] ^= 1 << place % 8
    path.write_bytes(changed)
    found = kept_arrays.kept(tmp_path, "name", "k", again)
    assert found.keys() == arrays.keys()
    for name, x in arrays.items():
      assert found[name].dtype == x.dtype and (found[name] == x).all()
  assert made > len(places) // 2
  other = hashlib.sha256(b"other").hexdigest()[:32]
  made = 0
  path.with_name(f"name-{other}.npz").write_bytes(content)
  kept_arrays.kept(tmp_path, "name", "other", again)
  assert made == 1
  assert "damaged; it is made again" in caplog.text


def test_what_was_computed_is_kept_under_its_key(tmp_path, caplog):
  calls = []

  def compute():
    calls.append(1)
    return dict(a=np.arange(3), b=np.asarray("text"))

  for key in ("k", "k", "l"):
    found = kept_arrays.kept(tmp_path, "name", key, compute)
    assert found["a"].tolist() == [0, 1, 2] and str(found["b"]) == "text"
  assert len(calls) == 2
  whole = io.BytesIO()
  np.save(whole, np.arange(3))
  for damage in (
    lambda path: path.write_bytes(path.read_bytes()[:40]),
    lambda path: path.write_bytes(whole.getvalue()),
    lambda path: (path.unlink(), os.mkfifo(path)),
  ):
    calls.clear()
    caplog.clear()
    for path in [*tmp_path.iterdir()]:
      damage(path)
    kept_arrays.kept(tmp_path, "name", "k", compute)
    assert len(calls) == 1
    assert "damaged; it is made again" in caplog.text
  calls.extend([1, 1])
  # Where nothing can be kept the work is done, and that is said.
  (tmp_path / "file").write_text("")
  kept_arrays.kept(tmp_path / "file", "name", "k", compute)
  assert len(calls) == 4
  assert "name isn't kept: " in caplog.text


def test_what_is_asked_for_anew_is_computed_and_kept(tmp_path):
  for value in (1, 2):
    made = kept_arrays.kept(
      tmp_path,
      "name",
      "k",
      lambda value=value: dict(a=np.asarray(value)),
      fresh=True,
    )
    assert made["a"] == value
  later = kept_arrays.kept(tmp_path, "name", "k", dict)
  assert later["a"] == 2
