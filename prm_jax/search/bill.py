"""What a search costs: tokens, calls and FLOPs of each model, from its tree.

Everything that was drawn is counted, whether it was kept, pruned or rejected. A
bill depends on the tree of one problem alone: not on the other problems, nor on
how much memory a cache had. What a machine computed in fact, and how long it
took, is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from prm_jax.models import model_config as model_config
from prm_jax.runtime import counts

# The name of the reward model in a bill; the others are policies.
SCORER = "scorer"


@dataclasses.dataclass(frozen=True)
class Spent(counts.Counts):
  """What one model did.

  Args:
    calls: The number of completions that it wrote, or solutions that it scored.
    sampled: The tokens that it sampled.
    read: The tokens that it was given, each call's from the first on, as a model
      without a cache reads them.
    read_once: The tokens among them that follow a prefix which it hadn't read
      or written for this problem, as a model with a cache of all prefixes reads
      them.
    context: The sum, over the tokens sampled and read once, of the number of
      tokens that each attends to.
  """

  calls: int = 0
  sampled: int = 0
  read: int = 0
  read_once: int = 0
  context: int = 0


# What each model did, by its name.
Bill = Mapping[str, Spent]


def add(*bills: Bill) -> dict[str, Spent]:
  """Returns the sum of bills.

  Args:
    *bills: The bills.

  Returns:
    One Spent for each model that any of them names.
  """
  total: dict[str, Spent] = {}
  for bill in bills:
    for name, spent in bill.items():
      total[name] = total.get(name, Spent()) + spent
  return total


def sampled(bill: Bill) -> int:
  """Returns the number of tokens that all policies sampled.

  Args:
    bill: The bill.

  Returns:
    The number of tokens.
  """
  return sum(spent.sampled for spent in bill.values())


@dataclasses.dataclass(frozen=True)
class Cost:
  """The FLOPs of a model's matmuls; a multiplication and its addition are two.

  Args:
    per_token: The FLOPs of a token outside attention's products: 2 for each
      parameter of a matrix that multiplies it.
    per_context: The FLOPs for each token that a token attends to, in all
      layers.
  """

  per_token: int
  per_context: int


def cost_of(config: model_config.ModelConfig, *, writes: bool) -> Cost:
  """Returns a model's cost: those of its layers and of its head.

  A layer with a sliding window counts as if it saw all tokens; norms, softmax
  and the look-up of embeddings don't count.

  Args:
    config: The shape of the model.
    writes: Whether it computes logits over the vocabulary for each token; a
      reward model has one score.

  Returns:
    The cost.
  """
  head = config.d_model * (config.vocab_size if writes else 1)
  attention = 4 * config.num_layers * config.num_heads * config.head_dim
  return Cost(2 * (config.body_parameters + head), attention)


def flops(bill: Bill, costs: Mapping[str, Cost | None]) -> int | None:
  """Returns the FLOPs of a bill, with caches: what was read once is counted.

  Args:
    bill: The bill.
    costs: The cost of each model; None isn't known.

  Returns:
    The FLOPs; None if a model did something and its cost isn't known.
  """
  total = 0
  for name, spent in bill.items():
    cost = costs.get(name)
    if cost is None:
      if spent.calls:
        return None
      continue
    total += cost.per_token * (spent.sampled + spent.read_once)
    total += cost.per_context * spent.context
  return total


def context(start: int, end: int) -> int:
  """Returns how many tokens those of a range attend to, themselves included.

  Args:
    start: The position of the first, counted from 0.
    end: The position after the last.

  Returns:
    The sum over the range.
  """
  return (end * (end + 1) - start * (start + 1)) // 2
