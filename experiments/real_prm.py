"""Does a published base, trained on human step labels, become a PRM?

Command:  prm-jax import --from=SmolLM2-135M-Instruct --to=runs/bases/smol
          prm-jax import --from=Qwen2.5-Coder-0.5B-Instruct --to=runs/bases/qwen
          PRM_JAX_DATA=... python experiments/real_prm.py
          [--bases=runs/bases] [--arms=smol/whole,...] [--seeds=0,1,2]
          [--results=runs/real_prm] [--workdir=runs/real_prm_work]
          python experiments/real_prm_results.py --results=runs/real_prm
Rules, hardware, time and result: see experiments/README.md.

An arm is a base and what of it is trained. Its rate is the one with which seed
0 does best on held-out problems of the training data; the other seeds train
with it. Each run scores all test data, once with the question and once without.
It writes its own files when it ends, and what is there is not run again. Several
processes may run at a time, each with --arms of its own.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import gzip
import json
import logging
import pathlib
import shutil
import time
from typing import Any

from flax import traverse_util
import jax
import ml_collections
import numpy as np

from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.evaluation import step_metrics
from prm_jax.records import sources as sources_lib
from prm_jax.rows import encoded_cache
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.training import train_config as train_config_lib
from prm_jax.training import train_run
from prm_jax.training import train_run_config
from prm_jax.training import trainable as trainable_lib

TRAIN = (
  "prm800k:prm800k/phase1_train.jsonl.gz",
  "prm800k:prm800k/phase2_sample.jsonl.gz",
)
# What the scores are tested on; no problem of these is trained on.
TESTS = dict(
  phase1_test="prm800k:prm800k/phase1_test.jsonl.gz",
  gsm8k="processbench:processbench/gsm8k.json.gz",
  math="processbench:processbench/math.json.gz",
)
HELD_OUT = "held_out"
NO_QUESTION = "/no_question"


@dataclasses.dataclass(frozen=True)
class Arm:
  """What is trained, from which base.

  Args:
    base: The name of the base's folder.
    trainable: As training.train_config.TrainConfig has it.
    rates: The peak learning rates that are tried.
    updates: The length of a run. An epoch has some 250.
    pretrained: Whether the base's weights are taken, or only its shape.
    remat: See ModelConfig; it changes memory alone.
  """

  base: str
  trainable: str
  rates: tuple[float, ...]
  updates: int = 500
  pretrained: bool = True
  remat: str = "none"


ARMS = {
  "smol/whole": Arm("smol", "all", (1e-4, 3e-4)),
  "smol/random": Arm("smol", "all", (1e-4, 3e-4), pretrained=False),
  "qwen/whole": Arm("qwen", "all", (3e-5, 1e-4), updates=250, remat="full"),
  "qwen/lora": Arm("qwen", "lora", (3e-4, 1e-3), updates=250),
}


@dataclasses.dataclass(frozen=True)
class Run:
  """One training run.

  Args:
    arm: The name of the arm.
    rate: The peak learning rate.
    seed: The seed of the head, the adapters and the order.
  """

  arm: str
  rate: float
  seed: int

  @property
  def name(self) -> str:
    return f"{self.arm.replace('/', '-')}-{self.rate:g}-{self.seed}"


def get_config() -> ml_collections.ConfigDict:
  """Returns the training config that all arms share."""
  c = config_files.read(pathlib.Path(__file__).with_name("bring_your_own.py"))
  c.data.update(
    train=TRAIN,
    evaluation=(),
    exclude=tuple(TESTS.values()),
    holdout=0.1,
    deduplicate=True,
  )
  c.model = dict(compute_dtype="bfloat16")
  c.encoding.update(max_tokens=4096, truncation="drop")
  c.packing.update(batch_size=2, sequence_length=4096)
  c.optimizer.update(warmup_steps=30, weight_decay=0.01)
  del c.fit["best_metric"]
  c.fit.update(
    log_every=20, eval_every=0, checkpoint_every=0, tensorboard=False
  )
  return c


# Of adapters: few enough parameters to be published beside this project.
LORA = dict(lora_rank=4, lora_alpha=8.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
  """Solutions by what they are for, each set in the order of its file."""

  train: Sequence[schema.Solution]
  tests: Mapping[str, Sequence[schema.Solution]]

  def all_tests(self) -> dict[str, Sequence[schema.Solution]]:
    """Returns the tests, and those of TESTS without their questions."""
    blind = {
      name + NO_QUESTION: list(map(without_question, self.tests[name]))
      for name in TESTS
    }
    return dict(self.tests) | blind


def read_data(c: ml_collections.ConfigDict) -> Data:
  corpus = sources_lib.load(train_run_config.sources_of(c.data))
  tests = {HELD_OUT: list(corpus.held_out)}
  for name, source in TESTS.items():
    tests[name] = sources_lib.read_sources([source])
  return Data(list(corpus.train), tests)


def without_question(solution: schema.Solution) -> schema.Solution:
  """Returns a solution of which a model reads the steps alone."""
  return dataclasses.replace(solution, problem="")


def labels_of(
  solutions: Sequence[schema.Solution],
) -> list[list[float | None]]:
  """Returns the targets of training: neutral is good, none after an error."""
  policy = encoding.LabelPolicy()
  return [encoding.step_labels(s, policy) for s in solutions]


def train_config(
  c: ml_collections.ConfigDict,
  arm: Arm,
  rate: float,
  seed: int,
  base: pathlib.Path,
) -> train_config_lib.TrainConfig:
  """Returns the config of an arm's run."""
  config = c.copy_and_resolve_references()
  config.init_from, config.seed = str(base), seed
  config.trainable, config.model.remat = arm.trainable, arm.remat
  if arm.trainable == "lora":
    config.model.update(LORA)
  config.optimizer.peak_lr = rate
  config.fit.steps = arm.updates
  return train_run_config.from_config(
    train_run_config.supervised(verbs.Config(config))
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Bench:
  """What all runs of one process share."""

  config: ml_collections.ConfigDict
  data: Data
  bases: pathlib.Path
  results: pathlib.Path
  workdir: pathlib.Path

  def point(self, run: Run) -> dict[str, Any]:
    """Returns what a run measured; runs it if it isn't there."""
    path = self.results / f"{run.name}.json"
    if not path.exists():
      files.write_json(path, self._measured(run))
    return files.read_json(path)

  def _measured(self, run: Run) -> dict[str, Any]:
    arm = ARMS[run.arm]
    base = self.bases / arm.base
    config = train_config(self.config, arm, run.rate, run.seed, base)
    workdir = self.workdir / run.name
    shutil.rmtree(workdir, ignore_errors=True)
    done = train_and_score(
      config,
      self.data.train,
      self.data.all_tests(),
      base,
      workdir,
      pretrained=arm.pretrained,
      scored_length=config.packing.sequence_length,
    )
    shutil.rmtree(workdir)
    done.write_scores(self.results / f"{run.name}.scores.json.gz")
    if arm.trainable != "all":
      done.write_trained(self.results / f"{run.name}.trained.npz", config)
    held_out = self.data.tests[HELD_OUT]
    return dict(
      dataclasses.asdict(run),
      solutions=len(self.data.train),
      held_out=measured(done.logits[HELD_OUT], held_out),
      training=done.log,
      seconds=done.seconds,
      device=jax.devices()[0].device_kind,
      versions=environment.describe(self.config)["versions"],
      command=environment.command(),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
  """A trained model, and what it makes of the tests.

  Args:
    model: Its config.
    params: Its parameters.
    log: The metrics of its training.
    logits: Of each test the log-odds of every solution's steps.
    seconds: What training and scoring took, and both in CPU seconds.
  """

  model: Any
  params: Any
  log: Sequence[Mapping[str, Any]]
  logits: Mapping[str, Sequence[np.ndarray]]
  seconds: Mapping[str, float]

  def write_scores(self, path: pathlib.Path) -> None:
    rounded = {
      name: [np.round(x.astype(np.float64), 5).tolist() for x in logits]
      for name, logits in self.logits.items()
    }
    path.write_bytes(gzip.compress(json.dumps(rounded).encode(), mtime=0))

  def write_trained(
    self, path: pathlib.Path, config: train_config_lib.TrainConfig
  ) -> None:
    """Writes the trained parameters alone: the head, and adapters."""
    trains = train_config_lib.make_program(config, self.model).trains
    trained, _ = trainable_lib.split(self.params, trains)
    kept = {
      name: np.asarray(x)
      for name, x in traverse_util.flatten_dict(trained, sep="/").items()
    }
    np.savez(path, **kept)


def train_and_score(
  config: train_config_lib.TrainConfig,
  train: Sequence[schema.Solution],
  tests: Mapping[str, Sequence[schema.Solution]],
  base: pathlib.Path,
  workdir: pathlib.Path,
  *,
  pretrained: bool = True,
  scored_length: int,
) -> Trained:
  """Trains a PRM on a base and scores tests.

  Args:
    config: The run's config.
    train: The solutions to train on.
    tests: The solutions to score, by name.
    base: The folder of the imported base.
    workdir: Where checkpoints and metrics go.
    pretrained: Whether the base's weights are taken, or only its shape.
    scored_length: The length in tokens of the rows that are scored.
  """
  described = model_json.read_description(base)
  tokenizer = model_json.read_tokenizer(base, described)
  started, cpu_s = time.perf_counter(), time.process_time()
  init = train_run.read_init(config, base) if pretrained else None
  model, params = train_run.train(
    config,
    train,
    tokenizer,
    workdir,
    init_from=init,
    donate=True,
    vocab_size=described.model.vocab_size,
    cache=encoded_cache.opened(),
  )
  trained = time.perf_counter()
  scorer = scorer_lib.Scorer(
    *("prm", model, params, tokenizer),
    encoding.with_template(config.encoding, tokenizer),
    layout="tree",
    sequence_length=scored_length,
  )
  logits = {
    name: [np.asarray(x.logits) for x in scorer.score(solutions)]
    for name, solutions in tests.items()
  }
  seconds = dict(
    train=trained - started,
    score=time.perf_counter() - trained,
    cpu=time.process_time() - cpu_s,
  )
  log = (workdir / "metrics.jsonl").read_text().splitlines()
  return Trained(
    *(model, params, list(map(json.loads, log)), logits),
    {name: round(x, 1) for name, x in seconds.items()},
  )


def labelled(
  rows: Sequence[np.ndarray], solutions: Sequence[schema.Solution]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what each step with a label has, and its label.

  Args:
    rows: An entry for each step of each solution: a number, or several.
    solutions: The solutions.
  """
  pairs = [
    (x, y)
    for xs, ys in zip(rows, labels_of(solutions), strict=True)
    for x, y in zip(xs, ys, strict=True)
    if y is not None
  ]
  xs, ys = zip(*pairs, strict=True)
  return np.asarray(xs, np.float64), np.asarray(ys, np.float64)


def measured(
  logits: Sequence[np.ndarray], solutions: Sequence[schema.Solution]
) -> dict[str, Any]:
  """Returns the loss, in nats a step, and the AUROC on labelled steps."""
  z, y = labelled(logits, solutions)
  loss = np.logaddexp(0, -z) * y + np.logaddexp(0, z) * (1 - y)
  found = dict(
    steps=len(y),
    right=float(y.mean()),
    loss_nats=float(loss.mean()),
    auroc=step_metrics.auroc(z, y >= schema.THRESHOLD),
  )
  # A run that diverged has no loss.
  return step_metrics.defined(found)


def best_rate(bench: Bench, name: str) -> float:
  """Returns an arm's rate: seed 0's least loss on the held-out problems."""

  def loss(rate: float) -> float:
    found = bench.point(Run(name, rate, 0))["held_out"]["loss_nats"]
    return np.inf if found is None else found

  return min(ARMS[name].rates, key=loss)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--bases", type=pathlib.Path, default="runs/bases")
  parser.add_argument("--arms", default=",".join(ARMS))
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--results", type=pathlib.Path, default="runs/real_prm")
  parser.add_argument(
    "--workdir", type=pathlib.Path, default="runs/real_prm_work"
  )
  args = parser.parse_args()
  logging.basicConfig(level=logging.INFO, format="%(message)s")
  args.results.mkdir(parents=True, exist_ok=True)
  c = get_config()
  bench = Bench(c, read_data(c), args.bases, args.results, args.workdir)
  for name in args.arms.split(","):
    rate = best_rate(bench, name)
    for seed in map(int, args.seeds.split(",")):
      run = Run(name, rate, seed)
      found = bench.point(run)
      print(f"{run.name}: {found['held_out']}, {found['seconds']}", flush=True)


if __name__ == "__main__":
  main()
