"""From a folder's chat template to a policy's template, which is data.

A chat template is a program. It is rendered once, at import, in a process with
limits (chat_template_worker), with texts in place of the problem and the
answer that no template holds. What it writes around them is cut into parts and
kept. The template is refused if it isn't of this form: what it writes for other
problems is compared, hostile ones among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import pathlib
import re
from typing import Any

from prm_jax import errors
from prm_jax.huggingface import token_names
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import limited_process
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import trial_texts

# The longest published ones have some 20,000 characters.
MOST_CHARACTERS = 1 << 18
TIME_S = 10
MEMORY_MIB = 512
_WORKER = pathlib.Path(__file__).with_name("chat_template_worker.py")

# Texts that no template holds, nor changes.
PROBLEM, ANSWER, SYSTEM = "Zq7problem7qZ", "Zq7answer7qZ", "Zq7system7qZ"
THINK = ("<think>", "</think>")


def source(folder: pathlib.Path) -> str | None:
  """Returns the text of a folder's chat template, None if it has none.

  chat_template.jinja comes before tokenizer_config.json, as in transformers; of
  several templates it is the one with the name default.

  Raises:
    InputError: The template is no text, too long, or none is the default.
  """
  path = foreign_files.find(folder, "chat_template.jinja")
  if path is not None:
    return _limited(files.read_text(path), path)
  path = folder / token_names.CONFIG
  text = token_names.read_config(folder).get("chat_template")
  if isinstance(text, list):
    try:
      named = {x["name"]: x["template"] for x in text}
    except (TypeError, KeyError):
      raise _damaged(path) from None
    if "default" not in named:
      raise errors.InputError(
        f"{path}: none of its chat templates is the default:"
        f" {', '.join(map(str, named))}; name a `policy_template`"
      )
    text = named["default"]
  return None if text is None else _limited(text, path)


def _limited(text: Any, path: pathlib.Path) -> str:
  if not isinstance(text, str):
    raise _damaged(path)
  if len(text) > MOST_CHARACTERS:
    raise errors.InputError(
      f"{path}: a chat template of {len(text):,} characters; expected"
      f" {MOST_CHARACTERS:,} at most; name a `policy_template`"
    )
  return text


def _damaged(path: pathlib.Path) -> errors.InputError:
  return errors.InputError(
    f"{path}: damaged chat_template: expected a text, or a list of objects with"
    " name and template; fetch it again"
  )


def policy_template(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  system: str | None = None,
  thinking: bool | None = None,
) -> policy_text.PolicyTemplate:
  """Returns a folder's chat template as data.

  Args:
    folder: The Hugging Face folder; it has a chat template.
    tokenizer: Its tokenizer.
    system: The system turn; None is the template's own.
    thinking: The template's `enable_thinking`; None leaves it undefined.

  Raises:
    InputError: The template isn't of the form that data can have, or lacks what
      was asked for. The message names `policy_template`, which does without it.
  """
  text = source(folder)
  assert text is not None
  names = token_names.controls(folder, tokenizer)
  chat = Chat(folder, text, token_names.special(folder), system, thinking)
  parts, strips, end = chat.read(names)
  thinks = all(name in names for name in THINK)
  template = policy_text.PolicyTemplate(
    "chat", parts, (end,), strips=strips, thinking=THINK if thinks else ()
  )
  _check_ids(folder, template, tokenizer, names)
  return dataclasses.replace(template, name=_known(template, system, thinking))


def _known(
  template: policy_text.PolicyTemplate,
  system: str | None,
  thinking: bool | None,
) -> str:
  """Returns the name of the known template that this is, else its own."""
  for name in policy_templates.CHATS:
    try:
      known = policy_templates.published(name, system=system, thinking=thinking)
    except errors.InputError:
      continue
    # With a system turn, Qwen2.5 and 3 differ in their tokenizers alone.
    same = dataclasses.replace(known, name="chat", ends=known.ends[:1])
    if same == template:
      return name
  return template.name


# --- Rendering --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Chat:
  """A chat template and what it is rendered with."""

  folder: pathlib.Path
  text: str
  special: Mapping[str, str]
  system: str | None
  thinking: bool | None
  remedy: str = (
    f"; name a `policy_template`: {', '.join(policy_templates.NAMES)}"
  )

  def read(
    self, names: Sequence[str]
  ) -> tuple[tuple[templates.TemplatePart, ...], bool, str]:
    """Returns the opening, whether the problem is stripped, and the end.

    Args:
      names: The names of the control tokens.
    """
    problems = (
      *trial_texts.PROBLEMS,
      *trial_texts.TYPED_NAMES,
      " ".join(names),
    )
    marked = None if self.system is None else SYSTEM
    both = [self.asked(PROBLEM, marked, thinking=x) for x in (True, False)]
    first, answered, on, off, *others = self.render(
      self.asked(PROBLEM, marked),
      self.asked(PROBLEM, None, answer=ANSWER),
      *both,
      *(self.asked(problem, self.system) for problem in problems),
    )
    if self.thinking is not None and on == off:
      raise self.refused(
        "has no switch for thinking; leave `thinking` out", is_remedy=True
      )
    if self.system is not None and "error" in first:
      reason = _short(first["error"])
      raise self.refused(
        f"has no system turn: {reason}; leave `system` out", is_remedy=True
      )
    opening = self.text_of(first)
    self.check_once(opening, PROBLEM, "the problem")
    if self.system is not None:
      self.check_once(opening, SYSTEM, "a system turn")
    texts = [(x, "", self.text_of(y)) for x, y in zip(problems, others)]
    strips, system = self.strips(opening, texts)
    parts = parts_of(opening, names, system)
    return parts, strips, self.end(answered, names)

  def strips(
    self,
    opening: str,
    written: Sequence[tuple[str, str, str]],
    otherwise: str = "writes more than the problem where it stands",
  ) -> tuple[bool, str]:
    """Returns whether the problem is stripped, and the system turn's text.

    Args:
      opening: The opening, with marks in place of problem and system turn.
      written: Problems, what should follow the opening, and what is written.
      otherwise: Why the template is refused if neither explains this.
    """
    own = self.system or ""
    for strips, system in itertools.product(
      (False, True), dict.fromkeys((own, own.strip()))
    ):
      if all(
        filled(opening, problem.strip() if strips else problem, system) + after
        == text
        for problem, after, text in written
      ):
        return strips, system
    raise self.refused(otherwise)

  def end(self, answered: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the name of the token that follows an assistant's turn."""
    text = self.text_of(answered)
    self.check_once(text, ANSWER, "an assistant's turn")
    after = cut(text.partition(ANSWER)[2], names)
    for kind, content in after:
      if kind == "control":
        return content
      if content.strip():
        break
    eos = self.special.get("eos_token", "")
    if not "".join(content for _, content in after).strip() and eos in names:
      return eos
    raise self.refused("ends an assistant's turn without a control token")

  def asked(
    self,
    problem: str,
    system: str | None,
    *,
    answer: str | None = None,
    thinking: bool | None = None,
  ) -> dict[str, Any]:
    """Returns the variables of a question."""
    turns = [("system", system), ("user", problem), ("assistant", answer)]
    messages = [dict(role=x, content=y) for x, y in turns if y is not None]
    switch = self.thinking if thinking is None else thinking
    return self.variables(messages, is_begun=answer is None, thinking=switch)

  def variables(
    self,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    is_begun: bool = False,
    thinking: bool | None = None,
  ) -> dict[str, Any]:
    """Returns the variables of messages, as transformers gives them.

    Args:
      messages: The messages.
      tools: The tools.
      is_begun: Whether the beginning of the next turn follows.
      thinking: `enable_thinking`; None leaves it undefined.
    """
    return dict(
      **self.special,
      **({} if thinking is None else dict(enable_thinking=thinking)),
      messages=messages,
      tools=list(tools) or None,
      documents=None,
      add_generation_prompt=is_begun,
    )

  def render(self, *variables: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns what the worker makes of the template with each variables."""
    return self.run(*variables)["replies"]

  def run(self, *variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the worker writes; see chat_template_worker."""
    reply = limited_process.run(
      _WORKER,
      dict(template=self.text, variables=variables),
      time_s=TIME_S,
      memory_mib=MEMORY_MIB,
    )
    if reply is None:
      raise self.refused(
        f"can't be rendered in {TIME_S} s and {MEMORY_MIB} MiB"
      )
    return reply

  def text_of(self, reply: Mapping[str, str]) -> str:
    if "text" in reply:
      return reply["text"]
    raise self.refused(f"can't be rendered: {_short(reply['error'])}")

  def check_once(self, text: str, mark: str, what: str) -> None:
    count = text.count(mark)
    if count != 1:
      raise self.refused(f"writes {what} {count} times; expected once")

  def refused(
    self, reason: str, *, is_remedy: bool = False
  ) -> errors.InputError:
    remedy = "" if is_remedy else self.remedy
    return errors.InputError(
      f"{self.folder}: its chat template {reason}{remedy}"
    )


def _short(error: str) -> str:
  return " ".join(error.split())[:200]


# --- Text to parts ----------------------------------------------------------


def filled(opening: str, problem: str, system: str) -> str:
  """Returns an opening with texts in place of its marks, each put in once."""
  texts = {PROBLEM: problem, SYSTEM: system}
  return re.sub(f"{PROBLEM}|{SYSTEM}", lambda x: texts[x.group()], opening)


def parts_of(
  opening: str, names: Sequence[str], system: str
) -> tuple[templates.TemplatePart, ...]:
  """Returns the parts of an opening with marks; a system turn is a text."""
  parts: list[templates.TemplatePart] = []
  for piece in re.split(f"({PROBLEM}|{SYSTEM})", opening):
    if piece == PROBLEM:
      parts.append(templates.PROBLEM)
    elif piece == SYSTEM:
      parts.append(("text", system))
    else:
      parts += cut(piece, names)
  return tuple(joined(parts))


def cut(text: str, names: Sequence[str]) -> list[templates.TemplatePart]:
  """Returns a text cut at the names of control tokens, the longest first."""
  longest = sorted(names, key=len, reverse=True)
  pattern = "|".join(map(re.escape, longest))
  pieces = re.split(f"({pattern})", text) if names else [text]
  return [
    ("control" if i % 2 else "text", piece)
    for i, piece in enumerate(pieces)
    if piece
  ]


def joined(
  parts: Iterable[templates.TemplatePart],
) -> list[templates.TemplatePart]:
  """Returns the parts with texts side by side made one."""
  whole: list[templates.TemplatePart] = []
  for kind, content in parts:
    if whole and kind == whole[-1][0] == "text":
      whole[-1] = ("text", whole[-1][1] + content)
    else:
      whole.append((kind, content))
  return whole


def _check_ids(
  folder: pathlib.Path,
  template: policy_text.PolicyTemplate,
  tokenizer: tokenizer_lib.Tokenizer,
  names: Sequence[str],
) -> None:
  """Refuses a template whose text has other ids than its parts.

  A tokenizer.json may drop the white space beside a control token, say. The
  whole text is encoded as transformers does it, with control tokens found in
  it; no name of one is in these problems.
  """
  texts = [content for kind, content in template.opening if kind == "text"]
  # A system turn with the name of a control: a text to us, a control to others.
  if any(name in text for text in texts for name in names):
    return
  other = token_names.other_ids(
    folder,
    (
      (
        problem,
        "".join(x for _, x in template.opening_parts(problem)),
        template.write_opening(problem, tokenizer),
      )
      for problem in trial_texts.PROBLEMS
      if not any(name in problem for name in names)
    ),
  )
  if other is not None:
    raise errors.InputError(
      f"{folder}: its tokenizer encodes the parts of the chat template"
      f" otherwise than the whole, for {other[:20]!r}; such a tokenizer isn't"
      " supported with controls in a prompt; name `policy_template=plain`"
    )
