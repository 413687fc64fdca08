"""verl's agent loop with tools, and a PRM's rewards at the ends of turns.

  export PRM=http://HOST:PORT/v1
  python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    actor_rollout_ref.rollout.multi_turn.enable=True \
    actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
    reward.custom_reward_function.path=experiments/integrations/verl_turns.py \
    reward.reward_manager.source=importlib \
    reward.reward_manager.name=TurnRewardManager \
    reward.reward_manager.module.path=experiments/integrations/verl_turns.py \
    reward.reward_model.enable=True \
    reward.reward_model.enable_resource_pool=False

and the options of your run. reinforce_plus_plus uses rewards of turns, too; grpo
and rloo sum them. verl writes `prm_turn_mean` and the others into its rollout
dump and its validation's metrics; in training it logs the sums of the rewards.

Checked against verl 1dda039b9. Not run.
"""

import os

import prm_jax
from prm_jax.integrations import scoring
from prm_jax.integrations import turn_rewards
from prm_jax.integrations import verl as prm_verl

PRM = os.environ.get("PRM", "http://localhost:8000/v1")
# What Qwen's template leaves around a tool's result without special tokens.
between = turn_rewards.between("user\n", "\nassistant")
TurnRewardManager = prm_verl.turn_reward_manager(
  prm_jax.load_score(PRM), rewards=scoring.delta, between=between
)


def compute_score(*args, **options) -> float:
  """Returns nothing of worth: verl wants a function, the manager asks none."""
  del args, options
  return 0.0
