"""Checkpoint folders: weights saved by orbax, and what is needed to use them.

  FOLDER/model.json        program, model shape, encoding, tokenizer
  FOLDER/tokenizer.*       the tokenizer's own file
  FOLDER/checkpoints/STEP  params, opt_state, meta
  FOLDER/damaged/STEP      checkpoints that were found damaged, to look at

A training workdir is such a folder, and `sample` and `score` use it directly.
Parameters are an item of their own, so using a model never reads the
optimizer's state. meta holds the fingerprint of each leaf, the metrics that
choose the best step, the content of model.json and a digest of itself: what is
read back is what was saved, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import pathlib
from typing import Any

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp

from prm_jax import errors
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import saves
from prm_jax.models import sharding
from prm_jax.runtime import distributed
from prm_jax.runtime import exhausted
from prm_jax.runtime import storage

_logger = logging.getLogger(__name__)


class Checkpoints:
  """The saved steps of one run: async saves, keep-last and keep-best."""

  def __init__(
    self,
    folder: epath.Path | pathlib.Path,
    *,
    keep_last: int = 2,
    best_metric: str | None = None,
    best_mode: str = "min",
    description: Mapping[str, Any] | None = None,
  ):
    """Opens a folder of checkpoints.

    Args:
      folder: The folder.
      keep_last: The number of latest checkpoints to keep.
      best_metric: The evaluation metric by which the best checkpoint is also
        kept.
      best_mode: Whether the best value is the max or the min.
      description: The content of model.json, to be saved with the parameters
        (model_json.read_record).
    """
    self._folder, self._best_metric = folder, best_metric
    self._description = description
    self._best_mode = best_mode
    root = self._folder / "checkpoints"
    if not storage.is_there(root):
      root = root.absolute()
    # orbax would keep metrics, too, but without a digest, and a damaged one
    # would keep it from starting at all.
    self._values: dict[int, float] = {}
    for step in saves.saved_steps(self._folder) if best_metric else ():
      with contextlib.suppress(errors.DamagedError):
        self._note(step, integrity.read_meta(root / str(step)).get("metrics"))
    try:
      self._manager = ocp.CheckpointManager(
        root,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=_Kept(keep_last, self._best_of),
          cleanup_tmp_directories=True,
          lightweight_initialize=True,
          # Its copy of the state would be in the memory that updates need.
          enable_async_checkpointing=_saves_meanwhile(),
        ),
        item_names=("params", "opt_state", "meta"),
      )
    except (OSError, ValueError, KeyError) as e:
      raise errors.InputError(
        f"{root}: can't be used: {integrity.reason(e)}; remove what is damaged"
      ) from None

  def _note(
    self, step: int, metrics: Mapping[str, float | None] | None
  ) -> None:
    """Records the value of a checkpoint's best_metric, if it has one."""
    value = saves.metric_of(metrics, self._best_metric or "")
    if value is not None:
      self._values[step] = value

  def _best_of(self, steps: Sequence[int]) -> int | None:
    """Returns the step with the best metric, of equals the last; None if none."""
    measured = {x: self._values[x] for x in steps if x in self._values}
    return saves.best_of(measured, self._best_mode)

  def newest(self, abstract: Any, name: str = "checkpoints") -> Any | None:
    """Returns the newest undamaged state; None if nothing was saved.

    Damaged checkpoints after it are moved into damaged/ and reported; of those
    before it only the metadata is checked. If all are damaged, nothing is
    moved.

    Raises:
      DamagedError: All checkpoints are damaged.
      InputError: The newest undamaged one has another shape.
    """
    broken: list[tuple[int, Any]] = []
    whole: Any = None
    for step in reversed(distributed.of_first(saves.saved_steps(self._folder))):
      restored: Any = None
      try:
        if whole is None:
          restored = self.restore(step, abstract)
        else:
          integrity.read_meta(self._folder / "checkpoints" / str(step))
      except errors.DamagedError as e:
        restored = e
      if distributed.any_of(isinstance(restored, errors.DamagedError)):
        broken.append((step, restored))
      elif whole is None:
        whole = restored
    if whole is not None:
      for damaged, error in broken:
        distributed.on_first(functools.partial(self._set_aside, damaged))
        _logger.warning(
          f"{name}: WARNING: {error}; put into {self._folder / 'damaged'}"
        )
      if broken:
        self._manager.reload()
        _logger.warning(f"{name}: WARNING: resumes from step {int(whole.step)}")
      return whole
    if not broken:
      return None
    tried = "; ".join(str(error) for _, error in broken)
    raise errors.DamagedError(
      f"{tried}; no other save is there: nothing was removed; copy a whole"
      " one there, or train again with `fresh=True`"
    )

  def _set_aside(self, step: int) -> None:
    """Moves a damaged step's folder into damaged/."""
    folder = self._folder / "damaged"
    folder.mkdir(exist_ok=True)
    numbers = (f".{n}" if n else "" for n in itertools.count())
    target = next(
      path for n in numbers if not (path := folder / f"{step}{n}").exists()
    )
    storage.move(self._folder / "checkpoints" / str(step), target)

  def best(self) -> int | None:
    """Returns the step with the best metric, None if no step has one."""
    return self._best_of(self._manager.all_steps())

  def save(
    self, state: Any, metrics: Mapping[str, float] | None = None
  ) -> None:
    """Starts to save the state under its step; training may continue.

    On a CPU it returns when all is written (_saves_meanwhile).

    Raises:
      DiskFullError: The disk is too full for this checkpoint or the one before.
      InputError: It couldn't be written for another reason.
    """
    step = int(state.step)
    self._values.pop(step, None)
    self._note(step, metrics)
    leaves = dict(params=state.params, opt_state=state.opt_state)
    meta = dict(
      step=step,
      skipped=[np.asarray(x).tolist() for x in jax.tree.leaves(state.skipped)],
      fingerprints=integrity.of(leaves),
    )
    if metrics is not None:
      # JSON has no nan; null is a metric that isn't defined.
      meta["metrics"] = {
        k: v if math.isfinite(v) else None for k, v in metrics.items()
      }
    if self._description is not None:
      meta["description"] = self._description
    with self._writing():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          params=ocp.args.StandardSave(state.params),
          opt_state=ocp.args.StandardSave(state.opt_state),
          meta=ocp.args.JsonSave(integrity.sealed(meta)),
        ),
        force=True,
      )

  def restore(self, step: int, abstract: Any) -> Any:
    """Returns the saved state, placed by the abstract state's shardings.

    Raises:
      DamagedError: The checkpoint can't be read, or isn't what was saved.
      InputError: It has another shape.
    """
    items = saves.restore(
      self._manager,
      step,
      abstract.params,
      "use the config it was trained with, or `fresh=True`",
      opt_state=ocp.args.StandardRestore(abstract.opt_state),
    )
    where = self._folder / "checkpoints" / str(step)
    leaves = {k: items[k] for k in ("params", "opt_state")}
    meta = integrity.read_meta(where)
    integrity.check_leaves(leaves, meta, where)
    # A save of a run that didn't count what it skipped, or how, has none.
    counts = itertools.chain(
      [step], meta.get("skipped", []), itertools.repeat(0)
    )
    numbers = jax.tree.map(
      lambda x: sharding.put(
        np.broadcast_to(np.asarray(next(counts), x.dtype), x.shape), x.sharding
      ),
      (abstract.step, abstract.skipped),
    )
    return abstract.replace(
      step=numbers[0],
      params=items["params"],
      opt_state=items["opt_state"],
      skipped=numbers[1],
    )

  def last_up_to(self, step: int) -> int | None:
    """Returns the last saved step up to that one, None if there is none."""
    saved = (x for x in self._manager.all_steps() if x <= step)
    return max(saved, default=None)

  def drop_after(self, step: int) -> None:
    """Removes the checkpoints after a step, so that it is the latest."""
    for later in self._manager.all_steps():
      if later > step:
        self._manager.delete(later)

  def wait(self) -> None:
    """Waits until all is saved; raises what `save` raises if it isn't."""
    with self._writing():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Ends background work; `wait` reports whether all is saved.

    So a run that ends with an error reports that error.
    """
    with contextlib.suppress(Exception):
      self._manager.close()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """Turns a failed write into one line, in whichever way orbax reports it."""
    try:
      yield
    except Exception as e:  # orbax's own, tensorstore's, or the system's
      number = exhausted.errno_of(e)
      known = exhausted.is_exhausted(e)
      if not known and not isinstance(e, OSError | ValueError):
        raise
      full = number in exhausted.DISK
      reason = (
        integrity.reason(e) if number is None else exhausted.reason(number)
      )
      kind = errors.DiskFullError if full else errors.InputError
      whole = saves.saved_steps(self._folder)
      raise kind(
        f"{self._folder / 'checkpoints'}: can't be written:"
        f" {'the disk is full' if full else reason};"
        + (f" step {whole[-1]} is saved;" if whole else "")
        + f" {'make room' if full else 'fix that'}, and give the same command"
        " again"
      ) from None


def _saves_meanwhile() -> bool:
  """Returns whether saves are written while training continues.

  Not on a CPU, unless several processes share the work.
  """
  return jax.default_backend() != "cpu" or distributed.number() > 1


@dataclasses.dataclass(frozen=True)
class _Kept:
  """Which checkpoints orbax keeps: the last few, and the best of all."""

  last: int
  best_of: Callable[[Sequence[int]], int | None]

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> Sequence[bool]:
    del context
    steps = [x.step for x in checkpoints]
    kept = {*steps[-self.last :], self.best_of(steps)}
    return [step in kept for step in steps]
