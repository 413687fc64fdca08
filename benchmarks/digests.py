"""Digests of what small runs of everything write, to compare two checkouts.

  python benchmarks/digests.py --output=before.json      # in one checkout
  python benchmarks/digests.py --against=before.json     # in the other

The same code on the same machine gives the same digests; a change of the code
that isn't to change numbers keeps them. Machines differ. Seconds, speeds,
paths and versions are excluded. One run takes some minutes.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
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
DEMO = pathlib.Path("runs/demo")
POLICY = DEMO / "policy"
PROBLEMS = DEMO / "problems.jsonl"
SAMPLES = DEMO / "samples.jsonl"
# The tokenizer of a model that starts from nothing.
SENTENCES = ("tokenizer.kind=sentencepiece", "tokenizer.vocab_size=400")
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


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path)
  parser.add_argument("--against", type=pathlib.Path)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    digests = run_all()
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


def run_all() -> dict[str, str]:
  """Returns the digests of everything that is run in the current folder."""
  out: dict[str, str] = {}
  for part in (
    demo,
    supervised,
    reinforcement,
    labels,
    scores,
    searches,
    data,
    exchange,
  ):
    out |= part()
  return out


def demo() -> dict[str, str]:
  command(
    "demo",
    f"--config={EXPERIMENTS / 'arithmetic.py'}",
    f"--workdir={DEMO}",
    *overrides(TINY_DEMO),
  )
  out = {
    f"demo/{name}": lines(DEMO / f"{name}.jsonl")
    for name in ("problems", "solutions", "solutions_mc", "samples")
  }
  out["demo/results"] = record(DEMO / "results.json")
  for name in ("base", "policy", "prm", "prm_mc", "orm"):
    out |= run_digests(DEMO / name, f"demo/{name}")
  return out


def supervised() -> dict[str, str]:
  """Trains each program; one of them also with adapters, and one in two parts."""
  out: dict[str, str] = {}
  sys.path.insert(0, str(EXPERIMENTS))
  for name, (program, share_prefixes, objective) in SUPERVISED.items():
    pathlib.Path(f"{name}.py").write_text(
      CONFIG.format(
        program=program, share_prefixes=share_prefixes, objective=objective
      )
    )
    out |= trained(name, f"{name}.py")
  out |= trained(
    "prm_lora", "prm_forest.py", "model.lora_rank=4", "trainable=lora"
  )
  # Without its last save a run goes on from the one before.
  out |= trained("resumed", "prm_packed.py", "fit.steps=10")
  shutil.rmtree("runs/resumed/checkpoints/10")
  again = trained("resumed", "prm_packed.py", "fit.steps=10")
  return out | {f"{name}/again": value for name, value in again.items()}


def trained(
  name: str, config: str, *more: str, base: str = f"{DEMO}/base"
) -> dict[str, str]:
  """Returns the digests of a run of small sizes, by default from a base."""
  folder = pathlib.Path("runs") / name
  command(
    "train",
    f"--config={config}",
    f"--workdir={folder}",
    *overrides([f"{k}={v}" for k, v in DATA.items()]),
    *overrides(more),
    f"--config.init_from={base}",
    f"--config.data.train=('jsonl:{DEMO / 'solutions.jsonl'}',)",
    f"--config.data.evaluation=('jsonl:{DEMO / 'solutions_mc.jsonl'}',)",
  )
  return run_digests(folder, name)


def reinforcement() -> dict[str, str]:
  out: dict[str, str] = {}
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
  return out


def labels() -> dict[str, str]:
  """Samples, and labels what was sampled in each way."""
  command(
    "sample",
    f"--checkpoint={POLICY}",
    f"--input={PROBLEMS}",
    "--output=drawn.jsonl",
    "--n=3",
    "--max_tokens=40",
  )
  out = {"sample": lines("drawn.jsonl")}
  drawn = f"--policy={POLICY}", "--max_tokens=40", "--batch=8"
  kinds = dict(
    monte_carlo=["--input=drawn.jsonl", "--completions=4", *drawn],
    omega_prm=[
      f"--input={PROBLEMS}",
      "--completions=4",
      "--root_rollouts=8",
      "--searches=6",
      *drawn,
    ],
    judge=["--input=drawn.jsonl", "--template=processbench", *drawn],
    consensus=[
      "--input=monte_carlo.jsonl",
      "--input=hard.jsonl",
      "--above_a=0",
      "--above_b=0.5",
    ],
    select=["--input=drawn.jsonl", "--checkpoint=runs/demo/prm", "--budget=12"],
  )
  command(
    *("label", "monte_carlo", *kinds["monte_carlo"]),
    *("--output=hard.jsonl", "--hard", "--stop_early", "--seed=1"),
  )
  out["label/monte_carlo/hard"] = lines("hard.jsonl")
  for kind, options in kinds.items():
    command("label", kind, f"--output={kind}.jsonl", *options)
    out[f"label/{kind}"] = lines(f"{kind}.jsonl")
  return out


def scores() -> dict[str, str]:
  out: dict[str, str] = {}
  for model in ("demo/prm", "prm_forest", "demo/orm", "implicit", "orm_pairs"):
    for layout in ("padded", "packed", "tree"):
      if layout == "tree" and model == "implicit":
        continue
      command(
        "score",
        f"--checkpoint=runs/{model}",
        f"--input={SAMPLES}",
        "--output=scores.jsonl",
        f"--layout={layout}",
      )
      out[f"score/{model}/{layout}"] = lines("scores.jsonl")
  for kind in ("steps", "best_of_n"):
    command(
      *("eval", kind, "--checkpoint=runs/demo/prm", f"--input={SAMPLES}"),
      *(f"--output=eval_{kind}.json", f"--samples=eval_{kind}.jsonl"),
    )
    out[f"eval/{kind}"] = record(f"eval_{kind}.json")
    out[f"eval/{kind}/samples"] = lines(f"eval_{kind}.jsonl")
  return out


def searches() -> dict[str, str]:
  """Searches by three rules; answers only what passes a chosen threshold."""
  out: dict[str, str] = {}
  given = (
    f"--policy={POLICY}",
    "--scorer=runs/demo/prm",
    f"--input={PROBLEMS}",
    "--max_tokens=40",
    "--batch=4",
  )
  for rule, options in dict(
    best_of_n=["--num=6"],
    beam=["--keep=2", "--expand=2", "--max_steps=6"],
    mcts=["--simulations=3", "--expand=2", "--max_steps=6"],
  ).items():
    path = f"{rule}.jsonl"
    command("search", rule, *given, *options, f"--output={path}")
    out[f"search/{rule}"] = lines(path)
  command(
    "search",
    "compare",
    "--input=best_of_n.jsonl",
    "--input=beam.jsonl",
    "--output=compared.json",
  )
  out["search/compare"] = record("compared.json")
  command(
    *(
      "verify",
      "choose",
      "--input=best_of_n.jsonl",
      "--precision=0.05",
      "--attempts=4",
    ),
    *("--confidence=0.5", "--output=threshold.json"),
  )
  out["verify/choose"] = record("threshold.json")
  command(
    *("verify", "run", *given, "--threshold=0.4", "--attempts=3"),
    "--output=verified.jsonl",
  )
  out["verify/run"] = lines("verified.jsonl")
  return out


def data() -> dict[str, str]:
  """Converts labelled solutions, and evaluates scores that are on file."""
  out: dict[str, str] = {}
  for name in ("stepwise", "processbench"):
    command(
      *("data", "convert", "hard.jsonl", f"--to={name}", "--fill", "--skip"),
      f"--output={name}.json",
    )
    out[f"convert/{name}"] = digest(pathlib.Path(f"{name}.json").read_bytes())
  command(
    "score",
    "--checkpoint=runs/demo/prm",
    "--format=processbench",
    "--input=processbench.json",
    "--output=processbench_scores.jsonl",
  )
  command(
    *("eval", "processbench", "--input=gsm8k=processbench.json"),
    *("--scores=processbench_scores.jsonl", "--output=processbench_f1.json"),
  )
  out["eval/processbench"] = record("processbench_f1.json")
  return out


def exchange() -> dict[str, str]:
  """Exports a reward model of a published form, and imports it again."""
  form = "model.scale_embedding=False"
  out = trained("published", "prm_packed.py", form, *SENTENCES, base="")
  command("export", "--checkpoint=runs/published", "--to=exported")
  command("import", "--from=exported", "--to=imported")
  command(
    *("score", "--checkpoint=imported", f"--input={SAMPLES}"),
    "--output=scores.jsonl",
  )
  weights = pathlib.Path("exported/model.safetensors").read_bytes()
  return out | {"export": digest(weights), "import": lines("scores.jsonl")}


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
        # A loss is named by its unit, or not: this is of numbers.
        k.replace("loss_nats", "loss"): v
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
  """Returns a record without what may differ."""
  if isinstance(value, dict):
    return {
      k: cleaned(v)
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
