"""A served model of random weights, and who asks it."""

import contextlib
import http.client
import json

from flax.core import meta
import jax
import pytest

from prm_jax.data import encoding
from prm_jax.data import segmenters
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.inference import scorer
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.serving import app as app_lib
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import server as server_lib

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
  max_tokens=96, max_batch_tokens=1024, max_wait_ms=20, max_items=8, max_steps=9
)


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


@pytest.fixture(scope="session")
def scorer_of_text():
  params = meta.unbox(transformer.init(jax.random.key(0), CONFIG, ("step",)))
  params = jax.tree.map(lambda x: x * 3, params)
  # A new head is zero: all scores would be 1/2.
  kernel = params["step_head"]["kernel"]
  params["step_head"]["kernel"] = jax.random.normal(
    jax.random.key(2), kernel.shape
  )
  return scorer.Scorer(
    *("prm", CONFIG, params, BYTES, encoding.EncodingConfig(max_tokens=64)),
    row_lengths=models_lib.row_lengths(LIMITS.max_tokens),
    batch_tokens=LIMITS.max_batch_tokens,
    aggregate="min",
    segmenter=segmenters.parse("paragraph"),
  )


@pytest.fixture
def serving(scorer_of_text):
  """Returns a context manager of a running server."""

  @contextlib.contextmanager
  def run(limits=LIMITS, keys=()):
    model = models_lib.Model("tiny", "sha256:0", scorer_of_text, limits)
    server = app_lib.Server({"tiny": model}, limits, keys)
    with (
      server_lib.listen("127.0.0.1", 0) as listening,
      server_lib.answering(server, listening),
    ):
      yield Asked(server, listening.getsockname())

  return run
