"""A run that is small enough to be planned in seconds."""

import flat_config

from prm_jax.plan import collectives
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import runs
from prm_jax.plan import topologies
from prm_jax.text import encoding
from prm_jax.training import loop
from prm_jax.training import optimizer

VOCABULARY = 512
T = 64
# What a compiler might find.
PLAN = plan_compile.Plan(
  topology="v5e:4x4",
  mesh=(1, 16, 1),
  parameters=1,
  rows=16,
  sequence_length=T,
  microbatches=1,
  steps=1_000,
  remat="full",
  attention="reference",
  memory=4 * topologies.GIB,
  peak=2 * topologies.GIB,
  arguments=topologies.GIB,
  hardware_flops=1.5e12,
  model_flops=1e12,
  sent=collectives.Sent(
    {"all-gather": 1}, 3 * topologies.GIB, {"all-gather": 1}
  ),
)


def update(**changed) -> plan_compile.Update:
  """Returns the update of a tiny PRM, with some of its fields changed."""
  model = dict(
    d_model=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=128,
    attention="reference",
  )
  model |= changed.pop("model", {})
  types = changed.pop("types", None)
  fields = dict(
    program="prm",
    seed=0,
    encoding=encoding.EncodingConfig(max_tokens=T),
    rows=16,
    sequence_length=T,
    mesh=(1, 8, 1),
    optimizer=optimizer.OptimizerConfig(1e-3),
    fit=loop.FitConfig(steps=10),
  )
  run = flat_config.run(model=model, **(fields | changed))
  return runs.update_of(run, VOCABULARY, types)
