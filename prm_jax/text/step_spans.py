"""The places of a text's steps, by a segmenter.

Steps are spans of characters, so every step is an unchanged part of the text,
and a score belongs to a place in it. The characters between steps are white
space.
"""

from __future__ import annotations

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import marker_cuts
from prm_jax.text import paragraph_cuts
from prm_jax.text import segmenters
from prm_jax.text import sentence_cuts
from prm_jax.text import step_cuts
from prm_jax.text import tokenizer as tokenizer_lib


def spans(
  text: str,
  segmenter: segmenters.Segmenter,
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
  segmenter: segmenters.Segmenter,
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
  segmenter: segmenters.Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None,
  begun: str,
) -> tuple[tuple[schema.Span, ...], int]:
  cuts = _cuts(begun + text, segmenter, tokenizer)
  return step_cuts.steps(text, step_cuts.after(cuts, len(begun)))


def _cuts(
  text: str,
  segmenter: segmenters.Segmenter,
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
