"""Conversations as OpenAI and Hugging Face write them, read and checked once.

  {"role": "user", "content": "..."}
  {"role": "assistant", "content": null, "reasoning_content": "...",
   "tool_calls": [{"id": "...", "function": {"name": ..., "arguments": ...}}]}
  {"role": "tool", "tool_call_id": "...", "content": "..."}

Arguments are an object (Hugging Face) or the JSON text of one (OpenAI). A content
is a text or a list of texts and of parts that hold nothing but a text. Further
fields stay in the record, and come back when it is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import json_text

# Other names of roles that mean the same.
_ROLES: Mapping[str, schema.Role] = dict(
  system="system",
  developer="system",
  user="user",
  assistant="assistant",
  tool="tool",
)
# Roles of other forms, and what they are here.
_OTHER_ROLES = dict(human="user", gpt="assistant", function="tool")
# Where records hold what an assistant thought, the first that isn't empty.
THINKING = ("reasoning_content", "reasoning", "thinking")
# What a turn without a text and a call may say elsewhere.
_ELSEWHERE = (*THINKING, "refusal", "audio")
# The types of a part that is a text, and its fields that no model reads.
_TEXT_TYPES = (None, "text", "input_text", "output_text")
_TEXT_FIELDS = frozenset(
  ("type", "text", "annotations", "citations", "cache_control", "logprobs")
)


class ArgumentsError(errors.InputError):
  """Arguments of a call are a text that isn't the JSON of an object."""


def trajectory(
  messages: Sequence[Mapping[str, Any] | schema.Message],
  *,
  id: str = "0",
  tools: Sequence[Mapping[str, Any]] = (),
  **fields: Any,
) -> schema.Solution:
  """Returns a conversation as a solution whose steps are the assistant's turns.

  Args:
    messages: The conversation, as OpenAI's or Hugging Face's records or as
      Messages.
    id: The name of the solution.
    tools: The declarations of the tools, as JSON has them.
    **fields: Further fields of the solution, such as labels, one per turn.

  Returns:
    The solution. Its problem is that of `problem_of`.

  Raises:
    InputError: The conversation makes no sense; see `read`.
  """
  where = f"solution {id!r}"
  checked = read(messages, where)
  return schema.Solution(
    id=id,
    problem=problem_of(checked),
    steps=tuple(x.shown for x in checked if x.role == "assistant"),
    messages=checked,
    tools=read_tools(tools, where),
    **fields,
  )


def problem_of(messages: Iterable[schema.Message]) -> str:
  """Returns what users say first: before the first turn, or after a greeting.

  Args:
    messages: The conversation.

  Returns:
    The texts, with blank lines between; without a user, the system's.
  """
  told: list[str] = []
  said: list[str] = []
  for message in messages:
    if message.role == "assistant" and said:
      break
    if message.role == "system":
      told.append(message.text)
    if message.role == "user":
      said.append(message.text)
  return "\n\n".join(said or told)


def heard(solution: schema.Solution) -> list[str]:
  """Returns what a model may read of a trajectory, but for its problem.

  Ids of calls are their numbers, since programs make them up.

  Args:
    solution: A trajectory, or a solution without messages.

  Returns:
    The tools as JSON, and each message; nothing without messages.
  """
  if solution.messages is None:
    return []
  texts = [_json(list(solution.tools))]
  numbers: dict[str | None, int] = {}
  for x in solution.messages:
    if x.role == "assistant":
      numbers = {call.id: i for i, call in enumerate(x.calls)}
    calls = [(call.name, call.arguments) for call in x.calls]
    answered = numbers.get(x.answers)
    texts.append(_json((x.role, x.text, x.thinking, calls, answered)))
  return texts


def _json(value: Any) -> str:
  return json.dumps(value, default=dict)


def counts(solution: schema.Solution) -> Counter[str]:
  """Returns how many trajectories, messages of each role and calls there are.

  Args:
    solution: A trajectory, or a solution without messages, which has none.

  Returns:
    The counts, of "trajectories", each role and "calls".
  """
  if solution.messages is None:
    return Counter()
  found = Counter[str](x.role for x in solution.messages)
  found["trajectories"] = 1
  found["calls"] = sum(len(x.calls) for x in solution.messages)
  return found


def counts_text(found: Mapping[str, int]) -> str:
  """Returns the sum of `counts` of some solutions, as words.

  Args:
    found: The counts.

  Returns:
    One line.
  """
  return (
    f"{found['trajectories']:,} trajectories: {found['assistant']:,} turns with"
    f" {found['calls']:,} calls; context: {found['tool']:,} results,"
    f" {found['user']:,} messages of users, {found['system']:,} of the system"
  )


# --- Records to messages -----------------------------------------------------


def read(messages: Any, where: str) -> tuple[schema.Message, ...]:
  """Returns the messages of a conversation.

  Args:
    messages: The records, or messages, which are checked together.
    where: What they are of, for errors.

  Returns:
    A message for each record.

  Raises:
    InputError: A record isn't a message, a turn is empty or follows another
      one, or a tool call and its result don't belong together.
  """
  if isinstance(messages, str) or not isinstance(messages, Sequence):
    raise errors.InputError(
      f"{where}: messages is {reprlib.repr(messages)}; give a list of objects"
      " with a role and a content"
    )
  read_ = tuple(
    _checked(x, f"{where}: messages[{i}]")
    if isinstance(x, schema.Message)
    else _message(x, f"{where}: messages[{i}]")
    for i, x in enumerate(messages)
  )
  _check_order(read_, where)
  return read_


def read_tools(tools: Any, where: str) -> tuple[Mapping[str, Any], ...]:
  """Returns declarations of tools.

  Args:
    tools: A list of objects; None is an empty one.
    where: What they are of, for errors.

  Returns:
    The declarations.

  Raises:
    InputError: It isn't a list of objects.
  """
  if tools is None:
    return ()
  if not isinstance(tools, list | tuple) or not all(
    isinstance(x, Mapping) for x in tools
  ):
    raise errors.InputError(
      f"{where}: tools is {reprlib.repr(tools)}; give a list of objects, each"
      " the declaration of a tool"
    )
  checked = []
  for i, tool in enumerate(tools):
    known, reason = _as_json(tool)
    if known is None or not isinstance(known.get("function", {}), dict):
      raise errors.InputError(
        f"{where}: tools[{i}] is {reprlib.repr(tool)}, which isn't the JSON of a"
        f" declaration{reason}; give an object whose function is one"
      )
    checked.append(known)
  return tuple(checked)


def record_of(message: schema.Message) -> dict[str, Any]:
  """Returns the record of a message.

  Args:
    message: The message.

  Returns:
    The record that it was read from; without one, a record in Hugging Face's
    form.
  """
  return dict(message.record) if message.record else _written(message)


def _written(message: schema.Message) -> dict[str, Any]:
  """Returns the record of a message's fields, in Hugging Face's form."""
  record: dict[str, Any] = dict(role=message.role, content=message.text)
  if message.thinking is not None:
    record[THINKING[0]] = message.thinking
  if message.calls:
    record["tool_calls"] = [
      dict(
        **({} if x.id is None else dict(id=x.id)),
        type="function",
        function=dict(name=x.name, arguments=dict(x.arguments)),
      )
      for x in message.calls
    ]
  if message.answers is not None:
    record["tool_call_id"] = message.answers
  return record


def _checked(message: schema.Message, where: str) -> schema.Message:
  """Returns a message as its fields say, with its record; refuses bad fields."""
  if not isinstance(message.text, str):
    raise errors.InputError(
      f"{where}: text is {reprlib.repr(message.text)}; expected a text"
    )
  calls = message.calls
  if not isinstance(calls, list | tuple) or not all(
    isinstance(x, schema.Call) and isinstance(x.arguments, Mapping)
    for x in calls
  ):
    raise errors.InputError(
      f"{where}: calls is {reprlib.repr(calls)}; expected Calls whose arguments"
      " are objects"
    )
  read_ = _message(_written(message), where)
  return dataclasses.replace(read_, record=message.record)


def _message(record: Any, where: str) -> schema.Message:
  if not isinstance(record, Mapping):
    raise errors.InputError(
      f"{where} is {reprlib.repr(record)}; give an object with a role and a"
      " content"
    )
  given = str(record.get("role"))
  role = _ROLES.get(given)
  if role is None:
    other = _OTHER_ROLES.get(given)
    raise errors.InputError(
      f"{where}: role is {reprlib.repr(record.get('role'))}; expected one of"
      f" {', '.join(_ROLES)}" + f"; write {other}" * (other is not None)
    )
  if record.get("function_call") is not None:
    raise errors.InputError(
      f"{where}: function_call is {reprlib.repr(record['function_call'])};"
      " write it as tool_calls, and its result with role tool"
    )
  thoughts = [record[x] for x in THINKING if record.get(x) is not None]
  for thought in thoughts:
    if not isinstance(thought, str):
      raise errors.InputError(
        f"{where}: thinking is {reprlib.repr(thought)}; expected a text"
      )
  thinking = next(filter(None, thoughts), thoughts[0] if thoughts else None)
  answers = record.get("tool_call_id")
  if answers is not None and not isinstance(answers, str):
    raise errors.InputError(
      f"{where}: tool_call_id is {reprlib.repr(answers)}; expected a text"
    )
  calls = record.get("tool_calls")
  calls = () if calls is None else calls
  if not isinstance(calls, list | tuple) or (calls and role != "assistant"):
    raise errors.InputError(
      f"{where}: tool_calls is {reprlib.repr(calls)}; expected a list, in an"
      " assistant's message"
    )
  return schema.Message(
    role=role,
    text=_text(record.get("content"), where),
    thinking=thinking if role == "assistant" else None,
    calls=tuple(
      _call(x, f"{where}: tool_calls[{i}]") for i, x in enumerate(calls)
    ),
    answers=answers if role == "tool" else None,
    record=record,
  )


def _text(content: Any, where: str) -> str:
  """Returns the text of a content: a text, nothing, or a list of parts."""
  if content is None or isinstance(content, str):
    return content or ""
  if not isinstance(content, list | tuple):
    raise errors.InputError(
      f"{where}: content is {reprlib.repr(content)}; expected a text or a list"
      " of parts"
    )
  for i, part in enumerate(content):
    if not isinstance(part, str) and not _is_text(part):
      raise errors.InputError(
        f"{where}: content[{i}] is {reprlib.repr(part)}; expected a text or a"
        ' part {"type": "text", "text": ...}, since no other content is read'
      )
  return "".join(x if isinstance(x, str) else x["text"] for x in content)


def _is_text(part: Any) -> bool:
  """Returns whether a part of a content holds a text, and nothing else."""
  return (
    isinstance(part, Mapping)
    and isinstance(part.get("text"), str)
    and part.get("type") in _TEXT_TYPES
    and all(x is None for k, x in part.items() if k not in _TEXT_FIELDS)
  )


def _call(record: Any, where: str) -> schema.Call:
  """Returns a tool call; `function` may be around its name and arguments."""
  function = record.get("function") if isinstance(record, Mapping) else None
  own = function if isinstance(function, Mapping) else record
  name = own.get("name") if isinstance(own, Mapping) else None
  if not isinstance(name, str) or not name:
    raise errors.InputError(
      f"{where} is {reprlib.repr(record)}; expected an object with a function,"
      " which has a name and arguments"
    )
  if json.dumps(name, ensure_ascii=False) != f'"{name}"':
    raise errors.InputError(
      f"{where}: the name {reprlib.repr(name)} holds characters that JSON"
      " escapes; no tool has such a name"
    )
  call_id = record.get("id")
  if call_id is not None and not isinstance(call_id, str):
    raise errors.InputError(
      f"{where}: id is {reprlib.repr(call_id)}; expected a text"
    )
  return schema.Call(name, _arguments(own.get("arguments"), where), call_id)


def _as_json(value: Any) -> tuple[Any, str]:
  """Returns a value as JSON reads it; None and why if it can't be JSON."""
  try:
    return json_text.parse(json.dumps(value, allow_nan=False)), ""
  except json_text.JSONTextError as e:
    return None, f" ({e.reason})"
  except (TypeError, ValueError, RecursionError) as e:
    return None, f" ({e})"


def _arguments(given: Any, where: str) -> Mapping[str, Any]:
  """Returns arguments: an object, or the JSON text of one."""
  arguments, reason = given, ""
  if isinstance(given, str):
    try:
      arguments = json_text.parse(given)
    except json_text.JSONTextError as e:
      reason = f" ({e.reason})"
  if isinstance(arguments, Mapping):
    arguments, reason = _as_json(arguments)
  if not isinstance(arguments, Mapping):
    error = ArgumentsError if isinstance(given, str) else errors.InputError
    raise error(
      f"{where}: arguments is {reprlib.repr(given)}, which isn't the JSON of an"
      f" object{reason}; give one, {{}} for a call without arguments"
    )
  return arguments


# --- What follows what -------------------------------------------------------


def _check_order(messages: Sequence[schema.Message], where: str) -> None:
  """Refuses a conversation in which turns, calls and results don't match."""
  # By id, or by number if a call has none, in order.
  open_calls: dict[str | int, schema.Call] = {}
  before: schema.Role | None = None
  for i, message in enumerate(messages):
    at = f"{where}: messages[{i}]"
    if message.role == "tool":
      del open_calls[_answered(message, open_calls, at)]
    elif open_calls:
      raise errors.InputError(
        f"{at} is of role {message.role}, but the call of"
        f" {next(iter(open_calls.values())).name!r} before it has no result;"
        " give a tool's message for each call first"
      )
    if message.role == "assistant":
      if before == "assistant":
        raise errors.InputError(
          f"{at}: two assistant messages in a row; make them one, or give what"
          " is between them"
        )
      if not message.text.strip() and not message.calls:
        record = record_of(message)
        there = ", ".join(x for x in _ELSEWHERE if record.get(x))
        fix = f"it has {there}, so give a content, or " if there else ""
        raise errors.InputError(
          f"{at}: an empty turn, without a text and a tool call; {fix}take it out"
        )
      open_calls = {
        k if x.id is None else x.id: x for k, x in enumerate(message.calls)
      }
      if len(open_calls) < len(message.calls):
        raise errors.InputError(
          f"{at}: two tool calls have one id; give each its own"
        )
    before = message.role


def _answered(
  message: schema.Message, open_calls: Mapping[str | int, schema.Call], at: str
) -> str | int:
  """Returns the key of the call that a tool's message answers."""
  if not open_calls:
    raise errors.InputError(
      f"{at}: a tool's result without a tool call before it; take it out, or"
      " give the call"
    )
  if message.answers is not None and message.answers in open_calls:
    return message.answers
  for key in open_calls:
    if message.answers is None or isinstance(key, int):
      return key
  ids = ", ".join(map(reprlib.repr, open_calls))
  raise errors.InputError(
    f"{at}: tool_call_id is {reprlib.repr(message.answers)}, but the calls"
    f" without a result are {ids}; give the id of one"
  )
