"""A PRM from Qwen2.5-Math-1.5B on PRM800K, the whole model trained.

Command:  prm-jax import --from=Qwen2.5-Math-1.5B --to=runs/base
          prm-jax train --config=experiments/prm800k_qwen2_5_math_1_5b.py
          --workdir=runs/prm800k_qwen2_5_math_1_5b --config.init_from=runs/base
Plan it:  prm-jax plan --config=experiments/prm800k_qwen2_5_math_1_5b.py
          --topology=v5e:4x4     (docs/plan.md)

Hardware, time and result: not run. No published weights and no accelerator
were at hand; what it needs is compiled ahead of time (docs/performance.md).

TRL's template, so that the export is an AutoModelForTokenClassification.

All but the model is as in prm800k_qwen2_5_math_7b.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(
    pathlib.Path(__file__).with_name("prm800k_qwen2_5_math_7b.py")
  )
  c.tokenizer.vocab_size = 151_936
  c.model.update(
    d_model=1536,
    num_layers=28,
    num_heads=12,
    num_kv_heads=2,
    d_ff=8960,
    qkv_bias=True,
    tie_embedding=True,
    remat="dots",
  )
  return c
