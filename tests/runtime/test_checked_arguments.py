"""A public function refuses what its annotations don't allow, and no more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import inspect
import os
import pathlib
from typing import Any, Literal

import numpy as np
import pytest

import prm_jax
from prm_jax import errors
from prm_jax.runtime import arguments


@arguments.checked
def _called(
  path: str | os.PathLike[str] = "x",
  number: float = 1.0,
  count: int | None = None,
  words: Sequence[str] = (),
  each: Iterable[int] = (),
  how: Literal["a", "b"] = "a",
  function: Callable[[int], int] = abs,
  fields: Mapping[str, Any] | None = None,
  anything: Any = None,
  *rest: int,
  **more: int,
) -> str:
  return "called"


@pytest.mark.parametrize(
  "given",
  [
    dict(path=pathlib.Path("x"), number=1, count=np.int64(3)),
    dict(words=["a"], each=iter(["not read"]), how="b"),
    dict(function=len, fields={}, anything=object(), further="unchecked"),
    dict(number=float("nan"), number_of=1),
  ],
)
def test_what_annotations_allow_is_called(given):
  assert _called(**given) == "called"


@pytest.mark.parametrize(
  ("name", "value", "expected"),
  [
    ("path", 3, "a path"),
    ("path", b"x", "a path"),
    ("number", "1", "float"),
    ("number", True, "float"),
    ("count", 1.5, "int | None"),
    ("words", "one", "a list of str"),
    ("words", ["a", 1], "a list of str"),
    ("each", 3, "a list of int"),
    ("how", "c", "a"),
    ("function", "abs", "a function"),
    ("fields", [], "None"),
  ],
)
def test_another_value_is_one_line_with_name_and_type(name, value, expected):
  with pytest.raises(errors.InputError) as e:
    _called(**{name: value})
  text = str(e.value)
  assert text.startswith(f"_called: {name} must be ") and "\n" not in text
  assert expected in text and repr(value) in text


def test_a_missing_or_unknown_argument_is_pythons_own_error():
  with pytest.raises(
    TypeError, match=r"load\(\) missing 1 required positional"
  ):
    prm_jax.load()
  with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
    prm_jax.load("x", nonsense=1)


def test_every_public_function_that_takes_values_is_checked():
  functions = {
    name: value
    for name in prm_jax._HOMES
    if inspect.isfunction(value := getattr(prm_jax, name))
  }
  assert {"load", "label", "train", "best_of_n"} <= {*functions}
  # A trajectory's records are read, and refused, one by one.
  for name in {*functions} - {"trajectory"}:
    assert hasattr(functions[name], "__wrapped__"), name
