"""All routes of a server, and the OpenAPI document that describes them."""

from __future__ import annotations

from collections.abc import Iterable
import itertools
from typing import Any

from prm_jax import _version
from prm_jax import voting
from prm_jax.serving import adapters
from prm_jax.serving import fields
from prm_jax.serving import refusals
from prm_jax.serving import score_fields

_MODEL = fields.record(
  fields.Field("id", fields.TEXT, "The name of the model.", True),
  fields.Field("object", fields.only("model"), "The kind of object.", True),
  fields.Field("created", fields.INTEGER, "Always 0.", True),
  fields.Field("owned_by", fields.only("prm_jax"), "Always prm_jax.", True),
  fields.Field(
    "model_fingerprint",
    fields.TEXT,
    "A digest of all that the scores depend on.",
    True,
  ),
  fields.Field(
    "kind",
    fields.TEXT,
    "prm, orm or implicit; of what isn't a checkpoint function, server or"
    " judge.",
    True,
  ),
  fields.Field(
    "aggregate",
    fields.only(*voting.AGGREGATES),
    "How step scores become a solution's score by default.",
    True,
  ),
  fields.Field(
    "max_tokens",
    fields.INTEGER,
    "The most tokens of a solution. It isn't there if the model isn't a"
    " checkpoint.",
  ),
)
MODELS = fields.Route(
  "GET",
  "/v1/models",
  "Returns the served models.",
  fields.record(
    fields.Field("object", fields.only("list"), "The kind of object.", True),
    fields.Field("data", fields.several(_MODEL), "One for each model.", True),
  ),
)
METRICS = fields.Route(
  "GET", "/metrics", "Returns counters in Prometheus' text form.", None
)
OPENAPI = fields.Route(
  "GET",
  "/openapi.json",
  "Returns the OpenAPI document of all routes.",
  fields.record(is_open=True),
)


def _status(path: str, about: str, status: str) -> fields.Route:
  field = fields.Field("status", fields.only(status), "The state.", True)
  return fields.Route("GET", path, about, fields.record(field), is_open=True)


HEALTH = _status("/health", "Returns that the server answers.", "alive")
READY = _status(
  "/ready",
  "Returns whether all shapes are compiled; status 503 means not yet.",
  "ready",
)
ALL = (
  score_fields.ROUTE,
  *(form.route for form in adapters.FORMS),
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
_ERROR = fields.record(
  fields.Field(
    "error",
    fields.record(
      fields.Field("message", fields.TEXT, "What is wrong.", True),
      fields.Field(
        "type", fields.only(*refusals.KINDS), "The kind of error.", True
      ),
      fields.Field("param", fields.TEXT, "The field that is wrong."),
    ),
    "Why there is no other reply.",
    True,
  )
)


def document() -> dict[str, Any]:
  """Returns the OpenAPI document of all routes."""
  paths: dict[str, Any] = {}
  for path, of_path in by_path(ALL).items():
    (method,) = {route.method for route in of_path}
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
      schemas=dict(Error=_ERROR),
      securitySchemes=dict(key=dict(type="http", scheme="bearer")),
    ),
  )


def by_path(routes: Iterable[fields.Route]) -> dict[str, list[fields.Route]]:
  """Returns routes by their paths.

  Args:
    routes: The routes; those of one path are neighbours.
  """
  grouped = itertools.groupby(routes, lambda route: route.path)
  return {path: list(of_path) for path, of_path in grouped}


def _operation(of_path: list[fields.Route]) -> dict[str, Any]:
  """Returns the description of a path's routes, which have one method."""
  replies = [route.reply for route in of_path if route.reply is not None]
  operation: dict[str, Any] = dict(
    summary=" ".join(dict.fromkeys(route.about for route in of_path)),
    security=[] if of_path[0].is_open else [{}, dict(key=[])],
  )
  clients = [route.client for route in of_path if route.client]
  if clients:
    operation["description"] = f"The form of {'; '.join(clients)}."
  if of_path[0].queries:
    operation["parameters"] = [
      dict(
        name=name,
        schema=fields.only(*voting.AGGREGATES),
        description="How step scores become a solution's score.",
        **{"in": "query"},
      )
      for name in of_path[0].queries
    ]
  requests = [route.request for route in of_path if route.request is not None]
  if requests:
    content = _json(requests)
    operation["requestBody"] = dict(required=True, content=content)
  text = {"text/plain": dict(schema=fields.TEXT)}
  ok = dict(
    description="The reply.", content=_json(replies) if replies else text
  )
  error = {"application/json": dict(schema=_REFERENCE)}
  operation["responses"] = {"200": ok} | {
    str(status): dict(description=STATUSES[status], content=error)
    for status in _statuses(of_path[0])
  }
  return operation


def _statuses(route: fields.Route) -> Iterable[int]:
  """Returns the statuses of a route's refusals."""
  if route.request is not None:
    return STATUSES
  if route.is_open:
    return (503,) if route is READY else ()
  return (401,)


_REFERENCE = {"$ref": "#/components/schemas/Error"}


def _json(schemas: list[fields.Schema]) -> dict[str, Any]:
  schema = schemas[0] if len(schemas) == 1 else fields.one_of(*schemas)
  return {"application/json": dict(schema=schema)}
