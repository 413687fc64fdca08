"""The fields of requests and replies: types, which say what JSON may hold.

A request or a reply is declared once, as a TypedDict whose docstring explains
its fields. Its JSON Schema is made of that: requests are checked by it, and the
OpenAPI document and the reference page are made of it. The part of JSON Schema
that is used is type, items, minItems, maxItems, minimum, maximum, enum, anyOf,
properties, required and additionalProperties; title is a name in words.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from prm_jax import voting
from prm_jax.runtime import verbs
from prm_jax.serving import refusals

Schema = dict[str, Any]

# What `Annotated` says of a type, as a part of its schema: a list holds one entry
# or more, or an object may have other fields. ("title", WORDS) is its name in
# errors and on the reference page.
SOME = ("minItems", 1)
OPEN = ("additionalProperties", True)
_T = TypeVar("_T")
# A field that is checked here if it is empty; else who reads it says better what
# is wrong.
Later = Annotated[_T, ("$comment", "Its reader checks it.")]
Aggregate = Annotated[str, ("enum", [*voting.AGGREGATES])]
Texts = str | Annotated[list[str], SOME]
# P(correct so far), or what an ORM means by a score.
Score = Annotated[float, ("minimum", 0), ("maximum", 1)]


@dataclasses.dataclass(frozen=True)
class Route:
  """A route, as clients see it.

  Args:
    path: The path.
    about: What it does, in one sentence.
    reply: What a reply with status 200 holds; None is a text.
    request: What a request holds; None is nothing.
    takes_aggregate: Whether its address may say how step scores become a
      solution's score.
    is_open: Whether it needs no key.
    client: Whose requests it reads; "" is our own form.
  """

  path: str
  about: str
  reply: Schema | None
  request: Schema | None = None
  takes_aggregate: bool = False
  is_open: bool = False
  client: str = ""

  @property
  def method(self) -> str:
    """The method of HTTP."""
    return "GET" if self.request is None else "POST"


def schema(kind: Any) -> Schema:
  """Returns the schema of what a type holds.

  Args:
    kind: The type: a TypedDict, or one of those that its fields have.
  """
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  if name := _NAMES.get(origin or kind):
    return dict(type=name)
  if kind is Any:
    return {}
  if origin in (Annotated, NotRequired):
    return schema(inner[0]) | dict(inner[1:])
  if origin in (typing.Union, types.UnionType):
    return dict(anyOf=[*map(schema, inner)])
  if origin is Literal:
    return dict(enum=[*inner])
  if origin is list:
    return dict(type="array", items=schema(inner[0]))
  if origin is tuple:
    num = len(inner)
    return dict(
      type="array", items=schema(inner[0]), minItems=num, maxItems=num
    )
  return record(kind)


def record(*kinds: type) -> Schema:
  """Returns the schema of an object with the fields of some TypedDicts."""
  hints: dict[str, Any] = {}
  abouts: dict[str, str] = {}
  for kind in kinds:
    hints |= typing.get_type_hints(kind, include_extras=True)
    abouts |= verbs.explained(kind)
  return dict(
    type="object",
    properties={
      name: schema(hint) | dict(description=f"{abouts[name]}.")
      for name, hint in hints.items()
    },
    required=[
      name
      for name, hint in hints.items()
      if typing.get_origin(hint) is not NotRequired
    ],
    additionalProperties=False,
  )


def check(value: Any, schema: Schema, where: str = "") -> None:
  """Refuses what doesn't fit a schema.

  Args:
    value: What JSON holds.
    schema: The schema.
    where: What the value is called in errors; "" is the whole request.

  Raises:
    RefusedError: It doesn't fit.
  """
  if value and "$comment" in schema:
    return
  options = [x for x in schema.get("anyOf", [schema]) if _is_of_type(value, x)]
  if len(options) == 1:
    _check_inside(value, options[0], where)
  elif not any(_fits(value, option) for option in options):
    raise refusals.invalid(f"expected {in_words(schema)}", where)


def in_words(schema: Schema) -> str:
  """Returns what a schema asks for, such as "a list of texts"."""
  if "title" in schema:
    return schema["title"]
  if "anyOf" in schema:
    return " or ".join(dict.fromkeys(map(in_words, schema["anyOf"])))
  if "enum" in schema:
    return " or ".join(
      x if isinstance(x, str) else json.dumps(x) for x in schema["enum"]
    )
  if "items" not in schema:
    return _WORDS[schema.get("type", "")]
  items = schema["items"]
  least, most = schema.get("minItems", 0), schema.get("maxItems")
  inner = in_words(items)
  noun = inner.partition(" ")[2]
  if least == most == 1:
    return f"a list of one {noun}"
  if items.get("type") in ("string", "number", "integer", "object"):
    inner = f"{noun}s"
  elif items:
    inner = f"({inner})"
  size = "one or more " if least else ""
  if most is not None:
    size = f"{least} " if least == most else f"{least} to {most} "
  return f"a list of {size}{inner}"


def _fits(value: Any, schema: Schema) -> bool:
  try:
    check(value, schema)
  except refusals.RefusedError:
    return False
  return True


def _is_of_type(value: Any, schema: Schema) -> bool:
  """Returns whether a value is of a schema's type, whatever is in it."""
  if "enum" in schema:
    # True == 1.
    return any(x == value and type(x) is type(value) for x in schema["enum"])
  kind = schema.get("type")
  return kind is None or (
    isinstance(value, _TYPES[kind])
    and isinstance(value, bool) == (kind == "boolean")
  )


def _check_inside(value: Any, schema: Schema, where: str) -> None:
  """Refuses what is of a schema's type, but has other contents."""
  if "properties" in schema:
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
  elif "items" in schema:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if not least <= len(value) <= most:
      raise refusals.invalid(f"expected {in_words(schema)}", where)
    for i, item in enumerate(value):
      check(item, schema["items"], f"{where}[{i}]")
  elif "minimum" in schema:
    least, most = schema["minimum"], schema["maximum"]
    if not least <= value <= most:
      raise refusals.invalid(f"expected {least} to {most}", where)


def _inner(where: str, name: str) -> str:
  return f"{where}.{name}" if where else name


_NAMES: dict[Any, str] = {
  str: "string",
  float: "number",
  int: "integer",
  bool: "boolean",
  types.NoneType: "null",
  dict: "object",
}
_TYPES: dict[str, Any] = {name: kind for kind, name in _NAMES.items()}
_TYPES |= dict(number=(int, float), array=list)
_WORDS = {
  "": "anything",
  "string": "a text",
  "number": "a number",
  "integer": "a whole number",
  "boolean": "true or false",
  "null": "null",
  "object": "an object",
}
