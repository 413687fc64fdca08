"""A folder from anyone gives its own files, and no other of this machine."""

import os

import pytest

from prm_jax import errors
from prm_jax.runtime import foreign_files


def _refused(folder, name, message):
  with pytest.raises(errors.InputError, match=message) as e:
    foreign_files.find(folder, name)
  assert "\n" not in str(e.value)
  assert str(folder / name) in str(e.value)


def test_a_file_and_a_link_inside_the_folder_are_found(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  (tmp_path / "link.json").symlink_to("config.json")
  for name in ("config.json", "link.json"):
    assert foreign_files.find(tmp_path, name) == tmp_path / name
  assert foreign_files.find(tmp_path, "other.json") is None
  assert foreign_files.find(tmp_path / "nowhere", "config.json") is None
  # The folder that the user gives may be a link itself.
  (tmp_path / "folder").symlink_to(tmp_path, target_is_directory=True)
  assert foreign_files.find(tmp_path / "folder", "config.json") is not None


@pytest.mark.parametrize("relative", [False, True])
def test_a_link_out_of_the_folder_is_refused(relative, tmp_path):
  folder = tmp_path / "folder"
  folder.mkdir()
  (tmp_path / "secret").write_text("key")
  target = "../secret" if relative else tmp_path / "secret"
  (folder / "config.json").symlink_to(target)
  (folder / "over").symlink_to(folder / "config.json")
  for name in ("config.json", "over"):
    _refused(folder, name, "a link out of its folder")


@pytest.mark.parametrize(
  "name", ["../secret", "/etc/passwd", "a/b", "..", ".", "", "a\0b"]
)
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
  with pytest.raises(errors.InputError):
    foreign_files.find(tmp_path, name)


def test_what_isnt_a_regular_file_is_refused(tmp_path):
  (tmp_path / "folder.json").mkdir()
  os.mkfifo(tmp_path / "pipe.json")
  (tmp_path / "gone.json").symlink_to("nowhere")
  (tmp_path / "loop.json").symlink_to("loop.json")
  _refused(tmp_path, "folder.json", "not a regular file")
  _refused(tmp_path, "pipe.json", "not a regular file")
  _refused(tmp_path, "gone.json", "isn't there")
  _refused(tmp_path, "loop.json", "can't be read")


@pytest.mark.parametrize(
  ("name", "mebibytes"), [("config.json", 32), ("tokenizer.json", 256)]
)
def test_a_file_that_is_too_large_is_refused(name, mebibytes, tmp_path):
  path = tmp_path / name
  for num_bytes in (mebibytes << 20, (mebibytes << 20) + 1):
    with open(path, "wb") as f:
      f.truncate(num_bytes)  # a hole: it takes no space
    if num_bytes == mebibytes << 20:
      assert foreign_files.find(tmp_path, name) == path
  _refused(tmp_path, name, "bytes; expected")
  weights = path.rename(tmp_path / "model.safetensors")
  assert foreign_files.find(tmp_path, weights.name) == weights


def test_the_cache_of_the_hub_may_link_to_its_blobs_alone(tmp_path):
  model = tmp_path / "models--org--name"
  folder = model / "snapshots" / "abc"
  folder.mkdir(parents=True)
  (model / "blobs").mkdir()
  (model / "blobs" / "123").write_text("{}")
  (folder / "config.json").symlink_to("../../blobs/123")
  assert foreign_files.find(folder, "config.json") == folder / "config.json"
  (model / "refs").write_text("not a blob")
  (folder / "refs").symlink_to("../../refs")
  _refused(folder, "refs", "a link out of its folder")
  # Nor may the blobs be a link to another folder.
  (model / "blobs" / "123").unlink()
  (model / "blobs").rmdir()
  (tmp_path / "123").write_text("key")
  (model / "blobs").symlink_to(tmp_path)
  _refused(folder, "config.json", "a link out of its folder")
