"""How published reward models read a solution, as data.

A template says what is written around a problem and its steps, and where each
step is read. It is a list of parts, which is saved with the checkpoint.

  problem, step   the texts
  text            these letters
  control         the id of a control or added token; no text can yield it
  cut             the texts on both sides are encoded separately
  read            the step is read at the last token so far

Texts without a control or cut between them are encoded as one, as the public
recipes do. The position of a step's score follows from the lengths of what was
written before it, and no code searches for an id: a `<extra_0>` or a `ки` that
a user typed is text.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from prm_jax import errors
from prm_jax.text import tokenizer as tokenizer_lib

KINDS = ("problem", "step", "text", "control", "cut", "read")
PARTS = ("opening", "step", "closing", "first_step")
TemplatePart = tuple[str, str]

PROBLEM: TemplatePart = ("problem", "")
STEP: TemplatePart = ("step", "")
CUT: TemplatePart = ("cut", "")
READ: TemplatePart = ("read", "")


@dataclasses.dataclass(frozen=True)
class PromptTemplate:
  """What is written around a problem and its steps, and where steps are read.

  Args:
    name: The name of the template.
    opening: The parts before the first step. They contain the problem, unless
      `first_step` does.
    step: The parts of one step, with one "read".
    closing: The parts after the last step of a whole solution.
    first_step: The parts of the first step, if they differ.
  """

  name: str
  opening: tuple[TemplatePart, ...]
  step: tuple[TemplatePart, ...]
  closing: tuple[TemplatePart, ...] = ()
  first_step: tuple[TemplatePart, ...] = ()

  def __post_init__(self):
    for name in PARTS:
      unknown = {kind for kind, _ in getattr(self, name)} - {*KINDS}
      if unknown:
        raise errors.InputError(
          f"template {self.name!r}: {name} has {', '.join(sorted(unknown))};"
          f" expected {', '.join(KINDS)}"
        )
    for name in ("step", "first_step"):
      kinds = [kind for kind, _ in getattr(self, name)]
      wanted = (kinds.count("step"), kinds.count("read"))
      if wanted != (1, 1) and (kinds or name == "step"):
        raise errors.InputError(
          f"template {self.name!r}: {name} needs one step and one read"
        )


def from_record(record: Mapping[str, Any]) -> PromptTemplate:
  """Returns the template that JSON holds; raises TypeError or ValueError."""
  parts = {
    name: tuple((str(kind), str(text)) for kind, text in record[name])
    for name in record.keys() - {"name"}
  }
  return PromptTemplate(name=str(record["name"]), **parts)


class Written(NamedTuple):
  """What is written for a solution.

  Args:
    tokens: The ids.
    step_end: The index of each step's score.
    prompt_tokens: The number of ids before the first step.
    turns: Of a trajectory, the ids of each turn, as (first, one after last).
  """

  tokens: np.ndarray
  step_end: np.ndarray
  prompt_tokens: int
  turns: tuple[tokenizer_lib.Span, ...] | None = None


def write(
  template: PromptTemplate,
  problem: str,
  steps: Sequence[str],
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  end: bool = False,
) -> Written:
  """Returns a solution's ids and where its steps are read, int32.

  Args:
    template: The template.
    problem: The text of the question.
    steps: The text of each step.
    tokenizer: The tokenizer.
    end: Whether to add what closes a whole solution.

  Raises:
    InputError: The tokenizer lacks a control token of the template, or has no
      token to read a step at: one after the step's beginning and before the
      next step.
  """
  ids, reads, starts = write_parts(
    template.name, _filled(template, problem, steps, end), tokenizer
  )
  step_end = np.asarray(reads, np.int32) - 1
  limits = np.asarray([*starts[1:], len(ids)], np.int32)[: len(starts)]
  outside = np.flatnonzero((step_end < starts) | (step_end >= limits))
  if len(outside):
    raise errors.InputError(
      f"template {template.name!r}: this tokenizer has no token at which step"
      f" {outside[0]} (from 0) can be read, after the step and before the next"
      " one; use another template"
    )
  first = starts[0] if starts else len(ids)
  return Written(np.asarray(ids, np.int32), step_end, first)


def write_parts(
  name: str,
  parts: Iterable[TemplatePart],
  tokenizer: tokenizer_lib.Tokenizer,
) -> tuple[list[int], list[int], list[int]]:
  """Returns ids, where steps are read and where they start.

  Args:
    name: The name of the template, for messages.
    parts: The parts in order, their texts filled in: a problem is a text, and a
      step has its text.
    tokenizer: The tokenizer.

  Returns:
    The ids; for each read the number of ids so far; for each step the index of
    its first id.

  Raises:
    InputError: The tokenizer lacks a control token.
  """
  ids: list[int] = []
  reads: list[int] = []
  starts: list[int] = []
  # The text since the last control or cut; places in it whose token indices
  # are wanted, each with the list that gets the index.
  text = ""
  marks: list[tuple[int, list[int]]] = []

  def flush() -> None:
    nonlocal text
    spans: list[tokenizer_lib.Span] = []
    if all(place in (0, len(text)) for place, _ in marks):
      more = tokenizer.encode(text)
    else:
      more, spans = tokenizer.encode_with_spans(text)
    for place, indices in marks:
      # A token may extend over the place. A step that is read there needs it; a
      # step that starts there includes it.
      if place in (0, len(text)):
        n = len(more) if place else 0
      elif indices is reads:
        n = bisect.bisect_left(spans, place, key=lambda span: span[0])
      else:
        n = bisect.bisect_right(spans, place, key=lambda span: span[1])
      indices.append(len(ids) + n)
    ids.extend(more)
    text = ""
    marks.clear()

  for kind, content in parts:
    if kind == "control":
      flush()
      ids.append(control_id(name, tokenizer, content))
    elif kind == "cut":
      flush()
    elif kind == "read":
      marks.append((len(text), reads))
    elif kind == "step":
      marks.append((len(text), starts))
      text += content
    else:
      text += content
  flush()
  return ids, reads, starts


# Steps that a tokenizer might drop, or join to what follows them.
_PROBES = ("", "", " ", "\n", "1", " 1", "a", "+", "")


def check_tokenizer(
  template: PromptTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> None:
  """Refuses a tokenizer that can't hold a template's separators.

  Args:
    template: The template.
    tokenizer: The tokenizer.

  Raises:
    InputError: The tokenizer lacks a control token of the template, or has no
      token for what is written after a step, as one that drops line breaks.
  """
  write(template, "", _PROBES, tokenizer, end=True)


def _filled(
  template: PromptTemplate, problem: str, steps: Sequence[str], end: bool
) -> Iterator[TemplatePart]:
  """Yields the parts of a solution, problem and steps filled in."""

  def fill(
    parts: Iterable[TemplatePart], step: str = ""
  ) -> Iterator[TemplatePart]:
    values = dict(problem=("text", problem), step=("step", step))
    return (values.get(kind, (kind, text)) for kind, text in parts)

  yield from fill(template.opening)
  for k, step in enumerate(steps):
    yield from fill(
      template.step if k else template.first_step or template.step, step
    )
  if end:
    yield from fill(template.closing)


def control_id(
  template: str, tokenizer: tokenizer_lib.Tokenizer, name: str
) -> int:
  """Returns the id of a control token by its name.

  Args:
    template: The name of the template that needs it, for messages.
    tokenizer: The tokenizer.
    name: The name of the token.

  Raises:
    InputError: The tokenizer has no such control token.
  """
  control = tokenizer.control(name)
  if control is None:
    raise errors.InputError(
      f"template {template!r}: the tokenizer has no control token {name!r};"
      " use the tokenizer of a model of this template, or another template"
    )
  return control


# --- The published ones -----------------------------------------------------

STEP_BY_STEP = (
  "Please reason step by step, and put your final answer within \\boxed{}."
)
LLAMA_SYSTEM = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024"


# A step that is encoded alone and read at its line break.
_LINE = (CUT, STEP, CUT, ("text", "\n"), READ)


def token_classification(bos: str | None = None) -> PromptTemplate:
  r"""Returns the template of TRL's PRMTrainer: texts encoded separately.

  "\\n" follows each step, which is read at the last token of it
  (trl.experimental.prm).

  Args:
    bos: The name of the tokenizer's first token, or None.
  """
  opening = (_named(bos), PROBLEM) if bos else (PROBLEM,)
  return PromptTemplate("token_classification", opening, _LINE)


def qwen_prm(system: str = STEP_BY_STEP) -> PromptTemplate:
  """Returns the template of Qwen2.5-Math-PRM: a chat, read at <extra_0>."""
  opening = (
    *(_named("<|im_start|>"), ("text", f"system\n{system}")),
    *(_named("<|im_end|>"), ("text", "\n")),
    *(_named("<|im_start|>"), ("text", "user\n"), PROBLEM),
    *(_named("<|im_end|>"), ("text", "\n")),
    *(_named("<|im_start|>"), ("text", "assistant\n")),
  )
  step = (STEP, _named("<extra_0>"), READ)
  closing = (_named("<|im_end|>"), ("text", "\n"))
  return PromptTemplate("qwen_prm", opening, step, closing)


def math_shepherd(bos: str | None = None) -> PromptTemplate:
  """Returns the template of Math-Shepherd: one text, read at ки after a step."""
  opening = (_named(bos or "<s>"), PROBLEM, ("text", " "))
  step = (STEP, ("text", " ки"), READ, ("text", "\n"))
  return PromptTemplate("math_shepherd", opening, step)


def rlhflow(system: str = LLAMA_SYSTEM) -> PromptTemplate:
  """Returns the template of RLHFlow's Llama 3.1: a user's turn for each step.

  The verdict + is the assistant's turn; a step is read at the token before it.

  Args:
    system: The text of the system turn, without its closing line breaks.
  """

  def turn(role: str, *parts: TemplatePart) -> tuple[TemplatePart, ...]:
    return (
      *(_named("<|start_header_id|>"), ("text", role)),
      *(_named("<|end_header_id|>"), ("text", "\n\n")),
      *(*parts, _named("<|eot_id|>")),
    )

  opening = (_named("<|begin_of_text|>"), *turn("system", ("text", system)))
  if system == LLAMA_SYSTEM:
    # The template of Llama 3.1 leaves two line breaks after its dates.
    opening = (*opening[:-1], ("text", "\n\n"), opening[-1])
  verdict = turn("assistant", READ, ("text", "+"))
  first = (*turn("user", PROBLEM, ("text", " "), STEP), *verdict)
  return PromptTemplate(
    "rlhflow", opening, (*turn("user", STEP), *verdict), first_step=first
  )


def skywork(bos: str | None = None) -> PromptTemplate:
  r"""Returns the template of Skywork-o1-Open-PRM: a line for each step.

  Each line is encoded alone, and a step is read at its "\\n".

  Args:
    bos: The name of the tokenizer's first token. Qwen's tokenizer has none; the
      public code writes nothing then.
  """
  start = (_named(bos),) if bos else ()
  return PromptTemplate("skywork", (*start, PROBLEM, ("text", "\n")), _LINE)


def _named(name: str) -> TemplatePart:
  return ("control", name)


NAMES = (
  *("token_classification", "qwen_prm", "math_shepherd", "rlhflow", "skywork"),
)
_CHATS = dict(qwen_prm=qwen_prm, rlhflow=rlhflow)
_OTHERS = dict(
  token_classification=token_classification,
  math_shepherd=math_shepherd,
  skywork=skywork,
)


def published(
  name: str, *, bos: str | None = None, system: str | None = None
) -> PromptTemplate:
  """Returns a published template by its name.

  Args:
    name: One of NAMES.
    bos: The name of the tokenizer's first token, None if it has none.
    system: The system turn of a chat; None is the template's own.

  Raises:
    InputError: There is no such template, or it has no system turn.
  """
  if name not in NAMES:
    raise errors.InputError(
      f"template {name!r}: expected one of {', '.join(NAMES)}"
    )
  if name in _CHATS:
    return _CHATS[name]() if system is None else _CHATS[name](system)
  if system is not None:
    raise errors.InputError(f"template {name!r} has no system turn to change")
  return _OTHERS[name](bos)
