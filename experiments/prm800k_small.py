"""Does the whole path run on real human labels?  A PRM on PRM800K.

Command:  PRM_JAX_DATA=... prm-jax train --config=experiments/prm800k_small.py
          --workdir=runs/prm800k_small
Evaluate: prm-jax eval steps --checkpoint=runs/prm800k_small --format=prm800k
          --input=prm800k/phase1_test.jsonl.gz --output=steps.json
          prm-jax eval processbench --checkpoint=runs/prm800k_small
          --input=gsm8k=processbench/gsm8k.json.gz
          --input=math=processbench/math.json.gz --output=processbench.json

Hardware: 2 cores of a shared x86-64 machine, busy with other work.
Time: 15 min for 500 updates (two epochs); evaluation 2 and 1 min.
Result (docs/results/prm800k_small.json; 95 % intervals in brackets):
                        step AUROC, phase-1 test  F1 gsm8k  F1 math
  this PRM, after 500   .620 [.584, .657]         24.7      26.1 [23.3, 28.8]
  step index            .601 [.555, .651]         11.1      13.4 [10.8, 15.6]
  step length           .601 [.566, .634]         36.2      26.9 [23.8, 29.7]
  everything is right   .500                       0.0       0.0
F1 is ProcessBench's, with each judge's threshold tuned on gsm8k (so its own
number there is in-sample). At 0.5 this PRM has 4.7 [1.0, 9.0] and
4.0 [2.0, 6.1]: it hardly ever calls a step wrong. Its loss on
phase-1 test is least after 250 updates; that step scores no better. It knows
how long wrong steps are and their positions, and no mathematics.

Phase 1 with all its rated alternatives as trees, and the phase-2 sample
without ProcessBench's problems. A decoder from scratch that fits two CPU
cores knows no mathematics: what counts is that the path is real and exact.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "prm"
  c.seed = 0
  c.init_from = ""
  c.data = dict(
    train=(
      "prm800k:prm800k/phase1_train.jsonl.gz",
      "prm800k:prm800k/phase2_sample.jsonl.gz",
    ),
    evaluation=("prm800k:prm800k/phase1_test.jsonl.gz",),
    exclude=(
      "processbench:processbench/math.json.gz",
      "processbench:processbench/gsm8k.json.gz",
      "prm800k:prm800k/phase1_test.jsonl.gz",
    ),
    holdout=0.0,
    deduplicate=True,
  )
  c.tokenizer = dict(
    kind="sentencepiece", vocab_size=4096, model_type="bpe", path=""
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
    score_position="last_token", max_tokens=2048, truncation="truncate"
  )
  c.packing = dict(batch_size=4, sequence_length=2048, share_prefixes=True)
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
  c.aggregate = "product"
  # How texts are cut into steps: 93 % of phase 1's solutions are cut as there.
  c.segmenter = "paragraph"
  c.mesh = (-1, 1, 1)
  c.trainable = "all"
  c.optimizer = dict(
    peak_lr=1e-3, warmup_steps=50, final_fraction=0.1, weight_decay=0.1
  )
  c.fit = dict(
    steps=500,
    log_every=50,
    eval_every=125,
    checkpoint_every=125,
    best_metric="loss_nats",
  )
  return c
