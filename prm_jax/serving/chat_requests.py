"""The inverse of a chat template: a rendered chat as a problem and a response.

Some clients send what a chat template wrote, as one text. A model with a
policy's template reads the text of that template alone. Every other model reads
the problem in its own form, so the chat that it came in doesn't matter: the text
of any published chat is read, whatever its system turn says.

A text is read only if no other problem and response would be written as the same
text. So neither may hold the name of a control token of the template, a problem
that the template would have stripped has no white space around it, and what
follows a plain prompt must not follow it twice. Everything else is refused. Of
the names around a model's reasoning, as <think>, a response may hold any.

Clients of published reward models write a mark after each step, as <extra_0>.
Each mark in a response ends a step, for every model and whoever wrote it: who
sends marks asks for a score at each.

The end of the text may be the name of a token that ends a turn, and a line break
after it; they are no part of the response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import dataclasses
import functools
import re
from typing import Any, NamedTuple

from prm_jax.serving import refusals
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import templates

# Tokens before everything else. Some clients leave them out, as their server
# adds them.
_BOS = ("<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>")
# Stands for any system turn; no template has it.
_ANY = "\x00"
# How most chats that aren't known here name their control tokens.
_CONTROL = re.compile(r"<[|｜][\w▁ ]+[|｜]>|<\|\w+>|<\w+\|>")
# What is written after each step for Qwen's reward models, and for
# Math-Shepherd's: there a word at the end of a line, as its letters are in words,
# too.
_MARKS = r"<extra_0>|(?:\s|(?<=\n)|\A)ки[ \t]*(?:\r?\n|\Z)"


class Turns(NamedTuple):
  """What a text says.

  Args:
    problem: The problem.
    response: The response.
  """

  problem: str
  response: str


@dataclasses.dataclass(frozen=True)
class Chat:
  """What a template writes around a problem and a response.

  Args:
    name: The name of the template.
    before: The text before the problem. If it is in two pieces, any system turn
      is between them.
    after: The text between the problem and the response.
    ends: How a turn may end: names of tokens, or two of them.
    names: The names of control tokens, which no problem and response holds.
    strips: Whether the template strips the problem.
  """

  name: str
  before: tuple[str, ...]
  after: str
  ends: tuple[str, ...]
  names: frozenset[str]
  strips: bool = False


class _UnreadError(Exception):
  """Why a text isn't one that a template writes."""


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads the texts that clients of one model send.

  Args:
    chats: The chats that it knows; those with a longer text after the problem
      come first.
    takes_plain: Whether a prompt without the name of a control token is the
      problem itself.
    mark: What the model's own template writes after each step; "" is nothing.
  """

  chats: tuple[Chat, ...]
  takes_plain: bool = True
  mark: str = ""

  def read(self, text: str, where: str) -> Turns:
    """Returns the problem and the response of a rendered chat.

    Args:
      text: The text.
      where: The field that it is, for errors.

    Raises:
      RefusedError: No known chat is written so, or another one is, too.
    """
    reasons = []
    for chat in self._candidates(text):
      try:
        return _turns(chat, *_split(chat, text))
      except _UnreadError as e:
        reasons.append(f"{chat.name}: {e}")
    raise _refused(reasons, "a chat", where)

  def read_pair(self, prompt: str, rest: str, where: str) -> Turns:
    """Returns the problem of a prompt, and the response that follows it.

    Args:
      prompt: A rendered chat up to the response, or the problem itself.
      rest: What the policy wrote after it.
      where: The field of the prompt, for errors.

    Raises:
      RefusedError: No known chat is written so, or another one is, too.
    """
    reasons = []
    for chat in self._candidates(prompt):
      try:
        return _turns(chat, _prompted(chat, prompt), rest)
      except _UnreadError as e:
        reasons.append(f"{chat.name}: {e}")
    if self.takes_plain:
      try:
        _check_plain(prompt, self._names)
        return Turns(prompt, self._response(rest))
      except _UnreadError as e:
        reasons = reasons or [str(e)]
    raise _refused(reasons, "a prompt", where)

  def read_response(self, text: str, where: str) -> str:
    """Returns a response without the end of its turn.

    Args:
      text: What a policy wrote after a prompt that is known.
      where: The field that it is, for errors.

    Raises:
      RefusedError: It holds the name of a control token.
    """
    try:
      return self._response(text)
    except _UnreadError as e:
      raise _refused([str(e)], "a response", where) from None

  def read_steps(self, response: str, where: str) -> tuple[str, ...] | None:
    """Returns the steps of a response with a mark after each; None if it has none.

    White space around them stays if the model was trained with marks.

    Args:
      response: The response.
      where: The field that it is in, for errors.

    Raises:
      RefusedError: It has marks, but none after the last step, or two with no
        step between them.
    """
    own = f"{re.escape(self.mark)}|" if self.mark else ""
    marks = re.compile(own + _MARKS)
    mark = marks.search(response)
    if mark is None:
      return None
    *steps, last = marks.split(response)
    if last.strip():
      raise refusals.invalid(
        f"{mark[0].strip()!r} ends steps, but there is none after the last step;"
        " write it after each, or send steps to /v1/prm/score",
        where,
      )
    for i, step in enumerate(steps):
      if not step.strip():
        raise refusals.invalid(
          f"step {i} (from 0) is empty: there is no text before its mark"
          f" {mark[0].strip()!r}; leave the mark out",
          where,
        )
    return tuple(steps if self.mark else (step.strip() for step in steps))

  def _response(self, text: str) -> str:
    ends = dict.fromkeys(x for chat in self.chats for x in chat.ends)
    response = _without_end(tuple(ends), text)
    _check_plain(response, self._names)
    return response

  @property
  def _names(self) -> frozenset[str]:
    return frozenset().union(*(chat.names for chat in self.chats))

  def _candidates(self, text: str) -> Iterator[Chat]:
    """Yields the chats that may have written a text's beginning."""
    for chat in self.chats:
      if any(text.startswith(first) for first in _openings(chat)):
        yield chat


@functools.lru_cache(maxsize=16)
def reader(template: Any) -> Reader:
  """Returns what reads the texts of a model's clients.

  Args:
    template: The template of the model's encoding.
  """
  if isinstance(template, policy_text.PolicyTemplate):
    chat = _of_policy(template)
    return Reader((chat,), takes_plain=_is_chat(chat))
  known = tuple(map(_of_policy, _published()))
  own = None
  if isinstance(template, templates.PromptTemplate):
    own = _of_prompt(template)
  if own is None:
    return Reader(known)
  closed = (
    dataclasses.replace(chat, ends=(*chat.ends, *own.ends)) for chat in known
  )
  return Reader((own, *closed), mark=_mark(template))


def _published() -> Iterator[policy_text.PolicyTemplate]:
  """Yields the published chats, with any system turn and with none."""
  yield policy_templates.qwen3(thinking=False, system=_ANY)
  yield policy_templates.qwen3(thinking=False)
  yield policy_templates.qwen3(system=_ANY)
  yield policy_templates.qwen3()
  yield policy_templates.llama3(_ANY)
  yield policy_templates.llama3()
  yield policy_templates.mistral()
  yield policy_templates.gemma()


def _of_policy(template: policy_text.PolicyTemplate) -> Chat:
  before, after, controls = _around(template.opening)
  names = {*controls, *template.ends} - {*template.thinking}
  # A reward model's chat may have a text between a solution and its end; what a
  # policy wrote has none.
  between = "".join(x for kind, x in template.closing[:1] if kind == "text")
  ends = dict.fromkeys(
    f"{x}{end}" for end in template.ends for x in (between, "")
  )
  chat = Chat(
    *(template.name, before, after, tuple(ends), frozenset(names)),
    strips=template.strips,
  )
  # A plain prompt could be written around any chat.
  if _is_chat(chat):
    return chat
  return dataclasses.replace(chat, names=chat.names | _published_names())


def _of_prompt(template: templates.PromptTemplate) -> Chat | None:
  """Returns the chat of a reward model's template; None if it is no chat."""
  kinds = [kind for kind, _ in template.opening]
  if "problem" not in kinds or template.first_step:
    return None
  before, after, controls = _around(template.opening)
  closing = [name for kind, name in template.closing if kind == "control"]
  # Qwen's reward models are sent <|im_end|> and <|endoftext|>.
  more = {
    end
    for published in _published()
    if {*closing} & {*published.ends}
    for end in published.ends
  } - {*closing}
  ends = [*closing, *(f"{x}{end}" for x in closing for end in sorted(more))]
  names = frozenset({*controls, *closing, *more})
  chat = Chat(template.name, before, after, tuple(ends), names)
  return chat if _is_chat(chat) else None


def _mark(template: templates.PromptTemplate) -> str:
  """Returns what a template writes after each step; "" if it is no control."""
  written = [part for part in template.step if part[0] in ("text", "control")]
  # A mark of letters could be a step's own.
  is_first = template.step[0][0] == "step"
  is_marked = is_first and written and written[0][0] == "control"
  return "".join(content for _, content in written) if is_marked else ""


def _is_chat(chat: Chat) -> bool:
  """Returns whether a control token ends the problem."""
  return bool(_held(chat.after, chat.names))


@functools.cache
def _published_names() -> frozenset[str]:
  """Returns the names of all control tokens of the published chats."""
  return frozenset().union(*(_of_policy(x).names for x in _published()))


def _around(
  opening: Iterable[templates.TemplatePart],
) -> tuple[tuple[str, ...], str, set[str]]:
  """Returns the text before the problem, after it, and the controls' names."""
  texts, controls = [""], set()
  for kind, content in opening:
    if kind == "problem":
      texts.append("")
    else:
      texts[-1] += content
    if kind == "control":
      controls.add(content)
  before, after = texts
  return tuple(before.split(_ANY)), after, controls


def _openings(chat: Chat) -> Iterator[str]:
  """Yields how a chat may begin: with its first token, and without."""
  first = chat.before[0]
  yield first
  for bos in _BOS:
    if first.startswith(bos):
      yield first.removeprefix(bos)


def _prompted(chat: Chat, prompt: str) -> str:
  """Returns the problem of a chat up to the response."""
  rest = _opened(chat, prompt)
  if not chat.after or not rest.endswith(chat.after):
    raise _UnreadError(f"its prompt doesn't end with {chat.after!r}")
  return rest.removesuffix(chat.after)


def _split(chat: Chat, text: str) -> tuple[str, str]:
  """Returns the problem and the rest of a whole chat."""
  rest = _opened(chat, text)
  at = rest.find(chat.after) if chat.after else -1
  if at < 0:
    raise _UnreadError(f"no {chat.after!r} after the problem")
  if rest.rfind(chat.after) != at:
    raise _UnreadError(f"{chat.after!r} is there more than once")
  return rest[:at], rest[at + len(chat.after) :]


def _opened(chat: Chat, text: str) -> str:
  """Returns what follows the text before the problem."""
  rest = next(
    text.removeprefix(first)
    for first in _openings(chat)
    if text.startswith(first)
  )
  for piece in chat.before[1:]:
    system, found, rest = rest.partition(piece)
    if not found or _held(system, chat.names):
      raise _UnreadError("it isn't one system turn and one problem")
  return rest


def _turns(chat: Chat, problem: str, rest: str) -> Turns:
  """Returns the turns of a problem and the text after it."""
  if chat.strips and problem != problem.strip():
    raise _UnreadError("it has no white space around a problem")
  if name := _held(problem, chat.names):
    raise _UnreadError(f"the problem holds {name!r}")
  response = _without_end(chat.ends, rest)
  if name := _held(response, chat.names):
    raise _UnreadError(f"the response holds {name!r}")
  return Turns(problem, response)


def _check_plain(text: str, names: Iterable[str]) -> None:
  """Refuses a text that isn't of a chat, but holds what looks like one."""
  control = _CONTROL.search(text)
  if name := _held(text, names) or (control[0] if control else ""):
    raise _UnreadError(
      f"{name[:40]!r} is there, but no known template around it"
    )


def _without_end(ends: tuple[str, ...], text: str) -> str:
  """Returns a text without the end of its turn."""
  endings = (f"{end}{line}" for end in ends for line in ("", "\n"))
  fitting = [end for end in endings if text.endswith(end)]
  return text.removesuffix(max(fitting, key=len, default=""))


def _held(text: str, names: Iterable[str]) -> str:
  """Returns a name that a text holds, or ""."""
  return next((name for name in sorted(names) if name in text), "")


def _refused(
  reasons: list[str], what: str, where: str
) -> refusals.RefusedError:
  reason = reasons[-1] if reasons else "its beginning is no known template's"
  return refusals.invalid(
    f"not {what} that this model's clients write ({reason}); send the problem"
    " and the response apart, as /v1/prm/score takes them",
    where,
  )
