"""SkyRL: a reward for each token of `GeneratorOutput`.

SkyRL's GAE and REINFORCE++ use rewards of tokens; its GRPO and RLOO sum them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prm_jax import errors
from prm_jax.integrations import chats
from prm_jax.integrations import placement
from prm_jax.integrations import scoring


def with_step_rewards(
  generator_input: Mapping[str, Any],
  generator_output: Mapping[str, Any],
  *,
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  rewards: scoring.Rewards = scoring.delta,
  process_weight: float = 1.0,
) -> dict[str, Any]:
  """Returns a generator's output with the rewards of steps added to its own.

  Args:
    generator_input: The GeneratorInput, whose prompts are chats.
    generator_output: The GeneratorOutput. A reward of a whole response is added
      to its last token. Tokens with loss_masks 0 are no part of the response.
    score_texts: Scores whole responses (scoring.text_scorer).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of steps are, given their scores.
    process_weight: The factor of the rewards of steps.

  Returns:
    The output with one reward for each token of each response.

  Raises:
    InputError: The output has an entry for each turn (step-wise training), in
      which SkyRL reads the last turn's reward alone.
  """
  if generator_output.get("is_last_step") is not None:
    raise errors.InputError(
      "generator.step_wise_trajectories=true: SkyRL reads the rewards of the"
      " last turn alone; set it to false to train on steps"
    )
  masks = generator_output["loss_masks"]
  responses = generator_output["response_ids"]
  ids = list(map(scoring.token_ids, responses, masks))
  problems = list(map(chats.problem_of, generator_input["prompts"]))
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  out = []
  for own, mask, one in zip(
    generator_output["rewards"], masks, scored, strict=True
  ):
    steps = placement.align([scoring.token_rewards(one, rewards)], [mask])[0]
    row = [process_weight * float(x) for x in steps]
    if isinstance(own, list):
      row = [x + y for x, y in zip(row, own, strict=True)]
    elif row:
      row[-1] += float(own)
    out.append(row)
  return {**generator_output, "rewards": out}
