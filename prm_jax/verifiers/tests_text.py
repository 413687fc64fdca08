"""A solution's tests by their text: what names are in them, and as programs.

It imports nothing of prm_jax, and tests_worker imports it.
"""

from __future__ import annotations

import ast
import re
from typing import Any

FILE = "<tests>"
# It stands in tests of unfinished code for a function that takes a question.
LOOK = "__prm_jax_look"
# What another process than the code's has.
OUTSIDE = re.compile(
  r"\bmock\b|\bmonkeypatch\b|\bsys\.(?:stdin|argv|modules)|\bbuiltins\b"
  r"|\bopen\(|\btempfile\b|\bpathlib\b|\bos\."
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Tests:
  """The tests, and what names are in them.

  Attributes:
    text: The text.
    used: The names that they use and don't set.
    used_at_top: Those that they use outside functions and classes.
  """

  def __init__(self, text: str, tree: ast.Module):
    self.text = text
    own: set[str] = set()
    self.used: set[str] = set()
    for x in ast.walk(tree):
      if isinstance(x, ast.Name):
        (self.used if isinstance(x.ctx, ast.Load) else own).add(x.id)
      elif isinstance(x, ast.FunctionDef | ast.ClassDef):
        own.add(x.name)
      elif isinstance(x, ast.alias):
        own.add((x.asname or x.name).partition(".")[0])
    self.used -= own
    top = [x for x in tree.body if not isinstance(x, _DEFINITIONS)]
    self.used_at_top = {
      x.id for of in top for x in ast.walk(of) if isinstance(x, ast.Name)
    }

  def compiled(self, *, in_part: bool) -> Any:
    tree = ast.parse(self.text, FILE)
    if in_part:
      tree = ast.fix_missing_locations(_Tolerant().visit(tree))
    return compile(tree, FILE, "exec", dont_inherit=True)


class _Tolerant(ast.NodeTransformer):
  """Makes each assertion one whose failure isn't minded."""

  def visit_Assert(self, node: ast.Assert) -> ast.AST:
    look = ast.Name(LOOK, ast.Load())
    nothing = ast.arguments([], [], None, [], [], None, [])
    asked = ast.Lambda(nothing, node.test)
    return ast.copy_location(ast.Expr(ast.Call(look, [asked], [])), node)
