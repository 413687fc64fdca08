"""Sampling from published weights in bfloat16, beside transformers' `generate`.

  python benchmarks/real_sampling.py --weights=HF_FOLDER --checkpoint=IMPORTED \\
    --problems=problems.jsonl [--num=12 --max_tokens=64 --slots=12 --rounds=2]

Both sides get the same prompts (the ids of the checkpoint's template), the same
ids that end a text, no sampling, and one thread; they take turns, each in a
process of its own. A side says how many tokens it wrote, the CPU seconds of its
generation (programs compiled, weights loaded), and the most memory of its
process. Texts are compared up to the first difference, of which the peer says
how far apart it finds the two ids. `--num=1 --max_tokens=1` gives the time to a
first token: `start_cpu_s` is that of the whole process, from its start.
benchmarks/README.md says what each number means. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

import results

ONE_THREAD = dict(
  XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
  OMP_NUM_THREADS="1",
  TOKENIZERS_PARALLELISM="false",
)


def ours(args: argparse.Namespace) -> dict[str, Any]:
  """Returns what our engine writes, and what it took."""
  import jax

  from prm_jax import schema
  from prm_jax.policy import rollout_engine
  from prm_jax.policy import sampler
  from prm_jax.runtime import compilation_cache

  compilation_cache.enable()
  policy = sampler.load(args.checkpoint, compute_dtype=args.dtype)
  engine = rollout_engine.of(policy, slots=args.slots)
  requests = [
    rollout_engine.Request(str(i), policy.codec.prompt(start).tokens, 1)
    for i, start in enumerate(_starts(args, schema))
  ]
  sampling = sampler.Sampling(args.max_tokens, temperature=0.0)

  def run() -> list[list[int]]:
    rows, _ = engine.complete(requests, sampling, jax.random.key(0))
    return [row[0].tokens.tolist() for row in rows]

  texts, start_cpu_s, cpu_s = _timed(run, args.rounds)
  return dict(
    prompts=[list(map(int, r.prompt)) for r in requests],
    ends=list(engine.end_ids),
    ids=texts,
    start_cpu_s=start_cpu_s,
    cpu_s=cpu_s,
  )


def _timed(
  run: Callable[[], list[list[int]]], rounds: int
) -> tuple[list[list[int]], float, float]:
  """Returns the texts, the CPU seconds up to the first ones, and of a round.

  Without rounds, of the first one.
  """
  begun = time.process_time()
  texts = run()
  start_cpu_s = time.process_time()
  if not rounds:
    return texts, start_cpu_s, start_cpu_s - begun
  for _ in range(rounds):
    texts = run()
  return texts, start_cpu_s, (time.process_time() - start_cpu_s) / rounds


def _starts(args: argparse.Namespace, schema: Any) -> list[Any]:
  lines = args.problems.read_text().splitlines()[: args.num]
  return [
    schema.Solution(str(i), json.loads(line)["problem"], ())
    for i, line in enumerate(lines)
  ]


def peer(args: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
  """Returns what transformers writes for the same ids, and what it took."""
  import torch
  import transformers

  torch.set_num_threads(1)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    args.weights, dtype=getattr(torch, args.dtype)
  ).eval()
  # A user of transformers loads it, too.
  transformers.AutoTokenizer.from_pretrained(args.weights)
  prompts, ends = asked["prompts"], asked["ends"]

  def generate(rows: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, rows))
    padded = [[ends[0]] * (longest - len(r)) + r for r in rows]
    mask = [[0] * (longest - len(r)) + [1] * len(r) for r in rows]
    with torch.no_grad():
      out = model.generate(
        input_ids=torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        max_new_tokens=args.max_tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0],
      )
    written = []
    for ids in out[:, longest:].tolist():
      stops = [i for i, x in enumerate(ids) if x in ends]
      written.append(ids[: stops[0] + 1] if stops else ids)
    return written

  def run() -> list[list[int]]:
    step = args.slots
    return [
      ids
      for first in range(0, len(prompts), step)
      for ids in generate(prompts[first : first + step])
    ]

  texts, start_cpu_s, cpu_s = _timed(run, args.rounds)
  gaps = []
  for prompt, mine, other in zip(prompts, texts, asked["ids"], strict=True):
    same = [a == b for a, b in zip(mine, other)]
    if all(same):
      continue
    at = same.index(False)
    with torch.no_grad():
      logits = model(torch.tensor([prompt + mine[:at]])).logits[0, -1].float()
    gap = float((logits[mine[at]] - logits[other[at]]).abs())
    gaps.append(dict(token=at, gap_nats=round(gap, 4)))
  return dict(ids=texts, start_cpu_s=start_cpu_s, cpu_s=cpu_s, differ=gaps)


def _peak_gb() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _side(name: str, asked: dict[str, Any] | None) -> dict[str, Any]:
  """Returns what a process of one side says."""
  begun = time.perf_counter()
  process = subprocess.run(
    [sys.executable, *sys.argv, f"--side={name}"],
    input=json.dumps(asked),
    capture_output=True,
    env=os.environ | ONE_THREAD,
    text=True,
    check=False,
  )
  if process.returncode:
    sys.exit(process.stderr)
  said = json.loads(process.stdout.splitlines()[-1])
  return said | dict(wall_s=time.perf_counter() - begun)


def measure(args: argparse.Namespace) -> dict[str, Any]:
  """Returns both sides' numbers, and their ratios."""
  own = _side("ours", None)  # compiles, and again from what was kept
  own = _side("ours", None)
  other = _side("peer", own)
  numbers = {}
  for name, said in dict(ours=own, peer=other).items():
    tokens = sum(map(len, said["ids"]))
    numbers[name] = dict(
      tokens=tokens,
      tokens_per_cpu_s=round(tokens / said["cpu_s"], 1),
      start_cpu_s=round(said["start_cpu_s"], 1),
      process_wall_s=round(said["wall_s"], 1),
      peak_gb=round(said["peak_gb"], 2),
    )
  names = ("tokens_per_cpu_s", "start_cpu_s", "peak_gb")
  ratios = {
    f"ours_over_peer_{n}": round(numbers["ours"][n] / numbers["peer"][n], 2)
    for n in names
  }
  equal = sum(a == b for a, b in zip(own["ids"], other["ids"], strict=True))
  return numbers | ratios | dict(equal_texts=equal, differ=other["differ"])


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--weights", type=pathlib.Path, required=True)
  parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
  parser.add_argument("--problems", type=pathlib.Path, required=True)
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--dtype", default="bfloat16")
  parser.add_argument("--num", type=int, default=12, help="of problems")
  parser.add_argument("--max_tokens", type=int, default=64)
  parser.add_argument("--slots", type=int, default=12, help="and peer's batch")
  parser.add_argument("--rounds", type=int, default=1)
  parser.add_argument("--side", choices=("ours", "peer"), help="for itself")
  return parser


def main() -> None:
  args = arguments().parse_args()
  if args.side is None:
    result = results.provenance("real_sampling.py", args) | measure(args)
    print(json.dumps(result, indent=1))
    results.finish(result, args.output)
    return
  said = ours(args) if args.side == "ours" else peer(args, json.load(sys.stdin))
  print(json.dumps(said | dict(peak_gb=_peak_gb())))


if __name__ == "__main__":
  results.run(main)
