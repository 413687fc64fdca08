"""`prm_jax.Plan`: what a training run needs of chips that aren't at hand."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import logging
from typing import Any, ClassVar, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.plan import compile as plan_compile
  from prm_jax.plan import topologies

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Plan(verbs.Verb):
  """Compiles a training run's update for chips that you don't have at hand.

  It reports the memory, FLOPs and communication on TPUs or GPUs.

  Args:
    config: The training run, as for `prm-jax train`.
    topology: The chips to compile for: v5e or v6e and two sizes, as in v5e:16x16;
      v4 or v5p and three, as in v5p:4x4x4; a type of Cloud TPU, as in v5e-16
      (or v5litepod-16); or l4, a100-40, a100-80, h100, h200 or b200 and a number
      of GPUs, as in h200:8. --config and --topology are needed unless --check is
      given.
    mesh: The number of chips on each axis of the mesh, as DATA,FSDP,TENSOR;
      their product is the number of chips, and one may be -1, which takes the
      remaining chips (default: the config's).
    vocab_size: The number of token ids (default: that of the model in init_from,
      or tokenizer.vocab_size).
    suggest: If the run doesn't fit into memory, search for settings that do; the
      exit code is 1 also if it finds some.
    price: What an hour of one chip costs, to print what all updates cost at
      least.
    output: The JSON file to write the plan to.
    check: A JSON Lines file of runs and their limits (docs/plan.md), in place of
      --config and --topology; compile each run; the exit code is 1 if one
      exceeds a limit.

  Example:
    prm-jax plan --config=experiments/prm800k_qwen2_5_math_7b.py \\
      --topology=v5e:4x4
  """

  config: verbs.Config | None = None
  topology: str | None = None
  mesh: str | None = None
  vocab_size: verbs.Natural | None = None
  suggest: bool = True
  price: verbs.Positive | None = None
  output: verbs.Output | None = None
  check: verbs.Local | None = None

  is_printed: ClassVar[bool] = True

  def __post_init__(self):
    super().__post_init__()
    is_given = self.config is not None and self.topology is not None
    if self.check is None and not is_given:
      raise errors.InputError(
        "plan: give `config=FILE` and `topology=v5e:16x16`, or `check=FILE`"
      )

  def __call__(self) -> plan_compile.Plan:
    """Compiles the update of `config` for `topology`.

    Returns:
      What it needs there.

    Raises:
      InputError: The config can't be read, there is no such topology, or its
        compiler isn't installed.
    """
    update = self._update  # first, as its errors are those of the user's file
    return self._compile(update)

  def run(self) -> None:
    """Says what the update needs; if it doesn't fit, with which changes it does.

    Raises:
      InputError: It doesn't fit, or a run of `check` exceeds its limits.
    """
    import jax

    read = [self.check, None if self.config is None else self.config.path]
    outputs.check(dict(output=self.output), read)
    # Nothing runs here but compilers, also where a chip is at hand.
    jax.config.update("jax_platforms", "cpu")
    if self.check is not None:
      self._check_budgets()
      return
    from prm_jax.plan import plan_tables

    planned = self()
    verbs.log_text(_logger, plan_tables.table(planned, self.price))
    record: dict[str, Any] = plan_tables.record(planned)
    if not planned.fits and self.suggest:
      record["fits_with"] = self._suggested()
    if self.output is not None:
      files.write_json(self.output, record)
    if not planned.fits:
      assert self.config is not None
      raise errors.InputError(
        f"{self.config.name}: doesn't fit {self.topology} as it is"
      )

  @functools.cached_property
  def _update(self) -> plan_compile.Update:
    """The update of the config's run."""
    from prm_jax.plan import runs

    config = self.config
    if config is None or self.topology is None:
      raise errors.InputError(
        "a plan is of a config and a topology; run() checks a file of runs"
      )
    if self.mesh is not None:
      overrides = (*config.overrides, f"mesh={self.mesh}")
      config = dataclasses.replace(config, overrides=overrides)
    return runs.read(config, self.vocab_size)

  @functools.cached_property
  def _chips(self) -> topologies.Topology:
    """What the topology's text says."""
    from prm_jax.plan import topologies

    assert self.topology is not None  # as _update says
    return topologies.parse(self.topology)

  @functools.cached_property
  def _compile(self) -> Callable[[plan_compile.Update], plan_compile.Plan]:
    """Compiles an update for the topology."""
    from prm_jax.plan import compile as plan_compile
    from prm_jax.plan import topologies

    return functools.partial(
      plan_compile.of_update,
      topology=self._chips,
      devices=topologies.devices(self._chips),
    )

  def _suggested(self) -> dict[str, Any] | None:
    """Says and returns with which changes the update fits; None if with none."""
    from prm_jax.plan import plan_tables
    from prm_jax.plan import suggest

    found = suggest.search(
      self._update, self._chips, self._compile, progress.log
    )
    if found is None:
      verbs.log_text(_logger, "\nNothing that was tried fits; take more chips")
      return None
    changes, planned = found
    table = plan_tables.table(planned, self.price)
    text = f"\nIt fits with {changes}\n\n{table}"
    verbs.log_text(_logger, text)
    return dict(overrides=changes, plan=plan_tables.record(planned))

  def _check_budgets(self) -> None:
    """Compiles every run of a file of budgets, and names those that exceed."""
    from prm_jax.plan import budgets
    from prm_jax.plan import compile as plan_compile
    from prm_jax.plan import plan_tables
    from prm_jax.plan import runs
    from prm_jax.plan import topologies

    assert self.check is not None
    bad = 0
    all_budgets = budgets.read(self.check)
    for budget in all_budgets:
      update = runs.read(verbs.Config(budget.config, budget.overrides))
      topology = topologies.parse(budget.topology)
      needs = plan_compile.of_update(
        update, topology, topologies.devices(topology)
      )
      exceeded = budgets.exceeded(budget, needs)
      bad += bool(exceeded)
      _logger.info(f"{'EXCEEDED' if exceeded else 'within'}  {budget.name}")
      lines = [plan_tables.table(needs), *exceeded, ""]
      verbs.log_text(_logger, "\n".join(lines))
    if bad:
      raise errors.InputError(
        f"{self.check}: {bad} of {len(all_budgets)} runs need more than their"
        " budget; see above"
      )
