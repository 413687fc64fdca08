"""launch/: golden files of dry runs, and rehearsals where all is local.

tests/launch_stub/cloud/gcloud is a cloud whose workers are processes here; the
trainer is a program of a few lines with the trainer's manners. The trainer
itself is rehearsed by `make faults`.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

import launch_cases
import numpy as np
import pytest
import test_cli
import yaml

from prm_jax import arithmetic
from prm_jax import checkpoint
from prm_jax import schema

ROOT = launch_cases.ROOT
STUBS = ROOT / "tests" / "launch_stub"
SECRET = "canary-of-the-file"
CACHE = "JAX_COMPILATION_CACHE_DIR"  # set by conftest.py
LEAK = "canary-of-the-environment"
ACTIVE = dict(states=["ACTIVE"])
BASH = [*(ROOT / "launch").glob("*.sh")]


@dataclasses.dataclass(frozen=True)
class Stage:
  """A folder with a stub cloud, an empty workdir and the stand-in trainer."""

  folder: pathlib.Path

  @property
  def stub(self) -> pathlib.Path:
    return self.folder / "stub"

  @property
  def workdir(self) -> pathlib.Path:
    return self.folder / "workdir"

  def environment(self, stubs: str = "cloud") -> dict[str, str]:
    python = pathlib.Path(sys.executable).parent
    path = f"{python}:{os.environ['PATH']}"
    return dict(
      PATH=f"{STUBS / stubs}:{path}",
      REAL_PATH=path,
      STUB=str(self.stub),
      HOME=str(self.folder),
      HF_TOKEN=LEAK,
    )

  def plan(self, *lives: dict, workers: int = 2, faults: Sequence = ()) -> None:
    record = dict(workers=workers, workdir=str(self.workdir), lives=lives)
    (self.stub / "plan.json").write_text(
      json.dumps(record | dict(faults=faults))
    )

  def start(
    self, line: str, stubs: str = "cloud", **more: str
  ) -> subprocess.Popen:
    """Starts a script of launch/; {workdir} and the like aren't expanded."""
    script, *words = shlex.split(line)
    return subprocess.Popen(
      [ROOT / "launch" / script, *words],
      cwd=self.folder,
      env=self.environment(stubs) | more,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def run(
    self, line: str, stubs: str = "cloud", **more: str
  ) -> tuple[int, str]:
    process = self.start(line, stubs, **more)
    said, _ = process.communicate(timeout=100)
    return process.returncode, said

  def calls(self, *words: str) -> list[list[str]]:
    """Returns the gcloud calls that have these words."""
    path = self.stub / "argv.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    calls = [json.loads(line) for line in lines]
    return [c for c in calls if all(w in " ".join(c) for w in words)]

  def alive(self) -> bool:
    return json.loads((self.stub / "state.json").read_text())["alive"]


@pytest.fixture
def stage(tmp_path):
  stage = Stage(tmp_path)
  stage.stub.mkdir()
  launch_cases.furnish(tmp_path)
  shutil.copy(STUBS / "trainer.py", tmp_path)
  (tmp_path / "dist").mkdir()
  (tmp_path / "dist" / "prm_jax-0.1.0-py3-none-any.whl").write_text("a wheel")
  yield stage
  for path in tmp_path.glob("stub/life-*/worker-*/prm_jax_runs/*/pid"):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(int(path.read_text()), signal.SIGKILL)


def _digest(steps: int) -> str:
  """What the stand-in trainer comes to if nobody interrupts it."""
  state = "start"
  for step in range(1, steps + 1):
    state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
  return state


def _tpu(
  stage: Stage, *options: str, steps: int = 12, trainer: str = "", what="run"
) -> str:
  words = [f"tpu.sh {what} --run=r1 --poll=0.2 --backoff=0 --grace=0", *options]
  if what == "run":
    words.append(
      "--project=p --zone=z --type=v6e-16 --bucket=b --copy=trainer.py"
      f" --workdir={stage.workdir} --env-file=secrets.env"
      " -- python3 trainer.py --workdir={workdir}"
      f" --steps={steps} {trainer}"
    )
  return " ".join(words)


def _until(condition: Callable[[], Any], process: subprocess.Popen) -> None:
  deadline = time.monotonic() + 60
  while not condition():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)


def _saved(stage: Stage) -> int:
  names = [p.name for p in stage.workdir.glob("checkpoints/*")]
  return max((int(name) for name in names if name.isdecimal()), default=0)


def _metrics(stage: Stage) -> list[int]:
  lines = (stage.workdir / "metrics").read_text().splitlines()
  return [int(line.split()[0]) for line in lines]


def _assert_no_secret(stage: Stage) -> None:
  """The command had it; nothing sent, printed or kept has it but its file."""
  secret = hashlib.sha256(SECRET.encode()).hexdigest()
  seen = (stage.workdir / "secret-seen").read_text()
  assert seen and not seen.replace(secret, "")
  for path in stage.folder.rglob("*"):
    if path.name in ("secrets.env", "env") or not path.is_file():
      continue
    content = path.read_bytes()
    assert SECRET.encode() not in content, path
    assert LEAK.encode() not in content, path
  for path in stage.stub.glob("*/worker-*/prm_jax_runs/*/env"):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _assert_flags_documented(calls: Sequence[Sequence[str]]) -> None:
  known = json.loads((launch_cases.GOLDEN / "gcloud_flags.json").read_text())
  for call in calls:
    words = [word for word in call if not word.startswith("-")]
    name = " ".join(words[: 2 if words[0] == "storage" else 4])
    for word in call:
      if word.startswith("--"):
        flag = word.partition("=")[0]
        assert flag in known["everywhere"] + known[name], (name, flag)


# --- What is printed --------------------------------------------------------


@pytest.mark.parametrize("name", launch_cases.CASES)
def test_a_dry_run_prints_the_golden_commands_and_runs_none(name, tmp_path):
  launch_cases.furnish(tmp_path)
  before = sorted(tmp_path.rglob("*"))
  said = launch_cases.dry_run(name, tmp_path)
  assert said == (launch_cases.GOLDEN / f"{name}.txt").read_text()
  assert "canary" not in said
  assert sorted(tmp_path.rglob("*")) == before


def _printed_gcloud() -> list[list[str]]:
  lines = [
    shlex.split(line)[1:]
    for path in sorted(launch_cases.GOLDEN.glob("*.txt"))
    for line in path.read_text().splitlines()
    if line.startswith("gcloud ")
  ]
  assert len(lines) > 40
  return lines


def test_each_printed_gcloud_line_has_documented_flags_only():
  _assert_flags_documented(_printed_gcloud())
  with pytest.raises(AssertionError):
    create = "compute tpus queued-resources create r1 --best-effort"
    _assert_flags_documented([create.split()])


def test_bash_reads_a_printed_line_as_the_words_that_were_meant(tmp_path):
  launch_cases.furnish(tmp_path)
  line = launch_cases.dry_run("hostile_local", tmp_path).partition("\n")[2]
  show = tmp_path / "prm-jax"
  show.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
  show.chmod(0o755)
  done = subprocess.run(
    ["bash", "-c", line],
    cwd=tmp_path,
    env=dict(PATH=f"{tmp_path}:{os.environ['PATH']}"),
    capture_output=True,
    check=True,
  )
  words = done.stdout.decode().split("\0")
  hostile = launch_cases.HOSTILE
  assert words[3] == hostile.replace("{i}", "0")
  assert words[7] == hostile.replace("{i}", "1")
  assert not (tmp_path / "pwned").exists()


def _shellcheck(*arguments: object) -> None:
  checker = pathlib.Path(sys.executable).with_name("shellcheck")
  command = [checker, "--severity=style", *arguments]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr


def test_the_scripts_are_clean_bash():
  stubs = [
    path
    for path in STUBS.glob("*/*")
    if path.read_text().startswith("#!/usr/bin/env bash")
  ]
  assert len(BASH) == 7 and len(stubs) == 6
  _shellcheck(*BASH, *stubs)


@pytest.mark.parametrize("name", ["slurm_train", "slurm_label"])
def test_the_batch_script_is_clean_bash(name, tmp_path):
  said = (launch_cases.GOLDEN / f"{name}.txt").read_text()
  script = tmp_path / "job.sbatch"
  script.write_text(said.partition("\n")[2].rpartition("sbatch ")[0])
  # A variable of the other form; a function that srun calls.
  _shellcheck("--exclude=SC2034,SC2329", script)


# The last of two equal options holds.
GOOD_TPU = "tpu.sh run --project=p --zone=z --type=v6e-8 --bucket=b"
GOOD_GKE = "gke.sh run --image=i --accelerator=v6e --topology=4x4 --bucket=b"


@pytest.mark.parametrize(
  "line, words",
  [
    ("tpu.sh run --project=p", "--zone is missing; give --zone=us-east5-b"),
    (f"{GOOD_TPU}", "no command; end with -- prm-jax train"),
    (f"{GOOD_TPU} --type=a100-8x -- true", "--type=a100-8x: expected such as"),
    (f"{GOOD_TPU} --type=v9-8 -- true", "for others give --runtime-version"),
    (f"{GOOD_TPU} --run=Up -- true", "--run=Up: give 1 to 40 of a-z"),
    (f"{GOOD_TPU} --copy=/etc -- true", "--copy=/etc: give a path below this"),
    (f"{GOOD_TPU} --copy=a/../.. -- true", "--copy=a/../..: give a path below"),
    (f"{GOOD_TPU} '--zone=$(id)' -- true", "--zone=$(id): expected letters"),
    (f"{GOOD_TPU} --env-file=open.env -- true", "open.env: others may read it"),
    (
      f"{GOOD_TPU} --env-file=bad.env -- true",
      "bad.env:2: expected NAME=VALUE",
    ),
    (f"{GOOD_TPU} --wheel=x.whl -- true", "--wheel=x.whl: isn't there; build"),
    (f"{GOOD_TPU} --workdir=r/x -- true", "--workdir=r/x: workers share it"),
    ("tpu.sh stop --run=other", "--run=other: no such run in .launch"),
    ("tpu.sh go", "go: expected run, resume, status, logs or stop"),
    (f"{GOOD_GKE} --topology=3x3 -- true", "isn't made of nodes of 4"),
    (f"{GOOD_GKE} --topology=4x4x4 -- true", "v5e and v6e have two"),
    (f"{GOOD_GKE} --shards=2 -- true", "a shard takes one of 1 node"),
    ("slurm.sh run -- true", "--workdir is missing"),
    ("slurm.sh run --workdir=/s '--time=1 h' -- true", "--time=1 h: expected"),
    ("local.sh --processes=two -- true", "--processes=two: expected 0, 1"),
    ("local.sh --processes=2", "no command; end with -- prm-jax train"),
    ("local.sh --procs=2 -- true", "--procs=2: not an option; see --help"),
  ],
)
def test_a_users_error_is_one_line_and_code_1(line, words, stage):
  (stage.folder / "open.env").write_text("A=1\n")
  (stage.folder / "open.env").chmod(0o644)
  (stage.folder / "bad.env").write_text(f"A=1\nexport {SECRET}\n")
  (stage.folder / "bad.env").chmod(0o600)
  code, said = stage.run(line)
  assert code == 1
  assert words in said and said.count("\n") == 1, said
  assert SECRET not in said
  assert not stage.calls() and not (stage.folder / ".launch").exists()


def test_the_manifests_say_to_kubernetes_what_was_meant(tmp_path):
  launch_cases.furnish(tmp_path)
  for name in ("gke_v6e", "gke_v5e", "gke_v5p", "gke_label"):
    text = launch_cases.dry_run(name, tmp_path)
    record = yaml.safe_load(
      text[: text.rindex("kubectl")].replace("kubectl", "#")
    )
    kind = record["kind"]
    job = record["spec"]
    if kind == "JobSet":
      assert record["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
      rules = job["failurePolicy"]["rules"]
      assert rules[0]["action"] == "FailJobSet"
      assert "PodFailurePolicy" in rules[0]["onJobFailureReasons"]
      job = job["replicatedJobs"][0]["template"]["spec"]
      assert job["backoffLimit"] == 0
    codes = job["podFailurePolicy"]["rules"][-1]["onExitCodes"]
    assert codes["values"] == [1, 2, 3, 4, 5] and codes["operator"] == "In"
    assert job["completionMode"] == "Indexed"
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (main,) = pod["containers"]
    assert main["name"] == codes["containerName"]
    names = {entry["name"]: entry.get("value") for entry in main["env"]}
    together = kind == "JobSet"
    assert ("JAX_COORDINATOR_ADDRESS" in names) == together
    if together:
      assert names["JAX_NUM_PROCESSES"] == str(job["completions"])
    chips = main["resources"]["limits"]["google.com/tpu"]
    sizes = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    slice_chips = 1
    for size in sizes:
      slice_chips *= int(size)
    assert chips * (job["completions"] if together else 1) == slice_chips


def test_a_manifest_keeps_each_character_of_the_command(tmp_path):
  launch_cases.furnish(tmp_path)
  text = launch_cases.dry_run("hostile_gke", tmp_path)
  record = yaml.safe_load(text[: text.rindex("kubectl")])
  job = record["spec"]["replicatedJobs"][0]["template"]["spec"]
  word = job["template"]["spec"]["containers"][0]["command"][-1]
  # As Kubernetes reads it: $$( is $(, $(NAME) is a variable.
  read = re.sub(
    r"\$\$\(|\$\(WORKER\)", lambda m: "$(" if m[0] == "$$(" else "0", word
  )
  assert read == launch_cases.HOSTILE.replace("{i}", "0")


# --- On a cloud -------------------------------------------------------------


def test_a_run_that_is_preempted_ends_as_one_that_is_not(stage):
  queue = ["WAITING_FOR_RESOURCES", "PROVISIONING"]
  stage.plan(
    dict(states=[*queue, "FAILED"]),
    dict(states=[*queue, "ACTIVE"], preempt_at=4),
    ACTIVE,
    workers=4,
    # ssh to one of the workers fails once.
    faults=[dict(match="worker.sh start", worker=2, times=1)],
  )
  code, said = stage.run(_tpu(stage, "--spot"))
  assert code == 0, said
  assert (stage.workdir / "result").read_text() == _digest(12)
  # SIGTERM lost no step and repeated none.
  assert _metrics(stage) == list(range(1, 13))
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
  # Each worker was told who it is, and had the secret.
  for i in range(4):
    lines = (stage.workdir / f"environment-{i}").read_text().splitlines()
    assert set(lines) == {f"127.0.0.1:8476 4 {i}"}
  assert "not all workers could be started" in said
  log = stage.stub / "buckets" / "b" / "logs" / "r1" / "worker-0.log"
  assert "goes on behind step" in log.read_text()
  assert "goes on behind step" in said
  assert "queued-resources delete r1" in said
  assert SECRET not in said and LEAK not in said
  _assert_no_secret(stage)
  _assert_flags_documented(stage.calls())


def test_a_code_that_a_restart_does_not_mend_ends_the_run_with_it(stage):
  stage.plan(ACTIVE)
  # The other worker would wait forever; it is stopped.
  code, said = stage.run(_tpu(stage, trainer="--exit=0:3"))
  assert code == 3, said
  assert len(stage.calls("worker.sh start")) == 1
  assert not stage.alive()


def test_attempts_without_a_new_checkpoint_are_limited(stage):
  stage.plan(ACTIVE, workers=1)
  code, said = stage.run(_tpu(stage, "--retries=1", trainer="--exit=0:42"))
  assert code == 42
  # On the same slice, which is whole.
  assert len(stage.calls("worker.sh start")) == 2
  assert len(stage.calls("queued-resources create")) == 1
  assert "no new checkpoint in 2 attempts; gives up" in said
  assert not stage.alive()


def test_attempts_with_a_new_checkpoint_are_not_limited(stage):
  stage.plan(ACTIVE, workers=1)
  trainer = "--stint=1"
  code, said = stage.run(_tpu(stage, "--retries=1", steps=3, trainer=trainer))
  assert code == 0, said
  assert len(stage.calls("worker.sh start")) == 3


def test_what_the_cloud_refuses_is_tried_again_and_then_said(stage):
  quota = dict(
    match="queued-resources create",
    times=9,
    error="RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZone'",
  )
  stage.plan(faults=[quota])
  code, said = stage.run(_tpu(stage, "--retries=1"))
  assert code == 1
  assert said.count("RESOURCE_EXHAUSTED: Quota limit") == 2
  assert "it could not be created" in said
  assert len(stage.calls("queued-resources create")) == 2
  assert not stage.calls("queued-resources delete")


def test_workers_do_not_start_with_other_bytes_than_were_sent(stage):
  damage = dict(match="bundle.tar.gz", worker=1, times=9, damage=True)
  stage.plan(ACTIVE, ACTIVE, faults=[damage])
  code, said = stage.run(_tpu(stage, "--retries=1"))
  assert code == 1
  assert "not all workers could be set up" in said
  assert not stage.calls("worker.sh start")
  assert not stage.alive()


def test_after_ctrl_c_the_run_goes_on_and_is_taken_up_again(stage):
  stage.plan(ACTIVE)
  process = stage.start(_tpu(stage, steps=60))
  _until(lambda: _saved(stage) >= 2, process)
  process.send_signal(signal.SIGINT)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == 130
  assert stage.alive() and "r1 runs on and costs money" in said
  code, said = stage.run(_tpu(stage, what="resume"))
  assert code == 0, said
  assert "runs already" in said
  assert (stage.workdir / "result").read_text() == _digest(60)
  assert len((stage.workdir / "environment-0").read_text().splitlines()) == 1
  assert not stage.alive()
  # It has an end: its folder says all there is to say.
  attempts = (stage.folder / ".launch/r1/attempts").read_text()
  assert re.fullmatch(r"\S+ code=0 step=\d+ \n", attempts)


def test_stopping_a_run_saves_it_first_and_empties_the_secrets(stage):
  stage.plan(ACTIVE)
  process = stage.start(_tpu(stage, "--delete", steps=999))
  _until(lambda: _saved(stage) >= 2, process)
  process.send_signal(signal.SIGINT)
  assert process.wait(timeout=60) == 130
  process.stdout.close()
  assert not stage.alive()
  # The last step that was computed is saved.
  assert _saved(stage) == _metrics(stage)[-1]
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


@pytest.mark.faults
def test_hours_that_are_over_end_a_run_that_is_saved(stage):
  stage.plan(ACTIVE)
  code, said = stage.run(_tpu(stage, "--max-hours=0", "--poll=3", steps=999))
  assert code == 42
  assert "--max-hours=0 are over" in said
  assert not stage.alive()
  assert _saved(stage) == _metrics(stage)[-1] > 0


@pytest.mark.faults
def test_a_slice_that_cannot_be_set_up_twice_is_replaced(stage):
  lost = dict(match="worker.sh install", worker=1, times=2)
  stage.plan(ACTIVE, ACTIVE, faults=[lost])
  code, said = stage.run(_tpu(stage))
  assert code == 0, said
  assert len(stage.calls("queued-resources create")) == 2
  assert (stage.workdir / "result").read_text() == _digest(12)


def _real_trainer(stage: Stage) -> dict[str, str]:
  """Writes a config, its data, and a prm-jax of this tree; returns the PATHs."""
  task = arithmetic.Task(max_turns=4)
  random = np.random.default_rng(0)
  problems = arithmetic.problems(40, "train", task, random)
  solved = [arithmetic.solve(p, random, task) for p in problems]
  (stage.folder / "data").mkdir()
  path = stage.folder / "data" / "mine.jsonl"
  schema.write_solutions(path, map(arithmetic.judge, solved))
  text = test_cli.CONFIG.replace("PROGRAM", "prm").replace("STEPS", "200")
  text = text.replace("INPUT", "data/mine.jsonl")
  text = text.replace("log_every=2", "log_every=1, checkpoint_every=10")
  (stage.folder / "experiments" / "mine.py").write_text(text)
  command = stage.folder / "bin" / "prm-jax"
  command.parent.mkdir()
  call = "import sys; from prm_jax import cli; sys.exit(cli.main())"
  settings = f"PYTHONPATH={ROOT} JAX_PLATFORMS=cpu"
  settings += f" JAX_COMPILATION_CACHE_DIR={os.environ[CACHE]}"
  command.write_text(
    f'#!/bin/sh\nexec env {settings} {sys.executable} -c "{call}" "$@"\n'
  )
  command.chmod(0o755)
  given = stage.environment()
  real = f"{command.parent}:{given['REAL_PATH']}"
  return dict(REAL_PATH=real, PATH=f"{STUBS / 'cloud'}:{real}")


@pytest.mark.faults
def test_the_trainer_ends_on_three_slices_as_on_one(stage):
  paths = _real_trainer(stage)
  stage.plan(
    dict(states=["ACTIVE"], preempt_at=10, at_once=True),
    dict(states=["ACTIVE"], preempt_at=60),
    ACTIVE,
    workers=1,
  )
  train = "prm-jax train --config=experiments/mine.py --workdir="
  code, said = stage.run(
    "tpu.sh run --run=r1 --poll=0.1 --backoff=0 --project=p --zone=z"
    f" --type=v6e-8 --bucket=b --workdir={stage.workdir} --copy=experiments"
    f" --copy=data -- {train}{{workdir}}",
    **paths,
  )
  assert code == 0, said
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

  assert len(losses(whole)) == 200
  assert losses(stage.workdir) == losses(whole)
  one, other = (
    checkpoint.fingerprint(folder, checkpoint.load_params(folder))
    for folder in (stage.workdir, whole)
  )
  assert one == other


# --- On SLURM ---------------------------------------------------------------


def test_a_job_that_nears_its_limit_saves_and_is_queued_again(stage):
  line = (
    f"slurm.sh run --run=r1 --workdir={stage.workdir} --nodes=2"
    " --env-file=secrets.env -- python3 trainer.py --workdir={workdir}"
    " --steps=30"
  )
  code, said = stage.run(line, "slurm")
  assert code == 0, said
  environment = stage.environment("slurm") | dict(
    SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_JOB_NODELIST="node[1-2]"
  )

  def job():
    return subprocess.Popen(
      ["bash", stage.stub / "submitted"], cwd=stage.folder, env=environment
    )

  first = job()
  _until(lambda: _saved(stage) >= 4, first)
  first.send_signal(signal.SIGTERM)
  assert first.wait(timeout=60) == 42
  assert (stage.stub / "requeued").read_text() == "7\n"
  assert job().wait(timeout=60) == 0
  assert (stage.stub / "requeued").read_text() == "7\n"
  assert (stage.workdir / "result").read_text() == _digest(30)
  assert _metrics(stage) == list(range(1, 31))
  lines = (stage.workdir / "environment-1").read_text().splitlines()
  assert lines == ["node1:61447 2 1"] * 2
  _assert_no_secret(stage)


@pytest.mark.parametrize(
  "trainer, code, jobs", [("--exit=0:3", 3, 1), ("--exit=0:42", 42, 3)]
)
def test_a_job_is_queued_again_only_if_that_may_help(
  trainer, code, jobs, stage
):
  line = (
    f"slurm.sh run --run=r1 --workdir={stage.workdir} --retries=2"
    f" --grace=0 -- python3 trainer.py --workdir={stage.workdir} --steps=99 {trainer}"
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


# --- On this machine --------------------------------------------------------


def test_local_processes_learn_who_they_are_and_share_one_run(stage):
  code, said = stage.run(
    f"local.sh --processes=3 --devices=2 --workdir={stage.workdir} --"
    " python3 trainer.py --workdir={workdir} --steps=4"
  )
  assert code == 0, said
  assert "[0] goes on behind step 0\n" in said
  found = [
    (stage.workdir / f"environment-{i}").read_text().split() for i in range(3)
  ]
  assert [entry[1:] for entry in found] == [["3", str(i)] for i in range(3)]
  assert len({entry[0] for entry in found}) == 1
  assert (stage.workdir / "result").read_text() == _digest(4)


def test_a_signal_reaches_each_local_process_once(stage):
  process = stage.start(
    f"local.sh --processes=2 -- python3 trainer.py --workdir={stage.workdir}"
    " --steps=999"
  )
  _until(lambda: _saved(stage) >= 2, process)
  process.send_signal(signal.SIGINT)
  said, _ = process.communicate(timeout=60)
  # A second one would be 99.
  assert process.returncode == 42, said
  assert _saved(stage) == _metrics(stage)[-1]


def test_the_largest_code_wins_and_who_waits_forever_is_ended(stage):
  line = "local.sh --processes=3 --grace=0 -- bash -c"
  three = "'exit $(({i} * 2))'"
  assert stage.run(f"{line} {three}")[0] == 4
  # Process 1 hangs: what SIGTERM or SIGKILL make of it doesn't count.
  hangs = (
    "'trap \"exit 42\" TERM; (({i} != 1)) || { sleep 60 & wait; }; exit 3'"
  )
  begin = time.monotonic()
  assert stage.run(f"{line} {hangs}")[0] == 3
  assert time.monotonic() - begin < 30


def test_shards_are_numbered_and_know_of_nobody(stage):
  code, said = stage.run(
    "local.sh --processes=3 --independent -- bash -c"
    " 'echo --shard={i}/{n} ${JAX_NUM_PROCESSES-alone}'"
  )
  assert code == 0
  lines = sorted(said.splitlines())
  assert lines == [f"[{i}] --shard={i}/3 alone" for i in range(3)]


# --- The page ---------------------------------------------------------------


def test_each_command_of_the_page_is_one_that_the_scripts_take(stage):
  page = (ROOT / "docs" / "launch.md").read_text()
  blocks = re.findall(r"```\n(.*?)```", page, re.S)
  lines = [
    line
    for block in blocks
    for line in block.replace("\\\n", " ").splitlines()
    if re.match(r"launch/\w+\.sh (run|--)", line)
  ]
  assert len(lines) >= 6
  for name in ("experiments/mine.py", "data/mine.jsonl", "mount.sh"):
    (stage.folder / name).parent.mkdir(exist_ok=True)
    (stage.folder / name).write_text("")
  for line in lines:
    line = line.partition("  #")[0].removeprefix("launch/")
    code, said = stage.run(line.replace(" -- ", " --dry-run -- ", 1))
    assert code == 0, f"{line}\n{said}"
