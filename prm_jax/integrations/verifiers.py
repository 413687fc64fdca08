"""verifiers: the scores of a trace's turns, where prime-rl's `turn_credit` reads.

No released form has rewards of turns. A trace's `info["turn_rewards"]`, a
number or None for each sampled turn, is what prime-rl's pull request 3282 takes
(verifiers a60a606e and 0.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prm_jax import schema
from prm_jax.integrations import scoring
from prm_jax.integrations import turn_rewards


def set_turn_rewards(
  traces: Sequence[Any], *, score: schema.Score
) -> list[schema.StepScores]:
  """Sets the turn rewards of traces, and metrics of them among their own.

  Call it where the episode is over: in an environment's `finalize`, or in an
  algorithm of prime-rl.

  Args:
    traces: The traces (verifiers.v1.Trace).
    score: Scores trajectories (prm_jax.load_score).

  Returns:
    The scores of each trace's sampled turns. `turn_rewards` are these, not their
    differences, which turn_credit makes itself; None is a turn that the model
    doesn't judge.
  """
  scores = score_traces(traces, score)
  for trace, each in zip(traces, scores, strict=True):
    trace.info["turn_rewards"] = scoring.judged(each)
    for name, value in turn_rewards.metrics([each]).items():
      trace.record_metric(f"prm/{name}", value)
  return scores


def score_traces(
  traces: Sequence[Any], score: schema.Score
) -> list[schema.StepScores]:
  """Returns the scores of the turns of traces.

  Each branch is a conversation. A turn of several branches has the same context
  in each, and the score of the last.

  Args:
    traces: The traces (verifiers.v1.Trace).
    score: Scores trajectories (prm_jax.load_score).

  Returns:
    One score for each sampled node of each trace, in the order of its nodes.
  """
  conversations, nodes = [], []
  for trace in traces:
    tools = list(map(turn_rewards.record_of, trace.tools))
    for branch in trace.branches:
      own = [i for i, node in enumerate(branch.nodes) if node.sampled]
      records = (turn_rewards.record_of(node.message) for node in branch.nodes)
      conversations.append(
        turn_rewards.Conversation(tuple(records), tuple(own), tuple(tools))
      )
      nodes.append([id(branch.nodes[i]) for i in own])
  of_node: dict[int, tuple[float, bool]] = {}
  rows = turn_rewards.score_turns(score, conversations)
  for names, row in zip(nodes, rows, strict=True):
    of_node |= zip(names, zip(row.scores, row.judged), strict=True)
  out = []
  for trace in traces:
    pairs = [of_node[id(node)] for node in trace.nodes if node.sampled]
    scores, judged = zip(*pairs) if pairs else ((), ())
    out.append(schema.StepScores(scores, judged=judged))
  return out
