"""Each request once: its reply is in the journal, or the server is asked.

Several are asked at a time, and a reply is kept as soon as it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import hashlib
import json
import reprlib
import threading
from typing import Any, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import rollout_engine
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.remote import parts
from prm_jax.remote import reply_journal
from prm_jax.remote import servers
from prm_jax.runtime import files
from prm_jax.runtime import side_threads

Record = dict[str, Any]
# What is completed, with an id of its own in a call.
Asked = TypeVar("Asked", schema.Solution, rollout_engine.Request)
# Fields that not every server knows: one that refuses it may name it.
_FIXES = {
  "continue_final_message": (
    "if this server doesn't continue a message (vLLM, SGLang and llama.cpp do),"
    " ask /completions, without `chat`"
  ),
  **{
    name: f"if this server has no `{name}` (vLLM, SGLang and llama.cpp do), take"
    " it out"
    for name in ("top_k", "min_p")
  },
  "return_token_ids": (
    "if this server returns no token ids, use vLLM or SGLang"
  ),
  "logprobs": (
    "if this server returns no log-probabilities, give `no_log_probs=True`"
    " (in Python log_probs=False)"
  ),
}


class Asker:
  """The servers of an endpoint, and the journal of their replies.

  Args:
    endpoint: The endpoint.
    journal: The file of the journal; None keeps nothing.
    clock: Returns the time in seconds, for the journal and the servers' rests.
    sleep: Waits some seconds; by default a failure elsewhere ends the wait.
    random: Returns a number in [0, 1).

  Raises:
    InputError: The key or the journal can't be used.
  """

  def __init__(
    self,
    endpoint: endpoint_lib.Endpoint,
    journal: files.PathLike | None,
    clock: Callable[[], float],
    sleep: Callable[[float], Any] | None,
    random: Callable[[], float],
  ):
    self._endpoint = endpoint
    self._counts: Counter[str] = Counter()
    self._stop = threading.Event()
    self._servers = servers.Servers(
      endpoint,
      "chat/completions" if endpoint.chat else "completions",
      fixes=_FIXES,
      stop=self._stop,
      clock=clock,
      sleep=sleep,
      random=random,
    )
    self._journal = None
    if journal is not None:
      self._journal = reply_journal.Journal(journal, clock)
      self._counts["torn_lines"] = self._journal.torn_lines
      self._counts["damaged_lines"] = self._journal.damaged_lines

  @property
  def counts(self) -> Counter[str]:
    """Returns the requests and replies so far."""
    return self._counts + self._servers.counts

  def close(self) -> None:
    """Closes the connections and the journal."""
    self._stop.set()
    self._servers.close()
    if self._journal is not None:
      self._journal.close()

  def ask_all(
    self,
    prefixes: Sequence[Asked],
    items: Sequence[tuple[Asked, Any]],
    request: Callable[[Asked, Any], Record],
    read: Callable[[Record, Record, Any, endpoint_lib.Endpoint], Record],
    progress: Callable[[int], None],
  ) -> list[Record]:
    """Returns what was read for each item, from the journal or the endpoint.

    Args:
      prefixes: All that is asked for in the call, each once.
      items: One of them, and what tells its request from the others.
      request: Returns the body of an item's request.
      read: Returns what is kept of a reply, given the body, what tells it, and
        the server.
      progress: Called with the number of items so far.

    Raises:
      InputError: Two prefixes have one id; or see Servers.check and Servers.ask.
    """
    for prefix_id, times in Counter(p.id for p in prefixes).items():
      if times > 1:
        raise errors.InputError(
          f"prefix {prefix_id!r} is asked for {times} times in one call; give"
          " each an id of its own"
        )
    keys = [
      _digest(p.id, parts.name_of(tag), request(p, tag)) for p, tag in items
    ]
    journal = self._journal
    records = [journal.get(key) if journal else None for key in keys]
    missing = [i for i, record in enumerate(records) if record is None]
    done = len(items) - len(missing)
    self._counts["from_journal"] += done
    progress(done)

    def work(i: int) -> Record:
      prefix, tag = items[i]
      body = request(prefix, tag)
      return self._servers.ask(
        body,
        lambda reply, server: read(reply, body, tag, server),
        f"prefix {reprlib.repr(prefix.id)}",
      )

    def settle(i: int, record: Record) -> None:
      nonlocal done
      if journal:
        who = dict(id=items[i][0].id, of=parts.name_of(items[i][1]))
        who["model"] = self._endpoint.model
        journal.put(keys[i], who, record)
      records[i], done = record, done + 1
      progress(done)

    self._stop.clear()
    if missing:
      self._servers.check()
    most = self._servers.concurrency
    side_threads.each(missing, work, settle, most, self._stop)
    if journal:
      journal.sync()
    return [record for record in records if record is not None]


def _digest(prefix_id: str, tag: Any, body: Record) -> str:
  """Returns a request's key in the journal; `body` is all that is asked for."""
  text = json.dumps([1, prefix_id, tag, body], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]
