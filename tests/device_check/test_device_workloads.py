"""Rows, shapes and FLOPs are what they say they are."""

import dataclasses
import importlib
import itertools
import json
import pathlib
import subprocess
import sys
import tomllib

from flax import traverse_util
import jax
from jax import numpy as jnp
import numpy as np
import pytest

import prm_jax
from prm_jax.device_check import attention_checks as attention_lib
from prm_jax.device_check import check_results
from prm_jax.device_check import chip_limits
from prm_jax.device_check import shapes
from prm_jax.device_check import speed
from prm_jax.device_check import suite
from prm_jax.device_check import update_checks
from prm_jax.device_check import workloads
from prm_jax.models import lora
from prm_jax.models import model_config as model_config
from prm_jax.plan import flops
from prm_jax.runtime import config_files

ROOT = pathlib.Path(prm_jax.__file__).parents[1]
GIB = 1 << 30


@pytest.mark.parametrize("name", workloads.FILES)
def test_examples_have_the_lengths_and_shared_prefixes_of_the_file(name):
  given = workloads.examples(name, 50, longest=2048)
  again = workloads.examples(name, 50, longest=2048)
  assert all((a.tokens == b.tokens).all() for a, b in zip(given, again))
  assert max(x.tokens.max() for x in given) < 50
  assert all(x.weights[-1] >= 0 and x.weights.sum() >= 1 for x in given)
  whole = workloads.fill(given, 4, 4096, share_prefixes=False, most=2)
  share_prefixes = workloads.fill(given, 4, 4096, share_prefixes=True, most=2)
  assert [b.tokens.shape for b in whole.batches] == [(4, 4096)] * 2
  # Exact counts of PRM800K, see benchmarks/README.md: 1.2 and some 10 times.
  ratio = share_prefixes.labels_per_row / whole.labels_per_row
  low, high = dict(solutions=(1.15, 1.5), alternatives=(9, 15))[name]
  assert low < ratio < high


@pytest.mark.parametrize("layout", workloads.LAYOUTS)
def test_targets_are_read_where_their_tokens_are(layout):
  given = workloads.examples("solutions", 400, longest=200)[:20]
  placed = workloads.place(given, 512, layout, rows=25)
  assert placed.batch.tokens.shape[0] == 25
  found = placed.read(placed.batch.tokens)
  depths = placed.read(placed.batch.positions)
  for x, tokens, positions in zip(given, found, depths, strict=True):
    at = np.flatnonzero(x.weights)
    np.testing.assert_array_equal(tokens, x.tokens[at])
    np.testing.assert_array_equal(positions, at)


def test_solutions_of_a_problem_share_it_and_their_steps_are_texts():
  given = workloads.solutions("solutions", 60, longest=1024)
  assert len(given) == 60
  problems = {s.problem for s in given}
  assert 2 < len(problems) < 30
  assert all(all(s.steps) and s.problem for s in given)
  lengths = [len(s.problem) + sum(map(len, s.steps)) for s in given]
  examples = workloads.examples("solutions", 26, longest=1024)[:60]
  ends = [int(np.flatnonzero(x.weights)[-1]) + 1 for x in examples]
  assert sorted(lengths) == sorted(ends)


# --- Shapes -----------------------------------------------------------------


@pytest.mark.parametrize("size", ["1_5b", "7b"])
def test_shapes_are_those_of_the_experiments(size):
  path = ROOT / "experiments" / f"prm800k_qwen2_5_math_{size}.py"
  c = config_files.load(path)
  model = dict(c.model) | dict(vocab_size=c.tokenizer.vocab_size)
  for name in ("remat", "attention"):
    del model[name]
  assert shapes.SHAPES[size] == model_config.ModelConfig(**model)


def test_estimates_are_near_what_the_compiler_plans():
  """GiB that compilers plan for an H200 or an H100, rows of 4,096 tokens."""
  planned = {
    ("7b", "full", 8, "float32"): 114.8,
    ("7b", "full", 8, "bfloat16"): 103.2,
    ("7b", "dots", 2, "float32"): 125.8,
    ("1_5b", "full", 16, "float32"): 33.5,
    ("1_5b", "dots", 16, "float32"): 105.3,
    ("7b_lora", "full", 8, "float32"): 27.6,
    ("7b_lora", "full", 16, "float32"): 41.1,
    ("7b_lora", "dots", 4, "float32"): 59.4,
  }
  for (name, remat, rows, momentum), gib in planned.items():
    model = dataclasses.replace(shapes.SHAPES[name], remat=remat)
    fit = shapes.Fit(model, rows, 4096, momentum)
    assert 0.93 < shapes.estimate(fit) / GIB / gib < 1.12


def test_a_coarser_format_has_a_wider_limit():
  found = [
    chip_limits.model(x, 2, 256) for x in ("float32", "tfloat32", "bfloat16")
  ]
  assert found[0] < found[1] / 10 and found[1] < found[2] / 4
  for gradient in (False, True):
    narrow, wide = (
      chip_limits.attention(x, 4096, gradient=gradient)
      for x in ("float32", "bfloat16")
    )
    assert narrow < wide / 1000


@pytest.mark.parametrize("gib", [24, 40, 80, 139])
@pytest.mark.parametrize("name", ["1_5b", "7b_lora", "7b"])
def test_what_is_tried_fits_and_is_whole(name, gib):
  found = list(shapes.fits(name, gib * GIB))
  assert all(shapes.estimate(fit) <= 0.95 * gib * GIB for fit in found)
  layers = {fit.model.num_layers for fit in found}
  assert layers <= {shapes.SHAPES[name].num_layers}
  # 7B whole is for an H200, its adapters are for an A100 of 40 GB.
  least = {"1_5b": 24, "7b_lora": 24, "7b": 139}
  assert bool(found) == (gib >= least[name])


H200 = check_results.Setting("standard", "gpu", "NVIDIA H200", 1, 139 * GIB)
FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"
SHARED = "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 9"


def test_an_update_that_doesnt_fit_is_tried_smaller_a_few_times(monkeypatch):
  tried = []

  def time(fit, memory, rounds):
    tried.append(fit)
    if len(tried) < 3:
      raise jax.errors.JaxRuntimeError(FULL)
    return speed.Timed(fit, {}, {}, {}, 0, None)

  monkeypatch.setattr(speed, "_time", time)
  assert speed._fit("7b", H200).fit == tried[2] and len({*tried}) == 3

  def never(fit, memory, rounds):
    tried.append(fit)
    raise MemoryError("too much")

  tried.clear()
  monkeypatch.setattr(speed, "_time", never)
  with pytest.raises(check_results.NotRun, match="doesn't fit: 16 rows"):
    speed._fit("7b", H200)
  assert len(tried) == speed._TRIES


def test_a_kernel_without_shared_memory_isnt_tried_smaller(monkeypatch):
  tried = []

  def time(fit, memory, rounds):
    tried.append(fit)
    raise jax.errors.JaxRuntimeError(SHARED)

  monkeypatch.setattr(speed, "_time", time)
  with pytest.raises(jax.errors.JaxRuntimeError, match="Shared memory"):
    speed._fit("7b", H200)
  assert len(tried) == 1


@pytest.mark.parametrize("rank", [0, 3])
def test_flops_of_an_update_are_those_of_its_matmuls(rank):
  model = model_config.ModelConfig(
    *(97, 32, 3, 4, 2, 8, 48), attention="reference", lora_rank=rank
  )
  given = workloads.examples("solutions", 90, longest=64)
  [batch] = workloads.fill(given, 2, 64, share_prefixes=False, most=1).batches
  run = update_checks.Updates(model, 0)
  traced = run.placed.step.trace(run.placed.target, batch)
  found = flops.count(traced.jaxpr).flops
  expected = update_checks.matmul_flops(model, 2 * 64, 64)
  assert found == pytest.approx(expected, rel=0.01)


def test_adapters_are_trained_in_float32_over_a_base_in_bfloat16():
  model = dataclasses.replace(
    shapes.SHAPES["small_lora"], num_layers=2, vocab_size=128
  )
  run = update_checks.Updates(model, 0)
  run.start()
  before = jax.device_get(run.state.params)
  given = workloads.examples("solutions", 128, longest=64)
  batches = workloads.fill(given, 2, 64, share_prefixes=False, most=1).batches
  run([*batches, *batches])  # The first one's rate is 0.
  changed = trained = 0
  flat = traverse_util.flatten_dict(before)
  for path, leaf in traverse_util.flatten_dict(run.state.params).items():
    is_trained = path[-1] in lora.NAMES or path[0] == "step_head"
    assert leaf.dtype == (jnp.float32 if is_trained else jnp.bfloat16)
    differs = (np.asarray(leaf) != np.asarray(flat[path])).any()
    assert is_trained or not differs
    changed += bool(differs)
    trained += leaf.size if path[-1] in lora.NAMES else 0
  assert changed and trained == shapes.num_trained(model)


# --- All of it --------------------------------------------------------------


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("mode", check_results.MODES)
def test_every_check_has_one_name_and_a_stage(platform, mode, monkeypatch):
  # With a kernel that is to come, all stages have some.
  monkeypatch.setattr(attention_lib, "has_tokamax", lambda _: True)
  setting = check_results.Setting(mode, platform, platform, 8, 80 * GIB)
  checks = suite.checks(setting)
  names = [name for c in checks for name in c.names]
  assert len(names) == len({*names})
  stages = [stage for stage, _ in itertools.groupby(c.stage for c in checks)]
  assert tuple(stages) == suite.stages(setting)
  groups = {c.name.split(".")[0] for c in checks if c.required}
  assert groups == {"machine", "attention", "model", "training"}


def test_goals_are_of_checks_that_there_are():
  setting = check_results.Setting(
    "standard", "gpu", "NVIDIA H200", 1, 139 * GIB
  )
  names = {name for c in suite.checks(setting) for name in c.names}
  for goals in speed.GOALS.values():
    assert {*goals} <= names
  assert speed.goal("speed.update.7b", setting) == 0.5
  other = dataclasses.replace(setting, device_kind="TPU v5e")
  assert speed.goal("speed.update.7b", other) is None


NEEDED = {"jax", "flax", "optax", "orbax-checkpoint", "etils", "jaxtyping"}
# The first two are jax's own, the last is orbax's.
NEEDED |= {"numpy", "ml_dtypes", "tensorstore"}


def test_nothing_else_is_imported_on_a_bare_machine():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())
  lines = project["project"]["dependencies"]
  names = {line.partition(">")[0].partition("[")[0].strip() for line in lines}
  others = sorted(name.replace("-", "_") for name in names - NEEDED)
  assert "tensorboardX" in others and "sentencepiece" in others
  code = f"""
import importlib, importlib.abc, pkgutil, sys
class Absent(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in {others!r}:
      raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import prm_jax.device_check as package
for module in pkgutil.iter_modules(package.__path__):
  importlib.import_module(f"prm_jax.device_check.{{module.name}}")
from prm_jax.cli import main
"""
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr


def test_the_worker_lists_all_checks_without_a_stage():
  """As on a new machine: what there is, before anything runs."""
  asked = '{"mode": "quick", "stage": null, "only": [], "skip": [],'
  asked += ' "known": {}, "until_s": 0}'
  with subprocess.Popen(
    [sys.executable, "-m", "prm_jax.device_check.check_worker", asked],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  ) as process:
    [line] = process.stdout
    assert process.wait() == 0
  found = json.loads(line)
  assert found["machine"]["num_devices"] == jax.device_count()
  assert found["planned"][0] == ["machine.devices", "right", True]


def test_the_workload_script_writes_what_is_read(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
  script = importlib.import_module("workload_shapes")
  for name in ("workload_shapes", "train_step", "results"):
    monkeypatch.delitem(sys.modules, name)
  given = workloads.examples("solutions", 90)
  group = [x for x in given if x.group == given[0].group]
  written = script.shape(group)
  lengths = sorted(len(x) for x in group)
  assert sorted(length for _, length, _ in written) == lengths
  assert written[0][0] == 0
