"""A resources server of NeMo-Gym whose rewards are a PRM's, of turns.

The `app.py` of a resources server; add the routes of your tools. Each verified
episode has `reward`, `step_rewards` (issue 1298's proposal, a number for each
assistant's turn) and `prm_turn_mean` and the others, of which NeMo-Gym's
aggregate metrics make statistics.

Checked against NeMo-Gym 07d6b0d07. Run: in 0.4.0 its app verified two episodes
by a served score and made the metrics; not with an agent that is trained.
"""

import asyncio
import os

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.base_resources_server import SimpleResourcesServer
import pydantic

import prm_jax
from prm_jax.integrations import nemo_gym as prm_nemo_gym

PRM = os.environ.get("PRM", "http://localhost:8000/v1")
SCORE = prm_jax.load_score(PRM)


class Verified(BaseVerifyResponse):
  """A verified episode, with further fields."""

  model_config = pydantic.ConfigDict(extra="allow")


class PRMResourcesServer(SimpleResourcesServer):
  """Verifies episodes by the scores of their turns."""

  async def verify(self, body: BaseVerifyRequest) -> Verified:
    """Returns the episode with its rewards."""
    out = await asyncio.to_thread(
      prm_nemo_gym.verified, body, score=SCORE, aggregate="min"
    )
    return Verified(**out)


if __name__ == "__main__":
  PRMResourcesServer.run_webserver()
