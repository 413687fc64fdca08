"""A solution as a policy's text, and the text as ids (policy_templates.py).

A solution's text (solution_texts.py) is encoded on its own, after the ids of the
opening, as it is when the policy is sampled; or with the texts around it, if a
reward model's template says so. In a text, the names of the tokens around a
model's reasoning stand for these tokens.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator, Sequence
import functools
import re
import reprlib

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import conversation_templates
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import solution_texts
from prm_jax.text import templates
from prm_jax.text import token_bytes
from prm_jax.text import token_memory
from prm_jax.text import tokenizer as tokenizer_lib

PolicyTemplate = policy_templates.PolicyTemplate


@functools.lru_cache(maxsize=1024)
def opening(
  template: PolicyTemplate, problem: str, tokenizer: tokenizer_lib.Tokenizer
) -> np.ndarray:
  """Returns the ids before a solution; all solutions of a problem have them."""
  return policy_templates.write_opening(template, problem, tokenizer)


def encode_text(
  text: str, template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[list[int], list[int]]:
  """Returns a text's ids, and the number of characters up to each id's end.

  Args:
    text: The text of a solution.
    template: The policy's template.
    tokenizer: The policy's tokenizer.
  """
  ids: list[int] = []
  ends: list[int] = []
  for start, part in _split(text, template):
    if part in template.thinking:
      ids.append(templates.control_id(template.name, tokenizer, part))
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


def _split(text: str, template: PolicyTemplate) -> Iterator[tuple[int, str]]:
  """Yields the names around reasoning and the parts between, with their starts."""
  names = "|".join(map(re.escape, template.thinking))
  parts = re.split(f"({names})", text) if names else [text]
  start = 0
  for part in parts:
    if part:
      yield start, part
    start += len(part)


def without_thinking(
  text: str, template: PolicyTemplate
) -> Iterator[tuple[int, str]]:
  """Yields the parts of a text between the names around a model's reasoning.

  Yields:
    Where each part starts, in characters, and the part.
  """
  for start, part in _split(text, template):
    if part not in template.thinking:
      yield start, part


def after_thinking(text: str, template: PolicyTemplate) -> str:
  """Returns what follows the last name around a model's reasoning, or all."""
  parts = [part for _, part in _split(text, template)]
  return parts[-1] if parts and parts[-1] not in template.thinking else ""


def spans(
  text: str,
  template: PolicyTemplate,
  tokenizer: tokenizer_lib.Tokenizer,
  begun: str = "",
) -> list[schema.Span]:
  """Returns the steps of a text; the names around reasoning are in none.

  Args:
    text: The text of a solution, or what follows `begun`.
    template: The policy's template.
    tokenizer: The policy's tokenizer.
    begun: The solution's text before `text`; see `segmenters.spans`.
  """
  return [
    (start + a, start + b)
    for start, before, part in _parts(text, template, begun)
    for a, b in segmenters.spans(part, template.segmenter, tokenizer, before)
  ]


def has_settled_step(
  text: str,
  template: PolicyTemplate,
  tokenizer: tokenizer_lib.Tokenizer,
  begun: str = "",
) -> bool:
  """Returns whether no later text can move the first step of `spans`.

  Args:
    text: See `spans`.
    template: See `spans`.
    tokenizer: See `spans`.
    begun: See `spans`.
  """
  return any(
    segmenters.settled(part, template.segmenter, tokenizer, before)
    for _, before, part in _parts(text, template, begun)
  )


def _parts(
  text: str, template: PolicyTemplate, begun: str
) -> Iterator[tuple[int, str, str]]:
  """Yields the parts of a text between the names around reasoning.

  Yields:
    Where each part starts in the text, what of the part is in `begun`, and the
    rest.
  """
  for start, part in without_thinking(begun + text, template):
    num = min(max(len(begun) - start, 0), len(part))
    if num < len(part):
      yield start + num - len(begun), part[:num], part[num:]


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


def encode(
  template: PolicyTemplate,
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  end: bool = False,
) -> templates.Written:
  """Returns a solution's ids and where its steps are read, int32.

  A step is read at the first token that reaches its last character; if the
  template is of one text, at the last token that begins before its end. A whole
  text that was sampled has the ids that it was sampled as, unless the template
  is of one text. If the template has a closing, the last step is read
  at the closing's last token. A turn of a conversation is read at the token that
  ends it, which is there always.

  Args:
    template: The policy's template.
    solution: The solution.
    tokenizer: The policy's tokenizer.
    end: Whether to add the token that ends a solution.

  Raises:
    InputError: The tokenizer lacks a token of the template, or has no token to
      read a step at: one of its own, after the step before. Or the problem or
      the text holds what the template refuses.
  """
  if solution.messages is not None:
    return _encode_conversation(template, solution, tokenizer)
  text = solution_texts.whole(solution, template.separator)
  policy_templates.check_texts(template, solution.problem, text)
  if template.one_text:
    return _encode_as_one(template, solution, tokenizer, end)
  before = opening(template, solution.problem, tokenizer)
  as_sampled = _as_sampled(template, solution, tokenizer, text)
  ids, ends = as_sampled or encode_text(text, template, tokenizer)
  places = solution_texts.places(solution, template.separator)
  reads = [bisect.bisect_left(ends, last) for _, last in places]
  _check_reads(reads, len(ids), template)
  if end:
    ids.append(end_ids(template, tokenizer)[0])
  elif template.closing and reads:
    ids += policy_templates.write_closing(template, tokenizer)
    reads[-1] = len(ids) - 1
  tokens = np.concatenate([before, np.asarray(ids, np.int32)])
  step_end = np.asarray(reads, np.int32) + len(before)
  return templates.Written(tokens, step_end, len(before))


def _encode_conversation(
  template: PolicyTemplate,
  trajectory: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
) -> templates.Written:
  if template.conversation is None:
    raise errors.InputError(
      f"is a conversation, and the model with template {template.name!r} reads"
      f" none: {template.no_conversation}"
    )
  return conversation_templates.encode(
    template.conversation, template.name, trajectory, tokenizer
  )


def _as_sampled(
  template: PolicyTemplate,
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  text: str,
) -> tuple[list[int], list[int]] | None:
  """Returns a text's ids and their ends if it was sampled as known ids."""
  if solution.extra.get(schema.SAMPLED) is None:
    return None
  of = bytes_of(template, tokenizer)
  ids = sampled_ids(solution, of)
  if ids is not None and of.text(ids) != text:
    # What is left out is a stop text after it.
    num = num_ids_of(ids, text, of)
    ids = None if num is None else ids[:num]
  return None if ids is None else (ids, of.ends(ids).tolist())


def _encode_as_one(
  template: PolicyTemplate,
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  end: bool,
) -> templates.Written:
  """Returns the result of `encode` for a template of one text."""
  text = solution_texts.whole(solution, template.separator)
  places = solution_texts.places(solution, template.separator)
  lasts = collections.deque(last for _, last in places)
  own: list[templates.TemplatePart] = [("step", "")]
  for at, part in _split(text, template):
    stop = at + len(part)
    if part in template.thinking:
      own.append(("control", part))
      at = stop
    while lasts and lasts[0] <= stop:
      last = max(at, lasts.popleft())
      own += [("text", text[at:last]), templates.READ]
      at = last
    own.append(("text", text[at:stop]))
  own += [templates.READ] * len(lasts)  # of blank steps of a blank text
  opened = policy_templates.opening_parts(template, solution.problem)
  closing = (("control", template.ends[0]),) if end else template.closing
  ids, after, starts = templates.write_parts(
    template.name, (*opened, *own, *closing), tokenizer
  )
  start = starts[0]
  reads = [max(n - 1, start) for n in after]
  _check_reads([n - start for n in reads], len(ids) - start, template)
  if reads and not end:
    reads[-1] = len(ids) - 1
  return templates.Written(
    np.asarray(ids, np.int32), np.asarray(reads, np.int32), start
  )


def _check_reads(
  reads: Sequence[int], num_ids: int, template: PolicyTemplate
) -> None:
  before = -1
  for k, read in enumerate(reads):
    if not before < read < num_ids:
      raise errors.InputError(
        f"template {template.name!r}: this tokenizer has no token of its own at"
        f" which step {k} (from 0) ends; give steps that aren't blank, each on"
        " a line of its own"
      )
    before = read


def end_ids(
  template: PolicyTemplate, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[int, ...]:
  """Returns the ids that end a solution.

  Raises:
    InputError: The tokenizer lacks one of them.
  """
  return tuple(
    templates.control_id(template.name, tokenizer, name)
    for name in template.ends
  )
