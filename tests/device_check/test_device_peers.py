"""What is timed beside torch is the same model, also on a CPU."""

import dataclasses
import sys
import types

import pytest

from prm_jax.device_check import check_results
from prm_jax.device_check import check_worker
from prm_jax.device_check import peers
from prm_jax.device_check import shapes
from prm_jax.device_check import timing

MODEL = dataclasses.replace(shapes.SHAPES["small"], compute_dtype="float32")


def test_without_a_gpu_nothing_is_compared_and_it_says_so():
  setting = check_results.Setting("quick", "cpu", "cpu", 1)
  for check in peers.checks(setting):
    [found], _ = check_worker.run(check, setting)
    assert (found.status, found.required) == ("not run", False)
    assert "NVIDIA" in found.note


def test_without_torch_or_memory_nothing_is_compared(monkeypatch):
  setting = check_results.Setting("quick", "gpu", "gpu", 1, memory=1000)
  [check, *_] = peers.checks(setting)
  monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
  [found], _ = check_worker.run(check, setting)
  assert (found.status, found.note) == ("not run", "torch isn't installed")
  torch = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_available=lambda: True)
  )
  monkeypatch.setitem(sys.modules, "torch", torch)
  monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: True)
  [found], _ = check_worker.run(check, setting)
  assert "two models of small need" in found.note


@pytest.mark.parity
def test_our_states_are_torchs_and_other_weights_are_noticed(monkeypatch):
  pytest.importorskip("transformers")
  found = peers.forward(MODEL, peers.LITTLE, "cpu")
  assert found.details["difference"] < 1e-5
  assert found.number > 0
  theirs = peers._theirs

  def others(model, params, device, dtype):
    made = theirs(model, params, device, dtype)
    made.model.layers[1].mlp.up_proj.weight.data *= 1.1
    return made

  monkeypatch.setattr(peers, "_theirs", others)
  found = peers.forward(MODEL, peers.LITTLE, "cpu")
  assert found.details["difference"] > 1e-3


@pytest.mark.parity
@pytest.mark.parametrize("run", [peers.update, peers.generate])
def test_updates_and_samples_run_in_turns_with_torchs(run, monkeypatch):
  pytest.importorskip("transformers")
  calls = []
  alternate = timing.alternate

  def spy(runs, rounds):
    calls.append(list(runs))
    return alternate(runs, 1)

  monkeypatch.setattr(timing, "alternate", spy)
  found = run(MODEL, peers.LITTLE, "cpu")
  assert calls == [["ours", "torch"]]
  assert found.number > 0 and found.passed
