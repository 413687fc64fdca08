"""An OpenAI-compatible endpoint as a policy: vLLM, SGLang, llama.cpp, ...

  with Client(Endpoint(url, model), Template(), journal) as client:
    generate = functools.partial(client.generate, sampling=..., seed=0)
    log_likelihoods = client.log_likelihoods

Text goes out and text comes back, so here alone steps are joined, and found
again, by a separator. Each completion is one HTTP request, repeated where it
failed in a way that may pass, and journaled once it is there. Servers differ
in what they make of a seed; a journal makes a run repeatable.
"""

from __future__ import annotations

from prm_jax.inference.remote import client
from prm_jax.inference.remote import endpoint

Client = client.Client
Endpoint = endpoint.Endpoint
Template = endpoint.Template
