"""Replies that never end: each costs the time and the bytes that it may."""

import itertools
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest
import stub_server

from prm_jax import errors
from prm_jax import remote

LIMIT_S = 0.3
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
GZIP = OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08" + b"\x00" * 7
EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"

# What is sent at once, and what then follows, again and again.
ENDLESS = {
  "nothing": (b"", b""),
  "a status line": (b"HTTP/1.1 200 O", b"K"),
  "a header": (OK + b"A: ", b"b"),
  "100 Continue": (b"", CONTINUE),
  "headers of 100 Continue": (CONTINUE[:-2] + b"A: ", b"b"),
  "a body": (OK + b"Content-Length: 9999\r\n\r\n", b" "),
  "a body without a length": (OK + b"\r\n", b" "),
  "a compressed body of nothing": (GZIP, EMPTY_BLOCK),
  "a chunk's size": (CHUNKED, b"0"),
  "a chunk's extension": (CHUNKED + b"1;", b"x"),
  "a chunk": (CHUNKED + b"ffff\r\n", b" "),
  "chunks": (CHUNKED, b"1\r\n \r\n"),
  "trailers": (CHUNKED + b"0\r\n", b"A: b\r\n"),
}


class Wire(threading.Thread):
  """A server of bytes: `answer` writes to each connection, one by one."""

  def __init__(self, answer, context=None):
    super().__init__(daemon=True)
    self._answer, self._context = answer, context
    self.closing, self.num_sent = threading.Event(), 0
    self._listener = socket.create_server(("127.0.0.1", 0))
    self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    scheme = "http" if context is None else "https"
    self.url = f"{scheme}://localhost:{self._listener.getsockname()[1]}/v1"
    self.start()

  def run(self):
    while not self.closing.is_set():
      try:
        sock, _ = self._listener.accept()
        with sock:
          sock.settimeout(10)
          if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True)
          with sock:
            self._answer(self, sock)
      except OSError:
        pass  # The client hangs up; that is what it is for.

  def send(self, sock, content):
    sock.sendall(content)
    self.num_sent += len(content)

  def drip(self, sock, begin, then):
    """Sends the first bytes, then the others every 10 ms, for 20 s at most."""
    self.send(sock, begin)
    for _ in range(2_000):
      if self.closing.wait(0.01):
        return
      self.send(sock, then)

  def close(self):
    self.closing.set()
    # An accept that waits isn't ended by closing its socket.
    with socket.create_connection(self._listener.getsockname()):
      pass
    self.join(20)
    self._listener.close()


@pytest.fixture
def wire():
  wires = []

  def start(answer, context=None):
    wires.append(Wire(answer, context))
    return wires[-1]

  yield start
  for each in wires:
    each.close()


def _read_request(sock):
  """Reads all of it: what is unread at the end would take the reply away."""
  content, size = b"", None
  while size is None or len(content) < size:
    piece = sock.recv(1 << 16)
    if not piece:
      raise ConnectionError
    content += piece
    head, end, _ = content.partition(b"\r\n\r\n")
    if end:
      length = re.search(rb"(?i)content-length: *(\d+)", head)
      size = len(head) + len(end) + (int(length[1]) if length else 0)


def _ask(url, problem="1 + 1?", **changes):
  """Returns the counts and the seconds of one try, which must fail."""
  prefixes = [stub_server.schema.Solution("a", problem, ())]
  settings = dict(tries=1, read_s=LIMIT_S) | changes
  client = remote.Client(remote.Endpoint(url, "tiny", **settings))
  begin = time.monotonic()
  with pytest.raises(errors.InputError, match="no usable reply in 1 try, "):
    stub_server.generate(client, prefixes, n=1)
  return client.counts, time.monotonic() - begin


def _assert_timeout(counts, spent_s):
  assert counts["failed_timeout"] == 1, counts
  # The bound is far below the 20 s of a drip, and far above a busy machine.
  assert LIMIT_S <= spent_s < 10


@pytest.mark.parametrize("name", ENDLESS)
def test_one_deadline_holds_for_all_parts_of_a_reply(name, wire):
  def answer(wire, sock):
    _read_request(sock)
    wire.drip(sock, *ENDLESS[name])

  _assert_timeout(*_ask(wire(answer).url))


def test_the_deadline_holds_while_the_server_takes_the_request(wire):
  def answer(wire, sock):
    while sock.recv(1 << 10) and not wire.closing.wait(0.01):
      pass

  # More than the system's buffers hold.
  _assert_timeout(*_ask(wire(answer).url, problem="x" * (16 << 20)))


def test_the_deadline_holds_for_the_handshake_of_tls(wire):
  def answer(wire, sock):
    wire.drip(sock, b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x03")

  url = wire(answer).url.replace("http:", "https:")
  _assert_timeout(*_ask(url))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
  if shutil.which("openssl") is None:
    pytest.skip("needs openssl, which makes a certificate")
  folder = tmp_path_factory.mktemp("tls")
  new_key = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
  subprocess.run(
    [
      *("openssl", *new_key.split(), "-days", "2", "-subj", "/CN=localhost"),
      *("-addext", "subjectAltName=DNS:localhost"),
      *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
    ],
    check=True,
    capture_output=True,
  )
  return folder


@pytest.fixture
def context(certificate):
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
  return context


@pytest.mark.parametrize("name", ["a header", "a chunk's size", "a body"])
def test_one_deadline_holds_under_tls(
  name, wire, certificate, context, monkeypatch
):
  monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))

  def answer(wire, sock):
    _read_request(sock)
    wire.drip(sock, *ENDLESS[name])

  _assert_timeout(*_ask(wire(answer, context).url))


def test_a_reply_under_tls_is_read_and_another_authority_refused(
  wire, certificate, context, monkeypatch
):
  def answer(wire, sock):
    _read_request(sock)
    wire.send(sock, OK + b"Content-Length: 2\r\n\r\n[]")

  served = wire(answer, context)
  client = remote.Client(remote.Endpoint(served.url, "tiny", tries=1))
  with pytest.raises(errors.InputError, match="its certificate isn't trusted"):
    stub_server.generate(client, stub_server.PREFIXES[1:2], n=1)
  monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
  counts, _ = _ask(served.url, read_s=20.0)
  assert counts["failed_bad_reply"] == 1  # an array is read, and isn't a reply


@pytest.mark.parametrize(
  "begin, then, cause, most_mib",
  [
    (b"", CONTINUE * 1_000, "bad_reply", 1),
    (OK + b"A: ", b"b" * 10_000, "connection", 1),
    (OK, b"A: b\r\n" * 1_000, "connection", 1),
    (CHUNKED, b"0" * 10_000, "connection", 1),
    (CHUNKED + b"0\r\n", b"A: %b\r\n" % (b"b" * 60_000), "bad_reply", 17),
    (CHUNKED, b"ff\r\n%b\r\n" % (b" " * 255) * 1_000, "bad_reply", 17),
    (OK + b"\r\n", b" " * 100_000, "bad_reply", 17),
  ],
  ids=[
    *("100 Continue", "a header", "headers", "a chunk's size", "trailers"),
    *("chunks", "a body"),
  ],
)
def test_a_flood_is_cut_off(begin, then, cause, most_mib, wire):
  def answer(wire, sock):
    _read_request(sock)
    wire.send(sock, begin)
    for _ in itertools.takewhile(lambda n: n < 50 << 20, _sizes(then)):
      wire.send(sock, then)

  served = wire(answer)
  counts, _ = _ask(served.url, read_s=60.0)
  assert counts[f"failed_{cause}"] == 1, counts
  # What the system's buffers hold was sent, too.
  assert served.num_sent < (most_mib + 10) << 20


def _sizes(piece):
  return itertools.count(0, len(piece))


def test_a_connection_is_used_again_unless_the_server_has_closed_it(serve):
  ports = []

  def behave(handler, body, times):
    ports.append(handler.client_address[1])
    handler.close_connection = len(ports) == 3
    return stub_server.reply(body)

  client = stub_server.client(serve(behave), concurrency=1)
  with client:
    for _ in range(6):
      client.generate(stub_server.PREFIXES[:1], 1, stub_server.SAMPLING, 0)
      time.sleep(0.01)
  assert len(set(ports[:3])) == 1 and len(set(ports[3:])) == 1
  assert ports[0] != ports[5] and "retries" not in client.counts
