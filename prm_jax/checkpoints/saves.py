"""The saves in a checkpoint folder: which there are, and parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import logging
import math
import pathlib
from typing import Any, Literal

from etils import epath
import jax
import orbax.checkpoint as ocp

from prm_jax import errors
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import leaves
from prm_jax.checkpoints import model_json
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files
from prm_jax.runtime import storage

_logger = logging.getLogger(__name__)

# A saved step; None is the latest one, "best" that of the run's best_metric.
Step = int | Literal["best"] | None

# In a step's folder in a bucket, when all else is.
_COMMITTED = "commit_success.txt"
# The most bytes of a piece of a parameter.
_PIECE_BYTES = 64 << 20


def saved_steps(folder: epath.Path | pathlib.Path) -> list[int]:
  """Returns the steps in a folder, whole or damaged, in order.

  orbax renames a step's folder when all of it is written, so that a number
  stands for a finished save. In a bucket, where nothing is renamed at once,
  it writes a file last.
  """
  root = folder / "checkpoints"
  names = [path.name for path in root.iterdir()] if root.is_dir() else []
  steps = sorted(int(name) for name in names if name.isdecimal())
  if not storage.is_there(root):
    return steps
  return [x for x in steps if (root / str(x) / _COMMITTED).exists()]


def chosen(folder: pathlib.Path, step: Step) -> int:
  """Returns the number of a saved step.

  Args:
    folder: A checkpoint folder.
    step: A saved step; None is the latest one. "best" is the saved step whose
      fit.best_metric was best when training saved it, of equals the last.

  Raises:
    DamagedError: The metrics of a save aren't what was saved.
    InputError: There is no save, or not that one, or no best one.
  """
  saved = saved_steps(folder)
  if not saved:
    raise errors.InputError(f"{folder}: no checkpoint was saved there yet")
  if step not in (None, "best", *saved):
    raise errors.InputError(
      f"{folder}: no checkpoint of step {step}; it has"
      f" {', '.join(map(str, saved))}"
    )
  if step == "best":
    return _best(folder, saved)
  return saved[-1] if step is None else step


def types(folder: epath.Path | pathlib.Path) -> dict[tuple[str, ...], Any]:
  """Returns the type of each saved parameter, by its path of names.

  They are the same in all saves of a run. If none can be read, there are none:
  what reads the saves says why.
  """
  for step in reversed(saved_steps(folder)):
    # orbax refuses a relative path.
    where = (folder / "checkpoints" / str(step)).absolute()
    with contextlib.suppress(Exception):  # whatever orbax meets
      integrity.check_files(where)
      tree = ocp.StandardCheckpointHandler().metadata(where / "params").tree
      saved = integrity.by_path(tree)
      return {tuple(k.split("/")): x.dtype for k, x in saved.items()}
  return {}


def metric_of(
  metrics: Mapping[str, float | None] | None, name: str
) -> float | None:
  """Returns a metric of a save; None if it isn't there or isn't defined."""
  value = checked_lines.metric(metrics or {}, name)
  return value if value is not None and math.isfinite(value) else None


def best_of(values: Mapping[int, float], mode: str) -> int | None:
  """Returns the step with the best value, of equals the last; None if none.

  Args:
    values: The value of each step.
    mode: Whether the best one is the max or the min.
  """
  sign = 1 if mode == "max" else -1
  return max(values, key=lambda step: (sign * values[step], step), default=None)


def _best(folder: pathlib.Path, saved: Sequence[int]) -> int:
  """Returns the best of the saved steps, and logs its metric."""
  metric, mode = _best_metric(folder)
  values = {}
  for step in saved:
    meta = integrity.read_meta(folder / "checkpoints" / str(step))
    value = metric_of(meta.get("metrics"), metric)
    if value is not None:
      values[step] = value
  best = best_of(values, mode)
  if best is None:
    raise errors.InputError(
      f"{folder}: no saved step has the metric {metric!r}, so none is the best;"
      f" give one of {', '.join(map(str, saved))}"
    )
  _logger.info(
    f"{folder}: step {best} is the best of {', '.join(map(str, saved))}:"
    f" {metric} {values[best]:.6g}"
  )
  return best


def _best_metric(folder: pathlib.Path) -> tuple[str, str]:
  """Returns fit.best_metric and fit.best_mode of the run in a folder."""
  path = folder / "config.json"
  fit = files.read_json(path).get("fit") if path.exists() else None
  fit = fit if isinstance(fit, dict) else {}
  metric = fit.get("best_metric")
  if not isinstance(metric, str):
    raise errors.InputError(
      f"{folder}: `step=best`: its run has no fit.best_metric in config.json, so"
      " no step is the best; give a number"
    )
  return metric, str(fit.get("best_mode"))


def save_params(
  folder: pathlib.Path,
  params: Any,
  description: model_json.Description | None = None,
) -> None:
  """Saves parameters alone, as step 0: a model that no run of ours trained.

  They are written one after another, in pieces, and not compressed, so that
  writing takes about as much memory as the largest of them. Compression would
  save a fifth of the disk, and take as much memory again.

  Args:
    folder: The checkpoint folder.
    params: The parameters.
    description: What its model.json says or will say.
  """
  meta: dict[str, Any] = dict(
    step=0, fingerprints=integrity.of(dict(params=params))
  )
  if description is not None:
    meta["description"] = model_json.record_of(description)
  largest = max(x.nbytes for x in jax.tree.leaves(params))
  manager = ocp.CheckpointManager(
    (pathlib.Path(folder) / "checkpoints").absolute(),
    item_names=("params", "meta"),
    item_handlers=dict(
      params=ocp.PyTreeCheckpointHandler(
        save_concurrent_gb=(largest + 1) / 10**9, use_compression=False
      ),
      meta=ocp.JsonCheckpointHandler(),
    ),
  )
  try:
    manager.save(
      0,
      args=ocp.args.Composite(
        params=ocp.args.PyTreeSave(
          params,
          save_args=jax.tree.map(
            lambda _: ocp.SaveArgs(chunk_byte_size=_PIECE_BYTES), params
          ),
        ),
        meta=ocp.args.JsonSave(integrity.sealed(meta)),
      ),
    )
    manager.wait_until_finished()
  finally:
    manager.close()


def load_params(
  folder: pathlib.Path,
  abstract: Any,
  *,
  description: model_json.Description | None = None,
  step: Step = None,
  partly: bool = False,
  dtype: str | None = None,
  apart: bool = False,
) -> Any:
  """Returns the parameters alone, on the default device.

  Args:
    folder: a checkpoint folder.
    abstract: the parameters' shapes.
    description: the model to which they belong; None isn't compared.
    step: see chosen.
    partly: there may be further parameters, which are left there.
    dtype: the dtype of what is returned; that of what is saved by default.
    apart: whether each layer's parameters are arrays of their own.

  Raises:
    DamagedError: they aren't what was saved.
    InputError: there is no checkpoint, it is of another shape, or it was saved
      with another description.
  """
  step = chosen(folder, step)
  where = (folder / "checkpoints" / str(step)).absolute()
  # Parameters alone are enough, but nothing unchecked is used in silence.
  known = (where / "meta").exists()
  if not known:
    _logger.warning(
      f"{where}: warning: has no meta, so it isn't known whether parameters and"
      f" {model_json.DESCRIPTION} are what was saved"
    )
  try:
    meta = integrity.read_meta(where) if known else {}
    if description is not None:
      model_json.check_saved(folder, description, meta.get("description"), step)
    params = _read_if_it_fits(
      where,
      abstract,
      f"{model_json.DESCRIPTION} describes another model",
      lambda: _read_params(where / "params", abstract, apart),
      partly=partly,
    )
    if known:
      integrity.check_leaves(
        dict(params=params), meta, where, integrity.of_params
      )
  except errors.DamagedError as e:
    remedy = "remove it to use the save before it"
    if saved_steps(folder)[0] == step:
      remedy = "no save is before it: copy a whole one there, or make it again"
    raise errors.DamagedError(f"{e}; {remedy}") from None
  return params if dtype is None else _cast(params, dtype)


def _cast(params: Any, dtype: str) -> Any:
  """Returns the parameters in a dtype; frees those of another one."""

  def cast(x: jax.Array) -> jax.Array:
    if x.dtype == dtype:
      return x
    other = jax.block_until_ready(x.astype(dtype))
    x.delete()
    return other

  return jax.tree.map(cast, params)


def restore(
  manager: ocp.CheckpointManager, step: int, params: Any, remedy: str, **items
) -> Any:
  """Returns the saved items, `params` among them.

  Args:
    manager: The checkpoint manager.
    step: The step.
    params: The expected parameters.
    remedy: What an error tells the user to do.
    items: The other items.

  Raises:
    DamagedError: The items can't be read.
    InputError: They have another shape.
  """
  items["params"] = ocp.args.StandardRestore(params)
  args = ocp.args.Composite(**items)
  where = manager.directory / str(step)

  def read() -> Any:
    return manager.restore(step, args=args)

  return _read_if_it_fits(where, params, remedy, read)


def _read_params(folder: pathlib.Path, abstract: Any, apart: bool) -> Any:
  """Returns the parameters in an item's folder, in the dtypes they have there.

  They are read one after another.

  Args:
    folder: The item's folder.
    abstract: The shapes of the parameters that are read.
    apart: See load_params.
  """
  saved = leaves.Leaves(folder)
  if not apart:
    return jax.tree_util.tree_map_with_path(
      lambda path, _: saved.read(integrity.name_of(path)), abstract
    )

  def read(part: Any, name: str) -> Any:
    inside = {k: (v, f"{name}/{k}" if name else k) for k, v in part.items()}
    return {
      k: of_layers(v, path)
      if k == "layers"
      else read(v, path)
      if isinstance(v, Mapping)
      else saved.read(path)
      for k, (v, path) in inside.items()
    }

  def of_layers(stacks: Any, name: str) -> tuple[Any, ...]:
    named, structure = jax.tree_util.tree_flatten_with_path(stacks)
    parts = [
      saved.read_parts(f"{name}/{integrity.name_of(path)}") for path, _ in named
    ]
    return tuple(
      jax.tree.unflatten(structure, layer) for layer in zip(*parts, strict=True)
    )

  return read(abstract, "")


def _read_if_it_fits(
  where: epath.Path | pathlib.Path,
  params: Any,
  remedy: str,
  read: Callable[[], Any],
  *,
  partly: bool = False,
) -> Any:
  """Returns what read returns, if the saved parameters have these shapes.

  Args:
    where: The folder of the save.
    params: The expected parameters.
    remedy: What an error tells the user to do.
    read: Reads the items.
    partly: Whether the save may hold further parameters.

  Raises:
    DamagedError: The items can't be read, or one of their files is no file.
    InputError: They have another shape.
  """
  integrity.check_files(where)
  try:
    # orbax finds a wrong shape too, but pours tracebacks of its threads.
    tree = ocp.StandardCheckpointHandler().metadata(where / "params").tree
    if partly:
      tree = {k: v for k, v in tree.items() if k in params}
    other = _difference(tree, params)
    if other is None:
      return read()
  except Exception as e:  # orbax raises whatever it meets, and bare ones too
    raise integrity.unreadable(where, e) from None
  raise errors.InputError(f"{where}: doesn't fit: {other}; {remedy}")


def _difference(saved: Any, wanted: Any) -> str | None:
  """Returns the first parameter that differs in name or shape, in words."""
  old, new = integrity.by_path(saved), integrity.by_path(wanted)
  for name in sorted(old | new):
    there, here = (
      tuple(arrays[name].shape) if name in arrays else "absent"
      for arrays in (old, new)
    )
    if there != here:
      return f"{name} is {there} in it and {here} in this model"
  return None
