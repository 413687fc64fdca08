"""Verdicts of search_testbed.py's claims 8 to 12.

Not a command. Each function judges one claim by the rule in search_testbed.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import search_results as results
import search_runs
import search_statistics as stats
from search_statistics import Values

from prm_jax import voting

Record = dict[str, Any]


def speculation(r: results.Results) -> Record:
  """8: RSD against the target alone, by threshold."""
  target = r.point("target")
  alone = {
    kind: 2 * stats.POLICIES["target"] * _of_writer(r.runs["target"], "policy")
    for kind in ("equal", "big")
  }
  rows: Record = dict(target=stats.interval(target.values))
  verdicts = {}
  for prm in results.PRMS:
    rows[prm] = {}
    good, worse = [], []
    for name in [n for n in r.runs if n.startswith("rsd") and n.endswith(prm)]:
      run, point = r.runs[name], r.point(name)
      difference = stats.interval(point.values - target.values)
      share = {
        kind: stats.rounded(point.costs[kind].mean() / alone[kind].mean())
        for kind in alone
      }
      written = run.get("target.sampled", np.zeros(1)).sum()
      rows[prm][name[3 : -len(prm) - 1]] = dict(
        accuracy=stats.interval(point.values),
        minus_target=difference,
        flops_of_target=share,
        target_tokens=stats.rounded(written / run["sampled"].sum()),
      )
      cheaper = share["equal"] < 1
      good.append(cheaper and difference["mean"] >= -0.01)
      worse.append(not cheaper or difference["high"] < -0.01)
    verdicts[prm] = "confirmed" if any(good) else "not seen"
    if all(worse):
      verdicts[prm] = "refuted"
  return dict(verdicts=verdicts, rows=rows)


def _of_writer(run: search_runs.Arrays, name: str) -> Values:
  return run[f"{name}.sampled"] + run[f"{name}.read_once"]


def rejection(r: results.Results) -> Record:
  """9: reject and resample against plain samples and best-of-N."""
  rows: Record = {}
  verdicts = {}
  for prm in results.PRMS:
    plain = r.samples[prm]["weighted"][0]
    rows[prm] = {}
    for name in r.runs:
      if name.startswith("reject") and name.endswith(prm):
        point = r.point(name)
        rows[prm][name[6 : -len(prm) - 1]] = dict(
          accuracy=stats.interval(point.values),
          minus_plain=stats.interval(point.values - plain.values),
          minus_best_of_n=r.against(point, r.samples[prm]["weighted"]),
          rejected=stats.rounded(r.runs[name]["rejected"].mean()),
          tokens_of_plain=stats.rounded(
            point.costs["tokens"].mean() / plain.costs["tokens"].mean()
          ),
        )
    row = rows[prm]["0.5"]
    verdicts[prm] = {
      part: stats.verdict(row[part])
      for part in ("minus_plain", "minus_best_of_n")
    }
  return dict(verdicts=verdicts, rows=rows)


def adaptive(r: results.Results) -> Record:
  """10: adaptive best-of-N against best of 64."""
  rows: Record = {}
  verdicts = {}
  at_64 = search_runs.VOTE_SIZES.index(64)
  for prm in results.PRMS:
    rows[prm] = {}
    curve = r.samples[prm]["best.last"]
    good, worse = [], []
    for name in r.runs:
      if name.startswith("adaptive") and name.endswith(prm):
        point = r.point(name, "best_right")
        share = r.runs[name]["candidates"].mean() / 64
        found = stats.interval(point.values - curve[at_64].values)
        rows[prm][name[8 : -len(prm) - 1]] = dict(
          accuracy=stats.interval(point.values),
          minus_best_of_64=found,
          samples_of_64=stats.rounded(share),
          minus_best_of_n_at_equal_tokens=r.against(point, curve),
          weighted_minus_weighted_64=stats.interval(
            r.point(name).values - r.samples[prm]["weighted"][at_64].values
          ),
        )
        good.append(share <= 0.65 and found["mean"] >= -0.01)
        worse.append(share > 0.65 or found["high"] < -0.01)
    verdicts[prm] = "confirmed" if any(good) else "not seen"
    if all(worse):
      verdicts[prm] = "refuted"
  return dict(verdicts=verdicts, rows=rows)


def contrastive(r: results.Results) -> Record:
  """11: not built."""
  del r
  return dict(verdicts="not run")


def exploits(r: results.Results) -> Record:
  """12: scorers that can be exploited, by N."""
  rows: Record = {}
  verdicts: Record = {}
  samples, num = r.runs["samples"], search_runs.CURVE_SAMPLES
  shape = r.rate.shape
  ns = search_runs.VOTE_SIZES
  for name in ("word", "blind"):
    scores = samples[f"{name}.last"].reshape(-1, num)
    fields: dict[str, dict[str, dict[int, Values]]] = dict(
      best_of_n={}, beam={}
    )
    values = dict(
      score=scores,
      all_steps=samples["steps"][..., :num].reshape(-1, num),
      right=samples["right"][..., :num].reshape(-1, num),
    )
    for field, value in values.items():
      picked = voting.best_of_n(scores, value, ns)
      fields["best_of_n"][field] = {
        n: picked[:, i].reshape(shape)
        for i, n in enumerate(ns)
        if n in (1, 4, 16, 64, 256)
      }
    for field, of_run in dict(
      score="best_log_odds", all_steps="best_steps", right="best_right"
    ).items():
      fields["beam"][field] = {
        n: p.values for n, p in r.curve("beam", name, of_run).items()
      }
    for method, found in fields.items():
      largest = max(found["score"])
      rows[f"{name}.{method}"] = {
        field: {str(n): stats.mean_of(v, ~np.isnan(v)) for n, v in by_n.items()}
        for field, by_n in found.items()
      } | {
        f"{field}_from_4": stats.interval(by_n[largest] - by_n[4])
        for field, by_n in found.items()
      }
      row = rows[f"{name}.{method}"]
      verdicts[f"{name}.{method}"] = (
        stats.verdict(row["all_steps_from_4"], -1)
        if stats.verdict(row["score_from_4"]) == "confirmed"
        else "not seen"
      )
  return dict(verdicts=verdicts, rows=rows)
