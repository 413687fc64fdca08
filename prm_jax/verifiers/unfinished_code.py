"""What a code is so far, of which more lines may follow: by its text alone.

It imports nothing of prm_jax, and workers import it.
"""

from __future__ import annotations

import ast
import re
from typing import Any

FILE = "<solution>"
# It stands for no name, so that its use is an error.
UNFINISHED = "__prm_jax_unfinished"
_INCOMPLETE = 0x4000  # codeop's flag: unfinished code has an error of its own
_GIVES = re.compile(
  r"(?m)^(?:(?:async\s+)?def|class)\s+\w+|^(?:from|import)\s.*|^\w+\s*=[^=]"
)
_WORD = re.compile(r"\w+")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.Try)


def state(code: str) -> Any:
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


def names(code: str) -> set[str]:
  """Returns the names that a code gives at its top, as far as a look tells."""
  return {word for line in _GIVES.findall(code) for word in _WORD.findall(line)}


def so_far(code: str, tree: ast.Module, later: list[str]) -> str | None:
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
      ends.append(f"{blank}{UNFINISHED}\n")
    block = inner
  return code + "".join(reversed(ends))


def _last_block(statement: ast.stmt) -> list[ast.stmt]:
  """Returns the statements of a statement that end it, [] if it has none."""
  blocks = [getattr(statement, x, None) for x in ("body", "orelse")]
  blocks += [x.body for x in getattr(statement, "handlers", [])]
  blocks += [x.body for x in getattr(statement, "cases", [])]
  blocks.append(getattr(statement, "finalbody", None))
  return next((x for x in reversed(blocks) if isinstance(x, list) and x), [])
