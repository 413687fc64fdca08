"""Theorems with proofs in Coq's tactics, of which one line may be wrong.

Half are chains of implications, half sums of whole numbers. Which line Coq
refuses is known by how both are made, without Coq: a hypothesis of another
conclusion is applied, a sum is another, or the line before Qed. is left out.
"""

from __future__ import annotations

import itertools

import numpy as np

from prm_jax import schema

_NAMES = ("a", "b", "c", "d", "e", "f", "g")


def solution(id_: str, random: np.random.Generator) -> schema.Solution:
  """Returns a proof with exact labels; about half have a wrong line.

  Args:
    id_: Its id.
    random: The source of its choices.
  """
  make = _implications if random.random() < 0.5 else _sums
  num = int(random.integers(2, 5))
  statement, steps, wrong = make(num, random)
  steps.append("Qed.")
  error = len(steps)
  if random.random() < 0.5:
    error = int(random.integers(len(steps)))
    if error == len(steps) - 1:
      error -= 1
      del steps[error]
    else:
      steps[error] = wrong[error]
  return schema.Solution(
    id_,
    f"Theorem {id_} : {statement}.",
    tuple(steps),
    tuple(float(i < error) for i in range(len(steps))),
    outcome=error == len(steps),
    source="small_proofs",
  )


def _implications(
  num: int, random: np.random.Generator
) -> tuple[str, list[str], list[str]]:
  """Returns a statement, its proof without Qed., and a wrong line for each."""
  names = [str(x) for x in random.permutation(_NAMES)[: num + 1]]
  premises = [f"({a} -> {b})" for a, b in itertools.pairwise(names)]
  statement = " -> ".join([*premises, names[0], names[-1]])
  hypotheses = [f"h{i}" for i in range(num)]
  intros = f"intros {' '.join([*names, *hypotheses])} x"
  steps, wrong = [f"{intros}."], [f"{intros} y."]
  for i in reversed(range(num)):
    steps.append(f"apply h{i}.")
    # It concludes another letter than the goal.
    other = (i + int(random.integers(1, num))) % num
    wrong.append(f"apply h{other}.")
  return (
    f"forall {' '.join(names)} : Prop, {statement}",
    [*steps, "exact x."],
    [*wrong, "exact h0."],
  )


def _sums(
  num: int, random: np.random.Generator
) -> tuple[str, list[str], list[str]]:
  """Returns a statement, its proof without Qed., and a wrong line for each."""
  parts = [int(x) for x in random.integers(1, 10, size=num + 1)]
  totals = [int(x) for x in np.cumsum(parts)]
  steps, wrong = ["Proof."], ["intros x."]
  for i in range(num):
    off = totals[i + 1] + int(random.integers(1, 4))
    for lines, total in ((steps, totals[i + 1]), (wrong, off)):
      left = f"{totals[i]} + {parts[i + 1]}"
      lines.append(
        f"assert (e{i} : {left} = {total}) by reflexivity. rewrite e{i}."
      )
  statement = f"{' + '.join(map(str, parts))} = {totals[-1]}"
  return statement, [*steps, "reflexivity."], [*wrong, "exact e."]
