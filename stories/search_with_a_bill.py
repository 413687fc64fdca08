"""Searches for solutions step by step, and says what each search cost.

A beam search keeps the begun solutions that the PRM likes; best of N spends its
tokens on whole solutions. The bill counts what each model read and wrote, so the
two can be compared at equal cost. It takes about a minute on two CPU cores, and
once 30 seconds more for the models of the first story:
python stories/search_with_a_bill.py [FOLDER]
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

task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(60, "test", task, np.random.default_rng(2))

# --- Rules --------------------------------------------------------------------

# A rule is a value: a pure function of the tree so far. `keep` is how many begun
# solutions go on, `width` how many next steps each of them gets.
rules = {
  "one sample": prm_jax.BestOfN(1),
  "best of 4": prm_jax.BestOfN(4),
  "best of 16": prm_jax.BestOfN(16),
  "beam, 2 x 2": prm_jax.Beam(2, 2),
  "beam, 4 x 4": prm_jax.Beam(4, 4),
}

# --- Searches and their bills -------------------------------------------------

print(f"\n{'':<14}{'right':>7}{'sampled':>9}{'scored':>8}{'MFLOPs':>8}")
rows = {}
for name, rule in rules.items():
  search = prm_jax.Search(
    policy=folder / "policy",
    scorer=folder / "prm",
    rule=rule,
    sampling=prm_jax.Sampling(max_tokens=48),
  )
  found = search(problems)
  bills = [s.extra["bill"] for s in found]
  right = np.mean([bool(s.outcome) for s in found])
  sampled = np.mean([b["models"]["policy"]["sampled"] for b in bills])
  scored = np.mean([b["models"]["scorer"]["read"] for b in bills])
  flops = np.mean([b["flops"] for b in bills]) / 1e6
  rows[name] = right, sampled, scored, flops
  print(f"{name:<14}{right:>7.0%}{sampled:>9.0f}{scored:>8.0f}{flops:>8.1f}")

print("""
Tokens and FLOPs are means over the problems. A search is worth what it gains at
equal cost: compare the lines whose bills are alike, not those of equal N. And more
isn't better with a PRM as small as this: a wide search finds what fools it.""")
print("Next: stories/rl_with_step_rewards.py")
