"""The floors of the house: a module knows only what stands below it."""

import ast
import graphlib
import pathlib
import re
import tomllib

import pytest

import prm_jax

ROOT = pathlib.Path(prm_jax.__file__).parent
HERE = "prm_jax"

# Three rings: what a model, its text and its training are; what is done with
# them; what meets other people's files, programs and screens. A folder, or a
# file of the root, imports those before it in this order, and the files of its
# own without a circle (docs/architecture.md). So core imports no method, and
# neither of them an edge.
CORE = (
  *(HERE, "_version", "errors", "schema", "batch", "voting", "client"),
  *("runtime", "text", "records", "rows", "models", "checkpoints", "training"),
  *("scoring", "policy"),
)
METHODS = (
  *("grading", "verifiers", "remote", "jobs", "environments", "search"),
  *("evaluation", "labelling", "probes", "testbed", "rl"),
)
EDGES = (
  *("web", "datasets", "plan", "huggingface", "serving", "device_check"),
  *("integrations", "reports", "people", "view", "demo", "trainer", "cli"),
  "api",
  "__main__",
)
FOLDERS = CORE + METHODS + EDGES
# Of what a module stands on there is no more than this.
MAX_REACH = {"scoring.scorer": 35, "search.engine": 50}
# At the root: what everything else is made of, and what a user meets first.
MAX_ROOT_FILES = 7
NOT_COUNTED = (HERE, "__main__", "_version")

# flax.linen is how models are written, and no matter of other folders.
KNOWS_LINEN = "models."


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


def _folder(name: str) -> str:
  return name.partition(".")[0]


# Of each of our modules, those of ours that it imports.
IMPORTS = {
  name: {_own(x) for x in _imports(path)} - {None, name}
  for name, path in FILES.items()
}
# What the package's face names is imported when it is asked for.
IMPORTS[HERE] = set()


def test_every_module_is_in_a_folder_of_the_table():
  assert len(FOLDERS) == len(set(FOLDERS))
  missing = sorted({_folder(name) for name in FILES} - set(FOLDERS))
  assert not missing, f"give each its place: {', '.join(missing)}"


def test_a_file_name_means_one_thing():
  homes: dict[str, list[str]] = {}
  for name, path in FILES.items():
    if path.name != "__init__.py":
      homes.setdefault(path.name, []).append(name)
  twice = {k: x for k, x in homes.items() if len(x) > 1}
  assert not twice, twice


def test_a_folder_says_in_one_sentence_what_it_is_for():
  for name, path in FILES.items():
    if path.name != "__init__.py":
      continue
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[
      0
    ]
    words = first.lower().rstrip(".").split()
    assert len(words) >= 3 and words != name.split("."), f"{name}: {first!r}"


def test_only_the_command_line_imports_the_face():
  """What all may read stands below, in _version; the face names what is above."""
  for name, known in IMPORTS.items():
    assert HERE not in known or _folder(name) in ("cli", "__main__"), name


def test_the_root_has_few_files():
  at_root = [
    name
    for name, path in FILES.items()
    if path.parent == ROOT and name not in NOT_COUNTED
  ]
  assert 0 < len(at_root) <= MAX_ROOT_FILES, at_root


@pytest.mark.parametrize("name", FILES)
def test_folders_import_in_one_order(name):
  place = FOLDERS.index(_folder(name))
  for known in sorted(IMPORTS[name]):
    assert FOLDERS.index(_folder(known)) <= place, (
      f"{name} imports {known}, whose folder comes after its own"
    )


def test_no_modules_import_each_other_in_a_circle():
  # A folder's __init__ is run before any of its files, and isn't one of them.
  graph = {name: known - {_folder(name)} for name, known in IMPORTS.items()}
  order = graphlib.TopologicalSorter(graph)
  assert set(order.static_order()) >= set(FILES)


@pytest.mark.parametrize("name", MAX_REACH)
def test_what_a_module_stands_on_is_small(name):
  """So it can be read, and used, without the rest."""
  reach, left = {name}, [name]
  while left:
    found = IMPORTS[left.pop()] - reach
    reach |= found
    left += found
  assert 1 < len(reach - {name}) <= MAX_REACH[name], sorted(reach)


def test_only_the_demo_and_the_problems_of_rl_know_the_testbed():
  knowing = {
    name
    for name, known in IMPORTS.items()
    if any(_folder(x) == "testbed" for x in known)
  }
  folders = {_folder(x) for x in knowing - {"rl.tasks"}}
  assert folders == {"testbed", "demo"} and "rl.tasks" in knowing


def test_only_the_command_line_knows_the_command_line():
  knowing = {
    name
    for name, known in IMPORTS.items()
    if any(_folder(x) == "cli" for x in known)
  }
  assert knowing
  assert {_folder(x) for x in knowing} - {"__main__"} == {"cli"}


# What they run is a command line: what it says, and what its files are.
RUN_COMMAND_LINES = {"benchmarks/digests.py"}


def test_experiments_and_benchmarks_run_verbs_and_not_the_command_line():
  found = {
    f"{folder}/{path.name}"
    for folder in ("experiments", "benchmarks")
    for path in (ROOT.parent / folder).glob("*.py")
    if any(f"{x}.".startswith(f"{HERE}.cli.") for x in _imports(path))
  }
  assert found == RUN_COMMAND_LINES


# A run's whole config -> the modules that put its stages together. A stage
# gets its own config, and knows no other.
WHOLE_CONFIGS = {
  "TrainConfig": {
    "training.train_config",
    *("training.train_run", "training.train_run_config"),
    "demo.demo_config",
    "plan.runs",
  },
  "RLConfig": {"rl.rl_config", "rl.rl_run", "rl.rl_run_config"},
  "DemoConfig": {"demo.demo_config", "demo.demo_run", "demo.demo_run_config"},
}


def _names(path: pathlib.Path) -> set[str]:
  """Returns every name, attribute, class and imported name in a file."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.Attribute):
      names.add(node.attr)
    elif isinstance(node, ast.Name):
      names.add(node.id)
    elif isinstance(node, ast.ClassDef | ast.alias):
      names.add(node.name)
  return names


@pytest.mark.parametrize("config", WHOLE_CONFIGS)
def test_only_who_puts_stages_together_names_the_config_of_all(config):
  naming = {name for name, path in FILES.items() if config in _names(path)}
  assert naming == WHOLE_CONFIGS[config]


# The demo's models have the names of programs, and its page shows them.
@pytest.mark.parametrize(
  "name", [n for n in FILES if _folder(n) not in ("demo", "reports")]
)
def test_no_program_but_the_table_is_told_by_its_name(name):
  """What differs between programs is a field of kinds.KINDS or programs.TRAINED."""
  compared = {
    constant.value
    for node in ast.walk(ast.parse(FILES[name].read_text("utf-8")))
    if isinstance(node, ast.Compare)
    for constant in ast.walk(node)
    if isinstance(constant, ast.Constant)
  }
  assert not compared & {"sft", "prm", "orm", "implicit", "rl"}


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


def test_each_dependency_has_a_floor_and_ends_before_a_major_version():
  project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
  extras = project["project"]["optional-dependencies"]
  for line in project["project"]["dependencies"] + extras["verify"]:
    bounds = line.partition("]")[2] or line
    assert re.search(r">=\d[\d.]*,<\d[\d.]*$", bounds), line


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
  grading = ("grading.prm800k_rules", "grading.grading_worker", "grading.pool")
  for name in (
    "errors",
    "schema",
    "text.answers",
    "text.tokenizer",
    *grading,
  ):
    roots = {n.partition(".")[0] for n in _imports(FILES[name])}
    assert not roots & {"jax", "jaxlib", "flax", "optax", "orbax"}


def test_imports_are_found_where_they_hide(tmp_path):
  """The checks above see what they should."""
  path = tmp_path / "a.py"
  path.write_text(
    "import os, prm_jax.cli\n"
    "def f():\n"
    "  from prm_jax.training import loop\n"
    "  from prm_jax.schema import Solution\n"
    "  from flax import linen as nn\n"
  )
  found = _imports(path)
  assert "flax.linen" in found
  assert _own("prm_jax.schema.Solution") == "schema"
  assert _own("prm_jax.training.loop") == "training.loop"
  assert _own("prm_jax.__version__") == HERE
  assert _own("flax.linen") is None


# Below the command line a message names arguments in backquotes, which
# cli/output.with_flags shows as flags. These name flags, for the reason given.
MAY_NAME_FLAGS = {
  "huggingface.hub": "names a command of huggingface_hub's",
  "plan.suggest": "makes options of a command, to try one after the other",
  "runtime.environment": "gives options to git",
}


def _texts(path: pathlib.Path) -> list[tuple[int, str]]:
  """Returns a file's strings but for docstrings, with their lines."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
  return [
    (n.lineno, n.value)
    for n in ast.walk(tree)
    if isinstance(n, ast.Constant)
    and isinstance(n.value, str)
    and id(n) not in alone
  ]


def test_below_the_command_line_no_message_names_a_flag():
  naming = set()
  for name, path in FILES.items():
    if _folder(name) == "cli":
      continue
    for line, text in _texts(path):
      # A whole command has its flags.
      alone = re.sub(r"(prm-jax|tfds) [a-z].*", "", text, flags=re.DOTALL)
      if re.search(r"(?<![\w(-])--([a-z]|$)", alone):
        naming.add((name, line))
  assert {name for name, _ in naming} == {*MAY_NAME_FLAGS}, naming


def test_below_the_command_line_nothing_is_printed():
  printing = set()
  for name, path in FILES.items():
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and _folder(name) != "cli"
      ):
        printing.add(name)
  # A process of its own: its replies are what it prints.
  assert printing == {"grading.grading_worker"}
