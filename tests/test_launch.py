"""launch/: what the scripts print, refuse and write."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import launch_cases
import launch_stage
import pytest
import yaml

pytestmark = pytest.mark.faults
ROOT = launch_cases.ROOT
JOB = ROOT / "benchmarks" / "device" / "job.sh"
BASH = [*(ROOT / "launch").glob("*.sh"), JOB]


@pytest.fixture
def stage(tmp_path):
  with launch_stage.furnished(tmp_path) as stage:
    yield stage


# --- What is printed --------------------------------------------------------


@pytest.mark.parametrize("name", launch_cases.CASES)
def test_a_dry_run_prints_the_golden_commands_and_runs_none(name, tmp_path):
  launch_cases.furnish(tmp_path)
  before = sorted(tmp_path.rglob("*"))
  output = launch_cases.dry_run(name, tmp_path)
  assert output == (launch_cases.GOLDEN / f"{name}.txt").read_text()
  assert "canary" not in output
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
  launch_stage.assert_flags_documented(_printed_gcloud())
  with pytest.raises(AssertionError):
    create = "compute tpus queued-resources create r1 --best-effort"
    launch_stage.assert_flags_documented([create.split()])


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
    for path in launch_stage.STUBS.glob("*/*")
    if path.read_text().startswith("#!/usr/bin/env bash")
  ]
  assert len(BASH) == 9 and len(stubs) == 8
  _shellcheck(*BASH, *stubs)


@pytest.mark.parametrize("name", ["slurm_train", "slurm_label"])
def test_the_batch_script_is_clean_bash(name, tmp_path):
  output = (launch_cases.GOLDEN / f"{name}.txt").read_text()
  script = tmp_path / "job.sbatch"
  script.write_text(output.partition("\n")[2].rpartition("sbatch ")[0])
  # A variable of the other form; a function that srun calls.
  _shellcheck("--exclude=SC2034,SC2329", script)


# Files of secrets with a wrong line.
BAD_ENV = {
  "index.env": b"a[$(touch pwned)]=1\n",
  "plus.env": b"PATH+=:/x\n",
  "digit.env": b"A=1\n\n# two\n2B=1",
  "space.env": b"A =1\n",
  "bash.env": b"A=1\nUID=0\n",
  "twice.env": b"A=1\nB=2\nA=2\n",
  "dos.env": b"A=1\r\n",
}

# Complete commands; the last of two equal options holds.
GOOD_TPU = "tpu.sh run --project=p --zone=z --type=v6e-8 --bucket=b"
LOCAL_ENV = "local.sh --env-file"
GOOD_GKE = "gke.sh run --image=i --accelerator=v6e --topology=4x4 --bucket=b"


@pytest.mark.parametrize(
  "line, words",
  [
    ("tpu.sh run --project=p", "--zone is missing; give --zone=us-east5-b"),
    (f"{GOOD_TPU}", "no command; end with -- prm-jax train"),
    (f"{GOOD_TPU} --type=a100-8x -- true", "--type=a100-8x: expected such as"),
    (f"{GOOD_TPU} --type=v5e:2x8 -- true", "types have even shapes"),
    (f"{GOOD_TPU} --type=v5p:4x4 -- true", "v4 and v5p have three sizes"),
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
    (
      f"{GOOD_TPU} --wheel=x.whl -- true",
      "--wheel=x.whl: doesn't exist; build",
    ),
    (f"{GOOD_TPU} --workdir=r/x -- true", "--workdir=r/x: workers share it"),
    ("tpu.sh stop --run=other", "--run=other: no such run in .launch"),
    ("tpu.sh go", "go: expected run, resume, status, logs or stop"),
    (f"{GOOD_GKE} --topology=3x3 -- true", "isn't made of nodes of 4"),
    (f"{GOOD_GKE} --accelerator=v5e:4x4 -- true", "v5e:4x4 says it already"),
    (f"{GOOD_GKE} --topology=4x4x4 -- true", "v5e and v6e have two"),
    (f"{GOOD_GKE} --shards=2 -- true", "a shard takes one of 1 node"),
    ("slurm.sh run -- true", "--workdir is missing"),
    ("slurm.sh run --workdir=/s '--time=1 h' -- true", "--time=1 h: expected"),
    ("local.sh --processes=two -- true", "--processes=two: expected 0, 1"),
    ("local.sh --processes=2", "no command; end with -- prm-jax train"),
    ("local.sh --procs=2 -- true", "--procs=2: not an option; see --help"),
    ("local.sh --devices -- true", "--devices: not an option; see --help"),
    ("local.sh --independent=1 -- true", "--independent=1: not an option"),
    ("local.sh --kill-after=x -- true", "--kill-after=x: expected 0, 1, 2"),
    (f"{LOCAL_ENV}=index.env -- true", "index.env:1: expected NAME=VALUE"),
    (f"{LOCAL_ENV}=plus.env -- true", "plus.env:1: expected NAME=VALUE"),
    (f"{LOCAL_ENV}=digit.env -- true", "digit.env:4: expected NAME=VALUE"),
    (f"{LOCAL_ENV}=space.env -- true", "space.env:1: expected NAME=VALUE"),
    (
      f"{LOCAL_ENV}=bash.env -- true",
      "bash.env:2: UID is a variable that bash",
    ),
    (f"{LOCAL_ENV}=twice.env -- true", "twice.env:3: A is set in line 1, too"),
    (f"{LOCAL_ENV}=dos.env -- true", "dos.env:1: ends in a carriage return"),
    (f"{GOOD_TPU} now -- true", "now: not an option; see --help"),
    (f"{GOOD_TPU} '' -- true", ": not an option; see --help"),
    (f"{GOOD_TPU} --keep:at_end=x -- true", "--keep:at_end=x: not an option"),
    (f"{GOOD_TPU} --bucket= -- true", "--bucket is missing; give --bucket="),
  ],
)
def test_a_users_error_is_one_line_and_code_1(line, words, stage):
  (stage.folder / "open.env").write_text("A=1\n")
  (stage.folder / "open.env").chmod(0o644)
  (stage.folder / "bad.env").write_text(f"A=1\nexport {launch_stage.SECRET}\n")
  (stage.folder / "bad.env").chmod(0o600)
  for name, content in BAD_ENV.items():
    (stage.folder / name).write_bytes(content)
    (stage.folder / name).chmod(0o600)
  code, output = stage.run(line)
  assert code == 1
  assert words in output and output.count("\n") == 1, output
  assert launch_stage.SECRET not in output
  assert not stage.calls() and not (stage.folder / ".launch").exists()


def test_of_equal_options_the_last_holds_and_lists_grow(stage):
  code, output = stage.run(
    "slurm.sh run --dry-run --workdir=/s --setup=missing.sh --setup="
    " --time=1:00:00 --time=2:00:00 --sbatch=--mem=1G --sbatch=--qos=x=y"
    " -- prm-jax -- --time=3:00:00",
    "slurm",
  )
  assert code == 0, output
  assert re.findall("--time=(.*)", output) == ["2:00:00", "3:00:00)"]
  assert "#SBATCH --mem=1G\n#SBATCH --qos=x=y\n" in output
  assert "setup=''\n" in output
  assert "command=(prm-jax -- --time=3:00:00)\n" in output


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
    assert codes["values"] == [1, 2, 3, 4, 5, 6] and codes["operator"] == "In"
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


def test_a_manifest_is_applied_and_its_secrets_are_sent_apart(stage):
  stage.plan()
  line = f"{GOOD_GKE} --run=r1 --env-file=secrets.env -- prm-jax {{i}}"
  code, output = stage.run(line)
  assert code == 0, output
  asked = (stage.stub / "asked").read_text()
  assert asked == (
    "kubectl create secret generic r1-env --namespace=default"
    " --from-env-file=secrets.env"
    " kubectl apply --filename=.launch/r1/manifest.yaml "
  )
  record = yaml.safe_load((stage.folder / ".launch/r1/manifest.yaml").open())
  assert record["metadata"]["name"] == "r1"
  launch_stage.assert_no_secret(stage)
  code, output = stage.run(line)
  assert code == 1 and "--run=r1: this run exists" in output


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
    code, output = stage.run(line.replace(" -- ", " --dry-run -- ", 1))
    assert code == 0, f"{line}\n{output}"
