"""The demo's result as one HTML page: no network, no script, no other file.

report.html is its template (reports/html.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.runtime import files

# A step whose score is below this is doubted (ProcessBench's threshold).
THRESHOLD = 0.5


# In the order of the tables; pictures draw the first on top.
_LOOKS = {
  "prm": plot.Look("PRM", "k0", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", width=3),
  "prm_mc": plot.Look("Monte-Carlo PRM", "k1", "M0-5L5 0L0 5L-5 0z", "10 4"),
  "orm": plot.Look("ORM", "k2", "M0-5L4.6 3.4H-4.6z"),
  "majority": plot.Look(
    "Majority vote", "k4", "M-3.5-3.5h7v7h-7z", "6 4", filled=False
  ),
  "weighted_prm": plot.Look(
    "PRM-weighted vote", "k3", "M-3.5-3.5h7v7h-7z", "9 3 2 3"
  ),
  "weighted_orm": plot.Look(
    "ORM-weighted vote", "k8", "M0 5L4.6-3.4H-4.6z", "5 2"
  ),
  "logprob": plot.Look(
    "Log-probability", "k5", "M-4-4L4 4M-4 4L4-4", "2 4", filled=False
  ),
  "logprob_min": plot.Look(
    "Least log-probability", "k9", "M0-5V5", "3 2 8 2", filled=False
  ),
  "oracle": plot.Look(
    "Oracle (pass@N)",
    "k6",
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "1 3",
    filled=False,
  ),
}
# Curves that we don't know by name take these in turn.
_OTHER_LOOKS = (
  plot.Look("", "k7", "M-5 0H5M0-5V5", "12 3", filled=False),
  plot.Look("", "k7", "M-4 0H4M-4-3V3", "4 2 1 2"),
  plot.Look("", "k7", "M-4-4H4", "2 2", filled=False),
)


def render(
  results: Mapping[str, Any],
  showcase: Sequence[Mapping[str, Any]],
  reliability: Mapping[str, Sequence[Mapping[str, float | None]]],
  details: Mapping[str, Any],
) -> str:
  """Returns the page.

  Args:
    results: the content of results.json. Further curves are drawn too, and a
      further mapping `step_METRIC: {model: value}` is one more column beside
      the reliability plots.
    showcase: {"problem", "answer", "picked_by", "steps", "labels": 0, 1 or
      None of each step, "scores": {model: one float per step}, "outcome",
      "solution_answer"} of each solution to show.
    reliability: {model: bins of {"score": mean, "correct": share, "count"}}.
    details: {"config", "versions", "machine", "command"} and, if wanted,
      "train": {model: [[step, loss], ...]}.

  Raises:
    InputError: curves, intervals, labels or scores of the wrong length.
  """
  _check(results, showcase)
  seconds = dict(results.get("seconds", {}))
  train = {k: v for k, v in (details.get("train") or {}).items() if v}
  total = seconds.pop("total", None) or sum(seconds.values())
  return html.fill(
    "report.html",
    label=_label,
    threshold=THRESHOLD,
    results=results,
    looks=_looks(results["accuracy"]),
    verdict=verdict(results),
    wide=_best_of_n(results, 960, 470),
    narrow=_best_of_n(results, 360, 330, key="below"),
    paired=_paired(results.get("paired", {})),
    reliability=[
      _reliability(look, reliability[name])
      for name, look in _looks(reliability).items()
    ],
    step_metrics=_step_metrics(results, reliability),
    solutions=[card(entry) for entry in showcase],
    seconds=seconds,
    total_s=total,
    train=[_losses(look, train[name]) for name, look in _looks(train).items()],
    details=details,
  )


def write(path: files.PathLike, *args, **kwargs) -> None:
  """Writes `render(...)` to `path`, all or nothing."""
  text = render(*args, **kwargs)
  with files.replacing(path) as f:
    f.write(text)


def figure(results: Mapping[str, Any]) -> bytes:
  """Returns the best-of-N picture as an SVG file that stands alone."""
  _check(results, ())
  return html.draw(_best_of_n(results, 960, 470))


def training_figure(train: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
  """Returns the losses {model: [[update, loss], ...]} as an SVG file."""
  curves, most, highest = [], 1.0, 0.0
  for name, look in _looks(train).items():
    kept = [(step, loss) for step, loss in train[name] if math.isfinite(loss)]
    if not kept:
      continue
    x, y = (list(values) for values in zip(*kept, strict=True))
    most, highest = max(most, *x), max(highest, *y)
    notes = [f"{look.label}, update {a:g}: {b:.3f} nats" for a, b in kept]
    curves.append({"look": look, "x": x, "y": y, "notes": notes, "band": []})
  picture = plot.lay_out(
    curves,
    title="Loss of each update's rows, in training",
    x_label="update",
    y_label="loss, nats per target",
    x_ticks=[(t, f"{t:g}") for t in plot.round_ticks(0, most)],
    y_ticks=[(t, f"{t:g}") for t in plot.round_ticks(0, highest)],
    size=(760, 360),
    key="right",
  )
  return html.draw(picture)


# --- Sentences --------------------------------------------------------------


def verdict(results: Mapping[str, Any]) -> str:
  """Returns two plain sentences: PRM against ORM, and against majority.

  The PRM wins only where the paired 95 % interval lies above 0.
  """
  n, accuracy = results["n"], results["accuracy"]
  prm, orm, majority = (accuracy[k] for k in ("prm", "orm", "majority"))
  first = (
    f"With {n[-1]} samples to choose from, the PRM picks a right answer for"
    f" {html.percent(prm[-1])} % of the problems and the ORM for"
    f" {html.percent(orm[-1])} %: {_compare(results, 'orm')}."
  )
  second = (
    f"Majority vote over the same samples gets {html.percent(majority[-1])} %:"
    f" {_compare(results, 'majority')}"
  )
  best = max(range(len(n)), key=lambda i: prm[i])
  ranges = results.get("interval", {}).get("prm")
  if prm[best] > (ranges[-1][1] if ranges else prm[-1]):
    second += (
      "; and more samples do not always help the PRM, which was at"
      f" {html.percent(prm[best])} % with {n[best]}"
    )
  return f"{first} {second}."


def _compare(results, other):
  """Returns who is ahead at the largest N, with the paired interval."""
  n, accuracy = results["n"][-1], results["accuracy"]
  found = results.get("paired", {}).get(f"prm_minus_{other}_at_{n}")
  if found is None:
    points = html.points(accuracy["prm"][-1] - accuracy[other][-1])
    return f"a difference of {points} points whose interval was not measured"
  low, high = (html.points(found[k]) for k in ("low", "high"))
  interval = f"(95 % interval {low} to {high})"
  size = html.percent(abs(found["mean"]))
  if found["low"] > 0:
    return f"the PRM is ahead by {size} points {interval}"
  if found["high"] < 0:
    return f"the PRM does not win, it is behind by {size} points {interval}"
  return (
    f"the PRM does not win, its difference of {html.points(found['mean'])}"
    f" points can't be told from 0 {interval}"
  )


def comment(
  labels: Sequence[float | None],
  scores: Sequence[float],
  outcome: bool | None = None,
) -> tuple[str, str]:
  """Returns ("right", "wrong" or "open", one line) about the PRM's judgement.

  It compares the first step whose label is below THRESHOLD with the first
  whose score is. A right answer after a wrong step is called luck.
  """
  error = schema.first_error(labels, THRESHOLD)
  doubt = schema.first_error(scores, THRESHOLD)
  luck = " The answer is right all the same, by luck." if outcome else ""

  def step(i):
    return f"step {i + 1} (score {scores[i]:.3f})"

  if all(label is None for label in labels):
    return "open", "No step has an exact label: nothing to compare with."
  if doubt >= 0 and labels[doubt] is None and not 0 <= error < doubt:
    return "open", f"The PRM doubts {step(doubt)}, which has no exact label."
  if error < 0 and doubt < 0:
    return "right", "The PRM is right: no step is wrong and it doubts none."
  if error < 0:
    return "wrong", f"The PRM is wrong: false alarm at {step(doubt)}."
  if doubt == error:
    return "right", f"The PRM finds the first error, {step(error)}.{luck}"
  if doubt < 0:
    return "wrong", f"The PRM misses the error at {step(error)}.{luck}"
  if doubt < error:
    return "wrong", (
      f"The PRM is wrong: false alarm at {step(doubt)}, before the first error"
      f" at step {error + 1}.{luck}"
    )
  return "wrong", (
    f"The PRM misses the first error, {step(error)}, and only doubts"
    f" {step(doubt)}.{luck}"
  )


# --- Pictures ---------------------------------------------------------------


def _looks(curves: Mapping[str, Any]) -> dict[str, plot.Look]:
  """Returns the look of each curve, the known ones first."""
  looks = {k: look for k, look in _LOOKS.items() if k in curves}
  others = itertools.cycle(_OTHER_LOOKS)
  for name in curves:
    if name not in looks:
      looks[name] = dataclasses.replace(next(others), label=_label(name))
  return looks


def _best_of_n(results, width, height, key="right"):
  n, ranges = results["n"], results.get("interval", {})
  curves, lowest = [], 0.8
  for name, look in _looks(results["accuracy"]).items():
    y, band = results["accuracy"][name], ranges.get(name, [])
    lowest = min(lowest, *y, *itertools.chain(*band))
    notes = [
      f"{look.label}, N = {c}: {html.percent(v)} %" for c, v in zip(n, y)
    ]
    for i, (low, high) in enumerate(band):
      notes[i] += f" ({html.percent(low)} to {html.percent(high)})"
    x = [math.log2(count) for count in n]
    curves.append({"look": look, "x": x, "y": y, "notes": notes, "band": band})
  y_ticks = plot.round_ticks(lowest, 1.0)
  return plot.lay_out(
    curves,
    title="Share of problems answered right against the number of samples N",
    x_label="samples per problem, N (log scale)",
    y_label="right answers, %",
    x_ticks=[(math.log2(count), str(count)) for count in n],
    y_ticks=[(y, f"{100 * y:g}") for y in y_ticks],
    size=(width, height),
    key=key,
  )


def _reliability(look, bins):
  bins = [b for b in bins if b["count"]]  # an empty bin has no mean
  notes = [
    f"mean score {b['score']:.3f}, right {html.percent(b['correct'])} %,"
    f" {b['count']} steps"
    for b in bins
  ]
  x, y = ([b[k] for b in bins] for k in ("score", "correct"))
  ticks = [(i / 4, f"{i / 4:g}") for i in range(5)]
  return plot.lay_out(
    [{"look": look, "x": x, "y": y, "notes": notes, "band": []}],
    title=look.label,
    x_label="mean score of the bin",
    y_label="share of right steps",
    x_ticks=ticks,
    y_ticks=ticks,
    size=(400, 350),
    diagonal=True,
  )


def _losses(look, pairs, most=120):
  """Plots a loss; beyond `most` points, means of equal runs of them."""
  finite = [pair for pair in pairs if math.isfinite(pair[1])] or [(0, 0.0)]
  run = math.ceil(len(finite) / most)
  runs = [list(zip(*finite[i : i + run])) for i in range(0, len(finite), run)]
  words = f" (means of {run} logged losses)" if run > 1 else ""
  if lost := sum(not math.isfinite(loss) for _, loss in pairs):
    words += f"; {lost} not finite, left out"
  x = [steps[-1] for steps, _ in runs]
  y = [sum(losses) / len(losses) for _, losses in runs]
  return plot.lay_out(
    [{"look": look, "x": x, "y": y, "notes": [], "band": []}],
    title=look.label,
    x_label=f"update{words}",
    y_label="loss",
    x_ticks=[(t, f"{t:g}") for t in plot.round_ticks(0, x[-1])],
    y_ticks=[(t, f"{t:g}") for t in plot.round_ticks(min(0, *y), max(y))],
    size=(300, 220),
  )


# --- Rows of the tables -----------------------------------------------------


def _label(name: str) -> str:
  look = _LOOKS.get(name)
  return look.label if look else str(name).replace("_", " ")


def _paired(pairs):
  """Returns the differences, with places in percent of an axis through 0."""
  low = min((v["low"] for v in pairs.values()), default=0)
  high = max((v["high"] for v in pairs.values()), default=0)
  low, high = min(low, 0), max(high, 0)

  def at(value):
    return f"{3 + 94 * (value - low) / ((high - low) or 1):.2f}%"

  return [
    dict(
      value,
      label=_paired_label(name),
      at=dict({k: at(value[k]) for k in ("mean", "low", "high")}, zero=at(0)),
    )
    for name, value in pairs.items()
  ]


def _paired_label(name: str) -> str:
  """Returns "PRM - ORM, N = 4" for "prm_minus_orm_at_4"."""
  sides = [
    (_label(model), at)
    for model, at in re.findall(
      r"(.+?)(?:_at_(\d+))?(?:_minus_|\Z)", name, re.DOTALL
    )
  ]
  minus = " \N{MINUS SIGN} "
  if len(sides) == 2 and not sides[0][1]:
    at = f", N = {sides[1][1]}" if sides[1][1] else ""
    return sides[0][0] + minus + sides[1][0] + at
  return minus.join(m + (f" at N = {at}" if at else "") for m, at in sides)


def _step_metrics(results, reliability):
  """Returns (columns, {model: values}); ECE follows from the bins."""
  columns = {
    key.removeprefix("step_").upper(): dict(values)
    for key, values in results.items()
    if key.startswith("step_") and isinstance(values, Mapping)
  }
  for name, bins in reliability.items():
    total = sum(b["count"] for b in bins)
    off = sum(
      b["count"] * abs(b["score"] - b["correct"]) for b in bins if b["count"]
    )
    columns.setdefault("ECE", {}).setdefault(
      name, off / total if total else None
    )
    columns.setdefault("steps", {})[name] = total
  models = dict.fromkeys(itertools.chain(*columns.values()))
  return list(columns), {
    _label(m): [values.get(m) for values in columns.values()] for m in models
  }


def card(entry: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a solution with its one line, and what each step's row shows.

  entry: one of render's showcase.
  """
  steps, scores = entry["steps"], entry["scores"]
  labels = entry["labels"] or [None] * len(steps)
  prm = scores.get("prm")
  kind, line = "open", "The PRM did not score this solution."
  if prm is not None:
    kind, line = comment(labels, prm, entry["outcome"])
  error = schema.first_error(labels, THRESHOLD)
  rows = [
    {
      "text": text,
      "label": None if labels[i] is None else labels[i] >= THRESHOLD,
      "score": None if prm is None else prm[i],
      "others": [scores[k][i] for k in scores if k != "prm"],
      # After the first error a label says no more about this step alone.
      "judged": not 0 <= error < i,
    }
    for i, text in enumerate(steps)
  ]
  return dict(
    entry,
    kind=kind,
    comment=line,
    rows=rows,
    picked_by=_label(entry["picked_by"]),
    others=[
      _label(k).replace("Monte-Carlo ", "MC-") for k in scores if k != "prm"
    ],
  )


def _check(results, showcase):
  """Raises InputError where lengths don't match or numbers aren't finite."""
  n, accuracy = results.get("n"), results.get("accuracy", {})
  if not n or list(n) != sorted(set(n)) or n[0] < 1:
    raise errors.InputError(
      'results: "n" must be rising numbers of samples from 1; evaluate again'
    )
  for name in ("prm", "orm", "majority"):
    if name not in accuracy:
      raise errors.InputError(
        f'results: "accuracy" has no "{name}"; evaluate it too'
      )
  for kind in ("accuracy", "interval"):
    for name, values in results.get(kind, {}).items():
      flat = itertools.chain(*values) if kind == "interval" else values
      if len(values) != len(n) or not all(map(math.isfinite, flat)):
        raise errors.InputError(
          f'results: "{kind}" of {name!r} must be {len(n)} finite entries,'
          ' one for each of "n"; evaluate again'
        )
  for i, entry in enumerate(showcase):
    length = len(entry["steps"])
    for name, values in [("labels", entry["labels"]), *entry["scores"].items()]:
      if values is not None and len(values) != length:
        raise errors.InputError(
          f"showcase[{i}]: {len(values)} of {name!r} for {length} steps;"
          " give one per step"
        )
