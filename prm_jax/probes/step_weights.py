"""How much an answer's probability rests on each step: its weight, and NLDD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

from prm_jax.probes import probed_policy

# Below these NLDD isn't defined: the margin in standard deviations of the
# logits, and the probability of the answer's first token (Ye et al. 2026, arXiv
# 2602.11201).
_LEAST_MARGIN, _LEAST_PROBABILITY = 1e-6, 1e-7

# How sure a policy is of an answer after all steps ("whole"), with step k
# corrupted ("corrupt") or left out ("left_out"), and after the steps up to the
# corrupted k ("cut").
Sure = Mapping[tuple[str, int], probed_policy.Sureness]


def of(
  places: Sequence[int], sure: Sure, is_right: bool | None
) -> dict[str, Any]:
  """Returns the weight of each step, and NLDD where it is defined.

  Args:
    places: The steps.
    sure: How sure the policy was of the answer.
    is_right: Whether the answer is right, or None.
  """
  whole = sure["whole", 0]

  def weights(what):
    return [
      whole.log_prob - sure[what, k].log_prob if (what, k) in sure else None
      for k in places
    ]

  out = dict(
    log_prob=whole.log_prob,
    weight_corrupted=weights("corrupt"),
    weight_left_out=weights("left_out"),
  )
  if whole.margin is None:
    return out
  out["nldd_skipped"] = _undefined(whole, is_right)
  if out["nldd_skipped"] is None:
    out["nldd"] = [
      nldd(whole.margin, float(sure["cut", k].margin or 0))
      if ("cut", k) in sure
      else None
      for k in places
    ]
  return out


def nldd(clean: float, corrupted: float) -> float:
  """Returns how much of an answer's margin is gone, in per cent.

  The paper divides both margins by the same number, which cancels.

  Args:
    clean: The margin of the answer's first token after all steps.
    corrupted: That after the steps up to a corrupted one.
  """
  return 100 * (clean - corrupted) / abs(clean)


def _undefined(
  whole: probed_policy.Sureness, is_right: bool | None
) -> str | None:
  """Returns why a solution has no NLDD, None if it has."""
  assert whole.margin is not None and whole.first_log_prob is not None
  if not is_right:
    return "answer_not_right"
  if abs(whole.margin) <= _LEAST_MARGIN * float(whole.logit_std or 0):
    return "margin_of_0"
  if whole.first_log_prob < math.log(_LEAST_PROBABILITY):
    return "improbable"
  return None
