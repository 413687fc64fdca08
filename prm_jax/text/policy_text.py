"""How a published policy is prompted, and how its text is read, as data.

A template says what is written around a problem, what ends a solution, and how
the policy's text is cut into steps. It is a list of parts, which is saved with
the checkpoint; the kinds of parts are those of text/templates.py:

  problem   the text of the problem
  text      these letters
  control   the id of a control or added token; no text can yield it
  cut       the texts on both sides are encoded separately

Texts without a control or cut between them are encoded as one. A solution's text
(solution_texts.py) is encoded on its own, after the opening, as it is when the
policy is sampled: the ids before its own never depend on what it writes. A
reward model's may be encoded with what is around it (`one_text`). In a text, the
names of the tokens around a model's reasoning stand for these tokens.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import re
import reprlib
from typing import ClassVar

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import conversation_templates
from prm_jax.text import segmenters
from prm_jax.text import solution_texts
from prm_jax.text import step_spans
from prm_jax.text import template as template_lib
from prm_jax.text import templates
from prm_jax.text import token_bytes
from prm_jax.text import token_memory
from prm_jax.text import tokenizer as tokenizer_lib

KINDS = ("problem", "text", "control", "cut")
CLOSING_KINDS = ("text", "control", "cut")


@dataclasses.dataclass(frozen=True)
class PolicyTemplate:
  """What is written around a problem, what ends a solution, and its steps.

  It is a template.Template.

  Args:
    name: The name of the template.
    opening: The parts before a solution; one of them is the problem.
    ends: The names of the tokens that end a solution. A policy is trained to
      write the first.
    separator: What is written after each step of a solution whose whole text
      isn't known, unless it is the last of a finished one.
    segmenter: How the policy's text is cut into steps.
    strips: Whether white space around the problem is left out, as some chat
      templates do.
    thinking: The names of the tokens that open and close a model's reasoning;
      () if it has none. In a solution's text they are written by their names,
      and no step holds them.
    stop: Texts that end a solution too, such as the opening of the next problem
      after examples. A solution's text ends before them.
    closing: For an outcome reward model, the parts after a whole solution, at
      the last token of which its last step is read. If these are a cut alone,
      it is read at the solution's last token; if (), every step is read at its
      own.
    conversation: How the model reads whole conversations, or None.
    no_conversation: Why it reads none, for messages.
    refuses: For an outcome reward model, texts that its chat template doesn't
      write as they are, such as the end of a model's reasoning. No problem or
      solution may hold one.
    one_text: For an outcome reward model, whether a solution is encoded as one
      text with those beside it, as published models read it. Encoded alone, a
      solution may have other ids: Llama 2's tokenizer begins every text with a
      space, and Qwen's joins line breaks.
  """

  name: str
  opening: tuple[templates.TemplatePart, ...]
  ends: tuple[str, ...]
  separator: str = "\n\n"
  segmenter: segmenters.Segmenter = segmenters.PARAGRAPH
  strips: bool = False
  thinking: tuple[str, ...] = ()
  stop: tuple[str, ...] = ()
  closing: tuple[templates.TemplatePart, ...] = ()
  one_text: bool = False
  refuses: tuple[str, ...] = ()
  # Two templates that differ in it alone are seldom met, and it is long.
  conversation: conversation_templates.ConversationTemplate | None = (
    dataclasses.field(default=None, hash=False)
  )
  no_conversation: str = "it wasn't imported with its chat template"

  of_policy: ClassVar[bool] = True
  apart: ClassVar[bool] = False

  def __post_init__(self):
    kinds = [kind for kind, _ in self.opening]
    templates.check_kinds(self.name, "opening", self.opening, KINDS)
    templates.check_kinds(self.name, "closing", self.closing, CLOSING_KINDS)
    if kinds.count("problem") != 1:
      raise errors.InputError(
        f"template {self.name!r}: opening needs one problem"
      )
    if not self.ends:
      raise errors.InputError(
        f"template {self.name!r}: no token ends a solution; name one"
      )
    if len(self.thinking) not in (0, 2):
      raise errors.InputError(
        f"template {self.name!r}: thinking={self.thinking}: expected the names"
        " of two tokens, or none"
      )
    if self.one_text and not self.closing:
      raise errors.InputError(
        f"template {self.name!r}: one_text is for reward models; it needs a"
        " closing"
      )
    if not self.separator or not all((*self.stop, *self.refuses)):
      raise errors.InputError(
        f"template {self.name!r}: a separator, a stop or what it refuses is"
        " empty; give it a character"
      )

  def fitted(self, tokenizer: tokenizer_lib.Tokenizer) -> PolicyTemplate:
    self.control_ids(tokenizer)
    return self

  def num_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> int:
    named = self.control_ids(tokenizer).values()
    return max(tokenizer.text_ids, *(i + 1 for i in named))

  def control_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> dict[str, int]:
    """Returns the ids of all control tokens that are named, by name.

    Raises:
      InputError: The tokenizer lacks one.
    """
    parts = (*self.opening, *self.closing)
    names = [content for kind, content in parts if kind == "control"]
    return {
      name: templates.control_id(self.name, tokenizer, name)
      for name in (*names, *self.ends, *self.thinking)
    }

  def end_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> tuple[int, ...]:
    """Returns the ids that end a solution.

    Raises:
      InputError: The tokenizer lacks one of them.
    """
    return tuple(
      templates.control_id(self.name, tokenizer, name) for name in self.ends
    )

  def opening_parts(self, problem: str) -> tuple[templates.TemplatePart, ...]:
    """Returns the parts before a solution, the problem filled in."""
    text = problem.strip() if self.strips else problem
    return tuple(
      ("text", text) if kind == "problem" else (kind, content)
      for kind, content in self.opening
    )

  def write_opening(
    self, problem: str, tokenizer: tokenizer_lib.Tokenizer
  ) -> np.ndarray:
    """Returns the ids before a solution, int32 [T].

    Args:
      problem: The text of the question.
      tokenizer: The tokenizer.

    Raises:
      InputError: The tokenizer lacks a control token of the opening.
    """
    parts = self.opening_parts(problem)
    ids, _, _ = templates.write_parts(self.name, parts, tokenizer)
    return np.asarray(ids, np.int32)

  def write_closing(self, tokenizer: tokenizer_lib.Tokenizer) -> list[int]:
    """Returns the ids after a whole solution that an ORM reads.

    Raises:
      InputError: The tokenizer lacks a control token of the closing.
    """
    ids, _, _ = templates.write_parts(self.name, self.closing, tokenizer)
    return ids

  def write(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    *,
    score_position: str = "last_token",
    end: bool = False,
  ) -> template_lib.EncodedSolution:
    """Returns a solution's ids and where its steps are read; see Template.

    A step is read at the first token that reaches its last character; if the
    template is of one text, at the last token that begins before its end. A
    whole text that was sampled has the ids that it was sampled as, unless the
    template is of one text. If the template has a closing, the last step is
    read at the closing's last token. A turn of a conversation is read at the
    token that ends it, which is there always.

    Args:
      solution: The solution.
      tokenizer: The policy's tokenizer.
      score_position: Isn't read.
      end: Whether to add the token that ends a solution.

    Raises:
      InputError: The tokenizer lacks a token of the template, or has no token
        to read a step at: one of its own, after the step before. Or the problem
        or the text holds what the template refuses.
    """
    del score_position
    if solution.messages is not None:
      return self._write_conversation(solution, tokenizer)
    text = solution_texts.whole(solution, self.separator)
    self._check_texts(solution.problem, text)
    if self.one_text:
      return self._write_as_one(solution, tokenizer, text, end)
    before = opening(self, solution.problem, tokenizer)
    as_sampled = self._as_sampled(solution, tokenizer, text)
    ids, ends = as_sampled or self.encode_text(text, tokenizer)
    places = solution_texts.places(solution, self.separator)
    reads = [bisect.bisect_left(ends, last) for _, last in places]
    self._check_reads(reads, len(ids))
    if end:
      ids.append(self.end_ids(tokenizer)[0])
    elif self.closing and reads:
      ids += self.write_closing(tokenizer)
      reads[-1] = len(ids) - 1
    tokens = np.concatenate([before, np.asarray(ids, np.int32)])
    step_end = np.asarray(reads, np.int32) + len(before)
    return template_lib.EncodedSolution(tokens, step_end, len(before))

  def encode_text(
    self, text: str, tokenizer: tokenizer_lib.Tokenizer
  ) -> tuple[list[int], list[int]]:
    """Returns a text's ids, and the number of characters up to each id's end.

    Args:
      text: The text of a solution.
      tokenizer: The policy's tokenizer.
    """
    ids: list[int] = []
    ends: list[int] = []
    for start, part in self._split(text):
      if part in self.thinking:
        ids.append(templates.control_id(self.name, tokenizer, part))
        ends.append(start + len(part))
        continue
      if isinstance(tokenizer, token_memory.Remembering):
        more, lasts = tokenizer.encode_with_ends(part)
      else:
        more, spans = tokenizer.encode_with_spans(part)
        lasts = [last for _, last in spans]
      ids += more
      ends += [start + last for last in lasts] if start else lasts
    return ids, ends

  def spans(
    self,
    text: str,
    segmenter: segmenters.Segmenter,
    tokenizer: tokenizer_lib.Tokenizer,
    begun: str = "",
  ) -> tuple[schema.Span, ...]:
    """Returns the steps of a text; the names around reasoning are in none.

    Args:
      text: The text of a solution, or what follows `begun`.
      segmenter: How it is cut.
      tokenizer: The policy's tokenizer.
      begun: The solution's text before `text`; see `step_spans.spans`.
    """
    return tuple(
      (start + a, start + b)
      for start, before, part in self._parts(text, begun)
      for a, b in step_spans.spans(part, segmenter, tokenizer, before)
    )

  def has_settled_step(
    self, text: str, tokenizer: tokenizer_lib.Tokenizer, begun: str = ""
  ) -> bool:
    """Returns whether no later text can move the first step of `spans`.

    Args:
      text: See `spans`.
      tokenizer: See `spans`.
      begun: See `spans`.
    """
    return any(
      step_spans.settled(part, self.segmenter, tokenizer, before)
      for _, before, part in self._parts(text, begun)
    )

  def without_thinking(self, text: str) -> Iterator[tuple[int, str]]:
    """Yields the parts of a text between the names around a model's reasoning.

    Yields:
      Where each part starts, in characters, and the part.
    """
    for start, part in self._split(text):
      if part not in self.thinking:
        yield start, part

  def after_thinking(self, text: str) -> str:
    """Returns what follows the last name around a model's reasoning, or all."""
    parts = [part for _, part in self._split(text)]
    return parts[-1] if parts and parts[-1] not in self.thinking else ""

  def unread(self, solution: schema.Solution) -> tuple[bool, ...]:
    if solution.messages is None or self.conversation is None:
      return ()
    return conversation_templates.without_thinking(self.conversation, solution)

  def _split(self, text: str) -> Iterator[tuple[int, str]]:
    """Yields the names around reasoning and the parts between, with starts."""
    names = "|".join(map(re.escape, self.thinking))
    parts = re.split(f"({names})", text) if names else [text]
    start = 0
    for part in parts:
      if part:
        yield start, part
      start += len(part)

  def _parts(self, text: str, begun: str) -> Iterator[tuple[int, str, str]]:
    """Yields the parts of a text between the names around reasoning.

    Yields:
      Where each part starts in the text, what of the part is in `begun`, and
      the rest.
    """
    for start, part in self.without_thinking(begun + text):
      num = min(max(len(begun) - start, 0), len(part))
      if num < len(part):
        yield start + num - len(begun), part[:num], part[num:]

  def _check_texts(self, problem: str, text: str) -> None:
    """Refuses a problem or a solution's text with what the template refuses."""
    for name, given in (("problem", problem), ("solution", text)):
      for word in self.refuses:
        if word in given:
          raise errors.InputError(
            f"the {name} holds {word!r}, which the model's chat template"
            " doesn't write as it stands: it moves, changes or refuses such a"
            " text; take it out, or give what follows the last one alone"
          )

  def _write_conversation(
    self, trajectory: schema.Solution, tokenizer: tokenizer_lib.Tokenizer
  ) -> template_lib.EncodedSolution:
    if self.conversation is None:
      raise errors.InputError(
        f"is a conversation, and the model with template {self.name!r} reads"
        f" none: {self.no_conversation}"
      )
    return conversation_templates.encode(
      self.conversation, self.name, trajectory, tokenizer
    )

  def _as_sampled(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    text: str,
  ) -> tuple[list[int], list[int]] | None:
    """Returns a text's ids and their ends if it was sampled as known ids."""
    if solution.extra.get(schema.SAMPLED) is None:
      return None
    of = bytes_of(self, tokenizer)
    ids = sampled_ids(solution, of)
    if ids is not None and of.text(ids) != text:
      # What is left out is a stop text after it.
      num = num_ids_of(ids, text, of)
      ids = None if num is None else ids[:num]
    return None if ids is None else (ids, of.ends(ids).tolist())

  def _write_as_one(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    text: str,
    end: bool,
  ) -> template_lib.EncodedSolution:
    """Returns the result of `write` for a template of one text."""
    places = solution_texts.places(solution, self.separator)
    lasts = collections.deque(last for _, last in places)
    own: list[templates.TemplatePart] = [("step", "")]
    for at, part in self._split(text):
      stop = at + len(part)
      if part in self.thinking:
        own.append(("control", part))
        at = stop
      while lasts and lasts[0] <= stop:
        last = max(at, lasts.popleft())
        own += [("text", text[at:last]), templates.READ]
        at = last
      own.append(("text", text[at:stop]))
    own += [templates.READ] * len(lasts)  # of blank steps of a blank text
    opened = self.opening_parts(solution.problem)
    closing = (("control", self.ends[0]),) if end else self.closing
    ids, after, starts = templates.write_parts(
      self.name, (*opened, *own, *closing), tokenizer
    )
    start = starts[0]
    reads = [max(n - 1, start) for n in after]
    self._check_reads([n - start for n in reads], len(ids) - start)
    if reads and not end:
      reads[-1] = len(ids) - 1
    return template_lib.EncodedSolution(
      np.asarray(ids, np.int32), np.asarray(reads, np.int32), start
    )

  def _check_reads(self, reads: Sequence[int], num_ids: int) -> None:
    before = -1
    for k, read in enumerate(reads):
      if not before < read < num_ids:
        raise errors.InputError(
          f"template {self.name!r}: this tokenizer has no token of its own at"
          f" which step {k} (from 0) ends; give steps that aren't blank, each"
          " on a line of its own"
        )
      before = read


@functools.lru_cache(maxsize=1024)
def opening(
  template: PolicyTemplate, problem: str, tokenizer: tokenizer_lib.Tokenizer
) -> np.ndarray:
  """Returns the ids before a solution; all solutions of a problem have them."""
  return template.write_opening(problem, tokenizer)


@functools.lru_cache(maxsize=16)
def bytes_of(
  template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> token_bytes.TokenBytes:
  """Returns what each id adds to a solution's text."""
  return token_bytes.token_bytes(tokenizer, visible=template.thinking)


def sampled_ids(
  solution: schema.Solution, of: token_bytes.TokenBytes
) -> list[int] | None:
  """Returns the ids that a solution's text was sampled as.

  Args:
    solution: The solution.
    of: What ids add to a text.

  Returns:
    The ids, or None if they aren't known or are another tokenizer's.

  Raises:
    InputError: The ids aren't whole numbers, or one is outside of the
      vocabulary.
  """
  sampled = solution.extra.get(schema.SAMPLED)
  if sampled is None or not solution_texts.has_own(solution):
    return None
  solution_texts.check_sampled(solution, f"solution {solution.id!r}")
  if sampled.get("tokenizer") != of.digest:
    return None
  ids = list(sampled["ids"])
  unknown = [x for x in ids if x >= len(of.of)]
  if unknown:
    # A prefix has an id that the input doesn't have, but the same problem.
    raise errors.InputError(
      f"solution {solution.id!r} of problem {reprlib.repr(solution.problem)}:"
      f' "{schema.SAMPLED}" has the id {unknown[0]}, outside of the'
      f" tokenizer's {len(of.of)}; take the field out"
    )
  return ids


def num_ids_of(
  ids: Sequence[int], text: str, of: token_bytes.TokenBytes
) -> int | None:
  """Returns how many first ids are exactly a text; None if no number is."""
  num = int(np.searchsorted(of.ends(ids), len(text))) + 1 if text else 0
  return num if of.text(ids[:num]) == text else None
