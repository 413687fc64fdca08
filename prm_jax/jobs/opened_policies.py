"""Policies that write: a folder in the rollout engine, or a server's model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import contextlib
import pathlib
from typing import Any

import jax

from prm_jax import errors
from prm_jax import remote
from prm_jax.jobs import policies
from prm_jax.policy import log_likelihood
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampling as sampling_lib
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib

# The options that are fields of remote.Endpoint and of remote.Template.
_ENDPOINT = (
  *("model", "chat", "continues", "stop_in_text", "key_variable"),
  *("insecure_key", "replica", "concurrency", "connect_s", "read_s"),
  *("tries", "backoff_s", "max_wait_s"),
)
_TEMPLATE = ("prompt", "separator", "stop", "system")
# Beyond model, chat and prompt an option is one of what completions depend on
# if it is given, so that a journal from before it was there can be resumed.
_FURTHER = (
  *("system", "separator", "segmenter", "stop", "stop_in_text"),
  "request_option",
)


@contextlib.contextmanager
def opened(
  policy: policies.Policy,
  sampling: sampling_lib.Sampling,
  seed: int,
  replies: pathlib.Path | None,
  counts: Counter[str],
) -> Iterator[policies.Writer]:
  """Yields a policy, which writes.

  Args:
    policy: The policy.
    sampling: How it samples.
    seed: The seed of the samples.
    replies: The journal of a server's replies; None has none.
    counts: The counts to which its work is added.
  """
  policy.check()
  if not policy.is_server:
    yield _in_engine(policy, sampling, seed, counts)
    return
  found = sampling.with_defaults({})
  with asking(policy, replies) as (client, known):

    def complete(prefixes, n, tell):
      with counting(client, counts):
        return client.generate(prefixes, n, found, seed, progress=tell)

    def weigh(groups):
      with counting(client, counts):
        return client.weigh(groups)

    tells = not client.endpoint.chat
    yield policies.Writer(
      complete,
      known | found.record() | dict(seed=seed),
      client.log_likelihoods if tells else None,
      weigher=policies.Weigher(weigh) if tells else None,
    )


def _in_engine(
  policy: policies.Policy,
  sampling: sampling_lib.Sampling,
  seed: int,
  counts: Counter[str],
) -> policies.Writer:
  loaded, found, known = policy.loaded(sampling, seed)
  engine = rollout_engine.of(loaded, slots=policy.slots or policies.SLOTS)
  key = jax.random.key(seed)

  def complete(prefixes, n, tell):
    rows, work = engine.generate(prefixes, n, found, key, tell)
    counts["prefilled_tokens"] += work.prefilled
    counts["slot_steps"] += work.slot_steps
    counts["prefixes_encoded_anew"] += work.encoded_anew
    return rows

  def count_tokens(steps: Sequence[str]) -> int:
    return sum(len(loaded.tokenizer.encode(step)) + 1 for step in steps)

  def weigh(groups):
    rows, num_tokens = log_likelihood.weigh(
      loaded.config, loaded.params, loaded.codec, groups
    )
    counts["forward_tokens"] += num_tokens
    return rows

  return policies.Writer(
    *(complete, known, loaded.log_likelihoods, count_tokens),
    loaded.config.compute_dtype,
    policies.Weigher(weigh, spelling(loaded.tokenizer)),
  )


def spelling(tokenizer: tokenizer_lib.Tokenizer) -> policies.Spells:
  """Returns whether a tokenizer's vocabulary can write a text, as a function.

  Args:
    tokenizer: The tokenizer.
  """

  def spells(text: str) -> bool:
    written = tokenizer.decode(tokenizer.encode(text))
    return written.strip() == text.strip()

  return spells


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
  found, template = endpoint(policy.server, policy.source)
  with remote.Client(found, template, replies) as client:
    yield client, _known(policy.server, found, template)


def asked(
  policy: policies.Policy, sampling: sampling_lib.Sampling
) -> dict[str, Any]:
  """Returns what is known of `depends_on` before a policy is opened.

  Of a server that is all but the seed; None is what isn't given.

  Args:
    policy: The policy.
    sampling: How it is sampled.
  """
  if not policy.is_server:
    of_folder = policies.dtype_asked(policy.source, policy.dtype)
    return of_folder | sampling.asked() if of_folder else {}
  known = _known(policy.server, *endpoint(policy.server, policy.source))
  unset = dict.fromkeys((*_FURTHER, "top_k", "min_p"))
  return unset | known | sampling.with_defaults({}).record()


def _known(
  server: policies.Server, found: remote.Endpoint, template: remote.Template
) -> dict[str, Any]:
  """Returns what a server's completions depend on besides the sampling."""
  known = dict(model=found.model, chat=found.chat, prompt=template.prompt)
  return known | server.given(_FURTHER)


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
