"""Searches of the testbed by the annotator, for the tests of this folder."""

from collections.abc import Sequence
import dataclasses
import hashlib

import numpy as np

from prm_jax import schema
from prm_jax.search import adaptive
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine
from prm_jax.search import mcts
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy

TASK = arithmetic.Task()
COST = bill_lib.Cost(per_token=1000, per_context=4)
PROBLEMS = tuple(
  schema.Solution(p.id, p.problem, (), extra=dict(reference_answer=p.answer))
  for p in arithmetic.problems(4, "test", TASK, np.random.default_rng(3))
)
# One of each strategy, small, and none that the annotator can't serve alone.
RULES = dict(
  best_of_n=rules.BestOfN(4),
  beam=rules.Beam(2, 3),
  dvts=rules.DiverseTrees(2, 3),
  rebase=rules.Rebase(5),
  particle_filter=particles.ParticleFilter(4),
  particle_gibbs=particles.ParticleFilter(3, iterations=3),
  mcts=mcts.MCTS(3, 3),
  reject_resample=rules.RejectResample(0.6, 3),
  adaptive_best_of_n=adaptive.AdaptiveBestOfN(2, 6, 0.9),
)


def of_annotator(
  annotator: arithmetic_policy.Annotator,
) -> search_models.Policy:
  """Returns the annotator as a policy; looking ahead, it doesn't slip."""
  right = arithmetic_policy.Annotator(
    arithmetic.Task(slip_times_hard=0, slip_times_easy=0, slip_shift=0)
  )
  return search_models.Policy(
    annotator.step, annotator.whole, right.step, annotator.encode, COST
  )


def _end_early(
  prefixes: Sequence[schema.Solution], num: int
) -> list[list[schema.Solution]]:
  """Returns one step more, which is the last in a case of four."""
  rows = []
  for prefix, row in zip(prefixes, POLICY.step(prefixes, num), strict=True):
    digest = hashlib.sha256(prefix.id.encode()).digest()
    ends = dict(ended=True, stopped="end") if digest[0] < 64 else {}
    rows.append([dataclasses.replace(s, extra=s.extra | ends) for s in row])
  return rows


POLICY = of_annotator(arithmetic_policy.Annotator(TASK))
# The annotator's solutions of a problem all have the same number of steps; this
# policy's haven't.
UNEVEN = dataclasses.replace(POLICY, step=_end_early)


def verifier(
  noise: float = 2.0, aggregate: str = "last"
) -> search_models.Verifier:
  """Returns a verifier that errs."""
  noisy = arithmetic_policy.NoisyVerifier(noise)
  return search_models.Verifier(
    noisy, aggregate, arithmetic_policy.Annotator().encode, COST
  )


def search(
  rule: rules.Rule,
  problems: Sequence[schema.Solution] = PROBLEMS,
  limits: search_limits.Limits = search_limits.Limits(),
  *,
  noise: float = 2.0,
  writes: search_models.Policy = POLICY,
  seed: int = 0,
) -> list[tree_lib.Tree]:
  """Returns the trees of a rule."""
  policies = {tree_lib.POLICY: writes}
  return engine.search(
    problems, rule, policies, verifier(noise), limits, seed=seed
  )


def candidate_steps(tree: tree_lib.Tree) -> list[tuple[str, ...]]:
  """Returns the candidates' steps, in order."""
  return sorted(tree.nodes[n].solution.steps for n in tree.candidates)
