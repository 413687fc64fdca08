"""The OpenAPI document is one for other programs, and says what we check."""

import random

import golden_requests
import pytest

from prm_jax.serving import declarations
from prm_jax.serving import refusals
from prm_jax.serving import routes

openapi_spec_validator = pytest.importorskip("openapi_spec_validator")
pytestmark = pytest.mark.parity

GOLDEN = golden_requests.GOLDEN


@pytest.fixture(scope="module")
def of_path():
  """Returns another program's checks of each path's request and reply."""
  from openapi_schema_validator import OAS31Validator

  found = {}
  for path, methods in routes.document()["paths"].items():
    if "post" in methods:
      asked = methods["post"]["requestBody"]
      replied = methods["post"]["responses"]["200"]
      found[path] = tuple(
        OAS31Validator(x["content"]["application/json"]["schema"])
        for x in (asked, replied)
      )
  return found


def _plain(golden):
  return golden.path.partition("?")[0]


def test_the_document_is_valid_openapi_3_1():
  document = routes.document()
  assert document["openapi"].startswith("3.1")
  openapi_spec_validator.validate(
    document, cls=openapi_spec_validator.OpenAPIV31SpecValidator
  )
  del document["info"]["title"]
  with pytest.raises(Exception, match="'title' is a required property"):
    openapi_spec_validator.validate(document)


def test_golden_requests_and_replies_are_valid_by_the_document(of_path):
  for golden in GOLDEN.values():
    asked, replied = of_path[_plain(golden)]
    asked.validate(golden.body)
    steps = [[0.5, 0.25] for _ in golden.texts]
    scores = [0.25] * len(steps)
    replied.validate(golden.reply(steps, scores, [3] * len(steps)))
  for body, path in (
    (golden_requests.GYM_SEED, "/seed_session"),
    (golden_requests.GYM_VERIFIED, "/aggregate_metrics"),
  ):
    of_path[path][0].validate(body)


def test_we_refuse_what_the_document_does_not_allow(of_path):
  """By another program's reading of it, for requests changed at random."""
  draw = random.Random(0)
  values = [None, 0, -1.5, True, "", "x", [], {}, ["2"], [["2", 3]], "float"]

  seen = set()
  for _ in range(3000):
    golden = GOLDEN[draw.choice([*GOLDEN])]
    body = golden_requests.changed(golden.body, draw, values)
    schema = of_path[_plain(golden)][0]
    try:
      declarations.check(body, schema.schema)
      is_right = True
    except refusals.RefusedError:
      is_right = False
    assert schema.is_valid(body) == is_right, (golden.path, body)
    seen.add(is_right)
  assert seen == {True, False}
