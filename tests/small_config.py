"""A small run's config file, for tests of commands, and a small model."""

from typing import Any

from prm_jax.models import model_config as model_config


def text(
  program: str = "prm",
  *,
  data: dict[str, Any],
  model: dict[str, Any],
  eval_rows: int,
  fit: dict[str, Any],
) -> str:
  """Returns the file's text; data, model and fit: fields of these groups."""
  data = dict(data, exclude=(), deduplicate=True)
  sizes = dict(num_layers=1, num_heads=2, num_kv_heads=2, scan=False)
  return f"""
import ml_collections

def get_config():
  c = ml_collections.ConfigDict()
  c.program = "{program}"
  c.seed = 0
  c.init_from = ""
  c.data = {_group(data)}
  c.tokenizer = dict(
    kind="sentencepiece", vocab_size=64, model_type="word", path=""
  )
  c.model = {_group(model | sizes)}
  c.encoding = dict(
    score_position="last_token", max_tokens=64, truncation="drop"
  )
  c.packing = dict(batch_size=8, sequence_length=64)
  labels = dict(neutral="good", after_first_error="ignore")
  c.objective = dict(
    sft=dict(),
    prm=dict(loss="bce", labels=labels),
    orm=dict(loss="bce"),
  )[c.program]
  c.microbatches, c.eval_rows = 1, {eval_rows}
  c.aggregate = "product"
  c.mesh = (-1, 1, 1)
  c.trainable = "all"
  c.optimizer = dict(peak_lr=1e-2, warmup_steps=1)
  c.fit = {_group(dict(fit, tensorboard=False))}
  return c
"""


def model(vocab_size: int) -> model_config.ModelConfig:
  """Returns a model of one layer and one head."""
  return model_config.ModelConfig(
    vocab_size=vocab_size,
    d_model=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    d_ff=8,
  )


def _group(fields: dict[str, Any]) -> str:
  """Returns a group of fields as a config file has it."""
  return f"dict({', '.join(f'{k}={v!r}' for k, v in fields.items())})"
