"""How published reward models read a solution, as data.

A template says what is written around a problem and its steps, and where each
step is read: pieces, in order, that travel with the checkpoint.

  problem, step   the texts
  text            these letters
  control         the id of a control or added token; no text can yield it
  cut             the texts on both sides are encoded apart
  read            the step is read at the last token so far

Texts that no control or cut parts are encoded as one, as the public recipes
do. Where a step is read follows from the lengths of what was written before
it, and never from looking for an id: a `<extra_0>` that somebody typed is text,
and a `ки` that somebody typed is not ours.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.data import tokenizer as tokenizer_lib

KINDS = ("problem", "step", "text", "control", "cut", "read")
PARTS = ("opening", "step", "closing", "first_step")
TemplatePart = tuple[str, str]

PROBLEM: TemplatePart = ("problem", "")
STEP: TemplatePart = ("step", "")
CUT: TemplatePart = ("cut", "")
READ: TemplatePart = ("read", "")


@dataclasses.dataclass(frozen=True)
class PromptTemplate:
  """What stands around a problem and its steps, and where steps are read.

  opening: up to the first step; it has the problem, unless `first_step` has.
  step: one step; it has one "read". first_step: the first one where that is
  written otherwise. closing: behind the last step of a whole solution.
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
          f"dialect {self.name!r}: {name} has {', '.join(sorted(unknown))};"
          f" expected {', '.join(KINDS)}"
        )
    for name in ("step", "first_step"):
      kinds = [kind for kind, _ in getattr(self, name)]
      wanted = (kinds.count("step"), kinds.count("read"))
      if wanted != (1, 1) and (kinds or name == "step"):
        raise errors.InputError(
          f"dialect {self.name!r}: {name} needs one step and one read"
        )


def from_record(record: Mapping[str, Any]) -> PromptTemplate:
  """Returns the template that JSON holds; raises TypeError, ValueError."""
  parts = {
    name: tuple((str(kind), str(text)) for kind, text in record[name])
    for name in record.keys() - {"name"}
  }
  return PromptTemplate(name=str(record["name"]), **parts)


@dataclasses.dataclass(frozen=True)
class Written:
  """ids; the index each step is read at; how many ids precede the steps."""

  tokens: np.ndarray
  step_end: np.ndarray
  prompt_tokens: int


def write(
  template: PromptTemplate,
  problem: str,
  steps: Sequence[str],
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  end: bool = False,
) -> Written:
  """Returns a solution's ids and where its steps are read, int32.

  end: with what closes a whole solution.

  Raises:
    InputError: the tokenizer lacks a control token of the template, or gives
      the text between two reads no token of its own.
  """
  ids: list[int] = []
  reads: list[int] = []
  starts: list[int] = []
  # The text since the last control or cut, and the places wanted in it.
  text = ""
  marks: list[tuple[int, list[int]]] = []

  def flush() -> None:
    nonlocal text
    ends: list[int] = []
    if all(place in (0, len(text)) for place, _ in marks):
      more = tokenizer.encode(text)
    else:
      more, ends = tokenizer.encode_with_ends(text)
    for place, places in marks:
      n = 0
      if place == len(text):
        n = len(more)
      elif place:
        n = bisect.bisect_right(ends, place)
        # A token may reach over the place. A step that is read there needs
        # it; one that starts there has it.
        over = n < len(ends) and (n == 0 or ends[n - 1] < place)
        n += over and places is reads
      places.append(len(ids) + n)
    ids.extend(more)
    text = ""
    marks.clear()

  for kind, said in _pieces(template, problem, steps, end):
    if kind == "control":
      flush()
      ids.append(_control(template, tokenizer, said))
    elif kind == "cut":
      flush()
    elif kind == "read":
      marks.append((len(text), reads))
    elif kind == "step":
      marks.append((len(text), starts))
      text += said
    else:
      text += said
  flush()
  step_end = np.asarray(reads, np.int32) - 1
  if np.any(np.diff(step_end, prepend=-1) < 1):
    raise errors.InputError(
      f"dialect {template.name!r}: this tokenizer gives a step no token of its"
      " own to be read at; use another dialect"
    )
  first = starts[0] if starts else len(ids)
  return Written(np.asarray(ids, np.int32), step_end, first)


def _pieces(
  template: PromptTemplate, problem: str, steps: Sequence[str], end: bool
) -> Iterable[TemplatePart]:
  """Yields the pieces of a solution, problem and steps filled in."""

  def filled(
    pieces: Iterable[TemplatePart], step: str
  ) -> Iterable[TemplatePart]:
    said = dict(problem=("text", problem), step=("step", step))
    return (said.get(kind, (kind, text)) for kind, text in pieces)

  yield from filled(template.opening, "")
  for k, step in enumerate(steps):
    pieces = template.step if k else template.first_step or template.step
    yield from filled(pieces, step)
  if end:
    yield from filled(template.closing, "")


def _control(
  template: PromptTemplate, tokenizer: tokenizer_lib.Tokenizer, name: str
) -> int:
  found = tokenizer.control(name)
  if found is None:
    raise errors.InputError(
      f"dialect {template.name!r}: the tokenizer has no control token {name!r};"
      " use the tokenizer of a model of this dialect, or another dialect"
    )
  return found


# --- The published ones -----------------------------------------------------

STEP_BY_STEP = (
  "Please reason step by step, and put your final answer within \\boxed{}."
)
LLAMA_SYSTEM = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024"


def token_classification(bos: str | None = None) -> PromptTemplate:
  r"""TRL's PRMTrainer: texts encoded apart, "\n" behind each step.

  A step is read at the last token of its "\n" (trl.experimental.prm). bos: the
  tokenizer's, where it has one.
  """
  opening = (_named(bos), PROBLEM) if bos else (PROBLEM,)
  step = (CUT, STEP, CUT, ("text", "\n"), READ)
  return PromptTemplate("token_classification", opening, step)


def qwen_prm(system: str = STEP_BY_STEP) -> PromptTemplate:
  """Qwen2.5-Math-PRM: a chat; <extra_0> behind each step is read."""
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


def math_shepherd(bos: str = "<s>") -> PromptTemplate:
  """Math-Shepherd's Mistral: one text; the ки behind each step is read."""
  opening = (_named(bos), PROBLEM, ("text", " "))
  step = (STEP, ("text", " ки"), READ, ("text", "\n"))
  return PromptTemplate("math_shepherd", opening, step)


def rlhflow(system: str = LLAMA_SYSTEM) -> PromptTemplate:
  """RLHFlow's Llama 3.1: a chat with a user's turn for each step.

  The verdict + is the assistant's turn; a step is read at the token before
  it. system: the text of the system turn without its closing line breaks.
  """

  def turn(role: str, *pieces: TemplatePart) -> tuple[TemplatePart, ...]:
    header = (_named("<|start_header_id|>"), ("text", role))
    behind = (_named("<|end_header_id|>"), ("text", "\n\n"))
    return (*header, *behind, *pieces, _named("<|eot_id|>"))

  opening = (_named("<|begin_of_text|>"), *turn("system", ("text", system)))
  if system == LLAMA_SYSTEM:
    # The template of Llama 3.1 leaves two line breaks behind its dates.
    opening = (*opening[:-1], ("text", "\n\n"), opening[-1])
  verdict = turn("assistant", READ, ("text", "+"))
  first = (*turn("user", PROBLEM, ("text", " "), STEP), *verdict)
  return PromptTemplate(
    "rlhflow", opening, (*turn("user", STEP), *verdict), first_step=first
  )


def skywork(bos: str | None = None) -> PromptTemplate:
  r"""Skywork-o1-Open-PRM: a step a line, encoded alone; its "\n" is read.

  bos: Qwen's tokenizer has none; the public code writes nothing then.
  """
  start = (_named(bos),) if bos else ()
  step = (CUT, STEP, CUT, ("text", "\n"), READ)
  return PromptTemplate("skywork", (*start, PROBLEM, ("text", "\n")), step)


def _named(name: str) -> TemplatePart:
  return ("control", name)


NAMES = (
  *("token_classification", "qwen_prm", "math_shepherd", "rlhflow", "skywork"),
)


def published(
  name: str, *, bos: str | None = None, system: str | None = None
) -> PromptTemplate:
  """Returns a published template by its name.

  bos: the name of the tokenizer's first token, None where it has none. system:
  the system turn of a chat; the template's own by default.

  Raises:
    InputError: there is no such template, or it has no system turn.
  """
  if name not in NAMES:
    raise errors.InputError(
      f"dialect {name!r}: expected one of {', '.join(NAMES)}"
    )
  if system is not None and name not in ("qwen_prm", "rlhflow"):
    raise errors.InputError(f"dialect {name!r} has no system turn to change")
  if name == "qwen_prm":
    return qwen_prm() if system is None else qwen_prm(system)
  if name == "rlhflow":
    return rlhflow() if system is None else rlhflow(system)
  if name == "math_shepherd":
    return math_shepherd(bos or "<s>")
  return dict(token_classification=token_classification, skywork=skywork)[name](
    bos
  )
