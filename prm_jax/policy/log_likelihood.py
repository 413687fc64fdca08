"""How likely texts follow a solution: a policy as a `schema.LogLikelihood`.

Each prefix becomes one row, a tree: its ids once, and then every option as a
branch of its own. So one forward pass computes all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jaxtyping import Array, Float
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.rows import packing
from prm_jax.runtime import forks

# Bounds the memory of a forward pass.
_BATCH_TOKENS = 16_384


@dataclasses.dataclass(frozen=True)
class Choice:
  """A prefix's ids, followed by those of each option, one after another.

  Args:
    tokens: The ids.
    shared: The number of ids before the options.
    spans: The place of each option in tokens, [start, end).
  """

  tokens: np.ndarray
  shared: int
  spans: tuple[tuple[int, int], ...]


def log_likelihoods(
  config: model_config.ModelConfig,
  params: Any,
  codec: codecs.Codec,
  prefixes: Sequence[schema.Solution],
  options: Sequence[str],
) -> list[list[float]]:
  """Returns log-probabilities in nats: a row per prefix, a column per option.

  Raises:
    InputError: Two options are the same ids to the tokenizer.
  """
  choices = [choice(prefix, options, codec) for prefix in prefixes]
  rows = _by_segment(config, params, [_segment(x) for x in choices])
  return [
    [float(row[a:b].sum()) for a, b in x.spans]
    for row, x in zip(rows, choices, strict=True)
  ]


def of_ids(
  config: model_config.ModelConfig, params: Any, ids: Sequence[np.ndarray]
) -> list[np.ndarray]:
  """Returns the log-probability of each id after those before it, in nats.

  Args:
    config: The shape of the policy.
    params: Its parameters.
    ids: Sequences of ids.

  Returns:
    An array for each sequence, as long as it; its first number means nothing.
  """
  return _by_segment(
    config, params, [packing.branches(row[:0], [row]) for row in ids]
  )


def _by_segment(
  config: model_config.ModelConfig,
  params: Any,
  segments: Sequence[packing.Segment],
) -> list[np.ndarray]:
  """Returns the log-probability of each token of segments, in few shapes."""
  forks.check()
  order = np.argsort([len(x) for x in segments], kind="stable").tolist()
  out: list[np.ndarray] = [np.zeros(0)] * len(segments)
  while order:
    # The longest first: all rows of the batch are as long.
    width = packing.padded_length(len(segments[order[-1]]))
    rows = max(1, _BATCH_TOKENS // width)
    rows = min(rows, packing.power_of_two(len(order)))
    chosen, order = order[-rows:], order[:-rows]
    filled = [[segments[i]] for i in chosen]
    filled += [[]] * (rows - len(chosen))
    batch = packing.fill(filled, width)
    log_probs = jax.device_get(_token_log_probs(params, batch, config=config))
    for row, i in enumerate(chosen):
      out[i] = log_probs[row, : len(segments[i])]
  return out


def choice(
  prefix: schema.Solution,
  options: Sequence[str],
  codec: codecs.Codec,
) -> Choice:
  """Returns the ids of a prefix and of the texts that may follow its last step.

  An option is encoded together with that step. If this changes ids at the
  step's end, all options begin at the first id that any of them changes, so the
  differences of their log-probabilities are still those of the texts.

  Raises:
    InputError: Two options are the same ids to the tokenizer.
  """
  whole = [codec.within(prefix, option) for option in options]
  if len(set(map(tuple, whole))) < len(options):
    raise errors.InputError(
      f"options {', '.join(map(repr, options))}: two of them have the same"
      " token ids; give a judge whose vocabulary has their words"
    )
  alone = codec.within(prefix, "")
  is_same = [len(set(column)) == 1 for column in zip(alone, *whole)]
  shared = [*is_same, False].index(False)
  tokens, spans = alone[:shared], []
  for option_ids in whole:
    start = len(tokens)
    tokens = tokens + option_ids[shared:]
    spans.append((start, len(tokens)))
  return Choice(np.asarray(tokens, np.int32), shared, tuple(spans))


def _segment(choice: Choice) -> packing.Segment:
  """Returns a tree in which an option sees its prefix and itself."""
  options = [choice.tokens[start:end] for start, end in choice.spans]
  return packing.branches(choice.tokens[: choice.shared], options)


@functools.partial(jax.jit, static_argnames="config")
def _token_log_probs(
  params: Any, batch: batch_lib.Batch, *, config: model_config.ModelConfig
) -> Float[Array, "B T"]:
  return transformer.token_log_probs(config, params, batch)
