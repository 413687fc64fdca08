"""The labelling page over HTTP.

Every request for work has a key in a header, which no other site's page can
send: so no request can be forged. Names, keys and texts are never logged.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any
import urllib.parse

from prm_jax.people import desk as desk_lib
from prm_jax.people import judgement_store
from prm_jax.runtime import json_text
from prm_jax.web import assets
from prm_jax.web import page_http

PAGE = "people.html"
_ROUTE = "/v1/label/"
_MOST_BYTES = 1 << 20


class Handler(page_http.Handler):
  """Answers a browser."""

  protocol_version = "HTTP/1.1"
  server: PeopleServer

  def do_GET(self) -> None:
    """Sends the page, one of its files, or work."""
    path = self.path.partition("?")[0]
    if path.startswith(_ROUTE):
      self._answer(self._get, path.removeprefix(_ROUTE))
      return
    name = path.removeprefix("/") or PAGE
    if name not in assets.NAMES:
      self.send(404, b"no such page\n")
      return
    self.send(200, *assets.read(name))

  def do_POST(self) -> None:
    """Keeps a judgement."""
    path = self.path.partition("?")[0]
    self._answer(self._post, path.removeprefix(_ROUTE))

  def _get(self, annotator: str, rest: str) -> Any:
    desk = self.server.desk
    if rest == "next":
      return desk.next(annotator)
    kind, _, id = rest.partition("/")
    if kind != "items":
      raise desk_lib.Refused(404, "no such route")
    return desk.item(annotator, urllib.parse.unquote(id))

  def _post(self, annotator: str, rest: str) -> Any:
    body, desk = self._body(), self.server.desk
    routes = dict(events=desk.add, draws=desk.draw)
    if rest not in routes:
      raise desk_lib.Refused(404, "no such route")
    return routes[rest](annotator, body)

  def _body(self) -> Any:
    length = self.headers.get("Content-Length", "")
    if not length.isascii() or not length.isdigit():
      raise desk_lib.Refused(411, "the body has no length")
    if int(length) > _MOST_BYTES:
      self.close_connection = True
      raise desk_lib.Refused(413, f"the body has more than {_MOST_BYTES} bytes")
    try:
      return json_text.parse(self.rfile.read(int(length)).decode())
    except ValueError:  # also not UTF-8
      raise desk_lib.Refused(400, "the body is no JSON") from None

  def _answer(self, route: Any, rest: str) -> None:
    """Answers in JSON by a route, which has the name of the person."""
    try:
      key = self.headers.get("Authorization", "").removeprefix("Bearer ")
      annotator = self.server.desk.annotator(key)
      status, said = 200, route(annotator, rest)
    except desk_lib.Refused as e:
      status, said = e.status, dict(error=str(e))
      # What a refused request still sends isn't the next one.
      self.close_connection = True
    except judgement_store.Unkept as e:
      self.server.say(str(e))
      status, said = 503, dict(error="not kept: the server can't write")
      self.close_connection = True
    text = json.dumps(said).encode()
    self.send(status, text, "application/json")


class PeopleServer(page_http.Server):
  """Serves the labelling page.

  Args:
    desk: What gives and keeps work.
    host: The address to listen at.
    port: The port; 0 is any that is free.
    say: Called with what the person who runs the server must know.
    public_url: The address by which others reach it; None for its own.

  Raises:
    InputError: The port is taken.
  """

  def __init__(
    self,
    desk: desk_lib.Desk,
    host: str,
    port: int,
    say: Callable[[str], None] = print,
    public_url: str | None = None,
  ):
    self.desk, self.say = desk, say
    super().__init__(Handler, host, port, public_url)
