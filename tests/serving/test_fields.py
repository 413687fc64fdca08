"""A declaration is one thing: a type, its schema, its words and its check."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from prm_jax.serving import declarations
from prm_jax.serving import refusals
from prm_jax.serving import routes


class _Whole(TypedDict):
  """An object.

  Args:
    name: Its name,
      in two lines.
    size: Its size.
  """

  name: str
  size: NotRequired[int | None]


class _Silent(TypedDict):
  """Its docstring says nothing of its field."""

  name: str


KINDS = [
  (str, dict(type="string"), "a text", "x", 3),
  (float, dict(type="number"), "a number", 1, True),
  (int, dict(type="integer"), "a whole number", 2, 2.0),
  (bool, dict(type="boolean"), "true or false", False, 0),
  (None, dict(type="null"), "null", None, 0),
  (dict[str, Any], dict(type="object"), "an object", {"x": 1}, []),
  (Literal["a", 1], dict(enum=["a", 1]), "a or 1", 1, True),
  (
    list[str],
    dict(type="array", items=dict(type="string")),
    *("a list of texts", [], [None]),
  ),
  (
    Annotated[list[bool], declarations.SOME],
    dict(type="array", items=dict(type="boolean"), minItems=1),
    *("a list of one or more (true or false)", [True], []),
  ),
  (
    tuple[int, int],
    dict(type="array", items=dict(type="integer"), minItems=2, maxItems=2),
    *("a list of 2 whole numbers", [1, 2], [1]),
  ),
  (
    str | list[int] | None,
    dict(
      anyOf=[
        dict(type="string"),
        dict(type="array", items=dict(type="integer")),
        dict(type="null"),
      ]
    ),
    *("a text or a list of whole numbers or null", None, {}),
  ),
  (
    _Whole,
    dict(
      type="object",
      properties=dict(
        name=dict(type="string", description="Its name, in two lines."),
        size=dict(
          anyOf=[dict(type="integer"), dict(type="null")],
          description="Its size.",
        ),
      ),
      required=["name"],
      additionalProperties=False,
    ),
    *("an object", dict(name="x", size=None), dict(size=1)),
  ),
]


@pytest.mark.parametrize(("kind", "schema", "words", "good", "bad"), KINDS)
def test_a_type_is_a_schema_with_words_and_a_check(
  kind, schema, words, good, bad
):
  kind = type(None) if kind is None else kind
  assert declarations.schema(kind) == schema
  assert declarations.in_words(schema) == words
  declarations.check(good, schema)
  with pytest.raises(refusals.RefusedError):
    declarations.check(bad, schema)


def test_a_record_is_closed_unless_it_says_so():
  more = dict(name="x", other=1)
  declarations.check(
    more, declarations.schema(Annotated[_Whole, declarations.OPEN])
  )
  with pytest.raises(refusals.RefusedError, match="'other'; there are name, s"):
    declarations.check(more, declarations.schema(_Whole))


def test_a_field_of_another_reader_is_checked_only_if_it_is_empty():
  schema = declarations.schema(declarations.Later[str | None])
  for value in (3, ["x"], "", None):
    declarations.check(value, schema)
  with pytest.raises(refusals.RefusedError, match="a text or null"):
    declarations.check(0, schema)


def test_a_field_without_an_explanation_cannot_be_declared():
  with pytest.raises(KeyError, match="name"):
    declarations.schema(_Silent)


def _described(schema):
  for name, field in schema.get("properties", {}).items():
    assert field["description"].endswith("."), name
    yield name
    yield from _described(field)
  inner = [schema["items"]] if "items" in schema else schema.get("anyOf", ())
  for kind in inner:
    yield from _described(kind)


def test_every_field_of_every_route_has_a_sentence():
  names = [
    name
    for route in routes.ALL
    for schema in (route.request, route.reply)
    for name in _described(schema or {})
  ]
  assert {"steps", "_ng_task_index", "reward_components"} <= {*names}
