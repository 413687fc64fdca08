"""How a published model reads a whole conversation, as data.

A chat template is a program. What it writes for conversations is kept as what
stands between two texts of them that follow each other: between a user's text
and a turn's, between a tool's name and its arguments, between two results. These
texts are the slots:

  system, user, assistant     what is said
  remark                      what an assistant says beside tool calls
  thinking                    what it thought before
  call, arguments, call_id    a tool call; of some templates key and value of
                              each argument
  result, result_id           a tool's result, and the id of its call
  tool                        the declaration of a tool

What is between them may depend on where a message stands (PLACES), which is then
a part of the slot's name: `assistant:late:last`. The texts between hold the
marks of text.templates: `step`, where a turn's own text begins, and `read`, after
the token that ends it. So the places at which turns are read follow from data,
and no text of a user, a tool or a model moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
from typing import Any, NamedTuple

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

START, END = "start", "end"
# Where a message may stand: no user's message follows it, no message follows it,
# the conversation has tools, or a thought comes before it.
PLACES = ("late", "last", "tools", "thought")
THINK = ("<think>", "</think>")
TOOLS_AT = ("first", "last", "start")
ARGUMENTS = ("whole", "each", "each_as_text")
BLANK = ("none", "refused")
# Slots that a template may leave out: ids, which tell a reader nothing.
OPTIONAL = ("call_id", "result_id", "thinking")
NAMES = dict(
  system="a system message",
  user="a user's message",
  assistant="a turn of text alone",
  remark="a text beside a tool call",
  thinking="a turn's thinking",
  call="a tool call",
  arguments="a tool call's arguments",
  key="a tool call's argument",
  value="a tool call's argument",
  call_id="a tool call's id",
  result="a tool's result",
  result_id="the id of a tool's result",
  tool="a declaration of a tool",
  start="the beginning",
  end="the end",
)

FORMS: Mapping[str, Callable[[str], str]] = dict(
  as_it_is=lambda x: x,
  stripped=str.strip,
  without_lines_around=lambda x: x.strip("\n"),
  without_lines_before=lambda x: x.lstrip("\n"),
  without_lines_after=lambda x: x.rstrip("\n"),
  stripped_before=str.lstrip,
  stripped_after=str.rstrip,
  in_json=lambda x: json_of(x)[1:-1],
)


def json_of(value: Any, indent: int | None = None) -> str:
  """Returns JSON as chat templates' `tojson` writes it."""
  return json.dumps(value, ensure_ascii=False, indent=indent)


def _with_plain_texts(tool: Mapping[str, Any]) -> str:
  """Returns a tool as Mistral's template has it: texts aren't escaped."""
  if "function" not in tool:
    raise errors.InputError(
      "a tool's declaration has no `function`, and this model's chat template"
      " writes nothing else of it; put name, description and parameters there"
    )
  fields = (
    f'"{key}": "{value}"'
    if isinstance(value, str)
    else f'"{key}": {json_of(value)}'
    for key, value in tool["function"].items()
    if key != "return"
  )
  return f'{{"type": "function", "function": {{{", ".join(fields)}}}}}'


TOOL_FORMS: Mapping[str, Callable[[Mapping[str, Any]], str]] = dict(
  json=lambda x: json_of(dict(x)),
  json_2=lambda x: json_of(dict(x), 2),
  json_4=lambda x: json_of(dict(x), 4),
  function=lambda x: json_of(dict(x.get("function", x))),
  function_2=lambda x: json_of(dict(x.get("function", x)), 2),
  function_4=lambda x: json_of(dict(x.get("function", x)), 4),
  plain_texts=_with_plain_texts,
)


class Between(NamedTuple):
  """What stands between two slots that follow each other.

  Args:
    before: The name of the slot before, or START.
    after: The name of the slot after, or END.
    parts: What is written between, with the marks.
  """

  before: str
  after: str
  parts: tuple[templates.TemplatePart, ...]


class Refused(NamedTuple):
  """A text that a template doesn't write as it is.

  Args:
    kind: The slot.
    word: What the text holds.
    other: What it holds too; "" is nothing.
  """

  kind: str
  word: str
  other: str


@dataclasses.dataclass(frozen=True)
class ConversationTemplate:
  """How a model reads a whole conversation.

  Args:
    between: What stands between any two slots that may follow each other.
    forms: How the texts of slots are written, as (name, one of FORMS); a slot
      that isn't there is written as it is.
    places: The places that the slots' names have, of PLACES.
    left_out: The names of slots that aren't written. A thought is left out
      where the template does so; other conversations with one are refused.
    tool_form: How the declaration of a tool is written, one of TOOL_FORMS.
    tools_at: Before what the tools are, one of TOOLS_AT: the first message that
      is no system's, the last user's, or all.
    arguments: How arguments are written, one of ARGUMENTS: as JSON of the whole,
      or one by one, a text as it is and other values in JSON, or of these
      numbers and constants as Python writes them.
    splits_thinking: Whether a text that begins with a block of THINK is a
      thought and what follows it.
    refuses: What the texts of slots may not hold.
    blank: What becomes of a text of white space alone, as (kind, one of BLANK):
      it is none, or refused; a kind that isn't there writes it as any other.
    id_length: The length that ids of calls must have; 0 is any.
  """

  between: tuple[Between, ...]
  forms: tuple[tuple[str, str], ...] = ()
  places: tuple[str, ...] = ()
  left_out: tuple[str, ...] = ()
  tool_form: str = "json"
  tools_at: str = "first"
  arguments: str = "whole"
  splits_thinking: bool = False
  refuses: tuple[Refused, ...] = ()
  blank: tuple[tuple[str, str], ...] = ()
  id_length: int = 0


def from_record(record: Mapping[str, Any]) -> ConversationTemplate:
  """Returns the template that JSON holds; raises TypeError or ValueError."""
  fields = dict(record)
  fields["between"] = tuple(
    Between(str(a), str(b), tuple((str(k), str(x)) for k, x in parts))
    for a, b, parts in record["between"]
  )
  for name in ("forms", "refuses", "blank"):
    rows = [tuple(map(str, row)) for row in record.get(name, ())]
    fields[name] = tuple(
      Refused(*row) if name == "refuses" else row for row in rows
    )
  for name in ("places", "left_out"):
    fields[name] = tuple(map(str, record.get(name, ())))
  return ConversationTemplate(**fields)


class Slot(NamedTuple):
  """A text of a conversation.

  Args:
    kind: What it is.
    name: The kind, with the places that matter.
    text: What is written.
    message: The index of its message, or of the message after a tool.
    turn: The turn, from 0, that it is of; -1 for context.
    start: Where a turn's text begins in the message's, in characters.
  """

  kind: str
  name: str
  text: str
  message: int
  turn: int = -1
  start: int = 0


@functools.lru_cache(maxsize=64)
def _tables(
  template: ConversationTemplate,
) -> tuple[dict[tuple[str, str], Between], dict[str, Callable[[str], str]]]:
  by_pair = {(x.before, x.after): x for x in template.between}
  return by_pair, {name: FORMS[form] for name, form in template.forms}


def split_thinking(text: str) -> tuple[str | None, str]:
  """Returns the thought that a text begins with, and what follows it.

  Raises:
    InputError: There are further marks of thinking, or white space but line
      breaks beside them, with which templates deal in several ways.
  """
  opening, closing = THINK
  begun = text.lstrip("\n")
  thought, found, rest = begun.partition(closing)
  if not found or not thought.startswith(opening):
    return None, text
  thought, rest = thought.removeprefix(opening).strip("\n"), rest.lstrip("\n")
  if thought != thought.strip() or rest != rest.lstrip():
    raise errors.InputError(
      f"a turn has white space but line breaks beside {opening!r} or"
      f" {closing!r}; take it out, or give the thought as reasoning_content"
    )
  if any(x in y for x in THINK for y in (thought, rest)):
    raise errors.InputError(
      f"a turn holds {opening!r} or {closing!r} more than once; give the thought"
      " as reasoning_content"
    )
  return thought or None, rest


def slots(
  template: ConversationTemplate,
  messages: Sequence[schema.Message],
  tools: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Slot]:
  """Yields the slots of a conversation that are written, in order.

  Raises:
    InputError: The template leaves out a text that is no thought, or doesn't
      write it as it is.
  """
  _, forms = _tables(template)
  users = [i for i, x in enumerate(messages) if x.role == "user"]
  at_tools = _place_of_tools(template.tools_at, messages, users)
  said = [messages[i].text for i in users]
  if tools and template.tools_at == "last" and {*said[-1:]} & {*said[:-1]}:
    # Mistral's template finds the last by its text.
    raise _not_written("tools where a user says the same twice")
  turn = -1
  for i, message in enumerate(messages):
    texts = list(_texts(template, message))
    stands = dict(
      late=i >= max(users, default=-1),
      last=i == len(messages) - 1,
      tools=bool(tools),
      thought=any(kind == "thinking" for kind, _, _ in texts),
    )
    suffix = "".join(f":{x}" for x in template.places if stands[x])
    if tools and i == at_tools:
      write = TOOL_FORMS[template.tool_form]
      texts = [*(("tool", write(tool), 0) for tool in tools), *texts]
    turn += message.role == "assistant"
    for kind, text, start in texts:
      name = f"{kind}{suffix}"
      if name in template.left_out:
        if kind not in OPTIONAL:
          raise _not_written(NAMES[kind])
        continue
      _check_words(template, kind, text)
      form = forms.get(name)
      own = turn if message.role == "assistant" else -1
      yield Slot(kind, name, form(text) if form else text, i, own, start)
  if tools and at_tools < 0:
    raise _not_written("tools without a message")


def _place_of_tools(
  where: str, messages: Sequence[schema.Message], users: Sequence[int]
) -> int:
  """Returns the index of the message before which the tools are; -1 is none."""
  if where == "last":
    return users[-1] if users else -1
  first = where == "start"
  found = (i for i, x in enumerate(messages) if first or x.role != "system")
  return next(found, -1)


def _texts(
  template: ConversationTemplate, message: schema.Message
) -> Iterator[tuple[str, str, int]]:
  """Yields the slots of a message, their texts, and where these begin in its own."""
  if message.role == "tool":
    yield "result", message.text, 0
    if message.answers is not None:
      yield "result_id", message.answers, 0
    return
  if message.role != "assistant":
    if _is_said(template, message.role, message.text):
      yield message.role, message.text, 0
    return
  thinking, text = message.thinking, message.text
  if template.splits_thinking and thinking is None:
    thinking, text = split_thinking(text)
  if thinking and _is_said(template, "thinking", thinking):
    yield "thinking", thinking, 0
  start = len(message.text) - len(text)
  if not message.calls:
    yield "assistant", text, start
  elif text and _is_said(template, "remark", text):
    yield "remark", text, start
  for call in message.calls:
    yield "call", call.name, 0
    if template.arguments != "whole":
      for key, value in call.arguments.items():
        yield "key", key, 0
        yield "value", _value(value, template.arguments), 0
    else:
      yield "arguments", json_of(dict(call.arguments)), 0
    if template.id_length not in (0, len(call.id or "")):
      raise errors.InputError(
        f"the model's chat template wants ids of {template.id_length} letters"
        f" for tool calls, found {call.id!r}; give others"
      )
    if call.id is not None:
      yield "call_id", call.id, 0


def _is_said(template: ConversationTemplate, kind: str, text: str) -> bool:
  """Returns whether a text is written; one of white space alone may not be."""
  what = "" if text.strip() else dict(template.blank).get(kind, "")
  if what == "refused":
    raise errors.InputError(
      f"{NAMES[kind]} is white space alone, with which the model's chat template"
      " deals in its own way; take it out"
    )
  return what != "none"


def _value(value: Any, how: str) -> str:
  is_text = how == "each_as_text" and not isinstance(value, Mapping | list)
  return str(value) if is_text or isinstance(value, str) else json_of(value)


def _check_words(template: ConversationTemplate, kind: str, text: str) -> None:
  for refused in template.refuses:
    if refused.kind == kind and refused.word in text and refused.other in text:
      raise errors.InputError(
        f"{NAMES[kind]} holds {refused.word!r}, and the model's chat template"
        " doesn't write such a text as it stands; take it out"
      )


def _not_written(what: str) -> errors.InputError:
  return errors.InputError(
    f"the model's chat template doesn't write {what}, or not in a way that is"
    " known, so the model can't read this conversation; change it, or use a"
    " model whose template writes it"
  )


def parts_of(
  template: ConversationTemplate,
  messages: Sequence[schema.Message],
  tools: Sequence[Mapping[str, Any]] = (),
  ends: Mapping[int, Sequence[int]] | None = None,
) -> list[templates.TemplatePart]:
  """Returns what is written for a conversation.

  Args:
    template: The template.
    messages: The conversation.
    tools: The declarations of its tools.
    ends: Where the steps of a turn but its last end in its message's text, in
      characters, by turn.

  Returns:
    Parts with `text`, `control`, and a `step` and `read` for each turn; a `read`
    for each further end.

  Raises:
    InputError: The template doesn't write the conversation.
  """
  by_pair, _ = _tables(template)
  parts: list[templates.TemplatePart] = []
  before = START

  def go_on(after: str) -> None:
    between = by_pair.get((before, after))
    if between is None:
      raise _not_written(
        f"{named(after)} after {named(before)}"
        if before != START
        else f"{named(after)} at the beginning"
      )
    parts.extend(between.parts)

  for slot in slots(template, messages, tools):
    go_on(slot.name)
    before = slot.name
    cuts = (ends or {}).get(slot.turn, ())
    if slot.kind in ("assistant", "remark") and cuts:
      parts += _cut(slot, messages, cuts)
    else:
      parts.append(("text", slot.text))
  go_on(END)
  return parts


def named(name: str) -> str:
  return NAMES[name.partition(":")[0]]


def _cut(
  slot: Slot, messages: Sequence[schema.Message], ends: Sequence[int]
) -> Iterator[templates.TemplatePart]:
  """Yields a turn's text with a read at the end of each step but the last."""
  turns = [x for x in messages if x.role == "assistant"]
  given = turns[slot.turn].text[slot.start :]
  shift = slot.start + max(given.find(slot.text), 0)
  last = 0
  for end in ends:
    if not last < end - shift <= len(slot.text):
      raise errors.InputError(
        f"turn {slot.turn} (from 0): a step of it ends in a text that the"
        " model's chat template doesn't write; leave the turn whole"
      )
    yield "text", slot.text[last : end - shift]
    yield templates.READ
    last = end - shift
  yield "text", slot.text[last:]


def encode(
  template: ConversationTemplate,
  name: str,
  trajectory: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
) -> templates.Written:
  """Returns a conversation's ids, and where its turns are read.

  A turn is read at the token that ends it; a step within a turn at the last
  token that begins before its end.

  Args:
    template: The template.
    name: The name of the model's template, for messages.
    trajectory: A solution with messages.
    tokenizer: The tokenizer.

  Raises:
    InputError: The template doesn't write the conversation, or the tokenizer
      lacks a control token of the template, or has no token to read a step at.
  """
  messages = trajectory.messages or ()
  parts = parts_of(
    template, messages, trajectory.tools, _inner_ends(trajectory)
  )
  ids, after, starts = templates.write_parts(name, parts, tokenizer)
  reads = [n - 1 for n in after]
  turns = schema.turns_of(trajectory)
  assert len(reads) == len(turns) and len(starts) == len({*turns})
  lasts = [
    read
    for read, turn, later in zip(reads, turns, (*turns[1:], -1))
    if turn != later
  ]
  for k, (before, read) in enumerate(zip((-1, *reads), reads)):
    if read <= before or read < starts[turns[k]]:
      raise errors.InputError(
        f"template {name!r}: this tokenizer has no token of its own at which"
        f" step {k} (from 0) ends; leave the turn whole"
      )
  return templates.Written(
    np.asarray(ids, np.int32),
    np.asarray(reads, np.int32),
    starts[0] if starts else len(ids),
    tuple((start, last + 1) for start, last in zip(starts, lasts, strict=True)),
  )


def _inner_ends(trajectory: schema.Solution) -> dict[int, list[int]]:
  """Returns where the steps of turns but their last end, in characters."""
  ends: dict[int, list[int]] = {}
  if trajectory.spans is None:
    return ends
  places = schema.turn_spans(trajectory.messages or ())
  turns = schema.turns_of(trajectory)
  for (_, end), turn, later in zip(trajectory.spans, turns, (*turns[1:], -1)):
    if turn == later:
      ends.setdefault(turn, []).append(end - places[turn][0])
  return ends


def without_thinking(
  template: ConversationTemplate, trajectory: schema.Solution
) -> tuple[bool, ...]:
  """Returns of which steps the template leaves out what was thought before.

  Args:
    template: The template.
    trajectory: A solution with messages.

  Returns:
    One bool for each step.
  """
  messages = trajectory.messages or ()
  written = {
    x.turn
    for x in slots(template, messages, trajectory.tools)
    if x.kind == "thinking"
  }
  thought = [
    bool(x.thinking)
    or (template.splits_thinking and split_thinking(x.text)[0] is not None)
    for x in messages
    if x.role == "assistant"
  ]
  return tuple(
    thought[turn] and turn not in written
    for turn in schema.turns_of(trajectory)
  )
