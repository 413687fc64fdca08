"""What a server counts, in Prometheus' form. No text and no key is in it."""

from __future__ import annotations

import copy
import functools

import prometheus_client


class Metrics:
  """The counters of one server.

  They are in a registry of their own, so two servers of one process don't mix.
  """

  def __init__(self) -> None:
    self.registry = registry = prometheus_client.CollectorRegistry()
    counter = functools.partial(prometheus_client.Counter, registry=registry)
    gauge = functools.partial(prometheus_client.Gauge, registry=registry)
    histogram = functools.partial(
      prometheus_client.Histogram, registry=registry
    )
    self.requests = counter(
      "prm_jax_requests", "Requests, by route and status.", ("route", "status")
    )
    self.seconds = histogram(
      "prm_jax_request_seconds",
      "Seconds from a request's first byte to its reply.",
      ("route",),
      buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    )
    self.waiting = gauge("prm_jax_waiting_solutions", "Solutions in the queue.")
    self._source_waiting = gauge(
      "prm_jax_source_waiting_solutions",
      "Solutions in the queue of what isn't a checkpoint.",
      ("model",),
    )
    self.batch_items = histogram(
      "prm_jax_batch_solutions",
      "Solutions of a batch.",
      buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    )
    self.tokens = counter("prm_jax_tokens", "Tokens that were scored.")
    self.cached_tokens = counter(
      "prm_jax_cached_tokens",
      "Tokens that weren't read again; 0 without a cache.",
    )
    self.refused = counter(
      "prm_jax_overloads", "Requests that were refused because too many waited."
    )
    self.gone = counter(
      "prm_jax_clients_gone",
      "Requests whose client went away before the reply.",
    )

  def of_source(self, name: str) -> Metrics:
    """Returns these counters, with a number of waiting solutions of its own.

    Args:
      name: The name of what isn't a checkpoint.
    """
    own = copy.copy(self)
    own.waiting = self._source_waiting.labels(name)
    return own

  def text(self) -> bytes:
    """Returns all of them in Prometheus' text form."""
    return prometheus_client.generate_latest(self.registry)
