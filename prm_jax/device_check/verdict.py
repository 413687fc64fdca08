"""What all results come to, and the config fields that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.device_check import results
from prm_jax.runtime import files

RIGHT, WRONG, UNKNOWN = "right here", "wrong here", "unknown here"


def of(record: results.Record) -> dict[str, Any]:
  """Returns the verdict as JSON data.

  Args:
    record: all that was planned, and the results.

  Returns:
    verdict: right here, wrong here (a required check failed) or unknown here
    (none failed, and one didn't run). failed, missing: names of required
    checks. below: of others that failed, a goal of speed or a crash. set:
    config fields, each with its reason.
  """
  status = {r.name: r.status for r in record.results}
  required = [x.name for x in record.planned if x.required]
  failed = [name for name in required if status.get(name) == "fail"]
  missing = [
    name for name in required if status.get(name, "not run") == "not run"
  ]
  below = [
    r.name for r in record.results if r.status == "fail" and not r.required
  ]
  if failed:
    verdict = WRONG
  elif missing or not required:
    verdict = UNKNOWN
  else:
    verdict = RIGHT
  return dict(
    verdict=verdict,
    failed=failed,
    missing=missing,
    below=below,
    set=advice(record, failed),
  )


def advice(
  record: results.Record, failed: Sequence[str]
) -> list[dict[str, str]]:
  """Returns the config fields to set here: field, value, why."""
  found = []
  by_name = {r.name: r for r in record.results}
  by_kind = [
    name.split(".")
    for name in failed
    if name.startswith("attention.") or "_is_alone." in name
  ]
  kinds = {
    parts[1] if parts[0] == "attention" else parts[2] for parts in by_kind
  }
  # Where the plain formula fails, too, it's not the kernels.
  if kinds and "reference" not in kinds:
    found.append(
      dict(
        field="model.attention",
        value="reference",
        why=f"wrong here: {', '.join(sorted(kinds))}; it needs more memory",
      )
    )
  bits = by_name.get("machine.float32_bits")
  if bits is not None and bits.number is not None and bits.number < 20:
    found.append(
      dict(
        field="JAX_DEFAULT_MATMUL_PRECISION",
        value="highest",
        why="only with model.compute_dtype=float32: matmuls round to"
        f" {bits.number:.0f} bits otherwise",
      )
    )
  for r in record.results:
    if r.name.startswith("speed.update.") and r.details.get("fit"):
      found += _of_fit(r.name.rpartition(".")[2], r.details["fit"])
  return found


def _of_fit(shape: str, fit: Mapping[str, Any]) -> list[dict[str, str]]:
  """Returns what trains a shape here; nothing of the one for CPUs."""
  if shape == "small":
    return []
  if fit["layers"] < fit["all_layers"]:
    return [
      dict(
        field="mesh",
        value="more devices",
        why=f"shape {shape} doesn't fit one: {fit['layers']} of"
        f" {fit['all_layers']} layers do",
      )
    ]
  names = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "memory_fraction",
    "model.remat": "remat",
    "rows": "rows",
    "sequence_length": "sequence_length",
    "optimizer.momentum_dtype": "momentum_dtype",
  }
  return [
    dict(field=field, value=str(fit[name]), why=f"fits here, shape {shape}")
    for field, name in names.items()
    if fit[name]
  ]


def table(record: results.Record) -> str:
  """Returns groups, what isn't as it should be, and the verdict, as text."""
  verdict = record.verdict or of(record)
  by_name = {r.name: r for r in record.results}
  found = [
    by_name.get(x.name, results.Result(x.name, "not run", x.required))
    for x in record.planned
  ]
  groups: dict[str, list[results.Result]] = {}
  for r in found:
    groups.setdefault(".".join(r.name.split(".")[:2]), []).append(r)
  width = max(map(len, ("group", *groups)))
  lines = [
    f"{'group':<{width}}  {'pass':>4}  {'fail':>4}  {'not run':>7}  seconds  nearest its limit"
  ]
  for name, members in groups.items():
    counts = [sum(r.status == s for r in members) for s in results.STATUSES]
    seconds = sum(r.seconds for r in members)
    lines.append(
      f"{name:<{width}}  {counts[0]:>4}  {counts[1]:>4}  {counts[2]:>7}"
      f"  {seconds:7.1f}  {_nearest(members)}".rstrip()
    )
  lines.append("")
  lines += [r.line() for r in found if r.status == "fail"]
  lines += [
    f"set {x['field']}={x['value']}   ({x['why']})" for x in verdict["set"]
  ]
  for words, names in (
    ("failed", verdict["failed"]),
    ("required and not run", verdict["missing"]),
    ("below its goal, or crashed, and not required", verdict["below"]),
  ):
    if names:
      more = f" and {len(names) - 5} more" if len(names) > 5 else ""
      lines.append(f"{words}: {', '.join(names[:5])}{more}")
  machine = record.machine
  lines.append(
    f"{machine.get('num_devices', 0)} x {machine.get('device_kind', 'unknown')},"
    f" jax {machine.get('packages', {}).get('jax', 'unknown')},"
    f" {record.mode}: {verdict['verdict']}"
  )
  return "\n".join(lines)


def _nearest(members: Sequence[results.Result]) -> str:
  """Returns the greatest share that a number has of its limit, in words."""
  shares = {
    r.name: r.number / r.limit
    for r in members
    if r.number is not None and r.limit and not r.at_least
  }
  if not shares:
    return ""
  name = max(shares, key=lambda name: shares[name])
  rest = ".".join(name.split(".")[2:])
  return f"{shares[name]:.2f} of it{f': {rest}' if rest else ''}"


def compared(record: results.Record, old: results.Record) -> list[str]:
  """Returns in words what differs from an older record, worst first.

  That it is of another machine, code or mode; a status that changed; a number
  without a limit, or with a goal, that changed by more than a tenth; a check
  that the other hasn't.
  """
  lines = []
  for name in sorted(files.differences(old.machine, record.machine)):
    values = (x.machine.get(name) for x in (old, record))
    lines.append("{}: {} before, {} now".format(name, *values))
  for name in ("mode", "code"):
    before, now = getattr(old, name), getattr(record, name)
    if before != now:
      lines.append(f"{name}: {before} before, {now} now")
  earlier = {r.name: r for r in old.results}
  changed, new = [], []
  numbers: list[tuple[float, str]] = []
  for r in record.results:
    was = earlier.pop(r.name, None)
    if was is None:
      new.append(f"{r.name}: not in the older result")
    elif was.status != r.status:
      changed.append(f"{r.name}: {was.status} before, {r.status} now")
    elif r.number and was.number and (r.limit is None or r.at_least):
      ratio = r.number / was.number
      words = f"{was.number:.3g} before, {r.number:.3g} {r.unit}".strip()
      if not 0.9 <= ratio <= 1.1:
        numbers.append((ratio, f"{r.name}: {words} now: {ratio:.2f} times"))
  gone = [f"{name}: only in the older result" for name in earlier]
  return [*lines, *changed, *(text for _, text in sorted(numbers)), *new, *gone]
