"""What runs may need, written down, and compared with what they do need."""

from __future__ import annotations

import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import topologies
from prm_jax.runtime import checks
from prm_jax.runtime import files


@dataclasses.dataclass(frozen=True)
class Budget:
  """The most that one run may need on one topology.

  Args:
    config: The config file.
    topology: The topology.
    peak_gib: The most memory in use, in GiB.
    sent_gib: The most that is sent over the wire, in GiB.
    flops_ratio: The largest ratio of the FLOPs computed to the model's.
    overrides: Fields of the config, as on the command line.
  """

  config: str
  topology: str
  peak_gib: float
  sent_gib: float
  flops_ratio: float
  overrides: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    return " ".join((self.config, self.topology, *self.overrides))


def read(path: files.PathLike) -> list[Budget]:
  """Returns the budgets of a JSON Lines file, one a line.

  Raises:
    InputError: it isn't there, or a line is none.
  """
  budgets = []
  for where, record in files.read_records(path):
    try:
      overrides = tuple(record.pop("overrides", ()))
      checks.check_types(Budget, record | dict(overrides=overrides))
      budgets.append(Budget(**record, overrides=overrides))
    except (TypeError, errors.InputError) as e:
      raise errors.InputError(
        f"{where}: not a budget: {e}; its fields are"
        f" {', '.join(f.name for f in dataclasses.fields(Budget))}"
      ) from None
  return budgets


def exceeded(budget: Budget, plan: plan_compile.Plan) -> list[str]:
  """Returns in words what a plan needs more of than its budget has."""
  if not plan.fits or plan.sent is None or plan.peak is None:
    return [f"doesn't fit: {plan.refused or plan.peak}"]
  needs: dict[str, Any] = dict(
    peak_gib=plan.peak / topologies.GIB,
    sent_gib=plan.sent.wire / topologies.GIB,
    flops_ratio=plan.hardware_flops / plan.model_flops,
  )
  return [
    f"{name}: {value:.2f}, budget {getattr(budget, name):.2f}"
    for name, value in needs.items()
    if value > getattr(budget, name)
  ]
