"""Solutions of many requests, scored in few calls of the model.

Requests come one by one, and a model is fast with many solutions at a time. So
each solution waits in a queue until the model is free, and a few milliseconds
for others. One thread calls the model. What its request no longer waits for is
taken out of the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
import concurrent.futures
import contextlib
import dataclasses
import logging
import math

from prm_jax.scoring import cached_scorer
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import sources

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Waiting:
  """A solution that waits for its scores.

  Args:
    prepared: The solution.
    model: The model that its request began with.
    scores: Where its scores go.
    since: When it came, by the loop's clock, in seconds.
  """

  prepared: models.Prepared
  model: sources.Served
  scores: asyncio.Future[cached_scorer.Scored]
  since: float


class Batcher:
  """A queue of solutions before what scores them in one thread.

  That is a device with one or several models, or a source. All methods are
  called in one event loop.

  Args:
    limits: Its size, and how long the first solution of a batch waits.
    metrics: What is counted.
    thread: Where models are called; None is a thread whose last call is waited
      for at the end.
  """

  def __init__(
    self,
    limits: limits_lib.Limits,
    metrics: metrics_lib.Metrics,
    thread: concurrent.futures.Executor | None = None,
  ) -> None:
    self._limits, self._metrics = limits, metrics
    self._queue: deque[_Waiting] = deque()
    self._batch: list[_Waiting] = []
    self._came = asyncio.Event()
    self._device = thread or concurrent.futures.ThreadPoolExecutor(1, "model")

  @contextlib.asynccontextmanager
  async def running(self):
    """Takes solutions from the queue inside; at the end those that are left."""
    task = asyncio.create_task(self._run())
    try:
      yield
    finally:
      while self._is_waited_for() and not task.done():
        await asyncio.sleep(0.01)
      task.cancel()
      with contextlib.suppress(asyncio.CancelledError):
        await task
      self._device.shutdown()

  async def warm(self, served: Iterable[models.Model]) -> None:
    """Compiles every shape of batch of some models, between other batches.

    Args:
      served: The models.
    """
    loop = asyncio.get_running_loop()
    for model in served:
      for compile_one in model.programs():
        await loop.run_in_executor(self._device, compile_one)

  async def score(
    self, model: sources.Served, prepared: Sequence[models.Prepared]
  ) -> list[cached_scorer.Scored]:
    """Returns the scores of a request's solutions.

    Args:
      model: The model that scores all of them.
      prepared: The solutions.

    Raises:
      RefusedError: Too many wait already, or the model fails.
    """
    waiting = len(self._queue)
    if waiting and waiting + len(prepared) > self._limits.max_queue:
      self._metrics.refused.inc()
      raise refusals.overloaded(f"{waiting} solutions wait already; try again")
    loop = asyncio.get_running_loop()
    added = [
      _Waiting(x, model, loop.create_future(), loop.time()) for x in prepared
    ]
    self._queue.extend(added)
    self._metrics.waiting.set(len(self._queue))
    self._came.set()
    try:
      return await asyncio.gather(*(x.scores for x in added))
    finally:
      # A request that was cancelled leaves nothing behind.
      for x in added:
        x.scores.cancel()
      if any(x.scores.cancelled() for x in added):
        self._queue = deque(x for x in self._queue if not x.scores.done())
        self._metrics.waiting.set(len(self._queue))

  async def _run(self) -> None:
    loop = asyncio.get_running_loop()
    while True:
      while not self._queue:
        self._came.clear()
        await self._came.wait()
      await self._wait_for_others()
      batch = self._take()
      if not batch:
        continue
      prepared = [x.prepared for x in batch]
      self._batch = batch
      try:
        rows = await loop.run_in_executor(
          self._device, _score, batch[0].model, prepared
        )
      except Exception as e:
        _logger.exception("a batch of %d solutions failed", len(batch))
        for x in batch:
          if not x.scores.done():
            _fail(x, f"the model failed ({type(e).__name__})")
        continue
      finally:
        self._batch = []
      for x, row in zip(batch, rows, strict=True):
        if isinstance(row, cached_scorer.Scored):
          self._metrics.cached_tokens.inc(row.reused)
        if not x.scores.done():
          _give(x, row)

  def _is_waited_for(self) -> bool:
    """Returns whether a request still waits for scores."""
    return any(not x.scores.done() for x in (*self._queue, *self._batch))

  async def _wait_for_others(self) -> None:
    """Waits until the batch is full, or its first solution waited enough."""
    loop = asyncio.get_running_loop()
    until = self._queue[0].since + self._limits.max_wait_ms / 1000
    while self._size() < self._limits.max_batch_tokens:
      left = until - loop.time()
      if left <= 0:
        return
      self._came.clear()
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(self._came.wait(), left)

  def _size(self) -> int:
    return sum(x.prepared.size for x in self._queue)

  def _take(self) -> list[_Waiting]:
    """Returns the next batch: the first solution, and others of its model.

    A solution without room in the batch's rows keeps its place in the queue, and
    shorter ones may overtake it: the first is in the next batch.
    """
    batch: list[_Waiting] = []
    left: deque[_Waiting] = deque()
    rows: models.Rows | None = None
    for x in self._queue:
      if x.scores.done():
        continue
      if rows is None:
        rows = x.model.rows(x.prepared)
      is_of_batch = not batch or x.model is batch[0].model
      if is_of_batch and rows.add(x.prepared):
        batch.append(x)
      else:
        left.append(x)
    self._queue = left
    self._metrics.waiting.set(len(self._queue))
    if batch:
      self._metrics.batch_items.observe(len(batch))
      self._metrics.tokens.inc(sum(x.prepared.num_tokens for x in batch))
    return batch


def _score(
  model: sources.Served, prepared: Sequence[models.Prepared]
) -> Sequence[cached_scorer.Scored | refusals.RefusedError]:
  return model.score(prepared)


def _give(
  waiting: _Waiting, row: cached_scorer.Scored | refusals.RefusedError
) -> None:
  """Ends a solution's wait with its scores, or why there are none."""
  if isinstance(row, refusals.RefusedError):
    waiting.scores.set_exception(row)
    waiting.scores.exception()  # whether or not somebody still waits for it
    return
  if all(map(math.isfinite, row.scores.scores)):
    waiting.scores.set_result(row)
    return
  name = waiting.model.name
  _logger.error("the model %r gave a score that isn't finite", name)
  _fail(waiting, "the model gave a score that isn't finite")


def _fail(waiting: _Waiting, message: str) -> None:
  """Ends a solution's wait: no text of a client and no path is told."""
  waiting.scores.set_exception(
    refusals.RefusedError(500, f"{message}; the server's log says why")
  )
  # Whether or not somebody still waits for it.
  waiting.scores.exception()
