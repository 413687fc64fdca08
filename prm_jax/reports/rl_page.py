"""A run of reinforcement learning as one HTML page.

It shows what the policy is rewarded for beside what is true, so that one sees
when they part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

from prm_jax import errors
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics
from prm_jax.reports import solution_cards
from prm_jax.rl import hacking_monitor

Record = Mapping[str, Any]

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


_STYLES = plot.styles(
  dict(
    accuracy="Right answers",
    prm_score="PRM's score",
    all_steps_correct="All steps correct",
    heldout_prm="Held-out PRM",
  )
)


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
  marks = [(a.update, f"alarm: {a.kind}, update {a.update}") for a in alarms]
  held_out = _together(evals, _EVAL, "greedy answers, %", scale=100)
  y_label = "share, or mean score of a step"
  rewards = _together(train, _STYLES, y_label, marks=marks)
  cards = [_card(s) for s in first_and_last(samples)]
  size = plot.bin_size(len(train), rl_metrics.MAX_POINTS)
  means = (
    f" A point is the mean of {size} updates, bands reach from the least to the"
    " most of them."
  )
  values = dict(
    action=monitor.action,
    means=means if size > 1 else "",
    threshold=solution_cards.THRESHOLD,
  )
  contents = dict(
    held_out=held_out and held_out + _evaluations(evals),
    rewards=rewards + _each(train, _RETURNS),
    alarms=_alarms(train, alarms, monitor),
    policy=_each(train, _POLICY),
    solutions=_each(train, _SOLUTIONS),
    samples=html.part("cards", cards),
  )
  sections = [html.Section(*named, values) for named in contents.items()]
  tiles = _headline(train, evals)
  return html.page(
    _title(config, int(train[-1]["step"])),
    f"prm_jax reinforcement learning{_method(config)}",
    summary(records, config.get("problems", {}).get("num_evaluation")),
    [*sections, html.made(details, _phases(train) + _counts(train))],
    tiles,
    tiles
    and "Right answers are greedy ones to held-out problems; scores are of the"
    " samples, the first and last updates' mean.",
  )


def _monitor(config: Mapping[str, Any]) -> hacking_monitor.MonitorConfig:
  fields = dict(config.get("monitor") or {})
  if "acts_on" in fields:
    fields["acts_on"] = tuple(fields["acts_on"])
  return hacking_monitor.MonitorConfig(**fields)


def _title(config: Mapping[str, Any], updates: int) -> str:
  planned = config.get("fit", {}).get("steps") or updates
  count = f"{updates} of {planned}" if planned != updates else f"{updates}"
  return f"A policy after {count} update{'s' if planned != 1 else ''}"


def _by_kind(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Returns the records of updates, and those of evaluations."""
  train = [r for r in records if r.get("kind") == "train"]
  return train, [r for r in records if r.get("kind") == "eval"]


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
  rewards, seed = config.get("rewards", {}), config.get("seed")
  weights = [f"{k} {rewards[k]:g}" for k in _REWARDS if rewards.get(k)]
  parts = (
    config.get("loss", {}).get("kind"),
    weights and f"rewards: {', '.join(weights)}",
    seed is not None and f"seed {seed}",
  )
  return "".join(f" · {part}" for part in parts if part)


# --- Sentences --------------------------------------------------------------


def summary(records: Sequence[Record], num_problems: int | None = None) -> str:
  """Returns a sentence about the change of right answers and the PRM's score.

  It uses the evaluations; if there are fewer than two, the means over the first
  and the last ten updates. A change of right answers counts as chance up to two
  standard errors of a difference of independent shares. If they fell by more,
  from the start or from a best value in between, while the score rose, the
  sentence says so.

  Args:
    records: The records of the run.
    num_problems: The number of problems of an evaluation; if it is unknown, no
      change counts as chance.
  """
  train, evals = _by_kind(records)
  points, what, num = evals, "right answers to held-out problems", num_problems
  if len(_known(evals, "accuracy")) < 2:
    points, what, num = _windows(train), "right answers of its samples", None
    if train and (solutions := train[0].get("solutions")):
      num = int(solutions * min(10, len(train) // 2))
  points = [r for r in points if _known([r], "accuracy")]
  score = _ends(evals, "prm_score", 1) or _ends(train, "prm_score")
  updates = int(train[-1]["step"]) if train else 0
  text, parted = f"In {updates:,} update{'s' if updates != 1 else ''}", False
  if len(points) < 2:
    text += " nothing told how right answers changed"
  else:
    first, last = points[0]["accuracy"], points[-1]["accuracy"]
    best = max(points, key=lambda r: r["accuracy"])
    top = best["accuracy"]
    text += f" {what} {_change('accuracy', first, last)}"
    if 0 < abs(last - first) <= _chance(first, last, num):
      text += " (no more than chance may do)"
    fell = top - last > _chance(top, last, num)
    if fell and top > first:
      share = rl_metrics.METRICS["accuracy"].text(top)
      text += f", after {share} at update {best['step']:,}"
    since = _ends([best, points[-1]], "prm_score", 1) or score
    parted = fell and since is not None and since[1] > since[0]
  if score is None:
    return f"{text}."
  scored = f"the PRM's mean score of a step {_change('prm_score', *score)}"
  if not parted:
    return f"{text}, and {scored}."
  return (
    f"{text}, while {scored}: what the PRM likes and what is right have parted."
  )


def _windows(train: Sequence[Record]) -> list[Record]:
  """Returns two records: means over the first and the last updates."""
  means = {n: _ends(train, n) for n in ("accuracy", "prm_score")}
  return [
    {name: pair[i] for name, pair in means.items() if pair is not None}
    | dict(step=train[-i]["step"])
    for i in range(2 if train else 0)
  ]


def _change(name: str, before: float, after: float) -> str:
  first, last = map(rl_metrics.METRICS[name].text, (before, after))
  if first == last:
    return f"stayed at {last}"
  return f"{'rose' if after > before else 'fell'} from {first} to {last}"


def _chance(a: float, b: float, num: int | None) -> float:
  """Returns the change of a share of `num` answers that chance may make."""
  variance = (a * (1 - a) + b * (1 - b)) / num if num else 0.0
  return _SIGMAS * math.sqrt(variance)


# --- Sections ---------------------------------------------------------------


def _headline(train, evals):
  """Returns the last and first value of what counts most."""
  tiles = []
  for name, style in _STYLES.items():
    ends = _ends(evals, name, 1) if name in _EVAL else _ends(train, name)
    if ends is not None:
      first, last = map(rl_metrics.METRICS[name].text, ends)
      value = html.Cell(last, f"from {first}", style.colour)
      tiles.append((style.label, value))
  return html.pairs(tiles, "tiles")


def _curve(records, name, style):
  """Returns one metric's curve, without a point if nothing of it is known."""
  size = plot.bin_size(len(records), rl_metrics.MAX_POINTS)
  values = [(r.get("step"), r.get(name)) for r in records]
  return plot.by_update(style, values, size, rl_metrics.METRICS[name].text)


def _together(records, names, y_label, scale=1, marks=()):
  """Returns one picture of some metrics, empty if none is known."""
  curves = [_curve(records, name, _STYLES[name]) for name in names]
  title = f"{y_label}, by update"
  axes = plot.Axes(title, "update", y_label, scale=scale, marks=marks)
  return plot.wide_and_narrow(curves, axes)


def _each(records, names):
  """Returns a small picture of each metric that is known."""
  pictures = []
  for name in names:
    metric = rl_metrics.METRICS[name]
    curve = _curve(records, name, plot.LineStyle(metric.label, "k0"))
    # A line needs no markers, a point does.
    curve = curve._replace(texts=curve.texts if len(curve.points) == 1 else ())
    holds = () if name in _RETURNS else (0,)
    axes = plot.Axes(metric.axis, "update", holds=holds, scale=metric.scale)
    drawn = plot.draw([curve], axes, (300, 200), page_class="small")
    pictures += [(metric.axis, drawn)] if curve.points else []
  return html.part("pictures", pictures, "small-ones")


def _evaluations(evals):
  names = [n for n in _TABLE if _known(evals, n)]

  def text(name, value):
    return "–" if value is None else rl_metrics.METRICS[name].text(value)

  rows = [[int(r["step"]), *(text(n, r.get(n)) for n in names)] for r in evals]
  head = ["update", *(rl_metrics.METRICS[n].label for n in names)]
  table = html.table("Evaluations", head, rows, "stick cells")
  return html.part("fold", f"All {len(rows)} evaluations", table)


def _alarms(train, alarms, monitor):
  acted = hacking_monitor.acting(alarms, monitor)
  ending = dict(
    stop="The run was stopped here.",
    rollback="The run went back to its last save up to the turn.",
  )
  rows = []
  for alarm in alarms:
    text = f"{alarm.text}. It turned at update {alarm.turn}."
    small = ending[monitor.action] if alarm is acted else ""
    cell = html.Cell(text, small, "alarm")
    rows.append((f"Update {alarm.update}, {alarm.kind}:", cell))
  first = monitor.fewest
  why = f"the monitor first compares after {first} updates."
  none = [("None:", "no metric turned." if len(train) >= first else why)]
  return html.pairs(rows or none, "terms")


def _phases(train):
  """Returns a table of the time that updates took."""
  seconds = {p: sum(_known(train, f"{p}_s")) for p in _PHASES}
  total, updates = sum(seconds.values()), train[-1]["step"]
  rows = [
    [p, f"{s:.1f}", f"{s / updates:.3f}", f"{html.percent(s / total)} %"]
    for p, s in seconds.items()
    if s > 0
  ]
  title = "Seconds of all updates, by phase"
  return html.part(
    "noted",
    title,
    html.table(title, ["phase", "s", "an update", "share"], rows),
    "The compilation of the first ones included; no evaluations, no saves.",
  )


def _counts(train):
  """Returns what the run sampled, and what of it taught nothing and why."""
  why = ("left_out_", "skipped_updates")
  left = sorted({n for r in train for n in r if n.startswith(why)})
  solutions, tokens, seconds = (
    sum(_known(train, n)) for n in ("solutions", "sampled_tokens", "rollout_s")
  )
  sampled = {
    "solutions sampled": solutions,
    "tokens sampled": tokens,
    "tokens per second of rollouts": seconds and tokens / seconds,
  }
  rows = [(k, f"{v:,.0f}") for k, v in sampled.items() if v]
  rows += [
    (name.replace("_", " "), f"{sum(_known(train, name)):,.0f}")
    for name in left
  ]
  return html.pairs(rows, "facts", "Work")


# --- Samples ----------------------------------------------------------------


def first_and_last(samples: Sequence[Record]) -> list[Record]:
  """Returns a few samples of the first rollout, and as many of the last."""
  steps = [s["step"] for s in samples]
  ends = sorted({min(steps), max(steps)}) if steps else []
  of_steps = [[s for s in samples if s["step"] == step] for step in ends]
  return [s for group in of_steps for s in group[:NUM_SAMPLES]]


def _card(record: Record) -> dict[str, Any]:
  """Returns the card of a sample.

  Scores that aren't one of each step (of a PRM that reads steps of its own, or
  not all finite) are a line of text.
  """
  steps, scores, exact = (record[k] for k in ("steps", "prm", "exact"))
  judged = record["prm_judged"]
  fits = scores and judged and len(scores) == len(judged) == len(steps)
  fits = fits and None not in scores
  entry = dict(record, labels=exact, outcome=record["right"])
  entry["step_scores"], entry["judged"] = {}, {}
  if fits:
    entry["step_scores"] = {"prm": scores}
    entry["judged"] = {"prm": judged}
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
  card = solution_cards.card(entry, source, facts, {})
  return card if fits and exact else card | dict(comment="")
