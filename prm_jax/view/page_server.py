"""A folder of pages over HTTP, for the browsers of this machine alone."""

from __future__ import annotations

import http.server
import pathlib

from prm_jax import errors
from prm_jax.runtime import listening
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

  def __init__(self, folder: pathlib.Path, host: str, port: int):
    if not listening.is_loopback(host):
      raise errors.InputError(
        f"`host={host}`: other machines could read the pages; give 127.0.0.1,"
        " or write them by `static` and serve the folder yourself"
      )
    self.files = {
      x.relative_to(folder).as_posix(): x
      for x in folder.rglob("*")
      if x.suffix in assets.TYPES
    }
    super().__init__((host, port), Handler, bind_and_activate=False)
    self.socket.close()
    self.socket = listening.listen(host, port)
    self.server_address = self.socket.getsockname()
    port = self.server_address[1]
    self.url = listening.url(host, port)
    named = self.url.removeprefix("http://").rpartition(":")[0]
    names = {named, "localhost", "127.0.0.1", "[::1]"}
    self.hosts = {f"{name}:{port}" for name in names}
    if port == 80:
      self.hosts |= names

  def handle_error(self, request: object, client_address: object) -> None:
    """Says nothing of browsers that go before they have read a reply."""
    del request, client_address
