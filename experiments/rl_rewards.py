"""What should a policy be rewarded for: its answer, or its steps?

Command:  python experiments/rl_rewards.py
          [--output=docs/results/rl_rewards.json] [--seeds=0,1,2]
          [--workdir=runs/rl] [--only=outcome,exact,...] [--small] [--table]
Hardware, time and result: see experiments/README.md.

One policy of arithmetic problems, one PRM, and rewards of the outcome, of exact
steps, of the PRM's steps, or of PRM and outcome together, each by the same PPO
at equal sampled tokens. The PRM's steps are rewarded by their sum, under four
baselines; by the least reward of this and later steps; by PURE's soft minimum;
and by clip and delta of Gao et al. Measured on held-out problems, greedily:
right answers, and those all of whose steps are right. The hacking monitor's
alarms of every run are in its point. before is the policy itself. What the
output already holds is not computed again. --small is a test of the path whose
numbers mean nothing. --table prints Markdown and draws the pictures again, next
to the output: .svg, _faithful.svg and _pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import labelling_testbed as testbed
import numpy as np
import rl_testbed

from prm_jax.rl import hacking_monitor

OUTPUT = "docs/results/rl_rewards.json"
KL = dict(kl_placement="reward", kl=0.02)
# To end with an answer pays a little: else one right line and no more would.
FORM = dict(format=0.2)
PRM = dict(prm=1.0) | FORM
EXACT = dict(exact=1.0) | FORM
# Solutions of a problem are compared with each other; step rewards by token,
# so that neither many steps nor few of them pay.
BY_TOKEN = dict(baseline="leave_one_out_token")
OUTCOME = dict(verifier=1.0)
ALONE = dict(baseline="leave_one_out")
MIN_TO_GO = dict(returns="min_to_go") | ALONE
# PURE's, whose step rewards are P(good) - P(bad).
SIGNED = dict(prm_form="signed")
SOFT_MIN = dict(returns="soft_min") | BY_TOKEN
CLIP_DELTA = dict(shape="clip_delta", threshold=0.5) | ALONE
ARMS: dict[str, dict[str, Any]] = dict(
  before={},
  outcome=dict(rewards=OUTCOME | FORM, loss=KL),
  exact=dict(rewards=EXACT, credit=BY_TOKEN, loss=KL),
  exact_min_to_go=dict(rewards=EXACT, credit=MIN_TO_GO, loss=KL),
  # Whole sums compared with each other, as who adds up scores would.
  prm_sum_no_kl=dict(rewards=PRM, credit=dict(baseline="group")),
  prm_sum=dict(rewards=PRM, credit=dict(baseline="group"), loss=KL),
  prm_sum_leave_one_out=dict(rewards=PRM, credit=ALONE, loss=KL),
  prm_sum_by_step=dict(
    rewards=PRM, credit=dict(baseline="leave_one_out_step"), loss=KL
  ),
  prm_sum_by_token=dict(rewards=PRM, credit=BY_TOKEN, loss=KL),
  prm_min_to_go=dict(rewards=PRM, credit=MIN_TO_GO, loss=KL),
  prm_soft_min=dict(rewards=PRM | SIGNED, credit=SOFT_MIN, loss=KL),
  prm_min_to_go_outcome=dict(rewards=PRM | OUTCOME, credit=MIN_TO_GO, loss=KL),
  prm_soft_min_outcome=dict(
    rewards=PRM | SIGNED | OUTCOME, credit=SOFT_MIN, loss=KL
  ),
  prm_clip_delta_outcome=dict(
    rewards=PRM | OUTCOME, credit=CLIP_DELTA, loss=KL
  ),
)
# Short enough for a picture.
LABELS = dict(
  before="none: the policy before",
  outcome="outcome",
  exact="exact, by token",
  exact_min_to_go="exact, min to go",
  prm_sum_no_kl="PRM sum, no KL",
  prm_sum="PRM sum, group",
  prm_sum_leave_one_out="PRM sum, solution",
  prm_sum_by_step="PRM sum, by step",
  prm_sum_by_token="PRM sum, by token",
  prm_min_to_go="PRM min to go",
  prm_soft_min="PRM soft min",
  prm_min_to_go_outcome="min to go, outcome",
  prm_soft_min_outcome="soft min, outcome",
  prm_clip_delta_outcome="clip-delta, outcome",
)
REWARDS = "../../rl.md#rewards-and-methods"
RETURNS = "../../returns.md#step-rewards-to-returns"
BASELINES = "../../returns.md#returns-to-advantages"
# What the page says of each, with a link from its folder.
ABOUT = dict(
  outcome=("A right answer is rewarded, no step.", REWARDS),
  exact=(
    "The sum of the exact labels, less the others' reward per token.",
    BASELINES,
  ),
  exact_min_to_go=("The least exact label of this and later steps.", RETURNS),
  prm_sum_no_kl=(
    "The sum of the PRM's scores, compared within a problem's solutions;"
    " nothing holds the policy near its start.",
    BASELINES,
  ),
  prm_sum=(
    "The sum of the PRM's scores, compared within a problem's solutions.",
    BASELINES,
  ),
  prm_sum_leave_one_out=(
    "The sum of the PRM's scores, less the mean of the other solutions' sums.",
    BASELINES,
  ),
  prm_sum_by_step=(
    "The sum of the PRM's scores, each less the others' mean score of a step.",
    BASELINES,
  ),
  prm_sum_by_token=(
    "The sum of the PRM's scores, less the others' reward per token.",
    BASELINES,
  ),
  prm_min_to_go=("The PRM's least score of this and later steps.", RETURNS),
  prm_soft_min=(
    "The soft minimum of the PRM's scores, as PURE has it.",
    RETURNS,
  ),
  prm_min_to_go_outcome=(
    "The PRM's least score of this and later steps, and the right answer.",
    RETURNS,
  ),
  prm_soft_min_outcome=(
    "PURE's soft minimum of the PRM's scores, and the right answer.",
    RETURNS,
  ),
  prm_clip_delta_outcome=(
    "The PRM's scores, cut at 0.5, each less the next one, so that more steps"
    " don't pay; and the right answer.",
    RETURNS,
  ),
)
# What is drawn together; the first are the picture of the docs.
GROUPS = {
  "Answers, exact steps, and the PRM's": (
    *("outcome", "exact", "prm_sum", "prm_soft_min"),
    *("prm_soft_min_outcome", "prm_clip_delta_outcome"),
  ),
  "Exact steps: their sum, and the least to go": (
    *("outcome", "exact", "exact_min_to_go"),
  ),
  "The sum of the PRM's scores, by its baseline": (
    *("prm_sum_no_kl", "prm_sum", "prm_sum_leave_one_out"),
    *("prm_sum_by_step", "prm_sum_by_token"),
  ),
  "What is made of the PRM's scores, alone and with the outcome": (
    *("prm_min_to_go", "prm_soft_min", "prm_min_to_go_outcome"),
    *("prm_soft_min_outcome", "prm_clip_delta_outcome"),
  ),
}


def fields_of(models: rl_testbed.Models, name: str) -> dict[str, Any] | None:
  """Returns the fields that a variant's run changes."""
  del models
  return ARMS[name] if name != "before" else None


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one variant's curves and last measures after another."""
  return rl_testbed.points(bed, todo, "rewards", fields_of)


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns each variant's results, over seeds, as a Markdown table."""
  rows = [
    (
      "reward",
      *("greedy: right, %", "all steps correct, %", "the same at most, %"),
      *("updates", "tokens of outcome / tokens to be as often all right"),
      "the same to be as often right",
      "prm score of samples, first and last",
      *("samples right, %", "best of N by the PRM, %"),
      "alarm: runs; first update, kind (turn; samples right then, at best)",
      "seeds",
    )
  ]
  for name in ARMS:
    own = [p for p in points if p["name"] == name]
    if not own:
      continue
    evals = [p["curves"].get("eval", {}) for p in own]
    if name == "before":
      evals = _at_first(points)
    trains = [p["curves"].get("train", {}) for p in own]

    def last(metric, curves, scale=100):
      values = [x[metric][-1] for x in curves if metric in x]
      return testbed.mean(values, scale) if values else ""

    scores = [x["prm_score"] for x in trains if "prm_score" in x]
    rows.append(
      (
        LABELS[name],
        last("accuracy", evals),
        last("all_steps_correct", evals),
        testbed.mean([max(x["all_steps_correct"]) for x in evals if x], 100)
        if any(evals)
        else "",
        last("step", trains, 1) if any(trains) else "",
        *(
          rl_testbed.factor(points, "outcome", name, metric)
          if name not in ("before", "outcome")
          else ""
          for metric in ("all_steps_correct", "accuracy")
        ),
        " to ".join(
          testbed.mean([x[k] for x in scores], digits=3) for k in (0, -1)
        )
        if scores
        else "",
        testbed.mean([p["best_of"]["mean"] for p in own], 100),
        testbed.mean([p["best_of"]["best_of_n"][-1] for p in own], 100),
        _alarms([p["curves"] for p in own]),
        str(len(own)),
      )
    )
  if not rows[1:]:
    return "no points yet"
  return f"{testbed.markdown(rows)}\n\n{_luck(points)}"


def _at_first(
  points: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
  """Returns what each seed's policy does before any update, as curves."""
  evals = {p["seed"]: p["curves"].get("eval") for p in points if p["curves"]}
  return [{m: values[:1] for m, values in x.items()} for x in evals.values()]


def _luck(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns the share of right samples with a wrong step, by seed.

  Of the first three updates, all variants together.
  """
  shares = []
  for seed in sorted({p["seed"] for p in points}):
    trains = [
      p["curves"]["train"] for p in points if p["seed"] == seed and p["curves"]
    ]
    right, sound = (
      np.mean([x[metric][:3] for x in trains])
      for metric in ("accuracy", "all_steps_correct")
    )
    shares.append(f"{100 * (1 - sound / right):.0f}")
  return f"right samples with a wrong step, %, by seed: {', '.join(shares)}"


def _alarms(runs: Sequence[Mapping[str, Any]]) -> str:
  """Returns how many runs had an alarm of hacking, and when the first was.

  Drift of lengths is another matter. With it the share of right samples, in %:
  of the three updates up to the alarm, and of the best five before it.
  """
  known = []
  for run in runs:
    alarms = [
      (x["update"], x["turn"], x["kind"])
      for x in run.get("alarms", [])
      if x["kind"] not in hacking_monitor.DRIFTS
    ]
    if alarms:
      update, turn, kind = min(alarms)
      right = 100 * np.asarray(run["train"]["accuracy"][:update])
      best = max(right[i - 5 : i].mean() for i in range(5, update + 1))
      known.append(
        f"{update}, {kind} ({turn}; {right[-3:].mean():.0f}, {best:.0f})"
      )
  return "; ".join((f"{len(known)} of {len(runs)}", *known))


if __name__ == "__main__":
  title = __doc__.splitlines()[0]
  rl_testbed.run(
    title, OUTPUT, ARMS, points_of_seed, table, GROUPS, LABELS, ABOUT
  )
