"""What was paid for is paid for once."""

import errno
import functools
import os
import resource
import time

import pytest
import stub_server

from prm_jax import errors
from prm_jax import remote
from prm_jax import schema
from prm_jax.policy import sampler
from prm_jax.remote import reply_journal as reply_journal


def test_a_stopped_run_asks_only_for_what_is_missing(serve, tmp_path):
  path = tmp_path / "j.jsonl"
  clean = stub_server.generate(stub_server.client(serve()))
  broken = serve(
    lambda handler, body, _: (
      handler.say(b"no", 400)
      if "3" in body["prompt"]
      else stub_server.reply(body)
    )
  )
  with pytest.raises(errors.InputError):
    stub_server.generate(stub_server.client(broken, path, concurrency=1))
  finished = len(path.read_text().splitlines())
  assert finished == 6
  with path.open("a") as f:
    f.write('{"key": "killed in the midd')  # and a torn last line
  stub = serve()
  client = stub_server.client(stub, path)
  told = []
  assert stub_server.generate(client, progress=told.append) == clean
  assert len(stub.seen) == 9 - finished
  assert client.counts["torn_lines"] == 1
  assert client.counts["from_journal"] == finished
  assert told == [6, 7, 8, 9]
  assert stub_server.generate(stub_server.client(stub, path)) == clean
  assert len(stub.seen) == 9 - finished


def test_a_damaged_reply_is_asked_for_again_and_no_other(
  serve, tmp_path, caplog
):
  path = tmp_path / "j.jsonl"
  clean = stub_server.generate(stub_server.client(serve(), path))
  lines = path.read_bytes().splitlines(keepends=True)
  assert len(lines) == 9
  for change in ((b'"text": "', b'"text": "7'), (b'"found": {', b'"found": [')):
    caplog.clear()
    bad = lines[4].replace(*change, 1)
    assert bad != lines[4]
    path.write_bytes(b"".join([*lines[:4], bad, *lines[5:]]))
    stub = serve()
    client = stub_server.client(stub, path)
    assert stub_server.generate(client) == clean
    assert len(stub.seen) == 1
    assert client.counts["damaged_lines"] == 1
    (message,) = caplog.messages
    assert message.startswith(f"{path}:5: WARNING: damaged and not used")
    client.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_cut_anywhere_costs_one_line(serve, tmp_path, cut):
  path = tmp_path / "j.jsonl"
  clean = stub_server.generate(
    stub_server.client(serve(), path), stub_server.PREFIXES[:1]
  )
  path.write_bytes(path.read_bytes()[:-cut])
  stub = serve()
  assert (
    stub_server.generate(
      stub_server.client(stub, path), stub_server.PREFIXES[:1]
    )
    == clean
  )
  assert len(stub.seen) == 1
  assert (
    stub_server.generate(
      stub_server.client(stub, path), stub_server.PREFIXES[:1]
    )
    == clean
  )
  assert len(stub.seen) == 1


def test_whatever_changes_the_request_is_asked_anew(serve, tmp_path):
  path, stub = tmp_path / "j.jsonl", serve()
  ask = functools.partial(
    stub_server.generate, prefixes=stub_server.PREFIXES[:1], n=1
  )
  ask(stub_server.client(stub, path))
  ask(stub_server.client(stub, path))
  assert len(stub.seen) == 1
  ask(stub_server.client(stub, path), seed=2)
  ask(stub_server.client(stub, path, options=dict(top_k=5)))
  ask(
    stub_server.client(stub, path, template=remote.Template(stop=("Problem",)))
  )
  other = schema.Solution(
    "a2", stub_server.PREFIXES[0].problem, stub_server.PREFIXES[0].steps
  )
  ask(stub_server.client(stub, path), prefixes=[other])
  longer = schema.Solution(
    "a", stub_server.PREFIXES[0].problem, ("We add.", "So.")
  )
  ask(stub_server.client(stub, path), prefixes=[longer])
  with stub_server.client(stub, path) as client:
    greedy = sampler.Sampling(max_tokens=20, temperature=0.0)
    client.generate(stub_server.PREFIXES[:1], 1, greedy, 1)
  assert len(stub.seen) == len(path.read_text().splitlines()) == 7


@pytest.mark.parametrize(
  "content", ['{"id": "a"}\n', "my notes", '{"key": "x", "found": 1}\n', "{\n"]
)
def test_another_kind_of_file_is_refused_and_left_alone(
  serve, tmp_path, content
):
  path = tmp_path / "notes.txt"
  path.write_text(content)
  with pytest.raises(errors.InputError, match=r"notes.txt:1: no record"):
    stub_server.client(serve(), path)
  assert path.read_text() == content


def test_two_runs_cannot_share_a_journal(serve, tmp_path):
  stub = serve()
  with (
    stub_server.client(stub, tmp_path / "j.jsonl"),
    pytest.raises(errors.InputError, match="another run writes"),
  ):
    stub_server.client(stub, tmp_path / "j.jsonl")
  stub_server.client(stub, tmp_path / "j.jsonl").close()
  with pytest.raises(errors.InputError, match="can't be opened"):
    stub_server.client(stub, tmp_path / "nowhere" / "j.jsonl")


def test_a_full_disk_has_its_exit_code(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  journal = reply_journal.Journal(tmp_path / "j.jsonl", time.monotonic)
  with monkeypatch.context() as patch:
    patch.setattr(os, "fsync", full)
    with pytest.raises(errors.DiskFullError, match="can't be written"):
      journal.sync()
  journal.close()


def test_a_full_disk_is_said_so_and_costs_nothing_finished(serve, tmp_path):
  path, stub = tmp_path / "j.jsonl", serve()
  clean = stub_server.generate(stub_server.client(stub, path), n=1)
  lines = path.read_bytes()
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  client = stub_server.client(stub, path)
  resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines) + 20, hard))
  try:
    with pytest.raises(errors.InputError, match="make room and start again"):
      stub_server.generate(client, seed=2, n=1)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert path.read_bytes() == lines
  stub = serve()
  assert stub_server.generate(stub_server.client(stub, path), n=1) == clean
  assert not stub.seen
