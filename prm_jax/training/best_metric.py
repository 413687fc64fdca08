"""Whether fit.best_metric can choose among the saves of a run.

A metric may be undefined (nan): a share of wrong steps isn't defined where there
is none. Which ones are depends on the labels of the evaluation data alone, so a
run that could never choose is refused before its first update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import logging
import math
from typing import Any

from flax.core import meta
import jax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import sharding
from prm_jax.runtime import checked_lines
from prm_jax.training import program as program_lib

_logger = logging.getLogger(__name__)


def check(
  metric: str,
  program: program_lib.Program,
  key: jax.Array,
  eval_batches: Sequence[batch_lib.Batch | batch_lib.Part],
  mesh: jax.sharding.Mesh,
) -> None:
  """Refuses a metric that the evaluation data can't define.

  Args:
    metric: The name of the metric.
    program: The program.
    key: Any random key.
    eval_batches: The held-out rows.
    mesh: The devices.

  Raises:
    InputError: There is no evaluation data, no such metric, or the labels of
      the data don't define it.
  """
  errors.raise_first(_faults(metric, program, key, eval_batches, mesh))


def _faults(metric, program, key, eval_batches, mesh) -> Iterator[str]:
  if not eval_batches:
    yield (
      f"fit.best_metric={metric!r}: there is no evaluation data to"
      " measure it on; give some, or null"
    )
  known = _metrics(program, key, eval_batches, mesh)
  value = checked_lines.metric(known, metric)
  if value is None:
    yield (f"fit.best_metric={metric!r}: expected one of {', '.join(known)}")
  if math.isnan(value):
    defined = [name for name, value in known.items() if not math.isnan(value)]
    yield (
      f"fit.best_metric={metric!r}: isn't defined on the evaluation data, which"
      " lack what it is a share of, such as wrong steps or right ones; give data"
      f" that have them, or another metric: {', '.join(defined)}"
    )


def _metrics(
  program: program_lib.Program,
  key: jax.Array,
  eval_batches: Sequence[batch_lib.Batch | batch_lib.Part],
  mesh: jax.sharding.Mesh,
) -> dict[str, float]:
  """Returns the metrics by name; only whether they are nan has a meaning."""
  params = meta.unbox(jax.eval_shape(program.init, key).params)
  if program.label_sums is None:
    first = eval_batches[0]
    rows = first.rows if isinstance(first, batch_lib.Part) else first
    assert program.evaluate is not None
    sums = jax.eval_shape(program.evaluate, params, rows)
    return program.finish(dict.fromkeys(sums, 1.0))
  label_sums = sharding.jit(
    functools.partial(program.label_sums, params),
    mesh,
    in_shardings=(sharding.of_batch(mesh),),
    out_shardings=sharding.replicated(mesh),
  )
  return program.finish(program_lib.added(label_sums, eval_batches, mesh))


def warn(metric: str, value: Any, name: str, step: Any) -> None:
  """Logs that a save isn't considered for the best, if it isn't.

  Args:
    metric: The name of the metric.
    value: Its value at the save.
    name: The name of the run.
    step: The step of the save.
  """
  if not math.isfinite(value):
    _logger.warning(
      f"{name}: step {int(step)}: {metric} is undefined"
      " (it is measured on nothing), so this save isn't considered for the best"
    )
