"""Requests and replies, each pair of them under one deadline.

A socket's own limit holds for each read and each write. So a server that sends
a byte now and then, in its headers or a chunk's size, or `100 Continue` without
end, could keep a request for as long as it likes. Here each read and write gets
the time that is left of the whole, and the bytes of a reply are counted as they
arrive: the status line, headers, sizes of chunks and trailers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import functools
import http.client
import io
import socket
import ssl
import threading
import time

import urllib3

from prm_jax.inference.remote import replies

MAX_HEAD_BYTES = 1 << 20
MAX_BYTES = 16 << 20
_PIECE_BYTES = 1 << 14  # a record of TLS: one write, so one limit


class Exchanger:
  """Connections to one server, kept open between requests.

  Any thread may post. It asks the server itself: proxies aren't used, and no
  redirect is followed.
  """

  def __init__(self, url: str, connect_s: float):
    """Connects to nothing yet.

    Args:
      url: The address of the requests.
      connect_s: The limit for each address of the host, in seconds, and again
        for TLS.
    """
    parts = urllib3.util.parse_url(url)
    is_secure = parts.scheme == "https"
    self._context = ssl.create_default_context() if is_secure else None
    self._host = (parts.host or "").strip("[]")
    self._default_port = 443 if is_secure else 80
    self._port = parts.port or self._default_port
    self._path = parts.request_uri
    self._connect_s = connect_s
    self._lock = threading.Lock()
    self._idle: list[urllib3.connection.HTTPConnection] = []

  def post(
    self, body: bytes, headers: Mapping[str, str], time_s: float
  ) -> tuple[int, Mapping[str, str], bytes]:
    """Returns the reply's status, headers and body.

    Args:
      body: The body of the request.
      headers: Further headers of it.
      time_s: The limit from now to the end of the reply, in seconds. Only the
        system's search for the host's addresses isn't bound by it.

    Raises:
      TimeoutError: The time is over; urllib3 has a class of its own for it.
      PassingError: The reply is too long.
      OSError: No connection, or one that was cut; urllib3.HTTPError and
        http.client.HTTPException too.
    """
    deadline = time.monotonic() + time_s
    connection = self._take() or self._connect(deadline)
    try:
      _send(connection, self._path, body, headers, deadline)
      response, content = _receive(connection, deadline)
    except BaseException:
      connection.close()  # what is left in it would begin the next reply
      raise
    with self._lock:
      self._idle.append(connection)
    return response.status, response.headers, content

  def close(self) -> None:
    """Closes the connections that are idle."""
    with self._lock:
      while self._idle:
        self._idle.pop().close()

  def _take(self) -> urllib3.connection.HTTPConnection | None:
    """Returns an idle connection that the server hasn't closed."""
    with self._lock:
      while self._idle:
        connection = self._idle.pop()
        if connection.is_connected:
          return connection
        connection.close()
    return None

  def _connect(self, deadline: float) -> urllib3.connection.HTTPConnection:
    sock = _open(self._host, self._port, self._connect_s, deadline)
    if self._context is not None:
      try:
        sock.settimeout(min(self._connect_s, _left_s(deadline)))
        sock = self._context.wrap_socket(sock, server_hostname=self._host)
      except BaseException:
        sock.close()
        raise
    connection = urllib3.connection.HTTPConnection(self._host, self._port)
    connection.default_port = self._default_port  # type: ignore[misc]
    connection.auto_open = 0  # it would open one without TLS
    connection.sock = sock
    return connection


def _left_s(deadline: float) -> float:
  left_s = deadline - time.monotonic()
  if left_s <= 0:
    raise TimeoutError("the time is over")
  return left_s


def _open(
  host: str, port: int, connect_s: float, deadline: float
) -> socket.socket:
  """Returns a connection to the first address of a host that accepts one."""
  failure = OSError(f"{host} has no address")
  try:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except UnicodeError:
    raise OSError(f"{host} isn't the name of a host") from None
  for family, kind, protocol, _, address in addresses:
    sock = socket.socket(family, kind, protocol)
    try:
      sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      sock.settimeout(min(connect_s, _left_s(deadline)))
      sock.connect(address)
      return sock
    except BaseException as e:
      sock.close()
      if not isinstance(e, OSError):
        raise
      failure = e
  raise failure


def _send(
  connection: urllib3.connection.HTTPConnection,
  path: str,
  body: bytes,
  headers: Mapping[str, str],
  deadline: float,
) -> None:
  def pieces() -> Iterator[bytes]:
    for at in range(0, len(body), _PIECE_BYTES):
      connection.sock.settimeout(_left_s(deadline))
      yield body[at : at + _PIECE_BYTES]

  connection.timeout = _left_s(deadline)
  connection.request(
    "POST",
    path,
    body=pieces(),
    headers={**headers, "Content-Length": str(len(body))},
    preload_content=False,
  )


def _receive(
  connection: urllib3.connection.HTTPConnection, deadline: float
) -> tuple[urllib3.BaseHTTPResponse, bytes]:
  reader = _Reader(connection.sock, deadline)
  connection.response_class = functools.partial(  # type: ignore[assignment]
    _response, reader
  )
  connection.timeout = _left_s(deadline)
  response = connection.getresponse()
  reader.begin_body()
  content = bytearray()
  try:
    while piece := response.read1(1 << 16):
      content += piece
      if len(content) > MAX_BYTES:  # it was compressed
        raise _too_long(MAX_BYTES)
  except BaseException:
    response.close()
    raise
  return response, bytes(content)


def _response(
  reader: _Reader, _: socket.socket, **options
) -> http.client.HTTPResponse:
  return http.client.HTTPResponse(reader, **options)  # type: ignore[arg-type]


def _too_long(num_bytes: int) -> replies.PassingError:
  return replies.PassingError(
    "bad_reply", f"a reply of more than {num_bytes >> 20} MiB"
  )


class _Reader(io.RawIOBase):
  """Reads a socket until a deadline, and not more than a number of bytes.

  http.client takes it for the socket itself, of which it wants a file.
  """

  def __init__(self, sock: socket.socket, deadline: float):
    super().__init__()
    self._sock, self._deadline = sock, deadline
    self._file = sock.makefile("rb", buffering=0)
    self._left, self._limit = MAX_HEAD_BYTES, MAX_HEAD_BYTES

  def makefile(self, _: str) -> io.BufferedReader:
    return io.BufferedReader(self)

  def begin_body(self) -> None:
    """Allows the bytes of a body; those around its chunks are of the head."""
    self._left, self._limit = self._left + MAX_BYTES, MAX_BYTES

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int | None:
    self._sock.settimeout(_left_s(self._deadline))
    num_bytes = self._file.readinto(buffer)
    self._left -= num_bytes or 0
    if self._left < 0:
      raise _too_long(self._limit)
    return num_bytes

  def close(self) -> None:
    self._file.close()
    super().close()
