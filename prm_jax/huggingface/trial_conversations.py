"""Conversations with which a chat template is tried.

Of marks, texts that no template holds, so that it shows what is written around
them; and with texts as people, models and tools write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import random
from typing import Any, NamedTuple

from prm_jax import schema
from prm_jax.text import trial_texts

Message = schema.Message

# What may follow what: a user, a turn (of text, a call, a call without arguments,
# text and a call, two calls of one argument and none, of none and two), a tool's
# result; t is the first of two results.
_AFTER = dict(
  **dict(U="ACFBDG", A="U", C="T", F="T", B="T", D="t", G="t", t="T"),
  T="ACFBDGU",
)
_NUM_ARGUMENTS = dict(A=(), C=(1,), F=(0,), B=(1,), D=(1, 0), G=(0, 2))
_LONGEST = 4
_LONGER = (
  *("UAUCTA", "UCTAU", "UCTCTA", "UBTAUBTA", "UDtTAUA", "UGtTAUA", "UAUAUA"),
  *(
    "UDtTA",
    "UGtTA",
    "UCTCTAUA",
    "UFTA",
    "UCTUA",
    "UCTFTBTDtTGtTCTA",
    "UBTCTA",
  ),
  *("UCTFTBTDtTGtTCTAUA", "UCTBTAUA", "UDtTUA", "UFTFTAUA", "UBTBTAUA"),
  *("AUA", "AUCTA", "UUA", "UAUUA", "UCTUAUA"),
)
_VALUES: tuple[Any, ...] = (
  7,
  -0.5,
  None,
  True,
  [1, "a"],
  {"b": []},
  'say "x"\n\\n',
  "\u00e9\U0001f600",
)


class Conversation(NamedTuple):
  """A conversation with which a chat template is tried."""

  messages: tuple[Message, ...]
  tools: tuple[Mapping[str, Any], ...] = ()


def of_marks(
  kinds: str,
  *,
  system: bool = False,
  thinks: bool = False,
  tools: bool = False,
  each: bool = False,
) -> Conversation:
  """Returns a conversation whose texts are marks.

  Args:
    kinds: What it is made of; see _AFTER.
    system: Whether it begins with a system message.
    thinks: Whether its turns think.
    tools: Whether it has tools.
    each: Whether calls have other numbers of arguments than one.
  """
  messages = [Message("system", "Zq9s0qZ")] if system else []
  for i, kind in enumerate(kinds):
    if kind == "U":
      messages.append(Message("user", f"Zq{i}u0qZ"))
    elif kind in "tT":
      # Not the call's own id, so that each is found; Mistral's have nine letters.
      messages.append(Message("tool", f"Zq{i}r0qZ", answers=f"Zq{i:02}d00qZ"))
    else:
      messages.append(
        Message(
          "assistant",
          f"Zq{i}a0qZ" if kind in "AB" else "",
          thinking=f"Zq{i}h0qZ" if thinks else None,
          calls=tuple(
            schema.Call(
              f"Zq{i}n{j}qZ",
              {
                f"Zq{i}k{j}{n}qZ": f"Zq{i}v{j}{n}qZ"
                for n in range(num if each else 1)
              },
              f"Zq{i:02}c{j}0qZ",
            )
            for j, num in enumerate(_NUM_ARGUMENTS[kind])
          ),
        )
      )
  return Conversation(tuple(messages), tuple(map(_tool, "01")) if tools else ())


def _tool(name: str) -> dict[str, Any]:
  fields = dict(
    name=f"Zqt{name}qZ",
    description=f'Zqd{name}"qZ',
    parameters=dict(
      type="object", properties={"x": dict(type="string")}, required=["x"]
    ),
  )
  return dict(type="function", function=fields)


def _kinds() -> Iterator[str]:
  """Yields what the conversations are made of, each with a turn."""
  level = ["U"]
  for _ in range(_LONGEST - 1):
    level = [x + y for x in level for y in _AFTER[x[-1]]]
    yield from level
  yield from _LONGER


def marked(each: bool) -> list[Conversation]:
  """Returns the conversations from which a template is learned.

  Args:
    each: Whether arguments are written one by one, so that their number tells.
  """
  all_kinds = [x if each else x.replace("F", "C") for x in _kinds()]
  return [
    of_marks(kinds, thinks=thinks, tools=tools, each=each, system=system)
    for kinds, thinks, tools in itertools.product(
      dict.fromkeys(all_kinds), (False, True), (False, True)
    )
    for system in ((False, True) if len(kinds) < 4 else (False,))
  ]


def _changed(
  conversation: Conversation, change: Callable[[Message], dict[str, Any]]
) -> Conversation:
  """Returns a conversation with some fields of its messages changed."""
  messages = conversation.messages
  return conversation._replace(
    messages=tuple(dataclasses.replace(x, **change(x)) for x in messages)
  )


def with_text(conversation: Conversation, mark: str, form: str) -> Conversation:
  """Returns a conversation with another text in place of a mark."""
  texts = {mark: form.format(mark)}
  return _changed(
    conversation,
    lambda x: dict(
      text=texts.get(x.text, x.text),
      thinking=x.thinking and texts.get(x.thinking, x.thinking),
    ),
  )


def with_ids(conversation: Conversation, call_id: str) -> Conversation:
  """Returns a conversation whose calls and results have an id."""
  return _changed(
    conversation,
    lambda x: dict(
      answers=x.answers and call_id,
      calls=tuple(dataclasses.replace(y, id=call_id) for y in x.calls),
    ),
  )


def with_blocks(opening: str, closing: str) -> list[Conversation]:
  """Returns conversations with a turn whose text begins with a block."""
  user = Message("user", "Zq0u0qZ")
  block = f"{opening}\nZq1h0qZ\n{closing}\n\nZq1a0qZ"
  begun = (user, Message("assistant", block))
  more = (user, Message("assistant", "Zq3a0qZ"))
  return [Conversation(begun), Conversation((*begun, *more))]


_THOUGHT = Message("assistant", "a", thinking="b")


def around(texts: Mapping[str, str]) -> list[Conversation]:
  """Returns conversations that hold the texts of all kinds of slots."""
  call = schema.Call("f", {"x": 1}, "Zq01c00qZ")
  user = Message("user", texts["user"])
  answer = Message("assistant", texts["assistant"])
  thought = dataclasses.replace(answer, thinking=texts["thinking"])
  turns = [
    Message("assistant", remark, calls=(call,))
    for remark in ("", texts["remark"])
  ]
  result = Message("tool", texts["result"], answers=call.id)
  found = [
    (user, answer, user, answer),
    (Message("system", texts["system"]), user, answer),
    (user, thought),
    # Of a text that is no user's to the template, as a tool's result may be, the
    # thought before tells.
    (Message("user", "a"), _THOUGHT, user, Message("assistant", "a")),
    *((user, turn, result, answer) for turn in turns),
  ]
  return list(map(Conversation, found))


def trials(num: int) -> Iterator[Conversation]:
  """Yields conversations with texts as people and tools write them.

  Args:
    num: How many; they are the same every time.
  """
  random_ = random.Random(0)
  texts = [x for x in (*trial_texts.PROBLEMS[:-1], *trial_texts.SOLUTIONS) if x]
  texts += ["a", "", " \n", *trial_texts.IN_SPACE, '{"rows": [[1, "x"]]}']
  for _ in range(num):
    kinds = "U"
    while len(kinds) < random_.randint(2, 9):
      kinds += random_.choice(_AFTER[kinds[-1]])
    made = of_marks(
      kinds,
      system=random_.random() < 0.3,
      thinks=False,
      tools=random_.random() < 0.5,
    )
    share = random_.choice((0, 0, 0.7))
    messages = tuple(
      _trial(x, texts, share, random_) for x in _answered(made.messages)
    )
    tools = tuple(_trial_tool(x, random_) for x in made.tools)
    tools = tools[: random_.randint(1, 2)]
    yield Conversation(messages, tools)


def _answered(messages: Sequence[Message]) -> Iterator[Message]:
  """Yields messages whose results have the ids of the calls before them."""
  ids: list[str | None] = []
  for message in messages:
    ids += [call.id for call in message.calls]
    is_result = message.role == "tool"
    yield (
      dataclasses.replace(message, answers=ids.pop(0)) if is_result else message
    )


def _trial(
  message: Message, texts: Sequence[str], share: float, random_: random.Random
) -> Message:
  """Returns a message that says something else; a share of turns think."""
  text = random_.choice(texts)
  if message.role != "assistant":
    return dataclasses.replace(message, text=text)
  if not message.calls and not text.strip():
    text = "b"
  thinks = random_.random() < share
  return dataclasses.replace(
    message,
    text=text if message.text else "",
    thinking=random_.choice(texts).strip() or "c" if thinks else None,
    calls=tuple(
      dataclasses.replace(x, name="look_up", arguments=_arguments(random_))
      for x in message.calls
    ),
  )


def _arguments(random_: random.Random) -> dict[str, Any]:
  values = random_.sample(_VALUES, random_.randint(0, 3))
  return {f"x{i}": value for i, value in enumerate(values)}


def _trial_tool(
  tool: Mapping[str, Any], random_: random.Random
) -> Mapping[str, Any]:
  said = ("Looks up a row.", 'Looks up "x" & y,\nor \u00e9.', "")
  return dict(
    tool, function=dict(tool["function"], description=random_.choice(said))
  )
