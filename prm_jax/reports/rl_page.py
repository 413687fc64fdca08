"""A run of reinforcement learning as a page of results.

It shows what the policy is rewarded for beside what is true, so that one sees
when they part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

from prm_jax import errors
from prm_jax.evaluation import figures
from prm_jax.evaluation import tables
from prm_jax.reports import curves
from prm_jax.reports import result_page
from prm_jax.reports import rl_metrics
from prm_jax.rl import hacking_monitor

Record = Mapping[str, Any]

_PHASES = ("rollout", "scoring", "reference", "credit", "update")
_REWARDS = ("prm", "exact", "orm", "verifier", "format", "length", "implicit")
# What is true beside what is rewarded, by the name of its line.
_SHARES = dict(
  accuracy="Right answers",
  prm_score="PRM's score",
  all_steps_correct="All steps correct",
  heldout_prm="Held-out PRM",
)
_EVAL = ("accuracy", "all_steps_correct")
_TABLE = dict(
  accuracy=tables.Column("right answers"),
  all_steps_correct=tables.Column("all steps correct"),
  prm_score=tables.Column("PRM's score", is_share=False),
  tokens=tables.Column("tokens", is_share=False, digits=1),
  steps=tables.Column("steps", is_share=False, digits=1),
)
# Metrics with a picture each, by section.
_RETURNS = ("prm_return", "total_return")
_POLICY = ("kl_nats", "entropy_nats", "clipped", "explained_variance")
_SOLUTIONS = (
  *("tokens", "steps", "repetition", "distinct", "without_answer", "cut"),
)
# A change of so many standard errors is more than chance.
_SIGMAS = 2.0


def is_rl(records: Sequence[Record]) -> bool:
  """Returns whether the records of a run are of reinforcement learning.

  Args:
    records: The records of metrics.jsonl.
  """
  return any("sampled_tokens" in x for x in _by_kind(records)[0][:1])


def page(
  records: Sequence[Record], details: Mapping[str, Any]
) -> result_page.Page:
  """Returns the page.

  Args:
    records: The records of metrics.jsonl. What they lack, or have as null,
      isn't drawn.
    details: What environment.describe returned of the run: config, versions,
      machine, command; each may be missing.

  Raises:
    InputError: The config's monitor isn't one.
  """
  train, evals = _by_kind(records)
  config = details.get("config") or {}
  monitor = _monitor(config)
  alarms = hacking_monitor.replay(train, monitor)
  size = curves.bin_size(len(train), rl_metrics.MAX_POINTS)
  means = (
    f" A point is the mean of {size} updates, bands reach from the least to the"
    " most of them."
  )
  return result_page.Page(
    f"{_title(config, int(train[-1]['step']))}{_method(config)}",
    summary(records, config.get("problems", {}).get("num_evaluation")),
    _tiles(train, evals),
    [
      result_page.Section(
        "Held-out problems",
        "One greedy answer to each: is the answer right, and, if it is known, is"
        " every step?",
        [_together(evals, _EVAL, "greedy answers, %")],
        _evaluations(evals),
      ),
      result_page.Section(
        "What is rewarded, and what is true",
        f"Of each update's samples.{means * (size > 1)} If a score rises while"
        " right answers fall, the policy games it. Dotted lines are the"
        " monitor's alarms.",
        [
          _together(
            train, _SHARES, "share, or mean score of a step, %", alarms
          ),
          *_each(train, _RETURNS),
        ],
      ),
      result_page.Section(
        "Alarms of the hacking monitor",
        facts=_alarms(train, alarms, monitor),
        note="The first alarm of each kind, with the run's monitor config"
        f" (action: {monitor.action}).",
      ),
      result_page.Section("The policy's updates", panels=_each(train, _POLICY)),
      result_page.Section(
        "What its solutions look like", panels=_each(train, _SOLUTIONS)
      ),
      _phases(train),
      result_page.Section("Work", facts=_counts(train)),
      result_page.made(details),
    ],
  )


def _monitor(config: Mapping[str, Any]) -> hacking_monitor.MonitorConfig:
  fields = dict(config.get("monitor") or {})
  if "acts_on" in fields:
    fields["acts_on"] = tuple(fields["acts_on"])
  try:
    return hacking_monitor.MonitorConfig(**fields)
  except TypeError as e:
    raise errors.InputError(f"the config's monitor isn't one: {e}") from None


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


def _tiles(train, evals) -> list[result_page.Tile]:
  """Returns the last and first value of what counts most."""
  tiles = []
  for name, label in _SHARES.items():
    ends = _ends(evals, name, 1)
    if ends is None and name not in _EVAL:
      ends = _ends(train, name)
    if ends is not None:
      first, last = map(rl_metrics.METRICS[name].text, ends)
      tiles.append(result_page.Tile(label, last, f"from {first}"))
  return tiles


def _lines(records, name, label) -> list[figures.Line]:
  """Returns the line of a metric, if anything of it is known."""
  size = curves.bin_size(len(records), rl_metrics.MAX_POINTS)
  pairs = [(r.get("step"), r[name]) for r in records if name in r]
  return curves.lines(label, curves.bins(pairs, size, has_gaps=True))


def _together(records, names, y_label, alarms=()) -> figures.Panel:
  """Returns one picture of some metrics."""
  return figures.Panel(
    *("", "update", y_label),
    [x for name in names for x in _lines(records, name, _SHARES[name])],
    marks=[alarm.update for alarm in alarms],
    holds=(0,),
  )


def _each(records, names) -> list[figures.Panel]:
  """Returns a picture of each metric."""
  return [
    figures.Panel(
      *(rl_metrics.METRICS[name].axis, "update", ""),
      _lines(records, name, rl_metrics.METRICS[name].label),
      is_share=rl_metrics.METRICS[name].is_share,
      holds=() if name in _RETURNS else (0,),
    )
    for name in names
  ]


def _evaluations(evals) -> tables.Table:
  columns = {n: x for n, x in _TABLE.items() if _known(evals, n)}
  return tables.Table(
    columns,
    [
      (
        f"update {r['step']:,}",
        {name: tables.Number(r.get(name)) for name in columns},
      )
      for r in evals
    ],
  )


def _alarms(train, alarms, monitor) -> list[result_page.Fact]:
  acted = hacking_monitor.acting(alarms, monitor)
  ending = dict(
    stop=" The run was stopped here.",
    rollback=" The run went back to its last save up to the turn.",
  )
  first = monitor.fewest
  why = f"the monitor first compares after {first} updates."
  return [
    result_page.Fact(
      f"update {x.update}, {x.kind}",
      f"{x.text}. It turned at update {x.turn}."
      + (ending[monitor.action] if x is acted else ""),
    )
    for x in alarms
  ] or [
    result_page.Fact(
      "none", "no metric turned." if len(train) >= first else why
    )
  ]


def _phases(train) -> result_page.Section:
  """Returns the time that updates took."""
  seconds = {p: sum(_known(train, f"{p}_s")) for p in _PHASES}
  total, updates = sum(seconds.values()), train[-1]["step"]
  columns = dict(
    s=tables.Column("s", is_share=False, digits=1),
    each=tables.Column("s an update", is_share=False, digits=3),
    share=tables.Column("share"),
  )
  rows = [
    (
      name,
      dict(
        zip(columns, map(tables.Number, (s, s / max(updates, 1), s / total)))
      ),
    )
    for name, s in seconds.items()
    if s > 0
  ]
  return result_page.Section(
    "Seconds of all updates, by phase",
    table=tables.Table(columns, rows),
    note="The compilation of the first ones included; no evaluations, no saves.",
  )


def _counts(train) -> list[result_page.Fact]:
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
  counts = {name: x for name, x in sampled.items() if x}
  counts |= {name.replace("_", " "): sum(_known(train, name)) for name in left}
  return [result_page.Fact(name, f"{x:,.0f}") for name, x in counts.items()]
