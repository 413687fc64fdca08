"""A run of reinforcement learning as one HTML page.

What the policy is paid stands beside what is true, so that one sees where they
part. rl_report.html is its template (reports/html.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.reports import demo as demo_report
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics as rl_curves
from prm_jax.reports import rl_summary
from prm_jax.rl import hacking_monitor
from prm_jax.runtime import files

Record = Mapping[str, Any]

# Of the first update and of the last so many samples are shown.
SHOWN = 3
_PHASES = ("rollout", "scoring", "reference", "credit", "update")
_REWARDS = ("prm", "exact", "orm", "verifier", "format", "length", "implicit")
_RETURNS = ("prm_return", "total_return")
_UPDATE = ("kl_nats", "entropy_nats", "clipped", "explained_variance")
_TEXT = ("tokens", "steps", "repetition", "distinct", "without_answer", "cut")
_TABLE = ("accuracy", "faithful", "prm_score", "tokens", "steps")

_LOOKS = dict(
  accuracy=plot.Look("Right answers", "k0", rl_curves.CIRCLE, width=3),
  faithful=plot.Look("All steps right", "k3", rl_curves.DIAMOND, "10 4"),
  prm_score=plot.Look("PRM's score", "k2", rl_curves.TRIANGLE, width=3),
  heldout_prm=plot.Look(
    "Held-out PRM", "k1", rl_curves.SQUARE, "6 4", filled=False
  ),
)
_PLAIN = plot.Look("", "k0", rl_curves.CIRCLE)


def read(
  workdir: pathlib.Path,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Returns the records of metrics.jsonl and of samples.jsonl.

  Raises:
    InputError: a file is damaged, or there are no metrics.
  """
  metrics = [r for _, r in files.read_records(workdir / "metrics.jsonl")]
  path = workdir / "samples.jsonl"
  if not path.exists():
    return metrics, []
  return metrics, [r for _, r in files.read_records(path)]


def write(
  path: files.PathLike,
  records: Sequence[Record],
  samples: Sequence[Record],
  details: Mapping[str, Any],
) -> None:
  """Writes `render(...)` to `path`, all or nothing."""
  text = render(records, samples, details)
  with files.replacing(path) as f:
    f.write(text)


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
  train, evals = rl_summary.split(records)
  if not train:
    raise errors.InputError(
      "metrics.jsonl: holds no update; let the run make one first"
    )
  config = details.get("config") or {}
  monitor = _monitor(config)
  alarms = hacking_monitor.replay(train, monitor)
  marks = [(x.update, f"alarm: {x.kind}, update {x.update}") for x in alarms]
  return html.fill(
    "rl_report.html",
    verdict=rl_summary.verdict(records, _num_problems(config)),
    method=_method(config),
    updates=int(train[-1]["step"]),
    planned=config.get("fit", {}).get("steps"),
    seed=config.get("seed"),
    tiles=_tiles(train, evals),
    held_out=_both(
      evals, ("accuracy", "faithful"), "greedy answers, %", scale=100
    ),
    evaluations=_table(evals),
    rewards=_both(
      train, tuple(_LOOKS), "share, or mean score of a step", marks=marks
    ),
    returns=_small(train, _RETURNS),
    update=_small(train, _UPDATE),
    text=_small(train, _TEXT),
    bin_size=rl_curves.bin_size(len(train)),
    alarms=alarms,
    acted=hacking_monitor.acting(alarms, monitor),
    monitor=monitor,
    watched=len(train) >= 2 * monitor.window,
    samples=[_sample(s) for s in chosen(samples)],
    threshold=demo_report.THRESHOLD,
    phases=_phases(train),
    counts=_counts(train),
    details=details,
  )


def _monitor(config: Mapping[str, Any]) -> hacking_monitor.MonitorConfig:
  given = dict(config.get("monitor") or {})
  if "acts_on" in given:
    given["acts_on"] = tuple(given["acts_on"])
  return hacking_monitor.MonitorConfig(**given)


def _num_problems(config: Mapping[str, Any]) -> int | None:
  return config.get("problems", {}).get("num_evaluation")


def _method(config: Mapping[str, Any]) -> str:
  """Returns "ppo, rewards: prm 1, verifier 0.5", or as much as is known."""
  kind = config.get("loss", {}).get("kind", "")
  weights = ", ".join(
    f"{name} {value:g}"
    for name, value in config.get("rewards", {}).items()
    if name in _REWARDS and value
  )
  return ", rewards: ".join(x for x in (kind, weights) if x)


# --- Pictures ---------------------------------------------------------------


def _curve(records, name, look, scale=1.0):
  """Returns one metric's curve, or None if nothing of it is known."""
  metric = rl_curves.METRICS[name]
  size = rl_curves.bin_size(len(records))
  x = [r["step"] for r in records]
  found = plot.bins(x, [r.get(name) for r in records], size)
  if not found:
    return None
  label = look.label or metric.label
  notes = [f"{label}, update {b.x:g}: {metric.text(b.mean)}" for b in found]
  # Few enough markers to tell the lines apart by.
  every = math.ceil(len(found) / 12)
  notes = [n if i % every == 0 else "" for i, n in enumerate(notes)]
  band = [(scale * b.low, scale * b.high) for b in found] if size > 1 else []
  return dict(
    look=look,
    x=[b.x for b in found],
    y=[scale * b.mean for b in found],
    notes=notes,
    band=band,
  )


def _both(records, names, y_label, *, scale=1.0, marks=()):
  """Returns the picture of some metrics, wide and narrow, if one is known."""
  curves = [_curve(records, name, _LOOKS[name], scale) for name in names]
  curves = [c for c in curves if c is not None]
  sizes = dict(right=(960, 420), below=(360, 330))
  return [
    rl_curves.picture(
      curves,
      title=f"{y_label}, by update",
      x_label="update",
      y_label=y_label,
      size=size,
      key=key,
      marks=marks,
    )
    for key, size in sizes.items()
    if curves
  ]


def _small(records, names):
  """Returns a small picture of each metric that is known."""
  found = []
  for name in names:
    metric = rl_curves.METRICS[name]
    curve = _curve(records, name, _PLAIN, metric.scale)
    if curve is None:
      continue
    if len(curve["x"]) > 1:
      curve["notes"] = []  # a line needs no markers, a point does
    found.append(
      rl_curves.picture(
        [curve],
        zero=name not in _RETURNS,
        title=metric.axis,
        x_label="update",
        y_label="",
        size=(300, 200),
      )
    )
  return found


# --- Rows of the tables -----------------------------------------------------


def _tiles(train, evals):
  """Returns (look, label, last value, first value) of what counts most."""
  found = []
  for name, records, window in (
    ("accuracy", evals, 1),
    ("faithful", evals, 1),
    ("prm_score", train, 10),
    ("heldout_prm", train, 10),
  ):
    ends = rl_summary.ends(records, name, window)
    if ends is not None:
      first, last = (
        f"{html.percent(x)} %" if records is evals else f"{x:.3f}" for x in ends
      )
      found.append((_LOOKS[name], _LOOKS[name].label, last, first))
  return found


def _table(evals):
  """Returns (names, rows of update and values) of the evaluations."""
  names = [n for n in _TABLE if rl_summary.known(evals, n)]
  rows = [(int(r["step"]), [_cell(n, r.get(n)) for n in names]) for r in evals]
  return [rl_curves.METRICS[n].axis for n in names], rows


def _cell(name, value):
  if value is None:
    return "\N{EN DASH}"
  metric = rl_curves.METRICS[name]
  digits = 3 if name == "prm_score" else 1
  return f"{metric.scale * value:.{digits}f}"


def _phases(train):
  """Returns (phase, seconds, share) of the time that updates took."""
  seconds = {p: sum(rl_summary.known(train, f"{p}_s")) for p in _PHASES}
  total = sum(seconds.values())
  return [(p, s, s / total) for p, s in seconds.items() if s > 0]


def _counts(train):
  """Returns what the run sampled, and what of it taught nothing and why."""
  found = []
  for name, label in (
    ("solutions", "solutions sampled"),
    ("sampled_tokens", "tokens sampled"),
  ):
    if known := rl_summary.known(train, name):
      found.append((label, f"{sum(known):,.0f}"))
  seconds, tokens = (
    sum(rl_summary.known(train, n)) for n in ("rollout_s", "sampled_tokens")
  )
  if seconds and tokens:
    found.append(("tokens per second of rollouts", f"{tokens / seconds:,.0f}"))
  for name in sorted({n for r in train for n in r}):
    if name.startswith("left_out_") or name == "skipped_updates":
      total = sum(rl_summary.known(train, name))
      found.append((name.replace("_", " "), f"{total:,.0f}"))
  return found


# --- Samples ----------------------------------------------------------------


def chosen(samples: Sequence[Record]) -> list[Record]:
  """Returns a few samples of the first rollout, and as many of the last."""
  steps = [s["step"] for s in samples]
  ends = sorted({min(steps), max(steps)}) if steps else []
  return [
    s
    for step in ends
    for s in [x for x in samples if x["step"] == step][:SHOWN]
  ]


def _sample(record: Record) -> dict[str, Any]:
  """Returns what the page shows of a sample, as demo.card has it.

  Scores that aren't one of each step (of a PRM that reads steps of its own, or
  not all finite) are a line of text.
  """
  steps, scores, exact = (record[k] for k in ("steps", "prm", "exact"))
  fits = scores and len(scores) == len(steps) and None not in scores
  card = demo_report.card(
    dict(
      steps=steps,
      scores={"prm": scores} if fits else {},
      labels=exact,
      outcome=record["right"],
      picked_by="",
    )
  )
  own = None
  if scores and not fits:
    own = ", ".join("?" if x is None else f"{x:.3f}" for x in scores)
  # The rollout of a state makes its next update.
  more = dict(
    made_at=record["step"] + 1, judged=bool(fits and exact), own_scores=own
  )
  return dict(record) | card | more
