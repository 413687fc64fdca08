"""A workdir in a bucket loses nothing that one on a disk keeps.

A local folder stands for the bucket, by the same epath; with the extra
`emulator`, the real gs:// of orbax, TensorStore and gcsfs does.
"""

import functools
import importlib.util
import json
import os
import pathlib
import signal
import sys
import time

import bucket_emulator
from etils import epath
import jax
import numpy as np
import pytest
import real_runs
import test_loop

from prm_jax import errors
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.runtime import files as files_lib
from prm_jax.runtime import storage as storage_lib
from prm_jax.training import loop

pytestmark = pytest.mark.usefixtures("printed_log")


@pytest.fixture
def there(tmp_path, monkeypatch):
  """The folder of a run in what takes the place of gs://bucket."""
  monkeypatch.setattr(storage_lib, "SCHEME", str(tmp_path / "bucket"))
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: True if name == "gcsfs" else find_spec(name),
  )
  return tmp_path / "bucket" / "runs" / "mine"


def _fit(there, batch_at=test_loop._batch_at, steps=test_loop.STEPS, **options):
  """Trains into the bucket, with a folder of this machine that then goes."""
  with storage_lib.opened(str(there)) as (workdir, bucket):
    config = loop.FitConfig(
      steps=steps, log_every=1, checkpoint_every=3, tensorboard=True
    )

    def on_start():
      files_lib.write_json(workdir / "config.json", {})
      files_lib.write_json(workdir / "model.json", dict(of=options.get("of")))

    return loop.fit(
      test_loop._toy(),
      loop.stored(batch_at, steps),
      config,
      loop.Hooks(
        workdir=workdir,
        key=jax.random.key(0),
        mesh=test_loop._one_device(),
        bucket=bucket,
        on_start=on_start,
        fresh=options.get("fresh", False),
        callback=options.get("callback"),
      ),
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
  assert saves.saved_steps(epath.Path(there)) == [3] * (stop > 3)
  test_loop._assert_same(_fit(there), whole[0])
  assert test_loop._records(there) == whole[1]
  assert saves.saved_steps(epath.Path(there)) == [6, 8]
  small = {"config.json", "metrics.jsonl", "model.json", "tensorboard"}
  small |= {"metrics.jsonl.crc", "checkpoints", "owner"}
  assert _names(there) == small


def test_the_records_of_a_save_are_there_before_it(there, monkeypatch):
  seen = []
  save = manager.Checkpoints.save

  def look(self, state, metrics=None):
    records = test_loop._records(there)
    seen.append((int(state.step), records[-1][0], len(records)))
    save(self, state, metrics)

  monkeypatch.setattr(manager.Checkpoints, "save", look)
  _fit(there)
  assert seen == [(3, 3, 3), (6, 6, 6), (8, 8, 8)]


def test_what_did_not_change_is_not_sent_again(tmp_path, monkeypatch):
  there, here = epath.Path(tmp_path / "there"), tmp_path / "here"
  here.mkdir()
  bucket = storage_lib.Bucket(there, here)
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
      with storage_lib.opened(str(there)) as (_, other):
        other.claim()
        other._is_owner = False  # it is killed, and sends nothing more

  with pytest.raises(errors.BusyError, match="has begun to train into it") as e:
    _fit(there, callback=watch)
  assert str(there) in str(e.value) and "\n" not in str(e.value)
  assert saves.saved_steps(epath.Path(there)) == [3]
  assert [x for x, _ in test_loop._records(there)] == [1, 2, 3]


def test_fresh_replaces_all_that_a_run_has_there(there):
  _fit(there)
  (there / "damaged" / "5").mkdir(parents=True)
  _fit(there, steps=3, fresh=True, of="another")
  assert saves.saved_steps(epath.Path(there)) == [3]
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
  assert "resumes from step 3" in capsys.readouterr().out
  assert len(list((there / "damaged" / "6").rglob("*"))) == size


def test_a_save_without_its_last_object_is_no_save(there):
  _fit(there)
  (there / "checkpoints" / "8" / "commit_success.txt").unlink()
  assert saves.saved_steps(epath.Path(there)) == [6]


def test_what_is_refused_leaves_nothing_and_is_named_as_it_was_given(there):
  with (
    pytest.raises(errors.InputError) as e,
    storage_lib.opened(str(there)) as (workdir, _),
  ):
    raise errors.InputError(f"{workdir / 'model.json'}: no")
  assert str(e.value) == f"{there}/model.json: no"
  assert not there.exists()
  there.mkdir(parents=True)
  (there / "notes.txt").write_text("mine")
  with (
    pytest.raises(errors.InputError, match="holds no run of ours"),
    storage_lib.opened(str(there)),
  ):
    pass
  assert _names(there) == {"notes.txt"}


def test_a_bucket_that_says_no_is_one_line(there, monkeypatch):
  def refuse(*_):
    raise RuntimeError("Forbidden:\n  no storage.objects.list access")

  monkeypatch.setattr(epath.Path(there).__class__, "exists", refuse)
  with (
    pytest.raises(errors.InputError, match=r"can't be read: Forb") as e,
    storage_lib.opened(str(there)),
  ):
    pass
  assert "\n" not in str(e.value)


def test_a_folder_of_this_machine_is_itself(tmp_path):
  with storage_lib.opened(tmp_path / "run") as (workdir, bucket):
    assert (workdir, bucket) == (tmp_path / "run", None)
  assert not workdir.exists()


# --- With gs:// itself --------------------------------------------------------


@pytest.fixture
def storage():
  """Returns what runs a command where gs://bkt is an emulator's; its files."""
  with bucket_emulator.serving("bkt") as (settings, files):
    environment = real_runs.ENVIRONMENT | settings
    yield functools.partial(real_runs.life, environment=environment), files


def _saved(files):
  marks = files.glob("bkt/runs/mine/checkpoints/*/commit_success.txt")
  return sorted(int(p.split("/")[-2]) for p in marks)


def _compare(files, folder, equal_records, equal):
  """Compares gs://bkt/runs/mine with folder/whole."""
  there = real_runs.records(files.cat("bkt/runs/mine/metrics.jsonl").decode())
  whole = folder / "whole"
  equal_records(there, real_runs.records((whole / "metrics.jsonl").read_text()))
  files.get("bkt/runs/mine", str(folder / "copy"), recursive=True)
  jax.tree.map(
    equal,
    parameters.load_params(folder / "copy"),
    parameters.load_params(whole),
  )


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_gs_survives_what_a_disk_does(storage, tmp_path):
  life, files = storage
  words, log = real_runs.words(tmp_path), tmp_path / "log"
  assert life([*words, f"--workdir={tmp_path}/whole"], log) == 0
  away = [*words, "--workdir=gs://bkt/runs/mine"]
  code = life(away, log, signal.SIGTERM, 5)
  assert code == 42, log.read_text()
  first = _saved(files)[-1]
  assert f"ended at step {first}, which is saved" in log.read_text()
  code = life(away, log, signal.SIGKILL, 33)
  assert code == -signal.SIGKILL, log.read_text()
  # Before the bit is flipped it was whole.
  last = _saved(files)[-1]
  assert last > first
  save = f"bkt/runs/mine/checkpoints/{last}"
  path = next(p for p in files.find(f"{save}/params") if "/d/" in p)
  content = bytearray(files.cat(path))
  content[len(content) // 2] ^= 64
  files.pipe(path, bytes(content))
  assert life(away, log) == 0, log.read_text()
  assert "put into gs://bkt/runs/mine/damaged" in log.read_text()
  assert files.exists(f"bkt/runs/mine/damaged/{last}/commit_success.txt")

  def same(a, b):
    assert a == b

  _compare(files, tmp_path, same, np.testing.assert_array_equal)


def run_two_owners(folder):
  """One run sends, another goes on with it, then begins anew."""
  first, second = (
    storage_lib.Bucket(
      epath.Path("gs://bkt/runs/mine"), pathlib.Path(folder, name)
    )
    for name in ("first", "second")
  )
  for bucket in (first, second):
    bucket.here.mkdir()
  first.bring()
  first.claim()
  (first.here / "config.json").write_text("{}")
  (first.here / "deep").mkdir()
  (first.here / "deep" / "events").write_text("1")
  first.send()
  step = first.there / "checkpoints" / "7"
  (step / "params" / "d").mkdir(parents=True)
  (step / "params" / "d" / "x").write_text("x")
  assert saves.saved_steps(first.there) == []
  (step / "commit_success.txt").write_text("")
  second.bring()
  assert [p.name for p in second.here.iterdir()] == ["config.json"]
  second.claim()
  with pytest.raises(errors.BusyError, match="has begun to train"):
    first.send()
  assert saves.saved_steps(second.there) == [7]
  storage_lib.move(step, second.there / "damaged" / "7")
  assert (second.there / "damaged" / "7" / "params" / "d" / "x").exists()
  assert not step.exists()
  # What a kill leaves of a save is removed at the next start.
  unfinished = second.there / "checkpoints" / "9" / "params"
  unfinished.mkdir(parents=True)
  (unfinished / "x").write_text("x")
  checkpoints = manager.Checkpoints(second.there)
  checkpoints.wait()
  checkpoints.close()
  # orbax removes it in a thread of its own.
  deadline = time.monotonic() + 60
  while (unfinished / "x").exists():
    assert time.monotonic() < deadline
    time.sleep(0.1)
  second.clear()
  assert [p.name for p in second.there.iterdir()] == [storage_lib.OWNER_FOLDER]
  second.send()
  assert (second.there / "config.json").read_text() == "{}"


@pytest.mark.faults
def test_gs_has_one_owner_and_is_cleared_for_it(storage, tmp_path):
  life, files = storage
  code = (
    f"import sys; sys.path[:0] = {sys.path!r};"
    f"import test_storage; test_storage.run_two_owners({str(tmp_path)!r})"
  )
  log = tmp_path / "log"
  assert life([sys.executable, "-c", code], log) == 0, log.read_text()
  assert files.exists("bkt/runs/mine/config.json")


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_two_processes_write_to_gs_what_one_does_on_a_disk(storage, tmp_path):
  life, files = storage
  words, log = real_runs.words(tmp_path), tmp_path / "log"
  # On as many devices, or Adam makes much of what rounding differs by.
  alone = [*words, f"--workdir={tmp_path}/whole"]
  assert life(alone, log, environment=real_runs.FOUR_DEVICES) == 0
  both = [*real_runs.TWO, *words, "--workdir=gs://bkt/runs/mine"]
  code = life(both, log, signal.SIGTERM, 12)
  assert code == 42, log.read_text()
  assert life(both, log) == 0, log.read_text()
  _compare(
    files,
    tmp_path,
    real_runs.assert_close,
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
  )
