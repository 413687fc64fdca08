"""A process that runs checks one after another and says what each finds.

  python -m prm_jax.device_check.worker '{"mode": "quick", ...}'

It is run.py's: the process that opens the devices is another one than that
which keeps the results, since a kernel may take its process with it. A line of
JSON goes to standard output for each event:

  {"machine": {..}, "planned": [[name, required], ..]}     once, first
  {"begin": name}
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
  setting = results.Setting(
    asked["mode"],
    facts["platform"],
    facts["device_kind"],
    facts["num_devices"],
    facts["memory"],
    asked["known"],
  )
  checks = suite.checks(setting)
  emit(
    dict(
      machine=facts,
      planned=[(c.name, c.required) for c in checks],
      stages=suite.stages(setting),
    )
  )
  wanted = [
    c
    for c in checks
    if c.stage == asked["stage"]
    and c.name not in asked["skip"]
    and results.is_asked(c.name, asked["only"])
  ]
  for check in wanted:
    if time.time() > asked["until_s"]:
      return 0
    emit(dict(begin=check.name))
    result, sound = run(check, setting)
    emit(dict(result=dataclasses.asdict(result)))
    if not sound:
      return RESTART
    if result.number is not None:
      known = {**setting.known, check.name: result.number}
      setting = dataclasses.replace(setting, known=known)
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


def run(check: Any, setting: Any) -> tuple[Any, bool]:
  """Runs a check, whatever becomes of it.

  Args:
    check: a results.Check. setting: a results.Setting.

  Returns:
    Its results.Result, and whether the devices are sound afterwards.
  """
  from prm_jax.device_check import results

  begun = time.perf_counter()
  raised: Exception | None = None
  try:
    measured = check.run(setting)
    seconds = time.perf_counter() - begun
    result = results.of(check.name, check.required, measured, seconds)
  except results.NotRun as e:
    result = results.Result(check.name, "not run", check.required, note=str(e))
  except Exception as e:  # whatever a compiler or a kernel raises
    raised = e
    lines = traceback.format_exception(e)
    first = " ".join(str(e).split())[:300]
    result = results.Result(
      check.name,
      "fail",
      check.required,
      seconds=time.perf_counter() - begun,
      note=f"{type(e).__name__}: {first}",
      details=dict(traceback="".join(lines)[-4000:]),
    )
  if raised is None:
    return result, True
  raised.__traceback__ = None  # It holds arrays.
  gc.collect()
  return result, _is_sound()


def _is_sound() -> bool:
  """Whether the devices still compute: a kernel's fault may end its process."""
  from prm_jax.device_check import machine

  try:
    return not machine.wrong_devices()
  except Exception:  # as above
    return False


if __name__ == "__main__":
  sys.exit(main())
