"""The wire forms of other programs' clients.

A score is always what the model means by it, P(correct so far) for a PRM,
whatever a client says of activations. A field that would change a score is
refused; a field that isn't known is, too, as it may be one that was misspelt.
"""

from __future__ import annotations

from prm_jax.serving.adapters import nemo_gym_form
from prm_jax.serving.adapters import openrlhf_form
from prm_jax.serving.adapters import sglang_form
from prm_jax.serving.adapters import slime_form
from prm_jax.serving.adapters import tei_form
from prm_jax.serving.adapters import vllm_form

# The last of a path is the form of requests without another's mark.
FORMS = (
  *(
    vllm_form.POOLING,
    sglang_form.CLASSIFY,
    vllm_form.CLASSIFY,
    openrlhf_form.GET_REWARD,
  ),
  *(
    sglang_form.EMBEDDINGS,
    slime_form.RM,
    tei_form.PREDICT,
    nemo_gym_form.VERIFY,
  ),
  *(nemo_gym_form.SEED_SESSION, nemo_gym_form.AGGREGATE_METRICS),
)
