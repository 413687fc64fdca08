"""Searches for better answers with a PRM, and says what each search costs.

Four strategies get the same policy, PRM and problems, and a bill of every
token that was written or read: drawing a bad step again brings most of the
gain of 16 samples for a tenth of their tokens. It takes about 25 seconds on
two CPU cores, and once 30 more for the models:

  python stories/search_with_a_bill.py [FOLDER]
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

# --- Problems and strategies --------------------------------------------------

task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(32, "test", task, np.random.default_rng(2))

# A strategy is a value, and a pure function of the tree of what was written so
# far: it says what is continued next. Yours is a class with the method `next`.
strategies = {
  "one sample": prm_jax.BestOfN(1),
  "best of 16": prm_jax.BestOfN(16),
  # Of the 8 next steps of 2 solutions, the best 2 go on.
  "beam": prm_jax.Beam(keep=2, expand=4),
  # One solution; a step with a score below 1/2 is drawn again, 5 times at
  # most.
  "redraw": prm_jax.RejectResample(threshold=0.5, attempts=5),
}

# --- Searches and their bills -------------------------------------------------

# The right answers grade what is found; no strategy sees them. `best` is the
# candidate with the highest score, `vote` the answer whose scores sum highest.
columns = ("best", "vote", "sampled", "scored", "MFLOPs")
print(f"{'':<12}" + "".join(f"{name:>9}" for name in columns))
bills = {}
for name, rule in strategies.items():
  search = prm_jax.Search(
    policy=folder / "policy",
    scorer=folder / "prm",
    rule=rule,
    sampling=prm_jax.Sampling(max_tokens=48),
  )
  found = search(problems)
  answers = [s.extra["answers"] for s in found]
  bill = [s.extra["bill"] for s in found]
  bills[name] = {
    "best": np.mean([x["best"]["outcome"] for x in answers]),
    "vote": np.mean([x["weighted"]["outcome"] for x in answers]),
    "sampled": np.mean([x["models"]["policy"]["sampled"] for x in bill]),
    "scored": np.mean([x["models"]["scorer"]["read_once"] for x in bill]),
    "MFLOPs": np.mean([x["flops"] for x in bill]) / 1e6,
  }
  best, vote, *costs = bills[name].values()
  numbers = "".join(f"{x:>9.0f}" for x in costs)
  print(f"{name:<12}{best:>9.0%}{vote:>9.0%}{numbers}")

print("""
Tokens and MFLOPs are means over the problems. To redraw a step that the PRM
finds wrong costs little more than one sample, and brings most of the gain. The
best of 16 costs most; one sample that fools the PRM is enough to be chosen,
and a vote needs several. Where a PRM's errors persist along a path other rows
lead (docs/search_evidence.md). docs/search.md has ten strategies, and budgets.
""")
print("Next: stories/rl_with_step_rewards.py")
