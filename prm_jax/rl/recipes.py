"""Published methods as configs: what each rewards, compares and minimises.

  RLConfig(**recipes.GRPO._asdict(), rollout=..., init_from=..., ...)

A recipe holds what defines its method, and no size, rate or number of epochs.
Change a field with dataclasses.replace. tests/rl/test_recipes.py compares each
with its paper's formula. If a recipe has no KL, loss.kl_placement and loss.kl
add one.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from prm_jax.rl import advantages
from prm_jax.rl.credit import CreditConfig
from prm_jax.rl.policy_losses import LossConfig
from prm_jax.rl.rewards import RewardConfig


class Recipe(NamedTuple):
  """The fields of an RLConfig that define a method."""

  rewards: RewardConfig
  credit: CreditConfig
  loss: LossConfig


_OUTCOME = RewardConfig(verifier=1.0)

# Williams 1992: (R - b) grad log pi of the whole solution, b the mean return of
# earlier rollouts. One update of a rollout. A sum over tokens divided by a
# constant is the policy gradient; a mean over tokens isn't.
REINFORCE = Recipe(
  _OUTCOME,
  CreditConfig(baseline="moving"),
  LossConfig(kind="reinforce", loss_aggregation="constant"),
)

# Ahmadian et al. 2024 (arXiv 2402.14740): REINFORCE whose baseline is the mean
# return of a problem's other solutions.
RLOO = Recipe(
  _OUTCOME,
  CreditConfig(baseline="leave_one_out"),
  LossConfig(kind="reinforce", loss_aggregation="constant"),
)

# Schulman et al. 2017 (arXiv 1707.06347), eq. 7 and 9, with the advantages of
# Schulman et al. 2016 (arXiv 1506.02438). Without discount, as is usual for
# text; loss.value is the weight of half the squared error.
PPO = Recipe(
  _OUTCOME,
  CreditConfig(baseline="gae", gae_lambda=0.95),
  LossConfig(kind="ppo", critic="shared"),
)

# Shao et al. 2024 (arXiv 2402.03300), eq. 3 with outcome supervision, and its
# KL of 0.04. The clip, which it doesn't state, is PPO's.
GRPO = Recipe(
  _OUTCOME,
  CreditConfig(baseline="group"),
  LossConfig(
    kind="ppo",
    loss_aggregation="solutions",
    kl_placement="loss",
    kl=0.04,
    kl_estimator="k3",
  ),
)

# The same, section 4.1.3: process supervision, by the scores of a PRM.
GRPO_PROCESS = GRPO._replace(
  rewards=RewardConfig(prm=1.0), credit=CreditConfig(baseline="group_step")
)

# Liu et al. 2025 (arXiv 2503.20783): GRPO without the deviation, the length of
# a solution, and the KL. The constant is rollout.max_tokens.
DR_GRPO = GRPO._replace(
  credit=dataclasses.replace(GRPO.credit, scale=False),
  loss=LossConfig(kind="ppo", loss_aggregation="constant"),
)

# Gao et al. 2024 (arXiv 2410.15115): clip, then delta, of a PRM's scores, with
# the outcome beside them. The paper's policy gradient is PPO with a critic:
# that is credit.baseline="gae" with loss.critic. Its threshold isn't known to
# us; 0.5 is ours.
CLIP_DELTA = Recipe(
  RewardConfig(prm=1.0, verifier=1.0),
  CreditConfig(shape="clip_delta", threshold=0.5, baseline="leave_one_out"),
  LossConfig(kind="ppo"),
)

# Cui et al. 2025 (arXiv 2502.01456): the token rewards of an implicit PRM,
# scaled over the rollout, and outcomes, each less the mean of a problem's other
# solutions. Problems outside accuracy_range are left out; PRIME samples others
# for them. docs/returns.md says where the released code differs.
PRIME = Recipe(
  RewardConfig(
    implicit=advantages.PRIME_WEIGHT,
    verifier=advantages.PRIME_WEIGHT,
    accuracy_range=(0.2, 0.8),
  ),
  CreditConfig(baseline="prime", whiten=True),
  LossConfig(kind="ppo"),
)

# PURE's soft form (Cheng et al. 2025, arXiv 2504.15275) with the baseline of
# its first released code, on OpenRLHF: a step's reward r = 2 p - 1 is weighted
# by softmax(-r / 0.1) over the solution's steps, and a token's return is the sum
# of these of its and later steps, less the others' sum per token times the
# tokens, plus an outcome compared on its own. As T tends to 0 it pays the
# minimum up to the worst step, and 0 after that.
# It isn't bit for bit the released code, which gives the separators of steps
# neither return nor loss: ours puts a step's reward on the token that closes
# it, which learns too.
PURE = Recipe(
  RewardConfig(prm=1.0, prm_form="signed", verifier=1.0),
  CreditConfig(
    returns="soft_min", min_temperature=0.1, baseline="leave_one_out_token"
  ),
  LossConfig(kind="ppo"),
)

# The same with the baseline of PURE's later released code, on verl: from every
# return, the outcome's part included, the others' mean over the token budget is
# subtracted, and the rollout is whitened.
PURE_VERL = Recipe(
  PURE.rewards,
  dataclasses.replace(
    PURE.credit, baseline="leave_one_out_budget", whiten=True
  ),
  PURE.loss,
)
