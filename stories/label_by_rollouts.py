"""Labels steps without people: by how often a policy finishes right from them.

These are Math-Shepherd's Monte-Carlo labels (Wang et al. 2024), which need
right answers alone; compared with exact labels they show what they measure: a
step's promise, not whether it is right. It takes about 20 seconds on two CPU
cores, and once 30 more for the models:

  python stories/label_by_rollouts.py [FOLDER]
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

# --- Solutions whose steps nobody has labelled --------------------------------

# The policy writes a solution of each problem. It is graded, as the problem
# has its right answer; that is all that is known of it.
task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(48, "train", task, np.random.default_rng(1))
sampling = prm_jax.Sampling(max_tokens=48)
sample = prm_jax.Sample(folder / "policy", n=1, sampling=sampling)
solutions = sample(problems)

# --- Labels by rollouts -------------------------------------------------------

# From each step on the policy writes 8 completions. A soft label is the share
# of them that end in the right answer. A hard label is 1 if any of them does,
# so it can stop at the first.
soften = prm_jax.MonteCarlo(folder / "policy", completions=8, sampling=sampling)
harden = prm_jax.MonteCarlo(
  folder / "policy",
  completions=8,
  sampling=sampling,
  hard=True,
  stop_early=True,
)
soft, hard = soften(solutions), harden(solutions)
exact = [arithmetic.judge(s) for s in solutions]

shown = next(i for i, s in enumerate(exact) if s.outcome is False)
print(f"{solutions[shown].problem:<24}{'soft':>6}{'hard':>6}{'exact':>6}")
for step, *labels in zip(
  solutions[shown].steps,
  soft[shown].labels or (),
  hard[shown].labels or (),
  exact[shown].labels or (),
):
  print(f"  {step:<22}" + "".join(f"{x:>6.2g}" for x in labels))

# --- What they are worth ------------------------------------------------------


def of_steps(labelled: list[prm_jax.Solution]) -> np.ndarray:
  """Returns the labels of all steps but the last, which is only graded."""
  return np.array([x for s in labelled for x in (s.labels or ())[:-1]])


is_right = of_steps(exact) == 1
print(f"\n{'steps':<24}{'right':>6}{'wrong':>6}   (exactly)")
print(f"{'their number':<24}{is_right.sum():>6}{(~is_right).sum():>6}")
means = {}
for name, values in {"soft": of_steps(soft), "hard": of_steps(hard)}.items():
  means[name] = values[is_right].mean(), values[~is_right].mean()
  right, wrong = means[name]
  print(f"{f'mean {name} label':<24}{right:>6.2f}{wrong:>6.2f}")

rollouts = {
  "soft": sum(8 * (len(s.steps) - 1) for s in solutions),
  "hard": sum(sum(s.extra["rollouts"]) for s in hard),
}
print(f"rollouts: {rollouts['soft']:,} (soft), {rollouts['hard']:,} (hard)")

print("""
No label is exact. After a right step this policy still fails often, so a right
step has a soft label below 1; and a wrong step may come out right by luck,
which is enough for a hard label of 1. More rollouts make that worse.
docs/monte_carlo.md says which losses fit which labels; docs/judge.md and
docs/omega_prm.md have others.""")

prm_jax.write_solutions(folder / "labelled.jsonl", soft)
print(f"\n{folder / 'labelled.jsonl'} can be trained on as in train_a_prm.py.")
print("Next: stories/best_of_n.py")
