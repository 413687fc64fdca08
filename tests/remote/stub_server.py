"""A server that answers as it is told, and who asks it."""

import contextlib
import hashlib
import http.server
import json
import socket
import threading

from prm_jax import remote
from prm_jax import schema
from prm_jax.policy import sampler

SAMPLING = sampler.Sampling(max_tokens=20, temperature=0.7, top_p=0.9)
PREFIXES = [
  schema.Solution("a", "1 + 1?", ("We add.",)),
  schema.Solution("b", "2 + 2?", (), extra=dict(level=3)),
  schema.Solution("c", "3 \\cdot {3}?", ("One.", "Two.")),
]


def _rng_words(body):
  """Returns what this model writes: a function of all that it was asked."""
  return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def reply(body, text=None, finish="stop", **fields):
  """Returns a good reply of a server."""
  if text is None:
    text = f"so {_rng_words(body)[:6]}\n\nanswer {_rng_words(body)[6:9]}"
  choice = dict(index=0, finish_reason=finish)
  if "messages" in body:
    choice["message"] = dict(role="assistant", content=text)
    choice["logprobs"] = dict(content=[dict(token="x", logprob=-0.5)])
  else:
    choice["text"] = text
    choice["logprobs"] = dict(token_logprobs=[-0.25, -0.75], tokens=["x", "y"])
  usage = dict(prompt_tokens=7, completion_tokens=len(text))
  return dict(choices=[choice | fields], usage=usage)


class Stub(http.server.ThreadingHTTPServer):
  """Answers by `behave(handler, body, times)`; times: since it first came.

  behave returns a reply (any JSON), or None where it wrote its own. `models`
  are those that it lists, or a function that writes; without it has no such
  route.
  """

  daemon_threads = True
  request_queue_size = 64

  def __init__(self, behave):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.behave, self.closing = behave, threading.Event()
    self.lock, self.seen, self.paths = threading.Lock(), [], []
    self.keys, self.active, self.most_active = [], 0, 0
    self.models = None
    self.url = f"http://127.0.0.1:{self.server_port}/v1"

  def handle_error(self, request, client_address):
    """Clients hang up on it; that is what it is for."""


@contextlib.contextmanager
def running(behave=lambda handler, body, times: reply(body)):
  """Yields a Stub, which is ended afterwards."""
  stub = Stub(behave)
  threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True).start()
  try:
    yield stub
  finally:
    stub.closing.set()
    stub.shutdown()
    stub.server_close()


def graded(number, critique="so", **scores):
  """Returns what a judge with a rubric writes about a step."""
  lines = "\n".join(
    f"{x} | {score} | {critique}" for x, score in scores.items()
  )
  return f"<analysis_{number}>\n{lines}\n</analysis_{number}>\n"


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True  # else each reply waits 40 ms

  def log_message(self, *_):
    pass

  def do_GET(self):
    models = self.server.models
    if self.path != "/v1/models" or models is None:
      return self.say(b"{}", 404)
    if callable(models):
      return models(self)
    if isinstance(models, int):
      return self.say(b"no", models)
    data = [dict(id=name, object="model") for name in models]
    self.say(json.dumps(dict(object="list", data=data)).encode())

  def do_POST(self):
    length = int(self.headers["Content-Length"])
    body, stub = json.loads(self.rfile.read(length)), self.server
    with stub.lock:
      times = stub.seen.count(body)
      stub.seen.append(body)
      stub.paths.append(self.path)
      stub.keys.append(self.headers.get("Authorization"))
      stub.active += 1
      stub.most_active = max(stub.most_active, stub.active)
    try:
      reply = stub.behave(self, body, times)
    finally:
      with stub.lock:
        stub.active -= 1
    if reply is not None:
      self.say(json.dumps(reply).encode())

  def say(self, content, status=200, kind="application/json", **headers):
    self.send_response(status)
    self.send_header("Content-Type", kind)
    self.send_header("Content-Length", str(len(content)))
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    self.wfile.write(content)

  def cut(self):
    """Ends the connection with what was said so far."""
    self.wfile.flush()
    self.connection.shutdown(socket.SHUT_RDWR)
    self.close_connection = True


def hang(handler, body):
  """Says nothing until the server is closed, or 20 s."""
  handler.server.closing.wait(20)
  handler.cut()


def client(stub, journal=None, sleeps=None, template=None, **changes):
  """Returns a client that is quick to give up and doesn't sleep."""
  settings = dict(concurrency=4, tries=4, read_s=5.0) | changes
  return remote.Client(
    remote.Endpoint(stub.url, "tiny", **settings),
    template or remote.Template(),
    journal,
    sleep=lambda wait_s: None if sleeps is None else sleeps.append(wait_s),
    random=lambda: 0.0,
  )


def generate(client, prefixes=PREFIXES, n=3, seed=1, **kwargs):
  """Returns its completions, and closes it."""
  with client:
    return client.generate(prefixes, n, SAMPLING, seed, **kwargs)
