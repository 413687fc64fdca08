"""When does search help, and which? On exact step truth, with a synthetic PRM.

Command:  python experiments/search_testbed.py
          [--output=docs/results/search_testbed.json] [--seeds=0,1,2,3,4]
          [--workdir=runs/search_testbed] [--processes=2] [--small]
Hardware, time and result: see experiments/README.md and docs/search_evidence.md.

The policy is the testbed's annotator, which slips; the PRM is the exact step
verifier with normal noise in its log-odds. Every search is one of
prm_jax.search, with its bill. A seed has problems, an annotator and a verifier
of its own. What --workdir already holds isn't run again. --small is a test of
the path whose numbers mean nothing. search_runs.py says how runs are compared.

- Noise: gap 4 between right and wrong, deviation 2.5 ("good", step AUROC .87),
  5 ("poor", .71) and 10 ("worst", .61), drawn anew for each step; `_persistent`
  has a correlation of .8 from step to step.
- Searches aggregate by `last`. `word` is a scorer that likes a word, `blind` one
  that takes systematic slips for right.
- Best-of-N, weighted best-of-N and majority come from the first 256 of 320
  samples of a problem; the last 64 give its difficulty, by which all problems of
  all seeds are cut into fifths.
- `rsd0.7` is a draft of 1.5e9 parameters and a target of 7e9 that slips less,
  `reject0.5` reject and resample with 5 tries, each by its threshold.

The fresh seeds are those of two claims that the others suggested: with a poor
PRM whose noise persists, DVTS is above a beam at N = 64, and a particle filter
at N = 16. The committed result is of 2076ec39, which also has the rules by which
twelve claims were judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import math
import pathlib

import ml_collections
import numpy as np
import search_runs
from search_runs import Difference
from search_runs import Run

from prm_jax import schema
from prm_jax.search import adaptive
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy

GAP = 4.0
# Whole samples of a problem: of the curves, and of its difficulty.
CURVE_SAMPLES, DIFFICULTY_SAMPLES = 256, 64
# Of which adaptive best-of-n learns, and its samples of each.
TRAIN_PROBLEMS, TRAIN_SAMPLES = 100, 24


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the task and the sizes.

  problems, some, few: of a seed, those searched at N <= 16, at N = 64, and at
  N = 256 or by width.
  """
  c = ml_collections.ConfigDict()
  c.task = dict(
    min_turns=6,
    max_turns=10,
    slip_times_hard=0.75,
    slip_times_easy=0.35,
    slip_shift=0.2,
  )
  c.gap = GAP
  c.target_slips = 0.4
  c.problems, c.some, c.few = (12, 6, 3) if small else (100, 40, 20)
  return c


# --- Models -----------------------------------------------------------------


def policy(task: arithmetic.Task, seed: int) -> search_models.Policy:
  """Returns the annotator as a policy, which looks ahead by likeliest steps."""
  annotator = arithmetic_policy.Annotator(task, seed)
  ahead = arithmetic_policy.Annotator(likeliest(task), seed)
  return search_models.Policy(
    annotator.step, annotator.whole, ahead.step, encode
  )


def encode(solution: schema.Solution) -> np.ndarray:
  """Returns the ids of a prefix's words, which all models read."""
  return _encoded(solution.problem, solution.steps)


@functools.lru_cache(maxsize=1 << 15)
def _encoded(problem: str, steps: tuple[str, ...]) -> np.ndarray:
  return arithmetic_policy.Annotator().encode(
    schema.Solution("", problem, steps)
  )


_SLIPS = ("slip_times_hard", "slip_times_easy", "slip_shift")


def likeliest(task: arithmetic.Task) -> arithmetic.Task:
  """Returns the task whose annotator writes the likeliest result of a turn.

  That is the systematic slip if it is likelier than the right result.
  """
  rates = {name: getattr(task, name) for name in _SLIPS}
  return dataclasses.replace(
    task,
    confusion=1.0,
    **{n: float(r * task.confusion > 1 - r) for n, r in rates.items()},
  )


def stronger(task: arithmetic.Task, factor: float) -> arithmetic.Task:
  """Returns the task of an annotator who slips less often by a factor."""
  return dataclasses.replace(
    task, **{name: factor * getattr(task, name) for name in _SLIPS}
  )


@dataclasses.dataclass(frozen=True)
class Prm:
  """The exact verifier with noise, and what can be exploited of it.

  Args:
    noise: The deviation of its noise, in nats.
    persistence: See NoisyVerifier.
    likes: The bonus of each step that opens with "well", in nats.
    blind: Whether it takes systematic slips for right.
  """

  noise: float
  persistence: float = 0.0
  likes: float = 0.0
  blind: bool = False

  def score(
    self, solutions: Sequence[schema.Solution], *, seed: int, gap: float = GAP
  ) -> list[schema.StepScores]:
    """Returns the scores of each solution's steps."""
    noisy = arithmetic_policy.NoisyVerifier(
      self.noise, gap, seed, self.persistence
    )
    rows = []
    for solution, row in zip(solutions, noisy(solutions), strict=True):
      logits = np.asarray(row.logits)
      if self.likes:
        liked = [step.startswith("well ") for step in solution.steps]
        logits = logits + self.likes * np.cumsum(liked)
      if self.blind:
        exact = np.asarray(arithmetic.check(solution.problem, solution.steps))
        logits = logits + gap * (_labels_but_slips(solution) - exact)
      scores = 1 / (1 + np.exp(-logits))
      rows.append(
        schema.StepScores(tuple(scores.tolist()), logits=tuple(logits.tolist()))
      )
    return rows


def _labels_but_slips(solution: schema.Solution) -> np.ndarray:
  """Returns labels to which turning as another sign says is right."""
  _, turns = arithmetic.parse(solution.problem)
  right, labels = True, []
  for (sign, n), step in zip(turns, solution.steps, strict=False):
    value, result = int(step.split()[1]), int(step.split()[-1])
    signs = (sign, arithmetic.CONFUSED[sign])
    right &= result in [arithmetic.turn(value, x, n) for x in signs]
    labels.append(float(right))
  rest = len(solution.steps) - len(labels)
  return np.asarray(labels + [float(right)] * rest)


PRMS = dict(
  good=Prm(2.5),
  poor=Prm(5.0),
  worst=Prm(10.0),
  good_persistent=Prm(2.5, 0.8),
  poor_persistent=Prm(5.0, 0.8),
  word=Prm(2.5, likes=2.0),
  blind=Prm(2.5, blind=True),
)


def problems(
  seed: int, num: int, task: arithmetic.Task, split: str = "test"
) -> list[schema.Solution]:
  """Returns a seed's problems, which no other seed decides."""
  random = np.random.default_rng([seed, arithmetic.SPLITS.index(split)])
  drawn = arithmetic.problems(num, split, task, random)
  return [schema.Solution(p.id, p.problem, ()) for p in drawn]


def build(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  runs: Sequence[Run],
) -> Callable[[Run], search_runs.Arrays]:
  """Returns what measures a run of a seed; nothing is trained."""
  del workdir, runs
  task = arithmetic.Task(**c.task.to_dict())
  own = problems(seed, c.problems, task)
  weak = policy(task, seed)
  strong = policy(stronger(task, c.target_slips), seed + 1000)
  policies = dict(
    policy={tree_lib.POLICY: weak},
    target={tree_lib.POLICY: strong},
    speculate={rules.DRAFT: weak, rules.TARGET: strong},
  )

  def of_samples(trees):
    scorers = {
      name: functools.partial(prm.score, seed=seed, gap=c.gap)
      for name, prm in PRMS.items()
    }
    models = dict.fromkeys((tree_lib.POLICY, bill_lib.SCORER))
    return search_runs.of_samples(
      trees, scorers, ("last", "product"), models, CURVE_SAMPLES
    )

  def measured(run: Run) -> search_runs.Arrays:
    score = functools.partial(run.scorer.score, seed=seed, gap=c.gap)
    verifier = search_models.Verifier(score, run.aggregate, encode=encode)
    if isinstance(run.rule, adaptive.AdaptiveBestOfN):
      rule = calibrated(run.rule, weak, verifier, task, seed)
      run = dataclasses.replace(run, rule=rule)
    return search_runs.measure(
      *(run, own, policies[run.writer], verifier, of_samples),
      seed=seed,
      num_samples=CURVE_SAMPLES + DIFFICULTY_SAMPLES,
      limits=search_limits.Limits(),
    )

  return measured


def calibrated(
  rule: adaptive.AdaptiveBestOfN,
  writes: search_models.Policy,
  verifier: search_models.Verifier,
  task: arithmetic.Task,
  seed: int,
) -> adaptive.AdaptiveBestOfN:
  """Returns adaptive best-of-n, fitted on training problems."""
  trees = engine.search(
    problems(seed, TRAIN_PROBLEMS, task, "train"),
    rules.BestOfN(rule.pilot + TRAIN_SAMPLES),
    {tree_lib.POLICY: writes},
    verifier,
  )
  nodes = [tree.nodes[1:] for tree in trees]
  calibration = adaptive.fit(
    [[n.log_odds for n in row[: rule.pilot]] for row in nodes],
    [
      float(np.mean(arithmetic.verify([n.solution for n in row[rule.pilot :]])))
      for row in nodes
    ],
  )
  return dataclasses.replace(rule, calibration=calibration)


# --- Runs -------------------------------------------------------------------

WIDTHS = (1, 2, 3, 4, 6, 8)
# (gap / noise)^2.
RATIOS = (9.0, 6.0, 4.0, 2.5, 1.5, 0.75)


def all_runs(c: ml_collections.ConfigDict, fresh: bool = False) -> list[Run]:
  """Returns the runs of a seed, in the order in which they are made."""
  if fresh:
    pairs = (("beam", 16), ("particles", 16), ("beam", 64), ("dvts", 64))
    return [_of_n(name, "poor_persistent", num) for name, num in pairs]
  return [
    _run("samples", None, "good"),
    *(run for prm in ("good", "poor") for run in _of_prm(c, prm)),
    *(_of_n(name, "worst", 16) for name in ("beam", "particles")),
    *(_of_n(name, "poor", 256, c.few) for name in ("beam", "dvts")),
    *(
      _of_n(x, "poor_persistent", 64, c.some)
      for x in search_runs.strategies(64)
    ),
    _run("target", rules.BestOfN(1), "good", writer="target", repeats=2),
    *(
      _of_n("beam", name, num, most)
      for name in ("word", "blind")
      for num, most in ((4, c.some), (16, c.some), (64, c.few))
    ),
    *_widths(c),
  ]


def _run(name: str, rule: rules.Rule | None, prm: str, **more) -> Run:
  return Run(name, rule, PRMS[prm], **dict(aggregate="last") | more)


def _of_n(name: str, prm: str, num: int, most: int | None = None) -> Run:
  rule = search_runs.strategies(num)[name]
  return _run(f"{name}.{prm}.{num}", rule, prm, problems=most)


def _of_prm(c: ml_collections.ConfigDict, prm: str) -> Iterator[Run]:
  for name in search_runs.strategies(4):
    for num, most in ((4, None), (16, None), (64, c.some)):
      yield _of_n(name, prm, num, most)
    yield _of_n(name, f"{prm}_persistent", 16, c.some)
  for num, ahead in ((4, 1), (16, 1), (4, 3)):
    rule = rules.Beam(num // 4, 4)
    name = f"lookahead{ahead}.{prm}.{num}"
    yield _run(name, rule, prm, lookahead=ahead, problems=c.some)
  yield _run(
    f"beam_product.{prm}.16",
    rules.Beam(4, 4),
    prm,
    aggregate="product",
    problems=c.some,
  )
  # The log-odds of a step differ by gap between right and wrong, and what they
  # tell by gap^2 / noise^2: weights are right at the temperature noise^2 / gap.
  temperature = PRMS[prm].noise ** 2 / c.gap
  rule = particles.ParticleFilter(16, softmax_temperature=temperature)
  yield _run(f"calibrated.{prm}.16", rule, prm)
  for delta in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0):
    rule = rules.Speculate(delta)
    yield _run(f"rsd{delta:g}.{prm}", rule, prm, writer="speculate", repeats=2)
  for least in (0.3, 0.5, 0.7, 0.9):
    rule = rules.RejectResample(least, 5)
    yield _run(f"reject{least:g}.{prm}", rule, prm, repeats=2)
  for confidence in (0.9, 0.99):
    rule = adaptive.AdaptiveBestOfN(
      4, 64, confidence, calibration=adaptive.Calibration()
    )
    yield _run(f"adaptive{confidence:g}.{prm}", rule, prm)


def _widths(c: ml_collections.ConfigDict) -> Iterator[Run]:
  for persistence, ratios in ((0.0, RATIOS), (0.8, RATIOS[1::2])):
    for ratio in ratios:
      for width in WIDTHS:
        yield Run(
          f"width{width}.{ratio:g}.{persistence:g}",
          rules.Beam(width, width),
          Prm(c.gap / math.sqrt(ratio), persistence),
          aggregate="last",
          problems=c.few,
        )


def _differences() -> Iterator[Difference]:
  """Yields what docs/search_evidence.md gives the differences of."""
  for prm in ("good", "poor"):
    samples = f"weighted.{prm}"
    for name in ("beam", "rebase"):
      for num in (4, 16, 64):
        yield Difference(f"{name}.{prm}.{num}", samples, "tokens")
    yield Difference(f"beam.{prm}.16", samples, "tokens", fifths=(0, 1))
    yield Difference(f"beam.{prm}.64", samples, "tokens", fifths=(3, 4))
    for kind in ("big", "uncached"):
      yield Difference(f"beam.{prm}.4", samples, kind)
      yield Difference(f"beam.{prm}.4", "majority", kind)
    for run in ("lookahead1.{}.4", "lookahead1.{}.16", "lookahead3.{}.4"):
      for other in search_runs.strategies(4):
        yield Difference(run.format(prm), f"{other}.{prm}", "big")
    for num in (16, 64):
      yield Difference(f"dvts.{prm}.{num}", f"beam.{prm}.{num}")
    for name in ("particles", "calibrated"):
      yield Difference(f"{name}.{prm}.16", f"beam.{prm}.16")
    for name in ("dvts", "rebase", "particles"):
      of = f"{prm}_persistent.16"
      yield Difference(f"{name}.{of}", f"beam.{of}")
    for delta in (0.7, 0.9, 1.0):
      yield Difference(f"rsd{delta:g}.{prm}", "target")
    yield Difference(f"reject0.5.{prm}", samples, "tokens")
    best = f"best.last.{prm}"
    yield Difference(f"adaptive0.9.{prm}", best, "tokens", "best")
  yield Difference("beam.poor.256", "weighted.poor", "tokens")
  yield Difference("dvts.poor.256", "beam.poor.256")
  yield Difference("beam.worst.16", "majority", "big")
  yield Difference("particles.worst.16", "beam.worst.16")
  for name in ("dvts", "rebase", "particles"):
    yield Difference(f"{name}.poor_persistent.64", "beam.poor_persistent.64")


EXPERIMENT = search_runs.Experiment(
  "search_testbed",
  settings,
  all_runs,
  build,
  differences=tuple(_differences()),
  fresh=(
    Difference("dvts.poor_persistent.64", "beam.poor_persistent.64"),
    Difference("particles.poor_persistent.16", "beam.poor_persistent.16"),
  ),
  seeds=(0, 1, 2, 3, 4),
  fresh_seeds=(5, 6, 7, 8, 9),
  weigh_by="last",
)

if __name__ == "__main__":
  EXPERIMENT.main(__doc__)
