"""Samples N solutions of a problem and chooses one by a reward model.

A PRM and an ORM that learned from the same solutions are compared with a
majority vote and with votes that they weigh, at every N: the PRM's choices are
better than the ORM's, and its votes better than its favourite. It takes about
10 seconds on two CPU cores, and once 30 more for the models:

  python stories/best_of_n.py [FOLDER]
"""

import pathlib
import runpy
import sys

import numpy as np

import prm_jax
from prm_jax.testbed import arithmetic

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():  # the models of the first story
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- Samples ------------------------------------------------------------------

task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(64, "test", task, np.random.default_rng(2))
sampling = prm_jax.Sampling(max_tokens=48)
sample = prm_jax.Sample(folder / "policy", n=16, sampling=sampling, seed=1)
samples = sample(problems)

# --- One problem --------------------------------------------------------------

of_first = [s for s in samples if s.problem == problems[0].problem]
score = prm_jax.Score(folder / "prm")
print(f"{problems[0].problem} The right answer is {problems[0].answer}.")
for solution, scores in zip(of_first[:4], score(of_first[:4])):
  steps = "  ".join(
    f"{step} [{x:.2f}]" for step, x in zip(solution.steps, scores.scores)
  )
  print(f"  {steps}")
best = prm_jax.best_of_n(of_first, score)
print(f"The best of 16 says {best.answer}.")

# --- All problems, at every N -------------------------------------------------

# A number is the mean over all subsets of N of the 16 samples.
of_prm, of_orm = (
  prm_jax.EvaluateBestOfN(prm_jax.RewardModel(folder / name))(samples).results
  for name in ("prm", "orm")
)
curves = {
  "best by the ORM": of_orm["accuracy"]["model"],
  "best by the PRM": of_prm["accuracy"]["model"],
  "majority vote": of_prm["accuracy"]["majority"],
  "vote weighted by the ORM": of_orm["accuracy"]["weighted_model"],
  "vote weighted by the PRM": of_prm["accuracy"]["weighted_model"],
  "any of them right": of_prm["accuracy"]["oracle"],
}
header = "".join(f"{n:>6}" for n in of_prm["n"])
print(f"\n{'right answers, N =':<26}{header}")
for name, curve in curves.items():
  print(f"{name:<26}" + "".join(f"{x:>6.0%}" for x in curve))
gain = of_prm["paired"]["model_minus_majority_at_16"]
interval = f"[{gain['low']:+.0%}, {gain['high']:+.0%}]"
print(f"best by the PRM - majority, N = 16: {gain['mean']:+.0%} {interval}")

print("""
The more samples, the surer is one that a model takes for right by mistake: so
the ORM's choice gets worse with N, and the PRM's stops improving. In a vote
one mistake doesn't decide. With 64 problems even a lead over the majority is
uncertain, and these are a toy's errors: `prm-jax eval best_of_n` says what
holds for your models.""")
print("\nNext: stories/search_with_a_bill.py")
