"""A worker of Tunix V2 for the role `reward`: a number for each trajectory.

  PRM=http://HOST:PORT/v1 python experiments/integrations/tunix_turns.py

scores the trajectories in ATIF (JSON, one a line) that stdin has. In a program,
register a TurnScorer as the inference worker of Role.REWARD:
`DistributedRLEngine.score(Role.REWARD, items)` calls its `score(items=items)`,
which also takes the TrajectoryItems of Tunix's agents. Nothing of Tunix calls it
at this commit, and its own InferenceWorker.score takes a ScoreRequest of tokens.
Logged at level INFO: the turns' metrics.

Checked against Tunix c7d8950f, whose ATIF sample was read. Not run in a
program.
"""

from collections.abc import Sequence
import json
import logging
import os
import sys
from typing import Any

import prm_jax
from prm_jax.integrations import tunix as prm_tunix
from prm_jax.integrations import turn_rewards

PRM = os.environ.get("PRM", "http://localhost:8000/v1")


class TurnScorer:
  """Scores trajectories by the least score of their turns."""

  def __init__(self, prm: str = PRM):
    self._score = prm_jax.load_score(prm)

  def _logged(self, solutions):
    """Returns the scores of trajectories, and logs their metrics."""
    scores = self._score(solutions)
    logging.info("prm %s", turn_rewards.metrics(scores))
    return scores

  def score(self, items: Sequence[Any]) -> list[float]:
    """Returns a number for each item."""
    return prm_tunix.score_items(items, score=self._logged, aggregate="min")


if __name__ == "__main__":
  logging.basicConfig(level=logging.INFO)
  print(TurnScorer().score([json.loads(line) for line in sys.stdin]))
