"""What a fingerprint sees, and what it doesn't depend on."""

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from prm_jax.checkpoints import integrity

TYPES = (jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8, jnp.bool_)


def _values(dtype, shape=(8, 6)):
  random = np.random.default_rng(0)
  return jnp.asarray(random.integers(0, 2, shape), dtype)


def _one(x):
  return integrity.of(dict(x=x))["x"]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_any_element_and_any_bit_of_it_changes_a_fingerprint(dtype):
  whole = np.array(_values(dtype))
  seen = {_one(jnp.asarray(whole))}
  width = 8 * whole.itemsize if dtype != jnp.bool_ else 1
  changed = [(0, 0), (47, width - 1), (13, width // 2)]
  for place, bit in changed:
    words = whole.copy().reshape(-1).view(f"u{whole.itemsize}")
    words[place] ^= np.array(1 << bit, words.dtype)
    other = words.view(whole.dtype).reshape(whole.shape)
    seen.add(_one(jnp.asarray(other)))
  assert len(seen) == 1 + len(changed)


def test_elements_that_change_places_change_a_fingerprint():
  x = _values(jnp.float32)
  swapped = x.at[0].set(x[1]).at[1].set(x[0])
  assert not (x[0] == x[1]).all()
  square = x[:6]
  found = {_one(y) for y in (x, swapped, x.T, x.reshape(6, 8))}
  assert len(found) == 4
  assert _one(square) != _one(square.T)


def test_zeros_that_differ_in_sign_and_nans_that_differ_in_bits_are_seen():
  zeros = [_one(jnp.asarray(x, jnp.float32)) for x in (0.0, -0.0)]
  quiet, other = (
    jnp.asarray(np.array(bits, np.uint32).view(np.float32))
    for bits in (0x7FC00000, 0x7FC00001)
  )
  assert len({*zeros, _one(quiet), _one(other)}) == 4
  assert _one(quiet) == _one(quiet)


@pytest.mark.parametrize("spec", [("a",), (None, "b"), ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("on_host", [0, 2**20])
def test_sharding_changes_no_fingerprint(spec, on_host, monkeypatch):
  monkeypatch.setattr(integrity, "_ON_HOST", on_host)
  mesh = jax.make_mesh((4, 2), ("a", "b"))
  tree = dict(x=_values(jnp.float32, (8, 8)), y=_values(jnp.bfloat16, (8, 4)))
  placed = jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*spec)))
  assert integrity.of(placed) == integrity.of(tree)


def test_the_first_leaf_that_differs_is_named_and_what_isnt_there_isnt_asked():
  tree = dict(b=jnp.ones(3), a=jnp.zeros(2), c=jnp.zeros((0, 2)))
  said = integrity.of(tree)
  assert list(said) == ["a", "b", "c"]
  assert integrity.difference(said, said) is None
  other = said | integrity.of(dict(b=jnp.zeros(3), c=jnp.zeros((2, 0))))
  assert integrity.difference(said, other) == "b"
  assert integrity.difference(said, {"a": said["a"]}) is None
  assert integrity.difference(said, {"d": said["a"]}) == "d"


@pytest.mark.parametrize("layer", [None, np.uint32(3)])
def test_numpy_sums_small_leaves_as_the_program_for_large_ones_does(layer):
  shapes = ((), (0, 2), (8, 6), (2, 3, 2, 3))
  random = np.random.default_rng(0)
  tree = {
    f"{dtype.__name__}{shape}": jnp.asarray(
      100 * random.normal(size=shape), dtype
    )
    for dtype in TYPES
    for shape in shapes
  }
  found = integrity._sums(tree, layer)
  expected = jax.device_get(integrity._compiled_sums(tree, layer))
  assert all(isinstance(x, np.uint32) for sums in found.values() for x in sums)
  for name, sums in expected.items():
    assert [int(x) for x in found[name]] == [int(x) for x in sums], name


def test_leaves_of_equal_shapes_are_traced_once(monkeypatch):
  """A parameter and its moments; tracing takes longer than computing them."""
  monkeypatch.setattr(integrity, "_ON_HOST", 0)
  traced, words = [], integrity._words
  monkeypatch.setattr(
    integrity, "_words", lambda x: traced.append(x.shape) or words(x)
  )
  integrity.of({name: _values(jnp.float32, (5, 7)) for name in "abc"})
  assert traced == [(5, 7)]
