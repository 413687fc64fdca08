"""A process that runs checks and reports their results.

  python -P -m prm_jax.device_check.check_worker '{"mode": "quick", ...}'

It is check_run.py's: the process that opens the devices is another one than that
which keeps the results, since a kernel may take its process with it. A line of
JSON goes to standard output for each event:

  {"machine": {..}, "planned": [[name, stage, required], ..], "stages": [..]}
  {"begin": name, "more": names, "limit_s": seconds}     see check_results.Check
  {"result": {..}}                                         check_results.Result
  {"again": name}              it crashed beside others, and is to run alone

What libraries print goes to standard error. It ends with 0 when all is done,
and with RESTART if the devices are in doubt after a check that crashed. When
its standard input closes, because check_run.py has ended, it ends too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import gc
import itertools
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

RESTART = 75  # EX_TEMPFAIL

Emit = Callable[..., None]


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the checks that the first argument asks for; returns the exit code.

  It is a JSON object: mode; stage, or null to list only; only, names or groups;
  skip, names; known, numbers by name; until_s, by time.time(), the last moment
  at which a check begins; threads, how many checks may run side by side.
  """
  [text] = sys.argv[1:] if arguments is None else arguments
  asked = json.loads(text)
  emit = _own_stdout()
  threading.Thread(target=_end_with_stdin, daemon=True).start()
  # Here, so that what goes wrong with an import is said on standard error.
  from prm_jax.device_check import check_results
  from prm_jax.device_check import machine
  from prm_jax.device_check import suite

  facts = machine.facts()
  names = ("platform", "device_kind", "num_devices", "memory")
  setting = check_results.Setting(
    mode=asked["mode"],
    known=asked["known"],
    **{name: facts[name] for name in names},
  )
  checks = suite.checks(setting)
  emit(
    dict(
      machine=facts,
      planned=[(n, c.stage, c.required) for c in checks for n in c.names],
      stages=suite.stages(setting),
    )
  )
  missing = [c for c in checks if _is_missing(c, asked)]
  for lane, group in itertools.groupby(missing, lambda check: bool(check.lane)):
    alone, raised = list(group), {}
    if lane and asked["threads"] > 1:
      raised = _side_by_side(alone, setting, asked, emit)
      alone = [check for check in alone if check.name in raised]
    for check in alone:
      done, sound = _measured(check, setting, asked, emit)
      if check.name in raised:
        done[:1] = [_with_first(x, raised[check.name]) for x in done[:1]]
      for result in done:
        emit(dict(result=dataclasses.asdict(result)))
      if not sound:
        return RESTART
      numbers = {r.name: r.number for r in done if r.number is not None}
      setting = dataclasses.replace(setting, known={**setting.known, **numbers})
  return 0


def _is_missing(check: Any, asked: dict[str, Any]) -> bool:
  """Returns whether a check is of the stage and gives something asked for."""
  from prm_jax.device_check import check_results

  return check.stage == asked["stage"] and any(
    name not in asked["skip"] and check_results.is_asked(name, asked["only"])
    for name in check.names
  )


def _measured(
  check: Any, setting: Any, asked: dict[str, Any], emit: Emit
) -> tuple[list[Any], bool]:
  """Returns what `run` does; nothing if there is too little time left."""
  if time.time() + check.needs_s > asked["until_s"]:
    return [], True  # a shorter one may still have the time
  emit(dict(begin=check.name, more=check.more, limit_s=check.limit_s))
  return run(check, setting)


def _side_by_side(
  checks: Sequence[Any], setting: Any, asked: dict[str, Any], emit: Emit
) -> dict[str, str]:
  """Runs checks in threads: most of their time is compiling.

  Ends the process if one of them leaves the devices in doubt: others of that
  moment may have failed with it.

  Returns:
    The errors of those that raised one, by name, to be run alone: the memory
    may have been the others'.
  """
  lanes: dict[str, list[Any]] = {}
  for check in checks:
    lanes.setdefault(check.lane, []).append(check)
  raised: dict[str, str] = {}

  def follow(lane: Sequence[Any]) -> None:
    for check in lane:
      done, sound = _measured(check, setting, asked, emit)
      again = dict(again=check.name)
      if not sound:
        emit(again, RESTART)
      elif any("traceback" in r.details for r in done):
        raised[check.name] = done[0].note
        emit(again)
      else:
        for result in done:
          emit(dict(result=dataclasses.asdict(result)))

  with futures.ThreadPoolExecutor(asked["threads"]) as pool:
    # The longest lanes first; an error of our own is raised here.
    list(pool.map(follow, sorted(lanes.values(), key=len, reverse=True)))
  return raised


def _with_first(result: Any, error: str) -> Any:
  """Returns a result that says what it raised beside others."""
  note = "; ".join(x for x in (result.note, f"beside others: {error}") if x)
  return dataclasses.replace(result, note=note)


def _own_stdout() -> Emit:
  """Returns what writes a line, and ends the process with a code if given one.

  What others print goes to standard error.
  """
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  lock = threading.Lock()

  def emit(event: dict[str, Any], code: int | None = None) -> None:
    with lock:
      out.write(json.dumps(event) + "\n")
      out.flush()
      if code is not None:
        os._exit(code)

  return emit


def _end_with_stdin() -> None:
  os.read(0, 1)
  os._exit(1)


def run(check: Any, setting: Any) -> tuple[list[Any], bool]:
  """Runs a check, whatever becomes of it.

  Args:
    check: a check_results.Check.
    setting: a check_results.Setting.

  Returns:
    Its check_results.Results, and whether the devices are sound afterwards.
  """
  from prm_jax.device_check import check_results

  begun = time.perf_counter()
  crash: Exception | None = None
  measured: Any = {}
  ended: dict[str, Any] = {}  # of a check without numbers
  why = f"a {setting.platform} doesn't say"  # of names without numbers
  try:
    measured = check.run(setting)
    if isinstance(measured, check_results.Measured):
      measured = {check.name: measured}
  except check_results.NotRun as e:
    why = str(e)
    ended = dict(status="not run", note=why)
  except Exception as e:  # whatever a compiler or a kernel raises
    crash, why = e, f"{check.name} failed"
    lines = "".join(traceback.format_exception(e))
    note = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    details = dict(traceback=lines[-4000:])
    ended = dict(status="fail", note=note, details=details)
  seconds = time.perf_counter() - begun
  missing = dict(status="not run", required=check.required, note=why)
  done = [
    check_results.of(name, check.required, measured[name])
    if name in measured
    else check_results.Result(name, **missing)
    for name in check.names
  ]
  # All of them are one measurement, whose time is that of the first.
  done[0] = dataclasses.replace(done[0], seconds=seconds, **ended)
  if crash is None:
    return done, True
  crash.__traceback__ = None  # It holds arrays.
  gc.collect()
  return done, _is_sound()


def _is_sound() -> bool:
  """Whether the devices still compute: a kernel's fault may end its process."""
  from prm_jax.device_check import machine

  try:
    return not machine.wrong_devices()
  except Exception:  # as above
    return False


if __name__ == "__main__":
  sys.exit(main())
