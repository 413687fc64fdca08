"""A rollout: the solutions that a policy samples before an update.

Everything is a function of the run's key, the policy's parameters and the step,
so a run that is resumed samples the same solutions as one that isn't stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np

from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.runtime import checks


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  """How many solutions an update samples, and how.

  Args:
    problems: The number of problems.
    samples: The number of solutions of each problem.
    max_tokens: The token budget of a solution.
    temperature: The temperature of sampling.
    slots: See rollout_engine.Engine.
    chunk: See rollout_engine.Engine.
  """

  problems: int
  samples: int
  max_tokens: int
  temperature: float = 1.0
  slots: int = 64
  chunk: int = 8

  def __post_init__(self):
    counts = ("problems", "samples", "max_tokens", "slots", "chunk")
    checks.check_counts(self, counts, "rollout.")
    # Greedy samples have no other choice to learn from.
    checks.check_positive(self, ("temperature",), "rollout.")

  @property
  def num_solutions(self) -> int:
    return self.problems * self.samples

  @property
  def sampling(self) -> sampler_lib.Sampling:
    return sampler_lib.Sampling(
      self.max_tokens, self.temperature, tempered=True
    )


class Sampled(NamedTuple):
  """The N solutions of a rollout, one problem's samples after another's."""

  prompts: list[np.ndarray]
  completions: list[sampler_lib.Completion]
  solutions: list[schema.Solution]


def chosen(step: int, num: int, have: int, seed: int) -> np.ndarray:
  """Returns the indices of the problems of a step's rollout.

  A pass over all problems is a permutation of them: no problem comes again
  before every other one has come.

  Args:
    step: The step of the run.
    num: The number of problems of a rollout.
    have: The number of problems in all.
    seed: The run's seed.
  """
  numbers = np.arange(step * num, (step + 1) * num)
  return np.asarray(
    [_permutation(seed, int(n) // have, have)[int(n) % have] for n in numbers]
  )


def sample(
  engine: rollout_engine.Engine,
  problems: Sequence[schema.Solution],
  prompts: Sequence[codecs.Prompt],
  codec: codecs.Codec,
  num_samples: int,
  sampling: sampler_lib.Sampling,
  key: jax.Array,
) -> tuple[Sampled, rollout_engine.Work]:
  """Returns num_samples solutions of each problem, and counts of the work.

  Args:
    engine: The engine with the policy's parameters.
    problems: The rollout's problems; one may come twice.
    prompts: The token ids of each problem.
    codec: How the policy's ids are read.
    num_samples: The number of solutions of each problem.
    sampling: How to sample.
    key: The random key of this step.
  """
  requests = [
    rollout_engine.Request(f"{k}/{problem.id}", prompt.tokens, num_samples)
    for k, (problem, prompt) in enumerate(zip(problems, prompts, strict=True))
  ]
  rows, work = engine.complete(requests, sampling, key)
  solutions = [
    sampler_lib.solution(problem, prompt, completion, n, codec)
    for problem, prompt, row in zip(problems, prompts, rows, strict=True)
    for n, completion in enumerate(row)
  ]
  repeated = [prompt.tokens for prompt in prompts for _ in range(num_samples)]
  completions = [completion for row in rows for completion in row]
  return Sampled(repeated, completions, solutions), work


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
  return np.random.default_rng([seed, epoch]).permutation(size)
