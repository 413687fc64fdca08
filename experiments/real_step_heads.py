"""Does a PRM's head read the wrong place of a published base?

Command:  prm-jax import --role=policy --from=SmolLM2-135M-Instruct
          --to=runs/bases/smol_policy
          PRM_JAX_DATA=... python experiments/real_step_heads.py
          [--bases=runs/bases] [--base=smol_policy]
          [--results=runs/real_step_heads]
Rules, hardware, time and result: see experiments/README.md.

A frozen base reads solutions once, as its own answers. Heads are logistic
regressions of what it makes of a step: the state of the step's last token, which
the heads of our PRMs read, the mean state of its tokens, and the
log-probabilities of real_likelihood.py. What was read is kept.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import json
import pathlib
from typing import Any

import jax
from jax import numpy as jnp
import labelling_testbed as testbed
import numpy as np
import real_likelihood
import real_prm
import real_prm_gsm8k as of_gsm8k

from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.models import transformer
from prm_jax.policy import sampler as sampler_lib
from prm_jax.rows import packing
from prm_jax.runtime import files

SEEDS, NUM = 3, 1_000
TESTS = real_likelihood.TESTS
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
# What a head reads, as parts of what Step.of has.
HEADS: Mapping[str, tuple[str, ...]] = dict(
  last=("last",),
  mean=("mean",),
  expected=("expected",),
  last_expected=("last", "expected"),
  mean_expected=("mean", "expected"),
)
_GROUP_TOKENS = 2_048
# A step's parts: arrays [steps, numbers], one for each solution.
Parts = dict[str, list[np.ndarray]]


def read_sets() -> dict[str, list[schema.Solution]]:
  """Returns the thousands that heads are fitted to, and the tests."""
  c = of_gsm8k.get_config()
  _, tests = of_gsm8k.read_data(c, of_gsm8k.Arm())
  data = real_prm.read_data(c)
  paths = sorted(
    of_gsm8k.one_wrong_each(list(data.train)),
    key=lambda s: of_gsm8k.hashed("fitted", s.id),
  )
  fitted = {
    f"fitted_{seed}": paths[seed * NUM : (seed + 1) * NUM]
    for seed in range(SEEDS)
  }
  return dict(gsm8k=tests["gsm8k"], math=list(data.tests["math"]), **fitted)


# --- Reading --------------------------------------------------------------------


def read(
  policy: sampler_lib.Sampler, solutions: Sequence[schema.Solution]
) -> Parts:
  """Returns what a policy makes of each step of each solution.

  Args:
    policy: The base, with its chat.
    solutions: The solutions.

  Returns:
    `last` and `mean` [steps, D], the states of the step's last token and of all
    its tokens, and `expected`, as real_likelihood.of_steps has it.
  """
  answers = [real_likelihood.as_answer(policy, s) for s in solutions]
  found: Parts = {
    name: [np.zeros(0)] * len(answers) for name in ("last", "mean", "expected")
  }
  lengths = [len(x.ids) for x in answers]
  for group in real_likelihood.groups(lengths, _GROUP_TOKENS):
    width = packing.padded_length(max(lengths[i] for i in group))
    rows = [
      [packing.branches(answers[i].ids[:0], [answers[i].ids])] for i in group
    ]
    states, log_probs = jax.device_get(
      _outputs(policy.params, packing.fill(rows, width), config=policy.config)
    )
    for row, i in enumerate(group):
      answer, steps = answers[i], solutions[i].steps
      own = slice(answer.start, lengths[i])
      places = tokens_of_steps(answer.spans, steps)
      of_row = states[row, own].astype(np.float32)
      found["last"][i] = np.stack([of_row[x[-1]] for x in places])
      found["mean"][i] = np.stack([of_row[x].mean(0) for x in places])
      found["expected"][i] = real_likelihood.of_steps(
        log_probs[row, own], answer.spans, answer.text, steps
      )
  return found


@functools.partial(jax.jit, static_argnames="config")
def _outputs(params, batch, *, config):
  """Returns the last states and the log-probabilities of a batch's tokens."""
  states = transformer.apply(config, params, batch, method="hidden")
  before = jnp.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]

  def of_row(row):
    hidden, tokens = row
    logits = transformer.apply(config, params, hidden, method="vocabulary")
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)

  return states, jax.lax.map(of_row, (before, batch.tokens))


def tokens_of_steps(
  spans: Sequence[tuple[int, int]], steps: Sequence[str]
) -> list[list[int]]:
  """Returns the tokens of each step that blank lines part in a text.

  A step without a token of its own has the one before it.
  """
  found, start, last = [], 0, 0
  for step in steps:
    end = start + len(step)
    inside = [
      i for i, (a, b) in enumerate(spans) if max(a, start) < min(b, end)
    ]
    last = inside[-1] if inside else last
    found.append(inside or [last])
    start = end + 2
  return found


def kept(path: pathlib.Path, parts: Callable[[], Parts]) -> Parts:
  """Returns the parts in a file, which are read if they aren't there yet."""
  if not path.exists():
    made = parts()
    arrays = {
      name: np.concatenate(rows).astype(np.float32)
      for name, rows in made.items()
    }
    lengths = np.asarray([len(x) for x in made["last"]])
    np.savez(path, lengths=lengths, **arrays)
    print(f"{path.stem} read", flush=True)
  with np.load(path) as f:
    ends = np.cumsum(f["lengths"])[:-1]
    return {x: np.split(f[x], ends) for x in f.files if x != "lengths"}


# --- Heads ------------------------------------------------------------------------


def joined(parts: Parts, names: Sequence[str]) -> list[np.ndarray]:
  """Returns what a head reads of each solution's steps, [steps, numbers]."""
  rows = zip(*(parts[name] for name in names), strict=True)
  return [np.concatenate(row, axis=1).astype(np.float64) for row in rows]


def fit(
  rows: Sequence[np.ndarray], solutions: Sequence[schema.Solution]
) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
  """Returns a head, and the penalty that was best on a fifth of the problems."""
  is_held = [of_gsm8k.hashed("held", s.problem) % 5 == 0 for s in solutions]

  def part(held):
    chosen = [i for i, x in enumerate(is_held) if x == held]
    return real_prm.labelled(
      [rows[i] for i in chosen], [solutions[i] for i in chosen]
    )

  (x, y), (held_x, held_y) = part(False), part(True)

  def loss(penalty):
    p = np.clip(real_likelihood.regression(x, y, penalty)(held_x), 1e-6, 1)
    p = np.minimum(p, 1 - 1e-6)
    return -np.mean(held_y * np.log(p) + (1 - held_y) * np.log(1 - p))

  best = min(PENALTIES, key=loss)
  whole = real_prm.labelled(rows, solutions)
  return real_likelihood.regression(*whole, best), best


def judged(
  parts: Mapping[str, Parts], solutions: Mapping[str, list[schema.Solution]]
) -> dict[str, Any]:
  """Returns every measure of each head, by seed and test."""
  found: dict[str, Any] = {}
  for head, names in HEADS.items():
    for seed in range(SEEDS):
      own = f"fitted_{seed}"
      rows = joined(parts[own], names)
      score, penalty = fit(rows, solutions[own])
      truth = [
        schema.first_error([1.0 if x is None else x for x in row])
        for row in real_prm.labels_of(solutions[own])
      ]
      threshold = processbench_metrics.tune_threshold(
        [score(x).tolist() for x in rows], truth
      )
      found[f"{head}-{seed}"] = dict(penalty=penalty) | {
        test: real_likelihood.measured(
          [score(x) for x in joined(parts[test], names)],
          solutions[test],
          dict(fitted=threshold),
        )
        for test in TESTS
      }
  for name, baseline in processbench_metrics.BASELINES.items():
    found[name] = {
      test: of_gsm8k.on_gsm8k(baseline(solutions[test]), solutions[test])
      for test in TESTS
    }
  return step_metrics.defined(found)


def table(found: Mapping[str, Any]) -> str:
  """Returns AUROC and F1 of each head, its seeds one after another."""
  rows = [
    ("head reads", *(f"{x}, {y}" for x in TESTS for y in ("AUROC", "F1")))
  ]
  for head in HEADS:
    of_seeds = [found[f"{head}-{seed}"] for seed in range(SEEDS)]
    cells = []
    for test in TESTS:
      cells.append(", ".join(f"{x[test]['auroc']:.3f}" for x in of_seeds))
      f1s = (x[test]["fitted"]["f1"] for x in of_seeds)
      cells.append(", ".join(f"{100 * x:.1f}" for x in f1s))
    rows.append((head.replace("_", " + "), *cells))
  for name in processbench_metrics.BASELINES:
    cells = []
    for test in TESTS:
      x = found[name][test]
      cells += [f"{x['auroc']:.3f}", f"{100 * x['itself']['f1']:.1f} at best"]
    rows.append((name.replace("_", " "), *cells))
  return testbed.markdown(rows)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--bases", type=pathlib.Path, default="runs/bases")
  parser.add_argument("--base", default="smol_policy")
  parser.add_argument(
    "--results", type=pathlib.Path, default="runs/real_step_heads"
  )
  args = parser.parse_args()
  args.results.mkdir(parents=True, exist_ok=True)
  solutions = read_sets()
  policy = sampler_lib.load(args.bases / args.base)
  parts = {
    name: kept(
      args.results / f"{args.base}-{name}.npz",
      functools.partial(read, policy, of),
    )
    for name, of in solutions.items()
  }
  found = judged(parts, solutions)
  files.write_json(args.results / f"{args.base}.json", found)
  print(
    json.dumps({k: v["penalty"] for k, v in found.items() if "penalty" in v})
  )
  print(table(found))


if __name__ == "__main__":
  main()
