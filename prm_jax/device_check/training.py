"""Ten updates of a small PRM: here and on the CPU, split, resumed, repeated."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import itertools
import pathlib
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax.checkpoints import manager
from prm_jax.device_check import check_results
from prm_jax.device_check import chip_limits
from prm_jax.device_check import model_checks
from prm_jax.device_check import update_checks
from prm_jax.device_check import workloads
from prm_jax.models import sharding

UPDATES = 10


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns the checks of training."""
  sharded: dict[str, Callable] = {
    f"sharded_is_one_device.{name}": functools.partial(_sharded, shape)
    for name, shape in meshes(setting.num_devices).items()
  }
  runs: dict[str, Callable] = {
    f"losses_are_the_cpus.{dtype}": functools.partial(_as_on_cpu, dtype)
    for dtype in model_checks.DTYPES
  }
  runs |= dict(resumed_is_uninterrupted=_resumed, same_bits_twice=_same_bits)
  return [
    *(
      check_results.Check(
        f"training.{name}", run, run is not _same_bits, lane="training"
      )
      for name, run in runs.items()
    ),
    *(
      check_results.Check(f"training.{name}", run)
      for name, run in sharded.items()
    ),
  ]


def meshes(devices: int) -> dict[str, tuple[int, int, int]]:
  """Returns the shapes of meshes to try: (data, fsdp, tensor) by name."""
  if devices == 1:
    return {}
  shapes = dict(data=(devices, 1, 1), fsdp=(1, devices, 1))
  if devices % 2 == 0:
    shapes["tensor"] = (devices // 2, 1, 2)
  return shapes


@functools.cache
def _updates(dtype: str, mesh: jax.sharding.Mesh) -> update_checks.Updates:
  """Returns the update of SMALL, compiled once for a mesh."""
  config = dataclasses.replace(model_checks.SMALL, compute_dtype=dtype)
  return update_checks.Updates(config, 0, mesh=mesh)


# --- Losses -----------------------------------------------------------------


class Rows(NamedTuple):
  """Which rows the updates learn from: see `_batches`."""

  tokens: int
  num_rows: int
  few_examples: bool


def _rows(setting: check_results.Setting) -> Rows:
  """Returns rows long enough for the kernels, as many as there are devices."""
  tokens = 256 if setting.platform == "cpu" else 1024
  return Rows(tokens, max(2, setting.num_devices), setting.small)


@functools.cache
def _batches(rows: Rows) -> list[batch_lib.Batch]:
  """Returns the rows of each update, which hold trees."""
  examples = workloads.examples(
    "solutions", model_checks.SMALL.vocab_size, longest=rows.tokens
  )[: 256 if rows.few_examples else None]
  filled = workloads.fill(
    examples, rows.num_rows, rows.tokens, share_prefixes=True, most=UPDATES
  )
  return [*itertools.islice(itertools.cycle(filled.batches), UPDATES)]


@functools.cache
def _losses(
  dtype: str, rows: Rows, mesh: jax.sharding.Mesh, jitter: float = 0.0
) -> np.ndarray:
  """Returns the loss of each update, in nats.

  Args:
    dtype: of matmuls and activations.
    rows: what is learned from.
    mesh: where it runs.
    jitter: parameters are off by so much of their size, up or down.
  """
  params = model_checks.params_of("step")
  if jitter:
    rng = np.random.default_rng(0)
    params = jax.tree.map(
      lambda x: x * (1 + jitter * rng.choice([-1, 1], x.shape)).astype(x.dtype),
      params,
    )
  run = _updates(dtype, mesh)
  run.start(params)
  precision = "highest" if dtype == "float32" else None
  with jax.default_matmul_precision(precision):
    metrics = run(_batches(rows))
  return np.asarray([float(x["loss_nats"]) for x in metrics])


def _limit(dtype: str, rows: Rows, mesh: jax.sharding.Mesh) -> float:
  """Returns by how much losses may differ: measured, on that mesh.

  It is what ten losses change by if all parameters are off by two roundings,
  one for parameters and one for activations, and the rounding of a loss itself.
  float32 sums over the width have roundings of their own.
  """
  u = chip_limits.ROUNDOFF[dtype]
  if dtype == "float32":
    u *= np.sqrt(model_checks.SMALL.d_model)
  plain = _losses("float32", rows, mesh)
  moved = _losses("float32", rows, mesh, float(2 * u))
  return float(np.abs(moved / plain - 1).max() + 2 * u)


def _as_on_cpu(
  dtype: str, setting: check_results.Setting
) -> check_results.Measured:
  """Compares ten losses with those of float32 on the CPU."""
  there = model_checks.mesh_of(model_checks.cpu())
  rows = _rows(setting)
  losses = _losses(dtype, rows, model_checks.mesh_of(jax.devices()[0]))
  note = f"losses {losses[0]:.4f} .. {losses[-1]:.4f} nats"
  return _compared(losses, dtype, rows, there, note, "cpu")


def _compared(
  losses: np.ndarray,
  dtype: str,
  rows: Rows,
  mesh: jax.sharding.Mesh,
  note: str,
  name: str,
) -> check_results.Measured:
  """Returns how far losses are from those of float32 on a mesh of a name."""
  expected = _losses("float32", rows, mesh)
  return check_results.Measured(
    float(np.abs(losses / expected - 1).max()),
    "relative",
    _limit(dtype, rows, mesh),
    note=note,
    details={"losses": losses.tolist(), name: expected.tolist()},
  )


def _sharded(
  shape: tuple[int, int, int], setting: check_results.Setting
) -> check_results.Measured:
  """Compares ten losses on a mesh of all devices with those of one."""
  one = model_checks.mesh_of(jax.devices()[0])
  rows = _rows(setting)
  losses = _losses("float32", rows, sharding.make_mesh(shape))
  note = "mesh data x fsdp x tensor = " + " x ".join(map(str, shape))
  return _compared(losses, "float32", rows, one, note, "one_device")


# --- Bits -------------------------------------------------------------------


def _same_bits(setting: check_results.Setting) -> check_results.Measured:
  """Reports how many leaves two runs of the same updates have otherwise."""
  differ = _differing(_after(UPDATES, setting), _after(UPDATES, setting))
  return check_results.Measured(
    differ,
    "leaves",
    note="differ" if differ else "the same bits in all of the state",
  )


def _after(num: int, setting: check_results.Setting) -> Any:
  """Returns the state after so many updates, on the host."""
  run = _updates("float32", model_checks.mesh_of(jax.devices()[0]))
  run.start(model_checks.params_of("step"))
  _update(run, 0, num, setting)
  return jax.device_get(run.state)


def _update(
  run: update_checks.Updates,
  start: int,
  end: int,
  setting: check_results.Setting,
) -> None:
  """Makes the updates of these numbers."""
  with jax.default_matmul_precision("highest"):
    run(_batches(_rows(setting))[start:end])


def _differing(a: Any, b: Any) -> int:
  """Returns how many leaves of two states on the host differ in any bit."""
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return sum(
    np.asarray(x).tobytes() != np.asarray(y).tobytes() for x, y in pairs
  )


def _resumed(setting: check_results.Setting) -> check_results.Measured:
  """Compares a run that was saved and resumed with one without interruption.

  If two runs of the same updates differ in their bits, so may these: then only
  the restored state is compared with the saved one.
  """
  half = UPDATES // 2
  whole = _after(UPDATES, setting)
  saved = _after(half, setting)
  run = _updates("float32", model_checks.mesh_of(jax.devices()[0]))
  with tempfile.TemporaryDirectory() as folder:
    kept = manager.Checkpoints(pathlib.Path(folder))
    kept.save(run.state)
    kept.wait()
    run.state = None
    run.state = kept.newest(run.placed.target)
    kept.close()
  lost = _differing(saved, jax.device_get(run.state))
  _update(run, half, UPDATES, setting)
  differ = _differing(whole, jax.device_get(run.state))
  if lost or not differ:
    return check_results.Measured(
      max(lost, differ),
      "leaves",
      0,
      note="of the state differ" if lost else "bit for bit after ten updates",
    )
  repeats = _differing(whole, _after(UPDATES, setting))
  note = "restored bit for bit; updates don't repeat their bits here"
  return check_results.Measured(
    0 if repeats else differ,
    "leaves",
    0,
    note=note if repeats else "of the state differ after ten updates",
  )
