"""JSON as no program of ours writes it: valid data with one place replaced."""

from collections.abc import Callable, Iterator
import copy
import json
import pathlib
from typing import Any

import pytest

from prm_jax import errors

ABSENT = object()
_DEEP = json.loads("[" * 400 + "]" * 400)
VALUES: tuple[Any, ...] = (
  None, True, "\0" * 10, "y" * 9_999, -1, 10**299, 1.5, [], {}, [[]], _DEEP, ABSENT,
)  # fmt: skip


def variants(value: Any) -> Iterator[tuple[str, Any]]:
  """Yields the data with each of its places replaced by each of VALUES."""
  for path in _places(value):
    for new in VALUES:
      if not path:
        yield "all", None if new is ABSENT else new
        continue
      changed = copy.deepcopy(value)
      inner = changed
      for key in path[:-1]:
        inner = inner[key]
      if new is ABSENT:
        del inner[path[-1]]
      else:
        inner[path[-1]] = new
      name = ".".join(map(str, path))
      yield f"{name}={'absent' if new is ABSENT else repr(new)[:30]}", changed


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
  yield ()
  items = ()
  if isinstance(value, dict):
    items = value.items()
  elif isinstance(value, list):
    items = enumerate(value)
  for key, inner in items:
    for path in _places(inner):
      yield (key, *path)


def texts(value: Any) -> Iterator[tuple[str, str]]:
  """Yields what a text of JSON may be, but for its types."""
  good = json.dumps(value)
  yield "cut", good[: len(good) // 2]
  yield "empty", ""
  yield "open brackets", "[" * 100_000
  yield "deep", "[" * 100_000 + "]" * 100_000
  yield "digits", "9" * 5_000
  yield "1e400", '{"a": 1e400}'
  yield "NaN", good.replace(":", ": NaN,", 1)
  yield "surrogate", '{"\\ud800": 1}'


def check(
  read: Callable[[pathlib.Path], Any], path: pathlib.Path, value: Any
) -> None:
  """Asserts that a file of any such content is read, or refused in one line.

  Args:
    read: Reads the file.
    path: The file.
    value: Valid content.
  """
  path.write_text(json.dumps(value))
  read(path)
  failed = {}
  contents = [(name, json.dumps(x)) for name, x in variants(value)]
  for name, text in [*contents, *texts(value)]:
    path.write_text(text)
    try:
      read(path)
    except errors.InputError as e:
      if "\n" in str(e) or len(str(e)) > 2_000:
        failed[name] = repr(e)[:200]
    except Exception as e:
      failed[name] = f"{type(e).__name__}: {e}"[:200]
  if failed:
    lines = "\n".join(f"{k}: {x}" for k, x in failed.items())
    pytest.fail(f"{len(failed)} of {len(contents)}\n{lines}")
