"""The routes of a scoring server.

A request is read within limits, its solutions are prepared by the model that it
names, wait in the queue (batching.py), and are answered in the route's own form.
No text of a request is logged, and no part of a request is a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import contextlib
import hmac
import logging
import threading
import time
import traceback
from typing import Any

from starlette import applications
from starlette import concurrency
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing

from prm_jax import errors
from prm_jax import voting
from prm_jax.scoring import cached_scorer
from prm_jax.serving import adapters
from prm_jax.serving import batching
from prm_jax.serving import bodies
from prm_jax.serving import fields
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import refusals
from prm_jax.serving import routes
from prm_jax.serving import score_api
from prm_jax.serving import score_fields
from prm_jax.serving import sources
from prm_jax.serving import threads
from prm_jax.serving.adapters import form as form_lib

_logger = logging.getLogger(__name__)

Handle = Callable[[requests.Request], Awaitable[responses.Response]]


class Server:
  """A scoring server's state: its models, its queues and what it counts.

  Args:
    models: The models, by their names.
    limits: What it accepts.
    keys: What a client may send as its key; empty asks for none.
  """

  def __init__(
    self,
    models: Mapping[str, sources.Served],
    limits: limits_lib.Limits,
    keys: Sequence[str] = (),
  ):
    self.models, self.limits = dict(models), limits
    self._keys = [key.encode() for key in keys]
    self.metrics = metrics_lib.Metrics()
    self._batcher = batching.Batcher(limits, self.metrics)
    self._batchers = {
      name: batching.Batcher(
        model.limits, self.metrics.of_source(name), threads.Thread(name)
      )
      for name, model in self.models.items()
      if isinstance(model, sources.Source)
    }
    self._bodies = bodies.Bodies(limits, self.metrics, [*self._batchers])
    self._compiled = threading.Event()

  def app(self) -> applications.Starlette:
    """Returns the ASGI application."""
    return applications.Starlette(
      routes=[
        self._route(score_fields.ROUTE, self._score),
        *map(self._adapter, adapters.by_path()),
        self._route(routes.MODELS, self._list_models),
        self._route(routes.METRICS, self._metrics_text),
        self._route(routes.OPENAPI, self._openapi),
        self._route(routes.HEALTH, self._health),
        self._route(routes.READY, self._ready),
      ],
      exception_handlers={exceptions.HTTPException: _not_found},
      lifespan=self._lifespan,
    )

  @property
  def is_ready(self) -> bool:
    """Whether all shapes are compiled, so that no request waits for one."""
    return self._compiled.is_set()

  @contextlib.asynccontextmanager
  async def _lifespan(self, app: applications.Starlette):
    del app
    async with contextlib.AsyncExitStack() as stack:
      for batcher in (self._batcher, *self._batchers.values()):
        await stack.enter_async_context(batcher.running())
      task = asyncio.create_task(self._keep_models())
      yield
      task.cancel()

  @property
  def _checkpoints(self) -> list[models_lib.Model]:
    """The models of checkpoint folders."""
    return [x for x in self.models.values() if isinstance(x, models_lib.Model)]

  async def _keep_models(self) -> None:
    """Compiles what the models need, then looks for later saves of them.

    A request keeps the model that it began with.
    """
    try:
      await self._batcher.warm(self._checkpoints)
    except Exception:
      _logger.exception("compiling failed; the server won't be ready")
      return
    self._compiled.set()
    while self.limits.reload_s:
      await asyncio.sleep(self.limits.reload_s)
      for model in self._checkpoints:
        name = model.name
        try:
          newer = await concurrency.run_in_threadpool(
            models_lib.load_newer, model
          )
          if newer is None:
            continue
          await self._batcher.warm([newer])
        except Exception as e:
          _logger.error("%s: a later save can't be loaded: %s", name, e)
          continue
        self.models[name] = newer
        _logger.info("%s: serves step %d now", name, newer.step)

  # --- What every route does -------------------------------------------------

  def _route(self, route: fields.Route, handle: Handle) -> routing.Route:
    """Returns a route that counts its requests, and answers refusals.

    Args:
      route: The route.
      handle: Returns the reply.
    """
    path = route.path

    async def counted(request: requests.Request) -> responses.Response:
      began = time.perf_counter()
      response = await self._answer(request, handle, route)
      self.metrics.requests.labels(path, str(response.status_code)).inc()
      self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
      return response

    return routing.Route(path, counted, methods=[route.method])

  def _adapter(self, of_path: Sequence[form_lib.Form]) -> routing.Route:
    """Returns the route of the forms of one path."""

    async def handle(request: requests.Request) -> responses.Response:
      return await self._adapted(request, of_path)

    return self._route(of_path[0].route, handle)

  async def _answer(
    self, request: requests.Request, handle: Handle, route: fields.Route
  ) -> responses.Response:
    held = request.state.held = bodies.Held()
    try:
      if not route.is_open:
        request.state.client = self._client(request)
      _check_address(request, route)
      async with asyncio.timeout(self.limits.deadline_s):
        return await handle(request)
    except refusals.RefusedError as e:
      refused = e
    except TimeoutError:
      refused = refusals.RefusedError(
        504, f"no scores within {self.limits.deadline_s:g} s; try again later"
      )
    except requests.ClientDisconnect:
      self.metrics.gone.inc()
      return responses.Response(status_code=499)
    except Exception as e:
      # The error's own words may hold a text of the request.
      _logger.error(
        "a request failed (%s):\n%s",
        type(e).__name__,
        "".join(traceback.format_tb(e.__traceback__)),
      )
      refused = refusals.RefusedError(
        500, f"failed ({type(e).__name__}); the server's log says why"
      )
    finally:
      self._bodies.release(held)
    # After other refusals the rest of a body is read and forgotten, so that a
    # client which still sends it can read why (server.py bounds the time).
    headers = {"Connection": "close"} if refused.status == 408 else {}
    if refused.retry_after_s is not None:
      headers["Retry-After"] = str(refused.retry_after_s)
    if refused.status == 401:
      headers["WWW-Authenticate"] = "Bearer"
    return responses.JSONResponse(refused.record, refused.status, headers)

  def _client(self, request: requests.Request) -> str:
    """Returns whose key a request has, as a number; "" if no key is asked for.

    A request without a right key is refused, in a time that tells nothing.
    """
    if not self._keys:
      return ""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    # The bytes that came: headers are read as latin-1.
    sent = given.strip().encode("latin-1")
    right = [hmac.compare_digest(sent, key) for key in self._keys]
    if kind.lower() != "bearer" or not any(right):
      raise refusals.RefusedError(
        401, "no right key; send Authorization: Bearer KEY"
      )
    return str(right.index(True))

  async def _scored(
    self,
    request: requests.Request,
    model: sources.Served,
    prepared: Sequence[models_lib.Prepared],
  ) -> list[cached_scorer.Scored]:
    """Returns the scores, unless the client goes away before."""
    if isinstance(model, sources.Source):
      self._bodies.hold_for(model.name, request.state.held)
    batcher = self._batchers.get(model.name, self._batcher)
    scoring = asyncio.ensure_future(batcher.score(model, prepared))
    leaving = asyncio.ensure_future(_left(request))
    try:
      await asyncio.wait(
        (scoring, leaving), return_when=asyncio.FIRST_COMPLETED
      )
      if not scoring.done():
        raise requests.ClientDisconnect
      return scoring.result()
    finally:
      for task in (scoring, leaving):
        task.cancel()

  # --- Routes ----------------------------------------------------------------

  async def _score(self, request: requests.Request) -> responses.Response:
    record = await self._bodies.read(request, request.state.held)
    is_large = request.state.held.is_large
    asked = await bodies.checked(is_large, score_api.read, record, self.limits)
    model = self._named(asked.model)
    prepared = await concurrency.run_in_threadpool(
      _prepare, asked, model, request.state.client
    )
    rows = await self._scored(request, model, prepared)
    return await bodies.written(
      is_large, rows, score_api.reply, model, asked.aggregate, prepared, rows
    )

  async def _adapted(
    self, request: requests.Request, of_path: Sequence[form_lib.Form]
  ) -> responses.Response:
    aggregate = request.query_params.get("aggregate")
    record = await self._bodies.read(request, request.state.held)
    is_large = request.state.held.is_large
    form = await bodies.checked(is_large, form_lib.chosen, of_path, record)
    model = self._named(record.get("model") or "")
    prepared = await concurrency.run_in_threadpool(
      form_lib.prepare, form, record, model, request.state.client
    )
    rows = await self._scored(request, model, prepared) if prepared else []
    scored = form_lib.Scored(
      model.name,
      aggregate or model.aggregate,
      [row.scores for row in rows],
      [x.num_tokens for x in prepared],
    )
    return await bodies.written(is_large, rows, form.write, record, scored)

  def _named(self, name: str) -> sources.Served:
    """Returns the model of a name; "" is the only one, or the first."""
    if not name:
      return next(iter(self.models.values()))
    if name not in self.models:
      raise refusals.RefusedError(
        404, f"no such model; there are {', '.join(self.models)}", "model"
      )
    return self.models[name]

  async def _list_models(self, request: requests.Request):
    del request
    data = []
    for model in self.models.values():
      record: dict[str, Any] = dict(
        id=model.name,
        object="model",
        created=0,
        owned_by="prm_jax",
        model_fingerprint=model.fingerprint,
        kind=model.kind,
        aggregate=model.aggregate,
      )
      if isinstance(model, models_lib.Model):
        record["max_tokens"] = self.limits.max_tokens
      data.append(record)
    return responses.JSONResponse(dict(object="list", data=data))

  async def _openapi(self, request: requests.Request):
    del request
    return responses.JSONResponse(routes.document())

  async def _metrics_text(self, request: requests.Request):
    del request
    return responses.Response(
      self.metrics.text(), media_type="text/plain; version=0.0.4"
    )

  async def _health(self, request: requests.Request):
    del request
    return responses.JSONResponse(dict(status="alive"))

  async def _ready(self, request: requests.Request):
    del request
    if not self.is_ready:
      raise refusals.overloaded("still compiling; try again", 2)
    return responses.JSONResponse(dict(status="ready"))


def _prepare(
  asked: score_api.Request, model: sources.Served, client: str
) -> list[models_lib.Prepared]:
  """Returns a request's solutions with their ids."""
  out = []
  for i, item in enumerate(asked.items):
    where = score_api.place(i)
    try:
      solution = score_api.solution(item, where, model.cut)
    except errors.InputError as e:
      raise refusals.of_solution(e, where) from e
    out.append(model.prepare(solution, where, client))
  return out


def _check_address(request: requests.Request, route: fields.Route) -> None:
  """Refuses what an address asks for and its route doesn't read.

  Raises:
    RefusedError: It asks for something else, for something twice, or for an
      aggregate that there isn't.
  """
  if route.method == "GET":
    return  # It reads nothing, and probes add what they want.
  asked: set[str] = set()
  for name, value in request.query_params.multi_items():
    if name not in route.queries:
      of_body = (route.request or {}).get("properties", {})
      known = ", ".join(route.queries) or "none"
      fix = "give it in the body" if name in of_body else f"known: {known}"
      raise refusals.invalid(f"unknown query parameter {name[:60]!r}; {fix}")
    if name in asked:
      raise refusals.invalid("it is there twice; give it once", name)
    asked.add(name)
    fields.check(value, fields.only(*voting.AGGREGATES), name)


async def _left(request: requests.Request) -> None:
  """Returns when the client has gone away."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


async def _not_found(
  request: requests.Request, error: Exception
) -> responses.Response:
  """Answers a path or a method that there isn't."""
  del request
  assert isinstance(error, exceptions.HTTPException)
  refused = refusals.RefusedError(
    error.status_code, f"{error.detail}; GET /v1/models shows the models"
  )
  return responses.JSONResponse(
    refused.record, error.status_code, error.headers
  )
