"""Scores and rollouts of published shapes: how fast."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import schema
from prm_jax.checkpoints import held
from prm_jax.device_check import check_results
from prm_jax.device_check import machine
from prm_jax.device_check import model_checks
from prm_jax.device_check import shapes
from prm_jax.device_check import speed
from prm_jax.device_check import timing
from prm_jax.device_check import update_checks
from prm_jax.device_check import workloads
from prm_jax.models import model_config
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import own_form

SLOTS = (64, 16, 256)
_PROMPT_TOKENS = 128


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns what is measured of scoring and sampling."""
  quick = setting.mode == "quick"
  runs = {
    f"score.{name}.{layout}": functools.partial(_score, name, layout)
    for name in shapes.of(setting)
    for layout in (("tree",) if quick else reversed(scorer.LAYOUTS))
  }
  policy = shapes.of(setting)[0]
  runs |= {
    f"rollouts.{policy}.slots_{slots}{suffix}": functools.partial(
      _roll_out, policy, slots, top_p
    )
    for slots in (SLOTS[1:2] if setting.small else SLOTS)
    for top_p, suffix in ((1.0, ""), (0.95, ".top_p"))
    if not (quick and suffix)
  }
  return [
    check_results.Check(f"speed.{name}", run, required=False, stage="inference")
    for name, run in runs.items()
  ]


@functools.lru_cache(maxsize=1)
def _loaded(
  name: str, head: str, memory: int | None
) -> tuple[model_config.ModelConfig, Any]:
  """Returns a shape and random bfloat16 parameters of it, on the device.

  Raises:
    NotRun: They leave less than a quarter of the memory to what is computed.
  """
  model = shapes.SHAPES[name]
  if memory is not None and 2 * shapes.num_parameters(model) > 0.75 * memory:
    raise check_results.NotRun("doesn't fit")
  leaves = jax.eval_shape(lambda: model_checks.random_params(model, (head,)))
  # Leaf by leaf: as float32 all of them might not fit. Values don't matter.
  params = jax.tree.map(lambda leaf: _noise(leaf.shape), leaves)
  if head == "lm":
    params = held.own_arrays(params)
  return model, jax.block_until_ready(params)


@functools.partial(jax.jit, static_argnums=0)
def _noise(shape: tuple[int, ...]) -> jax.Array:
  return 0.02 * jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)


# --- Scores -----------------------------------------------------------------


def _score(
  name: str, layout: str, setting: check_results.Setting
) -> check_results.Measured:
  """Returns the FLOP/s of scoring, over those of a matmul, as they count.

  What solutions need in that layout: no padding, and of keys those that are
  seen. The text is encoded and rows are laid out in the time that counts.
  """
  model, params = _loaded(name, "step", setting.memory)
  T = shapes.row_tokens(name)
  count = 12 if setting.small else 512
  solutions = workloads.solutions("solutions", count, longest=T // 2)
  encoding_config = encoding.EncodingConfig(max_tokens=T, template=own_form.OWN)
  tokenizer = model_checks.Endless(model.vocab_size - 2)
  made = scorer.Scorer(
    "prm",
    model,
    params,
    tokenizer,
    encoding_config,
    batch_tokens=4 * T if setting.small else 16 * T,
    sequence_length=0 if layout == "padded" else T,
    layout=layout,
  )
  run = functools.partial(made.score, solutions)
  run()
  costs = timing.alternate(dict(run=run), 1 if setting.small else 3)["run"]
  tokens, pairs = _needed(
    solutions,
    tokenizer,
    encoding_config,
    T,
    "tree" if layout == "tree" else "packed",
  )
  flops = update_checks.matmul_flops(model, tokens, pairs / tokens) / 3
  share = timing.rate(flops / speed.matmul_peak(setting), costs)["wall"]
  rate = timing.rate(len(solutions), costs)["wall"]
  return check_results.Measured(
    share["median"],
    "of matmul",
    speed.goal(f"speed.score.{name}.{layout}", setting),
    at_least=True,
    note=f"{rate['median']:,.1f} solutions/s of {tokens / len(solutions):.0f}"
    f" tokens computed each",
    details=dict(share=share, solutions_per_s=rate, tokens=tokens),
  )


def _needed(
  solutions: list[schema.Solution],
  tokenizer: Any,
  encoding_config: encoding.EncodingConfig,
  sequence_length: int,
  layout: str,
) -> tuple[int, float]:
  """Returns the tokens that are computed, and the keys that they see in all."""
  examples = []
  for s in solutions:
    encoded = encoding.encode_solution(s, tokenizer, encoding_config)
    assert encoded is not None
    examples.append(workloads.unlabelled(encoded.tokens, s.problem))
  batch = workloads.place(examples, sequence_length, layout).batch
  index = np.arange(batch.tokens.shape[1])
  used = (batch.parent >= 0) | (batch.visible_until > index + 1)
  return int(used.sum()), float(((batch.visible_until - index) * used).sum())


# --- Rollouts ---------------------------------------------------------------


def _roll_out(
  name: str, slots: int, top_p: float, setting: check_results.Setting
) -> check_results.Measured:
  """Returns tokens per second of the rollout engine.

  Twice as many completions as slots, all of one length, so that slots are full
  but for the chunk in which they change. The bound of a step is the time to
  read all parameters and the keys and values of all slots once.
  """
  model, params = _loaded(name, "lm", setting.memory)
  new, prompt = (32, 32) if setting.small else (128, _PROMPT_TOKENS)
  engine = rollout_engine.Engine(
    model,
    params,
    model_checks.Endless(model.vocab_size),
    slots=slots,
    reserve=True,
  )
  rng = np.random.default_rng(0)
  requests = [
    rollout_engine.Request(str(i), rng.integers(0, model.vocab_size, prompt), 8)
    for i in range(max(1, 2 * slots // 8))
  ]
  sampling = sampler.Sampling(new, top_p=top_p)
  run = functools.partial(
    engine.complete, requests, sampling, jax.random.key(0)
  )
  _, work = run()
  costs = timing.alternate(dict(run=run), 1 if setting.small else 2)["run"]
  rate = timing.rate(work.decoded, costs)["wall"]
  bandwidth = 1e9 * machine.known(
    "machine.memory_bandwidth", machine.bandwidth, setting
  )
  channels = model.num_kv_heads * model.head_dim
  cache = 2 * 2 * model.num_layers * channels * (prompt + new / 2)
  step_bytes = 2 * shapes.num_parameters(model) + slots * cache
  bound = slots * bandwidth / step_bytes
  return check_results.Measured(
    rate["median"],
    "tokens/s",
    note=f"{rate['median'] / bound:.2f} of what memory bandwidth allows; slot"
    f" use {work.slot_use:.2f}",
    details=dict(
      tokens_per_s=rate, bound_tokens_per_s=bound, slot_use=work.slot_use
    ),
  )
