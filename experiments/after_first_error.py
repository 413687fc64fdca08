"""What does a PRM lose or gain by learning the steps after a first error?

Command:  python experiments/after_first_error.py
          [--output=docs/results/after_first_error.json] [--seeds=0,1,2]
          [--workdir=runs/after_first_error] [--only=ignore,bad] [--table]
Hardware, time and result: see experiments/README.md.

Two PRMs of each seed start from the same base and learn the same solutions with
the same compute. They differ in objective.labels.after_first_error: `ignore`
has no target after the first wrong step, `bad` has 0 there. The sizes are
smaller than the demo's, so that three seeds take minutes. What the output
already holds is not computed again.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import labelling_testbed as testbed
import ml_collections
import numpy as np

from prm_jax import schema
from prm_jax import voting
from prm_jax.evaluation import step_metrics
from prm_jax.runtime import config_files

OUTPUT = pathlib.Path("docs/results/after_first_error.json")
WORKDIR = pathlib.Path("runs/after_first_error")
WAYS = ("ignore", "bad")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config at smaller sizes."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.base_problems = 10_000
    c.train_problems = c.pool_problems = 800
    c.verifier_problems = 0
    c.test_problems = 100
    c.num_samples = 16
    c.runs.base.fit.steps = 250
    c.runs.policy.fit.steps = 120
    c.runs.prm.fit.steps = 250
  return c


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the measures of one way's PRM after another."""
  for way in todo:
    run = bed.config.runs["prm"]
    labels = dataclasses.replace(run.objective.labels, after_first_error=way)
    objective = dataclasses.replace(run.objective, labels=labels)
    run = dataclasses.replace(run, objective=objective)
    prm = testbed.train(bed, way, bed.pool, run=run)
    scores = prm.score([s for row in bed.test for s in row])
    yield dict(
      after_first_error=way,
      train_solutions=len(bed.pool),
      **measure(scores, bed.test),
    )


def measure(
  scores: Sequence[schema.StepScores],
  rows: Sequence[Sequence[schema.Solution]],
) -> dict[str, Any]:
  """Returns best-of-N by each aggregate, and what the step scores are like.

  Args:
    scores: The step scores of all samples, in the order of the rows.
    rows: The samples of each problem, with exact labels.
  """
  samples = [s for row in rows for s in row]
  shape = len(rows), len(rows[0])
  right = np.array([bool(s.outcome) for s in samples]).reshape(shape)
  best = {}
  for how in voting.AGGREGATES:
    ranking = np.array(voting.ranking_scores(scores, how)).reshape(shape)
    (accuracy,) = voting.best_of_n(ranking, right, [shape[1]]).mean(0)
    best[how] = float(accuracy)
  steps = step_metrics.evaluate(
    [x.scores for x in scores],
    [s.labels or () for s in samples],
    judged=[x.judged for x in scores],
    problems=[i for i, row in enumerate(rows) for _ in row],
    num_resamples=0,
  )
  # The steps after a first wrong one, none of which is correct so far.
  later = [
    score
    for x, s in zip(scores, samples, strict=True)
    for i, score in enumerate(x.scores)
    if 0 <= schema.first_error(s.labels or ()) < i
  ]
  return dict(
    n=shape[1],
    test_problems=shape[0],
    policy_accuracy=float(right.mean()),
    best_of_n=best,
    step_auroc=steps["auroc"],
    step_ece=steps["ece"],
    first_error_exact=steps["first_error_exact"],
    no_false_alarm=steps["first_error_none"],
    steps_after_error=len(later),
    above_half_after_error=float(np.mean(np.array(later) >= 0.5)),
    mean_score_after_error=float(np.mean(later)),
  )


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns means over seeds and their range, a row for each of WAYS."""
  rows = [
    (
      "after_first_error",
      *(f"best of {points[0]['n']} by {how}, %" for how in voting.AGGREGATES),
      *("first error found, %", "no false alarm, %"),
      *("steps after an error scored 0.5 or more, %", "step AUROC", "seeds"),
    )
  ]
  for way in WAYS:
    own = [p for p in points if p["after_first_error"] == way]
    shares = [[p["best_of_n"][how] for p in own] for how in voting.AGGREGATES]
    shares += [
      [p[name] for p in own]
      for name in (
        *("first_error_exact", "no_false_alarm", "above_half_after_error"),
      )
    ]
    auroc = testbed.mean([p["step_auroc"] for p in own], digits=4)
    cells = [testbed.mean(x, 100) for x in shares]
    rows.append((f"`{way}`", *cells, auroc, str(len(own))))
  return testbed.markdown(rows)


if __name__ == "__main__":
  testbed.run(
    *(__doc__.splitlines()[0], OUTPUT, WAYS, points_of_seed, table),
    make=get_config,
    workdir=WORKDIR,
    name_of=lambda point: point["after_first_error"],
  )
