"""How a policy draws its next token from the model's logits."""

from __future__ import annotations

import dataclasses

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax import errors


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a policy samples.

  Args:
    max_tokens: The most new tokens in a completion, at least 1.
    temperature: What logits are divided by; 0 always takes the most likely
      token.
    top_p: The probability of the nucleus that is sampled from, in (0, 1]; 1 is
      the whole distribution.
    tempered: Whether log-probabilities are those at the temperature, which a
      policy gradient needs, instead of those at temperature 1. In both cases
      they ignore top_p.

  Raises:
    InputError: A number is out of range.
  """

  max_tokens: int
  temperature: float = 1.0
  top_p: float = 1.0
  tempered: bool = False

  def __post_init__(self):
    finite = 0 <= self.temperature < float("inf")
    if not finite or not 0 < self.top_p <= 1 or self.max_tokens < 1:
      raise errors.InputError(
        f"{self}: temperature must be >= 0, top_p in (0, 1], max_tokens >= 1"
      )


def nucleus(
  log_probs: Float[Array, "*rows V"], top_p: float
) -> Float[Array, "*rows V"]:
  """Returns log_probs with -inf outside the nucleus.

  The nucleus is the smallest set of most likely tokens whose probability
  reaches top_p (Holtzman et al. 2020, arXiv 1904.09751); ties at its edge are
  kept. The threshold is found by bisection, because XLA sorts slowly on a CPU.

  Args:
    log_probs: Normalised log-probabilities in nats.
    top_p: The probability of the nucleus, in (0, 1].

  Returns:
    The log-probabilities, not normalised again.
  """
  p = jnp.exp(log_probs)

  def narrow(_, bounds):
    low, high = bounds
    middle = (low + high) / 2
    mass = jnp.where(p >= middle, p, 0).sum(-1, keepdims=True)
    enough = mass >= top_p
    return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

  highest = p.max(-1, keepdims=True)
  bounds = (jnp.zeros_like(highest), highest)
  low, _ = jax.lax.fori_loop(0, 30, narrow, bounds)
  return jnp.where(p >= low, log_probs, -jnp.inf)


def draw(
  logits: Float[Array, "B N V"], keys: Array, sampling: Sampling
) -> tuple[Int[Array, "B N"], Float[Array, "B N"]]:
  """Returns one token for each sample, and its log-probability.

  Args:
    logits: The logits of N samples of B prompts.
    keys: A random key for each sample, [B, N].
    sampling: How to sample.

  Returns:
    (tokens, log-probabilities in nats), as Sampling.tempered says.
  """
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  if sampling.temperature == 0:
    tokens = logits.argmax(-1)
  else:
    scaled = log_probs
    if sampling.temperature != 1:
      scaled = jax.nn.log_softmax(logits / sampling.temperature, axis=-1)
      if sampling.tempered:
        log_probs = scaled
    if sampling.top_p < 1:
      scaled = nucleus(scaled, sampling.top_p)
    # The inverse of the cumulative distribution takes one random number a
    # token, where Gumbel noise takes one for every entry of the vocabulary.
    p = jnp.exp(scaled)
    # A sum's rounding must not choose what has no probability.
    mass = jnp.where(p > 0, jnp.cumsum(p, axis=-1), 0)
    uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys)
    reach = uniform[..., None] * mass.max(-1, keepdims=True)
    tokens = (mass > reach).argmax(-1)
  chosen = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)
  return tokens.astype(jnp.int32), chosen[..., 0]
