"""A server's process: its socket, its signals and its end.

uvicorn runs in a thread. The main thread waits for SIGTERM or SIGINT; then no
connection is taken any more, what was asked is answered, and the process ends
with exit code 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http import h11_impl

from prm_jax.serving import app as app_lib
from prm_jax.serving import server_limits as limits_lib

# The connections that are held at a time; each has a few KB.
_MAX_CONNECTIONS = 2_048
# The most bytes that are received at a time; asyncio's default is 256 KiB.
_PIECE_BYTES = 1 << 12


@contextlib.contextmanager
def answering(
  server: app_lib.Server, listening: socket.socket
) -> Iterator[threading.Thread]:
  """Answers requests inside, in a thread; at the end what was asked before.

  Args:
    server: The server.
    listening: The socket, which is closed at the end.

  Yields:
    The thread.
  """
  config = uvicorn.Config(
    server.app(),
    http=_protocol(server.limits),
    loop="asyncio",
    ws="none",
    lifespan="on",
    log_config=None,
    access_log=False,
    server_header=False,
    limit_concurrency=_MAX_CONNECTIONS,
    # A client that reuses a connection must not find it closed just then.
    timeout_keep_alive=75,
    timeout_graceful_shutdown=int(server.limits.deadline_s) + 5,
  )
  uvicorn_server = uvicorn.Server(config)
  thread = threading.Thread(
    target=uvicorn_server.run,
    kwargs=dict(sockets=[listening]),
    name="server",
  )
  thread.start()
  try:
    yield thread
  finally:
    uvicorn_server.should_exit = True
    # Signals are handled between two waits.
    while thread.is_alive():
      thread.join(0.2)


def run(
  server: app_lib.Server,
  listening: socket.socket,
  on_ready: Callable[[], None] = lambda: None,
) -> None:
  """Answers requests until SIGTERM or SIGINT; what was asked is answered.

  Args:
    server: The server.
    listening: The socket.
    on_ready: Called once all shapes are compiled.

  Raises:
    RuntimeError: The server's thread failed.
  """
  with _signals() as asked, answering(server, listening) as thread:
    told = False
    while thread.is_alive() and not asked.wait(0.2):
      if server.is_ready and not told:
        told = True
        on_ready()
    if not asked.is_set():
      raise RuntimeError("the server's thread ended by itself; see its log")


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
  """Sets an event at the first SIGTERM or SIGINT inside; exits at the second."""
  asked = threading.Event()

  def noted(number: int, frame: object) -> None:
    del frame
    if asked.is_set():
      os._exit(128 + number)
    asked.set()

  kinds = (signal.SIGTERM, signal.SIGINT)
  before = [signal.signal(kind, noted) for kind in kinds]
  try:
    yield asked
  finally:
    for kind, handler in zip(kinds, before, strict=True):
      signal.signal(kind, handler)


def _protocol(limits: limits_lib.Limits) -> type[asyncio.Protocol]:
  """Returns uvicorn's protocol, which lets slow clients go.

  uvicorn waits for ever for the headers of a request, for the rest of a body
  after its reply, and for a client that doesn't read its replies.
  """

  class Timed(h11_impl.H11Protocol):
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
      # All that was received is read before another connection has a turn, and
      # it may be chunks of one byte.
      transport.max_size = _PIECE_BYTES
      super().connection_made(transport)
      self._expect_request()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
      _cancel(self._asking)
      _cancel(self._reading)
      super().connection_lost(exc)

    def pause_writing(self) -> None:
      super().pause_writing()
      self._reading = self.loop.call_later(
        max(limits.deadline_s, limits.read_s), self.transport.abort
      )

    def resume_writing(self) -> None:
      _cancel(self._reading)
      super().resume_writing()

    def _expect_request(self) -> None:
      """Waits for a request's headers, unless one is being answered."""
      if self.cycle is not None and not self.cycle.response_complete:
        _cancel(self._asking)
        self._asking = None
      elif self._asking is None and not self.transport.is_closing():
        self._asking = self.loop.call_later(limits.read_s, self._close_unasked)

    def _close_unasked(self) -> None:
      self._asking = None
      if self.cycle is None or self.cycle.response_complete:
        self.transport.close()

  return Timed


def _cancel(timer: asyncio.TimerHandle | None) -> None:
  if timer is not None:
    timer.cancel()
