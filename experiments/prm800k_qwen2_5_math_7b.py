"""A PRM from Qwen2.5-Math-7B on PRM800K, the whole model trained.

Command:  prm-jax import --from=Qwen2.5-Math-7B --to=runs/base
          prm-jax train --config=experiments/prm800k_qwen2_5_math_7b.py
          --workdir=runs/prm800k_qwen2_5_math_7b --config.init_from=runs/base
Plan it:  prm-jax plan --config=experiments/prm800k_qwen2_5_math_7b.py
          --topology=v5e:4x4     (docs/plan.md)

Hardware, time and result: not run. No published weights and no accelerator
were at hand; what it needs is compiled ahead of time (docs/performance.md).

TRL's template, so that the export is an AutoModelForTokenClassification.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "prm"
  c.seed = 0
  # On the command line. Without it the decoder would begin as it is drawn.
  c.init_from = ""
  c.data = dict(
    train=("prm800k:phase1_train.jsonl.gz", "prm800k:phase2_train.jsonl.gz"),
    evaluation=("prm800k:phase2_test.jsonl.gz",),
    exclude=(
      "prm800k:phase2_test.jsonl.gz",
      "processbench:processbench/math.json.gz",
      "processbench:processbench/gsm8k.json.gz",
    ),
    holdout=0.0,
    deduplicate=True,
  )
  # The words are init_from's; the size is what `plan` takes without it.
  c.tokenizer = dict(kind="file", vocab_size=152_064, model_type="bpe", path="")
  # The sizes are init_from's, too, and what isn't named is as there.
  c.model = dict(
    d_model=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    d_ff=18944,
    qkv_bias=True,
    tie_embedding=False,
    compute_dtype="bfloat16",
    remat="full",
    attention="tree",
  )
  c.encoding = dict(
    score_position="separator",
    max_tokens=4096,
    truncation="truncate",
    template="token_classification",
  )
  # A row holds some 15 solutions of PRM800K, more where they share prefixes.
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
  c.segmenter = "paragraph"
  c.mesh = (1, -1, 1)
  c.trainable = "all"
  # After TRL's PRM example and PURE: 1e-5 for the whole model.
  c.optimizer = dict(
    peak_lr=1e-5, warmup_steps=50, final_fraction=0.1, weight_decay=0.1
  )
  c.fit = dict(
    steps=2_000,
    log_every=20,
    eval_every=250,
    checkpoint_every=250,
    best_metric="loss_nats",
  )
  return c
