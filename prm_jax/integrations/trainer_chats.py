"""Prompts and completions, as trainers hand them over, to texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import reprlib
from typing import Any

from prm_jax import errors

# What published chat templates write, and no question holds.
_MARKS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]")


def problem_of(prompt: Any) -> str:
  """Returns the text of a prompt: a str, or the last user turn of a chat.

  Args:
    prompt: A text, or a list of messages with `role` and `content`. A content
      is a text or a list of parts with `text`.

  Returns:
    The text of the question.

  Raises:
    InputError: The chat has no user turn, or the text is a rendered chat.
  """
  if isinstance(prompt, str):
    if mark := next((x for x in _MARKS if x in prompt), ""):
      raise errors.InputError(
        f"a prompt holds {mark!r}, so it is a rendered chat; hand over messages,"
        " or, where an adapter takes problem_of, trainer_chats.between(...)"
      )
    return prompt
  for message in reversed(list(prompt)):
    if field(message, "role") == "user":
      return text_of(message)
  raise errors.InputError(
    "a prompt has no user turn; give a text, or messages with a role and a"
    " content"
  )


def between(start: str, end: str) -> Callable[[str], str]:
  """Returns a function that finds a question in a rendered chat.

  Args:
    start: What the template writes before a user's turn.
    end: What it writes after one.

  Returns:
    A function from a prompt to what stands between the last `start` and the
    `end` that follows.

  Raises:
    InputError: Raised by the function, of a prompt without such a text.
  """

  def find(prompt: str) -> str:
    _, found, rest = prompt.rpartition(start)
    text, closed, _ = rest.partition(end)
    if not found or not closed:
      raise errors.InputError(
        f"a prompt has no text between {start!r} and {end!r}; give what the"
        " policy's chat template writes around a user's turn"
      )
    return text

  return find


def text_of(message: Any) -> str:
  """Returns the text of a message's content.

  Args:
    message: A text, or a message with `content`.

  Returns:
    The text; of several parts, their texts one after the other.

  Raises:
    InputError: The content is neither a text nor a list of parts.
  """
  if isinstance(message, str):
    return message
  content = field(message, "content")
  if content is None or isinstance(content, str):
    return content or ""
  if not isinstance(content, list | tuple):
    raise errors.InputError(
      f"a message's content is {reprlib.repr(content)}; give a text, or a list of"
      " parts with a text"
    )
  return "".join(field(part, "text") or "" for part in content)


def response_of(completion: Any) -> str:
  """Returns the text of a completion: a str, or the assistant's turns of a chat.

  Args:
    completion: A text, or a list of messages with `role` and `content`.

  Returns:
    The text; of several turns, their texts one after the other.
  """
  if isinstance(completion, str):
    return completion
  turns = [x for x in completion if field(x, "role") == "assistant"]
  return "".join(map(text_of, turns))


def field(thing: Any, name: str) -> Any:
  """Returns a field of a mapping or an object.

  Args:
    thing: The mapping, or the object.
    name: The name of the field.

  Returns:
    The field; None if there is none.
  """
  if isinstance(thing, Mapping):
    return thing.get(name)
  return getattr(thing, name, None)
