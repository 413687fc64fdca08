"""How many labels do rounds of labelling and training save?

Command:  python experiments/labelling_rounds.py
          [--output=docs/results/labelling_rounds.json] [--seeds=0,1,2]
          [--workdir=runs/labelling_rounds] [--only=first,convincing_2,...]
          [--small] [--table]
Hardware, time and result: see experiments/README.md.

`prm-jax label people` with a simulated person on the arithmetic testbed: the
queue gives an item (work_queue.next_item, in model_order's order), the person
names its first error, and after each round, of equally many judged steps, a PRM
is trained anew on all judgements so far and ranks the rest of the pool again.
The first round has no model and is drawn at random, the same for all orders.

  random      the order of a shuffled file, in all rounds
  convincing  wrong answers with the highest scores first
  uncertain   scores near 0.5 first

The person is the exact verifier, but in NOISE of the solutions another first
error, or none, is named, each as likely; the same for all orders. One person
judges an item. Nothing is set apart for unbiased numbers, which would cost all
orders as much: 100 problems of another split measure all.

The rules of judgement, written before the first result:

  - The measure is the best of 64 by the minimum over steps; the cost is the
    number of judged steps, those up to the first error that is named.
  - The factor is that of labelling_active.py: how many times the judged steps
    `random` needs for as much; its 95 % interval is over seeds and the problems
    within them.
  - An order saves labels if the interval is above 1, costs labels if it is below
    1, and otherwise saves none that we can see. It is undecided if more than
    one in twenty resamples have no accuracy in common.
  - The factor by solutions in place of steps, the difference at the end, step
    AUROC and first errors are told and decide nothing.

Every PRM has as many updates, from the same base. What the output already holds
is not computed again; results of another config are refused. --small is a test
of the path whose numbers mean nothing. --table prints the means over seeds as
Markdown.
"""

from collections.abc import Iterator, Sequence
import functools
import pathlib
import time
from typing import Any
import zlib

import labelling_active
import labelling_testbed as testbed
import ml_collections
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.people import judged_solutions
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.people import model_order
from prm_jax.people import people_folder
from prm_jax.people import work_queue

OUTPUT = "docs/results/labelling_rounds.json"
WORKDIR = pathlib.Path("runs/labelling_rounds")
# Way -> the order of the queue.
ORDERS: dict[str, model_order.Order] = dict(
  random="file", convincing="convincing", uncertain="uncertain"
)
ROUNDS = 5
NOISE = 0.02
PERSON = "careful"
# Times the testbed's updates of a PRM.
TIMES = 3
DESIGN = work_queue.Design(gold_share=0.0, random_share=0.0, overlap_share=0.0)


def name_of(way: str, number: int) -> str:
  """Returns the name of the point after a round; the first is of all ways."""
  return "first" if number == 1 else f"{way}_{number}"


NAMES = tuple(
  dict.fromkeys(name_of(way, n) for way in ORDERS for n in range(1, ROUNDS + 1))
)


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the testbed's config, a smaller pool and the steps of a round."""
  c = testbed.settings(small)
  with c.unlocked():
    # Nobody's words are learned.
    c.verifier_problems = 0
    c.pool_problems = 40 if small else 1_000
    c.steps_of_round = 40 if small else 600
    c.updates = TIMES
  return c


# --- A person and the queue -------------------------------------------------


def judged(item: judgements.Item, seed: int) -> schema.Solution:
  """Returns an item's solution with the ratings that the person gives."""
  (solution,) = item.solutions
  assert solution.labels is not None
  first = schema.first_error(solution.labels)
  random = np.random.default_rng([seed, zlib.crc32(item.id.encode())])
  if random.random() < NOISE:
    places = [k for k in range(-1, len(solution.steps)) if k != first]
    first = int(random.choice(places))
  event = dict(kind="right") if first < 0 else dict(kind="error", step=first)
  state = judgements.state_of(item, [event])
  (rated,) = judged_solutions.solutions(item, state, PERSON, {})
  return rated


def num_judged(solutions: Sequence[schema.Solution]) -> int:
  """Returns the number of steps with a rating."""
  return sum(x is not None for s in solutions for x in s.ratings or ())


class Way:
  """A person's work by one order of the queue.

  pool: judged by the exact verifier, in any order.
  """

  def __init__(
    self, order: model_order.Order, pool: Sequence[schema.Solution], seed: int
  ):
    shuffled = np.random.default_rng(seed).permutation(len(pool))
    solutions = [pool[i] for i in shuffled]
    self.items = people_folder.items_of("first_error", solutions)
    self.by_id = {x.id: x for x in self.items}
    self.order, self.seed = order, seed
    self.queue = work_queue.Pool([x.id for x in self.items])
    self.given: list[judgement_store.Given] = []
    self.labelled: list[schema.Solution] = []

  def work(self, num_steps: int) -> None:
    """Judges items until so many steps have been judged in all."""
    steps = num_judged(self.labelled)
    ended = {PERSON: {x.item for x in self.given}}
    while steps < num_steps:
      given = work_queue.next_item(
        *(DESIGN, self.queue, self.given, ended, PERSON)
      )
      assert given is not None, "the pool is empty"
      self.given.append(given)
      ended[PERSON].add(given.item)
      self.labelled.append(judged(self.by_id[given.item], self.seed))
      steps += num_judged(self.labelled[-1:])

  def rank(self, score: schema.Score) -> None:
    """Takes the order that a model gives the items."""
    if self.order == "file":
      return
    rows = score([x.solutions[0] for x in self.items])
    scores = {x.id: row for x, row in zip(self.items, rows, strict=True)}
    ranked = model_order.ordered(self.items, scores, self.order)
    self.queue = work_queue.Pool([x.id for x in ranked])


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the measures after one round after another."""
  done = set[str]()
  for way, order in ORDERS.items():
    names = [name_of(way, n) for n in range(1, ROUNDS + 1)]
    if done.issuperset({*names} & {*todo}):
      continue
    work = Way(order, bed.pool, bed.seed)
    for number, name in enumerate(names, 1):
      start = time.perf_counter()
      work.work(number * bed.c.steps_of_round)
      give_s = time.perf_counter() - start
      start = time.perf_counter()
      # One that is there is loaded.
      scorer = testbed.train(
        bed, f"rounds_{name}", work.labelled, times=bed.c.updates
      )
      train_s = time.perf_counter() - start
      if name in todo and name not in done:
        done.add(name)
        start = time.perf_counter()
        measured = testbed.measure(bed, scorer)
        point = dict(
          name=name,
          way=way,
          round=number,
          solutions=len(work.labelled),
          labels=num_judged(work.labelled),
          with_error=sum(-1 in (s.ratings or ()) for s in work.labelled),
          pool=len(work.items),
          give_s=round(give_s, 1),
          train_s=round(train_s, 1),
          measure_s=round(time.perf_counter() - start, 1),
          **measured,
        )
        best = point["best_of_n"]["min"][-1]
        print(f"{bed.seed} {name}: best of N {best:.3f}", flush=True)
        yield point
      work.rank(scorer.score)


# --- The factor -------------------------------------------------------------


def compared(
  points: Sequence[testbed.Point], way: str
) -> dict[str, Any] | None:
  """Returns how a way compares with random; None if no seed is complete.

  steps, solutions: the factor by the number of each, its interval, and the
  resamples without an accuracy in common. difference: of the best of 64 after
  the last round, with its interval.
  """
  by_name = {(p["seed"], p["name"]): p for p in points}
  names = [
    [name_of(x, n) for n in range(1, ROUNDS + 1)] for x in ("random", way)
  ]
  seeds = [
    s
    for s in sorted({p["seed"] for p in points})
    if all((s, x) in by_name for row in names for x in row)
  ]
  if not seeds:
    return None
  # [seed, way, round, problem]
  picks = np.array(
    [
      [
        [[float(x) for x in by_name[s, name]["picks"].split()] for name in row]
        for row in names
      ]
      for s in seeds
    ]
  )

  def sizes(what: str) -> list[list[float]]:
    return [
      [float(np.mean([by_name[s, name][what] for s in seeds])) for name in row]
      for row in names
    ]

  random, chosen = sizes("solutions")
  gaps = picks[:, 1, -1] - picks[:, 0, -1]
  generator = np.random.default_rng(0)
  num = gaps.shape[1]
  drawn = [
    np.mean(
      [
        gaps[s][generator.integers(num, size=num)].mean()
        for s in generator.integers(len(seeds), size=len(seeds))
      ]
    )
    for _ in range(labelling_active.RESAMPLES)
  ]
  return dict(
    seeds=seeds,
    steps=labelling_active.of_picks(picks, *sizes("labels")),
    solutions=labelling_active.of_picks(picks, random, chosen),
    difference=(float(gaps.mean()), bootstrap.interval(np.array(drawn))),
  )


def verdict(value: tuple[float, Sequence[float], int]) -> str:
  """Returns what the rules say of a factor by steps."""
  _, (low, high), undefined = value
  if undefined > labelling_active.RESAMPLES / 20:
    return "undecided"
  if low > 1:
    return "saves labels"
  return "costs labels" if high < 1 else "saves none that we can see"


def table(points: Sequence[testbed.Point]) -> str:
  """Returns the curves as a Markdown table, and each order's factor."""
  ways = [
    way for way in ORDERS if any(p["name"] == name_of(way, 2) for p in points)
  ]
  rows = [
    (
      "judged steps",
      *(f"{way}: best of 64, %" for way in ways),
      *(f"{way}: step AUROC" for way in ways),
      *(f"{way}: first error, %" for way in ways),
      *(f"{way}: solutions" for way in ways),
      "seeds",
    )
  ]
  for n in range(1, ROUNDS + 1):
    arms = [[p for p in points if p["name"] == name_of(way, n)] for way in ways]
    if arms and all(arms):
      rows.append(_row(arms))
  if not rows[1:]:
    return "no round is complete"
  parts = [testbed.markdown(rows)]
  for way in ways[1:]:
    found = compared(points, way)
    if found is None:
      parts.append(f"{way}: no seed is complete")
      continue
    difference, (low, high) = found["difference"]
    parts.append(
      f"{way} {verdict(found['steps'])}: factor {_text(found['steps'])} by"
      f" steps, {_text(found['solutions'])} by solutions; best of 64 after the"
      f" last round {100 * difference:+.1f} [{100 * low:+.1f},"
      f" {100 * high:+.1f}] points."
    )
  return "\n\n".join(parts)


def _row(arms: Sequence[Sequence[testbed.Point]]) -> tuple[str, ...]:
  mean = functools.partial(testbed.mean, scale=100)
  return (
    f"{np.mean([p['labels'] for own in arms for p in own]):,.0f}",
    *(mean([p["best_of_n"]["min"][-1] for p in own]) for own in arms),
    *(testbed.mean([p["step_auroc"] for p in own], digits=3) for own in arms),
    *(mean([p["first_error_accuracy"] for p in own]) for own in arms),
    *(testbed.mean([p["solutions"] for p in own], digits=0) for own in arms),
    str(min(map(len, arms))),
  )


def _text(value: tuple[float, Sequence[float], int]) -> str:
  middle, (low, high), undefined = value
  text = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
  return text + f" ({undefined} resamples without one)" * bool(undefined)


if __name__ == "__main__":
  testbed.run(
    __doc__.splitlines()[0],
    OUTPUT,
    NAMES,
    points_of_seed,
    table,
    make=settings,
    workdir=WORKDIR,
  )
