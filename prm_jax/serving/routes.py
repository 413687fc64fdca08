"""All routes of a server, and the OpenAPI document that describes them."""

from __future__ import annotations

from collections.abc import Iterable
import itertools
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

from prm_jax import _version
from prm_jax.serving import adapters
from prm_jax.serving import cut_api
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import refusals
from prm_jax.serving import score_api

_T = TypeVar("_T", declarations.Route, forms.Form)


class Model(TypedDict):
  """A served model.

  Args:
    id: The name of the model.
    object: The kind of object.
    created: Always 0.
    owned_by: Always prm_jax.
    model_fingerprint: A digest of all that the scores depend on.
    kind: prm, orm or implicit; of what isn't a checkpoint function, server or
      judge.
    aggregate: How step scores become a solution's score by default.
    segmenter: How a response is cut into steps; null if a request must give
      steps.
    reads_turns: Whether it scores the turns of conversations.
    max_tokens: The most tokens of a solution. It isn't there if the model isn't
      a checkpoint.
  """

  id: str
  object: Literal["model"]
  created: Literal[0]
  owned_by: Literal["prm_jax"]
  model_fingerprint: str
  kind: str
  aggregate: declarations.Aggregate
  segmenter: str | None
  reads_turns: bool
  max_tokens: NotRequired[int]


class Models(TypedDict):
  """The served models.

  Args:
    object: The kind of object.
    data: One for each model.
  """

  object: Literal["list"]
  data: list[Model]


class Status(TypedDict):
  """The state of a server.

  Args:
    status: The state: alive, or ready of /ready.
  """

  status: Literal["alive", "ready"]


class _Reason(TypedDict):
  """Why a request is refused.

  Args:
    message: What is wrong.
    type: The kind of error.
    param: The field that is wrong.
  """

  message: str
  type: Annotated[str, ("enum", [*refusals.KINDS])]
  param: NotRequired[str]


class _Error(TypedDict):
  """A refusal.

  Args:
    error: Why there is no other reply.
  """

  error: _Reason


MODELS = declarations.Route(
  "/v1/models", "Returns the served models.", declarations.schema(Models)
)
METRICS = declarations.Route(
  "/metrics", "Returns counters in Prometheus' text form.", None
)
OPENAPI = declarations.Route(
  *("/openapi.json", "Returns the OpenAPI document of all routes."),
  declarations.schema(dict),
)
HEALTH = declarations.Route(
  *("/health", "Returns that the server answers."),
  declarations.schema(Status),
  is_open=True,
)
READY = declarations.Route(
  "/ready",
  "Returns whether all shapes are compiled; status 503 means not yet.",
  declarations.schema(Status),
  is_open=True,
)
AGGREGATE = declarations.schema(declarations.Aggregate)
FORMS = (score_api.FORM, *adapters.FORMS)
ALL = (
  *(form.route for form in FORMS),
  cut_api.ROUTE,
  *(MODELS, METRICS, OPENAPI, HEALTH, READY),
)
# Why a request that needs a model gets no reply of its route.
STATUSES = {
  400: "The request can't be understood, a chat in it can't be read, or its"
  " address has a query parameter that the route doesn't take.",
  401: "The key is missing or wrong.",
  404: "There is no such model.",
  408: "The request didn't arrive in time.",
  413: "The request is above a limit; nothing is cut.",
  415: "The body is compressed.",
  500: "The server failed; its log says why.",
  502: "The server behind the model, or its judge, refuses or gives no usable"
  " scores.",
  503: "Too many solutions wait, too many bytes are read, the server behind the"
  " model doesn't reply, or /ready isn't; try again after Retry-After seconds.",
  504: "No scores in time; try again later.",
}


def by_path(things: Iterable[_T]) -> list[list[_T]]:
  """Returns those of each path together.

  Args:
    things: Routes or forms; those of one path are neighbours.
  """
  grouped = itertools.groupby(things, lambda thing: thing.path)
  return [list(of_path) for _, of_path in grouped]


def document() -> dict[str, Any]:
  """Returns the OpenAPI document of all routes."""
  paths: dict[str, Any] = {}
  for of_path in by_path(ALL):
    ((path, method),) = {(route.path, route.method) for route in of_path}
    paths[path] = {method.lower(): _operation(of_path)}
  return dict(
    openapi="3.1.0",
    info=dict(
      title="prm_jax",
      summary="Scores of solutions and of their steps.",
      version=_version.__version__,
    ),
    paths=paths,
    components=dict(
      schemas=dict(Error=declarations.schema(_Error)),
      securitySchemes=dict(key=dict(type="http", scheme="bearer")),
    ),
  )


def _operation(of_path: list[declarations.Route]) -> dict[str, Any]:
  """Returns the description of a path's routes, which have one method."""
  first = of_path[0]
  operation: dict[str, Any] = dict(
    summary=" ".join(dict.fromkeys(route.about for route in of_path)),
    security=[] if first.is_open else [{}, dict(key=[])],
  )
  clients = [route.client for route in of_path if route.client]
  if clients:
    operation["description"] = f"The form of {'; '.join(clients)}."
  if first.takes_aggregate:
    operation["parameters"] = [
      {
        "name": "aggregate",
        "in": "query",
        "schema": AGGREGATE,
        "description": "How step scores become a solution's score.",
      }
    ]
  if first.request is not None:
    content = _json([route.request for route in of_path])
    operation["requestBody"] = dict(required=True, content=content)
  text = {"text/plain": dict(schema=declarations.schema(str))}
  replies = [route.reply for route in of_path]
  ok = text if first.reply is None else _json(replies)
  error = _json([{"$ref": "#/components/schemas/Error"}])
  operation["responses"] = {
    "200": dict(description="The reply.", content=ok)
  } | {
    str(status): dict(description=STATUSES[status], content=error)
    for status in _statuses(first)
  }
  return operation


def _statuses(route: declarations.Route) -> Iterable[int]:
  """Returns the statuses of a route's refusals."""
  if route.request is not None:
    return STATUSES
  if route.is_open:
    return (503,) if route is READY else ()
  return (401,)


def _json(schemas: list[declarations.Schema | None]) -> dict[str, Any]:
  schema = schemas[0] if len(schemas) == 1 else dict(anyOf=schemas)
  return {"application/json": dict(schema=schema)}
