"""A run of reinforcement learning as one HTML page.

It shows what the policy is rewarded for beside what is true, so that one sees
when they part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.reports import demo
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics
from prm_jax.rl import hacking_monitor
from prm_jax.runtime import files

Record = rl_metrics.Record

# So many samples of the first update are shown, and of the last.
NUM_SAMPLES = 3
_PHASES = ("rollout", "scoring", "reference", "credit", "update")
_REWARDS = ("prm", "exact", "orm", "verifier", "format", "length", "implicit")
# Metrics with a small picture each, by group.
_RETURNS = ("prm_return", "total_return")
_SMALL = dict(
  returns=_RETURNS,
  policy=("kl_nats", "entropy_nats", "clipped", "explained_variance"),
  solutions=(
    *("tokens", "steps", "repetition", "distinct", "without_answer", "cut"),
  ),
)
_TABLE = ("accuracy", "all_steps_correct", "prm_score", "tokens", "steps")
# A change of so many standard errors is more than chance.
_SIGMAS = 2.0

_Style = plot.LineStyle
_STYLES = dict(
  accuracy=_Style("Right answers", "k0", width=3),
  all_steps_correct=_Style("All steps right", "k3", plot.DIAMOND, "10 4"),
  prm_score=_Style("PRM's score", "k2", plot.TRIANGLE, width=3),
  heldout_prm=_Style("Held-out PRM", "k1", plot.BOX, "6 4"),
)


def read(workdir: pathlib.Path) -> tuple[list[Record], list[Record]]:
  """Returns the records of metrics.jsonl, and of samples.jsonl if it exists.

  Raises:
    InputError: a file is damaged, or there are no metrics.
  """
  metrics, samples = workdir / "metrics.jsonl", workdir / "samples.jsonl"
  lines = files.read_records(samples) if samples.exists() else ()
  return [r for _, r in files.read_records(metrics)], [r for _, r in lines]


def render(
  records: Sequence[Record],
  samples: Sequence[Record],
  details: Mapping[str, Any],
) -> str:
  """Returns the page.

  Args:
    records: of metrics.jsonl, of updates and of evaluations. What they lack,
      or have as null, isn't drawn.
    samples: of samples.jsonl.
    details: what environment.describe returns: config, versions, machine,
      command; each may be missing.

  Raises:
    InputError: there is no update, or the config's monitor isn't one.
  """
  train, evals = _by_kind(records)
  if not train:
    raise errors.InputError(
      "metrics.jsonl: holds no update; let the run make one first"
    )
  config = details.get("config") or {}
  monitor = _monitor(config)
  alarms = hacking_monitor.replay(train, monitor)
  marks = [(x.update, f"alarm: {x.kind}, update {x.update}") for x in alarms]
  num_problems = config.get("problems", {}).get("num_evaluation")
  return html.fill(
    "rl_run.html",
    summary=summary(records, num_problems),
    method=_method(config),
    updates=int(train[-1]["step"]),
    planned=config.get("fit", {}).get("steps"),
    seed=config.get("seed"),
    headline=_headline(train, evals),
    held_out=_together(
      evals, ("accuracy", "all_steps_correct"), "greedy answers, %", scale=100
    ),
    evaluations=_evaluations(evals),
    rewards=_together(
      train, _STYLES, "share, or mean score of a step", marks=marks
    ),
    small={group: _each(train, names) for group, names in _SMALL.items()},
    bin_size=rl_metrics.bin_size(len(train)),
    alarms=alarms,
    acted=hacking_monitor.acting(alarms, monitor),
    monitor=monitor,
    watched=len(train) >= 2 * monitor.window,
    samples=[_sample(s) for s in first_and_last(samples)],
    threshold=demo.THRESHOLD,
    phases=_phases(train),
    counts=_counts(train),
    details=details,
  )


def _by_kind(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Returns the records of updates, and those of evaluations."""
  records = [rl_metrics.renamed(r) for r in records]
  train = [r for r in records if r.get("kind") == "train"]
  return train, [r for r in records if r.get("kind") == "eval"]


def _monitor(config: Mapping[str, Any]) -> hacking_monitor.MonitorConfig:
  fields = dict(config.get("monitor") or {})
  if "acts_on" in fields:
    fields["acts_on"] = tuple(fields["acts_on"])
  return hacking_monitor.MonitorConfig(**fields)


def _method(config: Mapping[str, Any]) -> str:
  """Returns "ppo, rewards: prm 1, verifier 0.5", or as much as is known."""
  weights = [
    f"{name} {value:g}"
    for name, value in config.get("rewards", {}).items()
    if name in _REWARDS and value
  ]
  parts = config.get("loss", {}).get("kind", ""), ", ".join(weights)
  return ", rewards: ".join(x for x in parts if x)


# --- Sentences --------------------------------------------------------------


def summary(records: Sequence[Record], num_problems: int | None = None) -> str:
  """Returns one plain sentence: right answers and the PRM's score, from, to.

  By the evaluations; without two of them, by means over the first and the last
  ten updates. A change of right answers counts as chance up to two standard
  errors of a difference of independent shares. If they fell by more, from the
  start or from a best between, and the score rose, the sentence says so.

  num_problems: of an evaluation; if unknown, no change is chance.
  """
  train, evals = _by_kind(records)
  points, what, num = evals, "right answers to held-out problems", num_problems
  if len(rl_metrics.known(evals, "accuracy")) < 2:
    points, what, num = _windows(train), "right answers of its samples", None
    if train and (solutions := train[0].get("solutions")):
      num = int(solutions * min(10, len(train) // 2))
  points = [r for r in points if rl_metrics.known([r], "accuracy")]
  updates = int(train[-1]["step"]) if train else 0
  text = f"In {updates:,} update{'s' if updates != 1 else ''}"
  score = rl_metrics.ends(evals, "prm_score", 1)
  score = score or rl_metrics.ends(train, "prm_score")
  scored = ""
  if score is not None:
    changed = _change(*score, "{:.3f}".format)
    scored = f"the PRM's mean score of a step {changed}"
  if len(points) < 2:
    text += " nothing told how right answers changed"
    return f"{text}, and {scored}." if scored else f"{text}."
  first, last = points[0]["accuracy"], points[-1]["accuracy"]
  best = max(points, key=lambda r: r["accuracy"])
  top = best["accuracy"]
  text += f" {what} {_change(first, last, _share)}"
  if 0 < abs(last - first) <= _chance(first, last, num):
    text += " (no more than chance may do)"
  fell = top - last > _chance(top, last, num)
  if fell and top > first:
    text += f", after {_share(top)} at update {best['step']:,}"
  if score is None:
    return f"{text}."
  since = rl_metrics.ends([best, points[-1]], "prm_score", 1) or score
  if fell and since[1] > since[0]:
    return (
      f"{text}, while {scored}: what the PRM likes and what is right have"
      " parted."
    )
  return f"{text}, and {scored}."


def _windows(train: Sequence[Record]) -> list[Record]:
  """Returns two records: means over the first and the last updates."""
  means = {n: rl_metrics.ends(train, n) for n in ("accuracy", "prm_score")}
  return [
    {name: pair[i] for name, pair in means.items() if pair is not None}
    | dict(step=train[-i]["step"])
    for i in range(2 if train else 0)
  ]


def _share(value: float) -> str:
  return f"{html.percent(value)} %"


def _change(before: float, after: float, text: Callable[[float], str]) -> str:
  if text(before) == text(after):
    return f"stayed at {text(after)}"
  verb = "rose" if after > before else "fell"
  return f"{verb} from {text(before)} to {text(after)}"


def _chance(a: float, b: float, num: int | None) -> float:
  """Returns the change of a share of `num` answers that chance may make."""
  variance = (a * (1 - a) + b * (1 - b)) / num if num else 0.0
  return _SIGMAS * math.sqrt(variance)


# --- Pictures ---------------------------------------------------------------


def _curve(records, name, style, scale):
  """Returns one metric's curve; its x is empty if nothing of it is known."""
  metric = rl_metrics.METRICS[name]
  size = rl_metrics.bin_size(len(records))
  x, y = ([r.get(key) for r in records] for key in ("step", name))
  points = plot.bins(x, y, size)
  texts = [f"update {p.x:g}: {metric.text(p.mean)}" for p in points]
  return plot.curve(style, points, texts, scale=scale, band=size > 1)


def _together(records, names, y_label, *, scale=1, marks=()):
  """Returns one picture of some metrics, empty if none is known."""
  curves = [_curve(records, name, _STYLES[name], scale) for name in names]
  axes = plot.Axes(f"{y_label}, by update", "update", y_label, marks=marks)
  curves = [c for c in curves if c.x]
  return plot.wide_and_narrow(curves, axes, (420, 330)) if curves else ""


def _each(records, names):
  """Returns (name, small picture) of each metric that is known."""
  pictures = []
  for name in names:
    metric = rl_metrics.METRICS[name]
    style = plot.LineStyle(metric.label, "k0")
    curve = _curve(records, name, style, metric.scale)
    # A line needs no markers, a point does.
    curve = curve._replace(notes=curve.notes if len(curve.x) == 1 else ())
    axes = plot.Axes(metric.axis, "update", zero=name not in _RETURNS)
    drawn = plot.draw([curve], axes, (300, 200), page_class="small")
    pictures += [(metric.axis, drawn)] if curve.x else []
  return pictures


# --- Rows of the tables -----------------------------------------------------


def _headline(train, evals):
  """Returns (style, last value, first value) of what counts most."""
  tiles = []
  for name, style in _STYLES.items():
    share = name in ("accuracy", "all_steps_correct")
    records, window = (evals, 1) if share else (train, 10)
    pair = rl_metrics.ends(records, name, window)
    if pair is not None:
      first, last = (_share(x) if share else f"{x:.3f}" for x in pair)
      tiles.append((style, last, f"from {first}"))
  return tiles


def _evaluations(evals):
  """Returns (names, rows of update and values) of the evaluations."""
  names = [n for n in _TABLE if rl_metrics.known(evals, n)]

  def cell(name, value):
    if value is None:
      return "\N{EN DASH}"
    digits = 3 if name == "prm_score" else 1
    return f"{rl_metrics.METRICS[name].scale * value:.{digits}f}"

  rows = [(int(r["step"]), [cell(n, r.get(n)) for n in names]) for r in evals]
  return [rl_metrics.METRICS[n].axis for n in names], rows


def _phases(train):
  """Returns (phase, seconds, share) of the time that updates took."""
  seconds = {p: sum(rl_metrics.known(train, f"{p}_s")) for p in _PHASES}
  total = sum(seconds.values())
  return [(p, s, s / total) for p, s in seconds.items() if s > 0]


def _counts(train):
  """Returns what the run sampled, and what of it taught nothing and why."""

  def total(name):
    return sum(rl_metrics.known(train, name))

  tokens, seconds = total("sampled_tokens"), total("rollout_s")
  rows = [("solutions sampled", total("solutions")), ("tokens sampled", tokens)]
  if seconds:
    rows.append(("tokens per second of rollouts", tokens / seconds))
  rows = [row for row in rows if row[1]]
  for name in sorted({n for r in train for n in r}):
    if name.startswith("left_out_") or name == "skipped_updates":
      rows.append((name.replace("_", " "), total(name)))
  return [(label, f"{value:,.0f}") for label, value in rows]


# --- Samples ----------------------------------------------------------------


def first_and_last(samples: Sequence[Record]) -> list[Record]:
  """Returns a few samples of the first rollout, and as many of the last."""
  steps = [s["step"] for s in samples]
  ends = sorted({min(steps), max(steps)}) if steps else []
  of_steps = [[s for s in samples if s["step"] == step] for step in ends]
  return [s for group in of_steps for s in group[:NUM_SAMPLES]]


def _sample(record: Record) -> dict[str, Any]:
  """Returns demo.card of a sample.

  Scores that aren't one of each step (of a PRM that reads steps of its own, or
  not all finite) are a line of text.
  """
  steps, scores, exact = (record[k] for k in ("steps", "prm", "exact"))
  fits = scores and len(scores) == len(steps) and None not in scores
  entry = dict(record, labels=exact, outcome=record["right"])
  entry["scores"] = {"prm": scores} if fits else {}
  # The rollout of a state makes its next update.
  card = demo.card(entry, f"Update {record['step'] + 1} · {record['id']}")
  if not (fits and exact):
    card["comment"] = ""
  own = [] if fits else scores or []
  texts = ("?" if x is None else f"{x:.3f}" for x in own)
  return card | dict(own_scores=", ".join(texts))
