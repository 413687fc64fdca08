"""What a server counts, in Prometheus' form. No text and no key is in it."""

from __future__ import annotations

import copy

import prometheus_client


class Metrics:
  """The counters of one server.

  They are in a registry of their own, so two servers of one process don't mix.
  """

  def __init__(self) -> None:
    self.registry = registry = prometheus_client.CollectorRegistry()
    self.requests = prometheus_client.Counter(
      "prm_jax_requests",
      "Requests, by route and status.",
      ("route", "status"),
      registry=registry,
    )
    self.seconds = prometheus_client.Histogram(
      "prm_jax_request_seconds",
      "Seconds from a request's first byte to its reply.",
      ("route",),
      registry=registry,
      buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    )
    self.waiting = prometheus_client.Gauge(
      "prm_jax_waiting_solutions",
      "Solutions in the queue.",
      registry=registry,
    )
    self._source_waiting = prometheus_client.Gauge(
      "prm_jax_source_waiting_solutions",
      "Solutions in the queue of what isn't a checkpoint.",
      ("model",),
      registry=registry,
    )
    self.batch_items = prometheus_client.Histogram(
      "prm_jax_batch_solutions",
      "Solutions of a batch.",
      registry=registry,
      buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    )
    self.tokens = prometheus_client.Counter(
      "prm_jax_tokens", "Tokens that were scored.", registry=registry
    )
    self.cached_tokens = prometheus_client.Counter(
      "prm_jax_cached_tokens",
      "Tokens that weren't read again; 0 without a cache.",
      registry=registry,
    )
    self.refused = prometheus_client.Counter(
      "prm_jax_overloads",
      "Requests that were refused because too many waited.",
      registry=registry,
    )
    self.gone = prometheus_client.Counter(
      "prm_jax_clients_gone",
      "Requests whose client went away before the reply.",
      registry=registry,
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
