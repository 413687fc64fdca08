"""A served model of random weights, and who asks it."""

import contextlib
import http.client
import json

import numpy as np

from prm_jax.models import model_config as model_config
from prm_jax.serving import limits as limits_lib
from prm_jax.text import tokenizer as tokenizer_lib

BYTES = tokenizer_lib.Bytes()
CONFIG = model_config.ModelConfig(
  vocab_size=BYTES.vocab_size,
  d_model=16,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  d_ff=16,
  scan=False,
)
LIMITS = limits_lib.Limits(
  max_tokens=96, max_batch_tokens=512, max_wait_ms=20, max_items=8, max_steps=9
)


def random_head():
  """Returns the parameters of a head whose scores differ from step to step."""
  kernel = -0.3 * np.random.default_rng(0).normal(size=(CONFIG.d_model, 1))
  return dict(kernel=kernel.astype(np.float32), bias=np.zeros(1, np.float32))


class Asked:
  """A running server, and how to ask it."""

  def __init__(self, server, address):
    self.server, (self.host, self.port) = server, address[:2]
    self.url = f"http://{self.host}:{self.port}/v1"

  def post(self, body, path="/v1/prm/score", **headers):
    """Returns the status, the JSON and the headers of a reply."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return self.ask("POST", path, text, headers)

  def get(self, path, **headers):
    return self.ask("GET", path, None, headers)

  def ask(self, method, path, body, headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
    with contextlib.closing(connection):
      connection.request(method, path, body, named)
      reply = connection.getresponse()
      content = reply.read()
    is_json = reply.headers["content-type"] == "application/json"
    return (
      reply.status,
      json.loads(content) if is_json else content.decode(),
      dict(reply.headers),
    )
