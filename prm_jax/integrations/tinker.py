"""The Tinker API: the training data of a group of samples.

Tinker's losses take one advantage for each target token, so step rewards need
no hook: the caller builds each Datum. SkyRL's tx and others serve the same API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit


def step_data(
  problem: str,
  prompt_ids: Sequence[int],
  samples: Sequence[Any],
  *,
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  outcomes: Sequence[float] | None = None,
  rewards: scoring.Rewards = scoring.judged,
  process_weight: float = 1.0,
) -> list[Any]:
  """Returns a tinker.Datum for each sample of one problem.

  Args:
    problem: The text of the question.
    prompt_ids: The ids that were sampled from.
    samples: tinker's SampledSequences: `tokens`, and `logprobs` of each.
    score_texts: Scores whole responses (scoring.text_scorer).
    decode: Returns the text of the policy's ids (placement.decoder).
    outcomes: The reward of each whole sample; None for none.
    rewards: What the rewards of steps are, given their scores.
    process_weight: The factor of the advantages of steps.

  Returns:
    The data for forward_backward with importance_sampling, ppo or cispo.

  Raises:
    InputError: A sample has no log-probabilities, or there isn't an outcome for
      each.
  """
  ids = [scoring.token_ids(sample.tokens) for sample in samples]
  problems = [problem] * len(ids)
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = token_credit.process_advantages(scored, rewards=rewards)
  outcomes = [0.0] * len(ids) if outcomes is None else outcomes
  rows = token_credit.with_outcomes(
    rows, outcomes, process_weight=process_weight
  )
  return [
    datum(prompt_ids, tokens, sample.logprobs, row)
    for tokens, sample, row in zip(ids, samples, rows, strict=True)
  ]


def datum(
  prompt_ids: Sequence[int],
  tokens: Sequence[int],
  logprobs: Sequence[float] | None,
  advantages: Sequence[float],
) -> Any:
  """Returns the tinker.Datum of a response.

  Args:
    prompt_ids: The ids before the response.
    tokens: The response's ids.
    logprobs: The log-probability of each as it was sampled, in nats.
    advantages: The advantage of each.

  Returns:
    The Datum: place i has the target, log-probability and advantage of token
    i + 1, 0 and 0 in the prompt.

  Raises:
    InputError: There isn't a log-probability and an advantage for each token,
      or no token before the response.
  """
  import tinker

  if logprobs is None or not len(logprobs) == len(advantages) == len(tokens):
    raise errors.InputError(
      f"a response of {len(tokens)} tokens needs a log-probability and an"
      " advantage of each; sample with log-probabilities"
    )
  whole = [*map(int, prompt_ids), *map(int, tokens)]
  shifted = {
    name: np.asarray(placement.for_targets(len(prompt_ids), row), np.float32)
    for name, row in (("logprobs", logprobs), ("advantages", advantages))
  }
  target = np.asarray(whole[1:], np.int64)
  return tinker.Datum(
    model_input=tinker.ModelInput.from_ints(whole[:-1]),
    loss_fn_inputs={"target_tokens": target, **shifted},
  )
