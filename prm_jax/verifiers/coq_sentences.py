"""Coq's sentences in a text, and which of them may be in someone's proof.

A sentence ends with a full stop before a blank, as Coq's lexer has it; a bullet
or a brace at its beginning is one, too. Comments are left out.
"""

from __future__ import annotations

import dataclasses
import re

_SELECTOR = r"(?:all|par|!|\d[\d,\- ]*|\[\s*[\w']+\s*\])\s*:\s*"
# Bullets and braces, which need no full stop.
_MARK = re.compile(rf"-+|\++|\*+|(?:{_SELECTOR})?\{{(?!\|)|\}}")
_BLANK = re.compile(r"[ \t\r\n]+")
_COMMENT_PART = re.compile(r'\(\*|\*\)|"[^"]*(?:"|$)', re.S)
_STRING = re.compile(r'"[^"]*(?:"|$)')
_DOTS = re.compile(r"\.+")
_OTHER = re.compile(r'[^."( \t\r\n]+|\(')
_STATEMENT = re.compile(
  r"(?:Theorem|Lemma|Fact|Remark|Corollary|Proposition|Example)"
  r"\s+([^\W\d][\w']*)(?=[\s:({\[@])"
)
# Tactics begin with a small letter or have a module's name before them;
# commands are a word with a capital letter.
_TACTIC = re.compile(r"[a-z_(\[]|[A-Z]\w*\.\w")
_GIVING_UP = re.compile(r"\b(?:admit|give_up)\b(?!')")
_ASSUMING = re.compile(
  "(?:Abort|Admitted|Axioms?|Conjectures?|Hypothes[ie]s|Parameters?|Variables?)"
  r"(?!\w)"
)
_COMMANDS = frozenset(("Proof.", "Unshelve."))
CLOSING = frozenset(("Qed.", "Defined."))


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A sentence.

  Args:
    text: It, with one blank for comments and for several blanks.
    start: The offset of its first sign in the whole text.
    end: The offset after its last.
    is_whole: Whether it has its end; only the last may have none.
  """

  text: str
  start: int
  end: int
  is_whole: bool = True


def split(text: str) -> list[Sentence]:
  """Returns the sentences of a text.

  Args:
    text: It.
  """
  found: list[Sentence] = []
  parts: list[str] = []
  at = start = 0
  while at < len(text):
    end = _blank_end(text, at)
    if end > at:
      if parts and parts[-1] != " ":
        parts.append(" ")
      at = end
      continue
    token = None if parts else _MARK.match(text, at)
    is_end = token is not None
    if token is None:
      token = (
        _DOTS.match(text, at)
        or _STRING.match(text, at)
        or _OTHER.match(text, at)
      )
      assert token is not None  # the patterns cover all characters
      # Two dots are no end: they stand for what a notation repeats.
      is_end = token[0][0] == "." and len(token[0]) != 2
      is_end &= text[token.end() : token.end() + 1] in ("", *" \t\r\n")
    start = start if parts else at
    parts.append(token[0])
    at = token.end()
    if is_end:
      found.append(Sentence("".join(parts), start, at))
      parts = []
  if parts:
    found.append(Sentence("".join(parts).rstrip(), start, at, False))
  return found


def renamed(sentence: str, name: str) -> tuple[str, str] | None:
  """Returns a theorem's statement with another name, and its own name.

  Args:
    sentence: The statement.
    name: The other name.

  Returns:
    None if it is no statement.
  """
  found = _STATEMENT.match(sentence)
  if found is None:
    return None
  return sentence[: found.start(1)] + name + sentence[found.end(1) :], found[1]


def why_not_sent(sentence: str) -> tuple[float | None, str] | None:
  """Returns why a sentence isn't sent to Coq, None if it is a proof's.

  Only tactics and a few commands are: no command can then read, write, load,
  assume, declare or restate anything.

  Args:
    sentence: The sentence.

  Returns:
    The label and the reason.
  """
  if sentence in _COMMANDS | CLOSING or _MARK.fullmatch(sentence):
    return None
  if _GIVING_UP.search(_STRING.sub('""', sentence)):
    return 0, "it gives a goal up"
  if _TACTIC.match(re.sub(f"^{_SELECTOR}", "", sentence)):
    return None
  word = sentence.split()[0].rstrip(".")[:40]
  if _ASSUMING.match(sentence):
    return 0, f"{word}: a proof may not give up or assume anything"
  return (
    None,
    f"not sent: {word} is no tactic and not Proof., Qed. or Unshelve.",
  )


def _blank_end(text: str, at: int) -> int:
  """Returns where the blanks or the comment at an offset end."""
  if blank := _BLANK.match(text, at):
    return blank.end()
  depth = 0
  while text.startswith("(*", at) or depth:
    part = _COMMENT_PART.search(text, at)
    if part is None:
      return len(text)
    depth += {"(*": 1, "*)": -1}.get(part[0], 0)
    at = part.end()
    if not depth:
      break
  return at
