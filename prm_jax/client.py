"""A served reward model, with the methods that a loaded one has.

  with Client("http://127.0.0.1:8000/v1") as prm:
    prm.score("1 + 1?", ["1 + 1 = 2.", "So 2."]).scores

This file needs Python 3.10 and nothing else: copied next to a trainer, it works
there without prm_jax. It has, each by means of the next,

  Client, AsyncClient  what a user calls (docs/serve.md)
  Connection           requests that are sent again if that may help
  _Sockets             one request and its reply, under one deadline

Policies at endpoints (remote) are asked by `Connection`, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
import concurrent.futures
import dataclasses
import email.utils
import functools
import http.client
import io
import ipaddress
import itertools
import json
import os
import random as random_lib
import re
import reprlib
import selectors
import socket
import ssl
import threading
import time
from typing import Any, cast, overload, TypeVar
import urllib.parse

try:
  from prm_jax._version import __version__
  from prm_jax.errors import InputError
  from prm_jax.schema import Solution
  from prm_jax.schema import StepScores
except ImportError:  # This file alone: as much of each as is used here.
  __version__ = "copied"
  Solution = Any  # type: ignore[assignment,misc]

  class InputError(ValueError):  # type: ignore[no-redef]
    """The user's input can't be used; one line says what and the fix."""

  @dataclasses.dataclass(frozen=True)
  class StepScores:  # type: ignore[no-redef]
    """The scores of the steps of one solution; see prm_jax.StepScores."""

    scores: tuple[float, ...]
    logits: None = None
    spans: tuple[tuple[int, int], ...] | None = None
    judged: tuple[bool, ...] = ()
    graded: Mapping[str, Any] | None = None

    def __post_init__(self):
      if not self.judged:
        object.__setattr__(self, "judged", (True,) * len(self.scores))

    def __len__(self):
      return len(self.scores)


Record = dict[str, Any]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Turn:
  """A turn of the assistant in a conversation.

  Args:
    message: The index of its message in the conversation.
    span: Its place in the message's content, in characters: (first character,
      one after the last); None if it is tool calls alone.
    without_thinking: Whether the score stands on the turn without what was
      thought in it, because the model's chat template leaves that out; None if
      the server doesn't say.
  """

  message: int
  span: tuple[int, int] | None
  without_thinking: bool | None = None


@dataclasses.dataclass(frozen=True)
class TurnScores(StepScores):
  """The scores of a conversation, one of each turn of the assistant.

  Args:
    scores: See StepScores, as are logits, spans, judged and graded.
    turns: The turn that each score is of.
  """

  turns: tuple[Turn, ...] = ()


# --- What a user calls ------------------------------------------------------


class Client:
  """A reward model behind `prm-jax serve`, or another server of that request.

  Its scores are those of the model that is served (docs/serve.md). A request
  that fails for a reason that may pass, such as a full queue, is sent again
  after a pause. Any thread may ask. It is a context manager.

  Args:
    url: The server's address, up to and including /v1.
    model: The name of the model; "" leaves it to the server.
    key_variable: The environment variable that holds the key; None sends none.
    insecure_key: Whether the key may be sent unencrypted, over http, to another
      machine.
    read_s: How long a try may take, in seconds.
    tries: How often a request is sent at most.
    backoff_s: The first pause between tries, in seconds. It doubles each time,
      and up to half of it is subtracted at random.
    max_wait_s: The longest pause that the server may ask for, in seconds.
    sleep: Called with the seconds of each pause; None waits them.
    random: Returns a number in [0, 1).

  Raises:
    InputError: The address is wrong, the key isn't there, or the server gives
      no scores.
  """

  def __init__(
    self,
    url: str,
    *,
    model: str = "",
    key_variable: str | None = None,
    insecure_key: bool = False,
    read_s: float = 600.0,
    tries: int = 8,
    backoff_s: float = 1.0,
    max_wait_s: float = 120.0,
    sleep: Callable[[float], Any] | None = None,
    random: Callable[[], float] = random_lib.random,
  ):
    settings = Settings(
      url,
      key_variable=key_variable,
      insecure_key=insecure_key,
      read_s=read_s,
      tries=tries,
      backoff_s=backoff_s,
      max_wait_s=max_wait_s,
    )
    self._url, self._named = url, dict(model=model) if model else {}
    self._connection = Connection(
      settings, "prm/score", sleep=sleep, random=random
    )
    # What the server says of its model; None before it said anything.
    self._names: tuple[str | None, ...] | None = None
    self._ask([_TRIAL], ["solution 'trial'"])

  def __repr__(self) -> str:
    return f"Client({self._url!r}, {self.model!r})"

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *raised: object) -> None:
    self.close()

  @property
  def model(self) -> str | None:
    """The name that the server gives its model; None if it gives none."""
    return self._names[0] if self._names else None

  @property
  def model_fingerprint(self) -> str | None:
    """A digest of all that the model's scores depend on; None if unknown."""
    return self._names[1] if self._names else None

  def close(self) -> None:
    """Closes the sockets."""
    self._connection.close()

  @overload
  def score(self, problem: str, steps: Iterable[str], /) -> StepScores: ...

  @overload
  def score(self, solutions: Iterable[Solution], /) -> list[StepScores]: ...

  def score(
    self,
    problem: str | Iterable[Solution],
    steps: Iterable[str] | None = None,
    /,
  ) -> StepScores | list[StepScores]:
    """Returns the scores of one solution's steps, or those of many solutions.

    Args:
      problem: The text of the question, or the solutions.
      steps: The text of each step, if `problem` is a text.

    Returns:
      StepScores if `problem` is a text, else a list with those of each
      solution, in their order; TurnScores of one with messages.

    Raises:
      InputError: The server refuses, or no try has a usable reply; or a turn of
        a conversation is cut into several steps.
    """
    if isinstance(problem, str) != (steps is not None):
      raise InputError(_FORMS)
    if isinstance(problem, str):
      name = "the solution"
      return self._score([_item(problem, steps, name)], [name])[0]
    solutions = _listed(problem, _FORMS)
    names = [_name(s, i) for i, s in enumerate(solutions)]
    rows = self._score([*map(_item_of, solutions, names)], names)
    # What has an id, a problem and steps may have their places, too.
    return [
      dataclasses.replace(row, spans=getattr(s, "spans", None)) if row else row
      for row, s in zip(rows, solutions, strict=True)
    ]

  def score_text(self, problem: str, text: str) -> StepScores:
    """Returns the scores of the steps of a text, with their places in the text.

    Args:
      problem: The text of the question.
      text: A whole solution, which is cut into steps as the model's checkpoint
        says.

    Returns:
      The scores; spans has each step's place in `text`, in characters.

    Raises:
      InputError: The server refuses, the model doesn't say how texts are cut,
        or no try has a usable reply.
    """
    (row,) = self.score_texts([problem], [text])
    return row

  def score_texts(
    self, problems: Iterable[str], texts: Iterable[str]
  ) -> list[StepScores]:
    """Returns the scores of the steps of many texts; see score_text.

    Args:
      problems: The text of the question of each.
      texts: Whole solutions. One that is blank has no step, and isn't sent.

    Returns:
      The scores of each, in their order.

    Raises:
      InputError: There isn't one problem for each text, or see score_text.
    """
    problems = _listed(problems, "score_texts: give a list of problems")
    texts = _listed(texts, "score_texts: give a list of texts")
    _check_pairs("score_texts", problems=problems, texts=texts)
    names = [f"texts[{i}]" for i in range(len(texts))]
    items = [
      _texts(dict(problem=problem, response=text), name)
      for problem, text, name in zip(problems, texts, names, strict=True)
    ]
    return self._score(items, names)

  def score_conversations(
    self,
    conversations: Iterable[Iterable[Mapping[str, Any]]],
    tools: Iterable[Iterable[Mapping[str, Any]] | None] | None = None,
  ) -> list[TurnScores]:
    """Returns the scores of the assistant's turns in conversations.

    Args:
      conversations: The messages of each, as OpenAI or Hugging Face write them.
        All but the assistant's turns is context and gets no score.
      tools: The declarations of the tools of each; None is no tools.

    Returns:
      The scores of each, in their order; turns says where each score's is.

    Raises:
      InputError: A conversation isn't a list of what JSON holds, there isn't
        one entry of tools for each, the server refuses, or no try has a usable
        reply.
    """
    fix = "score_conversations: give a list"
    given = _listed(
      conversations, f"{fix} of conversations, each a list of messages"
    )
    lists = [()] * len(given)
    if tools is not None:
      lists = _listed(tools, f"{fix} of tools for each conversation")
    _check_pairs(
      "score_conversations", conversations=given, lists_of_tools=lists
    )
    names = [f"conversations[{i}]" for i in range(len(given))]
    items = [*map(_conversation, given, lists, names)]
    return cast("list[TurnScores]", self._score(items, names))

  def _score(
    self, items: Sequence[Record], names: Sequence[str]
  ) -> list[StepScores]:
    """Returns the scores of items; one without a step isn't sent."""
    for item, name in zip(items, names, strict=True):
      _check_json(item, name)
    rows = [
      StepScores((), spans=() if "response" in x else None) for x in items
    ]
    shown = [
      i
      for i, item in enumerate(items)
      if item.get("steps")
      or item.get("response", "").strip()
      or "messages" in item
    ]
    for start in range(0, len(shown), MAX_ITEMS):
      part = shown[start : start + MAX_ITEMS]
      asked = self._ask([items[i] for i in part], [names[i] for i in part])
      for i, row in zip(part, asked, strict=True):
        rows[i] = row
    return rows

  def _ask(
    self, items: Sequence[Record], names: Sequence[str]
  ) -> list[StepScores]:
    """Returns the scores of the items of one request."""

    def read(reply: Record) -> list[StepScores]:
      # In here, so that a key that the server repeats isn't shown.
      rows = _read(reply, items, names, self._url)
      self._check_model(reply)
      return rows

    who = names[0]
    if len(names) > 1:
      who = f"{who} and {len(names) - 1} more"
    body = dict(self._named, items=list(items))
    return self._connection.ask(body, read, who, names)

  def _check_model(self, reply: Record) -> None:
    """Refuses another model than that of the first reply."""
    now = _names(reply)
    self._names = self._names or now
    if now != self._names:
      raise OtherModelError(
        f"{self._url}: its model was {_shown(self._names)} and is {_shown(now)}"
        " now; serve the first one again"
      )


class AsyncClient:
  """A `Client` whose methods are awaited, for many requests at a time.

  The server scores what comes together in one batch. The server is asked for a
  trial at the first call. It is an async context manager.

  Args:
    url: See Client.
    concurrency: The most requests that are under way at a time.
    **options: The options of Client.

  Raises:
    InputError: concurrency is below 1.
  """

  def __init__(self, url: str, *, concurrency: int = 64, **options: Any):
    if concurrency < 1:
      raise InputError(f"concurrency={concurrency}: give 1 or more")
    self._make = functools.partial(Client, url, **options)
    self._client: Client | None = None
    self._making = threading.Lock()
    # A thread for each request: it waits for the server.
    self._threads = concurrent.futures.ThreadPoolExecutor(concurrency)

  async def __aenter__(self) -> AsyncClient:
    await self._call(lambda client: None)
    return self

  async def __aexit__(self, *raised: object) -> None:
    # Other tasks run while it waits for the requests under way.
    await asyncio.to_thread(self.close)

  def close(self) -> None:
    """Closes the sockets, once the requests under way have their replies."""
    self._threads.shutdown()
    if self._client is not None:
      self._client.close()

  @overload
  async def score(
    self, problem: str, steps: Iterable[str], /
  ) -> StepScores: ...

  @overload
  async def score(
    self, solutions: Iterable[Solution], /
  ) -> list[StepScores]: ...

  async def score(self, *given: Any) -> Any:
    """Returns what Client.score does; see Client.score."""
    return await self._call(Client.score, *given)

  async def score_text(self, problem: str, text: str) -> StepScores:
    """Returns what Client.score_text does; see Client.score_text."""
    return await self._call(Client.score_text, problem, text)

  async def score_texts(
    self, problems: Iterable[str], texts: Iterable[str]
  ) -> list[StepScores]:
    """Returns what Client.score_texts does; see Client.score_texts."""
    return await self._call(Client.score_texts, problems, texts)

  async def score_conversations(
    self,
    conversations: Iterable[Iterable[Mapping[str, Any]]],
    tools: Iterable[Iterable[Mapping[str, Any]] | None] | None = None,
  ) -> list[TurnScores]:
    """Returns what Client does; see Client.score_conversations."""
    return await self._call(Client.score_conversations, conversations, tools)

  async def _call(self, method: Callable[..., _T], *given: Any) -> _T:
    def asked() -> _T:
      with self._making:
        self._client = self._client or self._make()
      return method(self._client, *given)

    loop = asyncio.get_running_loop()
    try:
      reply = loop.run_in_executor(self._threads, asked)
    except RuntimeError:  # after shutdown
      raise InputError(
        "this AsyncClient was closed, and asks no more; make another one"
      ) from None
    return await reply


# --- The request of scores, and its reply -----------------------------------
#
#   POST /v1/prm/score
#   {"items": [{"problem": "2 + 2?", "steps": ["2 + 2 = 4.", "Answer 4."]}]}
#
#   {"model": "prm-1.5b", "model_fingerprint": "sha256:...",
#    "data": [{"index": 0, "step_scores": [0.98, 0.97], "truncated": false}]}
#
# `data` has one entry for each item, in any order; `index` is the item's number.
# An item may have a text, `response`, in place of steps; its entry then has the
# places of the steps in the text, `segments`. Or it has `messages`, perhaps
# `tools`, and "steps_are": "turns"; its entry then has `turns`, the message of
# each step and its place there. An entry may say which scores the model was
# trained to give, `judged`. Fields that aren't named here may be there,
# and aren't read. serving/score_api.py is the server's half.

# The most items of a request.
MAX_ITEMS = 64
_TRIAL = dict(problem="What is 1 + 1?", steps=["1 + 1 = 2."])


_FORMS = (
  "score: give score(problem, steps) with a list of steps, score(solutions), or"
  " score_text(problem, text)"
)


class OtherModelError(InputError):
  """A server has another model than before."""


def _listed(values: Any, fix: str) -> list[Any]:
  """Returns the entries of what isn't one text or one record."""
  if isinstance(values, str | bytes | Mapping) or not isinstance(
    values, Iterable
  ):
    raise InputError(f"{fix}; found {reprlib.repr(values)}")
  return list(values)


def _check_pairs(where: str, **lists: list[Any]) -> None:
  """Refuses lists of different lengths."""
  if len({*map(len, lists.values())}) > 1:
    numbers = (f"{len(x)} {k.replace('_', ' ')}" for k, x in lists.items())
    raise InputError(f"{where}: {' and '.join(numbers)}; give one of each")


def _texts(texts: Record, name: str) -> Record:
  """Returns texts by their fields; refuses what isn't one."""
  for field, text in texts.items():
    if not isinstance(text, str):
      raise InputError(
        f"{name}: {field} must be a str, found {reprlib.repr(text)}"
      )
  return texts


def _check_json(item: Record, name: str) -> None:
  """Refuses what no text of JSON holds."""
  try:
    text = json.dumps(
      item, ensure_ascii=False, allow_nan=False, default=_object
    )
    text.encode()
  except (TypeError, ValueError, RecursionError) as e:
    raise InputError(
      f"{name}: it can't be sent as JSON ({e}); give texts, finite numbers,"
      " lists and mappings"
    ) from None


def _object(value: Any) -> Record:
  """Returns a mapping as JSON writes it."""
  if not isinstance(value, Mapping):
    raise TypeError(f"found {reprlib.repr(value)}")
  return dict(value)


def _name(solution: Any, index: int) -> str:
  """Returns what errors call a solution; refuses what is none."""
  for field in ("id", "problem", "steps"):
    if not hasattr(solution, field):
      raise InputError(
        f"solutions[{index}] is {reprlib.repr(solution)}, without {field!r};"
        " give objects with an id, a problem and steps"
      )
  return f"solution {solution.id!r}"


def _item(problem: str, steps: Any, name: str) -> Record:
  """Returns what is sent of a solution; refuses what isn't text."""
  steps = _listed(steps, f"{name}: give a list of steps")
  texts = {f"steps[{i}]": step for i, step in enumerate(steps)}
  _texts(dict(problem=problem, **texts), name)
  return dict(problem=problem, steps=steps)


def _item_of(solution: Solution, name: str) -> Record:
  """Returns what is sent of a solution."""
  messages = getattr(solution, "messages", None)
  # Another program's object may have messages of its own.
  if not messages or not _is_message(messages[0]) or not solution.steps:
    return _item(solution.problem, solution.steps, name)
  if solution.spans is not None:
    raise InputError(
      f"{name}: its turns are cut into steps, and a server scores whole turns;"
      " leave them whole, or load the model here"
    )
  return _conversation(messages, solution.tools, name)


def _conversation(messages: Any, tools: Any, name: str) -> Record:
  """Returns what is sent of a conversation."""
  messages = _listed(messages, f"{name}: give a list of messages")
  item = dict(messages=[*map(_record, messages)], steps_are="turns")
  tools = _listed(tools or (), f"{name}: give a list of tools")
  return item | dict(tools=tools) if tools else item


def _record(message: Any) -> Any:
  """Returns what is sent of a message: a record as it is, of a Message all."""
  if not _is_message(message):
    return message
  calls = [
    dict(id=x.id, function=dict(name=x.name, arguments=dict(x.arguments)))
    for x in message.calls
  ]
  return dict(
    role=message.role,
    content=message.text,
    reasoning_content=message.thinking,
    tool_calls=calls,
    tool_call_id=message.answers,
  )


def _is_message(value: Any) -> bool:
  return hasattr(value, "calls") and hasattr(value, "answers")


def _names(reply: Record) -> tuple[str | None, ...]:
  """Returns what a reply says of its model: the name and the fingerprint."""
  names = reply.get("model"), reply.get("model_fingerprint")
  return tuple(x if isinstance(x, str) else None for x in names)


def _shown(names: tuple[str | None, ...]) -> str:
  return (
    " ".join(repr(x)[:80] for x in names if x is not None) or "without name"
  )


def _read(
  reply: Record, items: Sequence[Record], names: Sequence[str], url: str
) -> list[StepScores]:
  """Returns the scores of a request's items; refuses what breaks the form."""
  data = reply.get("data")
  if not isinstance(data, list):
    raise InputError(
      f'{url}: a reply without a list "data"; see that the server has prm/score'
    )
  if len(data) != len(items):
    raise InputError(
      f'{url}: "data" has {len(data)} entries for {len(items)} items; the server'
      " must reply with one for each"
    )
  rows: dict[int, StepScores] = {}
  for entry in data:
    index: Any = entry.get("index") if isinstance(entry, dict) else None
    is_place = type(index) is int and 0 <= index < len(items)
    if not is_place or index in rows:
      raise InputError(
        f'{url}: an entry of "data" has index {reprlib.repr(index)}; expected'
        f" each of 0 to {len(items) - 1} once"
      )
    rows[index] = _row(entry, items[index], names[index], url)
  return [rows[i] for i in range(len(items))]


def _row(entry: Record, item: Record, name: str, url: str) -> StepScores:
  """Returns an item's scores: one in [0, 1] of each step."""
  scores = entry.get("step_scores")
  if not isinstance(scores, list) or not all(map(_is_number, scores)):
    raise InputError(
      f'{url}: {name}: "step_scores" is {reprlib.repr(scores)}; expected a list'
      " of numbers"
    )
  if entry.get("truncated"):
    raise InputError(
      f"{url}: {name}: the server cut it, so its scores aren't those of the"
      " whole; start the server with a longer limit"
    )
  segments, judged = entry.get("segments"), entry.get("judged")
  for field, is_right in dict(segments=_is_segment, judged=_is_bool).items():
    values = entry.get(field)
    is_list = isinstance(values, list) and len(values) == len(scores)
    if values is not None and not (is_list and all(map(is_right, values))):
      raise InputError(
        f'{url}: {name}: "{field}" is {reprlib.repr(values)}; expected a list'
        " with one for each score"
      )
  num_steps, spans = len(item.get("steps", scores)), None
  if "response" in item:
    spans = tuple((start, end) for start, end in segments or ())
    borders = [*itertools.chain(*spans), len(item["response"])]
    if segments is None or borders != sorted(borders):
      raise InputError(
        f"{url}: {name}: the reply has no places of steps in the text; the"
        " server must give segments for a response"
      )
  if len(scores) != num_steps:
    raise InputError(
      f"{url}: {len(scores)} scores for the {num_steps} steps of {name}; give"
      " one for each step"
    )
  for i, score in enumerate(scores):
    if not 0 <= score <= 1:
      raise InputError(
        f"{url}: the score of step {i + 1} of {name} is {reprlib.repr(score)};"
        " expected P(correct so far) in [0, 1]"
      )
  numbers, judged = tuple(map(float, scores)), tuple(judged or ())
  graded = entry.get("graded")
  if graded is not None and not isinstance(graded, dict):
    raise InputError(
      f'{url}: {name}: "graded" is {reprlib.repr(graded)}; expected an object'
    )
  if "messages" not in item:
    return StepScores(numbers, spans=spans, judged=judged, graded=graded)
  turns = _turns(entry.get("turns"), item["messages"])
  if turns is None or len(turns) != len(numbers):
    raise InputError(
      f'{url}: {name}: "turns" is {reprlib.repr(entry.get("turns"))}; expected'
      " the message and the span of each of the assistant's turns"
    )
  return TurnScores(numbers, judged=judged, turns=turns, graded=graded)


def _turns(
  given: Any, messages: Sequence[Mapping[str, Any]]
) -> tuple[Turn, ...] | None:
  """Returns the turns that a reply names; None if they aren't those sent."""
  own = [i for i, x in enumerate(messages) if x.get("role") == "assistant"]
  records = [x for x in _list(given) if isinstance(x, dict)]
  if [x.get("message") for x in records] != own:
    return None
  spans = [x.get("span") for x in records]
  for i, span in zip(own, spans, strict=True):
    text = messages[i].get("content")
    most = len(text) if isinstance(text, str) else float("inf")
    if span is not None and not (_is_segment(span) and span[1] <= most):
      return None
  return tuple(
    Turn(i, tuple(span) if span else None, x.get("without_thinking"))
    for i, span, x in zip(own, spans, records, strict=True)
  )


def _list(value: Any) -> list[Any]:
  """Returns a value that should be a list; of another one nothing."""
  return value if isinstance(value, list) else []


def _is_segment(value: Any) -> bool:
  is_pair = isinstance(value, list) and [*map(type, value)] == [int, int]
  return is_pair and 0 <= value[0] <= value[1]


def _is_bool(value: Any) -> bool:
  return isinstance(value, bool)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


# --- Requests that are sent again if that may help --------------------------

# The least values of settings; the others are above 0.
_LEAST = dict(tries=1, backoff_s=0)
_FIXES = {
  401: "check the key in the variable that key_variable names",
  403: "check the key in the variable that key_variable names",
  404: "check the model's name, and that the url goes up to and with /v1",
  405: "check that the url goes up to and with /v1",
  413: "shorten the prompt",
}


class PassingError(Exception):
  """A try failed in a way that may pass.

  Args:
    cause: The name of the count.
    message: What went wrong.
    wait_s: The pause that the server asked for, in seconds.
  """

  def __init__(self, cause: str, message: str, wait_s: float = 0.0):
    super().__init__(message)
    self.cause, self.wait_s = cause, wait_s


class RefusalError(InputError):
  """The server refuses a request: it must be another one.

  Args:
    message: The line; see InputError.
    status: The status of its reply.
  """

  def __init__(self, message: str, status: int):
    super().__init__(message)
    self.status = status


class NoReplyError(InputError):
  """The server gives no usable reply now; it may later.

  Args:
    message: The line; see InputError.
    cause: That of the last try; see PassingError.
    wait_s: The pause that the server asked for, in seconds.
  """

  def __init__(self, message: str, cause: str, wait_s: float = 0.0):
    super().__init__(message)
    self.cause, self.wait_s = cause, wait_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Where a server is, its key, and how long to wait.

  Args:
    url: See Client.
    key_variable: See Client.
    insecure_key: See Client.
    connect_s: The limit for connecting to each address of the host, in seconds,
      and again for TLS.
    read_s: The limit of a try, from connecting to the end of the reply, in
      seconds.
    tries: See Client, as are the next two.
    backoff_s: The first pause between tries, in seconds.
    max_wait_s: The longest pause that a server may ask for, in seconds.

  Raises:
    InputError: A value is out of range, the address isn't one, or the key would
      be sent unencrypted.
  """

  url: str = dataclasses.field(kw_only=False)
  key_variable: str | None = None
  insecure_key: bool = False
  connect_s: float = 10.0
  read_s: float = 600.0
  tries: int = 8
  backoff_s: float = 1.0
  max_wait_s: float = 120.0

  @property
  def place(self) -> tuple[bool, str, int, str]:
    """What tells servers apart: whether it is https, host, port and path."""
    is_secure, host, port, path = _address(self.url)
    return is_secure, host, port, path.rstrip("/")

  def __post_init__(self):
    if not isinstance(self.url, str):
      raise InputError(
        f"endpoint.url must be str, found {reprlib.repr(self.url)}"
      )
    for name in ("tries", "connect_s", "read_s", "max_wait_s", "backoff_s"):
      value, least = getattr(self, name), _LEAST.get(name)
      if not _is_number(value):
        raise InputError(
          f"endpoint.{name} must be a number, found {reprlib.repr(value)}"
        )
      is_enough = value > 0 if least is None else value >= least
      if not (is_enough and value < float("inf")):
        form = "a number above 0" if least is None else f"{least} or more"
        raise InputError(f"endpoint.{name}={value}: expected {form}")
    is_secure, host, _, _ = _address(self.url)
    in_clear = not is_secure and not _is_loopback(host)
    if self.key_variable is not None and in_clear and not self.insecure_key:
      raise InputError(
        f"endpoint.url: http://{host} would get the key in"
        f" {self.key_variable} unencrypted; give an https address, or a tunnel's"
        " on localhost (ssh -L), or set `insecure_key=True`"
      )


def _is_loopback(host: str) -> bool:
  """Returns whether a host's name or address is this machine's own."""
  host = host.strip("[]").rstrip(".")
  try:
    address = ipaddress.ip_address(host)
  except ValueError:
    return host == "localhost" or host.endswith(".localhost")
  return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class Connection:
  """Sockets to a server, its key, and counts.

  `counts` has requests, retries and failed_* tries by their cause: timeout,
  connection, bad_reply or status_*. Any thread may ask.

  Args:
    settings: Where the server is.
    route: What follows its address, such as completions.
    method: The method of its requests.
    fixes: Words that a refusal with status 400 or 422 may have, and the fix
      that an error then names.
    stop: An event; if it is set, no further try is made.
    sleep: Waits some seconds; by default until `stop` is set.
    random: Returns a number in [0, 1).

  Raises:
    InputError: The key isn't there.
  """

  def __init__(
    self,
    settings: Settings,
    route: str,
    *,
    method: str = "POST",
    fixes: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    sleep: Callable[[float], Any] | None = None,
    random: Callable[[], float] = random_lib.random,
  ):
    self.counts: Counter[str] = Counter()
    self._settings, self._fixes = settings, fixes or {}
    self._stop, self._lock = stop or threading.Event(), threading.Lock()
    self._sleep, self._random = sleep or self._stop.wait, random
    self._key = _api_key(settings.key_variable)
    self._url = f"{settings.url.rstrip('/')}/{route}"
    headers = {
      "Content-Type": "application/json",
      "User-Agent": f"prm_jax/{__version__}",
    }
    if self._key is not None:
      headers["Authorization"] = f"Bearer {self._key}"
    self._sockets = _Sockets(self._url, headers, settings.connect_s, method)

  def ask(
    self,
    body: Record,
    read: Callable[[Record], _T],
    who: str,
    names: Sequence[str] = (),
  ) -> _T:
    """Returns what `read` returns for the reply; tries again if that may help.

    Args:
      body: The body of the request.
      read: Reads the reply; raises PassingError if it isn't usable.
      who: What errors call the request.
      names: What errors call each of its items, if a refusal says which it is.

    Returns:
      What `read` returns.

    Raises:
      RefusalError: The server refuses.
      NoReplyError: No try has a usable reply.
      InputError: What `read` raises, a certificate that isn't trusted, or a
        compressed reply.
    """
    most = self._settings.tries
    tried, last, cause = 0, "", ""
    while tried < most and not self._stop.is_set():
      tried += 1
      try:
        return self.ask_once(body, read, who, names)
      except PassingError as e:
        last, wait_s, cause = str(e), e.wait_s, e.cause
      if tried < most:
        self._count("retries")
        self._sleep(max(self.pause_s(tried), wait_s))
    raise NoReplyError(
      f"{self._url}: {who}: no usable reply in {tried}"
      f" {'try' if tried == 1 else 'tries'}, the last time"
      f" {last}; see to the server and start again",
      cause,
    )

  def ask_once(
    self,
    body: Record | None,
    read: Callable[[Record], _T],
    who: str,
    names: Sequence[str] = (),
  ) -> _T:
    """Returns what `read` returns for the reply to one try.

    Args:
      body: The body of the request; None has none.
      read: See ask.
      who: See ask.
      names: See ask.

    Returns:
      What `read` returns.

    Raises:
      PassingError: The try failed in a way that may pass.
      NoReplyError: The server asks for a pause that is too long.
      RefusalError: See ask, as for InputError.
    """
    data = b"" if body is None else json.dumps(body, default=_object).encode()
    self._count("requests")
    try:
      return read(self._reply(data, who, names))
    except PassingError as e:
      self._count(f"failed_{e.cause}")
      raise PassingError(e.cause, self._safe(str(e)), e.wait_s) from None
    except NoReplyError as e:
      self._count(f"failed_{e.cause}")
      raise  # its words are masked
    except RefusalError:
      raise  # as these are
    except InputError as e:
      raise InputError(self._masked(str(e))) from None

  def pause_s(self, failures: int) -> float:
    """Returns a pause that doubles each time, less up to half of it.

    Args:
      failures: How often what was tried has failed so far.

    Returns:
      The pause in seconds.
    """
    longest = self._settings.backoff_s * 2.0 ** min(failures - 1, 99)
    longest = min(longest, self._settings.max_wait_s)
    return longest * (1 - self._random() / 2)

  def close(self) -> None:
    """Closes the sockets that are idle."""
    self._sockets.close()

  def _reply(self, data: bytes, who: str, names: Sequence[str]) -> Record:
    """Returns the reply's object; raises PassingError or InputError."""
    status, headers, content = self._post(data)
    coding = headers.get("Content-Encoding", "")
    if coding.strip().lower() not in ("", "identity"):
      raise InputError(
        f"{self._url}: {who}: a reply in {self._safe(coding)}, which wasn't"
        " asked for; let the server, or a proxy before it, compress nothing"
      )
    if status == 200:
      kind = headers.get("Content-Type", "")
      return _json_object(content, kind, self._masked)
    reason = f"status {status}, {self._safe(_message(content))}"
    if status != 429 and status < 500:
      fix = _FIXES.get(status, "fix the request or the server")
      if status in (400, 422):
        fixes = (fix for words, fix in self._fixes.items() if words in reason)
        fix = next(fixes, fix)
      who = _item_named(content, names) or who
      raise RefusalError(f"{self._url}: {who}: {reason}; {fix}", status)
    asked = headers.get("Retry-After", "")
    wait_s = _retry_after_s(asked)
    if wait_s > self._settings.max_wait_s:
      raise NoReplyError(
        f"{self._url}: {who}: {reason}; it asks for a pause longer than"
        f" max_wait_s, Retry-After: {self._safe(asked)}; start again then",
        f"status_{status}",
        wait_s,
      )
    raise PassingError(f"status_{status}", reason, wait_s)

  def _post(self, data: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Returns status, headers and body; raises PassingError or InputError."""
    try:
      return self._sockets.post(data, self._settings.read_s)
    except TimeoutError:
      raise PassingError("timeout", "it took too long") from None
    except ssl.SSLCertVerificationError as e:
      raise InputError(
        f"{self._url}: its certificate isn't trusted: {e}; add its authority"
        " to the system's"
      ) from None
    except (OSError, http.client.HTTPException) as e:
      raise PassingError("connection", str(e)) from None

  def _count(self, name: str) -> None:
    with self._lock:
      self.counts[name] += 1

  def _masked(self, text: str) -> str:
    """Returns a text without the key, in the forms that a message may have."""
    # A shorter one is no secret but what a server without keys is given.
    if self._key is not None and len(self._key) > 5:
      quoted = repr(self._key)[1:-1], json.dumps(self._key)[1:-1]
      for form in (self._key, *quoted):
        text = text.replace(form, "***")
    return text

  def _safe(self, text: str) -> str:
    """Returns a server's words in one line, short and without the key."""
    text = " ".join(self._masked(text).split())
    return text if len(text) <= 400 else f"{text[:400]}..."


def _api_key(variable: str | None) -> str | None:
  if variable is None:
    return None
  key = os.environ.get(variable, "").strip()
  if not key:
    raise InputError(
      f"the environment variable {variable} isn't set; put the API key into it"
    )
  if not (key.isascii() and key.isprintable()):
    raise InputError(
      f"the environment variable {variable} holds a character that no API key"
      " has; set it again"
    )
  return key


def _retry_after_s(header: str) -> float:
  """Returns a Retry-After, a number or a date, in seconds; 0 if it is none."""
  try:
    if header.strip().isdecimal():
      return float(int(header))
    date = email.utils.parsedate_tz(header)
    wait_s = email.utils.mktime_tz(date) - time.time() if date else 0.0
  except (ValueError, OverflowError):
    # A number of 5,000 digits, a year that no calendar has.
    return 0.0
  return max(0.0, wait_s)


# --- What a reply says ------------------------------------------------------

# Python's own limit of nesting depends on how deep the stack is, and on the
# version. An integer of so many characters fits a float.
_MAX_NESTING = 500
# What an error is of: an item, and the field in it.
_ITEM = re.compile(r"items\[(\d{1,9})\](?:\.([\w.\[\]]{1,80}))?", re.ASCII)
_MAX_DIGITS = 300


def _json_object(
  content: bytes,
  content_type: str,
  safe: Callable[[str], str] = lambda text: text,
) -> Record:
  """Returns the object that a reply holds; `safe` hides what isn't shown."""
  try:
    reply = _json(content.decode())
  except ValueError:
    # Hidden before it is cut: half a key is a part of it.
    begin = safe(content[:4_096].decode(errors="replace"))[:60]
    raise PassingError(
      "bad_reply", f"not JSON but {content_type or 'no type'}: {begin!r}"
    ) from None
  if not isinstance(reply, dict):
    raise PassingError("bad_reply", "JSON that isn't an object")
  return reply


def _message(content: bytes) -> str:
  """Returns a server's error message, which has several forms."""
  text = content.decode(errors="replace").strip()
  try:
    value = _json(text)
  except ValueError:
    return text or "no message"
  for name in ("error", "message", "detail"):
    value = (value.get(name) if isinstance(value, dict) else None) or value
  return value if isinstance(value, str) else json.dumps(value)


def _item_named(content: bytes, names: Sequence[str]) -> str | None:
  """Returns the name of the item that a server's error is of, and the field."""
  try:
    error = _json(content.decode())["error"]
    found = _ITEM.fullmatch(error["param"])
  except (ValueError, TypeError, KeyError):
    return None
  if found is None or int(found[1]) >= len(names):
    return None
  name, field = names[int(found[1])], found[2]
  # The message itself may begin with the field.
  is_told = not field or str(error.get("message")).startswith(field)
  return name if is_told else f"{name}: {field}"


def _json(text: str) -> Any:
  """Returns the value of a text of JSON; raises ValueError if it isn't one."""
  if text.count("[") + text.count("{") > _MAX_NESTING:
    # Without escapes, a quotation mark begins or ends a string.
    plain = text.replace("\\\\", "").replace('\\"', "")
    brackets = re.sub(r'"[^"]*"?|[^\[\]{}"]+', "", plain)
    depths = itertools.accumulate(1 if x in "[{" else -1 for x in brackets)
    if max(depths, default=0) > _MAX_NESTING:
      raise ValueError("nested too deeply")
  try:
    return json.loads(text, parse_int=_integer)
  except RecursionError:
    # Of a caller that is itself near the end of the stack.
    raise ValueError("nested too deeply") from None


def _integer(text: str) -> int:
  if len(text) > _MAX_DIGITS:
    raise ValueError("a number of too many digits")
  return int(text)


# --- One request and its reply, under one deadline --------------------------

_MAX_HEAD_BYTES = 1 << 20
_MAX_BYTES = 16 << 20
_PIECE_BYTES = 1 << 14  # a record of TLS: one write, so one limit
_URL = re.compile(
  r"(https?)://([\w.-]+|\[[\da-f:.]+(?:%[\w.-]+)?\])(?::(\d{0,6}))?"
  r"(/[^?#\x00-\x1f\x7f]*)?([?#].*)?",
  re.IGNORECASE | re.ASCII | re.DOTALL,
)


def _address(url: str) -> tuple[bool, str, int, str]:
  """Returns whether an address is https, its host, its port and its path."""
  parts = _URL.fullmatch(url)
  if parts is None or int(parts[3] or 0) > 65_535:
    # It isn't shown: it may hold a password.
    raise InputError(
      "endpoint.url: expected such as http://localhost:8000/v1; a key goes"
      " into an environment variable that key_variable names"
    )
  if parts[5] is not None:
    raise InputError(
      "endpoint.url: the address ends with its path, such as /v1, because"
      " routes are added to it; take out what begins with ? or #"
    )
  is_secure = parts[1].lower() == "https"
  port = int(parts[3] or 0) or (443 if is_secure else 80)
  path = urllib.parse.quote(parts[4] or "/", safe="/%!$&'()*+,;=:@~")
  return is_secure, parts[2].lower(), port, path


class _Sockets:
  """Sockets to one server, kept open between requests.

  A socket's own limit holds for each read and each write. So a server that
  sends a byte now and then, in its headers or a chunk's size, or `100 Continue`
  without end, could keep a request for as long as it likes. Here each read and
  write gets the time that is left of the whole, and the bytes of a reply are
  counted as they arrive: the status line, headers, sizes of chunks and trailers
  too. Any thread may post. It asks the server itself: proxies aren't used, and
  no redirect is followed.

  Args:
    url: The address of the requests.
    headers: Further headers of each.
    connect_s: See Settings.
    method: The method of each.
  """

  def __init__(
    self, url: str, headers: Mapping[str, str], connect_s: float, method: str
  ):
    is_secure, host, self._port, path = _address(url)
    self._host, self._connect_s = host.strip("[]"), connect_s
    self._context = ssl.create_default_context() if is_secure else None
    if self._port != (443 if is_secure else 80):
      host = f"{host}:{self._port}"
    headers = {"Host": host, "Accept-Encoding": "identity", **headers}
    lines = [f"{name}: {value}" for name, value in headers.items()]
    self._head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines])
    self._lock = threading.Lock()
    self._idle: list[socket.socket] = []

  def post(
    self, body: bytes, time_s: float
  ) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Returns the reply's status, headers and body.

    Args:
      body: The body of the request.
      time_s: The limit from now to the end of the reply, in seconds. Only the
        system's search for the host's addresses isn't bound by it.

    Raises:
      TimeoutError: The time is over.
      PassingError: The reply is too long.
      OSError: No connection, or one that was cut; http.client.HTTPException
        too.
    """
    deadline = time.monotonic() + time_s
    sock = self._take() or self._connect(deadline)
    head = f"{self._head}\r\nContent-Length: {len(body)}\r\n\r\n"
    content = head.encode() + body
    try:
      for at in range(0, len(content), _PIECE_BYTES):
        sock.settimeout(_left_s(deadline))
        sock.sendall(content[at : at + _PIECE_BYTES])
      response, content = _receive(sock, deadline)
    except BaseException:
      sock.close()  # what is left in it would begin the next reply
      raise
    if response.will_close:
      sock.close()
    else:
      with self._lock:
        self._idle.append(sock)
    return response.status, response.headers, content

  def close(self) -> None:
    """Closes the sockets that are idle."""
    with self._lock:
      while self._idle:
        self._idle.pop().close()

  def _take(self) -> socket.socket | None:
    """Returns an idle socket that the server hasn't closed."""
    with self._lock:
      while self._idle:
        sock = self._idle.pop()
        with selectors.DefaultSelector() as selector:
          selector.register(sock, selectors.EVENT_READ)
          is_open = not selector.select(0)  # nothing to read, and no end
        if is_open:
          return sock
        sock.close()
    return None

  def _connect(self, deadline: float) -> socket.socket:
    sock = _open(self._host, self._port, self._connect_s, deadline)
    if self._context is not None:
      try:
        sock.settimeout(min(self._connect_s, _left_s(deadline)))
        sock = self._context.wrap_socket(sock, server_hostname=self._host)
      except BaseException:
        sock.close()
        raise
    return sock


def _left_s(deadline: float) -> float:
  left_s = deadline - time.monotonic()
  if left_s <= 0:
    raise TimeoutError("the time is over")
  return left_s


def _open(
  host: str, port: int, connect_s: float, deadline: float
) -> socket.socket:
  """Returns a connection to the first address of a host that accepts one."""
  failure = OSError(f"{host} has no address")
  try:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except UnicodeError:
    raise OSError(f"{host} isn't the name of a host") from None
  for family, kind, protocol, _, address in addresses:
    sock = socket.socket(family, kind, protocol)
    try:
      sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      sock.settimeout(min(connect_s, _left_s(deadline)))
      sock.connect(address)
      return sock
    except BaseException as e:
      sock.close()
      if not isinstance(e, OSError):
        raise
      failure = e
  raise failure


def _receive(
  sock: socket.socket, deadline: float
) -> tuple[http.client.HTTPResponse, bytes]:
  reader: Any = _Reader(sock, deadline)
  content = bytearray()
  with http.client.HTTPResponse(reader, method="POST") as response:
    response.begin()
    reader.begin_body()
    # In pieces: a length that the server gives is no size to allocate.
    while piece := response.read1(1 << 16):
      content += piece
    if response.length:
      raise http.client.IncompleteRead(bytes(content), response.length)
  return response, bytes(content)


class _Reader(io.RawIOBase):
  """Reads a socket until a deadline, and not more than a number of bytes.

  http.client takes it for the socket itself, of which it wants a file.
  """

  def __init__(self, sock: socket.socket, deadline: float):
    self._sock, self._deadline = sock, deadline
    self._left, self._limit = _MAX_HEAD_BYTES, _MAX_HEAD_BYTES

  def makefile(self, _: str) -> io.BufferedReader:
    return io.BufferedReader(self)

  def begin_body(self) -> None:
    """Allows the bytes of a body; those around its chunks are of the head."""
    self._left, self._limit = self._left + _MAX_BYTES, _MAX_BYTES

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int:
    self._sock.settimeout(_left_s(self._deadline))
    num_bytes = self._sock.recv_into(buffer)
    self._left -= num_bytes
    if self._left < 0:
      raise PassingError(
        "bad_reply", f"a reply of more than {self._limit >> 20} MiB"
      )
    return num_bytes
