"""Do OmegaPRM's labels make a better PRM if it is read at what they cover?

Command:  python experiments/labelling_omega.py
          [--output=docs/results/labelling_omega.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=exact,soft_mc,...] [--small]
          [--table]
Hardware, time and result: see experiments/README.md.

PRMs of labelling_budget.py's testbed, budget and training: from exact labels,
from plain Monte-Carlo values, and from OmegaPRM's with four searches of a
problem, as there, and with 100, the number of its paper (Luo et al. 2024, arXiv
2406.06592), on as many problems as the budget pays. OmegaPRM labels states
before a first error and the step of the error: a right last step has no label.
So best of 64 is also measured without the last step's score (covered). What the
output already holds is not computed again. --small is a test of the path whose
numbers mean nothing. --table prints Markdown.
"""

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

import labelling_budget
import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax import voting

OUTPUT = "docs/results/labelling_omega.json"
PAPERS_SEARCHES = 100
# Arm -> are its labels values, and how many searches a problem has.
ARMS: dict[str, tuple[bool, int]] = dict(
  exact=(False, 0),
  soft_mc=(True, 0),
  omega_soft_4=(True, labelling_budget.SEARCHES),
  omega_soft_100=(True, PAPERS_SEARCHES),
  omega_hard_4=(False, labelling_budget.SEARCHES),
  omega_hard_100=(False, PAPERS_SEARCHES),
)
AGGREGATES = ("min", "product")


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one variant's measures after another."""
  generate = testbed.completer(bed)
  soft = labelling_budget.soft_labels(bed, generate)
  for name in todo:
    is_soft, searches = ARMS[name]
    if searches:
      solutions, work = labelling_budget.omega_labels(
        *(bed, generate, soft[1]["rollouts"]),
        hard=not is_soft,
        searches=searches,
      )
    else:
      solutions, work = labelling_budget.labels_of(name, bed, generate, soft)
    scorer = testbed.train(
      *(bed, f"omega_{name}", solutions),
      soft=is_soft,
      times=labelling_budget.TIMES,
    )
    scores = scorer.score([s for row in bed.test for s in row])
    yield dict(
      name=name,
      solutions=len(solutions),
      problems=len({s.problem for s in solutions}),
      labels=sum(x is not None for s in solutions for x in s.labels or ()),
      right_last=sum(
        s.labels[-1] is not None and s.labels[-1] > 0
        for s in solutions
        if s.labels and schema.first_error(s.labels) < 0
      ),
      budget=soft[1]["rollouts"],
      work=work,
      covered=covered(bed, scores),
      **testbed.measure(bed, scorer),
    )


def covered(
  bed: testbed.Testbed, scores: Sequence[schema.StepScores]
) -> dict[str, float]:
  """Returns the best of all samples without the scores of the last steps.

  A solution of one step keeps its only score.
  """
  cut = [
    dataclasses.replace(
      x,
      scores=x.scores[:-1],
      logits=x.logits and x.logits[:-1],
      judged=x.judged[:-1],
    )
    if len(x) > 1
    else x
    for x in scores
  ]
  shape = len(bed.test), len(bed.test[0])
  right = np.array([s.outcome for row in bed.test for s in row]).reshape(shape)
  best = {}
  for how in AGGREGATES:
    ranking = np.array(voting.ranking_scores(cut, how)).reshape(shape)
    best[how] = float(voting.best_of_n(ranking, right, [shape[1]]).mean())
  return best


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  rows = [
    (
      *("labels", "problems", "number of labels", "searches of a problem"),
      *("step AUROC", "first-error accuracy, %"),
      *(f"best of 64 by {how}, %" for how in AGGREGATES),
      *(f"by {how} without the last step, %" for how in AGGREGATES),
      "seeds",
    )
  ]
  for name in ARMS:
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    searches = [p["work"].get("searches", 0) / p["problems"] for p in own]
    rows.append(
      (
        name,
        testbed.mean([p["problems"] for p in own], digits=0),
        testbed.mean([p["labels"] for p in own], digits=0),
        testbed.mean(searches) if any(searches) else "",
        testbed.mean([p["step_auroc"] for p in own], digits=3),
        testbed.mean([p["first_error_accuracy"] for p in own], 100),
        *(
          testbed.mean([p["best_of_n"][how][-1] for p in own], 100)
          for how in AGGREGATES
        ),
        *(
          testbed.mean([p["covered"][how] for p in own], 100)
          for how in AGGREGATES
        ),
        str(len(own)),
      )
    )
  return testbed.markdown(rows) if rows[1:] else "no points yet"


if __name__ == "__main__":
  testbed.run(
    __doc__.splitlines()[0], OUTPUT, tuple(ARMS), points_of_seed, table
  )
