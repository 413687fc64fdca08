"""Checkpoint folders: weights by orbax, and what is needed to use them.

  FOLDER/model.json        program, model shape, reading, tokenizer
  FOLDER/tokenizer.*       the tokenizer's own file
  FOLDER/checkpoints/STEP  params, opt_state, meta
  FOLDER/damaged/STEP      saves that were found damaged, for you to look at

A training workdir is such a folder, and `sample` and `score` take it as it
is. Parameters are an item of their own, so that using a model never reads the
optimizer's state. meta holds the fingerprint of each leaf, the metrics that
choose the best step and a digest of itself: what is read back is what was
saved, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import pathlib
import re
import sys
from typing import Any

from etils import epath
from flax.core import meta
import jax
import numpy as np
import orbax.checkpoint as ocp

from prm_jax import errors
from prm_jax.checkpoints import fingerprints
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import storage

# orbax reports every save and restore, and pours tracebacks of its threads
# over an error that it raises, too; our own log says what matters.
logging.getLogger("absl").setLevel(logging.CRITICAL)

FORMAT = 1
DESCRIPTION = "model.json"
# In a step's folder in a bucket, when all else is.
_COMMITTED = "commit_success.txt"
# In the params of an implicit PRM: the frozen model that it is measured by.
REFERENCE = "reference"
# Programs whose checkpoints hold a policy; rl's hold its other roles, too.
POLICIES = ("sft", "rl")


@dataclasses.dataclass(frozen=True)
class Description:
  """What a checkpoint folder says about its model.

  program: sft, rl, prm, orm or implicit. reading: the fields of
  encoding.Reading.
  tokenizer: what tokenizer.load takes. aggregate: how its step scores become
  one. scoring: beta and step_score of an implicit PRM.
  """

  program: str
  model: model_config.ModelConfig
  reading: Mapping[str, Any]
  tokenizer: Mapping[str, Any]
  aggregate: str = "product"
  scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def write_description(folder: pathlib.Path, description: Description) -> None:
  record = dataclasses.asdict(description) | dict(format=FORMAT)
  if not record["scoring"]:
    del record["scoring"]  # so that folders without it stay as they were
  files.write_json(folder / DESCRIPTION, record)


def read_description(folder: pathlib.Path) -> Description:
  """Returns a folder's description, its model with attention "auto".

  What computed attention in training says nothing of the machine and the rows
  here: it may be a kernel for other devices, or one that knows no forests.

  Raises:
    InputError: this isn't a checkpoint folder, or one of a later format.
  """
  path = pathlib.Path(folder) / DESCRIPTION
  try:
    record = json.loads(path.read_bytes())
    if record.pop("format") != FORMAT:
      raise errors.InputError(f"{path}: a newer format; update prm_jax")
    model = model_config.from_record(record["model"])
    record["model"] = dataclasses.replace(model, attention="auto")
    record.setdefault("scoring", {})
    for name in ("reading", "tokenizer", "scoring"):
      if not isinstance(record[name], dict):
        raise TypeError(f"{name} is {record[name]!r}; expected an object")
    return Description(**record)
  except FileNotFoundError:
    mend = "give the --workdir of a training run"
    if next(path.parent.glob("*.safetensors*"), None):
      mend = "prm-jax import makes one of a Hugging Face folder"
    raise errors.InputError(
      f"{folder}: not a checkpoint folder: it has no {DESCRIPTION}; {mend}"
    ) from None
  except OSError as e:
    raise errors.InputError(f"{path}: can't be read: {e.strerror}") from None
  except errors.InputError:
    raise
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.InputError(f"{path}: damaged: {_reason(e)}") from None


def read_tokenizer(
  folder: pathlib.Path, description: Description
) -> tokenizer_lib.Tokenizer:
  """Returns a folder's tokenizer.

  Raises:
    InputError: its file is another one, or the description of it is damaged.
  """
  try:
    return tokenizer_lib.load(pathlib.Path(folder), description.tokenizer)
  except errors.InputError:
    raise
  except (KeyError, TypeError, ValueError) as e:
    raise errors.InputError(
      f"{pathlib.Path(folder) / DESCRIPTION}: damaged tokenizer: {_reason(e)};"
      " restore the original file"
    ) from None


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


class Checkpoints:
  """The saved steps of one run: async saves, keep-last and keep-best."""

  def __init__(
    self,
    folder: epath.Path | pathlib.Path,
    *,
    keep_last: int = 2,
    best_metric: str | None = None,
    best_mode: str = "min",
  ):
    """best_metric: the evaluation metric of the one best step to keep."""
    self._folder, self._best_metric = folder, best_metric
    # So that the greatest is the best.
    self._sign = 1 if best_mode == "max" else -1
    root = self._folder / "checkpoints"
    if not storage.is_there(root):
      root = root.absolute()
    # orbax would keep metrics, too, but without a digest, and a damaged one
    # would keep it from starting at all.
    self._values: dict[int, float] = {}
    for step in saved_steps(self._folder) if best_metric else ():
      with contextlib.suppress(errors.DamagedError):
        self._note(step, _read_meta(root / str(step)).get("metrics"))
    try:
      self._manager = ocp.CheckpointManager(
        root,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=_Kept(keep_last, self._best_of),
          cleanup_tmp_directories=True,
          lightweight_initialize=True,
        ),
        item_names=("params", "opt_state", "meta"),
      )
    except (OSError, ValueError, KeyError) as e:
      raise errors.InputError(
        f"{root}: can't be used: {_reason(e)}; remove what is damaged"
      ) from None

  def _note(self, step: int, metrics: Mapping[str, float] | None) -> None:
    """Takes down the value of a save's best_metric, where it has one."""
    value = (metrics or {}).get(self._best_metric or "", math.nan)
    if math.isfinite(value):
      self._values[step] = value

  def _best_of(self, steps: Sequence[int]) -> int | None:
    """Returns the step with the best metric, of equals the last; None if none."""
    measured = [
      (self._sign * self._values[x], x) for x in steps if x in self._values
    ]
    return max(measured)[1] if measured else None

  def newest(self, abstract: Any, name: str = "checkpoints") -> Any | None:
    """Returns the newest whole state; None where nothing was saved.

    Damaged saves behind it are set aside, into damaged/, and said; of those
    before it, what they say about themselves is looked at. All are left alone
    where there is no whole one.

    Raises:
      DamagedError: no save is whole.
      InputError: the newest whole one is of another shape.
    """
    broken: list[tuple[int, Any]] = []
    whole: Any = None
    for step in reversed(distributed.of_first(saved_steps(self._folder))):
      found: Any = None
      try:
        if whole is None:
          found = self.restore(step, abstract)
        else:
          _read_meta(self._folder / "checkpoints" / str(step))
      except errors.DamagedError as e:
        found = e
      if distributed.any_of(isinstance(found, errors.DamagedError)):
        broken.append((step, found))
      elif whole is None:
        whole = found
    if whole is not None:
      for damaged, error in broken:
        distributed.on_first(functools.partial(self._set_aside, damaged))
        print(
          f"{name}: WARNING: {error}; put into {self._folder / 'damaged'}",
          flush=True,
        )
      if broken:
        self._manager.reload()
        print(
          f"{name}: WARNING: goes on from step {int(whole.step)}", flush=True
        )
      return whole
    if not broken:
      return None
    tried = "; ".join(str(error) for _, error in broken)
    raise errors.DamagedError(
      f"{tried}; no other save is there: nothing was removed; copy a whole"
      " one there, or train again with --fresh"
    )

  def _set_aside(self, step: int) -> None:
    """Moves a step's folder out of the run's way."""
    folder = self._folder / "damaged"
    folder.mkdir(exist_ok=True)
    numbers = (f".{n}" if n else "" for n in itertools.count())
    target = next(
      path for n in numbers if not (path := folder / f"{step}{n}").exists()
    )
    storage.move(self._folder / "checkpoints" / str(step), target)

  def best(self) -> int | None:
    """Returns the step with the best metric, None where none has one."""
    return self._best_of(self._manager.all_steps())

  def save(
    self, state: Any, metrics: Mapping[str, float] | None = None
  ) -> None:
    """Starts to save the state under its step; training may go on.

    Raises:
      DiskFullError: this save, or the one before it, didn't fit.
      InputError: it couldn't be written for another reason.
    """
    step = int(state.step)
    self._values.pop(step, None)
    self._note(step, metrics)
    leaves = dict(params=state.params, opt_state=state.opt_state)
    said = dict(
      step=step,
      skipped=[np.asarray(x).tolist() for x in jax.tree.leaves(state.skipped)],
      fingerprints=fingerprints.of(leaves),
    )
    if metrics is not None:
      said["metrics"] = dict(metrics)
    with self._writing():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          params=ocp.args.StandardSave(state.params),
          opt_state=ocp.args.StandardSave(state.opt_state),
          meta=ocp.args.JsonSave(_sealed(said)),
        ),
        force=True,
      )

  def restore(self, step: int, abstract: Any) -> Any:
    """Returns the saved state, placed as the abstract state's shardings say.

    Raises:
      DamagedError: the checkpoint can't be read, or isn't what was saved.
      InputError: it is of another shape.
    """
    items = _restore(
      self._manager,
      step,
      abstract.params,
      "use the config it was trained with, or --fresh",
      opt_state=ocp.args.StandardRestore(abstract.opt_state),
    )
    where = self._folder / "checkpoints" / str(step)
    leaves = {k: items[k] for k in ("params", "opt_state")}
    said = _read_meta(where)
    _check(leaves, said, where)
    if said.get("step") != step:
      raise _damaged(where, "it says that it is of another step")
    # A save of a run that didn't count what it skipped, or how, has none.
    counts = itertools.chain(
      [step], said.get("skipped", []), itertools.repeat(0)
    )
    numbers = jax.tree.map(
      lambda x: distributed.put(
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
    """Removes the saves behind a step, so that it is the latest."""
    for later in self._manager.all_steps():
      if later > step:
        self._manager.delete(later)

  def wait(self) -> None:
    """Returns when all is saved; raises as `save` does where it isn't."""
    with self._writing():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Ends what runs in the background; whether all is saved, `wait` says.

    A run that ends for another reason is to say that one.
    """
    with contextlib.suppress(Exception):
      self._manager.close()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """Makes one line of a write that failed, whichever way orbax says it."""
    try:
      yield
    except Exception as e:  # orbax's own, tensorstore's, or the system's
      said = " ".join(str(x) for x in (e, e.__cause__, e.__context__))
      full = any(words in said for words in _DISK_FULL)
      if not full and not isinstance(e, OSError | ValueError):
        raise
      code = re.search(r"os_error_code='(\d+)'", said)
      reason = os.strerror(int(code[1])) if code else _reason(e)
      kind = errors.DiskFullError if full else errors.InputError
      whole = saved_steps(self._folder)
      raise kind(
        f"{self._folder / 'checkpoints'}: can't be written:"
        f" {'the disk is full' if full else reason};"
        + (f" step {whole[-1]} is saved;" if whole else "")
        + f" {'make room' if full else 'mend that'}, and give the same command"
        " again"
      ) from None


_DISK_FULL = ("RESOURCE_EXHAUSTED", "No space left", "Disk quota exceeded")


@dataclasses.dataclass(frozen=True)
class _Kept:
  """Which saves orbax leaves there: the last few, and the best of all."""

  last: int
  best_of: Callable[[Sequence[int]], int | None]

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> Sequence[bool]:
    del context
    steps = [x.step for x in checkpoints]
    kept = {*steps[-self.last :], self.best_of(steps)}
    return [step in kept for step in steps]


def save_params(folder: pathlib.Path, params: Any) -> None:
  """Saves parameters alone, as step 0: a model that no run of ours trained."""
  manager = ocp.CheckpointManager(
    (pathlib.Path(folder) / "checkpoints").absolute(),
    item_names=("params", "meta"),
  )
  try:
    manager.save(
      0,
      args=ocp.args.Composite(
        params=ocp.args.StandardSave(params),
        meta=ocp.args.JsonSave(
          _sealed(
            dict(step=0, fingerprints=fingerprints.of(dict(params=params)))
          )
        ),
      ),
    )
    manager.wait_until_finished()
  finally:
    manager.close()


def load_params(
  folder: pathlib.Path,
  description: Description | None = None,
  *,
  step: int | None = None,
) -> Any:
  """Returns the parameters alone, on the default device.

  step: a saved step; the latest by default.

  Raises:
    DamagedError: it isn't what was saved.
    InputError: there is no checkpoint, or it isn't of the described shape.
  """
  folder = pathlib.Path(folder)
  description = description or read_description(folder)
  heads = dict.fromkeys((*POLICIES, "implicit"), ("lm",))
  heads |= dict(prm=("step",), orm=("outcome",))
  if description.program not in heads:
    raise errors.InputError(
      f"{folder / DESCRIPTION}: program={description.program!r}: expected one"
      f" of {', '.join(heads)}"
    )
  saved = saved_steps(folder)
  if not saved:
    raise errors.InputError(f"{folder}: no checkpoint was saved there yet")
  if step is not None and step not in saved:
    raise errors.InputError(
      f"{folder}: no checkpoint of step {step}; it has"
      f" {', '.join(map(str, saved))}"
    )
  abstract = jax.eval_shape(
    lambda key: meta.unbox(
      transformer.init(key, description.model, heads[description.program])
    ),
    jax.random.key(0),
  )
  if description.program == "implicit":
    abstract = {**abstract, REFERENCE: abstract}
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), abstract
  )
  manager = ocp.CheckpointManager(
    (folder / "checkpoints").absolute(),
    options=ocp.CheckpointManagerOptions(read_only=True),
    item_names=("params", "meta"),
  )
  step = saved[-1] if step is None else step
  where = folder / "checkpoints" / str(step)
  # Parameters alone are enough; but who has the fingerprints looks at them.
  known = (where / "meta").exists()
  try:
    found = _restore(
      manager,
      step,
      target,
      f"{DESCRIPTION} describes another model",
      partly=description.program == "rl",
    )
    if known:
      _check(dict(params=found["params"]), _read_meta(where), where)
  except errors.DamagedError as e:
    raise errors.DamagedError(
      f"{e}; remove it to use the save before it"
    ) from None
  finally:
    manager.close()
  return found["params"]


def _sealed(said: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a save says about itself, with a digest of that."""
  text = json.dumps(said, sort_keys=True)
  return dict(said, digest=hashlib.sha256(text.encode()).hexdigest())


def _read_meta(where: Any) -> dict[str, Any]:
  """Returns what a save says about itself.

  Raises:
    DamagedError: it can't be read, or isn't what was said.
  """
  try:
    said = dict(ocp.JsonCheckpointHandler().restore(where / "meta"))
  except Exception as e:  # whatever the file system or the text gives rise to
    raise _damaged(where, _reason(e)) from None
  digest = said.pop("digest", None)
  # A save of a version that wrote no digest has none.
  if digest is not None and digest != _sealed(said)["digest"]:
    raise _damaged(where, "meta isn't what was saved")
  return said


def _check(leaves: Mapping[str, Any], meta_: Any, where: object) -> None:
  """Raises DamagedError where leaves aren't what was saved.

  Saves of a version that had no fingerprints yet go unchecked.
  """
  said = meta_.get("fingerprints")
  if said is None:
    return
  name = fingerprints.difference(said, fingerprints.of(leaves))
  if name is not None:
    raise _damaged(where, f"{name} isn't what was saved")


def fingerprint(folder: pathlib.Path, params: Any) -> str:
  """Returns "sha256:" and the digest of a model: description and parameters.

  It goes through the description as it is saved (in the order of its names)
  and then, in the order of their paths, each parameter's path, type, shape and
  little-endian bytes. So it is the same on every machine and mesh, and another
  one for any other weight, step, reading or tokenizer.
  """
  read_description(folder)  # refuses what isn't one
  record = json.loads((pathlib.Path(folder) / DESCRIPTION).read_bytes())
  digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
  leaves = {
    jax.tree_util.keystr(path, simple=True, separator="/"): x
    for path, x in jax.tree_util.tree_flatten_with_path(params)[0]
  }
  for name, x in sorted(leaves.items()):
    array = np.ascontiguousarray(x)
    if sys.byteorder != "little":
      array = array.byteswap()
    digest.update(f"\n{name} {array.dtype} {np.shape(x)}\n".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
  return f"sha256:{digest.hexdigest()}"


def _restore(
  manager: ocp.CheckpointManager,
  step: int,
  params: Any,
  mend: str,
  *,
  partly: bool = False,
  **items,
) -> Any:
  """Returns the saved items, `params` among them.

  partly: there may be further parameters, which are left there.

  Raises:
    DamagedError: they can't be read.
    InputError: they are of another shape.
  """
  where = manager.directory / str(step)
  try:
    # orbax finds a wrong shape too, but pours tracebacks of its threads.
    saved = ocp.StandardCheckpointHandler().metadata(
      manager.directory / str(step) / "params"
    )
    tree = saved.tree
    if partly:
      tree = {k: v for k, v in tree.items() if k in params}
    other = _difference(tree, params)
    if other is None and partly:
      found = ocp.PyTreeCheckpointHandler().restore(
        manager.directory / str(step) / "params",
        args=ocp.args.PyTreeRestore(
          params,
          ocp.checkpoint_utils.construct_restore_args(params),
          partial_restore=True,
        ),
      )
      return dict(params=found)
    if other is None:
      restore = ocp.args.StandardRestore(params)
      return manager.restore(
        step, args=ocp.args.Composite(params=restore, **items)
      )
  except Exception as e:  # orbax raises whatever it meets, and bare ones too
    raise _damaged(where, _reason(e)) from None
  raise errors.InputError(f"{where}: doesn't fit: {other}; {mend}")


def _difference(saved: Any, wanted: Any) -> str | None:
  """Returns the first parameter that differs in name or shape, in words."""
  shapes = [
    {
      jax.tree_util.keystr(path, simple=True, separator="/"): tuple(x.shape)
      for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    for tree in (saved, wanted)
  ]
  for name in sorted(shapes[0] | shapes[1]):
    there, here = (x.get(name, "absent") for x in shapes)
    if there != here:
      return f"{name} is {there} in it and {here} in this model"
  return None


def _damaged(where: object, reason: str) -> errors.DamagedError:
  return errors.DamagedError(f"{where}: damaged ({reason})")


def _reason(error: Exception) -> str:
  """Returns what an error says, as the beginning of one line."""
  said = " ".join(str(error).split()) or type(error).__name__
  return said if len(said) <= 160 else said[:157] + "..."
