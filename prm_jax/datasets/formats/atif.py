"""ATIF: Harbor's trajectories of agents, versions 1.0 to 1.7.

A .json file holds one document or a list of them, a .jsonl file one per line:
{"schema_version", "agent", "steps", ...}, where a step has a source:

  agent   a turn: message, reasoning_content (its thinking) and tool_calls. Each
    result of its observation is a tool's message; one that answers no call (a
    terminal's output after a command in the text) is a user's message, after
    those. A result without an id answers the first call that none names.
  user, system   a message; the results of its observation are messages of the
    same role.

So everything but the agent's steps is context. Every field comes back as it
was: those of a step, a call or a result are in "atif" of the message's record,
those of the document in extra["fields"]. Some of them change nothing: a copied
step (is_copied_context) and one without a model's call (llm_call_count 0) are
turns like any other, what came before a compaction (context_management) stays,
and the text of a subagent's trajectory isn't read. Images are refused, and so
are two agent's steps without an observation between them.

Labels have no place in ATIF; they are in the step's extra, {"prm_jax":
{"label" or "rating": ...}}, and outcome and answer in the document's. Other
names there are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
import dataclasses
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import files

_VERSION = "ATIF-v1.7"
_KNOWN = re.compile(r"ATIF-v1\.[0-7]")
_ROLES = dict(agent="assistant", user="user", system="system")
_SOURCES = {role: source for source, role in _ROLES.items()}
# Where the record of a message has what only ATIF says, and where ATIF has
# what only we say.
_REST, _OURS = "atif", "prm_jax"
_PER_STEP = dict(label="labels", rating="ratings")
_OF_DOCUMENT = ("answer", "outcome")


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields every document; source is the agent's name.

  An id is the trajectory_id, or "atif/FILE:N".
  """
  seen: dict[str, str] = {}
  for where, document in record_files.read_records(path):
    solution = _trajectory(document, where, path)
    fields.unique_id(seen, solution.id, where, "trajectory_id")
    yield solution


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _document(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all documents or none; returns their number.

  A path that ends in .json becomes one document, or a list of several; any
  other one JSON Lines. A solution of another form gets its source as the name
  of an agent, and its further fields are in the document's extra. What only
  another form says of a message is gone.

  Raises:
    InputError: A solution is no trajectory, its turns are cut into steps, or a
      tool call has no id.
  """
  documents = map(_document, solutions)
  if str(path).removesuffix(".gz").endswith(".json"):
    every = list(documents)
    files.write_json(path, every[0] if len(every) == 1 else every)
    return len(every)
  return files.write_records(path, documents)


# --- Documents to trajectories -----------------------------------------------


def _trajectory(
  document: Mapping[str, Any], where: str, path: files.PathLike
) -> schema.Solution:
  version = fields.field(document, where, "schema_version", str)
  if not _KNOWN.fullmatch(version):
    raise errors.InputError(
      f'{where}: "schema_version" is {reprlib.repr(version)}; expected'
      f" ATIF-v1.0 to {_VERSION}"
    )
  steps = fields.field(document, where, "steps", list)
  if not steps:
    raise errors.InputError(f'{where}: "steps" is empty; give one step or more')
  messages: list[dict[str, Any]] = []
  places: list[str] = []
  ours: list[Mapping[str, Any]] = []
  for i, step in enumerate(steps):
    at = f"{where}: steps[{i}]"
    own = _messages(fields.record(step, at), at, ours)
    first = steps[0].get("step_id")
    if first not in (0, 1) or step.get("step_id") != first + i:
      raise errors.InputError(
        f'{at}: "step_id" is {reprlib.repr(step.get("step_id"))}; count the'
        " steps from 1, or from 0, in their order"
      )
    messages += own.values()
    places += [f"steps[{i}]{place}" for place in own]
  rest = {k: x for k, x in document.items() if k != "steps"}
  agent = dict(fields.field(document, where, "agent", dict))
  tools = agent.get("tool_definitions")
  if tools:
    rest["agent"] = {k: x for k, x in agent.items() if k != "tool_definitions"}
  told = _taken(rest, where, _OF_DOCUMENT)
  name = fields.field(document, where, "trajectory_id", str, default=None)
  if name is not None:
    del rest["trajectory_id"]
  record = dict(
    id=fields.row_id("atif", path, where) if name is None else name,
    messages=messages,
    tools=tools,
    source=fields.field(agent, f"{where}: agent", "name", str),
    **{k: told.get(k) for k in _OF_DOCUMENT},
  )
  for one, many in _PER_STEP.items():
    values = [x.get(one) for x in ours]
    record[many] = None if values == [None] * len(values) else values
  try:
    return jsonl.trajectory_from_record(record, where, places, fields=rest)
  except errors.InputError as e:
    told_so = str(e).replace("]: tool_call_id", "]: source_call_id")
    raise errors.InputError(told_so) from None


def _messages(
  step: Mapping[str, Any], at: str, ours: list[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
  """Returns the records of a step's messages, by their places in the step.

  Results of calls come first. `ours` gets the labels of a turn.
  """
  source = fields.field(step, at, "source", str)
  if source not in _ROLES:
    raise errors.InputError(
      f'{at}: "source" is {reprlib.repr(source)}; expected one of'
      f" {', '.join(_ROLES)}"
    )
  role, rest = _ROLES[source], dict(step)
  del rest["source"]
  record = dict(role=role, content=fields.field(rest, at, "message", str, list))
  del rest["message"]
  told = _taken(rest, at, _PER_STEP if role == "assistant" else ())
  if role == "assistant":
    ours.append(told)
    if rest.get("reasoning_content"):
      record["reasoning_content"] = rest.pop("reasoning_content")
  calls = fields.field(step, at, "tool_calls", list, default=[])
  if calls:
    record["tool_calls"] = [
      _call(x, f"{at}.tool_calls[{k}]") for k, x in enumerate(calls)
    ]
    del rest["tool_calls"]
  observation = fields.field(step, at, "observation", dict, default={})
  results = fields.field(
    observation, f"{at}.observation", "results", list, default=[]
  )
  if results:
    del rest["observation"]
    if more := {k: x for k, x in observation.items() if k != "results"}:
      rest["observation"] = more
  record[_REST] = rest
  num_due = len(calls) - sum(
    isinstance(x, dict) and x.get("source_call_id") is not None for x in results
  )
  answers, others = {"": record}, {}
  for k, result in enumerate(results):
    place = f".observation.results[{k}]"
    made = _result(result, at + place, role, num_due > 0)
    if made["role"] == "tool":
      num_due -= "tool_call_id" not in made
      answers[place] = made
    else:
      made[_REST]["at"] = k
      others[place] = made
  return answers | others


def _call(call: Any, at: str) -> dict[str, Any]:
  rest = dict(fields.record(call, at))
  function = dict(
    name=fields.field(rest, at, "function_name", str),
    arguments=fields.field(rest, at, "arguments", dict),
  )
  call_id = fields.field(rest, at, "tool_call_id", str)
  for name in ("function_name", "arguments", "tool_call_id"):
    del rest[name]
  more = {_REST: rest} if rest else {}
  return dict(id=call_id, type="function", function=function) | more


def _result(result: Any, at: str, role: str, is_due: bool) -> dict[str, Any]:
  """Returns the record of a result: a tool's if it answers a call."""
  rest = dict(fields.record(result, at))
  answers = fields.field(rest, at, "source_call_id", str, default=None)
  content = fields.field(rest, at, "content", str, list, default=None)
  if answers is not None or is_due:
    role = "tool"
  elif role == "assistant":
    role = "user"
  record: dict[str, Any] = dict(
    role=role, content="" if content is None else content
  )
  if answers is not None:
    record["tool_call_id"] = rest.pop("source_call_id")
  if content is not None:
    del rest["content"]
  # It is there even if empty: it marks a result.
  record[_REST] = dict(result=rest, has_content=content is not None)
  return record


def _taken(
  holder: dict[str, Any], at: str, names: Collection[str]
) -> Mapping[str, Any]:
  """Takes what is ours, by these names, out of a step's or document's extra."""
  extra = fields.field(holder, at, "extra", dict, default={})
  if _OURS not in extra:
    return {}
  ours = fields.record(extra[_OURS], f"{at}: extra.{_OURS}")
  for name in ours:
    if name not in names:
      raise errors.InputError(
        f"{at}: extra.{_OURS} has {reprlib.repr(name)}; expected"
        f" {' or '.join(names) or 'nothing, since only turns are labelled'}"
      )
  holder["extra"] = {k: x for k, x in extra.items() if k != _OURS}
  if not holder["extra"]:
    del holder["extra"]
  return ours


# --- Trajectories to documents -----------------------------------------------


def _document(solution: schema.Solution) -> dict[str, Any]:
  fields.check_whole_turns(solution, "ATIF")
  others = solution.extra.get("fields", {})
  agent: Any = None
  if isinstance(others, Mapping):
    version = others.get("schema_version")
    is_atif = isinstance(version, str) and _KNOWN.fullmatch(version)
    agent = others.get("agent") if is_atif else None
  is_ours = not isinstance(agent, Mapping)
  own: dict[str, Any] = dict(schema_version=_VERSION)
  if is_ours:
    own["agent"] = dict(name=solution.source or "unknown", version="unknown")
  else:
    names = ("schema_version", "agent", "extra")
    own = {name: others[name] for name in names if name in others}
    others = {k: x for k, x in others.items() if k not in names}
  if solution.tools:
    tools = [dict(x) for x in solution.tools]
    own["agent"] = dict(own["agent"]) | dict(tool_definitions=tools)
  if told := fields.given(answer=solution.answer, outcome=solution.outcome):
    own["extra"] = dict(own.get("extra") or {}) | {_OURS: told}
  if not fields.is_row_id("atif", solution.id):
    own["trajectory_id"] = solution.id
  own["steps"] = _steps(solution)
  extra = dict(solution.extra) | dict(fields=others)
  document = fields.rejoin(dataclasses.replace(solution, extra=extra), own)
  if is_ours:
    # ATIF allows further fields in extra alone.
    more = {k: document.pop(k) for k in document.keys() - own.keys()}
    if more:
      document["extra"] = more | dict(document.get("extra", {}))
  return document


def _steps(solution: schema.Solution) -> list[dict[str, Any]]:
  steps: list[dict[str, Any]] = []
  results: list[dict[str, Any]] = []
  turn = -1
  for message in solution.messages or ():
    record = message.record
    rest = _rest(record, solution)
    content = record.get("content") if rest else message.text
    if message.role == "tool" or (steps and "result" in rest):
      if not results:
        whole = dict(steps[-1].get("observation") or {}) | dict(results=results)
        steps[-1]["observation"] = whole
      results.insert(
        rest.get("at", len(results)),
        fields.given(source_call_id=message.answers)
        | (dict(content=content) if rest.get("has_content", True) else {})
        | dict(rest.get("result", {})),
      )
      continue
    results = []
    turn += message.role == "assistant"
    first = steps[0]["step_id"] if steps else rest.get("step_id", 1)
    step = dict(
      step_id=first + len(steps),
      source=_SOURCES[message.role],
      message=message.text if content is None else content,
      **fields.given(reasoning_content=message.thinking or None),
    )
    if message.calls:
      step["tool_calls"] = _calls(message, solution)
    if message.role == "assistant":
      rest = dict(rest) | _with_labels(solution, turn, rest.get("extra"))
    steps.append(dict(rest) | step)
  if not steps:
    raise fields.cannot_hold(
      solution, "no message; ATIF needs one step or more"
    )
  return steps


# The fields of what only ATIF says that are read here, and their types.
_REST_FIELDS: Mapping[str, Any] = dict(
  result=Mapping,
  extra=Mapping | None,
  observation=Mapping | None,
  at=int,
  step_id=int | float,
)


def _rest(
  record: Mapping[str, Any], solution: schema.Solution
) -> Mapping[str, Any]:
  """Returns what only ATIF says of a message or call; refuses other fields."""
  rest = record.get(_REST, {})
  if not isinstance(rest, Mapping) or not all(
    k not in rest or isinstance(rest[k], kind)
    for k, kind in _REST_FIELDS.items()
  ):
    raise fields.cannot_hold(
      solution,
      f"a message has a field \"{_REST}\" that isn't of ATIF's form; rename it",
    )
  return rest


def _calls(
  message: schema.Message, solution: schema.Solution
) -> list[dict[str, Any]]:
  records = message.record.get("tool_calls") or [{}] * len(message.calls)
  if any(x.id is None for x in message.calls):
    raise fields.cannot_hold(
      solution, "a tool call has no id, and ATIF needs one; give each its own"
    )
  return [
    dict(
      tool_call_id=call.id,
      function_name=call.name,
      arguments=dict(call.arguments),
    )
    | dict(_rest(record, solution))
    for call, record in zip(message.calls, records)
  ]


def _with_labels(
  solution: schema.Solution, turn: int, extra: Mapping[str, Any] | None
) -> dict[str, Any]:
  """Returns the extra of a turn's step, with its label or rating."""
  ours = {}
  for one, many in _PER_STEP.items():
    values = getattr(solution, many)
    if values is not None and values[turn] is not None:
      ours[one] = values[turn]
  return dict(extra=dict(extra or {}) | {_OURS: ours}) if ours else {}
