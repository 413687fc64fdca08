"""FLOPs of a traced function, from its jaxpr.

Not from the compiled program's cost_analysis: that counts the body of a loop
once however often it runs, and a kernel not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import math
from typing import Any

import jax
from jax.extend import core


@dataclasses.dataclass(frozen=True)
class Count:
  """The matmuls of a function, over all devices.

  Args:
    flops: Their FLOPs; a multiplication and its addition are two.
    kernel_matmuls: The matmuls inside kernels, each a pass over the queries and
      keys of a layer. How much of the square such a pass computes, only the
      kernel knows.
  """

  flops: int = 0
  kernel_matmuls: int = 0

  def __add__(self, other: Count) -> Count:
    return Count(
      self.flops + other.flops, self.kernel_matmuls + other.kernel_matmuls
    )

  def times(self, n: int, devices: int = 1) -> Count:
    """Returns it n times, what isn't in kernels on so many devices."""
    return Count(self.flops * n * devices, self.kernel_matmuls * n)


# The matmuls of cuDNN's kernels.
_CUDNN = {"dot_product_attention_fwd": 2, "dot_product_attention_bwd": 5}
# Those of the functions of models/tokamax_attention.py, by their names: in its
# kernels a loop is written twice, for blocks with a mask and without.
_TOKAMAX = {"tokamax_forward": 2, "tokamax_backward": 7}
_MOSAIC = ("core_map", "mpmd_map")


def count(jaxpr: Any) -> Count:
  """Returns the matmuls of a jaxpr.

  A scan's body counts as often as it runs, the longest branch of a
  conditional once, and what shard_map gives a device once per device.

  Raises:
    ValueError: a loop with matmuls runs nobody knows how often.
  """
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  return sum((_of_equation(e) for e in jaxpr.eqns), Count())


def _of_equation(e: Any) -> Count:
  name = e.primitive.name
  if name == "dot_general":
    return Count(flops=_dot(e))
  if name in _CUDNN:
    return Count(kernel_matmuls=_CUDNN[name])
  if e.params.get("name") in _TOKAMAX and _is_mosaic(e):
    return Count(kernel_matmuls=_TOKAMAX[e.params["name"]])
  if name == "pallas_call":
    return Count(kernel_matmuls=_matmuls(e.params["jaxpr"]))
  inner = [count(x) for x in _jaxprs(e)]
  if name == "cond":
    return max(inner, key=lambda x: (x.flops, x.kernel_matmuls))
  total = sum(inner, Count())
  if name == "scan":
    return total.times(e.params["length"])
  if name == "shard_map":
    sizes = e.params["mesh"].shape
    split = e.params["newly_manual_axes"]
    return total.times(1, math.prod(sizes[axis] for axis in split))
  if name == "while" and total != Count():
    raise ValueError(
      f"a while loop with {total}: how often it runs isn't in the program;"
      " take attention='reference', or a kernel"
    )
  return total


def _dot(e: Any) -> int:
  (contracted, _), _ = e.params["dimension_numbers"]
  left = e.invars[0].aval.shape
  depth = math.prod(left[i] for i in contracted)
  return 2 * math.prod(e.outvars[0].aval.shape) * depth


def _matmuls(jaxpr: Any) -> int:
  """Returns how many matmuls a kernel has: loops once, the longest branch."""
  total = 0
  for e in jaxpr.eqns:
    if e.primitive.name == "dot_general":
      total += 1
      continue
    inner = [_matmuls(x) for x in _jaxprs(e)]
    total += max(inner, default=0) if e.primitive.name == "cond" else sum(inner)
  return total


def _is_mosaic(e: Any) -> bool:
  """Returns whether a kernel of Pallas' Mosaic for GPUs is in an equation."""
  return e.primitive.name in _MOSAIC or any(
    map(_is_mosaic, (inner for x in _jaxprs(e) for inner in x.eqns))
  )


def _jaxprs(e: Any) -> Iterator[Any]:
  """Yields the jaxprs among an equation's parameters."""
  kinds = (core.ClosedJaxpr, core.Jaxpr)
  for leaf in jax.tree.leaves(
    list(e.params.values()), is_leaf=lambda x: isinstance(x, kinds)
  ):
    if isinstance(leaf, core.ClosedJaxpr):
      yield leaf.jaxpr
    elif isinstance(leaf, core.Jaxpr):
      yield leaf
