"""Runs all checks in worker processes and keeps what they find.

This process never opens a device: a kernel may take its process with it, and a
TPU belongs to one process at a time. Each result is in the file as it comes.
Whatever ends a run, a second one resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, NamedTuple

from prm_jax import _version
from prm_jax import errors
from prm_jax.device_check import check_results
from prm_jax.device_check import check_worker as worker_lib
from prm_jax.device_check import verdict
from prm_jax.runtime import files
from prm_jax.runtime import locks

# A worker that writes nothing for so long before its first check hangs.
START_S = 180.0
# A check that is running when the time is up may take so much longer.
GRACE_S = 45.0
# Of a worker's standard error, for programs.
_TAIL = 2000
_WORKER = (sys.executable, "-P", "-m", "prm_jax.device_check.check_worker")

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Options:
  """What a run does.

  Attributes:
    output: the file, which is resumed if it is there.
    mode: one of check_results.MODES.
    only: names of checks, or their first parts; empty: all.
    minutes: after so many no further check begins.
    check_s: seconds after which a check is taken to hang; None: its own limit.
    threads: how many checks run side by side, as far as they may.
    worker: the command of a worker, its argument left out.
  """

  output: pathlib.Path
  mode: str = "standard"
  only: tuple[str, ...] = ()
  minutes: float = 8.0
  check_s: float | None = None
  threads: int = min(8, os.cpu_count() or 1)
  worker: Sequence[str] = _WORKER


def check(
  options: Options, about: dict[str, Any], say: Say
) -> check_results.Record:
  """Runs what is missing, and returns all that is known then.

  Args:
    options: what is run, and where it is kept.
    about: command, versions and revision, for the file.
    say: is given a line as each check ends.

  Raises:
    InputError: the file is of another machine, code or mode, can't be read or
      is in use; or jax finds no device.
  """
  with _locked(options.output):
    runner = _Runner(options, _open(options, about), say)
    try:
      runner.run()
    finally:
      # A run that was refused leaves the file as it was.
      if runner.listed:
        runner.record.verdict = verdict.of(runner.record)
        runner.record.write(options.output)
  return runner.record


@contextlib.contextmanager
def _locked(output: pathlib.Path) -> Iterator[None]:
  path = output.with_name(f".{output.name}.lock")
  with locks.opened(path, output, "give another name") as fd:
    if not locks.taken(fd):
      raise errors.BusyError(
        f"{output}: another process writes it; wait for that one, or give"
        " another name"
      )
    try:
      yield
    finally:
      path.unlink(missing_ok=True)


def _open(options: Options, about: dict[str, Any]) -> check_results.Record:
  """Returns the record to resume, or a new one."""
  new = check_results.Record(options.mode, check_results.code(), about)
  if not options.output.exists():
    return new
  record = check_results.read(options.output)
  if not record.results:
    return new
  for name in ("mode", "code"):
    before, now = getattr(record, name), getattr(new, name)
    if before != now:
      raise errors.InputError(
        f"{options.output}: holds results of another {name} ({before}, now"
        f" {now}); give another name, or remove it"
      )
  return record


class _Runner:
  """One run: which checks are missing, and the worker that does them."""

  def __init__(self, options: Options, record: check_results.Record, say: Say):
    self.options, self.record, self.say = options, record, say
    self.until = time.time() + 60 * options.minutes
    self.listed = False
    self.threads = options.threads  # in this stage
    self.stages: Sequence[str] = ("right",)
    # What needn't be tried in this run again, whatever came of it.
    self.tried = record.done

  def run(self) -> None:
    """Goes through the stages until all is done or the time is up."""
    if self.tried:
      self.say(f"resumes {self.options.output}: {len(self.tried)} results done")
    number = 0
    while number < len(self.stages) and time.time() < self.until:
      self._stage(self.stages[number])
      number += 1
    why = f"the {self.options.minutes:g} minutes were up; call it again"
    for stage in self.stages:
      for name in self._missing(stage):
        self._end(name, "not run", why)

  def _missing(self, stage: str) -> list[str]:
    """Returns what is still to be tried in a stage."""
    return [
      x.name
      for x in self.record.planned
      if x.stage == stage
      and x.name not in self.tried
      and check_results.is_asked(x.name, self.options.only)
    ]

  def _stage(self, stage: str) -> None:
    """Runs a stage in as many workers as it takes, or until the time is up."""
    barren, self.threads = 0, self.options.threads
    while not self.listed or self._missing(stage):
      before = len(self.tried)
      asked = dict(
        mode=self.options.mode,
        stage=stage,
        only=self.options.only,
        skip=sorted(self.tried),
        known=self.record.known,
        until_s=self.until,
        threads=self.threads,
      )
      with _Worker(self.options.worker, asked) as worker:
        is_over, last_line = self._follow(worker), worker.last_line()
      if is_over:
        return
      barren = 0 if len(self.tried) > before else barren + 1
      if barren == 2:
        for name in self._missing(stage):
          self._end(name, "fail", f"no worker gets to it: {last_line}")

  def _follow(self, worker: _Worker) -> bool:
    """Keeps what a worker finds.

    Returns:
      True if the stage is done or the time is up; False if another worker is
      needed.

    Raises:
      InputError: it ends, or writes nothing, and no worker got further before.
    """
    running: dict[str, _Running] = {}
    idle_until = time.time() + START_S
    while True:
      ends = [x.ends for x in running.values()] or [idle_until]
      event = worker.next(min(self.until + GRACE_S, *ends))
      if event is None:
        worker.kill()
        is_late = time.time() >= self.until + GRACE_S
        if not running and not self.listed:
          raise _not_started(worker)
        self._stop(running, is_late)
        return is_late
      idle_until = time.time() + START_S
      if "machine" in event:
        self._list(event)
      elif "begin" in event:
        limit_s = self.options.check_s or event["limit_s"]
        running[event["begin"]] = _Running(time.time(), limit_s, event["more"])
      elif "again" in event:
        running.pop(event["again"])
      elif "result" in event:
        self._keep(check_results.Result(**event["result"]))
        running.pop(event["result"]["name"], None)
      elif not self.listed:
        raise _not_started(worker)
      elif event["ended"] == worker_lib.RESTART:
        self.threads = 1  # What was under way may have failed with another one.
        return False
      elif not running:
        return event["ended"] == 0
      else:
        why = f"its process ended with {_ending(event['ended'])}"
        self._blame(running, why, worker.tail())
        return False

  def _stop(self, running: dict[str, _Running], is_late: bool) -> None:
    """Keeps what became of checks whose worker was killed."""
    if not is_late:
      self._blame(running, "doesn't end: stopped")
      return
    for name, check in running.items():
      why = f"stopped after {check.seconds:.0f} s: the time was up"
      self._end(name, "not run", why, check.seconds, check.more)

  def _blame(
    self, running: dict[str, _Running], why: str, stderr: str = ""
  ) -> None:
    """Fails the check that took its process along.

    If several were running, it isn't known which: all run again, alone.
    """
    if len(running) > 1:
      self.threads = 1
      return
    for name, check in running.items():
      why = f"{why} after {check.seconds:.0f} s"
      self._end(name, "fail", why, check.seconds, check.more, stderr)

  def _list(self, event: dict[str, Any]) -> None:
    """Takes in the machine and all checks; refuses another machine's file."""
    machine, before = event["machine"], self.record.machine
    # How much memory a program gets is a setting, not the machine's.
    differ = files.differences(before, machine) - {"memory"}
    if before and differ:
      raise errors.InputError(
        f"{self.options.output}: holds results of another machine (other"
        f" {', '.join(sorted(differ))}); give another name, or remove it"
      )
    planned = [check_results.Planned(*x) for x in event["planned"]]
    for wanted in self.options.only:
      if not any(check_results.is_asked(x.name, (wanted,)) for x in planned):
        groups = sorted({x.name.partition(".")[0] for x in planned})
        raise errors.InputError(
          f"`only={wanted}`: no check has that name; the groups are"
          f" {', '.join(groups)}"
        )
    self.record.machine, self.record.planned = machine, planned
    self.stages, self.listed = event["stages"], True
    self.record.write(self.options.output)

  def _end(
    self,
    name: str,
    status: str,
    why: str,
    seconds: float = 0.0,
    more: Sequence[str] = (),
    stderr: str = "",
  ) -> None:
    """Keeps what became of a check that didn't end by itself.

    Args:
      name: of the check.
      status: fail or not run.
      why: for its note.
      seconds: how long it ran.
      more: names of its further results, which didn't run either.
      stderr: the end of what its process wrote there.
    """
    required = {x.name: x.required for x in self.record.planned}[name]
    details = dict(stderr=stderr) if stderr else {}
    result = check_results.Result(
      name, status, required, seconds=seconds, note=why
    )
    self._keep(dataclasses.replace(result, details=details, reached=False))
    for other in more:
      self._end(other, "not run", f"{name} didn't end")

  def _keep(self, result: check_results.Result) -> None:
    self.tried.add(result.name)
    self.record.add(result)
    self.record.write(self.options.output)
    self.say(result.line(max(len(x.name) for x in self.record.planned)))


class _Running(NamedTuple):
  """A check under way.

  Args:
    begun: When it began, by time.time().
    limit_s: After so many seconds it is taken to hang.
    more: The names of its further results.
  """

  begun: float
  limit_s: float
  more: Sequence[str]

  @property
  def ends(self) -> float:
    return self.begun + self.limit_s

  @property
  def seconds(self) -> float:
    return time.time() - self.begun


def _not_started(worker: _Worker) -> errors.InputError:
  return errors.InputError(
    f"check-device: jax doesn't start here: {worker.last_line()}"
  )


def _ending(code: int) -> str:
  """Returns an exit code in words."""
  if code < 0:
    with contextlib.suppress(ValueError):
      return f"signal {-code} ({signal.Signals(-code).name})"
  return f"exit code {code}"


class _Worker:
  """A worker process, and the events that it has sent."""

  def __init__(self, command: Sequence[str], asked: dict[str, Any]):
    self._errors = tempfile.TemporaryFile()  # noqa: SIM115
    self._process = subprocess.Popen(
      [*command, json.dumps(asked)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      env=_environment(asked["stage"]),
      text=True,
    )
    self._events: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=self._read, daemon=True).start()

  def __enter__(self) -> _Worker:
    return self

  def __exit__(self, *_: Any) -> None:
    self.kill()
    self._process.stdin.close()  # type: ignore[union-attr]
    self._errors.close()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      # Half a line is that of a process that was killed.
      with contextlib.suppress(ValueError):
        self._events.put(json.loads(line))
    self._events.put(dict(ended=self._process.wait()))

  def next(self, until_s: float) -> dict[str, Any] | None:
    """Returns the next event, None if there is none in time.

    The last one is {"ended": exit code}.
    """
    try:
      return self._events.get(timeout=max(0.0, until_s - time.time()))
    except queue.Empty:
      return None

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()

  def tail(self) -> str:
    """Returns the end of what it wrote to standard error."""
    size = self._errors.seek(0, os.SEEK_END)
    self._errors.seek(max(0, size - _TAIL))
    return self._errors.read().decode("utf-8", "replace")

  def last_line(self) -> str:
    """Returns the last line of standard error."""
    lines = self.tail().strip().splitlines()
    return lines[-1][:300] if lines else "it says nothing"


def _environment(stage: str) -> dict[str, str]:
  """Returns the environment of a worker.

  jax takes a GPU's whole memory at once, except where torch needs some, too. The
  CPU is always among its platforms, to compare with.
  """
  variables = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    **os.environ,
  }
  here = str(pathlib.Path(_version.__file__).parents[1])
  if "site-packages" not in here:  # a checkout, which may not be installed
    before = os.environ.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{here}{os.pathsep}{before}" if before else here
  platforms = os.environ.get("JAX_PLATFORMS")
  if platforms and "cpu" not in platforms.split(","):
    variables["JAX_PLATFORMS"] = f"{platforms},cpu"  # to compare with
  if stage == "peers":
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  return variables
