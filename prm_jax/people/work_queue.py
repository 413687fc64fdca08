"""Which item a person gets next.

In this order: an item that the person has begun; screening items, which come
first and are known; items on which others disagree, if a further person is to
decide; hidden gold items, spread over the work by chance; and the
pool. Most of the pool comes by the order that a model gives it. A random part of
it is kept apart and comes at its own rate, whatever the model says: what it says
of the whole pool is unbiased. What a person gives up, or leaves for long, goes to
another. Each draw is a function of the seed, the person and how much the person
was given, so a restart changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import functools
import hashlib

from prm_jax import schema
from prm_jax.people import judgement_store
from prm_jax.runtime import verbs

# What an item is given for.
SCREENING, GOLD, RANDOM, CHOSEN = "screening", "gold", "random", "chosen"
ADJUDICATION = schema.ADJUDICATION


@dataclasses.dataclass(frozen=True)
class Design(verbs.Value):
  """How the work is shared among people.

  Args:
    seed: The seed of all draws.
    screening: The number of gold items that everyone gets first.
    gold_share: The share of the further items that are gold, in [0, 1].
    random_share: The share of the pool that is kept apart, and of the items
      that are drawn from it, in [0, 1].
    overlap_share: The share of the pool that `overlap` people judge, in [0, 1];
      one person judges the rest.
    overlap: How many people judge an item of this share.
    adjudicate: Give an item on which people disagree to one more person, who
      sees what they said, but not who they are.
  """

  seed: verbs.Seed = 0
  screening: verbs.Natural = 0
  gold_share: verbs.Share = 0.1
  random_share: verbs.Share = 0.1
  overlap_share: verbs.Share = 0.2
  overlap: verbs.Count = 2
  adjudicate: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
  """The items that there are.

  Args:
    ranked: The ids of the pool, the most wanted first.
    gold: The ids of the gold items, the screening ones first.
  """

  ranked: Sequence[str]
  gold: Sequence[str] = ()


def next_item(
  design: Design,
  pool: Pool,
  given: Sequence[judgement_store.Given],
  ended: Mapping[str, Collection[str]],
  annotator: str,
  disputed: Sequence[str] = (),
  dropped: Collection[tuple[str, str]] = (),
) -> judgement_store.Given | None:
  """Returns the item that a person gets next; None if nothing is left.

  Args:
    design: How the work is shared.
    pool: The items.
    given: What was given so far, in its order.
    ended: The ids of the items that each person has ended.
    annotator: The person.
    disputed: The ids of the items on which people disagree.
    dropped: The person and the item of what was given and won't be judged, as
      it seems: another person gets the item.
  """
  own = [x for x in given if x.annotator == annotator]
  for x in own:
    if x.item not in ended.get(annotator, ()):
      return x
  had = {x.item for x in own}
  new_gold = [x for x in pool.gold if x not in had]
  screening = [x for x in pool.gold[: design.screening] if x not in had]
  if screening:
    return judgement_store.Given(annotator, screening[0], SCREENING)
  kept = [x for x in given if (x.annotator, x.item) not in dropped]
  decided = {x.item for x in kept if x.why == ADJUDICATION}
  if design.adjudicate:
    for item in disputed:
      if item not in had and item not in decided:
        return judgement_store.Given(annotator, item, ADJUDICATION)
  number = str(len(own))
  if new_gold and _drawn(design, "gold", annotator, number) < design.gold_share:
    # Not in the order in which everyone gets it.
    place = _drawn(design, "which gold", annotator, number)
    item = new_gold[int(place * len(new_gold))]
    return judgement_store.Given(annotator, item, GOLD)
  times = Counter(x.item for x in kept)

  apart, chosen = _parts(design, pool)
  at_random = _drawn(design, "random", annotator, number) < design.random_share
  orders = [(RANDOM, apart), (CHOSEN, chosen)]
  for why, ranked in orders if at_random else orders[::-1]:
    for item in ranked:
      if item not in had and times[item] < wanted(design, item):
        return judgement_store.Given(annotator, item, why)
  return None


@functools.lru_cache(maxsize=8)
def _parts(design: Design, pool: Pool) -> tuple[list[str], list[str]]:
  """Returns what is kept apart, in its random order, and the rest as ranked."""
  apart = [x for x in pool.ranked if is_random(design, x)]
  chosen = [x for x in pool.ranked if not is_random(design, x)]
  return sorted(apart, key=lambda x: _drawn(design, "order", x)), chosen


def shows_second_first(design: Design, item: str, annotator: str) -> bool:
  """Returns whether a person sees a pair's second solution first.

  Args:
    design: How the work is shared.
    item: The id of the pair.
    annotator: The person.
  """
  return _drawn(design, "side", item, annotator) < 0.5


@functools.lru_cache(maxsize=1 << 20)
def is_random(design: Design, item: str) -> bool:
  """Returns whether an item of the pool is kept apart.

  Args:
    design: How the work is shared.
    item: The id of the item.
  """
  return _drawn(design, "apart", item) < design.random_share


@functools.lru_cache(maxsize=1 << 20)
def wanted(design: Design, item: str) -> int:
  """Returns how many people judge an item of the pool.

  Args:
    design: How the work is shared.
    item: The id of the item.
  """
  is_shared = _drawn(design, "overlap", item) < design.overlap_share
  return design.overlap if is_shared else 1


def _drawn(design: Design, *names: str) -> float:
  """Returns a number in [0, 1) that depends on the seed and the names alone."""
  text = "\0".join((str(design.seed), *names))
  digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
  return int.from_bytes(digest[:7], "big") / 2**56
