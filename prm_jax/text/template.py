"""What a template is: how a model reads a solution, as ids and places.

Our own form (own_form.py), the forms of published reward models (templates.py)
and those of policies (policy_text.py) are templates. Who encodes, scores or
trains knows this protocol alone.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np

from prm_jax import schema
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class EncodedSolution:
  """A solution's ids, and the score positions that were computed with them.

  Args:
    tokens: The ids, int32 [T].
    step_end: Where each step's score is read, int32 [num_steps]. num_steps is
      less than the solution's if its last steps were cut off.
    prompt_tokens: The number of ids before the first step.
    turns: Of a trajectory, the ids of each turn, as (first, one after last).
    starts: Of a template that reads steps apart, the place of each step's first
      id; no id before it is seen from there on.
  """

  tokens: np.ndarray
  step_end: np.ndarray
  prompt_tokens: int
  turns: tuple[tokenizer_lib.Span, ...] | None = None
  starts: tuple[int, ...] = ()

  @property
  def own(self) -> np.ndarray:
    """Which ids are the model's and no context, bool [T]."""
    places = np.arange(len(self.tokens))
    if self.turns is None:
      return places >= self.prompt_tokens
    is_own = np.zeros(len(places), bool)
    for first, end in self.turns:
      is_own[first:end] = True
    return is_own


@runtime_checkable
class Template(Protocol):
  """How a model reads a solution; frozen data, saved with its checkpoint."""

  def __hash__(self) -> int: ...

  @property
  def name(self) -> str: ...

  @property
  def of_policy(self) -> bool:
    """Whether it is a published policy's; such a one alone reads conversations."""
    ...

  @property
  def apart(self) -> bool:
    """Whether each step is read in a sequence of its own."""
    ...

  @property
  def segmenter(self) -> segmenters.Segmenter | None:
    """How texts are cut into steps; None if the template doesn't say it."""
    ...

  def fitted(self, tokenizer: tokenizer_lib.Tokenizer) -> Template:
    """Returns the template as it is written with a tokenizer.

    Raises:
      InputError: The tokenizer can't hold it: it lacks a control token.
    """
    ...

  def num_ids(self, tokenizer: tokenizer_lib.Tokenizer) -> int:
    """Returns how many token ids a model needs that reads it."""
    ...

  def write(
    self,
    solution: schema.Solution,
    tokenizer: tokenizer_lib.Tokenizer,
    *,
    score_position: str = "last_token",
    end: bool = False,
  ) -> EncodedSolution:
    """Returns a whole solution's ids, and where its steps are read.

    Args:
      solution: The solution.
      tokenizer: The tokenizer.
      score_position: See encoding.EncodingConfig; read by our own form alone.
      end: Whether to add what ends a solution.

    Raises:
      InputError: It can't be written, or a step has no token to be read at.
    """
    ...

  def spans(
    self,
    text: str,
    segmenter: segmenters.Segmenter,
    tokenizer: tokenizer_lib.Tokenizer,
    begun: str = "",
  ) -> tuple[schema.Span, ...]:
    """Returns the places of a text's steps; see step_spans.spans."""
    ...

  def unread(self, solution: schema.Solution) -> tuple[bool, ...]:
    """Returns of which steps a thought before them isn't written; () is none."""
    ...
