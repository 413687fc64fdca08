"""A tiny policy of arithmetic problems and what a run of it is made of."""

import functools
import pathlib

from flax.core import meta
import jax
import numpy as np

from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.records import jsonl
from prm_jax.rl import credit as credit_lib
from prm_jax.rl import hacking_monitor
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rl_config
from prm_jax.rl import rl_run_config
from prm_jax.rl import rollout as rollout_lib
from prm_jax.rl import tasks
from prm_jax.testbed import arithmetic
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import tokenizer_files
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer

TASK = arithmetic.Task(min_turns=2, max_turns=3)
MAX_TOKENS = 24
# A constant rate: updates are alike whatever the length of the run.
OPTIMIZER = optimizer.OptimizerConfig(
  5e-3, warmup_steps=0, final_fraction=1.0, weight_decay=0.0
)


@functools.cache
def tokenizer():
  random = np.random.default_rng(0)
  problems = arithmetic.problems(150, "train", TASK, random)
  solved = [arithmetic.solve(p, random) for p in problems]
  texts = [text for s in solved for text in (s.problem, *s.steps)]
  return tokenizer_files.train_sentencepiece(texts, 80, model_type="word")


def problems(split="train", num=12):
  random = np.random.default_rng(1)
  return arithmetic.problems(num, split, TASK, random)


def model(vocabulary=None, **fields):
  vocabulary = vocabulary or tokenizer()
  sizes = dict(d_model=16, num_layers=1, num_heads=2, num_kv_heads=1)
  sizes |= dict(head_dim=8, d_ff=24)
  return model_config.ModelConfig(vocabulary.vocab_size, **sizes | fields)


@functools.cache
def params(heads=("lm",), seed=0, **fields):
  """Returns parameters far enough from 0 that tokens differ in likelihood."""
  initial = meta.unbox(
    transformer.init(jax.random.key(seed), model(**fields), heads)
  )
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: np.asarray(x + 0.3 * random.normal(size=x.shape), np.float32),
    initial,
  )


def save(
  folder,
  program="sft",
  head="lm",
  vocabulary=None,
  seed=0,
  template=own_form.OWN,
  sampling=None,
  **fields,
):
  """Writes a checkpoint folder of random parameters."""
  folder, vocabulary = pathlib.Path(folder), vocabulary or tokenizer()
  folder.mkdir(parents=True, exist_ok=True)
  made = model(vocabulary, **fields)
  initial = meta.unbox(transformer.init(jax.random.key(seed), made, (head,)))
  random = np.random.default_rng(seed)
  initial = jax.tree.map(
    lambda x: np.asarray(x + 0.3 * random.normal(size=x.shape), np.float32),
    initial,
  )
  encoding_config = encoding_records.record_of(
    encoding.EncodingConfig(max_tokens=256, template=template)
  )
  model_json.write_description(
    folder,
    model_json.Description(
      *(program, made, encoding_config, vocabulary.save(folder)),
      sampling=sampling or {},
    ),
  )
  saves.save_params(folder, jax.tree.map(jax.numpy.asarray, initial))
  return str(folder)


def write_problems(folder):
  """Writes train.jsonl and test.jsonl; returns their sources."""
  folder = pathlib.Path(folder)
  for name, split in (("train", "train"), ("test", "test")):
    jsonl.write_problems(folder / f"{name}.jsonl", problems(split))
  return f"problems:{folder}/train.jsonl", f"problems:{folder}/test.jsonl"


def config(
  *,
  rewards=None,
  credit=None,
  loss=None,
  rollout=None,
  fit=None,
  monitor=None,
  **fields,
):
  """Returns a run of three updates of 4 problems x 2 samples."""
  sizes = dict(problems=4, samples=2, max_tokens=MAX_TOKENS, slots=8)
  steps = dict(steps=3, log_every=1, checkpoint_every=1, tensorboard=False)
  known = dict(
    seed=0,
    init_from="-",
    rollout=rollout_lib.RolloutConfig(**sizes | (rollout or {})),
    rewards=rewards_lib.RewardConfig(**rewards or dict(exact=1.0)),
    credit=credit_lib.CreditConfig(**credit or {}),
    loss=policy_losses.LossConfig(**loss or {}),
    packing=batches.PackingConfig(
      fields.pop("rows", 4),
      fields.pop("sequence_length", 64),
      fields.pop("share_prompts", True),
    ),
    optimizer=OPTIMIZER,
    critic_optimizer=OPTIMIZER,
    implicit_optimizer=OPTIMIZER,
    fit=loop.FitConfig(**steps | (fit or {})),
    monitor=hacking_monitor.MonitorConfig(**monitor or {}),
    mesh=(1, 1, 1),
  )
  return rl_config.RLConfig(**known | fields)


def train(run, workdir, sources, grader=tasks.ARITHMETIC):
  """Runs a config on the problems of two sources; returns the last state."""
  given = tasks.ProblemsConfig(*sources, 4, grader)
  return rl_run_config.Run(run, given).train(workdir)
