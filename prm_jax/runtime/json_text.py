"""JSON as all our files are read: strictly, within runtime/limits.py."""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import json
import math
from typing import Any

from prm_jax.runtime import limits


class JSONTextError(ValueError):
  """Why a text isn't JSON that we read.

  Args:
    reason: The reason, in words.
    fix: What to do about it; None if that depends on the file.
    line: The line of the text, from 1.
  """

  def __init__(self, reason: str, fix: str | None = None, line: int = 1):
    super().__init__(f"{reason}; {fix}" if fix else reason)
    self.reason, self.fix, self.line = reason, fix, line


def parse(text: str, *, strict: bool = True) -> Any:
  """Returns the value of a JSON text.

  Args:
    text: The text.
    strict: Whether an object with two fields of one name is refused, and what
      no file of ours could hold: NaN, infinity, half a character. Otherwise the
      last of the fields counts, and the caller looks at the values: for what
      other programs wrote, such as a server's reply.

  Raises:
    JSONTextError: It isn't JSON, is nested too deeply, or holds a number of too
      many characters.
  """
  check_nesting(text)
  with _explained():
    value = (_STRICT if strict else _LENIENT).decode(text)
  if strict:
    _check_characters(text, value)
  return value


def parse_first(text: str, start: int) -> tuple[Any, int]:
  """Returns the value that starts at a place of a text, and where it ends.

  The caller checks the nesting of the whole text.

  Args:
    text: The text.
    start: The place, from 0.

  Raises:
    JSONTextError: See parse.
  """
  with _explained():
    value, end = _STRICT.raw_decode(text, start)
  _check_characters(text[start:end], value)
  return value, end


def check_nesting(text: str) -> None:
  """Raises JSONTextError if lists and objects of a text are nested too deeply.

  It looks at the text, before any of it is parsed.
  """
  if text.count("[") + text.count("{") <= limits.NESTING:
    return
  # Not above: `prm-jax --help` doesn't wait for it.
  import numpy as np

  # Without escapes, a quotation mark begins or ends a string.
  plain = text.replace("\\\\", "").replace('\\"', "")
  content = np.frombuffer(plain.encode("utf-8", "surrogatepass"), np.uint8)
  quotes = np.flatnonzero(content == ord('"'))
  opened, closed = (
    np.flatnonzero((content == ord(a)) | (content == ord(b)))
    for a, b in ("[{", "]}")
  )
  opened, closed = (
    x[np.searchsorted(quotes, x) % 2 == 0] for x in (opened, closed)
  )
  before = np.searchsorted(closed, opened)
  depths = np.arange(1, len(opened) + 1) - before
  if depths.max(initial=0) > limits.NESTING:
    raise JSONTextError(
      f"nested too deeply, more than {limits.NESTING} levels", "flatten it"
    )


LONE_SURROGATE = (
  "a lone surrogate, half of a character, has no UTF-8 form",
  "replace it by \\ufffd",
)


def _check_characters(text: str, value: Any) -> None:
  # The escape of half a surrogate pair: no file could hold it unescaped.
  if "\\ud" in text or "\\uD" in text:
    try:
      json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
      raise JSONTextError(*LONE_SURROGATE) from None


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  try:
    yield
  except json.JSONDecodeError as e:
    reason = f"not JSON: {e.msg} at column {e.colno}"
    raise JSONTextError(reason, line=e.lineno) from None
  except RecursionError:
    # Of a caller that is itself near the end of the stack.
    raise JSONTextError("nested too deeply", "flatten it") from None


def _no_constant(name: str) -> None:
  # Python reads and writes these; JSON and other readers don't have them.
  raise JSONTextError(f"not JSON: {name} is no number of JSON", "write null")


def _check_length(text: str) -> None:
  if len(text) > limits.NUMBER_CHARACTERS:
    raise JSONTextError(
      f"a number of {len(text):,} characters; more than"
      f" {limits.NUMBER_CHARACTERS} aren't read",
      "write it as a text",
    )


def _integer(text: str) -> int:
  _check_length(text)
  return int(text)


def _any_float(text: str) -> float:
  _check_length(text)
  return float(text)


def _float(text: str) -> float:
  value = _any_float(text)
  if math.isinf(value):
    raise JSONTextError(f"{text} is beyond the largest number", "write null")
  return value


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  # Python keeps the last of them, other readers the first.
  record = dict(pairs)
  if len(record) < len(pairs):
    ((twice, _),) = collections.Counter(x for x, _ in pairs).most_common(1)
    raise JSONTextError(
      f"{json.dumps(twice[:60])} occurs twice in an object", "keep one of them"
    )
  return record


_STRICT = json.JSONDecoder(
  parse_int=_integer,
  parse_float=_float,
  parse_constant=_no_constant,
  object_pairs_hook=_names_once,
)
_LENIENT = json.JSONDecoder(parse_int=_integer, parse_float=_any_float)
