"""Kernels of attention in turns: how fast they are, alone."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.device_check import attention_checks as attention_lib
from prm_jax.device_check import check_results
from prm_jax.device_check import shapes
from prm_jax.device_check import timing
from prm_jax.device_check import workloads
from prm_jax.models import attention
from prm_jax.models import model_config as model_config

# One solution a row, whole solutions, and trees of alternatives.
ROWS = ("causal", "packed", "tree")
OURS = "ours"


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns a check for each kind of row."""
  del setting
  return [
    check_results.Check(
      f"speed.attention.{rows}",
      functools.partial(_measure, rows),
      required=False,
      stage="kernels",
    )
    for rows in ROWS
  ]


def _measure(
  rows: str, setting: check_results.Setting
) -> check_results.Measured:
  """Returns how many times as fast as another kernel ours is, both directions.

  Raises:
    NotRun: There is no other.
  """
  model: model_config.ModelConfig = shapes.SHAPES[shapes.of(setting)[-1]]
  B, T = (2, 512) if setting.small else (4, 4096)
  until = visible_until(rows, B, T, model.vocab_size)
  keys = jax.random.split(jax.random.key(0), 4)
  counts = (model.num_heads, model.num_kv_heads, model.num_kv_heads)
  q, k, v, d_out = (
    jax.random.normal(key, (B, T, n, model.head_dim), jnp.bfloat16)
    for key, n in zip(keys, (*counts, model.num_heads), strict=True)
  )
  kernels = _kernels(rows, jnp.asarray(until), setting)
  if [*kernels] == [OURS]:
    raise check_results.NotRun("no other kernel here for such rows: no Tokamax")
  runs, refused = {}, {}
  for name, kernel in kernels.items():
    step = jax.jit(functools.partial(_with_gradients, kernel))
    run = functools.partial(_finished, step, q, k, v, d_out)
    try:
      run()
    except Exception as e:  # what a library refuses with isn't documented
      if name == OURS:
        raise
      refused[name] = str(e).partition("\n")[0][:200]
      continue
    runs[name] = run
  if list(runs) == [OURS]:
    raise check_results.NotRun(f"the others refuse: {refused}")
  costs = timing.alternate(runs, 1 if setting.mode == "quick" else 10)
  ratios = {
    name: timing.ratio(other, costs[OURS])["wall"]
    for name, other in costs.items()
    if name != OURS
  }
  best = min(ratios, key=lambda name: ratios[name]["median"])
  keys_seen = float((until - np.arange(T)).mean())
  return check_results.Measured(
    ratios[best]["median"],
    "x",
    note=f"as fast as {best}, {B} rows of {T:,}; a token sees"
    f" {keys_seen:,.0f} keys",
    details=dict(
      ratios=ratios, refused=refused, seconds=timing.wall_seconds(costs)
    ),
  )


def visible_until(rows: str, B: int, T: int, vocab_size: int) -> np.ndarray:
  """Returns who is visible until when, [B, T], of PRM800K's lengths.

  Args:
    rows: One of ROWS.
    B: The number of rows.
    T: The number of tokens of a row.
    vocab_size: The number of ids.
  """
  if rows == "causal":
    return np.full((B, T), T, np.int32)
  workload = "solutions" if rows == "packed" else "alternatives"
  given = workloads.examples(workload, vocab_size, longest=T)
  filled = workloads.fill(given, B, T, share_prefixes=rows == "tree", most=1)
  return np.asarray(filled.batches[0].visible_until)


def _kernels(
  rows: str, until: Any, setting: check_results.Setting
) -> dict[str, Callable]:
  """Returns functions of (q, k, v) by name; jax.nn's know causal rows alone."""
  kernels: dict[str, Callable] = {
    OURS: lambda q, k, v: attention.attend(q, k, v, until)
  }
  if attention_lib.has_tokamax(setting):
    kernels["tokamax"] = lambda q, k, v: attention.attend(
      q, k, v, until, "tokamax"
    )
  if rows == "causal":
    others = ("cudnn", "xla") if setting.platform == "gpu" else ("xla",)
    kernels |= {
      name: functools.partial(
        jax.nn.dot_product_attention, is_causal=True, implementation=name
      )
      for name in others
    }
  return kernels


def _with_gradients(
  kernel: Callable, q: Any, k: Any, v: Any, d_out: Any
) -> Any:
  """Returns a kernel's value and its gradients."""
  out, vjp = jax.vjp(kernel, q, k, v)
  return out, vjp(d_out)


def _finished(function: Callable, *args: Any) -> Any:
  return jax.block_until_ready(function(*args))
