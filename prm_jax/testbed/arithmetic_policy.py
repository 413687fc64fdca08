"""The testbed's imperfect annotator as a policy, and a verifier with noise.

Both are exact functions of ids and texts, without a model. So a search can be
tested, and measured at many widths, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json
import math

import numpy as np

from prm_jax import schema
from prm_jax.runtime import checks
from prm_jax.testbed import arithmetic


@dataclasses.dataclass(frozen=True)
class Annotator:
  """The annotator of arithmetic.solve, one step at a time.

  A prefix's id seeds the step after it. A whole solution has the steps that
  further calls would write under the ids ID.0, ID.0.0 and so on. A token is a
  word; a step has one more, its separator, and so has the end.

  Args:
    task: How it slips.
    seed: The seed of all that it writes.
  """

  task: arithmetic.Task = dataclasses.field(default_factory=arithmetic.Task)
  seed: int = 0

  def step(
    self, prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    """Returns prefixes with one step more: a schema.Generate."""
    return [
      [self._step(p, _id(p.id, n, num)) for n in range(num)] for p in prefixes
    ]

  def whole(
    self, prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    """Returns whole solutions: a schema.Generate."""
    return [
      [self._whole(p, _id(p.id, n, num)) for n in range(num)] for p in prefixes
    ]

  def _whole(self, prefix: schema.Solution, id_: str) -> schema.Solution:
    steps, tokens = list(prefix.steps), 0
    while True:
      step, ended = self._next(prefix.problem, steps, id_)
      steps.append(step)
      tokens += _num_tokens(step)
      if ended:
        return _with(prefix, steps, ended, tokens)
      id_ += ".0"

  def _step(self, prefix: schema.Solution, id_: str) -> schema.Solution:
    step, ended = self._next(prefix.problem, prefix.steps, id_)
    return _with(prefix, [*prefix.steps, step], ended, _num_tokens(step))

  def _next(
    self, problem: str, steps: Sequence[str], id_: str
  ) -> tuple[str, bool]:
    """Returns the step after some, and whether it is the last."""
    value, turns = arithmetic.parse(problem)
    if steps:
      value = int(steps[-1].rpartition(" ")[2])
    if len(steps) == len(turns):
      return f"answer {value}", True
    random = _random(self.seed, id_)
    sign, n = turns[len(steps)]
    return arithmetic.line(value, sign, n, random, self.task)[0], False

  def encode(self, prefix: schema.Solution) -> np.ndarray:
    """Returns an id for each word of a prefix; equal words have equal ids."""
    words = [*prefix.problem.split(), "\n"]
    for step in prefix.steps:
      words += [*step.split(), "\n"]
    return np.asarray([_word_id(word) for word in words], np.int32)


@dataclasses.dataclass(frozen=True)
class NoisyVerifier:
  """The exact step verifier with noise in its log-odds: a schema.Score.

  The log-odds of a step are gap / 2 if all is right so far and -gap / 2 if not,
  plus a normal number of deviation `noise`. It depends on the problem and the
  steps up to there alone, so equal prefixes have equal scores.

  Args:
    noise: The deviation of the noise, in nats; 0 is the exact verifier with
      finite log-odds.
    gap: The distance between right and wrong, in nats.
    seed: The seed of the noise.
    persistence: The correlation of a step's noise with that of the step before
      it, in [0, 1]. At 0 each step is misjudged by itself.
  """

  noise: float = 1.0
  gap: float = 4.0
  seed: int = 0
  persistence: float = 0.0

  def __post_init__(self):
    checks.check_shares(self, ("persistence",))

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores]:
    """Returns the scores of each solution's steps."""
    return [self._scores(s) for s in solutions]

  def _scores(self, solution: schema.Solution) -> schema.StepScores:
    labels = _labels(solution.problem, solution.steps)
    fresh = math.sqrt(1 - self.persistence**2)
    logits: list[float] = []
    noise = 0.0
    for k, label in enumerate(labels):
      drawn = _normal(self.seed, solution.problem, solution.steps[: k + 1])
      noise = self.persistence * noise + fresh * drawn if k else drawn
      logits.append(self.gap * (label - 0.5) + self.noise * noise)
    scores = 1 / (1 + np.exp(-np.asarray(logits)))
    return schema.StepScores(tuple(scores.tolist()), logits=tuple(logits))


def _with(
  prefix: schema.Solution, steps: Sequence[str], ended: bool, num_tokens: int
) -> schema.Solution:
  """Returns what was written after a prefix."""
  stopped = "end" if ended else "step"
  extra = dict(
    prefix.extra, ended=ended, stopped=stopped, num_tokens=num_tokens
  )
  return dataclasses.replace(
    prefix, id=f"{prefix.id}/0", steps=tuple(steps), extra=extra
  )


def _num_tokens(step: str) -> int:
  return len(step.split()) + 1


def _id(id_: str, sample: int, num: int) -> str:
  """Returns what seeds a sample: the prefix's id, if it is the only one."""
  return id_ if num == 1 else f"{id_}/{sample}"


def _random(seed: int, text: str) -> np.random.Generator:
  digest = hashlib.sha256(json.dumps([seed, text]).encode()).digest()
  return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8])))


@functools.lru_cache(maxsize=1 << 12)
def _labels(problem: str, steps: tuple[str, ...]) -> tuple[float, ...]:
  return tuple(arithmetic.check(problem, steps))


# A search scores a prefix with each of its continuations.
@functools.lru_cache(maxsize=1 << 17)
def _normal(seed: int, problem: str, steps: tuple[str, ...]) -> float:
  """Returns a standard normal number that depends on these texts alone."""
  return float(_random(seed, json.dumps([problem, *steps])).normal())


@functools.lru_cache(maxsize=1 << 12)
def _word_id(word: str) -> int:
  return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) >> 1
