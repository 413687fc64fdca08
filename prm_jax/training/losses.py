"""Every objective as sums: each function returns (total, weight), never a mean.

The caller divides once, over the global batch, so neither packing nor sharding
nor gradient accumulation changes the number. Logits and losses are float32, and
losses are in nats. A position of weight 0 doesn't count, whatever its label is.

Objectives over whole solutions (pqm, implicit_ce, implicit_dpo) need rows of
separate solutions, in which visible_until is the same for all tokens of a
solution. They aren't defined for trees, whose tokens belong to several
solutions.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax.batch import ArrayLike
from prm_jax.models import visibility

Sums = tuple[Float[Array, ""], Float[Array, ""]]

# Published values: zeta of PQM's released model, beta of ImplicitPRM.
PQM_MARGIN, IMPLICIT_BETA = 4.0, 0.05
# The labels of bad, neutral and good.
THREE_WAY_LABELS = (0.0, 0.5, 1.0)
# Stands for the logarithm of 0, without infinity's NaN in the gradient.
_LOG_0 = -1e30
# How many queries of a row are compared with all of it at once.
_PAIR_BLOCK = 256


def counted(
  weights: Float[ArrayLike, "B T"], values: Float[ArrayLike, "B T ..."]
) -> Float[Array, "B T ..."]:
  """Returns values with 0 at the positions that don't count.

  Apply it to the inputs of a loss, not to its result: a NaN that is only left
  out of the result comes back in the gradient, as 0 * NaN.

  Args:
    weights: The weight of each token; those above 0 count.
    values: What to mask, with any further axes.

  Returns:
    The values, with 0 where the weight isn't above 0.
  """
  counts = jnp.asarray(weights) > 0
  return jnp.where(
    counts.reshape(counts.shape + (1,) * (values.ndim - 2)), values, 0
  )


def weighted(
  loss: Float[Array, "B T"], weights: Float[ArrayLike, "B T"]
) -> Sums:
  """Returns the weighted sum of a loss, and the sum of the weights.

  Args:
    loss: The loss at each token, in nats.
    weights: The weight of each token, at least 0.

  Returns:
    (total, weight), two scalars.
  """
  return (loss * weights).sum(), jnp.asarray(weights).sum()


def step_bce(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  error_weight: float = 1.0,
) -> Sums:
  """Returns binary cross-entropy against hard or soft labels.

  With outcomes as labels this is the loss of an ORM (Cobbe et al. 2021, arXiv
  2110.14168). The weights then select every token or the last step
  (encoding.orm_examples).

  Args:
    logits: The log-odds of P(correct so far) at each token.
    labels: The targets, in [0, 1].
    weights: The weight of each target, at least 0; 0 where there is no target.
    error_weight: How much the "wrong" side of a label counts, relative to the
      right side: w * (1 - y) * -log(1 - p) + y * -log p. The returned weight is
      the sum of w * (1 - y) + y, as if the rarer class came more often.

  Returns:
    (total, weight), two scalars; the total is in nats.
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  wrong = error_weight * (1 - labels)
  loss = -labels * jax.nn.log_sigmoid(logits)
  loss = loss - wrong * jax.nn.log_sigmoid(-logits)
  return (loss * weights).sum(), ((labels + wrong) * weights).sum()


def step_mse(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Returns squared error, (sigmoid(logit) - label)^2, against soft labels.

  Zhang et al. 2025 (arXiv 2501.07301) train on Monte-Carlo labels with it.

  Args:
    logits: The log-odds of P(correct so far) at each token.
    labels: The targets, in [0, 1].
    weights: The weight of each target, at least 0; 0 where there is no target.

  Returns:
    (total, weight), two scalars.
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  return weighted(jnp.square(jax.nn.sigmoid(logits) - labels), weights)


def step_three_way(
  logits: Float[Array, "B T 3"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Returns cross-entropy over the classes bad, neutral and good.

  Lightman et al. 2023 (arXiv 2305.20050), appendix F. The published head has
  hard targets, and a probability of being correct doesn't determine one over
  three classes. Another label makes the total nan: it isn't rounded to a class.

  Args:
    logits: The logits of bad, neutral and good at each token.
    labels: 0 for bad, 0.5 for neutral, 1 for good.
    weights: The weight of each target, at least 0; 0 where there is no target.

  Returns:
    (total, weight), two scalars; the total is in nats.
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  classes = jnp.round(2 * labels).astype(jnp.int32)
  log_p = jax.nn.log_softmax(logits, axis=-1)
  loss = -jnp.take_along_axis(log_p, classes[..., None], axis=-1)[..., 0]
  return weighted(jnp.where(2 * labels == classes, loss, jnp.nan), weights)


def language_model(
  logits: Float[Array, "B T V"],
  tokens: Int[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Returns next-token cross-entropy.

  Args:
    logits: The logits of the vocabulary; logits[t] predict tokens[t].
    tokens: The ids to predict.
    weights: The weight of each token, at least 0.

  Returns:
    (total, weight), two scalars; the total is in nats.
  """
  logits = counted(weights, logits)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return weighted(log_z - chosen, weights)


# --- Over the steps of a solution -------------------------------------------


def _at_end(
  values: Float[Array, "B T"], visible_until: Int[ArrayLike, "B T"]
) -> Float[Array, "B T"]:
  """Returns, at every token, the value at the last token of its solution."""
  return jnp.take_along_axis(values, jnp.asarray(visible_until) - 1, axis=1)


def pqm(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  visible_until: Int[ArrayLike, "B T"],
  *,
  margin: float = PQM_MARGIN,
) -> Sums:
  """Returns PQM's ranking loss of Q-values (Li & Li 2025, arXiv 2410.11287).

  With C the right steps (label >= 1/2) in order, W the wrong steps, zeta the
  margin, and Q_0 = 0 the value before any step, the loss of a solution is the
  mean over t in C, and over t = 0 if W isn't empty, of

    log(sum_{q in C + {0}, q <= t} e^Q_q + sum_{w in W} e^(Q_w + zeta)) - Q_t

  computed in logarithms. A solution's weight is the mean of its targets'
  weights. The paper divides by |C|; its code divides by the number of terms, as
  this function does. The code also adds e^Q_t twice to the denominator from the
  second step on; this function doesn't.

  Args:
    logits: The Q-value at each token.
    labels: The targets, in [0, 1].
    weights: The weight of each target, at least 0; 0 where there is no target.
    visible_until: The first later token that doesn't see each token; equal for
      all tokens of a solution.
    margin: zeta.

  Returns:
    (total, weight), two scalars; the total is in nats.
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  weights = jnp.asarray(weights)
  counts = weights > 0
  right, wrong = counts & (labels >= 0.5), counts & (labels < 0.5)
  starts = visibility.solution_starts(visible_until)

  def whole(values, combine=jnp.add):
    return _at_end(visibility.running(combine, values, starts), visible_until)

  log_right = visibility.running(
    jnp.logaddexp, jnp.where(right, logits, _LOG_0), starts
  )
  log_wrong = whole(jnp.where(wrong, logits + margin, _LOG_0), jnp.logaddexp)
  log_terms = jnp.logaddexp(jnp.logaddexp(log_right, 0.0), log_wrong)
  terms = jnp.where(right, log_terms - logits, 0)
  # The term of t = 0, at the last token of a solution with an error.
  index = jnp.arange(logits.shape[1])
  last = index == jnp.asarray(visible_until) - 1
  any_wrong = whole(wrong.astype(jnp.float32)) > 0
  terms += jnp.where(last & any_wrong, jnp.logaddexp(log_wrong, 0.0), 0)
  num_terms = whole(right.astype(jnp.float32)) + any_wrong
  num_targets = whole(counts.astype(jnp.float32))
  solution_weight = whole(weights) / jnp.maximum(num_targets, 1)
  total = (terms * solution_weight / jnp.maximum(num_terms, 1)).sum()
  return total, jnp.where(last, solution_weight, 0).sum()


# --- Over pairs -------------------------------------------------------------


def bradley_terry(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  pair_group: Int[ArrayLike, "B T"],
  *,
  margin: float = 0.0,
) -> Sums:
  """Returns -log sigmoid(s_i - s_j - margin), summed over pairs.

  Bradley & Terry 1952. A pair is two targets of one row and one group with
  label_i > label_j. A pair weighs the product of its targets' weights. No array
  [B, T, T] is held: pairs are formed for 256 tokens of a row at a time, and
  again for the gradient.

  Args:
    logits: The score s at each token.
    labels: The targets that order a pair, in [0, 1].
    weights: The weight of each target, at least 0; 0 where there is no target.
    pair_group: The number of each target's group; 0 is in no group.
    margin: By how much s_i should exceed s_j.

  Returns:
    (total, weight), two scalars: nats, and the weight of all pairs.
  """

  def loss(difference):
    return -jax.nn.log_sigmoid(difference - margin)

  return _over_pairs(loss, logits, labels, weights, pair_group)


def pairs_in_order(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  pair_group: Int[ArrayLike, "B T"],
) -> Sums:
  """Returns the weight of the pairs whose logits are ordered as their labels.

  Args:
    logits: The score at each token. Equal scores count one half.
    labels: The targets that order a pair, in [0, 1].
    weights: The weight of each target, at least 0; 0 where there is no target.
    pair_group: The number of each target's group; 0 is in no group.

  Returns:
    (total, weight), two scalars: the weight in order, and that of all pairs.
  """

  def in_order(difference):
    return 0.5 * (jnp.sign(difference) + 1)

  return _over_pairs(in_order, logits, labels, weights, pair_group)


def _over_pairs(
  function: Callable[[Array], Array],
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  pair_group: Int[ArrayLike, "B T"],
) -> Sums:
  """Returns the sum of function(s_i - s_j) over all pairs, and their weight."""
  weights = jnp.where(jnp.asarray(pair_group) > 0, weights, 0.0)
  logits, labels = counted(weights, logits), counted(weights, labels)
  row = (logits, labels, weights, jnp.asarray(pair_group))

  @jax.checkpoint
  def of_block(block):
    (s_i, label_i, weight_i, group_i), (s_j, label_j, weight_j, group_j) = (
      [x[:, :, None] for x in block],
      [x[:, None, :] for x in row],
    )
    pairs = (group_i == group_j) & (label_i > label_j)
    pair_weights = jnp.where(pairs, weight_i * weight_j, 0)
    total = (function(s_i - s_j) * pair_weights).sum()
    return total, pair_weights.sum()

  rows, tokens = logits.shape
  if tokens <= _PAIR_BLOCK:
    return of_block(row)
  num_blocks = -(-tokens // _PAIR_BLOCK)

  def split(x):
    x = jnp.pad(x, ((0, 0), (0, num_blocks * _PAIR_BLOCK - tokens)))
    return x.reshape(rows, num_blocks, _PAIR_BLOCK).swapaxes(0, 1)

  total, weight = jax.lax.map(of_block, tuple(map(split, row)))
  return total.sum(), weight.sum()


# --- Implicit rewards -------------------------------------------------------


def implicit_values(
  log_ratios: Float[Array, "B T"],
  weights: Float[ArrayLike, "B T"],
  visible_until: Int[ArrayLike, "B T"],
  *,
  beta: float,
) -> Float[Array, "B T"]:
  """Returns q = beta * sum log(pi / pi_ref) from the first step to each token.

  The sum is over the tokens of a solution's steps (Yuan et al. 2024, arXiv
  2412.01981). At the solution's last token it is the reward of the solution.

  Args:
    log_ratios: log pi - log pi_ref of each token, in nats.
    weights: Above 0 at the tokens of steps, 0 elsewhere.
    visible_until: The first later token that doesn't see each token; equal for
      all tokens of a solution.
    beta: The factor.

  Returns:
    q at each token.
  """
  masked = counted(weights, log_ratios)
  return beta * visibility.running(
    jnp.add, masked, visibility.solution_starts(visible_until)
  )


def implicit_ce(
  log_ratios: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  visible_until: Int[ArrayLike, "B T"],
  *,
  beta: float = IMPLICIT_BETA,
) -> Sums:
  """Returns cross-entropy of sigmoid(reward) against the outcome.

  Yuan et al. 2024 (arXiv 2412.01981).

  Args:
    log_ratios: log pi - log pi_ref of each token, in nats.
    labels: The outcome, in [0, 1], at the last token of each solution
      (encoding.implicit_examples).
    weights: Above 0 at the tokens of steps; at the last token of a solution,
      the solution's weight.
    visible_until: The first later token that doesn't see each token; equal for
      all tokens of a solution.
    beta: The factor of the log-ratios.

  Returns:
    (total, weight), two scalars; the total is in nats.
  """
  values = implicit_values(log_ratios, weights, visible_until, beta=beta)
  return step_bce(values, labels, _at_last(weights, visible_until))


def implicit_dpo(
  log_ratios: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  visible_until: Int[ArrayLike, "B T"],
  pair_group: Int[ArrayLike, "B T"],
  *,
  beta: float = IMPLICIT_BETA,
) -> Sums:
  """Returns DPO's loss: Bradley-Terry on the rewards of whole solutions.

  Rafailov et al. 2023 (arXiv 2305.18290). Solutions of one group are compared.

  Args:
    log_ratios: log pi - log pi_ref of each token, in nats.
    labels: The outcome, in [0, 1], at the last token of each solution.
    weights: Above 0 at the tokens of steps; at the last token of a solution,
      the solution's weight.
    visible_until: The first later token that doesn't see each token; equal for
      all tokens of a solution.
    pair_group: The number of the solution's group, at its last token; 0 is in
      no group.
    beta: The factor of the log-ratios.

  Returns:
    (total, weight), two scalars: nats, and the weight of all pairs.
  """
  values = implicit_values(log_ratios, weights, visible_until, beta=beta)
  return bradley_terry(
    values, labels, _at_last(weights, visible_until), pair_group
  )


def _at_last(weights, visible_until):
  """Returns the weights, with 0 at all but the last token of each solution."""
  index = jnp.arange(weights.shape[1])
  return jnp.where(index == jnp.asarray(visible_until) - 1, weights, 0)
