"""Runs all checks in worker processes and keeps what they find.

This process never opens a device: a kernel may take its process with it, and a
TPU belongs to one process at a time. Each result is in the file before the next
check begins, so whatever ends a run, a second one goes on from there.
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
from typing import Any

import prm_jax
from prm_jax import locks
from prm_jax import schema
from prm_jax.device_check import results
from prm_jax.device_check import verdict

# A check that takes longer hangs: compiling a 7B update takes a minute or two.
CHECK_S = 300.0
# What is running when the time is up may take so much longer.
GRACE_S = 45.0
# Of a worker's standard error, for programs.
_TAIL = 2000

Say = Callable[[str], None]
Command = Sequence[str]


@dataclasses.dataclass(frozen=True)
class Options:
  """What a run does.

  Attributes:
    output: the file, which is resumed if it is there.
    mode: one of results.MODES.
    only: names of checks, or their first parts; empty: all.
    minutes: after so many no further check begins.
    check_s: seconds after which a check is taken to hang.
    worker: the command of a worker, its argument left out.
  """

  output: pathlib.Path
  mode: str = "standard"
  only: tuple[str, ...] = ()
  minutes: float = 8.0
  check_s: float = CHECK_S
  worker: Command = (sys.executable, "-P", "-m", "prm_jax.device_check.worker")


def check(options: Options, about: dict[str, Any], say: Say) -> results.Record:
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
    record = _open(options, about)
    runner = _Runner(options, record, say)
    try:
      runner.run()
    finally:
      record.verdict = verdict.of(record)
      record.write(options.output)
  return record


@contextlib.contextmanager
def _locked(output: pathlib.Path) -> Iterator[None]:
  path = output.with_name(f".{output.name}.lock")
  try:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
  except OSError as e:
    raise schema.unwritable(output, e, "give another --output") from None
  try:
    if not locks.taken(fd):
      raise schema.BusyError(
        f"{output}: another process writes it; wait for that one, or give"
        " another name"
      )
    yield
    path.unlink(missing_ok=True)
  finally:
    os.close(fd)


def _open(options: Options, about: dict[str, Any]) -> results.Record:
  """Returns the record to go on with, or a new one."""
  code = results.code()
  if not options.output.exists():
    return results.Record(options.mode, code, about)
  record = results.read(options.output)
  for name, has, needs in (
    ("mode", record.mode, options.mode),
    ("code", record.code, code),
  ):
    if has != needs:
      raise schema.InputError(
        f"{options.output}: holds results of another {name} ({has}, now"
        f" {needs}); give another name, or remove it"
      )
  return record


class _Runner:
  """One run: which checks are missing, and the worker that does them."""

  def __init__(self, options: Options, record: results.Record, say: Say):
    self.options, self.record, self.say = options, record, say
    self.begun = time.time()
    self.until = self.begun + 60 * options.minutes
    self.stages: Sequence[str] = ("right",)
    # What needn't be tried in this run again, whatever came of it.
    self.tried = record.done

  def run(self) -> None:
    """Goes through the stages until all is done or the time is up."""
    if self.tried:
      self.say(f"resumes {self.options.output}: {len(self.tried)} checks done")
    number = 0
    while number < len(self.stages):
      if not self._stage(self.stages[number]):
        break
      number += 1
    self._leave()

  def _stage(self, stage: str) -> bool:
    """Runs a stage in as many workers as it takes; returns if there's time."""
    barren = 0
    while time.time() < self.until:
      before = len(self.tried)
      with _Worker(self._asked(stage), stage, self.options.worker) as worker:
        ended, last = self._follow(worker), worker.last()
      if ended != "again":
        return ended == "done"
      barren = 0 if len(self.tried) > before else barren + 1
      if barren == 2:
        raise schema.InputError(
          f"check-device: a worker ends before its first check: {last}"
        )
    return False

  def _asked(self, stage: str) -> dict[str, Any]:
    return dict(
      mode=self.options.mode,
      stage=stage,
      only=self.options.only,
      skip=sorted(self.tried),
      known=self.record.known,
      until_s=self.until,
    )

  def _follow(self, worker: _Worker) -> str:
    """Takes in what a worker says: "done", "again" or "late"."""
    current, begun = "", time.time()
    listed = False
    while True:
      late = self.until + GRACE_S
      event = worker.next(min(late, begun + self.options.check_s))
      if event is None:  # no word in time
        worker.kill()
        seconds = time.time() - begun
        if time.time() >= late:
          if current:
            why = f"stopped after {seconds:.0f} s: the time was up"
            self._take(current, "not run", why, seconds)
          return "late"
        why = f"doesn't end: stopped after {seconds:.0f} s"
        if not current:
          raise schema.InputError(
            f"check-device: a worker doesn't start: {worker.last()}"
          )
        self._take(current, "fail", why, seconds)
        return "again"
      if "machine" in event:
        self._list(event)
        listed = True
      elif "begin" in event:
        current, begun = event["begin"], time.time()
      elif "result" in event:
        self._keep(results.Result(**event["result"]))
        current, begun = "", time.time()
      elif current:
        why = f"its process ended with {_ending(event['ended'])}"
        self._take(current, "fail", why, time.time() - begun, worker.tail())
        return "again"
      elif not listed and event["ended"]:
        raise schema.InputError(
          f"check-device: jax doesn't start here: {worker.last()}"
        )
      else:
        return "again" if event["ended"] else "done"

  def _list(self, event: dict[str, Any]) -> None:
    """Takes in the machine and all checks; refuses another machine's file."""
    planned = [(str(name), bool(needed)) for name, needed in event["planned"]]
    machine, known = event["machine"], self.record.machine
    if known and known != machine:
      differ = sorted(schema.differences(known, machine))
      raise schema.InputError(
        f"{self.options.output}: holds results of another machine (other"
        f" {', '.join(differ)}); give another name, or remove it"
      )
    for wanted in self.options.only:
      if not any(results.is_asked(name, (wanted,)) for name, _ in planned):
        groups = sorted({name.partition(".")[0] for name, _ in planned})
        raise schema.InputError(
          f"only={wanted}: no check has that name; the groups are"
          f" {', '.join(groups)}"
        )
    self.record.machine, self.record.planned = machine, planned
    self.stages = event["stages"]
    self.record.write(self.options.output)

  def _take(
    self, name: str, status: str, why: str, seconds: float, stderr: str = ""
  ) -> None:
    needed = dict(self.record.planned).get(name, False)
    details = dict(stderr=stderr) if stderr else {}
    self._keep(
      results.Result(
        name, status, needed, seconds=seconds, note=why, details=details
      )
    )

  def _keep(self, result: results.Result) -> None:
    self.tried.add(result.name)
    self.record.add(result)
    self.record.write(self.options.output)
    self.say(result.line(max(len(name) for name, _ in self.record.planned)))

  def _leave(self) -> None:
    """Says of the checks that are left why they didn't run."""
    for name, needed in self.record.planned:
      asked = results.is_asked(name, self.options.only)
      if name in self.tried or not asked:
        continue
      why = f"the {self.options.minutes:g} minutes were up; call it again"
      self.record.add(results.Result(name, "not run", needed, note=why))


def _ending(code: int) -> str:
  """Returns an exit code in words."""
  if code < 0:
    with contextlib.suppress(ValueError):
      return f"signal {-code} ({signal.Signals(-code).name})"
  return f"exit code {code}"


class _Worker:
  """A worker process, and the events that it has sent."""

  def __init__(self, asked: dict[str, Any], stage: str, command: Command):
    self._errors = tempfile.TemporaryFile()  # noqa: SIM115
    self._process = subprocess.Popen(
      [*command, json.dumps(asked)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      env=_environment(stage),
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

  def last(self) -> str:
    """Returns the last line of standard error."""
    lines = self.tail().strip().splitlines()
    return lines[-1][:300] if lines else "it says nothing"


def _environment(stage: str) -> dict[str, str]:
  """Returns the environment of a worker.

  A GPU's memory is jax's as a whole, but where torch needs some beside it.
  """
  here = str(pathlib.Path(prm_jax.__file__).parents[1])
  before = os.environ.get("PYTHONPATH")
  found = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    **os.environ,
    "PYTHONPATH": here if before is None else f"{here}{os.pathsep}{before}",
  }
  if stage == "peers":
    found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  return found
