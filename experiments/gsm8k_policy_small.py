"""A small policy from scratch on GSM8K's own solutions: something to sample.

Command:  PRM_JAX_DATA=... prm-jax train
          --config=experiments/gsm8k_policy_small.py --workdir=runs/gsm8k_policy
Used by:  experiments/rl_gsm8k_small.py
Hardware, time and result: see experiments/README.md.

It learns the form of a solution, and hardly any arithmetic.

All that isn't named here is as in prm800k_small.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(pathlib.Path(__file__).with_name("prm800k_small.py"))
  c.program = "sft"
  c.data.update(
    train=("gsm8k:gsm8k/train.jsonl.gz",),
    evaluation=(),
    exclude=("gsm8k:gsm8k/test.jsonl.gz",),
    holdout=0.05,
  )
  c.tokenizer.vocab_size = 2048
  c.encoding.update(max_tokens=512, truncation="drop")
  c.packing = dict(batch_size=8, sequence_length=512, share_prefixes=False)
  c.objective = dict()
  c.aggregate = "min"
  c.segmenter = ""
  c.optimizer.peak_lr = 2e-3
  c.fit.update(steps=800, eval_every=400, checkpoint_every=400)
  return c
