"""Why do PRMs from published weights stay behind on ProcessBench's gsm8k?

Command:  prm-jax import --from=SmolLM2-135M-Instruct --to=runs/bases/smol
          PRM_JAX_DATA=... python experiments/real_prm_gsm8k.py
          [--bases=runs/bases] [--arms=reference,...] [--seeds=0]
          [--results=runs/real_prm_gsm8k]
          python experiments/real_prm_gsm8k.py --table
          PRM_JAX_DATA=... python experiments/real_prm_gsm8k.py --probe
Rules, hardware, time and result: see experiments/README.md.

Each arm changes one thing of `reference`, a run of SmolLM2 on PRM800K that is
short enough for a CPU. A run writes its own file when it ends, and what is
there is not run again. Several processes may run at a time, each with --arms
of its own.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import logging
import pathlib
import re
from typing import Any

import labelling_testbed as testbed
import ml_collections
import numpy as np
import real_prm
import real_prm_results
import spoiled_sums

from prm_jax import schema
from prm_jax.datasets.formats import gsm8k
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.scoring import scorer as scorer_lib

GSM8K_TRAIN = "gsm8k/train.jsonl.gz"
POOL = "best_of_n/gsm8k_pool_0000_0999.jsonl.gz"
TEST = "processbench:processbench/gsm8k.json.gz"
# Of the pool's questions, those whose solutions are ranked.
DEV, NUM_DEV = "dev", 60
UPDATES, ROWS, LENGTH = 250, 4, 512


@dataclasses.dataclass(frozen=True)
class Arm:
  """What differs from the reference.

  Args:
    rate: The peak learning rate.
    paths: Whether of PRM800K's alternatives each path keeps one alone, wrong,
      so that solutions are as ProcessBench's.
    sums: Whether half of the tokens are GSM8K solutions, right ones and ones
      with a spoiled sum.
    third: Whether a third of phase 1's problems is taken, so that more of what
      is learned is phase 2's whole solutions.
    trainable: As training.train_config.TrainConfig has it.
    share: The share of the problems that is trained on, with as many fewer
      updates.
  """

  rate: float = 1e-4
  paths: bool = False
  sums: bool = False
  third: bool = False
  trainable: str = "all"
  share: float = 1.0


ARMS = dict(
  reference=Arm(),
  slow=Arm(rate=3e-5),
  paths=Arm(paths=True),
  sums=Arm(sums=True),
  both=Arm(paths=True, sums=True),
  lora=Arm(rate=1e-3, paths=True, sums=True, trainable="lora"),
  head=Arm(rate=1e-2, paths=True, sums=True, trainable="head"),
  quarter=Arm(paths=True, sums=True, share=0.25),
  half=Arm(paths=True, sums=True, share=0.5),
  third=Arm(third=True),
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the training config that all arms share."""
  c = real_prm.get_config()
  c.encoding.max_tokens = LENGTH
  c.packing.update(batch_size=ROWS, sequence_length=LENGTH)
  c.fit.update(log_every=10)
  return c


# --- Data -----------------------------------------------------------------------


def hashed(*words: object) -> int:
  """Returns a number that is the same on each machine, for a seed or an order."""
  text = json.dumps([str(word) for word in words])
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def words(text: str) -> str:
  """Returns the same for texts of the same words, whatever their spaces."""
  return " ".join(text.lower().split())


def one_wrong_each(
  solutions: Sequence[schema.Solution],
) -> list[schema.Solution]:
  """Returns PRM800K's paths, each with one wrong alternative at most.

  Args:
    solutions: The paths and all their alternatives, as `prm800k.read` has them.
  """
  of_row: dict[str, list[schema.Solution]] = defaultdict(list)
  kept = []
  for s in solutions:
    row, _, part = s.id.rpartition("/")
    if part == "path":
      kept.append(s)
    elif s.ratings and s.ratings[-1] == -1:
      of_row[row].append(s)
  return kept + [min(x, key=lambda s: hashed(s.id)) for x in of_row.values()]


def pool() -> Iterator[schema.Solution]:
  """Yields solutions of GSM8K's test questions by other models.

  Their steps are paragraphs, as ProcessBench's, or lines where there is but one.
  """
  path = sources_lib.find(POOL)
  for _, row in files.read_records(path):
    for i, candidate in enumerate(row["candidates"]):
      text = gsm8k.without_marks(candidate["text"]).strip()
      blank = r"\n\s*\n"
      steps = re.split(blank if re.search(blank, text) else r"\n", text)
      yield schema.Solution(
        id=f"pool/{row['idx']}/{i}",
        problem=row["question"],
        steps=tuple(x.strip() for x in steps if x.strip()),
        outcome=candidate["correct"],
        source=candidate["source"],
      )


def sums(solutions: Sequence[schema.Solution]) -> list[schema.Solution]:
  """Returns right solutions, of which every second has a sum spoiled."""
  found = []
  for s in solutions:
    random = np.random.default_rng(hashed("sums", s.id) % 2**32)
    whole = dataclasses.replace(s, labels=(1.0,) * len(s.steps), ratings=None)
    spoiled = spoiled_sums.spoiled(whole, random)
    if spoiled is not None:
      found.append(spoiled if random.random() < 0.5 else whole)
  return found


def read_data(
  c: ml_collections.ConfigDict, arm: Arm
) -> tuple[list[schema.Solution], dict[str, list[schema.Solution]]]:
  """Returns what an arm trains on, and what all arms are measured on."""
  data = real_prm.read_data(c)
  test = list(data.tests["gsm8k"])
  taken = {words(s.problem) for s in test}
  free = [s for s in pool() if words(s.problem) not in taken]
  questions = sorted({s.problem for s in free}, key=lambda q: hashed("dev", q))
  dev = {*questions[:NUM_DEV]}
  train = list(data.train)
  if arm.third:
    train = [
      s
      for s in train
      if "phase1" not in s.id or hashed("third", s.problem) < 2**64 / 3
    ]
  if arm.paths:
    train = one_wrong_each(train)
  if arm.sums:
    gold = sources_lib.read_sources([f"gsm8k:{GSM8K_TRAIN}"])
    right = [s for s in free if s.outcome and s.problem not in dev]
    train += sums([*gold, *right])
  if arm.share < 1:
    # A smaller share is a part of a larger one.
    train = [s for s in train if hashed("share", s.problem) < arm.share * 2**64]
  tests = {
    real_prm.HELD_OUT: list(data.tests[real_prm.HELD_OUT]),
    DEV: [s for s in free if s.problem in dev and s.steps],
    "gsm8k": test,
    "gsm8k" + real_prm.NO_QUESTION: list(map(real_prm.without_question, test)),
  }
  return train, tests


# --- Runs -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bench:
  """Where runs take their base from, and where they write."""

  bases: pathlib.Path
  results: pathlib.Path
  workdir: pathlib.Path

  def run(self, name: str, seed: int) -> dict[str, Any]:
    """Returns what a run measured; runs it if it isn't there."""
    path = self.results / f"{name}-{seed}.json"
    if not path.exists():
      files.write_json(path, self._measured(name, seed))
    return files.read_json(path)

  def _measured(self, name: str, seed: int) -> dict[str, Any]:
    c, arm = get_config(), ARMS[name]
    base = self.bases / "smol"
    chosen = real_prm.Arm(
      "smol", arm.trainable, (arm.rate,), round(UPDATES * arm.share)
    )
    config = real_prm.train_config(c, chosen, arm.rate, seed, base)
    train, tests = read_data(c, arm)
    workdir = self.workdir / f"{name}-{seed}"
    done = real_prm.train_and_score(
      config, train, tests, base, workdir, scored_length=2048
    )
    done.write_scores(self.results / f"{name}-{seed}.scores.json.gz")
    losses = [x["loss_nats"] for x in done.log]
    return dict(
      arm=name,
      seed=seed,
      differs=dataclasses.asdict(arm),
      solutions=len(train),
      training_loss_nats_last_50=sum(losses[-5:]) / 5,
      seconds=done.seconds,
      versions=environment.describe(c)["versions"],
      **step_metrics.defined(judged(done.logits, tests)),
    )


# --- What is measured -------------------------------------------------------------


def ranked(
  solutions: Sequence[schema.Solution], values: Sequence[float]
) -> dict[str, float]:
  """Returns how well values tell right solutions from wrong ones.

  Args:
    solutions: Solutions of several models, with outcomes.
    values: A value of each, more for better ones.

  Returns:
    The mean AUROC over questions, and over the models that wrote them: within a
    model its style tells nothing.
  """
  found = {}
  for name, key in (("question", "problem"), ("model", "source")):
    groups: dict[Any, list[tuple[float, bool]]] = defaultdict(list)
    for s, value in zip(solutions, values, strict=True):
      groups[getattr(s, key)].append((value, bool(s.outcome)))
    each = [
      step_metrics.auroc(*map(np.asarray, zip(*rows, strict=True)))
      for rows in groups.values()
      if len({right for _, right in rows}) == 2
    ]
    found[f"auroc_in_{name}"] = float(np.mean(each))
  return found


def judged(
  logits: Mapping[str, Sequence[Sequence[float]]],
  tests: Mapping[str, Sequence[schema.Solution]],
) -> dict[str, Any]:
  """Returns every measure of a run."""
  arrays = {k: [np.asarray(x) for x in v] for k, v in logits.items()}
  scores = {k: real_prm_results.scores_of(v) for k, v in logits.items()}
  least = [float(min(x)) for x in arrays[DEV]]
  held_out = real_prm.measured(
    arrays[real_prm.HELD_OUT], tests[real_prm.HELD_OUT]
  )
  return dict(
    held_out=held_out,
    dev=ranked(tests[DEV], least),
    gsm8k=on_gsm8k(scores["gsm8k"], tests["gsm8k"]),
    gsm8k_no_question=on_gsm8k(
      scores["gsm8k" + real_prm.NO_QUESTION], tests["gsm8k"]
    ),
  )


def on_gsm8k(
  scores: Sequence[Sequence[float]], solutions: Sequence[schema.Solution]
) -> dict[str, Any]:
  """Returns F1 at 0.5 and at the best threshold, and AUROC up to the error."""
  truth = [schema.first_error(s.labels or ()) for s in solutions]
  problems = [s.problem for s in solutions]
  steps = step_metrics.judged_steps(scores, real_prm.labels_of(solutions))
  return dict(
    fixed=processbench_metrics.evaluate(
      scores, truth, threshold=0.5, problems=problems
    ),
    itself=processbench_metrics.evaluate(
      scores,
      truth,
      threshold=processbench_metrics.tune_threshold(scores, truth),
      problems=problems,
    ),
    auroc=step_metrics.auroc(steps.scores, steps.correct),
  )


def probes(solutions: Sequence[schema.Solution]) -> list[schema.Solution]:
  """Returns right solutions, each up to a step with a spoiled sum."""
  found = []
  for s in solutions:
    random = np.random.default_rng(hashed("probe", s.id) % 2**32)
    spoiled = spoiled_sums.spoiled(s, random) if s.outcome else None
    if spoiled is not None:
      found.append(spoiled)
  return found


def seen(
  scores: Sequence[Sequence[float]], solutions: Sequence[schema.Solution]
) -> dict[str, float]:
  """Returns the AUROC of right sums against spoiled ones, by what was changed.

  Args:
    scores: The scores of each solution's steps.
    solutions: The solutions of `probes`.
  """
  right, wrong = [], defaultdict(list)
  for row, s in zip(scores, solutions, strict=True):
    wrong[s.extra[spoiled_sums.SPOILED]].append(row[-1])
    before = zip(row, s.steps[:-1], strict=False)
    right += [x for x, step in before if spoiled_sums.sums(step)]
  return {
    way: step_metrics.auroc(
      np.asarray([*right, *wrong[way]]),
      np.asarray([True] * len(right) + [False] * len(wrong[way])),
    )
    for way in spoiled_sums.WAYS
  }


def probe(results: pathlib.Path, workdir: pathlib.Path) -> None:
  """Writes what each trained model of a folder sees of spoiled sums."""
  _, tests = read_data(get_config(), Arm())
  spoiled = probes(tests[DEV])
  for path in sorted(results.glob("*-?.json")):
    output = path.with_suffix(".probe.json")
    if not output.exists():
      scorer = scorer_lib.load(workdir / path.stem, layout="tree")
      scores = [x.scores for x in scorer.score(spoiled)]
      files.write_json(output, seen(scores, spoiled))
    print(f"{path.stem}: {files.read_json(output)}", flush=True)
  for name, score in processbench_metrics.BASELINES.items():
    print(f"{name}: {seen(score(spoiled), spoiled)}", flush=True)


def baselines(tests: Mapping[str, Sequence[schema.Solution]]) -> dict[str, Any]:
  """Returns the same of scores that read no mathematics."""
  return {
    name: dict(
      dev=ranked(tests[DEV], [min(x) for x in score(tests[DEV])]),
      gsm8k=on_gsm8k(score(tests["gsm8k"]), tests["gsm8k"]),
    )
    for name, score in processbench_metrics.BASELINES.items()
  }


def table(results: pathlib.Path) -> str:
  """Returns what the runs measured as a Markdown table."""
  _, tests = read_data(get_config(), Arm())
  found = [files.read_json(path) for path in sorted(results.glob("*-?.json"))]
  rows = [
    (
      *("", "gsm8k at 0.5", "gsm8k, in-sample", "AUROC of gsm8k's steps"),
      *("without the question", "dev, in a question", "dev, in a model"),
      "held-out loss, nats",
    )
  ]
  named = [(f"`{x['arm']}`, seed {x['seed']}", x) for x in found]
  for name, x in [*named, *baselines(tests).items()]:
    fixed, itself = (x["gsm8k"][k] for k in ("fixed", "itself"))
    blind = x.get("gsm8k_no_question")
    rows.append(
      (
        name.replace("_", " "),
        f"{100 * fixed['f1']:.1f}",
        f"{100 * itself['f1']:.1f} at {itself['threshold']:.2f}",
        f"{x['gsm8k']['auroc']:.3f}",
        "" if blind is None else f"{blind['auroc']:.3f}",
        f"{x['dev']['auroc_in_question']:.3f}",
        f"{x['dev']['auroc_in_model']:.3f}",
        f"{x['held_out']['loss_nats']:.3f}" if "held_out" in x else "",
      )
    )
  return testbed.markdown(rows)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--bases", type=pathlib.Path, default="runs/bases")
  parser.add_argument("--arms", default=",".join(ARMS))
  parser.add_argument("--seeds", default="0")
  parser.add_argument(
    "--results", type=pathlib.Path, default="runs/real_prm_gsm8k"
  )
  parser.add_argument(
    "--workdir", type=pathlib.Path, default="runs/real_prm_gsm8k_work"
  )
  parser.add_argument("--table", action="store_true")
  parser.add_argument("--probe", action="store_true")
  args = parser.parse_args()
  logging.basicConfig(level=logging.INFO, format="%(message)s")
  if args.table:
    print(table(args.results))
    return
  if args.probe:
    probe(args.results, args.workdir)
    return
  args.results.mkdir(parents=True, exist_ok=True)
  bench = Bench(args.bases, args.results, args.workdir)
  for name in args.arms.split(","):
    for seed in map(int, args.seeds.split(",")):
      found = bench.run(name, seed)
      print(f"{name}-{seed}: {found['gsm8k']}, {found['dev']}", flush=True)


if __name__ == "__main__":
  main()
