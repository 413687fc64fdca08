"""Every objective as sums: each returns (total, weight), never a mean.

The caller divides once, over the global batch, so that neither packing nor
sharding nor accumulation changes the number. Logits and losses are float32.
A position of weight 0 counts nothing, whatever its label holds.

Objectives over whole solutions (pqm, implicit_ce, implicit_dpo) take rows of
separate solutions, where visible_until is one number for all of a solution's
tokens. They mean nothing in trees, whose tokens belong to several solutions.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax.batch import ArrayLike

Sums = tuple[Float[Array, ""], Float[Array, ""]]

# Published values: zeta of PQM's released model, beta of ImplicitPRM.
PQM_MARGIN, IMPLICIT_BETA = 4.0, 0.05
# Stands for the logarithm of 0, without infinity's NaN in the gradient.
_LOG_0 = -1e30
# How many queries of a row are compared with all of it at once.
_PAIR_BLOCK = 256


def counted(
  weights: Float[ArrayLike, "B T"], values: Float[ArrayLike, "B T ..."]
) -> Float[Array, "B T ..."]:
  """Returns values with 0 where nothing counts.

  Before the loss, not after it: a NaN that only the result leaves out comes
  back in the gradient, as 0 * NaN.
  """
  counts = jnp.asarray(weights) > 0
  return jnp.where(
    counts.reshape(counts.shape + (1,) * (values.ndim - 2)), values, 0
  )


def weighted(
  loss: Float[Array, "B T"], weights: Float[ArrayLike, "B T"]
) -> Sums:
  """Returns the weighed sum of a loss, and of the weights."""
  return (loss * weights).sum(), jnp.asarray(weights).sum()


def step_bce(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  error_weight: float = 1.0,
) -> Sums:
  """Binary cross-entropy in nats against hard or soft labels in [0, 1].

  Against outcomes it is the loss of an ORM (Cobbe et al. 2021); the weights say
  whether at every token or at the last step (encoding.orm_examples).

  error_weight: how much the "wrong" side of a label counts against the right
  side: w * (1 - y) * -log(1 - p) + y * -log p. The weight returned is the sum
  of w * (1 - y) + y, so that a rarer class counts as if it came more often.
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
  """(sigmoid(logit) - label)^2, for soft labels (Zhang et al. 2025)."""
  logits, labels = counted(weights, logits), counted(weights, labels)
  return weighted(jnp.square(jax.nn.sigmoid(logits) - labels), weights)


def step_three_way(
  logits: Float[Array, "B T 3"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Cross-entropy over bad, neutral, good (Lightman et al. 2023, App. F).

  labels: 0 bad, 0.5 neutral, 1 good.
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  classes = jnp.round(2 * labels).astype(jnp.int32)
  log_p = jax.nn.log_softmax(logits, axis=-1)
  loss = -jnp.take_along_axis(log_p, classes[..., None], axis=-1)[..., 0]
  return weighted(loss, weights)


def language_model(
  logits: Float[Array, "B T V"],
  tokens: Int[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Next-token cross-entropy in nats; logits[t] predict tokens[t]."""
  logits = counted(weights, logits)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return weighted(log_z - chosen, weights)


# --- Over the steps of a solution -------------------------------------------


def running(
  combine: Callable[[Array, Array], Array],
  values: Float[Array, "B T"],
  starts: Bool[Array, "B T"],
) -> Float[Array, "B T"]:
  """Returns values combined from the last start of the row up to each token.

  combine: an associative function, as jnp.add. A row's first token starts.
  """

  def join(left, right):
    (begins, before), (begins_too, after) = left, right
    value = jnp.where(begins_too, after, combine(before, after))
    return begins | begins_too, value

  return jax.lax.associative_scan(join, (starts, values), axis=1)[1]


def solution_starts(visible_until: Int[ArrayLike, "B T"]) -> Bool[Array, "B T"]:
  """Returns where a row's solutions begin; each token of padding is one."""
  until = jnp.asarray(visible_until)
  other = until[:, 1:] != until[:, :-1]
  return jnp.pad(other, ((0, 0), (1, 0)), constant_values=True)


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
  """Ranks a solution's Q-values (Li & Li 2025, arXiv 2410.11287).

  With C the right steps (label >= 1/2) in order, W the wrong ones, zeta the
  margin, and Q_0 = 0 the value before any step, the loss of a solution is the
  mean over t in C, and t = 0 where W isn't empty, of

    log(sum_{q in C + {0}, q <= t} e^Q_q + sum_{w in W} e^(Q_w + zeta)) - Q_t

  all of it in logarithms. A solution weighs the mean of its targets' weights.
  (The paper divides by |C|, its code by the number of terms, as here; the code
  also adds e^Q_t twice to the denominator from the second step on.)
  """
  logits, labels = counted(weights, logits), counted(weights, labels)
  weights = jnp.asarray(weights)
  counts = weights > 0
  right, wrong = counts & (labels >= 0.5), counts & (labels < 0.5)
  starts = solution_starts(visible_until)

  def whole(values, combine=jnp.add):
    return _at_end(running(combine, values, starts), visible_until)

  log_right = running(jnp.logaddexp, jnp.where(right, logits, _LOG_0), starts)
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
  """-log sigmoid(s_i - s_j - margin) over pairs (Bradley & Terry 1952).

  A pair is two targets of a row in one group (above 0) with label_i > label_j;
  it weighs the product of their weights, as its copies would. The weight
  returned is that of all pairs. No array [B, T, T] is held: pairs are
  formed for 256 tokens of a row at a time, and again for the gradient.
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
  """The weight of the pairs that the logits order as the labels; ties half."""

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

  The sum is over the solution's tokens of weight above 0, those of its steps
  (Yuan et al. 2024, arXiv 2412.01981); at the last one it is the
  reward of the solution.
  """
  masked = counted(weights, log_ratios)
  return beta * running(jnp.add, masked, solution_starts(visible_until))


def implicit_ce(
  log_ratios: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  visible_until: Int[ArrayLike, "B T"],
  *,
  beta: float = IMPLICIT_BETA,
) -> Sums:
  """Cross-entropy of sigmoid(reward) against the outcome (Yuan et al. 2024).

  The solution's last token holds the outcome and its weight
  (encoding.implicit_examples). log_ratios: log pi - log pi_ref of each token.
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
  """DPO: Bradley-Terry on the rewards of solutions (Rafailov et al. 2023).

  The arguments are those of implicit_ce; solutions of one pair_group, at their
  last tokens, are compared.
  """
  values = implicit_values(log_ratios, weights, visible_until, beta=beta)
  return bradley_terry(
    values, labels, _at_last(weights, visible_until), pair_group
  )


def _at_last(weights, visible_until):
  """Returns the weights with 0 at all but a solution's last token."""
  index = jnp.arange(weights.shape[1])
  return jnp.where(index == jnp.asarray(visible_until) - 1, weights, 0)


def step_probability(logits: Float[Array, "B T ..."]) -> Float[Array, "B T"]:
  """Returns P(correct so far): sigmoid, or P(neutral) + P(good) of three."""
  if logits.ndim == 2:
    return jax.nn.sigmoid(logits)
  return jax.nn.softmax(logits, axis=-1)[..., 1:].sum(-1)


def step_log_odds(logits: Float[Array, "B T ..."]) -> Float[Array, "B T"]:
  """Returns the log-odds of step_probability, in nats; they don't round to 1."""
  if logits.ndim == 2:
    return logits
  return jax.nn.logsumexp(logits[..., 1:], axis=-1) - logits[..., 0]
