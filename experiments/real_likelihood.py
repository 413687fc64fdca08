"""What does a published base know of a step before it is trained?

Command:  prm-jax import --role=policy --from=SmolLM2-135M-Instruct
          --to=runs/bases/smol_policy
          PRM_JAX_DATA=... python experiments/real_likelihood.py
          [--bases=runs/bases] [--base=smol_policy] [--sets=sums,gsm8k,...]
          [--results=runs/real_likelihood]
Rules, hardware, time and result: see experiments/README.md.

A base reads a solution once, as its own answer to the problem. A step's score is
made from the log-probabilities of its tokens, by themselves or by a logistic
regression whose six numbers are fitted to labels of other problems. Nothing of
the base is trained. What was read is kept, and not read again. The set `samples`
is real_best_of_n.py's, which ranks them by these scores.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
from typing import Any, NamedTuple

import labelling_testbed as testbed
import numpy as np
import real_prm
import real_prm_gsm8k as of_gsm8k

from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.text import policy_templates

FEATURES = ("total", "mean", "least", "mean_of_digits", "least_of_digits")
SETS = ("sums", "paths", "dev", "gsm8k", "math", "probe")
SAMPLES = "docs/results/real_best_of_n_samples.jsonl.gz"
TESTS = ("gsm8k", "math")
NUM_FITTED = 1_000
_GROUP_TOKENS = 4_096


def read_sets(names: Sequence[str]) -> dict[str, list[schema.Solution]]:
  """Returns the labelled solutions of each set that is asked for."""
  c = of_gsm8k.get_config()
  found: dict[str, list[schema.Solution]] = {}
  if {"gsm8k", "probe", "dev"} & {*names}:
    _, tests = of_gsm8k.read_data(c, of_gsm8k.Arm())
    found["gsm8k"], found["dev"] = tests["gsm8k"], tests[of_gsm8k.DEV]
    found["probe"] = of_gsm8k.probes(tests[of_gsm8k.DEV])
  data = real_prm.read_data(c)
  found["math"], prm800k = list(data.tests["math"]), list(data.train)
  if "paths" in names:
    found["paths"] = fitted(of_gsm8k.one_wrong_each(prm800k))
  if "sums" in names:
    both, _ = of_gsm8k.read_data(c, of_gsm8k.Arm(sums=True))
    found["sums"] = fitted(both[len(prm800k) :])
  if "samples" in names:
    found["samples"] = jsonl.read_solutions(SAMPLES)
  return {name: found[name] for name in names}


def fitted(solutions: Sequence[schema.Solution]) -> list[schema.Solution]:
  """Returns the solutions that a regression is fitted to, chosen by hash."""
  ordered = sorted(solutions, key=lambda s: of_gsm8k.hashed("fitted", s.id))
  return ordered[:NUM_FITTED]


# --- Reading --------------------------------------------------------------------


def read(
  policy: sampler_lib.Sampler, solutions: Sequence[schema.Solution]
) -> list[np.ndarray]:
  """Returns what a policy makes of each solution's steps.

  Args:
    policy: The base, with its chat.
    solutions: The solutions.

  Returns:
    For each solution an array [steps, FEATURES]: of the log-probabilities of the
    step's tokens, in nats, the sum, the mean and the least, and of those with a
    digit the mean and the least; 0 of a step without one.
  """
  answers = [as_answer(policy, s) for s in solutions]
  found: list[np.ndarray] = [np.zeros(0)] * len(answers)
  for group in groups([len(x.ids) for x in answers]):
    rows = log_likelihood.of_ids(
      policy.config, policy.params, [answers[i].ids for i in group]
    )
    for i, row in zip(group, rows, strict=True):
      x = answers[i]
      found[i] = of_steps(row[x.start :], x.spans, x.text, solutions[i].steps)
  return found


class Answer(NamedTuple):
  """A solution as a policy's own answer to its problem.

  Args:
    text: The steps, with blank lines between.
    spans: The place of each of its tokens in the text.
    ids: The ids of the chat, up to the answer's last.
    start: The number of ids before the answer.
  """

  text: str
  spans: Sequence[tuple[int, int]]
  ids: np.ndarray
  start: int


def as_answer(policy: sampler_lib.Sampler, solution: schema.Solution) -> Answer:
  """Returns a solution as a policy reads what it wrote itself."""
  assert policy.template is not None
  text = "\n\n".join(solution.steps)
  own, spans = policy.tokenizer.encode_with_spans(text)
  opening = policy_templates.write_opening(
    policy.template, solution.problem, policy.tokenizer
  )
  ids = np.concatenate([opening, np.asarray(own, np.int32)])
  return Answer(text, spans, ids, len(opening))


def kept(path: pathlib.Path) -> list[np.ndarray]:
  """Returns what `read` returned, as a file of --results has it."""
  return [
    np.asarray(x).reshape(-1, len(FEATURES))
    for x in json.loads(path.read_text())
  ]


def groups(
  lengths: Sequence[int], most: int = _GROUP_TOKENS
) -> list[list[int]]:
  """Returns numbers of sequences of like length that are read together."""
  found: list[list[int]] = []
  for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
    if not found or lengths[i] * (len(found[-1]) + 1) > most:
      found.append([])
    found[-1].append(i)
  return found


def of_steps(
  log_probs: np.ndarray,
  spans: Sequence[tuple[int, int]],
  text: str,
  steps: Sequence[str],
) -> np.ndarray:
  """Returns the features of the steps that blank lines part in a text.

  Args:
    log_probs: Of each token of the text, in nats.
    spans: The place of each token in the text.
    text: The text.
    steps: Its steps.
  """
  rows, start = [], 0
  for step in steps:
    end = start + len(step)
    inside = [
      i for i, (a, b) in enumerate(spans) if max(a, start) < min(b, end)
    ]
    digits = [
      i for i in inside if any(map(str.isdigit, text[slice(*spans[i])]))
    ]
    x = log_probs[inside] if inside else np.zeros(1)
    y = log_probs[digits] if digits else np.zeros(1)
    rows.append((x.sum(), x.mean(), x.min(), y.mean(), y.min()))
    start = end + 2
  return np.asarray(rows, np.float64).reshape(-1, len(FEATURES))


# --- Scores -----------------------------------------------------------------------


def regression(
  x: np.ndarray, y: np.ndarray, penalty: float = 1e-3, rounds: int = 50
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a fitted function from features to P(right), by Newton's method."""
  mean, deviation = x.mean(0), x.std(0)

  def with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([(x - mean) / deviation, np.ones((len(x), 1))], 1)

  z = with_one(x)
  weights = np.zeros(z.shape[1])
  ridge = penalty * len(z) * np.eye(len(weights))
  ridge[-1, -1] = 0
  for _ in range(rounds):
    p = 1 / (1 + np.exp(-z @ weights))
    gradient = z.T @ (p - y) + ridge @ weights
    step = np.linalg.solve((z.T * (p * (1 - p))) @ z + ridge, gradient)
    weights -= step
    if np.abs(step).max() < 1e-10:
      break
  return lambda x: 1 / (1 + np.exp(-with_one(x) @ weights))


def fitted_scores(
  results: pathlib.Path, base: str, name: str
) -> list[np.ndarray]:
  """Returns P(right) of the steps of a set that was read, fitted to `paths`."""
  paths, solutions = kept(results / f"{base}-paths.json"), read_sets(["paths"])
  score = regression(*real_prm.labelled(paths, solutions["paths"]))
  return [score(x) for x in kept(results / f"{base}-{name}.json")]


def by_itself(x: np.ndarray) -> np.ndarray:
  """Returns log-probabilities as numbers in [0, 1] of the same order."""
  return 1 / (1 - x)


def by_outcomes(
  scores: Sequence[Sequence[float]], solutions: Sequence[schema.Solution]
) -> float:
  """Returns the threshold that tells right answers from wrong ones best.

  A solution is accepted if its least score is at the threshold or above; of the
  shares of right ones accepted and of wrong ones refused the harmonic mean is
  the greatest. It takes outcomes alone, no labels of steps.

  Args:
    scores: The scores of each solution's steps.
    solutions: The solutions, with outcomes.
  """
  least = np.asarray([min(row) for row in scores])
  right = np.asarray([bool(s.outcome) for s in solutions])

  def mean(threshold: float) -> float:
    accepted = float((least[right] >= threshold).mean())
    refused = float((least[~right] < threshold).mean())
    return 2 * accepted * refused / max(accepted + refused, 1e-9)

  return max(np.unique(least).tolist(), key=mean)


def with_length(
  values: Sequence[np.ndarray], solutions: Sequence[schema.Solution]
) -> float:
  """Returns the rank correlation of values with step length as a score."""
  lengths = processbench_metrics.BASELINES["step_length"](solutions)
  ranks = [
    np.argsort(np.argsort(real_prm.labelled(rows, solutions)[0], kind="stable"))
    for rows in (values, list(map(np.asarray, lengths)))
  ]
  return float(np.corrcoef(*ranks)[0, 1])


def measured(
  scores: Sequence[np.ndarray],
  solutions: Sequence[schema.Solution],
  thresholds: Mapping[str, float],
) -> dict[str, Any]:
  """Returns F1 at 0.5, at the best and at given thresholds, and AUROC."""
  rows = [x.tolist() for x in scores]
  found = of_gsm8k.on_gsm8k(rows, solutions)
  truth = [schema.first_error(s.labels or ()) for s in solutions]
  problems = [s.problem for s in solutions]
  for name, threshold in thresholds.items():
    found[name] = processbench_metrics.evaluate(
      rows, truth, threshold=threshold, problems=problems
    )
  return found


def judged(
  features: Mapping[str, Sequence[np.ndarray]],
  solutions: Mapping[str, Sequence[schema.Solution]],
) -> dict[str, Any]:
  """Returns every measure of a base.

  Args:
    features: Those of each set.
    solutions: The sets.
  """
  found: dict[str, Any] = {}
  scores: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    name: lambda x, k=k: by_itself(x[:, k]) for k, name in enumerate(FEATURES)
  }
  thresholds: dict[str, dict[str, float]] = {name: {} for name in scores}
  for name in features.keys() & {"sums", "paths"}:
    score = regression(*real_prm.labelled(features[name], solutions[name]))
    scores[f"fitted_to_{name}"] = score
    truth = [
      schema.first_error([1.0 if x is None else x for x in row])
      for row in real_prm.labels_of(solutions[name])
    ]
    rows = [score(x).tolist() for x in features[name]]
    tuned = processbench_metrics.tune_threshold(rows, truth)
    thresholds[f"fitted_to_{name}"] = dict(fitted=tuned)
  for name, score in sorted(scores.items()):
    if "dev" in features:
      rows = [score(x).tolist() for x in features["dev"]]
      thresholds[name]["by_outcomes"] = by_outcomes(rows, solutions["dev"])
    found[name] = {
      test: measured(
        [score(x) for x in features[test]],
        solutions[test],
        thresholds[name],
      )
      for test in TESTS
      if test in features
    }
    if "probe" in features:
      found[name]["probe"] = of_gsm8k.seen(
        [score(x).tolist() for x in features["probe"]], solutions["probe"]
      )
  for k, name in enumerate(FEATURES):
    for test in found[name].keys() & {*TESTS}:
      found[name][test]["correlation_with_length"] = with_length(
        [x[:, k] for x in features[test]], solutions[test]
      )
  for name, baseline in processbench_metrics.BASELINES.items():
    found[name] = {
      test: of_gsm8k.on_gsm8k(baseline(solutions[test]), solutions[test])
      for test in TESTS
      if test in features
    }
  return step_metrics.defined(found)


def table(found: Mapping[str, Any]) -> str:
  """Returns the measures of a base as a Markdown table."""
  rows = [
    (
      *("", "set", "F1 at 0.5", "fitted threshold", "by outcomes"),
      *("in-sample", "AUROC"),
    )
  ]
  for name, tests in found.items():
    for test, x in tests.items():
      if test == "probe":
        continue
      tuned = [x.get(name) for name in ("fitted", "by_outcomes")]
      rows.append(
        (
          *(name.replace("_", " "), test, f"{100 * x['fixed']['f1']:.1f}"),
          *("" if at is None else f"{100 * at['f1']:.1f}" for at in tuned),
          f"{100 * x['itself']['f1']:.1f}",
          f"{x['auroc']:.3f}",
        )
      )
  return testbed.markdown(rows)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--bases", type=pathlib.Path, default="runs/bases")
  parser.add_argument("--base", default="smol_policy")
  parser.add_argument("--sets", default=",".join(SETS))
  parser.add_argument(
    "--results", type=pathlib.Path, default="runs/real_likelihood"
  )
  args = parser.parse_args()
  args.results.mkdir(parents=True, exist_ok=True)
  solutions = read_sets(args.sets.split(","))
  policy = None
  features = {}
  for name, of in solutions.items():
    path = args.results / f"{args.base}-{name}.json"
    if not path.exists():
      policy = policy or sampler_lib.load(args.bases / args.base)
      rows = [np.round(x, 4).tolist() for x in read(policy, of)]
      path.write_text(json.dumps(rows))
      print(f"{args.base}: {name} read", flush=True)
    features[name] = kept(path)
  found = judged(features, solutions)
  files.write_json(args.results / f"{args.base}.json", found)
  print(table(found))
  print({k: v.get("probe") for k, v in found.items()})


if __name__ == "__main__":
  main()
