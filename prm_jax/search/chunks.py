"""Guidance by the likelihood of chunks under a larger policy.

A small policy writes chunks of a fixed number of tokens, a large one tells how
likely they are, and the best goes on: rules.ChunkGuidance. It needs no
reward model, so it is a baseline for all that need one. arXiv 2606.01682 has
it; its abstract alone was read, which leaves open the lengths that its authors
take. Steps of different lengths can't be compared so: the paper finds that
their likelihood depends on the length even after it is divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import get_args

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy import log_likelihood
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.search import bill as bill_lib
from prm_jax.search import own_models
from prm_jax.search import rules
from prm_jax.search import search_models

GUIDANCE: tuple[str, ...] = get_args(rules.Guidance)


def of_sampler(
  policy: sampler_lib.Sampler,
  sampling: sampler_lib.Sampling,
  *,
  chunk_tokens: int,
  seed: int = 0,
  slots: int = 64,
  watch: Callable[[rollout_engine.Work], None] = lambda work: None,
) -> search_models.Policy:
  """Returns a policy whose steps are chunks of a fixed number of tokens.

  Args:
    policy: The policy, of a template.
    sampling: How it samples.
    chunk_tokens: The number of tokens of a chunk; the last may have fewer.
    seed: The seed of all that it writes.
    slots: The number of completions that are written at the same time.
    watch: Called after each call with the work that it took.

  Returns:
    The policy. It doesn't look ahead.

  Raises:
    InputError: The policy has no template, so it can't go on within a step.
  """
  if not policy.template.of_policy:
    raise errors.InputError(
      "chunks of tokens: a policy of our own form can't go on within a step;"
      " give an imported one, which has a template"
    )
  short = dataclasses.replace(sampling, max_tokens=chunk_tokens)
  chunk = own_models.of_sampler(
    policy, short, seed=seed, slots=slots, watch=watch
  ).whole

  def step(
    prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    return [[_continues(s) for s in row] for row in chunk(prefixes, num)]

  whole = own_models.of_sampler(
    policy, sampling, seed=seed, slots=slots, watch=watch
  )
  return dataclasses.replace(whole, step=step, greedy_step=None)


def _continues(solution: schema.Solution) -> schema.Solution:
  """Returns a solution that goes on after a chunk which is at its full length."""
  if solution.extra["stopped"] != "length":
    return solution
  extra = {**solution.extra, "stopped": "step"}
  return dataclasses.replace(solution, extra=extra)


def of_policy(
  large: sampler_lib.Sampler, *, guidance: str = "contrast"
) -> search_models.Verifier:
  """Returns what scores the last chunk of solutions by a larger policy.

  The log-odds of all steps are the chunk's mean log-probability in nats, or
  the difference of the two means; so they order chunks and are no chance.

  Args:
    large: The larger policy, with the tokenizer of the small one.
    guidance: One of GUIDANCE.

  Returns:
    The verifier. It has no cache: what it computes is its bill's `read`.

  Raises:
    InputError: The policy has no template, or the guidance is unknown.
  """
  codec = large.codec
  if not isinstance(codec, codecs.TemplateCodec):
    raise errors.InputError(
      "guidance by a policy of our own form: give an imported one, which has"
      " the small policy's tokenizer"
    )
  if guidance not in GUIDANCE:
    raise errors.InputError(
      f"`guidance={guidance}`: choose one of {', '.join(GUIDANCE)}"
    )

  def ids_of(solution: schema.Solution) -> tuple[np.ndarray, int]:
    """Returns the ids of a solution, and how many of them are the chunk."""
    sampled = solution.extra.get(schema.SAMPLED)
    if sampled is None or sampled["tokenizer"] != codec.bytes.digest:
      raise errors.InputError(
        f"{solution.id}: was sampled with another tokenizer than the guiding"
        " policy's; give two policies with the same one"
      )
    ids = codec.prompt(solution).tokens
    if solution.extra["stopped"] == "end":
      # The id that ended it is no text.
      ids = np.append(ids, codec.ends[:1]).astype(np.int32)
    return ids, min(int(solution.extra["num_tokens"]), len(ids) - 1)

  def score(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    asked = [ids_of(s) for s in solutions]
    rows = log_likelihood.of_ids(
      large.config, large.params, [ids for ids, _ in asked]
    )
    scores = []
    for s, row, (_, num) in zip(solutions, rows, asked, strict=True):
      value = float(row[len(row) - num :].mean())
      if guidance == "contrast":
        value -= float(s.extra["log_prob_mean"])
      probability = 1 / (1 + math.exp(-min(max(value, -500.0), 500.0)))
      num_steps = len(s.steps)
      scores.append(
        schema.StepScores((probability,) * num_steps, (value,) * num_steps)
      )
    return scores

  return search_models.Verifier(
    score,
    "last",
    encode=lambda s: ids_of(s)[0],
    cost=bill_lib.cost_of(large.config, writes=True),
    compute_dtype=large.config.compute_dtype,
  )
