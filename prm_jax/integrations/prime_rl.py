"""prime-rl: the advantages of a trace's sampled tokens.

An algorithm of prime-rl gives `assign_advantages` one number for each sampled
token of a trace. trace_advantages scores a trace's sampled tokens as one response,
turn_advantages its turns in their conversation (prime-rl 559b4477).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards
from prm_jax.integrations import verifiers


def trace_advantages(
  traces: Sequence[Any],
  *,
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  rewards: scoring.Rewards = scoring.judged,
  process_weight: float = 1.0,
) -> list[list[float]]:
  """Returns the advantages of the traces of one group, for assign_advantages.

  Each is the trace's reward minus the group's mean, plus the normalised rewards
  of the steps that are completed at the token or later.

  Args:
    traces: The traces (verifiers.v1.Trace) of the rollouts of one problem.
    score_texts: Scores whole responses (scoring.cut_and_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of steps are, given their scores.
    process_weight: The factor of the advantages of steps.

  Returns:
    A list for each trace, with one advantage for each sampled token.

  Raises:
    InputError: A trace has no user turn, or a node's mask doesn't fit.
  """
  problems, ids = [], []
  for trace in traces:
    messages = [node.message for node in trace.nodes if not node.sampled]
    problems.append(trainer_chats.problem_of(messages))
    # The order in which assign_advantages hands the values to the nodes.
    sampled = [scoring.token_ids(n.token_ids, n.mask) for n in trace.nodes]
    ids.append([token for tokens in sampled for token in tokens])
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = token_credit.process_advantages(scored, rewards=rewards)
  outcomes = [trace.reward for trace in traces]
  return token_credit.with_outcomes(
    rows, outcomes, process_weight=process_weight
  )


def turn_advantages(
  traces: Sequence[Any],
  *,
  score: schema.Score,
  rewards: scoring.Rewards | None = None,
  advantages: Callable[..., list[list[float]]] = token_credit.to_go_advantages,
  process_weight: float = 1.0,
) -> list[list[float]]:
  """Returns the advantages of the turns of one group's traces.

  Each is the trace's reward minus the group's mean, plus the advantage of the
  token's turn. It also sets `info["turn_rewards"]` and metrics
  (verifiers.set_turn_rewards).

  Args:
    traces: The traces (verifiers.v1.Trace) of the rollouts of one problem.
    score: Scores trajectories (prm_jax.load_score).
    rewards: What the rewards of turns are, given their scores; None is what
      `advantages` takes by itself.
    advantages: token_credit.to_go_advantages, since the number of turns is the
      policy's choice, or token_credit.process_advantages.
    process_weight: The factor of the advantages of turns.

  Returns:
    A list for each trace, with one advantage for each sampled token.
  """
  scores = verifiers.set_turn_rewards(traces, score=score)
  scored = [
    turn_rewards.placed(each, [sum(x.mask) for x in trace.nodes if x.sampled])
    for each, trace in zip(scores, traces, strict=True)
  ]
  rows = token_credit.in_groups(
    scored, max(len(scored), 1), rewards=rewards, advantages=advantages
  )
  outcomes = [trace.reward for trace in traces]
  return token_credit.with_outcomes(
    rows, outcomes, process_weight=process_weight
  )
