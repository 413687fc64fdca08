"""What the other tests lean on: a call that isn't as annotated is refused."""

import sys

from jax import numpy as jnp
import numpy as np
import pytest
import typechecker

CODE = """
from __future__ import annotations
import dataclasses
from collections.abc import Mapping
import jaxtyping
from jaxtyping import Float
import numpy as np
from prm_jax.rl import baselines

Sums = tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]

def plain(x: int, y: float = 1.0) -> int:
  return x if y else "none"

def shaped(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> int:
  return len(x)

def alias(both: Sums) -> int:
  return len(both)

def outer(k: int):
  def inner(x: int) -> int:
    return x + k
  return inner

def elsewhere(x: baselines.Compared, y: baselines.Compared) -> int:
  return len(x)

@dataclasses.dataclass
class Plain:
  x: int

@dataclasses.dataclass
class Shaped:
  x: Float[np.ndarray, "n"]
  y: Float[np.ndarray, "n"]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
  """A module that was imported through the hook."""
  (tmp_path / "hooked.py").write_text(CODE)
  monkeypatch.syspath_prepend(tmp_path)
  before = list(sys.meta_path)
  typechecker.install("hooked")
  import hooked

  yield hooked
  sys.meta_path[:] = before
  del sys.modules["hooked"]


TWO, THREE, WIDE = np.zeros(2), np.zeros(3), jnp.zeros((1, 4))


def test_what_is_as_annotated_passes(module):
  assert module.plain(3, 1) == 3
  assert module.shaped(TWO, TWO) == module.alias((TWO, TWO)) == 2
  assert module.elsewhere((WIDE, WIDE), (WIDE, WIDE)) == 2
  assert module.Plain(1).x == 1
  assert module.Shaped(TWO, TWO).y is TWO


@pytest.mark.parametrize(
  "call",
  [
    lambda m: m.plain("3"),
    lambda m: m.plain(3, 0),
    lambda m: m.shaped(TWO, 3),
    lambda m: m.shaped(TWO, THREE),
    lambda m: m.alias((TWO, THREE)),
    lambda m: m.elsewhere((WIDE, WIDE), (WIDE, WIDE[:, 1:])),
    lambda m: m.Plain(1.5),
    lambda m: m.Shaped(TWO, THREE),
  ],
)
def test_what_is_not_is_refused(module, call):
  with pytest.raises(TypeError, match=r"(?i)violates type hint|type-check"):
    call(module)


def test_only_calls_with_shapes_are_bound_for_them(module):
  def bound(function):
    return "jaxtyping" in function.__code__.co_filename

  assert not bound(module.plain) and not bound(module.Plain.__init__)
  assert bound(module.shaped) and bound(module.alias)
  assert bound(module.elsewhere)
  assert bound(module.Shaped.__init__)


def test_a_function_within_a_function_is_checked_each_time_it_is_made(module):
  one, two = module.outer(1), module.outer(2)
  assert (one(1), two(1)) == (2, 3)
  assert two.__name__ == "inner"
  for made in (one, two):
    with pytest.raises(TypeError):
      made(1.5)
