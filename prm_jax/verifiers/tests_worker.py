"""Finds the first step after which a code fails, in a sandbox of its own.

It has the tests, and candidate_worker runs the code, in another process that
can't see this one. What the tests call is asked there, and only plain values
come back: the code can't change the tests, what compares values, or the result.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
import json
import math
import os
import resource
import sys
from typing import Any

from prm_jax.verifiers import asked_candidate
from prm_jax.verifiers import code_wire
from prm_jax.verifiers import tests_text
from prm_jax.verifiers import unfinished_code

# Errors that end a loop of the tests as if it were done.
_ENDINGS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")


def main(requests: str, replies: str, time_s: str) -> None:
  """Answers each job on stdin by a result on stdout, until stdin ends.

  A job has a process of its own, so that no tests meet those of another.

  Args:
    requests: The descriptor that the candidate reads.
    replies: The descriptor that it writes.
    time_s: The longest that a run may take, in seconds.
  """
  out = os.dup(1)
  nothing = os.open(os.devnull, os.O_RDWR)
  for fd in (1, 2):
    os.dup2(nothing, fd)
  for line in sys.stdin:
    child = os.fork()
    if not child:
      try:
        # The tests' own work; they wait for the code's.
        seconds = math.ceil(2 * float(time_s))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        job = json.loads(line)
        candidate = asked_candidate.Candidate(
          int(requests), int(replies), float(time_s)
        )
        result = _judged(candidate, job["codes"], job["steps"], job["tests"])
        result["is_lost"] = candidate.is_lost
        os.write(out, json.dumps(result).encode() + b"\n")
      finally:
        os._exit(0)
    os.waitpid(child, 0)
    os.write(out, b"{}\n")  # after the result, if there is one


# --- The first step that fails ------------------------------------------------


def _judged(
  candidate: asked_candidate.Candidate,
  codes: list[str],
  steps: list[str],
  text: str | None,
) -> dict[str, Any]:
  """Returns `first`, the first step that fails, or None, and `reason`.

  `untold` says why the last step has no verdict, or all from `cut` on.
  """
  tests = None
  if text is not None:
    tree = unfinished_code.state(text)
    if not isinstance(tree, ast.Module):
      return dict(first=None, reason="", untold="the tests aren't Python")
    if (found := tests_text.OUTSIDE.search(text)) is not None:
      why = f"the tests change or read what is outside the code: {found[0]}"
      return dict(first=None, reason="", untold=why, cut=0)
    tests = tests_text.Tests(text, tree)
  states = [unfinished_code.state(code) for code in codes]
  last = len(codes) - 1
  # An error that a later line takes away is an unfinished line.
  wrong = last + 1
  while wrong and isinstance(states[wrong - 1], dict):
    wrong -= 1
  if wrong > last and states[last] == "incomplete":
    states[last] = dict(kinds=["SyntaxError"], message="incomplete", line=None)
    wrong = last
  late = {*unfinished_code.names(codes[last]), unfinished_code.UNFINISHED}
  failure: dict[str, Any] | None = None
  untold = None
  if wrong > last:
    failure, untold = _outcome(candidate, codes[last], tests)
    if failure is None and untold is None:
      return dict(first=None, reason="", untold=None)
    if missing := _missing(failure):
      failure, untold = None, missing
  for k in range(min(wrong, last)):
    tree = states[k]
    if not isinstance(tree, ast.Module):
      continue
    code = unfinished_code.so_far(codes[k], tree, steps[k + 1 :])
    if code and (found := _fails(candidate, code, tests, late)):
      if missing := _missing(found):
        return dict(first=None, reason="", untold=missing, cut=k)
      return dict(first=k, reason=found, untold=None)
  if wrong <= last:
    return dict(first=wrong, reason=states[wrong], untold=None)
  return dict(first=None if untold else last, reason=failure, untold=untold)


# --- Runs ---------------------------------------------------------------------


def _outcome(
  candidate: asked_candidate.Candidate,
  code: str,
  tests: tests_text.Tests | None,
) -> tuple[Any, str | None]:
  """Returns how the whole code fails, None if it doesn't; or why it isn't told."""
  world = None
  try:
    names = candidate.begin(code)
    if tests is None:
      return None, "there are no tests"
    world = _World(candidate, names, tests)
    exec(tests.compiled(in_part=False), world.names)
  except asked_candidate.Failed as e:
    return e.args[0], None
  except asked_candidate.Untold as e:
    return None, f"the tests can't be run on it: {e}"
  except BaseException as e:
    described = getattr(e, "prm_jax_described", None)
    if described is not None:
      return described, None
    assert tests is not None
    return _in_tests(e, tests.text, world.hidden if world else set())
  finally:
    candidate.end()
  if candidate.died is not None:  # which the tests didn't mind
    return candidate.died, None
  if candidate.ended_loops:
    return None, "the code raises what ends a loop of the tests"
  if not candidate.num_calls and not world.values & tests.used_at_top:
    return None, "the tests ask nothing of the code"
  return None, None


def _in_tests(
  error: BaseException, tests: str, hidden: set[str]
) -> tuple[Any, str | None]:
  """Returns what the tests say: that an assertion of theirs fails, or another.

  Args:
    error: Their error.
    tests: The tests.
    hidden: The code's names that they don't have.
  """
  line, trace = 0, error.__traceback__
  while trace is not None:
    if trace.tb_frame.f_code.co_filename == tests_text.FILE:
      line = trace.tb_lineno
    trace = trace.tb_next
  lines = tests.splitlines()
  text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
  if isinstance(error, AssertionError):
    return dict(test=text), None
  said = f"{text} raises {type(error).__name__}"
  is_hidden = isinstance(error, NameError) and error.name in hidden
  catches_code = isinstance(error, TypeError) and "catching" in str(error)
  is_own = isinstance(error, ImportError | SystemExit)
  if is_hidden or catches_code or is_own:
    return None, f"the tests can't be run on it: {said}"
  # An error in comparing what the code returns is the code's; one with no such
  # value is the tests' own, and can't be told from it.
  return dict(test=said), None


def _fails(
  candidate: asked_candidate.Candidate,
  code: str,
  tests: tests_text.Tests | None,
  late: set[str],
) -> Any:
  """Returns the error of an unfinished code, None without one.

  The tests give it inputs; what they expect isn't asked of it yet.
  """
  try:
    names = candidate.begin(code)
    if tests is not None:
      world = _World(candidate, names, tests)
      exec(tests.compiled(in_part=True), world.names)
  except asked_candidate.Failed as e:
    return _real(e.args[0], late)
  except BaseException as e:
    return _real(getattr(e, "prm_jax_described", None), late)
  finally:
    candidate.end()
  return candidate.died


def _real(described: Any, late: set[str]) -> Any:
  """Returns an error, None if it is that a later line isn't there yet."""
  is_late = described is not None and described.get("name") in late
  return None if is_late else described


def _missing(described: Any) -> str | None:
  """Returns that a module isn't there which may be elsewhere, None if so."""
  module = str((described or {}).get("module") or "").partition(".")[0]
  if not module or module in sys.stdlib_module_names:
    return None
  return f"no module {module[:100]!r} in the sandbox"


def _look(ask: Callable[[], Any]) -> None:
  """Asks for what an assertion is of, and minds only the code's own errors."""
  try:
    ask()
  except Exception as e:
    if hasattr(e, "prm_jax_described"):
      raise


class _World:
  """What the tests have.

  Attributes:
    names: Their names: those of the code's functions ask its process.
    values: Those of them that are values of the code's.
    hidden: The code's names that can't be handed over.
  """

  def __init__(
    self,
    candidate: asked_candidate.Candidate,
    reply: dict[str, Any],
    tests: tests_text.Tests,
  ):
    self._candidate = candidate
    self.names: dict[str, Any] = {}
    for name in map(str, reply["functions"]):
      self.names[name] = _Function(self, name)
    for name, value in reply["values"].items():
      self.names[name] = code_wire.decoded(value)
    self.hidden = set(map(str, reply["others"]))
    for name in [x for x in self.names if x.startswith("__")]:
      del self.names[name]
    # With functions of Python's own names the code could answer for what the
    # tests compare with. They are given only if the tests use no other of it.
    used = tests.used & self.names.keys()
    own = {x for x in used if hasattr(builtins, x)}
    if len(own) > 1 and own == used:
      raise asked_candidate.Untold(
        f"it defines {' and '.join(sorted(own))} anew"
      )
    for name in own if own != used else ():
      del self.names[name]
    self.values = self.names.keys() & reply["values"].keys()
    self._watched = sorted(tests.used & self.values)
    self.names[tests_text.LOOK] = _look
    self.names["__name__"] = "tests"

  def called(self, name: str, args: Any, kwargs: Any) -> Any:
    """Returns what a function of the code returns, and does what it does."""
    given = [*args, *kwargs.values()]
    places = [id(x) for x in given if isinstance(x, list | dict | set)]
    if len({*places}) < len(places):
      raise asked_candidate.Untold(f"{name} is given one value twice")
    try:
      asked = code_wire.encoded([*args]), code_wire.encoded(kwargs)
    except code_wire.UntoldError as e:
      raise asked_candidate.Untold(
        f"{name} is given a value of type {e}"
      ) from None
    reply = self._candidate.call(name, *asked, self._watched)
    self._print(str(reply["printed"]))
    self._take(reply)
    if "error" in reply:
      error = _as_raised(reply["error"])
      self._candidate.ended_loops |= type(error).__name__ in _ENDINGS
      raise error
    value = code_wire.decoded(reply["value"])
    if reply["after"] is not None:
      after, named = code_wire.decoded(reply["after"])
      for old, new in zip(given, [*after, *named.values()]):
        _updated(old, new)
    return value

  def _print(self, text: str) -> None:
    if sys.stdout is not sys.__stdout__:
      sys.stdout.write(text)

  def _take(self, reply: dict[str, Any]) -> None:
    """Takes what values of the code's are now."""
    for name in self._watched:
      if name in reply["values"]:
        new = code_wire.decoded(reply["values"][name])
        self.names[name] = _updated(self.names.get(name), new)
      else:
        self.names.pop(name, None)
        self.hidden.add(name)


class _Function:
  """A function of the code's, of which the tests can only ask its value."""

  def __init__(self, world: _World, name: str):
    self._world, self.__name__ = world, name

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._world.called(self.__name__, args, kwargs)

  def __getattr__(self, attribute: str) -> Any:
    raise asked_candidate.Untold(f"they ask for {self.__name__}.{attribute}")

  def __instancecheck__(self, value: Any) -> bool:
    raise asked_candidate.Untold(f"they ask what is a {self.__name__}")


def _as_raised(described: dict[str, Any]) -> BaseException:
  """Returns the error as the tests may expect it: of its own type."""
  for kind in described.get("kinds", ()):
    made = getattr(builtins, kind, None)
    if isinstance(made, type) and issubclass(made, BaseException):
      try:
        error = made(described.get("message", ""))
      except TypeError:  # UnicodeDecodeError has other arguments
        continue
      error.prm_jax_described = described  # type: ignore[attr-defined]
      return error
  return asked_candidate.Failed(described)


def _updated(old: Any, new: Any) -> Any:
  """Returns a new value, as the old one if that can be changed into it."""
  if type(old) is not type(new):
    return new
  if isinstance(old, list):
    old[:] = new
  elif isinstance(old, dict | set):
    old.clear()
    old.update(new)
  else:
    return new
  return old
