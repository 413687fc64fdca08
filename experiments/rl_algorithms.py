"""Which algorithm learns fastest from the same samples, and does a PRM help a critic?

Command:  python experiments/rl_algorithms.py
          [--output=docs/results/rl_algorithms.json] [--seeds=0,1,2]
          [--workdir=runs/rl] [--only=reinforce,ppo,...] [--small] [--table]
Hardware, time and result: see experiments/README.md.

The policy, PRM and problems of rl_rewards.py. All have one reward: PURE's soft
minimum over the PRM's step scores, the right answer, and a little for the
format. REINFORCE makes one update of a rollout, the others four (two epochs of
two minibatches), of as many sampled solutions; all have the same rate. PPO with
a critic learns by GAE, its critic fresh (the policy's trunk) or from the PRM's
trunk; GRPO has its KL in the loss. imitate is rejection sampling and knows the
answer alone: it learns to write the samples whose answer is right. What the
output already holds is not computed again. --small is a test of the path whose
numbers mean nothing. --table prints Markdown and draws the pictures again, next
to the output: .svg, _faithful.svg and _pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import labelling_testbed as testbed
import rl_testbed

OUTPUT = "docs/results/rl_algorithms.json"
REWARDS = dict(prm=1.0, prm_form="signed", verifier=1.0, format=0.2)
KL = dict(kl_placement="reward", kl=0.02)
FOUR = dict(epochs=2, minibatches=2)


def by(baseline: str) -> dict[str, Any]:
  """Returns the credit of a soft minimum by a baseline."""
  return dict(returns="soft_min", baseline=baseline)


CRITIC = dict(
  rewards=REWARDS,
  credit=by("gae") | dict(gae_lambda=0.95, whiten=True),
  loss=KL | dict(critic="separate", value_clip=0.2),
  **FOUR,
)
ARMS: dict[str, dict[str, Any]] = dict(
  reinforce=dict(
    rewards=REWARDS,
    credit=by("leave_one_out_token"),
    loss=KL | dict(kind="reinforce"),
  ),
  ppo=dict(rewards=REWARDS, credit=by("leave_one_out_token"), loss=KL, **FOUR),
  grpo=dict(
    rewards=REWARDS,
    credit=by("group_step"),
    loss=dict(
      loss_aggregation="solutions",
      kl_placement="loss",
      kl=0.02,
      kl_estimator="k3",
    ),
    **FOUR,
  ),
  critic_fresh=CRITIC,
  critic_prm=CRITIC,
  imitate=dict(
    rewards=dict(verifier=1.0),
    credit=dict(baseline="none"),
    loss=dict(
      kind="rejection_sampling", return_threshold=0.5, max_per_problem=4
    ),
    **FOUR,
  ),
)
LABELS = dict(
  reinforce="REINFORCE",
  ppo="PPO",
  grpo="GRPO, steps",
  critic_fresh="PPO, fresh critic",
  critic_prm="PPO, PRM's critic",
  imitate="expert iteration",
)
METHODS = "../../rl.md#rewards-and-methods"
BASELINES = "../../returns.md#returns-to-advantages"
# What the page says of each, with a link from its folder.
ABOUT = dict(
  reinforce=(
    "One update of each rollout; the baseline is the others' reward per token.",
    METHODS,
  ),
  ppo=("PPO: four updates of each rollout, with the same baseline.", METHODS),
  grpo=(
    "GRPO with process rewards: step rewards over the deviation of a problem's"
    " solutions, the KL in the loss.",
    METHODS,
  ),
  critic_fresh=("PPO with GAE; its critic starts as the policy.", BASELINES),
  critic_prm=("PPO with GAE; its critic starts as the PRM.", BASELINES),
  imitate=(
    "The policy learns to write its own samples whose answer is right.",
    METHODS,
  ),
)
# What is drawn together.
GROUPS = {"At equal sampled tokens": tuple(ARMS)}


def fields_of(models: rl_testbed.Models, name: str) -> dict[str, Any]:
  """Returns the fields that a variant's run changes."""
  fields = ARMS[name]
  return fields | dict(critic=models.prm) if name == "critic_prm" else fields


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one variant's curves and last measures after another."""
  return rl_testbed.points(bed, todo, "algorithms", fields_of)


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns what each algorithm came to, over seeds, as a Markdown table."""
  rows = [
    (
      *("algorithm", "greedy: right, %", "all steps correct, %"),
      "at half the updates",
      *("tokens of reinforce / tokens to be as often all right",),
      *("explained variance, last quarter", "seeds"),
    )
  ]
  for name in ARMS:
    own = [p["curves"] for p in points if p["name"] == name]
    if not own:
      continue
    halves = [x["eval"]["all_steps_correct"] for x in own]
    explained = [
      x["train"]["explained_variance"]
      for x in own
      if "explained_variance" in x["train"]
    ]
    last = [_mean(x[-max(1, len(x) // 4) :]) for x in explained]
    rows.append(
      (
        LABELS[name],
        testbed.mean([x["eval"]["accuracy"][-1] for x in own], 100),
        testbed.mean([x[-1] for x in halves], 100),
        testbed.mean([x[len(x) // 2] for x in halves], 100),
        rl_testbed.factor(points, "reinforce", name, "all_steps_correct")
        if name != "reinforce"
        else "",
        testbed.mean(last, digits=2) if last else "",
        str(len(own)),
      )
    )
  if not rows[1:]:
    return "no points yet"
  factor = rl_testbed.factor(
    points, "critic_fresh", "critic_prm", "all_steps_correct"
  )
  return "\n\n".join(
    (
      testbed.markdown(rows),
      f"A fresh critic takes {factor or '?'} times the tokens of one from the"
      " PRM.",
    )
  )


def _mean(values: Sequence[float | None]) -> float:
  known = [x for x in values if x is not None]
  return sum(known) / max(len(known), 1)


if __name__ == "__main__":
  title = __doc__.splitlines()[0]
  rl_testbed.run(
    title, OUTPUT, ARMS, points_of_seed, table, GROUPS, LABELS, ABOUT
  )
