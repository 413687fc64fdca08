"""How good are Monte-Carlo labels, by the number of rollouts?

Command:  python experiments/labelling_monte_carlo.py
          [--output=docs/results/labelling_monte_carlo.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--small] [--table]
Hardware, time and result: see experiments/README.md.

Labels of the arithmetic testbed's pool by rollouts of the policy that wrote it,
against the exact verifier. 16 rollouts are drawn after each step, in rounds of
1, 1, 2, 4 and 8; a smaller K is the first K of them. The last step, whose label
is the outcome itself, counts for the first error alone. After the first wrong
step exact labels are 0 as well; these steps are skipped. How early stopping,
the sequential bound and OmegaPRM save rollouts is counted on the same random
numbers. What the output already holds is not computed again; results of another
config are refused. --small is a test of the path whose numbers mean nothing.
--table prints the means over seeds as Markdown.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import dataclasses
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import consensus
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.labelling import omega_tree
from prm_jax.labelling import prefix_rollouts
from prm_jax.testbed import arithmetic

OUTPUT = "docs/results/labelling_monte_carlo.json"
COMPLETIONS = (1, 2, 4, 8, 16)
# Of the pool; all samples of a problem are adjacent.
SOLUTIONS = 1_000
# K of the savings, and of OmegaPRM, whose default it is.
SAVING_COMPLETIONS = 8
MAX_WIDTH = 0.5
# K of the table of right steps without a right rollout; at 16 there are few.
FEW = 2


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the one point of a seed."""
  del todo
  solutions = bed.pool[:SOLUTIONS]
  generate = testbed.completer(bed)
  labelled = {
    k: _label(solutions, generate, monte_carlo.Options(k, rounds=rounds(k)))
    for k in reversed(COMPLETIONS)
  }
  cost = generate.cost()
  most, work = labelled[COMPLETIONS[-1]]
  print(f"{bed.seed}: {testbed.described(work)}", flush=True)
  yield dict(
    name="monte_carlo",
    solutions=len(solutions),
    right_answers=sum(s.outcome is True for s in solutions),
    with_error=sum(schema.first_error(s.labels or ()) >= 0 for s in solutions),
    work=work,
    engine=cost,
    by_completions={
      str(k): compare(solutions, labelled[k][0], k) for k in COMPLETIONS
    },
    false_positives=false_positives(solutions, most, generate.drawn),
    false_negatives_by_completions={
      str(k): false_negatives(solutions, labelled[k][0], bed.config.task)
      for k in COMPLETIONS
    },
    savings=savings(solutions, generate),
    omega_prm=omega(solutions, generate),
  )


def rounds(completions: int) -> tuple[int, ...]:
  """Returns the rounds of K, which are the first ones of every larger K."""
  return monte_carlo.doubling(completions)


def compare(
  exact: Sequence[schema.Solution],
  labelled: Sequence[schema.Solution],
  completions: int,
) -> dict[str, Any]:
  """Returns how the values of steps lie to their exact labels.

  by_threshold: of hard labels 1[value > k/K] for k = 0 .. K-1, the agreement
  over steps up to the first wrong one, the share of right and of wrong steps
  that are labelled so, and of solutions whose first error is named.
  """
  values = [list(s.labels or ())[:-1] for s in labelled]
  truth = [list(s.labels or ())[:-1] for s in exact]
  steps = step_metrics.evaluate(
    values,
    truth,
    problems=[s.problem for s in exact],
    num_resamples=500,
  )
  judged = step_metrics.judged_steps(values, truth)
  errors = [schema.first_error(s.labels or ()) for s in exact]
  by_threshold = []
  for k in range(completions):
    above = k / completions
    hard = judged.scores > above
    named = [consensus.first_error(s, above) for s in labelled]
    by_threshold.append(
      dict(
        threshold=above,
        agreement=float(np.mean(hard == judged.correct)),
        right_kept=float(np.mean(hard[judged.correct])),
        wrong_found=float(np.mean(~hard[~judged.correct])),
        first_error=float(
          np.mean([a == b for a, b in zip(named, errors, strict=True)])
        ),
      )
    )
  return dict(
    steps=len(judged.scores),
    wrong_steps=int((~judged.correct).sum()),
    auroc=steps["auroc"],
    auroc_interval=steps["auroc_interval"],
    by_threshold=by_threshold,
  )


# --- Why labels are wrong ---------------------------------------------------


def false_positives(
  exact: Sequence[schema.Solution],
  labelled: Sequence[schema.Solution],
  drawn: dict[str, list[schema.Solution]],
) -> dict[str, Any]:
  """Returns where first wrong steps have a value above 0, and why.

  Counted over distinct prefixes that end with their first error, and over
  their rollouts that ended right, each by `cause`.
  """
  wrong: Counter[str] = Counter()
  caught: Counter[str] = Counter()
  causes: Counter[str] = Counter()
  sums: list[float] = []
  for s, value in _first_errors(exact, labelled):
    places = [f"turn {len(s.steps)}", _sign(s)]
    wrong.update(["all", *places])
    sums.append(value)
    if value > 0:
      caught.update(["all", *places])
    whole = _rollouts(s, drawn)
    verdicts = arithmetic.verify(whole)
    causes.update(
      cause(s, r) for r, right in zip(whole, verdicts, strict=True) if right
    )
  return dict(
    wrong_prefixes=dict(wrong),
    above_zero=dict(caught),
    mean_value=float(np.mean(sums)) if sums else None,
    right_rollouts_by_cause=dict(causes.most_common()),
  )


def cause(prefix: schema.Solution, whole: schema.Solution) -> str:
  """Returns how a rollout from a wrong prefix came to the right answer.

  right_value: the wrong step names the position that is right there.
  many_to_one: every later step is a right turn from the position before it,
  and a times sends the wrong position and the right one to the same place.
  not_carried: a later step begins somewhere else than the one before it ends.
  second_error: a later turn is wrong as well, and makes up for the first.
  """
  true, turns = arithmetic.parse(prefix.problem)
  for sign, n in turns[: len(prefix.steps)]:
    true = arithmetic.turn(true, sign, n)
  value = _result(prefix.steps[-1])
  if value == true:
    return "right_value"
  rest = whole.steps[len(prefix.steps) : -1]
  remaining = turns[len(prefix.steps) :]
  if value is None or len(rest) != len(remaining):
    return "second_error"
  for step, (sign, n) in zip(rest, remaining, strict=True):
    _, _, turned = step.partition(" ")
    if not turned.startswith(f"{value} "):
      return "not_carried"
    expected = arithmetic.turn(value, sign, n)
    if turned != f"{value} {sign} {n} = {expected}":
      return "second_error"
    value = expected
  return (
    "many_to_one" if whole.steps[-1] == f"answer {value}" else "not_carried"
  )


def false_negatives(
  exact: Sequence[schema.Solution],
  labelled: Sequence[schema.Solution],
  task: arithmetic.Task,
) -> dict[str, Any]:
  """Returns how many right prefixes have value 0, by what is still to do.

  By the number of turns left, and by that of the hard ones among them, at
  which the annotator that the policy imitates slips most.
  """
  right: Counter[str] = Counter()
  missed: Counter[str] = Counter()
  for s, value in _right_prefixes(exact, labelled):
    left = arithmetic.parse(s.problem)[1][len(s.steps) :]
    hard = sum(sign == "*" and n >= task.hard_from for sign, n in left)
    places = ["all", f"{len(left)} left", f"{hard} hard left"]
    right.update(places)
    if not value:
      missed.update(places)
  return dict(right_prefixes=dict(right), at_zero=dict(missed))


def _first_errors(exact, labelled) -> list[tuple[schema.Solution, float]]:
  """Returns distinct prefixes that end in their first error, with values."""
  return _prefixes(exact, labelled, lambda error, k: k == error)


def _right_prefixes(exact, labelled) -> list[tuple[schema.Solution, float]]:
  return _prefixes(exact, labelled, lambda error, k: error < 0 or k < error)


def _prefixes(
  exact: Sequence[schema.Solution],
  labelled: Sequence[schema.Solution],
  wanted: Callable[[int, int], bool],
) -> list[tuple[schema.Solution, float]]:
  """Returns distinct prefixes, without the last step, with their values."""
  prefixes = {}
  for s, by_rollouts in zip(exact, labelled, strict=True):
    error = schema.first_error(s.labels or ())
    for k, value in enumerate((by_rollouts.labels or ())[:-1]):
      if wanted(error, k) and value is not None:
        key = (s.problem, *s.steps[: k + 1])
        prefix = dataclasses.replace(
          s, steps=s.steps[: k + 1], labels=None, extra={}
        )
        prefixes.setdefault(key, (prefix, value))
  return list(prefixes.values())


def _rollouts(
  prefix: schema.Solution, drawn: dict[str, list[schema.Solution]]
) -> list[schema.Solution]:
  """Returns all that was drawn after a prefix, in the order of rounds."""
  rollouts = []
  for number, size in enumerate(rounds(COMPLETIONS[-1])):
    asked = prefix_rollouts.prefix(
      prefix, len(prefix.steps), round_number=number
    )
    rollouts += drawn[asked.id][:size]
  return rollouts


def _sign(prefix: schema.Solution) -> str:
  """Returns the sign of the turn at a prefix's last step."""
  turns = arithmetic.parse(prefix.problem)[1]
  k = len(prefix.steps) - 1
  return f"sign {turns[k][0]}" if k < len(turns) else "no such turn"


def _result(step: str) -> int | None:
  """Returns the position that a step ends at, if it names one."""
  last = step.rpartition(" = ")[2]
  return int(last) if last in tuple("01234567") else None


# --- Rollouts saved ---------------------------------------------------------


def savings(
  solutions: Sequence[schema.Solution], generate: schema.Generate
) -> dict[str, dict[str, int]]:
  """Returns the work of each way to spare rollouts, at K = 8.

  hard and stop_at_zero draw as many as their labels need; stop_early gives the
  same labels as hard. Of max_width labels and K differ.
  """
  k = SAVING_COMPLETIONS
  ways = dict(
    plain=monte_carlo.Options(k, rounds=rounds(k)),
    stop_at_zero=monte_carlo.Options(k, rounds=rounds(k), stop_at_zero=True),
    stop_early=monte_carlo.Options(k, hard=True, stop_early=True),
    stop_early_at_zero=monte_carlo.Options(
      k, hard=True, stop_early=True, stop_at_zero=True
    ),
    max_width=monte_carlo.Options(COMPLETIONS[-1], max_width=MAX_WIDTH),
  )
  return {
    name: _label(solutions, generate, options)[1]
    for name, options in ways.items()
  }


def omega(
  solutions: Sequence[schema.Solution], generate: schema.Generate
) -> dict[str, Any]:
  """Returns OmegaPRM's work on the same problems, and brute force's ratio.

  first_error: the share of its searched rollouts whose first error it names.
  """
  problems = {
    s.problem: dataclasses.replace(s, steps=(), labels=None) for s in solutions
  }
  labelled, work = omega_prm.label(
    list(problems.values()),
    generate,
    arithmetic.verify,
    omega_tree.Options(
      completions=SAVING_COMPLETIONS, root_rollouts=8, searches=8, hard=True
    ),
    find_answer=arithmetic.final_answer,
  )
  # Labels are where they were first assigned; values along the whole path.
  closed = [
    (
      s.extra["values"].index(0.0),
      schema.first_error(arithmetic.check(s.problem, s.steps)),
    )
    for s in labelled
    if 0.0 in s.extra["values"]
  ]
  ratio = omega_prm.ratio(work)
  return dict(
    work=work,
    ratio=None if np.isnan(ratio) else ratio,
    first_errors_named=len(closed),
    first_error=float(np.mean([a == b for a, b in closed])) if closed else None,
  )


def _label(solutions, generate, options):
  return monte_carlo.label(
    solutions,
    generate,
    arithmetic.verify,
    options,
    find_answer=arithmetic.final_answer,
  )


# --- Table ------------------------------------------------------------------


def table(points: Sequence[testbed.Point]) -> str:
  """Returns Markdown: by K, then the causes, then the rollouts."""
  if not points:
    return "no points yet"
  parts = [_by_completions(points), _causes(points), _rollouts_table(points)]
  return "\n\n".join(parts)


def _by_completions(points: Sequence[testbed.Point]) -> str:
  rows = [
    (
      "K",
      "AUROC of the value",
      "hard label at value > 0 agrees, %",
      "right steps kept, %",
      "wrong steps found, %",
      "first error named, %",
      "best threshold for the first error",
      "named there, %",
    )
  ]
  for k in COMPLETIONS:
    own = [p["by_completions"][str(k)] for p in points]
    zero = [x["by_threshold"][0] for x in own]
    best = [
      max(x["by_threshold"], key=lambda row: row["first_error"]) for x in own
    ]
    rows.append(
      (
        str(k),
        testbed.mean([x["auroc"] for x in own], digits=3),
        *(
          testbed.mean([x[name] for x in zero], 100)
          for name in ("agreement", "right_kept", "wrong_found", "first_error")
        ),
        testbed.mean([x["threshold"] for x in best], digits=2),
        testbed.mean([x["first_error"] for x in best], 100),
      )
    )
  return testbed.markdown(rows)


def _causes(points: Sequence[testbed.Point]) -> str:
  rows = [("hard labels at value > 0", "wrong so", "of", "%")]
  most, few = str(COMPLETIONS[-1]), str(FEW)
  missed = [p["false_negatives_by_completions"][few] for p in points]
  for title, counts, all_, some in (
    (
      f"first wrong step labelled right, K = {most}",
      [p["false_positives"] for p in points],
      "wrong_prefixes",
      "above_zero",
    ),
    (
      f"right step labelled wrong, K = {few}",
      missed,
      "right_prefixes",
      "at_zero",
    ),
  ):
    kinds = sorted({kind for c in counts for kind in c[all_]})
    for kind in kinds:
      of = sum(c[all_].get(kind, 0) for c in counts)
      n = sum(c[some].get(kind, 0) for c in counts)
      rows.append(
        (f"{title}: {kind}", f"{n:,}", f"{of:,}", f"{100 * n / of:.1f}")
      )
  causes: Counter[str] = Counter()
  for p in points:
    causes.update(p["false_positives"]["right_rollouts_by_cause"])
  for kind, n in causes.most_common():
    of = causes.total()
    name = f"right rollouts from a wrong step: {kind}"
    rows.append((name, f"{n:,}", f"{of:,}", f"{100 * n / of:.1f}"))
  return testbed.markdown(rows)


def _rollouts_table(points: Sequence[testbed.Point]) -> str:
  rows = [("way", "rollouts", "share of plain's at its K, %")]
  for name in points[0]["savings"]:
    works = [p["savings"][name] for p in points]
    spent = [w["rollouts"] for w in works]
    shares = [
      n / (n + w["rollouts_saved"]) for n, w in zip(spent, works, strict=True)
    ]
    rows.append(
      (name, testbed.mean(spent, digits=0), testbed.mean(shares, 100))
    )
  omegas = [p["omega_prm"] for p in points]
  rows.append(
    (
      "omega_prm",
      testbed.mean([x["work"]["rollouts"] for x in omegas], digits=0),
      testbed.mean([1 / x["ratio"] for x in omegas if x["ratio"]] or [0], 100),
    )
  )
  return testbed.markdown(rows)


if __name__ == "__main__":
  testbed.run(
    __doc__.splitlines()[0], OUTPUT, ("monte_carlo",), points_of_seed, table
  )
