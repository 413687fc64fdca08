"""The demo's config of `prm-jax demo --quick`: every stage, at small sizes.

It takes about a minute and shows that an installation works. Its models
hardly learn, so its table says nothing about PRMs and ORMs.
"""

import ml_collections

from prm_jax.demo import default_config

STEPS = dict(base=150, policy=40, prm=60, prm_mc=60, orm=60)


def get_config() -> ml_collections.ConfigDict:
  c = default_config.get_config()
  c.update(
    base_problems=4_000,
    annotated_problems=500,
    train_problems=300,
    monte_carlo_solutions=200,
    test_problems=40,
    num_samples=16,
  )
  for name, steps in STEPS.items():
    c.runs[name].fit.steps = steps
  return c
