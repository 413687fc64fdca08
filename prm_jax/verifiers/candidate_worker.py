"""Runs a solution's code and calls its functions, in a sandbox.

It has neither the tests nor a way to say that they passed: another process has
them (tests_worker), and asks this one for values. A request is a JSON array
after its length in eight hexadecimal digits, [run, "begin", code], [run,
"call", name, args, kwargs, watched] or [run, "end"]; each but the last gets one
reply, [run, fields], in a line. Each run is a process of its own, which this one
ends when its time is over; its files are removed, too. A run can change the
limits of this process: then it ends, and is started anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import resource
import select
import signal
import sys
import time
import types
from typing import Any

from prm_jax.verifiers import code_wire

_MOST_BYTES = 1 << 22
_MOST_OF_VALUE, _MOST_PRINTED = 1_000, 100_000
FILE = "<solution>"
_SIGNALS = {x.value: x.name for x in signal.Signals}
_LIMITS = [x for name, x in vars(resource).items() if name[:7] == "RLIMIT_"]


def main(time_s: str) -> None:
  """Answers until stdin ends.

  Args:
    time_s: The longest that a run may take, in seconds.
  """
  if os.getpid() == 1:  # the kernel keeps what has no handler from it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  folder, own = os.getcwd(), _own_state()
  request = _read(0)
  while request is not None:
    run, kind, *rest = request
    request = None
    if kind == "begin":
      if _own_state() != own:
        return
      fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY)
      request = _run(run, rest[0], float(time_s))
      _empty(folder)
    request = request or _read(0)


def _own_state() -> Any:
  """Returns what a run, which has the same user, could change of this process."""
  limits = [resource.getrlimit(x) for x in _LIMITS]
  places = os.sched_getaffinity(0), os.sched_getscheduler(0)
  return limits, places, os.getpriority(os.PRIO_PROCESS, 0)


def _empty(folder: str) -> None:
  """Removes all that is in a folder, however deep: each folder is emptied into it."""
  with contextlib.suppress(OSError):
    prefix, count = os.urandom(12).hex(), 0
    while paths := [x.path for x in os.scandir(folder)]:
      for path in paths:
        if os.path.islink(path) or not os.path.isdir(path):
          os.unlink(path)
          continue
        os.chmod(path, 0o700)
        for inner in [*os.scandir(path)]:
          if inner.is_dir(follow_symlinks=False):
            os.chmod(inner.path, 0o700)  # or it can't be moved
          count += 1
          os.rename(inner.path, f"{folder}/{prefix}{count}")
        os.rmdir(path)


def _read(fd: int) -> Any:
  """Returns the next request, None at the end."""
  length = _read_bytes(fd, 8)
  return json.loads(_read_bytes(fd, int(length, 16))) if length else None


def _read_bytes(fd: int, count: int) -> bytes:
  found = b""
  while len(found) < count:
    more = os.read(fd, count - len(found))
    if not more:
      return b""
    found += more
  return found


def _run(run: str, code: str, time_s: float) -> Any:
  """Runs a code in a process of its own until its end, or that of its time.

  This process alone reads requests, and hands them on: that one may have begun
  others, which would take them.

  Returns:
    The next request if it isn't one of this run.
  """
  asks, asked = os.pipe()
  child = os.fork()
  if not child:
    os.close(asked)
    os.setsid()
    try:
      _serve(run, code, time_s, asks)
    finally:
      os._exit(0)
  os.close(asks)
  os.set_blocking(asked, False)
  deadline, wait_s, died = time.monotonic() + time_s, 0.0005, ""
  request: Any = None
  try:
    while True:
      if not died and (died := _how_died(child, deadline, time_s)):
        _end(child)
        _reply(1, run, dict(died=died))
      if not select.select([0], [], [], 1.0 if died else wait_s)[0]:
        wait_s = min(2 * wait_s, 0.02)
        continue
      request = _read(0)
      if request is None or request[0] != run or request[1] != "call":
        break
      text = json.dumps(request).encode()
      _hand_on(asked, b"%08x%b" % (len(text), text), deadline)
      wait_s = 0.0005
  finally:
    os.close(asked)
    if not died:
      _end(child)
  return None if request is None or request[0] == run else request


def _how_died(child: int, deadline: float, time_s: float) -> str:
  """Returns how a run has ended, "" if it goes on."""
  while True:
    try:
      pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return "the process ended by itself"
    if not pid:
      break
    if pid == child:
      code = os.waitstatus_to_exitcode(status)
      if code < 0:
        name = _SIGNALS.get(-code, f"signal {-code}")
        return f"the process ended by {name}"
      return f"the process ended by itself, with exit code {code}"
  return f"not done after {time_s:g} s" if time.monotonic() > deadline else ""


def _hand_on(fd: int, text: bytes, deadline: float) -> None:
  """Writes a request to a run, unless that doesn't read it in time."""
  with contextlib.suppress(OSError):  # it has ended
    while text and time.monotonic() < deadline:
      if select.select([], [fd], [], 0.05)[1]:
        text = text[os.write(fd, text) :]


def _end(child: int) -> None:
  """Ends a run; in a namespace of processes all that it has begun, too."""
  if os.getpid() == 1:
    _kill(-1, os.kill)
  _kill(child, os.killpg)
  with contextlib.suppress(ChildProcessError):
    while True:
      os.waitpid(-1, 0)


def _kill(target: int, how: Any) -> None:
  with contextlib.suppress(OSError):  # there may be none
    how(target, signal.SIGKILL)


def _serve(run: str, code: str, time_s: float, asks: int) -> None:
  """Runs the code, and calls its functions until the run is ended."""
  seconds = int(time_s) + 1
  resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
  replies = os.dup(1)
  nothing = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):
    os.dup2(nothing, fd)
  printed = _Printed()
  sys.stdout = io.TextIOWrapper(printed, "utf-8", write_through=True)
  names = types.ModuleType("solution")
  sys.modules["solution"] = names
  try:
    exec(compile(code, FILE, "exec", dont_inherit=True), vars(names))
    result: dict[str, Any] = _names_of(vars(names))
  except BaseException as e:
    result = dict(error=_described(e))
  _reply(replies, run, result)
  while (request := _read(asks)) is not None:
    _, _, name, args, kwargs, watched = request
    printed.seek(0)
    printed.truncate()
    result = _called(vars(names), name, args, kwargs)
    now = {k: vars(names)[k] for k in watched if k in vars(names)}
    text = printed.getvalue().decode(errors="replace")
    _reply(replies, run, dict(result, printed=text, **_names_of(now)))


class _Printed(io.BytesIO):
  """Keeps the beginning of what the code prints."""

  def write(self, text: Any) -> int:
    super().write(text[: max(0, _MOST_PRINTED - self.tell())])
    return len(text)

  def fileno(self) -> int:
    return 1


def _names_of(names: dict[str, Any]) -> dict[str, Any]:
  """Returns the names of functions, values, and the names of other things."""
  functions, values, others = [], {}, []
  for name, value in [*names.items()]:
    if name.startswith("__"):
      continue
    if callable(value):
      functions.append(name)
      continue
    try:
      values[name] = code_wire.encoded(value, _MOST_OF_VALUE)
    except (code_wire.UntoldError, RecursionError, MemoryError):
      others.append(name)
  return dict(functions=functions, values=values, others=others)


def _called(names: dict[str, Any], name: str, args: Any, kwargs: Any) -> Any:
  given = [code_wire.decoded(args), code_wire.decoded(kwargs)]
  try:
    value = names[name](*given[0], **given[1])
  except BaseException as e:
    return dict(error=_described(e))
  try:
    after = code_wire.encoded(given)
    is_same = after == ["list", [args, kwargs]]
    return dict(
      value=code_wire.encoded(value), after=None if is_same else after
    )
  except (code_wire.UntoldError, RecursionError) as e:
    return dict(untold=f"{name} returns a value of type {e}")


def _described(error: BaseException) -> dict[str, Any]:
  """Returns an error's type, its message and the line of the code it is in."""
  line, trace = None, error.__traceback__
  while trace is not None:
    if trace.tb_frame.f_code.co_filename == FILE:
      line = trace.tb_lineno
    trace = trace.tb_next
  try:
    message = str(error)
  except BaseException:
    message = ""
  kinds = [x.__name__ for x in type(error).__mro__]
  of = dict(kinds=kinds, message=message[:300], line=line)
  if isinstance(error, ModuleNotFoundError):
    of["module"] = error.name
  cause: BaseException | None = error
  for _ in range(20):
    if isinstance(cause, NameError):
      of["name"] = cause.name
    cause = cause and (cause.__cause__ or cause.__context__)
  return of


def _reply(fd: int, run: str, fields: Any) -> None:
  # After what a run may have left of a line.
  line = b"\n%b\n" % json.dumps([run, fields]).encode()
  if len(line) > _MOST_BYTES:
    fields = dict(untold="a value is too long")
    line = b"\n%b\n" % json.dumps([run, fields]).encode()
  while line:
    line = line[os.write(fd, line) :]
