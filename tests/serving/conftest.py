"""Fixtures of a server; served.py has what they use."""

import contextlib
import functools

from flax.core import meta
import jax
import pytest
import served

from prm_jax.models import transformer
from prm_jax.runtime import listening
from prm_jax.scoring import scorer
from prm_jax.serving import app as app_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import server as server_lib
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import segmenters


@pytest.fixture(scope="session")
def scorer_of_text():
  init = functools.partial(
    transformer.init, config=served.CONFIG, heads=("step",)
  )
  params = meta.unbox(jax.jit(init)(jax.random.key(0)))
  # Heads are zero at first, and all scores would be 1/2.
  params = jax.tree.map(lambda x: x * 3, params)
  params["step_head"] = served.random_head()
  whole = scorer.Scorer(
    *(
      "prm",
      served.CONFIG,
      params,
      served.BYTES,
      encoding.EncodingConfig(max_tokens=64, template=own_form.OWN),
    ),
    aggregate="min",
    segmenter=segmenters.parse("paragraph"),
  )
  return models_lib.in_batches(whole, served.LIMITS)


@contextlib.contextmanager
def _answering(limits=served.LIMITS, keys=(), *, scorer_of_text, **options):
  model = models_lib.Model(
    *("tiny", "sha256:0", scorer_of_text, limits),
    cache=models_lib.cache_of(scorer_of_text, limits),
  )
  server = app_lib.Server({"tiny": model}, limits, keys, **options)
  with (
    listening.listen("127.0.0.1", 0) as listener,
    server_lib.answering(server, listener),
  ):
    yield served.Asked(server, listener.getsockname())


@pytest.fixture
def serving(scorer_of_text):
  """Returns a context manager of a running server."""
  return functools.partial(_answering, scorer_of_text=scorer_of_text)


@pytest.fixture(scope="module")
def running(scorer_of_text):
  """One server for all that leave no trace."""
  with _answering(scorer_of_text=scorer_of_text) as asked:
    yield asked
