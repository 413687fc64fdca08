"""Does the demo's policy improve with the rewards of the demo's PRM?

Command:  make demo
          prm-jax train --config=experiments/rl_arithmetic.py --workdir=runs/rl
Hardware, time and result: see experiments/README.md.

PPO on arithmetic problems, rewarded by the right answer and, at each step, by
the PRM that `make demo` trained, its scores clipped and replaced by their
differences (Gao et al. 2024, arXiv 2410.15115), so that more good steps add no
reward. experiments/rl_defaults.py (at 2076ec39) chose these rewards among others;
experiments/rl_rewards.py compares rewards on harder problems.
"""

import ml_collections

DEMO = "runs/demo"


def get_config() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.program = "rl"
  c.seed = 0
  c.init_from = f"{DEMO}/policy"
  c.prm, c.held_out_prm = f"{DEMO}/prm", f"{DEMO}/prm_mc"
  c.problems = dict(
    train="arithmetic:train:4000",
    evaluation="arithmetic:validation:200",
    num_evaluation=200,
    grader="arithmetic",
  )
  c.rollout = dict(
    problems=16, samples=8, max_tokens=52, temperature=1.0, slots=64, chunk=8
  )
  # To end with an answer pays a little: else one right line and no more would.
  c.rewards = dict(
    prm=1.0, verifier=1.0, format=0.2, prm_form="probability", prm_cut="step"
  )
  c.credit = dict(
    shape="clip_delta", threshold=0.5, returns="sum", baseline="leave_one_out"
  )
  c.loss = dict(
    kind="ppo",
    clip_low=0.2,
    clip_high=0.2,
    loss_aggregation="tokens",
    kl_placement="reward",
    kl=0.02,
    kl_estimator="k1",
    critic="none",
  )
  c.epochs, c.minibatches = 1, 1
  c.packing = dict(batch_size=8, sequence_length=256, share_prefixes=True)
  c.optimizer = dict(
    peak_lr=3e-4, warmup_steps=10, final_fraction=0.1, weight_decay=0.0
  )
  c.fit = dict(
    steps=100, log_every=1, eval_every=10, checkpoint_every=10, keep_last=3
  )
  c.monitor = dict(action="stop")
  c.mesh = (-1, 1, 1)
  return c
