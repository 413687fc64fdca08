"""Does a PRM of one domain find the errors of another?

Command:  python experiments/transfer.py [--output=docs/results/transfer.json]
          [--seeds=0,1,2] [--workdir=runs/transfer] [--only=NAME,..] [--table]
          [--prm=CHECKPOINT]
Hardware, time, rules of judgement and result: see experiments/README.md.

Three domains with the same three kinds of error (transfer_problems.py). Of each
seed a small model is trained on one domain, or on a third of each ("mixed"), at
one number of solutions and updates, and tested on all three. It reads a
solution whole, in our own form, or in a template of ContextPRM: context_prm, as
its code writes it, or step_pairs, in which a step sees the one before it alone.
It starts from random weights ("scratch") or from a language model of right
solutions of all three domains ("base"). Beside it stand the length and the
place of a step, each pointed the way that helps on the training domain.
Thresholds are tuned on the training domain's validation solutions. --prm adds a
PRM of another hand on seed 0, at 0.5. --small tests the path. What the output
already holds is not computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
import time
from typing import Any

import labelling_testbed as testbed
import ml_collections
import numpy as np
import transfer_problems

from prm_jax import schema
from prm_jax.demo import default_config
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.runtime import environment
from prm_jax.runtime import outputs
from prm_jax.scoring import saved as saved_lib
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import tokenizer_files
from prm_jax.training import train_run
from prm_jax.training import train_run_config

OUTPUT = pathlib.Path("docs/results/transfer.json")
WORKDIR = pathlib.Path("runs/transfer")
DOMAINS = tuple(transfer_problems.DOMAINS)
MIXED = "mixed"
SOURCES = (*DOMAINS, MIXED)
# Scores by a step's length and place, which don't read it.
BASELINES = dict(
  length=processbench_metrics.step_length, place=processbench_metrics.step_index
)
# One group after the other, and in each one seed after the other, so that a run
# that is stopped has whole comparisons.
GROUPS = (
  tuple(f"{x}/{source}" for x in BASELINES for source in SOURCES),
  *(
    tuple(
      f"{start}/{form}/{x}" for x in DOMAINS for form in ("whole", "step_pairs")
    )
    for start in ("base", "scratch")
  ),
  tuple(f"base/{form}/{MIXED}" for form in ("whole", "step_pairs")),
  tuple(f"base/context_prm/{source}" for source in DOMAINS),
)
NAMES = tuple(name for group in GROUPS for name in group)
PRM = "prm"
# What is drawn of each seed.
TRAIN, VALIDATION, TEST, BASE = range(4)


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the sizes, and the fields of the runs (those of the demo)."""
  c = ml_collections.ConfigDict()
  c.train, c.validation, c.test = 32_000, 200, 400
  c.other_prm_test = 100
  c.base_train, c.vocabulary = 24_000, 512
  c.base_solutions, c.prm_solutions, c.row_tokens = 16, 32, 176
  c.runs = dict(
    base=default_config.training("sft", steps=2_400, peak_lr=3e-3),
    prm=default_config.training("prm", steps=1_000, peak_lr=1e-3),
  )
  if small:
    c.train = c.base_train = 60
    c.validation = c.test = c.other_prm_test = 20
    c.base_solutions = c.prm_solutions = 4
    for run in c.runs.values():
      run.fit.steps, run.optimizer.warmup_steps = 2, 1
  return c


@dataclasses.dataclass(frozen=True)
class Seed:
  """A seed's data and models."""

  c: ml_collections.ConfigDict
  seed: int
  workdir: pathlib.Path

  def drawn(self, source: str, of: int, num: int) -> list[schema.Solution]:
    """Returns labelled solutions of a domain, or as many of all together."""
    domains = DOMAINS if source == MIXED else (source,)
    key = (self.seed, of)
    return [
      x
      for domain in domains
      for x in transfer_problems.solutions(domain, num // len(domains), key)
    ]

  @functools.cached_property
  def test(self) -> dict[str, list[schema.Solution]]:
    return {x: self.drawn(x, TEST, self.c.test) for x in DOMAINS}

  @functools.cached_property
  def right(self) -> list[schema.Solution]:
    """Right solutions of all domains, which the base learns to write."""
    num = self.c.base_train // len(DOMAINS)
    return [
      x
      for domain in DOMAINS
      for x in transfer_problems.right(domain, num, (self.seed, BASE))
    ]

  @functools.cached_property
  def tokenizer(self) -> tokenizer_files.SentencePiece:
    """One vocabulary, of all domains and the templates' own words."""
    texts = [x for s in self.right for x in (s.problem, *s.steps)]
    texts += ["[CONTEXT]: ", "\n\n[CURRENT STEP]: ", " \n\n\n\n"] * 500
    return tokenizer_files.train_sentencepiece(texts, self.c.vocabulary)

  @functools.cached_property
  def base(self) -> Any:
    """The parameters of a language model of right solutions."""
    return self._trained("base", "base", self.right, "whole")

  def _trained(
    self,
    name: str,
    kind: str,
    solutions: Sequence[schema.Solution],
    form: str,
    init_from: Any = None,
  ) -> Any:
    """Returns a run's parameters; every update has as many solutions."""
    c = ml_collections.ConfigDict(self.c.runs[kind].to_dict())
    c.seed = self.seed
    c.encoding.template = None if form == "whole" else form
    c.encoding.max_tokens = c.packing.sequence_length = self.c.row_tokens
    written = encoding_records.with_template(
      encoding.EncodingConfig(
        template=encoding_records.named(c.encoding.template)
      ),
      self.tokenizer,
    )
    sizes = [
      len(encoding.encode_whole(s, self.tokenizer, written).tokens)
      for s in solutions[:: max(1, len(solutions) // 200)]
    ]
    tokens = self.c[f"{kind}_solutions"] * float(np.mean(sizes))
    c.packing.batch_size = max(1, math.ceil(tokens / self.c.row_tokens))
    _, params = train_run.train(
      train_run_config.from_config(c),
      solutions,
      self.tokenizer,
      self.workdir / name.replace("/", "_"),
      init_from=init_from,
    )
    return params

  def point(self, name: str) -> dict[str, Any]:
    """Returns a PRM's or a baseline's measures on all domains."""
    kind, *form, source = name.split("/")
    began = time.process_time()
    train = self.drawn(source, TRAIN, self.c.train)
    if form:
      start = self.base if kind == "base" else None
      began = time.process_time()  # the base is the seed's
      self._trained(name, "prm", train, form[0], start)
      # The folder says how it is read.
      score = self._loaded(self.workdir / name.replace("/", "_")).score
    else:
      score = baseline(kind, train)
    validation = self.drawn(source, VALIDATION, self.c.validation)
    threshold = processbench_metrics.tune_threshold(
      [x.scores for x in score(validation)], testbed.truth(validation)
    )
    on = {
      domain: measure(score(solutions), solutions, threshold)
      for domain, solutions in self.test.items()
    }
    cpu_s = round(time.process_time() - began, 1)
    return dict(name=name, threshold=threshold, on=on, cpu_s=cpu_s)

  def _loaded(self, folder: pathlib.Path) -> scorer_lib.Scorer:
    """Returns a scorer that compiles one program."""
    row_tokens = self.c.row_tokens
    return dataclasses.replace(
      saved_lib.load(folder, layout="packed"), sequence_length=row_tokens
    )

  def other(self, checkpoint: pathlib.Path) -> dict[str, Any]:
    """Returns the measures of a PRM of another hand, at 0.5."""
    began = time.process_time()
    scorer = saved_lib.load(checkpoint, layout="packed")
    on = {}
    for domain, solutions in self.test.items():
      some = solutions[: self.c.other_prm_test]
      on[domain] = measure(scorer.score(some), some, schema.THRESHOLD)
    cpu_s = round(time.process_time() - began, 1)
    return dict(
      name=PRM,
      prm=str(checkpoint),
      threshold=schema.THRESHOLD,
      on=on,
      cpu_s=cpu_s,
    )


def baseline(name: str, train: Sequence[schema.Solution]) -> schema.Score:
  """Returns scores by a step's length or place, which don't read it.

  Args:
    name: One of BASELINES.
    train: The solutions that say which way right steps lie.
  """

  raw = BASELINES[name]
  steps = step_metrics.judged_steps(raw(train), [s.labels or () for s in train])
  is_up = step_metrics.auroc(steps.scores, steps.correct) >= 0.5

  def score(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    return [
      schema.StepScores(tuple(x if is_up else 1 - x for x in row))
      for row in raw(solutions)
    ]

  return score


def measure(
  scores: Sequence[schema.StepScores],
  solutions: Sequence[schema.Solution],
  threshold: float,
) -> dict[str, Any]:
  """Returns AUROC, of each kind of error too, and how first errors are found.

  Args:
    scores: The scores of the solutions' steps.
    solutions: The solutions, with exact labels.
    threshold: A step below it is taken for wrong.
  """
  rows = [x.scores for x in scores]
  steps = step_metrics.judged_steps(rows, [s.labels or () for s in solutions])
  kinds = np.array([solutions[i].extra.get("kind") for i in steps.solution])
  located = processbench_metrics.evaluate(
    rows, testbed.truth(solutions), threshold=threshold, num_resamples=0
  )
  counts = [(located[f"acc_{x}"], located[f"num_{x}"]) for x in ("err", "cor")]
  of_kind = {}
  for kind in transfer_problems.KINDS:
    counted = steps.correct | (kinds == kind)
    of_kind[kind] = step_metrics.auroc(
      steps.scores[counted], steps.correct[counted]
    )
  return step_metrics.defined(
    dict(
      auroc=step_metrics.auroc(steps.scores, steps.correct),
      auroc_of_kind=of_kind,
      f1=located["f1"],
      first_error_accuracy=sum(x * n for x, n in counts)
      / sum(n for _, n in counts),
      steps=len(steps.scores),
      wrong=int((~steps.correct).sum()),
    )
  )


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the matrices of AUROC and F1, and AUROC by the kind of error."""

  def cells(own: Sequence[testbed.Point], value, **form) -> list[str]:
    return [
      testbed.mean([value(p["on"][x]) for p in own], **form) for x in DOMAINS
    ]

  head = ("judge", "trained on", *DOMAINS, "seeds")
  matrices: dict[str, list[Sequence[str]]] = dict(auroc=[head], f1=[head])
  by_kind: list[Sequence[str]] = [
    ("judge", "tested on", *transfer_problems.KINDS)
  ]
  judges: dict[str, list[testbed.Point]] = {}
  for name in (*NAMES, PRM):
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    judge, _, source = name.rpartition("/")
    judge = judge or PRM
    row = (judge, source if source != PRM else "", f"{len(own)}")
    for metric, rows in matrices.items():
      form: dict[str, Any] = (
        dict(digits=3) if metric == "auroc" else dict(scale=100)
      )
      means = cells(own, lambda on, m=metric: on[m], **form)
      rows.append((*row[:2], *means, row[2]))
    judges.setdefault(judge, []).extend(own)
  for judge, own in judges.items():
    for where, is_own in (("its domain", True), ("the others", False)):
      found = [
        p["on"][x]["auroc_of_kind"]
        for p in own
        for x in DOMAINS
        if MIXED not in p["name"] and (x in p["name"]) == is_own
      ]
      if found:
        kinds = [
          testbed.mean([x[kind] for x in found], digits=3)
          for kind in transfer_problems.KINDS
        ]
        by_kind.append((judge, where, *kinds))
  return "\n\n".join(
    [
      f"AUROC of steps up to the first error:\n{testbed.markdown(matrices['auroc'])}",
      f"F1, %:\n{testbed.markdown(matrices['f1'])}",
      f"AUROC by the kind of error:\n{testbed.markdown(by_kind)}",
    ]
  )


@testbed.exit_on_input_error()
def main() -> None:
  parser = testbed.parser_of(__doc__.splitlines()[0], OUTPUT, WORKDIR, "0,1,2")
  parser.add_argument("--only", default=",".join(NAMES))
  parser.add_argument("--prm", type=pathlib.Path)
  parser.add_argument("--small", action="store_true")
  args = parser.parse_args()
  checkpoint = args.prm
  wanted = testbed.names_of(args.only, NAMES)
  seeds = testbed.numbers(args.seeds)
  c = settings(args.small)
  details = environment.describe(c)

  def command(points: Sequence[testbed.Point]) -> str:
    own = [p for p in points if p["name"] != PRM]
    args.prm = next((p["prm"] for p in points if p["name"] == PRM), None)
    return testbed.command_of(
      own, NAMES, args, parser, lambda point: point["name"]
    )

  def todo(names: Sequence[str], seed: int) -> list[str]:
    saved = testbed.read_points(args.output, details["config"])
    done = {p["name"] for p in saved if p["seed"] == seed}
    return [name for name in names if name not in done]

  if not args.table:
    outputs.check(dict(output=args.output))
    args.workdir.mkdir(parents=True, exist_ok=True)
    beds = {x: Seed(c, x, args.workdir / str(x)) for x in seeds}

    def add(seed: int, point: Mapping[str, Any]) -> None:
      whole = dict(seed=seed) | dict(point)
      testbed.add_point(args.output, args.workdir, whole, details, command)
      found = " ".join(f"{x['auroc']:.3f}" for x in point["on"].values())
      print(f"{seed} {point['name']}: {found}, {point['cpu_s']} s", flush=True)

    for group in GROUPS:
      for seed, bed in beds.items():
        for name in todo([x for x in group if x in wanted], seed):
          bed.workdir.mkdir(exist_ok=True)
          environment.check_workdir(bed.workdir, details["config"])
          add(seed, bed.point(name))
    if checkpoint is not None and todo([PRM], 0):
      add(0, Seed(c, 0, args.workdir / "0").other(checkpoint))
  print(table(testbed.read_points(args.output, details["config"])))


if __name__ == "__main__":
  main()
