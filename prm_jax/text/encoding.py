"""The encoder: computes ids, and where each step's score is read, in one pass.

What is written is said by a template (template.py), our own form or that of a
published model. The position at which a step is read follows from the lengths
of what was written; no code searches for an id afterwards. Training,
evaluation, scoring and sampling all make their ids here.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text.template import EncodedSolution
from prm_jax.text.template import Template

SCORE_POSITIONS = ("last_token", "separator")
TRUNCATIONS = ("truncate", "drop")
NEUTRAL = ("good", "bad", "ignore", "three_way")
AFTER_FIRST_ERROR = ("ignore", "bad", "keep")
OUTCOME_TARGETS = ("every_token", "last_step")


@dataclasses.dataclass(frozen=True)
class EncodingConfig:
  """How a model reads a solution; it is saved with the checkpoint.

  Args:
    score_position: Where a step's score is read: last_token (of its text,
      Lightman et al. 2023) or separator (the token after the text). A blank
      step has no token, so its score is read at its separator.
    max_tokens: The longest solution in tokens; None is no limit.
    truncation: What happens to a longer solution: drop or truncate.
    template: What is written, and where steps are read. Each but our own form
      says the latter itself, whatever score_position is. Configs and
      checkpoints name it; see text/encoding_records.py.
  """

  score_position: str = "last_token"
  max_tokens: int | None = 2048
  truncation: str = "drop"
  template: Template = dataclasses.field(kw_only=True)

  def __post_init__(self):
    checks.check_choice(
      "encoding.score_position", self.score_position, SCORE_POSITIONS
    )
    checks.check_choice("encoding.truncation", self.truncation, TRUNCATIONS)
    if self.max_tokens is not None and self.max_tokens < 1:
      raise errors.InputError(
        f"encoding.max_tokens={self.max_tokens}: expected 1 or more"
      )


@dataclasses.dataclass(frozen=True)
class LabelPolicy:
  """How labels and ratings become targets.

  Args:
    neutral: What PRM800K's rating 0 becomes: good (label 1, as in Qwen and
      OpenR), bad (label 0, as in TRL), ignore (no label) or three_way (label
      0.5, a class of its own, for losses.step_three_way).
    after_first_error: What becomes of labels after the first wrong step: ignore
      (no label, as in Let's Verify), bad (label 0, Uesato et al. 2022) or keep.
    harden_above: None keeps soft labels; otherwise a label is 1 above this
      value and 0 at or below it. Math-Shepherd's hard estimation is 0. Labels
      that come from ratings don't change.
  """

  neutral: str = "good"
  after_first_error: str = "ignore"
  harden_above: float | None = None

  def __post_init__(self):
    checks.check_choice("labels.neutral", self.neutral, NEUTRAL)
    checks.check_choice(
      "labels.after_first_error", self.after_first_error, AFTER_FIRST_ERROR
    )
    if self.harden_above is not None and not 0 <= self.harden_above < 1:
      raise errors.InputError(
        f"labels.harden_above={self.harden_above}: expected None, or at least"
        " 0 and less than 1"
      )


@dataclasses.dataclass(frozen=True)
class Example:
  """One sequence to learn from; all arrays have length T.

  Args:
    tokens: The ids.
    labels: The target at each token.
    weights: The weight of each target.
    step_end: Whether a step's score is read at the token.
    group: Examples with equal group may share their common prefix in a tree.
    prompt_tokens: The number of tokens before the first step.
    problem: The text of the problem.
    pair_group: See batch.Batch; rows.preference_pairs makes it.
    starts: See template.EncodedSolution.
  """

  tokens: np.ndarray
  labels: np.ndarray
  weights: np.ndarray
  step_end: np.ndarray
  group: str = ""
  prompt_tokens: int = 0
  problem: str = ""
  pair_group: np.ndarray | None = None
  starts: tuple[int, ...] = ()

  def __len__(self) -> int:
    return len(self.tokens)


def encode(
  problem: str,
  steps: Sequence[str],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  *,
  end: bool = False,
) -> EncodedSolution | None:
  """Returns ids and score positions, or None if the solution is too long.

  The ids of the first k steps are the same whatever follows them.

  Args:
    problem: The text of the question.
    steps: The text of each step.
    tokenizer: The tokenizer.
    encoding_config: How to encode.
    end: Whether to add eos, which a policy learns to write.
  """
  solution = schema.Solution("", problem, tuple(steps))
  return encode_solution(solution, tokenizer, encoding_config, end=end)


def encode_whole(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  *,
  end: bool = False,
) -> EncodedSolution:
  """Returns a solution's ids and score positions, however long it is.

  A policy's template encodes the solution's raw_text where that is known, and
  alone reads a conversation.

  Args:
    solution: The solution.
    tokenizer: The tokenizer.
    encoding_config: How to encode; its limit isn't read.
    end: See `encode`.

  Raises:
    InputError: The solution can't be written; the message names it.
  """
  try:
    if solution.messages is not None and not encoding_config.template.of_policy:
      raise errors.InputError(
        "is a conversation, and this model reads a problem and its steps; use a"
        " model that was imported with its chat template (`role=policy`), or"
        " was trained from one with encoding.template='policy'"
      )
    return encoding_config.template.write(
      solution,
      tokenizer,
      score_position=encoding_config.score_position,
      end=end,
    )
  except errors.InputError as e:
    raise errors.InputError(f"solution {solution.id!r}: {e}") from None


def encode_solution(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  *,
  end: bool = False,
) -> EncodedSolution | None:
  """Returns what `encode_whole` does of a solution that fits.

  Of a longer one, its first steps or turns; None if these are to be dropped or
  don't fit either.
  """
  write = functools.partial(
    encode_whole, tokenizer=tokenizer, encoding_config=encoding_config
  )
  limit = encoding_config.max_tokens
  most = math.inf if limit is None else limit
  encoded = write(solution, end=end)
  if len(encoded.tokens) <= most:
    return encoded
  if encoding_config.truncation == "drop":
    return None
  if solution.messages is not None:
    # More turns may be fewer tokens, without thoughts.
    for num in range(len({*schema.turns_of(solution)}), 0, -1):
      encoded = write(schema.first_turns(solution, num))
      if len(encoded.tokens) <= most:
        return encoded
    return None

  def first_steps(num: int) -> EncodedSolution:
    return write(schema.first_steps(solution, num))

  # The most steps that fit: more steps are never fewer tokens.
  kept = bisect.bisect_right(
    range(1, len(solution.steps)),
    most,
    key=lambda n: len(first_steps(n).tokens),
  )
  return first_steps(kept) if kept else None


def step_labels(
  solution: schema.Solution, policy: LabelPolicy
) -> list[float | None]:
  """Returns the target of each step under a policy; None is no target."""
  path: list[float | None] = []
  if solution.ratings is not None:
    neutral = dict(good=1.0, bad=0.0, ignore=None, three_way=0.5)
    by_rating = {-1: 0.0, 0: neutral[policy.neutral], 1: 1.0, None: None}
    labels = [by_rating[r] for r in solution.ratings]
    # What an alternative's path was rated, which its own solution counts.
    path = [by_rating[r] for r in solution.extra.get("path_ratings", ())]
  elif solution.labels is not None:
    labels = list(solution.labels)
    if policy.harden_above is not None:
      labels = [
        None if x is None else float(x > policy.harden_above) for x in labels
      ]
  else:
    return [None] * len(solution.steps)
  error = schema.first_error([*path, *labels[len(path) :]])
  if error >= 0 and policy.after_first_error != "keep":
    kept = max(error + 1, len(path))
    later = 0.0 if policy.after_first_error == "bad" else None
    labels = labels[:kept] + [later] * (len(labels) - kept)
  return labels


def _encoded(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  counts: Counter[str],
  *,
  end: bool = False,
) -> Iterator[tuple[schema.Solution, EncodedSolution]]:
  """Yields the solutions that fit; counts them and those that are dropped."""
  for solution in solutions:
    counts["solutions"] += 1
    encoded = encode_solution(solution, tokenizer, encoding_config, end=end)
    if encoded is None:
      counts["solutions too long"] += 1
      counts["steps in them"] += len(solution.steps)
      continue
    dropped = len(solution.steps) - len(encoded.step_end)
    counts["trailing steps dropped"] += dropped
    yield solution, encoded


def untargeted(
  encoded: EncodedSolution, group: str = "", problem: str = ""
) -> Example:
  """Returns an example without targets."""
  num_tokens = len(encoded.tokens)
  step_end = np.zeros(num_tokens, bool)
  step_end[encoded.step_end] = True
  labels, weights = np.zeros((2, num_tokens), np.float32)
  return Example(
    *(encoded.tokens, labels, weights, step_end, group, encoded.prompt_tokens),
    problem,
    starts=encoded.starts,
  )


def prm_examples(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  policy: LabelPolicy,
) -> tuple[list[Example], Counter[str]]:
  """Returns examples with a target at every labelled step, and the counts.

  An example ends at its last target. The counts say what was left out and why:
  every solution is an example, too long or without a target; every step is a
  target, without one, dropped, or in a solution that is too long.
  """
  examples: list[Example] = []
  counts: Counter[str] = Counter()
  for solution, encoded in _encoded(
    solutions, tokenizer, encoding_config, counts
  ):
    labels = step_labels(solution, policy)[: len(encoded.step_end)]
    counts["steps without a target"] += labels.count(None)
    example = untargeted(encoded, group_of(solution), solution.problem)
    for position, label in zip(encoded.step_end, labels, strict=True):
      if label is not None:
        example.labels[position] = label
        example.weights[position] = 1
        counts["targets"] += 1
    if not example.weights.any():
      counts["solutions without a target"] += 1
      continue
    examples.append(until_last_target(example))
  return examples, counts


def until_last_target(example: Example) -> Example:
  """Returns the example without the tokens after its last target.

  No target sees them, so they would only cost time: after a first error they
  are often a third of all tokens.
  """
  end = int(np.flatnonzero(example.weights)[-1]) + 1
  cut: dict[str, Any] = {
    name: array[:end]
    for name, array in vars(example).items()
    if isinstance(array, np.ndarray)
  }
  starts = tuple(start for start in example.starts if start < end)
  return dataclasses.replace(example, **cut, starts=starts)


def orm_examples(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  target: str,
) -> tuple[list[Example], Counter[str]]:
  """Returns examples whose target is the outcome, and the counts.

  Args:
    solutions: The solutions.
    tokenizer: The tokenizer.
    encoding_config: How to encode.
    target: Where the outcome is learned: every_token (Cobbe et al. 2021; the
      weights of a solution add up to 1) or last_step.
  """
  checks.check_choice("outcome_target", target, OUTCOME_TARGETS)
  examples: list[Example] = []
  counts: Counter[str] = Counter()
  for solution in solutions:
    counts["solutions"] += 1
    if solution.outcome is None:
      counts["solutions without an outcome"] += 1
      continue
    encoded = encode_solution(solution, tokenizer, encoding_config)
    if encoded is None or len(encoded.step_end) < len(solution.steps):
      counts["solutions too long"] += 1
      continue
    if not len(encoded.step_end):
      counts["solutions without a step"] += 1
      continue
    example = untargeted(encoded, group_of(solution), solution.problem)
    last = int(encoded.step_end[-1])
    places = np.arange(len(example))
    is_last = places == last
    is_own = encoded.own & (places <= last)
    learned = is_last if target == "last_step" else is_own
    example.labels[learned] = float(solution.outcome)
    example.weights[learned] = 1.0 / learned.sum()
    counts["targets"] += 1
    examples.append(example)
  return examples, counts


def implicit_examples(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
) -> tuple[list[Example], Counter[str]]:
  """Returns the ORM's examples with weight 1 at every token of the steps.

  An implicit PRM sums over these tokens (losses.implicit_ce). An example ends
  at the position of its last step's score, and that token has the outcome.
  """
  examples, counts = orm_examples(
    solutions, tokenizer, encoding_config, "every_token"
  )
  whole = [dataclasses.replace(x, weights=np.sign(x.weights)) for x in examples]
  return [until_last_target(x) for x in whole], counts


def sft_examples(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
) -> tuple[list[Example], Counter[str]]:
  """Returns examples with weight 1 at all tokens of steps, and the counts."""
  examples: list[Example] = []
  counts: Counter[str] = Counter()
  for solution, encoded in _encoded(
    solutions, tokenizer, encoding_config, counts, end=True
  ):
    example = untargeted(encoded, group_of(solution), solution.problem)
    example.weights[encoded.own] = 1
    counts["targets"] += int(encoded.own.sum())
    examples.append(example)
  return examples, counts


def group_of(solution: schema.Solution) -> str:
  """Returns a value that is equal for solutions that may share a prefix."""
  return str(solution.extra.get("group", solution.problem))
