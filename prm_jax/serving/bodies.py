"""The bodies of requests, read within limits, and of replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import json
from typing import Any, TypeVar

from starlette import concurrency
from starlette import requests
from starlette import responses

from prm_jax.runtime import json_text
from prm_jax.scoring import cached_scorer
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import refusals

# A larger body is parsed in a thread, so that others are answered meanwhile. A
# reply to more steps is written in one.
_LARGE_BYTES = 1 << 16
_LARGE_STEPS = 1_000
# As JSONResponse writes it, in pieces: between two of them others get a turn.
_ENCODER = json.JSONEncoder(
  ensure_ascii=False, allow_nan=False, separators=(",", ":")
)

_T = TypeVar("_T")


@dataclasses.dataclass
class Held:
  """What a request holds until it is answered.

  Args:
    num_bytes: The bytes of its body that came.
    source: The source that it waits for; None if it waits for none.
  """

  num_bytes: int = 0
  source: str | None = None

  @property
  def is_large(self) -> bool:
    """Whether work on it would keep others waiting."""
    return self.num_bytes > _LARGE_BYTES


class Bodies:
  """The bodies of all requests that aren't answered yet.

  Args:
    limits: How large they may be, and how long one may take.
    metrics: What is counted.
    sources: The names of what may block: if all of it does, an equal part of the
      bytes is left for other requests.
  """

  def __init__(
    self,
    limits: limits_lib.Limits,
    metrics: metrics_lib.Metrics,
    sources: Sequence[str],
  ):
    self._limits, self._metrics = limits, metrics
    self._held = 0
    self._held_for: Counter[str] = Counter()
    self._most_for = max(
      limits.max_bodies_bytes // (len(sources) + 1), limits.max_body_bytes
    )

  async def read(self, request: requests.Request, held: Held) -> Any:
    """Returns the JSON of a request's body.

    Args:
      request: The request.
      held: What it holds; its bytes are added.

    Raises:
      RefusedError: It is compressed, too large, too slow or no JSON, or there is
        no room for it.
    """
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
      raise refusals.RefusedError(
        415, f"a body in {coding[:20]}; send it uncompressed"
      )
    most = self._limits.max_body_bytes
    body = bytearray()
    try:
      async with asyncio.timeout(self._limits.read_s):
        async for chunk in request.stream():
          self._hold(len(chunk), held)
          body += chunk
          if len(body) > most:
            raise refusals.too_large(
              f"more than {most:,} bytes; send fewer items in a request"
            )
    except TimeoutError:
      raise refusals.RefusedError(
        408, f"the request didn't arrive within {self._limits.read_s:g} s"
      ) from None
    if held.is_large:
      return await concurrency.run_in_threadpool(_parsed, body)
    return _parsed(body)

  def hold_for(self, source: str, held: Held) -> None:
    """Counts a request's bytes as a source's.

    Args:
      source: The name of the source.
      held: What the request holds.

    Raises:
      RefusedError: Too many wait for it already.
    """
    if self._held_for[source] + held.num_bytes > self._most_for:
      self._metrics.refused.inc()
      raise refusals.overloaded(
        f"requests of {self._most_for:,} bytes wait for {source!r} already; try"
        " again"
      )
    self._held_for[source] += held.num_bytes
    held.source = source

  def release(self, held: Held) -> None:
    """Gives back what a request held.

    Args:
      held: What it held.
    """
    self._held -= held.num_bytes
    if held.source is not None:
      self._held_for[held.source] -= held.num_bytes

  def _hold(self, num_bytes: int, held: Held) -> None:
    most = self._limits.max_bodies_bytes
    if self._held + num_bytes > most:
      self._metrics.refused.inc()
      raise refusals.overloaded(
        f"requests of {most:,} bytes are read or answered already; try again"
      )
    self._held += num_bytes
    held.num_bytes += num_bytes


async def checked(
  is_large: bool, check: Callable[..., _T], *arguments: Any
) -> _T:
  """Returns what a request's JSON asks for; that of a large one in a thread.

  Args:
    is_large: Whether the request is large.
    check: Returns it, or refuses the JSON.
    *arguments: The arguments of check.
  """
  if is_large:
    return await concurrency.run_in_threadpool(check, *arguments)
  return check(*arguments)


async def written(
  is_large: bool,
  rows: Sequence[cached_scorer.Scored],
  write: Callable[..., Any],
  *arguments: Any,
) -> responses.Response:
  """Returns a reply; a large one is written in a thread.

  Args:
    is_large: Whether the request was large: the reply may repeat it.
    rows: The scores in it.
    write: Returns its content.
    *arguments: The arguments of write.
  """
  num_steps = sum(len(row.scores) for row in rows)
  if not is_large and num_steps <= _LARGE_STEPS:
    return responses.JSONResponse(write(*arguments))

  def encode() -> bytes:
    return "".join(_ENCODER.iterencode(write(*arguments))).encode()

  return responses.Response(
    await concurrency.run_in_threadpool(encode), media_type="application/json"
  )


def _parsed(body: bytearray) -> Any:
  """Returns the JSON of a body."""
  try:
    return json_text.parse(body.decode())
  except UnicodeDecodeError:
    raise refusals.invalid("the body isn't UTF-8") from None
  except json_text.JSONTextError as e:
    raise refusals.invalid(str(e)) from None
