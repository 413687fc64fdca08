"""The bodies of requests, read within limits, and of replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from starlette import concurrency
from starlette import requests
from starlette import responses

from prm_jax.runtime import json_text
from prm_jax.serving import forms
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import refusals
from prm_jax.serving import server_limits as limits_lib

# A reply to a larger body, or to more steps, is written in a thread, so that
# others are answered meanwhile.
_LARGE_BYTES = 1 << 16
_LARGE_STEPS = 1_000
# As JSONResponse writes it, in pieces: between two of them others get a turn.
_ENCODER = json.JSONEncoder(
  ensure_ascii=False, allow_nan=False, separators=(",", ":")
)

Record = dict[str, Any]


@dataclasses.dataclass
class Held:
  """What a request holds until it is answered.

  Args:
    num_bytes: The bytes of its body that came.
    source: The source that it waits for; None if it waits for none.
  """

  num_bytes: int = 0
  source: str | None = None


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

  async def read(self, request: requests.Request, held: Held) -> bytes:
    """Returns a request's body.

    Args:
      request: The request.
      held: What it holds; its bytes are added.

    Raises:
      RefusedError: It is compressed, too large, or too slow, or there is no room
        for it.
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
              f"the request has more than {most:,} bytes; shorten its texts, or"
              " send fewer items at once"
            )
    except TimeoutError:
      raise refusals.RefusedError(
        408, f"the request didn't arrive within {self._limits.read_s:g} s"
      ) from None
    return bytes(body)

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


async def written(held: Held, asked: forms.Asked) -> responses.Response:
  """Returns a reply; a large one is written in a thread.

  Args:
    held: What the request holds: the reply may repeat it.
    asked: The request and its scores.
  """
  num_steps = sum(len(row.scores) for row in asked.rows)
  if held.num_bytes <= _LARGE_BYTES and num_steps <= _LARGE_STEPS:
    return responses.JSONResponse(asked.form.write(asked))

  def encode() -> bytes:
    return "".join(_ENCODER.iterencode(asked.form.write(asked))).encode()

  return responses.Response(
    await concurrency.run_in_threadpool(encode), media_type="application/json"
  )


def parsed(body: bytes) -> Record:
  """Returns the JSON object of a body.

  Args:
    body: The body.

  Raises:
    RefusedError: It isn't one.
  """
  try:
    record = json_text.parse(body.decode())
  except UnicodeDecodeError:
    raise refusals.invalid("the body isn't UTF-8") from None
  except json_text.JSONTextError as e:
    raise refusals.invalid(str(e)) from None
  if not isinstance(record, dict):
    raise refusals.invalid("expected a JSON object")
  return record
