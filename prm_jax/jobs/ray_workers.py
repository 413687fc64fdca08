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
import hashlib
from importlib import metadata
import logging
import os
import pathlib
import pickle
import signal
import socket
import threading
import time
from typing import Any
import warnings

from prm_jax import _version
from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import workers
from prm_jax.runtime import preemption
from prm_jax.runtime import progress

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


# So many more workers may die with no batch done between than it takes to find
# a record that kills them.
_MORE_DEATHS = 12


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
  """Returns the versions that must be the same in the driver and in workers.

  Checkouts of one version may differ, so ours has a digest of the code.
  """
  folder, digest = pathlib.Path(_version.__file__).parent, hashlib.sha256()
  for path in sorted(folder.rglob("*.py")):
    digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
  own = f"{_version.__version__} (code {digest.hexdigest()[:8]})"
  others = {x: metadata.version(x) for x in ("jax", "jaxlib", "numpy")}
  return dict(prm_jax=own) | others


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
    if os.path.isdir(folder):
      os.chdir(folder)
    self._stack = contextlib.ExitStack()
    with _heard() as said:
      self._worker = self._stack.enter_context(pickle.loads(verb).working())
    return dict(
      depends_on=dict(self._worker.depends_on()),
      compute_dtype=dict(self._worker.compute_dtype()),
      host=host,
      said=said,
    )

  def work(
    self, batch: list[schema.Solution]
  ) -> tuple[list[Any], dict[str, int]]:
    """Returns what came of a batch, and what it took."""
    done = self._worker.do(batch)
    return list(done.results), dict(done.work)


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
  """Yields the lines that are logged inside: a worker has no other reader."""
  said: list[str] = []
  handler = logging.Handler()
  handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
  logger = logging.getLogger("prm_jax")
  logger.setLevel(logging.INFO)
  logger.addHandler(handler)
  try:
    yield said
  finally:
    logger.removeHandler(handler)
    logger.setLevel(logging.WARNING)


_Done = journal.Finished | journal.Failed


@contextlib.contextmanager
def opened(
  engine: workers.Engine, verb: workers.Works
) -> Iterator[workers.Worker]:
  """Yields the workers of a cluster, which begin to load the models.

  What they are asked for waits for the first of them that is ready.

  Args:
    engine: The cluster, and how many workers there are.
    verb: What they do.

  Raises:
    InputError: There is no such cluster, or a worker can't do it.
  """
  # Ray sets a handler of SIGTERM when it connects.
  with (
    _connected(engine.where),
    preemption.noticed(),
    _Pool(engine, verb) as pool,
  ):
    yield workers.Worker(
      lambda: pool.opened()["depends_on"],
      lambda tell: pool.work,
      lambda: pool.opened()["compute_dtype"],
    )


@contextlib.contextmanager
def _connected(where: str) -> Iterator[None]:
  """Connects to a cluster; leaves a connection of the caller's own as it is."""
  if _ray().is_initialized():
    if where != "ray":
      raise errors.InputError(
        f"`engine={where}`: this process is connected to a Ray cluster already;"
        " give `engine=ray` for that one, or end it with ray.shutdown()"
      )
    yield
    return
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  with _own_handler(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what they say is in the error, too
    try:
      _ray().init(
        None if where == "ray" else where,
        log_to_driver=False,
        logging_level=logging.ERROR,
      )
    except SystemExit:  # by Ray's handler
      raise preemption.PreemptedError from None
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as e:
      which = (
        "; it is the one of RAY_ADDRESS, else the last that `ray start` began on"
        " this machine and `ray stop` didn't end"
      )
      raise errors.InputError(
        f"`engine={where}`: no Ray cluster answers there: {_line(e)}"
        + (which if where == "ray" else "")
      ) from e
  try:
    yield
  except ConnectionError as e:
    raise errors.InputError(
      f"`engine={where}`: the connection to the cluster was lost: {_line(e)};"
      " what was done is kept: give the same command again"
    ) from e
  finally:
    _ray().shutdown()


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
  """Puts the handler of SIGTERM back that there was before."""
  before = signal.getsignal(signal.SIGTERM)
  try:
    yield
  finally:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and before is not None:
      signal.signal(signal.SIGTERM, before)


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
    # In a row: workers that died, and records that failed.
    self._deaths = self._failed = 0
    # So many cuts may be needed to find a record.
    self._cuts = 0
    self._first: dict[str, Any] | None = None
    self._members: list[_Member] = []

  def __enter__(self) -> _Pool:
    self._members = [
      self._new() for _ in range(self._engine.workers or _WORKERS)
    ]
    return self

  def __exit__(self, *_: object) -> None:
    # With a lost connection Ray would begin a cluster of its own for that.
    if _ray().is_initialized():
      for member in self._members:
        with contextlib.suppress(ConnectionError):
          _ray().kill(member.actor)

  @property
  def _reserved(self) -> dict[str, float]:
    """What Ray reserves for a worker, by the names that it has there."""
    engine = self._engine
    cpus = _CPUS if engine.worker_cpus is None else engine.worker_cpus
    own = dict(CPU=cpus, GPU=engine.worker_gpus or 0.0)
    return own | dict(engine.worker_resource)

  def _new(self) -> _Member:
    resources = self._reserved
    try:
      kind = _ray().remote(
        num_cpus=resources.pop("CPU"),
        num_gpus=resources.pop("GPU"),
        resources=resources,
        max_restarts=0,
      )(_Process)
      actor: Any = kind.remote()
    except ValueError as e:
      raise errors.InputError(
        f"`engine={self._engine.where}`: Ray can't reserve"
        f" {_told(self._reserved)} for a worker: {_line(e)}"
      ) from e
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
    return (
      f"`engine={self._engine.where}`: no worker is ready yet: each loads its"
      f" models, or waits for {_told(self._reserved)}; free in the cluster:"
      f" {_told(_ray().available_resources())}, of"
      f" {_told(_ray().cluster_resources())}"
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
      while member := self._free():
        task = self._next(batches)
        if task is None:
          break
        self._give(member, task)
      if not any(x.tasks for x in self._members):
        task = self._next(batches)
        if task is None:
          return
        self._again.appendleft(task)  # for a worker that isn't ready yet
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
    if batch is None:
      return None
    self._cuts = max(self._cuts, len(batch).bit_length())
    return _Task(batch)

  def _give(self, member: _Member, task: _Task) -> None:
    if not member.tasks:
      member.since = time.monotonic()
    try:
      ref = member.actor.work.remote(task.batch)
    except _no_room() as e:
      raise _full() from e
    member.tasks[ref] = task

  def _look(self) -> list[_Done]:
    """Waits a moment for the workers; returns what was done."""
    if not _ray().is_initialized():
      raise ConnectionError("Ray has ended it")
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
      for line in found["said"]:
        progress.log(line)
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
      raise _full() from e
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
    done = self._left_by(member)
    self._deaths += 1
    # A batch dies twice before it is cut, and each of its parts once.
    to_find = 1 + self._cuts + self._most_deaths
    if self._deaths > to_find + _MORE_DEATHS:
      raise errors.InputError(
        f"{self._deaths} workers died in a row, and no batch was done between"
        f" them; the last one {why}; what was done before is kept"
      )
    _logger.warning(f"a worker {why}; another one takes its place")
    _ray().kill(member.actor)
    self._members[self._members.index(member)] = self._new()
    if not member.tasks:
      return done
    at_hand, *others = member.tasks.values()
    self._again.extendleft(reversed(others))
    at_hand.deaths += 1
    most = 2 if self._can_be_cut(at_hand) else self._most_deaths
    if at_hand.deaths < most:
      self._again.appendleft(at_hand)
      return done
    # Its parts: one more death tells.
    return [*done, *self._fail(at_hand, f"its worker {why}", deaths=1)]

  def _left_by(self, member: _Member) -> list[_Done]:
    """Returns what a worker had done when it died."""
    done: list[_Done] = []
    for ref in list(member.tasks):
      try:
        _ray().get(ref, timeout=_LOOK_S)
      except _ray().exceptions.RayTaskError:
        pass
      except _ray().exceptions.RayError:
        break
      done += self._ended(member, ref)
    return done

  def _fail(self, task: _Task, reason: str, deaths: int = 0) -> list[_Done]:
    """Cuts a batch at fault in two; returns it if it is one record.

    Args:
      task: It.
      reason: Its fault.
      deaths: How many deaths a part begins with that can be cut again; to a
        record are counted those alone that it was alone in.
    """
    if self._can_be_cut(task):
      for batch in reversed(self._cut(task)):
        part = _Task(batch)
        part.deaths = deaths if self._can_be_cut(part) else 0
        self._again.appendleft(part)
      return []
    self._failed += 1
    if self._failed > _MOST_IN_A_ROW:
      raise errors.InputError(
        f"{self._failed} records failed in a row, the last one for: {reason};"
        " what was done before is kept"
      )
    return [journal.Failed(task.batch, reason)]

  def _can_be_cut(self, task: _Task) -> bool:
    """Returns whether a batch holds more than one record, or problem."""
    return len(self._cut(task)) > 1

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


def _full() -> errors.InputError:
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
  if "never ran" in str(error):
    said = " ".join(str(error).split())
    return f"never began: {said[said.find('The actor is dead') :][:300]}"
  return "died: its process was killed or crashed"


def _reason(error: Any) -> str:
  """Returns the error that a worker raised, in a line."""
  cause = error.cause
  if isinstance(cause, errors.InputError):
    return str(cause)
  return f"{type(cause).__name__}: {_line(cause)}"


def _line(error: BaseException) -> str:
  """Returns the first line of what an error says."""
  words = "".join(map(str, error.args)) or str(error)
  lines = words.strip().rstrip(".").splitlines() or [type(error).__name__]
  return lines[0][:300]


def _told(resources: Mapping[str, float]) -> str:
  """Returns resources in words, without those that Ray has for itself."""
  own = ("memory", "object_store_memory")
  names = [x for x in sorted(resources) if ":" not in x and x not in own]
  told = [f"{resources[x]:g} {x}" for x in names if resources[x]]
  return ", ".join(told) or "nothing"
