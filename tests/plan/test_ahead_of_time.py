"""Updates compiled for chips that aren't here; `make plan-check` runs these.

Two layers of published widths: what the compilers do to a layer doesn't
depend on how many there are.
"""

import importlib.util

import pytest

from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import runs
from prm_jax.plan import topologies
from prm_jax.runtime import verbs
from prm_jax.training import train_run_config

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
CONFIG = "experiments/prm800k_qwen2_5_math_7b.py"
VOCABULARY = 152_064


def _needs(package):
  missing = importlib.util.find_spec(package) is None
  return pytest.mark.skipif(missing, reason=f"{package} isn't installed")


tpu, cuda = _needs("libtpu"), _needs("jax_cuda12_plugin")


def _run(*overrides):
  fields = ["model.num_layers=2", *overrides]
  config = train_run_config.supervised(verbs.Config(CONFIG, fields))
  return train_run_config.from_config(config)


def _plan(topology, *overrides):
  found = topologies.parse(topology)
  return plan_compile.of_update(
    runs.update_of(_run(*overrides), VOCABULARY),
    found,
    topologies.devices(found),
  )


@pytest.fixture(scope="module")
def sixteen():
  return _plan("v5e:4x4")


@tpu
def test_two_layers_of_7b_fit_sixteen_chips(sixteen):
  assert sixteen.fits
  # Parameters and moments in float32, an even share of each.
  share = 12 * sixteen.parameters / 16
  assert share < sixteen.arguments < 1.01 * share


@tpu
def test_kernels_are_gathered_whole_and_not_passed_on_in_turns(sixteen):
  """Trap: windowed einsums, many small sends, unless they are turned off.

  Left on, the update has collective-permutes, and takes minutes to compile.
  """
  assert "collective-permute" not in sixteen.sent.calls
  layers = _body(sixteen)
  assert 2 * layers * 2 <= sixteen.sent.data["all-gather"] < 2.2 * layers * 2


@tpu
def test_the_table_of_tokens_is_not_sent(sixteen):
  """Trap: a look-up that gathers it, and a gradient that is summed whole."""
  table = VOCABULARY * 3584
  assert sixteen.sent.data["all-reduce"] < 1.2 * _body(sixteen) * 2 + table


@tpu
def test_what_does_not_fit_is_refused_by_the_compiler_in_words():
  plan = _plan(
    "v5e:4x4",
    "model.attention=reference",
    "model.remat=none",
    "packing.batch_size=512",
  )
  assert not plan.fits
  assert "the compiler needs" in plan.refused


@tpu
def test_a_mesh_may_split_the_axes_of_a_torus():
  """16 x 16 of 4 x 8 x 8 chips: no product of whole axes is 16 twice."""
  devices = topologies.devices(topologies.parse("v5p:4x8x8"))
  mesh = sharding.make_mesh((16, 16, 1), devices)
  assert len({x.id for x in mesh.devices.flat}) == 256


@tpu
def test_the_ratio_of_flops_is_that_of_one_more_forward_pass(sixteen):
  """All but the down-projections are computed twice."""
  ratio = sixteen.hardware_flops / sixteen.model_flops
  assert 1.2 < ratio < 4 / 3


@cuda
def test_one_h200_holds_two_layers_of_7b():
  plan = _plan("h200:1", "packing.batch_size=1")
  assert plan.fits
  assert plan.sent.calls == {}
  assert plan.arguments > 12 * plan.parameters


@cuda
def test_eight_h200s_hold_an_eighth_each():
  plan = _plan("h200:8", "packing.batch_size=8")
  assert plan.fits
  share = 12 * plan.parameters / 8
  assert share < plan.arguments < 1.01 * share
  assert plan.sent.data["all-gather"] > 0


def _body(plan):
  run = _run()
  return model_config.ModelConfig(
    vocab_size=VOCABULARY, **run.model
  ).body_parameters
