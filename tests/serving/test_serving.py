"""`prm_jax.Serve` as a value."""

import pytest

import prm_jax
from prm_jax.serving import server as server_lib
from prm_jax.serving import server_limits


def test_a_value_loads_what_it_serves_without_a_server():
  small = server_limits.Limits(max_batch_solutions=3)
  verb = prm_jax.Serve("math:exp, log=math:log", limits=small)
  exp, log = (verb.models()[name] for name in ("exp", "log"))
  assert exp.kind == log.kind == "function"
  assert log.limits.max_batch_tokens == 3


@pytest.mark.parametrize(
  ("values", "words"),
  [
    (dict(host="0.0.0.0"), "`host=0.0.0.0`: other machines"),
    (dict(dtype="float32"), "`dtype=float32` is for checkpoints"),
  ],
  ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_a_wrong_value_is_refused_in_python(monkeypatch, values, words):
  monkeypatch.setattr(server_lib, "run", lambda *_: pytest.fail("it runs"))
  with pytest.raises(prm_jax.InputError, match=words):
    prm_jax.Serve("math:exp", **values).run()
