"""Whether a solution's code goes right so far, step after step.

A step is some lines of Python. The steps up to it, joined after `prompt`, must
parse and compile, run at their top without an exception, and have none when the
tests call their functions, their own assertions included. What isn't whole yet
isn't an error: an open bracket, a function without a body, a loop of which
more follows, a function that isn't there yet. What the tests expect is asked of
the whole code, on its last step: it is the outcome. So a step before it with a
wrong idea that raises nothing passes.

The record's `extra` has the tests: `tests`, Python with assertions, or a list
of such; or HumanEval's `test` and `entry_point`. `prompt` is code before the
first step. Without tests no step is found right.

The code runs in a sandbox, the tests in another (candidate_worker,
tests_worker). Only plain values come from the code to the tests. So it can't
learn what they expect, or change them, how values are compared or what is
reported; it can fail, take its time, or return what it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import re
import subprocess
from typing import Any

from prm_jax import schema
from prm_jax.verifiers import asked_program
from prm_jax.verifiers import sandbox
from prm_jax.verifiers.verdicts import Verdict

VERSION = 2
# A longer code isn't run.
MAX_CHARS = 100_000
_HERE = pathlib.Path(__file__)
_CANDIDATE = _HERE.with_name("candidate_worker.py")
_TESTS = _HERE.with_name("tests_worker.py")
_SPARE_S = 30.0
# What follows the tests' result, also where there is none.
_END = re.compile(rb"^\{\}\n", re.M)
# The marks of a block of code in a chat model's text.
_FENCE = re.compile(r"(?m)^[ \t]*```.*$")


class Checker:
  """A verifier of code; use it in a `with` block, after which no process is left.

  Its processes are started for the first solution and serve all; each run of a
  code is a process of its own.
  """

  def __init__(self, *, time_s: float = 5.0, memory_mib: int = 512):
    """Makes one.

    Args:
      time_s: The longest that the code up to a step may run, in seconds.
      memory_mib: The most memory of a process, in MiB.
    """
    self._time_s, self._memory_mib = time_s, memory_mib
    self._open = contextlib.ExitStack()
    self._process: asked_program.AskedProgram | None = None

  def __enter__(self) -> Checker:
    return self

  def __exit__(self, *_) -> None:
    self._process = None
    self._open.close()

  def verify(self, solution: schema.Solution) -> list[Verdict]:
    """Returns whether the code goes right up to each step: a Verifier.

    Args:
      solution: The solution.
    """
    num = len(solution.steps)
    tests = _tests_of(solution)
    if isinstance(tests, Verdict):
      return [tests] * num
    prompt = solution.extra.get("prompt", "")
    if not isinstance(prompt, str):
      return [Verdict(None, "its prompt isn't a text")] * num
    codes, code = [], _line(prompt)
    for step in solution.steps:
      code += _line(_FENCE.sub("", step))
      codes.append(code)
    if len(code) > MAX_CHARS:
      why = f"longer than {MAX_CHARS:,} characters: not run"
      return [Verdict(None, why)] * num
    job = dict(codes=codes, steps=solution.steps, tests=tests)
    result = self._ran(job) if num else {}
    return _verdicts(result, codes, has_tests=tests is not None)

  def _ran(self, job: Any) -> dict[str, Any]:
    """Returns what the process of the tests finds, {} if it finds nothing."""
    result = self._ran_once(job)
    if result.get("is_lost"):  # an earlier solution may have done it
      result = self._ran_once(job)
    return result

  def _ran_once(self, job: Any) -> dict[str, Any]:
    line = json.dumps(job).encode() + b"\n"
    limit_s = self._time_s * (len(job["codes"]) + 2) + _SPARE_S
    result: dict[str, Any] = {}
    if self._process is None:
      self._process = self._started()
    with contextlib.suppress(asked_program.UntoldError, ValueError):
      result = json.loads(self._process.exchange(line, _END, limit_s)[0])
    if not result or result["is_lost"]:
      self.__exit__()
    return result

  def _started(self) -> asked_program.AskedProgram:
    """Returns the process of the tests, beside which is that of the code."""
    asked, told = os.pipe(), os.pipe()
    try:
      self._open.enter_context(
        sandbox.started(
          *(_CANDIDATE, self._time_s),
          memory_mib=self._memory_mib,
          stdin=asked[0],
          stdout=told[1],
        )
      )
      process = self._open.enter_context(
        sandbox.started(
          *(_TESTS, asked[1], told[0], self._time_s),
          memory_mib=self._memory_mib,
          stdin=subprocess.PIPE,
          pass_fds=(asked[1], told[0]),
        )
      )
      return asked_program.AskedProgram(process, "the tests' process")
    finally:
      for end in (*asked, *told):
        os.close(end)


def outcome(verdicts: Sequence[Verdict]) -> bool | None:
  """Returns whether the whole code is right, None if that isn't told.

  Args:
    verdicts: The verdict on each step.
  """
  if not verdicts or verdicts[-1].label is None:
    return None
  return verdicts[-1].label == 1


def _line(text: str) -> str:
  return text if not text or text.endswith("\n") else f"{text}\n"


def _tests_of(solution: schema.Solution) -> str | Verdict | None:
  """Returns the tests as one text, None without; a verdict if they are none."""
  extra = solution.extra
  if "tests" in extra:
    tests = extra["tests"]
  elif "test" in extra:
    name = extra.get("entry_point")
    tests = [extra["test"], f"check({name})" if isinstance(name, str) else None]
  else:
    return None
  parts = tests if isinstance(tests, list | tuple) else [tests]
  if all(isinstance(x, str) for x in parts):
    text = "\n".join(parts)
    return text if text.strip() else None
  return Verdict(None, "its tests aren't a text or a list of texts")


def _verdicts(
  result: dict[str, Any], codes: list[str], *, has_tests: bool
) -> list[Verdict]:
  num = len(codes)
  if "first" not in result:
    return [Verdict(None, "the tests' process ended before it was done")] * num
  first = result["first"]
  right = Verdict(1, "goes right so far")
  if not has_tests:
    right = Verdict(None, "goes right so far; there are no tests")
  elif first is None and result["untold"] is None:
    right = Verdict(1, "the whole code passes the tests")
  if first is not None:
    reason = _reason(result["reason"], codes[first])
    after = Verdict(0, f"after the error of step {first + 1}")
    return [right] * first + [Verdict(0, reason)] + [after] * (num - first - 1)
  if result["untold"] is None or not num:
    return [right] * num
  cut = result.get("cut", num - 1)
  return [right] * cut + [Verdict(None, result["untold"])] * (num - cut)


def _reason(found: dict[str, Any], code: str) -> str:
  """Returns an error in a line: what it is, and in which line of the code."""
  if "test" in found:
    return f"the whole code fails a test: {found['test']}"
  if "died" in found:
    return str(found["died"])
  message = " ".join(str(found.get("message", "")).split())
  kind = str(next(iter(found.get("kinds", ())), "an error"))
  text = f"{kind}: {message}" if message else kind
  line, lines = found.get("line"), code.split("\n")
  if isinstance(line, int) and 0 < line <= len(lines):
    text += f", line {line}: {lines[line - 1].strip()[:100]}"
  return text
