"""Addresses that servers of this machine listen at."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno
import http.server
import ipaddress
import os
import signal
import socket
import threading

from prm_jax import errors

_BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
  """Returns a socket that listens.

  Args:
    host: The address, or its name.
    port: The port; 0 is any that is free.

  Raises:
    InputError: The address isn't this machine's, or the port is taken.
  """
  try:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
  except (OSError, OverflowError, UnicodeError) as e:
    number = getattr(e, "errno", None) or 0
    reason = os.strerror(number) if number in errno.errorcode else str(e)
    raise errors.InputError(
      f"`host={host}`, `port={port}`: can't listen there: {reason}; give an"
      " address of this machine and a free port"
    ) from e


def url(host: str, port: int) -> str:
  """Returns the address of a server's first page.

  Args:
    host: The address that it listens at.
    port: The port.
  """
  return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(host: str) -> bool:
  """Returns whether only this machine can reach an address.

  Args:
    host: The address, or its name.
  """
  if host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def run(server: http.server.HTTPServer, say_ready: Callable[[], None]) -> None:
  """Answers requests until SIGINT or SIGTERM.

  Args:
    server: The server.
    say_ready: Called once it listens.
  """
  before = {}
  if threading.current_thread() is threading.main_thread():
    # In the background a shell has SIGINT ignored.
    before = {
      kind: signal.signal(kind, signal.default_int_handler)
      for kind in (signal.SIGINT, signal.SIGTERM)
    }
  try:
    with server, contextlib.suppress(KeyboardInterrupt):
      say_ready()
      server.serve_forever()
  finally:
    for kind, handler in before.items():
      signal.signal(kind, handler)
