"""Does the way of bring_your_own.py work here, with this model and this data?

Command:  prm-jax import --from=Qwen2.5-Math-1.5B --to=runs/base
          prm-jax train --config=experiments/bring_your_own_small.py
          --workdir=runs/trial --config.init_from=runs/base

It is bring_your_own.py at sizes for one CPU: the head alone is trained, for 4
updates of a few short rows. Its scores say nothing about the model or the data.

Hardware, time and result: not run with a published model; none was at hand. A
test runs it with a tiny random checkpoint.
"""

import pathlib

import ml_collections

from prm_jax.runtime import config_files


def get_config() -> ml_collections.ConfigDict:
  c = config_files.read(pathlib.Path(__file__).with_name("bring_your_own.py"))
  c.model.update(compute_dtype="float32", remat="none")
  c.trainable = "head"
  c.encoding.max_tokens = 256
  c.packing.update(batch_size=8, sequence_length=256)
  c.eval_rows = 8
  # 1e-5 is for the whole model.
  c.optimizer.update(peak_lr=1e-3, warmup_steps=1)
  c.fit.update(steps=4, log_every=1, eval_every=4, checkpoint_every=4)
  return c
