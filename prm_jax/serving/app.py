"""The routes of a scoring server.

A request is read within limits, its solutions are prepared by the model that it
names, wait in the queue (batching.py), and are answered in the route's own form.
No text of a request is logged, and no part of a request is a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import hmac
import logging
import threading
import time
import typing
from typing import Any

from starlette import applications
from starlette import concurrency
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing

from prm_jax.scoring import cached_scorer
from prm_jax.serving import batching
from prm_jax.serving import bodies
from prm_jax.serving import cut_api
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import refusals
from prm_jax.serving import routes
from prm_jax.serving import served_sources
from prm_jax.serving import server_limits as limits_lib
from prm_jax.serving import threads
from prm_jax.text import segmenters
from prm_jax.web import assets

_logger = logging.getLogger(__name__)

# The files of a browser's first page, and of the one for a path that isn't there.
_PLAYGROUND = "playground.html"
_NOT_FOUND = "not_found.html"

Handle = Callable[[requests.Request], Awaitable[responses.Response]]


class Server:
  """A scoring server's state: its models, its queues and what it counts.

  Args:
    models: The models, by their names.
    limits: What it accepts.
    keys: What a client may send as its key; empty asks for none.
    has_page: Whether a browser gets the playground.
  """

  def __init__(
    self,
    models: Mapping[str, served_sources.Served],
    limits: limits_lib.Limits,
    keys: Sequence[str] = (),
    *,
    has_page: bool = True,
  ):
    self._has_page = has_page
    self.models, self.limits = dict(models), limits
    self._keys = [key.encode() for key in keys]
    self.metrics = metrics_lib.Metrics()
    self._batcher = batching.Batcher(limits, self.metrics)
    self._batchers = {
      name: batching.Batcher(
        model.limits, self.metrics.of_source(name), threads.Thread(name)
      )
      for name, model in self.models.items()
      if isinstance(model, served_sources.Source)
    }
    self._bodies = bodies.Bodies(limits, self.metrics, [*self._batchers])
    self._compiled = threading.Event()

  def app(self) -> applications.Starlette:
    """Returns the ASGI application."""
    return applications.Starlette(
      routes=[
        *(
          self._route(x[0].route, functools.partial(self._scores, of_path=x))
          for x in routes.by_path(routes.FORMS)
        ),
        self._route(cut_api.ROUTE, self._cut),
        self._shown(routes.MODELS, self._listed),
        self._route(routes.METRICS, self._metrics_text),
        self._shown(routes.OPENAPI, routes.document),
        self._shown(routes.HEALTH, lambda: routes.Status(status="alive")),
        self._shown(routes.READY, self._state),
        *(self._page(path, name) for path, name in self._files().items()),
      ],
      exception_handlers={exceptions.HTTPException: self._not_found},
      lifespan=self._lifespan,
    )

  @property
  def is_ready(self) -> bool:
    """Whether all shapes are compiled, so that no request waits for one."""
    return self._compiled.is_set()

  @contextlib.asynccontextmanager
  async def _lifespan(self, _: applications.Starlette):
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

  def _route(self, route: declarations.Route, handle: Handle) -> routing.Route:
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

  def _shown(
    self, route: declarations.Route, content: Callable[[], Any]
  ) -> routing.Route:
    """Returns a route that reads nothing, and replies with JSON."""

    async def handle(_: requests.Request) -> responses.Response:
      return responses.JSONResponse(content())

    return self._route(route, handle)

  def _files(self) -> dict[str, str]:
    """Returns the file of each path that only browsers ask for."""
    if not self._has_page:
      return {}
    named = {f"/web/{name}": name for name in assets.NAMES}
    return {"/": _PLAYGROUND} | named

  def _page(self, path: str, name: str) -> routing.Route:
    """Returns the route of a file, which holds nothing of this server's."""

    async def handle(_: requests.Request) -> responses.Response:
      return _file(name, 200)

    return self._route(
      declarations.Route(path, name, None, is_open=True), handle
    )

  async def _not_found(
    self, request: requests.Request, error: Exception
  ) -> responses.Response:
    """Answers a path or a method that there isn't."""
    assert isinstance(error, exceptions.HTTPException)
    wants_page = "text/html" in request.headers.get("accept", "")
    if self._has_page and wants_page and error.status_code == 404:
      return _file(_NOT_FOUND, 404)
    refused = refusals.RefusedError(
      error.status_code, f"{error.detail}; GET /v1/models shows the models"
    )
    return responses.JSONResponse(
      refused.record, error.status_code, error.headers
    )

  async def _answer(
    self, request: requests.Request, handle: Handle, route: declarations.Route
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
      threads.log_place("a request", e)
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
    self, request: requests.Request, asked: forms.Asked
  ) -> list[cached_scorer.Scored]:
    """Returns the scores, unless the client goes away before."""
    model = asked.model
    if isinstance(model, served_sources.Source):
      self._bodies.hold_for(model.name, request.state.held)
    batcher = self._batchers.get(model.name, self._batcher)
    scoring = asyncio.ensure_future(batcher.score(model, asked.prepared))
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

  async def _scores(
    self, request: requests.Request, of_path: Sequence[forms.Form]
  ) -> responses.Response:
    """Answers a request that has one of the forms of its path."""
    body = await self._bodies.read(request, request.state.held)
    # In a thread, so that others are answered meanwhile.
    asked = await concurrency.run_in_threadpool(
      self._asked, request, of_path, body
    )
    if asked.prepared:
      asked = dataclasses.replace(
        asked, results=await self._scored(request, asked)
      )
    return await bodies.written(request.state.held, asked)

  def _asked(
    self, request: requests.Request, of_path: Sequence[forms.Form], body: bytes
  ) -> forms.Asked:
    """Returns what a request asks for."""
    record = bodies.parsed(body)
    form = forms.chosen(of_path, record, self.limits)
    # An open form may have other fields of these names.
    known = (form.route.request or {}).get("properties", {})
    given = {name: x for name, x in record.items() if name in known}
    model = self._named(given.get("model") or "")
    aggregate = request.query_params.get("aggregate", given.get("aggregate"))
    prepared = forms.prepare(form, record, model, request.state.client)
    return forms.Asked(
      form, record, model, aggregate or model.aggregate, prepared
    )

  async def _cut(self, request: requests.Request) -> responses.Response:
    """Answers where the steps of a text are."""
    record = bodies.parsed(await self._bodies.read(request, request.state.held))
    declarations.check(record, cut_api.ROUTE.request or {})
    model = self._named(record.get("model", ""))
    # In a thread, so that others are answered meanwhile.
    return responses.JSONResponse(
      await concurrency.run_in_threadpool(
        cut_api.reply, typing.cast(cut_api.Request, record), model
      )
    )

  def _named(self, name: str) -> served_sources.Served:
    """Returns the model of a name; "" is the only one, or the first."""
    if not name:
      return next(iter(self.models.values()))
    if name not in self.models:
      raise refusals.RefusedError(
        404, f"no such model; there are {', '.join(self.models)}", "model"
      )
    return self.models[name]

  def _listed(self) -> routes.Models:
    data = []
    for model in self.models.values():
      own = model.segmenter
      record = routes.Model(
        id=model.name,
        object="model",
        created=0,
        owned_by="prm_jax",
        model_fingerprint=model.fingerprint,
        kind=model.kind,
        aggregate=model.aggregate,
        segmenter=None if own is None else segmenters.name_of(own),
        reads_turns=model.reads_turns,
      )
      if isinstance(model, models_lib.Model):
        record["max_tokens"] = self.limits.max_tokens
      data.append(record)
    return routes.Models(object="list", data=data)

  def _state(self) -> routes.Status:
    if not self.is_ready:
      raise refusals.overloaded("still compiling; try again", 2)
    return routes.Status(status="ready")

  async def _metrics_text(self, _: requests.Request) -> responses.Response:
    return responses.Response(
      self.metrics.text(), media_type="text/plain; version=0.0.4"
    )


def _check_address(
  request: requests.Request, route: declarations.Route
) -> None:
  """Refuses what an address asks for and its route doesn't read.

  Raises:
    RefusedError: It asks for something else, for something twice, or for an
      aggregate that there isn't.
  """
  if route.request is None:
    return  # It reads nothing, and probes add what they want.
  given = request.query_params.multi_items()
  for name, value in given:
    if name != "aggregate" or not route.takes_aggregate:
      is_field = name in route.request.get("properties", {})
      known = "aggregate" if route.takes_aggregate else "none"
      fix = "give it in the body" if is_field else f"known: {known}"
      raise refusals.invalid(f"unknown query parameter {name[:60]!r}; {fix}")
    declarations.check(value, routes.AGGREGATE, name)
  if len(given) > 1:
    raise refusals.invalid("it is there twice; give it once", "aggregate")


async def _left(request: requests.Request) -> None:
  """Returns when the client has gone away."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


def _file(name: str, status: int) -> responses.Response:
  """Returns a file for a browser, which may load nothing from elsewhere."""
  content, media_type = assets.read(name)
  headers = {**assets.HEADERS, "Content-Type": media_type}
  return responses.Response(content, status, headers)
