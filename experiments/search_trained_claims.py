"""Verdicts of search_trained.py's claims, from what its runs measured.

Not a command. The rules are in search_trained.py; intervals and curves at equal
cost are those of search_statistics.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import search_statistics as stats
from search_statistics import Point
import search_trained_models
import search_trained_runs

from prm_jax import voting
from prm_jax.evaluation import step_metrics

PRMS = search_trained_models.PRMS
STRATEGIES = ("beam", "dvts", "rebase", "particles")
# Searches that are compared with the curves of STRATEGIES and of samples.
OTHERS = ("mcts", "uniform", "lookahead", "beam_last", "beam_product", "reject")
COSTS = ("tokens", "flops", "big")
# Where the curves of samples are computed; in between they are interpolated.
VOTE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
Record = dict[str, Any]


def judge(
  records: Mapping[str, Sequence[search_trained_runs.Arrays]],
  fresh: Mapping[str, Sequence[search_trained_runs.Arrays]],
  num: int,
) -> Record:
  """Returns all results: verdicts, accuracies, diagnosis.

  Args:
    records: The arrays of each run and seed.
    fresh: Those of the fresh seeds.
    num: The number of problems of a seed.
  """
  r = Results(records, num)
  claims = (
    beam_against_samples,
    diverse_trees,
    rebase,
    particle_filter,
    lookahead,
    rejection,
    monte_carlo_tree_search,
  )
  return dict(
    claims={
      str(i + 1): dict(name=claim.__name__) | claim(r)
      for i, claim in enumerate(claims)
    },
    policy=dict(
      right=stats.interval(r.runs["samples"]["right"].mean(-1)),
      all_steps=stats.interval(r.runs["samples"]["steps"].mean(-1)),
    ),
    prms={name: prm_quality(r, name) for name in PRMS},
    samples=dict(sample_accuracy(r)),
    accuracy=dict(search_accuracy(r)),
    losses={name: dict(losses(r, name)) for name in PRMS},
    uniform_prior=uniform_prior(r),
    fresh_seeds=fresh_claims(Results(fresh, num)),
  )


class Results:
  """The measurements of all runs and seeds, as arrays."""

  def __init__(
    self, records: Mapping[str, Sequence[search_trained_runs.Arrays]], num: int
  ):
    self.runs = {n: stats.stacked(x, num) for n, x in records.items()}
    self.samples = sample_curves(self.runs["samples"], "right")
    # What a vote chooses is an answer, and no steps.
    self.steps = {
      name: curve
      for name, curve in sample_curves(self.runs["samples"], "steps").items()
      if name.startswith("best.")
    }

  def point(self, name: str, field: str = "weighted_right") -> Point:
    """Returns a run's values and costs."""
    run = self.runs[name]
    costs = stats.costs(run)
    by_kind = dict(tokens=costs["tokens"], flops=run["flops"], big=costs["big"])
    return Point(run[field], by_kind)

  def curve(
    self, strategy: str, prm: str, field: str = "weighted_right"
  ) -> dict[int, Point]:
    """Returns a strategy's points by their N."""
    head = f"{strategy}.{prm}."
    sizes = sorted(int(n[len(head) :]) for n in self.runs if n.startswith(head))
    return {n: self.point(f"{head}{n}", field) for n in sizes}

  def against(
    self, point: Point, curve: Sequence[Point], kind: str = "tokens"
  ) -> Record:
    """Returns a run minus a curve at equal mean cost, over its problems."""
    known = ~np.isnan(point.values)
    cost = float(point.costs[kind][known].mean())
    other = stats.at_cost(curve, kind, cost, known)
    return stats.interval(point.values - other, known)


# --- Independent samples ----------------------------------------------------


def scores_of(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns what ranks samples, and what weighs their votes.

  Args:
    logits: The log-odds of each sample's steps, with NaN behind the last.

  Returns:
    The least log-odds, -inf without a step, and their chance.
  """
  rank = np.where(np.isnan(logits), np.inf, logits).min(-1)
  rank = np.where(np.isinf(rank), -np.inf, rank)
  return rank, 1 / (1 + np.exp(-np.clip(rank, -500, 500)))


def sample_curves(
  samples: search_trained_runs.Arrays, field: str
) -> dict[str, list[Point]]:
  """Returns what independent samples give at VOTE_SIZES, by way to choose.

  best.PRM: by the highest score; weighted.PRM; majority; pass: one of
  them is right.

  Args:
    samples: The arrays of all seeds.
    field: right, or steps for answers whose steps are all right.
  """
  shape = samples["right"].shape[:2]
  num = samples["right"].shape[-1]
  ns = [n for n in VOTE_SIZES if n <= num]
  right = samples[field].reshape(-1, num)
  rows = [
    [None if a < 0 else a for a in row]
    for row in samples["answer"].reshape(-1, num).astype(int).tolist()
  ]
  curves = {
    "majority": voting.vote_accuracy(rows, right, None, ns),
    "pass": voting.pass_at_n(right, ns),
  }
  for name in PRMS:
    if f"{name}.logits" not in samples:
      continue
    rank, weight = scores_of(samples[f"{name}.logits"])
    curves[f"best.{name}"] = voting.best_of_n(rank.reshape(-1, num), right, ns)
    curves[f"weighted.{name}"] = voting.vote_accuracy(
      rows, right, weight.reshape(-1, num), ns
    )
  with_prm = stats.costs(samples)
  without = stats.costs(samples, scored=False)
  kinds = dict(
    scored=dict(
      tokens=with_prm["tokens"], flops=samples["flops"], big=with_prm["big"]
    ),
    alone=dict(
      tokens=without["tokens"],
      flops=samples["policy_flops"],
      big=without["big"],
    ),
  )
  return {
    name: [
      Point(
        values[:, i].reshape(shape),
        {
          kind: cost[..., n - 1]
          for kind, cost in kinds[
            "alone" if name in ("majority", "pass") else "scored"
          ].items()
        },
      )
      for i, n in enumerate(ns)
    ]
    for name, values in curves.items()
  }


def sample_accuracy(r: Results) -> Iterator[tuple[str, Record]]:
  """Yields the accuracy of independent samples by way to choose, at each N."""
  for name, points in r.samples.items():
    ns = VOTE_SIZES[: len(points)]
    yield (
      name,
      {
        str(n): dict(
          right=short(stats.interval(p.values)),
          cost={k: stats.rounded(v.mean()) for k, v in p.costs.items()},
          **(
            dict(all_steps=stats.rounded(r.steps[name][i].values.mean()))
            if name in r.steps
            else {}
          ),
        )
        for i, (n, p) in enumerate(zip(ns, points, strict=True))
        if n in (1, 4, 16, 64)
      },
    )


def prm_quality(r: Results, prm: str) -> Record:
  """Returns how a PRM judges the samples' steps, and if its errors persist.

  auroc: of steps up to the first wrong one. missed: the share of first wrong
  steps scored 0.5 or more. In wrong solutions, of pairs of steps one after the
  other from the first wrong step on: persistence, the correlation of their
  log-odds, and believed_next, the share of second steps scored 0.5 or more if
  the first was, and if it wasn't. never_doubted: of solutions whose first wrong
  step was scored 0.5 or more, the share without any step below 0.5 after it.
  """
  samples = r.runs["samples"]
  logits = samples[f"{prm}.logits"].reshape(-1, search_trained_runs.MOST_STEPS)
  labels = samples["labels"].reshape(logits.shape)
  known = ~np.isnan(logits)
  wrong = known & (labels < 1)
  after = np.cumsum(wrong, axis=1) > 1  # beyond the first wrong step
  first = wrong & ~after
  judged = known & ~after
  a, b = wrong[:, :-1] & known[:, 1:], wrong[:, 1:]
  pairs = logits[:, :-1][a & b], logits[:, 1:][a & b]
  believed = pairs[0] >= 0
  missed = logits[first] >= 0
  rows = first.any(1)
  doubted = (after & known & (logits < 0)).any(1)[rows]
  has_more = (after & known).any(1)[rows]
  return dict(
    auroc=stats.rounded(
      step_metrics.auroc(logits[judged], labels[judged] == 1)
    ),
    missed=stats.rounded(missed.mean()),
    first_wrong_steps=int(first.sum()),
    persistence=stats.rounded(np.corrcoef(*pairs)[0, 1]),
    pairs=len(pairs[0]),
    believed_next=dict(
      after_believed=_mean(pairs[1][believed] >= 0),
      after_doubted=_mean(pairs[1][~believed] >= 0),
    ),
    never_doubted=_mean(~doubted[missed & has_more]),
  )


def _mean(values: np.ndarray) -> float | None:
  return stats.rounded(values.mean()) if len(values) else None


def short(difference: Record) -> list[float]:
  return [difference[k] for k in ("mean", "low", "high")]


# --- Searches ---------------------------------------------------------------


def search_accuracy(r: Results) -> Iterator[tuple[str, Record]]:
  """Yields each search's accuracy, cost, and difference from samples."""
  for prm in PRMS:
    for strategy in (*STRATEGIES, *OTHERS):
      for n, point in r.curve(strategy, prm).items():
        name = f"{strategy}.{prm}.{n}"
        run = r.runs[name]
        known = ~np.isnan(point.values)
        yield (
          name,
          dict(
            weighted=short(stats.interval(point.values)),
            weighted_seeds=stats.interval(point.values)["seeds"],
            best=short(stats.interval(run["best_right"])),
            all_steps_weighted=stats.mean_of(run["weighted_steps"], known),
            all_steps_best=stats.mean_of(run["best_steps"], known),
            oracle=stats.mean_of(run["oracle"], known),
            candidates=stats.mean_of(run["candidates"], known),
            cost={k: stats.mean_of(v, known) for k, v in point.costs.items()},
            minus={
              how: {
                kind: short(r.against(point, r.samples[f"{how}.{prm}"], kind))
                for kind in COSTS
              }
              for how in ("weighted", "best")
            },
            problems=int(known.sum()),
          ),
        )


def losses(r: Results, prm: str) -> Iterator[tuple[str, Record]]:
  """Yields what happened in the problems that a search lost.

  Lost: the weighted vote's answer is wrong. of_lost: a right candidate was
  there (not_chosen); the deepest node with right steps wasn't continued, or had
  no right child. Of those with a wrong step in the chosen solution: believed,
  the PRM scored the first wrong one 0.5 or more; shared, all candidates have
  it; opening, it is the first step; and how it errs.
  """
  for strategy in (*STRATEGIES, *OTHERS):
    for n in r.curve(strategy, prm):
      run = r.runs[f"{strategy}.{prm}.{n}"]
      known = ~np.isnan(run["weighted_right"])
      lost = known & (run["weighted_right"] < 1)
      if strategy == "reject" or not lost.any():
        continue
      wrong = lost & ~np.isnan(run["first"])
      ends = ("not_chosen", "not_continued", "no_right_child")
      yield (
        f"{strategy}.{n}",
        dict(
          lost=int(lost.sum()),
          problems=int(known.sum()),
          **{x: int((run["end"][lost] == i).sum()) for i, x in enumerate(ends)},
          wrong_step=int(wrong.sum()),
          believed=int((run["first_log_odds"][wrong] >= 0).sum()),
          shared=int(run["shared"][wrong].sum()),
          shared_and_believed=int(
            (
              (run["shared"][wrong] == 1) & (run["first_log_odds"][wrong] >= 0)
            ).sum()
          ),
          opening=int((run["first"][wrong] == 0).sum()),
          errors={
            x: int((run["error"][lost] == i).sum())
            for i, x in enumerate(search_trained_runs.ERRORS)
          },
        ),
      )


# --- Claims -----------------------------------------------------------------


def beam_against_samples(r: Results) -> Record:
  """1: beam against samples at equal tokens, by N and way to choose."""
  parts: Record = {}
  for prm in PRMS:
    parts[prm] = {
      f"{how}.{n}": r.against(point, r.samples[f"{how}.{prm}"])
      for how in ("weighted", "best")
      for n, point in r.curve("beam", prm, f"{how}_right").items()
    }
  return dict(
    verdicts={
      prm: {
        part: stats.verdict(found)
        for part, found in rows.items()
        if not part.endswith(".64")
      }
      for prm, rows in parts.items()
    },
    differences=parts,
  )


def diverse_trees(r: Results) -> Record:
  """2: DVTS minus beam at equal N."""
  return _pairwise(r, "dvts", 64)


def particle_filter(r: Results) -> Record:
  """4: particle filter minus beam at equal N."""
  return _pairwise(r, "particles", 16)


def _pairwise(r: Results, name: str, judged: int) -> Record:
  """Returns a strategy minus beam at equal N; the verdict is that at one N."""
  differences = {
    prm: {
      f"{how}.{n}": stats.interval(
        point.values - r.curve("beam", prm, f"{how}_right")[n].values
      )
      for how in ("weighted", "best")
      for n, point in r.curve(name, prm, f"{how}_right").items()
    }
    for prm in PRMS
  }
  return dict(
    verdicts={
      prm: stats.verdict(rows[f"weighted.{judged}"])
      for prm, rows in differences.items()
    },
    differences=differences,
  )


def rebase(r: Results) -> Record:
  """3: REBASE minus weighted best-of-N at equal tokens."""
  differences = {
    prm: {
      str(n): r.against(point, r.samples[f"weighted.{prm}"])
      for n, point in r.curve("rebase", prm).items()
    }
    for prm in PRMS
  }
  verdicts = {}
  for prm, rows in differences.items():
    seen = {stats.verdict(d) for d in rows.values()}
    verdicts[prm] = "confirmed" if "confirmed" in seen else "not seen"
    if "refuted" in seen:
      verdicts[prm] = "refuted"
  return dict(verdicts=verdicts, differences=differences)


def lookahead(r: Results) -> Record:
  """5: beams that look ahead against each strategy at equal FLOPs."""
  verdicts, differences = {}, {}
  for prm in PRMS:
    differences[prm] = {
      str(n): {
        other: r.against(point, [*r.curve(other, prm).values()], "flops")
        for other in STRATEGIES
      }
      for n, point in r.curve("lookahead", prm).items()
    }
    below = {
      other: [
        stats.verdict(row[other], -1) == "confirmed"
        for row in differences[prm].values()
      ]
      for other in STRATEGIES
    }
    never = any(not any(x) for x in below.values())
    verdicts[prm] = "refuted" if never else "not seen"
    if all(all(x) for x in below.values()):
      verdicts[prm] = "confirmed"
  return dict(verdicts=verdicts, differences=differences)


def rejection(r: Results) -> Record:
  """6: reject and resample against one sample, and against best-of-N."""
  plain = r.runs["samples"]["right"].mean(-1)
  rows: Record = {}
  for prm in PRMS:
    (point,) = r.curve("reject", prm).values()
    rows[prm] = dict(
      plain=stats.interval(point.values - plain),
      **{
        how: r.against(point, r.samples[f"{how}.{prm}"])
        for how in ("weighted", "best")
      },
    )
  return dict(
    verdicts={
      prm: {part: stats.verdict(rows[prm][part]) for part in rows[prm]}
      for prm in PRMS
    },
    differences=rows,
  )


def monte_carlo_tree_search(r: Results) -> Record:
  """7: MCTS against beam at equal FLOPs, and against the other strategies."""
  differences = {
    prm: {
      f"{kind}.{n}": {
        other: r.against(point, [*r.curve(other, prm).values()], kind)
        for other in STRATEGIES
      }
      for kind in ("flops", "tokens")
      for n, point in r.curve("mcts", prm).items()
    }
    for prm in PRMS
  }
  return dict(
    verdicts={
      prm: stats.verdict(rows["flops.4"]["beam"])
      for prm, rows in differences.items()
    },
    differences=differences,
  )


def uniform_prior(r: Results) -> Record:
  """Returns MCTS with a uniform prior minus beam, and minus its own prior's."""
  return {
    str(n): dict(
      minus_beam=r.against(point, [*r.curve("beam", "few").values()]),
      minus_policy_prior=stats.interval(
        point.values - r.point(f"mcts.few.{n}").values
      ),
    )
    for n, point in r.curve("uniform", "few").items()
  }


def fresh_claims(r: Results) -> Record:
  """Returns what fresh seeds say of the claims that the results suggested."""
  beam = r.point("beam.few.16")
  cells = {
    "1'": (r.against(beam, r.samples["weighted.few"]), -1),
    "2'": (_minus(r, "dvts.few.16", "beam.few.16"), 1),
    "4'": (_minus(r, "particles.few.16", "beam.few.16"), 1),
    "7'": (_minus(r, "mcts.few.1", "beam.few.4"), 1),
    "8'": (_minus(r, "mcts.few.1", "uniform.few.1"), 1),
  }
  searches = [name for name in r.runs if name != "samples"]
  return dict(
    claims={
      name: dict(verdict=stats.verdict(found, sign), difference=found)
      for name, (found, sign) in cells.items()
    },
    prm=prm_quality(r, "few"),
    accuracy={
      name: dict(
        right=short(stats.interval(r.point(name).values)),
        tokens=stats.rounded(r.point(name).costs["tokens"].mean()),
      )
      for name in searches
    },
    weighted_best_of_n={
      str(n): short(stats.interval(p.values))
      for n, p in zip(VOTE_SIZES, r.samples["weighted.few"], strict=False)
      if n in (1, 4, 16, 64)
    },
  )


def _minus(r: Results, a: str, b: str) -> Record:
  return stats.interval(r.point(a).values - r.point(b).values)


# --- Table ------------------------------------------------------------------


def table(result: Mapping[str, Any]) -> str:
  """Returns verdicts and accuracies as Markdown."""
  lines = ["| claim | verdict |", "|---|---|"]
  lines += [
    f"| {number} {claim['name']} | {_flat(claim['verdicts'])} |"
    for number, claim in result["claims"].items()
  ]
  lines += [
    f"| {number} (fresh seeds) | {claim['verdict']} |"
    for number, claim in result["fresh_seeds"]["claims"].items()
  ]
  lines += ["", "| search | weighted | best | tokens |", "|---|---|---|---|"]
  for name, row in result["accuracy"].items():
    cells = [_percent(row["weighted"]), _percent(row["best"])]
    lines.append(
      f"| {name} | {' | '.join(cells)} | {row['cost']['tokens']:,.0f} |"
    )
  for name, by_n in result["samples"].items():
    cells = [f"{n}: {_percent(row['right'])}" for n, row in by_n.items()]
    lines.append(f"| {name} | {', '.join(cells)} | | |")
  return "\n".join(lines)


def _percent(row: Sequence[float]) -> str:
  mean, low, high = (100 * x for x in row)
  return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _flat(verdicts: Any) -> str:
  if isinstance(verdicts, str):
    return verdicts
  return "; ".join(f"{name}: {_flat(v)}" for name, v in verdicts.items())
