"""A plan in words and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from prm_jax.plan import compile as plan_compile
from prm_jax.plan import topologies


def table(plan: plan_compile.Plan, price: float | None = None) -> str:
  """Returns what a person reads.

  Args:
    plan: The plan.
    price: What an hour of a chip costs; None isn't printed.
  """
  data, fsdp, tensor = plan.mesh
  n = data * fsdp * tensor
  rows = plan.rows // (data * fsdp)
  lines = {
    "chips": f"{n} ({plan.topology}), mesh data x fsdp x tensor = "
    f"{data} x {fsdp} x {tensor}",
    "parameters": f"{plan.parameters:,}",
    "rows": f"{plan.rows} of {plan.sequence_length:,} tokens an update,"
    f" {rows} a chip" + _in_turns(plan),
    "how": f"remat={plan.remat}, attention={plan.attention}",
    "memory": _memory(plan),
  }
  if plan.model_flops:
    lines["FLOPs a chip"] = (
      f"{plan.hardware_flops / 1e12:,.1f} TFLOP computed,"
      f" {plan.model_flops / 1e12:,.1f} the model's:"
      f" {plan.hardware_flops / plan.model_flops:.2f} times"
    )
  if plan.sent is not None:
    lines["sent a chip"] = _sent(plan)
  if plan.seconds:
    lines["at least"] = _seconds(plan)
    lines["the run"] = _run(plan, n, price)
  width = max(map(len, lines))
  text = [f"{name:<{width}}  {line}" for name, line in lines.items()]
  text += [f"{'note':<{width}}  {line}" for line in plan.warnings]
  return "\n".join(text)


def _in_turns(plan: plan_compile.Plan) -> str:
  if plan.microbatches == 1:
    return ""
  return f" in {plan.microbatches} turns"


def _memory(plan: plan_compile.Plan) -> str:
  of = plan.memory / topologies.GIB
  if plan.peak is None:
    return f"DOES NOT FIT in {of:.2f} GiB: {plan.refused}"
  assert plan.arguments is not None
  fits = "" if plan.fits else "DOES NOT FIT: "
  return (
    f"{fits}{plan.peak / topologies.GIB:.2f} of {of:.2f} GiB at its peak,"
    f" {plan.arguments / topologies.GIB:.2f} of them parameters, optimizer and rows"
  )


def _sent(plan: plan_compile.Plan) -> str:
  assert plan.sent is not None
  if not plan.sent.calls:
    return "nothing"
  parts = (
    f"{kind} {plan.sent.data[kind] / topologies.GIB:.2f} GiB"
    f" in {plan.sent.calls[kind]:,}"
    for kind in sorted(plan.sent.calls)
  )
  return ", ".join(parts)


def _seconds(plan: plan_compile.Plan) -> str:
  parts = (f"{name} {value:.3f} s" for name, value in plan.seconds.items())
  limit = max(plan.seconds, key=lambda name: plan.seconds[name])
  return (
    ", ".join(parts) + f" a step: {limit} is the limit;"
    f" MFU at most {mfu_limit(plan):.0%}"
  )


def _run(plan: plan_compile.Plan, chips: int, price: float | None) -> str:
  assert plan.hours is not None
  text = (
    f"{plan.steps:,} updates, at least {plan.hours:.2f} h and"
    f" {chips * plan.hours:,.2f} chip-hours"
  )
  if price is None:
    return text
  return f"{text}: {chips * plan.hours * price:,.2f} at {price:g} each"


def mfu_limit(plan: plan_compile.Plan) -> float:
  """Returns the model FLOPs utilisation if nothing but the bounds took time."""
  chip = topologies.parse(plan.topology).chip
  return plan.model_flops / chip.flops / max(plan.seconds.values())


def record(plan: plan_compile.Plan) -> dict[str, Any]:
  """Returns the plan for JSON."""
  sent = None if plan.sent is None else plan.sent._asdict()
  changed = dict(
    sent=sent, mesh=list(plan.mesh), fits=plan.fits, hours=plan.hours
  )
  return dataclasses.asdict(plan) | changed
