"""Workers: what does the batches of a job, in this process or on a cluster.

A verb that a cluster may do has `working`, which yields a Worker: the models
loaded, and a function of a batch. In this process it does one batch after the
other. With --engine=ray the verb goes to actors, each of which opens a Worker
of its own (jobs/ray_workers.py); what comes back is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import re
import typing
from typing import Annotated, Any, Protocol

from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.runtime import verbs

# Shows in words what the batch at hand has done so far, and, if it is known,
# how many of its solutions are done.
Tell = Callable[..., None]
# Does the work of a batch; see journal.Label.
Batch = Callable[
  [Sequence[schema.Solution], Tell], tuple[Sequence[Any], Mapping[str, int]]
]


@dataclasses.dataclass(frozen=True)
class Worker:
  """What does the batches of a job.

  Args:
    depends_on: Returns what its results depend on, as plain data. It may read
      all weights, so it is asked for a journal alone.
    work: Returns what does batches, and tells what it is at.
    compute_dtype: Returns the type that each model computes in, None if that
      isn't known.
  """

  depends_on: Callable[[], Mapping[str, Any]]
  work: Callable[[Tell], journal.Work]
  compute_dtype: Callable[[], Mapping[str, str | None]] = dict

  def do(
    self,
    batch: Sequence[schema.Solution],
    tell: Tell = lambda words, done=0: None,
  ) -> journal.Finished:
    """Returns a batch that is done, of a worker in this process.

    Args:
      batch: The batch.
      tell: Shows what was done so far.
    """
    (done,) = self.work(tell)(iter([list(batch)]))
    assert isinstance(done, journal.Finished)
    return done


def here(
  depends_on: Callable[[], Mapping[str, Any]],
  work_on: Batch,
  compute_dtype: Mapping[str, str | None] | None = None,
) -> Worker:
  """Returns the worker that does one batch after the other, in this process.

  Args:
    depends_on: See Worker.
    work_on: Does the work of a batch.
    compute_dtype: See Worker.
  """
  return Worker(
    depends_on,
    lambda tell: journal.in_turn(lambda batch: work_on(batch, tell)),
    lambda: compute_dtype or {},
  )


@contextlib.contextmanager
def when_asked(
  opening: contextlib.AbstractContextManager[Worker],
) -> Iterator[Worker]:
  """Yields a worker that is opened when something of it is first asked for.

  Args:
    opening: Opens it.
  """
  with contextlib.ExitStack() as stack:
    opened = functools.cache(lambda: stack.enter_context(opening))
    yield Worker(
      lambda: opened().depends_on(),
      lambda tell: opened().work(tell),
      lambda: opened().compute_dtype(),
    )


@typing.runtime_checkable
class Works(Protocol):
  """A verb that does batches, and can be sent to another process."""

  @property
  def writes_new(self) -> bool:
    """Whether those of a problem are one piece: new solutions come of it."""

  def working(self) -> contextlib.AbstractContextManager[Worker]:
    """Returns a worker in this process, for the time that it is used."""


_ADDRESS = re.compile(r"ray(://[^/\s]+:[0-9]{1,5})?")


def _where(text: str) -> str:
  """Returns the name of an engine."""
  if text != "local" and not _ADDRESS.fullmatch(text):
    raise ValueError("give local, ray, or ray://HOST:PORT")
  return text


def _resource(text: str) -> tuple[str, float]:
  """Returns a resource of Ray's and how much of it, NAME=NUMBER."""
  name, equals, value = text.partition("=")
  try:
    number = float(value)
    if name and equals and math.isfinite(number) and number > 0:
      return name, number
  except ValueError:
    pass
  raise ValueError(f"{text[:60]!r} isn't NAME=NUMBER, such as TPU=4")


Resource = Annotated[tuple[str, float], _resource]


@dataclasses.dataclass(frozen=True)
class Engine(verbs.Value):
  """What does the work of a job.

  Args:
    where: local (this process), ray (processes of a Ray cluster: that of
      RAY_ADDRESS or of this machine, else one on this machine that ends with
      the command) or ray://HOST:PORT (a cluster elsewhere); docs/scale.md.
    workers: The number of processes, each of which loads the models once and
      does a batch at a time; those for which there is no room yet begin when
      there is (ray only; default: 2).
    worker_cpus: The CPUs that Ray reserves for each (ray only; default: 1).
    worker_gpus: The GPUs that Ray reserves for each and shows it (ray only;
      default: 0).
    worker_resource: A further resource that Ray reserves for each, such as
      TPU=4; repeat the option for each (ray only).
    worker_deaths: How many workers may die in a row on a batch of one record
      before it is set aside, with what killed them; a larger batch is tried
      once more and then cut in two (ray only; default: 3).
    worker_batch_s: The longest that a batch may take, in seconds; then its
      worker is ended, as one that died (ray only; default: 3600).
  """

  where: Annotated[str, _where] = "local"
  workers: verbs.Count | None = None
  worker_cpus: verbs.NotNegative | None = None
  worker_gpus: verbs.NotNegative | None = None
  worker_resource: tuple[Resource, ...] = dataclasses.field(
    default=(), metadata=dict(metavar="NAME=NUMBER")
  )
  worker_deaths: verbs.Count | None = None
  worker_batch_s: verbs.Positive | None = None

  def _faults(self) -> Iterator[str]:
    if not self.is_ray:
      for field in dataclasses.fields(self)[1:]:
        if getattr(self, field.name) not in (None, ()):
          yield f"`{field.name}` is for `engine=ray`; take it out"
    names = [name for name, _ in self.worker_resource]
    for name in names:
      if name in ("CPU", "GPU"):
        own = f"worker_{name.lower()}s"
        yield f"`worker_resource={name}`: give `{own}` in its place"
      if names.count(name) > 1:
        yield f"`worker_resource`: {name} is given twice"

  @property
  def is_ray(self) -> bool:
    """Whether a cluster does it."""
    return self.where != "local"
