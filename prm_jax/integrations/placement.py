"""Step rewards on the tokens of the policy that wrote the steps.

A reward model with another tokenizer can't name the policy's tokens. So a step
is a span of characters of the response, and a token is known by how many
characters are complete after it, its offset. A step's reward is placed on the
token that completes the step: the first whose offset reaches the step's end.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math
from typing import Any

from jaxtyping import Float
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import token_offsets as token_offsets_lib

# Ids -> their text. Special tokens add nothing to it.
Decode = token_offsets_lib.Decode


def decoder(tokenizer: Any) -> Decode:
  """Returns how a Hugging Face tokenizer decodes ids, without special tokens.

  Args:
    tokenizer: A tokenizer of `transformers`, which most trainers hold.

  Returns:
    A function from ids to their text.
  """

  def decode(ids: token_offsets_lib.Ids) -> str:
    return tokenizer.decode(
      [int(i) for i in ids],
      skip_special_tokens=True,
      clean_up_tokenization_spaces=False,
    )

  return decode


def mapping_offsets(
  offset_mapping: Sequence[tuple[int, int]], num_chars: int
) -> list[int]:
  """Returns the offsets of tokens from a fast tokenizer's offset mapping.

  The mapping is of the ids that the tokenizer encodes the text as. A policy may
  have sampled the same text as other ids; compare them, or use
  text.token_offsets.of_ids.

  Args:
    offset_mapping: The first character of each token and the one after its
      last, (0, 0) for a special token. All tokens of a character have it.
    num_chars: The length of the text.

  Returns:
    One offset for each token, as text.token_offsets.of_ids gives.
  """
  offsets, later = [0] * len(offset_mapping), num_chars
  for i in reversed(range(len(offset_mapping))):
    begin, end = map(int, offset_mapping[i])
    if begin < end:
      # A character that the next token has, too, isn't complete here.
      offsets[i], later = min(end, later), begin
  return list(itertools.accumulate(offsets, max))


def place_step_rewards(
  spans: Sequence[schema.Span],
  scores: Sequence[float | None],
  token_offsets: Sequence[int] | np.ndarray,
) -> list[float]:
  """Returns the reward of each token: a step's on the token that completes it.

  The rewards sum to the sum of the scores, up to rounding. Special tokens, and
  tokens between steps, get 0. Several steps on one token are added. An empty
  step is completed with the character before it; one at the very beginning
  goes to the first token that completes a character.

  Args:
    spans: The place of each step in the response, in order: its first
      character, and the one after its last.
    scores: The reward of each step, any finite number. None is no reward, for a
      step that the model wasn't trained to judge.
    token_offsets: How many characters are complete after each token.

  Returns:
    One reward for each token.

  Raises:
    InputError: There isn't one score per span, a score isn't finite, spans
      overlap or aren't in order, the offsets decrease, or a step ends after the
      last character of the tokens.
  """
  offsets = np.asarray(token_offsets, np.int64).reshape(-1)
  if (np.diff(offsets, prepend=0) < 0).any():
    raise errors.InputError(
      "token offsets must not decrease or be negative; give how many characters"
      " of the response are complete after each token"
    )
  num_chars = int(offsets[-1]) if offsets.size else 0
  _check_steps(spans, scores, num_chars)
  on_token: list[list[float]] = [[] for _ in offsets]
  ends = completing_tokens(spans, offsets)
  for i, (token, score) in enumerate(zip(ends, scores, strict=True)):
    if score is None:
      continue
    if not num_chars:
      raise errors.InputError(
        f"spans[{i}]: no token completes a character, so the step's reward has"
        " no place; leave out empty responses"
      )
    on_token[token].append(float(score))
  return [math.fsum(each) for each in on_token]


def completing_tokens(
  spans: Sequence[schema.Span], token_offsets: Sequence[int] | np.ndarray
) -> list[int]:
  """Returns the index of the token that completes each step.

  Args:
    spans: The place of each step; see place_step_rewards.
    token_offsets: How many characters are complete after each token.

  Returns:
    One index for each step; the number of tokens if no token completes it.
  """
  return [int(np.searchsorted(token_offsets, max(end, 1))) for _, end in spans]


def align(
  rows: Sequence[Sequence[float]],
  mask: Any,
) -> Float[np.ndarray, "B T"]:
  """Returns rows of tokens as one array, at the true places of a mask.

  Padding may be on either side, and tokens of tools may stand between.

  Args:
    rows: One value for each true place of a row of the mask, in order.
    mask: Which of the B x T places are tokens that the policy sampled, an array
      or a tensor of bools or of 0 and 1.

  Returns:
    The values, float32, 0 where the mask is false.

  Raises:
    InputError: A row doesn't have as many values as the mask has true places.
  """
  real = np.asarray(mask).astype(bool)
  if len(rows) != len(real):
    raise errors.InputError(
      f"{len(rows)} rows of values for {len(real)} rows of the mask; give one"
      " of each response"
    )
  out = np.zeros(real.shape, np.float32)
  for i, row in enumerate(rows):
    if len(row) != real[i].sum():
      raise errors.InputError(
        f"row {i}: {len(row)} values for the mask's {real[i].sum()} tokens; cut"
        " both at the same token"
      )
    out[i, real[i]] = row
  return out


def for_targets(prompt_tokens: int, row: Sequence[float]) -> list[float]:
  """Returns the values of a response's tokens, shifted to where they're learnt.

  A language model's input is a sequence without its last token, its target the
  sequence without its first: place i of the result is of token i + 1.

  Args:
    prompt_tokens: How many tokens precede the response.
    row: The value of each token of the response.

  Returns:
    prompt_tokens + len(row) - 1 values, 0 where the target is in the prompt.

  Raises:
    InputError: There is no token before the response.
  """
  if prompt_tokens < 1:
    raise errors.InputError(
      "a response needs a token before it, of which its first token is the"
      " target; give the prompt's tokens, bos included"
    )
  return [0.0] * (prompt_tokens - 1) + [float(x) for x in row]


# --- Private ----------------------------------------------------------------


def _check_steps(
  spans: Sequence[schema.Span], scores: Sequence[float | None], num_chars: int
) -> None:
  """Refuses spans and scores of which a reward can't be placed."""
  if len(spans) != len(scores):
    raise errors.InputError(
      f"{len(scores)} scores for {len(spans)} spans; give one of each step"
    )
  last = 0
  for i, (begin, end) in enumerate(spans):
    if not last <= begin <= end:
      raise errors.InputError(
        f"spans[{i}] is ({begin}, {end}) after a step that ends at {last}; give"
        " the steps in order, each with its first character and the one after"
        " its last"
      )
    if end > num_chars:
      raise errors.InputError(
        f"spans[{i}] ends at character {end}, but the tokens' text has"
        f" {num_chars}; score the text of the tokens that are trained on"
      )
    last = end
  for i, score in enumerate(scores):
    if score is None:
      continue
    if not math.isfinite(score):
      raise errors.InputError(
        f"scores[{i}] is {score!r}; give a finite number, or None for a step"
        " without a reward"
      )
