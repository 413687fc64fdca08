"""A process that runs checks one after another and reports their results.

  python -P -m prm_jax.device_check.worker '{"mode": "quick", ...}'

It is run.py's: the process that opens the devices is another one than that
which keeps the results, since a kernel may take its process with it. A line of
JSON goes to standard output for each event:

  {"machine": {..}, "planned": [[name, stage, required], ..], "stages": [..]}
  {"begin": name, "more": names, "limit_s": seconds}     see results.Check
  {"result": {..}}                                         results.Result

What libraries print goes to standard error. It ends with 0 when all is done,
and with RESTART if the devices are in doubt after a check that crashed. When
its standard input closes, because run.py has ended, it ends too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import gc
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

RESTART = 75  # EX_TEMPFAIL

Emit = Callable[[dict[str, Any]], None]


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the checks that the first argument asks for; returns the exit code.

  It is a JSON object: mode; stage, or null to list only; only, names or groups;
  skip, names; known, numbers by name; until_s, by time.time(), the last moment
  at which a check begins.
  """
  [text] = sys.argv[1:] if arguments is None else arguments
  asked = json.loads(text)
  emit = _own_stdout()
  threading.Thread(target=_end_with_stdin, daemon=True).start()
  # Here, so that what goes wrong with an import is said on standard error.
  from prm_jax.device_check import machine
  from prm_jax.device_check import results
  from prm_jax.device_check import suite

  facts = machine.facts()
  names = ("platform", "device_kind", "num_devices", "memory")
  setting = results.Setting(
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
  for check in checks:
    wanted = [
      name
      for name in check.names
      if name not in asked["skip"] and results.is_asked(name, asked["only"])
    ]
    if check.stage != asked["stage"] or not wanted:
      continue
    if time.time() + check.needs_s > asked["until_s"]:
      continue  # a shorter one may still have the time
    emit(dict(begin=check.name, more=check.more, limit_s=check.limit_s))
    done, sound = run(check, setting)
    for result in done:
      emit(dict(result=dataclasses.asdict(result)))
    if not sound:
      return RESTART
    numbers = {r.name: r.number for r in done if r.number is not None}
    setting = dataclasses.replace(setting, known={**setting.known, **numbers})
  return 0


def _own_stdout() -> Emit:
  """Returns what writes a line; what others print goes to standard error."""
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)

  def emit(event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()

  return emit


def _end_with_stdin() -> None:
  os.read(0, 1)
  os._exit(1)


def run(check: Any, setting: Any) -> tuple[list[Any], bool]:
  """Runs a check, whatever becomes of it.

  Args:
    check: a results.Check.
    setting: a results.Setting.

  Returns:
    Its results.Results, and whether the devices are sound afterwards.
  """
  from prm_jax.device_check import results

  begun = time.perf_counter()
  crash: Exception | None = None
  measured: Any = {}
  ended: dict[str, Any] = {}  # of a check without numbers
  why = f"a {setting.platform} doesn't say"  # of names without numbers
  try:
    measured = check.run(setting)
    if isinstance(measured, results.Measured):
      measured = {check.name: measured}
  except results.NotRun as e:
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
    results.of(name, check.required, measured[name])
    if name in measured
    else results.Result(name, **missing)
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
