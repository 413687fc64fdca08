"""A place to rehearse launch scripts: a stub cloud and a stand-in trainer.

tests/launch_stub/cloud/gcloud is a cloud whose workers are local processes; the
trainer is a program of a few lines that obeys the same contract.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

import launch_cases

ROOT = launch_cases.ROOT
STUBS = ROOT / "tests" / "launch_stub"
SECRET = "canary-of-the-file"
LEAK = "canary-of-the-environment"
ACTIVE = dict(states=["ACTIVE"])

# linux/prctl.h; other systems have no such call.
_PR_SET_CHILD_SUBREAPER = 36
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


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
    self,
    line: str,
    stubs: str = "cloud",
    stdin: int = subprocess.DEVNULL,
    **more: str,
  ) -> subprocess.Popen:
    """Starts a script of launch/; {workdir} and the like aren't expanded."""
    script, *arguments = shlex.split(line)
    return subprocess.Popen(
      [ROOT / "launch" / script, *arguments],
      cwd=self.folder,
      env=self.environment(stubs) | more,
      stdin=stdin,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      preexec_fn=_prepare_launcher,
    )

  def run(
    self, line: str, stubs: str = "cloud", **more: str
  ) -> tuple[int, str]:
    process = self.start(line, stubs, **more)
    output, _ = process.communicate(timeout=100)
    return process.returncode, output

  def calls(self, *words: str) -> list[list[str]]:
    """Returns the gcloud calls that have these words."""
    path = self.stub / "argv.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    calls = [json.loads(line) for line in lines]
    return [c for c in calls if all(w in " ".join(c) for w in words)]

  def alive(self) -> bool:
    return json.loads((self.stub / "state.json").read_text())["alive"]


def _prepare_launcher() -> None:
  """Lets a launcher hear Ctrl-C, and makes it the parent of orphans.

  A shell makes its background jobs ignore SIGINT; this is undone. A worker
  whose parent has ended becomes a child of the launcher, which reaps it at
  once. Otherwise process 1 is to reap it, which in a container may take
  seconds or never happen, and until then the worker seems to run.
  """
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  if _PRCTL is not None:
    _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def furnished(folder: pathlib.Path) -> Iterator[Stage]:
  """Yields a stage with all files of the commands; then ends its workers."""
  stage = Stage(folder)
  stage.stub.mkdir()
  launch_cases.furnish(folder)
  shutil.copy(STUBS / "trainer.py", folder)
  (folder / "dist").mkdir()
  (folder / "dist" / "prm_jax-0.1.0-py3-none-any.whl").write_text("a wheel")
  try:
    yield stage
  finally:
    for path in folder.glob("stub/life-*/worker-*/prm_jax_runs/*/pid"):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(int(path.read_text()), signal.SIGKILL)


def digest(steps: int) -> str:
  """Returns the result of the stand-in trainer without interruptions."""
  state = "start"
  for step in range(1, steps + 1):
    state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
  return state


def tpu(
  stage: Stage, *options: str, steps: int = 12, trainer: str = "", what="run"
) -> str:
  arguments = [
    f"tpu.sh {what} --run=r1 --poll=0.1 --backoff=0 --grace=0",
    *options,
  ]
  if what == "run":
    arguments.append(
      "--project=p --zone=z --type=v6e-16 --bucket=b --copy=trainer.py"
      f" --workdir={stage.workdir} --env-file=secrets.env"
      " -- python3 trainer.py --workdir={workdir}"
      f" --steps={steps} {trainer}"
    )
  return " ".join(arguments)


def until(condition: Callable[[], Any], process: subprocess.Popen) -> None:
  deadline = time.monotonic() + 60
  while not condition():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)


def saved(stage: Stage) -> int:
  names = [p.name for p in stage.workdir.glob("checkpoints/*")]
  return max((int(name) for name in names if name.isdecimal()), default=0)


def metrics(stage: Stage) -> list[int]:
  lines = (stage.workdir / "metrics").read_text().splitlines()
  return [int(line.split()[0]) for line in lines]


def assert_no_secret(stage: Stage) -> None:
  """Asserts that only the command and the files of secrets had the secret."""
  secret = hashlib.sha256(SECRET.encode()).hexdigest()
  for path in stage.workdir.glob("secret-seen"):
    assert not path.read_text().replace(secret, "")
  for path in stage.folder.rglob("*"):
    if path.name in ("secrets.env", "env") or not path.is_file():
      continue
    content = path.read_bytes()
    assert SECRET.encode() not in content, path
    assert LEAK.encode() not in content, path
  for path in stage.stub.glob("*/worker-*/prm_jax_runs/*/env"):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def assert_flags_documented(calls: Sequence[Sequence[str]]) -> None:
  known = json.loads((launch_cases.GOLDEN / "gcloud_flags.json").read_text())
  for call in calls:
    arguments = [word for word in call if not word.startswith("-")]
    name = " ".join(arguments[: 2 if arguments[0] == "storage" else 4])
    for word in call:
      if word.startswith("--"):
        flag = word.partition("=")[0]
        assert flag in known["everywhere"] + known[name], (name, flag)
