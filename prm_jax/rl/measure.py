"""Measures how well a policy answers held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np

from prm_jax import schema
from prm_jax.policy import sampler as sampler_lib
from prm_jax.rl import experience
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rollout
from prm_jax.rl import rollout_metrics
from prm_jax.training import program as program_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
  """Measures how well a state's policy answers held-out problems, greedily.

  The metrics are accuracy, all_steps_correct, prm_score ... as in
  rollout_metrics.of_rollout.
  """

  collector: experience.Collector
  problems: Sequence[schema.Solution]

  def __call__(self, state: program_lib.TrainState) -> dict[str, float]:
    collector = self.collector
    engine = dataclasses.replace(
      collector.engine(state.params),
      prompt_tokens=max(len(prompt.tokens) for prompt in self._prompts),
    )
    greedy = sampler_lib.Sampling(collector.rollout.max_tokens, 0.0)
    sampled, _ = rollout.sample(
      engine,
      self.problems,
      self._prompts,
      collector.codec,
      1,
      greedy,
      collector.key,
    )
    outputs = rewards_lib.score(
      sampled.solutions,
      sampled.completions,
      collector.codec,
      collector.functions,
      prm_cut=collector.rewards.prm_cut,
    )
    known = [x for x in outputs.right if x is not None]
    num_sampled = int(state.step) * collector.rollout.num_solutions
    values = dict(
      accuracy=float(np.mean(known)) if known else math.nan,
      tokens=float(np.mean([len(c.tokens) for c in sampled.completions])),
      steps=float(np.mean([len(s.steps) for s in sampled.solutions])),
      without_answer=float(np.mean([not x for x in outputs.answered])),
      sampled_solutions=float(num_sampled),
    )
    if outputs.exact is not None:
      values["all_steps_correct"] = rollout_metrics.all_steps_correct(outputs)
    if outputs.prm is not None:
      scores = [p for row in outputs.prm for p in row]
      values["prm_score"] = float(np.mean(scores)) if scores else math.nan
    if outputs.outcome is not None:
      values["outcome_score"] = float(np.mean(outputs.outcome))
    return values

  @functools.cached_property
  def _prompts(self):
    return [self.collector.codec.prompt(problem) for problem in self.problems]
