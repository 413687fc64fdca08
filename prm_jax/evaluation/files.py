"""The evaluations as `prm-jax eval` runs them: files in, one result out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import functools
import pathlib
import reprlib
from typing import Any

import numpy as np

from prm_jax import answers
from prm_jax import checkpoint as checkpoint_lib
from prm_jax import progress
from prm_jax import schema
from prm_jax import scorer as scorer_lib
from prm_jax import voting
from prm_jax.data import corpus
from prm_jax.data import encode
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import processbench
from prm_jax.evaluation import step_metrics
from prm_jax.formats import fields


def read_scores(
  path: schema.PathLike, solutions: Sequence[schema.Solution]
) -> list[list[float]]:
  """Returns the step scores of a scores.jsonl, in the solutions' order.

  Raises:
    InputError: a solution has no scores, not one per step or two rows of
      them, or a score isn't in [0, 1].
  """
  by_id: dict[str, list[float]] = {}
  seen: dict[str, str] = {}
  for where, record in schema.read_records(path):
    if not isinstance(record.get("step_scores"), list) or "id" not in record:
      raise schema.InputError(
        f'{where}: expected {{"id", "step_scores": [float]}}, as'
        " `prm-jax score` writes it"
      )
    for i, score in enumerate(record["step_scores"]):
      is_number = isinstance(score, int | float) and not isinstance(score, bool)
      if not (is_number and 0 <= score <= 1):
        raise schema.InputError(
          f'{where}: "step_scores"[{i}] is {reprlib.repr(score)}; expected'
          " P(correct so far) in [0, 1]"
        )
    identity = fields.claim(seen, str(record["id"]), where)
    by_id[identity] = [float(x) for x in record["step_scores"]]
  out = []
  for s in solutions:
    if s.id not in by_id:
      raise schema.InputError(f"{path}: no scores for solution {s.id!r}")
    if len(by_id[s.id]) != len(s.steps):
      raise schema.InputError(
        f"{path}: {len(by_id[s.id])} scores for the {len(s.steps)} steps of"
        f" solution {s.id!r}; score the same file again"
      )
    out.append(by_id[s.id])
  return out


def _read(format_name: str, path: schema.PathLike) -> list[schema.Solution]:
  """Returns the solutions of a file; prints what is left out."""
  solutions, left_out = corpus.read(format_name, path)
  for reason, count in sorted(left_out.items()):
    print(f"left out: {count:,} {reason.replace('_', ' ')}")
  return solutions


def step_scores(
  solutions: Sequence[schema.Solution],
  checkpoint: pathlib.Path | None,
  scores: schema.PathLike | None,
  step: int | None = None,
) -> list[list[float]]:
  """Returns the scores of a checkpoint (of its latest step), or of a file."""
  if (checkpoint is None) == (scores is None):
    raise schema.InputError("give either --checkpoint or --scores")
  if step is not None and checkpoint is None:
    raise schema.InputError(f"--step={step}: give --checkpoint with it")
  if scores is not None:
    return read_scores(scores, solutions)
  assert checkpoint is not None
  scorer = scorer_lib.load(checkpoint, step)
  with progress.showing("score", len(solutions)) as update:
    return scorer.score(solutions, update)


def steps(
  format_name: str,
  path: schema.PathLike,
  policy: encode.LabelPolicy,
  checkpoint: pathlib.Path | None,
  scores: schema.PathLike | None,
  seed: int,
  step: int | None = None,
) -> dict[str, Any]:
  """Returns the step metrics over a file of labelled solutions.

  "baselines" holds those of scores that read no mathematics: everything is
  right, the step's index, its length.
  """
  solutions = _read(format_name, path)
  labels = [encode.step_labels(s, policy) for s in solutions]
  if not any(x is not None for row in labels for x in row):
    raise schema.InputError(f"{path}: no step has a label to compare with")
  measure = functools.partial(
    step_metrics.evaluate,
    labels=labels,
    problems=[s.problem for s in solutions],
    outcomes=[s.outcome for s in solutions],
    seed=seed,
  )
  results = measure(step_scores(solutions, checkpoint, scores, step))
  results["baselines"] = {}
  for name, baseline in processbench.BASELINES.items():
    found = measure(baseline(solutions))
    results["baselines"][name] = {
      key: found[key] for key in ("auroc", "auroc_interval", "auprc_error")
    }
  return results


def processbench_subsets(
  inputs: Sequence[str],
  checkpoint: pathlib.Path | None,
  scores: schema.PathLike | None,
  tune_on: str,
  seed: int,
  step: int | None = None,
) -> dict[str, Any]:
  """Returns ProcessBench's results for "SUBSET=FILE" inputs.

  One file of scores may hold those of all subsets. The trivial baselines
  stand beside the model.
  """
  subsets = {}
  for item in inputs:
    name, equals, path = item.partition("=")
    if not equals:
      raise schema.InputError(
        f"--input={item}: write it SUBSET=FILE, as in gsm8k=gsm8k.json"
      )
    if name in subsets:
      raise schema.InputError(
        f"--input={item}: subset {name!r} is given twice; name each once"
      )
    subsets[name] = _read("processbench", path)
  if tune_on not in subsets:
    raise schema.InputError(
      f"--tune_on={tune_on}: no such subset; have {', '.join(subsets)}"
    )
  flat = [s for rows in subsets.values() for s in rows]
  scored = iter(step_scores(flat, checkpoint, scores, step))
  scores_of = {
    "model": {n: [next(scored) for _ in x] for n, x in subsets.items()}
  }
  for name, baseline in processbench.BASELINES.items():
    scores_of[name] = {n: baseline(x) for n, x in subsets.items()}
  truth = {
    n: [schema.first_error(s.labels or ()) for s in x]
    for n, x in subsets.items()
  }
  return {
    name: processbench.evaluate_subsets(
      model_scores,
      truth,
      tune_on=tune_on,
      right_answer={n: [s.outcome for s in x] for n, x in subsets.items()},
      problems={n: [s.problem for s in x] for n, x in subsets.items()},
      seed=seed,
    )
    for name, model_scores in scores_of.items()
  }


def best_of_n_pool(
  format_name: str,
  path: schema.PathLike,
  checkpoint: pathlib.Path | None,
  scores: schema.PathLike | None,
  seed: int,
  aggregate: str | None = None,
  step: int | None = None,
) -> dict[str, Any]:
  """Returns best-of-N curves over a pool with outcomes.

  aggregate: how step scores become one per solution; None for the way that
  the checkpoint names, or the product.

  Solutions of one problem belong together; all problems take the number of
  samples that the problem with the fewest has, which is printed. Beside the
  model: the source's own accuracy on the other problems (a prior that reads no
  solution), the number of steps and the majority vote.
  """
  solutions = _read(format_name, path)
  unknown = sum(s.outcome is None for s in solutions)
  if unknown:
    raise schema.InputError(
      f'{path}: {unknown} solutions have no "outcome"; best-of-N needs each'
    )
  groups: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    groups[s.problem].append(i)
  if not groups:
    raise schema.InputError(f"{path}: no solutions")
  num = min(map(len, groups.values()))
  left_out = len(solutions) - num * len(groups)
  if left_out:
    print(f"left out: {left_out} solutions, to have {num} of every problem")
  index = np.array([rows[:num] for rows in groups.values()])
  if aggregate is None and checkpoint is not None:
    aggregate = checkpoint_lib.read_description(checkpoint).aggregate
  aggregate = aggregate or "product"
  scored = step_scores(solutions, checkpoint, scores, step)
  by_name = {
    "model": np.array([voting.aggregate(s, aggregate) for s in scored]),
    "shortest": np.array([-float(len(s.steps)) for s in solutions]),
  }
  if len({s.source for s in solutions}) > 1:
    by_name["source_prior"] = _source_prior(solutions)
  ns = [n for n in (2**k for k in range(12)) if n <= num]
  correct = np.array([bool(s.outcome) for s in solutions])[index]
  given = [
    s.answer if s.answer is not None else answers.extract(list(s.steps))
    for s in solutions
  ]
  results = best_of_n.evaluate(
    {name: x[index] for name, x in by_name.items()},
    correct,
    [[given[i] for i in row] for row in index],
    ns,
    pairs=[("model", "majority", ns[-1])],
    weighted=["model"],
    seed=seed,
  )
  return results | dict(aggregate=aggregate, left_out=left_out)


def _source_prior(solutions: Sequence[schema.Solution]) -> np.ndarray:
  """Returns each solution's source's accuracy on all other problems."""
  right: dict[str, float] = defaultdict(float)
  count: dict[str, float] = defaultdict(float)
  own: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
  for s in solutions:
    right[s.source] += bool(s.outcome)
    count[s.source] += 1
    own[s.source, s.problem][0] += bool(s.outcome)
    own[s.source, s.problem][1] += 1
  prior = []
  for s in solutions:
    mine_right, mine = own[s.source, s.problem]
    others = count[s.source] - mine
    prior.append((right[s.source] - mine_right) / others if others else 0.5)
  return np.array(prior)


# --- Tables -----------------------------------------------------------------


def _percent(x: float | None) -> str:
  return "-" if x is None else f"{100 * x:.1f}"


def plain_table(results: dict[str, Any]) -> str:
  """Returns one line per single number."""
  lines = []
  for name, value in results.items():
    if isinstance(value, float):
      lines.append(f"{name:32} {value:.4f}")
    elif isinstance(value, int):
      lines.append(f"{name:32} {value}")
    elif name == "baselines":
      for baseline, x in value.items():
        if x["auroc"] is not None and None not in x["auroc_interval"]:
          low, high = x["auroc_interval"]
          lines.append(
            f"{'auroc of ' + baseline:32} {x['auroc']:.4f}"
            f" [{low:.4f}, {high:.4f}]"
          )
    elif name == "auroc_interval" and value and None not in value:
      lines.append(f"{name:32} [{value[0]:.4f}, {value[1]:.4f}]")
  return "\n".join(lines)


def processbench_table(results: dict[str, Any]) -> str:
  """Returns F1 with its interval per model, threshold rule and subset, in %."""
  lines = [f"{'F1 in %':20}{'threshold':>18}  subsets"]
  for model, result in results.items():
    for rule in ("fixed", "tuned"):
      cells = []
      for subset, x in result[rule]["subsets"].items():
        low, high = x["interval"]["f1"] or (None, None)
        mark = " (tuned here)" if x.get("in_sample") else ""
        cells.append(
          f"{subset} {_percent(x['f1'])} [{_percent(low)}, {_percent(high)}]"
          f" err {_percent(x['acc_err'])} cor {_percent(x['acc_cor'])}"
          f" n {x['num_err']}+{x['num_cor']}{mark}"
        )
      threshold = next(iter(result[rule]["subsets"].values()))["threshold"]
      lines.append(f"{model:20}{rule:>9} {threshold:8.3f}  {'; '.join(cells)}")
      lines.append(f"{'':40}mean F1 {_percent(result[rule]['mean_f1'])}")
  return "\n".join(lines)


def best_of_n_table(results: dict[str, Any]) -> str:
  """Returns the accuracies of every way to choose, a row each, in %."""
  lines = [f"{'accuracy in %':>22}" + "".join(f"{n:>8}" for n in results["n"])]
  for name, curve in results["accuracy"].items():
    cells = "".join(f"{_percent(x):>8}" for x in curve)
    lines.append(f"{name:>22}{cells}")
  for name, x in results["paired"].items():
    lines.append(
      f"{name}: {100 * x['mean']:+.1f}"
      f" [{100 * x['low']:+.1f}, {100 * x['high']:+.1f}]"
    )
  return "\n".join(lines)
