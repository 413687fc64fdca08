"""A policy at a server, as options name it (jobs/policies.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import remote
from prm_jax.jobs import policies
from prm_jax.policy import sampler
from prm_jax.policy import sampling as sampling_lib
from prm_jax.text import segmenters

# The options that are fields of remote.Endpoint and of remote.Template.
_ENDPOINT = (
  *("model", "chat", "continues", "stop_in_text", "key_variable"),
  *("insecure_key", "concurrency", "connect_s", "read_s", "tries"),
  *("backoff_s", "max_wait_s"),
)
_TEMPLATE = ("prompt", "separator", "stop", "system")
# Beyond model, chat and prompt an option is one of what completions depend on
# if it is given, so that a journal from before it was there can be resumed.
_FURTHER = (
  *("system", "separator", "segmenter", "stop", "stop_in_text"),
  "request_option",
)


def endpoint(
  server: policies.Server, url: str
) -> tuple[remote.Endpoint, remote.Template]:
  """Returns the endpoint at an address, and its template.

  Args:
    server: The options of a server.
    url: The address.

  Raises:
    InputError: An option is wrong.
  """
  times = Counter(name for name, _ in server.request_option)
  if twice := [name for name, count in times.items() if count > 1]:
    raise errors.InputError(f"`request_option`: {twice[0]} is given twice")
  found = remote.Endpoint(
    url,
    options=dict(server.request_option),
    log_probs=not server.no_log_probs,
    **server.given(_ENDPOINT),
  )
  fields = server.given(_TEMPLATE)
  if server.segmenter is not None:
    fields["segmenter"] = segmenters.parse(server.segmenter)
  if "system" in fields and not found.chat:
    raise errors.InputError(
      f"`system={server.system}`: only a chat has one; give `chat=True`, or"
      " write it into `prompt`"
    )
  return found, remote.Template(**fields)


@contextlib.contextmanager
def asking(
  policy: policies.Policy, replies: pathlib.Path | None
) -> Iterator[tuple[remote.Client, dict[str, Any]]]:
  """Yields a server's client, and what its completions depend on.

  Args:
    policy: The policy, whose source is the server's address.
    replies: The journal of its replies; None has none.
  """
  asked, template = endpoint(policy.server, policy.source)
  known = dict(model=asked.model, chat=asked.chat, prompt=template.prompt)
  known |= policy.server.given(_FURTHER)
  with remote.Client(asked, template, replies) as client:
    yield client, known


@contextlib.contextmanager
def opened(
  policy: policies.Policy,
  sampling: sampling_lib.Sampling,
  seed: int,
  replies: pathlib.Path | None,
  counts: Counter[str],
) -> Iterator[policies.Writer]:
  """Yields the policy, which writes.

  Args:
    policy: The policy, whose source is the server's address.
    sampling: How it samples.
    seed: The seed of the samples.
    replies: The journal of the replies; None has none.
    counts: The counts to which its work is added.
  """
  found = sampling.with_defaults({})
  with asking(policy, replies) as (client, known):
    known = known | found.record() | dict(seed=seed)
    yield _served(client, known, found, seed, counts)


def _served(
  client: remote.Client,
  known: dict[str, Any],
  sampling: sampler.Sampling,
  seed: int,
  counts: Counter[str],
) -> policies.Writer:
  """Returns the model at a server; a journal saves its replies one by one."""

  def complete(prefixes, n, tell):
    with counting(client, counts):
      return client.generate(prefixes, n, sampling, seed, progress=tell)

  likelihoods = None if client.endpoint.chat else client.log_likelihoods
  return policies.Writer(complete, known, likelihoods)


@contextlib.contextmanager
def counting(client: remote.Client, counts: Counter[str]) -> Iterator[None]:
  """Adds what a client does inside to the counts, if it succeeds.

  Args:
    client: The client.
    counts: The counts.
  """
  before = client.counts
  yield
  done = client.counts - before
  counts.update({f"endpoint_{name}": n for name, n in done.items()})
