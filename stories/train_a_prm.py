"""Trains a process and an outcome reward model on the same solutions.

The PRM learns from a label of each step, the ORM only from whether the answer
is right; so the PRM finds the wrong step, and isn't fooled by a right answer
that was reached by luck, and with this little data the ORM sees neither. It
takes about 30 seconds on two CPU cores:

  python stories/train_a_prm.py [FOLDER]
"""

import pathlib
import sys

import numpy as np

import prm_jax
from prm_jax.testbed import arithmetic

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])

# --- Solutions with labels ----------------------------------------------------

# A dial has the positions 0 to 7: numbers are modulo 8. A student solves
# problems line by line, slips now and then, and carries on from the wrong
# number. A line's label is 1 while all is right, and 0 from the first slip on.
# Here a program knows it; elsewhere people do, or rollouts estimate it
# (stories/label_by_rollouts.py).
task = arithmetic.Task(min_turns=2, max_turns=4)
random = np.random.default_rng(0)


def of_the_student(count: int, split: str) -> list[prm_jax.Solution]:
  problems = arithmetic.problems(count, split, task, random)
  return [arithmetic.judge(arithmetic.solve(p, random, task)) for p in problems]


solutions, unseen = of_the_student(3000, "train"), of_the_student(500, "test")
first = solutions[0]
print(first.problem)
for step, label in zip(first.steps, first.labels or ()):
  print(f"  {step:<16} {label:.0f}")

# --- A language model, and two reward models that start from it ---------------

# A config is a dict; `prm-jax train --config=FILE --help` lists its fields.
# The language model learns to write as the student does, slips included: the
# later stories use it as the policy.
common = dict(
  encoding=dict(max_tokens=64),
  packing=dict(batch_size=16, sequence_length=64),
)
language_model = common | dict(
  program="sft",
  tokenizer=dict(model_type="word", vocab_size=64),
  model=dict(
    d_model=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    d_ff=128,
    qk_norm=True,
    scale_embedding=True,
    scan=False,  # two layers compile faster one by one
  ),
  optimizer=dict(peak_lr=3e-3, warmup_steps=20, beta2=0.99),
  fit=dict(steps=500, tensorboard=False),
)
prm_jax.Train(language_model, folder / "policy")(solutions)

# The two differ in `program` alone: same start, data and number of updates.
reward_model = common | dict(
  init_from=str(folder / "policy"),
  optimizer=dict(peak_lr=2e-3, warmup_steps=20, beta2=0.99),
  fit=dict(steps=500, tensorboard=False),
  aggregate="min",  # a solution is as good as its worst step
  segmenter="line",  # how a whole text is cut into steps
)
for program in ("prm", "orm"):
  config = reward_model | dict(program=program)
  prm_jax.Train(config, folder / program)(solutions)

# --- Which step is wrong ------------------------------------------------------


def first_below(values) -> int | None:
  """Returns the first step below 1/2, of labels or of scores."""
  return next((i for i, x in enumerate(values) if x < 0.5), None)


by_step = prm_jax.Score(folder / "prm")(unseen)  # P(right so far) of each step
wrong = [first_below(s.labels) for s in unseen]
found = [first_below(scores.scores) for scores in by_step]
num_wrong = sum(x is not None for x in wrong)
num_hits = sum(x is not None and x == y for x, y in zip(wrong, found))
print(f"\nUnseen solutions with a slip: {num_wrong}.")
print(f"The PRM finds the first wrong step in {num_hits / num_wrong:.0%}.")

# --- Right by luck ------------------------------------------------------------

# Times loses information modulo 8, so a wrong path may end in the right
# answer. A solution's score is that of its worst step, or what the ORM says at
# the end.
of_prm = np.array([min(scores.scores) for scores in by_step])
by_outcome = prm_jax.Score(folder / "orm")(unseen)
of_orm = np.array([scores.scores[-1] for scores in by_outcome])
right = np.array([bool(s.outcome) for s in unseen])
sound = np.array([x is None for x in wrong])
groups = {
  "right answer, all steps right": right & sound,
  "right answer, a wrong step": right & ~sound,
  "wrong answer": ~right,
}
print(f"\n{'mean score of solutions':<32}{'count':>6}{'PRM':>6}{'ORM':>6}")
means = {}
for name, members in groups.items():
  means[name] = of_prm[members].mean(), of_orm[members].mean()
  prm_mean, orm_mean = means[name]
  print(f"{name:<32}{members.sum():>6}{prm_mean:>6.2f}{orm_mean:>6.2f}")

print("""
The ORM was told that a lucky answer is right, so it can't know better; and one
bit for a whole solution is little to learn from. The PRM was told more: exact
labels of each step, which real data seldom have. Both know one student only.""")

# The last file: with it, the other stories know that the models are there.
prm_jax.write_solutions(folder / "unseen.jsonl", unseen)
print(f"\nIn {folder}: policy, prm, orm. Next: stories/label_by_rollouts.py")
