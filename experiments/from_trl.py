"""Makes a config for prm_jax of one for TRL's PRMTrainer (docs/from_trl.md).

Command:  python experiments/from_trl.py THEIR.yaml OURS.py --data=FILE
          --init_from=runs/base

THEIR.yaml has the fields that TRL's scripts read: those of ScriptArguments,
PRMConfig and ModelConfig (TRL 1.13.0, the last with a PRMTrainer). What changes
the result and has no counterpart is refused.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import carried_over
import written_config

DECAYS = dict(
  linear="linear",
  cosine="cosine",
  cosine_with_min_lr="cosine",
  constant="constant",
  constant_with_warmup="constant",
)
# They change where and how fast it runs, and what is written, and no result.
HARMLESS = (
  *("output_dir", "overwrite_output_dir", "run_name", "report_to", "project"),
  *("logging_", "log_", "trackio_", "hub_", "push_to_hub", "disable_tqdm"),
  *("env", "do_train", "do_eval", "do_predict", "dataset_num_proc", "debug"),
  *("dataset_train_split", "dataset_test_split", "dataset_config"),
  *("dataset_streaming", "ignore_bias_buffers", "dataloader_", "ddp_"),
  *("fsdp", "fsdp_config", "deepspeed", "accelerator_config", "use_cpu"),
  *("gradient_checkpointing_kwargs", "attn_implementation", "torch_compile"),
  *("torch_compile_", "torch_empty_cache_steps", "use_liger_kernel"),
  *("liger_kernel_config", "tf32", "use_cache", "remove_unused_columns"),
  *("eval_strategy", "eval_accumulation_steps", "eval_on_start", "eval_delay"),
  *("eval_do_concat_batches", "batch_eval_metrics", "bf16_full_eval"),
  *("per_device_eval_batch_size", "prediction_loss_only", "eval_use_"),
  *("save_strategy", "save_total_limit", "save_only_model", "save_on_each_"),
  *("skip_memory_metrics", "include_num_input_tokens_seen", "local_rank"),
  *("full_determinism", "ignore_data_skip", "resume_from_checkpoint"),
  *("train_sampling_strategy", "length_column_name", "data_seed"),
  *("bnb_4bit_", "use_bnb_nested_quant", "activation_checkpointing_kwargs"),
  *("model_revision", "trust_remote_code", "restore_callback_states_from_"),
)
LORA = ("lora_", "use_rslora", "use_dora")


def read(fields: carried_over.Fields, devices: int) -> written_config.Recipe:
  """Returns what their fields say; refuses what can't be carried over."""
  take, only = fields.take, fields.only
  carried_over.check_separator(fields, take("step_separator", "\n"))
  carried_over.check_last_step_only(
    fields, take("train_on_last_step_only", False, carried_over.boolean)
  )
  if "max_length" in fields.null:
    raise fields.error(
      "max_length=null: a row has a length here; give a number"
    )
  never = "it has no counterpart here; take it out if you can do without"
  only(
    "max_completion_length", (None,), "a solution is cut by max_length alone"
  )
  only("disable_dropout", (True,), "no layer here has dropout; set it to true")
  only("fp16", (False,), "losses aren't scaled here; use bf16")
  only("dataloader_drop_last", (False,), "no solution is left out here")
  only("load_best_model_at_end", (False,), "set fit.best_metric in our config")
  for name in ("load_in_4bit", "load_in_8bit"):
    only(name, (False,), never)
  only(
    "optim", ("adamw_torch_fused", *carried_over.ADAMW), "AdamW alone is here"
  )
  unequal = "each step counts the same here, on whatever device it is"
  anyhow = (True, False) if devices == 1 else (True,)
  only("average_tokens_across_devices", anyhow, unequal)
  batch = devices * take("per_device_train_batch_size", 8, int)
  accumulated = take("gradient_accumulation_steps", 1, int)
  epochs = take("num_train_epochs", 3.0, float)
  max_steps = take("max_steps", -1, int)
  kind = take("lr_scheduler_type", "linear")
  given = take("warmup_steps", take("warmup_ratio", 0.0, float), float)

  def updates(num: int) -> int:
    if max_steps > 0:
      return max_steps
    return math.ceil(epochs * math.ceil(math.ceil(num / batch) / accumulated))

  def warmup(steps: int) -> int:
    if kind == "constant":
      return 0
    return int(given) if given >= 1 else math.ceil(given * steps)

  bf16 = take("bf16", True, carried_over.boolean)
  remat = take("activation_checkpointing", True, carried_over.boolean)
  remat = take("gradient_checkpointing", remat, carried_over.boolean)
  peak_lr = take("learning_rate", 1e-5, float)
  model: dict[str, Any] = dict(
    step_classes=2,
    compute_dtype="bfloat16" if bf16 else "float32",
    remat="full" if remat else "none",
  )
  model |= _lora(fields)
  only("dtype", ("float32", "auto"), "what is trained is float32 here")
  optimizer = dict(peak_lr=peak_lr, **_schedule(fields, kind, peak_lr))
  return written_config.Recipe(
    base=take("model_name_or_path", "BASE"),
    data=tuple(filter(None, [take("dataset_name")])),
    max_tokens=take("max_length", 1024, int),
    batch=batch * accumulated,
    updates=updates,
    warmup=warmup,
    held_out=0.0,
    optimizer=optimizer | carried_over.adamw(fields),
    model=model,
    trainable="lora" if "lora_rank" in model else "all",
    seed=take("seed", 42, int),
    every=dict(
      log_every=_every(take("logging_steps", 10.0, float)),
      eval_every=_every(take("eval_steps", 500.0, float)),
      checkpoint_every=_every(take("save_steps", 500.0, float)),
    ),
    left_out=fields.left_out(HARMLESS),
  )


def _every(given: float) -> Callable[[int], int]:
  """Returns how often, in updates; below 1 it is a share of the run."""
  return lambda steps: int(given) if given >= 1 else math.ceil(given * steps)


def _schedule(
  fields: carried_over.Fields, kind: str, peak_lr: float
) -> dict[str, Any]:
  given = dict(fields.take("lr_scheduler_kwargs", {}, dict))
  least = 0.0
  if kind == "cosine_with_min_lr":
    least = float(given.pop("min_lr", 0.0)) / peak_lr
    least = float(given.pop("min_lr_rate", least))
  if given:
    raise fields.error(
      f"lr_scheduler_kwargs={given!r}: has no counterpart here"
    )
  return carried_over.decay(fields, kind, DECAYS) | dict(final_fraction=least)


def _lora(fields: carried_over.Fields) -> dict[str, Any]:
  if not fields.take("use_peft", False, carried_over.boolean):
    fields.drop(LORA)
    return {}
  take, only = fields.take, fields.only
  for name in ("use_rslora", "use_dora"):
    only(name, (False,), "adapters are plain LoRA here")
  for name in ("lora_target_parameters", "lora_modules_to_save"):
    only(name, (None, ["score"]), "the head alone is trained beside adapters")
  if take("lora_dropout", 0.05, float):
    raise fields.error("lora_dropout isn't 0: no adapter here has dropout")
  if take("lora_task_type", "CAUSAL_LM") != "TOKEN_CLS":
    raise fields.error(
      "lora_task_type isn't TOKEN_CLS: the head would stay as it was drawn"
      " there, and is trained here"
    )
  return carried_over.adapters(
    fields,
    take("lora_r", 16, int),
    take("lora_alpha", 32, float),
    take("lora_target_modules", ["q_proj", "v_proj"], lambda x: x),
  )


if __name__ == "__main__":
  carried_over.main(__doc__, read)
