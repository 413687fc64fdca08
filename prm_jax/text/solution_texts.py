"""The text of an unfinished solution, and the solution that it becomes.

A solution's text is its raw_text where that and the places of its steps are
known, else its steps with a separator after each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax import schema


class Text(NamedTuple):
  """The steps of a solution, its whole text, and the place of each step in it."""

  steps: tuple[str, ...]
  raw_text: str
  spans: tuple[schema.Span, ...]


def has_own(solution: schema.Solution) -> bool:
  """Returns whether a solution has its text and the places of its steps."""
  return solution.raw_text is not None and solution.spans is not None


def check_sampled(solution: schema.Solution, where: str) -> None:
  """Refuses a solution whose text was sampled as ids that aren't ids.

  Without a text of its own the field isn't read.

  Args:
    solution: The solution.
    where: Its record, for the message.

  Raises:
    InputError: The field isn't an object of tokenizer and ids.
  """
  sampled: Any = solution.extra.get(schema.SAMPLED)
  if sampled is None or not has_own(solution):
    return
  ids = sampled.get("ids") if isinstance(sampled, Mapping) else None
  if not isinstance(ids, list | tuple) or not all(
    type(x) is int and x >= 0 for x in ids
  ):
    raise errors.InputError(
      f'{where}: "{schema.SAMPLED}" must be an object of tokenizer and ids,'
      " whole numbers of 0 or more; take the field out"
    )


def begun(solution: schema.Solution, separator: str) -> str:
  """Returns a solution's text, up to where its next step begins.

  Args:
    solution: The solution.
    separator: What is written after each step if it has no text of its own.
  """
  if has_own(solution):
    return str(solution.raw_text)
  return "".join(f"{step}{separator}" for step in solution.steps)


def whole(solution: schema.Solution, separator: str) -> str:
  """Returns a solution's text if no step follows; see `begun`."""
  if has_own(solution):
    return str(solution.raw_text)
  return separator.join(solution.steps)


def places(
  solution: schema.Solution, separator: str
) -> tuple[schema.Span, ...]:
  """Returns the place of each step in `begun` and `whole`, in characters."""
  if solution.spans is not None and has_own(solution):
    return solution.spans
  spans, start = [], 0
  for step in solution.steps:
    spans.append((start, start + len(step)))
    start += len(step) + len(separator)
  return tuple(spans)


def first_step(
  text: str, spans: Sequence[schema.Span]
) -> tuple[str, Sequence[schema.Span]]:
  """Returns a text and its steps up to where its second step begins."""
  if len(spans) < 2:
    return text, spans
  return text[: spans[1][0]], spans[:1]


def continued(
  prefix: schema.Solution,
  separator: str,
  new: str,
  spans: Sequence[schema.Span],
) -> Text:
  """Returns a solution that goes on; its given steps stay as they are.

  Args:
    prefix: The unfinished solution.
    separator: See `begun`.
    new: The text after that of the prefix.
    spans: The place of each step in it, in characters.
  """
  before = begun(prefix, separator)
  shifted = ((len(before) + a, len(before) + b) for a, b in spans)
  all_spans = (*places(prefix, separator), *shifted)
  text = before + new
  return Text(tuple(text[a:b] for a, b in all_spans), text, all_spans)
