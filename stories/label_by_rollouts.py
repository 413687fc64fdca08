"""Labels steps without people: by how often a policy finishes right from them.

These are Math-Shepherd's Monte-Carlo labels (Wang et al. 2024), which need the
right answers alone; here they are compared with exact ones. It takes about 20
seconds on two CPU cores, and once 30 more for the models of the first story:
python stories/label_by_rollouts.py [FOLDER]
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

# --- Solutions whose steps nobody has labelled --------------------------------

# A problem has its right answer, so what the policy writes is graded.
task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(100, "train", task, np.random.default_rng(1))
sampling = prm_jax.Sampling(max_tokens=48, temperature=1.0)
sample = prm_jax.Sample(folder / "policy", n=1, sampling=sampling)
solutions = sample(problems)

# --- Labels by rollouts -------------------------------------------------------

# From each step on the policy writes 8 completions. A soft label is the share of
# them that end in the right answer; a hard one, the paper's better, is 1 if any
# does. `stop_early` stops at the first right one, which is all a hard label needs.
label = prm_jax.MonteCarlo(folder / "policy", completions=8, sampling=sampling)
soft = label(solutions)
label = prm_jax.MonteCarlo(
  folder / "policy",
  completions=8,
  sampling=sampling,
  hard=True,
  stop_early=True,
)
hard = label(solutions)

# --- What they are worth ------------------------------------------------------

exact = [arithmetic.judge(s) for s in solutions]


def steps_of(labelled) -> np.ndarray:
  """Returns the labels of all steps but the last, which is only graded."""
  return np.array([x for s in labelled for x in (s.labels or ())[:-1]])


is_right = steps_of(exact) == 1
soft_of, hard_of = steps_of(soft), steps_of(hard)
shown = next(i for i, s in enumerate(exact) if 0.0 in (s.labels or ()))
print(f"\n{solutions[shown].problem}")
print(f"{'step':<18}{'soft':>6}{'hard':>6}{'exact':>6}")
for step, *labels in zip(
  solutions[shown].steps,
  soft[shown].labels or (),
  hard[shown].labels or (),
  exact[shown].labels or (),
):
  print(f"{step:<18}" + "".join(f"{x:>6.2f}" for x in labels))

print(f"\n{is_right.sum()} right steps, {(~is_right).sum()} after a slip:")
right_mean, wrong_mean = soft_of[is_right].mean(), soft_of[~is_right].mean()
print(f"mean soft label {right_mean:.2f} and {wrong_mean:.2f}")
hard_right, hard_wrong = hard_of[is_right].mean(), hard_of[~is_right].mean()
print(f"hard label is 1 of {hard_right:.0%} and of {hard_wrong:.0%}")
full = sum(8 * (len(s.steps) - 1) for s in solutions)
spent = sum(sum(s.extra["rollouts"]) for s in hard)
print(f"completions: {full} for soft labels, {spent} for hard ones")

print("""
Such a label is a step's promise, not whether it is right: a weak policy often
fails after a right step, and sometimes comes out right after a wrong one.""")
prm_jax.write_solutions(folder / "labelled.jsonl", soft)
print("Next: stories/best_of_n.py")
