"""Budgets: what a run may need, against what it does."""

import dataclasses
import json

import plan_tiny
import pytest

from prm_jax import errors
from prm_jax.cli import main
from prm_jax.plan import budgets
from prm_jax.plan import topologies
from prm_jax.runtime import config_files

BUDGET = budgets.Budget(
  config="experiments/x.py",
  topology="v5e:4x4",
  peak_gib=2.0,
  sent_gib=3.0,
  flops_ratio=1.5,
)
PLAN = plan_tiny.PLAN


def test_what_is_just_within_a_budget_does_not_exceed_it():
  assert budgets.exceeded(BUDGET, PLAN) == []


@pytest.mark.parametrize(
  ("changed", "named"),
  [
    (dict(peak=2 * topologies.GIB + 2**25), "peak_gib: 2.03, budget 2.00"),
    (dict(hardware_flops=1.6e12), "flops_ratio: 1.60, budget 1.50"),
    (dict(sent=PLAN.sent._replace(wire=4 * topologies.GIB)), "sent_gib: 4.00"),
    (dict(peak=None, refused="no room"), "doesn't fit: no room"),
  ],
)
def test_what_needs_more_is_named(changed, named):
  (found,) = budgets.exceeded(BUDGET, dataclasses.replace(PLAN, **changed))
  assert named in found


def test_the_projects_own_budgets_can_be_read_and_their_runs_exist():
  found = budgets.read("experiments/plan_budgets.jsonl")
  assert len(found) >= 4
  for budget in found:
    config_files.read(budget.config)
    topologies.parse(budget.topology)


@pytest.mark.parametrize("record", [dict(), dict(config="x", typo=1), "x"])
def test_a_file_that_is_no_budget_is_refused_in_one_line(tmp_path, record):
  path = tmp_path / "budgets.jsonl"
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError, match=r"budgets\.jsonl:1") as e:
    budgets.read(path)
  assert "\n" not in str(e.value)


# --- The command ------------------------------------------------------------


def test_a_topology_whose_compiler_is_not_installed_says_what_to_install(
  capsys, monkeypatch
):
  monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
  config = "experiments/prm800k_qwen2_5_math_7b.py"
  for topology, extra in (("v5e:4x4", "tpu"), ("h200:8", "cuda12")):
    code = main.main(["plan", f"--config={config}", f"--topology={topology}"])
    said = capsys.readouterr().err
    assert code == 1
    assert said.count("\n") == 1
    assert f"pip install -e '.[{extra}]' in a checkout" in said


@pytest.mark.parametrize(
  ("arguments", "named"),
  [
    (["--topology=v5e:4x4"], "--config=FILE"),
    (["--config=experiments/prm800k_small.py"], "--topology"),
    (["--config=experiments/rl_arithmetic.py", "--topology=v5e:4x4"], "rl"),
    (
      [
        "--config=experiments/bring_your_own.py",
        "--topology=v5e:4x4",
        "--config.model.d_model=8",
      ],
      "missing field model",
    ),
    (
      [
        "--config=experiments/prm800k_llama3_1_8b.py",
        "--topology=v5e:4x4",
        "--config.tokenizer.vocab_size=0",
      ],
      "--vocab_size",
    ),
    (["--check=nowhere.json"], "nowhere.json"),
  ],
)
def test_what_a_plan_needs_and_lacks_is_said_in_one_line(
  capsys, arguments, named
):
  assert main.main(["plan", *arguments]) == 1
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  assert named in said


@pytest.mark.parametrize(
  "name",
  [
    *("v5e", "v5e:16", "v5e:4x4x4", "v5p:8x8", "h100:8:1", "h200:8x8", "x:"),
    *("v5e-3", "v5e-0", "v5p-2", "v5p-24", "h200-8", "v5e:-4x4", "v5e:4x"),
  ],
)
def test_a_topology_that_is_none_is_refused(name):
  with pytest.raises(errors.InputError, match="expected v5e:16x16"):
    topologies.parse(name)


def test_a_topologys_size_is_its_chips():
  assert topologies.parse("v5e:16x16").size == 256
  assert topologies.parse("v5p:8x8x8").size == 512
  for gpu in ("a100-40", "a100-80", "h100", "h200", "b200", "l4"):
    assert topologies.parse(f"{gpu}:8").size == 8


@pytest.mark.parametrize(
  "names",
  [
    ("v5e-16", "v5litepod-16", "v5e:4x4"),
    ("v6e-8", "v6e:2x4"),
    ("v5e-2", "v5e:1x2"),
    ("v5p-8", "v5p:2x2x1"),
    ("v5p-32", "v5p:2x2x4"),
    ("v4-16", "v4:2x2x2"),
  ],
)
def test_a_slice_has_each_of_its_names(names):
  found = [topologies.parse(name) for name in names]
  assert len({(x.chip, x.shape) for x in found}) == 1
  told = [topologies._description(x) for x in found]
  assert all(x == told[0] for x in told)
