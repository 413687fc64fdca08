"""A run of reinforcement learning as one HTML page.

It shows what the policy is rewarded for beside what is true, so that one sees
when they part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
import pathlib
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax.reports import demo
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.rl import hacking_monitor
from prm_jax.runtime import files

Record = Mapping[str, Any]

# A curve has no more points: means of successive updates, if needed.
MAX_POINTS = 40
# So many samples of the first update are shown, and of the last.
NUM_SAMPLES = 3
_PHASES = ("rollout", "scoring", "reference", "credit", "update")
_REWARDS = ("prm", "exact", "orm", "verifier", "format", "length", "implicit")
_TABLE = ("accuracy", "all_steps_correct", "prm_score", "tokens", "steps")
_EVAL = ("accuracy", "all_steps_correct")
# Metrics with a small picture each, by section.
_RETURNS = ("prm_return", "total_return")
_POLICY = ("kl_nats", "entropy_nats", "clipped", "explained_variance")
_SOLUTIONS = (
  *("tokens", "steps", "repetition", "distinct", "without_answer", "cut"),
)
# A change of so many standard errors is more than chance.
_SIGMAS = 2.0


class Metric(NamedTuple):
  """How a metric is called and drawn: its values times `scale`, in `unit`."""

  label: str
  unit: str = ""
  scale: float = 1

  @property
  def axis(self) -> str:
    return f"{self.label}, {self.unit}" if self.unit else self.label

  def text(self, value: float) -> str:
    return f"{self.scale * value:.4g}{' %' if self.unit == '%' else ''}"


METRICS = dict(
  accuracy=Metric("right answers", "%", 100),
  all_steps_correct=Metric("all steps right", "%", 100),
  prm_score=Metric("PRM's mean score of a step"),
  heldout_prm=Metric("held-out PRM's mean score of a step"),
  prm_return=Metric("return of step rewards"),
  total_return=Metric("return of all rewards"),
  kl_nats=Metric("KL to the reference", "nats per token"),
  entropy_nats=Metric("entropy", "nats per token"),
  clipped=Metric("tokens that the clip stopped", "%", 100),
  explained_variance=Metric("variance that the critic explains", "%", 100),
  tokens=Metric("tokens per solution"),
  steps=Metric("steps per solution"),
  repetition=Metric("repeated 4-grams of words", "%", 100),
  distinct=Metric("different solutions to a problem", "%", 100),
  without_answer=Metric("solutions without an answer", "%", 100),
  cut=Metric("solutions that the budget cut", "%", 100),
)
_STYLES = plot.styles(
  dict(
    accuracy="Right answers",
    prm_score="PRM's score",
    all_steps_correct="All steps right",
    heldout_prm="Held-out PRM",
  )
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
  fields = dict(config.get("monitor") or {})
  if "acts_on" in fields:
    fields["acts_on"] = tuple(fields["acts_on"])
  monitor = hacking_monitor.MonitorConfig(**fields)
  alarms = hacking_monitor.replay(train, monitor)
  marks = [(x.update, f"alarm: {x.kind}, update {x.update}") for x in alarms]
  cards = [_card(s) for s in first_and_last(samples)]
  answers = _together(evals, _EVAL, "greedy answers, %", scale=100)
  rewards = "share, or mean score of a step"
  rewards = _together(train, _STYLES, rewards, marks=marks)
  size = plot.bin_size(len(train), MAX_POINTS)
  means = (
    f" A point is the mean of {size} updates, bands reach from the least to the"
    " most of them."
  )
  words = dict(action=monitor.action, means=means if size > 1 else "")
  sections = [
    html.Section("held_out", answers and answers + _evaluations(evals)),
    html.Section("rewards", rewards + _each(train, _RETURNS), words),
    html.Section("alarms", _alarms(train, alarms, monitor), words),
    html.Section("policy", _each(train, _POLICY)),
    html.Section("solutions", _each(train, _SOLUTIONS)),
    html.Section("samples", html.cards(cards), dict(threshold=demo.THRESHOLD)),
    html.made(details, _phases(train) + _counts(train)),
  ]
  updates = planned = int(train[-1]["step"])
  planned = config.get("fit", {}).get("steps") or planned
  title = f"{updates} of {planned}" if planned != updates else f"{updates}"
  tiles = _headline(train, evals)
  return html.page(
    f"A policy after {title} update{'s' if planned != 1 else ''}",
    f"prm_jax reinforcement learning{_method(config)}",
    summary(records, config.get("problems", {}).get("num_evaluation")),
    sections,
    tiles,
    tiles
    and "Right answers are greedy ones to held-out problems; scores are of the"
    " samples, the first and last updates' mean.",
  )


def _by_kind(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Returns the records of updates, and those of evaluations."""
  records = [renamed(r) for r in records]
  train = [r for r in records if r.get("kind") == "train"]
  return train, [r for r in records if r.get("kind") == "eval"]


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record, or columns, of any age with the names of METRICS."""
  return {new_name(k): v for k, v in values.items()} | dict(values)


def new_name(metric: str) -> str:
  return {"faithful": "all_steps_correct"}.get(metric, metric)


def _known(records: Sequence[Record], name: str) -> list[float]:
  """Returns a metric's values that are known: not null, and finite."""
  values = (r.get(name) for r in records)
  return [x for x in values if x is not None and math.isfinite(x)]


def _ends(
  records: Sequence[Record], name: str, window: int = 10
) -> tuple[float, float] | None:
  """Returns a metric's mean over the first and the last records, if known.

  Of at most half of them each; None if fewer than two are known.
  """
  values = _known(records, name)
  window = min(window, len(values) // 2)
  if not window:
    return None
  return sum(values[:window]) / window, sum(values[-window:]) / window


def _method(config: Mapping[str, Any]) -> str:
  """Returns " · ppo · rewards: prm 1, verifier 0.5 · seed 3", if known."""
  rewards = config.get("rewards", {})
  weights = [f"{k} {rewards[k]:g}" for k in _REWARDS if rewards.get(k)]
  parts = {
    "": config.get("loss", {}).get("kind"),
    "rewards: ": ", ".join(weights),
    "seed ": config.get("seed"),
  }
  return "".join(
    f" · {name}{value}"
    for name, value in parts.items()
    if value not in (None, "")
  )


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
  if len(_known(evals, "accuracy")) < 2:
    points, what, num = _windows(train), "right answers of its samples", None
    if train and (solutions := train[0].get("solutions")):
      num = int(solutions * min(10, len(train) // 2))
  points = [r for r in points if _known([r], "accuracy")]
  updates = int(train[-1]["step"]) if train else 0
  text = f"In {updates:,} update{'s' if updates != 1 else ''}"
  score = _ends(evals, "prm_score", 1)
  score = score or _ends(train, "prm_score")
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
  since = _ends([best, points[-1]], "prm_score", 1) or score
  if fell and since[1] > since[0]:
    return (
      f"{text}, while {scored}: what the PRM likes and what is right have"
      " parted."
    )
  return f"{text}, and {scored}."


def _windows(train: Sequence[Record]) -> list[Record]:
  """Returns two records: means over the first and the last updates."""
  means = {n: _ends(train, n) for n in ("accuracy", "prm_score")}
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


# --- Sections ---------------------------------------------------------------


def _headline(train, evals):
  """Returns the last and first value of what counts most."""
  tiles = []
  for name, style in _STYLES.items():
    share = name in _EVAL
    ends = _ends(evals, name, 1) if share else _ends(train, name)
    if ends is not None:
      first, last = (_share(x) if share else f"{x:.3f}" for x in ends)
      value = html.Cell(last, f"from {first}", style.colour)
      tiles.append((style.label, value))
  return html.pairs(tiles, "tiles")


def _curve(records, name, style, scale):
  """Returns one metric's curve; its x is empty if nothing of it is known."""
  size = plot.bin_size(len(records), MAX_POINTS)
  x, y = ([r.get(k) for r in records] for k in ("step", name))
  points = plot.bins(x, y, size)
  texts = [f"update {p.x:g}: {METRICS[name].text(p.mean)}" for p in points]
  return plot.curve(style, points, texts, scale=scale, band=size > 1)


def _together(records, names, y_label, *, scale=1, marks=()):
  """Returns one picture of some metrics, empty if none is known."""
  curves = [_curve(records, name, _STYLES[name], scale) for name in names]
  axes = plot.Axes(f"{y_label}, by update", "update", y_label, marks=marks)
  return plot.wide_and_narrow([c for c in curves if c.x], axes)


def _each(records, names):
  """Returns a small picture of each metric that is known."""
  pictures = []
  for name in names:
    label, _, scale = metric = METRICS[name]
    curve = _curve(records, name, plot.LineStyle(label, "k0"), scale)
    # A line needs no markers, a point does.
    curve = curve._replace(notes=curve.notes if len(curve.x) == 1 else ())
    axes = plot.Axes(metric.axis, "update", zero=name not in _RETURNS)
    drawn = plot.draw([curve], axes, (300, 200), page_class="small")
    pictures += [(metric.axis, drawn)] if curve.x else []
  return html.pictures(pictures, "small-ones")


def _evaluations(evals):
  names = [n for n in _TABLE if _known(evals, n)]

  def cell(name, value):
    digits = 3 if name == "prm_score" else 1
    scaled = METRICS[name].scale * (value or 0)
    return "–" if value is None else f"{scaled:.{digits}f}"

  rows = [[int(r["step"]), *(cell(n, r.get(n)) for n in names)] for r in evals]
  head = ["update", *(METRICS[n].axis for n in names)]
  table = html.table("Evaluations", head, rows, "stick")
  return html.part("fold", f"All {len(rows)} evaluations", table)


def _alarms(train, alarms, monitor):
  acted = hacking_monitor.acting(alarms, monitor)
  stopped = "The run went back to its last save up to the turn."
  stopped = "The run was stopped here." if monitor.action == "stop" else stopped
  rows = []
  for a in alarms:
    turn = f"{a.text}. It turned at update {a.turn}."
    text = html.Cell(turn, stopped if a is acted else "", "alarm")
    rows.append((f"Update {a.update}, {a.kind}:", text))
  first = 2 * monitor.window
  why = f"the monitor first compares after {first} updates."
  none = [("None:", "no metric turned." if len(train) >= first else why)]
  return html.pairs(rows or none, "terms")


def _phases(train):
  """Returns a table of the time that updates took."""
  seconds = {p: sum(_known(train, f"{p}_s")) for p in _PHASES}
  total, updates = sum(seconds.values()), train[-1]["step"]
  rows = [
    [p, f"{s:.1f}", f"{s / updates:.3f}", _share(s / total)]
    for p, s in seconds.items()
    if s > 0
  ]
  title = "Seconds of all updates, by phase"
  table = html.table(title, ["phase", "s", "an update", "share"], rows)
  note = "The compilation of the first ones included; no evaluations, no saves."
  note = html.part("paragraph", note, "note")
  return html.part("titled", title, table + note) if table else table


def _counts(train):
  """Returns what the run sampled, and what of it taught nothing and why."""
  names = ["solutions", "sampled_tokens", "rollout_s"]
  why = ("left_out_", "skipped_updates")
  left = sorted({n for r in train for n in r if n.startswith(why)})
  total = {n: sum(_known(train, n)) for n in names + left}
  solutions, tokens, seconds = (total[n] for n in names)
  rows = {"solutions sampled": solutions, "tokens sampled": tokens}
  if seconds:
    rows["tokens per second of rollouts"] = tokens / seconds
  rows = {label: value for label, value in rows.items() if value}
  rows |= {name.replace("_", " "): total[name] for name in left}
  return html.pairs(
    [(label, f"{value:,.0f}") for label, value in rows.items()], "facts", "Work"
  )


# --- Samples ----------------------------------------------------------------


def first_and_last(samples: Sequence[Record]) -> list[Record]:
  """Returns a few samples of the first rollout, and as many of the last."""
  steps = [s["step"] for s in samples]
  ends = sorted({min(steps), max(steps)}) if steps else []
  of_steps = [[s for s in samples if s["step"] == step] for step in ends]
  return [s for group in of_steps for s in group[:NUM_SAMPLES]]


def _card(record: Record) -> dict[str, Any]:
  """Returns demo.card of a sample.

  Scores that aren't one of each step (of a PRM that reads steps of its own, or
  not all finite) are a line of text.
  """
  steps, scores, exact = (record[k] for k in ("steps", "prm", "exact"))
  fits = scores and len(scores) == len(steps) and None not in scores
  entry = dict(record, labels=exact, outcome=record["right"])
  entry["scores"] = {"prm": scores} if fits else {}
  facts = []
  if record["total_return"] is not None:
    facts.append(f"return {record['total_return']:.3f}")
  if not record["counts"]:
    facts.append("left out of the update")
  if scores and not fits:
    texts = ("?" if x is None else f"{x:.3f}" for x in scores)
    facts.append(f"the PRM's scores, of its own steps: {', '.join(texts)}")
  # The rollout of a state makes its next update.
  source = f"Update {record['step'] + 1} · {record['id']}"
  card = demo.card(entry, source, facts)
  return card if fits and exact else card | dict(comment="")
