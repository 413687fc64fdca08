"""An update of reinforcement learning: time and tokens by phase, and its peak.

  python benchmarks/rl_step.py [--rounds=5] [--output=FILE]

A policy and a PRM of one shape with random weights: rollouts by the engine,
scores of their steps, the reference's log-probabilities, then PPO updates. The
update's FLOP/s next to those of a square matmul, alternating. Nothing is
compiled after the second rollout, or the run fails. benchmarks/README.md says
what each number means.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
from typing import Any

from flax.core import meta
import jax
from jax import monitoring
from jax import numpy as jnp
import numpy as np
import results

from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.rl import credit
from prm_jax.rl import experience
from prm_jax.rl import hacking_monitor
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rl_config as rl_config
from prm_jax.rl import rl_run as rl_run
from prm_jax.rl import rollout as rollout_lib
from prm_jax.rl import updates
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib

MATMUL = 2048
PHASES = ("rollout_s", "scoring_s", "reference_s", "credit_s", "update_s")


class Letters(tokenizer_lib.Bytes):
  """Writes a letter for any byte, so that random ids are a text as long."""

  def decode(self, ids: tokenizer_lib.Ids) -> str:
    return "".join(chr(97 + int(i) % 26) for i in ids if i < self.text_ids)


def make_model(args: argparse.Namespace) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    tokenizer_lib.Bytes().vocab_size,
    d_model=args.d_model,
    num_layers=args.num_layers,
    num_heads=args.d_model // 64,
    num_kv_heads=max(1, args.d_model // 256),
    head_dim=64,
    d_ff=args.d_model * 11 // 4,
    tie_embedding=True,
  )


def make_config(args: argparse.Namespace) -> rl_config.RLConfig:
  optimizer = optimizer_lib.OptimizerConfig(1e-5, weight_decay=0.0)
  return rl_config.RLConfig(
    seed=args.seed,
    init_from="-",
    rollout=rollout_lib.RolloutConfig(
      args.problems, args.samples, args.max_tokens, slots=args.slots
    ),
    rewards=rewards_lib.RewardConfig(prm=1.0),
    credit=credit.CreditConfig(returns="min_to_go"),
    loss=policy_losses.LossConfig(kl_placement="reward", kl=0.02),
    packing=batches.PackingConfig(
      args.rows, args.sequence_length, share_prefixes=True
    ),
    optimizer=optimizer,
    critic_optimizer=optimizer,
    implicit_optimizer=optimizer,
    fit=loop.FitConfig(1000),
    monitor=hacking_monitor.MonitorConfig(),
    prm="-",
  )


def initialised(model, heads, seed):
  return meta.unbox(transformer.init(jax.random.key(seed), model, heads))


def collector(args, config, model) -> experience.Collector:
  """Returns what makes rollouts, rewarded by a PRM of the policy's shape."""
  tokenizer = Letters()
  random = np.random.default_rng(args.seed)
  problems = [
    schema.Solution(
      str(i), bytes(random.integers(97, 123, n).tolist()).decode(), ()
    )
    for i, n in enumerate(
      random.integers(
        args.prompt_tokens // 2, args.prompt_tokens, 4 * args.problems
      )
    )
  ]
  prm = scorer_lib.Scorer(
    "prm",
    model,
    initialised(model, ("step",), args.seed + 1),
    tokenizer,
    encoding.EncodingConfig(max_tokens=args.sequence_length),
    batch_tokens=args.rows * args.sequence_length,
    # With bos, the separators around the problem and after the last step.
    sequence_length=args.prompt_tokens + args.max_tokens + 4,
  )
  verifier = rewards_lib.Verifier(
    verify=lambda solutions: [True] * len(solutions),
    find_answer=lambda solution: "",
  )
  return rl_run.make_collector(
    config,
    updates.Models(model, reference=model),
    codec=codecs.SeparatorCodec(tokenizer),
    problems=problems,
    functions=rewards_lib.RewardFunctions(verifier, prm=prm.score),
  )


def matmul_flops(
  model: model_config.ModelConfig, lengths: np.ndarray, tokens: int
) -> float:
  """Returns the FLOPs of an update's matmuls, forward and backward.

  A multiplication and its addition are two; a token looks at half its solution
  on average. lengths: of whole solutions. tokens: those that are computed,
  shared prompts once. The vocabulary's logits count; they are computed twice,
  which doesn't.
  """
  attention = 2 * model.num_layers * model.num_heads * model.head_dim
  keys = float((lengths.astype(np.float64) ** 2).sum() / lengths.sum() / 2)
  vocabulary = model.d_model * model.vocab_size
  per_token = model.body_parameters + attention * keys + vocabulary
  return 6.0 * tokens * per_token


def measure(args: argparse.Namespace) -> dict[str, Any]:
  model, config = make_model(args), make_config(args)
  collect = collector(args, config, model)
  program = rl_run.make_program(config, collect.models)
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  state = meta.unbox(jax.jit(program.init)(jax.random.key(args.seed)))
  policy = updates.policy_of(state.params)
  state.params[updates.REFERENCE] = jax.tree.map(jnp.copy, policy)
  step = jax.jit(program.step, donate_argnums=(0,))
  compiled = [0]

  def listen(event: str, duration: float, **_: Any) -> None:
    del duration
    compiled[0] += event.endswith("backend_compile_duration")

  monitoring.register_event_duration_secs_listener(listen)
  square = jnp.asarray(
    np.random.default_rng(0).random((MATMUL, MATMUL), np.float32)
  )
  product = jax.jit(jnp.matmul)
  facts: list[dict[str, float]] = []
  flops: list[float] = []
  costs: dict[str, list[timing.Cost]] = dict(matmul=[], update=[])
  before = 0
  for number in range(args.rounds + 2):
    rollout, collected = collect(state)
    rows = sharding.put_batch(rollout, mesh)

    def update(rows=rows):
      nonlocal state
      state, metrics = step(state, rows)
      jax.block_until_ready(metrics)

    turns = dict(
      matmul=lambda: product(square, square).block_until_ready(),
      update=update,
    )
    spent = timing.alternate(turns, 1)
    if number == 1:
      before = compiled[0]
    if number < 2:
      continue
    for name, cost in spent.items():
      costs[name] += cost
    collected["update_s"] = spent["update"][0].wall
    batch = rollout.batch
    used = loop.num_tokens(batch)
    collected["sequence_length"] = float(used)
    collected["fill"] = used / _tokens_in_use(batch, config)
    lengths = np.asarray(
      [collected["tokens"] + args.prompt_tokens * 0.75]
      * config.rollout.num_solutions
    )
    flops.append(matmul_flops(model, lengths, used))
    facts.append(collected)
  if compiled[0] != before:
    raise RuntimeError(
      f"{compiled[0] - before} programs were compiled after the second rollout"
    )
  peak = 2.0 * MATMUL**3
  shares = [
    timing.ratio([m], [u], work / peak)
    for m, u, work in zip(costs["matmul"], costs["update"], flops, strict=True)
  ]
  measured: dict[str, Any] = {
    f"{phase.removesuffix('_s')}, s": {
      "wall": timing.spread(x[phase] for x in facts),
      "cpu": timing.spread(x[phase] for x in facts),
    }
    for phase in PHASES
  }
  for name, amount, phase in (
    ("rollout tokens/s", "sampled_tokens", "rollout_s"),
    ("update tokens/s", "sequence_length", "update_s"),
  ):
    rates = [x[amount] / x[phase] for x in facts]
    measured[name] = dict(wall=timing.spread(rates), cpu=timing.spread(rates))
  measured["update, share of the matmul's FLOP/s"] = {
    clock: timing.spread(x[clock]["median"] for x in shares)
    for clock in timing.Cost._fields
  }
  mean = functools.partial(_mean, facts)
  counts = dict(
    policy=dict(parameters=model.body_parameters),
    rollout=dict(
      solutions=config.rollout.num_solutions,
      sampled=mean("sampled_tokens"),
      prefilled=mean("prefilled_tokens"),
      slot_use=mean("slot_use"),
    ),
    rows=dict(tokens=mean("sequence_length"), fill=mean("fill")),
    compiled=dict(after_the_second_rollout=compiled[0] - before),
  )
  return dict(model=vars(model), counts=counts, measured=measured)


def _tokens_in_use(batch, config: rl_config.RLConfig) -> int:
  """Returns the tokens of the microbatches that are computed at all."""
  in_use = (np.asarray(batch.parent) >= 0).any(1)
  shape = (config.packing.batch_size, config.minibatches, -1)
  used = in_use.reshape(shape).any(0)
  last = [int(np.flatnonzero(x)[-1]) + 1 if x.any() else 0 for x in used]
  return sum(last) * config.packing.batch_size * config.packing.sequence_length


def _mean(facts: list[dict[str, float]], name: str) -> float:
  return float(np.mean([x[name] for x in facts]))


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--problems", type=int, default=8)
  parser.add_argument("--samples", type=int, default=8)
  parser.add_argument("--prompt_tokens", type=int, default=64)
  parser.add_argument("--max_tokens", type=int, default=128)
  parser.add_argument("--slots", type=int, default=64)
  parser.add_argument("--rows", type=int, default=4)
  parser.add_argument("--sequence_length", type=int, default=512)
  parser.add_argument("--d_model", type=int, default=512)
  parser.add_argument("--num_layers", type=int, default=8)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--output", type=pathlib.Path)
  args = parser.parse_args()
  result = results.provenance("rl_step.py", args) | measure(args)
  print(results.show(result))
  results.finish(result, args.output)


if __name__ == "__main__":
  main()
