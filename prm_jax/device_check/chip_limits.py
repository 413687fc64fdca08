"""How far a right result may be from exact, derived from the number format.

A number that is rounded to nearest is off by at most `u` of its size: 2**-24 in
float32, 2**-8 in bfloat16 (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 2.1). Roundings are independent of each other, so
their squares add up: a sum of terms a_i, each rounded m times, is off by about
sqrt(m / 3) u sqrt(sum a_i^2), and by at most m u |a| where one term is all of
it. `m u sqrt(sum a_i^2)` covers both. What accumulates n terms in float32 adds
sqrt(n) roundings of that format.
"""

from __future__ import annotations

import math

ROUNDOFF = dict(
  float32=2.0**-24, bfloat16=2.0**-8, float16=2.0**-11, tfloat32=2.0**-11
)

# Roundings between inputs and results of attention. Values: queries times the
# scale, weights, the result. Gradients: these three again, the mean that the
# softmax takes off, its gradient, and the result.
VALUE_ROUNDINGS = 3
GRADIENT_ROUNDINGS = 6
# Of a layer, on the way from its input to its output: two norms, queries, keys
# and values, both rotations, weights, attended values, their projection, gate,
# up, their product, down, two sums.
LAYER_ROUNDINGS = 16


def attention(dtype: str, tokens: int, *, gradient: bool) -> float:
  """Returns the most that attention may be off, over a token's own scale.

  The scale is the root of the sum of squares of the terms that make up the
  token's result (attention.Plain). Exponentials and logarithms of float32 cost
  a rounding or two more than a product does: hence twice.

  Args:
    dtype: of queries, keys, values and results; sums are float32.
    tokens: of a row.
    gradient: of the gradients, else of the values.
  """
  roundings = GRADIENT_ROUNDINGS if gradient else VALUE_ROUNDINGS
  sums = 2 * (roundings + math.sqrt(tokens)) * ROUNDOFF["float32"]
  if dtype == "float32":
    return sums
  return roundings * ROUNDOFF[dtype] + sums


def model(dtype: str, layers: int, width: int) -> float:
  """Returns the most that a logit may be off, over the logits' spread.

  Both sides of a comparison round: twice. Of some thousand logits the largest
  error is about four times the typical one. float32 sums over the width add
  their roundings to those of each product.

  Args:
    dtype: of matmuls and activations; tfloat32: of the operands of matmuls.
    layers: how many.
    width: of the model, in channels.
  """
  u = ROUNDOFF[dtype] + math.sqrt(width) * ROUNDOFF["float32"]
  return 2 * 4 * math.sqrt(LAYER_ROUNDINGS * layers / 3) * u
