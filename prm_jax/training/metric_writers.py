"""Where metrics go besides metrics.jsonl: TensorBoard, W&B, MLflow.

Each is a Writer. metrics.jsonl is the record of a run, and the others are
copies: one that fails in mid-run is left out from there on, and the run goes
on. Their packages are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import importlib.util
import logging
import os
import pathlib
import re
import sys
import time
from typing import Any, Protocol, runtime_checkable

from prm_jax import errors
from prm_jax.runtime import files

_logger = logging.getLogger(__name__)

# The runs of a workdir at each tracker, by its name.
RUNS = "trackers.json"


@runtime_checkable
class Writer(Protocol):
  """Takes the metrics of a run."""

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Takes finite metrics by their names, such as train/loss_nats."""
    ...

  def close(self, *, failed: bool) -> None:
    """Ends the run there; failed says that it ended with an error."""
    ...


@dataclasses.dataclass(frozen=True)
class Run:
  """What a tracker is told of a run.

  Args:
    name: The name of the run: that of its workdir.
    config: Its config.
    identity: Its identity at the tracker, if it resumes; None for a new one.
  """

  name: str
  config: Mapping[str, Any]
  identity: str | None


class TensorBoard:
  """TensorBoard files in a folder."""

  def __init__(self, folder: pathlib.Path):
    # It looks for torch, which takes a second to import and isn't needed for
    # numbers, and for google.cloud.
    with _not_imported("torch"):
      import tensorboardX

    self._board = tensorboardX.SummaryWriter(str(folder))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._board.add_scalar(name, value, step)

  def close(self, *, failed: bool) -> None:
    del failed
    self._board.close()


@contextlib.contextmanager
def _not_imported(package: str) -> Iterator[None]:
  """Lets what is imported meanwhile find that a package isn't installed."""
  if package in sys.modules:
    yield
    return
  sys.modules[package] = None  # type: ignore[assignment]
  try:
    yield
  finally:
    del sys.modules[package]


class WeightsAndBiases:
  """A run at Weights & Biases; WANDB_* in the environment say where."""

  def __init__(self, run: Run):
    import wandb

    self._run = wandb.init(
      project=None if os.environ.get("WANDB_PROJECT") else "prm_jax",
      name=run.name,
      config=dict(run.config),
      id=run.identity,
      resume="allow",
      settings=wandb.Settings(console="off"),
    )
    # A resumed run makes some steps again, which its own count would refuse.
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")
    self.identity = str(self._run.id)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log({**values, "step": step})

  def close(self, *, failed: bool) -> None:
    self._run.finish(exit_code=int(failed))


class MLflow:
  """A run of MLflow; MLFLOW_* in the environment say where."""

  def __init__(self, run: Run):
    import mlflow
    from mlflow import entities

    self._entities = entities
    self._client = client = mlflow.MlflowClient()
    if run.identity is not None:
      self.identity = run.identity
      client.update_run(self.identity, status="RUNNING")
      return
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "prm_jax")
    known = client.get_experiment_by_name(name)
    experiment = (
      known.experiment_id if known else client.create_experiment(name)
    )
    made = client.create_run(experiment, run_name=run.name)
    self.identity = str(made.info.run_id)
    params = [
      entities.Param(_mlflow_name(key), str(value)[:500])
      for key, value in _flat(run.config)
    ]
    for i in range(0, len(params), 100):  # the most of one call
      client.log_batch(self.identity, params=params[i : i + 100])

  def write(self, step: int, values: Mapping[str, float]) -> None:
    now_ms = int(time.time() * 1000)
    metrics = [
      self._entities.Metric(_mlflow_name(name), value, now_ms, step)
      for name, value in values.items()
    ]
    self._client.log_batch(self.identity, metrics=metrics)

  def close(self, *, failed: bool) -> None:
    status = "FAILED" if failed else "FINISHED"
    self._client.set_terminated(self.identity, status)


# The value of fit.trackers -> its package, and what makes its writer.
_TRACKERS: Mapping[str, tuple[str, Callable[[Run], Any]]] = dict(
  wandb=("wandb", WeightsAndBiases), mlflow=("mlflow", MLflow)
)
TRACKERS = tuple(_TRACKERS)


def check_installed(names: Sequence[str]) -> None:
  """Refuses trackers whose packages aren't installed.

  Args:
    names: Some of TRACKERS.

  Raises:
    InputError: One isn't installed.
  """
  for name in names:
    package, _ = _TRACKERS[name]
    spec = importlib.util.find_spec(package)
    # A folder of that name, such as W&B's own ./wandb, has no origin.
    if spec is None or spec.origin is None:
      raise errors.InputError(
        f"fit.trackers: {name} isn't installed; pip install {package}, or leave"
        " it out"
      )


def trackers(names: Sequence[str], workdir: pathlib.Path) -> list[Writer]:
  """Returns the writers of a run's trackers, and notes their runs.

  A tracker that the run had when it was begun is left out with a warning if it
  can't be opened, because the run may resume where nobody is there.

  Args:
    names: Some of TRACKERS.
    workdir: The run's folder.

  Raises:
    InputError: A new tracker can't be opened.
  """
  known = _optional_json(workdir / RUNS)
  config = _optional_json(workdir / "config.json")
  writers: list[Writer] = []
  for name in names:
    run = Run(workdir.resolve().name, config, known.get(name))
    try:
      writer = _TRACKERS[name][1](run)
    except Exception as e:  # whatever such a package raises
      if name not in known:
        for opened in writers:
          opened.close(failed=True)
        raise errors.InputError(
          f"fit.trackers: {name} can't be opened: {_reason(e)}; set it up, or"
          " leave it out"
        ) from None
      _warn(name, e)
      continue
    known[name] = writer.identity
    writers.append(Guarded(name, writer))
  if writers:
    files.write_json(workdir / RUNS, known)
  return writers


class Guarded:
  """A writer that is left out from its first error on, with a warning."""

  def __init__(self, name: str, writer: Writer):
    self._name = name
    self._writer: Writer | None = writer

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._call(lambda writer: writer.write(step, values))

  def close(self, *, failed: bool) -> None:
    self._call(lambda writer: writer.close(failed=failed))

  def _call(self, function: Callable[[Writer], None]) -> None:
    if self._writer is None:
      return
    try:
      function(self._writer)
    except Exception as e:  # whatever such a package raises
      self._writer = None
      _warn(self._name, e)


def _warn(name: str, error: Exception) -> None:
  _logger.warning(
    f"WARNING: fit.trackers: {name} gets no more metrics: {_reason(error)};"
    " metrics.jsonl has all of them"
  )


def _reason(error: Exception) -> str:
  lines = str(error).strip().splitlines()
  return (lines[0] if lines else type(error).__name__)[:200]


def _mlflow_name(name: str) -> str:
  """Returns a name with the characters that MLflow takes."""
  return re.sub(r"[^\w\-./ ]", "_", name)


def _flat(
  config: Mapping[str, Any], start: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields the fields of a config by their dotted names."""
  for name, value in config.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{start}{name}.")
    else:
      yield f"{start}{name}", value


def _optional_json(path: pathlib.Path) -> dict[str, Any]:
  return files.read_json(path) if path.is_file() else {}
