"""Docstrings say what signatures can't, and name what is there.

The documentation's reference is made from them: a parameter that was renamed in
the code alone would stay in it.
"""

import ast
import dataclasses
import importlib
import pathlib
import re

import pytest

import prm_jax

ROOT = pathlib.Path(prm_jax.__file__).parent
# What users call: each of their public functions is documented in full.
PUBLIC = (
  *("jobs.sample", "policy.sampling", "jobs.score"),
  *("api", "errors", "schema", "voting", "training.losses", "rl.returns"),
  *("rl.advantages", "scoring.scorer", "policy.sampler"),
  *("scoring.score_sources", "scoring.cached_scorer"),
  *("search.choice", "search.bill", "search.engine", "search.search_models"),
  *("search.records", "search.solutions", "search.tree"),
  *(
    "search.search",
    "search.verify_run",
    "search.search_limits",
    "search.rules",
  ),
  *("search.adaptive", "search.mcts", "search.particles"),
  *("evaluation.evaluate_best_of_n", "evaluation.evaluate_steps"),
  *("evaluation.evaluate_processbench", "evaluation.evaluate_prmbench"),
  "evaluation.evaluate_turns",
  *("datasets.datasets", "records.jsonl", "text.messages", "client"),
  *("environments.turns", "environments.sql"),
  *("datasets.inspection", "huggingface.exchange"),
  "serving.serve",
  *("runtime.doctor", "device_check.check_device", "search.calibrate"),
  *("evaluation.choose_threshold", "reports.compare", "view.view"),
  *("labelling.label_rollouts", "labelling.label_judge"),
  "labelling.label_cpmi",
  *("labelling.consensus", "labelling.select", "labelling.label_verify"),
  "probes.probe_faithfulness",
  "verifiers.verdicts",
  *("people.label_people", "people.people_report", "people.people_round"),
  *("plan.plan", "trainer", "demo.demo"),
  *(
    "integrations.placement",
    "integrations.scoring",
    "integrations.token_credit",
  ),
  "integrations.trainer_chats",
  *("integrations.openrlhf", "integrations.prime_rl", "integrations.skyrl"),
  *("integrations.slime", "integrations.tinker", "integrations.trl"),
  *("integrations.tunix", "integrations.turn_rewards", "integrations.verl"),
  *("integrations.nemo_gym", "integrations.verifiers"),
)
# What users make and hand on: the methods are for verbs.
HANDED_ON = ("jobs.policies", "jobs.reward_models")
SECTIONS = ("Args", "Returns", "Yields", "Raises")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _definitions(tree, prefix=""):
  """Yields the name and node of every function and class outside functions."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
      yield prefix + node.name, node
    if isinstance(node, ast.ClassDef):
      yield from _definitions(node, f"{prefix}{node.name}.")


def _module(path):
  return ".".join(path.relative_to(ROOT).with_suffix("").parts)


ALL = {
  (_module(path), name, node.lineno): node
  for path in sorted(ROOT.rglob("*.py"))
  for name, node in _definitions(ast.parse(path.read_text()))
}
IN_PUBLIC = {
  f"{module}.{name}": node
  for (module, name, _), node in ALL.items()
  if module in PUBLIC and not any(x[0] == "_" for x in name.split("."))
}


def _is_overload(node):
  return any("overload" in ast.unparse(x) for x in node.decorator_list)


def _parameters(node):
  """Returns the names of a function's parameters, or of a class's fields."""
  if isinstance(node, ast.ClassDef):
    names = [
      x.target.id
      for x in node.body
      if isinstance(x, ast.AnnAssign)
      and not ast.unparse(x.annotation).startswith("ClassVar")
    ]
    for inner in node.body:
      if isinstance(inner, FUNCTIONS) and inner.name == "__init__":
        names += _parameters(inner)
    return names
  given = node.args
  names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
  names += [x for x in (given.vararg, given.kwarg) if x is not None]
  return [x.arg for x in names if x.arg not in ("self", "cls")]


def _inherited(module, name, node):
  """Returns a dataclass's fields of its bases, whose help it may sharpen."""
  if not isinstance(node, ast.ClassDef):
    return set()
  found = importlib.import_module(f"prm_jax.{module}")
  for part in name.split("."):
    found = getattr(found, part)
  if not dataclasses.is_dataclass(found):
    return set()
  return {x.name for x in dataclasses.fields(found)} - {*_parameters(node)}


def _sections(node):
  """Returns the lines of each section of a docstring, without its indent."""
  found, current = {}, None
  for line in (ast.get_docstring(node) or "").splitlines():
    title = line.removesuffix(":")
    if line.endswith(":") and title in SECTIONS:
      current = found.setdefault(title, [])
    elif line and not line.startswith(" "):
      current = None
    elif current is not None:
      current.append(line.removeprefix("  "))
  return found


def _documented(node):
  """Returns the names in the section Args."""
  names = []
  for line in _sections(node).get("Args", ()):
    entry = re.match(r"([\w*]+(?:, [\w*]+)*):", line)
    if entry:
      names += [x.lstrip("*") for x in entry[1].split(", ")]
  return names


def _raises_input_error(node):
  return any(
    isinstance(x, ast.Raise) and "InputError" in ast.unparse(x)
    for x in ast.walk(node)
  )


@pytest.mark.parametrize("module", sorted({key[0] for key in ALL}))
def test_args_of_a_docstring_are_parameters_of_the_code(module):
  for (home, name, line), node in ALL.items():
    if home == module:
      known = {*_parameters(node), *_inherited(home, name, node)}
      stale = set(_documented(node)) - known
      assert not stale, f"{home}.{name}, line {line}: {stale}"


@pytest.mark.parametrize("module", sorted({key[0] for key in ALL}))
def test_parameters_are_described_in_args_and_in_no_paragraph(module):
  for (home, name, line), node in ALL.items():
    if home != module or name.split(".")[-1].startswith("_"):
      continue
    text = ast.get_docstring(node) or ""
    for parameter in _parameters(node):
      glosses = re.findall(
        rf"(?:^|[.;)] +){parameter}(?:, \w+)*: ", text, re.MULTILINE
      )
      assert not glosses, f"{home}.{name}, line {line}: {parameter}"


@pytest.mark.parametrize("name", IN_PUBLIC)
def test_a_public_name_documents_each_parameter_the_result_and_errors(name):
  node = IN_PUBLIC[name]
  if isinstance(node, FUNCTIONS) and _is_overload(node):
    return
  text = ast.get_docstring(node)
  assert text, "a docstring is missing"
  # What overrides a function names that one, which is documented in full.
  if overridden := re.fullmatch(r".*; see (\w+\.\w+)\.", text):
    assert any(x.endswith(f".{overridden[1]}") for x in IN_PUBLIC)
    return
  documented = set(_documented(node))
  if isinstance(node, ast.ClassDef):
    module, _, own = name.rpartition(".")
    documented -= _inherited(module, own, node)
  assert set(_parameters(node)) == documented
  sections = _sections(node)
  if isinstance(node, FUNCTIONS):
    decorators = {*map(ast.unparse, node.decorator_list)}
    is_property = decorators & {"property", "functools.cached_property"}
    returns = node.returns is None or ast.unparse(node.returns) != "None"
    assert not returns or is_property or {"Returns", "Yields"} & {*sections}
    assert not _raises_input_error(node) or "Raises" in sections


@pytest.mark.parametrize("name", prm_jax.__all__)
def test_each_public_name_is_in_a_module_that_is_checked(name):
  if name != "__version__":
    assert prm_jax._HOMES[name] in (*PUBLIC, *HANDED_ON)
