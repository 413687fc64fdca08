"""What all results come to, and the config fields that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.device_check import check_results
from prm_jax.runtime import files

RIGHT, WRONG, UNKNOWN = "right here", "wrong here", "unknown here"


def of(record: check_results.Record) -> dict[str, Any]:
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
  verdict = UNKNOWN if missing or not required else RIGHT
  return dict(
    verdict=WRONG if failed else verdict,
    failed=failed,
    missing=missing,
    below=[
      r.name for r in record.results if r.status == "fail" and not r.required
    ],
    set=_advice(record, failed),
  )


def _advice(
  record: check_results.Record, failed: Sequence[str]
) -> list[dict[str, str]]:
  """Returns the config fields to set here: field, value, why."""
  fields: list[tuple[str, str, str]] = []
  # attention.KIND.CASE and model.LAYOUT_is_alone.KIND.DTYPE
  kinds = {name.split(".")[1] for name in failed if name[:10] == "attention."}
  kinds |= {name.split(".")[2] for name in failed if "_is_alone." in name}
  # If the plain formula fails as well, the kernels aren't the cause.
  if kinds and "reference" not in kinds:
    why = f"wrong here: {', '.join(sorted(kinds))}; it needs more memory"
    fields.append(("model.attention", "reference", why))
  bits = record.known.get("machine.float32_bits")
  if bits is not None and bits < 20:
    why = "only with model.compute_dtype=float32: matmuls round to"
    why += f" {bits:.0f} bits otherwise"
    fields.append(("JAX_DEFAULT_MATMUL_PRECISION", "highest", why))
  for r in record.results:
    if r.name.startswith("speed.update.") and r.details.get("fit"):
      fields += _fields_of_fit(r.name.rpartition(".")[2], r.details["fit"])
  return [dict(field=field, value=x, why=why) for field, x, why in fields]


def _fields_of_fit(
  shape: str, fit: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
  """Returns what trains a shape here; nothing of those for CPUs."""
  if shape.startswith("small"):
    return []
  names = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "memory_fraction",
    "model.remat": "remat",
    "packing.batch_size": "rows",
    "packing.sequence_length": "sequence_length",
    "trainable": "trainable",
    "model.lora_rank": "lora_rank",
    "optimizer.momentum_dtype": "momentum_dtype",
  }
  return [
    (field, str(fit[name]), f"fits here, shape {shape}")
    for field, name in names.items()
    if fit.get(name)
  ]


def table(record: check_results.Record) -> str:
  """Returns groups, what isn't as it should be, and the verdict, as text."""
  verdict = record.verdict or of(record)
  by_name = {r.name: r for r in record.results}
  planned = [
    by_name.get(x.name, check_results.Result(x.name, "not run", x.required))
    for x in record.planned
  ]
  groups: dict[str, list[check_results.Result]] = {}
  for r in planned:
    groups.setdefault(".".join(r.name.split(".")[:2]), []).append(r)
  width = max(map(len, ("group", *groups)))
  lines = [
    f"{'group':<{width}}  {'pass':>4}  {'fail':>4}  {'not run':>7}  seconds  nearest its limit"
  ]
  for name, members in groups.items():
    counts = [
      sum(r.status == s for r in members) for s in check_results.STATUSES
    ]
    seconds = sum(r.seconds for r in members)
    lines.append(
      f"{name:<{width}}  {counts[0]:>4}  {counts[1]:>4}  {counts[2]:>7}"
      f"  {seconds:7.1f}  {_nearest(members)}".rstrip()
    )
  lines.append("")
  lines += [r.line() for r in planned if r.status == "fail"]
  lines += [
    f"set {x['field']}={x['value']}   ({x['why']})" for x in verdict["set"]
  ]
  for what, names in (
    ("failed", verdict["failed"]),
    ("required and not run", verdict["missing"]),
    ("below its goal, or crashed, and not required", verdict["below"]),
  ):
    if names:
      more = f" and {len(names) - 5} more" if len(names) > 5 else ""
      lines.append(f"{what}: {', '.join(names[:5])}{more}")
  machine = record.machine
  lines.append(
    f"{machine.get('num_devices', 0)} x {machine.get('device_kind', 'unknown')},"
    f" jax {machine.get('packages', {}).get('jax', 'unknown')},"
    f" {record.mode}: {verdict['verdict']}"
  )
  return "\n".join(lines)


def _nearest(members: Sequence[check_results.Result]) -> str:
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


def compared(
  record: check_results.Record, old: check_results.Record
) -> list[str]:
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
      change = f"{was.number:.3g} before, {r.number:.3g} {r.unit}".strip()
      if not 0.9 <= ratio <= 1.1:
        numbers.append((ratio, f"{r.name}: {change} now: {ratio:.2f} times"))
  gone = [f"{name}: only in the older result" for name in earlier]
  return [*lines, *changed, *(text for _, text in sorted(numbers)), *new, *gone]
