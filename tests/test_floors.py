"""The floors of the house: a module knows only what stands below it."""

import ast
import itertools
import pathlib
import re
import tomllib

import pytest

import prm_jax

ROOT = pathlib.Path(prm_jax.__file__).parent
HERE = "prm_jax"

# Who may know whom (docs/architecture.md): a line may import the lines above
# it, in its floor and in those below. Packages keep their files together, in
# an order of their own; what a package's __init__ gathers comes last in it.
# Files that are still to be written have their place already.
FLOORS = {
  "nouns": ("prm_jax", "schema", "ranges", "answers", "tokenizer", "batch"),
  "parts": (
    "arithmetic",
    "voting",
    *("grading.prm800k_rules", "grading.worker", "grading.pool", "grading"),
    *("formats.fields", "formats.prm800k", "formats.math_shepherd"),
    *("formats.stepwise", "formats.processbench", "formats.gsm8k"),
    *("formats.prmbench", "formats.math_aps", "formats.math_aps_tree"),
    *("formats.math", "formats.rlhflow"),
    *("formats.jsonl", "formats"),
    *("models.config", "models.products", "models.layers"),
    "models.block_attention",
    *("models.forest_kernels", "models.forest_attention"),
    "models.splash_attention",
    "models.cached_attention",
    *("models.lora", "models.attention", "models.transformer"),
    *("models.hf.families", "models.hf.configuration", "models.hf.records"),
    *("models.hf.files", "models.hf.weights", "models.hf", "models"),
    "losses",
    *("policy_losses", "returns", "advantages"),
    "optimizers",
    *("preemption", "processes", "sharding"),
    *("fingerprints", "buckets", "checkpoint", "locks"),
    "watchdog",
    "progress",
  ),
  "data": (
    *("data.dialects", "data.encode", "data.packing", "data.pairs"),
    "data.offsets",
    *("data.records", "data.builders", "data.store", "data.pieces"),
    *("data.pipeline", "data.corpus", "data.inspection"),
    *("data.overlap", "data.doctor", "data.convert", "data"),
  ),
  "engines": (
    "weighing",
    "sampler",
    "slots",
    "paging",
    "rollouts",
    *(
      "train.freezing",
      "train.skipping",
      "train.program",
      "train.records",
      "train.starting",
      "train.loop",
      "train.pairwise",
    ),
    *("train.prm", "train.orm", "train.implicit", "train.sft"),
    *("train.objectives", "train.run_config", "train.rows"),
    *("train.experiment", "train"),
    # A scorer runs the forward pass of the program that trained it.
    "scorer",
    *("rl.text_statistics", "rl.hacking", "rl.config", "rl.credit"),
    *("rl.rewards", "rl.statistics", "rl.program", "rl.experience"),
    *("rl.run", "rl"),
    *("remote.endpoint", "remote.replies", "remote.connection"),
    *("remote.journal", "remote.client", "remote"),
  ),
  "methods": (
    "search",
    *("labelling.prefixes", "labelling.omega_tree"),
    *("labelling.monte_carlo", "labelling.omega_prm"),
    *("labelling.verdicts", "labelling.judge", "labelling.dial"),
    *("labelling.consensus", "labelling.active_selection"),
    *("labelling.journal", "labelling"),
    *("evaluation.step_metrics", "evaluation.processbench"),
    *("evaluation.prmbench", "evaluation.best_of_n"),
    *("evaluation.outputs", "evaluation.scored", "evaluation.tables"),
    *("evaluation.files", "evaluation"),
    *("plan.chips", "plan.counting", "plan.collectives", "plan.memory"),
    "plan.step",
    *("plan.fitting", "plan.report", "plan.budgets", "plan"),
    *("device_check.results", "device_check.limits", "device_check.cases"),
    *("device_check.timing", "device_check.shapes", "device_check.updates"),
    *("device_check.workloads", "device_check.machine"),
    *("device_check.attention", "device_check.models"),
    *("device_check.training", "device_check.speed"),
    *("device_check.inference", "device_check.peers", "device_check.suite"),
    *("device_check.worker", "device_check.verdict", "device_check.run"),
    "device_check",
  ),
  "surfaces": (
    *("exchange.heads", "exchange.importing", "exchange.card"),
    *("exchange.exporting", "exchange"),
    *("plot", "page", "report", "server", "annotate", "comparison", "demo"),
    *("rl_curves", "rl_verdict", "rl_report", "rl_arms"),
  ),
  "door": (
    "configs",
    "environment",
    "data_commands",
    "rl_commands",
    "commands",
    *("plan_commands", "check_commands"),
    *("label_inputs", "label_policy", "label_commands"),
    *("forms", "label_forms", "cli"),
    "__main__",
  ),
}
ORDER = list(itertools.chain(*FLOORS.values()))

# flax.linen is how models are written, and nobody's business elsewhere. But
# linen also holds the rules from logical axis names to the mesh, and to map
# these is what sharding.py is for.
KNOWS_LINEN = ("models.", "sharding")


def _module(path: pathlib.Path) -> str:
  """Returns a file's dotted name without the package's own."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  if parts[-1] == "__init__":
    parts = parts[:-1]
  return ".".join(parts) or HERE


FILES = {_module(path): path for path in sorted(ROOT.rglob("*.py"))}


def _imports(path: pathlib.Path) -> set[str]:
  """Returns every module that a file imports, wherever in it, in full."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}:{node.lineno}: a relative import"
      found |= {f"{node.module}.{name.name}" for name in node.names}
  return found


def _own(full_name: str) -> str | None:
  """Returns our module that an import names, or the one that holds its name."""
  if full_name == HERE:
    return HERE
  if not full_name.startswith(f"{HERE}."):
    return None
  name = full_name.removeprefix(f"{HERE}.")
  while name and name not in FILES:
    name = name.rpartition(".")[0]
  return name or HERE


def test_every_module_has_its_place_in_the_table():
  assert len(ORDER) == len(set(ORDER))
  missing = sorted(set(FILES) - set(ORDER))
  assert not missing, f"give each its floor: {', '.join(missing)}"


def test_a_packages_files_stand_together_and_its_init_last():
  for name in {n.partition(".")[0] for n in ORDER if "." in n}:
    places = [
      i for i, n in enumerate(ORDER) if n == name or n.startswith(f"{name}.")
    ]
    assert places == list(range(places[0], places[-1] + 1))
    assert ORDER[places[-1]] == name


@pytest.mark.parametrize("name", FILES)
def test_imports_point_down(name):
  for full_name in sorted(_imports(FILES[name])):
    known = _own(full_name)
    if known is None:
      continue
    assert ORDER.index(known) < ORDER.index(name), (
      f"{name} imports {known}, which does not stand below it"
    )


# TFDS writes and reads ArrayRecord by it.
BEHIND_ANOTHER = {"array_record"}
MODULES = {
  "orbax-checkpoint": "orbax",
  "tensorflow-datasets": "tensorflow_datasets",
}


def test_the_base_install_names_nothing_that_no_module_imports():
  project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
  named = {
    re.split(r"[<>=!~\[; ]", line)[0]
    for line in project["project"]["dependencies"]
  }
  imported = {
    full_name.partition(".")[0]
    for path in FILES.values()
    for full_name in _imports(path)
  }
  assert len(named) > 5
  for name in named - BEHIND_ANOTHER:
    assert MODULES.get(name, name) in imported, f"nothing imports {name}"


def test_only_models_know_linen():
  knowing = {
    name
    for name, path in FILES.items()
    for full_name in _imports(path)
    if full_name == "flax.linen" or full_name.startswith("flax.linen.")
  }
  assert knowing
  for name in knowing:
    assert name.startswith(KNOWS_LINEN), f"{name} imports flax.linen"


def test_the_nouns_but_the_batch_know_no_jax():
  """So that reading, checking and writing data starts in no time."""
  grading = ("grading.prm800k_rules", "grading.worker", "grading.pool")
  for name in ("schema", "answers", "tokenizer", *grading):
    roots = {n.partition(".")[0] for n in _imports(FILES[name])}
    assert not roots & {"jax", "jaxlib", "flax", "optax", "orbax"}


def test_imports_are_found_where_they_hide(tmp_path):
  """The checks above see what they should."""
  path = tmp_path / "a.py"
  path.write_text(
    "import os, prm_jax.cli\n"
    "def f():\n"
    "  from prm_jax.train import loop\n"
    "  from prm_jax.schema import Solution\n"
    "  from flax import linen as nn\n"
  )
  found = _imports(path)
  assert "flax.linen" in found
  assert _own("prm_jax.schema.Solution") == "schema"
  assert _own("prm_jax.train.loop") == "train.loop"
  assert _own("prm_jax.__version__") == HERE
  assert _own("flax.linen") is None
