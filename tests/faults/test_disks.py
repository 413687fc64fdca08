"""Disks that fill up, and writes that fail: said, and nothing is lost."""

import os
import pathlib
import resource
import subprocess

import fault_runs
import pytest

pytestmark = pytest.mark.faults

# Parameters and moments of about 1.7 MB, so that a few saves fill 8 MB.
LARGE = ("model.d_model=96", "model.d_ff=384", "fit.keep_last=9")


class Disk:
  """A file system of its own in memory, which can be filled and emptied."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._filler = folder / "filler"

  def fill(self) -> None:
    """Takes all that is left."""
    with open(self._filler, "wb", buffering=0) as f:
      try:
        while f.write(bytes(4096)):
          pass
      except OSError:
        pass

  def empty(self) -> None:
    self._filler.unlink()

  def grow(self) -> None:
    self._mount("remount,size=64m")

  def _mount(self, options: str) -> None:
    subprocess.run(
      ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder],
      check=True,
      capture_output=True,
    )


@pytest.fixture
def disk(tmp_path):
  """A disk of 8 MiB; only root may have one."""
  folder = tmp_path / "disk"
  folder.mkdir()
  found = Disk(folder)
  try:
    found._mount("size=8m")
  except (OSError, subprocess.CalledProcessError) as e:
    pytest.skip(
      "a real full disk needs the right to mount a tmpfs (run it as root);"
      f" failing writes are tested beside it: {e}"
    )
  yield found
  subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def large(stage):
  assert stage.run(stage.train("large", *LARGE)).code == 0
  return stage.folder / "large"


def _assert_whole(workdir):
  """Each save can be read, and is what was saved."""
  steps = fault_runs.saved(workdir)
  assert steps
  for step in steps:
    fault_runs.model(workdir, step)
  return steps


def _unfinished(workdir):
  return [x for x in (workdir / "checkpoints").iterdir() if "tmp" in x.name]


def test_a_disk_full_of_saves_is_said_and_its_saves_are_whole(
  stage, large, disk
):
  """F4."""
  workdir = disk.folder / "run"
  words = stage.train(workdir, *LARGE)
  ended = stage.run(words)
  assert ended.code == 4, ended
  for word in (f"{workdir}/checkpoints: can't be written", "disk is full"):
    assert word in ended.refusal
  steps = _assert_whole(workdir)
  assert f"step {steps[-1]} is saved" in ended.refusal
  # It ended within one interval of the save that failed.
  assert fault_runs.records(workdir)[-1]["step"] <= steps[-1] + 20
  disk.grow()
  again = stage.run(words)
  assert again.code == 0, again
  assert not _unfinished(workdir)
  fault_runs.assert_same_run(workdir, large)


def test_a_disk_full_of_records_leaves_no_half_line(stage, whole, disk):
  """F5: metrics.jsonl."""
  workdir = disk.folder / "run"
  words = stage.train(workdir)
  process = stage.start(words)
  fault_runs.until(lambda: fault_runs.saved(workdir), process)
  disk.fill()
  ended = fault_runs.ended(process)
  assert ended.code == 4, ended
  assert "make room, and give the same command again" in ended.refusal
  _assert_whole(workdir)
  disk.empty()
  again = stage.run(words)
  assert again.code == 0, again
  fault_runs.assert_same_run(workdir, whole)


def test_two_processes_with_a_full_disk_both_end_and_say_so(stage, disk):
  """F5: one of them writes; the other must not wait for it for ever."""
  workdir = disk.folder / "run"
  started = fault_runs.start_all(
    stage, stage.train(workdir, "fit.steps=2000", "fit.log_every=20")
  )
  fault_runs.until(lambda: fault_runs.saved(workdir), started[0])
  disk.fill()
  ends = [fault_runs.ended(p, 60) for p in started]
  # The larger one counts for a launcher: a restart doesn't help.
  assert ends[0].code == 4 and ends[1].code in (1, 4), ends
  assert f"{workdir}" in ends[0].refusal
  _assert_whole(workdir)


def test_a_disk_full_of_labels_keeps_the_journal_and_the_old_scores(
  policy, whole, disk, tmp_path
):
  """F5: a journal goes on; an output is the old one or the new one."""
  score = ["score", f"--checkpoint={whole}", "--input=evaluation.jsonl"]
  output = disk.folder / "scores.jsonl"
  assert policy.run([*score, f"--output={output}"]).code == 0
  old = output.read_bytes()

  def label(folder):
    return [
      *("label", "monte_carlo", "--policy=policy", "--completions=4"),
      *("--input=unlabelled.jsonl", f"--output={folder}/labels.jsonl"),
      *("--batch=2", "--max_tokens=16"),
    ]

  journal = disk.folder / "labels.jsonl.journal"
  process = policy.start(label(disk.folder))
  fault_runs.until(
    lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2, process
  )
  disk.fill()
  ended = fault_runs.ended(process)
  assert ended.code == 4, ended
  assert "what it holds is kept: make room" in ended.refusal
  refused = policy.run([*score, f"--output={output}"])
  assert refused.code == 4 and f"{output}: can't be written" in refused.refusal
  assert output.read_bytes() == old
  disk.empty()
  assert policy.run(label(disk.folder)).code == 0
  assert policy.run(label(tmp_path)).code == 0
  names = [x / "labels.jsonl" for x in (disk.folder, tmp_path)]
  assert names[0].read_bytes() == names[1].read_bytes()


def test_a_save_that_fails_in_the_background_ends_the_run_by_the_next_one(
  stage, large, tmp_path
):
  """F9: a limit of the system on the size of a file, set in mid-run."""
  workdir = tmp_path / "run"
  words = stage.train(workdir, *LARGE)
  process = stage.start(words)
  fault_runs.until(lambda: fault_runs.saved(workdir), process)
  size = 64 * 1024
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
  ended = fault_runs.ended(process)
  assert ended.code == 1, ended
  assert f"{workdir}/checkpoints: can't be written" in ended.refusal
  steps = _assert_whole(workdir)
  assert f"step {steps[-1]} is saved" in ended.refusal
  last = fault_runs.records(workdir)[-1]["step"]
  # The save after the last whole one failed; the one after that said so.
  assert steps[-1] + 10 <= last <= steps[-1] + 20
  again = stage.run(words)
  assert again.code == 0, again
  assert not _unfinished(workdir)
  fault_runs.assert_same_run(workdir, large)


def test_a_folder_that_takes_no_files_is_said_at_once(stage, tmp_path):
  """Also to root, whom permissions don't hold back: its path is a file."""
  (tmp_path / "file").write_text("")
  ended = stage.run(stage.train(tmp_path / "file" / "run"))
  assert ended.code == 1 and "file" in ended.refusal
  assert os.listdir(tmp_path) == ["file"]
