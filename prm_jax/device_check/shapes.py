"""Models whose speed is measured, and what of one fits a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
from typing import NamedTuple

from prm_jax.device_check import results
from prm_jax.models import config as model_config

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
ROW_TOKENS = dict(small=512) | dict.fromkeys(("1_5b", "7b"), 4096)
# Of a device's memory, as far as estimates go; the compiler then says more.
USABLE = 0.95


class Fit(NamedTuple):
  """One way to train a shape: the model, its rows and its first moments.

  Attributes:
    model: with `remat`, and maybe fewer layers.
    rows: of an update. sequence_length: tokens of a row.
    momentum_dtype: see OptimizerConfig.
  """

  model: model_config.ModelConfig
  rows: int
  sequence_length: int
  momentum_dtype: str

  def words(self, whole: model_config.ModelConfig) -> str:
    """Returns how it is run, and what was left out to make it fit."""
    text = (
      f"{self.rows} rows of {self.sequence_length:,}, remat={self.model.remat}"
    )
    if self.momentum_dtype != "float32":
      text += f", momentum in {self.momentum_dtype}"
    if self.model.num_layers < whole.num_layers:
      text += (
        f"; SHRUNK to {self.model.num_layers} of {whole.num_layers} layers:"
        " the whole doesn't fit"
      )
    return text


def of(setting: results.Setting) -> tuple[str, ...]:
  """Returns the names of the shapes to measure."""
  return ("small",) if setting.small else ("1_5b", "7b")


def num_parameters(model: model_config.ModelConfig) -> int:
  """Returns the parameters of layers and token table, norms left out."""
  return model.body_parameters + model.vocab_size * model.d_model


def fits(name: str, memory: int | None) -> Iterator[Fit]:
  """Yields ways to train a shape, the best that should fit first.

  Rows first: less rematerialisation before more while four rows fit, then
  bfloat16 moments, then fewer layers.

  Args:
    name: of the shape.
    memory: bytes of a device; None: unknown, and everything is yielded.
  """
  whole, tokens = SHAPES[name], ROW_TOKENS[name]
  most = float("inf") if memory is None else USABLE * memory
  ways = (
    ("dots", "float32", (16, 8, 4)),
    ("full", "float32", (16, 8, 4, 2, 1)),
    ("full", "bfloat16", (16, 8, 4, 2, 1)),
  )
  for layers in fewer(whole.num_layers):
    for remat, momentum_dtype, counts in ways:
      model = dataclasses.replace(whole, num_layers=layers, remat=remat)
      for rows in counts:
        if name == "small" and rows > 4:
          continue
        fit = Fit(model, rows, tokens, momentum_dtype)
        if estimate(fit) <= most:
          yield fit


def fewer(layers: int) -> list[int]:
  """Returns numbers of layers, from all of them down."""
  return sorted({max(1, layers * n // 8) for n in range(1, 9)}, reverse=True)


def estimate(fit: Fit) -> float:
  """Returns about how many bytes an update needs.

  Parameters, gradients and two moments; of each layer its input, once more
  while it is computed again, and with remat="dots" what its matmuls give. Over
  by up to a tenth of what `plan` says of the published shapes.
  """
  model = fit.model
  moments = 4 + (2 if fit.momentum_dtype == "bfloat16" else 4)
  state = num_parameters(model) * (4 + 4 + moments)
  channels = 2.0 * model.d_model
  if model.remat == "dots":
    heads = model.num_heads + 2 * model.num_kv_heads
    channels += heads * model.head_dim + 2 * model.d_ff + 2 * model.d_model
  tokens = fit.rows * fit.sequence_length
  return state + 2.0 * model.num_layers * tokens * channels
