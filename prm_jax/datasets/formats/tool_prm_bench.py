"""ToolPRMBench: a history, and two actions of which one is right.

arXiv 2601.12294, for evaluation only. A JSON list, or one object per line:

  history          messages of a role and a content, up to the decision
  action_chosen, action_rejected
                   a text (a reply, or a call written as text), a call {"name"
                   or "api_name", "arguments" or "parameters"}, with "function"
                   around it or not, or a list of calls
  functions        the declarations of the tools, or null

No published file was at hand. The form is that of the benchmark's data README
and of programs that read it; what is neither is refused.

Each row becomes two trajectories, the history with each action as its last
turn. That turn is labelled, 1 if it is the chosen one and 0 if not; the turns of
the history aren't. Calls in a history are texts, so a tool's result answers none;
it becomes a user's message, as chat templates such as Qwen's write it. Turns of
a history that follow each other become one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import pathlib
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import files

_FORM = "tool_prm_bench"
# Each action of a row, and the label of its turn.
CHOICES = dict(chosen=1.0, rejected=0.0)
_NAMES = ("history", "action_chosen", "action_rejected", "functions")


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields the two trajectories of every row, the chosen one first.

  ids are "tool_prm_bench/FILE:N/chosen" and ".../rejected". source is the
  subset, which the file's name says (GTA of prmbench_GTA.json). extra has pair,
  the id without its end, choice (chosen or rejected), group, and the rest in
  "fields".
  """
  name = pathlib.Path(path).name.removesuffix(".gz")
  subset = pathlib.Path(name).stem.removeprefix("prmbench_")
  for where, row in record_files.read_records(path):
    history = _history(fields.field(row, where, "history", list), where)
    places = [f"history[{i}]" for i in history]
    pair = fields.row_id(_FORM, path, where)
    num_turns = sum(x["role"] == "assistant" for x in history.values())
    for choice, label in CHOICES.items():
      turn = _turn(row.get(f"action_{choice}"), f"{where}: action_{choice}")
      record = dict(
        id=f"{pair}/{choice}",
        messages=[*history.values(), turn],
        tools=fields.from_text(row, where, "functions"),
        labels=[*[None] * num_turns, label],
        source=subset,
      )
      yield jsonl.trajectory_from_record(
        record,
        where,
        [*places, f"action_{choice}"],
        pair=pair,
        choice=choice,
        **fields.beyond(row, *_NAMES),
      )


def _history(history: list[Any], where: str) -> dict[int, dict[str, Any]]:
  """Returns the messages before the actions, by where each of them begins."""
  messages: dict[int, dict[str, Any]] = {}
  last = -1
  for i, given in enumerate(history):
    at = f"{where}: history[{i}]"
    message = dict(fields.record(given, at))
    if message.get("tool_calls"):
      raise errors.InputError(
        f'{at}: has "tool_calls"; expected calls as text in "content"'
      )
    if fields.field(message, at, "role", str) == "tool":
      message["role"] = "user"
    before = messages.get(last)
    if before and before["role"] == message["role"] == "assistant":
      message = _joined(before, message, at)
    else:
      last = i
    messages[last] = message
  if messages and messages[last]["role"] == "assistant":
    raise errors.InputError(
      f"{where}: the history ends with a turn of the assistant, which the"
      " action would follow; expected a message of a user or a tool before the"
      " action"
    )
  return messages


def _joined(
  first: dict[str, Any], second: dict[str, Any], at: str
) -> dict[str, Any]:
  """Returns a turn of two that follow each other; `at` is the second's place."""
  texts = [fields.field(x, at, "content", str) for x in (first, second)]
  if not all(x.strip() for x in texts):
    raise errors.InputError(
      f"{at}: it or the turn before it is empty; take it out"
    )
  both = first.keys() & second.keys() - {"content"}
  if clash := sorted(x for x in both if first[x] != second[x]):
    raise errors.InputError(
      f"{at}: it and the turn before it differ in {', '.join(clash)}; make them"
      " one turn"
    )
  return first | second | dict(content="\n\n".join(texts))


def _turn(action: Any, at: str) -> dict[str, Any]:
  """Returns the record of the turn that an action is."""
  if isinstance(action, str):
    return dict(role="assistant", content=action)
  calls = action if isinstance(action, list) else [action]
  return dict(
    role="assistant", content="", tool_calls=[_call(x, at) for x in calls]
  )


def _call(action: Any, at: str) -> dict[str, Any]:
  """Returns the record of a call, by any of its names in the benchmark."""
  own = action.get("function", action) if isinstance(action, Mapping) else None
  own = own if isinstance(own, Mapping) else {}
  name = own.get("name", own.get("api_name"))
  arguments = own.get("arguments", own.get("parameters"))
  if not isinstance(name, str) or arguments is None:
    raise errors.InputError(
      f'{at} is {reprlib.repr(action)}; expected a text, or a call {{"name" or'
      ' "api_name", "arguments" or "parameters"}'
    )
  return dict(type="function", function=dict(name=name, arguments=arguments))
