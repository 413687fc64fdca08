"""Does the whole path run on real outcomes?  An ORM on GSM8K solutions.

Command:  PRM_JAX_DATA=... prm-jax train --config=experiments/gsm8k_orm_small.py
          --workdir=runs/gsm8k_orm_small
Evaluate: prm-jax eval best_of_n --checkpoint=runs/gsm8k_orm_small
          --input=runs/gsm8k_orm_small/held_out.jsonl

Hardware: 2 cores of a shared x86-64 machine, partly busy with other work.
Time: 7 min for 600 updates (two epochs); evaluation 35 s.
Result (docs/results/gsm8k_orm_small.json), best of 8 on 148 held-out
questions, with 95 % intervals:
  this ORM                       93.2 [90.1, 95.8]
  source prior (reads nothing)   93.6 [90.4, 96.2]
  majority vote                  89.6 [85.4, 93.2]
  shortest solution              34.8 [29.7, 40.1]
  oracle                         97.4 [95.1, 99.2]
Ahead of the majority by 3.6 [1.2, 6.3] points, and not of the source prior:
it has learned to tell the better models' style, and no mathematics.

Real solutions of GSM8K questions by several models, right or wrong. A fifth
of the questions, chosen by a hash of the question, is held out, and written
to the workdir. Which model wrote a solution predicts much of its correctness:
compare with the source prior.

All that isn't named here is as in prm800k_small.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(pathlib.Path(__file__).with_name("prm800k_small.py"))
  c.program = "orm"
  c.data.update(
    train=("gsm8k_pool:best_of_n/gsm8k_pool_0000_0999.jsonl.gz",),
    evaluation=(),
    exclude=("processbench:processbench/gsm8k.json.gz",),
    holdout=0.2,
  )
  c.encoding.update(max_tokens=1024, truncation="drop")
  c.packing = dict(batch_size=8, sequence_length=1024, share_prefixes=False)
  c.objective = dict(loss="bce", outcome_target="every_token")
  c.aggregate = "last"
  c.segmenter = "line"
  c.fit.update(steps=600, eval_every=200, checkpoint_every=200)
  return c
