"""A published policy, tuned in its own template: sizes for one CPU.

Command:  prm-jax train --config=experiments/published_policy_small.py
          --workdir=runs/published/policy
          --config.init_from=runs/published/imported
Used by:  docs/policies.md; labelling_published.py ran it, see README.md.

The model is init_from's, imported with --role=policy. All that isn't named here
is as in prm800k_small.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(pathlib.Path(__file__).with_name("prm800k_small.py"))
  c.program = "sft"
  c.data.update(
    train=("jsonl:runs/published/taught.jsonl",),
    evaluation=(),
    exclude=(),
    holdout=0.05,
  )
  c.model = dict()
  c.encoding = dict(template="policy", max_tokens=96, truncation="drop")
  c.packing = dict(batch_size=32, sequence_length=96, share_prefixes=False)
  c.objective = dict()
  c.aggregate = "min"
  c.segmenter = ""
  c.optimizer.peak_lr = 2e-3
  c.fit.update(steps=600, log_every=100, eval_every=300, checkpoint_every=300)
  return c
