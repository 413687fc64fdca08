"""The memory of training a PRM from published weights, beside plain PyTorch.

  PRM_JAX_WEIGHTS=FOLDER python benchmarks/train_memory.py

FOLDER holds smollm2-135m, a Hugging Face folder. Both sides train all of its
parameters on rows of 4 x 512 tokens: float32 parameters and AdamW, matmuls in
bfloat16, no rematerialisation. They save parameters and optimizer, ours while
the next update runs. Each runs in a process of its own; the peak of its
resident memory (ru_maxrss) is printed, and the ratio. It needs torch and
transformers.
"""

import argparse
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ROWS, TOKENS = 4, 512


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--steps", type=int, default=4)
  parser.add_argument("--side", choices=("ours", "torch"))
  parser.add_argument("--trainable", default="all")
  parser.add_argument("--folder", type=pathlib.Path)
  args = parser.parse_args()
  if args.side == "ours":
    train_ours(args.folder, args.steps, args.trainable)
  elif args.side == "torch":
    train_torch(args.folder, args.steps)
  else:
    compare(args.steps, args.trainable)


def compare(steps: int, trainable: str) -> None:
  """Runs both sides and prints their peaks."""
  source = pathlib.Path(os.environ["PRM_JAX_WEIGHTS"]) / "smollm2-135m"
  with tempfile.TemporaryDirectory() as folder:
    base = pathlib.Path(folder) / "base"
    subprocess.run(
      [
        *(sys.executable, "-m", "prm_jax", "import"),
        *(f"--from={source}", f"--to={base}"),
      ],
      check=True,
      env=os.environ | dict(PYTHONPATH=str(ROOT)),
    )
    peaks = {
      side: peak_of(side, at, steps, trainable)
      for side, at in (("torch", source), ("ours", base))
    }
  for side, (peak, seconds) in peaks.items():
    print(f"{side}: {peak / 1e9:.2f} GB, {seconds:.0f} CPU seconds")
  print(f"ours / torch: {peaks['ours'][0] / peaks['torch'][0]:.2f}")


def peak_of(
  side: str, folder: pathlib.Path, steps: int, trainable: str
) -> tuple[int, float]:
  """Returns the peak in bytes and the CPU seconds of one side."""
  child = subprocess.Popen(
    [
      *(sys.executable, __file__, f"--side={side}", f"--folder={folder}"),
      *(f"--steps={steps}", f"--trainable={trainable}"),
    ]
  )
  _, status, usage = os.wait4(child.pid, 0)
  child.returncode = os.waitstatus_to_exitcode(status)
  if child.returncode:
    sys.exit(f"{side}: exit code {child.returncode}")
  return usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def say(text: str) -> None:
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(f"{time.process_time():6.1f} s, peak {peak / 1e9:.2f} GB: {text}")


def train_ours(base: pathlib.Path, steps: int, trainable: str) -> None:
  os.environ["JAX_PLATFORMS"] = "cpu"
  import prm_jax

  say("imported")
  draw = random.Random(0)
  solutions = [
    prm_jax.Solution(
      id=str(n),
      problem=f"What is {draw.random()} + {draw.random()}?",
      steps=tuple(
        " ".join(str(draw.random()) for _ in range(3)) for _ in range(6)
      ),
      labels=tuple(float(draw.random() < 0.8) for _ in range(6)),
    )
    for n in range(ROWS * 16)
  ]
  config = dict(
    program="prm",
    init_from=str(base),
    trainable=trainable,
    model=dict(compute_dtype="bfloat16", remat="none"),
    encoding=dict(template="token_classification", max_tokens=TOKENS),
    packing=dict(batch_size=ROWS, sequence_length=TOKENS, share_prefixes=False),
    optimizer=dict(peak_lr=1e-5),
    fit=dict(
      steps=steps,
      log_every=1,
      checkpoint_every=max(steps // 2, 1),
      tensorboard=False,
    ),
  )
  if trainable == "lora":
    config["model"]["lora_rank"] = 16
  prm_jax.train(config, solutions, base.parent / "run")
  say("trained and saved")


def train_torch(folder: pathlib.Path, steps: int) -> None:
  import torch
  import transformers

  say("imported")
  model = transformers.AutoModelForTokenClassification.from_pretrained(
    folder, num_labels=2, dtype=torch.float32
  ).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
  generator = torch.Generator().manual_seed(0)
  with tempfile.TemporaryDirectory() as place:
    for step in range(1, steps + 1):
      shape = (ROWS, TOKENS)
      ids = torch.randint(0, 40_000, shape, generator=generator)
      labels = torch.full(shape, -100)
      labels[:, ::40] = torch.randint(
        0, 2, labels[:, ::40].shape, generator=generator
      )
      with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=labels).loss
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
      if step % max(steps // 2, 1) == 0:
        state = (model.state_dict(), optimizer.state_dict())
        torch.save(state, pathlib.Path(place) / str(step))
  say("trained and saved")


if __name__ == "__main__":
  main()
