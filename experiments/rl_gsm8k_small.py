"""Does reinforcement learning run end to end on real text?

Command:  PRM_JAX_DATA=... prm-jax train
          --config=experiments/gsm8k_policy_small.py --workdir=runs/gsm8k_policy
          PRM_JAX_DATA=... prm-jax train
          --config=experiments/rl_gsm8k_small.py --workdir=runs/rl_gsm8k
Hardware, time and result: see experiments/README.md.

This tests the path, not a method: the policy is small and from scratch and
solves next to nothing, so that nearly all of its reward is for the format of a
solution: to end by itself with an answer (format), and to be brief (length).
Answers are checked against GSM8K's own, by killable processes.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "rl"
  c.seed = 0
  c.init_from = "runs/gsm8k_policy"
  c.problems = dict(
    train="gsm8k:gsm8k/train.jsonl.gz",
    evaluation="gsm8k:gsm8k/test.jsonl.gz",
    num_evaluation=100,
    grader="rules",
  )
  c.rollout = dict(
    problems=8, samples=8, max_tokens=160, temperature=1.0, slots=64, chunk=8
  )
  c.rewards = dict(verifier=1.0, format=0.2, length=0.2, length_from=80)
  c.credit = dict(baseline="group", scale=True)
  c.loss = dict(
    kind="ppo",
    loss_aggregation="solutions",
    kl_placement="loss",
    kl=0.04,
    kl_estimator="k3",
  )
  c.packing = dict(batch_size=4, sequence_length=512, share_prefixes=True)
  c.optimizer = dict(
    peak_lr=1e-4, warmup_steps=5, final_fraction=0.1, weight_decay=0.0
  )
  c.fit = dict(
    steps=60, log_every=1, eval_every=20, checkpoint_every=20, keep_last=2
  )
  c.monitor = dict(action="warn")
  c.mesh = (-1, 1, 1)
  return c
