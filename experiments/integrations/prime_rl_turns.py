"""prime-rl with a PRM's advantages of turns, in the place of its `grpo`.

  PRM=http://HOST:PORT/v1 python experiments/integrations/prime_rl_turns.py \
    @ orchestrator.toml

takes the place of `orchestrator @ orchestrator.toml`; trainer and inference
start as ever. A trace's own reward, such as a right answer, is added. Each trace
gets `info["turn_rewards"]`, which pull request 3282's `turn_credit` reads.
Logged by prime-rl: `train/ENV/metrics/prm/turn_mean` and the others.

Checked against prime-rl 559b44772 with verifiers a60a606ec. Not run; the traces
are those of verifiers 0.4.0, which took them.
"""

import asyncio
import os

from prime_rl.entrypoints import orchestrator
from prime_rl.orchestrator import algo
from prime_rl.orchestrator.algo.base import iter_trainable_traces

import prm_jax
from prm_jax.integrations import prime_rl as prm_prime_rl

PRM = os.environ.get("PRM", "http://localhost:8000/v1")

SCORE = prm_jax.load_score(PRM)


class TurnGRPO(algo.GRPOAlgorithm):
  """GRPO with advantages of turns; `length_penalty` isn't used."""

  async def score_group(self, episodes):
    """Assigns the advantages of one problem's traces."""
    traces = [trace for _, trace in iter_trainable_traces(episodes)]
    rows = await asyncio.to_thread(
      prm_prime_rl.turn_advantages, traces, score=SCORE
    )
    for trace, row in zip(traces, rows, strict=True):
      algo.assign_advantages(trace, row)


if __name__ == "__main__":
  algo.ALGORITHM_CLASSES["grpo"] = TurnGRPO
  orchestrator.main()
