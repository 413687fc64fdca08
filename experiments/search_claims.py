"""Verdicts of search_testbed.py's claims, from what its runs measured.

Not a command. Each function judges one claim by the rule in search_testbed.py;
search_more_claims.py has claims 8 to 12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import search_more_claims
import search_results as results
import search_runs
import search_statistics as stats
from search_statistics import Values

Record = dict[str, Any]


def judge(
  records: Mapping[str, Sequence[search_runs.Arrays]], c: Any
) -> Record:
  """Returns all results: accuracy, differences at equal cost, and verdicts."""
  r = results.Results(records, c.problems)
  claims = (
    beam_against_samples,
    lookahead,
    diverse_trees,
    rebase,
    particle_filter,
    width,
    compute_optimal,
    search_more_claims.speculation,
    search_more_claims.rejection,
    search_more_claims.adaptive,
    search_more_claims.contrastive,
    search_more_claims.exploits,
  )
  return dict(
    claims={
      str(i + 1): dict(name=claim.__name__) | claim(r)
      for i, claim in enumerate(claims)
    },
    pass_at_1=stats.interval(r.rate),
    pass_at_1_by_fifth=[
      stats.mean_of(r.rate, r.fifths == k) for k in range(stats.FIFTHS)
    ],
    accuracy=dict(results.accuracy(r)),
    samples=dict(results.samples(r)),
    persistent={
      f"{prm}.{n}": _persistent(r, prm, n)
      for prm in results.PRMS
      for n in r.curve("beam", f"{prm}_persistent")
    },
    fresh_seeds=_fresh(r),
    curves=results.curves(r, c.some),
  )


def _persistent(r: results.Results, prm: str, n: int) -> Record:
  """Returns each strategy's accuracy with persistent noise, and differences."""
  name = f"{prm}_persistent"
  beam = r.curve("beam", name)[n].values
  return {
    strategy: dict(
      weighted=results.short(stats.interval(point.values)),
      minus_weighted_samples=r.against(point, r.samples[name]["weighted"]),
      minus_beam=stats.interval(point.values - beam),
    )
    for strategy in results.STRATEGIES
    for point in [r.curve(strategy, name)[n]]
  }


def _fresh(r: results.Results) -> Record:
  """Returns what fresh seeds say of the claims that persistence suggested."""
  found: Record = {}
  for claim, name, n in (("3'", "dvts", 64), ("5'", "particles", 16)):
    points = [r.point(f"{x}.fresh.{n}") for x in (name, "beam")]
    difference = stats.interval(points[0].values - points[1].values)
    found[claim] = dict(
      verdict=stats.verdict(difference),
      difference=difference,
      accuracy=[results.short(stats.interval(p.values)) for p in points],
    )
  return found


# --- Claims -----------------------------------------------------------------


def beam_against_samples(r: results.Results) -> Record:
  """1: beam against weighted best-of-N at equal tokens."""
  parts: Record = {}
  for prm in results.PRMS:
    curve = r.curve("beam", prm)
    largest = max(curve)
    cells = dict(
      a_smallest=(4, None, 1),
      b_hard_16=(16, r.hard(), 1),
      c_largest=(largest, None, -1),
      d_easy_64=(64, r.easy(), -1),
    )
    parts[prm] = {}
    for part, (n, keep, sign) in cells.items():
      found = r.against(curve[n], r.samples[prm]["weighted"], keep=keep)
      parts[prm][part] = dict(
        verdict=stats.verdict(found, sign), n=n, difference=found
      )
  return dict(verdicts=_verdicts(parts), parts=parts)


def _verdicts(parts: Mapping[str, Mapping[str, Any]]) -> Record:
  return {
    prm: {part: x["verdict"] for part, x in cells.items()}
    for prm, cells in parts.items()
  }


def lookahead(r: results.Results) -> Record:
  """2: beams that look ahead against each strategy at equal FLOPs."""
  verdicts, differences = {}, {}
  for prm in results.PRMS:
    differences[prm] = {
      f"lookahead{ahead}.{n}": {
        other: r.against(
          r.point(f"lookahead{ahead}.{prm}.{n}"),
          [p for n, p in r.curve(other, prm).items() if n <= 64],
          "big",
        )
        for other in results.STRATEGIES
      }
      for n, ahead in ((4, 1), (16, 1), (4, 3))
    }
    below = {
      other: [
        stats.verdict(row[other], -1) == "confirmed"
        for row in differences[prm].values()
      ]
      for other in results.STRATEGIES
    }
    if all(all(x) for x in below.values()):
      verdicts[prm] = "confirmed"
    else:
      never = any(not any(x) for x in below.values())
      verdicts[prm] = "refuted" if never else "not seen"
  return dict(verdicts=verdicts, differences=differences)


def diverse_trees(r: results.Results) -> Record:
  """3: DVTS minus beam at equal N."""
  differences: Record = {}
  verdicts = {}
  for prm in results.PRMS:
    rows = {
      f"{n}.{how}": stats.interval(
        r.point(f"dvts.{prm}.{n}", f"{how}_right").values
        - r.point(f"beam.{prm}.{n}", f"{how}_right").values
      )
      for n in r.curve("dvts", prm)
      for how in ("weighted", "best")
    }
    differences[prm] = rows
    largest = max(r.curve("dvts", prm))
    verdicts[prm] = stats.verdict(rows[f"{largest}.weighted"])
  return dict(verdicts=verdicts, differences=differences)


def rebase(r: results.Results) -> Record:
  """4: REBASE minus weighted best-of-N at equal tokens."""
  differences = {
    prm: {
      str(n): r.against(point, r.samples[prm]["weighted"])
      for n, point in r.curve("rebase", prm).items()
    }
    for prm in results.PRMS
  }
  verdicts = {}
  for prm, rows in differences.items():
    found = {stats.verdict(d) for d in rows.values()}
    verdicts[prm] = "refuted" if "refuted" in found else "not seen"
    if "refuted" not in found and "confirmed" in found:
      verdicts[prm] = "confirmed"
  return dict(verdicts=verdicts, differences=differences)


def particle_filter(r: results.Results) -> Record:
  """5: particle filter minus beam at equal N."""
  differences = {
    f"{prm}.{n}": stats.interval(
      r.point(f"particles.{prm}.{n}").values - r.point(f"beam.{prm}.{n}").values
    )
    for prm in (*results.PRMS, "worst")
    for n in r.curve("particles", prm)
  }
  found = {stats.verdict(differences[f"{p}.16"]) for p in ("poor", "worst")}
  both = {"confirmed", "refuted"} <= found
  seen = found - {"not seen"}
  return dict(
    verdicts="not seen" if both or not seen else seen.pop(),
    differences=differences,
    calibrated_minus_beam={
      prm: stats.interval(
        r.point(f"calibrated.{prm}.16").values
        - r.point(f"beam.{prm}.16").values
      )
      for prm in (*results.PRMS, "worst")
    },
  )


def width(r: results.Results) -> Record:
  """6: k x k beams, by noise and width."""
  by_persistence: Record = {}
  for persistence in ("0", "0.8"):
    named = {
      (float(x), int(k[5:])): name
      for name in r.runs
      if name.startswith("width")
      for k, x, p in [_parts(name)]
      if p == persistence
    }
    ratios = sorted({x for x, _ in named}, reverse=True)
    widths = sorted({k for _, k in named})
    steps = np.stack(
      [[r.runs[named[x, k]]["best_steps"] for k in widths] for x in ratios]
    )
    found = stats.turning(steps, widths, ratios)
    falls = [
      stats.interval(row[widths.index(best)] - row[-1])
      for row, best in zip(steps, found["widths"], strict=True)
    ]
    by_persistence[persistence] = found | dict(
      ratios=ratios,
      k=widths,
      all_steps=[
        [stats.mean_of(cell, ~np.isnan(cell)) for cell in row] for row in steps
      ],
      best_minus_largest=[results.short(d) for d in falls],
      num_turns=sum(d["low"] > 0 for d in falls),
      largest_minus_2=[
        results.short(stats.interval(row[-1] - row[widths.index(2)]))
        for row in steps
      ],
    )
  return dict(
    verdicts={p: _width_verdict(x) for p, x in by_persistence.items()},
    by_persistence=by_persistence,
  )


def _parts(name: str) -> tuple[str, str, str]:
  """Returns width, ratio and persistence of a run's name."""
  head, _, rest = name.partition(".")
  ratio, persistence = rest, "0"
  if rest.endswith(".0.8"):
    ratio, persistence = rest[: -len(".0.8")], "0.8"
  else:
    ratio = rest[: -len(".0")]
  return head, ratio, persistence


def _width_verdict(found: Record) -> str:
  holds = found["low"] <= 0.25 <= found["high"] and found["low"] > 0
  if found["num_turns"] >= 3 and holds:
    return "confirmed"
  if found["high"] < 0.25 or found["largest_minus_2"][-1][1] > 0:
    return "refuted"
  return "not seen"


def compute_optimal(r: results.Results) -> Record:
  """7: the best strategy of each fifth against the best single one."""
  folds = np.arange(r.rate.shape[1]) % 2
  rows: Record = {}
  for prm in results.PRMS:
    for n in (4, 16):
      options = {s: r.curve(s, prm)[n].values for s in results.STRATEGIES}
      place = search_runs.VOTE_SIZES.index(n)
      for how in ("weighted", "best.product", "majority"):
        options[how] = r.samples[prm][how][place].values
      names = list(options)
      values = np.stack([options[name] for name in names])
      optimal, single = np.zeros_like(r.rate), np.zeros_like(r.rate)
      chosen = []
      for fold in (0, 1):
        train = np.broadcast_to(folds != fold, r.rate.shape)
        test = np.broadcast_to(folds == fold, r.rate.shape)
        best = int(values[:, train].mean(1).argmax())
        single[test] = values[best][test]
        picks = []
        for k in range(stats.FIFTHS):
          of = r.fifths == k
          pick = int(values[:, train & of].mean(1).argmax())
          optimal[test & of] = values[pick][test & of]
          picks.append(names[pick])
        chosen.append(dict(single=names[best], by_fifth=picks))
      rows[f"{prm}.{n}"] = dict(
        gain=stats.interval(optimal - single),
        factor=_saved(r, prm, chosen[0]["single"], n, optimal),
        chosen=chosen,
      )
  verdicts = {}
  for prm in results.PRMS:
    row = rows[f"{prm}.16"]
    seen = stats.verdict(row["gain"]) == "confirmed"
    if row["factor"] >= 2 and seen:
      verdicts[prm] = "confirmed"
    else:
      small = row["gain"]["high"] < 0.01 and row["factor"] < 2
      verdicts[prm] = "refuted" if small else "not seen"
  return dict(verdicts=verdicts, rows=rows)


def _saved(
  r: results.Results, prm: str, single: str, n: int, optimal: Values
) -> float:
  """Returns how many times N's tokens one strategy needs for an accuracy.

  Over the problems that were searched at N = 64.
  """
  if single in results.STRATEGIES:
    curve = [p for m, p in r.curve(single, prm).items() if m <= 64]
  else:
    curve = r.samples[prm][single]
  keep = ~np.isnan(r.curve("beam", prm)[64].values)
  tokens = np.log([p.costs["tokens"][keep].mean() for p in curve])
  accuracy = np.maximum.accumulate([p.values[keep].mean() for p in curve])
  reached = np.interp(optimal[keep].mean(), accuracy, tokens)
  own = np.interp(
    np.log(r.curve("beam", prm)[n].costs["tokens"][keep].mean()), tokens, tokens
  )
  return stats.rounded(np.exp(reached - own))
