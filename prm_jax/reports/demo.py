"""The demo's results as one HTML page: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.reports import html
from prm_jax.reports import plot

# A step whose score is below this is doubted (ProcessBench's threshold).
THRESHOLD = 0.5
# A curve of losses has no more points: means of successive ones, if needed.
_MAX_POINTS = 120

_Style, _Marker = plot.LineStyle, plot.Marker
_RING = _Marker("M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z", filled=False)
_DOWN, _BAR = _Marker("M0 5L4.6-3.4H-4.6z"), _Marker("M0-5V5", filled=False)
# In the order of the tables; pictures draw the first on top.
_STYLES = {
  "prm": _Style("PRM", "k0", width=3),
  "prm_mc": _Style("Monte-Carlo PRM", "k1", plot.DIAMOND, "10 4"),
  "orm": _Style("ORM", "k2", plot.TRIANGLE),
  "majority": _Style("Majority vote", "k4", plot.BOX, "6 4"),
  "weighted_prm": _Style("PRM-weighted vote", "k3", plot.SQUARE, "9 3 2 3"),
  "weighted_orm": _Style("ORM-weighted vote", "k8", _DOWN, "5 2"),
  "logprob": _Style("Log-probability", "k5", plot.CROSS, "2 4"),
  "logprob_min": _Style("Least log-probability", "k9", _BAR, "3 2 8 2"),
  "oracle": _Style("Oracle (pass@N)", "k6", _RING, "1 3"),
}
# Curves that we don't know by name take these in turn.
_OTHER_STYLES = (
  _Style("", "k7", _Marker("M-5 0H5M0-5V5", filled=False), "12 3"),
  _Style("", "k7", _Marker("M-4 0H4M-4-3V3"), "4 2 1 2"),
  _Style("", "k7", _Marker("M-4-4H4", filled=False), "2 2"),
)
_HEADLINE = ("prm", "prm_mc", "orm", "majority")


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
  curves, axes = _best_of_n(results)
  losses, loss_axes = _losses(details.get("train") or {})
  pairs = results.get("paired", {}).items()
  return html.fill(
    "demo.html",
    label=_label,
    threshold=THRESHOLD,
    results=results,
    styles=_styles(results["accuracy"]),
    summary=summary(results),
    headline=_headline(results),
    best_of_n=plot.wide_and_narrow(curves, axes, (470, 330)),
    paired=[dict(pair, label=_paired_label(name)) for name, pair in pairs],
    reliability=[
      (style.label, _reliability(style, reliability[name]))
      for name, style in _styles(reliability).items()
    ],
    step_metrics=_step_metrics(results, reliability),
    solutions=[
      card(s, f"{i} · picked by {_label(s['picked_by'])}")
      for i, s in enumerate(showcase, 1)
    ],
    seconds=_seconds(results),
    losses=plot.wide_and_narrow(losses, loss_axes, (360, 330))
    if losses
    else "",
    details=details,
  )


def figure(results: Mapping[str, Any]) -> bytes:
  """Returns the best-of-N picture as an SVG file."""
  _check(results, ())
  curves, axes = _best_of_n(results)
  return plot.draw(curves, axes, (960, 470), "right").encode()


def training_figure(train: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
  """Returns the losses {model: [[update, loss], ...]} as an SVG file."""
  curves, axes = _losses(train)
  return plot.draw(curves, axes, (760, 360), "right").encode()


# --- Sentences --------------------------------------------------------------


def summary(results: Mapping[str, Any]) -> str:
  """Returns two plain sentences: PRM against ORM, and against majority.

  The PRM wins only if the paired 95 % interval lies above 0.
  """
  n, accuracy = results["n"], results["accuracy"]
  prm = accuracy["prm"]
  last = {name: html.percent(values[-1]) for name, values in accuracy.items()}
  text = (
    f"With {n[-1]} samples to choose from, the PRM picks a right answer for"
    f" {last['prm']} % of the problems and the ORM for {last['orm']} %:"
    f" {_compare(results, 'orm')}. Majority vote over the same samples gets"
    f" {last['majority']} %: {_compare(results, 'majority')}"
  )
  best = max(range(len(n)), key=lambda i: prm[i])
  ranges = results.get("interval", {}).get("prm")
  if prm[best] > (ranges[-1][1] if ranges else prm[-1]):
    text += (
      "; and more samples do not always help the PRM, which was at"
      f" {html.percent(prm[best])} % with {n[best]}"
    )
  return f"{text}."


def _compare(results, other):
  """Returns which is ahead at the largest N, with the paired interval."""
  n, accuracy = results["n"][-1], results["accuracy"]
  pair = results.get("paired", {}).get(f"prm_minus_{other}_at_{n}")
  if pair is None:
    points = html.points(accuracy["prm"][-1] - accuracy[other][-1])
    return f"a difference of {points} points whose interval was not measured"
  mean, low, high = (html.points(pair[k]) for k in ("mean", "low", "high"))
  interval = f"(95 % interval {low} to {high})"
  size = html.percent(abs(pair["mean"]))
  if pair["low"] > 0:
    return f"the PRM is ahead by {size} points {interval}"
  if pair["high"] < 0:
    return f"the PRM does not win, it is behind by {size} points {interval}"
  return (
    f"the PRM does not win, its difference of {mean} points can't be told"
    f" from 0 {interval}"
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
  wrong, doubted = (
    f"step {i + 1} (score {scores[i]:.3f})" if i >= 0 else ""
    for i in (error, doubt)
  )
  if all(label is None for label in labels):
    return "open", "No step has an exact label: nothing to compare with."
  if doubt >= 0 and labels[doubt] is None and not 0 <= error < doubt:
    return "open", f"The PRM doubts {doubted}, which has no exact label."
  if error < 0 and doubt < 0:
    return "right", "The PRM is right: no step is wrong and it doubts none."
  if error < 0:
    return "wrong", f"The PRM is wrong: false alarm at {doubted}."
  if doubt == error:
    return "right", f"The PRM finds the first error, {wrong}.{luck}"
  if doubt < 0:
    return "wrong", f"The PRM misses the error at {wrong}.{luck}"
  if doubt < error:
    return "wrong", (
      f"The PRM is wrong: false alarm at {doubted}, before the first error"
      f" at step {error + 1}.{luck}"
    )
  return "wrong", (
    f"The PRM misses the first error, {wrong}, and only doubts {doubted}.{luck}"
  )


# --- Pictures ---------------------------------------------------------------


def _styles(curves: Mapping[str, Any]) -> dict[str, plot.LineStyle]:
  """Returns the style of each curve, the known ones first."""
  styles = {k: style for k, style in _STYLES.items() if k in curves}
  others = itertools.cycle(_OTHER_STYLES)
  for name in curves:
    if name not in styles:
      styles[name] = dataclasses.replace(next(others), label=_label(name))
  return styles


def _best_of_n(results) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns the curves and their axes."""
  n, ranges = results["n"], results.get("interval", {})
  x = [math.log2(count) for count in n]
  curves, lowest = [], 0.8
  for name, style in _styles(results["accuracy"]).items():
    y, band = results["accuracy"][name], ranges.get(name, [])
    lowest = min(lowest, *y, *itertools.chain(*band))
    notes = [f"{style.label}, N = {c}: {100 * v:.1f} %" for c, v in zip(n, y)]
    for i, (low, high) in enumerate(band):
      notes[i] += f" ({100 * low:.1f} to {100 * high:.1f})"
    curves.append(plot.Curve(style, x, y, band, notes))
  axes = plot.Axes(
    title="Share of problems answered right against the number of samples N",
    x_label="samples per problem, N (log scale)",
    y_label="right answers, %",
    x_ticks=list(zip(x, map(str, n))),
    y_ticks=[(y, f"{100 * y:g}") for y in plot.round_ticks(lowest, 1.0)],
  )
  return curves, axes


def _reliability(style, bins):
  bins = [b for b in bins if b["count"]]  # an empty bin has no mean
  x, y, num = ([b[k] for b in bins] for k in ("score", "correct", "count"))
  notes = [
    f"mean score {a:.3f}, right {100 * b:.1f} %, {c} steps"
    for a, b, c in zip(x, y, num)
  ]
  ticks = [(i / 4, f"{i / 4:g}") for i in range(5)]
  labels = style.label, "mean score of the bin", "share of right steps"
  axes = plot.Axes(*labels, ticks, ticks, diagonal=True)
  curves = [plot.Curve(style, x, y, notes=notes)]
  return plot.draw(curves, axes, (400, 350), page_class="small")


def _losses(train) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns curves and axes of losses; of many points, of means of them."""
  finite = {
    name: [pair for pair in pairs if math.isfinite(pair[1])]
    for name, pairs in train.items()
  }
  lost = sum(len(train[name]) - len(pairs) for name, pairs in finite.items())
  longest = max(map(len, finite.values()), default=0)
  size = max(1, math.ceil(longest / _MAX_POINTS))
  curves = []
  for name, style in _styles(finite).items():
    x, y = zip(*finite[name]) if finite[name] else ((), ())
    points = plot.bins(x, y, size)
    texts = [f"update {p.x:g}: {p.mean:.3f} nats" for p in points]
    curves.append(plot.curve(style, points, texts))
  words = f" (means of {size} logged losses)" if size > 1 else ""
  words += f"; {lost} not finite, left out" if lost else ""
  title = "Loss of each update's rows, in training"
  axes = plot.Axes(title, f"update{words}", "loss, nats per target")
  return [c for c in curves if c.x], axes


# --- Rows of the tables -----------------------------------------------------


def _label(name: str) -> str:
  style = _STYLES.get(name)
  return style.label if style else str(name).replace("_", " ")


def _headline(results):
  """Returns (style, accuracy, its interval) of what counts most."""
  accuracy, ranges = results["accuracy"], results.get("interval", {})
  return [
    (
      _STYLES[name],
      f"{html.percent(accuracy[name][-1])} %",
      " to ".join(map(html.percent, ranges[name][-1]))
      if name in ranges
      else "",
    )
    for name in _HEADLINE
    if name in accuracy
  ]


def _seconds(results):
  """Returns (phase, time) of each, their sum and the peak memory."""
  seconds = dict(results.get("seconds", {}))
  total = seconds.pop("total", None) or sum(seconds.values())
  rows = [(_label(k), html.duration(v)) for k, v in seconds.items()]
  rows.append(("total", html.duration(total)))
  if "peak_rss_gib" in results:
    rows.append(("peak memory", f"{results['peak_rss_gib']:.2f} GiB"))
  return rows


def _paired_label(name: str) -> str:
  """Returns "PRM - ORM, N = 4" for "prm_minus_orm_at_4"."""
  sides = [side.partition("_at_")[::2] for side in name.split("_minus_")]
  minus = " \N{MINUS SIGN} "
  if len(sides) == 2 and sides[1][1] and not sides[0][1]:
    models = minus.join(_label(model) for model, _ in sides)
    return f"{models}, N = {sides[1][1]}"
  return minus.join(_label(m) + f" at N = {n}" * bool(n) for m, n in sides)


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
    ece = columns.setdefault("ECE", {})
    ece.setdefault(name, off / total if total else None)
    columns.setdefault("steps", {})[name] = total
  models = dict.fromkeys(itertools.chain(*columns.values()))
  heads = [{"BRIER": "Brier"}.get(c, c) for c in columns]
  return heads, {
    _label(m): [values.get(m) for values in columns.values()] for m in models
  }


def card(entry: Mapping[str, Any], source: str) -> dict[str, Any]:
  """Returns one of render's showcase with its comment and rows of steps."""
  steps, scores = entry["steps"], entry["scores"]
  labels = entry["labels"] or [None] * len(steps)
  prm = scores.get("prm")
  others = [name for name in scores if name != "prm"]
  kind, line = "open", "The PRM did not score this solution."
  if prm is not None:
    kind, line = comment(labels, prm, entry["outcome"])
  error = schema.first_error(labels, THRESHOLD)
  rows = []
  for i, text in enumerate(steps):
    right = None if labels[i] is None else labels[i] >= THRESHOLD
    score = None if prm is None else prm[i]
    doubted = None if score is None else score < THRESHOLD
    # After the first error a label says no more about this step alone.
    wrong = right is not None and right == doubted and not 0 <= error < i
    slip = ("false alarm" if right else "missed") if wrong else ""
    row = dict(text=text, label=right, score=score, slip=slip)
    rows.append(row | dict(others=[scores[name][i] for name in others]))
  names = [_label(name).replace("Monte-Carlo ", "MC-") for name in others]
  more = dict(source=source, kind=kind, comment=line, rows=rows, others=names)
  return dict(entry) | more


def _check(results, showcase):
  """Raises InputError if lengths don't match or numbers aren't finite."""

  def expect(fits, message):
    if not fits:
      raise errors.InputError(message)

  n, accuracy = results.get("n") or [0], results.get("accuracy", {})
  expect(
    list(n) == sorted(set(n)) and n[0] >= 1,
    'results: "n" must be rising numbers of samples from 1; evaluate again',
  )
  for name in ("prm", "orm", "majority"):
    message = f'results: "accuracy" has no "{name}"; evaluate it too'
    expect(name in accuracy, message)
  for kind in ("accuracy", "interval"):
    for name, values in results.get(kind, {}).items():
      flat = itertools.chain(*values) if kind == "interval" else values
      expect(
        len(values) == len(n) and all(map(math.isfinite, flat)),
        f'results: "{kind}" of {name!r} must be {len(n)} finite entries, one'
        ' for each of "n"; evaluate again',
      )
  for i, entry in enumerate(showcase):
    steps = entry["steps"]
    for name, values in (*entry["scores"].items(), ("labels", entry["labels"])):
      expect(
        values is None or len(values) == len(steps),
        f"showcase[{i}]: {len(values or ())} of {name!r} for {len(steps)} steps;"
        " give one per step",
      )
