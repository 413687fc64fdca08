"""The first line of a journal: what its results depend on.

It is written when a journal is begun, and compared whenever it is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import hashlib
import json
import pathlib
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.runtime import checked_lines

_BEGIN = b'{"prm_jax_journal": 1, '


def line_of(depends_on: Mapping[str, Any]) -> str:
  """Returns the first line of a journal.

  Args:
    depends_on: What its results depend on, as plain data.
  """
  head = _BEGIN.decode() + json.dumps(dict(depends_on=depends_on))[1:]
  return checked_lines.line_of(head)


def read(lines: Iterable[bytes]) -> dict[str, Any] | None:
  """Returns what a journal's results depend on; None if it doesn't say.

  Args:
    lines: The lines of the journal.
  """
  head = next(checked_lines.scan(lines), None)
  record = None if head is None else head.record
  saved = (record or {}).get("depends_on")
  return saved if isinstance(saved, dict) else None


def check(
  path: pathlib.Path,
  lines: Iterable[bytes],
  depends_on: Mapping[str, Any],
  *,
  fresh: bool = False,
  partly: bool = False,
) -> None:
  """Refuses a file that isn't a journal, or one that depends on other things.

  Args:
    path: The file.
    lines: Its lines.
    depends_on: What the results depend on now.
    fresh: Whether only a file that isn't a journal is refused.
    partly: Whether only the fields of depends_on are compared.

  Raises:
    InputError: See above.
  """
  head = next(checked_lines.scan(lines), None)
  if head is None:
    return
  # A process that was killed while it wrote the head left a part of it.
  torn = not head.content.endswith(b"\n")
  if torn and _BEGIN.startswith(head.content[: len(_BEGIN)]):
    return
  if not head.content.startswith(_BEGIN):
    raise errors.InputError(
      f"{path}: isn't a journal of ours; give another `output`"
    )
  if fresh:
    return
  saved = (head.record or {}).get("depends_on")
  if not isinstance(saved, dict):
    raise errors.InputError(
      f"{path}:1: damaged, so it isn't known what it depends on; put a"
      " copy in its place, or give `fresh=True` to start over"
    )
  if different := differences(saved, depends_on, partly=partly):
    raise errors.InputError(
      f"{path}: holds another run's results: {'; '.join(different)}; give the"
      " same again, another `output`, or `fresh=True` to start over"
    )


def differences(
  before: Mapping[str, Any], now: Mapping[str, Any], *, partly: bool = False
) -> list[str]:
  """Returns in words how what two runs depend on differs.

  Args:
    before: What the one depends on.
    now: What the other one depends on.
    partly: Whether only the fields of `now` are compared.
  """
  # As they read back from a file.
  old, new = (dict(_flat(json.loads(json.dumps(x)))) for x in (before, now))
  return [
    _differs(name, old.get(name), new.get(name))
    for name in (new if partly else old | new)
    if old.get(name) != new.get(name)
  ]


def fingerprint(solutions: Sequence[schema.Solution]) -> dict[str, Any]:
  """Returns what a journal keeps of its input: all of it, as a digest.

  Args:
    solutions: The input.
  """
  digest = hashlib.sha256()
  for s in solutions:
    record = jsonl.record_from_solution(s)
    digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
  return dict(solutions=len(solutions), input=f"sha256:{digest.hexdigest()}")


def _differs(name: str, before: Any, now: Any) -> str:
  """Returns in words that a field had another value before."""
  *of, last = name.split(".")
  if last != "compute_dtype":
    return f"{name} was {_short(before)} and is {_short(now)}"
  # As the options name the models.
  model = of[-1].replace("target", "policy") if of else "policy"
  there, here = (
    "its own type" if x is None else _short(x).strip("'") for x in (before, now)
  )
  return f"`dtype`: `{model}` computes in {there} there, in {here} here"


def _flat(
  record: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields the fields of a record and of those in it, as "policy.seed"."""
  for name, value in record.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value


_SHORT = reprlib.Repr()
_SHORT.maxstring = 32


def _short(value: Any) -> str:
  return "not given" if value is None else _SHORT.repr(value)
