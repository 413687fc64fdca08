"""A run's update, compiled for devices and read: laws on simulated ones."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import plan_tiny
import pytest

from prm_jax import errors
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import plan_tables as plan_tables
from prm_jax.plan import topologies
from prm_jax.training import trainable

CHIP = dataclasses.replace(topologies.CHIPS["v5e"], memory=1 << 30)
EIGHT = topologies.Topology("v5e:2x4", CHIP, (2, 4))
VOCABULARY, T = plan_tiny.VOCABULARY, plan_tiny.T


@functools.cache
def _flops(**changed):
  """Returns what is computed and what the model needs; nothing is compiled."""
  update = plan_tiny.update(**changed)
  mesh = sharding.make_mesh(update.mesh)
  return plan_compile.flops(plan_compile._trace(update, mesh), update, mesh)


def _plan(topology=EIGHT, **changed):
  devices = jax.devices()[: topology.size]
  return plan_compile.of_update(plan_tiny.update(**changed), topology, devices)


@pytest.fixture(scope="module")
def plain():
  return _plan()


def test_what_is_frozen_is_planned_in_the_type_that_it_starts_from():
  mesh = sharding.make_mesh((1, 8, 1))

  def state(**changed):
    update = plan_tiny.update(
      model=dict(lora_rank=2), trainable="lora", **changed
    )
    return plan_compile._trace(update, mesh).in_avals[0][0]

  wide = trainable.types_of(state().params)
  held = trainable.types_of(
    state(types=dict.fromkeys(wide, jnp.bfloat16)).params
  )
  trained = {path for path in held if "lora" in path[-1] or "head" in path[0]}
  assert {held[path].name for path in trained} == {"float32"}
  assert {held[path].name for path in held.keys() - trained} == {"bfloat16"}
  assert {dtype.name for dtype in wide.values()} == {"float32"}


def test_a_plan_says_so_if_it_takes_what_isnt_trained_to_be_float32():
  lora = dict(model=dict(lora_rank=2), trainable="lora")
  (note,) = plan_tiny.update(**lora).notes
  assert "float32, as init_from names no folder" in note
  assert plan_tiny.update(program="implicit").notes == (note,)
  types = {("embed", "table"): jnp.bfloat16}
  assert plan_tiny.update(**lora, types=types).notes == ()
  assert plan_tiny.update().notes == ()


def test_the_notes_of_an_update_are_in_its_plan(plain):
  noted = plan_compile.of_update(
    dataclasses.replace(plan_tiny.update(), notes=("a note",)),
    EIGHT,
    jax.devices(),
  )
  assert [*noted.warnings] == [*plain.warnings, "a note"]


def test_the_models_flops_do_not_depend_on_what_is_recomputed():
  plain = _flops()
  again = _flops.__wrapped__(model=dict(remat="full"))  # a dict has no hash
  assert again[1] == plain[1]
  assert again[0] > plain[0]


def test_the_models_flops_are_those_of_the_formula(plain):
  """6 N, and attention over half of the square."""
  update = plan_tiny.update()
  model = update.model
  width = model.num_layers * model.num_heads * model.head_dim
  per_token = 6 * (model.body_parameters + model.d_model) + 6 * width * T
  assert plain.model_flops == update.batch_size * T * per_token / 8


def test_a_chip_holds_its_share_of_what_one_holds_whole(plain):
  alone = dataclasses.replace(EIGHT, name="v5e:1x1", shape=(1, 1))
  whole = _plan(alone, mesh=(1, 1, 1))
  assert whole.sent.calls == {}
  assert whole.hardware_flops == 8 * plain.hardware_flops
  # Norms and counters are on every chip.
  assert plain.arguments < whole.arguments / 7
  # Parameters and both moments of AdamW, in float32.
  assert whole.arguments > 12 * whole.parameters


def test_every_layers_kernels_are_gathered_and_the_table_is_not(plain):
  """A table's gradient would be summed over all chips, too."""
  model = plan_tiny.update().model
  table = VOCABULARY * model.d_model * 4
  # Twice: for the forward pass and the backward pass.
  kernels = 2 * model.body_parameters * 4
  assert kernels <= plain.sent.data["all-gather"] < kernels + table
  assert plain.sent.data["all-reduce"] < model.body_parameters * 4 + table


def test_microbatches_take_turns_at_the_same_work():
  assert _flops(microbatches=2) == _flops()


def test_more_than_the_memory_does_not_fit(plain):
  assert plain.fits
  small = dataclasses.replace(plain, memory=plain.peak - 1)
  assert not small.fits
  assert "DOES NOT FIT" in plan_tables.table(small)
  refused = dataclasses.replace(plain, peak=None, refused="needs 3 TiB")
  assert not refused.fits
  assert "needs 3 TiB" in plan_tables.table(refused)


@pytest.mark.parametrize(
  "changed",
  [dict(mesh=(1, 3, 1)), dict(rows=12), dict(rows=16, microbatches=4)],
)
def test_what_cannot_be_split_so_is_refused(changed):
  with pytest.raises(errors.InputError):
    _plan(**changed)


@pytest.mark.parametrize("program", ["sft", "orm", "implicit"])
def test_every_programs_update_is_traced(program):
  computed, needed = _flops(program=program)
  assert computed > needed > 0


def test_an_update_on_pairs_is_traced():
  assert _flops(
    program="orm", loss="bradley_terry", outcome_target="last_step"
  ) == _flops(program="orm")


def test_the_compilers_words_for_too_much_memory_become_one_line():
  said = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required"
    " for HLO temporaries (512.00G) exceeds available HBM (15.75G).\nMore."
  )
  assert plan_compile.refusal(said) == "the compiler needs 512.00 GiB"


def test_slices_thinner_than_a_tile_are_warned_of():
  model = model_config.ModelConfig(
    vocab_size=8,
    d_model=64,
    num_layers=1,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    d_ff=64,
  )
  found = plan_compile._tile_warnings(model, "tpu", 8)
  assert "d_model=64 over fsdp=8" in found[0]
  assert not plan_compile._tile_warnings(model, "tpu", 4)
  assert not plan_compile._tile_warnings(model, "gpu", 8)


def test_the_update_is_the_one_that_fit_runs():
  """Its donated state, its shardings: the same function makes both."""
  mesh = sharding.make_mesh((1, 8, 1))
  traced = plan_compile._trace(plan_tiny.update(), mesh)
  text = traced.lower().as_text()
  assert "tf.aliasing_output" in text or "jax.buffer_donor" in text
