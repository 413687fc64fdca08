"""Which reward should rl_arithmetic.py have, and does the monitor see hacking?

Command:  python experiments/rl_defaults.py
          [--output=docs/results/rl_defaults.json] [--seeds=0,1,2,3,4,5]
          [--demos=runs/demo_seeds] [--workdir=runs/rl_defaults]
          [--only=...] [--table]
Hardware, time and result: see experiments/README.md.

rl_arithmetic.py with other rewards, on the policy and the PRM of each demo of
demo_seeds.py, measured greedily on its 200 validation problems. Seeds 0, 1 and
2 have all variants, by which the config's are chosen: the variant with the most
answers right with all steps correct at the end, by the mean over the three
seeds; of variants within a point, the one whose worst seed is best. The others
have the variants of MONITORED alone: they are the hacking monitor's fresh runs,
whose rules were chosen on the first run of rl_rewards.py. What the output
already holds is not computed again. --table prints Markdown.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import labelling_testbed as testbed
import rl_rewards
import rl_testbed

from prm_jax.rl import rl_run_config as rl_run_config
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

OUTPUT = pathlib.Path("docs/results/rl_defaults.json")
WORKDIR = pathlib.Path("runs/rl_defaults")
DEMOS = pathlib.Path("runs/demo_seeds")
SEEDS = "0,1,2,3,4,5"
ALL_VARIANTS = (0, 1, 2)
MONITORED = ("prm_sum", "prm_clip_delta_outcome")
# Rewards and credit as there; the config has the same loss.
ARMS = {
  name: rl_rewards.ARMS[name]
  for name in (
    *("outcome", "prm_sum", "prm_min_to_go", "prm_clip_delta_outcome"),
    *("prm_sum_by_token", "prm_soft_min"),
    *("prm_min_to_go_outcome", "prm_soft_min_outcome"),
  )
} | dict(
  prm_sum_by_token_outcome=dict(
    rewards=rl_rewards.PRM | rl_rewards.OUTCOME, credit=rl_rewards.BY_TOKEN
  )
)
LABELS = rl_rewards.LABELS | dict(prm_sum_by_token_outcome="by token, outcome")


def configured(
  demo: pathlib.Path, seed: int, arm: Mapping[str, Any]
) -> rl_run_config.Run:
  """Returns rl_arithmetic.py with an arm's rewards and credit, on a demo.

  The monitor warns only, so that a run's whole course is measured.
  """
  path = pathlib.Path(__file__).parent / "rl_arithmetic.py"
  run = rl_run_config.from_config(rl_run_config.filled(verbs.Config(path)))
  config = dataclasses.replace(
    run.config,
    seed=seed,
    init_from=str(demo / "policy"),
    prm=str(demo / "prm"),
    held_out_prm=str(demo / "prm_mc"),
    rewards=type(run.config.rewards)(**arm["rewards"]),
    credit=type(run.config.credit)(**arm.get("credit", {})),
    monitor=dataclasses.replace(run.config.monitor, action="warn"),
  )
  return dataclasses.replace(run, config=config)


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns each variant's results on validation problems, over seeds."""
  heads = ("reward", "right, %", "all steps correct, %", "at most, %", "seeds")
  tables = []
  for chosen, seeds in (
    ("all variants", set(ALL_VARIANTS)),
    ("all seeds", {p["seed"] for p in points}),
  ):
    rows = [(f"{heads[0]}, {chosen}", *heads[1:]), _before(points, seeds)]
    for name in ARMS:
      own = [
        p["curves"]["eval"]
        for p in points
        if p["name"] == name and p["seed"] in seeds
      ]
      if own and (chosen == "all variants" or name in MONITORED):
        sound = [x["all_steps_correct"] for x in own]
        rows.append(
          (
            LABELS[name],
            testbed.mean([x["accuracy"][-1] for x in own], 100),
            testbed.mean([x[-1] for x in sound], 100),
            testbed.mean([max(x) for x in sound], 100),
            str(len(own)),
          )
        )
    tables.append(testbed.markdown(rows))
  return "\n\n".join(tables)


def _before(points, seeds) -> tuple[str, ...]:
  """Returns the row of the policies that the runs begin with."""
  first = {p["seed"]: p["curves"]["eval"] for p in points if p["seed"] in seeds}
  right, sound = (
    testbed.mean([x[name][0] for x in first.values()], 100)
    for name in ("accuracy", "all_steps_correct")
  )
  return "none: the policy before", right, sound, "", str(len(first))


@testbed.exit_on_input_error()
def main() -> None:
  parser = testbed.parser_of(__doc__.splitlines()[0], OUTPUT, WORKDIR, SEEDS)
  parser.add_argument("--demos", type=pathlib.Path, default=DEMOS)
  parser.add_argument("--only", default=",".join(ARMS))
  args = parser.parse_args()
  if args.table:
    print(table(files.read_json(args.output)["points"]))
    return
  wanted = testbed.names_of(args.only, ARMS)
  outputs.check(dict(output=args.output))
  args.workdir.mkdir(parents=True, exist_ok=True)
  c = config_files.load(pathlib.Path(__file__).parent / "rl_arithmetic.py")
  with c.unlocked():
    # What the variants replace, and what is chosen among them.
    del c.rewards, c.credit
  details = environment.describe(c)
  for seed in testbed.numbers(args.seeds):
    for name in wanted:
      saved = testbed.read_points(args.output, details["config"])
      if any((p["seed"], p["name"]) == (seed, name) for p in saved):
        continue
      if seed not in ALL_VARIANTS and name not in MONITORED:
        continue
      run = configured(args.demos / str(seed), seed, ARMS[name])
      workdir = args.workdir / str(seed) / name
      run.train(workdir)
      curves = rl_testbed.read_curves(workdir, run.config.monitor)
      testbed.add_point(
        *(args.output, args.workdir),
        dict(seed=seed, name=name, curves=curves),
        details,
        lambda points: testbed.command_of(points, tuple(ARMS), args, parser),
      )
  print(table(testbed.read_points(args.output, details["config"])))


if __name__ == "__main__":
  main()
