"""Keeps what a scan stacks in bfloat16 in 16 bits, on a CPU too.

A scan over layers slices stacks: of parameters, and of what the backward pass
needs of each layer. Before jax 0.11 XLA's CPU backend has no slices of bfloat16.
It converts the whole stack to float32, which takes twice its memory again.
Slices of 16-bit integers it has; the bits are the same. With a later jax
nothing is done here: once such a jax is the oldest that we support, this file
can go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core
from jaxtyping import Array

from prm_jax.models import matmul

IS_NEEDED = jax.__version_info__ < (0, 11)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function, whose scans slice bfloat16 stacks as integers.

  Elsewhere than on a CPU, and with a later jax, it is the function itself. It
  can't be differentiated; give a gradient's function.
  """

  def narrow(*args: Any) -> Any:
    if not IS_NEEDED or matmul.platform() != "cpu":
      return function(*args)
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    out = _run(closed, jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), out)

  return narrow


def _run(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
  """Returns what a traced function returns, with its scans narrowed."""
  values: dict[Any, Any] = {}

  def read(x: Any) -> Any:
    return x.val if isinstance(x, core.Literal) else values[x]

  jaxpr = closed.jaxpr
  values.update(zip(jaxpr.constvars, closed.consts, strict=True))
  values.update(zip(jaxpr.invars, args, strict=True))
  for equation in jaxpr.eqns:
    given = [read(x) for x in equation.invars]
    with equation.ctx.manager:
      if equation.primitive is core.primitives.scan_p:
        out = _scan(equation.params, given)
      else:
        bound = equation.primitive.get_bind_params(equation.params)
        out = equation.primitive.bind(*given, **bound)
        out = out if equation.primitive.multiple_results else [out]
    values.update(zip(equation.outvars, out, strict=True))
  return [read(x) for x in jaxpr.outvars]


def _scan(params: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
  """Returns what a scan returns; its bfloat16 stacks are integers in it."""
  body = core.jaxpr_as_fun(params["jaxpr"])
  first = params["num_consts"]
  last = first + params["num_carry"]
  consts, carry, stacks = given[:first], given[first:last], given[last:]
  types = [x.dtype for x in params["jaxpr"].out_avals[params["num_carry"] :]]

  def step(carry: Any, slices: Any) -> tuple[Any, Any]:
    slices = map(_as, slices, [x.dtype for x in stacks])
    out = body(*consts, *carry, *slices)
    made = out[params["num_carry"] :]
    return out[: params["num_carry"]], [_words(x) for x in made]

  carry, made = jax.lax.scan(
    step,
    list(carry),
    [_words(x) for x in stacks],
    length=params["length"],
    reverse=params["reverse"],
    unroll=params["unroll"],
  )
  return [*carry, *map(_as, made, types)]


def _words(x: Array) -> Array:
  """Returns a bfloat16 array's bits, and any other array as it is."""
  narrow = x.dtype == jnp.bfloat16
  return jax.lax.bitcast_convert_type(x, jnp.uint16) if narrow else x


def _as(x: Array, dtype: Any) -> Array:
  """Returns an array of which _words were taken."""
  narrow = dtype == jnp.bfloat16
  return jax.lax.bitcast_convert_type(x, dtype) if narrow else x
