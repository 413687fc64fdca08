"""An OpenAI-compatible endpoint as a policy: vLLM, SGLang, llama.cpp, ...

  with Client(Endpoint(url, model), Template(), journal) as client:
    generate = functools.partial(client.generate, sampling=..., seed=0)
    log_likelihoods = client.log_likelihoods

An endpoint takes and returns text, so only here steps are joined and split by a
separator. Each completion is one HTTP request. It is repeated if it failed in a
way that may pass, and saved in a journal as soon as it has a reply. Servers
treat a seed differently; the journal makes a run repeatable.
"""

from __future__ import annotations

from prm_jax.remote import completions
from prm_jax.remote import endpoint

Client = completions.Client
Endpoint = endpoint.Endpoint
Template = endpoint.Template
