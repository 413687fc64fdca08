"""How a policy draws its next token from the model's logits."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import itertools
import math
from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax import errors
from prm_jax.models import matmul


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a policy samples.

  The logits are divided by the temperature; then top_k, top_p and min_p, in
  this order, each keep a part of what is left, as transformers' `generate` does
  (`_get_logits_processor` in its generation/utils.py, version 5.23.0).

  Args:
    max_tokens: The most new tokens in a completion, at least 1.
    temperature: What logits are divided by; 0 always takes the most likely
      token.
    top_p: The probability of the nucleus that is sampled from, in (0, 1]; 1 is
      the whole distribution.
    tempered: Whether log-probabilities are those at the temperature, which a
      policy gradient needs, instead of those at temperature 1. In both cases
      they are those of the whole distribution and ignore top_k, top_p and
      min_p.
    top_k: The number of most likely tokens that are sampled from, with all that
      tie with the last of them; 0 is all tokens.
    min_p: The least probability of a token that is sampled, as a share of that
      of the most likely token, in [0, 1] (Nguyen et al. 2024, arXiv
      2407.01082); 0 is all tokens.

  Raises:
    InputError: A number is out of range.
  """

  max_tokens: int
  temperature: float = 1.0
  top_p: float = 1.0
  tempered: bool = False
  top_k: int = 0
  min_p: float = 0.0

  def __post_init__(self):
    finite = 0 <= self.temperature < float("inf")
    inside = 0 < self.top_p <= 1 and 0 <= self.min_p <= 1
    if not finite or not inside or self.top_k < 0 or self.max_tokens < 1:
      raise errors.InputError(
        f"{self}: temperature must be >= 0, top_p in (0, 1], max_tokens >= 1,"
        " top_k >= 0, min_p in [0, 1]"
      )

  def record(self) -> dict[str, Any]:
    """Returns the fields as plain data, without unset top_k and min_p.

    A journal that was begun before these fields existed stays valid.
    """
    fields = dataclasses.asdict(self)
    return {
      name: value
      for name, value in fields.items()
      if value or name not in ("top_k", "min_p")
    }


def sampling_of(
  defaults: Mapping[str, float],
  *,
  max_tokens: int,
  temperature: float | None = None,
  top_p: float | None = None,
  top_k: int | None = None,
  min_p: float | None = None,
) -> Sampling:
  """Returns how to sample: as asked, else as the checkpoint says, else as ours.

  Args:
    defaults: What the checkpoint says of temperature, top_p, top_k and min_p.
    max_tokens: See Sampling, as are those below; None isn't asked for.
    temperature: See Sampling.
    top_p: See Sampling.
    top_k: See Sampling.
    min_p: See Sampling.

  Raises:
    InputError: A number is out of range, or defaults has another name.
  """
  asked = dict(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
  if other := sorted(defaults.keys() - asked.keys()):
    raise errors.InputError(
      f"the checkpoint's sampling has {', '.join(other)}, which prm_jax doesn't"
      f" know; it knows {', '.join(asked)}"
    )
  asked = {name: value for name, value in asked.items() if value is not None}
  merged: dict[str, Any] = {**defaults, **asked}
  if not float(merged.get("top_k", 0)).is_integer():
    raise errors.InputError(f"top_k={merged['top_k']}: give a whole number")
  merged["top_k"] = int(merged.get("top_k", 0))  # JSON may have 20.0
  return Sampling(max_tokens, **merged)


def most_likely(
  logits: Float[Array, "*rows V"], top_k: int
) -> Float[Array, "*rows V"]:
  """Returns logits with -inf outside the top_k largest of each row.

  What ties with the last of them is kept, as transformers' TopKLogitsWarper
  does.

  Args:
    logits: The logits, or log-probabilities.
    top_k: How many are kept, at least 1.
  """
  rows = logits.reshape(-1, logits.shape[-1])
  last = _least_of_largest(rows, min(top_k, rows.shape[-1]))
  last = last.reshape(*logits.shape[:-1], 1)
  return jnp.where(logits >= last, logits, -jnp.inf)


def _least_of_largest(
  rows: Float[Array, "R V"], top_k: int
) -> Float[Array, " R"]:
  """Returns the top_k-th largest value of each row.

  The top_k blocks with the largest maxima hold it: what is in no such block is
  at most each of these maxima. So most of a row isn't sorted, and is read once.
  """
  if 2 * top_k * BLOCK <= rows.shape[-1]:
    blocks = _blocks(rows, -jnp.inf)
    _, best = jax.lax.top_k(blocks.max(-1), top_k)
    inside = jnp.take_along_axis(blocks, best[..., None], axis=-2)
    rows = inside.reshape(len(rows), -1)
  # XLA's CPU compiler has a fast form of top_k for two axes only, and loses it
  # if the last value is sliced out.
  largest, _ = jax.lax.top_k(rows, top_k)
  return largest.min(-1)


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
  # A GPU's time is that of reading p: it halves three times each time.
  halvings = 1 if matmul.platform() == "cpu" else 3

  def narrow(_, bounds):
    low, high = bounds
    edges = _edges(low, high, halvings)
    enough = [
      jnp.where(p >= edge, p, 0).sum(-1, keepdims=True) >= top_p
      for edge in edges[1:-1]
    ]
    return _descend(edges, enough)

  highest = p.max(-1, keepdims=True)
  bounds = (jnp.zeros_like(highest), highest)
  low, _ = jax.lax.fori_loop(0, 30 // halvings, narrow, bounds)
  return jnp.where(p >= low, log_probs, -jnp.inf)


def _edges(low: Array, high: Array, halvings: int) -> list[Array]:
  """Returns all bounds that so many halvings of an interval can lead to."""
  edges = [low, high]
  for _ in range(halvings):
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    pairs = zip(edges, middles, strict=False)
    edges = [*itertools.chain.from_iterable(pairs), high]
  return edges


def _descend(edges: list[Array], enough: list[Array]) -> tuple[Array, Array]:
  """Returns the bounds that halving leads to, one decision after another.

  Args:
    edges: See _edges.
    enough: Whether the upper half is taken, for each edge but the outer ones.
  """
  while enough:
    half = len(edges) // 2
    upper = enough[half - 1]

    def taken(below, above, upper=upper):
      return [jnp.where(upper, b, a) for a, b in zip(below, above, strict=True)]

    edges = taken(edges[: half + 1], edges[half:])
    enough = taken(enough[: half - 1], enough[half:])
  low, high = edges
  return low, high


def kept(
  logits: Float[Array, "*rows V"],
  log_probs: Float[Array, "*rows V"],
  sampling: Sampling,
) -> Float[Array, "*rows V"]:
  """Returns log_probs with -inf where top_k, top_p or min_p leave a token out.

  Args:
    logits: The logits, divided by the temperature.
    log_probs: Their normalised log-probabilities in nats.
    sampling: How to sample.

  Returns:
    The log-probabilities. After a top_k that leaves tokens out they are
    normalised again, as top_p asks for; after top_p and min_p they aren't.
  """
  if 0 < sampling.top_k < logits.shape[-1]:
    logits = most_likely(logits, sampling.top_k)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
  if sampling.top_p < 1:
    log_probs = nucleus(log_probs, sampling.top_p)
  if sampling.min_p > 0:
    p = jnp.exp(log_probs)
    likely = p >= sampling.min_p * p.max(-1, keepdims=True)
    log_probs = jnp.where(likely, log_probs, -jnp.inf)
  return log_probs


# A cumulative sum over a large vocabulary takes XLA's CPU compiler longer than
# the rest of a draw; the sums of blocks are a tenth of it. Smaller vocabularies
# keep the one sum, and the draws that they had.
BLOCK, ONE_SUM = 128, 8_192


def _blocks(
  x: Float[Array, "*rows V"], fill: float
) -> Float[Array, "*rows num BLOCK"]:
  """Returns the last axis as blocks, after the filling that it needs."""
  after = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)]
  padded = jnp.pad(x, after, constant_values=fill)
  return padded.reshape(*x.shape[:-1], -1, BLOCK)


def inverse_cumulative(
  p: Float[Array, "B N V"], uniform: Float[Array, "B N"]
) -> Int[Array, "B N"]:
  """Returns the first token at which the sum of p exceeds a share of its whole.

  Of more than ONE_SUM tokens it finds the block first, then the token in it.

  Args:
    p: What each token weighs, at least 0.
    uniform: The share, in [0, 1).
  """
  # A sum's rounding must not choose what has no probability: in parallel sums a
  # token's may be above the one before it although it adds nothing.
  if p.shape[-1] <= ONE_SUM:
    mass = jnp.where(p > 0, jnp.cumsum(p, axis=-1), 0)
    reach = uniform[..., None] * mass.max(-1, keepdims=True)
    return (mass > reach).argmax(-1)
  blocks = _blocks(p, 0)
  sums = blocks.sum(-1)
  ends = jnp.where(sums > 0, jnp.cumsum(sums, axis=-1), 0)
  reach = uniform[..., None] * ends.max(-1, keepdims=True)
  block = (ends > reach).argmax(-1)[..., None]
  inside = jnp.take_along_axis(blocks, block[..., None], axis=-2)[..., 0, :]
  mass = jnp.where(inside > 0, jnp.cumsum(inside, axis=-1), 0)
  begin = jnp.take_along_axis(ends - sums, block, axis=-1)
  most = mass.max(-1, keepdims=True)
  left = jnp.minimum(reach - begin, jnp.nextafter(most, jnp.zeros_like(most)))
  return block[..., 0] * BLOCK + (mass > left).argmax(-1)


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
  if sampling.temperature == 0:
    return most_likely_token(logits)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  scaled = log_probs
  if sampling.temperature != 1:
    logits = logits / sampling.temperature
    scaled = jax.nn.log_softmax(logits, axis=-1)
    if sampling.tempered:
      log_probs = scaled
  scaled = kept(logits, scaled, sampling)
  # The inverse of the cumulative distribution takes one random number a
  # token, where Gumbel noise takes one for every entry of the vocabulary.
  uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys)
  tokens = inverse_cumulative(jnp.exp(scaled), uniform)
  chosen = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)
  return tokens.astype(jnp.int32), chosen[..., 0]


def most_likely_token(
  logits: Float[Array, "*rows V"],
) -> tuple[Int[Array, "*rows"], Float[Array, "*rows"]]:
  """Returns the most likely token, the first of several, and its log-probability.

  XLA's CPU backend compares one entry after another in an argmax, but many at
  once in a maximum: that of each block says in which the token is. A row with
  NaN has any token, and the log-probability NaN.
  """
  V = logits.shape[-1]
  block = math.gcd(V, BLOCK)
  blocks = logits.reshape(*logits.shape[:-1], V // block, block)
  at = blocks.max(-1).argmax(-1)[..., None]
  inside = jnp.take_along_axis(blocks, at[..., None], axis=-2)[..., 0, :]
  token = at[..., 0] * block + inside.argmax(-1)
  top = inside.max(-1, keepdims=True)
  # Not -log: a certain token has 0, not -0.
  return token.astype(jnp.int32), 0 - jnp.log(jnp.exp(logits - top).sum(-1))


def is_end(
  tokens: Int[Array, "*rows"], ends: tuple[int, ...]
) -> Bool[Array, "*rows"]:
  """Returns which tokens are among the ids that end a solution."""
  return (tokens[..., None] == jnp.asarray(ends, jnp.int32)).any(-1)
