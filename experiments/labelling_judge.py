"""Does a generative PRM need fewer labels than a discriminative one?

Command:  python experiments/labelling_judge.py
          [--output=docs/results/labelling_judge.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=prm,...] [--small] [--table]
Hardware, time and result: see experiments/README.md.

On the testbed that the experiments on labelling share: a discriminative PRM
from all exact labels of 24,000 solutions, one from a hundredth of them, and
generative verifiers from the same hundredth. These are trained by `sft` on
chains in ThinkPRM's format (docs/judge.md): each step is recomputed and
repeated, then judged. One starts from the base; one first learns, without
labels, to recompute and quote steps, which a language model can before it
judges. All are measured on the same samples; a chain's verdicts become
log-likelihood labels. Exercises and chains contain what a wrong step should
have been, which labels alone don't: count that when you read the table. --small
is a test of the path.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import time
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax import voting
from prm_jax.demo import demo_run
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import llm_judge
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.testbed import judge
from prm_jax.training import train_run
from prm_jax.training import train_run_config

# Model -> how many chains it writes about a solution, at which temperature;
# None: it writes none.
MODELS: dict[str, tuple[int, float] | None] = dict(
  prm=None,
  prm_1_percent=None,
  verifier_1_percent=(1, 0.0),
  verifier_1_percent_4_chains=(4, 0.6),
  exercised_verifier_1_percent=(1, 0.0),
)
# Times the updates of the testbed's PRM and of its verifier: all labels take
# more updates than a hundredth, and exercises come before the chains.
PRM_TIMES, EXERCISE_TIMES = 4, 2


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one model's measures after another."""
  few = bed.verifier_solutions
  for name in todo:
    start = time.perf_counter()
    judging = MODELS[name]
    if judging is None:
      used = all_solutions(bed) if name == "prm" else few
      times = PRM_TIMES if name == "prm" else 1
      scorer = testbed.train(bed, f"judge_{name}", used, times=times)
      train_s = time.perf_counter() - start
      measures = testbed.measure(bed, scorer)
    else:
      used = few
      verifier = bed.verifier
      if name.startswith("exercised"):
        verifier = exercised_verifier(bed)
      train_s = time.perf_counter() - start
      measures = measure_verifier(bed, verifier, *judging)
    point = dict(
      name=name,
      solutions=len(used),
      labels=judge.chains(used)[1]["labels"],
      train_s=round(train_s, 1),
      measure_s=round(time.perf_counter() - start - train_s, 1),
      **measures,
    )
    print(f"{bed.seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def all_solutions(bed: testbed.Testbed) -> list[schema.Solution]:
  """Returns judged solutions of all training problems of the demo."""
  path = bed.workdir / "all_solutions.jsonl"
  if not path.exists():
    solutions = demo_run.training_solutions(
      bed.config, bed.policy, bed.inputs.train, bed.key(7)
    )
    jsonl.write_solutions(path, solutions)
  return jsonl.read_solutions(path)


def exercised_verifier(bed: testbed.Testbed) -> sampler_lib.Sampler:
  """Returns a verifier that did exercises on the pool, without labels."""
  run = train_run_config.from_config(bed.c.verifier)
  run = dataclasses.replace(run, seed=run.seed + bed.seed)
  fit = dataclasses.replace(run.fit, steps=EXERCISE_TIMES * run.fit.steps)
  tokenizer = bed.inputs.tokenizer
  _, able = train_run.train(
    dataclasses.replace(run, fit=fit),
    judge.exercises(bed.pool),
    tokenizer,
    bed.workdir / "exercised",
    init_from=bed.base,
  )
  model, params = train_run.train(
    run,
    judge.chains(bed.verifier_solutions)[0],
    tokenizer,
    bed.workdir / "exercised_verifier",
    init_from=able,
  )
  return sampler_lib.Sampler(model, params, tokenizer)


def measure_verifier(
  bed: testbed.Testbed,
  verifier: sampler_lib.Sampler,
  chains: int,
  temperature: float,
) -> dict[str, Any]:
  """Returns its measures, and with them best-of-N by P(yes) and the work."""
  write = testbed.Completer(
    rollout_engine.of(verifier),
    sampler_lib.Sampling(testbed.MAX_CHAIN_TOKENS, temperature),
    bed.key(5),
  )
  samples = [s for row in bed.test for s in row]
  # Equal samples have one chain: a chain depends on the text alone.
  texts = {(s.problem, *s.steps): s for s in (*samples, *bed.validation)}
  judged, work = llm_judge.label(
    list(texts.values()),
    write,
    judge_prompts.DIAL,
    votes=chains,
    log_likelihoods=verifier.log_likelihoods,
  )
  print("    " + testbed.described(work))
  of_text = dict(zip(texts, judged, strict=True))

  def scores(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    labels = [of_text[s.problem, *s.steps].labels or () for s in solutions]
    return [
      schema.StepScores(
        tuple(0.5 if x is None else x for x in row),
        judged=tuple(x is not None for x in row),
      )
      for row in labels
    ]

  measures = testbed.measure_scores(
    scores(samples), scores(bed.validation), bed.test, bed.validation, "min"
  )
  shape = len(bed.test), len(bed.test[0])
  p_yes = [
    of_text[s.problem, *s.steps].extra.get("p_yes", 0.5) for s in samples
  ]
  curve = voting.best_of_n(
    np.array(p_yes).reshape(shape),
    np.array([s.outcome for s in samples]).reshape(shape),
    measures["n"],
  )
  measures["best_of_n"]["p_yes"] = [float(x) for x in curve.mean(0)]
  return measures | dict(work=work, engine=write.cost())


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  rows = [
    (
      *("model", "labels", "step AUROC", "first-error accuracy, %"),
      *("best of 64 by the minimum, %", "by P(yes), %", "seeds"),
    )
  ]
  for name in MODELS:
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    best: list[Mapping[str, Any]] = [p["best_of_n"] for p in own]
    p_yes = ""
    if all("p_yes" in x for x in best):
      p_yes = testbed.mean([x["p_yes"][-1] for x in best], 100)
    rows.append(
      (
        name,
        testbed.mean([p["labels"] for p in own], digits=0),
        testbed.mean([p["step_auroc"] for p in own], digits=3),
        testbed.mean([p["first_error_accuracy"] for p in own], 100),
        testbed.mean([x["min"][-1] for x in best], 100),
        p_yes,
        str(len(own)),
      )
    )
  votes = {p["seed"]: p["majority"] for p in points}
  if not votes:
    return "no points yet"
  majority = testbed.mean(list(votes.values()), 100)
  return f"{testbed.markdown(rows)}\n\nMajority vote {majority} %."


if __name__ == "__main__":
  testbed.run(
    __doc__.splitlines()[0],
    pathlib.Path("docs/results/labelling_judge.json"),
    tuple(MODELS),
    points_of_seed,
    table,
  )
