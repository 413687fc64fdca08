"""Responses to the scores of their steps, and to the rewards of their tokens.

  score_texts = scoring.text_scorer(prm)             a loaded model
  score_texts = scoring.cut_and_score(score, cut)    any schema.Score
  score_texts = scoring.each_text(score_text)        one response at a time
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = [scoring.token_rewards(s, rewards=scoring.delta) for s in scored]

The text that is scored is decoded from the policy's own ids, so spans and token
offsets always speak of the same characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
from typing import Any, Protocol, runtime_checkable

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.integrations import placement
from prm_jax.text import segmenters
from prm_jax.text import token_offsets

# Problems and responses, one of each -> the scores of each response's steps,
# with their spans.
ScoreTexts = Callable[[Sequence[str], Sequence[str]], list[schema.StepScores]]
# A problem and a response -> the response as a Solution with raw_text and spans.
Cut = Callable[[str, str], schema.Solution]
# The scores of a response's steps -> their rewards, None for no reward.
Rewards = Callable[[schema.StepScores], Sequence[float | None]]


@runtime_checkable
class _TextScorer(Protocol):
  """What text_scorer needs of a model; `Scorer` has it."""

  def cut(self, problem: str, text: str, /) -> schema.Solution:
    """Returns a response as a Solution with raw_text and spans."""
    ...

  def score(
    self, solutions: Sequence[schema.Solution], /
  ) -> list[schema.StepScores]:
    """Returns the scores of each solution's steps."""
    ...


@dataclasses.dataclass(frozen=True)
class ScoredResponse:
  """A response's steps in characters, and its tokens.

  Args:
    scores: The scores of the steps, with spans.
    token_offsets: How many characters are complete after each token.
  """

  scores: schema.StepScores
  token_offsets: Sequence[int]


# --- Sources of scores ------------------------------------------------------


def text_scorer(scorer: _TextScorer) -> ScoreTexts:
  """Returns a function that scores whole responses, many at once, by a model.

  Args:
    scorer: A model, as `prm_jax.load` returns it, whose checkpoint says how a
      text is cut into steps.

  Returns:
    The function.
  """
  return cut_and_score(lambda solutions: scorer.score(solutions), scorer.cut)


def cut_and_score(score: schema.Score, cut: Cut) -> ScoreTexts:
  """Returns a function that cuts responses into steps and scores those.

  Args:
    score: Scores solutions, as `prm_jax.load_score(NAME)` returns it: a
      checkpoint, a server or a function of your own.
    cut: Cuts a response into steps, such as by_segmenter("paragraph").

  Returns:
    The function. A response without steps has no scores, and isn't sent.
  """

  def score_texts(
    problems: Sequence[str], texts: Sequence[str]
  ) -> list[schema.StepScores]:
    solutions = list(map(cut, problems, texts))
    with_steps = [solution for solution in solutions if solution.steps]
    rows = iter(score(with_steps) if with_steps else ())
    out = []
    for solution in solutions:
      row = next(rows) if solution.steps else schema.StepScores(())
      out.append(dataclasses.replace(row, spans=solution.spans))
    return out

  return score_texts


def each_text(
  score_text: Callable[[str, str], schema.StepScores], *, at_once: int = 1
) -> ScoreTexts:
  """Returns a function that scores whole responses one by one.

  Args:
    score_text: Returns the scores of one response, with spans, given its
      problem and its text: a model's `score_text`, or a client's of a server
      that cuts texts into steps.
    at_once: How many are scored at the same time, in threads. A server joins
      what is asked at the same time to one batch.

  Returns:
    The function.
  """

  def score_texts(
    problems: Sequence[str], texts: Sequence[str]
  ) -> list[schema.StepScores]:
    if at_once == 1:
      return list(map(score_text, problems, texts))
    with futures.ThreadPoolExecutor(at_once) as pool:
      return list(pool.map(score_text, problems, texts))

  return score_texts


def by_segmenter(name: str) -> Cut:
  """Returns a function that cuts responses into steps as a segmenter does.

  Args:
    name: The segmenter, as `--segmenter` takes it (docs/segmenters.md), such as
      "paragraph".

  Returns:
    The function.
  """
  segmenter = segmenters.parse(name)

  def cut(problem: str, text: str) -> schema.Solution:
    spans = segmenters.spans(text, segmenter)
    steps = tuple(text[begin:end] for begin, end in spans)
    return schema.Solution("0", problem, steps, raw_text=text, spans=spans)

  return cut


# --- Scores of steps to their rewards ---------------------------------------


def judged(scores: schema.StepScores) -> list[float | None]:
  """Returns the scores of steps, None where the model doesn't judge a step.

  Under a sum of positive rewards each further step adds reward, so a policy
  learns to write more steps. `delta` has no such preference (docs/returns.md).

  Args:
    scores: The scores of a response's steps.

  Returns:
    One score or None for each step.
  """
  pairs = zip(scores.scores, scores.judged, strict=True)
  return [score if is_judged else None for score, is_judged in pairs]


def delta(scores: schema.StepScores) -> list[float | None]:
  """Returns r_k - r_(k+1) of each judged step, and r_K of the last.

  "Delta" of Gao et al. 2024 (arXiv 2410.15115), as rl.returns.delta: the sum of
  the rewards from a step on is that step's score, however many steps follow.

  Args:
    scores: The scores of a response's steps.

  Returns:
    One reward for each step, None where the model doesn't judge it.
  """
  out: list[float | None] = judged(scores)
  later = 0.0
  for i in reversed(range(len(out))):
    score = out[i]
    if score is not None:
      out[i], later = score - later, score
  return out


def overall(scores: schema.StepScores, aggregate: str) -> float:
  """Returns one score of a whole response, for a trainer that takes no others.

  Args:
    scores: The scores of its steps.
    aggregate: product, min, last or mean of the scores of all steps.

  Returns:
    The score, 0.0 for a response without steps.

  Raises:
    InputError: The aggregate is unknown.
  """
  return voting.aggregate(scores.scores, aggregate)


# --- Tokens -----------------------------------------------------------------


def score_responses(
  score_texts: ScoreTexts,
  decode: placement.Decode,
  problems: Sequence[str],
  ids: Sequence[token_offsets.Ids],
) -> list[ScoredResponse]:
  """Returns the scores of responses that are given as ids.

  Args:
    score_texts: Scores whole responses.
    decode: Returns the text of the policy's ids, without special tokens.
    problems: The text of each response's question.
    ids: The ids of each response.

  Returns:
    The scores and token offsets of each response.

  Raises:
    InputError: There isn't a problem for each response, or the scores have no
      spans.
  """
  if len(problems) != len(ids):
    raise errors.InputError(
      f"{len(problems)} problems for {len(ids)} responses; give one of each"
      " response"
    )
  scores = score_texts(problems, [decode(each) for each in ids])
  for row in scores:
    if row.spans is None:
      raise errors.InputError(
        "the scores have no spans, so their steps have no place in the text;"
        " give StepScores with spans, as cut_and_score does"
      )
  offsets = [token_offsets.of_ids(each, decode) for each in ids]
  return list(map(ScoredResponse, scores, offsets))


def token_rewards(
  scored: ScoredResponse, rewards: Rewards = judged
) -> list[float]:
  """Returns the reward of each token of a response.

  Args:
    scored: The response.
    rewards: What the rewards of steps are, given their scores.

  Returns:
    A step's reward on the token that completes it, 0 elsewhere.

  Raises:
    InputError: A reward has no place (placement.place_step_rewards).
  """
  spans = scored.scores.spans or ()
  return placement.place_step_rewards(
    spans, rewards(scored.scores), scored.token_offsets
  )


def token_ids(ids: Any, mask: Any = None) -> list[int]:
  """Returns the ids that a mask keeps, as ints.

  Args:
    ids: A list, an array or a tensor of ids.
    mask: Which to keep, one of each id; None keeps all.

  Returns:
    The ids.

  Raises:
    InputError: The mask isn't as long as the ids.
  """
  if mask is None:
    return [int(i) for i in ids]
  if len(mask) != len(ids):
    raise errors.InputError(
      f"a mask of {len(mask)} places for {len(ids)} ids; give one of each id"
    )
  return [int(i) for i, is_kept in zip(ids, mask, strict=True) if is_kept]
