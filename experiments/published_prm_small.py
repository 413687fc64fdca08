"""A PRM in Qwen2.5-Math-PRM's form on Monte-Carlo labels: sizes for one CPU.

Command:  prm-jax train --config=experiments/published_prm_small.py
          --workdir=runs/published/prm --config.init_from=runs/published/policy
Used by:  docs/policies.md; labelling_published.py ran it, see README.md.

The trunk is the policy's that drew the labels. All that isn't named here is as
in published_policy_small.py.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(
    pathlib.Path(__file__).with_name("published_policy_small.py")
  )
  c.program = "prm"
  c.data.update(train=("jsonl:runs/published/labelled.jsonl",), holdout=0.1)
  # The head of Qwen2.5-Math-PRM: two layers, two classes.
  c.model = dict(step_head="mlp", step_classes=2)
  c.encoding = dict(template="qwen_prm", max_tokens=160, truncation="drop")
  c.packing.sequence_length = 160
  c.objective = dict(
    loss="bce",
    error_weight=1.0,
    labels=dict(
      neutral="good",
      # A value below 1/2 is no error.
      after_first_error="keep",
      harden_above=ml_collections.config_dict.placeholder(float),
    ),
  )
  c.aggregate = "product"
  c.segmenter = "paragraph"
  c.optimizer.peak_lr = 1e-3
  c.fit.update(steps=300, log_every=50, eval_every=150, checkpoint_every=150)
  return c
