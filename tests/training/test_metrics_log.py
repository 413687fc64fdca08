"""metrics.jsonl: a bad line costs itself, and is kept to be looked at."""

import json
import logging
import os
import runpy
import sys

import pytest

from prm_jax import errors
from prm_jax.huggingface import model_card
from prm_jax.runtime import checked_lines
from prm_jax.training import metrics_log
from prm_jax.view import view_inputs


def _write(path, steps):
  lines = [
    checked_lines.line_of(json.dumps(dict(step=s, kind="train"))) for s in steps
  ]
  path.write_text("".join(lines))
  return [line.encode() for line in lines]


def _kept(path, last=99):
  kept, dropped = metrics_log.keep_records(path, lambda r: r["step"] <= last)
  return [r["step"] for r in kept], dropped


def test_a_pipe_in_place_of_records_is_refused_and_not_waited_for(tmp_path):
  path = tmp_path / "metrics.jsonl"
  os.mkfifo(path)
  with pytest.raises(errors.InputError, match="a pipe, not a regular file"):
    _kept(path)


@pytest.mark.parametrize(
  "bad", [b"\xff\n", b'{"step": 2, "kind": "train"}\n', b"\n", b'{"kind": 1}\n']
)
def test_a_bad_line_is_set_aside_and_costs_no_other_record(
  tmp_path, bad, caplog
):
  path = tmp_path / "metrics.jsonl"
  lines = _write(path, range(1, 6))
  path.write_bytes(b"".join([lines[0], bad, *lines[2:]]))
  assert _kept(path, 4) == ([1, 3, 4], 1)
  assert path.read_bytes() == b"".join([lines[0], lines[2], lines[3]])
  aside = tmp_path / "metrics.damaged.jsonl"
  assert aside.read_bytes() == bad
  (message,) = caplog.messages
  assert message.startswith(f"{path}:2: WARNING: damaged;")
  assert aside.name in message and "\n" not in message
  # What was set aside before stays.
  path.write_bytes(b"nothing\n" + lines[0])
  assert _kept(path) == ([1], 0)
  assert aside.read_bytes() == bad + b"nothing\n"


def test_a_record_that_is_there_twice_is_set_aside(tmp_path, caplog):
  path = tmp_path / "metrics.jsonl"
  lines = _write(path, range(1, 4))
  path.write_bytes(b"".join([*lines[:2], lines[0], *lines[1:]]))
  assert _kept(path) == ([1, 2, 3], 0)
  assert path.read_bytes() == b"".join(lines)
  aside = tmp_path / "metrics.damaged.jsonl"
  assert aside.read_bytes() == lines[0] + lines[1]
  (message,) = caplog.messages
  assert message.startswith(f"{path}:3, 4: WARNING: damaged;")


def test_what_a_resumed_run_keeps_its_readers_take(tmp_path):
  path = tmp_path / "metrics.jsonl"
  lines = _write(path, [1, 3, 2, 4])
  assert _kept(path) == ([1, 3, 4], 0)
  assert len(list(checked_lines.read_metrics(path))) == 3
  assert (tmp_path / "metrics.damaged.jsonl").read_bytes() == lines[2]


@pytest.mark.parametrize(
  "read",
  [
    lambda workdir: view_inputs.read([workdir]),
    lambda workdir: model_card.facts_of_run(workdir, 2),
  ],
  ids=["page of a run", "model card"],
)
def test_no_reader_takes_a_record_twice(tmp_path, read):
  path = tmp_path / "metrics.jsonl"
  records = [dict(step=s, kind="train", loss_nats=0.5) for s in (1, 2, 2)]
  lines = [checked_lines.line_of(json.dumps(x)) for x in records]
  path.write_text("".join(lines[:2]))
  read(tmp_path)
  path.write_text("".join(lines))
  with pytest.raises(errors.InputError, match=r"metrics.jsonl:3: .*twice"):
    read(tmp_path)


def test_a_torn_last_line_is_dropped_and_said(tmp_path, caplog):
  path = tmp_path / "metrics.jsonl"
  lines = _write(path, range(1, 4))
  for cut in (1, 9, len(lines[2]) - 1):
    caplog.clear()
    path.write_bytes(b"".join(lines)[:-cut])
    assert _kept(path) == ([1, 2], 0)
    assert path.read_bytes() == b"".join(lines[:2])
    assert caplog.messages == [f"{path}:3: an unfinished last line is dropped"]
  assert [x.name for x in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_kept_lines_stay_as_they_are_to_the_byte(tmp_path):
  path = tmp_path / "metrics.jsonl"
  old = b'{"kind":"train","step":1,"\\u00e9/loss_nats":0.50}\n'
  path.write_bytes(old + checked_lines.line_of('{"step": 2}').encode())
  before = path.read_bytes()
  assert _kept(path) == ([1, 2], 0)
  assert path.read_bytes() == before
  # The line without a digest has one now.
  path.write_bytes(before.replace(b"0.50", b"0.40"))
  assert _kept(path) == ([2], 0)


@pytest.mark.parametrize(
  ("every", "steps", "missing"),
  [(1, (1, 2, 5), "3, 4"), (2, (2, 4), ""), (2, (2,), "4"), (0, (), "")],
)
def test_missing_records_are_said(tmp_path, caplog, every, steps, missing):
  path = tmp_path / "metrics.jsonl"
  _write(path, steps)
  with caplog.at_level(logging.WARNING):
    log = metrics_log.Log(
      tmp_path,
      first=5,
      steps=9,
      every=every,
      tensorboard=False,
      name="run",
      shown=(),
    )
  with log:
    log.write(6, "train", dict(loss_nats=0.5))
  said = [x for x in caplog.messages if "lacks" in x]
  assert [x.rpartition("updates ")[2] for x in said] == [missing] * bool(
    missing
  )
  *_, (where, record) = checked_lines.read(path)
  assert record["step"] == 6 and where.endswith(str(len(steps) + 1))


def test_a_run_without_tensorboard_files_does_not_import_tensorboardx(
  monkeypatch,
):
  """That imports torch if it is installed, which takes a second."""
  monkeypatch.setitem(sys.modules, "tensorboardX", None)  # an import fails
  runpy.run_path(metrics_log.__file__)


def _log(workdir, first):
  return metrics_log.Log(
    workdir, first=first, steps=9, tensorboard=False, name="run", shown=()
  )


def test_records_are_plain_and_have_their_digests_beside_them(tmp_path):
  path = tmp_path / "metrics.jsonl"
  for first in (0, 2):
    with _log(tmp_path, first) as log:
      for step in (first + 1, first + 2):
        log.write(step, "train", dict(loss=0.5))
  lines = path.read_bytes().splitlines()
  assert [json.loads(x)["step"] for x in lines] == [1, 2, 3, 4]
  assert "crc32" not in json.loads(lines[0])
  digests = checked_lines.digests_of(path).read_text().split()
  assert digests == [checked_lines.digest_of(x) for x in lines]


def test_a_digest_without_its_line_or_torn_costs_no_other_record(tmp_path):
  """Digests are written first: a kill between leaves one too many, or half."""
  path = tmp_path / "metrics.jsonl"
  beside = checked_lines.digests_of(path)
  for steps, torn in ((1, "0a1b2c3d\n"), (2, "0a1b"), (3, "")):
    with _log(tmp_path, steps - 1) as log:
      log.write(steps, "train", dict(loss=0.5))
    with open(beside, "a") as f:
      f.write(torn)
  assert _kept(path) == ([1, 2, 3], 0)
  assert not (tmp_path / "metrics.damaged.jsonl").exists()


def test_a_digest_is_on_disk_before_its_line(tmp_path, monkeypatch):
  path = tmp_path / "metrics.jsonl"
  with _log(tmp_path, 0) as log:

    def write(line):
      digest = checked_lines.digest_of(line.encode())
      assert digest in checked_lines.read_digests(path)
      raise OSError(28, "full")

    full = type("Full", (), dict(write=staticmethod(write), close=bool))
    monkeypatch.setattr(log, "_files", [log._files[0], full()])
    with pytest.raises(errors.InputError, match="can't be written"):
      log.write(1, "train", dict(loss=0.5))
