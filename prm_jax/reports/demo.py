"""The demo's results as one HTML page: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

# In the order of the tables; pictures draw the first on top.
_LABELS = {
  "prm": "PRM",
  "prm_mc": "Monte-Carlo PRM",
  "orm": "ORM",
  "majority": "Majority vote",
  "weighted_prm": "PRM-weighted vote",
  "weighted_orm": "ORM-weighted vote",
  "logprob": "Log-probability",
  "logprob_min": "Least log-probability",
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
  top = results["n"][-1]
  cards = [
    card(s, f"{i} · picked by {_label(s['picked_by'])}", _answers(s))
    for i, s in enumerate(showcase, 1)
  ]
  losses = plot.wide_and_narrow(*_losses(details.get("train") or {}))
  known = {k: v for k, v in details.items() if k != "train"}
  sections = [
    html.Section("best_of_n", _best_of_n(results)),
    html.Section("differences", _differences(results.get("paired", {}))),
    html.Section("step_scores", _step_scores(results, reliability)),
    html.Section("false_positives", _false_positives(results)),
    html.Section("showcase", html.cards(cards), dict(threshold=THRESHOLD)),
    html.Section("losses", losses),
    html.made(known, _seconds(results)),
  ]
  return html.page(
    f"Best of {top}: judging the steps against judging the answer",
    "prm_jax demo"
    + (f" · seed {results['seed']}" if "seed" in results else ""),
    summary(results),
    sections,
    _headline(results),
    f"Share of problems answered right with {top} samples of each, and its 95 %"
    " interval.",
  )


def figure(results: Mapping[str, Any]) -> bytes:
  """Returns the best-of-N picture as an SVG file."""
  _check(results, ())
  return plot.draw(*_accuracy(results), (960, 470), "right").encode()


def training_figure(train: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
  """Returns the losses {model: [[update, loss], ...]} as an SVG file."""
  return plot.draw(*_losses(train), (760, 360), "right").encode()


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
    if name in ("prm", "prm_mc", "orm", "majority"):
      small = " to ".join(map(html.percent, ranges.get(name, [()])[-1]))
      text = f"{html.percent(results['accuracy'][name][-1])} %"
      tiles.append((style.label, html.Cell(text, small, style.colour)))
  return html.pairs(tiles, "tiles")


def _accuracy(results) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns the curves of right answers and their axes."""
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
  return curves, plot.Axes(
    "Share of problems answered right against the number of samples N",
    "samples per problem, N (log scale)",
    "right answers, %",
    list(zip(x, map(str, n))),
    [(y / 100, text) for y, text in plot.axis(100 * lowest, 100)],
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
  columns = ["right answers, %", f"N = {n[0]}", *n[1:]]
  picture = plot.wide_and_narrow(*_accuracy(results))
  table = html.table(title, columns, rows, "stick full")
  return picture + table + html.part("glossary")


def _differences(paired):
  ends = [0, *(p[k] for p in paired.values() for k in ("low", "high"))]
  least, span = min(ends), (max(ends) - min(ends)) or 1
  rows = []
  for name, pair in paired.items():
    low, mean, high = (pair[k] for k in ("low", "mean", "high"))
    said, css = ("above 0", "k0") if low > 0 else ("includes 0", "k4")
    said, css = ("below 0", "k2") if high < 0 else (said, css)
    at = [f"{3 + 94 * (v - least) / span:.2f}" for v in (0, low, mean, high)]
    drawn = html.Cell("", mark=html.part("interval", *at, css))
    texts = html.points(mean), f"{html.points(low)} to {html.points(high)}"
    rows.append([_paired_label(name), *texts, said, drawn])
  head = ["difference", "points", "95 % interval", "interval is", ""]
  return html.table("Paired differences", head, rows, "full")


def _paired_label(name: str) -> str:
  """Returns "PRM - ORM, N = 4" for "prm_minus_orm_at_4"."""
  sides = [side.partition("_at_")[::2] for side in name.split("_minus_")]
  minus = " \N{MINUS SIGN} "
  if len(sides) == 2 and sides[1][1] and not sides[0][1]:
    models = minus.join(_label(model) for model, _ in sides)
    return f"{models}, N = {sides[1][1]}"
  return minus.join(_label(m) + f" at N = {n}" * bool(n) for m, n in sides)


def _step_scores(results, reliability):
  """Returns reliability plots and a table of metrics; ECE is of the bins."""
  columns = {
    key.removeprefix("step_").upper(): dict(values)
    for key, values in results.items()
    if key.startswith("step_") and isinstance(values, Mapping)
  }
  drawn = []
  ticks = [(i / 4, f"{i / 4:g}") for i in range(5)]
  words = "mean score of the bin", "share of right steps"
  for name, style in _styles(reliability).items():
    bins = [b for b in reliability[name] if b["count"]]  # others have no mean
    x, y, num = ([b[k] for b in bins] for k in ("score", "correct", "count"))
    notes = [
      f"mean score {a:.3f}, right {100 * b:.1f} %, {c} steps"
      for a, b, c in zip(x, y, num)
    ]
    axes = plot.Axes(style.label, *words, ticks, ticks, diagonal=True)
    curves = [plot.Curve(style, x, y, notes=notes)]
    picture = plot.draw(curves, axes, (400, 350), page_class="small")
    drawn.append((style.label, picture))
    off = sum(c * abs(a - b) for a, b, c in zip(x, y, num))
    ece = off / sum(num) if num else None
    columns.setdefault("ECE", {}).setdefault(name, ece)
    columns.setdefault("steps", {})[name] = sum(num)

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
  table = html.table("Step metrics", head, rows)
  return html.pictures(drawn, "columns") + table


def _false_positives(results):
  rows = [
    [_label(k), "none picked" if v is None else f"{html.percent(v)} %"]
    for k, v in results.get("false_positive_share", {}).items()
  ]
  head = ["picked by", "with a wrong step"]
  return html.table("Share of false positives", head, rows)


def _losses(train) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns curves and axes of losses; of many points, of means of them."""
  finite = {
    name: [pair for pair in pairs if math.isfinite(pair[1])]
    for name, pairs in train.items()
  }
  lost = sum(len(train[name]) - len(pairs) for name, pairs in finite.items())
  longest = max(map(len, finite.values()), default=0)
  size = plot.bin_size(longest, _MAX_POINTS)
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


# --- Solutions --------------------------------------------------------------


def card(
  entry: Mapping[str, Any], source: str, facts: Sequence[str]
) -> dict[str, Any]:
  """Returns one of render's showcase with its comment and table of steps."""
  steps, scores = entry["steps"], entry["scores"]
  labels = entry["labels"] or [None] * len(steps)
  prm = scores.get("prm")
  others = [name for name in scores if name != "prm"]
  kind, line = "open", "The PRM did not score this solution."
  if prm is not None:
    kind, line = comment(labels, prm, entry["outcome"])
  error = schema.first_error(labels, THRESHOLD)
  rows, fills = [], []
  for i, text in enumerate(steps):
    right = None if labels[i] is None else labels[i] >= THRESHOLD
    mark = {
      None: html.Cell("–", title="no exact label"),
      True: html.Cell("✓", css="right", title="right"),
      False: html.Cell("✗", css="wrong", title="wrong"),
    }[right]
    slip, score = "", "–"
    if prm is not None:
      doubted, score = prm[i] < THRESHOLD, f"{prm[i]:.3f}"
      # After the first error a label says no more about this step alone.
      if right == doubted and not 0 <= error < i:
        slip = "false alarm" if right else "missed"
      name, most = ("bad", 0.7) if doubted else ("good", 0.26)
      depth = 0.05 + most * abs(prm[i] - THRESHOLD)
      fills.append(f"rgb(var(--{name})/{depth:.2f})")
    cells = [html.Cell(text, slip, "text"), mark, html.Cell(score, css="bold")]
    rows.append([i + 1, *cells, *(f"{scores[name][i]:.2f}" for name in others)])
  names = [_label(name).replace("Monte-Carlo ", "MC-") for name in others]
  head = ["", "step", "exact", "PRM", *names]
  table = html.table("Steps", head, rows, "", fills)
  outcome = {
    None: html.Cell("Not judged"),
    True: html.Cell("✓ right answer", css="right"),
    False: html.Cell("✗ wrong answer", css="wrong"),
  }[entry["outcome"]]
  shown = dict(source=source, problem=entry["problem"], kind=kind, comment=line)
  return shown | dict(facts=[outcome, *map(html.Cell, facts)], table=table)


def _answers(entry):
  answer, reference = entry["solution_answer"], entry["answer"]
  facts = ["no answer" if answer is None else f"answer {answer}"]
  if reference is not None and not entry["outcome"]:
    facts.append(f"reference {reference}")
  return facts


def _check(results, showcase):
  """Raises InputError if lengths don't match or numbers aren't finite."""
  n, accuracy = results.get("n") or [0], results.get("accuracy", {})
  wrong = [
    f'"accuracy" has no "{name}"'
    for name in ("prm", "orm", "majority")
    if name not in accuracy
  ]
  if list(n) != sorted(set(n)) or n[0] < 1:
    wrong.append('"n" must be rising numbers of samples from 1')
  for kind in ("accuracy", "interval"):
    for name, values in results.get(kind, {}).items():
      flat = itertools.chain(*values) if kind == "interval" else values
      if len(values) != len(n) or not all(map(math.isfinite, flat)):
        entries = f'{len(n)} finite entries, one for each of "n"'
        wrong.append(f'"{kind}" of {name!r} must be {entries}')
  for i, entry in enumerate(showcase):
    num = len(entry["steps"])
    for name, values in (*entry["scores"].items(), ("labels", entry["labels"])):
      if values is not None and len(values) != num:
        several = f"{len(values)} of {name!r} for {num} steps"
        wrong.append(f"showcase[{i}]: {several}, not one of each")
  if wrong:
    raise errors.InputError(f"results: {wrong[0]}; evaluate again")
