"""launch/: runs on a cloud, on SLURM and here, all rehearsed on this machine.

launch_stub/trainer.py stands in for the trainer; `make faults` also rehearses
with the trainer itself.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import launch_cases
import launch_stage
import numpy as np
import pytest
import small_config
import xla_flags

from prm_jax.checkpoints import model_json
from prm_jax.records import jsonl
from prm_jax.testbed import arithmetic
from prm_jax.training import programs

# Processes and clocks: make faults.
pytestmark = pytest.mark.faults

ROOT = launch_cases.ROOT
CACHE = "JAX_COMPILATION_CACHE_DIR"  # set by conftest.py


@pytest.fixture
def stage(tmp_path):
  with launch_stage.furnished(tmp_path) as stage:
    yield stage


# --- On a cloud -------------------------------------------------------------


def test_a_run_that_is_preempted_ends_as_one_that_is_not(stage):
  queue = ["WAITING_FOR_RESOURCES", "PROVISIONING"]
  stage.plan(
    dict(states=[*queue, "FAILED"]),
    dict(states=[*queue, "ACTIVE"], preempt_at=4),
    launch_stage.ACTIVE,
    workers=4,
    # ssh to one of the workers fails once.
    faults=[dict(match="worker.sh start", worker=2, times=1)],
  )
  code, output = stage.run(launch_stage.tpu(stage, "--spot"))
  assert code == 0, output
  assert (stage.workdir / "result").read_text() == launch_stage.digest(12)
  # SIGTERM lost no step and repeated none.
  assert launch_stage.metrics(stage) == list(range(1, 13))
  # Three slices under one name, two of them with one bundle, none is left.
  assert len(stage.calls("create", "r1", "--spot", "--labels=run=r1")) == 3
  assert len(stage.calls("delete", "r1", "--force")) == 3
  assert not stage.alive()
  bundles = [
    path.read_text() for path in stage.stub.glob("gone-*/*/*/r1/installed")
  ]
  assert len(bundles) == 8 and len(set(bundles)) == 1
  assert all(
    "prm_jax-0.1.0-py3-none-any.whl[tpu,gcs]" in path.read_text()
    for path in stage.stub.glob("gone-*/worker-*/pip.log")
  )
  # Each worker got its number and the secret.
  for i in range(4):
    lines = (stage.workdir / f"environment-{i}").read_text().splitlines()
    assert set(lines) == {f"127.0.0.1:8482 4 {i}"}
  assert "not all workers could be started" in output
  log = stage.stub / "buckets" / "b" / "logs" / "r1" / "worker-0.log"
  assert "resumes after step" in log.read_text()
  assert "resumes after step" in output
  assert "queued-resources delete r1" in output
  assert launch_stage.SECRET not in output and launch_stage.LEAK not in output
  launch_stage.assert_no_secret(stage)
  launch_stage.assert_flags_documented(stage.calls())


def test_a_code_that_a_restart_does_not_fix_ends_the_run_with_it(stage):
  stage.plan(launch_stage.ACTIVE)
  # The other worker would wait forever; it is stopped.
  code, output = stage.run(launch_stage.tpu(stage, trainer="--exit=0:3"))
  assert code == 3, output
  assert len(stage.calls("worker.sh start")) == 1
  assert not stage.alive()


def test_attempts_without_a_new_checkpoint_are_limited(stage):
  stage.plan(launch_stage.ACTIVE, workers=1)
  code, output = stage.run(
    launch_stage.tpu(stage, "--retries=1", trainer="--exit=0:42")
  )
  assert code == 42
  # Both attempts are on one slice, which isn't broken.
  assert len(stage.calls("worker.sh start")) == 2
  assert len(stage.calls("queued-resources create")) == 1
  assert "no new checkpoint in 2 attempts; giving up" in output
  assert not stage.alive()


def test_attempts_with_a_new_checkpoint_are_not_limited(stage):
  stage.plan(launch_stage.ACTIVE, workers=1)
  trainer = "--stint=1"
  code, output = stage.run(
    launch_stage.tpu(stage, "--retries=1", steps=3, trainer=trainer)
  )
  assert code == 0, output
  assert len(stage.calls("worker.sh start")) == 3


def test_what_the_cloud_refuses_is_tried_again_and_then_reported(stage):
  quota = dict(
    match="queued-resources create",
    times=9,
    error="RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZone'",
  )
  stage.plan(faults=[quota])
  code, output = stage.run(launch_stage.tpu(stage, "--retries=1"))
  assert code == 1
  assert output.count("RESOURCE_EXHAUSTED: Quota limit") == 2
  assert "it could not be created" in output
  assert len(stage.calls("queued-resources create")) == 2
  assert not stage.calls("queued-resources delete")


def test_workers_do_not_start_with_other_bytes_than_were_sent(stage):
  damage = dict(match="bundle.tar.gz", worker=1, times=9, damage=True)
  stage.plan(launch_stage.ACTIVE, launch_stage.ACTIVE, faults=[damage])
  code, output = stage.run(launch_stage.tpu(stage, "--retries=1"))
  assert code == 1
  assert "not all workers could be set up" in output
  assert not stage.calls("worker.sh start")
  assert not stage.alive()


def test_after_ctrl_c_the_run_continues_and_can_be_resumed(stage):
  stage.plan(launch_stage.ACTIVE)
  more = "--until={workdir}/seen"
  process = stage.start(launch_stage.tpu(stage, steps=20, trainer=more))
  launch_stage.until(lambda: launch_stage.saved(stage) >= 2, process)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 130
  assert stage.alive() and "r1 keeps running and costs money" in output
  assert "worker 1 of 2: running" in stage.run("tpu.sh status --run=r1")[1]
  output = stage.run("tpu.sh logs --run=r1 --worker=0")[1]
  assert "resumes after step 0" in output
  process = stage.start(launch_stage.tpu(stage, what="resume"))
  launch_stage.until(
    lambda: (
      len(stage.calls("worker.sh start")) == 2
      and "worker.sh status" in " ".join(stage.calls()[-1])
    ),
    process,
  )
  (stage.workdir / "seen").touch()
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 0, output
  assert "runs already" in output
  assert (stage.workdir / "result").read_text() == launch_stage.digest(20)
  assert len((stage.workdir / "environment-0").read_text().splitlines()) == 1
  assert not stage.alive()
  # The log of attempts has the run's end.
  attempts = (stage.folder / ".launch/r1/attempts").read_text()
  assert re.fullmatch(r"\S+ code=0 step=\d+ \n", attempts)


@pytest.mark.parametrize("during", ["worker.sh status", "resources describe"])
def test_ctrl_c_asks_and_a_slice_saves_before_it_is_deleted(stage, during):
  # The launcher asks at the terminal even while it reads gcloud's output.
  slow = dict(match="resources describe", times=99, seconds=0.5)
  faults = [slow] if during == slow["match"] else []
  stage.plan(launch_stage.ACTIVE, faults=faults)
  ours, terminal = os.openpty()
  line = launch_stage.tpu(stage, steps=999)
  process = stage.start(line, stdin=terminal)

  def due():
    return launch_stage.saved(stage) >= 2 and during in " ".join(
      stage.calls()[-1]
    )

  launch_stage.until(due, process)
  os.write(ours, b"y\n")
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=60)
  os.close(ours)
  os.close(terminal)
  assert process.returncode == 130
  assert "delete r1? It saves first." in output
  assert not stage.alive()
  # The last step that was computed is saved.
  assert launch_stage.saved(stage) == launch_stage.metrics(stage)[-1]
  # The secrets are no longer needed.
  (secrets,) = stage.stub.glob("gone-0/worker-1/*/r1/env")
  assert secrets.read_bytes() == b""


def test_the_last_step_is_the_last_whole_one(stage):
  bucket = stage.stub / "buckets" / "b" / "runs" / "r1" / "checkpoints"
  disk = stage.folder / "r1" / "checkpoints"
  for folder in (bucket, disk):
    for name in ("2", "10", "17.part", "best"):
      (folder / name).mkdir(parents=True)
  (bucket / "30").mkdir()  # began, and has no mark of its end
  for name in ("2", "10", "17.part"):
    (bucket / name / "commit_success.txt").write_text("")
  stage.plan()

  def last(workdir):
    script = f"source {ROOT}/launch/common.sh; latest_step {workdir}"
    done = subprocess.run(
      ["bash", "-eu", "-c", script],
      env=stage.environment(),
      capture_output=True,
      text=True,
      check=True,
    )
    return int(done.stdout)

  assert last("gs://b/runs/r1") == 10
  assert last(disk.parent) == 10
  assert last("gs://b/runs/none") == -1
  assert last(stage.folder / "none") == -1


def test_a_run_saves_and_ends_when_its_hours_have_passed(stage):
  # The hours have passed at the first poll; the stop waits for a first step.
  first_step = str(stage.workdir / "metrics")
  slow = dict(match="worker.sh stop", until=first_step)
  stage.plan(launch_stage.ACTIVE, faults=[slow])
  code, output = stage.run(launch_stage.tpu(stage, "--max-hours=0", steps=999))
  assert code == 42
  assert "--max-hours=0 have passed" in output
  assert not stage.alive()
  assert launch_stage.saved(stage) == launch_stage.metrics(stage)[-1] > 0


def test_a_run_whose_launcher_was_killed_can_be_stopped(stage):
  stage.plan(launch_stage.ACTIVE)
  process = stage.start(launch_stage.tpu(stage, steps=999))
  launch_stage.until(lambda: launch_stage.saved(stage) >= 2, process)
  process.kill()
  process.wait(timeout=60)
  process.stdout.close()  # The worker's log still has it open.
  assert stage.alive()
  code, output = stage.run("tpu.sh stop --run=r1")
  assert code == 0, output
  assert not stage.alive()
  assert launch_stage.saved(stage) == launch_stage.metrics(stage)[-1] < 999
  code, output = stage.run("tpu.sh stop --run=r1")
  assert code == 0 and "r1 has no slice" in output


def test_a_command_whose_worker_script_was_killed_is_not_started_twice(stage):
  stage.plan(launch_stage.ACTIVE, workers=1)
  process = stage.start(launch_stage.tpu(stage, steps=60))
  launch_stage.until(lambda: launch_stage.saved(stage) >= 2, process)
  (pid,) = stage.stub.glob("life-0/worker-0/*/r1/pid")
  os.kill(int(pid.read_text()), signal.SIGKILL)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 0, output
  assert launch_stage.metrics(stage) == list(range(1, 61))
  assert (stage.workdir / "result").read_text() == launch_stage.digest(60)


def test_a_slice_that_cannot_be_set_up_twice_is_replaced(stage):
  lost = dict(match="worker.sh install", worker=1, times=2)
  stage.plan(launch_stage.ACTIVE, launch_stage.ACTIVE, faults=[lost])
  code, output = stage.run(launch_stage.tpu(stage))
  assert code == 0, output
  assert len(stage.calls("queued-resources create")) == 2
  assert (stage.workdir / "result").read_text() == launch_stage.digest(12)


def _real_trainer(stage: launch_stage.Stage) -> dict[str, str]:
  """Writes config, data and a prm-jax of this tree; returns the PATHs."""
  task = arithmetic.Task(max_turns=4)
  random = np.random.default_rng(0)
  problems = arithmetic.problems(40, "train", task, random)
  solved = [arithmetic.solve(p, random, task) for p in problems]
  (stage.folder / "data").mkdir()
  path = stage.folder / "data" / "mine.jsonl"
  jsonl.write_solutions(path, map(arithmetic.judge, solved))
  config = small_config.text(
    data=dict(train=("jsonl:data/mine.jsonl",), evaluation=(), holdout=0.2),
    model=dict(d_model=16, head_dim=8, d_ff=32),
    eval_rows=8,
    fit=dict(steps=120, log_every=1, checkpoint_every=10),
  )
  (stage.folder / "experiments" / "mine.py").write_text(config)
  command = stage.folder / "bin" / "prm-jax"
  command.parent.mkdir()
  call = "import sys; from prm_jax.cli import main; sys.exit(main.command())"
  settings = f"PYTHONPATH={ROOT} JAX_PLATFORMS=cpu"
  settings += f" XLA_FLAGS='{xla_flags.FAST_COMPILING}'"
  settings += f" JAX_COMPILATION_CACHE_DIR={os.environ[CACHE]}"
  command.write_text(
    f'#!/bin/sh\nexec env {settings} {sys.executable} -c "{call}" "$@"\n'
  )
  command.chmod(0o755)
  given = stage.environment()
  real = f"{command.parent}:{given['REAL_PATH']}"
  return dict(REAL_PATH=real, PATH=f"{launch_stage.STUBS / 'cloud'}:{real}")


def test_the_trainer_ends_on_three_slices_as_on_one(stage):
  paths = _real_trainer(stage)
  stage.plan(
    dict(states=["ACTIVE"], preempt_at=10, at_once=True),
    dict(states=["ACTIVE"], preempt_at=60),
    launch_stage.ACTIVE,
    workers=1,
  )
  train = "prm-jax train --config=experiments/mine.py --workdir="
  code, output = stage.run(
    "tpu.sh run --run=r1 --poll=0.1 --backoff=0 --project=p --zone=z"
    f" --type=v6e-8 --bucket=b --workdir={stage.workdir} --copy=experiments"
    f" --copy=data -- {train}{{workdir}}",
    **paths,
  )
  assert code == 0, output
  assert len(stage.calls("queued-resources create")) == 3
  whole = stage.folder / "whole"
  subprocess.run(
    f"{train}{whole}".split(),
    cwd=stage.folder,
    env=stage.environment() | paths,
    check=True,
    capture_output=True,
  )

  def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [
      (r["step"], r["loss_nats"]) for r in records if r["kind"] == "train"
    ]

  assert len(losses(whole)) == 120
  assert losses(stage.workdir) == losses(whole)
  one, other = (
    model_json.fingerprint(folder, programs.load_params(folder))
    for folder in (stage.workdir, whole)
  )
  assert one == other


# --- On SLURM ---------------------------------------------------------------


def test_a_job_that_nears_its_limit_saves_and_is_queued_again(stage):
  line = (
    f"slurm.sh run --run=r1 --workdir={stage.workdir} --nodes=2"
    " --env-file=secrets.env -- python3 trainer.py --workdir={workdir}"
    " --steps=30 --until={workdir}/signalled"
  )
  code, output = stage.run(line, "slurm")
  assert code == 0, output
  environment = stage.environment("slurm") | dict(
    SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_JOB_NODELIST="node[1-2]"
  )

  def job():
    return subprocess.Popen(
      ["bash", stage.stub / "submitted"], cwd=stage.folder, env=environment
    )

  first = job()
  launch_stage.until(lambda: launch_stage.saved(stage) >= 4, first)
  first.send_signal(signal.SIGTERM)
  assert first.wait(timeout=60) == 42
  (stage.workdir / "signalled").touch()
  assert (stage.stub / "requeued").read_text() == "7\n"
  assert job().wait(timeout=60) == 0
  assert (stage.stub / "requeued").read_text() == "7\n"
  assert (stage.workdir / "result").read_text() == launch_stage.digest(30)
  assert launch_stage.metrics(stage) == list(range(1, 31))
  lines = (stage.workdir / "environment-1").read_text().splitlines()
  assert lines == ["node1:61447 2 1"] * 2
  launch_stage.assert_no_secret(stage)


@pytest.mark.parametrize(
  "trainer, code, jobs", [("--exit=0:3", 3, 1), ("--exit=0:42", 42, 3)]
)
def test_a_job_is_queued_again_only_if_that_may_help(
  trainer, code, jobs, stage
):
  line = (
    f"slurm.sh run --run=r1 --workdir={stage.workdir} --retries=2"
    f" --grace=0 -- python3 trainer.py --workdir={stage.workdir} --steps=99"
    f" {trainer}"
  )
  assert stage.run(line, "slurm")[0] == 0
  environment = stage.environment("slurm") | dict(
    SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_JOB_NODELIST="node1"
  )
  for k in range(jobs):
    shutil.rmtree(stage.workdir, ignore_errors=True)
    done = subprocess.run(
      ["bash", stage.stub / "submitted"],
      cwd=stage.folder,
      env=environment,
      timeout=60,
    )
    # srun's own code is 137: it has killed the other task.
    assert done.returncode == code
    path = stage.stub / "requeued"
    asked = len(path.read_text().split()) if path.exists() else 0
    assert asked == min(k + 1, jobs - 1)


def test_a_stopped_job_is_not_queued_again_until_it_is_resumed(stage):
  line = f"slurm.sh run --run=r1 --workdir={stage.workdir} -- bash -c 'exit 42'"
  assert stage.run(line, "slurm")[0] == 0
  environment = stage.environment("slurm") | dict(
    SLURM_JOB_ID="7", SLURM_NTASKS="1", SLURM_JOB_NODELIST="node1"
  )
  requeued = stage.stub / "requeued"

  def job():
    command = ["bash", stage.stub / "submitted"]
    done = subprocess.run(command, cwd=stage.folder, env=environment)
    assert done.returncode == 42
    return requeued.exists()

  assert stage.run("slurm.sh stop --run=r1", "slurm")[0] == 0
  asked = (stage.stub / "asked").read_text()
  assert "scancel --name=r1 --signal=TERM --batch" in asked
  assert not job()
  assert stage.run("slurm.sh resume --run=r1", "slurm")[0] == 0
  assert job()


# --- On this machine --------------------------------------------------------


def test_local_processes_learn_their_numbers_and_share_one_run(stage):
  code, output = stage.run(
    f"local.sh --processes=3 --devices=2 --workdir={stage.workdir}"
    " --env-file=secrets.env --"
    " python3 trainer.py --workdir={workdir} --steps=4"
  )
  assert code == 0, output
  assert "[0] resumes after step 0\n" in output
  found = [
    (stage.workdir / f"environment-{i}").read_text().split() for i in range(3)
  ]
  assert [entry[1:] for entry in found] == [["3", str(i)] for i in range(3)]
  assert len({entry[0] for entry in found}) == 1
  assert (stage.workdir / "result").read_text() == launch_stage.digest(4)
  launch_stage.assert_no_secret(stage)


def test_a_signal_reaches_each_local_process_once(stage):
  process = stage.start(
    f"local.sh --processes=2 -- python3 trainer.py --workdir={stage.workdir}"
    " --steps=999"
  )
  launch_stage.until(lambda: launch_stage.saved(stage) >= 2, process)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=60)
  # A second one would be 99.
  assert process.returncode == 42, output
  assert launch_stage.saved(stage) == launch_stage.metrics(stage)[-1]


# Code 1 isn't tried again, whatever code the waiting processes end with.
ONE_THEN_134 = (
  "bash -c 'if (({i})); then exit 1; fi;"
  " until [ -e {workdir}/late ]; do sleep 0.05; done; exit 134'"
)


@pytest.mark.parametrize("independent", [False, True])
def test_the_first_code_counts_and_of_independent_ones_the_largest(
  stage, independent
):
  options = "--independent" if independent else ""
  process = stage.start(
    f"local.sh --processes=2 --workdir={stage.folder} {options}"
    f" -- {ONE_THEN_134}"
  )
  while "process 1 exited 1" not in process.stdout.readline():
    assert process.poll() is None
  (stage.folder / "late").touch()
  process.communicate(timeout=60)
  assert process.returncode == (134 if independent else 1)


def test_a_slice_whose_first_worker_failed_for_good_is_not_tried_again(stage):
  stage.plan(launch_stage.ACTIVE)
  stage.workdir.mkdir()
  options, _, _ = launch_stage.tpu(stage, "--grace=60").partition(" -- ")
  process = stage.start(f"{options} -- {ONE_THEN_134}")
  worker = stage.stub / "life-0/worker-1/prm_jax_runs/r1"

  def gone():
    if (worker / "code").exists():
      try:
        os.kill(int((worker / "pid").read_text()), 0)
      except ProcessLookupError:
        return True
    return False

  launch_stage.until(gone, process)
  # When the second poll from now starts, the first has seen the end.
  before = len(stage.calls("worker.sh status"))
  launch_stage.until(
    lambda: len(stage.calls("worker.sh status")) >= before + 2, process
  )
  (stage.workdir / "late").touch()
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 1 and re.search("exited (134 1|1 134)", output)
  assert len(stage.calls("worker.sh start")) == 1


def test_a_process_that_waits_forever_is_ended(stage):
  line = "local.sh --processes=3 --grace={} -- bash -c"
  # Process 1 hangs; its code after SIGTERM or SIGKILL doesn't count.
  hangs = (
    "'trap \"exit 42\" TERM; while (({i} == 1)); do sleep 0.1; done; exit 3'"
  )
  begin = time.monotonic()
  assert stage.run(f"{line.format(0)} {hangs}")[0] == 3
  assert time.monotonic() - begin < 30


# Each is a variable of a script or of bash; some would run a command there.
ODD_NAMES = (
  *("code", "pids", "filled", "settings", "i", "n", "processes", "grace"),
  *("line", "pairs", "lines", "name", "number", "env_file", "OPTIONS", "PORT"),
  *("REPLY", "IFS", "BASH_ENV", "LINES", "env", "here", "alive", "flags"),
)
SHOW_ENVIRONMENT = (
  "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text("
  "'\\0'.join('='.join(pair) for pair in os.environ.items()))"
)


def _odd_environment(stage):
  """Writes a file of secrets; returns its lines, and how to show them."""
  lines = [f"{name}=a[$(touch {stage.folder}/pwned)]" for name in ODD_NAMES]
  lines += ["PATH=/nowhere", "EMPTY=", "Q='a b\"  $HOME \\n `id` é = #"]
  path = stage.folder / "odd.env"
  path.write_text("# a comment\n\n" + "\n".join(lines))
  path.chmod(0o600)
  shown = stage.folder / "shown"
  show = shlex.join([sys.executable, "-c", SHOW_ENVIRONMENT, str(shown)])
  return lines, show, shown


def test_a_file_of_secrets_reaches_the_command_and_nothing_else(stage):
  lines, show, shown = _odd_environment(stage)
  line = f"local.sh --devices=1 --env-file=odd.env -- {show}"
  code, output = stage.run(line, XLA_FLAGS="--xla_a=1")
  assert code == 0 and not output
  found = set(shown.read_text().split("\0"))
  assert found >= set(lines), set(lines) - found
  assert "JAX_PROCESS_ID=0" in found
  assert any(
    re.fullmatch(r"XLA_FLAGS=--xla_a=1 --xla_force.*=1", x) for x in found
  )
  assert not (stage.folder / "pwned").exists()


def test_a_slurm_job_gives_a_file_of_secrets_to_the_command_alone(stage):
  lines, show, shown = _odd_environment(stage)
  line = f"slurm.sh run --run=r1 --workdir={stage.workdir} --env-file=odd.env"
  code, output = stage.run(f"{line} -- {show}", "slurm")
  assert code == 0, output
  environment = stage.environment("slurm") | dict(
    SLURM_JOB_ID="7", SLURM_NTASKS="1", SLURM_JOB_NODELIST="node1"
  )
  job = ["bash", stage.stub / "submitted"]
  subprocess.run(job, cwd=stage.folder, env=environment, check=True)
  assert set(shown.read_text().split("\0")) >= set(lines)
  assert not (stage.folder / "pwned").exists()
  # A job reads the file again; a line may be wrong by now.
  (stage.folder / "odd.env").write_text("a[$(touch pwned)]=1\n")
  shown.unlink()
  done = subprocess.run(
    job, cwd=stage.folder, env=environment, capture_output=True, text=True
  )
  assert done.returncode == 1 and "odd.env:1: expected" in done.stderr
  assert not (stage.folder / "pwned").exists() and not shown.exists()


# Says its number and ignores SIGTERM, as a process that hangs does.
STUBBORN = (
  "import os, pathlib, signal, sys, time;"
  "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True));"
  "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()));"
  "[time.sleep(0.05) for _ in range(2400)]"
)


def _start_stubborn(stage, options):
  """Returns a launcher and the number of its process, which runs."""
  path = stage.folder / "number"
  command = shlex.join([sys.executable, "-c", STUBBORN, str(path)])
  launcher = stage.start(f"local.sh {options} -- {command}")
  launch_stage.until(lambda: path.exists() and path.read_text(), launcher)
  return launcher, int(path.read_text())


def _is_running(number):
  """Returns whether a process runs; one that has ended may wait for process 1."""
  try:
    stat = pathlib.Path(f"/proc/{number}/stat").read_text()
  except FileNotFoundError:
    return False
  return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_process_that_ignores_a_signal_is_killed_in_the_end(stage):
  launcher, number = _start_stubborn(stage, "--kill-after=1")
  launcher.send_signal(signal.SIGTERM)
  output, _ = launcher.communicate(timeout=60)
  assert launcher.returncode == 137 and "[0] told\n" in output
  assert "killing process 0, 1 s after SIGTERM" in output
  assert not _is_running(number)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("watcher", ["first", "stays"])
def test_processes_of_a_killed_launcher_are_told_to_save_and_then_killed(
  stage, watcher
):
  launcher, number = _start_stubborn(stage, "--kill-after=1")
  if watcher == "first":  # without it the launcher itself still works
    subprocess.run(["pkill", "-9", "-P", str(launcher.pid), "-f", "end_orphan"])
    launcher.send_signal(signal.SIGTERM)
  else:
    launcher.kill()
  output, _ = launcher.communicate(timeout=60)
  assert output.count("[0] told\n") == 1
  assert "killing process" in output
  deadline = time.monotonic() + 20
  while _is_running(number):  # SIGKILL takes a moment
    assert time.monotonic() < deadline
    time.sleep(0.02)


def test_the_trainer_of_a_killed_launcher_saves_and_ends(stage):
  process = stage.start(
    f"local.sh --processes=2 -- python3 trainer.py --workdir={stage.workdir}"
    " --steps=999"
  )
  launch_stage.until(lambda: launch_stage.saved(stage) >= 2, process)
  process.kill()
  # The end of the output is that of all processes.
  output, _ = process.communicate(timeout=60)
  assert "the launcher is gone; ending process" in output
  assert launch_stage.saved(stage) == launch_stage.metrics(stage)[-1] < 999


def test_no_file_of_the_current_folder_runs_in_a_launcher(stage):
  for name in ("socket", "sys", "venv"):
    (stage.folder / f"{name}.py").write_text("open('pwned', 'w')")
  assert stage.run("local.sh -- true") == (0, "")
  assert not (stage.folder / "pwned").exists()


def test_shards_are_numbered_and_independent(stage):
  code, output = stage.run(
    "local.sh --processes=3 --independent -- bash -c"
    " 'echo --shard={i}/{n} ${JAX_NUM_PROCESSES-alone}'"
  )
  assert code == 0
  lines = sorted(output.splitlines())
  assert lines == [f"[{i}] --shard={i}/3 alone" for i in range(3)]
