"""The scripts for other trainers, and the page's code, name what there is.

The trainers aren't installed, so nothing runs here: what is checked is that no
name is undefined, and that what they take of prm_jax exists, arguments too.
"""

import ast
import builtins
import importlib
import inspect
import pathlib
import re
import symtable

import pytest

import prm_jax

ROOT = pathlib.Path(prm_jax.__file__).parent.parent
PAGE = ROOT / "docs" / "integrations.md"
SCRIPTS = sorted((ROOT / "experiments" / "integrations").glob("*.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def page_code():
  return "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def undefined(source):
  """The names that are used and neither made in the source nor Python's own."""
  top = symtable.symtable(source, "source", "exec")
  made = {x.get_name() for x in top.get_symbols() if x.is_assigned()}
  made |= {x.get_name() for x in top.get_symbols() if x.is_imported()}
  made |= {*dir(builtins), "__file__", "__name__"}
  tables, out = [top], set()
  while tables:
    table = tables.pop()
    tables += table.get_children()
    names = table.get_symbols()
    out |= {
      x.get_name()
      for x in names
      if x.is_referenced() and x.is_global() and x.get_name() not in made
    }
    if table is top:
      out |= {x.get_name() for x in names if x.is_referenced()} - made
  return out


def unknown(source):
  """What is taken of prm_jax and isn't there, with unknown arguments of calls."""
  tree, ours, out = ast.parse(source), {}, set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for name in node.names:
        if name.name.split(".")[0] == "prm_jax":
          ours[name.asname or name.name] = importlib.import_module(name.name)
    elif isinstance(node, ast.ImportFrom) and node.module.startswith("prm_jax"):
      for name in node.names:
        module = importlib.import_module(f"{node.module}.{name.name}")
        ours[name.asname or name.name] = module
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      module = ours.get(node.value.id)
      if module is not None and not hasattr(module, node.attr):
        out.add(f"{node.value.id}.{node.attr}")
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    called, *more = [node.func, *node.args]
    if ast.unparse(called) == "functools.partial":
      called = more[0]
    if not isinstance(called, ast.Attribute):
      continue
    if not isinstance(called.value, ast.Name) or called.value.id not in ours:
      continue
    function = getattr(ours[called.value.id], called.attr, None)
    if function is not None:
      known = inspect.signature(function).parameters
      out |= {
        f"{called.attr}({x.arg}=)" for x in node.keywords if x.arg not in known
      }
  return out


def test_what_is_undefined_or_unknown_is_found():
  assert undefined("import os\ndef f(x):\n  return x + y\nos.z(a)") == {*"ya"}
  source = """
import functools
import prm_jax
from prm_jax.integrations import trl as prm_trl
prm_trl.reward_func(1, agregate=2)
prm_trl.reward_funk(1)
functools.partial(prm_trl.turn_reward_func, nam="x")
prm_jax.load_score("x")
"""
  assert unknown(source) == {
    *("reward_func(agregate=)", "prm_trl.reward_funk"),
    "turn_reward_func(nam=)",
  }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_for_a_trainer_takes_what_there_is(path):
  source = path.read_text(encoding="utf-8")
  compile(source, str(path), "exec")
  assert undefined(source) == unknown(source) == set()
  header = ast.get_docstring(ast.parse(source))
  assert re.search(r"Checked against \S+ [0-9a-f]{7,}", header)
  assert "Not run" in header or "Run: " in header
  # Else `import TRAINER` would import the script.
  assert path.stem.endswith("_turns")
  assert path.name in PAGE.read_text(encoding="utf-8")


def test_the_pages_code_has_no_name_that_is_nowhere_defined():
  assert len(SCRIPTS) == 7
  assert undefined(page_code()) == unknown(page_code()) == set()
