"""How a text is cut into steps, as data that is saved with a checkpoint.

A segmenter gives spans of characters, so every step is an unchanged part of the
text, and a score belongs to a place in it. The characters between steps are
white space.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks
from prm_jax.text import marker_cuts
from prm_jax.text import paragraph_cuts
from prm_jax.text import sentence_cuts
from prm_jax.text import step_cuts
from prm_jax.text import tokenizer as tokenizer_lib

BLANK = step_cuts.BLANK
KINDS = ("paragraph", "line", "sentence", "numbered", "markers", "tokens")
# Those that a device can stop at: they don't look at what comes after a step.
WITHOUT_LOOK_AHEAD = ("paragraph", "line")

# Before a number at a line's beginning.
HEADINGS = ("step", "case", "part")
# With which a new thought begins in a long chain of thought: ThinkBooster's words
# (but and however cut too often, it says) and three of ours. The least and most
# characters of a step are those of its detector by sentences. The agreement with
# GPT-4.1 that it reports is for other limits; none was measured for these.
MARKERS = (
  *("wait", "so", "let me", "let's", "therefore", "first", "for example"),
  *("similarly", "given that", "hmm", "alternatively, let"),
)
MIN_CHARS, MAX_CHARS = 50, 1_000


@dataclasses.dataclass(frozen=True)
class Segmenter:
  """A way to cut a text into steps.

  Args:
    kind: One of KINDS. paragraph: steps have blank lines between them, outside
      of code and displays (see paragraph_cuts). line: each line that isn't
      blank. sentence: see sentence_cuts. numbered: a step begins with a number
      at a line's beginning, "Step 2:" or "2.". markers: a step begins with a
      sentence that begins with one of the words. tokens: so many tokens are a
      step.
    words: Of numbered, what may be before the number; of markers, what begins a
      step; in small letters.
    min_chars: Of markers, the least characters of a step.
    max_chars: Of markers, the most, unless one sentence is longer.
    num_tokens: Of tokens, the number of tokens of a step.

  Raises:
    InputError: There is no such kind, or a field doesn't fit it.
  """

  kind: str
  words: tuple[str, ...] = ()
  min_chars: int = 0
  max_chars: int = 0
  num_tokens: int = 0

  def __post_init__(self):
    checks.check_choice("segmenter", self.kind, KINDS)
    is_markers = self.kind == "markers"
    for name, fits in (
      ("words", is_markers or self.kind == "numbered"),
      ("min_chars", is_markers),
      ("max_chars", is_markers),
      ("num_tokens", self.kind == "tokens"),
    ):
      if getattr(self, name) and not fits:
        raise errors.InputError(
          f"segmenter {self.kind!r} has no {name}; leave it out"
        )
    if not all(isinstance(word, str) and word for word in self.words):
      raise errors.InputError(
        f"segmenter {self.kind!r}: words={reprlib.repr(self.words)}: expected"
        " texts that aren't empty"
      )
    if is_markers and not (self.words and 0 <= self.min_chars < self.max_chars):
      raise errors.InputError(
        f"segmenter 'markers': words={reprlib.repr(self.words)}, min_chars="
        f"{self.min_chars}, max_chars={self.max_chars}: expected words, and"
        " less characters at least than at most"
      )
    if self.kind == "tokens" and self.num_tokens < 1:
      raise errors.InputError(
        f"segmenter 'tokens': num_tokens={self.num_tokens}: give 1 or more, as"
        " in tokens:64"
      )


PARAGRAPH = Segmenter("paragraph")
LINE = Segmenter("line")


def parse(text: Any) -> Segmenter:
  """Returns the segmenter that a user names: a kind, or tokens:NUMBER.

  numbered and markers get HEADINGS, MARKERS, MIN_CHARS and MAX_CHARS.

  Args:
    text: What the user wrote.

  Raises:
    InputError: There is no such segmenter.
  """
  if not isinstance(text, str):
    checks.check_choice("segmenter", repr(text), KINDS)
  kind, _, number = text.partition(":")
  if kind == "tokens":
    # A number of more digits is no sensible one.
    if not re.fullmatch("[0-9]{1,9}", number):
      raise errors.InputError(
        f"segmenter={text!r}: expected a number of tokens, as in tokens:64"
      )
    return Segmenter(kind, num_tokens=int(number))
  checks.check_choice("segmenter", text, KINDS)
  if text == "numbered":
    return Segmenter(text, HEADINGS)
  if text == "markers":
    return Segmenter(text, MARKERS, MIN_CHARS, MAX_CHARS)
  return Segmenter(text)


def name_of(segmenter: Segmenter) -> str:
  """Returns a segmenter as `parse` takes it, as far as that can say it."""
  if segmenter.kind == "tokens":
    return f"tokens:{segmenter.num_tokens}"
  return segmenter.kind


def between(segmenter: Segmenter) -> str:
  """Returns what is written between steps that are given one by one."""
  if segmenter.kind in ("line", "numbered"):
    return "\n"
  return " " if segmenter.kind in ("sentence", "markers") else "\n\n"


def record_of(segmenter: Segmenter) -> dict[str, Any]:
  """Returns a segmenter as plain data, without fields that aren't set."""
  fields = dataclasses.asdict(segmenter)
  return {name: value for name, value in fields.items() if value}


def from_record(record: Any) -> Segmenter:
  """Returns the segmenter that JSON holds.

  Raises:
    InputError: There is no such segmenter.
    TypeError: The record is no object, or has other fields.
  """
  if not isinstance(record, Mapping):
    raise TypeError(f"the segmenter is {reprlib.repr(record)}")
  fields = dict(record)
  for name in ("min_chars", "max_chars", "num_tokens"):
    if type(fields.get(name, 0)) is not int:
      raise TypeError(f"{name} is {reprlib.repr(fields[name])}")
  fields["words"] = tuple(fields.get("words", ()))
  return Segmenter(**fields)


def spans(
  text: str,
  segmenter: Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
  begun: str = "",
) -> tuple[schema.Span, ...]:
  """Returns where the steps of a text are, in order, without blank ends.

  Args:
    text: A solution, whole or begun, or what follows `begun`.
    segmenter: How it is cut.
    tokenizer: The tokenizer of the model that the segmenter belongs to, for
      tokens.
    begun: The solution's text before `text`. A step begins after it. The rest
      is cut as the whole is: a number, say, counts on from its numbers.

  Raises:
    InputError: The segmenter counts tokens, and there is no tokenizer.
  """
  return _steps(text, segmenter, tokenizer, begun)[0]


def settled(
  text: str,
  segmenter: Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
  begun: str = "",
) -> int:
  """Returns how many first steps of a text no later text can move.

  Of tokens these are none: a tokenizer may join what follows to what was there.

  Args:
    text: A begun solution.
    segmenter: How it is cut.
    tokenizer: See spans.
    begun: See spans.

  Raises:
    InputError: See spans.
  """
  return _steps(text, segmenter, tokenizer, begun)[1]


def _steps(
  text: str,
  segmenter: Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None,
  begun: str,
) -> tuple[tuple[schema.Span, ...], int]:
  cuts = _cuts(begun + text, segmenter, tokenizer)
  return step_cuts.steps(text, step_cuts.after(cuts, len(begun)))


def _cuts(
  text: str,
  segmenter: Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None,
) -> step_cuts.Cuts:
  """Returns where a text is cut."""
  kind, words = segmenter.kind, segmenter.words
  if kind == "paragraph":
    return paragraph_cuts.paragraphs(text)
  if kind == "line":
    return step_cuts.at_breaks(text, step_cuts.LINE_BREAK)
  if kind == "sentence":
    return sentence_cuts.sentences(text)
  if kind == "numbered":
    return marker_cuts.numbered(text, words)
  if kind == "markers":
    limits = (segmenter.min_chars, segmenter.max_chars)
    return marker_cuts.marked(text, words, *limits)
  if tokenizer is None:
    raise errors.InputError(
      "segmenter 'tokens' counts a tokenizer's tokens; give the model's"
      " tokenizer"
    )
  ends = [end for _, end in tokenizer.encode_with_spans(text)[1]]
  points = ends[segmenter.num_tokens - 1 :: segmenter.num_tokens]
  return step_cuts.at_points(points, 0)
