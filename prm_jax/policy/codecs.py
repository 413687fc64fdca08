"""How a policy's prompts are written and its ids are read.

A policy of ours writes steps with our separator between them (`SeparatorCodec`).
A published one writes text, which is cut into steps by characters
(`TemplateCodec`). Everything that samples does so through one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from prm_jax import schema
from prm_jax.text import alignment
from prm_jax.text import answers
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import solution_texts
from prm_jax.text import step_automaton
from prm_jax.text import template as template_lib
from prm_jax.text import templates
from prm_jax.text import token_bytes
from prm_jax.text import tokenizer as tokenizer_lib


class Prompt(NamedTuple):
  """The ids of an unfinished solution.

  Args:
    opening: The ids before the solution, int32.
    begun: The ids of the solution's beginning, int32.
    encoded_anew: Whether the beginning was sampled, but ends within a sampled
      id, so that its text was encoded anew.
    text: The text of the beginning; "" if the policy writes steps.
  """

  opening: np.ndarray
  begun: np.ndarray
  encoded_anew: bool = False
  text: str = ""

  @property
  def tokens(self) -> np.ndarray:
    return np.concatenate([self.opening, self.begun])


class Read(NamedTuple):
  """A prefix with its completion, as a solution has them.

  Args:
    steps: The steps.
    raw_text: The whole text, or None if the policy writes steps.
    spans: The place of each step in raw_text.
    extra: Further fields of the solution.
    at_stop: Whether the text ends before a stop text, which may come after it
      in the policy's ids.
  """

  steps: tuple[str, ...]
  raw_text: str | None = None
  spans: tuple[schema.Span, ...] | None = None
  extra: dict[str, Any] = {}  # noqa: RUF012  (never changed)
  at_stop: bool = False


class Places(NamedTuple):
  """A completion's text, and where tokens and steps end.

  Args:
    text: The text of a completion of a problem alone.
    token_ends: The number of characters that are complete after each token, [S]
      int32.
    step_ends: The index of the token that ends each of the policy's own steps,
      [K] int32.
  """

  text: str
  token_ends: np.ndarray
  step_ends: np.ndarray


@runtime_checkable
class Codec(Protocol):
  """How a policy's prompts are written and its ids are read.

  ends has the ids that end a solution.
  """

  tokenizer: tokenizer_lib.Tokenizer
  ends: tuple[int, ...]

  def prompt(self, prefix: schema.Solution) -> Prompt:
    """Returns the ids of an unfinished solution."""
    ...

  def begun(self, prefix: schema.Solution) -> str:
    """Returns the text before a completion, as `stops` reads it."""
    ...

  def stops(self, at_step: bool) -> step_automaton.StepStops | None:
    """Returns where a completion ends before its end; None is nowhere.

    Args:
      at_step: Whether it ends with its first step.
    """
    ...

  def steps_on_host(self) -> bool:
    """Returns whether a step's end shows in the tokens after it only."""
    ...

  def completes_step(
    self, tokens: np.ndarray, prompt: Prompt | None = None
  ) -> bool:
    """Returns whether no later token can move the first step of new tokens.

    Args:
      tokens: The ids that the policy wrote, [S].
      prompt: What they continue; None is a problem alone.
    """
    ...

  def within(self, prefix: schema.Solution, option: str) -> list[int]:
    """Returns the ids of an unfinished solution whose last step goes on.

    Args:
      prefix: The unfinished solution.
      option: The text that follows its last step, within it.
    """
    ...

  def read(
    self, prefix: schema.Solution, prompt: Prompt, tokens: np.ndarray, why: str
  ) -> Read:
    """Returns a prefix and its completion.

    Args:
      prefix: The unfinished solution.
      prompt: Its ids.
      tokens: The ids that the policy wrote after them, [S].
      why: Why it stopped; see sampler.Completion.
    """
    ...

  def places(self, tokens: np.ndarray) -> Places:
    """Returns where tokens and steps end in a completion of a problem alone."""
    ...


# A word with which a step may begin.
_WORD = "The"
_OWN = encoding.EncodingConfig(template=own_form.OWN)


class SeparatorCodec:
  """Our own form: bos, the problem, and a separator after it and each step.

  Args:
    tokenizer: The policy's tokenizer.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    self.tokenizer = tokenizer
    self.ends: tuple[int, ...] = (tokenizer.eos,)

  def prompt(self, prefix: schema.Solution) -> Prompt:
    encoded = encoding.encode_whole(prefix, self.tokenizer, _OWN)
    at = encoded.prompt_tokens
    return Prompt(encoded.tokens[:at], encoded.tokens[at:])

  def begun(self, prefix: schema.Solution) -> str:
    del prefix
    return ""

  def stops(self, at_step: bool) -> step_automaton.StepStops | None:
    separator = self.tokenizer.separator
    return step_automaton.at_id(separator, separator + 1) if at_step else None

  def steps_on_host(self) -> bool:
    return False

  def completes_step(
    self, tokens: np.ndarray, prompt: Prompt | None = None
  ) -> bool:
    del prompt
    return self.tokenizer.separator in tokens

  def within(self, prefix: schema.Solution, option: str) -> list[int]:
    *before, last = prefix.steps or ("",)
    steps = (*before, last + option)
    begun = schema.Solution(prefix.id, prefix.problem, steps)
    return self.prompt(begun).tokens[:-1].tolist()  # without its separator

  def read(
    self, prefix: schema.Solution, prompt: Prompt, tokens: np.ndarray, why: str
  ) -> Read:
    del prompt, why
    steps = own_form.split_steps(tokens, self.tokenizer)
    return Read((*prefix.steps, *steps))

  def places(self, tokens: np.ndarray) -> Places:
    text = alignment.completion_text(tokens, self.tokenizer)
    ends = alignment.token_ends(tokens, self.tokenizer)
    return Places(text, ends, self._step_ends(np.asarray(tokens)))

  def _step_ends(self, ids: np.ndarray) -> np.ndarray:
    """Returns the index of the token that ends each step.

    This is the separator that the policy wrote; for a last step without one, it
    is eos or the last token. There are as many as own_form.split_steps finds.
    """
    stops = np.flatnonzero(ids == self.tokenizer.eos)
    end = int(stops[0]) if len(stops) else len(ids)
    ends = np.flatnonzero(ids[:end] == self.tokenizer.separator)
    begun = int(ends[-1]) + 1 if len(ends) else 0
    if begun < end:
      ends = np.append(ends, min(end, len(ids) - 1))
    return ends.astype(np.int32)


class TemplateCodec:
  """A published policy's form: its template, and steps cut by characters.

  The given steps of a prefix stay as they are; the text after them is cut as it
  is within the whole text. A completion that stopped at a step ends where the
  next step would begin.

  Args:
    template: The policy's template.
    tokenizer: The policy's tokenizer.

  Raises:
    InputError: The tokenizer lacks a token of the template.
  """

  def __init__(
    self,
    template: policy_text.PolicyTemplate,
    tokenizer: tokenizer_lib.Tokenizer,
  ):
    self.template, self.tokenizer = template, tokenizer
    template.fitted(tokenizer)  # it refuses
    self.ends = template.end_ids(tokenizer)
    self.bytes = policy_text.bytes_of(template, tokenizer)
    kinds = [kind for kind, _ in template.opening]
    after_problem = template.opening[kinds.index("problem") + 1 :]
    self._opened = "".join(content for _, content in after_problem)
    self._stops: dict[bool, step_automaton.StepStops] = {}

  def _opening(self, prefix: schema.Solution) -> np.ndarray:
    return policy_text.opening(self.template, prefix.problem, self.tokenizer)

  def prompt(self, prefix: schema.Solution) -> Prompt:
    opening = self._opening(prefix)
    text = solution_texts.begun(prefix, self.template.separator)
    sampled = policy_text.sampled_ids(prefix, self.bytes)
    if sampled is not None:
      num = policy_text.num_ids_of(sampled, text, self.bytes)
      if num is not None:
        begun = np.asarray(sampled[:num], np.int32)
        return Prompt(opening, begun, text=text)
    begun = np.asarray(self._before_next(text), np.int32)
    return Prompt(opening, begun, sampled is not None, text)

  def _before_next(self, text: str) -> list[int]:
    """Returns a text's ids as they are where a step follows it.

    A tokenizer may join line breaks at a text's end that are two ids before a
    word.
    """
    if text[-1:].isspace():
      ids = self.before_word(text)
      if self.bytes.text(ids) == text:
        return ids
    return self.template.encode_text(text, self.tokenizer)[0]

  def before_word(self, text: str) -> list[int]:
    """Returns a text's ids as they are before a word.

    What of the text is a part of the word's id, as a space may be, is left out.

    Args:
      text: The beginning of a solution's text.
    """
    ids, _ = self.template.encode_text(text + _WORD, self.tokenizer)
    return ids[: int((self.bytes.ends(ids) <= len(text)).sum())]

  def begun(self, prefix: schema.Solution) -> str:
    text = solution_texts.begun(prefix, self.template.separator)
    return self.template.after_thinking(text)

  def stops(self, at_step: bool) -> step_automaton.StepStops | None:
    segmenter = self.template.segmenter if at_step else None
    if self.steps_on_host():
      segmenter = None
    if segmenter is None and not self.template.stop:
      return None
    if at_step not in self._stops:
      # The names around reasoning are no text of a step, and steps are cut
      # between them alone.
      tokens = token_bytes.token_bytes(self.tokenizer)
      names = [
        templates.control_id(self.template.name, self.tokenizer, name)
        for name in self.template.thinking
      ]
      self._stops[at_step] = step_automaton.make(
        tokens, segmenter, self.template.stop, names
      )
    return self._stops[at_step]

  def steps_on_host(self) -> bool:
    return self.template.segmenter.kind not in segmenters.WITHOUT_LOOK_AHEAD

  def completes_step(
    self, tokens: np.ndarray, prompt: Prompt | None = None
  ) -> bool:
    if prompt is None:
      text, begun = self.bytes.text(tokens), ""
    else:
      text, begun = self._written(prompt.begun, tokens), prompt.text
    return self.template.has_settled_step(text, self.tokenizer, begun)

  def within(self, prefix: schema.Solution, option: str) -> list[int]:
    text = solution_texts.begun(prefix, self.template.separator)
    spans = solution_texts.places(prefix, self.template.separator)
    text = text[: spans[-1][1]] if spans else text
    ids, _ = self.template.encode_text(text + option, self.tokenizer)
    return [*self._opening(prefix).tolist(), *ids]

  def read(
    self, prefix: schema.Solution, prompt: Prompt, tokens: np.ndarray, why: str
  ) -> Read:
    separator = self.template.separator
    ids = self._own([int(i) for i in tokens])
    written = self._written(prompt.begun, ids)
    new = self._until_stop(written, prompt.text)
    at_stop = new != written
    spans: Sequence[schema.Span] = self._spans(new, prompt.text)
    if why == "step":
      # A token may hold what belongs to the next step.
      new, spans = solution_texts.first_step(new, spans)
    text = solution_texts.continued(prefix, separator, new, spans)
    extra: dict[str, Any] = {
      schema.SAMPLED: dict(
        tokenizer=self.bytes.digest, ids=[*prompt.begun.tolist(), *ids]
      )
    }
    if answers.ends_in_thinking(self._opened):
      # No text of the solution tells that it began within a thought.
      whole = self._opened + text.raw_text
      extra[schema.THINKING] = answers.ends_in_thinking(whole)
    return Read(*text, extra, at_stop)

  def places(self, tokens: np.ndarray) -> Places:
    ids = [int(i) for i in tokens]
    text = self._until_stop(self.bytes.text(self._own(ids)))
    # Ids that end a solution add nothing.
    ends = np.minimum(self.bytes.ends(ids), len(text)).astype(np.int32)
    last = np.asarray([b for _, b in self._spans(text)], np.int32)
    return Places(text, ends, alignment.closing_tokens(ends, last))

  def _written(
    self, before: tokenizer_lib.Ids, tokens: tokenizer_lib.Ids
  ) -> str:
    """Returns the text of ids that follow others."""
    ids = [*map(int, before), *map(int, tokens)]
    parts = self.bytes.parts(ids)[len(before) :]
    return b"".join(parts).decode("utf-8", "replace")

  def _own(self, ids: list[int]) -> list[int]:
    """Returns the ids before the first that ends a solution."""
    stops = [i for i, token in enumerate(ids) if token in self.ends]
    return ids[: stops[0]] if stops else ids

  def _until_stop(self, text: str, begun: str = "") -> str:
    """Returns a text up to the first stop text.

    The names around reasoning are no text, as in `stops`. Of a stop text that
    begins in what was begun, all of the new text is a part.
    """
    for stop in self.template.stop:
      tail = begun[-(len(stop) - 1) :] if len(stop) > 1 else ""
      if 0 <= (tail + text).find(stop) < len(tail):
        return ""
    places = [
      start + part.find(stop)
      for start, part in self.template.without_thinking(text)
      for stop in self.template.stop
      if stop in part
    ]
    return text[: min(places, default=len(text))]

  def _spans(self, text: str, begun: str = "") -> tuple[schema.Span, ...]:
    return self.template.spans(
      text, self.template.segmenter, self.tokenizer, begun
    )


def of(
  template: template_lib.Template, tokenizer: tokenizer_lib.Tokenizer
) -> Codec:
  """Returns the codec of a policy with a template, or of our own form."""
  if isinstance(template, policy_text.PolicyTemplate):
    return TemplateCodec(template, tokenizer)
  return SeparatorCodec(tokenizer)
