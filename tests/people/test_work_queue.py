"""Who gets what: screening first, gold hidden, overlap as designed."""

from collections import Counter

import pytest

from prm_jax import errors
from prm_jax.people import judgement_store
from prm_jax.people import work_queue

POOL = [f"p{i:03}" for i in range(400)]
GOLD = [f"g{i:02}" for i in range(30)]


def worked(design, people=("ann", "bob", "cat"), gold=GOLD, most=10_000):
  """Returns what is given until nothing is left, the people in turns."""
  pool, given = work_queue.Pool(POOL, gold), []
  ended = {name: set() for name in people}
  while len(given) < most:
    before = len(given)
    for name in people:
      found = work_queue.next_item(design, pool, given, ended, name)
      if found is not None:
        given.append(found)
        ended[name].add(found.item)
    if len(given) == before:
      break
  return given


def test_every_item_is_judged_by_as_many_people_as_it_should_be():
  design = work_queue.Design(overlap_share=0.25, overlap=3)
  given = worked(design)
  times = Counter(x.item for x in given if x.item in {*POOL})
  assert times == {x: work_queue.wanted(design, x) for x in POOL}
  shared = sum(num == 3 for num in times.values())
  assert 0.18 < shared / len(POOL) < 0.32
  assert len({(x.annotator, x.item) for x in given}) == len(given)


def test_screening_comes_first_and_to_everyone():
  given = worked(work_queue.Design(screening=5))
  for name in ("ann", "bob", "cat"):
    own = [x for x in given if x.annotator == name]
    assert [x.item for x in own[:5]] == GOLD[:5]
    assert {x.why for x in own[:5]} == {"screening"}
    assert "screening" not in {x.why for x in own[5:]}


def test_gold_is_spread_by_its_share_and_in_another_order_for_each():
  design = work_queue.Design(gold_share=0.2)
  given = worked(design, most=240)
  orders = []
  for name in ("ann", "bob", "cat"):
    own = [x for x in given if x.annotator == name]
    orders.append([x.item for x in own if x.why == "gold"])
    assert 0.08 < len(orders[-1]) / len(own) < 0.35
    assert len({*orders[-1]}) == len(orders[-1])
  assert len({tuple(x[:3]) for x in orders}) == 3


def test_the_random_part_is_kept_apart_and_comes_at_its_own_rate():
  design = work_queue.Design(random_share=0.2, overlap_share=0)
  first = worked(design, most=150, gold=())
  of_random = [x.item for x in first if x.why == "random"]
  assert all(work_queue.is_random(design, x) for x in of_random)
  assert 0.1 < len(of_random) / len(first) < 0.3
  # Not by the order that the model gives.
  assert of_random != sorted(of_random)
  chosen = [x.item for x in first if x.why == "chosen"]
  assert (
    chosen
    == [x for x in POOL if not work_queue.is_random(design, x)][: len(chosen)]
  )
  apart = sum(work_queue.is_random(design, x) for x in POOL)
  assert 0.14 < apart / len(POOL) < 0.26


def test_a_begun_item_comes_again_until_it_has_ended():
  design, pool = work_queue.Design(gold_share=0), work_queue.Pool(POOL)
  begun = judgement_store.Given("ann", "p007", "chosen")
  found = work_queue.next_item(design, pool, [begun], {}, "ann")
  assert found == begun
  other = work_queue.next_item(design, pool, [begun], {}, "bob")
  assert other.item != "p007" or work_queue.wanted(design, "p007") > 1


def test_a_restart_or_another_seed_changes_only_what_it_should():
  design = work_queue.Design(seed=1)
  assert worked(design, most=60) == worked(design, most=60)
  assert worked(design, most=60) != worked(work_queue.Design(seed=2), most=60)


@pytest.mark.parametrize(
  "name", ["gold_share", "random_share", "overlap_share"]
)
def test_a_share_that_is_none_is_refused(name):
  with pytest.raises(errors.InputError, match=name):
    work_queue.Design(**{name: 1.5})


def test_an_item_on_which_people_disagree_goes_to_one_more(tmp_path):
  pool = work_queue.Pool(POOL)
  given = [
    judgement_store.Given(name, "p000", "chosen") for name in ("ann", "bob")
  ]
  ended = {name: {"p000"} for name in ("ann", "bob")}

  def next_of(name, given=given, **design):
    made = work_queue.Design(gold_share=0, **design)
    found = work_queue.next_item(made, pool, given, ended, name, ["p000"])
    return found.item, found.why

  assert next_of("cat", adjudicate=True) == ("p000", "adjudication")
  assert next_of("cat")[1] != "adjudication"
  assert next_of("ann", adjudicate=True)[1] != "adjudication"
  decided = [*given, judgement_store.Given("cat", "p000", "adjudication")]
  assert next_of("dan", decided, adjudicate=True)[1] != "adjudication"


def test_what_is_dropped_goes_to_another_and_never_back():
  design = work_queue.Design(gold_share=0, random_share=0, overlap_share=0)
  pool = work_queue.Pool(["a", "b"])
  given = [judgement_store.Given("ann", "a", "chosen")]
  ended = dict(ann={"a"})

  def next_of(name, dropped=()):
    found = work_queue.next_item(
      design, pool, given, ended, name, dropped=dropped
    )
    return found and found.item

  assert next_of("bob") == "b"
  assert next_of("bob", {("ann", "a")}) == "a"
  assert next_of("ann", {("ann", "a")}) == "b"


def test_who_decides_and_gives_up_is_followed_by_another():
  design = work_queue.Design(gold_share=0, adjudicate=True)
  given = [
    judgement_store.Given("ann", "p000", "chosen"),
    judgement_store.Given("bob", "p000", "chosen"),
    judgement_store.Given("cat", "p000", "adjudication"),
  ]
  ended = {x.annotator: {"p000"} for x in given}

  def why(dropped):
    found = work_queue.next_item(
      *(design, work_queue.Pool(POOL), given, ended, "dan", ["p000"], dropped)
    )
    return found.why

  assert why(()) != "adjudication" == why({("cat", "p000")})


def test_half_of_the_people_see_a_pair_the_other_way_round():
  design = work_queue.Design()
  turned = [
    work_queue.shows_second_first(design, item, name)
    for item in POOL
    for name in ("ann", "bob")
  ]
  assert 0.4 < sum(turned) / len(turned) < 0.6
  assert turned[::2] != turned[1::2]
