"""Derivations in steps, of which one may not follow, and which one.

Half are of statements: implications between letters and one letter that is
given, from which more letters follow; half of whole numbers in an order with
distances. What follows is known by how both are made, without a solver.
"""

from __future__ import annotations

import itertools

import numpy as np

from prm_jax import schema

_NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")


def solution(id_: str, random: np.random.Generator) -> schema.Solution:
  """Returns a derivation with exact labels; about half have an error.

  Args:
    id_: Its id.
    random: The source of its choices.
  """
  make = _statements if random.random() < 0.5 else _numbers
  num = int(random.integers(3, 7))
  names = [str(x) for x in random.permutation(_NAMES)[: num + 2]]
  error = int(random.integers(num)) if random.random() < 0.5 else num
  premises, steps = make(names, num, error, random)
  labels = tuple(float(i < error) for i in range(num))
  return schema.Solution(
    id_,
    "What follows? " + "; ".join(premises),
    tuple(steps),
    labels,
    source="inferences",
    extra=dict(premises=premises),
  )


def _statements(
  names: list[str], num: int, error: int, random: np.random.Generator
) -> tuple[list[str], list[str]]:
  """Returns premises and steps; the last name isn't implied by any."""
  chain, other = names[:-1], names[-1]
  premises = [f"{a} -> {b}" for a, b in itertools.pairwise(chain)]
  premises += [chain[0], f"{other} -> {chain[-1]}"]
  wrong = (
    other,
    f"{chain[-1]} -> {other}",
    f"not {chain[1]}",
    f"{chain[0]} and {other}",
    f"{other} <-> {chain[0]}",
  )
  steps = []
  for i in range(num):
    right = (
      chain[i + 1],
      f"{chain[i]} -> {chain[i + 1]}",
      f"{chain[0]} and {chain[i + 1]}",
      f"not {chain[i + 1]} -> {other}",
      f"{other} or {chain[i]}",
    )
    choices = wrong if i == error else right
    steps.append(f"So {choices[random.integers(len(choices))]}.")
  return premises, steps


def _numbers(
  names: list[str], num: int, error: int, random: np.random.Generator
) -> tuple[list[str], list[str]]:
  """Returns premises and steps; the distances are met exactly by some numbers."""
  chain = names[: num + 1]
  distances = [int(x) for x in random.integers(0, 9, size=num)]
  premises = [
    f"{a} + {d} <= {b}" for a, b, d in zip(chain, chain[1:], distances)
  ]
  steps = []
  for i in range(num):
    total = sum(distances[: i + 1]) - int(random.integers(0, 3))
    if i == error:
      total = sum(distances[: i + 1]) + int(random.integers(1, 4))
    steps.append(
      f"So {chain[0]} + {total} <= {chain[i + 1]}".replace("+ -", "- ")
    )
  return premises, steps
