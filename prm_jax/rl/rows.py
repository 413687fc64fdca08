"""Puts the solutions of a rollout into rows of one shape, and takes them out.

Solutions of one problem may share its tokens in a row, as a tree.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.rl import rollout
from prm_jax.rows import packing
from prm_jax.runtime import checks


@dataclasses.dataclass(frozen=True)
class RowsConfig:
  """The shape of a rollout's rows.

  Args:
    batch_size: The number of rows of a microbatch.
    sequence_length: The number of tokens of a row.
    minibatches: The number of updates in a pass over a rollout.
    share_prefixes: Whether solutions of a problem share its tokens in a row.
  """

  batch_size: int
  sequence_length: int
  minibatches: int = 1
  share_prefixes: bool = True

  def __post_init__(self):
    checks.check_counts(self, ("batch_size", "sequence_length", "minibatches"))


class Packed(NamedTuple):
  """The rows of a rollout, and where each solution's new tokens are in them.

  Args:
    batch: The rows.
    places: The index of each new token in the flat rows [B * T], -1 after the
      last.
    minibatch: The index of each solution's minibatch.
  """

  batch: batch_lib.Batch
  places: np.ndarray
  minibatch: np.ndarray


def num_microbatches(
  config: RowsConfig, sizes: rollout.RolloutConfig, prompt_tokens: int
) -> int:
  """Returns how many microbatches a minibatch of longest solutions needs.

  Raises:
    InputError: A solution of full length doesn't fit into a row.
  """
  longest = prompt_tokens + sizes.max_tokens
  if longest > config.sequence_length:
    raise errors.InputError(
      f"sequence_length={config.sequence_length}: the longest prompt has {prompt_tokens}"
      f" tokens and rollout.max_tokens is {sizes.max_tokens}; a solution must"
      f" fit a row: make it {longest} or more"
    )
  solutions = sizes.num_solutions // config.minibatches
  in_row = config.sequence_length // longest
  return -(-solutions // (in_row * config.batch_size))


def pack(
  sampled: rollout.Sampled,
  config: RowsConfig,
  sizes: rollout.RolloutConfig,
  microbatches: int,
) -> Packed:
  """Returns the rows of a rollout, in the order of updates.Rollout.

  A minibatch takes whole problems as far as possible. If solutions share their
  prompts, a row holds as many solutions of a problem as fit. Such trees may
  waste more room than they save; if they need more rows than there are, each
  solution is a tree of its own, which always fits.
  """
  N, T = len(sampled.completions), config.sequence_length
  per = N // config.minibatches
  B = config.batch_size * config.minibatches * microbatches
  rows: list[list[packing.Segment]] = [[] for _ in range(B)]
  places = np.full((N, sizes.max_tokens), -1, np.int64)
  for m in range(config.minibatches):
    own = range(m * per, (m + 1) * per)
    for share in (config.share_prefixes, False):
      trees = _trees(sampled, own, T, sizes.samples, share)
      assigned = packing.assign_rows([len(tree) for tree, _ in trees], T)
      if len(assigned) <= microbatches * config.batch_size:
        break
    for k, members in enumerate(assigned):
      j, r = divmod(k, config.batch_size)
      assert j < microbatches
      b = (r * config.minibatches + m) * microbatches + j
      start = 0
      for number in members:
        tree, solutions = trees[number]
        rows[b].append(tree)
        at = start + len(sampled.prompts[solutions[0]])
        for i in solutions:
          length = len(sampled.completions[i].tokens)
          places[i, :length] = b * T + at + np.arange(length)
          at += length
        start += len(tree)
  return Packed(packing.fill(rows, T), places, np.arange(N) // per)


def _trees(
  sampled: rollout.Sampled,
  solutions: range,
  sequence_length: int,
  samples: int,
  share: bool,
) -> list[tuple[packing.Segment, list[int]]]:
  """Returns trees, and the indices of their solutions."""
  groups: list[list[int]] = []
  open_: dict[int, tuple[int, int]] = {}  # problem -> its last group, its room
  for i in solutions:
    length = len(sampled.completions[i].tokens)
    problem = i // samples
    number, room = open_.get(problem, (0, -1))
    if not share or room < length:
      room = sequence_length - len(sampled.prompts[i])
      number = len(groups)
      groups.append([])
    groups[number].append(i)
    open_[problem] = number, room - length
  return [
    (
      packing.branches(
        sampled.prompts[group[0]],
        [sampled.completions[i].tokens for i in group],
      ),
      group,
    )
    for group in groups
  ]


def loss_weights(
  token_mask: np.ndarray,
  minibatch: np.ndarray,
  *,
  loss_aggregation: str,
  max_tokens: int,
) -> np.ndarray:
  """Returns the weight of each token [N, S] in its minibatch's loss.

  Args:
    token_mask: The tokens of solutions that count; the others weigh 0.
    minibatch: The index of each solution's minibatch.
    loss_aggregation: See policy_losses.LossConfig.
    max_tokens: What "constant" divides by.
  """
  mask = token_mask.astype(np.float64)
  lengths = mask.sum(1, keepdims=True)
  counts = (lengths > 0).astype(np.float64)
  of = np.arange(minibatch.max(initial=0) + 1)[:, None] == minibatch

  def total(values):
    return np.maximum(of @ values, 1)[minibatch]

  if loss_aggregation == "tokens":
    weights = mask / total(lengths)
  elif loss_aggregation == "solutions":
    weights = mask / np.maximum(lengths, 1) / total(counts)
  else:
    weights = mask / max_tokens / total(counts)
  return weights.astype(np.float32)


def per_solution(token_mask: np.ndarray, minibatch: np.ndarray) -> np.ndarray:
  """Returns weights [N, S] with which a sum over solutions is their mean.

  They are 1 / the number of the minibatch's solutions that have a token, and 0
  at masked tokens.
  """
  counts = np.bincount(minibatch, token_mask.any(1))
  weights = token_mask / np.maximum(counts, 1)[minibatch, None]
  return weights.astype(np.float32)


def scatter(values: np.ndarray, packed: Packed) -> np.ndarray:
  """Returns the values of new tokens [N, S] at their places in the rows."""
  rows, tokens = packed.batch.tokens.shape
  out = np.zeros(rows * tokens, np.float32)
  real = packed.places >= 0
  out[packed.places[real]] = np.asarray(values)[real]
  return out.reshape(rows, tokens)


def gather(rows: np.ndarray, packed: Packed) -> np.ndarray:
  """Returns the values at each solution's new tokens [N, S], 0 after them."""
  flat = np.asarray(rows).reshape(-1)
  values = flat[np.maximum(packed.places, 0)]
  return np.where(packed.places >= 0, values, 0)
