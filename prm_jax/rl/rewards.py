"""What the reward models and the verifier return for a rollout's solutions.

Each reward function is a function of solutions (schema.Score, schema.Verify):
it reads the text, with a tokenizer of its own. Its outputs are matched to the
policy's tokens by characters (text.alignment).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy.sampler import Completion
from prm_jax.rl import baselines
from prm_jax.runtime import checks
from prm_jax.text import alignment

PRM_FORMS = ("probability", "signed")
PRM_CUTS = ("step", *alignment.CUTS)


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """What is rewarded, and with which weight; weight 0 leaves a reward out.

  Args:
    prm: The weight of the PRM's score, at the end of each step.
    exact: The weight of 1 as long as all steps are right, at the end of each
      step, by a verifier that knows right steps.
    orm: The weight of P(right answer), at the end of the solution.
    outcome: The weight of the outcome function's reward, at the end of the
      solution.
    verifier: The weight of 1 for a right answer, at the end of the solution.
    format: The weight of 1 if the policy ended by itself and gave an answer, at
      the end of the solution.
    length: The weight of minus the tokens beyond length_from, as a share of the
      token budget, at the end of the solution.
    implicit: The weight of an implicit PRM's token rewards (PRIME); it is
      trained online.
    prm_form: The form of the PRM's score: probability p in [0, 1], or signed
      2 p - 1 (PURE).
    prm_cut: What the PRM takes as a step: step (the policy's own), or how the
      text is cut, one of alignment.CUTS.
    length_from: The number of tokens from which length counts.
    accuracy_range: A problem isn't learned from if its share of right answers
      is outside (PRIME keeps 0.2 to 0.8).
  """

  prm: float = 0.0
  exact: float = 0.0
  orm: float = 0.0
  outcome: float = 0.0
  verifier: float = 0.0
  format: float = 0.0
  length: float = 0.0
  implicit: float = 0.0
  prm_form: str = "probability"
  prm_cut: str = "step"
  length_from: int = 0
  accuracy_range: tuple[float, ...] = (0.0, 1.0)

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    weights = ("prm", "exact", "orm", "outcome", "verifier", "format", "length")
    checks.check_natural(self, (*weights, "implicit"), "rewards.")
    checks.check_natural(self, ("length_from",), "rewards.")
    checks.check_choice("rewards.prm_form", self.prm_form, PRM_FORMS)
    checks.check_choice("rewards.prm_cut", self.prm_cut, PRM_CUTS)
    if not any(getattr(self, name) for name in (*weights, "implicit")):
      yield (
        "rewards: every weight is 0; set rewards.prm or rewards.verifier, say"
      )
    bounds = self.accuracy_range
    if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] <= 1:
      yield (
        f"rewards.accuracy_range={self.accuracy_range}: expected two shares,"
        " the smaller one first"
      )

  @property
  def of_steps(self) -> bool:
    return bool(self.prm or self.exact)


@dataclasses.dataclass(frozen=True)
class Verifier:
  """Checks solutions without a model.

  Args:
    verify: Whether the answers are right.
    find_answer: Returns the final answer that a solution states.
    exact: Returns 1 or 0 for each step; None if right steps aren't known.
    needs_answers: Whether it compares with the problems' right answers.
    identity: What it is, as plain data: equal if the verdicts are. A grader of
      ours, which a config names, has none.
  """

  verify: schema.Verify
  find_answer: schema.FindAnswer
  exact: schema.Score | None = None
  needs_answers: bool = True
  identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RewardFunctions:
  """A verifier and reward models; None for a model that isn't given.

  Args:
    verifier: Checks answers, and steps if it can.
    prm: Scores steps with P(correct so far).
    orm: Scores steps with P(right answer).
    held_out: As prm, but it rewards nothing.
    outcome: Rewards whole solutions, also those without a step.
  """

  verifier: Verifier
  prm: schema.Score | None = None
  orm: schema.Score | None = None
  held_out: schema.Score | None = None
  outcome: schema.OutcomeReward | None = None


@dataclasses.dataclass(frozen=True)
class RewardOutputs:
  """What the reward functions return for N solutions.

  Args:
    prm: The scores of the PRM's steps, a list for each solution.
    ends: The index of the token that ends each of these steps.
    exact: 1 or 0 for each of the policy's own steps.
    own_ends: The index of the token that ends each of the policy's own steps.
    orm: P(right answer) of each solution.
    right: Whether each answer is right; None if the verifier can't tell.
    held_out: As prm, by the held-out PRM.
    answered: Whether each solution states an answer.
    prm_judged: Whether the PRM was trained to judge each of its steps.
    outcome: The outcome function's reward of each solution.
  """

  prm: list[list[float]] | None
  ends: list[np.ndarray]
  exact: list[list[float]] | None
  own_ends: list[np.ndarray]
  orm: list[float] | None
  right: list[bool | None]
  held_out: list[list[float]] | None
  answered: list[bool]
  prm_judged: list[list[bool]] | None = None
  outcome: list[float] | None = None


def score(
  solutions: Sequence[schema.Solution],
  completions: Sequence[Completion],
  codec: codecs.Codec,
  functions: RewardFunctions,
  *,
  prm_cut: str = "step",
) -> RewardOutputs:
  """Returns the output of each reward function for these completions.

  A solution without a step has no step scores, and the ORM's score 0.

  Args:
    solutions: The texts of the completions.
    completions: The policy's tokens.
    codec: How the policy's ids are read.
    functions: The functions that score them.
    prm_cut: See RewardConfig.
  """
  places = [codec.places(c.tokens) for c in completions]
  own_ends = [x.step_ends for x in places]
  seen, ends = list(solutions), own_ends
  if prm_cut != "step" and (functions.prm or functions.held_out):
    seen, ends = _cut(solutions, places, prm_cut)
  verifier = functions.verifier
  orm = _of_steps(functions.orm, solutions)
  prm = _step_scores(functions.prm, seen)
  return RewardOutputs(
    prm=None if prm is None else [list(x.scores) for x in prm],
    ends=ends,
    exact=_of_steps(verifier.exact, solutions),
    own_ends=own_ends,
    orm=None if orm is None else [row[-1] if row else 0.0 for row in orm],
    right=verifier.verify(solutions),
    held_out=_of_steps(functions.held_out, seen),
    answered=[verifier.find_answer(s) is not None for s in solutions],
    prm_judged=None if prm is None else [list(x.judged) for x in prm],
    outcome=None if functions.outcome is None else functions.outcome(solutions),
  )


def num_scored(outputs: RewardOutputs) -> int:
  """Returns the number of steps that reward models scored, over all models."""
  known = [rows for rows in (outputs.prm, outputs.held_out) if rows is not None]
  num = sum(len(row) for rows in known for row in rows)
  # An ORM has an output at each of the policy's own steps.
  return num + (sum(map(len, outputs.own_ends)) if outputs.orm else 0)


def _of_steps(
  function: schema.Score | None, solutions: Sequence[schema.Solution]
) -> list[list[float]] | None:
  """Returns the scores as plain lists; see _step_scores."""
  rows = _step_scores(function, solutions)
  return None if rows is None else [list(row.scores) for row in rows]


def _step_scores(
  function: schema.Score | None, solutions: Sequence[schema.Solution]
) -> list[schema.StepScores] | None:
  """Returns the scores; solutions without a step aren't given to the model."""
  if function is None:
    return None
  scores = [schema.StepScores(())] * len(solutions)
  shown = [i for i, s in enumerate(solutions) if s.steps]
  if shown:
    rows = function([solutions[i] for i in shown])
    for i, row in zip(shown, rows, strict=True):
      scores[i] = row
  return scores


def _cut(solutions, places, how):
  """Returns the solutions in the PRM's own steps, and the ends of these."""
  seen, ends = [], []
  for s, place in zip(solutions, places, strict=True):
    steps, at = alignment.segments(place.text, how)
    closing = alignment.closing_tokens(place.token_ends, at)
    seen.append(
      dataclasses.replace(s, steps=tuple(steps), raw_text=None, spans=None)
    )
    ends.append(np.asarray(closing, np.int32))
  return seen, ends


def collect(
  outputs: RewardOutputs,
  completions: Sequence[Completion],
  config: RewardConfig,
  *,
  samples: int,
  max_tokens: int,
) -> tuple[baselines.Rewards, dict[str, float]]:
  """Returns the weighted rewards, padded, and counts of what is left out.

  A solution doesn't count if a reward that it needs isn't finite or isn't
  known, or if its problem is too easy or too hard (config.accuracy_range).

  Args:
    outputs: The outputs of the reward functions.
    completions: The policy's tokens.
    config: The weights.
    samples: The number of solutions of each problem.
    max_tokens: The token budget, which is the width of the arrays.
  """
  N, S = len(completions), max_tokens
  per_step = [
    _merged(outputs, i, len(c.tokens), config)
    for i, c in enumerate(completions)
  ]
  # A step takes a token at least: so many columns always do, twice as many
  # if two functions cut the text in their own ways.
  K = S * (2 if config.exact and config.prm_cut != "step" else 1)
  steps = np.zeros((N, K), np.float32)
  ends = np.zeros((N, K), np.int32)
  step_mask = np.zeros((N, K), bool)
  token_mask = np.zeros((N, S), bool)
  outcome = np.zeros(N, np.float32)
  counts = np.ones(N, bool)
  why = dict(not_finite=0, unverifiable=0, empty=0, accuracy_out_of_range=0)
  for i, (rewards, at) in enumerate(per_step):
    length, k = len(completions[i].tokens), len(rewards)
    token_mask[i, :length] = True
    steps[i, :k], ends[i, :k], step_mask[i, :k] = rewards, at, True
    outcome[i] = _outcome(outputs, i, completions[i], config, max_tokens)
    if config.verifier and outputs.right[i] is None:
      reason = "unverifiable"
    elif not (np.isfinite(rewards).all() and math.isfinite(outcome[i])):
      reason = "not_finite"
    elif not length:
      reason = "empty"
    else:
      continue
    why[reason] += 1
    counts[i] = False
  low, high = config.accuracy_range
  if (low, high) != (0.0, 1.0):
    share = _share_right(outputs.right, samples)
    outside = np.repeat((share < low) | (share > high), samples)
    why["accuracy_out_of_range"] = int((outside & counts).sum())
    counts &= ~outside
  steps[~counts], outcome[~counts] = 0, 0
  blank = np.zeros((N, S), np.float32)
  collected = baselines.Rewards(
    steps=steps,
    step_ends=ends,
    step_mask=step_mask,
    outcome=outcome,
    tokens=blank,
    penalty=blank,
    values=blank,
    token_mask=token_mask,
    counts=counts,
  )
  return collected, {f"left_out_{k}": float(v) for k, v in why.items() if v}


def _merged(
  outputs: RewardOutputs, i: int, length: int, config: RewardConfig
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rewards of a solution's steps and the tokens that end them.

  The exact verifier only knows the policy's steps. If the PRM has other steps,
  both sets are there, each with its own rewards. A solution without a step is
  scored like a wrong one; otherwise writing nothing would be best if scores are
  negative.
  """
  parts = []
  if config.prm and outputs.prm is not None:
    scores, ends = _or_one_wrong(outputs.prm[i], outputs.ends[i], length)
    if config.prm_form == "signed":
      scores = 2 * scores - 1
    parts.append((config.prm * scores, ends))
  if config.exact and outputs.exact is not None:
    scores, ends = _or_one_wrong(outputs.exact[i], outputs.own_ends[i], length)
    parts.append((config.exact * scores, ends))
  if not parts:
    return np.zeros(0, np.float32), np.zeros(0, np.int32)
  if len(parts) == 2 and np.array_equal(parts[0][1], parts[1][1]):
    return parts[0][0] + parts[1][0], parts[0][1]
  rewards, ends = (np.concatenate(x) for x in zip(*parts, strict=True))
  order = np.argsort(ends, kind="stable")
  return rewards[order], ends[order]


def _or_one_wrong(
  scores: Sequence[float], ends: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores and ends; without a step, a score of 0 at the last token."""
  if not len(scores) and length:
    scores, ends = [0.0], np.asarray([length - 1], np.int32)
  return np.asarray(scores, np.float32), ends


def _outcome(outputs, i, completion, config, max_tokens) -> float:
  """Returns the weighted reward of a whole solution."""
  past = max(0, len(completion.tokens) - config.length_from) / max_tokens
  reward = -config.length * past
  if config.orm and outputs.orm is not None:
    reward += config.orm * outputs.orm[i]
  if config.outcome and outputs.outcome is not None:
    reward += config.outcome * outputs.outcome[i]
  reward += config.verifier * bool(outputs.right[i])
  answered = completion.ended and outputs.answered[i]
  return reward + config.format * answered


def _share_right(right: Sequence[bool | None], samples: int) -> np.ndarray:
  """Returns the share of right answers of each problem, NaN if none is known."""
  known = np.array([x is not None for x in right]).reshape(-1, samples)
  sure = np.array([bool(x) for x in right]).reshape(-1, samples)
  with np.errstate(invalid="ignore"):
    return (sure & known).sum(1) / known.sum(1)
