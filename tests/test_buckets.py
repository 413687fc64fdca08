"""A workdir in a bucket loses nothing that one on a disk keeps.

A local folder stands for the bucket, by the same epath; with the extra
`emulator`, the real gs:// of orbax, TensorStore and gcsfs does.
"""

import http.server
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from etils import epath
import jax
import numpy as np
import pytest
import test_cli
import test_loop

from prm_jax import buckets
from prm_jax import checkpoint
from prm_jax import schema
from prm_jax.train import loop

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def there(tmp_path, monkeypatch):
  """The folder of a run in what takes the place of gs://bucket."""
  monkeypatch.setattr(buckets, "SCHEME", str(tmp_path / "bucket"))
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: True if name == "gcsfs" else find_spec(name),
  )
  return tmp_path / "bucket" / "runs" / "mine"


def _fit(there, batch_at=test_loop._batch_at, steps=test_loop.STEPS, **options):
  """Trains into the bucket, with a folder of this machine that then goes."""
  with buckets.opened(str(there)) as (workdir, bucket):
    config = loop.FitConfig(
      steps=steps, log_every=1, checkpoint_every=3, tensorboard=True
    )

    def begin():
      schema.write_json(workdir / "config.json", {})
      schema.write_json(workdir / "model.json", dict(of=options.get("of")))

    return loop.fit(
      test_loop._toy(),
      loop.stored(batch_at, steps),
      config,
      workdir=workdir,
      key=jax.random.key(0),
      mesh=test_loop._one_device(),
      bucket=bucket,
      begin=begin,
      fresh=options.get("fresh", False),
      watch=options.get("watch"),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Returns the end of a run on a disk that nothing stopped, its records."""
  workdir = tmp_path_factory.mktemp("whole")
  return test_loop._fit(workdir), test_loop._records(workdir)


def _names(folder):
  return {p.relative_to(folder).parts[0] for p in folder.rglob("*")}


@pytest.mark.parametrize("stop", [1, 5])
def test_a_run_goes_on_on_another_machine_with_the_same_bits(
  there, whole, stop
):
  with pytest.raises(test_loop._StoppedError):
    _fit(there, test_loop._stopping_at(stop))
  assert checkpoint.saved_steps(epath.Path(there)) == [3] * (stop > 3)
  test_loop._assert_same(_fit(there), whole[0])
  assert test_loop._records(there) == whole[1]
  assert checkpoint.saved_steps(epath.Path(there)) == [6, 8]
  small = {"config.json", "metrics.jsonl", "model.json", "tensorboard"}
  assert _names(there) == small | {"checkpoints", "owner"}


def test_the_records_of_a_save_are_there_before_it(there, monkeypatch):
  seen = []
  save = checkpoint.Checkpoints.save

  def look(self, state, metrics=None):
    records = test_loop._records(there)
    seen.append((int(state.step), records[-1][0], len(records)))
    save(self, state, metrics)

  monkeypatch.setattr(checkpoint.Checkpoints, "save", look)
  _fit(there)
  assert seen == [(3, 3, 3), (6, 6, 6), (8, 8, 8)]


def test_what_did_not_change_is_not_sent_again(tmp_path, monkeypatch):
  there, here = epath.Path(tmp_path / "there"), tmp_path / "here"
  here.mkdir()
  bucket = buckets.Bucket(there, here)
  bucket.claim()
  (here / "a.json").write_text("1")
  (here / ".lock").write_text("1")
  bucket.send()
  (there / "a.json").unlink()
  (here / "deep").mkdir()
  (here / "deep" / "b").write_text("1")
  bucket.send()
  assert _names(tmp_path / "there") == {"owner", "deep"}
  (here / "a.json").write_text("2")
  bucket.send()
  assert (there / "a.json").read_text() == "2"


def test_a_run_that_another_has_taken_over_ends_before_its_next_save(there):
  def watch(records):
    if records[-1]["step"] == 4:
      with buckets.opened(str(there)) as (_, other):
        other.claim()
        other._is_owner = False  # it is killed, and sends nothing more

  with pytest.raises(schema.BusyError, match="has begun to train into it") as e:
    _fit(there, watch=watch)
  assert str(there) in str(e.value) and "\n" not in str(e.value)
  assert checkpoint.saved_steps(epath.Path(there)) == [3]
  assert [x for x, _ in test_loop._records(there)] == [1, 2, 3]


def test_fresh_replaces_all_that_a_run_has_there(there):
  _fit(there)
  (there / "damaged" / "5").mkdir(parents=True)
  _fit(there, steps=3, fresh=True, of="another")
  assert checkpoint.saved_steps(epath.Path(there)) == [3]
  assert [x for x, _ in test_loop._records(there)] == [1, 2, 3]
  assert json.loads((there / "model.json").read_text()) == dict(of="another")
  assert not (there / "damaged").exists()


def test_a_damaged_save_is_set_aside_object_by_object(there, whole, capsys):
  with pytest.raises(test_loop._StoppedError):
    _fit(there, test_loop._stopping_at(7))
  for path in (there / "checkpoints" / "6" / "params").rglob("*"):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)
  size = len(list((there / "checkpoints" / "6").rglob("*")))
  test_loop._assert_same(_fit(there), whole[0])
  assert test_loop._records(there) == whole[1]
  assert "goes on from step 3" in capsys.readouterr().out
  assert len(list((there / "damaged" / "6").rglob("*"))) == size


def test_a_save_without_its_last_object_is_no_save(there):
  _fit(there)
  (there / "checkpoints" / "8" / "commit_success.txt").unlink()
  assert checkpoint.saved_steps(epath.Path(there)) == [6]


def test_what_is_refused_leaves_nothing_and_is_named_as_it_was_given(there):
  with (
    pytest.raises(schema.InputError) as e,
    buckets.opened(str(there)) as (workdir, _),
  ):
    raise schema.InputError(f"{workdir / 'model.json'}: no")
  assert str(e.value) == f"{there}/model.json: no"
  assert not there.exists()
  there.mkdir(parents=True)
  (there / "notes.txt").write_text("mine")
  with (
    pytest.raises(schema.InputError, match="holds no run of ours"),
    buckets.opened(str(there)),
  ):
    pass
  assert _names(there) == {"notes.txt"}


def test_a_bucket_that_says_no_is_one_line(there, monkeypatch):
  def refuse(*_):
    raise RuntimeError("Forbidden:\n  no storage.objects.list access")

  monkeypatch.setattr(epath.Path(there).__class__, "exists", refuse)
  with (
    pytest.raises(schema.InputError, match=r"can't be read: Forb") as e,
    buckets.opened(str(there)),
  ):
    pass
  assert "\n" not in str(e.value)


def test_a_folder_of_this_machine_is_itself(tmp_path):
  with buckets.opened(tmp_path / "run") as (workdir, bucket):
    assert (workdir, bucket) == (tmp_path / "run", None)
  assert not workdir.exists()


# --- With gs:// itself --------------------------------------------------------


@pytest.fixture
def storage(monkeypatch):
  """The environment in which gs://bkt is an emulator's, and its files."""
  # It would ask the real service what kind of bucket this is.
  settings = dict(GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false")
  monkeypatch.setenv(*next(iter(settings.items())))
  # One at a time is served; the others must be let wait.
  monkeypatch.setattr(http.server.HTTPServer, "request_queue_size", 128)
  gcsfs = pytest.importorskip("gcsfs", reason="pip install '.[emulator]'")
  emulator = pytest.importorskip("gcp_storage_emulator.server")
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  address = dict(host="localhost", port=port, default_bucket="bkt")
  with emulator.create_server(**address, in_memory=True):
    url = f"http://localhost:{port}"
    settings |= dict(STORAGE_EMULATOR_HOST=url, TENSORSTORE_GCS_HTTP_URL=url)
    yield (
      settings,
      gcsfs.GCSFileSystem(
        token="anon", endpoint_url=url, use_listings_cache=False
      ),
    )


def _command(folder):
  """Writes config and data; returns the words that train with them."""
  schema.write_solutions(folder / "mine.jsonl", test_cli._labelled(40))
  config = test_cli._write_config(
    folder / "c.py", folder / "mine.jsonl", steps=40
  )
  text = config.read_text()
  config.write_text(
    text.replace("log_every=2", "log_every=1, checkpoint_every=10")
  )
  call = "import sys; from prm_jax import cli; sys.exit(cli.main())"
  return [sys.executable, "-c", call, "train", f"--config={config}"]


def _environment(storage):
  flags = "--xla_force_host_platform_device_count=4"
  more = dict(PYTHONPATH=str(ROOT), XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
  return os.environ | storage[0] | more


def _life(words, environment, log, number=0, step=0):
  """Runs a command, sends it a signal at a step; returns its exit code."""
  with open(log, "w") as f:
    process = subprocess.Popen(
      words, env=environment, stdout=f, stderr=subprocess.STDOUT
    )
    until = time.monotonic() + 250
    while number and process.poll() is None:
      assert time.monotonic() < until, log.read_text()
      if f" step {step}/" in log.read_text():
        process.send_signal(number)
        break
      time.sleep(0.05)
    return process.wait(timeout=280)


def _without_times(text):
  times = ("time_s", "tokens_per_s")
  return [
    {k: v for k, v in json.loads(line).items() if k not in times}
    for line in text.splitlines()
  ]


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_gs_survives_what_a_disk_does(storage, tmp_path):
  _, files = storage
  words, environment = _command(tmp_path), _environment(storage)
  log = tmp_path / "log"
  assert not _life([*words, f"--workdir={tmp_path}/whole"], environment, log)
  away = [*words, "--workdir=gs://bkt/runs/mine"]
  at = "bkt/runs/mine"
  code = _life(away, environment, log, signal.SIGTERM, 5)
  assert code == 42, log.read_text()
  first = _saved(files, at)[-1]
  assert f"ended at step {first}, which is saved" in log.read_text()
  code = _life(away, environment, log, signal.SIGKILL, 23)
  assert code == -signal.SIGKILL, log.read_text()
  # What was whole when it was killed is damaged.
  last = _saved(files, at)[-1]
  assert last > first
  part = [
    p for p in files.find(f"{at}/checkpoints/{last}/params") if "/d/" in p
  ]
  content = bytearray(files.cat(part[0]))
  content[len(content) // 2] ^= 64
  files.pipe(part[0], bytes(content))
  assert not _life(away, environment, log), log.read_text()
  assert f"put into gs://{at}/damaged" in log.read_text()
  assert files.exists(f"{at}/damaged/{last}/commit_success.txt")
  found = _without_times(files.cat(f"{at}/metrics.jsonl").decode())
  expected = (tmp_path / "whole" / "metrics.jsonl").read_text()
  assert found == _without_times(expected)
  files.get(at, str(tmp_path / "copy"), recursive=True)
  jax.tree.map(
    np.testing.assert_array_equal,
    checkpoint.load_params(tmp_path / "copy"),
    checkpoint.load_params(tmp_path / "whole"),
  )


def _saved(files, at):
  marks = files.glob(f"{at}/checkpoints/*/commit_success.txt")
  return sorted(int(p.split("/")[-2]) for p in marks)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_two_processes_write_to_gs_what_one_does_on_a_disk(storage, tmp_path):
  _, files = storage
  words, environment = _command(tmp_path), _environment(storage)
  log = tmp_path / "log"
  assert not _life([*words, f"--workdir={tmp_path}/whole"], environment, log)
  launch = [str(ROOT / "launch" / "local.sh"), "--processes=2", "--devices=2"]
  away = [*words, "--workdir=gs://bkt/runs/mine"]
  del environment["XLA_FLAGS"]
  both = [*launch, "--", *away]
  code = _life(both, environment, log, signal.SIGTERM, 12)
  assert code == 42, log.read_text()
  assert not _life(both, environment, log), log.read_text()
  found = _without_times(files.cat("bkt/runs/mine/metrics.jsonl").decode())
  expected = (tmp_path / "whole" / "metrics.jsonl").read_text()
  for a, b in zip(found, _without_times(expected), strict=True):
    assert a.keys() == b.keys()
    numbers = [[x[k] for k in a if k != "kind"] for x in (a, b)]
    np.testing.assert_allclose(*numbers, rtol=1e-4)
  files.get("bkt/runs/mine", str(tmp_path / "copy"), recursive=True)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    checkpoint.load_params(tmp_path / "copy"),
    checkpoint.load_params(tmp_path / "whole"),
  )
