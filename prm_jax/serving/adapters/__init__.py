"""The wire forms of other programs' clients.

A score is always what the model means by it, P(correct so far) for a PRM,
whatever a client says of activations. A field that would change a score is
refused; a field that isn't known is, too, as it may be one that was misspelt.
"""

from __future__ import annotations

from prm_jax.serving.adapters import nemo_gym
from prm_jax.serving.adapters import openrlhf
from prm_jax.serving.adapters import sglang
from prm_jax.serving.adapters import slime
from prm_jax.serving.adapters import tei
from prm_jax.serving.adapters import vllm

# The last of a path is the form of requests without another's mark.
FORMS = (
  *(vllm.POOLING, sglang.CLASSIFY, vllm.CLASSIFY, openrlhf.GET_REWARD),
  *(sglang.EMBEDDINGS, slime.RM, tei.PREDICT, nemo_gym.VERIFY),
  *(nemo_gym.SEED_SESSION, nemo_gym.AGGREGATE_METRICS),
)
