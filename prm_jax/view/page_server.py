"""A folder of pages over HTTP, for the browsers of this machine alone."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno
import http.server
import ipaddress
import os
import pathlib
import signal
import socket
import socketserver
import threading

from prm_jax import errors
from prm_jax.web import assets

# A browser that doesn't say within so long what it wants is let go.
_WAIT_S = 30


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers GET of the files that a folder held when it was served."""

  timeout = _WAIT_S
  server: PageServer

  def do_GET(self) -> None:
    """Sends a file, or says that there is none."""
    # A page of another site may name this machine by a name of its own.
    if self.headers.get("Host") not in self.server.hosts:
      self._send(421, b"ask for these pages by the address that was printed\n")
      return
    name = self.path.partition("?")[0].removeprefix("/") or "index.html"
    path = self.server.files.get(name)
    if path is None:
      self._send(404, b"no such page\n")
      return
    self._send(200, path.read_bytes(), assets.TYPES[path.suffix])

  def _send(
    self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8"
  ) -> None:
    self.send_response(status)
    headers = {"Content-Type": kind, "Content-Length": str(len(body))}
    for name, value in (headers | dict(assets.HEADERS)).items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, format: str, *args: object) -> None:
    """Says nothing of requests."""
    del format, args


class PageServer(http.server.ThreadingHTTPServer):
  """Serves the files of a folder.

  Args:
    folder: The folder.
    host: The address to listen at, one of this machine's alone.
    port: The port; 0 is any that is free.

  Raises:
    InputError: The address isn't one of this machine alone, or the port is
      taken.
  """

  daemon_threads = True
  # Two servers must not share a port.
  allow_reuse_address = os.name == "posix"

  def __init__(self, folder: pathlib.Path, host: str, port: int):
    if not _is_loopback(host):
      raise errors.InputError(
        f"`host={host}`: other machines could read the pages; give 127.0.0.1,"
        " or write them by `static` and serve the folder yourself"
      )
    self.files = {
      x.relative_to(folder).as_posix(): x
      for x in folder.rglob("*")
      if x.suffix in assets.TYPES
    }
    if ":" in host:
      self.address_family = socket.AF_INET6
    try:
      super().__init__((host, port), Handler)
    except (OSError, OverflowError) as e:
      number = getattr(e, "errno", None) or 0
      reason = os.strerror(number) if number in errno.errorcode else str(e)
      raise errors.InputError(
        f"`host={host}`, `port={port}`: can't listen there: {reason}; give a"
        " free port, or 0 for any"
      ) from None
    named = f"[{host}]" if ":" in host else host
    port = self.server_address[1]
    self.url = f"http://{named}:{port}/"
    names = {named, "localhost", "127.0.0.1", "[::1]"}
    self.hosts = {f"{name}:{port}" for name in names}
    if port == 80:
      self.hosts |= names

  def server_bind(self) -> None:
    """Binds without a look-up of the machine's name, which may take long."""
    socketserver.TCPServer.server_bind(self)
    self.server_port = self.server_address[1]

  def handle_error(self, request: object, client_address: object) -> None:
    """Says nothing of browsers that go before they have read a reply."""
    del request, client_address


def run(server: PageServer, say_ready: Callable[[], None]) -> None:
  """Answers requests until SIGINT or SIGTERM.

  Args:
    server: The server.
    say_ready: Called once it listens.
  """
  before = None
  if threading.current_thread() is threading.main_thread():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    with server, contextlib.suppress(KeyboardInterrupt):
      say_ready()
      server.serve_forever()
  finally:
    if before is not None:
      signal.signal(signal.SIGTERM, before)


def _is_loopback(host: str) -> bool:
  if host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False
