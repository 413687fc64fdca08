"""Makes a config for prm_jax of an axolotl config with process_reward_model.

Command:  python experiments/from_axolotl.py THEIR.yml OURS.py --data=FILE
          --init_from=runs/base

What changes the result and has no counterpart is refused (docs/from_axolotl.md).
Defaults are those of axolotl's commit 067b021c8.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import carried_over
import written_config

DECAYS = dict(
  cosine="cosine",
  linear="linear",
  constant="constant",
  constant_with_warmup="constant",
)
# They change where and how fast it runs, and what is written, and no result.
HARMLESS = (
  *("output_dir", "wandb_", "mlflow_", "comet_", "trackio_", "use_", "hub_"),
  *("push_dataset_to_hub", "hf_use_auth_token", "dataset_prepared_path"),
  *("dataset_processes", "dataset_num_proc", "dataset_keep_in_memory"),
  *("shuffle_merged_datasets", "shuffle_before_merging_datasets", "strict"),
  *("skip_prepare_dataset", "num_dataset_shards_to_save", "dataloader_"),
  *("model_type", "tokenizer_type", "is_llama_derived_model", "device_map"),
  *("is_mistral_derived_model", "is_qwen_derived_model", "trust_remote_code"),
  *("chat_template", "gradient_checkpointing_kwargs", "tf32", "flash_"),
  *("xformers_attention", "sdp_attention", "flex_attention", "sage_attention"),
  *("eager_attention", "attn_implementation", "torch_compile"),
  *("torch_compile_", "deepspeed", "fsdp", "fsdp_", "ddp", "ddp_", "dp_"),
  *("tensor_parallel_size", "eval_batch_size", "eval_sample_packing"),
  *("eval_strategy", "pad_to_sequence_len", "pad_to_multiple_of", "gc_"),
  *("group_by_length", "remove_unused_columns", "train_on_inputs", "save_"),
  *("resume_from_checkpoint", "auto_resume_from_checkpoints", "profiler_"),
  *("low_cpu_mem_usage", "max_memory", "gpu_memory_limit", "include_tk"),
  *("include_tokens_per_second", "excess_length_strategy", "test_datasets"),
  *("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "base_model_config"),
)
DATASET_HARMLESS = (
  *("path", "name", "split", "data_files", "ds_type", "revision"),
  "trust_remote_code",
)
LORA = ("lora_", "peft_")


def read(fields: carried_over.Fields, devices: int) -> written_config.Recipe:
  """Returns what their fields say; refuses what can't be carried over."""
  take, only = fields.take, fields.only
  if not take("process_reward_model", False, carried_over.boolean):
    raise fields.error(
      "process_reward_model isn't true: only such configs are read"
    )
  data = _datasets(fields)
  only("num_labels", (2,), "a step is bad or good; set it to 2")
  only("fp16", (False,), "losses aren't scaled here; use bf16")
  only("float16", (False,), "losses aren't scaled here; use bf16")
  only("sample_packing", (False,), "an update there has other solutions then")
  only("load_best_model_at_end", (False,), "set fit.best_metric in our config")
  only("dataloader_drop_last", (False,), "no solution is left out here")
  only(
    "optimizer",
    ("adamw_torch_fused", *carried_over.ADAMW),
    "AdamW alone is here",
  )
  pads = take("special_tokens", {}, dict)
  if {*pads} - {"pad_token"}:
    raise fields.error(
      f"special_tokens={pads!r}: the tokens are the imported base's; leave only"
      " pad_token"
    )
  batch = devices * take("micro_batch_size", 1, int)
  batch *= take("gradient_accumulation_steps", 1, int)
  epochs = take("num_epochs", 1.0, float)
  max_steps = take("max_steps", 0, int)

  def updates(num: int) -> int:
    whole = math.ceil(num * epochs / batch)
    return min(whole, max_steps) if max_steps > 0 else whole

  peak_lr = take("learning_rate", None, float)
  if peak_lr is None:
    raise fields.error("learning_rate is missing; axolotl needs it, too")
  kind = take("lr_scheduler", "cosine")
  optimizer = dict(peak_lr=peak_lr, **carried_over.decay(fields, kind, DECAYS))
  least = take("cosine_min_lr_ratio", 0.0, float)
  optimizer["final_fraction"] = least if kind == "cosine" else 0.0
  checkpointing = take("gradient_checkpointing", False, lambda x: x)
  # null is no bfloat16 there, and a missing field is where the GPU has it.
  is_bf16 = take("bf16", "bf16" not in fields.null, bool)
  is_bf16 |= take("bfloat16", False, bool)
  fields.drop(("bfloat16", "float32"))
  model: dict[str, Any] = dict(
    step_classes=2,
    compute_dtype="bfloat16" if is_bf16 else "float32",
    remat="full" if checkpointing else "none",
  )
  model |= _lora(fields)
  is_lora = "lora_rank" in model
  every = dict(
    log_every=_logged(take("logging_steps", None, int)),
    eval_every=_every(fields, "eval", epochs),
    checkpoint_every=_every(fields, "save", epochs),
  )
  return written_config.Recipe(
    base=take("base_model", "BASE"),
    data=data,
    max_tokens=take("sequence_len", 512, int),
    batch=batch,
    updates=updates,
    warmup=_warmup(fields, kind),
    held_out=take("val_set_size", 0.0, float),
    optimizer=optimizer | carried_over.adamw(fields),
    model=model,
    trainable="lora" if is_lora else "all",
    seed=take("seed", 42, int),
    every=every,
    left_out=fields.left_out(HARMLESS),
    notes=(
      "There bf16 keeps all weights in bfloat16; here those that are trained"
      " are float32, and only the model computes in bfloat16.",
    )
    if is_bf16 and not is_lora
    else (),
  )


def _datasets(fields: carried_over.Fields) -> tuple[str, ...]:
  """Returns the names of the data sets; their own fields are checked."""
  names = []
  for i, given in enumerate(fields.take("datasets", [], list)):
    part = carried_over.Fields(f"{fields.path}: datasets[{i}]", dict(given))
    only = part.only
    only("type", ("stepwise_supervised",), "expected stepwise_supervised")
    carried_over.check_separator(part, part.take("step_separator", "\n"))
    carried_over.check_last_step_only(
      part, part.take("train_on_last_step_only", False, carried_over.boolean)
    )
    only("max_completion_length", (None, 0), "sequence_len alone cuts here")
    names.append(part.values.get("path", ""))
    part.left_out(DATASET_HARMLESS)
  return tuple(names)


def _warmup(fields: carried_over.Fields, kind: str) -> Callable[[int], int]:
  given = fields.take("warmup_steps", None, int)
  ratio = fields.take("warmup_ratio", None, float)

  def warmup(steps: int) -> int:
    if kind == "constant":
      return 0
    if given is not None:
      num = given
    elif ratio is not None:
      num = int(ratio * steps)
    else:
      num = min(int(0.03 * steps), 100)
    return 2 if num == 1 else num  # as there

  return warmup


def _logged(given: int | None) -> Callable[[int], int]:
  return lambda steps: given or max(min(int(0.005 * steps), 10), 1)


def _every(
  fields: carried_over.Fields, what: str, epochs: float
) -> Callable[[int], int]:
  """Returns how often to evaluate or save; by default after each epoch."""
  given = fields.take(f"{what}_steps", 0.0, float)
  an_epoch = fields.take(f"{what}s_per_epoch", 1.0, float) or 1.0

  def every(steps: int) -> int:
    share = given if 0 < given < 1 else 1 / (epochs * an_epoch)
    return int(given) if given >= 1 else max(1, math.ceil(share * steps))

  return every


def _lora(fields: carried_over.Fields) -> dict[str, Any]:
  take, only = fields.take, fields.only
  if "adapter" not in fields.values:
    fields.drop(LORA)
    return {}
  only("adapter", ("lora",), "plain LoRA alone is here")
  rank, alpha = take("lora_r", 0, int), take("lora_alpha", 0, float)
  if not rank or not alpha:
    raise fields.error("adapter=lora needs lora_r and lora_alpha")
  if take("lora_dropout", 0.0, float):
    raise fields.error("lora_dropout isn't 0: no adapter here has dropout")
  only("lora_modules_to_save", (None, ["score"]), "the head alone is trained")
  targets = take("lora_target_modules", [], lambda x: x)
  if take("lora_target_linear", False, carried_over.boolean):
    targets = "all-linear"
  return carried_over.adapters(fields, rank, alpha, targets)


if __name__ == "__main__":
  carried_over.main(__doc__, read)
