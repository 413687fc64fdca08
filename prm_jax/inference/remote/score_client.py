"""A reward model behind a URL, by the requests of `score_protocol`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import random as random_lib
import threading
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.inference.remote import connection
from prm_jax.inference.remote import endpoint as endpoint_lib
from prm_jax.inference.remote import score_protocol

# The solutions of a request.
MAX_ITEMS = 64
_TRIAL = schema.Solution("trial", "What is 1 + 1?", ("1 + 1 = 2.",))


class OtherModelError(errors.InputError):
  """A server has another model than before."""


class ScoreClient:
  """Scores steps by a server's `POST /v1/prm/score`.

  Requests are repeated and bounded as those of `Client` are (docs/remote.md).

  model, model_fingerprint: what the server says of its model, None if nothing.
  """

  def __init__(
    self,
    endpoint: endpoint_lib.Endpoint,
    *,
    max_items: int = MAX_ITEMS,
    sleep: Callable[[float], Any] | None = None,
    random: Callable[[], float] = random_lib.random,
  ):
    """Reads the key, and asks for the scores of one step, as a trial.

    Args:
      endpoint: Where the server is; its model may be "".
      max_items: The most solutions of a request.
      sleep: Waits some seconds.
      random: Returns a number in [0, 1).

    Raises:
      InputError: The key isn't there, or the server gives no scores.
    """
    stop = threading.Event()
    self._endpoint, self._max_items = endpoint, max_items
    self._url = endpoint.url
    self._connection = connection.Connection(
      endpoint,
      stop,
      route=score_protocol.ROUTE,
      sleep=stop.wait if sleep is None else sleep,
      random=random,
    )
    self._is_known = False
    self.model: str | None = None
    self.model_fingerprint: str | None = None
    self.step_scores([_TRIAL])

  def close(self) -> None:
    """Closes the sockets."""
    self._connection.close()

  def step_scores(
    self, solutions: Sequence[schema.Solution]
  ) -> list[list[float]]:
    """Returns what the server gives as the scores of each solution's steps.

    A solution without a step has none, and isn't sent.

    Raises:
      InputError: The server refuses, gives no usable reply, or has another
        model than before.
    """
    rows: list[list[float]] = [[] for _ in solutions]
    shown = [i for i, s in enumerate(solutions) if s.steps]
    entries = self.entries(
      [score_protocol.item(solutions[i]) for i in shown],
      [f"solution {solutions[i].id!r}" for i in shown],
    )
    for i, entry in zip(shown, entries, strict=True):
      rows[i] = entry.step_scores
    return rows

  def entries(
    self, items: Sequence[score_protocol.Record], names: Sequence[str]
  ) -> list[score_protocol.Entry]:
    """Returns what the server replies of each item.

    Args:
      items: The items.
      names: What errors call each.

    Raises:
      InputError: See step_scores.
    """
    found: list[score_protocol.Entry] = []
    for start in range(0, len(items), self._max_items):
      part = slice(start, start + self._max_items)
      found += self._ask(items[part], names[part])
    return found

  def _ask(
    self, items: Sequence[score_protocol.Record], names: Sequence[str]
  ) -> list[score_protocol.Entry]:
    def read(record: score_protocol.Record) -> score_protocol.Record:
      # In here, so that a key that the server repeats isn't shown.
      reply = score_protocol.read_reply(record, names, self._url)
      self._check_model(reply)
      return dict(entries=reply.entries)

    body = score_protocol.request(items, self._endpoint.model)
    who = names[0]
    if len(names) > 1:
      who = f"{who} and {len(names) - 1} more"
    return self._connection.ask(body, read, who)["entries"]

  def _check_model(self, reply: score_protocol.Reply) -> None:
    """Refuses another model than that of the first reply."""
    now = reply.model, reply.model_fingerprint
    if not self._is_known:
      self._is_known = True
      self.model, self.model_fingerprint = now
    before = self.model, self.model_fingerprint
    if now != before:
      raise OtherModelError(
        f"{self._url}: its model was {_shown(before)} and is {_shown(now)} now;"
        " serve the first one again"
      )


def _shown(names: tuple[str | None, str | None]) -> str:
  return (
    " ".join(repr(x)[:80] for x in names if x is not None) or "without name"
  )
