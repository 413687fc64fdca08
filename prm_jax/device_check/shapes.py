"""Models whose speed is measured, and what of one fits a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
from typing import NamedTuple

from prm_jax.device_check import check_results
from prm_jax.models import model_config as model_config

# Qwen2.5's shapes: those of experiments/prm800k_qwen2_5_math_*.py (a test), and
# one that a CPU can do.
_qwen2_5 = functools.partial(
  model_config.ModelConfig, qkv_bias=True, compute_dtype="bfloat16"
)
# Vocabulary, width, layers, query heads, key heads, channels, hidden width.
SHAPES = {
  "small": _qwen2_5(4096, 256, 4, 4, 2, 64, 704),
  "1_5b": _qwen2_5(151_936, 1536, 28, 12, 2, 128, 8960),
  "7b": _qwen2_5(152_064, 3584, 28, 28, 4, 128, 18_944, tie_embedding=False),
}
# Trained by adapters of all matrices, over a base in bfloat16.
SHAPES |= {
  f"{name}_lora": dataclasses.replace(SHAPES[name], lora_rank=16)
  for name in ("small", "7b")
}
# Of a device's memory, as far as estimates go; the compiler then says more.
USABLE = 0.95


class Fit(NamedTuple):
  """One way to train a shape: the model, its rows and its first moments.

  Args:
    model: The shape of the model, with `remat`.
    rows: The number of rows of an update.
    sequence_length: The number of tokens of a row.
    momentum_dtype: See OptimizerConfig.
  """

  model: model_config.ModelConfig
  rows: int
  sequence_length: int
  momentum_dtype: str

  def words(self) -> str:
    """Returns how it is run."""
    text = (
      f"{self.rows} rows of {self.sequence_length:,}, remat={self.model.remat}"
    )
    if self.momentum_dtype != "float32":
      text += f", momentum in {self.momentum_dtype}"
    return text


def row_tokens(name: str) -> int:
  """Returns the tokens of a shape's row."""
  return 512 if name.startswith("small") else 4096


def of(setting: check_results.Setting) -> tuple[str, ...]:
  """Returns the names of the shapes that score and sample."""
  return ("small",) if setting.small else ("1_5b", "7b")


def trained(setting: check_results.Setting) -> tuple[str, ...]:
  """Returns the names of the shapes that are trained: 7B whole needs most."""
  if setting.small:
    return ("small", "small_lora")
  return ("1_5b", "7b_lora", "7b")


def num_parameters(model: model_config.ModelConfig) -> int:
  """Returns the parameters of layers and token table, norms left out."""
  return model.body_parameters + model.vocab_size * model.d_model


def num_trained(model: model_config.ModelConfig) -> int:
  """Returns the parameters that are trained: with adapters these alone.

  An adapter of a matrix [in, out] has rank (in + out) parameters.
  """
  if not model.lora_rank:
    return num_parameters(model)
  D, F = model.d_model, model.d_ff
  queries, keys = (
    n * model.head_dim for n in (model.num_heads, model.num_kv_heads)
  )
  sides = dict.fromkeys(("query", "output"), D + queries)
  sides |= dict.fromkeys(("key", "value"), D + keys)
  sides |= dict.fromkeys(("gate", "up", "down"), D + F)
  per_layer = sum(sides[name] for name in model.lora_targets)
  return model.num_layers * model.lora_rank * per_layer


def fits(name: str, memory: int | None) -> Iterator[Fit]:
  """Yields ways to train a shape, the best that should fit first.

  Rows first: less rematerialisation before more while four rows fit, then
  bfloat16 moments.

  Args:
    name: of the shape.
    memory: bytes of a device; None: unknown, and everything is yielded.
  """
  whole = SHAPES[name]
  most = float("inf") if memory is None else USABLE * memory
  ways = (
    ("dots", "float32", (16, 8, 4)),
    ("full", "float32", (16, 8, 4, 2, 1)),
    ("full", "bfloat16", (16, 8, 4, 2, 1)),
  )
  for remat, momentum_dtype, counts in ways:
    model = dataclasses.replace(whole, remat=remat)
    for rows in counts:
      if name.startswith("small") and rows > 4:
        continue
      fit = Fit(model, rows, row_tokens(name), momentum_dtype)
      if estimate(fit) <= most:
        yield fit


def estimate(fit: Fit) -> float:
  """Returns about how many bytes an update needs.

  Parameters, gradients and two moments of what is trained, and adapters' base;
  of each layer its input, once more while it is computed again, and with
  remat="dots" what its matmuls give. Within a tenth of what `plan` says of the
  published shapes.
  """
  model = fit.model
  moments = 4 + (2 if fit.momentum_dtype == "bfloat16" else 4)
  state = num_trained(model) * (4 + 4 + moments)
  if model.lora_rank:
    state += 2 * num_parameters(model)
  channels = 2.0 * model.d_model
  if model.remat == "dots":
    heads = model.num_heads + 2 * model.num_kv_heads
    channels += heads * model.head_dim + 2 * model.d_ff + 2 * model.d_model
  tokens = fit.rows * fit.sequence_length
  return state + 2.0 * model.num_layers * tokens * channels
