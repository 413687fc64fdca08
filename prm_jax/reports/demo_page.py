"""The demo's results as one HTML page: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any

from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import solution_cards

# A curve of losses has no more points: means of successive ones, if needed.
_MAX_POINTS = 120

# In the order of the tables; pictures draw the first on top.
_LABELS = {
  "prm": "PRM",
  "prm_mc": "Monte-Carlo PRM",
  "orm": "ORM",
  "majority": "Majority vote",
  "weighted_prm": "PRM-weighted vote",
  "weighted_orm": "ORM-weighted vote",
  "logprob": "Log-probability",
  "logprob_min": "Least likely token",
  "oracle": "Oracle (pass@N)",
}


def render(
  results: Mapping[str, Any],
  showcase: Sequence[Mapping[str, Any]],
  reliability: Mapping[str, Sequence[Mapping[str, float | None]]],
  details: Mapping[str, Any],
) -> str:
  """Returns the page.

  Args:
    results: the content of results.json. Further curves are drawn too, and a
      further mapping `step_METRIC: {model: value}` is one more column.
    showcase: comparison.showcase's solutions to show.
    reliability: {model: bins of {"score": mean, "correct": share, "count"}}.
    details: what environment.describe returns and, if wanted, "train":
      {model: [[step, loss], ...]}.
  """
  top, seed = results["n"][-1], results.get("seed")
  cards = [_card(i, entry) for i, entry in enumerate(showcase, 1)]
  losses = plot.wide_and_narrow(*_losses(details.get("train") or {}))
  values = dict(threshold=solution_cards.THRESHOLD)
  return html.page(
    f"Best of {top}: judging the steps against judging the answer",
    "prm_jax demo" if seed is None else f"prm_jax demo · seed {seed}",
    summary(results),
    [
      html.Section("best_of_n", _best_of_n(results)),
      html.Section("differences", _differences(results.get("paired", {}))),
      html.Section("step_scores", _step_scores(results, reliability), values),
      html.Section("false_positives", _false_positives(results)),
      html.Section("showcase", html.part("cards", cards), values),
      html.Section("losses", losses),
      html.made(details, _seconds(results)),
    ],
    _headline(results),
    f"Share of problems answered right with {top} samples of each, and its 95 %"
    " interval.",
  )


def figure(results: Mapping[str, Any]) -> bytes:
  """Returns the best-of-N picture as an SVG file."""
  return plot.draw(*_accuracy(results), (960, 470), "right").encode()


def training_figure(train: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
  """Returns the losses {model: [[update, loss], ...]} as an SVG file."""
  return plot.draw(*_losses(train), (760, 360), "right").encode()


# --- Sentences --------------------------------------------------------------


def summary(results: Mapping[str, Any]) -> str:
  """Returns two plain sentences: PRM against ORM, and against majority.

  The PRM wins only if the paired 95 % interval lies above 0.
  """
  n, prm = results["n"], results["accuracy"]["prm"]
  best, best_n = max(zip(prm, n, strict=True), key=lambda pair: pair[0])
  ranges = results.get("interval", {}).get("prm")
  fall = ""
  if best > (ranges[-1][1] if ranges else prm[-1]):
    fall = html.sentence("fall", dict(share=html.percent(best), n=best_n))
  others = ("orm", "majority")
  compared = {f"against_{name}": _compare(results, name) for name in others}
  last = {
    name: html.percent(shares[-1])
    for name, shares in results["accuracy"].items()
  }
  return html.sentence("demo", last | compared | dict(n=n[-1], fall=fall))


def _compare(results, other):
  """Returns which is ahead at the largest N, with the paired interval."""
  n, accuracy = results["n"][-1], results["accuracy"]
  pair = results.get("paired", {}).get(f"prm_minus_{other}_at_{n}")
  if pair is None:
    difference = accuracy["prm"][-1] - accuracy[other][-1]
    return html.sentence("unmeasured", dict(mean=html.points(difference)))
  name = "ahead" if pair["low"] > 0 else "not_told_apart"
  name = "behind" if pair["high"] < 0 else name
  values = {k: html.points(pair[k]) for k in ("mean", "low", "high")}
  return html.sentence(
    name, values | dict(size=html.percent(abs(pair["mean"])))
  )


# --- Sections ---------------------------------------------------------------


def _label(name: str) -> str:
  return _LABELS.get(name, str(name).replace("_", " "))


def _styles(curves: Mapping[str, Any]) -> dict[str, plot.LineStyle]:
  """Returns the style of each curve, the known ones first."""
  styles = plot.styles(_LABELS | {name: _label(name) for name in curves})
  styles["prm"] = styles["prm"]._replace(width=3)
  return {name: style for name, style in styles.items() if name in curves}


def _headline(results):
  ranges, tiles = results.get("interval", {}), []
  for name, style in _styles(results["accuracy"]).items():
    if name in ("prm", "weighted_prm", "prm_mc", "orm", "majority"):
      small = " to ".join(map(html.percent, ranges.get(name, [()])[-1]))
      text = _percent(results["accuracy"][name][-1])
      tiles.append((style.label, html.Cell(text, small, style.colour)))
  return html.pairs(tiles, "tiles")


def _percent(share: float) -> str:
  return f"{html.percent(share)} %"


def _accuracy(results) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns the curves of right answers and their axes."""
  n, ranges = results["n"], results.get("interval", {})
  curves = []
  for name, style in _styles(results["accuracy"]).items():
    shares = results["accuracy"][name]
    bands = ranges.get(name) or [(share, share) for share in shares]
    points = [
      plot.Point(math.log2(k), share, *band)
      for k, share, band in zip(n, shares, bands, strict=True)
    ]
    texts = [f"N = {k}: {p.text(_percent)}" for k, p in zip(n, points)]
    curves.append(plot.Curve(style, points, texts))
  return curves, plot.Axes(
    "Share of problems answered right against the number of samples N",
    "samples per problem, N (log scale)",
    "right answers, %",
    x_ticks=[(math.log2(k), str(k)) for k in n],
    holds=(0.8, 1),
    scale=100,
  )


def _best_of_n(results):
  n, ranges = results["n"], results.get("interval", {})
  rows = []
  for name, style in _styles(results["accuracy"]).items():
    bands = ranges.get(name) or [()] * len(n)
    small = ["–".join(map(html.percent, band)) for band in bands]
    shares = map(html.percent, results["accuracy"][name])
    head = html.Cell(style.label, mark=html.part("swatch", style))
    rows.append([head, *map(html.Cell, shares, small)])
  title = "Right answers in percent, by method and N"
  columns = ["right answers, %", *(f"N = {k}" for k in n)]
  picture = plot.wide_and_narrow(*_accuracy(results))
  table = html.table(title, columns, rows, "stick full cells")
  return picture + table + html.part("glossary")


def _differences(paired):
  ends = [0, *(p[k] for p in paired.values() for k in ("low", "high"))]
  least, span = min(ends), (max(ends) - min(ends)) or 1
  rows = []
  for name, pair in paired.items():
    low, mean, high = (pair[k] for k in ("low", "mean", "high"))
    side, css = ("above 0", "k0") if low > 0 else ("includes 0", "k4")
    side, css = ("below 0", "k2") if high < 0 else (side, css)
    at = [f"{3 + 94 * (v - least) / span:.2f}" for v in (0, low, mean, high)]
    drawn = html.Cell("", mark=html.part("interval", *at, css))
    texts = html.points(mean), f"{html.points(low)} to {html.points(high)}"
    rows.append([_paired_label(name), *texts, side, drawn])
  head = ["difference", "points", "95 % interval", "interval is", ""]
  return html.table("Paired differences", head, rows, "full cells")


def _paired_label(name: str) -> str:
  """Returns "PRM - ORM, N = 4" for "prm_minus_orm_at_4"."""
  sides = [side.partition("_at_")[::2] for side in name.split("_minus_")]
  minus = " \N{MINUS SIGN} "
  if len(sides) == 2 and sides[1][1] and not sides[0][1]:
    models = minus.join(_label(model) for model, _ in sides)
    return f"{models}, N = {sides[1][1]}"
  return minus.join(_label(m) + f" at N = {n}" * bool(n) for m, n in sides)


def _step_scores(results, reliability):
  """Returns reliability plots and a table of metrics."""
  columns = {
    key.removeprefix("step_").upper(): dict(values)
    for key, values in results.items()
    if key.startswith("step_") and isinstance(values, Mapping)
  }
  drawn = []
  labels = "mean score of the bin", "share of right steps"
  for name, style in _styles(reliability).items():
    points = [
      plot.point(b["score"], [b["correct"]])._replace(num=b["count"])
      for b in reliability[name]
      if b["count"]  # others have no mean
    ]
    texts = [
      f"mean score {p.x:.3f}, right {_percent(p.mean)}, {p.num} steps"
      for p in points
    ]
    axes = plot.Axes(
      style.label, *labels, plot.axis(0, 1), (0, 1), diagonal=True
    )
    curves = [plot.Curve(style, points, texts)]
    picture = plot.draw(curves, axes, (400, 350), page_class="small")
    drawn.append((style.label, picture))
    columns.setdefault("steps", {})[name] = sum(p.num for p in points)
  for name, counts in results.get("calibration_steps", {}).items():
    for column, count in (
      ("left out: not judged", counts["not_judged"]),
      ("after a wrong step", counts["after_error"]),
    ):
      columns.setdefault(column, {})[name] = count

  def text(value):
    if value is None:
      return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

  models = dict.fromkeys(itertools.chain(*columns.values()))
  rows = [
    [_label(m), *(text(values.get(m)) for values in columns.values())]
    for m in models
  ]
  head = ["step scores", *({"BRIER": "Brier"}.get(c, c) for c in columns)]
  table = html.table("Step metrics", head, rows, "cells")
  return html.part("pictures", drawn, "columns") + table


def _false_positives(results):
  rows = [
    [_label(name), "none picked" if share is None else _percent(share)]
    for name, share in results.get("false_positive_share", {}).items()
  ]
  head = ["picked by", "with a wrong step"]
  return html.table("Share of false positives", head, rows)


def _losses(train) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns curves and axes of losses; of many points, of means of them."""
  size = plot.bin_size(max(map(len, train.values()), default=0), _MAX_POINTS)
  curves = [
    plot.by_update(style, train[name], size, "{:.3f} nats".format, False)
    for name, style in _styles(train).items()
  ]
  losses = [loss for pairs in train.values() for _, loss in pairs]
  lost = len(losses) - sum(map(math.isfinite, losses))
  note = f" (means of {size} logged losses)" if size > 1 else ""
  note += f"; {lost} not finite, left out" if lost else ""
  title = "Loss of each update's rows, in training"
  return curves, plot.Axes(title, f"update{note}", "loss, nats per target")


def _seconds(results):
  """Returns the time of each phase, their sum and the peak memory."""
  seconds = dict(results.get("seconds", {}))
  total = seconds.pop("total", None) or sum(seconds.values())
  rows = [(_label(k), _duration(v)) for k, v in seconds.items()]
  rows.append(("total", _duration(total)))
  if "peak_rss_gib" in results:
    rows.append(("peak memory", f"{results['peak_rss_gib']:.2f} GiB"))
  return html.pairs(rows, "facts", "Time per phase")


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _card(number, entry):
  answer, reference = entry["solution_answer"], entry["answer"]
  facts = ["no answer" if answer is None else f"answer {answer}"]
  if reference is not None and not entry["outcome"]:
    facts.append(f"reference {reference}")
  picked = _label(entry["picked_by"])
  source = f"{number} · picked by {picked}" if picked else f"{number}"
  short = {
    n: _label(n).replace("Monte-Carlo ", "MC-") for n in entry["step_scores"]
  }
  return solution_cards.card(entry, source, facts, short)
