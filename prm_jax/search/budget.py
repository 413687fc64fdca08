"""The budget of a search: which children it pays for, written in few calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math

from prm_jax import errors
from prm_jax.search import bill as bill_lib
from prm_jax.search import children as children_lib
from prm_jax.search import tree as tree_lib

# The children of a problem that are written before it is known how much the
# like take.
_FIRST = 4


@dataclasses.dataclass(frozen=True)
class Budget:
  """What a problem's search may spend before it begins no further child.

  Args:
    tokens: The tokens that the policies sample; None is no limit.
    flops: The FLOPs of all models; None is no limit.
    costs: The cost of each model; None isn't known.
  """

  tokens: int | None
  flops: float | None
  costs: Mapping[str, bill_lib.Cost | None]

  @property
  def is_limited(self) -> bool:
    """Whether there is a limit."""
    return self.tokens is not None or self.flops is not None

  def is_spent(self, bill: bill_lib.Bill) -> bool:
    """Returns whether a bill has reached a limit.

    Args:
      bill: The bill.

    Raises:
      InputError: There is a limit of FLOPs, and a model's cost isn't known.
    """
    if self.tokens is not None and bill_lib.sampled(bill) >= self.tokens:
      return True
    if self.flops is None:
      return False
    spent = bill_lib.flops(bill, self.costs)
    if spent is None:
      raise errors.InputError(
        f"`budget_flops={self.flops:g}`: the FLOPs of a model aren't known;"
        " give `budget_tokens`"
      )
    return spent >= self.flops


def write_within(
  budget: Budget,
  asked: Sequence[Sequence[children_lib.Child]],
  write: Callable[[Sequence[children_lib.Child]], None],
) -> tuple[list[list[children_lib.Child]], list[bill_lib.Bill]]:
  """Writes children, in calls of all problems, while the budget lasts.

  Children count in their order: one is begun only if those before it have left
  some of the budget. So what the tree holds doesn't depend on how many are
  written at a time.

  Args:
    budget: The budget of each problem.
    asked: The children that are asked for, of each problem.
    write: Writes children, and adds to their costs what that took.

  Returns:
    The children of each problem that the budget pays for, and the bill of those
    that were written in vain.
  """
  left = [list(children) for children in asked]
  if not budget.is_limited:
    write([child for children in left for child in children])
    return left, [{} for _ in left]
  made: list[list[children_lib.Child]] = [[] for _ in asked]
  unused: list[bill_lib.Bill] = [{} for _ in asked]
  while any(left):
    waves = [
      children[: _num_at_once(budget, done, len(children))]
      for done, children in zip(made, left, strict=True)
    ]
    write([child for wave in waves for child in wave])
    for i, wave in enumerate(waves):
      if not wave:
        continue
      left[i] = left[i][len(wave) :]
      bill = _bill_with(wave[0].tree, made[i])
      for child in wave:
        if budget.is_spent(bill):
          unused[i] = bill_lib.add(unused[i], child.cost)
        else:
          made[i].append(child)
          bill = bill_lib.add(bill, child.cost)
      if budget.is_spent(bill):
        left[i] = []
  return made, unused


def _num_at_once(
  budget: Budget, made: Sequence[children_lib.Child], num_left: int
) -> int:
  """Returns how many of a problem's children to write in the next call.

  That is about as many as the budget pays for, by what the like took so far.
  """
  if not made or budget.tokens is None:
    return min(num_left, _FIRST)
  sampled = bill_lib.sampled(bill_lib.add(*(child.cost for child in made)))
  mean = max(sampled / len(made), 1)
  rest = budget.tokens - bill_lib.sampled(_bill_with(made[0].tree, made))
  return min(num_left, math.ceil(rest / mean))


def _bill_with(
  tree: tree_lib.Tree, made: Sequence[children_lib.Child]
) -> dict[str, bill_lib.Spent]:
  """Returns a tree's bill with that of children that it doesn't have yet."""
  return bill_lib.add(tree.bill, *(child.cost for child in made))
