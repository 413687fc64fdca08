"""The forms of requests and replies, as JSON Schema.

A form is written once: requests are checked by it, and the OpenAPI document and
the reference page are made of it. The part of JSON Schema that is used is type,
items, minItems, maxItems, enum, anyOf, properties, required and
additionalProperties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import json
from typing import Any

from prm_jax.serving import refusals

Schema = dict[str, Any]

TEXT: Schema = dict(type="string")
NUMBER: Schema = dict(type="number")
INTEGER: Schema = dict(type="integer")
FLAG: Schema = dict(type="boolean")
NULL: Schema = dict(type="null")
ANY: Schema = {}
# P(correct so far), or what an ORM means by a score.
SCORE: Schema = dict(type="number", minimum=0, maximum=1)


@dataclasses.dataclass(frozen=True)
class Field:
  """A field of an object.

  Args:
    name: Its name.
    schema: What it holds.
    about: What it means, in one sentence.
    is_required: Whether it must be there.
  """

  name: str
  schema: Schema
  about: str
  is_required: bool = False


@dataclasses.dataclass(frozen=True)
class Route:
  """A route, as clients see it.

  Args:
    method: The method of HTTP.
    path: The path.
    about: What it does, in one sentence.
    reply: What a reply with status 200 holds; None is a text.
    request: What a request holds; None is nothing.
    queries: The names of its query parameters.
    is_open: Whether it needs no key.
    client: Whose requests it reads; "" is our own form.
  """

  method: str
  path: str
  about: str
  reply: Schema | None
  request: Schema | None = None
  queries: tuple[str, ...] = ()
  is_open: bool = False
  client: str = ""


def record(*fields: Field, is_open: bool = False) -> Schema:
  """Returns the schema of an object.

  Args:
    fields: Its fields.
    is_open: Whether it may have other fields.
  """
  return dict(
    type="object",
    properties={
      field.name: field.schema | dict(description=field.about)
      for field in fields
    },
    required=[field.name for field in fields if field.is_required],
    additionalProperties=is_open,
  )


def several(item: Schema, least: int = 0, most: int | None = None) -> Schema:
  """Returns the schema of a list.

  Args:
    item: What each entry holds.
    least: The fewest entries.
    most: The most entries; None is any number.
  """
  schema = dict(type="array", items=item, minItems=least)
  return schema if most is None else schema | dict(maxItems=most)


def one_of(*schemas: Schema) -> Schema:
  """Returns the schema of what fits one of several."""
  return dict(anyOf=list(schemas))


def only(*values: Any) -> Schema:
  """Returns the schema of a choice of values."""
  return dict(enum=list(values))


def check(value: Any, schema: Schema, where: str = "") -> None:
  """Refuses what doesn't fit a schema.

  Args:
    value: What JSON holds.
    schema: The schema.
    where: What the value is called in errors; "" is the whole request.

  Raises:
    RefusedError: It doesn't fit.
  """
  if "anyOf" in schema:
    options = [x for x in schema["anyOf"] if _is_of_type(value, x)]
    if len(options) == 1:
      return check(value, options[0], where)
    if any(_fits(value, option) for option in options):
      return None
  elif "enum" in schema:
    # True == 1.
    if any(x == value and type(x) is type(value) for x in schema["enum"]):
      return None
  elif _is_of_type(value, schema):
    return _CHECKS.get(schema.get("type", ""), _nothing)(value, schema, where)
  raise refusals.invalid(f"expected {in_words(schema)}", where)


def in_words(schema: Schema) -> str:
  """Returns what a schema asks for, such as "a list of texts"."""
  if "anyOf" in schema:
    return " or ".join(dict.fromkeys(map(in_words, schema["anyOf"])))
  if "enum" in schema:
    return " or ".join(
      x if isinstance(x, str) else json.dumps(x) for x in schema["enum"]
    )
  kind = schema.get("type", "")
  if kind != "array":
    return _WORDS[kind]
  least, most = schema.get("minItems", 0), schema.get("maxItems")
  inner = in_words(schema["items"])
  if least == most == 1:
    return f"a list of one {inner.partition(' ')[2]}"
  inner = _PLURALS.get(inner, f"({inner})")
  size = "list" if least == 0 else "list of one or more"
  if most is not None:
    size = f"list of {least}" if least == most else f"list of {least} to {most}"
  joint = " of " if size == "list" else " "
  return f"a {size}{joint}{inner}"


def _fits(value: Any, schema: Schema) -> bool:
  try:
    check(value, schema)
  except refusals.RefusedError:
    return False
  return True


def _is_of_type(value: Any, schema: Schema) -> bool:
  """Returns whether a value is of a schema's type, whatever is in it."""
  if "anyOf" in schema:
    return any(_is_of_type(value, x) for x in schema["anyOf"])
  if "enum" in schema:
    return any(x == value and type(x) is type(value) for x in schema["enum"])
  kind = schema.get("type", "")
  if isinstance(value, bool):
    return kind in ("", "boolean")
  return not kind or isinstance(value, _TYPES[kind])


def _check_record(value: dict[str, Any], schema: Schema, where: str) -> None:
  fields = schema["properties"]
  for name in schema["required"]:
    if name not in value:
      raise refusals.invalid(
        f"missing; expected {in_words(fields[name])}", _inner(where, name)
      )
  unknown = value.keys() - fields.keys()
  if unknown and not schema["additionalProperties"]:
    raise refusals.invalid(
      f"unknown field {min(unknown)[:60]!r}; there are {', '.join(fields)}",
      where,
    )
  for name in (x for x in fields if x in value):
    check(value[name], fields[name], _inner(where, name))


def _check_list(value: Sequence[Any], schema: Schema, where: str) -> None:
  least, most = schema.get("minItems", 0), schema.get("maxItems")
  if len(value) < least or (most is not None and len(value) > most):
    raise refusals.invalid(f"expected {in_words(schema)}", where)
  for i, item in enumerate(value):
    check(item, schema["items"], f"{where}[{i}]")


def _check_range(value: float, schema: Schema, where: str) -> None:
  least, most = schema.get("minimum", value), schema.get("maximum", value)
  if not least <= value <= most:
    raise refusals.invalid(f"expected {least} to {most}", where)


def _nothing(value: Any, schema: Schema, where: str) -> None:
  del value, schema, where


def _inner(where: str, name: str) -> str:
  return f"{where}.{name}" if where else name


_TYPES: dict[str, Any] = dict(
  string=str,
  number=(int, float),
  integer=int,
  boolean=bool,
  null=type(None),
  array=list,
  object=dict,
)
_CHECKS: dict[str, Callable[[Any, Schema, str], None]] = dict(
  object=_check_record, array=_check_list, number=_check_range
)
_WORDS = {
  "": "anything",
  "string": "a text",
  "number": "a number",
  "integer": "a whole number",
  "boolean": "true or false",
  "null": "null",
  "object": "an object",
}
_PLURALS = {
  "a text": "texts",
  "a number": "numbers",
  "a whole number": "whole numbers",
  "an object": "objects",
  "anything": "anything",
}
