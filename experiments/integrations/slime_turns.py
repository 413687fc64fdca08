"""slime with tools, and a PRM's advantages of turns.

  export PRM=http://HOST:PORT/v1 POLICY=Qwen/Qwen3-4B
  --custom-generate-function-path YOURS
  --custom-rm-path slime_turns.custom_rm --reward-key score
  --custom-reward-post-process-path prm_jax.integrations.slime.post_process_turns
  --custom-advantage-function-path prm_jax.integrations.slime.set_advantages
  --custom-rollout-log-function-path slime_turns.log_rollout

with this folder on PYTHONPATH. Your generate function sets `loss_mask`, 1 on the
policy's own tokens, as slime's examples with tools do. If it also puts the
messages after the prompt into `sample.metadata["messages"]`, these are scored;
else the tokens are decoded. A prompt that --apply-chat-template rendered is
refused; leave that out, or give turn_rm problem_of=trainer_chats.between(...), which
loses the system's text. Logged by slime: `rollout/prm/turn_mean` and the
others.

Checked against slime 624b824a8. Not run.
"""

import os

from slime.observability import logging_utils
from slime.observability import metric_utils
import transformers

import prm_jax
from prm_jax.integrations import placement
from prm_jax.integrations import slime as prm_slime
from prm_jax.integrations import turn_rewards

PRM = os.environ.get("PRM", "http://localhost:8000/v1")
POLICY = os.environ.get("POLICY", "Qwen/Qwen3-4B")

custom_rm = prm_slime.turn_rm(
  prm_jax.load_score(PRM),
  placement.decoder(transformers.AutoTokenizer.from_pretrained(POLICY)),
  # What Qwen's template leaves around a tool's result without special tokens.
  between=turn_rewards.between("user\n", "\nassistant"),
  messages_of=lambda sample: sample.metadata.get("messages"),
)


def log_rollout(rollout_id, args, samples, metrics, seconds) -> bool:
  """Logs the mean of each of the PRM's metrics; slime then logs its own."""
  del metrics, seconds
  rows = [sample.reward["prm"] for sample in samples]
  step = metric_utils.compute_rollout_step(args, rollout_id)
  means = {
    f"rollout/prm/{name}": sum(row[name] for row in rows) / len(rows)
    for name in rows[0]
  }
  logging_utils.log(
    args, means | {"rollout/step": step}, step_key="rollout/step"
  )
  return False
