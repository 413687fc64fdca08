"""What is read is a regular file within its limits; else one line says so."""

import gzip
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys

import pytest

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import limits

READERS = {
  "records": lambda path: list(files.read_records(path)),
  "json": files.read_json,
  "text": files.read_text,
  "bytes": files.read_bytes,
}


def _refusal(read, path) -> str:
  with pytest.raises(errors.InputError) as error:
    read(path)
  message = str(error.value)
  assert "\n" not in message and len(message) < len(str(path)) + 200
  return message


# --- The kind of file -------------------------------------------------------


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_only_regular_files_are_read(read, monkeypatch, tmp_path):
  pipe = tmp_path / "pipe"
  os.mkfifo(pipe)
  assert "a pipe, not a regular file" in _refusal(read, pipe)
  for device in ("/dev/zero", "/dev/null", "/dev/urandom"):
    assert "not a regular file" in _refusal(read, device)
  assert "Is a directory" in _refusal(read, tmp_path)
  assert "no such file" in _refusal(read, tmp_path / "none")
  assert "a NUL in its name" in _refusal(read, "a\0b")
  monkeypatch.chdir(tmp_path)  # a socket's name has a limit of its own
  with socket.socket(socket.AF_UNIX) as s:
    s.bind("socket")
    assert "not a regular file" in _refusal(read, "socket")


def test_a_pipe_that_somebody_writes_to_is_refused_and_left_whole(tmp_path):
  read_end, write_end = os.pipe()
  os.write(write_end, b'{"a": 1}\n')
  try:
    for read in READERS.values():
      assert "a pipe" in _refusal(read, f"/dev/fd/{read_end}")
    assert os.read(read_end, 100) == b'{"a": 1}\n'
  finally:
    os.close(read_end)
    os.close(write_end)


def test_a_link_to_a_file_is_read_and_a_link_to_a_device_is_not(tmp_path):
  (tmp_path / "a").write_text("{}")
  (tmp_path / "link").symlink_to(tmp_path / "a")
  assert files.read_json(tmp_path / "link") == {}
  (tmp_path / "zero").symlink_to("/dev/zero")
  _refusal(files.read_json, tmp_path / "zero")
  assert "not a regular" in _refusal(inputs.check_regular, tmp_path / "zero")
  inputs.check_regular(tmp_path / "link")


def test_the_page_on_data_states_the_limits():
  root = pathlib.Path(__file__).parents[2]
  page = (root / "docs" / "data.md").read_text()
  table = page.split("## What a file may hold")[1].split("## ")[0]
  for number, unit in (
    (limits.LINE_BYTES >> 20, "MiB"),
    (limits.JSON_BYTES >> 20, "MiB"),
    (limits.FILE_BYTES >> 20, "MiB"),
    (limits.NESTING, "|"),
    (limits.NUMBER_CHARACTERS, "characters"),
    (limits.MODEL_SIZE, "each"),
    (limits.MODEL_LAYERS, "|"),
  ):
    assert f"| {number:,} {unit}" in table


# --- Sizes ------------------------------------------------------------------


def test_a_line_has_a_limit_and_one_of_that_length_is_read(
  monkeypatch, tmp_path
):
  monkeypatch.setattr(limits, "LINE_BYTES", 1 << 20)
  path = tmp_path / "a.jsonl"
  line = json.dumps({"a": "x" * ((1 << 20) - 10)}) + "\n"
  assert len(line) == 1 << 20
  path.write_text(f"{{}}\n{line}{line[:-1]} \n")
  records = files.read_records(path)
  assert len([next(records) for _ in range(2)]) == 2
  with pytest.raises(errors.InputError) as error:
    next(records)
  assert str(error.value).startswith(f"{path}:3: a line of more than 1 MiB; ")


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("limit, read", [
  ("JSON_BYTES", files.read_json),
  (None, lambda path: inputs.read_bytes(path, 1 << 20)),
])  # fmt: skip
def test_a_file_that_is_read_whole_has_a_limit(
  limit, read, name, monkeypatch, tmp_path
):
  if limit:
    monkeypatch.setattr(limits, limit, 1 << 20)
  path = tmp_path / name
  with (gzip.open if name.endswith(".gz") else open)(path, "wb") as f:
    f.write(b"{}" + b" " * (1 << 20))
  assert "holds more than 1 MiB" in _refusal(read, path)


_READ = """
import resource, sys
from prm_jax import errors
from prm_jax.runtime import files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
  count = sum(1 for _ in files.read_records(sys.argv[1]))
  print("read", count)
except errors.InputError as e:
  print(e)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def _read_elsewhere(path: pathlib.Path) -> tuple[str, float]:
  """Returns what a process says that reads it, and the MiB that this took."""
  done = subprocess.run(
    [sys.executable, "-c", _READ, str(path)],
    capture_output=True,
    text=True,
    check=True,
    preexec_fn=lambda: resource.setrlimit(
      resource.RLIMIT_AS, (2 << 30, 2 << 30)
    ),
  )
  said, kib = done.stdout.splitlines()
  return said, int(kib) / 1024


def test_no_gzip_file_fills_the_memory(tmp_path):
  path = tmp_path / "blank.jsonl.gz"
  # 4 GiB: one endless line.
  path.write_bytes(gzip.compress(b" " * (32 << 20)) * 128)
  said, mib = _read_elsewhere(path)
  assert said.startswith(f"{path}:1: a line of more than 128 MiB")
  assert mib < 300
  # Blank lines, and short records, are as many as there may be.
  path.write_bytes(gzip.compress(b"\n" * (2 << 20) + b"{}\n" * 9_999) * 2)
  said, mib = _read_elsewhere(path)
  assert said == "read 19998"
  assert mib < 50
