"""Which errors does a PRM of actively selected labels miss, and does a mix help?

Command:  python experiments/labelling_active_errors.py
          [--output=docs/results/labelling_active_errors.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=random_400,mixed_400,...]
          [--small] [--table]
Hardware, time and result: see experiments/README.md.

The pool, selecting PRM and training of labelling_active.py's setting `apart`,
with the labelled solutions drawn at random, selected (apart), or half of each
(mixed). The errors of the test samples are in two groups: those that the
selecting PRM sees (it scores the first wrong step below 0.5), and those that it
misses. For each group a PRM's AUROC is that of the same right steps against the
group's first wrong steps. Only PRMs of one group are compared: all start from
the selecting PRM's base, and so miss much of what it misses. What the output
already holds is not computed again. --small is a test of the path whose numbers
mean nothing. --table prints Markdown.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import time
from typing import Any

import labelling_active
import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import active_selection

OUTPUT = "docs/results/labelling_active_errors.json"
WAYS = ("random", "apart", "mixed")
SIZES = (400, 1_600)
NAMES = tuple(f"{way}_{size}" for size in SIZES for way in WAYS)


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one way's measures at one number of labels after another."""
  train = functools.partial(testbed.train, bed, times=labelling_active.TIMES)
  selector = train("active_apart", labelling_active.others(bed))
  samples = [s for row in bed.test for s in row if s.steps and s.labels]
  selecting = selector.score(samples)
  of_pool = {
    s.id: x for s, x in zip(bed.pool, selector.score(bed.pool), strict=True)
  }

  def score(solutions):
    return [of_pool[s.id] for s in solutions]

  for name in todo:
    way, _, size = name.rpartition("_")
    chosen = choose(bed.pool, way, int(size), score, bed.seed)
    start = time.perf_counter()
    # `apart` has the labels of labelling_active.py, and so its checkpoint.
    folder = f"active_{name}" if way == "apart" else f"errors_{name}"
    scorer = train(folder, chosen)
    train_s = time.perf_counter() - start
    point = dict(
      name=name,
      way=way,
      solutions=len(chosen),
      labels=sum(len(s.steps) for s in chosen),
      train_s=round(train_s, 1),
      with_error=sum(schema.first_error(s.labels or ()) >= 0 for s in chosen),
      by_group=by_group(samples, selecting, scorer.score(samples)),
      **testbed.measure(bed, scorer),
    )
    print(f"{bed.seed} {name}: {point['by_group']}", flush=True)
    yield point


def choose(
  pool: Sequence[schema.Solution],
  way: str,
  size: int,
  score: schema.Score,
  seed: int,
) -> list[schema.Solution]:
  """Returns the labelled solutions; no two are the same."""
  num_random = dict(random=size, apart=0, mixed=size // 2)[way]
  chosen: list[schema.Solution] = []
  if num_random:
    budget = active_selection.Budget(num_random)
    chosen, _ = active_selection.at_random(pool, budget, seed=seed)
  if num_random < size:
    more, _ = active_selection.most_convincing(
      pool,
      score,
      active_selection.Budget(size - num_random),
      exclude=[s.id for s in chosen],
      seed=seed,
    )
    chosen = [*chosen, *more]
  return chosen


def by_group(
  solutions: Sequence[schema.Solution],
  selecting: Sequence[schema.StepScores],
  scores: Sequence[schema.StepScores],
) -> dict[str, float | None]:
  """Returns a PRM's AUROC against the errors that the selecting PRM sees.

  Args:
    solutions: Solutions with labels.
    selecting: The selecting PRM's scores of them.
    scores: The PRM's.

  Returns:
    The AUROC against those that it sees and those that it misses, and the
    number of each: seen, missed, num_seen, num_missed. An AUROC is None without
    an error.
  """
  right: list[float] = []
  wrong: dict[str, list[float]] = dict(seen=[], missed=[])
  for s, theirs, own in zip(solutions, selecting, scores, strict=True):
    first = schema.first_error(s.labels or ())
    values = own.logits or own.scores
    right += values[:first] if first >= 0 else values
    if first >= 0:
      group = "missed" if theirs.scores[first] >= schema.THRESHOLD else "seen"
      wrong[group].append(values[first])
  measured: dict[str, float | None] = {}
  for group, values in wrong.items():
    correct = np.repeat([True, False], [len(right), len(values)])
    auroc = step_metrics.auroc(np.array([*right, *values]), correct)
    measured[group] = None if np.isnan(auroc) else float(auroc)
    measured[f"num_{group}"] = len(values)
  return measured


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  rows = [
    (
      *("labelled solutions", "drawn", "best of 64 by minimum, %"),
      *("AUROC, errors the selecting PRM sees", "errors it misses"),
      *("missed, % of errors", "with an error, %", "seeds"),
    )
  ]
  for name in NAMES:
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    way, _, size = name.rpartition("_")
    groups = [p["by_group"] for p in own]
    rows.append(
      (
        *(f"{int(size):,}", way),
        testbed.mean([p["best_of_n"]["min"][-1] for p in own], 100),
        *(_mean([g[x] for g in groups]) for x in ("seen", "missed")),
        testbed.mean([_share_missed(g) for g in groups], 100),
        testbed.mean([p["with_error"] / p["solutions"] for p in own], 100),
        str(len(own)),
      )
    )
  return testbed.markdown(rows) if rows[1:] else "no points yet"


def _mean(values: Sequence[float | None]) -> str:
  known = [x for x in values if x is not None]
  return testbed.mean(known, digits=3) if known else ""


def _share_missed(group: Mapping[str, float]) -> float:
  missed = group["num_missed"]
  return missed / max(missed + group["num_seen"], 1)


if __name__ == "__main__":
  testbed.run(__doc__.splitlines()[0], OUTPUT, NAMES, points_of_seed, table)
