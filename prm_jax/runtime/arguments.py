"""Checks the arguments of public functions by their annotations."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
import functools
import inspect
import numbers
import reprlib
import types
import typing
from typing import Any

from prm_jax import errors
from prm_jax.runtime import checks

_F = typing.TypeVar("_F", bound=Callable[..., Any])


def checked(function: _F) -> _F:
  """Returns a function that refuses values which its annotations don't allow.

  Inside, the types can be trusted. Too many or too few arguments are Python's
  own TypeError. Arrays aren't checked: their functions say what is wrong.

  Args:
    function: A function or method; its annotations are read at its first call.
  """
  signature = inspect.signature(function)

  @functools.cache
  def hints() -> dict[str, Any]:
    found = typing.get_type_hints(function)
    kinds = {name: x.kind for name, x in signature.parameters.items()}
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
      k: x for k, x in found.items() if kinds.get(k, several[0]) not in several
    }

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    try:
      given = signature.bind(*args, **kwargs).arguments
    except TypeError:
      return function(*args, **kwargs)  # for Python's own message
    for name, hint in hints().items():
      if name in given and not _is_a(given[name], hint):
        raise errors.InputError(
          f"{function.__name__}: {name} must be {checks.type_name(hint)}, found"
          f" {reprlib.repr(given[name])}"
        )
    return function(*args, **kwargs)

  return typing.cast(_F, call)


def _is_a(value: Any, hint: Any) -> bool:
  """Returns whether a value may stand where a hint is; arrays always may."""
  if isinstance(value, numbers.Number) and hasattr(value, "item"):
    value = value.item()  # a number of numpy's
  origin, members = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    return any(_is_a(value, x) for x in members)
  if origin is typing.Literal:
    return value in members
  if origin is abc.Callable:
    return callable(value)
  if origin in (abc.Sequence, abc.Iterable):
    fits = isinstance(value, origin) and not isinstance(value, str | bytes)
    # What may be read only once isn't.
    listed = value if isinstance(value, list | tuple) else ()
    return fits and all(_is_a(x, members[0]) for x in listed)
  if origin is abc.Mapping:
    return isinstance(value, abc.Mapping)
  if getattr(hint, "_is_protocol", False):
    return all(hasattr(value, name) for name in _methods(hint))
  plain = (bool, int, float, str)
  if isinstance(hint, type) and not origin and hint not in (*plain, Any):
    return isinstance(value, hint)
  return checks.is_a(value, hint, finite=False)


def _methods(protocol: Any) -> list[str]:
  return [
    name
    for name, x in vars(protocol).items()
    if callable(x) and (name == "__call__" or not name.startswith("_"))
  ]
