"""Turns of trajectories cut into several steps."""

from __future__ import annotations

import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib


def cut(
  solution: schema.Solution,
  segmenter: segmenters.Segmenter,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
) -> schema.Solution:
  """Returns a trajectory whose turns are cut into several steps.

  A turn's text is cut; its tool calls are of its last step. A turn in which no
  step is found is one.

  Args:
    solution: A trajectory of whole turns, without labels.
    segmenter: How a text is cut into steps.
    tokenizer: The tokenizer, which some segmenters need.

  Returns:
    The trajectory with raw_text and spans.

  Raises:
    InputError: It is no trajectory, is cut already, or has labels, which are of
      whole turns.
  """
  if solution.messages is None or solution.spans is not None:
    raise errors.InputError(
      f"solution {solution.id!r}: no trajectory of whole turns; only its turns"
      " can be cut into steps"
    )
  if solution.labels is not None or solution.ratings is not None:
    raise errors.InputError(
      f"solution {solution.id!r}: its labels are of whole turns; take them out,"
      " or leave the turns whole"
    )
  spans: list[schema.Span] = []
  turns = [x for x in solution.messages if x.role == "assistant"]
  places = schema.turn_spans(turns)
  for turn, (start, end) in zip(turns, places, strict=True):
    found = segmenters.spans(turn.text, segmenter, tokenizer) or ((0, 0),)
    own = [(start + a, start + b) for a, b in found]
    spans += [*own[:-1], (own[-1][0], end)]
  raw_text = schema.BETWEEN_TURNS.join(x.shown for x in turns)
  return dataclasses.replace(
    solution,
    steps=tuple(raw_text[a:b] for a, b in spans),
    raw_text=raw_text,
    spans=tuple(spans),
  )
