"""Checks of the whole model pass here, and fail where something is wrong."""

import dataclasses

from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.checkpoints import manager
from prm_jax.device_check import check_results
from prm_jax.device_check import check_worker
from prm_jax.device_check import machine
from prm_jax.device_check import model_checks
from prm_jax.device_check import training
from prm_jax.device_check import update_checks
from prm_jax.models import attention
from prm_jax.models import sharding
from prm_jax.policy import sampler

ONE = check_results.Setting("quick", "cpu", "cpu", 1)
EIGHT = check_results.Setting("quick", "cpu", "cpu", 8)


def _run(module, name, setting=ONE):
  [check] = [c for c in module.checks(setting) if c.name == name]
  [found], _ = check_worker.run(check, setting)
  return found


@pytest.fixture(autouse=True, scope="module")
def tiny():
  """A model that is compiled in no time, and fewer updates of it."""
  changes = dict(d_model=32, num_layers=1, head_dim=16, d_ff=48)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      model_checks, "SMALL", dataclasses.replace(model_checks.SMALL, **changes)
    )
    patch.setattr(training, "UPDATES", 4)
    _forget()
    yield
  _forget()


def _forget():
  ours = (training._updates, training._batches, training._losses)
  for cache in (model_checks._forward, model_checks.params_of, *ours):
    cache.cache_clear()


@pytest.fixture
def fresh():
  """Nothing that was compiled before the test stays, or after it."""
  _forget()
  yield
  _forget()


@pytest.fixture
def measured_anew():
  """Losses that other tests know aren't taken from there, nor these by them."""
  training._losses.cache_clear()
  yield
  training._losses.cache_clear()


# --- Packed and alone -------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_packed_rows_and_trees_are_alone(layout):
  found = _run(model_checks, f"model.{layout}_is_alone.blocks.float32")
  assert found.status == "pass" and found.number > 0, found


@pytest.mark.parametrize("kind", ["blocks.bfloat16", "reference.float32"])
def test_attention_across_packed_solutions_fails(kind, fresh, monkeypatch):
  """As a kernel that knows no segments does."""
  attend = attention.attend

  def leaks(q, k, v, visible_until, *rest, **how):
    everywhere = jnp.full_like(visible_until, visible_until.shape[1])
    return attend(q, k, v, everywhere, *rest, **how)

  monkeypatch.setattr(attention, "attend", leaks)
  found = _run(model_checks, f"model.packed_is_alone.{kind}")
  assert found.status == "fail"
  assert found.number > 10 * found.limit


def test_scores_here_are_the_cpus_and_another_scale_is_noticed(
  fresh, monkeypatch
):
  name = "model.scores_are_the_cpus.bfloat16"
  assert _run(model_checks, name).status == "pass"
  model_checks._forward.cache_clear()
  attend = attention.attend

  def hotter(q, k, v, *rest, scale, **how):
    factor = 1.5 if q.dtype == jnp.bfloat16 else 1.0
    return attend(factor * q, k, v, *rest, scale=scale, **how)

  monkeypatch.setattr(attention, "attend", hotter)
  assert _run(model_checks, name).status == "fail"


# --- Sampling ---------------------------------------------------------------


def test_greedy_tokens_are_the_likeliest_and_others_are_counted(monkeypatch):
  found = _run(model_checks, "model.greedy_is_argmax")
  assert (found.status, found.number) == ("pass", 0)
  complete = model_checks._complete

  def second_best(sampling):
    rows, prompts, params = complete(sampling)
    first = dataclasses.replace(
      rows[0][0], tokens=(rows[0][0].tokens + 1) % model_checks.SMALL.vocab_size
    )
    return [[first], *rows[1:]], prompts, params

  monkeypatch.setattr(model_checks, "_complete", second_best)
  found = _run(model_checks, "model.greedy_is_argmax")
  assert found.status == "fail" and found.number > 10


def test_other_bits_of_samples_are_noticed(monkeypatch):
  calls = []

  def complete(sampling):
    calls.append(sampling)
    tokens = np.arange(4, dtype=np.int32)
    log_probs = np.full(4, -1.0 - 1e-7 * len(calls), np.float32)
    found = sampler.Completion(tokens, log_probs, "length")
    return [[found, found]], [], None

  monkeypatch.setattr(model_checks, "_complete", complete)
  found = _run(model_checks, "model.same_samples_twice")
  assert (found.status, found.number) == ("fail", 2)


# --- Training ---------------------------------------------------------------


def test_losses_on_eight_devices_are_those_of_one():
  found = _run(training, "training.sharded_is_one_device.tensor", EIGHT)
  assert found.status == "pass" and found.number > 0, found
  assert training.meshes(1) == {}
  assert list(training.meshes(3)) == ["data", "fsdp"]


def test_a_mesh_that_drops_a_row_is_noticed(measured_anew, monkeypatch):
  put = sharding.put_batch

  def dropping(batch, mesh):
    if mesh.size > 1:
      weights = batch.weights.copy()
      weights[-1] = 0
      batch = dataclasses.replace(batch, weights=weights)
    return put(batch, mesh)

  monkeypatch.setattr(sharding, "put_batch", dropping)
  found = _run(training, "training.sharded_is_one_device.tensor", EIGHT)
  assert found.status == "fail"


def test_losses_are_the_cpus_and_without_updates_they_arent(
  measured_anew, monkeypatch
):
  name = "training.losses_are_the_cpus.float32"
  assert _run(training, name).status == "pass"
  updates_of = training._updates

  def idle(dtype, place):
    found = updates_of(dtype, place)
    if idle.calls == 0:  # what is here; the CPU's comes after it
      optimizer = dataclasses.replace(update_checks.OPTIMIZER, peak_lr=0.0)
      found = update_checks.Updates(model_checks.SMALL, 0, optimizer=optimizer)
    idle.calls += 1
    return found

  idle.calls = 0
  monkeypatch.setattr(training, "_updates", idle)
  monkeypatch.setattr(training, "UPDATES", 10)
  losses = training._losses.__wrapped__
  monkeypatch.setattr(training, "_losses", losses)
  assert _run(training, name).status == "fail"


def test_a_resumed_run_has_the_same_bits_and_one_other_bit_fails(monkeypatch):
  name = "training.resumed_is_uninterrupted"
  assert _run(training, name).status == "pass"
  newest = manager.Checkpoints.newest

  def flipped(self, *args):
    state = newest(self, *args)
    kernel = state.params["step_head"]["kernel"]
    kernel = kernel.at[0].set(jnp.nextafter(kernel[0], 2.0))
    head = state.params["step_head"] | dict(kernel=kernel)
    return state.replace(params=state.params | dict(step_head=head))

  monkeypatch.setattr(manager.Checkpoints, "newest", flipped)
  found = _run(training, name)
  assert found.status == "fail" and found.number > 1


# --- Between devices --------------------------------------------------------


@pytest.mark.parametrize("name", machine.COLLECTIVES)
def test_collectives_of_eight_devices_are_numpys(name, monkeypatch):
  monkeypatch.setattr(machine, "_rate", lambda *_: dict(median=1e9))
  assert _run(machine, f"machine.{name}", EIGHT).status == "pass"
  right = machine.COLLECTIVES[name]
  wrong = right._replace(
    function=lambda x, n: right.function(x, n).at[-1].add(1)
  )
  monkeypatch.setitem(machine.COLLECTIVES, name, wrong)
  found = _run(machine, f"machine.{name}", EIGHT)
  assert found.status == "fail" and "wrong numbers" in found.note


def test_a_device_that_adds_up_wrongly_fails_and_is_named(monkeypatch):
  assert _run(machine, "machine.devices", EIGHT).status == "pass"
  monkeypatch.setattr(machine, "wrong_devices", lambda: ["TFRT_CPU_3"])
  found = _run(machine, "machine.devices", EIGHT)
  assert found.status == "fail" and "TFRT_CPU_3" in found.note
