"""The demo's config: what `prm-jax demo` runs if no other one is given.

Everything is trained from scratch on the embedded arithmetic testbed. The
reward models are the base model with one more layer on top: its features at
the sign "=" predict the result, and a layer above them can compare.
"""

import dataclasses

import ml_collections

from prm_jax.testbed import arithmetic

ROW_TOKENS = 64
LAYERS = 2


def objective(program: str, monte_carlo: bool = False) -> dict:
  """Returns the fields of a program's objective, the demo's own."""
  if program == "prm":
    labels = dict(
      neutral="good",
      # A Monte-Carlo value below 1/2 is no error; after a value of 0 there are
      # no labels anyway.
      after_first_error="keep" if monte_carlo else "ignore",
      harden_above=ml_collections.config_dict.placeholder(float),
    )
    return dict(loss="bce", error_weight=1.0, labels=labels)
  if program == "orm":
    return dict(loss="bce", outcome_target="last_step")
  return {}


def training(
  program: str,
  steps: int,
  peak_lr: float,
  monte_carlo: bool = False,
  **fields,
) -> ml_collections.ConfigDict:
  """Returns the fields of one training run (training.train_config.TrainConfig)."""
  c = ml_collections.ConfigDict()
  c.program = program
  c.seed = 0
  c.model = dict(
    d_model=64,
    num_layers=LAYERS if program == "sft" else LAYERS + 2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    d_ff=192,
    rope_theta=100.0,
    scale_embedding=True,
    scan=False,
  )
  c.encoding = dict(
    score_position="last_token", max_tokens=ROW_TOKENS, truncation="drop"
  )
  c.packing = dict(
    batch_size=64, sequence_length=ROW_TOKENS, share_prefixes=False
  )
  c.objective = objective(program, monte_carlo)
  c.microbatches, c.eval_rows = 1, 256
  # Of the steps' scores an ORM learns the last alone.
  c.aggregate = "last" if program == "orm" else "min"
  if program != "sft":
    # How score_text and the server cut a text. Sampled solutions are no text.
    c.segmenter = "line"
  c.mesh = (-1, 1, 1)
  c.optimizer = dict(
    peak_lr=peak_lr,
    warmup_steps=50,
    final_fraction=0.05,
    weight_decay=0.01,
    beta2=0.98,
    clip_norm=1.0,
  )
  c.fit = dict(
    steps=steps, log_every=100, checkpoint_every=200, tensorboard=False
  )
  c.update(fields)
  return c


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.task = dataclasses.asdict(arithmetic.Task())
  c.vocabulary = 64
  c.base_problems = 20_000
  c.annotated_problems = 3_000
  c.train_problems = 6_000
  # Solutions of each training problem, as many at each temperature: the hot
  # ones show errors that the others hardly hold.
  c.train_samples = 4
  c.train_temperatures = (1.0, 1.4)
  # Rollouts cost most: the Monte-Carlo PRM learns from the first of them.
  c.monte_carlo_solutions = 8_000
  c.completions = 4
  # Of rollouts and test samples. top_p holds for all samples: without it the
  # best of 256 is the best of the errors that no reward model has seen.
  c.temperature = 1.0
  c.top_p = 0.95
  c.test_split = "test"
  c.test_problems = 200
  c.num_samples = 256
  c.max_new_tokens = 52
  # What ranks samples in the comparison; better than "last" for the ORM, too
  # (experiments/README.md).
  c.aggregate = "min"
  c.runs = dict(
    base=training("sft", steps=400, peak_lr=3e-3),
    policy=training("sft", steps=200, peak_lr=1e-3),
    prm=training("prm", steps=800, peak_lr=1e-3),
    prm_mc=training("prm", steps=800, peak_lr=1e-3, monte_carlo=True),
    orm=training("orm", steps=800, peak_lr=1e-3),
  )
  return c
