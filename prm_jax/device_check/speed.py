"""Updates of published shapes: share of the peak, memory, gain of shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import gc
import os
from typing import NamedTuple

import jax

from prm_jax import batch as batch_lib
from prm_jax.device_check import check_results
from prm_jax.device_check import machine
from prm_jax.device_check import shapes
from prm_jax.device_check import timing
from prm_jax.device_check import update_checks
from prm_jax.device_check import workloads
from prm_jax.training import optimizer as optimizer_lib

# What we want to reach, by device and check.
GOALS: Mapping[str, Mapping[str, float]] = {
  device: {
    "speed.update.1_5b": 0.45,
    "speed.update.7b_lora": 0.5,
    "speed.update.7b": 0.5,
    "speed.score.1_5b.tree": 0.6,
    "speed.score.7b.tree": 0.6,
  }
  for device in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
}
# On these devices a tree's update is to take no longer than one of packed rows:
# so much of the labels that it has more.
_TREE_GOAL = 0.95
WORKLOADS = ("solutions", "alternatives")
_ROUNDS = 3


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns what is measured of updates."""
  return [
    check_results.Check(
      f"speed.update.{name}",
      functools.partial(_measure, name),
      required=False,
      stage=f"update_{name}",
      more=(
        *(f"speed.tree_over_packed.{name}.{w}" for w in WORKLOADS),
        f"speed.memory.{name}",
      ),
      limit_s=540,
      needs_s=0 if setting.small else 120,
    )
    for name in shapes.trained(setting)
  ]


def goal(name: str, setting: check_results.Setting) -> float | None:
  """Returns what we want a number to reach on this device, None if nothing."""
  return GOALS.get(setting.device_kind, {}).get(name)


def matmul_peak(setting: check_results.Setting) -> float:
  """Returns FLOP/s of the fastest bfloat16 product, measured if it wasn't."""
  return 1e12 * machine.known("machine.matmul", machine.matmul, setting)


# --- Updates ----------------------------------------------------------------


class Timed(NamedTuple):
  """Updates of one shape that took turns.

  Args:
    fit: How the shape was run.
    costs: The cost of each variant in each round.
    batches: The one batch of each variant.
    labels: The labels in an update of each variant, averaged over the workload.
    planned: The most bytes in use, as the compiler says.
    used: The most bytes in use on the device.
  """

  fit: shapes.Fit
  costs: dict[str, list[timing.Cost]]
  batches: dict[str, batch_lib.Batch]
  labels: dict[str, float]
  planned: int
  used: int | None


# Each is compiled: of more than so many the estimate would be far off.
_TRIES = 4


def _measure(
  name: str, setting: check_results.Setting
) -> dict[str, check_results.Measured]:
  """Returns what updates of a shape say, by name of the result."""
  timed = _fit(name, setting)
  numbers = {f"speed.update.{name}": _share(name, timed, setting)}
  for workload in WORKLOADS:
    ratio = f"speed.tree_over_packed.{name}.{workload}"
    has_goals = setting.device_kind in GOALS
    numbers[ratio] = _tree_over_packed(timed, workload, has_goals)
  if timed.used is not None:
    numbers[f"speed.memory.{name}"] = _memory(timed)
  return numbers


def _fit(name: str, setting: check_results.Setting) -> Timed:
  """Returns the times of updates of packed rows and of trees.

  Raises:
    NotRun: nothing fits.
  """
  tried: list[str] = []
  for fit in shapes.fits(name, setting.memory):
    if len(tried) == _TRIES:
      break
    try:
      return _time(
        fit, setting.memory, 1 if setting.mode == "quick" else _ROUNDS
      )
    except (jax.errors.JaxRuntimeError, MemoryError) as e:
      if not is_out_of_memory(e):
        raise
      tried.append(fit.words())
    # Outside of the except clause, whose traceback holds what it had made.
    gc.collect()
  raise check_results.NotRun(
    f"doesn't fit: {'; '.join(tried) or 'not even one row'}"
  )


def is_out_of_memory(error: Exception) -> bool:
  """Whether it says that the device has no memory left.

  A kernel that asks for more shared memory than there is says RESOURCE_EXHAUSTED
  too, and no smaller batch helps.
  """
  text = str(error)
  if "shared memory" in text.lower():
    return False
  return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text


def _time(fit: shapes.Fit, memory: int | None, rounds: int) -> Timed:
  batches, labels = {}, {}
  for workload in WORKLOADS:
    T = fit.sequence_length
    examples = workloads.examples(workload, fit.model.vocab_size, longest=T)
    for layout, shared in (("packed", False), ("tree", True)):
      filled = workloads.fill(
        examples, fit.rows, T, share_prefixes=shared, most=1
      )
      [batches[f"{layout} {workload}"]] = filled.batches
      labels[f"{layout} {workload}"] = filled.labels_per_row * fit.rows
  optimizer = optimizer_lib.OptimizerConfig(
    peak_lr=1e-5, momentum_dtype=fit.momentum_dtype
  )
  run = update_checks.Updates(fit.model, 0, optimizer=optimizer)
  planned = run.plan(batches["packed solutions"])
  if memory is not None and planned > memory:
    raise MemoryError(f"{planned} bytes planned of {memory}")
  runs = {k: functools.partial(run, [rows]) for k, rows in batches.items()}
  runs["packed solutions"]()  # makes the state, and the first of all copies
  costs = timing.alternate(runs, rounds)
  return Timed(fit, costs, batches, labels, planned, machine.peak_bytes())


def _share(
  name: str, timed: Timed, setting: check_results.Setting
) -> check_results.Measured:
  """Returns the FLOP/s of an update, over those of a matmul, as they count."""
  batch = timed.batches["packed solutions"]
  tokens, T = batch.tokens.size, timed.fit.sequence_length
  peak = matmul_peak(setting)
  costs = timed.costs["packed solutions"]

  def share(keys: float) -> dict[str, float]:
    flops = update_checks.matmul_flops(timed.fit.model, tokens, keys)
    return timing.rate(flops / peak, costs)["wall"]

  shares = dict(causal=share(T / 2), seen=share(workloads.seen_keys(batch)))
  rates = timing.rate(tokens, costs)["wall"]
  return check_results.Measured(
    shares["causal"]["median"],
    "of matmul",
    goal(f"speed.update.{name}", setting),
    at_least=True,
    note=f"{rates['median']:,.0f} tokens/s;"
    f" {shares['seen']['median']:.3f} by the keys that are seen;"
    f" {timed.fit.words()}",
    details=dict(
      share=shares,
      tokens_per_s=rates,
      seconds=timing.wall_seconds(timed.costs),
      labels=timed.labels,
      fit=dict(
        remat=timed.fit.model.remat,
        trainable="lora" if timed.fit.model.lora_rank else "all",
        lora_rank=timed.fit.model.lora_rank,
        memory_fraction=os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
        if setting.platform == "gpu"
        else None,
        rows=timed.fit.rows,
        sequence_length=timed.fit.sequence_length,
        momentum_dtype=timed.fit.momentum_dtype,
      ),
    ),
  )


def _tree_over_packed(
  timed: Timed, workload: str, has_goal: bool
) -> check_results.Measured:
  """Returns the labels/s of trees over those of packed rows."""
  packed, tree = f"packed {workload}", f"tree {workload}"
  labels = dict(packed=timed.labels[packed], tree=timed.labels[tree])
  more = labels["tree"] / labels["packed"]
  ratio = timing.ratio(timed.costs[packed], timed.costs[tree], more)["wall"]
  return check_results.Measured(
    ratio["median"],
    "x",
    _TREE_GOAL * more if has_goal else None,
    at_least=True,
    note=f"labels/s; {labels['tree']:,.0f} labels in a tree's update,"
    f" {labels['packed']:,.0f} in one of packed rows",
    details=dict(ratio=ratio, labels=labels),
  )


def _memory(timed: Timed) -> check_results.Measured:
  """Returns the peak of memory of the process over what was planned."""
  assert timed.used is not None
  gib = 1 << 30
  return check_results.Measured(
    timed.used / timed.planned,
    "of planned",
    note=f"{timed.used / gib:.1f} GiB used, {timed.planned / gib:.1f} planned;"
    f" {timed.fit.words()}",
    details=dict(used=timed.used, planned=timed.planned),
  )
