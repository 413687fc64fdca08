"""The type checker of the tests, which jaxtyping's import hook takes by name.

beartype, with an int wherever a float goes. It looks at one entry of a list:
not at a random one, so that a test passes or fails every time.
"""

from collections.abc import Callable
import dataclasses
import functools
import inspect
import sys
import types
import typing
from typing import Any

import beartype
import jaxtyping

_BEARTYPE = beartype.beartype(
  conf=beartype.BeartypeConf(
    is_pep484_tower=True, is_random=False, violation_type=TypeError
  )
)
# jax puts shapes, shardings, None or stacks of rows where its arrays stand.
_PYTREES = ("Batch.__init__",)
# They say themselves, in words for users, what is wrong with a value.
_CHECK_THEMSELVES = (
  *("Problem.__init__", "Solution.__init__"),
  *("Scorer.score_text", "Scorer.cut_by"),
  *("Client.score", "Client.score_texts", "Client.score_conversations"),
)
_with_shapes = jaxtyping.jaxtyped
if sys.version_info < (3, 12):  # which itself looks a protocol's names up once
  typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
# Functions within functions that are checked, by their module, name and code.
_inner: dict[tuple[str, str, types.CodeType], Callable] = {}


def install(package: str) -> None:
  """Has each call in a package checked; to be called before its import."""
  jaxtyping.jaxtyped = _without_needless_shapes
  jaxtyping.install_import_hook(package, "typechecker.check")


def check(function: Callable) -> Callable:
  """Returns the function with its annotations checked at each call."""
  unchecked = (*_PYTREES, *_CHECK_THEMSELVES)
  return function if function.__qualname__ in unchecked else _BEARTYPE(function)


def _without_needless_shapes(*, typechecker: Callable) -> Callable:
  """Stands for jaxtyped, which the hook puts on each function and class.

  jaxtyped binds the arguments of every call, to compare their shapes. Where no
  annotation has any, that took a quarter of the time of the tests.
  """

  def decorate(target):
    if inspect.isclass(target):
      if dataclasses.is_dataclass(target) and not _checks_itself(target):
        target.__init__ = decorate(target.__init__)
      return target
    key = (target.__module__, target.__qualname__, target.__code__)
    if key in _inner:
      return _like(_inner[key], target)
    if _has_shapes(target):
      return _with_shapes(target, typechecker=typechecker)
    checked = typechecker(target)
    # It is made again at each call of the function around it.
    if "<locals>" in target.__qualname__ and checked is not target:
      _inner[key] = checked
    return checked

  return decorate


def _like(checked: Callable, function: Callable) -> Callable:
  """Returns a function checked as another one of the same code is."""
  made = types.FunctionType(checked.__code__, checked.__globals__)
  made.__kwdefaults__ = checked.__kwdefaults__ | {"__beartype_func": function}
  return functools.update_wrapper(made, function)


def _checks_itself(kind: type) -> bool:
  """Whether it is a value whose border checks its fields, in words for users."""
  return any(
    (x.__module__, x.__name__) == ("prm_jax.runtime.verbs", "Value")
    for x in kind.__mro__
  )


def _has_shapes(function: Callable) -> bool:
  try:
    hints = typing.get_type_hints(function)
  except Exception:  # A class that is to come: jaxtyped takes Any for it.
    return True
  return any(map(_is_shaped, hints.values()))


def _is_shaped(hint: Any) -> bool:
  """Whether it is a type of jaxtyping, or has one in it."""
  of = getattr(hint, "__module__", None) or ""
  return of.partition(".")[0] == "jaxtyping" or any(
    map(_is_shaped, typing.get_args(hint))
  )
