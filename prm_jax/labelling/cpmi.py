"""Labels without rollouts: how far a step moves a policy to the right answer.

Contrastive pointwise mutual information (Lee et al. 2026, arXiv 2604.10660, and
their code at c03b414). Of a step s of a problem q, with LP the mean
log-probability of a text's tokens, A the text of the right answer and B those
of wrong ones:

    r = LP(A | q, s) - LP(A | q) - w mean_B [LP(B | q, s) - LP(B | q)]

The steps before s aren't shown, in the paper's equation as in its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import re
from typing import Any, Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import equality
from prm_jax.jobs import policies
from prm_jax.labelling import prefix_rollouts
from prm_jax.runtime import verbs
from prm_jax.text import answers

# Where a solution's extra holds what its labels are made of.
FIELD = "cpmi"
# Where a record may name wrong answers to its problem.
WRONG_ANSWERS = "wrong_answers"
Form = Literal["alone", "increment", "cumulative"]
Map = Literal["zscore", "quantile", "none"]
_PROBLEM = "{problem}"
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


@dataclasses.dataclass(frozen=True)
class Options(verbs.Value):
  """What a step's reward is, and how it becomes a label.

  Args:
    form: What the policy reads: alone (the problem and this step, as the paper
      and its code), increment (the steps up to this one, against those before
      it) or cumulative (the steps up to this one, against none).
    force: The text before an answer, which is weighed with it.
    phrasing: How the problem is put, with {problem} in it; repeat the option
      for several, whose rewards are averaged, as the code's four (default: the
      problem itself).
    num_wrong: The most wrong answers to a problem; 0 takes the right one alone.
    wrong_weight: The weight of wrong answers.
    map: How rewards become labels: sigmoid of the z-score (zscore), of a line
      by which the 1st and 99th percentile become 0.01 and 0.99 (quantile), both
      over the whole input, or of the reward itself (none).
    most: The reward beyond which, up or down, a step gets no label.
  """

  first_is_whole = False

  form: Form = "alone"
  force: str = "The answer is:"
  phrasing: tuple[str, ...] = ()
  num_wrong: verbs.Natural = 4
  wrong_weight: verbs.NotNegative = 1.0
  map: Map = "zscore"
  most: verbs.Positive = 60.0

  def _faults(self) -> Iterator[str]:
    for text in self.phrasing:
      if text.count(_PROBLEM) != 1:
        yield f"`phrasing={text}`: expected {_PROBLEM} in it, exactly once"
    if not self.force.strip():
      yield "`force`: expected a text, such as 'The answer is:'"


def label(
  solutions: Sequence[schema.Solution],
  weigher: policies.Weigher,
  references: Mapping[str, str],
  options: Options,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns solutions with the rewards of their steps, and the work.

  Labels come after that, from the rewards of all solutions: `with_labels`.

  Args:
    solutions: Solutions, all of a problem that there are.
    weigher: The policy.
    references: The right answer to each problem's text.
    options: What a reward is.

  Returns:
    The solutions, with `cpmi` in `extra`: `reward`, `right` and `wrong` of each
    step in nats a token, and the `wrong_answers`. One whose problem has no wrong
    answer has none, unless options.num_wrong is 0; nor has a conversation.

  Raises:
    InputError: The wrong answers that a record names are no list of texts.
  """
  asked, without = _asked(solutions, weigher.spells, references, options)
  work = Counter(solutions_without_wrong_answers=without, texts_weighed=0)
  if talks := sum(s.messages is not None for s in solutions):
    work["conversations"] = talks
  phrasings = options.phrasing or (_PROBLEM,)
  weighed = weigher.weigh(_questions(asked, options))
  rewards: dict[int, dict[str, Any]] = {}
  for n, x in enumerate(asked):
    tables = weighed[n * len(phrasings) : (n + 1) * len(phrasings)]
    work["texts_weighed"] += sum(len(row) for table in tables for row in table)
    rewards |= zip(map(id, x.solutions), x.read(tables, options), strict=True)
  done = []
  for s in solutions:
    extra = prefix_rollouts.plain_extra(s)
    if id(s) in rewards:
      extra[FIELD] = rewards[id(s)]
    done.append(dataclasses.replace(s, labels=None, ratings=None, extra=extra))
  return done, dict(work)


def questions(
  solutions: Sequence[schema.Solution],
  spells: policies.Spells,
  references: Mapping[str, str],
  options: Options,
) -> tuple[list[tuple[list[schema.Solution], list[str]]], int]:
  """Returns what `label` has weighed, without having it weighed.

  Args:
    solutions: See `label`, as are references and options.
    spells: Whether the policy can write a text.
    references: See above.
    options: See above.

  Returns:
    Unfinished solutions and the texts that are weighed after each of them; and
    the number of solutions whose problem has no wrong answer.
  """
  asked, without = _asked(solutions, spells, references, options)
  return _questions(asked, options), without


def with_labels(
  solutions: Sequence[schema.Solution], options: Options
) -> list[schema.Solution]:
  """Returns solutions with labels by their rewards.

  Args:
    solutions: What `label` returned, all of them: zscore and quantile are over
      the rewards of all.
    options: How rewards become labels.
  """
  known = [
    r
    for s in solutions
    for r in s.extra.get(FIELD, {}).get("reward", ())
    if abs(r) <= options.most
  ]
  center, scale = _line(known, options.map)

  def of(r: float) -> float | None:
    return _sigmoid((r - center) / scale) if abs(r) <= options.most else None

  done = []
  for s in solutions:
    if FIELD in s.extra:
      own = s.extra[FIELD] | dict(center=center, scale=scale)
      labels = tuple(map(of, own["reward"]))
      s = dataclasses.replace(s, labels=labels, extra={**s.extra, FIELD: own})
    done.append(s)
  return done


def wrong_answers(
  reference: str,
  solutions: Sequence[schema.Solution],
  spells: policies.Spells = lambda text: True,
) -> list[str]:
  """Returns wrong answers to a problem, each once, the likeliest first.

  First those that the records name, then those of solutions by how many have
  them, then numbers near the right one: the code's, which has a policy that sees
  the right answer write its first ones.

  Args:
    reference: The right answer.
    solutions: Solutions of the problem.
    spells: Whether the policy can write a text.
  """
  named = [x for s in solutions for x in named_wrong_answers(s)]
  stated: Counter[str] = Counter()
  for s in solutions:
    text = answers.of_solution(s) if s.answer is None else s.answer
    if text is not None:
      stated[text] += 1
  found: list[str] = []
  for text in (
    *named,
    *(x for x, _ in stated.most_common()),
    *numbers_near(reference),
  ):
    is_new = not any(equality.equal(text, x) for x in (reference, *found))
    if is_new and text.strip() and spells(text):
      found.append(text)
  return found


def named_wrong_answers(
  solution: schema.Solution, where: str = "solution"
) -> Sequence[str]:
  """Returns the wrong answers to its problem that a solution's record names.

  Args:
    solution: The solution.
    where: What the solution's id follows in an error.

  Raises:
    InputError: They are no list of texts.
  """
  named = solution.extra.get(WRONG_ANSWERS)
  if named is None:
    return ()
  if not isinstance(named, list | tuple) or not all(
    isinstance(x, str) for x in named
  ):
    raise errors.InputError(
      f'{where} {solution.id!r}: "{WRONG_ANSWERS}" must be a list of texts, such'
      ' as ["13", "14"]'
    )
  return named


def numbers_near(reference: str) -> list[str]:
  """Returns numbers near a number; none of what isn't one.

  Args:
    reference: The number, as a text.
  """
  text = reference.replace(",", "").strip().removeprefix("$")
  if not _NUMBER.fullmatch(text):
    return []
  x = float(text)
  near = x + 2, x - 2, x + 10, x - 10, x * 1.1, x * 0.9
  return [
    str(round(y)) if abs(y - round(y)) < 1e-9 else f"{y:.6g}"
    for y in (*near, math.floor(x), math.ceil(x))
  ]


@dataclasses.dataclass(frozen=True)
class _Asked:
  """A problem, its solutions, and the answers that are weighed."""

  problem: str
  solutions: Sequence[schema.Solution]
  reference: str
  wrong: Sequence[str]

  def texts(self, force: str) -> list[str]:
    """Returns the texts that are weighed, that of the right answer first."""
    return [f"{force} {x}" for x in (self.reference, *self.wrong)]

  def _shown(self, form: Form) -> dict[tuple[str, ...], int]:
    """Returns which steps are shown, and the row of each: none are row 0."""
    shown: dict[tuple[str, ...], int] = {(): 0}
    for s in self.solutions:
      for k in range(len(s.steps)):
        shown.setdefault(_steps(s, k, form), len(shown))
    return shown

  def prefixes(self, phrasing: str, form: Form) -> list[schema.Solution]:
    """Returns the unfinished solutions, whose last step is empty."""
    problem = phrasing.replace(_PROBLEM, self.problem)
    return [
      schema.Solution(f"{self.solutions[0].id}/{row}", problem, (*steps, ""))
      for steps, row in self._shown(form).items()
    ]

  def read(
    self,
    tables: Sequence[Sequence[Sequence[schema.Weighed]]],
    options: Options,
  ) -> list[dict[str, Any]]:
    """Returns what is written of each solution.

    Args:
      tables: Of each phrasing a row for each prefix, a column for each text.
      options: What a reward is.
    """
    shown = self._shown(options.form)
    means = [
      [
        sum(t[row][i].log_prob / max(t[row][i].num_tokens, 1) for t in tables)
        / len(tables)
        for i in range(1 + len(self.wrong))
      ]
      for row in range(len(shown))
    ]
    out = []
    for s in self.solutions:
      right, wrong = [], []
      for k in range(len(s.steps)):
        before = _steps(s, k - 1, options.form)
        start = shown[before] if options.form == "increment" else 0
        after = means[shown[_steps(s, k, options.form)]]
        moved = [x - y for x, y in zip(after, means[start], strict=True)]
        right.append(moved[0])
        wrong.append(sum(moved[1:]) / len(self.wrong) if self.wrong else 0.0)
      reward = [
        a - options.wrong_weight * b for a, b in zip(right, wrong, strict=True)
      ]
      out.append(
        dict(
          reward=reward, right=right, wrong=wrong, wrong_answers=[*self.wrong]
        )
      )
    return out


def _asked(
  solutions: Sequence[schema.Solution],
  spells: policies.Spells,
  references: Mapping[str, str],
  options: Options,
) -> tuple[list[_Asked], int]:
  """Returns what is asked of each problem, and how many solutions have none."""
  groups: dict[str, list[schema.Solution]] = {}
  for s in solutions:
    if s.messages is None:
      groups.setdefault(s.problem, []).append(s)
  asked, without = [], 0
  for problem, members in groups.items():
    wrong = wrong_answers(references[problem], members, spells)
    wrong = wrong[: options.num_wrong]
    if wrong or not options.num_wrong:
      asked.append(_Asked(problem, members, references[problem], wrong))
    else:
      without += len(members)
  return asked, without


def _questions(
  asked: Sequence[_Asked], options: Options
) -> list[tuple[list[schema.Solution], list[str]]]:
  return [
    (x.prefixes(phrasing, options.form), x.texts(options.force))
    for x in asked
    for phrasing in options.phrasing or (_PROBLEM,)
  ]


def _steps(solution: schema.Solution, k: int, form: Form) -> tuple[str, ...]:
  """Returns the steps that are shown with step k as the last one."""
  return solution.steps[k if form == "alone" else 0 : k + 1] if k >= 0 else ()


def _line(rewards: Sequence[float], how: Map) -> tuple[float, float]:
  """Returns the center and the scale of a sigmoid's argument."""
  import numpy as np

  if how == "none" or not rewards:
    return 0.0, 1.0
  if how == "zscore":
    return float(np.mean(rewards)), max(float(np.std(rewards)), 1e-6)
  low, high = np.quantile(rewards, [0.01, 0.99])
  width = max(float(high - low), 1e-6)
  return float(low + high) / 2, width / (2 * math.log(99))


def _sigmoid(x: float) -> float:
  return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
