"""What a chat template writes for conversations, each rendered once."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
from typing import Any, NamedTuple

from prm_jax import schema
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import trial_conversations
from prm_jax.text import conversation_templates
from prm_jax.text import messages as messages_lib

Conversation = trial_conversations.Conversation
# Renderings in one process, which may write so many characters.
_AT_A_TIME = 500


class Way(NamedTuple):
  """How a template wants its variables.

  Args:
    empty: The content of a turn without a text.
    as_text: Whether arguments are given as JSON text.
    arguments: How it writes arguments; see conversation_templates.
  """

  empty: str | None = ""
  as_text: bool = False
  arguments: str = "whole"


def how_asked(chat: chat_templates.Chat) -> tuple[Way, list[str]]:
  """Returns how a template writes a tool call, and the texts in its code.

  If it writes none, the way is the first.
  """
  conversation = trial_conversations.of_marks("UCTA")
  call = conversation.messages[1].calls[0]
  ((key, value),) = call.arguments.items()
  ways = [Way(x, y) for y in (False, True) for x in ("", None)]
  ran = chat.run(*(_variables(chat, conversation, x) for x in ways))
  found = []
  for way, reply in zip(ways, ran["replies"], strict=True):
    written = reply.get("text", "")
    if call.name in written and _arguments(call) in written:
      return way, ran["texts"]
    if 0 < written.find(call.name) < written.find(key) < written.find(value):
      found.append(way._replace(arguments="each"))
  return [*found, Way()][0], ran["texts"]


class Renderings:
  """What a chat template writes.

  Args:
    chat: The chat template.
    way: How its variables are given.
  """

  def __init__(self, chat: chat_templates.Chat, way: Way):
    self.chat, self.way = chat, way
    self._known: dict[str, str | None] = {}  # by the JSON of the variables

  def texts(
    self, conversations: Sequence[Conversation], *, is_begun: bool = False
  ) -> list[str | None]:
    """Returns what is written for conversations; None is an error.

    Args:
      conversations: The conversations.
      is_begun: Whether the beginning of the next turn follows.
    """
    return self.of([(x, is_begun) for x in conversations])

  def of(self, asked: Sequence[tuple[Conversation, bool]]) -> list[str | None]:
    """Returns what is written for conversations, each rendered once.

    Args:
      asked: The conversations, and whether the beginning of the next turn
        follows.
    """
    variables = [
      _variables(self.chat, x, self.way, is_begun=is_begun)
      for x, is_begun in asked
    ]
    keys = [json.dumps(x) for x in variables]
    new = [
      x for x in dict(zip(keys, variables)).items() if x[0] not in self._known
    ]
    for start in range(0, len(new), _AT_A_TIME):
      some = new[start : start + _AT_A_TIME]
      replies = self.chat.render(*(x for _, x in some))
      texts = [reply.get("text") for reply in replies]
      self._known.update(zip([key for key, _ in some], texts, strict=True))
    return [self._known[key] for key in keys]


def _arguments(call: schema.Call) -> str:
  return conversation_templates.json_of(dict(call.arguments))


def _variables(
  chat: chat_templates.Chat,
  conversation: Conversation,
  way: Way,
  *,
  is_begun: bool = False,
) -> dict[str, Any]:
  """Returns the variables of a conversation."""
  return chat.variables(
    [record_of(x, way) for x in conversation.messages],
    tools=conversation.tools,
    is_begun=is_begun,
    thinking=chat.thinking,
  )


def record_of(message: schema.Message, way: Way) -> dict[str, Any]:
  """Returns a message as a user of transformers gives it.

  Args:
    message: The message.
    way: How the template wants it.
  """
  record = messages_lib.record_of(dataclasses.replace(message, record={}))
  if message.role == "assistant" and not message.text:
    record["content"] = way.empty
  if message.thinking is not None:
    # transformers gives it by both names.
    record["thinking"] = message.thinking
  if way.as_text:
    for call in record.get("tool_calls", ()):
      function = call["function"]
      function["arguments"] = conversation_templates.json_of(
        function["arguments"]
      )
  return record
