"""Tokens per second of the demo's policy, sampled as the demo samples.

  python benchmarks/sample.py [--checkpoint=runs/demo/policy] [--output=FILE]

Many samples of each problem, one prefill a problem (policy/sampler.py).
Without a checkpoint the policy has the demo's shape and random weights: the same
work per token, but it hardly ever ends a solution, so that few wait for others and
tokens/s come out higher than a trained policy's. Nothing here asserts a time.
benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

from flax.core import meta
import jax
import results

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.device_check import timing
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.policy import sampler as sampler_lib
from prm_jax.runtime import config_files
from prm_jax.text import encoding
from prm_jax.training import programs

CONFIG = pathlib.Path(__file__).parent.parent / "experiments/arithmetic.py"


def make_inputs(
  args: argparse.Namespace,
) -> tuple[demo_run.DemoConfig, demo_run.Inputs]:
  """Returns the demo's config, its test problems and its tokenizer."""
  config = demo_run_config.from_config(config_files.load(args.config))
  # Only what the tokenizer learns from, and the problems to sample.
  small = dataclasses.replace(
    config,
    base_problems=min(2_000, config.base_problems),
    annotated_problems=1,
    train_problems=1,
    test_problems=args.problems,
  )
  return config, demo_run.draw_inputs(small, args.seed)


def make_policy(
  args: argparse.Namespace, config: demo_run.DemoConfig, inputs: demo_run.Inputs
) -> sampler_lib.Sampler:
  """Returns the policy of a checkpoint, or one of its shape with no training.

  Raises:
    InputError: the checkpoint can't be read, or holds no policy.
  """
  if args.checkpoint is None:
    model = model_config.ModelConfig(
      vocab_size=inputs.tokenizer.vocab_size, **config.runs["policy"].model
    )
    params = transformer.init(jax.random.key(args.seed), model, ("lm",))
    return sampler_lib.Sampler(model, meta.unbox(params), inputs.tokenizer)
  description = model_json.read_description(args.checkpoint)
  if description.program != "sft":
    raise errors.InputError(
      f"{args.checkpoint}: holds a {description.program} model, which doesn't"
      " write; give the folder of a policy (sft)"
    )
  return sampler_lib.Sampler(
    description.model,
    programs.load_params(args.checkpoint, description),
    model_json.read_tokenizer(args.checkpoint, description),
  )


def sampling(
  args: argparse.Namespace, config: demo_run.DemoConfig
) -> sampler_lib.Sampling:
  """Returns the demo's way of sampling, but for what the arguments say."""
  given = dict(temperature=args.temperature, top_p=args.top_p)
  own = dict(temperature=config.temperature, top_p=config.top_p)
  chosen = {name: x for name, x in given.items() if x is not None}
  return sampler_lib.Sampling(config.max_new_tokens, **own | chosen)


def measure(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the counts of a pass over all problems, and what it took."""
  config, inputs = make_inputs(args)
  policy = make_policy(args, config, inputs)
  prompts = [encoding.prompt(p.problem, policy.tokenizer) for p in inputs.test]
  settings = sampling(args, config)
  key = jax.random.key(args.seed)
  rows: list[list[sampler_lib.Completion]] = []

  def run() -> None:
    # The same key: every round samples the same tokens.
    rows[:] = policy.complete(prompts, args.samples, settings, key)

  run()  # compiles
  costs = timing.alternate(dict(sample=run), args.rounds)["sample"]
  completions = [completion for row in rows for completion in row]
  tokens = sum(len(completion.tokens) for completion in completions)
  counts = {
    "problems": len(prompts),
    "completions": len(completions),
    "generated tokens": tokens,
    "prefill tokens": sum(map(len, prompts)),
    "tokens a completion": tokens / len(completions),
    "ended by eos": sum(c.ended for c in completions) / len(completions),
    # A completion that has ended waits for the others of its batch.
    "of the token budget": tokens / (len(completions) * settings.max_tokens),
  }
  return dict(
    weights="random" if args.checkpoint is None else "checkpoint",
    model=vars(policy.config),
    sampling=vars(settings) | dict(batch_samples=policy.batch_samples),
    counts={"a pass": counts},
    measured={
      "generated tokens/s": timing.rate(tokens, costs),
      "completions/s": timing.rate(len(completions), costs),
      "s": timing.seconds(costs),
    },
  )


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--checkpoint", type=pathlib.Path, help="a policy's")
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--config", default=CONFIG, help="the demo's")
  parser.add_argument("--problems", type=int, default=64)
  parser.add_argument("--samples", type=int, default=64, help="of each problem")
  parser.add_argument(
    "--temperature", type=float, help="the config's by default"
  )
  parser.add_argument("--top_p", type=float, help="the config's by default")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--seed", type=int, default=0)
  return parser


def main() -> None:
  parser = arguments()
  args = parser.parse_args()
  for name in ("problems", "samples", "rounds"):
    if getattr(args, name) < 1:
      parser.error(f"--{name}: give 1 or more")
  result = results.provenance("sample.py", args) | measure(args)
  print(results.show(result))
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
