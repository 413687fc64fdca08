"""Step rewards across tokenizers: characters link a policy to a reward model.

A reward model reads the text of a completion with its own tokenizer and cuts it
into its own steps. A step's reward belongs to the policy's token that closes
the step: the first token whose text reaches the step's end.

  ids        so| 3| +| 4| =| 7|sep|answer| 7|eos    the policy's tokens
  text       so 3 + 4 = 7\\nanswer 7                 one text, no tokens
  segments   [so 3 + 4 = 7] [answer 7]              the reward model's steps
  closing    5, 8                                   tokens that close them
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Int
import numpy as np

from prm_jax import errors
from prm_jax.text import own_form
from prm_jax.text import segmenters
from prm_jax.text import step_spans
from prm_jax.text import token_offsets
from prm_jax.text import tokenizer as tokenizer_lib

# The segmenters that need no tokenizer.
CUTS = tuple(kind for kind in segmenters.KINDS if kind != "tokens")
Span = tuple[int, int]


def completion_text(
  ids: tokenizer_lib.Ids,
  tokenizer: tokenizer_lib.Tokenizer,
  between: str = "\n",
) -> str:
  """Returns a completion's text: its steps with `between` between them."""
  return between.join(own_form.split_steps(ids, tokenizer))


def token_ends(
  ids: tokenizer_lib.Ids,
  tokenizer: tokenizer_lib.Tokenizer,
  between: str = "\n",
) -> Int[np.ndarray, T]:
  """Returns where in `completion_text` each token ends, in characters, int32.

  The ends of a step's tokens are token_offsets.of_ids. A separator stands for
  `between`, or for nothing after the last step. eos and tokens after it end
  where the text ends. The ends never decrease, and the last one is the length
  of the text.

  The cost is linear in the tokens: each is decoded with a few others.
  """
  ids = [int(i) for i in ids]
  steps = own_form.split_steps(ids, tokenizer)
  ends: list[int] = []
  begin = 0
  for k, step in enumerate(steps):
    first = len(ends)
    last = first
    while last < len(ids) and ids[last] not in (
      tokenizer.eos,
      tokenizer.separator,
    ):
      last += 1
    step_ends = token_offsets.of_ids(ids[first:last], tokenizer.decode)
    ends += [begin + end for end in step_ends]
    begin += len(step)
    if last < len(ids) and ids[last] == tokenizer.separator:
      begin += len(between) if k + 1 < len(steps) else 0
      ends.append(begin)
  ends += [begin] * (len(ids) - len(ends))
  return np.asarray(ends, np.int32)


def segments(
  text: str, how: str | Sequence[Span]
) -> tuple[list[str], Int[np.ndarray, K]]:
  """Returns a text's steps, and the end of each in characters.

  A step doesn't include the white space around it. It ends after its last
  character.

  Args:
    text: The text.
    how: One of CUTS, as in text/segmenters.py, or the steps' spans (first
      character, one after the last), in order.

  Raises:
    InputError: `how` is unknown, or a span is blank, out of order or outside
      the text.
  """
  if isinstance(how, str):
    if how not in CUTS:
      raise errors.InputError(
        f"steps={how!r}: expected one of {', '.join(CUTS)}, or spans of"
        " characters"
      )
    spans = step_spans.spans(text, segmenters.parse(how))
    ends = [b for _, b in spans]
    return [text[a:b] for a, b in spans], np.asarray(ends, np.int32)
  spans = tuple(how)
  _check_spans(spans, text)
  ends = [a + len(text[a:b].rstrip()) for a, b in spans]
  return [text[a:b].strip() for a, b in spans], np.asarray(ends, np.int32)


def closing_tokens(
  token_ends: Int[np.ndarray, T],
  step_ends: Int[np.ndarray, K],
  separators: Bool[np.ndarray, T] | None = None,
) -> Int[np.ndarray, K]:
  """Returns the index of the token that closes each step, int32.

  This is the first token whose end reaches the step's. If one token closes
  several steps, their rewards are added there.

  Args:
    token_ends: The result of `token_ends`.
    step_ends: The ends that `segments` returns for the same text.
    separators: Which of the policy's tokens are separators. If given, a step is
      closed by the separator right after its last token, if there is one
      (encoding.EncodingConfig.score_position "separator"), else by its last
      token.

  Raises:
    InputError: A step ends after the last token, so the texts differ.
  """
  closing = np.searchsorted(token_ends, step_ends, side="left")
  outside = np.flatnonzero(closing >= len(token_ends))
  if len(outside):
    k = int(outside[0])
    length = int(token_ends[-1]) if len(token_ends) else 0
    raise errors.InputError(
      f"step {k} (from 0) ends at character {int(step_ends[k])} of a"
      f" completion of {length}; cut the text that the tokens were decoded to"
    )
  if separators is not None:
    closing = closing + np.append(separators, False)[closing + 1]
  return closing.astype(np.int32)


def _check_spans(spans: Sequence[Span], text: str) -> None:
  last = 0
  for k, (a, b) in enumerate(spans):
    if not last <= a <= b <= len(text):
      what = f"isn't in order within {last}-{len(text)}"
    elif not text[a:b].strip():
      what = "is blank"
    else:
      last = b
      continue
    raise errors.InputError(
      f"span {k} (from 0), characters {a}-{b}, {what}; give one with text for"
      " each step, in order"
    )
