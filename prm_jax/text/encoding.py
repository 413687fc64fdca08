"""The encoder: computes ids, and where each step's score is read, in one pass.

A solution becomes

  bos problem separator  step separator  step separator  ...  [eos]

and every text is encoded on its own. The position at which a step is read
follows from the lengths; no code searches for an id afterwards. Training,
evaluation, scoring and sampling all make their ids here. A model of a published
template gets the ids of its own format: see text/templates.py.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

SCORE_POSITIONS = ("last_token", "separator")
TRUNCATIONS = ("truncate", "drop")
NEUTRAL = ("good", "bad", "ignore", "three_way")
AFTER_FIRST_ERROR = ("ignore", "bad", "keep")
# In a config: the template of the policy that a run starts from.
OF_POLICY = "policy"
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
    template: None for our own format, else the template that replaces it;
      score_position is then ignored. A name (templates.NAMES) becomes a
      template when the tokenizer is known, by `with_template`; OF_POLICY, the
      template of the policy that a run starts from, when that is read.
  """

  score_position: str = "last_token"
  max_tokens: int | None = 2048
  truncation: str = "drop"
  template: (
    str | templates.PromptTemplate | policy_templates.PolicyTemplate | None
  ) = None

  def __post_init__(self):
    if isinstance(self.template, str):
      names = (*templates.NAMES, OF_POLICY)
      checks.check_choice("encoding.template", self.template, names)
    checks.check_choice(
      "encoding.score_position", self.score_position, SCORE_POSITIONS
    )
    checks.check_choice("encoding.truncation", self.truncation, TRUNCATIONS)
    if self.max_tokens is not None and self.max_tokens < 1:
      raise errors.InputError(
        f"encoding.max_tokens={self.max_tokens}: expected 1 or more"
      )


def with_template(
  encoding_config: EncodingConfig, tokenizer: tokenizer_lib.Tokenizer
) -> EncodingConfig:
  """Returns the encoding with its named template replaced by the template.

  Raises:
    InputError: The tokenizer can't hold the template's separators.
  """
  template = encoding_config.template
  if template is None:
    return encoding_config
  if template == OF_POLICY:
    raise errors.InputError(
      f"encoding.template={OF_POLICY!r}: set init_from to the policy whose"
      " template it is"
    )
  if isinstance(template, str):
    template = templates.published(template, bos=tokenizer.bos_name)
  if isinstance(template, policy_templates.PolicyTemplate):
    policy_templates.check_tokenizer(template, tokenizer)
  else:
    templates.check_tokenizer(template, tokenizer)
  return dataclasses.replace(encoding_config, template=template)


def num_ids(
  encoding_config: EncodingConfig, tokenizer: tokenizer_lib.Tokenizer
) -> int:
  """Returns how many token ids a model needs for this encoding."""
  if encoding_config.template is None:
    return tokenizer.vocab_size
  template = with_template(encoding_config, tokenizer).template
  if isinstance(template, policy_templates.PolicyTemplate):
    named = policy_templates.control_ids(template, tokenizer)
    return max(tokenizer.text_ids, *(i + 1 for i in named.values()))
  assert isinstance(template, templates.PromptTemplate)
  controls = templates.write(template, "", [""], tokenizer, end=True).tokens
  return max(tokenizer.text_ids, int(controls.max()) + 1)


def saved_encoding(fields: Any, where: object) -> EncodingConfig:
  """Returns the encoding whose fields a checkpoint saved.

  Raises:
    InputError: The fields are damaged; the message names `where` they are.
  """
  if not isinstance(fields, Mapping):
    raise errors.InputError(
      f"{where}: damaged encoding: expected an object; restore the original"
      " file"
    )
  fields = dict(fields)
  try:
    template = fields.get("template")
    if isinstance(template, Mapping):
      is_policy = "ends" in template
      kind = policy_templates if is_policy else templates
      fields["template"] = kind.from_record(template)
    return EncodingConfig(**fields)
  except (TypeError, ValueError, KeyError) as e:
    raise errors.InputError(
      f"{where}: damaged encoding: {' '.join(str(e).split())}; restore the"
      " original file"
    ) from None


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
class EncodedSolution:
  """A solution's ids, and the score positions that were computed with them.

  Args:
    tokens: The ids, int32 [T].
    step_end: Where each step's score is read, int32 [num_steps]. num_steps is
      less than the solution's if its last steps were cut off.
    prompt_tokens: The number of ids before the first step.
    turns: Of a trajectory, the ids of each turn, as (first, one after last).
  """

  tokens: np.ndarray
  step_end: np.ndarray
  prompt_tokens: int
  turns: tuple[tokenizer_lib.Span, ...] | None = None

  @property
  def own(self) -> np.ndarray:
    """Which ids are the model's and no context, bool [T]."""
    places = np.arange(len(self.tokens))
    if self.turns is None:
      return places >= self.prompt_tokens
    is_own = np.zeros(len(places), bool)
    for first, end in self.turns:
      is_own[first:end] = True
    return is_own


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
  """

  tokens: np.ndarray
  labels: np.ndarray
  weights: np.ndarray
  step_end: np.ndarray
  group: str = ""
  prompt_tokens: int = 0
  problem: str = ""
  pair_group: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.tokens)


def prompt(problem: str, tokenizer: tokenizer_lib.Tokenizer) -> list[int]:
  """Returns the ids that come before the first step."""
  return [tokenizer.bos, *tokenizer.encode(problem), tokenizer.separator]


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
  if encoding_config.template is not None:
    solution = schema.Solution("", problem, tuple(steps))
    return _template_encode(solution, tokenizer, encoding_config, end)
  ids = prompt(problem, tokenizer)
  prompt_tokens = len(ids)
  most = _most_tokens(encoding_config)
  ends: list[int] = []
  for k, step in enumerate(steps, 1):
    text = tokenizer.encode(step)
    closing = end and k == len(steps)
    if len(ids) + len(text) + 1 + closing > most:
      if encoding_config.truncation == "drop" or not ends:
        return None
      break
    ids += text
    ids.append(tokenizer.separator)
    at_text = encoding_config.score_position == "last_token" and text
    ends.append(len(ids) - (2 if at_text else 1))
  if end and len(ends) == len(steps):
    ids.append(tokenizer.eos)
  if len(ids) > most:
    return None
  return EncodedSolution(
    np.asarray(ids, np.int32), np.asarray(ends, np.int32), prompt_tokens
  )


def encode_solution(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  *,
  end: bool = False,
) -> EncodedSolution | None:
  """Returns the result of `encode`; an error names the solution.

  A policy's template encodes the solution's raw_text where that is known, and
  alone reads a conversation.
  """
  try:
    if solution.messages is not None:
      _check_reads_conversations(encoding_config)
    if encoding_config.template is not None:
      return _template_encode(solution, tokenizer, encoding_config, end)
    return encode(
      solution.problem, solution.steps, tokenizer, encoding_config, end=end
    )
  except errors.InputError as e:
    raise errors.InputError(f"solution {solution.id!r}: {e}") from None


def _check_reads_conversations(encoding_config: EncodingConfig) -> None:
  """Refuses a conversation for a model that reads a problem and steps."""
  template = encoding_config.template
  if not isinstance(template, policy_templates.PolicyTemplate):
    raise errors.InputError(
      "is a conversation, and this model reads a problem and its steps; use a"
      " model that was imported with its chat template (`role=policy`), or was"
      " trained from one with encoding.template='policy'"
    )


def _most_tokens(encoding_config: EncodingConfig) -> float:
  limit = encoding_config.max_tokens
  return math.inf if limit is None else limit


def _write(
  template: templates.PromptTemplate | policy_templates.PolicyTemplate,
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  end: bool = False,
) -> templates.Written:
  """Returns a solution's ids, and where its steps are read, in a template."""
  if isinstance(template, policy_templates.PolicyTemplate):
    return policy_text.encode(template, solution, tokenizer, end=end)
  return templates.write(
    template, solution.problem, solution.steps, tokenizer, end=end
  )


def _template_encode(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: EncodingConfig,
  end: bool,
) -> EncodedSolution | None:
  """Returns the result of `encode` for an encoding with a template."""
  template = encoding_config.template
  assert not isinstance(template, str), "with_template comes first"
  assert template is not None
  is_conversation = solution.messages is not None
  # A conversation begins with whole turns.
  own = {*schema.turns_of(solution)} if is_conversation else solution.steps
  num_steps = len(own)

  def first_steps(num: int, end: bool = False) -> EncodedSolution:
    begun = solution if num == num_steps else schema.first_steps(solution, num)
    return EncodedSolution(*_write(template, begun, tokenizer, end=end))

  encoded = first_steps(num_steps, end)
  most = _most_tokens(encoding_config)
  if len(encoded.tokens) > most:
    if encoding_config.truncation == "drop":
      return None
    if is_conversation:
      return _most_turns(template, solution, num_steps, tokenizer, most)
    # The most steps that fit: more steps are never fewer tokens.
    kept = bisect.bisect_right(
      range(1, num_steps), most, key=lambda n: len(first_steps(n).tokens)
    )
    if not kept:
      return None
    encoded = first_steps(kept)
  return encoded


def _most_turns(
  template: templates.PromptTemplate | policy_templates.PolicyTemplate,
  trajectory: schema.Solution,
  num_turns: int,
  tokenizer: tokenizer_lib.Tokenizer,
  most: float,
) -> EncodedSolution | None:
  """Returns the most turns that fit; more may be fewer tokens, without thoughts."""
  for num in range(num_turns, 0, -1):
    begun = schema.first_turns(trajectory, num)
    encoded = EncodedSolution(*_write(template, begun, tokenizer))
    if len(encoded.tokens) <= most:
      return encoded
  return None


def split_steps(
  ids: tokenizer_lib.Ids, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[list[str], bool]:
  """Returns the steps in sampled ids, and whether the policy ended by itself.

  The separators are ids that the policy wrote, not text.
  """
  steps, start = [], 0
  for i, token in enumerate(ids):
    if token == tokenizer.eos:
      if i > start:
        steps.append(tokenizer.decode(ids[start:i]))
      return steps, True
    if token == tokenizer.separator:
      steps.append(tokenizer.decode(ids[start:i]))
      start = i + 1
  if start < len(ids):
    steps.append(tokenizer.decode(ids[start:]))
  return steps, False


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
  return dataclasses.replace(example, **cut)


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
