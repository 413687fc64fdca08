"""`fit`: the loop on the host that runs every program.

It decides when to update, evaluate, save and stop; the program does the
computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import logging
import pathlib
import shutil
import time
from typing import Any, NamedTuple

from flax.core import meta
import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import memory
from prm_jax.models import sharding
from prm_jax.rows import loader
from prm_jax.runtime import checks
from prm_jax.runtime import distributed
from prm_jax.runtime import host_memory
from prm_jax.runtime import locks
from prm_jax.runtime import preemption
from prm_jax.runtime import progress
from prm_jax.runtime import storage
from prm_jax.runtime import watchdog
from prm_jax.training import best_metric
from prm_jax.training import metric_writers
from prm_jax.training import metrics_log
from prm_jax.training import program as program_lib
from prm_jax.training import trainable
from prm_jax.training import warm_start

_logger = logging.getLogger(__name__)

# Of FitConfig, what says when a run gives up, and who is told of it: it may
# change on the way.
MAY_CHANGE = ("fit.max_skipped", "fit.stuck_after_s", "fit.trackers")


@dataclasses.dataclass(frozen=True)
class FitConfig:
  """How long to train, and when to log, evaluate and save, in updates.

  Args:
    steps: The number of updates of the whole run.
    log_every: How often metrics are logged.
    eval_every: How often the model is evaluated.
    checkpoint_every: How often a checkpoint is saved.
    keep_last: The number of latest checkpoints to keep.
    best_metric: The evaluation metric by which the best checkpoint is also
      kept. Every saved step must then be evaluated.
    best_mode: Whether the best value is the max or the min.
    tensorboard: Whether metrics are also written for TensorBoard.
    trackers: Where metrics are also sent: wandb (Weights & Biases), mlflow or
      both, if they are installed.
    skip_outliers: Skip an update whose loss or gradient is more than this many
      standard deviations above the mean of the last updates
      (skip_updates.Recent); None skips none.
    max_skipped: The run ends after this many skipped updates in a row.
    stuck_after_s: With several processes, each exits if nothing was done for
      this many seconds; 0 is never.
  """

  steps: int
  log_every: int = 50
  eval_every: int = 0
  checkpoint_every: int = 0
  keep_last: int = 2
  best_metric: str | None = None
  best_mode: str = "min"
  tensorboard: bool = True
  trackers: tuple[str, ...] = ()
  skip_outliers: float | None = None
  max_skipped: int = 10
  stuck_after_s: float = 3600.0

  def __post_init__(self):
    counts = ("steps", "keep_last", "max_skipped")
    checks.check_counts(self, counts, "fit.")
    every = ("log_every", "eval_every", "checkpoint_every")
    checks.check_natural(self, (*every, "stuck_after_s"), "fit.")
    if self.skip_outliers is not None:
      checks.check_positive(self, ("skip_outliers",), "fit.")
    for name in self.trackers:
      checks.check_choice("fit.trackers", name, metric_writers.TRACKERS)
    if self.best_mode not in ("min", "max"):
      raise errors.InputError(
        f"fit.best_mode={self.best_mode!r}: expected min or max"
      )
    if self.best_metric is not None and not self._saves_are_evaluated():
      raise errors.InputError(
        f"fit.best_metric={self.best_metric!r}: checkpoint_every="
        f"{self.checkpoint_every} isn't a multiple of eval_every="
        f"{self.eval_every}; the best step could be lost: what is saved must"
        " be evaluated"
      )

  def _saves_are_evaluated(self) -> bool:
    if not self.checkpoint_every or not self.eval_every:
      # Only the last step is saved and evaluated, or one of them is lacking.
      return self.checkpoint_every == self.eval_every
    return self.checkpoint_every % self.eval_every == 0


# The state -> the rows of its next update, and what is known of them.
NextRows = Callable[[program_lib.TrainState], tuple[Any, dict[str, float]]]


class StopDecision(NamedTuple):
  """The reason why a run ends before its last update.

  Args:
    reason: The reason, in words.
    back_to: The result is the last checkpoint up to this step; None is the
      current state.
  """

  reason: str
  back_to: int | None = None


# A state -> its metrics.
Measure = Callable[[program_lib.TrainState], dict[str, float]]

# The records of all updates so far -> whether to halt.
Callback = Callable[[Sequence[Mapping[str, Any]]], StopDecision | None]


def stored(
  batch_at: Callable[[int], batch_lib.Batch | batch_lib.Part], steps: int
) -> NextRows:
  """Returns the rows of each step of a run, built ahead of the updates."""
  batches: list[Iterator[batch_lib.Batch | batch_lib.Part]] = []

  def next_rows(state):
    if not batches:
      batches.append(loader.prefetch(batch_at, int(state.step), steps))
    return next(batches[0]), {}

  return next_rows


def fit(
  program: program_lib.Program,
  next_rows: NextRows,
  config: FitConfig,
  *,
  workdir: pathlib.Path,
  key: jax.Array,
  mesh: jax.sharding.Mesh | None = None,
  init_from: Any = None,
  donate: bool = False,
  eval_batches: Sequence[batch_lib.Batch | batch_lib.Part] = (),
  fresh: bool = False,
  measure: Measure | None = None,
  callback: Callback | None = None,
  on_start: Callable[[], None] = lambda: None,
  bucket: storage.Bucket | None = None,
  shown: Sequence[str] = (),
  name: str = "train",
) -> program_lib.TrainState:
  """Returns the state after `config.steps` updates.

  A run that was stopped resumes from its last checkpoint and ends with the same
  bits as one that wasn't stopped, because the rows depend on the state alone.
  After SIGTERM it saves and stops at the next update.

  Args:
    program: The program to run.
    next_rows: Returns the rows of an update: `stored` data, or a rollout of the
      state's policy.
    config: How long to train, and when to log, evaluate and save.
    workdir: The folder of checkpoints and metrics.
    key: The random key of the initial state.
    mesh: The devices.
    init_from: Initial parameters. Leaves that it lacks, such as a new head,
      keep their random values. What isn't trained is held in the type that it
      has here; in a run that is resumed, in the type that was saved.
    donate: Whether the arrays of init_from are used up, so that none is in
      memory twice. They can't be used afterwards.
    eval_batches: The held-out rows, if the program is evaluated on batches.
    fresh: Whether to replace what the workdir holds.
    measure: Returns the metrics of a state, instead of eval_batches.
    callback: Called after every update, with metrics; it may stop the run. It
      needs every metric that it reads to be logged at every update.
    on_start: Called when only the checkpoint to resume from can still be
      refused, and after `fresh` has removed the old run.
    bucket: Where checkpoints are saved and the workdir is copied to; None is
      the workdir.
    shown: The metrics that the progress line shows; None shows all.
    name: The name of the run in the progress line.

  Raises:
    DamagedError: The workdir holds checkpoints, and all of them are damaged.
    DiskFullError: The disk is too full for a checkpoint or a record.
    MovedError: The workdir was renamed or replaced during the run.
    NotFiniteError: config.max_skipped updates in a row were skipped, or all.
    PreemptedError: SIGTERM came; the last update is saved.
    InputError: The workdir holds a checkpoint of another model, init_from
      doesn't fit, nothing measures config.best_metric, the evaluation data
      don't define it, or no batch of the run had a target.
  """
  metric_writers.check_installed(config.trackers)
  if config.skip_outliers is not None:
    program = program_lib.skipping_outliers(program, config.skip_outliers)
  mesh = mesh or sharding.make_mesh()
  if measure is None and config.best_metric is not None:
    best_metric.check(config.best_metric, program, key, eval_batches, mesh)
  folder = storage.of_saves(workdir, bucket)
  is_new = fresh or not saves.saved_steps(folder)
  types = trainable.types_of(init_from or {}) if is_new else saves.types(folder)
  program = program_lib.holding(program, types)
  _check_init(program, key, init_from, mesh, is_new=is_new)
  measures_first = measure is not None
  # Of several processes jax hears the signal, for all of them.
  alone = distributed.number() == 1
  with contextlib.ExitStack() as closing:
    if alone:
      closing.enter_context(preemption.noticed())
    stuck_after_s = 0 if alone else config.stuck_after_s
    heartbeat = closing.enter_context(watchdog.watching(stuck_after_s))

    place_checks: list[Callable[[], None]] = []

    def claim():
      held = locks.held(workdir, "training into it")
      place_checks.append(closing.enter_context(held))
      _claim(workdir, bucket, fresh=fresh)
      on_start()

    distributed.on_first(claim)
    checkpoints = manager.Checkpoints(
      folder,
      keep_last=config.keep_last,
      best_metric=config.best_metric,
      best_mode=config.best_mode,
      description=model_json.read_record(workdir),
    )
    closing.callback(checkpoints.close)
    if donate and not is_new:
      warm_start.free(init_from)  # before the save takes its place
    prepared = _prepare(
      program, checkpoints, mesh, key, init_from, name, donate=donate
    )
    made = int(prepared.state.step)
    if made >= config.steps:
      _logger.info(
        f"{name}: has made all its {made:,} updates before: nothing is left to"
        " do; for more updates give another `workdir` with a larger"
        " `config.fit.steps`, on which the schedule depends, or `fresh=True` to"
        " start over"
      )
    eval_fn = prepared.evaluate
    if measure is None and eval_fn is not None and eval_batches:

      def measure(state):
        return evaluate(program, eval_fn, state, eval_batches, mesh, heartbeat)

    log = metrics_log.Log(
      workdir,
      first=int(prepared.state.step),
      steps=config.steps,
      every=1 if callback else config.log_every,
      tensorboard=config.tensorboard,
      name=name,
      shown=shown,
      trackers=config.trackers,
    )
    run = _Run(
      config,
      program,
      prepared,
      checkpoints,
      log,
      measure,
      callback,
      heartbeat,
      functools.partial(_check_places, place_checks),
      bucket.send if bucket is not None else None,
    )
    try:
      with log:
        run.finish(next_rows, mesh, measures_first=measures_first)
    except Exception:
      # A save in the background fails in its own way if its folder is gone.
      _check_places(place_checks)
      raise
    _check_changed(run.state, program, name)
    best = checkpoints.best()
    if best is not None:
      _logger.info(
        f"{name}: best {config.best_metric} of the saved steps: step {best};"
        f" `step={best}` uses it",
      )
    elif config.best_metric is not None:
      _logger.warning(
        f"{name}: no saved step has a {config.best_metric} to choose the best"
        " by"
      )
  return run.state


@dataclasses.dataclass(eq=False)
class _Run:
  """A run in progress: its state, and everything that acts on it."""

  config: FitConfig
  program: program_lib.Program
  prepared: _Prepared
  checkpoints: manager.Checkpoints
  log: metrics_log.Log
  measure: Measure | None
  callback: Callback | None
  heartbeat: watchdog.Alive
  check_place: Callable[[], None]
  send: Callable[[], None] | None

  def __post_init__(self):
    self.state = self.prepared.state
    self.updated = False

  def finish(
    self, next_rows: NextRows, mesh: jax.sharding.Mesh, *, measures_first: bool
  ) -> None:
    """Makes the remaining updates, and waits until all is saved.

    Raises:
      PreemptedError: SIGTERM came; the last update is saved.
      MovedError: The workdir is no longer where it was.
    """
    try:
      self.go(next_rows, mesh, measures_first=measures_first)
    except preemption.PreemptedError:
      self.save_for_later()
      raise
    self.checkpoints.wait()
    distributed.on_first(self.check_place)

  def go(
    self, next_rows: NextRows, mesh: jax.sharding.Mesh, *, measures_first: bool
  ) -> None:
    """Makes the remaining updates, and logs, evaluates and saves when due.

    Raises:
      PreemptedError: SIGTERM came; the last update isn't saved yet.
    """
    first = int(self.state.step)
    if not first:
      if measures_first:
        self._evaluate(first)
    elif self._is_evaluated(first) and not distributed.any_of(
      self.log.evaluated(first)
    ):
      # A signal came before it was. What is kept for its metric waits for it.
      metrics = self._evaluate(first)
      if self.config.best_metric is not None:
        self.checkpoints.drop_after(first - 1)
        self._save(metrics)
    for step in range(first + 1, self.config.steps + 1):
      self.heartbeat()
      preemption.check()
      if distributed.reached_preemption(step):
        raise preemption.PreemptedError
      rows, facts = next_rows(self.state)
      halt = self._update(step, rows, facts, mesh)
      last = halt is not None
      is_evaluated = self._is_evaluated(step) or (last and self.measure)
      measured = self._evaluate(step) if is_evaluated else None
      every = self.config.checkpoint_every
      if _due(step, every) or last or step == self.config.steps:
        # Metrics steer keep-best. A save between evaluations has none: those
        # of an earlier step were measured on other parameters.
        self._save(measured)
      if halt is not None:
        self._halted(halt)
        break

  def _update(
    self, step: int, rows: Any, facts: dict[str, float], mesh: Any
  ) -> StopDecision | None:
    """Makes an update and logs it; returns whether the run ends after it."""
    self.log.tokens += num_tokens(rows)
    start = time.perf_counter()
    batch = sharding.put_batch(rows, mesh)
    self.state, metrics = self._step(batch)
    last = step == self.config.steps
    if _due(step, self.config.log_every) or last or self.callback:
      sums = {k: float(v) for k, v in jax.device_get(metrics).items()}
      values = facts | {k: v for k, v in sums.items() if "/" not in k}
      values |= program_lib.finish_sources(self.program.finish, sums)
      if facts:
        values["update_s"] = time.perf_counter() - start
      self.log.write(step, "train", values)
      self._check_skipped(step, values)
    halt = self.callback(self.log.records) if self.callback else None
    self.log.advance(step)
    return halt

  def _step(self, batch: Any) -> tuple[program_lib.TrainState, Any]:
    """Returns the next state and the metrics of an update."""
    if self.updated:
      return self.prepared.step(self.state, batch)
    self.updated = True
    what = f"{self.log.name} first update"
    with (
      progress.showing(what, 1, "update", first=progress.COMPILING),
      host_memory.trimmed_after_compiling(),
    ):
      return self.prepared.step(self.state, batch)

  def _check_skipped(self, step: int, values: Mapping[str, float]) -> None:
    in_a_row = values.get("skipped_in_a_row", 0)
    if in_a_row < self.config.max_skipped:
      return
    saved = self.checkpoints.last_up_to(step)
    above = self.config.skip_outliers
    outliers = (
      "" if above is None else f" or were spikes (fit.skip_outliers={above:g})"
    )
    raise errors.NotFiniteError(
      f"{self.log.name}: {in_a_row:.0f} updates in a row had no finite gradient"
      f"{outliers}, up to step {step}, and changed nothing;"
      f" {'nothing is saved yet' if saved is None else f'step {saved} is saved'}:"
      " lower optimizer.peak_lr, or look at the data of these steps;"
      " fit.max_skipped allows more"
    )

  def _is_evaluated(self, step: int) -> bool:
    due = _due(step, self.config.eval_every) or step == self.config.steps
    return self.measure is not None and due

  def _evaluate(self, step: int) -> dict[str, float]:
    """Logs and returns the metrics of the state, among them best_metric."""
    assert self.measure is not None
    measured = self.measure(self.state)
    if self.config.best_metric not in {None, *measured}:
      raise errors.InputError(
        f"fit.best_metric={self.config.best_metric!r}: the evaluation data"
        f" has only {', '.join(measured)}"
      )
    self.log.write(step, "eval", measured)
    return measured

  def _save(self, measured: Mapping[str, float] | None = None) -> None:
    """Starts to save the state, after its records are on disk."""
    distributed.on_first(self.check_place)
    metric = self.config.best_metric
    if metric is not None and measured is not None:
      best_metric.warn(metric, measured[metric], self.log.name, self.state.step)
    if self.send is not None:
      distributed.on_first(self.send)
    self.checkpoints.save(self.state, measured)
    host_memory.trim()

  def save_for_later(self) -> None:
    """Waits until the last update is saved, and logs it."""
    step = int(self.state.step)
    self.checkpoints.wait()
    if step and self.checkpoints.last_up_to(step) != step:
      self._save()
      self.checkpoints.wait()
    distributed.on_first(self.check_place)
    _logger.warning(
      f"{self.log.name}: SIGTERM: ended at step {step}"
      + (", which is saved" if step else "; nothing was trained yet")
      + "; the same command resumes there",
    )

  def _halted(self, halt: StopDecision) -> None:
    """Logs why the run ends early; goes back to a checkpoint if asked to."""
    name = self.log.name
    step = int(self.state.step)
    _logger.warning(f"{name}: halted at step {step}: {halt.reason}")
    if halt.back_to is None:
      return
    self.checkpoints.wait()
    back_to = self.checkpoints.last_up_to(halt.back_to)
    if back_to is None:
      _logger.warning(
        f"{name}: no save is left from step {halt.back_to} or before to go back"
        " to; fit.checkpoint_every and fit.keep_last keep more",
      )
      return
    self.state = self.checkpoints.restore(back_to, self.prepared.target)
    self.checkpoints.drop_after(back_to)
    _logger.warning(f"{name}: went back to step {back_to}")


def _check_places(checks: Sequence[Callable[[], None]]) -> None:
  for check in checks:
    check()


def _check_changed(
  state: program_lib.TrainState, program: program_lib.Program, name: str
) -> None:
  """Raises an error if every update of the whole run was skipped."""
  updates = int(state.step) * program.updates_per_step
  empty, total = int(state.skipped.empty), int(state.skipped.total)
  if not updates or empty + total < updates:
    return
  unchanged = f"{name}: the parameters are those that it began with: none of"
  if total:
    raise errors.NotFiniteError(
      f"{unchanged} its {updates:,} updates was made: {total:,} had no finite"
      f" gradient or were spikes, {empty:,} no target; lower optimizer.peak_lr,"
      " or look at the data"
    )
  raise errors.InputError(
    f"{unchanged} its {updates:,} updates had a target: all weights were 0; give"
    " data with labels that the objective counts (in RL, problems with answers)"
  )


def _due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0


def _check_init(program, key, init_from, mesh, *, is_new: bool) -> None:
  """Refuses parameters that the program can't begin with.

  is_new: there is no save to resume from.
  """
  abstract = meta.unbox(jax.eval_shape(program.init, key).params)
  memory.check_parameters(abstract, mesh)
  if init_from is not None:
    warm_start.common(abstract, init_from)
  if is_new:
    warm_start.check_frozen(program, abstract, init_from or {})


def _claim(
  workdir: pathlib.Path, bucket: storage.Bucket | None, *, fresh: bool
) -> None:
  """Makes this run the owner of its folders; fresh: and empties them."""
  if bucket is not None:
    bucket.claim()
  if fresh:
    _clear(workdir)
    if bucket is not None:
      bucket.clear()


def _clear(workdir: pathlib.Path) -> None:
  for folder in (workdir / "checkpoints", workdir / "tensorboard"):
    if folder.exists():
      shutil.rmtree(folder)
  for name in ("metrics.jsonl", metric_writers.RUNS):
    (workdir / name).unlink(missing_ok=True)


def num_tokens(rows: Any) -> int:
  """Returns the number of tokens that aren't padding: they see or are seen.

  Args:
    rows: A batch.Batch, or a value that holds one, such as a rollout. For a
      batch.Part it is the number in the whole batch.
  """
  if isinstance(rows, batch_lib.Part):
    return rows.num_tokens
  batch = rows if isinstance(rows, batch_lib.Batch) else rows.batch
  index = np.arange(batch.tokens.shape[1])
  seen = batch.visible_until > index + 1
  return int(np.count_nonzero(seen | (batch.parent >= 0)))


class _Prepared(NamedTuple):
  """The first state, where its leaves are placed, and the compiled programs."""

  state: program_lib.TrainState
  target: program_lib.TrainState
  step: Callable
  evaluate: Callable | None


def _prepare(
  program, checkpoints, mesh, key, init_from, name, *, donate: bool
) -> _Prepared:
  placed = program_lib.place(program, mesh, key)
  shardings, target, step_fn = placed
  eval_fn = None
  if program.evaluate is not None:
    eval_fn = sharding.jit(
      program.evaluate,
      mesh,
      in_shardings=(shardings.params, sharding.of_batch(mesh)),
      out_shardings=sharding.replicated(mesh),
    )
  saved = checkpoints.newest(target, name)
  if saved is not None:
    return _Prepared(saved, target, step_fn, eval_fn)
  state = warm_start.first_state(
    program, placed, mesh, key, init_from, donate=donate
  )
  return _Prepared(state, target, step_fn, eval_fn)


def evaluate(
  program: program_lib.Program,
  eval_fn: Callable,
  state: program_lib.TrainState,
  batches: Sequence[batch_lib.Batch | batch_lib.Part],
  mesh: jax.sharding.Mesh,
  heartbeat: watchdog.Alive = lambda: None,
) -> dict[str, float]:
  """Returns the metrics over all batches: sums are added, then divided once."""
  sums = functools.partial(eval_fn, state.params)
  shown = progress.through("evaluate", batches, len(batches), "part")
  return program.finish(program_lib.added(sums, shown, mesh, heartbeat))
