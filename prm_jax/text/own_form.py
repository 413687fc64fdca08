"""Our own form of a solution, and how a policy's ids in it are read back.

  bos problem separator  step separator  step separator  ...  [eos]

Every text is encoded on its own, so the position at which a step is read
follows from the lengths.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from prm_jax import schema
from prm_jax.text import segmenters
from prm_jax.text import step_spans
from prm_jax.text import template
from prm_jax.text import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class OwnForm:
  """Our own form, a template.Template: separators that no text can yield."""

  name: ClassVar[str] = "native"
  of_policy: ClassVar[bool] = False
  apart: ClassVar[bool] = False
  segmenter: ClassVar[None] = None

  def fitted(self, tokenizer: tokenizer_lib.Tokenizer) -> OwnForm:
    del tokenizer
    return self

  def num_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> int:
    return tokenizer.vocab_size

  def write(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    *,
    score_position: str = "last_token",
    end: bool = False,
  ) -> template.EncodedSolution:
    ids = prompt(solution.problem, tokenizer)
    prompt_tokens = len(ids)
    reads: list[int] = []
    for step in solution.steps:
      text = tokenizer.encode(step)
      ids += [*text, tokenizer.separator]
      # A blank step has no token, so it is read at its separator.
      at_text = score_position == "last_token" and text
      reads.append(len(ids) - (2 if at_text else 1))
    if end:
      ids.append(tokenizer.eos)
    return template.EncodedSolution(
      np.asarray(ids, np.int32), np.asarray(reads, np.int32), prompt_tokens
    )

  def spans(
    self,
    text: str,
    segmenter: segmenters.Segmenter,
    tokenizer: tokenizer_lib.Tokenizer,
    begun: str = "",
  ) -> tuple[schema.Span, ...]:
    return step_spans.spans(text, segmenter, tokenizer, begun)

  def unread(self, solution: schema.Solution) -> tuple[bool, ...]:
    del solution
    return ()


OWN = OwnForm()


def prompt(problem: str, tokenizer: tokenizer_lib.Tokenizer) -> list[int]:
  """Returns the ids that come before the first step."""
  return [tokenizer.bos, *tokenizer.encode(problem), tokenizer.separator]


def split_steps(
  ids: tokenizer_lib.Ids, tokenizer: tokenizer_lib.Tokenizer
) -> list[str]:
  """Returns the steps in sampled ids, up to eos.

  The separators are ids that the policy wrote, not text.
  """
  steps, start = [], 0
  for i, token in enumerate(ids):
    if token == tokenizer.eos:
      ids = ids[:i]
      break
    if token == tokenizer.separator:
      steps.append(tokenizer.decode(ids[start:i]))
      start = i + 1
  if start < len(ids):
    steps.append(tokenizer.decode(ids[start:]))
  return steps
