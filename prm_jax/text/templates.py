"""How published reward models read a solution, as data.

A template says what is written around a problem and its steps, and where each
step is read. It is a list of parts, which is saved with the checkpoint.

  problem, step   the texts
  context         the step before, or the problem before the first
  text            these letters
  control         the id of a control or added token; no text can yield it
  cut             the texts on both sides are encoded separately
  read            the step is read at the last token so far
  start           a step begins that sees nothing written before
  bos             the tokenizer's first token, else the control of this name, if
                  any; `fitted` puts a control in its place

Texts without a control or cut between them are encoded as one, as the public
recipes do. The position of a step's score follows from the lengths of what was
written before it, and no code searches for an id: a `<extra_0>` or a `ки` that
a user typed is text.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import segmenters
from prm_jax.text import step_spans
from prm_jax.text import template as template_lib
from prm_jax.text import tokenizer as tokenizer_lib

KINDS = (
  *("problem", "step", "context", "text", "control"),
  *("cut", "read", "start", "bos"),
)
PARTS = ("opening", "step", "closing", "first_step")
TemplatePart = tuple[str, str]

PROBLEM: TemplatePart = ("problem", "")
STEP: TemplatePart = ("step", "")
CUT: TemplatePart = ("cut", "")
READ: TemplatePart = ("read", "")
BOS: TemplatePart = ("bos", "")
CONTEXT: TemplatePart = ("context", "")
START: TemplatePart = ("start", "")


@dataclasses.dataclass(frozen=True)
class PromptTemplate:
  """What is written around a problem and its steps, and where steps are read.

  It is a template.Template.

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

  of_policy: ClassVar[bool] = False
  segmenter: ClassVar[None] = None

  def __post_init__(self):
    for name in PARTS:
      check_kinds(self.name, name, getattr(self, name), KINDS)
    for name in ("step", "first_step"):
      kinds = [kind for kind, _ in getattr(self, name)]
      wanted = (kinds.count("step"), kinds.count("read"))
      if wanted != (1, 1) and (kinds or name == "step"):
        raise errors.InputError(
          f"template {self.name!r}: {name} needs one step and one read"
        )
    if self.apart and (self.opening, self.first_step) != ((), ()):
      raise errors.InputError(
        f"template {self.name!r}: a step that begins with start sees no opening;"
        " write it in the step, without first_step"
      )

  @property
  def apart(self) -> bool:
    return START in self.step

  def fitted(self, tokenizer: tokenizer_lib.Tokenizer) -> PromptTemplate:
    parts: dict[str, Any] = {
      name: tuple(
        x for part in getattr(self, name) for x in _of(part, tokenizer)
      )
      for name in PARTS
    }
    template = dataclasses.replace(self, **parts)
    template.write(schema.Solution("", "", _PROBES), tokenizer, end=True)
    return template

  def num_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> int:
    blank = schema.Solution("", "", ("",))
    controls = self.fitted(tokenizer).write(blank, tokenizer, end=True).tokens
    return max(tokenizer.text_ids, int(controls.max()) + 1)

  def write(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    *,
    score_position: str = "last_token",
    end: bool = False,
  ) -> template_lib.EncodedSolution:
    del score_position
    parts = self._filled(solution.problem, solution.steps, end)
    sections = _split(parts) if self.apart else [parts]
    ids: list[int] = []
    reads: list[int] = []
    starts: list[int] = []
    begins: list[int] = []
    for section in sections:
      begins.append(len(ids))
      more, *places = write_parts(self.name, section, tokenizer)
      for of, new in zip((reads, starts), places):
        of += (len(ids) + place for place in new)
      ids += more
    step_end = np.asarray(reads, np.int32) - 1
    limits = np.asarray([*starts[1:], len(ids)], np.int32)[: len(starts)]
    outside = np.flatnonzero((step_end < starts) | (step_end >= limits))
    if len(outside):
      raise errors.InputError(
        f"template {self.name!r}: this tokenizer has no token at which step"
        f" {outside[0]} (from 0) can be read, after the step and before the next"
        " one; use another template"
      )
    first = starts[0] if starts else len(ids)
    return template_lib.EncodedSolution(
      np.asarray(ids, np.int32),
      step_end,
      first,
      starts=tuple(begins) if self.apart else (),
    )

  def spans(
    self,
    text: str,
    segmenter: segmenters.Segmenter,
    tokenizer: tokenizer_lib.Tokenizer,
    begun: str = "",
  ) -> tuple[schema.Span, ...]:
    return step_spans.spans(text, segmenter, tokenizer, begun)

  def unread(self, solution: schema.Solution) -> tuple[bool, ...]:
    del solution
    return ()

  def _filled(
    self, problem: str, steps: Sequence[str], end: bool
  ) -> Iterator[TemplatePart]:
    """Yields the parts of a solution, problem and steps filled in."""

    def fill(
      parts: Iterable[TemplatePart], step: str = "", context: str = problem
    ) -> Iterator[TemplatePart]:
      values = dict(
        problem=("text", problem),
        step=("step", step),
        context=("text", context),
      )
      return (values.get(kind, (kind, text)) for kind, text in parts)

    yield from fill(self.opening)
    for k, step in enumerate(steps):
      parts = self.step if k else self.first_step or self.step
      yield from fill(parts, step, steps[k - 1] if k else problem)
    if end:
      yield from fill(self.closing)


def check_kinds(
  template: str,
  name: str,
  parts: Iterable[TemplatePart],
  known: Sequence[str],
) -> None:
  """Refuses parts of unknown kinds.

  Args:
    template: The name of the template.
    name: What the parts are, for the message.
    parts: The parts.
    known: The kinds that they may have.

  Raises:
    InputError: One has another.
  """
  if unknown := {kind for kind, _ in parts} - {*known}:
    raise errors.InputError(
      f"template {template!r}: {name} has {', '.join(sorted(unknown))};"
      f" expected {', '.join(known)}"
    )


# Steps that a tokenizer might drop, or join to what follows them.
_PROBES = ("", "", " ", "\n", "1", " 1", "a", "+", "")


def _split(parts: Iterable[TemplatePart]) -> list[list[TemplatePart]]:
  """Returns the parts of each step, which begin with START."""
  sections: list[list[TemplatePart]] = []
  for part in parts:
    if part == START:
      sections.append([])
    else:
      sections[-1].append(part)
  return sections


def _of(
  part: TemplatePart, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[TemplatePart, ...]:
  """Returns a part with the tokenizer's first token by its name."""
  kind, name = part
  if kind != "bos":
    return (part,)
  name = tokenizer.bos_name or name
  return (("control", name),) if name else ()


def from_record(record: Mapping[str, Any]) -> PromptTemplate:
  """Returns the template that JSON holds; raises TypeError or ValueError."""
  parts = {
    name: tuple((str(kind), str(text)) for kind, text in record[name])
    for name in record.keys() - {"name"}
  }
  return PromptTemplate(name=str(record["name"]), **parts)


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

  for kind, content in (x for part in parts for x in _of(part, tokenizer)):
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


def token_classification() -> PromptTemplate:
  r"""Returns the template of TRL's PRMTrainer: texts encoded separately.

  "\\n" follows each step, which is read at the last token of it
  (trl.experimental.prm).
  """
  return PromptTemplate("token_classification", (BOS, PROBLEM), _LINE)


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


def math_shepherd() -> PromptTemplate:
  """Returns the template of Math-Shepherd: one text, read at ки after a step."""
  opening = (("bos", "<s>"), PROBLEM, ("text", " "))
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


def skywork() -> PromptTemplate:
  r"""Returns the template of Skywork-o1-Open-PRM: a line for each step.

  Each line is encoded alone, and a step is read at its "\\n". Qwen's tokenizer
  has no first token; the public code writes nothing then.
  """
  return PromptTemplate("skywork", (BOS, PROBLEM, ("text", "\n")), _LINE)


# ContextPRM's step: the one before it is written again.
_LINKED: tuple[TemplatePart, ...] = (
  *(("text", "[CONTEXT]: "), CONTEXT, ("text", "\n\n[CURRENT STEP]: ")),
  *(STEP, ("text", " \n\n\n\n"), READ),
)


def context_prm() -> PromptTemplate:
  """Returns the template of ContextPRM (2509.24460, its code at ea7d479).

  The step before each is written again, as its context. It is one text: a step
  sees the question and all steps before it.
  """
  opening = (BOS, PROBLEM, ("text", " \n\n"))
  return PromptTemplate("context_prm", opening, (CUT, *_LINKED))


def step_pairs() -> PromptTemplate:
  """Returns a template in which a step sees the one before it alone.

  Each step is a text of its own, written as ContextPRM writes it; the first one
  sees the question. No published model is known to be read so.
  """
  return PromptTemplate("step_pairs", (), (START, BOS, *_LINKED))


def _named(name: str) -> TemplatePart:
  return ("control", name)


_PUBLISHED: dict[str, Callable[..., PromptTemplate]] = dict(
  token_classification=token_classification,
  qwen_prm=qwen_prm,
  math_shepherd=math_shepherd,
  rlhflow=rlhflow,
  skywork=skywork,
  context_prm=context_prm,
  step_pairs=step_pairs,
)
NAMES = tuple(_PUBLISHED)
_CHATS = ("qwen_prm", "rlhflow")


def published(name: str, *, system: str | None = None) -> PromptTemplate:
  """Returns a published template by its name.

  Args:
    name: One of NAMES.
    system: The system turn of a chat; None is the template's own.

  Raises:
    InputError: There is no such template, or it has no system turn.
  """
  if name not in NAMES:
    raise errors.InputError(
      f"template {name!r}: expected one of {', '.join(NAMES)}"
    )
  make = _PUBLISHED[name]
  if system is None:
    return make()
  if name not in _CHATS:
    raise errors.InputError(f"template {name!r} has no system turn to change")
  return make(system)
