"""SkyRL with a PRM's rewards of turns, in whole conversations or step-wise.

  PRM=http://HOST:PORT/v1 python experiments/integrations/skyrl_turns.py \
    trainer.algorithm.advantage_estimator=reinforce++

and the options of your run. Whole conversations (generator.
step_wise_trajectories=false): `gae` and `reinforce++` use a reward at each
turn's end; `grpo` and `rloo` sum them. Step-wise trajectories need `grpo` or
another estimator of outcomes, or SkyRL refuses them; its advantage of a turn
would be that of the last one's reward, so TurnTrainer gives each its own. Leave
generator.merge_stepwise_output at false then.
Logged by SkyRL: `prm/turn_mean` and the others, among the rollout's metrics.

A turn's reward is on its last token, where the environment's is, too: SkyRL's
pass_at_n counts their sum.

Checked against SkyRL a9564572e. Not run.
"""

import os
import sys

import ray
from skyrl.backends.skyrl_train.inference_servers.utils import (
  resolve_policy_model_name,
)
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.entrypoints.main_base import validate_cfg
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import initialize_ray
import torch

import prm_jax
from prm_jax.integrations import placement
from prm_jax.integrations import skyrl as prm_skyrl
from prm_jax.integrations import turn_rewards

PRM = os.environ.get("PRM", "http://localhost:8000/v1")


class TurnGenerator(SkyRLGymGenerator):
  """The generator, whose output has rewards of turns."""

  async def generate(self, input_batch, disable_tqdm=False):
    """Returns the output with the PRM's rewards added."""
    output = await super().generate(input_batch, disable_tqdm=disable_tqdm)
    return prm_skyrl.with_turn_rewards(
      input_batch,
      output,
      score=prm_jax.load_score(PRM),
      decode=placement.decoder(self.tokenizer),
      # What Qwen's template leaves around what the environment says.
      between=turn_rewards.between("user\n", "\nassistant"),
    )


class TurnTrainer(RayPPOTrainer):
  """The trainer, whose step-wise advantages are each turn's own."""

  def compute_advantages_and_returns(self, data):
    """Sets the advantages and returns of a batch."""
    data = super().compute_advantages_and_returns(data)
    if self.cfg.generator.step_wise_trajectories:
      rows = prm_skyrl.turn_advantages(
        data["rewards"].numpy(),
        data["response_mask"].numpy(),
        data.metadata["uids"],
        data.metadata["is_last_step"],
      )
      data["advantages"] = torch.from_numpy(rows).to(data["advantages"])
      data["returns"] = data["advantages"].clone()
    return data


class TurnExp(BasePPOExp):
  """An experiment of these."""

  def get_generator(self, cfg, tokenizer, inference_engine_client):
    """Returns the generator."""
    return TurnGenerator(
      generator_cfg=cfg.generator,
      skyrl_gym_cfg=cfg.environment.skyrl_gym,
      inference_engine_client=inference_engine_client,
      tokenizer=tokenizer,
      policy_model_name=resolve_policy_model_name(cfg),
    )

  def get_trainer(self, *args, **options):
    """Returns the trainer."""
    return TurnTrainer(*args, **options)


@ray.remote(num_cpus=1)
def run(cfg):
  """Runs the experiment in a process of Ray."""
  TurnExp(cfg).run()


def main() -> None:
  """Trains, as the command line says."""
  cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
  validate_cfg(cfg)
  initialize_ray(cfg)
  ray.get(run.remote(cfg))


if __name__ == "__main__":
  main()
