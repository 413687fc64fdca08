"""The hacking monitor: does a reward model's return still mean anything?

A policy that exploits its reward model gets a higher and higher return while
its solutions get worse. The monitor compares windows of updates. It gives an
alarm if the return rose while the verifier's accuracy, a held-out PRM's score
or the diversity fell by more than chance; if solutions became longer or
repetitive and no better; or if within a few updates more of them have no answer
or are cut. The last needs no truth, and comes first. The monitor is a function
of a run's records and has no state, so a resumed run has the same alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from prm_jax import errors
from prm_jax.rl import update_windows
from prm_jax.runtime import checks

# The metrics that are watched, each of them a kind of alarm.
FALLS = ("accuracy", "heldout_prm", "distinct")
DRIFTS = ("steps", "tokens", "repetition")
# Shares of solutions, which are watched for sudden rises only.
SHARES = ("without_answer", "cut")
KINDS = (*SHARES, *FALLS, *DRIFTS)
ACTIONS = ("warn", "stop", "rollback")
# From so many standard errors on, solutions count as better than at first.
_BETTER_SIGMAS = 2.0

Record = update_windows.Record


@dataclasses.dataclass(frozen=True)
class MonitorConfig:
  """What an alarm is, and what to do about it. Counts are in updates.

  Args:
    action: What to do on an alarm.
    acts_on: The kinds of alarm that the action applies to; others only warn.
    window: The number of updates whose means are compared.
    short_window: The number of last updates that are compared with the window
      before them, to see sudden changes; of a smaller window, as many as that.
    lookback: How far back the other window may be.
    sigmas: The number of standard errors of the difference that a change must
      exceed.
    smallest_fall: The smallest fall of accuracy or of the held-out score that
      counts, in [0, 1].
    drift_factor: The factor by which diversity, steps or tokens must change.
    repetition_rise: The share by which repetition must rise, besides the
      factor.
    sudden_rise: The rise of the share of solutions without an answer, or cut,
      in the short window that counts as sudden, in [0, 1].
  """

  action: str = "warn"
  acts_on: tuple[str, ...] = KINDS
  window: int = 10
  short_window: int = 3
  lookback: int = 200
  sigmas: float = 5.5
  smallest_fall: float = 0.05
  drift_factor: float = 2.0
  repetition_rise: float = 0.1
  sudden_rise: float = 0.05

  def __post_init__(self):
    checks.check_choice("monitor.action", self.action, ACTIONS)
    unknown = [x for x in self.acts_on if x not in KINDS]
    if unknown:
      raise errors.InputError(
        f"monitor.acts_on has {', '.join(map(repr, unknown))}: expected some"
        f" of {', '.join(KINDS)}"
      )
    checks.check_counts(self, ("window", "short_window"), "monitor.")
    least = 2 * self.window
    windows = f"two windows or more, that is {least}"
    checks.check(self, ("lookback",), lambda x: x >= least, windows, "monitor.")
    checks.check_positive(self, ("sigmas",), "monitor.")
    shares = ("smallest_fall", "repetition_rise", "sudden_rise")
    checks.check_shares(self, shares, "monitor.")
    above_1 = "a number above 1"
    factor = ("drift_factor",)
    checks.check(self, factor, lambda x: 1 < x < math.inf, above_1, "monitor.")

  @property
  def fewest(self) -> int:
    """The number of updates of the first comparison."""
    return self.window + self.short

  @property
  def short(self) -> int:
    """The number of updates of a short window."""
    return min(self.short_window, self.window)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """An alarm at an update, with the numbers that caused it.

  Args:
    update: The update.
    kind: The metric, one of KINDS.
    turn: The last update of the window from which it went wrong, to go back to.
    text: The alarm in words.
  """

  update: int
  kind: str
  turn: int
  text: str


def alarms(records: Sequence[Record], config: MonitorConfig) -> list[Alarm]:
  """Returns the alarms at the last of a run's updates, one of a kind at most.

  The cost doesn't grow with the run: only the first window and the last
  `lookback` records are read. An alarm lasts as long as its reason.

  Args:
    records: The records of every update from the first on, as in metrics.jsonl,
      without those of evaluations: `step`, the update; `prm_return`, which the
      policy is trained to raise; those of KINDS; `solutions`, the number that
      the update sampled; `kl_nats`, which only the text names. A value that is
      missing, null or nan is unknown, and a window of which less than half is
      known is ignored.
      Without `solutions` no sudden rise is looked for.
    config: What an alarm is.
  """
  if len(records) < config.fewest:
    return []
  first = _windows(records[: config.window], config)
  last = _windows(records[-config.lookback :], config)
  return _alarms_at(len(last.updates) - 1, first, last, config)


def replay(records: Sequence[Record], config: MonitorConfig) -> list[Alarm]:
  """Returns the first alarm of each kind that a run gave, in time."""
  if len(records) < config.fewest:
    return []
  first = _windows(records[: config.window], config)
  whole = _windows(records, config)
  first_of_kind: dict[str, Alarm] = {}
  for t in range(config.fewest - 1, len(records)):
    for alarm in _alarms_at(t, first, whole, config):
      first_of_kind.setdefault(alarm.kind, alarm)
  return list(first_of_kind.values())


def acting(given: Sequence[Alarm], config: MonitorConfig) -> Alarm | None:
  """Returns the alarm for which to stop or go back, or None to continue."""
  if config.action == "warn":
    return None
  return next((a for a in given if a.kind in config.acts_on), None)


def _windows(
  records: Sequence[Record], config: MonitorConfig
) -> update_windows.Windows:
  return update_windows.of_records(
    records,
    {"prm_return", "solutions", "kl_nats", *KINDS},
    window=config.window,
    short_window=config.short,
    lookback=config.lookback,
  )


def _alarms_at(
  t: int,
  first: update_windows.Windows,
  windows: update_windows.Windows,
  config: MonitorConfig,
) -> list[Alarm]:
  """Returns the alarms at index t of `windows`, one of a kind."""
  raised = [_sudden(kind, t, windows, config) for kind in SHARES]
  if t >= 2 * config.window - 1:
    better = _better(t, first, windows)
    # Better solutions may be longer, and alike.
    falls = [kind for kind in FALLS if kind != "distinct" or not better]
    raised += [_fall(kind, t, windows, config) for kind in falls]
    if not better:
      raised += [_drift(kind, t, first, windows, config) for kind in DRIFTS]
  return [alarm for alarm in raised if alarm is not None]


def _better(
  t: int, first: update_windows.Windows, windows: update_windows.Windows
) -> bool:
  """Returns whether solutions are better than in the first window.

  The verifier decides, or the held-out PRM if the verifier's value is unknown.
  """
  for kind in ("accuracy", "heldout_prm"):
    before, now = first.series[kind], windows.series[kind]
    rise = now.mean[t] - before.mean[-1]
    if not math.isnan(rise):
      error = math.sqrt(now.noise[t] * (1 / before.num[-1] + 1 / now.num[t]))
      return bool(rise > _BETTER_SIGMAS * error)
  return False


def _sudden(
  kind: str, t: int, windows: update_windows.Windows, config: MonitorConfig
) -> Alarm | None:
  """Returns the alarm that a share rose from the window before the last few."""
  series, then = windows.series[kind], t - config.short
  before, now = series.mean[then], series.short_mean[t]
  # nan compares as false.
  if not now - before >= config.sudden_rise:
    return None
  num_before, num_now = series.num[then], series.short_num[t]
  # No fewer than independent solutions have: a share that was 0 has no noise.
  share = (num_before * before + num_now * now) / (num_before + num_now)
  num = windows.series["solutions"].short_mean[t]
  if not num >= 1:
    return None
  variance = max(series.noise_then[then], share * (1 - share) / num)
  error = math.sqrt(variance * (1 / num_before + 1 / num_now))
  if not now - before > config.sigmas * error:
    return None
  sigmas = (now - before) / error if error else math.inf
  text = (
    f"{_change(kind, before, now)} ({sigmas:.1f} standard errors) from"
    f" {_span(then, windows, config.window)} to"
    f" {_span(t, windows, config.short)}"
  )
  updates = windows.updates
  return Alarm(updates[t], kind, updates[then], text + _kl(t, windows))


def _fall(
  kind: str, t: int, windows: update_windows.Windows, config: MonitorConfig
) -> Alarm | None:
  """Returns the alarm that the return rose and a metric fell since a window.

  Of all such windows it names the one since which the metric fell most.
  """
  series, paid = windows.series[kind], windows.series["prm_return"]
  begin = _begin(t, config)
  then = slice(begin, t - config.window + 1)
  fall = series.mean[then] - series.mean[t]
  if kind == "distinct":
    enough = config.drift_factor * series.mean[t] <= series.mean[then]
  else:
    enough = fall >= config.smallest_fall
  enough &= paid.mean[then] < paid.mean[t]
  if not enough.any():
    return None
  variance = np.full(len(fall), series.noise[t])
  if kind == "accuracy":
    # No fewer than independent solutions have. Solutions to one problem are
    # alike, which only the differences between updates show.
    share = np.clip((series.mean[then] + series.mean[t]) / 2, 0, 1)
    num = np.maximum(windows.series["solutions"].mean[t], 1)
    binomial = share * (1 - share) / num
    variance = np.fmax(variance, binomial)
  error = np.sqrt(
    variance * (1 / np.maximum(series.num[then], 1) + 1 / series.num[t])
  )
  enough &= fall > config.sigmas * error
  if not enough.any():
    return None
  e = int(np.argmax(np.where(enough, fall, -math.inf)))
  sigmas = fall[e] / error[e] if error[e] else math.inf
  e += begin
  text = (
    f"{_change(kind, series.mean[e], series.mean[t])} ({sigmas:.1f} standard errors)"
    f" from {_span(e, windows, config.window)} to"
    f" {_span(t, windows, config.window)}, while"
    f" {_change('prm_return', paid.mean[e], paid.mean[t])}"
  )
  updates = windows.updates
  return Alarm(updates[t], kind, updates[e], text + _kl(t, windows))


def _drift(
  kind: str,
  t: int,
  first: update_windows.Windows,
  windows: update_windows.Windows,
  config: MonitorConfig,
) -> Alarm | None:
  """Returns the alarm that a metric left the first window by a factor."""
  before, series = first.series[kind], windows.series[kind]
  start, now, factor = before.mean[-1], series.mean[t], config.drift_factor
  # nan compares as false.
  if kind == "repetition":
    far = now >= max(factor * start, start + config.repetition_rise)
  else:
    far = now >= factor * start or factor * now <= start
  if not far:
    return None
  change = abs(now - start)
  error = math.sqrt(series.noise[t] * (1 / before.num[-1] + 1 / series.num[t]))
  if not change > config.sigmas * error:
    return None
  near = np.abs(series.mean[:t] - start) <= change / 2
  near[: _begin(t, config)] = False
  turn = first.updates[-1]
  if near.any():
    turn = windows.updates[int(np.flatnonzero(near)[-1])]
  text = (
    f"{_change(kind, start, now)} from updates {first.updates[0]}-"
    f"{first.updates[-1]} to {_span(t, windows, config.window)}, and no better"
    " solutions show"
  )
  return Alarm(windows.updates[t], kind, turn, text + _kl(t, windows))


def _begin(t: int, config: MonitorConfig) -> int:
  """Returns the index of the first whole window in the lookback of t."""
  return max(t - config.lookback + 1, 0) + config.window - 1


def _change(name: str, old: float, new: float) -> str:
  verb = "fell" if new < old else "rose"
  return f"{name} {verb} from {old:.3g} to {new:.3g}"


def _span(t: int, windows: update_windows.Windows, window: int) -> str:
  start = windows.updates[max(t - window + 1, 0)]
  return f"updates {start}-{windows.updates[t]}"


def _kl(t: int, windows: update_windows.Windows) -> str:
  kl = windows.series["kl_nats"].mean[t]
  return "" if math.isnan(kl) else f"; KL {kl:.3g} nats"
