"""Several processes, of which one is killed, hangs, comes late or is too many."""

import os
import shutil
import signal
import socket
import subprocess
import time

import fault_runs
import pytest

pytestmark = pytest.mark.faults

LIMIT_S = fault_runs.LIMIT_S
# An update of two processes takes as long as five of one.
STEPS = 60
OF_TWO = (f"fit.steps={STEPS}", "fit.eval_every=30")


@pytest.fixture(scope="module")
def of_two(stage):
  """The workdir of a run of two processes that nothing hit."""
  started = fault_runs.start_all(stage, stage.train("of_two", *OF_TWO))
  assert [fault_runs.ended(p, LIMIT_S).code for p in started] == [0, 0]
  return stage.folder / "of_two"


def _is_midway(workdir):
  return fault_runs.num_records(workdir) > 12 and fault_runs.saved(workdir)


# --- A peer that is lost ----------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_where_one_is_killed_the_other_ends_and_both_go_on_to_the_same_bits(
  stage, of_two, victim, tmp_path
):
  """F15: the survivor's code says that a restart helps."""
  workdir = tmp_path / "run"
  words = stage.train(workdir, *OF_TWO)
  started = fault_runs.start_all(stage, words)
  fault_runs.until(lambda: _is_midway(workdir), started[0])
  started[victim].kill()
  begin = time.monotonic()
  survivor = fault_runs.ended(started[1 - victim], LIMIT_S)
  assert time.monotonic() - begin < fault_runs.HEARTBEAT_S + 10
  assert survivor.code == 42 or survivor.code < 0, survivor
  fault_runs.ended(started[victim])
  assert fault_runs.saved(workdir)[-1] < STEPS
  again = [
    fault_runs.ended(p, LIMIT_S) for p in fault_runs.start_all(stage, words)
  ]
  assert [x.code for x in again] == [0, 0], again
  fault_runs.assert_same_run(workdir, of_two)


def _local(stage, words, *options, **environment):
  """Starts two processes by launch/local.sh."""
  script = [fault_runs.ROOT / "launch" / "local.sh", "--processes=2", *options]
  return stage.start(
    words, before=(*map(str, script), "--"), devices=1, **environment
  )


def test_where_one_hangs_the_watchdog_of_the_other_says_where_and_ends_it(
  stage, of_two, tmp_path
):
  """F16: the launcher ends the one that hangs."""
  workdir = tmp_path / "run"
  words = stage.train(workdir, *OF_TWO, "fit.stuck_after_s=10")
  launcher = _local(stage, words, "--grace=2", "--kill-after=2")
  fault_runs.until(lambda: _is_midway(workdir), launcher)
  of_launcher = subprocess.run(
    ["pgrep", "-P", str(launcher.pid), "-f", "JAX_PROCESS_ID=1|main.command"],
    capture_output=True,
    text=True,
    check=True,
  )
  pids = [
    pid
    for pid in map(int, of_launcher.stdout.split())
    if b"JAX_PROCESS_ID=1" in _environment(pid)
  ]
  assert len(pids) == 1
  os.kill(pids[0], signal.SIGSTOP)
  begin = time.monotonic()
  ended = fault_runs.ended(launcher, LIMIT_S)
  assert time.monotonic() - begin < 60
  assert ended.code == 42, ended
  assert "[0] nothing was done for 10 s; where all threads stand:" in ended.out
  assert "training/loop.py" in ended.out
  again = fault_runs.ended(_local(stage, words), LIMIT_S)
  assert again.code == 0, again
  fault_runs.assert_same_run(workdir, of_two)


def _environment(pid):
  with open(f"/proc/{pid}/environ", "rb") as f:
    return f.read().split(b"\0")


def test_a_signal_to_the_launcher_saves_one_step_of_all(
  stage, of_two, tmp_path
):
  """F2, in several processes: jax tells all of them."""
  workdir = tmp_path / "run"
  words = stage.train(workdir, *OF_TWO)
  launcher = _local(stage, words)
  fault_runs.until(lambda: _is_midway(workdir), launcher)
  launcher.send_signal(signal.SIGTERM)
  ended = fault_runs.ended(launcher, LIMIT_S)
  assert ended.code == 42, ended
  last = fault_runs.saved(workdir)[-1]
  assert fault_runs.records(workdir)[-1]["step"] == last
  again = fault_runs.ended(_local(stage, words), LIMIT_S)
  assert again.code == 0, again
  fault_runs.assert_same_run(workdir, of_two)


def test_a_second_sigterm_to_one_of_two_changes_nothing(
  stage, of_two, tmp_path
):
  """F3: jax hears the first one for both; what is under way ends with 42."""
  workdir = tmp_path / "run"
  words = stage.train(workdir, *OF_TWO)
  started = fault_runs.start_all(stage, words)
  fault_runs.until(lambda: fault_runs.num_records(workdir) > 10, started[0])
  for _ in range(2):
    started[1].send_signal(signal.SIGTERM)
  ends = [fault_runs.ended(p, LIMIT_S) for p in started]
  assert [x.code for x in ends] == [42, 42], ends
  again = fault_runs.start_all(stage, words)
  assert [fault_runs.ended(p, LIMIT_S).code for p in again] == [0, 0]
  fault_runs.assert_same_run(workdir, of_two)


# --- A beginning ------------------------------------------------------------


def test_inputs_that_are_not_the_same_for_all_end_all_at_once_with_1(
  stage, tmp_path
):
  """One host without the data, with other data, or with another config."""
  for name in ("0", "1"):
    (tmp_path / name).mkdir()
    for file in ("config.py", "train.jsonl", "evaluation.jsonl"):
      shutil.copy(stage.folder / file, tmp_path / name / file)
  workdir = tmp_path / "run"
  words = stage.train(workdir, "fit.steps=3")
  apart = ("bash", "-c", f'cd {tmp_path}/$JAX_PROCESS_ID && exec "$@"', "--")

  def run():
    started = fault_runs.start_all(stage, words, before=apart)
    ends = [fault_runs.ended(p, LIMIT_S) for p in started]
    assert [x.code for x in ends] == [1, 1], ends
    assert not workdir.exists()
    return [x.refusal for x in ends]

  data, config = tmp_path / "1" / "train.jsonl", tmp_path / "1" / "config.py"
  whole = data.read_text(), config.read_text()
  begin = time.monotonic()
  data.unlink()
  refusals = run()
  assert refusals[0] == "prm-jax: process 1 was refused, and says why"
  # Where PRM_JAX_DATA is set, with its folder.
  assert refusals[1].endswith("train.jsonl: no such file; check the path")
  assert time.monotonic() - begin < 60  # nobody waits until jax gives up
  data.write_text(whole[0].replace("=", "= ", 1))

  def other(names):
    return [
      f"prm-jax: process 1 has other values of {names} than process 0; give all"
      " of them the same"
    ] * 2

  assert run() == other("data.sha256")
  data.write_text(whole[0])
  config.write_text(whole[1].replace("max_tokens=64", "max_tokens=63"))
  assert run() == other("encoding.max_tokens")
  config.write_text(whole[1].replace('"prm"', '"unknown"'))
  refusals = run()
  assert refusals[0] == "prm-jax: process 1 was refused, and says why"
  assert "unknown" in refusals[1]


def test_processes_with_different_workdirs_end_all_at_once_with_1(
  stage, tmp_path
):
  """A relative `--workdir` in two folders; then one folder by two names.

  The latter also starts: equal inputs may lie in folders of their own.
  """
  for name in ("0", "1"):
    (tmp_path / name).mkdir()
    for file in ("config.py", "train.jsonl", "evaluation.jsonl"):
      shutil.copy(stage.folder / file, tmp_path / name / file)
  words = stage.train("run", "fit.steps=3")
  apart = ("bash", "-c", f'cd {tmp_path}/$JAX_PROCESS_ID && exec "$@"', "--")
  begin = time.monotonic()
  started = fault_runs.start_all(stage, words, before=apart)
  ends = [fault_runs.ended(p, LIMIT_S) for p in started]
  assert [x.code for x in ends] == [1, 1], ends
  assert time.monotonic() - begin < 60
  for end in ends:
    assert end.refusal.startswith(
      "prm-jax: process 1 has another --workdir than process 0,"
      f" {tmp_path}/1/run and not {tmp_path}/0/run on "
    )
  assert not list(tmp_path.glob("*/run"))
  (tmp_path / "0" / "run").mkdir()
  (tmp_path / "1" / "run").symlink_to(tmp_path / "0" / "run")
  started = fault_runs.start_all(stage, words, before=apart)
  ends = [fault_runs.ended(p, LIMIT_S) for p in started]
  assert [x.code for x in ends] == [0, 0], ends
  assert fault_runs.saved(tmp_path / "0" / "run") == [3]
  assert not list((tmp_path / "0" / "run").glob(".seen*"))


def test_who_comes_first_waits_for_a_late_coordinator(stage, tmp_path):
  """F17."""
  words = stage.train(tmp_path / "run", "fit.steps=3")
  started = fault_runs.start_all(stage, words, delays=(10, 0))
  ends = [fault_runs.ended(p, LIMIT_S) for p in started]
  assert [x.code for x in ends] == [0, 0], ends


def test_a_port_that_is_taken_is_said_in_one_line_and_leaves_nothing(
  stage, tmp_path
):
  """F17."""
  workdir = tmp_path / "run"
  with socket.socket(socket.AF_INET6) as s:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", 0))
    s.listen()
    port = s.getsockname()[1]
    launcher = _local(
      stage, stage.train(workdir), f"--port={port}", "--grace=2"
    )
    ended = fault_runs.ended(launcher, LIMIT_S)
  assert ended.code == 1, ended
  assert "[0] prm-jax: the processes of this run don't find each" in ended.out
  assert not workdir.exists()


# --- Other devices, other processes -----------------------------------------


def test_a_run_goes_on_on_more_devices_and_in_more_processes(
  stage, whole, tmp_path
):
  """F18: 1 -> 2 -> 4 devices, and 1 -> 2 processes; losses but for rounding."""
  workdir = tmp_path / "run"
  words = stage.train(workdir)
  for devices, until in ((1, 12), (2, 32), (4, None)):
    process = stage.start(words, devices=devices)
    if until:
      fault_runs.until(
        lambda until=until: fault_runs.num_records(workdir) > until, process
      )
      process.send_signal(signal.SIGTERM)
    ended = fault_runs.ended(process)
    assert ended.code == (42 if until else 0), ended
    if devices == 1:
      shutil.copytree(workdir, tmp_path / "two")
  fault_runs.assert_close(workdir, whole)
  started = fault_runs.start_all(stage, stage.train(tmp_path / "two"))
  ends = [fault_runs.ended(p, LIMIT_S) for p in started]
  assert [x.code for x in ends] == [0, 0], ends
  fault_runs.assert_close(tmp_path / "two", whole)


def test_a_second_trainer_is_refused_and_changes_nothing(
  stage, whole, tmp_path
):
  """F21: with --fresh, too."""
  workdir = tmp_path / "run"
  words = stage.train(workdir)
  first = stage.start(words)
  fault_runs.until(lambda: fault_runs.num_records(workdir) > 2, first)
  first.send_signal(signal.SIGSTOP)
  before = fault_runs.files(workdir)
  for more in ([], ["--fresh"]):
    second = stage.run([*words, *more])
    assert second.code == 1
    assert f"another process (process {first.pid} on " in second.refusal
  assert fault_runs.files(workdir) == before
  first.send_signal(signal.SIGCONT)
  assert fault_runs.ended(first).code == 0
  fault_runs.assert_same_run(workdir, whole)
