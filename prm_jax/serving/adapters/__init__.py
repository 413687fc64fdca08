"""The wire forms of other programs' clients.

Each form has a route, a function that reads its request and one that writes its
reply; the rest (limits, batches, refusals) is that of /v1/prm/score. A score is
always what the model means by it, P(correct so far) for a PRM, whatever a client
says of activations. A field that would change a score is refused; a field that
isn't known is, too, as it may be one that was misspelt.
"""

from __future__ import annotations

import itertools

from prm_jax.serving.adapters import form as form_lib
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


def by_path() -> list[list[form_lib.Form]]:
  """Returns the forms, those of one path together."""
  grouped = itertools.groupby(FORMS, lambda form: form.route.path)
  return [list(of_path) for _, of_path in grouped]
