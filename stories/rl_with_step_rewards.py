"""Trains a policy by reinforcement learning, with rewards for steps and answers.

The PRM's scores are clipped and replaced by their differences, so that more steps
earn no more (Gao et al. 2024); the right answer is rewarded, too. It takes about
a minute on two CPU cores, and once 30 seconds more for the models of the first
story: python stories/rl_with_step_rewards.py [FOLDER]
"""

import json
import pathlib
import runpy
import sys

import prm_jax

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- The run ------------------------------------------------------------------

# One update: sample 8 solutions of each of 16 problems, score them, turn scores
# into an advantage of each token, and follow the gradient. Every stage has a
# group of its own in the config.
config = dict(
  program="rl",
  seed=0,
  init_from=str(folder / "policy"),
  prm=str(folder / "prm"),
  problems=dict(
    train="arithmetic:train:2000",
    evaluation="arithmetic:validation:200",
    num_evaluation=200,
    grader="arithmetic",
  ),
  rollout=dict(problems=16, samples=8, max_tokens=48, slots=64, chunk=8),
  rewards=dict(prm=1.0, verifier=1.0, format=0.2, prm_form="probability"),
  credit=dict(
    shape="clip_delta", threshold=0.5, returns="sum", baseline="leave_one_out"
  ),
  loss=dict(
    kind="ppo", loss_aggregation="tokens", kl_placement="reward", kl=0.02
  ),
  epochs=1,
  minibatches=1,
  monitor=dict(action="stop"),  # ends the run if the policy fools the PRM
  packing=dict(batch_size=8, sequence_length=256, share_prefixes=True),
  optimizer=dict(peak_lr=3e-4, warmup_steps=5),
  fit=dict(steps=20, log_every=1, eval_every=10, tensorboard=False),
  mesh=(-1, 1, 1),
)
prm_jax.Train(config, folder / "rl", fresh=True).run()

# --- What came of it ----------------------------------------------------------

lines = (folder / "rl" / "metrics.jsonl").read_text().splitlines()
records = [json.loads(line) for line in lines]
evaluations = [x for x in records if x["kind"] == "eval"]
print(
  f"\n{'greedy answers after':<22}{'right':>7}{'all steps right':>17}{'PRM':>6}"
)
for x in evaluations:
  print(
    f"{x['sampled_solutions']:>14.0f} samples{x['accuracy']:>7.1%}"
    f"{x['all_steps_correct']:>17.1%}{x['prm_score']:>6.2f}"
  )

print(f"""
This is one seed of a short run: docs/results.md has runs with intervals. The
PRM's score rises more than what is true, since the policy learns what this PRM
likes; {folder / "rl" / "report.html"} shows both.""")
print("Next: stories/serve_to_a_trainer.py")
