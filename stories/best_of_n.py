"""Samples N solutions of each problem and keeps the one that a model likes best.

It compares a process and an outcome reward model with the majority of answers
and with chance, at every N, over all subsets of the samples. It takes about 15
seconds on two CPU cores, and once 30 more for the models of the first story:
python stories/best_of_n.py [FOLDER]
"""

import pathlib
import runpy
import sys

import numpy as np

import prm_jax
from prm_jax.testbed import arithmetic

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- Samples ------------------------------------------------------------------

task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(100, "test", task, np.random.default_rng(2))
sample = prm_jax.Sample(
  folder / "policy", n=16, sampling=prm_jax.Sampling(max_tokens=48), seed=1
)
samples = sample(problems)

# One problem by hand: score its samples, take the best.
prm = prm_jax.load(folder / "prm")
of_one = [s for s in samples if s.problem == samples[0].problem]
best = prm_jax.best_of_n(of_one, prm)
print(f"\n{best.problem} -> {best.answer}, right: {best.outcome}")

# --- All of them --------------------------------------------------------------

# The evaluation's numbers are exact means over all subsets of N samples, so they
# don't depend on which of the 16 come first.
results = {
  name: prm_jax.EvaluateBestOfN(folder / name)(samples).results
  for name in ("prm", "orm")
}
counts = results["prm"]["n"]
curves = {
  "chosen by the PRM": results["prm"]["accuracy"]["model"],
  "chosen by the ORM": results["orm"]["accuracy"]["model"],
  "majority of the answers": results["prm"]["accuracy"]["majority"],
  "votes weighted by the PRM": results["prm"]["accuracy"]["weighted_model"],
  "any right (the most there is)": results["prm"]["accuracy"]["oracle"],
}
print(f"\n{'right answers, N =':<30}" + "".join(f"{n:>6}" for n in counts))
for name, curve in curves.items():
  print(f"{name:<30}" + "".join(f"{x:>6.0%}" for x in curve))

print("""
Both models learned from the same 3,000 solutions; the PRM had a label of each
step. A majority needs no model, and more samples; votes that the PRM weighs need
both. With another policy, look at these lines before you believe in one.""")
print("Next: stories/search_with_a_bill.py")
