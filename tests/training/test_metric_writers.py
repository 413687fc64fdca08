"""Metrics are copied to trackers, whose failures never end a run.

The packages here are stand-ins that note what they are given.
"""

import importlib.machinery
import json
import logging
import struct
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from prm_jax import errors
from prm_jax.training import loop
from prm_jax.training import metric_writers
from prm_jax.training import metrics_log

CONFIG = dict(seed=3, fit=dict(steps=9, sizes=[1, 2]))


def _module(monkeypatch, name, **attributes):
  module = types.ModuleType(name)
  module.__spec__ = importlib.machinery.ModuleSpec(name, None)
  vars(module).update(attributes)
  monkeypatch.setitem(sys.modules, name, module)
  return module


@pytest.fixture
def wandb(monkeypatch):
  run = mock.Mock(id="abc")
  return _module(
    monkeypatch, "wandb", init=mock.Mock(return_value=run), Settings=dict
  )


@pytest.fixture
def mlflow(monkeypatch):
  client = mock.Mock()
  client.get_experiment_by_name.return_value = None
  client.create_experiment.return_value = "7"
  client.create_run.return_value.info.run_id = "r1"
  entities = types.SimpleNamespace(
    Param=lambda *x: ("param", *x), Metric=lambda *x: ("metric", *x)
  )
  return _module(
    monkeypatch, "mlflow", MlflowClient=lambda: client, entities=entities
  )


def _log(workdir, *trackers, first=0, tensorboard=False):
  workdir.mkdir(exist_ok=True)
  (workdir / "config.json").write_text(json.dumps(CONFIG))
  return metrics_log.Log(
    *(workdir,),
    first=first,
    steps=9,
    tensorboard=tensorboard,
    name="run",
    shown=(),
    trackers=trackers,
  )


VALUES = dict(loss_nats=0.5, accuracy=float("nan"))


def _scalars(folder):
  """Returns (name, step, value) of each scalar in TensorBoard's files."""
  (path,) = folder.iterdir()
  data, scalars = path.read_bytes(), []
  while data:
    (length,) = struct.unpack("<Q", data[:8])
    event = event_pb2.Event.FromString(data[12 : 12 + length])
    for entry in event.summary.value:
      scalars.append((entry.tag, event.step, entry.simple_value))
    data = data[16 + length :]
  return scalars


def test_tensorboard_gets_finite_metrics_without_a_warning(tmp_path, caplog):
  values = VALUES | dict(kl_nats=float("inf"), norm=np.float32(2))
  with _log(tmp_path, tensorboard=True) as log:
    log.write(1, "train", values)
  assert _scalars(tmp_path / "tensorboard") == [
    ("train/loss_nats", 1, 0.5),
    ("train/norm", 1, 2.0),
  ]
  assert not caplog.messages
  record = json.loads((tmp_path / "metrics.jsonl").read_text())
  assert record["accuracy"] is None and record["kl_nats"] is None


def test_wandb_gets_config_and_finite_metrics_and_resumes_its_run(
  wandb, tmp_path
):
  with _log(tmp_path / "mine", "wandb") as log:
    log.write(1, "train", VALUES)
    log.write(1, "eval", {"prm800k/accuracy": 0.25})
  (told,) = wandb.init.call_args_list
  assert told.kwargs["config"] == CONFIG and told.kwargs["name"] == "mine"
  assert told.kwargs["id"] is None
  run = wandb.init.return_value
  assert [x.args[0] for x in run.log.call_args_list] == [
    {"train/loss_nats": 0.5, "step": 1},
    {"eval/prm800k/accuracy": 0.25, "step": 1},
  ]
  run.finish.assert_called_once_with(exit_code=0)
  with pytest.raises(RuntimeError), _log(tmp_path / "mine", "wandb", first=1):
    raise RuntimeError
  assert wandb.init.call_args.kwargs["id"] == "abc"
  run.finish.assert_called_with(exit_code=1)


def test_mlflow_gets_flat_params_once_and_metrics_by_step(mlflow, tmp_path):
  with _log(tmp_path, "mlflow") as log:
    log.write(3, "train", VALUES | {"gsm8k.#2/loss_nats": 1.0})
  client = mlflow.MlflowClient()
  params, metrics = client.log_batch.call_args_list
  assert params.kwargs["params"] == [
    ("param", "seed", "3"),
    ("param", "fit.steps", "9"),
    ("param", "fit.sizes", "[1, 2]"),
  ]
  sent = [(x[1], x[2], x[4]) for x in metrics.kwargs["metrics"]]
  assert sent == [
    ("train/loss_nats", 0.5, 3),
    ("train/gsm8k._2/loss_nats", 1.0, 3),
  ]
  client.set_terminated.assert_called_once_with("r1", "FINISHED")
  with _log(tmp_path, "mlflow", first=3) as log:
    log.write(4, "train", VALUES)
  assert client.create_run.call_count == 1
  client.update_run.assert_called_once_with("r1", status="RUNNING")
  assert client.log_batch.call_args.args == ("r1",)


def test_a_tracker_that_fails_is_left_out_and_the_other_goes_on(
  wandb, mlflow, tmp_path, caplog
):
  run = wandb.init.return_value
  run.log.side_effect = [None, OSError("no network\nand more")]
  with (
    caplog.at_level(logging.WARNING),
    _log(tmp_path, "wandb", "mlflow") as log,
  ):
    for step in (1, 2, 3):
      log.write(step, "train", VALUES)
  (said,) = [x for x in caplog.messages if "no network" in x]
  assert "wandb gets no more metrics" in said and "\n" not in said
  assert run.log.call_count == 2 and not run.finish.called
  client = mlflow.MlflowClient()
  assert client.log_batch.call_count == 4
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_what_cant_be_opened_is_refused_once_and_then_left_out(
  wandb, mlflow, tmp_path, caplog
):
  run, wandb.init.side_effect = (
    wandb.init.return_value,
    OSError("not logged in"),
  )
  with pytest.raises(errors.InputError, match="wandb can't be opened: not log"):
    _log(tmp_path, "mlflow", "wandb")
  client = mlflow.MlflowClient()
  client.set_terminated.assert_called_once_with("r1", "FAILED")
  wandb.init.side_effect = None
  with _log(tmp_path, "wandb"):
    pass
  wandb.init.side_effect = OSError("not logged in")
  with caplog.at_level(logging.WARNING), _log(tmp_path, "wandb") as log:
    log.write(1, "train", VALUES)
  assert any("not logged in" in x for x in caplog.messages)
  assert not run.log.called


def test_a_tracker_that_isnt_known_or_installed_is_refused(monkeypatch):
  with pytest.raises(errors.InputError, match="expected one of wandb, mlflow"):
    loop.FitConfig(steps=1, trackers=("wandb", "comet"))
  monkeypatch.setattr(
    metric_writers.importlib.util, "find_spec", lambda name: None
  )
  with pytest.raises(errors.InputError, match="pip install mlflow"):
    metric_writers.check_installed(["mlflow"])
  # W&B keeps its files in a folder of its package's name.
  folder = importlib.machinery.ModuleSpec("wandb", None, is_package=True)
  monkeypatch.setattr(
    metric_writers.importlib.util, "find_spec", lambda name: folder
  )
  with pytest.raises(errors.InputError, match="pip install wandb"):
    metric_writers.check_installed(["wandb"])


_BOARD = """
import sys
class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == "torch":
      raise SystemExit("torch was looked for")
sys.meta_path.insert(0, Finder())
from prm_jax.training import metric_writers
board = metric_writers.TensorBoard(sys.argv[1])
board.write(3, {"train/loss_nats": 0.5})
board.close(failed=False)
assert "torch" not in sys.modules
"""


def test_tensorboard_files_are_written_without_torch(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", _BOARD, str(tmp_path)],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert _scalars(tmp_path) == [("train/loss_nats", 3, 0.5)]
