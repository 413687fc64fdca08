"""What search_testbed.py runs: strategies on the testbed, with their costs.

Not a command. A run is one strategy with one verifier over a seed's problems;
what is kept of it are a few numbers for each problem, and no trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools

import numpy as np

from prm_jax import schema
from prm_jax import voting
from prm_jax.search import adaptive
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice as choice_lib
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits as limits_lib
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy as policy_lib

# Whole samples of a problem: of the curves, and of its difficulty.
CURVE_SAMPLES, DIFFICULTY_SAMPLES = 256, 64
# Where the vote curves are computed; in between they are interpolated.
VOTE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Problems that are searched at a time.
_CHUNK = 25
# Of which adaptive best-of-n learns, and its samples of each.
TRAIN_PROBLEMS, TRAIN_SAMPLES = 100, 24
# The noise of a good, a poor and a bad PRM: by a gap of 4, they tell a right
# step from a wrong one with an AUROC of .87, .71 and .61.
GOOD, POOR, WORST = 2.5, 5.0, 10.0
PERSISTENCE = 0.8

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Run:
  """One strategy with one verifier.

  Args:
    name: Its name, of which there is one.
    rule: The strategy; None are the whole samples that all curves come from.
    noise: The deviation of the verifier's noise, in nats.
    persistence: See NoisyVerifier.
    aggregate: How step scores become a solution's score.
    scorer: noisy, or what can be exploited: word or blind.
    lookahead: The greedy steps before a node is scored.
    problems: Only the first so many problems of a seed.
    repeats: How often each problem is searched, with other random numbers.
    writer: policy, draft and target for speculation, or target alone.
    confidence: That of adaptive best-of-n, which is fitted first.
  """

  name: str
  rule: rules.Rule | None
  noise: float = GOOD
  persistence: float = 0.0
  aggregate: str = "last"
  scorer: str = "noisy"
  lookahead: int = 0
  problems: int | None = None
  repeats: int = 1
  writer: str = "policy"
  confidence: float = 0.0


# --- Models -----------------------------------------------------------------


def policy(task: arithmetic.Task, seed: int) -> search_models.Policy:
  """Returns the annotator as a policy, which looks ahead by likeliest steps."""
  annotator = policy_lib.Annotator(task, seed)
  ahead = policy_lib.Annotator(likeliest(task), seed)
  return search_models.Policy(
    annotator.step, annotator.whole, ahead.step, encode
  )


def encode(solution: schema.Solution) -> np.ndarray:
  """Returns the ids of a prefix's words, which all models read."""
  return _encoded(solution.problem, solution.steps)


@functools.lru_cache(maxsize=1 << 15)
def _encoded(problem: str, steps: tuple[str, ...]) -> np.ndarray:
  return policy_lib.Annotator().encode(schema.Solution("", problem, steps))


def likeliest(task: arithmetic.Task) -> arithmetic.Task:
  """Returns the task whose annotator writes the likeliest result of a turn.

  That is the systematic slip if it is likelier than the right result.
  """
  slips = ("slip_times_hard", "slip_times_easy", "slip_shift")
  rates = {name: getattr(task, name) for name in slips}
  return dataclasses.replace(
    task,
    confusion=1.0,
    **{n: float(r * task.confusion > 1 - r) for n, r in rates.items()},
  )


def stronger(task: arithmetic.Task, factor: float) -> arithmetic.Task:
  """Returns the task of an annotator who slips less often by a factor."""
  return dataclasses.replace(
    task,
    slip_times_hard=factor * task.slip_times_hard,
    slip_times_easy=factor * task.slip_times_easy,
    slip_shift=factor * task.slip_shift,
  )


@dataclasses.dataclass(frozen=True)
class WordLover:
  """A scorer that adds a bonus for each step that opens with one connective."""

  base: policy_lib.NoisyVerifier
  word: str = "well"
  bonus: float = 2.0

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores]:
    """Returns the scores of each solution's steps: a schema.Score."""
    rows = self.base(solutions)
    return [self._liked(s, row) for s, row in zip(solutions, rows, strict=True)]

  def _liked(
    self, solution: schema.Solution, row: schema.StepScores
  ) -> schema.StepScores:
    liked = [step.startswith(f"{self.word} ") for step in solution.steps]
    return _of_logits(np.asarray(row.logits) + self.bonus * np.cumsum(liked))


@dataclasses.dataclass(frozen=True)
class Blind:
  """A scorer that takes systematic slips for right."""

  base: policy_lib.NoisyVerifier

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores]:
    """Returns the scores of each solution's steps: a schema.Score."""
    rows = self.base(solutions)
    return [self._seen(s, row) for s, row in zip(solutions, rows, strict=True)]

  def _seen(
    self, solution: schema.Solution, row: schema.StepScores
  ) -> schema.StepScores:
    exact = np.asarray(arithmetic.check(solution.problem, solution.steps))
    seen = np.asarray(_labels_but_slips(solution))
    return _of_logits(np.asarray(row.logits) + self.base.gap * (seen - exact))


def _labels_but_slips(solution: schema.Solution) -> list[float]:
  """Returns labels to which turning as another sign says is right."""
  _, turns = arithmetic.parse(solution.problem)
  right, labels = True, []
  for (sign, n), step in zip(turns, solution.steps, strict=False):
    value, result = int(step.split()[1]), int(step.split()[-1])
    other = arithmetic.CONFUSED[sign]
    right &= result in (
      arithmetic.turn(value, sign, n),
      arithmetic.turn(value, other, n),
    )
    labels.append(float(right))
  return labels + [float(right)] * (len(solution.steps) - len(labels))


def _of_logits(logits: np.ndarray) -> schema.StepScores:
  scores = 1 / (1 + np.exp(-logits))
  return schema.StepScores(
    tuple(scores.tolist()), logits=tuple(logits.tolist())
  )


def scorer(run: Run, gap: float, seed: int) -> schema.Score:
  """Returns a run's scorer."""
  noisy = policy_lib.NoisyVerifier(run.noise, gap, seed, run.persistence)
  return dict(noisy=noisy, word=WordLover(noisy), blind=Blind(noisy))[
    run.scorer
  ]


# --- Runs -------------------------------------------------------------------


def problems(
  seed: int, num: int, task: arithmetic.Task, split: str = "test"
) -> list[schema.Solution]:
  """Returns a seed's problems, which no other seed decides."""
  random = np.random.default_rng([seed, arithmetic.SPLITS.index(split)])
  drawn = arithmetic.problems(num, split, task, random)
  return [schema.Solution(p.id, p.problem, ()) for p in drawn]


def measure(
  run: Run,
  task: arithmetic.Task,
  seed: int,
  num: int,
  gap: float,
  factor: float,
) -> Arrays:
  """Returns a run's numbers for each problem of a seed.

  Args:
    run: The run.
    task: The annotator's.
    seed: The seed of problems, annotator, verifier and rule.
    num: The number of problems.
    gap: See NoisyVerifier.
    factor: By how much the target slips less often than the policy.

  Returns:
    Arrays whose first axis is the problem; see `of_tree` and `of_samples`.
  """
  chosen = problems(seed, num, task)[: run.problems]
  if run.repeats > 1:
    chosen = [
      dataclasses.replace(p, id=f"{p.id}#{r}")
      for p in chosen
      for r in range(run.repeats)
    ]
  weak, strong = policy(task, seed), policy(stronger(task, factor), seed + 1000)
  policies = {
    "policy": {tree_lib.POLICY: weak},
    "target": {tree_lib.POLICY: strong},
    "speculate": {rules.DRAFT: weak, rules.TARGET: strong},
  }[run.writer]
  verifier = search_models.Verifier(
    scorer(run, gap, seed), run.aggregate, encode=encode
  )
  rule = run.rule
  if run.confidence:
    rule = _adaptive(run, verifier, task, seed)
  limits = limits_lib.Limits(lookahead=run.lookahead)
  rows = []
  for i in range(0, len(chosen), _CHUNK):
    trees = engine.search(
      chosen[i : i + _CHUNK],
      rule or rules.BestOfN(CURVE_SAMPLES + DIFFICULTY_SAMPLES),
      policies,
      verifier,
      limits,
      seed=seed,
    )
    rows += [
      of_samples(tree, gap, seed) if rule is None else of_tree(tree)
      for tree in trees
    ]
  names = {name: None for row in rows for name in row}
  # A tree's bill names the models that did something.
  arrays = {
    name: np.stack([row.get(name, np.zeros(())) for row in rows])
    for name in names
  }
  if run.repeats > 1:
    arrays = {
      k: v.reshape(-1, run.repeats, *v.shape[1:]).mean(1)
      for k, v in arrays.items()
    }
  return arrays


def _adaptive(
  run: Run, verifier: search_models.Verifier, task: arithmetic.Task, seed: int
) -> adaptive.AdaptiveBestOfN:
  """Returns adaptive best-of-n, fitted on training problems."""
  assert isinstance(run.rule, adaptive.AdaptiveBestOfN)
  trees = engine.search(
    problems(seed, TRAIN_PROBLEMS, task, "train"),
    rules.BestOfN(run.rule.pilot + TRAIN_SAMPLES),
    {tree_lib.POLICY: policy(task, seed)},
    verifier,
  )
  nodes = [tree.nodes[1:] for tree in trees]
  calibration = adaptive.fit(
    [[n.log_odds for n in row[: run.rule.pilot]] for row in nodes],
    [
      float(
        np.mean(arithmetic.verify([n.solution for n in row[run.rule.pilot :]]))
      )
      for row in nodes
    ],
  )
  return dataclasses.replace(
    run.rule, confidence=run.confidence, calibration=calibration
  )


def of_tree(tree: tree_lib.Tree) -> Arrays:
  """Returns the numbers of a finished search.

  Of each way to choose the answer, whether it is right, whether all steps of
  the solution that stands for it are, and its log-odds. oracle: whether some
  candidate is right. candidates, nodes: how many there are. rejected: the share
  of tokens in nodes that no candidate has among its ancestors.
  """
  choices = choice_lib.choose(tree, arithmetic.final_answer)
  numbers: dict[str, float] = {}
  for how, choice in choices.items():
    node = tree.nodes[choice.node or 0]
    numbers[f"{how}_right"] = _is_right(node.solution)
    numbers[f"{how}_steps"] = _has_right_steps(node.solution)
    numbers[f"{how}_log_odds"] = node.log_odds if choice.node else np.nan
  kept = {a for c in tree.candidates for a in tree.ancestors(c)}
  sampled = [bill_lib.sampled(n.cost) for n in tree.nodes]
  numbers |= dict(
    oracle=max(
      (_is_right(tree.nodes[c].solution) for c in tree.candidates), default=0.0
    ),
    candidates=len(tree.candidates),
    nodes=len(tree.nodes) - 1,
    rejected=1 - sum(sampled[n] for n in kept) / max(sum(sampled), 1),
  )
  numbers |= costs(tree.bill)
  return {name: np.asarray(x, np.float64) for name, x in numbers.items()}


def costs(bill: bill_lib.Bill) -> dict[str, float]:
  """Returns the tokens of a bill, by model and kind."""
  numbers = {"sampled": float(bill_lib.sampled(bill))}
  for name, spent in bill.items():
    for field in ("sampled", "read", "read_once"):
      numbers[f"{name}.{field}"] = float(getattr(spent, field))
  return numbers


def of_samples(tree: tree_lib.Tree, gap: float, seed: int) -> Arrays:
  """Returns the numbers of independent samples of a problem.

  What the first n cost is their sum up to n. The verifier's noise at other
  deviations, and other scorers, are computed again from the texts; `NAME.HOW`
  are ranking scores and `NAME.weight` the chance by the last step.
  """
  drawn = [n.solution for n in tree.nodes[1:]]
  arrays: Arrays = dict(
    right=np.asarray([_is_right(s) for s in drawn]),
    steps=np.asarray([_has_right_steps(s) for s in drawn]),
    answer=np.asarray([int(str(arithmetic.final_answer(s))) for s in drawn]),
  )
  bills = [costs(n.cost) for n in tree.nodes[1 : CURVE_SAMPLES + 1]]
  for name in bills[0]:
    arrays[name] = np.cumsum([b[name] for b in bills])
  for name, run in SAMPLE_SCORERS.items():
    scores = scorer(run, gap, seed)(drawn[:CURVE_SAMPLES])
    for how in ("last", "min", "product"):
      arrays[f"{name}.{how}"] = np.asarray(voting.ranking_scores(scores, how))
    arrays[f"{name}.weight"] = np.asarray([s.scores[-1] for s in scores])
  return arrays


# The scorers of whole samples, by the name of their curves.
SAMPLE_SCORERS: Mapping[str, Run] = {
  "good": Run("", None, GOOD),
  "poor": Run("", None, POOR),
  "worst": Run("", None, WORST),
  "good_persistent": Run("", None, GOOD, PERSISTENCE),
  "poor_persistent": Run("", None, POOR, PERSISTENCE),
  "word": Run("", None, GOOD, scorer="word"),
  "blind": Run("", None, GOOD, scorer="blind"),
}


def _is_right(solution: schema.Solution) -> float:
  return float(arithmetic.verify([solution])[0] or False)


def _has_right_steps(solution: schema.Solution) -> float:
  labels = arithmetic.check(solution.problem, solution.steps)
  return labels[-1] * _is_right(solution) if labels else 0.0
