"""Workers on a Ray cluster: actors that do the batches of a job.

The process that was started, the driver, keeps the journal: a batch is on its
disk before the next one is sent, so nothing is lost with a worker, a machine or
the driver, and nothing that is kept is done again. Each worker has two batches
at most: the one at hand, and the next. So the driver reads its input once and
holds no more results than workers have at hand.

A worker may die at any time, as a machine that is taken away. Its batch goes to
another one; a batch on which two died in a row, or that raised an error, is cut
in two, down to the record that is at fault.

Ray Data isn't used here: it tries a block without end, has no limit of time for
one, and doesn't say which records a block that it gave up held. For pipelines
of one's own there is integrations/ray.py, which is used with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
from importlib import metadata
import logging
import os
import pickle
import socket
import time
from typing import Any

from prm_jax import _version
from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import workers
from prm_jax.runtime import preemption

_logger = logging.getLogger(__name__)

_WORKERS, _CPUS, _DEATHS, _BATCH_S = 2, 1.0, 3, 3600.0
# A worker has so many batches: the one at hand and the next.
_AT_ONCE = 2
# So many records that fail one after the other, with none done between them,
# are no fault of theirs.
_MOST_IN_A_ROW = 16
# How long the driver waits before it looks whether SIGTERM came, and how long
# the first worker may take before a line says what is waited for.
_LOOK_S, _SAY_S = 0.5, 20.0


# Workers may die so often with no batch done between.
_MOST_DEATHS = 12


def _ray() -> Any:
  """Returns Ray, which is an extra.

  Raises:
    InputError: It isn't installed.
  """
  try:
    import ray
    import ray.exceptions
  except ImportError:
    raise errors.InputError(
      f"`engine=ray` needs the extra ray: {errors.to_install('ray')}"
    ) from None
  return ray


def about() -> dict[str, str]:
  """Returns the versions that must be the same in the driver and in workers."""
  others = {x: metadata.version(x) for x in ("jax", "jaxlib", "numpy")}
  return dict(prm_jax=_version.__version__) | others


class _Process:
  """What runs in a worker's process."""

  def open(
    self, verb: bytes, expected: Mapping[str, str], folder: str
  ) -> dict[str, Any]:
    """Loads the models; returns what results depend on, and the models' types.

    Args:
      verb: The verb, pickled.
      expected: The versions of the driver.
      folder: The folder that relative paths are in, if it is there.
    """
    found, host = about(), socket.gethostname()
    for name, version in expected.items():
      if found[name] != version:
        raise errors.InputError(
          f"the worker on {host} has {name} {found[name]}, and this process"
          f" {version}; install the same on all machines"
        )
    logging.getLogger("prm_jax").setLevel(logging.WARNING)
    if os.path.isdir(folder):
      os.chdir(folder)
    self._stack = contextlib.ExitStack()
    worker = self._stack.enter_context(pickle.loads(verb).working())
    self._work = worker.work(lambda words, done=0: None)
    return dict(
      depends_on=dict(worker.depends_on),
      compute_dtype=dict(worker.compute_dtype),
      host=host,
    )

  def work(
    self, batch: list[schema.Solution]
  ) -> tuple[list[Any], dict[str, int]]:
    """Returns what came of a batch, and what it took."""
    (done,) = self._work(iter([batch]))
    assert isinstance(done, journal.Finished)
    return list(done.results), dict(done.work)


_Done = journal.Finished | journal.Failed


@contextlib.contextmanager
def opened(
  engine: workers.Engine, verb: workers.Works
) -> Iterator[workers.Worker]:
  """Yields the workers of a cluster, one of which has loaded the models.

  Args:
    engine: The cluster, and how many workers there are.
    verb: What they do.

  Raises:
    InputError: There is no such cluster, or a worker can't do it.
  """
  with _connected(engine.where), _Pool(engine, verb) as pool:
    first = pool.opened()
    yield workers.Worker(
      first["depends_on"], lambda tell: pool.work, first["compute_dtype"]
    )


@contextlib.contextmanager
def _connected(where: str) -> Iterator[None]:
  """Connects to a cluster; leaves a connection of the caller's own as it is."""
  if _ray().is_initialized():
    yield
    return
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  try:
    _ray().init(
      None if where == "ray" else where,
      log_to_driver=False,
      logging_level=logging.ERROR,
    )
  except (ConnectionError, TimeoutError, RuntimeError, ValueError) as e:
    raise errors.InputError(
      f"`engine={where}`: no Ray cluster answers there:"
      f" {str(e).strip().splitlines()[0][:200]}"
    ) from e
  try:
    yield
  finally:
    _ray().shutdown()


@dataclasses.dataclass
class _Task:
  """A batch to do.

  Args:
    batch: It.
    deaths: How many workers have died in a row while they did it.
  """

  batch: list[schema.Solution]
  deaths: int = 0


@dataclasses.dataclass(eq=False)
class _Member:
  """A worker, as the driver knows it.

  Args:
    actor: The process.
    opening: What its start will return; None once it is there.
    tasks: What it has to do, by what it will return; it does the first.
    since: When it began with the first.
    ended: Why the driver has ended it; "" if it hasn't.
  """

  actor: Any
  opening: Any
  tasks: dict[Any, _Task] = dataclasses.field(default_factory=dict)
  since: float = 0.0
  ended: str = ""


class _Pool:
  """The workers of a cluster.

  Args:
    engine: How many there are, and what Ray reserves for each.
    verb: What they do.
  """

  def __init__(self, engine: workers.Engine, verb: workers.Works):
    self._engine, self._keeps_problems = engine, verb.writes_new
    self._start = (
      _ray().cloudpickle.dumps(verb),
      about(),
      os.getcwd(),
    )
    self._batch_s = engine.worker_batch_s or _BATCH_S
    self._most_deaths = engine.worker_deaths or _DEATHS
    self._again: deque[_Task] = deque()
    self._deaths = 0
    self._failed = 0
    self._first: dict[str, Any] | None = None
    self._members: list[_Member] = []

  def __enter__(self) -> _Pool:
    self._members = [
      self._new() for _ in range(self._engine.workers or _WORKERS)
    ]
    return self

  def __exit__(self, *_: object) -> None:
    for member in self._members:
      _ray().kill(member.actor)

  def _new(self) -> _Member:
    engine = self._engine
    cpus, gpus = engine.worker_cpus, engine.worker_gpus
    kind = _ray().remote(
      num_cpus=_CPUS if cpus is None else cpus,
      num_gpus=gpus or 0,
      resources=dict(engine.worker_resource),
      max_restarts=0,
    )(_Process)
    actor: Any = kind.remote()
    return _Member(actor, actor.open.remote(*self._start))

  def opened(self) -> dict[str, Any]:
    """Returns what the first worker that is ready says of itself."""
    begun, said = time.monotonic(), False
    while self._first is None:
      preemption.check()
      self._look()
      if not said and time.monotonic() - begun > _SAY_S:
        said = True
        _logger.warning(self._waiting())
    return self._first

  def _waiting(self) -> str:
    """Returns what no worker can begin without, in words."""
    has = {k: v for k, v in _ray().cluster_resources().items() if ":" not in k}
    return (
      f"`engine={self._engine.where}`: no worker is ready yet: each loads its"
      f" models, or waits for room; the cluster has {_told(has)}, of which"
      f" {_told(_ray().available_resources())} are free"
    )

  def work(self, batches: Iterator[list[schema.Solution]]) -> Iterator[_Done]:
    """Yields what was done, as soon as it is: a journal.Work.

    Args:
      batches: The batches.
    """
    done: list[_Done] = []
    while True:
      # What is done is kept before anything else can go wrong.
      yield from done
      is_all = False
      while not is_all and (member := self._free()):
        task = self._next(batches)
        if task is None:
          is_all = True
        else:
          self._give(member, task)
      if is_all and not any(x.tasks for x in self._members):
        return
      preemption.check()
      done = self._look()

  def _free(self) -> _Member | None:
    """Returns the worker with the fewest batches, if one may have another."""
    ready = [
      x for x in self._members if x.opening is None and len(x.tasks) < _AT_ONCE
    ]
    return min(ready, key=lambda x: len(x.tasks), default=None)

  def _next(self, batches: Iterator[list[schema.Solution]]) -> _Task | None:
    if self._again:
      return self._again.popleft()
    batch = next(batches, None)
    return None if batch is None else _Task(batch)

  def _give(self, member: _Member, task: _Task) -> None:
    if not member.tasks:
      member.since = time.monotonic()
    try:
      ref = member.actor.work.remote(task.batch)
    except _no_room() as e:
      raise _full(e) from None
    member.tasks[ref] = task

  def _look(self) -> list[_Done]:
    """Waits a moment for the workers; returns what was done."""
    waited = {x.opening: x for x in self._members if x.opening is not None}
    waited |= {ref: x for x in self._members for ref in x.tasks}
    ready, _ = _ray().wait(list(waited), num_returns=1, timeout=_LOOK_S)
    done: list[_Done] = []
    for ref in ready:
      member = waited[ref]
      if ref == member.opening:
        self._began(member)
      else:
        done += self._ended(member, ref)
    for member in self._members:
      took = time.monotonic() - member.since
      if member.tasks and not member.ended and took > self._batch_s:
        member.ended = (
          f"took longer than the {self._batch_s:g} s of `worker_batch_s`"
        )
        _ray().kill(member.actor)
    return done

  def _began(self, member: _Member) -> None:
    """Takes in a worker that has loaded its models."""
    try:
      found = _ray().get(member.opening)
    except _deaths() as e:
      if "No module named 'prm_jax" in str(e):
        raise errors.InputError(
          f"`engine={self._engine.where}`: a worker has no prm_jax; install it"
          " on all machines of the cluster"
        ) from None
      self._died(member, _why(e))
      return
    except _ray().exceptions.RayTaskError as e:
      raise errors.InputError(_reason(e)) from e
    member.opening = None
    if self._first is None:
      self._first = found
    elif found["depends_on"] != self._first["depends_on"]:
      first = self._first["host"]
      raise errors.InputError(
        f"the worker on {found['host']} has other models or files than the one"
        f" on {first}; give all machines the same"
      )

  def _ended(self, member: _Member, ref: Any) -> list[_Done]:
    """Returns what came of a batch: its results, or what is at fault in it."""
    try:
      results, work = _ray().get(ref)
    except _no_room() as e:
      raise _full(e) from None
    except _deaths() as e:
      return self._died(member, member.ended or _why(e))
    except _ray().exceptions.RayTaskError as e:
      task = member.tasks.pop(ref)
      member.since = time.monotonic()
      if isinstance(e.cause, (errors.DiskFullError, *_no_room())):
        raise errors.InputError(f"a worker can't go on: {_reason(e)}") from e
      return self._fail(task, _reason(e))
    task = member.tasks.pop(ref)
    member.since = time.monotonic()
    self._deaths = self._failed = 0
    return [journal.Finished(task.batch, results, work)]

  def _died(self, member: _Member, why: str) -> list[_Done]:
    """Puts another worker in a dead one's place, and its batches back."""
    self._deaths += 1
    if self._deaths > _MOST_DEATHS:
      raise errors.InputError(
        f"{self._deaths} workers died in a row, and no batch was done between"
        f" them; the last one {why}; what was done before is kept"
      )
    _logger.warning(f"a worker {why}; another one takes its place")
    _ray().kill(member.actor)
    self._members[self._members.index(member)] = self._new()
    done: list[_Done] = list(self._left_by(member))
    if not member.tasks:
      return done
    at_hand, *others = member.tasks.values()
    self._again.extendleft(reversed(others))
    at_hand.deaths += 1
    most = self._most_deaths if len(self._cut(at_hand)) < 2 else 2
    if at_hand.deaths < most:
      self._again.appendleft(at_hand)
      return done
    # Its parts: one more death tells.
    return [*done, *self._fail(at_hand, f"its worker {why}", deaths=1)]

  def _left_by(self, member: _Member) -> Iterator[journal.Finished]:
    """Yields what a worker had done when it died."""
    for ref, task in list(member.tasks.items()):
      try:
        results, work = _ray().get(ref, timeout=_LOOK_S)
      except _ray().exceptions.RayError:
        return
      del member.tasks[ref]
      yield journal.Finished(task.batch, results, work)

  def _fail(self, task: _Task, reason: str, deaths: int = 0) -> list[_Done]:
    """Cuts a batch at fault in two; returns it if it is one record."""
    parts = self._cut(task)
    if len(parts) > 1:
      self._again.extendleft(_Task(x, deaths) for x in reversed(parts))
      return []
    self._failed += 1
    if self._failed > _MOST_IN_A_ROW:
      raise errors.InputError(
        f"{self._failed} records failed in a row, the last one for: {reason};"
        " what was done before is kept"
      )
    return [journal.Failed(task.batch, reason)]

  def _cut(self, task: _Task) -> list[list[schema.Solution]]:
    """Returns two halves of a batch; of one that can't be cut, itself."""
    problems: dict[str, list[schema.Solution]] = {}
    for s in task.batch:
      problems.setdefault(s.problem, []).append(s)
    groups = list(problems.values())
    if len(groups) < 2 and not self._keeps_problems:
      groups = [[s] for s in task.batch]
    half = len(groups) // 2
    halves = [
      [s for group in part for s in group]
      for part in (groups[:half], groups[half:])
    ]
    return [half for half in halves if half]


# --- What Ray says ----------------------------------------------------------------


def _deaths() -> tuple[type[Exception], ...]:
  """Returns what Ray raises if a worker died."""
  found = _ray().exceptions
  names = ("RayActorError", "WorkerCrashedError", "NodeDiedError")
  more = ("OutOfMemoryError", "ObjectLostError")
  return tuple(getattr(found, name) for name in (*names, *more))


def _no_room() -> tuple[type[Exception], ...]:
  """Returns what Ray raises if its memory for objects is full."""
  found = _ray().exceptions
  return found.ObjectStoreFullError, found.OutOfDiskError


def _full(error: Exception) -> errors.InputError:
  del error
  return errors.InputError(
    "the object store of the cluster is full, and its disk too; give a smaller"
    " `batch`, or a cluster with more object_store_memory; what was done is kept"
  )


def _why(error: Exception) -> str:
  """Returns what a worker's end was, after "a worker"."""
  if isinstance(error, _ray().exceptions.OutOfMemoryError):
    return "was ended by Ray: its machine was out of memory"
  if isinstance(error, _ray().exceptions.NodeDiedError):
    return "died with its machine"
  return "died: its process was killed or crashed"


def _reason(error: Any) -> str:
  """Returns the error that a worker raised, in a line."""
  cause = error.cause
  if isinstance(cause, errors.InputError):
    return str(cause)
  words = str(cause).strip().splitlines() or [""]
  return f"{type(cause).__name__}: {words[0][:300]}"


def _told(resources: Mapping[str, float]) -> str:
  names = [x for x in sorted(resources) if x[:1].isupper() and ":" not in x]
  return ", ".join(f"{resources[x]:g} {x}" for x in names) or "nothing"
