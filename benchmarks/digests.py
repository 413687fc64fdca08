"""Digests of what small runs of everything write, to compare two checkouts.

  python benchmarks/digests.py --output=before.json      # in one checkout
  python benchmarks/digests.py --against=before.json     # in the other

The same code on the same machine gives the same digests; a change of the code
that isn't to change numbers keeps them. Machines differ. Seconds, speeds,
paths and versions are excluded.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from prm_jax.cli import main as cli  # noqa: E402

EXPERIMENTS = ROOT / "experiments"
TINY_MODEL = [
  "model.d_model=32",
  "model.num_layers=1",
  "model.num_heads=2",
  "model.num_kv_heads=2",
  "model.head_dim=16",
  "model.d_ff=64",
]
TINY_DEMO = [
  "base_problems=2000",
  "annotated_problems=80",
  "train_problems=24",
  "train_samples=4",
  "train_temperatures=(1.0, 1.4)",
  "completions=4",
  "monte_carlo_solutions=30",
  "test_problems=12",
  "num_samples=8",
  "max_new_tokens=40",
  *(
    f"runs.{run}.{field}"
    for run in ("base", "policy", "prm", "prm_mc", "orm")
    for field in ("packing.batch_size=8", "fit.steps=5", *TINY_MODEL)
  ),
  "runs.base.fit.steps=250",
  "runs.base.packing.batch_size=32",
  "runs.policy.fit.steps=30",
]
DATA = {
  "data.exclude": "()",
  "packing.batch_size": "4",
  "packing.sequence_length": "128",
  "encoding.max_tokens": "96",
  "fit.steps": "5",
  "fit.log_every": "1",
  "fit.eval_every": "5",
  "fit.checkpoint_every": "5",
  **dict(x.split("=") for x in TINY_MODEL),
  "mesh": "(1, 1, 1)",
  "optimizer.peak_lr": "0.001",
  "optimizer.warmup_steps": "2",
}
# Runs that differ from experiments/prm800k_small.py: program, whether prefixes
# are shared, and the objective.
SUPERVISED: dict[str, tuple[str, bool, dict[str, Any]]] = {
  "prm_forest": ("prm", True, dict(loss="bce")),
  "prm_packed": ("prm", False, dict(loss="pqm", margin=4.0)),
  "prm_soft": (
    "prm",
    True,
    dict(loss="bce", error_weight=2.0, labels=dict(after_first_error="keep")),
  ),
  "orm": ("orm", False, dict(loss="bce", outcome_target="every_token")),
  "orm_pairs": (
    "orm",
    False,
    dict(loss="bradley_terry", margin=0.5, outcome_target="last_step"),
  ),
  "implicit": ("implicit", False, dict(loss="implicit_ce")),
  "sft": ("sft", True, {}),
}
CONFIG = """
import ml_collections
import prm800k_small

def get_config():
  c = prm800k_small.get_config()
  c.program = {program!r}
  c.packing.share_prefixes = {share_prefixes}
  c.objective = ml_collections.ConfigDict({objective})
  c.segmenter = ""
  return c
"""
RL = {
  "fit.steps": "5",
  "fit.eval_every": "5",
  "fit.checkpoint_every": "5",
  "problems.train": "arithmetic:train:40",
  "problems.evaluation": "arithmetic:validation:6",
  "problems.num_evaluation": "6",
  "rollout.problems": "4",
  "rollout.samples": "4",
  "rollout.max_tokens": "40",
  "rollout.slots": "8",
  "packing.batch_size": "4",
  "packing.sequence_length": "192",
}
REINFORCEMENT = {
  "rl_ppo": {"minibatches": "2", "epochs": "2"},
  "rl_reinforce": {
    "loss.kind": "reinforce",
    "credit.baseline": "moving",
    "credit.returns": "sum",
    "credit.shape": "clip_delta",
  },
  "rl_pure": {
    "credit.returns": "soft_min",
    "credit.baseline": "leave_one_out_token",
  },
  "rl_grpo": {
    "rewards.prm": "0.0",
    "rewards.verifier": "1.0",
    "credit.returns": "sum",
    "credit.baseline": "group",
    "loss.loss_aggregation": "solutions",
    "loss.kl_placement": "loss",
    "loss.kl_estimator": "k3",
  },
  "rl_gae": {
    "credit.returns": "sum",
    "credit.baseline": "gae",
    "loss.critic": "shared",
    "loss.kl_target": "0.01",
  },
  "rl_prime": {
    "rewards.prm": "0.0",
    "rewards.implicit": "1.0",
    "rewards.verifier": "1.0",
    "credit.returns": "sum",
    "credit.baseline": "prime",
    "packing.share_prefixes": "False",
  },
  "rl_imitate": {
    "loss.kind": "rejection_sampling",
    "credit.baseline": "none",
    "credit.returns": "sum",
    "rewards.prm": "0.0",
    "loss.kl_placement": "none",
    "loss.kl": "0.0",
    "loss.return_threshold": "-9",
    "rewards.exact": "1.0",
  },
}
# What two runs on the same machine may differ by.
VOLATILE = (
  "seconds",
  "peak_rss_gib",
  "run",
  "command",
  "versions",
  "machine",
  "checkpoint",
  "scores",
  "fingerprint",
)
# New name of a key of a record -> the name that the other checkout gives it.
RENAMED: dict[str, str] = {
  "all_steps_correct": "faithful",
  "max_log_ratio": "log_prob_drift",
  "old_policy_kl": "behaviour_kl",
  "selected": "kept",
  "solution_scores": "scores",
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path)
  parser.add_argument("--against", type=pathlib.Path)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    os.chdir(work)
    digests = run_all(work)
  text = json.dumps(digests, indent=1)
  if args.output is not None:
    args.output.write_text(text + "\n")
  if args.against is None:
    print(text)
    return
  before = json.loads(args.against.read_text())
  differ = [
    k for k in sorted({*before, *digests}) if before.get(k) != digests.get(k)
  ]
  for name in differ:
    print(f"{name}: {before.get(name)} before, {digests.get(name)} now")
  print(f"{len(digests) - len(differ)} of {len(digests)} digests are the same")
  sys.exit(bool(differ))


def run_all(work: pathlib.Path) -> dict[str, str]:
  """Returns the digests of everything that is run in a folder."""
  out: dict[str, str] = {}
  demo = pathlib.Path("runs/demo")
  command(
    "demo",
    f"--config={EXPERIMENTS / 'arithmetic.py'}",
    f"--workdir={demo}",
    *overrides(TINY_DEMO),
  )
  for name in ("problems", "solutions", "solutions_mc", "samples"):
    out[f"demo/{name}"] = lines(demo / f"{name}.jsonl")
  out["demo/results"] = record(demo / "results.json")
  for name in ("base", "policy", "prm", "prm_mc", "orm"):
    out |= run_digests(demo / name, f"demo/{name}")
  sys.path.insert(0, str(EXPERIMENTS))
  for name, (program, share_prefixes, objective) in SUPERVISED.items():
    folder = pathlib.Path("runs") / name
    config = pathlib.Path(f"{name}.py")
    config.write_text(
      CONFIG.format(
        program=program, share_prefixes=share_prefixes, objective=objective
      )
    )
    command(
      "train",
      f"--config={config}",
      f"--workdir={folder}",
      *overrides([f"{k}={v}" for k, v in DATA.items()]),
      f"--config.init_from={demo / 'base'}",
      f"--config.data.train=('jsonl:{demo / 'solutions.jsonl'}',)",
      f"--config.data.evaluation=('jsonl:{demo / 'solutions_mc.jsonl'}',)",
    )
    out |= run_digests(folder, name)
  for name, fields in REINFORCEMENT.items():
    folder = pathlib.Path("runs") / name
    command(
      "train",
      f"--config={EXPERIMENTS / 'rl_arithmetic.py'}",
      f"--workdir={folder}",
      *overrides([f"{k}={v}" for k, v in (RL | fields).items()]),
    )
    out |= run_digests(folder, name)
    for path in sorted(folder.glob("rollouts*/*.jsonl")):
      out[f"{name}/{path.name}"] = lines(path)
  problems = demo / "problems.jsonl"
  samples = demo / "samples.jsonl"
  policy = demo / "policy"
  drawn = f"--policy={policy}", "--max_tokens=40", "--batch=8"
  command(
    "sample",
    f"--checkpoint={policy}",
    f"--input={problems}",
    "--output=drawn.jsonl",
    "--n=3",
    "--max_tokens=40",
  )
  out["sample"] = lines("drawn.jsonl")
  command(
    "label",
    "monte_carlo",
    "--input=drawn.jsonl",
    "--output=mc.jsonl",
    "--completions=4",
    *drawn,
  )
  out["label/monte_carlo"] = lines("mc.jsonl")
  command(
    "label",
    "omega_prm",
    f"--input={problems}",
    "--output=omega.jsonl",
    "--completions=4",
    "--root_rollouts=8",
    "--searches=6",
    *drawn,
  )
  out["label/omega_prm"] = lines("omega.jsonl")
  command(
    "label",
    "judge",
    "--input=drawn.jsonl",
    "--output=judged.jsonl",
    "--template=processbench",
    *drawn,
  )
  out["label/judge"] = lines("judged.jsonl")
  for model in ("demo/prm", "prm_forest", "demo/orm", "implicit", "orm_pairs"):
    for layout in ("padded", "packed", "tree"):
      if layout == "tree" and model == "implicit":
        continue
      name = f"score/{model}/{layout}".replace("demo/", "")
      name = name.replace("tree", "forest")  # as db07544 calls it
      command(
        "score",
        f"--checkpoint=runs/{model}",
        f"--input={samples}",
        "--output=scores.jsonl",
        f"--layout={layout}",
      )
      out[name] = lines("scores.jsonl")
  command(
    "eval",
    "steps",
    "--checkpoint=runs/demo/prm",
    f"--input={samples}",
    "--output=steps.json",
    "--samples=steps.jsonl",
  )
  out["eval/steps"] = record("steps.json")
  command(
    "eval",
    "best_of_n",
    "--checkpoint=runs/demo/prm",
    f"--input={samples}",
    "--output=bon.json",
    "--samples=bon.jsonl",
  )
  out["eval/best_of_n"] = record("bon.json")
  return out


def overrides(fields) -> list[str]:
  return [f"--config.{field}" for field in fields]


def command(*arguments: str) -> None:
  """Runs a command of prm-jax in this process; its output is kept quiet."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
    code = cli.main(list(arguments))
  if code:
    sys.exit(
      f"{' '.join(arguments[:2])}: exit code {code}\n{output.getvalue()}"
    )


def run_digests(folder: pathlib.Path, name: str) -> dict[str, str]:
  """Returns the digests of a run's metrics and of its last save's leaves."""
  records = []
  for line in (folder / "metrics.jsonl").read_text().splitlines():
    records.append(
      {
        RENAMED.get(k, k): v
        for k, v in json.loads(line).items()
        if not k.endswith(("_s", "per_s", "crc32"))
      }
    )
  saves = folder / "checkpoints"
  last = max(int(x.name) for x in saves.iterdir() if x.name.isdigit())
  meta = json.loads((saves / str(last) / "meta" / "metadata").read_text())
  return {
    f"{name}/metrics": digest(records),
    f"{name}/state": digest(meta["fingerprints"]),
  }


def lines(path) -> str:
  """Returns the digest of a file of JSON Lines; keys in any order."""
  text = pathlib.Path(path).read_text()
  return digest([cleaned(json.loads(x)) for x in text.splitlines()])


def record(path) -> str:
  return digest(cleaned(json.loads(pathlib.Path(path).read_text())))


def cleaned(value):
  """Returns a record without what may differ, keys by their old names."""
  if isinstance(value, dict):
    return {
      RENAMED.get(k, k): cleaned(v)
      for k, v in value.items()
      if k not in VOLATILE or (k == "scores" and isinstance(v, dict))
    }
  if isinstance(value, list):
    return [cleaned(x) for x in value]
  return value


def digest(value) -> str:
  if not isinstance(value, bytes):
    value = json.dumps(value, sort_keys=True).encode()
  return hashlib.sha256(value).hexdigest()[:16]


if __name__ == "__main__":
  main()
