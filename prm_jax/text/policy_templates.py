"""How a published policy is prompted, and how its text is read, as data.

A template says what is written around a problem, what ends a solution, and how
the policy's text is cut into steps. It is a list of parts, which is saved with
the checkpoint; the kinds of parts are those of text/templates.py:

  problem   the text of the problem
  text      these letters
  control   the id of a control or added token; no text can yield it
  cut       the texts on both sides are encoded separately

Texts without a control or cut between them are encoded as one. A solution is
encoded on its own, after the opening: a policy continues from ids, so the ids
before its own never depend on what it writes. A reward model's may be encoded
with what is around it (`one_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
import reprlib
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.text import conversation_templates
from prm_jax.text import few_shot
from prm_jax.text import segmenters
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

KINDS = ("problem", "text", "control", "cut")
CLOSING_KINDS = ("text", "control", "cut")


@dataclasses.dataclass(frozen=True)
class PolicyTemplate:
  """What is written around a problem, what ends a solution, and its steps.

  Args:
    name: The name of the template.
    opening: The parts before a solution; one of them is the problem.
    ends: The names of the tokens that end a solution. A policy is trained to
      write the first.
    separator: What is written after each step of a solution whose whole text
      isn't known, unless it is the last of a finished one.
    segmenter: How the policy's text is cut into steps.
    strips: Whether white space around the problem is left out, as some chat
      templates do.
    thinking: The names of the tokens that open and close a model's reasoning;
      () if it has none. In a solution's text they are written by their names,
      and no step holds them.
    stop: Texts that end a solution too, such as the opening of the next problem
      after examples. A solution's text ends before them.
    closing: For an outcome reward model, the parts after a whole solution, at
      the last token of which its last step is read. If these are a cut alone,
      it is read at the solution's last token; if (), every step is read at its
      own.
    conversation: How the model reads whole conversations, or None.
    no_conversation: Why it reads none, for messages.
    refuses: For an outcome reward model, texts that its chat template doesn't
      write as they are, such as the end of a model's reasoning. No problem or
      solution may hold one.
    one_text: For an outcome reward model, whether a solution is encoded as one
      text with those beside it, as published models read it. Encoded alone, a
      solution may have other ids: Llama 2's tokenizer begins every text with a
      space, and Qwen's joins line breaks.
  """

  name: str
  opening: tuple[templates.TemplatePart, ...]
  ends: tuple[str, ...]
  separator: str = "\n\n"
  segmenter: segmenters.Segmenter = segmenters.PARAGRAPH
  strips: bool = False
  thinking: tuple[str, ...] = ()
  stop: tuple[str, ...] = ()
  closing: tuple[templates.TemplatePart, ...] = ()
  one_text: bool = False
  refuses: tuple[str, ...] = ()
  # Two templates that differ in it alone are seldom met, and it is long.
  conversation: conversation_templates.ConversationTemplate | None = (
    dataclasses.field(default=None, hash=False)
  )
  no_conversation: str = "it wasn't imported with its chat template"

  def __post_init__(self):
    kinds = [kind for kind, _ in self.opening]
    closing = {kind for kind, _ in self.closing}
    for name, given, known in (
      ("opening", {*kinds}, KINDS),
      ("closing", closing, CLOSING_KINDS),
    ):
      if unknown := given - {*known}:
        raise errors.InputError(
          f"template {self.name!r}: {name} has {', '.join(sorted(unknown))};"
          f" expected {', '.join(known)}"
        )
    if kinds.count("problem") != 1:
      raise errors.InputError(
        f"template {self.name!r}: opening needs one problem"
      )
    if not self.ends:
      raise errors.InputError(
        f"template {self.name!r}: no token ends a solution; name one"
      )
    if len(self.thinking) not in (0, 2):
      raise errors.InputError(
        f"template {self.name!r}: thinking={self.thinking}: expected the names"
        " of two tokens, or none"
      )
    if self.one_text and not self.closing:
      raise errors.InputError(
        f"template {self.name!r}: one_text is for reward models; it needs a"
        " closing"
      )
    if not self.separator or not all((*self.stop, *self.refuses)):
      raise errors.InputError(
        f"template {self.name!r}: a separator, a stop or what it refuses is"
        " empty; give it a character"
      )


def from_record(record: Mapping[str, Any]) -> PolicyTemplate:
  """Returns the template that JSON holds.

  Raises:
    InputError: The template is none, as one without a problem.
    TypeError, ValueError, KeyError: A field is missing or of another type.
  """
  fields = dict(record)
  for name in ("opening", "closing"):
    if name in fields or name == "opening":
      fields[name] = tuple(
        (_checked(k, str), _checked(x, str)) for k, x in record[name]
      )
  for name in ("ends", "thinking", "stop", "refuses"):
    if name in fields:
      texts = _checked(fields[name], list)
      fields[name] = tuple(_checked(x, str) for x in texts)
  for name, kind in dict(
    name=str, separator=str, strips=bool, one_text=bool
  ).items():
    if name in fields:
      _checked(fields[name], kind)
  if fields.get("conversation") is not None:
    fields["conversation"] = conversation_templates.from_record(
      fields["conversation"]
    )
  if "segmenter" in fields:
    fields["segmenter"] = segmenters.from_record(fields["segmenter"])
  return PolicyTemplate(**fields)


def _checked(value: Any, kind: type) -> Any:
  """Returns a value of JSON; raises TypeError if it is of another type."""
  if not isinstance(value, (kind, tuple) if kind is list else kind):
    raise TypeError(f"{reprlib.repr(value)} isn't a {kind.__name__}")
  return value


def check_texts(template: PolicyTemplate, problem: str, text: str) -> None:
  """Refuses a problem or a solution's text that holds what a template refuses.

  Raises:
    InputError: One of them does.
  """
  for name, given in (("problem", problem), ("solution", text)):
    for word in template.refuses:
      if word in given:
        raise errors.InputError(
          f"the {name} holds {word!r}, which the model's chat template doesn't"
          " write as it stands: it moves, changes or refuses such a text; take"
          " it out, or give what follows the last one alone"
        )


def write_opening(
  template: PolicyTemplate,
  problem: str,
  tokenizer: tokenizer_lib.Tokenizer,
) -> np.ndarray:
  """Returns the ids before a solution, int32 [T].

  Args:
    template: The template.
    problem: The text of the question.
    tokenizer: The tokenizer.

  Raises:
    InputError: The tokenizer lacks a control token of the opening.
  """
  parts = opening_parts(template, problem)
  ids, _, _ = templates.write_parts(template.name, parts, tokenizer)
  return np.asarray(ids, np.int32)


def opening_parts(
  template: PolicyTemplate, problem: str
) -> tuple[templates.TemplatePart, ...]:
  """Returns the parts before a solution, the problem filled in."""
  text = problem.strip() if template.strips else problem
  return tuple(
    ("text", text) if kind == "problem" else (kind, content)
    for kind, content in template.opening
  )


def write_closing(
  template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> list[int]:
  """Returns the ids after a whole solution that an ORM reads.

  Raises:
    InputError: The tokenizer lacks a control token of the closing.
  """
  ids, _, _ = templates.write_parts(template.name, template.closing, tokenizer)
  return ids


def control_ids(
  template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, int]:
  """Returns the ids of all control tokens that a template names, by name.

  Raises:
    InputError: The tokenizer lacks one.
  """
  parts = (*template.opening, *template.closing)
  names = [content for kind, content in parts if kind == "control"]
  return {
    name: templates.control_id(template.name, tokenizer, name)
    for name in (*names, *template.ends, *template.thinking)
  }


def check_tokenizer(
  template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> None:
  """Refuses a tokenizer that lacks a control token of a template.

  Raises:
    InputError: It lacks one of the opening, of the ends or of thinking.
  """
  control_ids(template, tokenizer)


# --- The published ones -----------------------------------------------------
#
# Each is what its chat template writes before the first answer, for one
# question and no tools. The chat templates were read in copies of them: those of
# Qwen, Llama and Gemma in huggingface/trl at f2cd577, trl/chat_templates/ (of
# Qwen2.5-7B-Instruct, Qwen3-8B, Meta-Llama-3-8B-Instruct,
# Llama-3.1-8B-Instruct, gemma-2-2b-it and gemma-3-4b-it), that of
# Mistral-7B-Instruct-v0.3 in mistralai/cookbook at f80d13a,
# concept-deep-dive/tokenization/templates.md.

QWEN_SYSTEM = (
  "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
)
_THINK = ("<think>", "</think>")


def qwen2_5(system: str = QWEN_SYSTEM) -> PolicyTemplate:
  """Returns the template of Qwen2.5 Instruct.

  Args:
    system: The system turn; Qwen2.5-Math's is templates.STEP_BY_STEP.
  """
  return PolicyTemplate(
    "qwen2_5", templates.qwen_prm(system).opening, _QWEN_ENDS
  )


def qwen2_5_math(system: str = templates.STEP_BY_STEP) -> PolicyTemplate:
  """Returns the template of Qwen2.5-Math Instruct."""
  return dataclasses.replace(qwen2_5(system), name="qwen2_5_math")


def qwen3(thinking: bool = True, system: str | None = None) -> PolicyTemplate:
  """Returns the template of Qwen3.

  Args:
    thinking: Whether the model may think: it then writes <think> itself. False
      writes an empty think block before the solution.
    system: The system turn; None for none, as the chat template does.
  """
  opening = templates.qwen_prm(system or "").opening
  if system is None:
    opening = opening[4:]
  if not thinking:
    blank = ("text", "\n\n")
    opening = (*opening, _named("<think>"), blank, _named("</think>"), blank)
  return PolicyTemplate("qwen3", opening, _QWEN_ENDS, thinking=_THINK)


def llama3(system: str | None = None) -> PolicyTemplate:
  """Returns the template of Llama 3 Instruct, which strips texts.

  Args:
    system: The system turn; None for none, as the chat template does.
  """
  return _llama("llama3", None if system is None else system.strip())


def llama3_1(system: str = "") -> PolicyTemplate:
  """Returns the template of Llama 3.1 and 3.2 Instruct, which strips texts.

  Its system turn begins with two dates. Today's is fixed: 26 Jul 2024, which is
  the default of Llama 3.1's chat template.

  Args:
    system: What follows the dates.
  """
  dates = templates.LLAMA_SYSTEM
  return _llama("llama3_1", f"{dates}\n\n{system.strip()}")


def mistral(system: str | None = None) -> PolicyTemplate:
  """Returns the template of Mistral 7B Instruct v0.3, [INST] being a control.

  Args:
    system: A text before the problem, with a blank line between; None for none.
  """
  before = " " if system is None else f" {system}\n\n"
  opening = (
    *(_named("<s>"), _named("[INST]"), ("text", before)),
    *(templates.PROBLEM, _named("[/INST]")),
  )
  return PolicyTemplate("mistral", opening, ("</s>",))


def gemma(system: str | None = None) -> PolicyTemplate:
  """Returns the template of Gemma 2 and 3, which strips the problem.

  Args:
    system: A text before the problem, with a blank line between, as Gemma 3's
      chat template writes it; Gemma 2's has none.
  """
  before = "user\n" if system is None else f"user\n{system}\n\n"
  opening = (
    *(_named("<bos>"), _named("<start_of_turn>"), ("text", before)),
    *(templates.PROBLEM, _named("<end_of_turn>"), ("text", "\n")),
    *(_named("<start_of_turn>"), ("text", "model\n")),
  )
  return PolicyTemplate(
    "gemma", opening, ("<end_of_turn>", "<eos>"), strips=True
  )


def plain(
  ends: Sequence[str],
  prompt: str = "{problem}\n",
  stop: Sequence[str] = (),
  bos: str | None = None,
) -> PolicyTemplate:
  """Returns a template of text alone, for models without a chat.

  Args:
    ends: The names of the tokens that end a solution.
    prompt: The text before a solution; it holds {problem} once.
    stop: Texts that end a solution; without any, the opening of the next
      problem if the prompt has examples (`few_shot.stop_of`).
    bos: The name of the tokenizer's first token, or None.

  Raises:
    InputError: The prompt doesn't hold {problem} once.
  """
  before, found, after = prompt.partition("{problem}")
  if not found or "{problem}" in after:
    raise errors.InputError(
      f"prompt is {reprlib.repr(prompt)}; expected a text with {{problem}} in it, once"
    )
  parts = (("text", before), templates.PROBLEM, ("text", after))
  opening = tuple(part for part in parts if part != ("text", ""))
  start = (_named(bos),) if bos else ()
  stop = tuple(stop) or few_shot.stop_of(prompt)
  return PolicyTemplate("plain", (*start, *opening), tuple(ends), stop=stop)


def gsm8k_4_shot(ends: Sequence[str], bos: str | None = None) -> PolicyTemplate:
  """Returns a template of text with four examples; a step is a line.

  Args:
    ends: The names of the tokens that end a solution.
    bos: The name of the tokenizer's first token, or None.
  """
  prompt, stop = few_shot.prompt(few_shot.GSM8K), (few_shot.STOP,)
  return dataclasses.replace(
    plain(ends, prompt, stop, bos),
    name="gsm8k_4_shot",
    separator="\n",
    segmenter=segmenters.LINE,
  )


_QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
_CHATS: dict[str, Callable[..., PolicyTemplate]] = dict(
  **dict(qwen2_5=qwen2_5, qwen2_5_math=qwen2_5_math, qwen3=qwen3),
  **dict(llama3=llama3, llama3_1=llama3_1, mistral=mistral, gemma=gemma),
)
_TEXTS: dict[str, Callable[..., PolicyTemplate]] = dict(
  plain=plain, gsm8k_4_shot=gsm8k_4_shot
)
CHATS = tuple(_CHATS)
NAMES = (*CHATS, *_TEXTS)


def is_chat(template: PolicyTemplate) -> bool:
  """Returns whether a template is a chat, and not a text that goes on."""
  return template.name not in _TEXTS


def lacks_temperature(
  template: PolicyTemplate | None,
  defaults: Mapping[str, float],
) -> bool:
  """Returns whether a chat model came without the temperature it is made for.

  Args:
    template: The policy's template; None is our own form.
    defaults: The sampling that it came with.
  """
  if template is None or not is_chat(template):
    return False
  return "temperature" not in defaults


def published(
  name: str,
  *,
  system: str | None = None,
  thinking: bool | None = None,
  ends: Sequence[str] = (),
  bos: str | None = None,
) -> PolicyTemplate:
  """Returns a known template by its name.

  Args:
    name: One of NAMES.
    system: The system turn of a chat; None is the template's own.
    thinking: Whether the model may think; None is the template's own.
    ends: Names of further tokens that end a solution; plain texts have no
      others.
    bos: The name of the tokenizer's first token, for plain texts; None for
      none.

  Raises:
    InputError: There is no such template, or it lacks what was asked for.
  """
  checks.check_choice("policy_template", name, NAMES)
  make = (_CHATS | _TEXTS)[name]
  asked = dict(system=system, thinking=thinking)
  fields = {x: value for x, value in asked.items() if value is not None}
  for field, what in dict(
    system="system turn", thinking="switch for thinking"
  ).items():
    if field in fields and field not in inspect.signature(make).parameters:
      raise errors.InputError(
        f"template {name!r} has no {what}; leave `{field}` out"
      )
  if name in _TEXTS:
    return make(ends, bos=bos)
  return with_ends(make(**fields), ends)


def with_ends(template: PolicyTemplate, more: Sequence[str]) -> PolicyTemplate:
  """Returns a template that further tokens end; its own stay first."""
  ends = tuple(dict.fromkeys((*template.ends, *more)))
  return dataclasses.replace(template, ends=ends)


def _named(name: str) -> templates.TemplatePart:
  return ("control", name)


def _llama_header(
  role: str, text: str = ""
) -> tuple[templates.TemplatePart, ...]:
  return (
    *(_named("<|start_header_id|>"), ("text", role)),
    *(_named("<|end_header_id|>"), ("text", f"\n\n{text}")),
  )


def _llama(name: str, system: str | None) -> PolicyTemplate:
  first: tuple[templates.TemplatePart, ...] = ()
  if system is not None:
    first = (*_llama_header("system", system), _named("<|eot_id|>"))
  opening = (
    *(_named("<|begin_of_text|>"), *first),
    *(*_llama_header("user"), templates.PROBLEM, _named("<|eot_id|>")),
    *_llama_header("assistant"),
  )
  ends = ("<|eot_id|>", "<|end_of_text|>")
  return PolicyTemplate(name, opening, ends, strips=True)
