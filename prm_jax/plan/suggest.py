"""What would fit, where a run doesn't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses

from prm_jax import errors
from prm_jax.models import sharding
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import topologies


def changes(
  update: plan_compile.Update, topology: topologies.Topology
) -> Iterator[tuple[str, plan_compile.Update]]:
  """Yields what saves memory, as overrides in words and the changed update.

  One after another, each with those before it, from what costs the least
  time: a kernel for attention, rematerialisation, parameters over all chips,
  and fewer rows at once. The rows of an update, and so what is learned, stay.
  """
  overrides: list[str] = []

  def changed(fields: str, **new) -> tuple[str, plan_compile.Update]:
    nonlocal update
    update = dataclasses.replace(update, **new)
    overrides.append(fields)
    return " ".join(overrides), update

  if update.model.attention == "reference":
    model = dataclasses.replace(update.model, attention="tree")
    yield changed("--config.model.attention=tree", model=model)
  order = ("none", "dots", "full")
  for remat in order[order.index(update.model.remat) + 1 :]:
    overrides[:] = [x for x in overrides if "remat" not in x]
    model = dataclasses.replace(update.model, remat=remat)
    yield changed(f"--config.model.remat={remat}", model=model)
  everything = (1, topology.size, 1)
  data, _, tensor = sharding.mesh_sizes(update.mesh, topology.size)
  if data * tensor > 1:
    yield changed(
      f"--mesh={','.join(str(x) for x in everything)}", mesh=everything
    )
  n = update.microbatches
  at_once = update.batch_size // n
  while at_once % 2 == 0 and at_once // 2 >= topology.size:
    n, at_once = 2 * n, at_once // 2
    overrides[:] = [x for x in overrides if "microbatches" not in x]
    yield changed(f"--config.microbatches={n}", microbatches=n)


def search(
  update: plan_compile.Update,
  topology: topologies.Topology,
  plan: Callable[[plan_compile.Update], plan_compile.Plan],
  say: Callable[[str], None],
) -> tuple[str, plan_compile.Plan] | None:
  """Returns the first change with which an update fits, and its plan.

  plan: compiles an update for the topology. Each is compiled: nothing is guessed.
  """
  for overrides, changed in changes(update, topology):
    say(f"trying {overrides}")
    try:
      planned = plan(changed)
    except errors.InputError as e:
      say(f"  not possible: {e}")
      continue
    if planned.fits:
      return overrides, planned
    say(f"  {planned.refused or 'too much, too'}")
  return None
