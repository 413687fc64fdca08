"""A small policy from scratch on GSM8K's own solutions: something to sample.

Command:  PRM_JAX_DATA=... prm-jax train
          --config=experiments/gsm8k_policy_small.py --workdir=runs/gsm8k_policy
Used by:  experiments/labelling_gsm8k.py
Hardware, time and result: see experiments/README.md.

It learns the form of a solution, and hardly any arithmetic.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "sft"
  c.seed = 0
  c.init_from = ""
  c.data = dict(
    train=("gsm8k:gsm8k/train.jsonl.gz",),
    evaluation=(),
    exclude=("gsm8k:gsm8k/test.jsonl.gz",),
    holdout=0.05,
    deduplicate=True,
  )
  c.tokenizer = dict(
    kind="sentencepiece", vocab_size=2048, model_type="bpe", path=""
  )
  c.model = dict(
    d_model=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    d_ff=384,
    scan=False,
  )
  c.encoding = dict(
    score_position="last_token", max_tokens=512, truncation="drop"
  )
  c.packing = dict(batch_size=8, sequence_length=512, share_prefixes=False)
  c.objective = dict()
  c.microbatches, c.eval_rows = 1, 256
  c.aggregate = "min"
  c.mesh = (-1, 1, 1)
  c.trainable = "all"
  c.optimizer = dict(
    peak_lr=2e-3, warmup_steps=50, final_fraction=0.1, weight_decay=0.1
  )
  c.fit = dict(
    steps=800,
    log_every=50,
    eval_every=400,
    checkpoint_every=400,
    best_metric="loss_nats",
  )
  return c
