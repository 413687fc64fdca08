"""Checkpoint folders: weights by orbax, and what is needed to use them.

  FOLDER/model.json        program, model shape, reading, tokenizer
  FOLDER/tokenizer.*       the tokenizer's own file
  FOLDER/checkpoints/STEP  params, opt_state, meta

A training workdir is such a folder, and `sample` and `score` take it as it
is. Parameters are an item of their own, so that using a model never reads the
optimizer's state.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import logging
import pathlib
from typing import Any

from flax.core import meta
import jax
from jax import numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from prm_jax import schema
from prm_jax import tokenizer as tokenizer_lib
from prm_jax.models import config as config_lib
from prm_jax.models import transformer

# orbax reports every save and restore; our own log says what matters.
logging.getLogger("absl").setLevel(logging.ERROR)

FORMAT = 1
DESCRIPTION = "model.json"


@dataclasses.dataclass(frozen=True)
class Description:
  """What a checkpoint folder says about its model.

  program: sft, prm or orm. reading: the fields of encode.Reading. tokenizer:
  what tokenizer.load takes. aggregate: how its step scores become one.
  """

  program: str
  model: config_lib.ModelConfig
  reading: Mapping[str, Any]
  tokenizer: Mapping[str, Any]
  aggregate: str = "product"


def write_description(folder: pathlib.Path, description: Description) -> None:
  record = dataclasses.asdict(description) | dict(format=FORMAT)
  schema.write_json(folder / DESCRIPTION, record)


def read_description(folder: pathlib.Path) -> Description:
  """Returns a folder's description.

  Raises:
    InputError: this isn't a checkpoint folder, or one of a later format.
  """
  path = pathlib.Path(folder) / DESCRIPTION
  try:
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.pop("format") != FORMAT:
      raise schema.InputError(f"{path}: a newer format; update prm_jax")
    record["model"] = config_lib.ModelConfig(**record["model"])
    return Description(**record)
  except FileNotFoundError:
    raise schema.InputError(
      f"{folder}: not a checkpoint folder: it has no {DESCRIPTION};"
      " give the --workdir of a training run"
    ) from None
  except OSError as e:
    raise schema.InputError(f"{path}: can't be read: {e.strerror}") from None
  except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as e:
    raise schema.InputError(f"{path}: damaged: {e!r}") from None


def read_tokenizer(
  folder: pathlib.Path, description: Description
) -> tokenizer_lib.Tokenizer:
  return tokenizer_lib.load(pathlib.Path(folder), description.tokenizer)


class Checkpoints:
  """The saved steps of one run: async saves, keep-last and keep-best."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep_last: int = 2,
    best_metric: str | None = None,
    best_mode: str = "min",
  ):
    """best_metric: the evaluation metric of the one best step to keep."""
    keep: list[Any] = [checkpoint_managers.LatestN(keep_last)]
    best: dict[str, Any] = {}
    if best_metric is not None:

      def value(metrics: Any) -> float:
        return metrics[best_metric]

      # Without best_fn orbax doesn't write the metrics at all.
      best = dict(best_fn=value, best_mode=best_mode)
      keep.append(
        checkpoint_managers.BestN(
          get_metric_fn=value, reverse=best_mode == "min", n=1
        )
      )
    self._manager = ocp.CheckpointManager(
      (pathlib.Path(folder) / "checkpoints").absolute(),
      options=ocp.CheckpointManagerOptions(
        preservation_policy=checkpoint_managers.AnyPreservationPolicy(keep),
        cleanup_tmp_directories=True,
        **best,
      ),
      item_names=("params", "opt_state", "meta"),
    )

  def latest(self) -> int | None:
    return self._manager.latest_step()

  def best(self) -> int | None:
    return self._manager.best_step()

  def save(
    self, state: Any, metrics: Mapping[str, float] | None = None
  ) -> None:
    """Starts to save the state under its step; training may go on."""
    step = int(state.step)
    self._manager.save(
      step,
      args=ocp.args.Composite(
        params=ocp.args.StandardSave(state.params),
        opt_state=ocp.args.StandardSave(state.opt_state),
        meta=ocp.args.JsonSave(dict(step=step)),
      ),
      metrics=metrics,
      force=True,
    )

  def restore(self, step: int, abstract: Any) -> Any:
    """Returns the saved state, placed as the abstract state's shardings say.

    Raises:
      InputError: the checkpoint can't be read or is of another shape.
    """
    try:
      items = self._manager.restore(
        step,
        args=ocp.args.Composite(
          params=ocp.args.StandardRestore(abstract.params),
          opt_state=ocp.args.StandardRestore(abstract.opt_state),
          meta=ocp.args.JsonRestore(),
        ),
      )
    except (ValueError, KeyError, FileNotFoundError) as e:
      reason = str(e).strip().splitlines()[0]
      raise schema.InputError(
        f"{self._manager.directory}/{step}: doesn't fit this run: {reason};"
        " use the config it was trained with, or --fresh"
      ) from None
    return abstract.replace(
      step=jax.device_put(
        jnp.asarray(items["meta"]["step"], jnp.int32), abstract.step.sharding
      ),
      params=items["params"],
      opt_state=items["opt_state"],
    )

  def wait(self) -> None:
    self._manager.wait_until_finished()

  def close(self) -> None:
    self._manager.close()


def load_params(
  folder: pathlib.Path,
  description: Description | None = None,
  *,
  step: int | None = None,
) -> Any:
  """Returns the parameters alone, on the default device.

  step: a saved step; the latest by default.

  Raises:
    InputError: there is no checkpoint, or it isn't of the described shape.
  """
  folder = pathlib.Path(folder)
  description = description or read_description(folder)
  root = folder / "checkpoints"
  if not root.is_dir():
    raise schema.InputError(f"{folder}: no checkpoint was saved there yet")
  heads = dict(sft=("lm",), prm=("step",), orm=("outcome",))
  abstract = jax.eval_shape(
    lambda key: meta.unbox(
      transformer.init(key, description.model, heads[description.program])
    ),
    jax.random.key(0),
  )
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), abstract
  )
  manager = ocp.CheckpointManager(
    root.absolute(),
    options=ocp.CheckpointManagerOptions(read_only=True),
    item_names=("params",),
  )
  try:
    step = manager.latest_step() if step is None else step
    if step is None:
      raise schema.InputError(f"{folder}: no checkpoint was saved there yet")
    restored = manager.restore(
      step,
      args=ocp.args.Composite(params=ocp.args.StandardRestore(target)),
    )
  except (ValueError, KeyError, FileNotFoundError) as e:
    if isinstance(e, schema.InputError):
      raise
    reason = str(e).strip().splitlines()[0]
    raise schema.InputError(
      f"{root}: doesn't hold the model of {DESCRIPTION}: {reason}"
    ) from None
  finally:
    manager.close()
  return restored["params"]
