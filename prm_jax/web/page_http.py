"""Pages over HTTP for few browsers: what such servers share."""

from __future__ import annotations

import http.server
import re
import urllib.parse

from prm_jax.runtime import listening
from prm_jax.web import assets

TEXT = "text/plain; charset=utf-8"
# A browser that doesn't say within so long what it wants is let go.
_WAIT_S = 30
_PORTS = dict(http=80, https=443)


def hosts_of(url: str) -> set[str]:
  """Returns what browsers that ask for an address call its server.

  Args:
    url: The address.

  Returns:
    The name, with its port and, of the scheme's own port, without; none if the
    address is none of HTTP's.
  """
  try:
    parts = urllib.parse.urlsplit(url)
    name = (parts.hostname or "").encode("idna").decode()
    port = parts.port
  except ValueError:
    return set()
  if parts.scheme not in _PORTS or not re.fullmatch(r"[\w.:-]+", name):
    return set()
  name = f"[{name}]" if ":" in name else name
  own = _PORTS[parts.scheme]
  port = own if port is None else port
  return {f"{name}:{port}"} | ({name} if port == own else set())


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers a browser; what it asks is in no log."""

  timeout = _WAIT_S
  server: Server

  def parse_request(self) -> bool:
    """Reads what is asked; refuses another name for this machine.

    Returns:
      Whether it is to be answered. A page of another site may give this machine
      a name of its own.
    """
    if not super().parse_request():
      return False
    length = self.headers.get("Content-Length", "0")
    if "Transfer-Encoding" in self.headers or (
      self.command == "GET" and length != "0"
    ):
      # A body that nobody reads would be taken for the next request.
      self.close_connection = True
      self.send(400, b"send no such body\n")
      return False
    hosts = self.server.hosts
    if hosts and self.headers.get("Host", "").lower() not in hosts:
      self.close_connection = True
      self.send(421, b"ask for these pages by the address that was printed\n")
      return False
    return True

  def send(self, status: int, body: bytes, kind: str = TEXT) -> None:
    """Sends an answer.

    Args:
      status: The status.
      body: The content.
      kind: Its media type.
    """
    self.send_response(status)
    headers = {"Content-Type": kind, "Content-Length": str(len(body))}
    if self.close_connection:
      headers["Connection"] = "close"
    for name, value in (headers | dict(assets.HEADERS)).items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, format: str, *args: object) -> None:
    """Says nothing of requests."""
    del format, args


class Server(http.server.ThreadingHTTPServer):
  """Listens for browsers.

  Args:
    handler: What answers them.
    host: The address to listen at.
    port: The port; 0 is any that is free.
    public_url: The address of a server before it; None without one.

  Attributes:
    url: The address of the first page.
    hosts: The names of a server of this machine alone; empty for any other.

  Raises:
    InputError: The port is taken.
  """

  daemon_threads = True

  def __init__(
    self,
    handler: type[Handler],
    host: str,
    port: int,
    public_url: str | None = None,
  ):
    super().__init__((host, port), handler, bind_and_activate=False)
    self.socket.close()
    self.socket = listening.listen(host, port)
    self.server_address = self.socket.getsockname()
    port = self.server_address[1]
    self.url = listening.url(host, port)
    self.hosts: set[str] = set()
    if listening.is_loopback(host):
      named = self.url.removeprefix("http://").rpartition(":")[0]
      names = {named, "localhost", "127.0.0.1", "[::1]"}
      self.hosts = {f"{name}:{port}" for name in names}
      if port == 80:
        self.hosts |= names
    if public_url is not None:
      self.url = public_url.rstrip("/") + "/"
      if self.hosts:
        self.hosts |= hosts_of(public_url)

  def handle_error(self, request: object, client_address: object) -> None:
    """Says nothing of browsers that go before they have read a reply."""
    del request, client_address
