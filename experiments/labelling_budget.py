"""Which labels make the better PRM at equal rollout budget?

Command:  python experiments/labelling_budget.py
          [--output=docs/results/labelling_budget.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=exact,hard_mc,...] [--small]
          [--table]
Hardware, time and result: see experiments/README.md.

PRMs on the arithmetic testbed, from the same base, with as many updates of as
many tokens. The budget is what plain Monte-Carlo labels of 1,000 solutions
spend, 8 rollouts after each step up to the first without a right one. The
others label as many solutions, or search as many problems, as it allows. For
the consensus a second labeller, trained on some 240 exactly labelled solutions
of other problems, judges the same 1,000: a PRM (exact_few, which is measured
itself) or a generative verifier. These labels are its extra cost. What the output already holds is not
computed again; results of another config are refused. --small is a test of
the path whose numbers mean nothing. --table prints the means over seeds as
Markdown.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import time
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.labelling import consensus
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.labelling import omega_tree
from prm_jax.testbed import arithmetic

OUTPUT = "docs/results/labelling_budget.json"
# Of the pool; those that Monte-Carlo and exact labels are made of.
SOLUTIONS, COMPLETIONS = 1_000, 8
# Of the problems, as many as the pool has solutions of each.
SEARCHES = 4
# Times the testbed's updates of a PRM: with fewer none has learned its labels.
TIMES = 4

Labelled = tuple[list[schema.Solution], dict[str, int]]
# Arm -> are its labels values, of which one below 1/2 is no error.
ARMS = dict(
  exact=False,
  exact_few=False,
  hard_mc=False,
  soft_mc=True,
  hard_mc_early=False,
  omega_hard=False,
  omega_soft=True,
  consensus_prm_hard=False,
  consensus_prm_soft=True,
  consensus_verifier_hard=False,
  consensus_verifier_soft=True,
)


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one variant's measures after another."""
  generate = testbed.completer(bed)
  soft = soft_labels(bed, generate)
  for name in todo:
    start = time.perf_counter()
    solutions, work = labels_of(name, bed, generate, soft)
    label_s = time.perf_counter() - start
    start = time.perf_counter()
    scorer = testbed.train(
      bed, f"budget_{name}", solutions, soft=ARMS[name], times=TIMES
    )
    train_s = time.perf_counter() - start
    start = time.perf_counter()
    measured = testbed.measure(bed, scorer)
    point = dict(
      name=name,
      solutions=len(solutions),
      labels=sum(x is not None for s in solutions for x in s.labels or ()),
      agreement=agreement(solutions),
      budget=soft[1]["rollouts"],
      work=work,
      engine=generate.cost(),
      label_s=round(label_s, 1),
      train_s=round(train_s, 1),
      measure_s=round(time.perf_counter() - start, 1),
      **measured,
    )
    print(f"{bed.seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def labels_of(
  name: str,
  bed: testbed.Testbed,
  generate: schema.Generate,
  soft: Labelled,
) -> Labelled:
  """Returns a variant's training labels, and the work that they took."""
  values, work = soft
  if name == "exact":
    return list(bed.pool[:SOLUTIONS]), dict(rollouts=0)
  if name == "exact_few":
    return list(bed.verifier_solutions), dict(rollouts=0)
  if name == "soft_mc":
    return values, work
  if name == "hard_mc":
    return [hardened(s) for s in values], work
  if name == "hard_mc_early":
    return early_labels(bed, generate, work["rollouts"])
  if name in ("omega_hard", "omega_soft"):
    return omega_labels(
      bed, generate, work["rollouts"], hard=name == "omega_hard"
    )
  _, second, how = name.split("_")
  return agreed(bed, soft, second, "hard" if how == "hard" else "a")


def agreed(
  bed: testbed.Testbed, soft: Labelled, second: str, labels: str
) -> Labelled:
  """Returns what Monte-Carlo labels and a second labeller agree on.

  second: prm, of exact_few, or verifier. labels: see Consensus.
  """
  values, work = soft
  bare = [_bare(s) for s in values]
  if second == "prm":
    scorer = testbed.train(
      bed, "budget_exact_few", bed.verifier_solutions, times=TIMES
    )
    scores = scorer.score(bare)
    others = [
      dataclasses.replace(s, labels=x.scores)
      for s, x in zip(bare, scores, strict=True)
    ]
    judging = dict(solutions=len(bare))
  else:
    others, judging = testbed.judged(bed, bare)
  both = consensus.Consensus(above_a=0.0, above_b=0.5, labels=labels)
  kept, counts = both.agree(values, others, names=("monte_carlo", second))
  print(f"    {second}: {testbed.described(counts)}")
  if not kept:
    raise errors_lib.InputError(
      f"consensus with the {second}: none of {len(values)} solutions is left;"
      " it needs more updates, or more verifier_problems"
    )
  return kept, dict(rollouts=work["rollouts"], judge=judging, consensus=counts)


def soft_labels(bed: testbed.Testbed, generate: schema.Generate) -> Labelled:
  """Returns plain Monte-Carlo values; their rollouts are the budget."""
  labelled = _monte_carlo(
    bed.pool[:SOLUTIONS],
    generate,
    monte_carlo.Options(COMPLETIONS, stop_at_zero=True),
  )
  print(f"{bed.seed} budget: {testbed.described(labelled[1])}", flush=True)
  return labelled


def early_labels(
  bed: testbed.Testbed, generate: schema.Generate, budget: int
) -> Labelled:
  """Returns hard labels of as many solutions as stop early within budget."""
  options = monte_carlo.Options(
    COMPLETIONS, hard=True, stop_early=True, stop_at_zero=True
  )
  return as_many(
    budget,
    len(bed.pool),
    lambda n: _monte_carlo(bed.pool[:n], generate, options),
  )


def omega_labels(
  bed: testbed.Testbed,
  generate: schema.Generate,
  budget: int,
  *,
  hard: bool,
) -> Labelled:
  """Returns OmegaPRM's labels on as many problems as the budget allows."""
  problems = list({s.problem: _bare(s) for s in bed.pool}.values())
  problems = [dataclasses.replace(s, steps=()) for s in problems]
  options = omega_tree.Options(
    COMPLETIONS, root_rollouts=COMPLETIONS, searches=SEARCHES, hard=hard
  )
  return as_many(
    budget,
    len(problems),
    lambda n: omega_prm.label(
      problems[:n],
      generate,
      arithmetic.verify,
      options,
      find_answer=arithmetic.final_answer,
    ),
  )


def as_many(
  budget: int, most: int, label: Callable[[int], Labelled]
) -> Labelled:
  """Returns the labels of the first n, for about the largest n in budget.

  label: labels the first n. It is called several times, with guesses from
  what it has spent so far, until 1 % of the budget or less is left, or n can
  be no larger; what it has drawn once it should remember.

  Raises:
    InputError: the first alone spends more than the budget.
  """
  fits, too_many = 0, most + 1
  best: Labelled | None = None
  n = min(most, 32)
  while too_many - fits > 1:
    labelled = label(n)
    spent = labelled[1]["rollouts"]
    if spent <= budget:
      fits, best = n, labelled
      if spent >= 0.99 * budget:
        break
    else:
      too_many = n
    guess = n * budget // max(spent, 1)
    n = min(max(guess, fits + 1), too_many - 1)
  if best is None:
    raise errors_lib.InputError(
      f"a budget of {budget} rollouts: not enough for the first problem"
    )
  return best


def hardened(solution: schema.Solution) -> schema.Solution:
  """Returns the solution with labels 1[value > 0], Math-Shepherd's hard."""
  return dataclasses.replace(
    solution,
    labels=tuple(
      None if x is None else float(x > 0) for x in solution.labels or ()
    ),
  )


def agreement(solutions: Sequence[schema.Solution]) -> dict[str, float]:
  """Returns how labels above 0 lie to the exact ones, and first errors.

  steps: over labels up to the first wrong step. first_error: over solutions,
  of which all labels up to the first at 0 are there.
  """
  steps, errors = [], []
  for s in solutions:
    exact = arithmetic.check(s.problem, s.steps)
    error = schema.first_error(exact)
    end = len(exact) if error < 0 else error + 1
    pairs = zip((s.labels or ())[:end], exact, strict=False)
    steps += [(x > 0) == (y > 0) for x, y in pairs if x is not None]
    named = consensus.first_error(s, 0.0)
    errors += [] if named is None else [named == error]
  return dict(
    steps=float(np.mean(steps)) if steps else 0.0,
    first_error=float(np.mean(errors)) if errors else 0.0,
    first_errors=len(errors),
  )


def _monte_carlo(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  options: monte_carlo.Options,
) -> Labelled:
  return monte_carlo.label(
    solutions,
    generate,
    arithmetic.verify,
    options,
    find_answer=arithmetic.final_answer,
  )


def _bare(solution: schema.Solution) -> schema.Solution:
  """Returns the solution without what exact labels tell."""
  return dataclasses.replace(solution, labels=None)


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  rows = [
    (
      "labels",
      "solutions",
      "number of labels",
      "agree with exact, %",
      "step AUROC",
      "first-error accuracy, %",
      *(f"best of 64 by {how}, %" for how in testbed.AGGREGATES),
      "seeds",
    )
  ]
  for name in ARMS:
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    best = [
      testbed.mean([p["best_of_n"][how][-1] for p in own], 100)
      for how in testbed.AGGREGATES
    ]
    rows.append(
      (
        name,
        testbed.mean([p["solutions"] for p in own], digits=0),
        testbed.mean([p["labels"] for p in own], digits=0),
        testbed.mean([p["agreement"]["steps"] for p in own], 100),
        testbed.mean([p["step_auroc"] for p in own], digits=3),
        testbed.mean([p["first_error_accuracy"] for p in own], 100),
        *best,
        str(len(own)),
      )
    )
  votes = {p["seed"]: p["majority"] for p in points}
  budgets = {p["seed"]: p["budget"] for p in points}
  if not votes:
    return "no points yet"
  return "\n\n".join(
    (
      testbed.markdown(rows),
      f"Majority vote {testbed.mean(list(votes.values()), 100)} %; budget"
      f" {testbed.mean(list(budgets.values()), digits=0)} rollouts.",
    )
  )


if __name__ == "__main__":
  testbed.run(
    __doc__.splitlines()[0], OUTPUT, tuple(ARMS), points_of_seed, table
  )
