"""Arrays with every possible hole, and the laws of whatever takes a mask."""

from collections.abc import Callable
import functools
import itertools

import jax
from jax import numpy as jnp
import numpy as np


def every_mask(shape: tuple[int, ...]) -> np.ndarray:
  """Returns all masks of the shape, one after another."""
  number = int(np.prod(shape))
  masks = np.asarray(list(itertools.product([False, True], repeat=number)))
  return masks.reshape(-1, *shape)


def hide(arrays, mask):
  """Returns the arrays with NaN behind the mask."""
  return [np.where(mask, x, np.nan).astype(np.float32) for x in arrays]


def delete(array, mask):
  """Returns what is real, as a list; of two axes, the rows that aren't empty."""
  if array.ndim == 1:
    return [float(x) for x in array[mask]]
  rows = [delete(*row) for row in zip(array, mask)]
  return [row for row in rows if row]


def put_back(values, mask):
  """Returns the values of delete's form where they were, 0 elsewhere."""
  result = np.zeros(mask.shape, np.float64)
  result[mask] = np.concatenate([np.ravel(row) for row in [[], *values]])
  return result


@functools.cache
def _compiled(function: Callable, number: int) -> Callable:
  """Returns the function with its gradients, vmapped and jitted, once."""

  def loss(*arguments):
    values = function(*arguments)
    return jnp.square(values).sum(), values

  return jax.jit(jax.vmap(jax.grad(loss, tuple(range(number)), has_aux=True)))


def _everything(function, shape, number, hidden):
  """Returns arrays and masks, and what the function makes of them."""
  masks = every_mask(shape)
  rng = np.random.default_rng(0)
  arrays = rng.normal(size=(number, *masks.shape)).astype(np.float32)
  given = hide(arrays, masks) if hidden else arrays
  gradients, values = _compiled(function, number)(*given, masks)
  return arrays, masks, np.asarray(values), [np.asarray(g) for g in gradients]


def check_values(
  function: Callable, oracle: Callable, shape: tuple[int, ...], number: int = 1
) -> None:
  """Asserts that what is masked equals what was deleted, under every mask.

  function(*arrays with NaN behind the mask, mask), vmapped and jitted, against
  oracle(*lists of what is left), which knows no mask.
  """
  arrays, masks, values, _ = _everything(function, shape, number, hidden=True)
  for i, mask in enumerate(masks):
    left = oracle(*(delete(array[i], mask) for array in arrays))
    np.testing.assert_allclose(
      values[i], put_back(left, mask), rtol=1e-4, atol=1e-5, err_msg=str(mask)
    )


def check_gradients(
  function: Callable, shape: tuple[int, ...], number: int = 1
) -> None:
  """Asserts that NaN behind a mask leaves gradients as they are, and 0 there."""
  _, masks, _, hidden = _everything(function, shape, number, hidden=True)
  _, _, _, clean = _everything(function, shape, number, hidden=False)
  for gradient, expected in zip(hidden, clean):
    assert np.any(gradient)
    np.testing.assert_array_equal(gradient[~masks], 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def check_plain(
  function: Callable, shape: tuple[int, ...], number: int = 1
) -> None:
  """Asserts that the plain function is the vmapped and jitted one."""
  arrays, masks, values, _ = _everything(function, shape, number, hidden=False)
  index = int(np.flatnonzero(masks.any(axis=tuple(range(1, masks.ndim))))[-2])
  plain = function(*(array[index] for array in arrays), masks[index])
  np.testing.assert_allclose(plain, values[index], rtol=1e-5, atol=1e-6)
