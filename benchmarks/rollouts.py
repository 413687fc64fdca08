"""The rollout engine: slot use, tokens per second, and what prefills it saves.

  python benchmarks/rollouts.py [--suite=lengths|imported|stops] [--output=FILE]

`lengths`: completions of lognormal length, by the engine, by batches that wait
for their longest, and by transformers' `generate` with the same weights if
torch is installed. `imported`: the same by the engine and by `generate` on a
Qwen2 folder that both read, with prompts of mixed lengths; needs torch.
`stops`: what looking for a step's end costs, by the clock and by XLA's count of
a published model's step. Nothing here asserts a time.
benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import functools
import importlib.util
import pathlib
import tempfile
from typing import Any

from flax.core import meta
import jax
import numpy as np
import results
import transformers_generate

from prm_jax import huggingface
from prm_jax.device_check import model_checks
from prm_jax.device_check import timing
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import engine_programs
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.text import segmenters
from prm_jax.text import step_automaton
from prm_jax.text import token_bytes
from prm_jax.text import tokenizer as tokenizer_lib

# The shape of Qwen2.5-0.5B, as its config.json has it.
QWEN = model_config.ModelConfig(
  vocab_size=151_936,
  d_model=896,
  num_layers=24,
  num_heads=14,
  num_kv_heads=2,
  head_dim=64,
  d_ff=4_864,
  qkv_bias=True,
  compute_dtype="bfloat16",
)
STOP = "\n\nProblem:"


def make_model(
  args: argparse.Namespace,
) -> tuple[model_config.ModelConfig, Any]:
  """Returns a Llama of the wanted size with random weights."""
  heads = max(2, args.d_model // 64)
  model = model_config.ModelConfig(
    vocab_size=256,
    d_model=args.d_model,
    num_layers=args.num_layers,
    num_heads=heads,
    num_kv_heads=max(2, heads // 4),
    head_dim=64,
    d_ff=args.d_model * 8 // 3 // 16 * 16,
  )
  params = transformer.init(jax.random.key(args.seed), model, ("lm",))
  return model, meta.unbox(params)


def draw_lengths(args: argparse.Namespace) -> np.ndarray:
  """Returns lognormal lengths of the wanted mean and coefficient of variation.

  The budget of 4 means cuts about one in two thousand at a cv of 0.5.
  """
  variance = np.log1p(args.cv**2)
  drawn = np.random.default_rng(args.seed).lognormal(
    np.log(args.mean_tokens) - variance / 2,
    np.sqrt(variance),
    args.completions,
  )
  return np.clip(drawn, 1, 4 * args.mean_tokens).astype(int)


def make_requests(
  args: argparse.Namespace, wanted: Sequence[int]
) -> list[rollout_engine.Request]:
  """Returns requests of one completion of each wanted length."""
  random = np.random.default_rng(args.seed)
  prompts = random.integers(0, 256, (args.completions, args.prompt_tokens))
  return [
    rollout_engine.Request(str(i), prompt, 1, int(n))
    for i, (prompt, n) in enumerate(zip(prompts, wanted, strict=True))
  ]


def lengths(args: argparse.Namespace) -> dict[str, Any]:
  """Returns slot use and tokens/s of each way to draw the same lengths."""
  model, params = make_model(args)
  wanted = draw_lengths(args)
  requests = make_requests(args, wanted)
  prompts = np.stack([r.prompt for r in requests])
  budget = sampler.Sampling(4 * args.mean_tokens)
  key = jax.random.key(args.seed)
  endless = model_checks.Endless(model.vocab_size)
  engine = rollout_engine.Engine(
    model, params, endless, slots=args.slots, chunk=args.chunk
  )
  did: list[rollout_engine.Work] = []

  def by_engine() -> None:
    did[:] = [engine.complete(requests, budget, key)[1]]

  batches = [
    range(i, min(i + args.slots, args.completions))
    for i in range(0, args.completions, args.slots)
  ]

  def by_batches() -> None:
    for batch in batches:
      longest = int(wanted[list(batch)].max())
      sampling = sampler.Sampling(-(-longest // 32) * 32)
      decoded = sampler.decode(
        params,
        prompts[list(batch)].astype(np.int32),
        np.full(len(batch), args.prompt_tokens, np.int32),
        jax.random.split(key, (len(batch), 1)),
        config=model,
        sampling=sampling,
        ends=(endless.eos,),
      )
      jax.block_until_ready(decoded)

  ways: dict[str, Any] = {"engine": by_engine, "batches": by_batches}
  if importlib.util.find_spec("transformers") and args.transformers:
    with tempfile.TemporaryDirectory() as folder:
      tensors = huggingface.export_tensors("llama", model, params)
      huggingface.save(folder, "llama", model, tensors, dtype="float32")
      peer = transformers_generate.load(folder)
    ways["transformers"] = transformers_generate.sampling(
      peer, prompts, wanted, batches, args.seed
    )
  tokens = int(wanted.sum())
  measured = _rates(ways, tokens, args.rounds)
  assert did[0].decoded == tokens
  counts = {
    "completions": args.completions,
    "tokens": tokens,
    "longest": int(wanted.max()),
    "slot use": did[0].slot_use,
    "slot use of batches": tokens
    / sum(len(b) * int(wanted[list(b)].max()) for b in batches),
  }
  return dict(model=vars(model), counts={"lengths": counts}, measured=measured)


def _rates(
  ways: dict[str, Callable[[], Any]], tokens: int, rounds: int
) -> dict[str, Any]:
  """Returns tokens/s of each way, and the engine's over each other's."""
  for run in ways.values():
    run()  # compiles
  costs = timing.alternate(ways, rounds)
  rates = {
    f"{name}, tokens/s": timing.rate(tokens, costs[name]) for name in ways
  }
  ratios = {
    f"engine / {name}": timing.ratio(costs[name], costs["engine"])
    for name in ways
    if name != "engine"
  }
  return rates | ratios


def imported(args: argparse.Namespace) -> dict[str, Any]:
  """Returns tokens/s of the engine and of `generate` on one Qwen2 folder."""
  heads = max(2, args.d_model // 64)
  shape = model_config.ModelConfig(
    vocab_size=args.published_vocabulary,
    d_model=args.d_model,
    num_layers=args.num_layers,
    num_heads=heads,
    num_kv_heads=max(2, heads // 4),
    head_dim=64,
    d_ff=args.d_model * 3,
    qkv_bias=True,
  )
  made = meta.unbox(transformer.init(jax.random.key(args.seed), shape, ("lm",)))
  random = np.random.default_rng(args.seed)
  wanted = draw_lengths(args)
  sizes = random.integers(8, 2 * args.prompt_tokens, args.completions)
  prompts = [random.integers(0, shape.vocab_size, size) for size in sizes]
  key = jax.random.key(args.seed)
  with tempfile.TemporaryDirectory() as folder:
    tensors = huggingface.export_tensors("qwen2", shape, made)
    huggingface.save(folder, "qwen2", shape, tensors, dtype="float32")
    config = huggingface.read_config(pathlib.Path(folder))
    opened = huggingface.open_tensors(pathlib.Path(folder))
    params, _ = huggingface.load_params(opened, config.family, config.model)
    peer = transformers_generate.load(folder)
  engine = rollout_engine.Engine(
    *(config.model, params, model_checks.Endless(shape.vocab_size)),
    slots=args.slots,
    chunk=args.chunk,
  )
  requests = [
    rollout_engine.Request(str(i), prompt, 1, int(n))
    for i, (prompt, n) in enumerate(zip(prompts, wanted, strict=True))
  ]
  budget = sampler.Sampling(4 * args.mean_tokens)
  did: list[rollout_engine.Work] = []

  def by_engine() -> None:
    did[:] = [engine.complete(requests, budget, key)[1]]

  ways: dict[str, Any] = dict(engine=by_engine)
  # The order of the requests, and by the length of the prompt: less padding.
  order = np.argsort(sizes, kind="stable").tolist()
  for name, rows in (("in order", range(len(prompts))), ("by prompt", order)):
    for size in args.peer_batches:
      batches = [rows[i : i + size] for i in range(0, len(prompts), size)]
      ways[f"generate, {size} {name}"] = transformers_generate.sampling(
        peer, prompts, wanted, batches, args.seed
      )
  tokens = int(wanted.sum())
  measured = _rates(ways, tokens, args.rounds)
  assert did[0].decoded == tokens
  counts = {
    "completions": args.completions,
    "tokens": tokens,
    "prompt tokens": int(sizes.sum()),
    "longest": int(wanted.max()),
    "slot use": did[0].slot_use,
  }
  return dict(
    model=vars(config.model), counts={"imported": counts}, measured=measured
  )


def stops(args: argparse.Namespace) -> dict[str, Any]:
  """Returns what looking for a step's end and a stop text costs.

  The table's events are left out, so that both ways draw the same tokens.
  """
  model, params = make_model(args)
  wanted = draw_lengths(args)
  requests = make_requests(args, wanted)
  tokens = token_bytes.token_bytes(tokenizer_lib.Bytes())
  found = step_automaton.make(tokens, segmenters.PARAGRAPH, [STOP])
  EVENTS = step_automaton.EVENTS
  blind = dataclasses.replace(found, table=found.table // EVENTS * EVENTS)
  plain = rollout_engine.Engine(
    model,
    params,
    model_checks.Endless(model.vocab_size),
    slots=args.slots,
    chunk=args.chunk,
  )
  engines = dict(plain=plain, stops=dataclasses.replace(plain, stops=blind))
  budget = sampler.Sampling(4 * args.mean_tokens)
  key = jax.random.key(args.seed)

  def run(engine: rollout_engine.Engine) -> None:
    _, work = engine.complete(requests, budget, key)
    assert work.decoded == int(wanted.sum())

  ways = {name: functools.partial(run, x) for name, x in engines.items()}
  for way in ways.values():
    way()  # compiles
  costs = timing.alternate(ways, args.rounds)
  counts = {
    "stops": dict(
      states=len(found.table), completions=len(wanted), tokens=int(wanted.sum())
    ),
    "step of Qwen2.5-0.5B": step_costs(QWEN, args.slots, found.table),
  }
  tokens_drawn = int(wanted.sum())
  measured = {
    f"{name}, tokens/s": timing.rate(tokens_drawn, costs[name]) for name in ways
  }
  measured["stops / plain, time"] = timing.ratio(costs["stops"], costs["plain"])
  return dict(model=vars(model), counts=counts, measured=measured)


def step_costs(
  model: model_config.ModelConfig, slots: int, stops: np.ndarray
) -> dict[str, float]:
  """Returns what XLA counts of a step of decoding, and of the look-up in it.

  XLA counts a loop's body once, and the whole table as read.
  """
  table = step_automaton.Table(
    jax.ShapeDtypeStruct(stops.shape, stops.dtype),
    jax.ShapeDtypeStruct((model.vocab_size,), np.uint16),
  )
  plain, looking = (
    lowered_step(model, slots, x).compile().cost_analysis()
    for x in (None, table)
  )
  out = {}
  for name, key in (("FLOPs", "flops"), ("bytes", "bytes accessed")):
    out[name] = int(plain[key])
    out[f"{name} of the look-up"] = int(looking[key] - plain[key])
  return out


def lowered_step(
  model: model_config.ModelConfig,
  slots: int,
  stops: step_automaton.Table | None,
) -> jax.stages.Lowered:
  """Returns `decode_chunk` for single completions, not compiled."""
  width = 256
  params, caches, key = jax.eval_shape(
    lambda: (
      transformer.for_decoding(
        model, meta.unbox(transformer.init(jax.random.key(0), model, ("lm",)))
      ),
      engine_programs.empty_caches(
        model,
        model.compute_dtype,
        groups=slots,
        slots=1,
        buffers=1,
        prompt_tokens=width,
        page_tokens=16,
      ),
      jax.random.key(0),
    )
  )
  zeros = np.zeros((slots, 1), np.int32)
  state = engine_programs.Slots(*[zeros] * len(engine_programs.Slots._fields))
  return engine_programs.decode_chunk.lower(
    params,
    caches,
    state._replace(
      running=zeros > 0, rng_words=np.zeros((slots, 1, 3), np.uint32)
    ),
    engine_programs.Pages(zeros[:, 0], zeros[:, 0]),
    key,
    stops,
    config=model,
    sampling=sampler.Sampling(width),
    ends=(0,),
    width=width,
    chunk=8,
  )


SUITES = dict(lengths=lengths, imported=imported, stops=stops)


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--suite", choices=SUITES, help="all by default")
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--seed", type=int, default=0)
  lengths_of = parser.add_argument_group("lengths, imported and stops")
  add = lengths_of.add_argument
  add("--d_model", type=int, default=128, help="a multiple of 64")
  add("--num_layers", type=int, default=2)
  add("--slots", type=int, default=64)
  add("--chunk", type=int, default=8)
  add("--completions", type=int, default=768)
  add("--prompt_tokens", type=int, default=64)
  add("--mean_tokens", type=int, default=64)
  add("--cv", type=float, default=0.5, help="standard deviation / mean")
  add("--rounds", type=int, default=3)
  add("--transformers", action=argparse.BooleanOptionalAction, default=True)
  add = parser.add_argument_group("imported").add_argument
  add("--published_vocabulary", type=int, default=8_192)
  add("--peer_batches", type=int, nargs="+", default=[64])
  return parser


def main() -> None:
  args = arguments().parse_args()
  names = [args.suite] if args.suite else list(SUITES)
  if not args.suite and not importlib.util.find_spec("transformers"):
    names.remove("imported")
  result = results.provenance("rollouts.py", args)
  for name in names:
    measured = SUITES[name](args)
    print(f"{name}\n{results.show(measured)}")
    result[name] = measured
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
