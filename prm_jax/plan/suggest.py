"""What would fit, where a run doesn't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses

from prm_jax import errors
from prm_jax.models import sharding
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import topologies
from prm_jax.training import config as training_config


def changes(
  config: training_config.TrainConfig, topology: topologies.Topology
) -> Iterator[tuple[str, training_config.TrainConfig]]:
  """Yields what saves memory, as overrides in words and the changed run.

  One after another, each with those before it, from what costs the least
  time: a kernel for attention, rematerialisation, parameters over all chips,
  and fewer rows at once. The rows of an update, and so what is learned, stay.
  """
  said: list[str] = []

  def changed(fields: str, **new) -> tuple[str, training_config.TrainConfig]:
    nonlocal config
    config = dataclasses.replace(config, **new)
    said.append(fields)
    return " ".join(said), config

  model = dict(config.model)
  if model.get("attention") == "reference":
    model["attention"] = "forest"
    yield changed("--config.model.attention=forest", model=dict(model))
  order = ("none", "dots", "full")
  for remat in order[order.index(model.get("remat", "none")) + 1 :]:
    model["remat"] = remat
    said[:] = [x for x in said if "remat" not in x]
    yield changed(f"--config.model.remat={remat}", model=dict(model))
  everything = (1, topology.size, 1)
  data, _, tensor = sharding.mesh_sizes(config.mesh, topology.size)
  if data * tensor > 1:
    yield changed(
      f"--mesh={','.join(str(x) for x in everything)}", mesh=everything
    )
  at_once = config.rows // config.microbatches
  n = config.microbatches
  while at_once % 2 == 0 and at_once // 2 >= topology.size:
    n, at_once = 2 * n, at_once // 2
    said[:] = [x for x in said if "microbatches" not in x]
    yield changed(f"--config.microbatches={n}", microbatches=n)


def search(
  config: training_config.TrainConfig,
  topology: topologies.Topology,
  plan: Callable[[training_config.TrainConfig], plan_compile.Plan],
  say: Callable[[str], None],
) -> tuple[str, plan_compile.Plan] | None:
  """Returns the first change with which a run fits, and its plan.

  plan: compiles a run for the topology. Each is compiled: nothing is guessed.
  """
  for words, changed in changes(config, topology):
    say(f"trying {words}")
    try:
      found = plan(changed)
    except errors.InputError as e:
      say(f"  not possible: {e}")
      continue
    if found.fits:
      return words, found
    say(f"  {found.refused or 'too much, too'}")
  return None
