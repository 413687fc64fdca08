"""Can a published model and a published dataset become a PRM that others load?

Command:  prm-jax import --from=Qwen2.5-Math-1.5B --to=runs/base
          prm-jax train --config=experiments/bring_your_own.py
          --workdir=runs/prm --config.init_from=runs/base
The whole way, from import to export: docs/bring_your_own.md.

Hardware, time and result: not run with a published model; none was at hand. A
test takes the same way with a tiny random checkpoint.

TRL's template, so that the export is an AutoModelForTokenClassification that is
read as TRL trains them. Hyperparameters after TRL's PRM example and PURE
(learning rate 1e-5 for the whole model); rows of 4,096 tokens.

All that isn't named here is as in prm800k_qwen2_5_math_7b.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(
    pathlib.Path(__file__).with_name("prm800k_qwen2_5_math_7b.py")
  )
  # Its model is this one's; give it on the command line.
  c.init_from = ""
  c.data.update(
    train=("prm800k:phase1_train.jsonl.gz",),
    evaluation=("prm800k:phase1_test.jsonl.gz",),
    exclude=(),
  )
  c.tokenizer.vocab_size = 0
  # What isn't named is as in init_from.
  c.model = dict(compute_dtype="bfloat16", remat="dots")
  c.fit.steps = 1_000
  return c
