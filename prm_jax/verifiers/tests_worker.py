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
import re
import resource
import select
import sys
import time
from typing import Any

from prm_jax.verifiers import code_wire

_INCOMPLETE = 0x4000  # codeop's flag: unfinished code has an error of its own
_GIVES = re.compile(
  r"(?m)^(?:(?:async\s+)?def|class)\s+\w+|^(?:from|import)\s.*|^\w+\s*=[^=]"
)
_WORD = re.compile(r"\w+")
_TESTS, FILE = "<tests>", "<solution>"
_SPARE_S = 5.0  # for the process that ends a run
_MOST_BYTES = 1 << 22


class _Failed(Exception):
  """The code has an error, which `args` describe."""


class _Untold(BaseException):
  """What the tests ask can't be told."""


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
        candidate = _Candidate(int(requests), int(replies), float(time_s))
        result = _judged(candidate, job["codes"], job["steps"], job["tests"])
        os.write(out, json.dumps(result).encode() + b"\n")
      finally:
        os._exit(0)
    os.waitpid(child, 0)
    os.write(out, b"{}\n")  # after the result, if there is one


class _Candidate:
  """The process of the code."""

  def __init__(self, requests: int, replies: int, time_s: float):
    self._requests, self._replies, self._time_s = requests, replies, time_s
    self._run, self._rest = "", b""
    self._deadline, self._is_dead = 0.0, False

  def begin(self, code: str) -> dict[str, Any]:
    """Returns the code's names, once it was run.

    Raises:
      _Failed: It has an error.
    """
    # Not to be guessed by an earlier run, which may leave replies behind.
    self._run = os.urandom(12).hex()
    self._is_dead = False
    self._deadline = time.monotonic() + self._time_s + _SPARE_S
    return self._asked("begin", code)

  def call(self, name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    return self._asked("call", name, args, kwargs)

  def end(self) -> None:
    self._send("end")

  def _send(self, *request: Any) -> None:
    text = json.dumps([self._run, *request]).encode()
    text = b"%08x%b" % (len(text), text)
    while text:
      text = text[os.write(self._requests, text) :]

  def _asked(self, *request: Any) -> dict[str, Any]:
    if self._is_dead:
      raise _Failed(dict(died="its process ended"))
    try:
      self._send(*request)
    except OSError:
      raise _Failed(dict(died="its process ended")) from None
    while (reply := self._reply()) is None:
      pass  # of another run
    self._is_dead = "died" in reply
    if "error" in reply or self._is_dead:
      raise _Failed(reply.get("error") or dict(died=str(reply["died"])))
    if "untold" in reply:
      raise _Untold(str(reply["untold"])[:200])
    return reply

  def _reply(self) -> dict[str, Any] | None:
    """Returns the next reply, None if it isn't one to this run."""
    while b"\n" not in self._rest:
      left = self._deadline - time.monotonic()
      ready = left > 0 and select.select([self._replies], [], [], left)[0]
      more = os.read(self._replies, 1 << 16) if ready else b""
      if not more or len(self._rest) > _MOST_BYTES:
        raise _Failed(dict(died=f"no reply within {self._time_s:g} s"))
      self._rest += more
    line, _, self._rest = self._rest.partition(b"\n")
    try:
      run, reply = json.loads(line)
      return dict(reply) if run == self._run else None
    except (ValueError, TypeError, RecursionError):
      return None


# --- The first step that fails ------------------------------------------------


def _judged(
  candidate: _Candidate, codes: list[str], steps: list[str], tests: str | None
) -> dict[str, Any]:
  """Returns `first`, the first step that fails, or None, and `reason`.

  `untold` says why the last step has no verdict.
  """
  if tests is not None and not isinstance(_state(tests), ast.Module):
    return dict(first=None, reason="", untold="the tests aren't Python")
  states = [_state(code) for code in codes]
  last = len(codes) - 1
  # An error that a later line takes away is an unfinished line.
  wrong = last + 1
  while wrong and isinstance(states[wrong - 1], dict):
    wrong -= 1
  if wrong > last and states[last] == "incomplete":
    states[last] = dict(kinds=["SyntaxError"], message="incomplete", line=None)
    wrong = last
  late = {*_names(codes[last]), _UNFINISHED}
  failure: dict[str, Any] | None = None
  untold = None
  if wrong > last:
    failure, untold = _outcome(candidate, codes[last], tests)
    if failure is None and untold is None:
      return dict(first=None, reason="", untold=None)
  for k in range(min(wrong, last)):
    tree = states[k]
    if not isinstance(tree, ast.Module):
      continue
    code = _so_far(codes[k], tree, steps[k + 1 :])
    if code and (found := _fails(candidate, code, tests, late)):
      return dict(first=k, reason=found, untold=None)
  if wrong <= last:
    return dict(first=wrong, reason=states[wrong], untold=None)
  return dict(first=None if untold else last, reason=failure, untold=untold)


def _state(code: str) -> Any:
  """Returns a code's tree, "incomplete", or its error."""
  try:
    compile(code, FILE, "exec", _INCOMPLETE, dont_inherit=True)
    return ast.parse(code)
  except SyntaxError as e:
    if e.msg == "incomplete input":
      return "incomplete"
    kinds = [x.__name__ for x in type(e).__mro__]
    return dict(kinds=kinds, message=str(e.msg)[:300], line=e.lineno)
  except (ValueError, RecursionError, MemoryError, OverflowError) as e:
    kinds = [x.__name__ for x in type(e).__mro__]
    return dict(kinds=kinds, message=str(e)[:300], line=None)


def _names(code: str) -> set[str]:
  """Returns the names that a code gives at its top, as far as a look tells."""
  return {word for line in _GIVES.findall(code) for word in _WORD.findall(line)}


def _so_far(code: str, tree: ast.Module, later: list[str]) -> str | None:
  """Returns a code to run of which more follows; None if it isn't to be run.

  It isn't if what follows is of a loop or a try: such a loop may not end yet. A
  function of which more follows raises an error of a known name at its end.
  """
  lines = (x for step in later for x in step.splitlines())
  following = next(
    (x for x in lines if x.strip() and not x.strip().startswith("#")), ""
  )
  indent = len(following) - len(following.lstrip())
  if re.match(r"(else|elif|except|finally)\b", following.lstrip()):
    return None
  ends: list[str] = []
  block = tree.body
  while block:
    statement = block[-1]
    inner = _last_block(statement)
    if not inner or indent < inner[0].col_offset:
      break
    if isinstance(statement, _LOOPS):
      return None
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
      first = code.split("\n")[inner[0].lineno - 1]
      blank = first[: len(first) - len(first.lstrip())]
      ends.append(f"{blank}{_UNFINISHED}\n")
    block = inner
  return code + "".join(reversed(ends))


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.Try)
# It stands for no name, so that its use is an error.
_UNFINISHED = "__prm_jax_unfinished"


def _last_block(statement: ast.stmt) -> list[ast.stmt]:
  """Returns the statements of a statement that end it, [] if it has none."""
  blocks = [getattr(statement, x, None) for x in ("body", "orelse")]
  blocks += [x.body for x in getattr(statement, "handlers", [])]
  blocks += [x.body for x in getattr(statement, "cases", [])]
  blocks.append(getattr(statement, "finalbody", None))
  return next((x for x in reversed(blocks) if isinstance(x, list) and x), [])


# --- Runs ---------------------------------------------------------------------


def _outcome(
  candidate: _Candidate, code: str, tests: str | None
) -> tuple[Any, str | None]:
  """Returns how the whole code fails, None if it doesn't; or why it isn't told."""
  try:
    names = candidate.begin(code)
    if tests is None:
      return None, "there are no tests"
    exec(_compiled(tests, in_part=False), _world(candidate, names))
    return None, None
  except _Failed as e:
    return e.args[0], None
  except _Untold as e:
    return None, f"the tests can't be run on it: {e}"
  except BaseException as e:
    described = getattr(e, "prm_jax_described", None)
    if described is not None:
      return described, None
    return _in_tests(e, tests or "")
  finally:
    candidate.end()


def _in_tests(error: BaseException, tests: str) -> tuple[Any, str | None]:
  """Returns what the tests say: that an assertion of theirs fails, or another."""
  line, trace = 0, error.__traceback__
  while trace is not None:
    if trace.tb_frame.f_code.co_filename == _TESTS:
      line = trace.tb_lineno
    trace = trace.tb_next
  lines = tests.splitlines()
  text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
  if isinstance(error, AssertionError):
    return dict(test=text), None
  # An error in comparing what the code returns is the code's; one with no such
  # value is the tests' own, and can't be told from it.
  return dict(test=f"{text} raises {type(error).__name__}"), None


def _fails(
  candidate: _Candidate, code: str, tests: str | None, late: set[str]
) -> Any:
  """Returns the error of an unfinished code, None without one.

  The tests give it inputs; what they expect isn't asked of it yet.
  """
  try:
    names = candidate.begin(code)
    if tests is not None:
      exec(_compiled(tests, in_part=True), _world(candidate, names))
  except _Failed as e:
    return _real(e.args[0], late)
  except BaseException as e:
    described = getattr(e, "prm_jax_described", None)
    return _real(described, late)
  finally:
    candidate.end()
  return None


def _real(described: Any, late: set[str]) -> Any:
  """Returns an error, None if it is that a later line isn't there yet."""
  if described is None:
    return None
  is_name = "NameError" in described.get("kinds", ())
  return None if is_name and described.get("name") in late else described


def _compiled(tests: str, *, in_part: bool) -> Any:
  tree = ast.parse(tests, _TESTS)
  if in_part:
    tree = ast.fix_missing_locations(_Tolerant().visit(tree))
  return compile(tree, _TESTS, "exec", dont_inherit=True)


class _Tolerant(ast.NodeTransformer):
  """Makes each assertion one whose failure isn't minded."""

  def visit_Assert(self, node: ast.Assert) -> ast.AST:
    look = ast.Name("__prm_jax_look", ast.Load())
    nothing = ast.arguments([], [], None, [], [], None, [])
    asked = ast.Lambda(nothing, node.test)
    return ast.copy_location(ast.Expr(ast.Call(look, [asked], [])), node)


def _look(ask: Callable[[], Any]) -> None:
  """Asks for what an assertion is of, and minds only the code's own errors."""
  try:
    ask()
  except Exception as e:
    if isinstance(e, _Failed) or hasattr(e, "prm_jax_described"):
      raise


def _world(candidate: _Candidate, names: dict[str, Any]) -> dict[str, Any]:
  """Returns the names that the tests have."""
  world = {k: code_wire.decoded(v) for k, v in names["values"].items()}
  for name in names["functions"]:
    world[name] = _proxy(candidate, str(name))
  world["__prm_jax_look"] = _look
  world["__name__"] = "tests"
  return world


def _proxy(candidate: _Candidate, name: str) -> Callable[..., Any]:
  """Returns a function that asks the code's process."""

  def call(*args: Any, **kwargs: Any) -> Any:
    given = list(args)
    try:
      asked = code_wire.encoded(given), code_wire.encoded(kwargs)
    except code_wire.UntoldError as e:
      raise _Untold(f"{name} is given a value of type {e}") from None
    try:
      reply = candidate.call(name, *asked)
    except _Failed as e:
      raise _as_raised(e.args[0]) from None
    value = code_wire.decoded(reply["value"])
    for old, new in zip(args, code_wire.decoded(reply["after"])):
      _update(old, new)
    return value

  call.__name__ = name
  return call


def _as_raised(described: dict[str, Any]) -> BaseException:
  """Returns the error as the tests may expect it: of its own type."""
  for kind in described.get("kinds", ()):
    made = getattr(builtins, kind, None)
    if isinstance(made, type) and issubclass(made, Exception):
      try:
        error = made(described.get("message", ""))
      except TypeError:  # UnicodeDecodeError has other arguments
        continue
      error.prm_jax_described = described  # type: ignore[attr-defined]
      return error
  return _Failed(described)


def _update(old: Any, new: Any) -> None:
  """Makes an argument what the function made of it."""
  if old == new or type(old) is not type(new):
    return
  if isinstance(old, list):
    old[:] = new
  elif isinstance(old, dict | set):
    old.clear()
    old.update(new)
