"""Settings and templates."""

import math

import pytest

from prm_jax import errors
from prm_jax import remote
from prm_jax import schema
from prm_jax.text import segmenters


@pytest.mark.parametrize("separator", ["\n\n", "\n", " ; "])
def test_steps_come_back_as_they_were_joined(separator):
  template = remote.Template(separator=separator)
  given = schema.Solution("a", "p", ("First, $x$.", "a b", "{c}"))
  text = template.begun(given)
  assert text == "".join(f"{step}{separator}" for step in given.steps)
  assert template.cut(text) == template.places(given)
  text = f" {separator} one {separator}{separator} two\n"
  steps = [text[start:end] for start, end in template.cut(text)]
  assert steps == ["one", "two"]
  assert template.cut(f" {separator}{separator} ") == ()


def test_a_text_is_cut_as_the_segmenter_says():
  text = "one.\n \ntwo,\nthree.\n\n"
  for template, steps in (
    (remote.Template(), ["one.", "two,\nthree."]),
    (
      remote.Template(segmenter=segmenters.LINE),
      ["one.", "two,", "three."],
    ),
  ):
    assert [text[a:b] for a, b in template.cut(text)] == steps


@pytest.mark.parametrize(
  "settings, said",
  [
    (dict(url="localhost:8000/v1"), "endpoint.url"),
    (dict(url="http://me:pass@host/v1"), "endpoint.url"),
    (dict(url="http://[::1/v1"), "endpoint.url"),
    (dict(url="http:///v1"), "endpoint.url: expected"),
    (dict(url="http://host:65536/v1"), "endpoint.url: expected"),
    (dict(url="http://host:80x/v1"), "endpoint.url: expected"),
    (dict(url="http://host\n/v1"), "endpoint.url: expected"),
    (dict(url="http://host/v1\r\nA: b"), "endpoint.url: expected"),
    (dict(url="http://host/v1?key=1"), "take out what begins with"),
    (dict(url="http://host/v1#"), "take out what begins with"),
    (dict(tries=0), "endpoint.tries=0"),
    (dict(concurrency=0), "endpoint.concurrency=0"),
    (dict(read_s=math.nan), "endpoint.read_s=nan"),
    (dict(connect_s=0.0), "endpoint.connect_s=0.0: expected a number above 0"),
    (dict(backoff_s=-1.0), "endpoint.backoff_s=-1.0: expected 0 or more"),
    (dict(options=dict(seed=1, top_k=2)), "endpoint.options: seed"),
  ],
)
def test_a_wrong_setting_is_named(settings, said):
  with pytest.raises(errors.InputError, match=said) as caught:
    remote.Endpoint(**(dict(url="http://h/v1", model="m") | settings))
  assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
  "host",
  ["api.example.com", "10.0.0.7", "[2001:db8::1]", "0.0.0.0", "localhost.com"],
)
def test_a_key_does_not_go_over_plain_http_to_another_machine(host):
  settings = dict(model="m", key_variable="MY_KEY")
  with pytest.raises(errors.InputError, match="MY_KEY unencrypted") as caught:
    remote.Endpoint(f"http://{host}:8000/v1", **settings)
  for fix in ("https", "localhost", "`insecure_key=True`"):
    assert fix in str(caught.value)
  remote.Endpoint(f"http://{host}:8000/v1", **settings, insecure_key=True)
  remote.Endpoint(f"https://{host}:8000/v1", **settings)
  remote.Endpoint(f"http://{host}:8000/v1", "m")  # no key, nothing to lose


@pytest.mark.parametrize(
  "host",
  [
    *("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1.2.3"),
    *("[::1]", "[::ffff:127.0.0.1]"),
  ],
)
def test_a_key_may_go_over_plain_http_to_this_machine(host):
  remote.Endpoint(f"http://{host}:8000/v1", "m", key_variable="MY_KEY")


@pytest.mark.parametrize(
  "settings",
  [
    dict(prompt="no place"),
    dict(prompt="{problem}{problem}"),
    dict(separator=""),
    dict(stop=("",)),
  ],
)
def test_a_wrong_template_is_refused(settings):
  with pytest.raises(errors.InputError, match="template"):
    remote.Template(**settings)
