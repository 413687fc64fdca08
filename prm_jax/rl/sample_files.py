"""samples.jsonl: a few solutions of each rollout, with their rewards."""

from __future__ import annotations

import math
import pathlib

import numpy as np

from prm_jax.runtime import checked_lines
from prm_jax.runtime import files
from prm_jax.training import metrics_log

# Of each rollout so many solutions are written.
SHOWN = 4


class Samples:
  """Writes samples.jsonl, one rollout after another.

  Args:
    workdir: The folder of the file.
    first: The step that the run resumes from. Records from that step on are
      dropped before the first new record, because their rollouts are made
      again.
  """

  def __init__(self, workdir: pathlib.Path, first: int):
    self._path, self._first = workdir / "samples.jsonl", first
    self._begun = False

  def __call__(self, step, solutions, outputs, rewards, credit) -> None:
    if not self._begun:
      metrics_log.keep_records(self._path, lambda r: r["step"] < self._first)
      self._begun = True
    chosen = np.linspace(0, len(solutions) - 1, min(SHOWN, len(solutions)))
    with open(self._path, "a", encoding="utf-8") as f:
      for i in sorted({int(number) for number in chosen}):
        s = solutions[i]
        record = dict(
          step=step,
          id=s.id,
          problem=s.problem,
          steps=list(s.steps),
          stopped=s.extra["stopped"],
          right=outputs.right[i],
          prm=None if outputs.prm is None else _plain(outputs.prm[i]),
          prm_judged=outputs.prm_judged[i] if outputs.prm_judged else None,
          exact=None if outputs.exact is None else _plain(outputs.exact[i]),
          outcome_reward=_plain([rewards.outcome[i]])[0],
          total_return=_plain([credit.total[i]])[0],
          counts=bool(rewards.counts[i]),
        )
        text = files.dump_json(record, f"{self._path}: {s.id}")
        f.write(checked_lines.line_of(text))


def _plain(values) -> list[float | None]:
  """Returns numbers for JSON; null for one that isn't finite."""
  return [float(x) if math.isfinite(x) else None for x in values]
