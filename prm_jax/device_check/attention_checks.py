"""Attention kernels against the plain formula, values and gradients."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float
import numpy as np

from prm_jax import errors
from prm_jax.device_check import cases as cases_lib
from prm_jax.device_check import check_results
from prm_jax.device_check import chip_limits
from prm_jax.models import attention

# Bounds the logits that the plain formula holds at a time: half a GiB.
_MOST_LOGITS = 1 << 27


class Tensors(NamedTuple):
  """The result of attention and its gradients, or something of each token's.

  [B, T, H or K, C], or [B, T, H or K].
  """

  out: Any
  dq: Any
  dk: Any
  dv: Any


class Plain(NamedTuple):
  """What the formula gives, and each token's scale.

  The scale is the root of the sum of squares of the terms that are added up
  for a token, each as large as what is rounded in it: see limits.
  """

  exact: Tensors
  scales: Tensors


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns a check for each case and each kind that `auto` may take here.

  And for a kind that may take its place: not required, and after all others.
  """
  if setting.mode == "full":
    cases = [*cases_lib.PUBLISHED, *cases_lib.every()]
  elif setting.mode == "standard":
    cases = [*cases_lib.PUBLISHED, *cases_lib.covering()]
  else:
    cases = [cases_lib.PUBLISHED[0], *cases_lib.few()]
  if setting.small:
    cases = [cases_lib.shrunk(case) for case in cases]
  coming = [
    _check(case, "tokamax")
    for case in cases
    if case.dtype != "float32" and case.head_dim <= _most_channels()
  ]
  if not has_tokamax(setting):
    coming = [check_results.Check("attention.tokamax", _no_tokamax)]
  if setting.platform != "gpu":
    coming = []
  kinds = [
    attention.suited(setting.platform, case.tokens, case.dtype)
    for case in cases
  ]
  # Short rows, which the kernels aren't for, and float16 on a TPU.
  short = cases_lib.few()[:: 2 if setting.mode == "quick" else 1]
  cases += [
    cases_lib.with_tokens(case, 128 if setting.small else 512) for case in short
  ]
  kinds += ["reference"] * len(short)
  return [
    *(_check(case, kind) for case, kind in zip(cases, kinds, strict=True)),
    *(check._replace(required=False, stage="kernels") for check in coming),
  ]


def has_tokamax(setting: check_results.Setting) -> bool:
  """Returns whether model.attention=tokamax can be tried here."""
  is_installed = importlib.util.find_spec("tokamax") is not None
  return is_installed and setting.platform == "gpu" and 9 <= _capability() < 11


def _capability() -> float:
  """Returns a GPU's compute capability, as 9.0 of a Hopper; 0 of others."""
  return float(getattr(jax.devices()[0], "compute_capability", 0.0))


def _most_channels() -> int:
  """Returns how many channels Tokamax has room for; of a B200 its backward pass."""
  return 256 if _capability() < 10 else 128


def _no_tokamax(setting: check_results.Setting) -> check_results.Measured:
  raise check_results.NotRun(
    f"it needs tokamax ({errors.to_install('tokamax')}, Python 3.12) and a GPU"
    " of compute capability 9 or 10"
  )


def _check(case: cases_lib.Case, kind: str) -> check_results.Check:
  run = functools.partial(_measure, case, kind)
  name = f"attention.{kind}.{case.name}"
  return check_results.Check(name, run, lane=name)


def _measure(
  case: cases_lib.Case, kind: str, setting: check_results.Setting
) -> check_results.Measured:
  """Returns the error of the tensor that is nearest to its limit, or beyond."""
  del setting
  rows = cases_lib.make_rows(case)
  q, k, v, d_out = _inputs(case)
  plain = plain_attention(
    q, k, v, d_out, jnp.asarray(rows.sees), softcap=case.softcap
  )
  tensors = _attend(case, kind, rows, q, k, v, d_out)
  largest = jax.device_get(_errors(tensors, plain))._asdict()
  errors = {name: float(error) for name, error in largest.items()}
  bounds = {
    name: chip_limits.attention(case.dtype, case.tokens, gradient=name != "out")
    for name in errors
  }

  def share(name: str) -> float:
    # One that is no number is the worst.
    return np.nan_to_num(errors[name] / bounds[name], nan=np.inf)

  worst = max(errors, key=share)
  return check_results.Measured(
    errors[worst],
    "of scale",
    bounds[worst],
    note=f"the largest error, of {worst}",
    details=dict(errors=errors, case=dict(vars(case)), kind=kind),
  )


def _inputs(case: cases_lib.Case) -> tuple[Array, Array, Array, Array]:
  """Returns normally distributed q, k, v and the gradient of the result."""
  B, T, C, K = case.num_rows, case.tokens, case.head_dim, case.kv_heads
  H = K * case.queries_per_key
  keys = jax.random.split(jax.random.key(case.seed), 4)
  shapes = [(B, T, H, C), (B, T, K, C), (B, T, K, C), (B, T, H, C)]
  return tuple(  # type: ignore[return-value]
    jax.random.normal(key, shape).astype(case.dtype)
    for key, shape in zip(keys, shapes, strict=True)
  )


def _attend(
  case: cases_lib.Case,
  kind: str,
  rows: cases_lib.Rows,
  q: Array,
  k: Array,
  v: Array,
  d_out: Array,
) -> Tensors:
  """Returns what the code under test computes.

  float32 with the highest precision of matmuls: what a device makes of it by
  default is a line of its own (machine.float32_bits).
  """
  window = None
  if rows.window is not None:
    window = attention.Window(
      jnp.asarray(rows.positions), jnp.asarray(rows.window, jnp.int32)
    )

  @jax.jit
  def run(q, k, v, d_out, until, window):
    def attend(q, k, v):
      return attention.attend(
        q, k, v, until, kind, window, softcap=case.softcap
      )

    out, vjp = jax.vjp(attend, q, k, v)
    return Tensors(out, *vjp(d_out))

  precision = "highest" if case.dtype == "float32" else None
  with jax.default_matmul_precision(precision):
    return run(q, k, v, d_out, jnp.asarray(rows.visible_until), window)


@jax.jit
def _errors(tensors: Tensors, plain: Plain) -> Tensors:
  """Returns the largest error of a token over its scale, of each tensor."""

  def error(tensor, exact, scale):
    distance = jnp.linalg.norm(tensor.astype(jnp.float32) - exact, axis=-1)
    return (distance / scale).max()

  return Tensors(*map(error, tensors, plain.exact, plain.scales))


@functools.partial(jax.jit, static_argnames=("softcap",))
def plain_attention(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  d_out: Float[Array, "B T H C"],
  sees: Bool[Array, "B T T"],
  *,
  softcap: float | None,
) -> Plain:
  """Returns softmax(q k / sqrt(C)) v and its gradients, in float32.

  It is written out from the formula: one key head at a time, some queries at a
  time, all keys. It shares no code with what it is compared to.

  Args:
    q: The queries.
    k: The keys.
    v: The values.
    d_out: The gradient of the result.
    sees: Whether a query sees a key.
    softcap: Logits become softcap * tanh(logits / softcap); None keeps them.
  """
  B, T, H, C = q.shape
  K = k.shape[2]
  G, R = H // K, T
  while G * R * T > _MOST_LOGITS and R % 2 == 0:
    R //= 2
  scale = C**-0.5

  def by_key_head(x):
    """[B, T, K * g, C] -> [B * K, g, T, C]."""
    x = x.astype(jnp.float32).reshape(B, T, K, -1, C)
    return x.transpose(0, 2, 3, 1, 4).reshape(B * K, -1, T, C)

  def some_queries(k, v, carry, x):
    q, d_out, sees = x  # [G, R, C], [G, R, C], [R, T]
    logits = jnp.einsum("GRC,TC->GRT", q, k) * scale
    slope = jnp.ones(())
    if softcap is not None:
      tanh = jnp.tanh(logits / softcap)
      logits, slope = softcap * tanh, 1 - tanh**2
    weights = jax.nn.softmax(jnp.where(sees, logits, -jnp.inf), axis=-1)
    out = jnp.einsum("GRT,TC->GRC", weights, v)
    d_weights = jnp.einsum("GRC,TC->GRT", d_out, v)
    mean = (weights * d_weights).sum(-1, keepdims=True)
    d_logits = weights * (d_weights - mean) * slope * scale
    dq = jnp.einsum("GRT,TC->GRC", d_logits, k)
    dk = jnp.einsum("GRT,GRC->TC", d_logits, q)
    dv = jnp.einsum("GRT,GRC->TC", weights, d_out)
    # Each term with the squares of what is rounded in it: a product over
    # channels is off by the root of the sum of squares of its own terms.
    logits2 = jnp.einsum("GRC,TC->GRT", q**2, k**2) * scale**2
    d_weights2 = jnp.einsum("GRC,TC->GRT", d_out**2, v**2)
    mean2 = _squares(out * d_out)[..., None]
    rough2 = weights**2 * (1 + logits2)
    rough_d2 = (d_weights - mean) ** 2 + d_weights2 + mean2
    rough_d2 *= rough2 * scale**2
    out2 = jnp.einsum("GRT,T->GR", rough2, _squares(v)) + _squares(out)
    dq2 = jnp.einsum("GRT,T->GR", rough_d2, _squares(k))
    dk2 = jnp.einsum("GRT,GR->T", rough_d2, _squares(q))
    dv2 = jnp.einsum("GRT,GR->T", rough2, _squares(d_out))
    carry = jax.tree.map(jnp.add, carry, (dk, dv, dk2, dv2))
    return carry, (out, dq, out2, dq2)

  def one_head(x):
    q, k, v, d_out, sees = x
    k, v = k[0], v[0]

    def chunks(x, axis):
      shape = (*x.shape[:axis], T // R, R, *x.shape[axis + 1 :])
      return jnp.moveaxis(x.reshape(shape), axis, 0)

    zeros = (k * 0, v * 0, k[:, 0] * 0, v[:, 0] * 0)
    of_keys, of_queries = jax.lax.scan(
      functools.partial(some_queries, k, v),
      zeros,
      (chunks(q, 1), chunks(d_out, 1), chunks(sees, 0)),
    )
    # [T / R, G, R, ...] -> [G, T, ...]
    of_queries = jax.tree.map(
      lambda x: jnp.moveaxis(x, 0, 1).reshape(G, T, *x.shape[3:]), of_queries
    )
    return of_queries, of_keys

  with jax.default_matmul_precision("highest"):
    rows = jnp.repeat(jnp.arange(B), K)
    (out, dq, out2, dq2), (dk, dv, dk2, dv2) = jax.lax.map(
      lambda x: one_head((*x[:4], sees[x[4]])),
      (*map(by_key_head, (q, k, v, d_out)), rows),
    )

  def by_token(x, heads):
    return x.reshape(B, heads, T, -1).swapaxes(1, 2)

  heads = (H, H, K, K)
  exact = Tensors(*map(by_token, (out, dq, dk, dv), heads))
  scales = Tensors(*map(by_token, (out2, dq2, dk2, dv2), heads))
  return Plain(exact, Tensors(*(jnp.sqrt(x[..., 0]) for x in scales)))


def _squares(x: Float[Array, "*rows C"]) -> Float[Array, "*rows"]:
  return (x**2).sum(-1)
