r"""Final answers: where a solution states one.

docs/answers.md has the table of the forms that are read. All of it takes time
linear in the text, whatever the text. grading.equality says when two answers
are the same.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import re

from prm_jax import schema

# The names around a model's reasoning: those of most models, Magistral's,
# Kimi's, Sky-T1's, Seed-OSS's; gpt-oss opens a channel for each.
_XML = "think|thinking|thought|thoughts|reasoning|seed:think"
_OPENS = re.compile(
  rf"<(?:{_XML})>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>"
  r"|<\|channel\|>(?:analysis|commentary)",
  re.I,
)
_CLOSES = re.compile(
  rf"</(?:{_XML})>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>"
  r"|<\|channel\|>final(?:<\|message\|>)?",
  re.I,
)

# A tokenizer's name of the end, which some programs leave in a text.
_END = re.compile(r"(?:<\|[a-z_]{1,30}\|>|</s>|<eos>|<end_of_turn>)\Z")
_ANSWER = (
  r"(?:(?:so|thus|hence|therefore|my|and)\b,?[ \t]++)?+(?:the[ \t]++)?+"
  r"(?:(?:final|correct)[ \t]++)?+(?:answer|ans)\b"
)
# What may stand before a label or a heading: marks, not text.
_MARKS = r"[^\w\n\\$]{0,20}+"
_FINAL_LINE = re.compile(
  r"^.*?#{4,}+(?![ \t]*+(?:final[ \t]++)?+answer\b)", re.I | re.M
)
# Markdown's headings have as many marks: words over a text.
_WORDED = re.compile(r"\s*+[*_]*+[A-Za-z]{3,}[^\n]*+\n\s*+\S")
_HEADING = re.compile(
  rf"^(?=[^\w\n]|.*:|[ \t]*+final){_MARKS}{_ANSWER}{_MARKS}$", re.I | re.M
)
_LABEL = re.compile(
  rf"(?:^{_MARKS}|[.!?)\]*][ \t]++{_MARKS}){_ANSWER}[ \t*_]*+(?:is[ \t*_]*+)?+"
  r"[:\uff1a=][*_]*+",
  re.I | re.M,
)
_LAST_LINE = re.compile(
  rf"{_MARKS}{_ANSWER}[ \t]++(?P<word>\S++)[ \t]*+$|[ \t]*+A:(?P<short>.+)$",
  re.I,
)
_SENTENCE = re.compile(
  r"(?<!if the )(?<!if your )(?<!whether the )"
  r"\banswer(?:[ \t]++(?:to|for|of)\b[^.:\n]{1,120}?)?[ \t]++"
  r"(?:is|equals|(?:would|should|must|will)[ \t]++be)\b(?:\s*+[:\uff1a])?+"
  r"|\u7b54\u6848(?:\u662f|\u4e3a)?+[:\uff1a]?+",
  re.I,
)
# Where a sentence goes on after its answer.
_CLAUSE_OR_FORMULA = re.compile(
  r"\$|\\[()]|\.[*_]*+\s|\u3002|,? \(?(?:because|since|which"
  r"|as (?:required|expected|needed|shown|stated|the|we|it)|so that)\b"
  r"|, (?:so|where|when|if|but|while|meaning|making|giving|given|assuming|not"
  r"|as|after|rounded|and (?:the|we|it|this|that|he|she|they|there|so))\b",
  re.I,
)
_ADVERB = re.compile(
  r"[\s,]*+(?:(?:exactly|simply|just|indeed|thus|therefore|then|equal to|as follows"
  r"|approximately|about|around|given by|option|choice)\b[ \t]*+[:,]?+\s*+)*+",
  re.I,
)
# "The answer is correct" says something of an answer that stands elsewhere.
_VERDICT = re.compile(
  r"\s*+(?:not\b|\{"
  r"|(?:in)?(?:correct|wrong|right|valid|verified|reasonable|consistent"
  r"|confirmed|clear)(?=\s*+(?:[.,;:!?]|$|and\b|because\b|since\b)))",
  re.I | re.M,
)
# So do these, if an answer is stated elsewhere.
_ABOUT = re.compile(
  r"(?:an?|obtained|derived|found|calculated|computed|arrived|based|expressed"
  r"|written|in (?:the )?(?:form|terms)|of the form|unique|let|let's|let us|to"
  r"|first|we)\b",
  re.I,
)
_DISPLAY = re.compile(
  r"\s*+(?:\$\$[^$]{1,2000}\$\$"
  r"|\\\[(?:[^\\]|\\(?!\])){1,2000}\\\])"
)
_BULLET = re.compile(r"\A(?:[*\u2022]\s++|-\s++(?=[*$\\]))")
_HTML = re.compile(
  r"<(b|i|em|strong|u|code|mark|span|p)>([^<]*+)</\1>|<br\s*+/?>", re.I
)
# No grader reads half as much.
_MOST_CHARS = 4_000
# Nobody says so often of an answer only that it is correct.
_MOST_TRIES = 100
_MOST_MARKS = 8  # one within the other, as **`x`**.
_BOX_PARTS = re.compile(
  r"(?P<box>\\(?:boxed|fbox|framebox)\s*+)(?P<brace>\{)?+|\\.|[{}]", re.S
)
_BOXED_WORD = re.compile(r"[^\s$\\{}]++")


def of_solution(solution: schema.Solution) -> str | None:
  """Returns the answer that a solution states after its thinking, or None.

  The steps are read; where thinking ended is told by the solution's whole text,
  as the names around it are in no step.

  Args:
    solution: The solution. If extra[schema.THINKING] is true, it ended while
      the model was thinking, and states no answer.
  """
  if solution.extra.get(schema.THINKING):
    return None
  if solution.raw_text is None or solution.spans is None:
    return extract(solution.steps)
  start, end = _after_thinking(solution.raw_text)
  after = [
    solution.raw_text[max(a, start) : min(b, end)]
    for a, b in solution.spans
    if b > start and a < end
  ]
  return extract(after)


def extract(solution: str | Sequence[str]) -> str | None:
  r"""Returns the final answer that a solution's text or steps state, or None.

  What follows the model's thinking is read; a text whose thinking has no end
  states nothing. The forms are those of docs/answers.md: marks (`#### x`,
  `\boxed{x}`, <answer>x</answer>, a heading `# Answer` with x below it) come
  before prose (`Answer: x`, `The answer is x`). Of several the last one counts.
  The answer is returned as written, without marks around it, a clause after it
  and a closing full stop.
  """
  text = solution if isinstance(solution, str) else "\n".join(solution)
  start, end = _after_thinking(text)
  text = text[start:end].rstrip()
  if ending := _END.search(text, max(0, len(text) - 40)):
    text = text[: ending.start()].rstrip()
  marked = (
    _from_final_line(text),
    _from_heading(text),
    _from_tag(text),
    _from_box(text),
  )
  # Prose goes on talking ("the answer is correct"), so marks come first.
  prose = (_from_label(text), _from_sentence(text), _from_last_line(text))
  for places in (marked, prose):
    known = [place for place in places if place]
    stated = [place for place in known if not _ABOUT.match(place[1])]
    if stated or known:
      return max(stated or known)[1]
  return None


def ends_in_thinking(text: str) -> bool:
  """Returns whether a text ends within a thought that it began."""
  return _after_thinking(text)[1] != len(text)


def _after_thinking(text: str) -> schema.Span:
  """Returns the part of a text after its last thought, in characters."""
  start = 0
  for match in _CLOSES.finditer(text):
    start = match.end()
  opened = _OPENS.search(text, start)
  return start, opened.start() if opened else len(text)


# --- Finding: each returns (place in the text, answer) or None ---------------


def _from_final_line(text):
  """GSM8K's `#### x`."""
  for match in reversed(list(_FINAL_LINE.finditer(text))):
    if not _WORDED.match(text, match.end()):
      line = _line(text, match.end())
      return _found(match.start(), line.strip("#"))
  return None


def _from_heading(text):
  """PRM800K's heading `# Answer`, `**Final Answer**`: the paragraph below it."""
  match = _last(_HEADING, text)
  if match is None:
    return None
  below = text[match.end() :].strip()
  if display := _displayed(below, 0):
    return _found(match.start(), display)
  below = _BULLET.sub("", below.split("\n\n", 1)[0], count=1)
  stated = _from_sentence(below)
  return _found(match.start(), stated[1] if stated else below)


def _from_tag(text):
  """<answer>x</answer>, with which R1's form ends."""
  lower = text.lower()
  end = lower.rfind("</answer>")
  start = lower.rfind("<answer>", 0, max(end, 0))
  return None if start < 0 else _found(start, text[start + 8 : end])


def _from_label(text):
  """A line or sentence `Answer: x`."""
  return _last_stated(text, _LABEL)


def _from_sentence(text):
  """Math-Shepherd's `The answer is: x`, to the end of clause or sentence."""
  return _last_stated(text, _SENTENCE)


def _last_stated(text, pattern):
  """Returns what follows the last match, of those that don't only say something."""
  about = None
  last = collections.deque(pattern.finditer(text), maxlen=_MOST_TRIES)
  for match in reversed(last):
    if _VERDICT.match(text, match.end()):
      continue
    adverbs = _ADVERB.match(text, match.end())
    start = adverbs.end() if adverbs else match.end()
    answer = _displayed(text, start) or _without_clause(_line(text, start))
    found = _found(match.start(), answer)
    if found and not _ABOUT.match(found[1]):
      return found
    about = about or found
  return about


def _from_last_line(text):
  """The testbed's `answer x`, and `A: x`."""
  start = text.rfind("\n") + 1
  match = _LAST_LINE.match(text, start)
  return match and _found(start, match["word"] or match["short"])


def _from_box(text):
  r"""The last closed \boxed{x} that isn't blank; \boxed x, as MATH has it."""
  stack: list[tuple[int, int] | None] = []
  last = None
  for match in _BOX_PARTS.finditer(text):
    box = None
    if match.group("brace"):
      stack.append(match.span())
    elif match.group("box"):
      word = _BOXED_WORD.match(text, match.end())
      box = word and (match.start(), word.group().rstrip(".,;"))
    elif match.group() == "{":
      stack.append(None)
    elif match.group() == "}" and stack:
      opened = stack.pop()
      # In nested boxes the inner one closes first and started last.
      if opened and (last is None or opened[0] > last[0]):
        box = (opened[0], text[opened[1] : match.start()].strip())
    if box and box[1]:
      last = box
  return last


def _last(pattern, text) -> re.Match[str] | None:
  last = None
  for match in pattern.finditer(text):
    last = match
  return last


def _line(text: str, start: int) -> str:
  """Returns the first line after a place; of a very long one the beginning."""
  return text[start : start + _MOST_CHARS].lstrip().split("\n", 1)[0]


def _displayed(text: str, start: int) -> str | None:
  """Returns the formula of a display that begins at a place."""
  match = _DISPLAY.match(text, start)
  return match and match[0].strip()


def _without_clause(line: str) -> str:
  """Returns a sentence's answer without the clause and sentences after it."""
  line = line.strip().lstrip("* ")
  in_dollars = in_brackets = False
  for match in _CLAUSE_OR_FORMULA.finditer(line):
    if match[0] == "$":
      in_dollars = not in_dollars
    elif match[0] in (r"\(", r"\)"):
      in_brackets = match[0] == r"\("
    elif not (in_dollars or in_brackets) and line[: match.start()].strip():
      return line[: match.start()]
  return line


def _found(start, answer):
  answer = _HTML.sub(lambda match: match[2] or "", answer)
  for _ in range(_MOST_MARKS):
    before = answer
    answer = answer.strip().strip("*`").removesuffix(".")
    if answer.startswith("_") and answer.endswith("_"):
      answer = answer.strip("_")
    if answer == before:
      break
  return (start, answer) if answer else None
