"""Several processes in one run: which is first, and what all must agree on.

Each sees its own devices, and all make the same updates. Only the first one
writes files and records, and prints. In a run of one process these functions do
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import logging
import os
import pathlib
import socket
import sys
import threading
import time
from typing import Any, TypeVar
import uuid

import jax
from jax.experimental import multihost_utils
import numpy as np

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import preemption

_EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# After so many seconds without a sign of life a process counts as dead.
HEARTBEAT = "PRM_JAX_HEARTBEAT_S"
# A process that fails waits so long for the others to fail as well, or for the
# heartbeat if that is less.
_FAILING_S = 30
# A network file system shows a new file to other hosts within this time.
_APPEARS_S = 20

T = TypeVar("T")


@contextlib.contextmanager
def joined() -> Iterator[None]:
  """Joins the processes of a run, as start does, and leaves them at the end.

  At the end each process waits for all others, by jax's default for five
  minutes, after which all abort. A process that fails alone, while the others
  wait for it in an update, ends earlier and keeps its own exit code: 42 unless
  it is the user's error, since a peer was lost or this machine failed.
  """
  start()
  try:
    yield
  except errors.InputError as e:
    _end_later(e.exit_code)
    raise
  except Exception:
    _end_later(preemption.EXIT_CODE)
    raise


def _end_later(code: int) -> None:
  """Ends this process with the code if it still runs after a while."""
  if not jax.distributed.is_initialized():
    return
  seconds = min(_FAILING_S, int(os.environ.get(HEARTBEAT) or _FAILING_S))

  def end():
    time.sleep(seconds)
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os._exit(code)

  threading.Thread(target=end, name="end", daemon=True).start()


def start(environment: Mapping[str, str] = os.environ) -> None:
  """Joins the processes of a run, if the environment speaks of several.

  JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID say
  it in full. In a step of SLURM with several tasks, and on the hosts of a TPU
  slice, jax finds out itself. PRM_JAX_HEARTBEAT_S may say after how many
  seconds a silent process counts as dead, 100 by default. Before anything else
  asks jax for its devices.

  Raises:
    InputError: the environment lacks variables, or no process answers.
  """
  seconds = environment.get(HEARTBEAT) or "100"
  errors.raise_first(_wrong_settings(environment, seconds))
  if any(map(environment.get, _EXPLICIT)):
    address, number, own = (environment[name] for name in _EXPLICIT)
    options: dict[str, Any] = dict(
      coordinator_address=address,
      num_processes=int(number),
      process_id=int(own),
    )
  elif _finds_out(environment):
    options = {}
  else:
    return
  options["heartbeat_timeout_seconds"] = int(seconds)
  if options.get("process_id") == 0:
    _check_port(options["coordinator_address"])
  try:
    jax.distributed.initialize(**options)
  except (RuntimeError, ValueError) as e:
    reason = " ".join(str(e).split())[:200]
    raise errors.InputError(
      f"the processes of this run don't find each other: {reason}; look at"
      " JAX_COORDINATOR_ADDRESS and at whether all were started"
    ) from None
  if not is_first():
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    logging.getLogger("prm_jax.runtime.progress").setLevel(logging.WARNING)


def _wrong_settings(
  environment: Mapping[str, str], seconds: str
) -> Iterator[str]:
  """Yields what is wrong with the variables of a run of several processes."""
  given = [name for name in _EXPLICIT if environment.get(name)]
  if given and len(given) < len(_EXPLICIT):
    missing = ", ".join(sorted({*_EXPLICIT} - {*given}))
    yield f"{', '.join(given)}: set {missing}, too, or none of them"
  if given:
    _, number, own = (environment[name] for name in _EXPLICIT)
    if not (number.isdecimal() and own.isdecimal() and int(own) < int(number)):
      yield (
        f"JAX_NUM_PROCESSES={number}, JAX_PROCESS_ID={own}: expected a number"
        " of processes, and one of 0, 1, ... below it"
      )
  is_run = given or _finds_out(environment)
  if is_run and not (seconds.isdecimal() and int(seconds)):
    yield f"{HEARTBEAT}={seconds}: expected a whole number of seconds, 1 or more"


def _check_port(address: str) -> None:
  """Refuses a port that another program listens on: jaxlib may crash on it."""
  port = address.rpartition(":")[2]
  if not port.isdecimal():
    return
  with contextlib.closing(socket.socket(socket.AF_INET)) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      s.bind(("", int(port)))
    except (OSError, OverflowError) as e:
      reason = getattr(e, "strerror", None) or str(e)
      raise errors.InputError(
        f"the processes of this run don't find each other: port {port} of"
        f" JAX_COORDINATOR_ADDRESS={address}: {reason}; give another one"
      ) from None


def _finds_out(environment: Mapping[str, str]) -> bool:
  """Returns whether jax can tell by itself that it is one of several."""
  tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
  hosts = environment.get("TPU_WORKER_HOSTNAMES", "")
  return "," in hosts or (tasks.isdecimal() and int(tasks) > 1)


def number() -> int:
  """Returns how many processes there are; one alone has no device opened."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
  return jax.process_index() == 0


def any_of(here: bool) -> bool:
  """Returns whether `here` is true in any process; all of them must call it."""
  if number() == 1:
    return here
  return bool(multihost_utils.process_allgather(np.asarray(here)).any())


def of_first(numbers: Sequence[int]) -> list[int]:
  """Returns the first process's numbers in all; all of them must ask.

  Use it for anything read from a network file system, whose cache may differ
  between hosts.
  """
  if number() == 1:
    return list(numbers)
  return _of_each(list(numbers))[0]


def together(function: Callable[[], T]) -> T:
  """Returns a function's result here once it has returned in all processes.

  The function must not communicate with the other processes.

  Raises:
    InputError: what it raised here; or that it did so elsewhere, with that exit
      code.
  """
  if number() == 1:
    return function()
  error: errors.InputError | None = None
  try:
    result = function()
  except errors.InputError as e:
    error = e
  code = 0 if error is None else error.exit_code
  codes = multihost_utils.process_allgather(np.int32(code))
  if error is not None:
    raise error
  if codes.any():
    process = np.flatnonzero(codes)[0]
    elsewhere = errors.InputError(
      f"process {process} was refused, and says why"
    )
    elsewhere.exit_code = int(codes[process])
    raise elsewhere
  return result


def on_first(function: Callable[[], None]) -> None:
  """Calls a function in the first process; returns in all when it has.

  Raises:
    InputError: as of together.
  """
  together(lambda: function() if is_first() else None)


def check_same(what: Mapping[str, Any]) -> None:
  """Refuses a run whose processes were given different JSON data.

  All processes must call it.

  Raises:
    InputError: in all of them; it names the first that differs.
  """
  if number() == 1:
    return
  everyone = _of_each(what)
  for process, other in enumerate(everyone):
    if names := files.differences(everyone[0], other):
      raise errors.InputError(
        f"process {process} has other values of {', '.join(sorted(names))} than"
        " process 0; give all of them the same"
      )


def check_same_folder(folder: pathlib.Path) -> None:
  """Refuses a run whose processes don't all write into one folder.

  All processes must call it. The first one makes the folder if need be, and a
  file in it, which the others must see.

  Raises:
    InputError: in all of them; it names the first process with another folder.
  """
  if number() == 1:
    return
  names = [str(folder.absolute()), socket.gethostname(), uuid.uuid4().hex]
  everyone = _of_each(names)
  path, host, token = everyone[0]
  mark = folder / f".seen_by_all.{token}"

  def write():
    try:
      folder.mkdir(parents=True, exist_ok=True)
      mark.touch()
    except OSError as e:
      raise files.unwritable(folder, e, "give another folder") from None

  on_first(write)
  # What is on the same host is seen at once.
  seconds = 0 if names[1] == host else _APPEARS_S
  seen = _of_each(_appears(mark, seconds))
  on_first(lambda: mark.unlink(missing_ok=True))
  for process, (other, other_host, _) in enumerate(everyone):
    if not seen[process]:
      differs = f"{other} on {other_host}" if other == path else other
      raise errors.InputError(
        f"process {process} has another `workdir` than process 0, {differs} and"
        f" not {path} on {host}; give all of them one folder, on a disk that"
        " all of them see"
      )


def _appears(path: pathlib.Path, seconds: float) -> bool:
  deadline = time.monotonic() + seconds
  while not path.exists():
    if time.monotonic() > deadline:
      return False
    time.sleep(0.1)
  return True


def _of_each(here: Any) -> list[Any]:
  """Returns what each process has: JSON data of any length; all must ask."""
  mine = np.frombuffer(json.dumps(here).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(mine)))
  padded = np.pad(mine, (0, sizes.max() - len(mine)))
  rows = multihost_utils.process_allgather(padded)
  return [
    json.loads(row[:size].tobytes())
    for row, size in zip(rows, sizes, strict=True)
  ]


def reached_preemption(step: int) -> bool:
  """Returns whether a process has had SIGTERM, the same in all of them.

  jax hears the signal where there are several processes, and has all of them
  stop at one step. Alone, preemption.check does.
  """
  if number() == 1:
    return False
  return bool(multihost_utils.reached_preemption_sync_point(step))


def whole(x: jax.Array) -> np.ndarray:
  """Returns an array's values, wherever they are; all processes must ask."""
  if number() == 1 or x.is_fully_addressable:
    return np.array(x)
  return np.array(multihost_utils.process_allgather(x, tiled=True))
