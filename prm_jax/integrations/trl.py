"""TRL's GRPOTrainer: one reward of a completion, or advantages of its tokens.

A reward function of TRL returns one number per completion, so reward_func
aggregates the scores of the steps. The trainer's loss also takes advantages of
tokens, which with_step_advantages gives it. With tools a completion is a list
of messages: turn_reward_func and with_turn_advantages judge its turns, each in
the whole conversation (TRL f2cd57710 and 1.13.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards


def reward_func(
  score_texts: scoring.ScoreTexts, *, aggregate: str = "min", name: str = "prm"
) -> Callable[..., list[float]]:
  """Returns a reward function for `GRPOTrainer(reward_funcs=...)`.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    aggregate: product, min, last or mean of the scores of a response's steps.
    name: The name of the reward in TRL's logs.

  Returns:
    The function, for texts and for chats. A chat's problem is its last user
    turn.
  """

  def reward(
    prompts: Sequence[Any], completions: Sequence[Any], **_: Any
  ) -> list[float]:
    problems = list(map(trainer_chats.problem_of, prompts))
    texts = list(map(trainer_chats.response_of, completions))
    scores = score_texts(problems, texts)
    return [scoring.overall(each, aggregate) for each in scores]

  reward.__name__ = name
  return reward


def turn_reward_func(
  score: schema.Score,
  *,
  tools: Sequence[turn_rewards.Record] = (),
  aggregate: str = "min",
  name: str = "prm",
) -> Callable[..., list[float]]:
  """Returns a reward function for a GRPOTrainer with `tools`, or of chats.

  Args:
    score: Scores trajectories (prm_jax.load_score).
    tools: The declarations of the tools, for a model that reads them.
    aggregate: product, min, last or mean of the scores of a conversation's
      turns.
    name: The name of the reward in TRL's logs, and of turn_rewards.metrics
      there.

  Returns:
    The function.
  """

  def reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
  ) -> list[float]:
    scores = turn_rewards.score_turns(
      score,
      [turn_rewards.conversation(*x, tools) for x in zip(prompts, completions)],
    )
    if log_metric is not None:
      for key, value in turn_rewards.metrics(scores).items():
        log_metric(f"{name}/{key}", value)
    return [scoring.overall(each, aggregate) for each in scores]

  reward.__name__ = name
  return reward


def with_step_advantages(
  trainer_class: Any,
  score_texts: scoring.ScoreTexts,
  *,
  rewards: scoring.Rewards = scoring.judged,
  process_weight: float = 1.0,
) -> Any:
  """Returns a trainer that adds advantages of steps to those of its rewards.

  GRPOTrainer's loss takes advantages [B, T] from a subclass. The one of its
  reward functions, such as a right answer, stays at each token; a token's sum
  of normalised step rewards (token_credit.process_advantages) is added.

  Args:
    trainer_class: trl.GRPOTrainer, or a subclass.
    score_texts: Scores whole responses (scoring.cut_and_score).
    rewards: What the rewards of steps are, given their scores.
    process_weight: The factor of the advantages of steps.

  Returns:
    The class.

  Raises:
    InputError: Raised by the class, if `use_liger_kernel` is set: that loss
      takes one advantage per completion.
  """

  def score_batch(
    trainer: Any, inputs: Any, output: Any, mask: Any
  ) -> list[scoring.ScoredResponse]:
    ids = list(map(scoring.token_ids, output["completion_ids"].tolist(), mask))
    problems = [trainer_chats.problem_of(x["prompt"]) for x in inputs]
    decode = placement.decoder(trainer.processing_class)
    return scoring.score_responses(score_texts, decode, problems, ids)

  form = dict(rewards=rewards, advantages=token_credit.process_advantages)
  return _with_advantages(trainer_class, score_batch, form, process_weight)


def with_turn_advantages(
  trainer_class: Any,
  score: schema.Score,
  *,
  tools: Sequence[turn_rewards.Record] = (),
  rewards: scoring.Rewards | None = None,
  advantages: Callable[..., list[list[float]]] = token_credit.to_go_advantages,
  process_weight: float = 1.0,
) -> Any:
  """Returns a trainer that adds advantages of turns to those of its rewards.

  As with_step_advantages, but a turn is compared with the same turn of the
  others (token_credit.to_go_advantages), since their number is the policy's
  choice.

  Args:
    trainer_class: trl.GRPOTrainer, or a subclass.
    score: Scores trajectories (prm_jax.load_score).
    tools: The declarations of the tools, for a model that reads them.
    rewards: What the rewards of turns are, given their scores; None is what
      `advantages` takes by itself.
    advantages: token_credit.to_go_advantages, or its process_advantages.
    process_weight: The factor of the advantages of turns.

  Returns:
    The class, which also logs turn_rewards.metrics of each process's own
    conversations as `prm/...`.

  Raises:
    InputError: Raised by the class, if `use_liger_kernel` is set, or a
      conversation's turns aren't those of its tool mask.
  """

  class TurnTrainer(trainer_class):
    """GRPOTrainer that keeps the conversations of the batch."""

    def _calculate_rewards(
      self, inputs: Any, prompts: Any, completions: Any, *more: Any
    ) -> Any:
      self._conversations = [
        turn_rewards.conversation(*x, tools) for x in zip(prompts, completions)
      ]
      return super()._calculate_rewards(inputs, prompts, completions, *more)

  def score_batch(
    trainer: Any, inputs: Any, output: Any, mask: Any
  ) -> list[scoring.ScoredResponse]:
    scores = turn_rewards.score_turns(score, trainer._conversations)
    mode = "train" if trainer.model.training else "eval"
    for key, value in turn_rewards.metrics(scores).items():
      trainer._metrics[mode][f"prm/{key}"].append(value)
    return list(
      map(turn_rewards.placed, scores, map(turn_rewards.run_lengths, mask))
    )

  form = dict(rewards=rewards, advantages=advantages)
  return _with_advantages(TurnTrainer, score_batch, form, process_weight)


def _with_advantages(
  trainer_class: Any,
  score_batch: Callable[..., list[scoring.ScoredResponse]],
  form: Mapping[str, Any],
  process_weight: float,
) -> Any:
  """Returns a trainer that adds advantages of what score_batch returns.

  The form is what token_credit.in_groups takes.
  """

  class StepTrainer(trainer_class):
    """GRPOTrainer with advantages of steps."""

    def __init__(self, *args: Any, **options: Any):
      super().__init__(*args, **options)
      if self.use_liger_kernel:
        raise errors.InputError(
          "use_liger_kernel=True: its loss takes one advantage per completion;"
          " set it to False to train on steps"
        )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
      from accelerate.utils import gather_object

      output = super()._generate_and_score_completions(inputs)
      mask = output["completion_mask"].bool()
      if "tool_mask" in output:
        mask = mask & output["tool_mask"].bool()
      scored = score_batch(self, inputs, output, mask.tolist())
      training = self.model.training
      size = self.num_generations if training else self.num_generations_eval
      # A group may be on several processes.
      everywhere = token_credit.in_groups(gather_object(scored), size, **form)
      first = self.accelerator.process_index * len(scored)
      rows = everywhere[first : first + len(scored)]
      of_steps = output["advantages"].new_tensor(
        placement.align(rows, mask.tolist())
      )
      outcome = output["advantages"].unsqueeze(1)
      output["advantages"] = outcome + process_weight * of_steps
      return output

  return StepTrainer
