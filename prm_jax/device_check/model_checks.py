"""A small random model: its scores, packed and alone, here and on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.device_check import check_results
from prm_jax.device_check import chip_limits
from prm_jax.device_check import workloads
from prm_jax.models import attention
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

SMALL = model_config.ModelConfig(
  vocab_size=512,
  d_model=256,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=64,
  d_ff=704,
  qkv_bias=True,
)
DTYPES = ("float32", "bfloat16")


class Endless(tokenizer_lib.Bytes):
  """Ids whose eos and separator no model draws: budgets decide."""

  def __init__(self, vocab_size: int):
    super().__init__()
    self.eos, self.separator = vocab_size, vocab_size + 1


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns the checks of the whole model, most harmful first."""
  kinds = {
    attention.suited(setting.platform, sequence_length(setting), dtype)
    for dtype in DTYPES
  } | {"reference"}
  layouts = [
    (layout, kind, dtype)
    for kind in sorted(kinds)
    for dtype in DTYPES
    for layout in ("packed", "tree")
    if setting.mode != "quick" or kind != "reference" or dtype == "float32"
  ]
  if setting.platform == "tpu":  # never taken by auto, and so not required
    layouts += [("packed", "splash", dtype) for dtype in DTYPES]
  checks = [
    check_results.Check(
      f"model.{layout}_is_alone.{kind}.{dtype}",
      functools.partial(_as_alone, layout, kind, dtype),
      required=kind != "splash",
      lane=f"model.{kind}.{dtype}",
    )
    for layout, kind, dtype in layouts
  ]
  checks += [
    check_results.Check(
      f"model.scores_are_the_cpus.{name}",
      functools.partial(_as_on_cpu, name),
      lane="model.cpu",
    )
    for name in (*DTYPES, "default_float32")
  ]
  return [
    *checks,
    check_results.Check(
      "model.greedy_is_argmax", _greedy, lane="model.samples"
    ),
    check_results.Check(
      "model.same_samples_twice", _same_samples, lane="model.samples"
    ),
  ]


def mesh_of(device: Any) -> jax.sharding.Mesh:
  """Returns the mesh of one device."""
  return sharding.make_mesh((1, 1, 1), [device])


def sequence_length(setting: check_results.Setting) -> int:
  """Returns the tokens of a row: long enough for the kernels."""
  return 512 if setting.platform == "cpu" else 1024


def random_params(
  config: model_config.ModelConfig, heads: Sequence[str]
) -> Any:
  """Returns random parameters, also of heads that are zero at birth."""
  params = meta.unbox(transformer.init(jax.random.key(0), config, heads))
  if "step" not in heads:
    return params
  kernel = params["step_head"]["kernel"]
  noise = jax.random.normal(jax.random.key(1), kernel.shape)
  scaled = (noise * config.d_model**-0.5).astype(kernel.dtype)
  return params | dict(step_head=params["step_head"] | dict(kernel=scaled))


# --- Step logits ------------------------------------------------------------


def _examples(setting: check_results.Setting) -> list[encoding.Example]:
  """Returns the solutions of a few problems."""
  longest = sequence_length(setting) // 2
  examples = workloads.examples("solutions", SMALL.vocab_size, longest=longest)
  return examples[: 16 if setting.small else 48]


def _model(dtype: str, kind: str = "auto") -> model_config.ModelConfig:
  return dataclasses.replace(SMALL, compute_dtype=dtype, attention=kind)


@functools.cache
def _forward(config: model_config.ModelConfig, device: Any) -> sharding.Sharded:
  """Returns the step logits of rows as a function of (params, batch)."""
  mesh = mesh_of(device)
  return sharding.jit(
    functools.partial(transformer.apply, config, method="step_logits"),
    mesh,
    in_shardings=(sharding.replicated(mesh), sharding.of_batch(mesh)),
    out_shardings=sharding.of_batch(mesh),
  )


def _logits(
  layout: str,
  config: model_config.ModelConfig,
  setting: check_results.Setting,
  *,
  device: Any = None,
  precision: str | None = "highest",
) -> np.ndarray:
  """Returns the logits of all steps, solution by solution.

  Args:
    layout: padded (each alone in a row), packed or tree.
    config: the model.
    setting: says which solutions.
    device: what computes them; the first one by default.
    precision: of matmuls.
  """
  examples, T = _examples(setting), sequence_length(setting)
  placed = workloads.place(examples, T, layout, rows=len(examples))
  run = _forward(config, jax.devices()[0] if device is None else device)
  with jax.default_matmul_precision(precision):
    logits = run(params_of("step"), sharding.put_batch(placed.batch, run.mesh))
  return np.concatenate(placed.read(np.asarray(logits)))


@functools.cache
def params_of(head: str) -> Any:
  """Returns random parameters of SMALL, on the host."""
  return jax.device_get(random_params(SMALL, (head,)))


def _as_alone(
  layout: str, kind: str, dtype: str, setting: check_results.Setting
) -> check_results.Measured:
  """Compares logits of packed rows, or of trees, with each solution's alone."""
  config = _model(dtype, kind)
  precision = "highest" if dtype == "float32" else None
  alone, together = (
    _logits(x, config, setting, precision=precision) for x in ("padded", layout)
  )
  note = f"the largest difference of {len(alone)} step logits"
  return _compared(together, alone, dtype, note)


def _compared(
  logits: np.ndarray, expected: np.ndarray, dtype: str, note: str
) -> check_results.Measured:
  """Returns the largest difference over the spread of those expected."""
  return check_results.Measured(
    float(np.abs(logits - expected).max() / expected.std()),
    "of spread",
    chip_limits.model(dtype, SMALL.num_layers, SMALL.d_model),
    note=note,
  )


def cpu() -> Any:
  """Returns the CPU as a device of jax.

  Raises:
    NotRun: jax was told to leave it out.
  """
  try:
    return jax.devices("cpu")[0]
  except RuntimeError:
    raise check_results.NotRun(
      "jax has no CPU here; leave JAX_PLATFORMS unset, or add cpu to it"
    ) from None


def _default_float32(setting: check_results.Setting) -> str:
  """Returns what float32 matmuls round their operands to by default."""
  bits = setting.known.get("machine.float32_bits")
  if bits is None:
    by_platform = dict(gpu="tfloat32", tpu="bfloat16")
    return by_platform.get(setting.platform, "float32")
  return "float32" if bits > 20 else "tfloat32" if bits > 9.5 else "bfloat16"


def _as_on_cpu(
  name: str, setting: check_results.Setting
) -> check_results.Measured:
  """Compares logits with those that the CPU computes in float32."""
  dtype = rounds_to = name.removeprefix("default_")
  precision = "highest" if name == "float32" else None
  note = "of matmuls in float32" if name == "float32" else ""
  if name == "default_float32":
    rounds_to = _default_float32(setting)
    note = "of float32 as matmuls take it by default"
  here = _logits("tree", _model(dtype), setting, precision=precision)
  there = _logits("tree", _model("float32"), setting, device=cpu())
  return _compared(here, there, rounds_to, note)


# --- Sampling ---------------------------------------------------------------


def _complete(
  sampling: sampler.Sampling,
) -> tuple[list[list[sampler.Completion]], list[np.ndarray], Any]:
  """Returns completions of a few prompts, the prompts and the parameters."""
  rng = np.random.default_rng(0)
  prompts = [rng.integers(0, SMALL.vocab_size, n) for n in (5, 17, 40)]
  params = jax.device_put(params_of("lm"))
  engine = rollout_engine.Engine(
    SMALL, params, Endless(SMALL.vocab_size), slots=8, chunk=4
  )
  requests = [
    rollout_engine.Request(str(i), prompt, 4)
    for i, prompt in enumerate(prompts)
  ]
  with jax.default_matmul_precision("highest"):
    completions, _ = engine.complete(requests, sampling, jax.random.key(0))
  return completions, prompts, params


def _greedy(setting: check_results.Setting) -> check_results.Measured:
  """Counts greedy tokens that aren't the likeliest of a whole forward pass."""
  del setting
  rows, prompts, params = _complete(sampler.Sampling(24, temperature=0.0))
  texts = [
    np.concatenate([prompt, row[0].tokens])
    for prompt, row in zip(prompts, rows, strict=True)
  ]
  examples = [workloads.unlabelled(text) for text in texts]
  placed = workloads.place(examples, 128, "padded")
  forward = jax.jit(
    functools.partial(transformer.apply, SMALL, method="lm_logits")
  )
  with jax.default_matmul_precision("highest"):
    logits = np.asarray(
      forward(params, jax.tree.map(jnp.asarray, placed.batch))
    )
  near = (
    chip_limits.model("float32", SMALL.num_layers, SMALL.d_model) * logits.std()
  )
  wrong = ties = 0
  for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
    for i in range(len(prompt), len(text)):
      gap = logits[row, i].max() - logits[row, i, text[i]]
      wrong += bool(gap > near)
      ties += bool(0 < gap <= near)
  total = sum(map(len, texts)) - sum(map(len, prompts))
  return check_results.Measured(
    wrong, "tokens", 0, note=f"of {total}; {ties} near ties aren't counted"
  )


def _same_samples(setting: check_results.Setting) -> check_results.Measured:
  """Counts completions that aren't the same bits the second time."""
  del setting
  sampling = sampler.Sampling(24, top_p=0.9)
  once, _, _ = _complete(sampling)
  twice, _, _ = _complete(sampling)
  pairs = list(zip(itertools.chain(*once), itertools.chain(*twice)))
  differ = sum(
    a.tokens.tobytes() != b.tokens.tobytes()
    or a.log_probs.tobytes() != b.log_probs.tobytes()
    for a, b in pairs
  )
  return check_results.Measured(
    differ, "completions", 0, note=f"of {len(pairs)}, ids and log-probabilities"
  )
