"""Trains a policy by reinforcement learning with rewards for its steps.

Each update samples solutions, rewards a step by the PRM and the end by whether
the answer is right, and follows the gradient; the share of unseen problems
that the policy solves with all steps right rises within 12 updates. It takes
about 15 seconds on two CPU cores, and once 30 more for the models:

  python stories/rl_with_step_rewards.py [FOLDER]
"""

import json
import pathlib
import runpy
import sys

import numpy as np

import prm_jax
from prm_jax.testbed import arithmetic

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():  # the models of the first story
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- Problems -----------------------------------------------------------------

# Of a file of right solutions RL takes the problems and answers, not the
# steps.
task = arithmetic.Task(min_turns=2, max_turns=4)
random = np.random.default_rng(3)


def problems_file(count: int, split: str) -> str:
  path = folder / f"rl_{split}.jsonl"
  problems = arithmetic.problems(count, split, task, random)
  right = [arithmetic.judge(arithmetic.solve(p, random)) for p in problems]
  prm_jax.write_solutions(path, right)
  return f"jsonl:{path}"


# --- The run ------------------------------------------------------------------

config = dict(
  program="rl",
  seed=0,
  init_from=str(folder / "policy"),
  prm=str(folder / "prm"),
  problems=dict(
    train=problems_file(600, "train"),
    evaluation=problems_file(100, "test"),
    grader="arithmetic",  # it also knows which steps are right; no reward does
  ),
  # 8 solutions of each of 16 problems, sampled anew for each update.
  rollout=dict(problems=16, samples=8, max_tokens=48, slots=64, chunk=8),
  rewards=dict(prm=1.0, verifier=1.0),
  # The PRM's scores are clipped and taken as differences, so that further good
  # steps pay nothing (docs/returns.md); a solution is compared with the other
  # 7.
  credit=dict(shape="clip_delta", returns="sum", baseline="leave_one_out"),
  loss=dict(kind="ppo", kl_placement="reward", kl=0.02),
  packing=dict(batch_size=8, sequence_length=256, share_prefixes=True),
  optimizer=dict(peak_lr=5e-4, warmup_steps=3),
  fit=dict(steps=12, log_every=1, eval_every=12, tensorboard=False),
  monitor=dict(action="warn"),  # of a policy that fools the PRM
)
prm_jax.Train(config, folder / "rl").run()

# --- What came of it ----------------------------------------------------------

SOUND = "all_steps_correct"
lines = (folder / "rl" / "metrics.jsonl").read_text().splitlines()
records = [json.loads(line) for line in lines]
print("update  right  all steps right  PRM's score  (of the samples)")
for r in records:
  if r["kind"] == "train":
    print(
      f"{r['step']:>6}{r['accuracy']:>7.0%}{r[SOUND]:>17.0%}"
      f"{r['prm_score']:>13.2f}"
    )
before, *_, after = [r for r in records if r["kind"] == "eval"]
print(f"""
Greedy answers to 100 unseen problems, before and after:
  right            {before["accuracy"]:>5.0%} {after["accuracy"]:>5.0%}
  all steps right  {before[SOUND]:>5.0%} {after[SOUND]:>5.0%}

This is one seed, and twelve updates. A policy that is trained for long, on the
PRM alone, can learn to please it: keep the answer's reward, and look at the
alarms of docs/hacking_monitor.md. docs/rl.md has the other methods and what
they ended at.

{folder / "rl"} is a policy like the first; report/index.html in it shows the run.
Next: stories/serve_to_a_trainer.py""")
