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
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "prm"
  c.seed = 0
  # Its model is this one's; give it on the command line.
  c.init_from = ""
  c.data = dict(
    train=("prm800k:phase1_train.jsonl.gz",),
    evaluation=("prm800k:phase1_test.jsonl.gz",),
    exclude=(),
    holdout=0.0,
    deduplicate=True,
  )
  c.tokenizer = dict(kind="file", vocab_size=0, model_type="bpe", path="")
  # What isn't named is as in init_from.
  c.model = dict(compute_dtype="bfloat16", remat="dots")
  c.encoding = dict(
    score_position="separator",
    max_tokens=4096,
    truncation="truncate",
    template="token_classification",
  )
  c.packing = dict(batch_size=16, sequence_length=4096, share_prefixes=True)
  c.objective = dict(
    loss="bce",
    error_weight=1.0,
    labels=dict(
      neutral="good",
      after_first_error="ignore",
      harden_above=ml_collections.config_dict.placeholder(float),
    ),
  )
  c.microbatches, c.eval_rows = 1, 256
  c.aggregate = "min"
  c.mesh = (1, -1, 1)
  c.trainable = "all"
  c.optimizer = dict(
    peak_lr=1e-5, warmup_steps=50, final_fraction=0.1, weight_decay=0.1
  )
  c.fit = dict(
    steps=1_000,
    log_every=20,
    eval_every=250,
    checkpoint_every=250,
    best_metric="loss_nats",
  )
  return c
