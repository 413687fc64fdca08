"""What the launch scripts are asked to print, for tests and golden files.

python tests/launch_cases.py writes the golden files again.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "launch"
GOLDEN = ROOT / "tests" / "golden" / "launch"

TRAIN = "-- prm-jax train --config=experiments/mine.py --workdir={workdir}"
LABEL = (
  "-- prm-jax label monte_carlo --policy=policy --input=solutions.jsonl"
  " --output={workdir}/{i}.jsonl --shard={i}/{n}"
)
SCORE = (
  "-- prm-jax score --checkpoint=prm --input=solutions.jsonl"
  " --output=scores/{i}.jsonl --shard={i}/{n}"
)
TPU = "tpu.sh run --run=golden --project=mine --zone=us-east5-b"
GKE = "gke.sh run --run=golden --image=us-docker.pkg.dev/mine/prm/prm-jax:1"
SLURM = "slurm.sh run --run=golden --workdir=/shared/runs/golden"

# One word with all that a shell must not expand.
HOSTILE = (
  'a\'b "c" $(touch pwned) $(WORKER) `touch pwned` $HOME \\n ; & | * {i} é\n#'
)

CASES: dict[str, list[str]] = {
  name: line.split()
  for name, line in dict(
    tpu_v6e=f"{TPU} --type=v6e-16 --bucket=mine --spot --copy=experiments"
    f" --setup=setup.sh --env-file=secrets.env --service-account=trainer@mine"
    f" {TRAIN}",
    tpu_v5e=f"{TPU} --type=v5e-256 --workdir=/mnt/runs/golden --wheel=none"
    f" --wait=6h {TRAIN}",
    tpu_v5p=f"{TPU} --type=v5p:2x2x1 --bucket=gs://mine {TRAIN}",
    tpu_label=f"{TPU} --type=v6e-16 --workdir=/mnt/labels --independent"
    f" {LABEL}",
    gke_v6e=f"{GKE} --accelerator=v6e --topology=4x4 --claim=runs --spot"
    f" --env-file=secrets.env {TRAIN}",
    gke_v5e=f"{GKE} --accelerator=v5e:2x4 --bucket=mine {TRAIN}",
    gke_v5p=f"{GKE} --accelerator=v5p --topology=2x2x4 --bucket=mine"
    f" --namespace=research --service-account=trainer {TRAIN}",
    gke_label=f"{GKE} --accelerator=v5e --topology=2x2 --claim=runs"
    f" --shards=8 {LABEL}",
    gke_xpk=f"{GKE.replace(' run ', ' xpk ')} --accelerator=v5p"
    f" --topology=4x4x4 --bucket=mine --cluster=mine --zone=us-east5-b"
    f" --env-file=secrets.env {TRAIN}",
    slurm_train=f"{SLURM} --nodes=2 --sbatch=--gpus-per-node=8"
    f" --setup=setup.sh --env-file=secrets.env {TRAIN}",
    slurm_label=f"{SLURM} --shards=1000 --time=4:00:00 {LABEL}",
    local_train=f"local.sh --processes=2 --devices=2 --workdir=runs/mine"
    f" --env-file=secrets.env {TRAIN}",
    local_score=f"local.sh --processes=2 --independent {SCORE}",
  ).items()
}
for name in ("tpu_v5p", "gke_v5e", "slurm_train", "local_train"):
  CASES[f"hostile_{name.partition('_')[0]}"] = [*CASES[name], HOSTILE]


def furnish(folder: pathlib.Path) -> None:
  """Writes the files that the cases name into a folder."""
  (folder / "experiments").mkdir()
  (folder / "experiments" / "mine.py").write_text("")
  (folder / "setup.sh").write_text("true\n")
  secrets = folder / "secrets.env"
  secrets.write_text("HF_TOKEN=canary-of-the-file\n")
  secrets.chmod(0o600)


def dry_run(name: str, folder: pathlib.Path) -> str:
  """Returns what a case prints in a furnished folder."""
  script, *arguments = CASES[name]
  mark = arguments.index("--")
  arguments.insert(mark, "--dry-run")
  done = subprocess.run(
    [SCRIPTS / script, *arguments],
    cwd=folder,
    env=dict(PATH=os.environ["PATH"], HF_TOKEN="canary-of-the-environment"),
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.replace(str(folder.resolve()), "$PWD")


def main() -> None:
  for name in CASES:
    with tempfile.TemporaryDirectory() as folder:
      furnish(pathlib.Path(folder))
      output = dry_run(name, pathlib.Path(folder))
    (GOLDEN / f"{name}.txt").write_text(output)
    sys.stdout.write(f"{GOLDEN / name}.txt\n")


if __name__ == "__main__":
  main()
