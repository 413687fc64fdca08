"""How likely texts follow a solution: a policy as a `schema.LogLikelihood`.

Each prefix becomes one row, a tree: its ids once, and then every option as a
branch of its own. So one forward pass computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.rows import packing
from prm_jax.runtime import forks
from prm_jax.text import encoding

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


class Margins(NamedTuple):
  """How each id of a sequence stands among all ids; see TokenMargins.

  Args:
    log_prob: Its log-probability in nats, [T].
    best_other: That of the most likely other id, [T].
    logit_std: The standard deviation of the logits, [T].
  """

  log_prob: np.ndarray
  best_other: np.ndarray
  logit_std: np.ndarray


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


def of_groups(
  config: model_config.ModelConfig,
  params: Any,
  groups: Sequence[Sequence[np.ndarray]],
) -> list[list[Margins]]:
  """Returns how each id of sequences stands among all ids, given those before.

  The sequences of a group are a tree: what several begin with is computed once.

  Args:
    config: The shape of the policy.
    params: Its parameters.
    groups: Sequences of ids, which begin alike in a group.

  Returns:
    For each sequence arrays as long as it; their first number means nothing.
  """
  rows, _ = _in_trees(groups, lambda x: _margins(params, x, config=config))
  return [[Margins(*arrays) for arrays in group] for group in rows]


def weigh(
  config: model_config.ModelConfig,
  params: Any,
  codec: codecs.Codec,
  groups: Sequence[tuple[Sequence[schema.Solution], Sequence[str]]],
) -> tuple[list[list[list[schema.Weighed]]], int]:
  """Returns how likely texts are after prefixes, and the tokens computed.

  What prefixes and texts of a group begin with is computed once.

  Args:
    config: The shape of the policy.
    params: Its parameters.
    codec: How its prompts are written.
    groups: Unfinished solutions, with the texts that may follow the last step
      of each, within it.

  Returns:
    A row for each solution of a group, with a column for each text; and the
    number of tokens of all trees, without padding.

  Raises:
    InputError: Two texts of a group are the same ids to the tokenizer.
  """
  choices = [
    [choice(prefix, texts, codec) for prefix in prefixes]
    for prefixes, texts in groups
  ]
  ids = [
    [
      np.concatenate([x.tokens[: x.shared], x.tokens[a:b]])
      for x in group
      for a, b in x.spans
    ]
    for group in choices
  ]
  log_probs = functools.partial(_token_log_probs, params, config=config)
  rows, num_tokens = _in_trees(ids, lambda batch: (log_probs(batch),))
  weighed = []
  for group, arrays in zip(choices, rows, strict=True):
    read = iter(arrays)
    weighed.append(
      [
        [
          schema.Weighed(float(next(read)[0][x.shared :].sum()), b - a)
          for a, b in x.spans
        ]
        for x in group
      ]
    )
  return weighed, num_tokens


def _in_trees(
  groups: Sequence[Sequence[np.ndarray]],
  of_batch: Callable[[batch_lib.Batch], Sequence[Array]],
) -> tuple[list[list[list[np.ndarray]]], int]:
  """Returns a function's arrays for each sequence, and the trees' tokens."""
  examples = []
  for i, group in enumerate(groups):
    for ids in group:
      none = np.zeros(len(ids), np.float32)
      examples.append(
        encoding.Example(
          np.asarray(ids, np.int32), none, none, none > 0, group=str(i)
        )
      )
  most = max([_BATCH_TOKENS, *map(len, examples)])
  segments, places = packing.placed_trees(examples, most)
  rows = _by_shape(segments, of_batch)
  read = iter([x[path] for x in rows[tree]] for tree, path in places)
  num_tokens = sum(map(len, segments))
  return [list(itertools.islice(read, len(x))) for x in groups], num_tokens


def _by_segment(
  config: model_config.ModelConfig,
  params: Any,
  segments: Sequence[packing.Segment],
) -> list[np.ndarray]:
  """Returns the log-probability of each token of segments, in few shapes."""
  log_probs = functools.partial(_token_log_probs, params, config=config)
  return [x for (x,) in _by_shape(segments, lambda batch: (log_probs(batch),))]


def _by_shape(
  segments: Sequence[packing.Segment],
  of_batch: Callable[[batch_lib.Batch], Sequence[Array]],
) -> list[list[np.ndarray]]:
  """Returns a function's arrays [B, T] for each segment, in few shapes."""
  forks.check()
  order = np.argsort([len(x) for x in segments], kind="stable").tolist()
  out: list[list[np.ndarray]] = [[] for _ in segments]
  while order:
    # The longest first: all rows of the batch are as long.
    width = packing.padded_length(len(segments[order[-1]]))
    rows = max(1, _BATCH_TOKENS // width)
    rows = min(rows, packing.power_of_two(len(order)))
    chosen, order = order[-rows:], order[:-rows]
    filled = [[segments[i]] for i in chosen]
    filled += [[]] * (rows - len(chosen))
    batch = packing.fill(filled, width)
    arrays = jax.device_get(of_batch(batch))
    for row, i in enumerate(chosen):
      out[i] = [x[row, : len(segments[i])] for x in arrays]
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
      " token ids; give a model whose vocabulary has their words"
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


@functools.partial(jax.jit, static_argnames="config")
def _margins(
  params: Any, batch: batch_lib.Batch, *, config: model_config.ModelConfig
) -> transformer.TokenMargins:
  return transformer.token_margins(config, params, batch)
