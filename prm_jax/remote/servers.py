"""Servers of one model: each request goes to the one with the least to do.

A server that fails rests, for a pause that doubles each time, and is then asked
with one request first. What it failed is asked of another one meanwhile; what
all have failed waits itself, too, for such a pause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
import dataclasses
import logging
import threading
from typing import Any, TypeVar

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.runtime import side_threads

_logger = logging.getLogger(__name__)

Record = dict[str, Any]
_T = TypeVar("_T")
# The limit of the question which models a server has, in seconds.
_CHECK_S = 10.0
# What a server without that route replies.
_NO_ROUTE = (404, 405, 501)
# How a try fails that another server may be asked for.
_FAILURES = client_lib.PassingError, client_lib.NoReplyError
_Failure = client_lib.PassingError | client_lib.NoReplyError


@dataclasses.dataclass(eq=False)
class _Server:
  """A server and how it fares.

  Args:
    endpoint: Where it is.
    connection: Its sockets.
    in_flight: The requests that it was sent and hasn't answered.
    failures: How often in a row it has failed; the requests that it had at the
      time of a failure don't count again.
    rests_until: When it is asked again after a failure, whatever it answers
      before then.
    is_probed: Whether the first request after its rest is under way.
    error: What went wrong the last time; "" if it answered since.
    answered: The requests that it answered.
  """

  endpoint: endpoint_lib.Endpoint
  connection: client_lib.Connection
  in_flight: int = 0
  failures: int = 0
  rests_until: float = 0.0
  is_probed: bool = False
  error: str = ""
  answered: int = 0

  def takes(self, now: float) -> bool:
    """Returns whether it may be sent a request now."""
    if self.in_flight >= self.endpoint.concurrency or now < self.rests_until:
      return False
    return not (self.failures and self.is_probed)


class Servers:
  """The connections to all servers of an endpoint.

  A single server is asked as client.Connection does; of several each try of a
  request is for the server that rests from no failure and has the fewest
  requests under way. Any thread may ask.

  Args:
    endpoint: The endpoint.
    route: See client.Connection, as are fixes and stop.
    fixes: See above.
    stop: See above.
    clock: Returns the time in seconds.
    sleep: Waits some seconds; by default until `stop` is set.
    random: Returns a number in [0, 1).

  Raises:
    InputError: The key isn't there.
  """

  def __init__(
    self,
    endpoint: endpoint_lib.Endpoint,
    route: str,
    *,
    fixes: Mapping[str, str],
    stop: threading.Event,
    clock: Callable[[], float],
    sleep: Callable[[float], Any] | None,
    random: Callable[[], float],
  ):
    how: dict[str, Any] = dict(
      fixes=fixes, stop=stop, sleep=sleep, random=random
    )
    self._servers = [
      _Server(x, client_lib.Connection(x, route, **how))
      for x in endpoint.servers
    ]
    self._endpoint, self._stop = endpoint, stop
    self._clock, self._sleep = clock, sleep or stop.wait
    self._counts: Counter[str] = Counter()
    self._changed = threading.Condition()
    self._is_checked = len(self._servers) == 1

  @property
  def concurrency(self) -> int:
    """The most requests at the same time, to all servers together."""
    return self._endpoint.concurrency * len(self._servers)

  @property
  def counts(self) -> Counter[str]:
    """The requests, retries and failures so far, of all servers together."""
    of_each = (x.connection.counts for x in self._servers)
    return sum(of_each, Counter(self._counts))

  def close(self) -> None:
    """Closes the sockets; says how many requests each server answered."""
    for server in self._servers:
      server.connection.close()
    if len(self._servers) > 1 and any(x.answered for x in self._servers):
      for server in self._servers:
        _logger.info(
          f"{server.endpoint.url}: answered {server.answered:,} requests"
        )

  def check(self) -> None:
    """Asks each of several servers, once, whether it has the model.

    One that gives no answer rests, and a line says so. One that doesn't list
    its models isn't refused.

    Raises:
      InputError: A server has other models, or refuses the key.
    """
    if self._is_checked:
      return
    self._is_checked = True
    side_threads.each(
      range(len(self._servers)),
      lambda i: self._models(self._servers[i]),
      lambda i, names: self._check_model(self._servers[i], names),
      len(self._servers),
      threading.Event(),
    )
    for server in self._servers:
      if server.failures:
        _logger.info(
          f"{server.endpoint.url}: doesn't answer ({server.error}); it is asked"
          " again later"
        )

  def ask(
    self,
    body: Record,
    read: Callable[[Record, endpoint_lib.Endpoint], _T],
    who: str,
  ) -> _T:
    """Returns what `read` returns for the reply of one of the servers.

    Args:
      body: The body of the request.
      read: Reads a reply, given which server it is from; see
        client.Connection.ask.
      who: What errors call the request.

    Returns:
      What `read` returns.

    Raises:
      RefusalError: A server refuses the request.
      NoReplyError: No try has a usable reply.
      InputError: See client.Connection.ask.
    """
    if len(self._servers) == 1:
      (only,) = self._servers
      return only.connection.ask(body, _reader(read, only), who)
    tried: list[tuple[_Server, str, str]] = []
    most = self._endpoint.tries * len(self._servers)
    while len(tried) < most:
      rounds, others = divmod(len(tried), len(self._servers))
      if rounds and not others and not self._are_down():
        # It waits itself, too: full servers may answer requests after it.
        self._sleep(tried[-1][0].connection.pause_s(rounds))
      taken = self._taken(tried[-1][0] if tried else None)
      if taken is None:
        break
      server, is_probe = taken
      if tried:
        self._count("retries")
      try:
        reply = server.connection.ask_once(body, _reader(read, server), who)
      except _FAILURES as e:
        self._rest(server, e, is_probe)
        tried.append((server, _words(e), e.cause))
      except BaseException:
        self._free(server, is_probe, answered=False)
        raise
      else:
        self._free(server, is_probe, answered=True)
        return reply
    raise self._no_reply(who, tried)

  # --- Which server is next ---------------------------------------------------

  def _taken(self, failed: _Server | None) -> tuple[_Server, bool] | None:
    """Returns the server for a try, once there is one.

    Args:
      failed: The server of the try before, which is the last choice.

    Returns:
      The server, and whether this is the first request after its rest; None if
      none will answer soon.
    """
    while not self._stop.is_set():
      with self._changed:
        now = self._clock()
        able = [x for x in self._servers if x.takes(now)]
        if able:
          server = min(able, key=lambda x: (x is failed, x.in_flight))
          server.in_flight += 1
          is_probe = server.failures > 0
          server.is_probed |= is_probe
          return server, is_probe
        if self._are_down():
          return None
        rests = [
          x.rests_until - now for x in self._servers if x.rests_until > now
        ]
        wait_s = min(rests, default=None)
        if any(self._is_busy(x, now) for x in self._servers):
          self._changed.wait(wait_s)
          continue
      assert wait_s is not None  # or a server would take it
      self._sleep(wait_s)
    return None

  def _is_busy(self, server: _Server, now: float) -> bool:
    """Returns whether it takes a request as soon as another one ends."""
    return server.in_flight > 0 and server.rests_until <= now

  def _are_down(self) -> bool:
    """Returns whether no server is worth waiting for."""
    now = self._clock()
    return all(
      x.failures >= self._endpoint.tries
      or x.rests_until - now > self._endpoint.max_wait_s
      for x in self._servers
    )

  def _rest(self, server: _Server, error: _Failure, is_probe: bool) -> None:
    """Notes that a try at a server failed."""
    wait_s = error.wait_s
    with self._changed:
      if is_probe or not server.failures:
        server.failures += 1
        wait_s = max(wait_s, server.connection.pause_s(server.failures))
      until = self._clock() + wait_s
      server.rests_until = max(server.rests_until, until)
      server.error = _words(error)
      server.is_probed &= not is_probe
      server.in_flight -= 1
      self._changed.notify_all()

  def _free(self, server: _Server, is_probe: bool, *, answered: bool) -> None:
    """Notes that a server has nothing more to do for a request."""
    with self._changed:
      server.in_flight -= 1
      server.is_probed &= not is_probe
      if answered:
        server.answered += 1
        server.failures, server.error = 0, ""
      self._changed.notify_all()

  def _no_reply(
    self, who: str, tried: list[tuple[_Server, str, str]]
  ) -> client_lib.NoReplyError:
    """Returns the error of a request that no server has answered."""
    told = []
    for server in self._servers:
      own = [error for x, error, _ in tried if x is server]
      # A request may be the first to see that others have failed for long.
      times = max(len(own), server.failures)
      last = own[-1] if own else server.error
      tries = "try" if times == 1 else "tries"
      told.append(f"{server.endpoint.url}: {times} {tries}, at last {last}")
    return client_lib.NoReplyError(
      f"{who}: no usable reply of {len(told)} servers; {'; '.join(told)}; see to"
      " the servers and start again",
      tried[-1][2] if tried else "",
    )

  def _count(self, name: str) -> None:
    with self._changed:
      self._counts[name] += 1

  # --- Which models a server has ----------------------------------------------

  def _models(self, server: _Server) -> list[str] | None:
    """Returns the names of a server's models; one that doesn't answer rests.

    None is a server that doesn't say.
    """
    settings = dataclasses.replace(
      server.endpoint,
      read_s=min(server.endpoint.read_s, _CHECK_S),
      replica=(),
    )
    connection = client_lib.Connection(
      settings, "models", method="GET", stop=self._stop
    )
    try:
      return connection.ask_once(None, _model_names, "the list of models")
    except _FAILURES as e:
      if e.cause not in ("bad_reply", "status_501"):
        server.in_flight += 1  # as no request is under way yet
        self._rest(server, e, is_probe=False)
    except client_lib.RefusalError as e:
      if e.status not in _NO_ROUTE:
        raise
    finally:
      connection.close()
    return None

  def _check_model(self, server: _Server, names: list[str] | None) -> None:
    """Refuses a server of other models than ours."""
    if names is not None and self._endpoint.model not in names:
      raise errors.InputError(
        f"{server.endpoint.url}: serves {', '.join(names)[:400] or 'no model'},"
        f" not {self._endpoint.model}; start it with `model`, or take it out"
      )


def _words(error: _Failure) -> str:
  """Returns what went wrong in a try; the run isn't over, as the error says."""
  if isinstance(error, client_lib.PassingError):
    return str(error)
  status = error.cause.replace("_", " ")
  return f"{status}, it asks for a pause of {error.wait_s:,.0f} s"


def _reader(
  read: Callable[[Record, endpoint_lib.Endpoint], _T], server: _Server
) -> Callable[[Record], _T]:
  return lambda reply: read(reply, server.endpoint)


def _model_names(reply: Record) -> list[str]:
  """Returns the names in a list of models, in OpenAI's form."""
  models = reply.get("data")
  if not isinstance(models, list):
    raise client_lib.PassingError("bad_reply", "no list of models")
  return [str(x.get("id")) for x in models if isinstance(x, dict)]
