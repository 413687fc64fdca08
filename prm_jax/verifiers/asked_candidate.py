"""The process of the code, as that of the tests asks it.

It imports nothing of prm_jax, and tests_worker imports it.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

_SPARE_S = 5.0  # for the process that ends a run
_MOST_BYTES = 1 << 23


class Failed(BaseException):
  """The code has an error, which `args` describe."""


class Untold(BaseException):
  """What the tests ask can't be told."""


class Candidate:
  """The process of the code.

  Attributes:
    died: How its run ended, None while that goes on.
    is_lost: Whether the process itself, which ends runs, is no longer there.
    num_calls: How many calls it was asked for.
    ended_loops: Whether a call raised what ends a loop.
  """

  def __init__(self, requests: int, replies: int, time_s: float):
    self._requests, self._replies, self._time_s = requests, replies, time_s
    self._run, self._rest, self._deadline = "", b"", 0.0
    self.died: dict[str, Any] | None = None
    self.is_lost = self.ended_loops = False
    self.num_calls = 0

  def begin(self, code: str) -> dict[str, Any]:
    """Returns the code's names, once it was run.

    Raises:
      Failed: It has an error.
    """
    # Not to be guessed by an earlier run, which may leave replies behind.
    self._run = os.urandom(12).hex()
    self.died, self.num_calls, self.ended_loops = None, 0, False
    self._deadline = time.monotonic() + self._time_s + _SPARE_S
    reply = self._asked("begin", code)
    if "error" in reply:
      raise Failed(reply["error"])
    return reply

  def call(
    self, name: str, args: Any, kwargs: Any, watched: list[str]
  ) -> dict[str, Any]:
    self.num_calls += 1
    return self._asked("call", name, args, kwargs, watched)

  def end(self) -> None:
    try:
      self._send("end")
    except OSError:
      self.is_lost = True

  def _send(self, *request: Any) -> None:
    text = json.dumps([self._run, *request]).encode()
    text = b"%08x%b" % (len(text), text)
    while text:
      text = text[os.write(self._requests, text) :]

  def _asked(self, *request: Any) -> dict[str, Any]:
    if self.died is not None:
      raise Failed(self.died)
    try:
      self._send(*request)
      while (reply := self._reply()) is None:
        pass  # of another run
    except OSError:
      self.is_lost = True
      reply = dict(died="its process ended")
    if "died" in reply:
      self.died = dict(died=str(reply["died"]))
      raise Failed(self.died)
    if "untold" in reply:
      raise Untold(str(reply["untold"])[:200])
    return reply

  def _reply(self) -> dict[str, Any] | None:
    """Returns the next reply, None if it isn't one to this run."""
    while b"\n" not in self._rest:
      left = self._deadline - time.monotonic()
      ready = left > 0 and select.select([self._replies], [], [], left)[0]
      more = os.read(self._replies, 1 << 16) if ready else b""
      if not more:
        raise BrokenPipeError
      if len(self._rest) > _MOST_BYTES:
        return dict(died="its reply is too long")
      self._rest += more
    line, _, self._rest = self._rest.partition(b"\n")
    try:
      run, reply = json.loads(line)
      return dict(reply) if run == self._run else None
    except (ValueError, TypeError, RecursionError):
      return None
