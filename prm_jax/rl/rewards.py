"""What a rollout's solutions are worth to the reward models and the verifier.

Each judge is a function of solutions (schema.Score, schema.Verify): it reads
the text, with a tokenizer of its own. What comes back is joined to the policy's
tokens by characters (data.alignment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np

from prm_jax import schema
from prm_jax.data import alignment
from prm_jax.data import encoding
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.inference.sampler import Completion
from prm_jax.rl import config as rl_config
from prm_jax.rl import credit


@dataclasses.dataclass(frozen=True)
class Judges:
  """Who rewards; None where nobody does.

  prm, held_out: P(correct so far) of steps. exact: 1 or 0 of steps. orm:
  P(right answer) at steps. verify: is the answer right. find_answer: a text's
  final answer.
  """

  verify: schema.Verify
  find_answer: Callable[[Sequence[str]], str | None]
  prm: schema.Score | None = None
  exact: schema.Score | None = None
  orm: schema.Score | None = None
  held_out: schema.Score | None = None


@dataclasses.dataclass(frozen=True)
class Judged:
  """What the judges say of N solutions.

  prm, held_out: scores of the steps that the PRM sees, a list each. ends: the
  index of the token that closes each of these steps. exact: 1 or 0 of the
  policy's own steps. right: None where the verifier can't tell.
  """

  prm: list[list[float]] | None
  ends: list[np.ndarray]
  exact: list[list[float]] | None
  own_ends: list[np.ndarray]
  orm: list[float] | None
  right: list[bool | None]
  held_out: list[list[float]] | None
  answered: list[bool]


def judge(
  solutions: Sequence[schema.Solution],
  completions: Sequence[Completion],
  tokenizer: tokenizer_lib.Tokenizer,
  judges: Judges,
  config: rl_config.RewardConfig,
) -> Judged:
  """Returns what each judge says of the solutions of these completions.

  A solution without a step gets no score of steps, and an ORM's 0.
  """
  own_ends = [step_ends(c.tokens, tokenizer) for c in completions]
  seen, ends = list(solutions), own_ends
  if config.prm_cut != "step" and (judges.prm or judges.held_out):
    seen, ends = _cut(solutions, completions, tokenizer, config.prm_cut)
  orm = _of_steps(judges.orm, solutions)
  return Judged(
    prm=_of_steps(judges.prm, seen),
    ends=ends,
    exact=_of_steps(judges.exact, solutions),
    own_ends=own_ends,
    orm=None if orm is None else [x[-1] if x else 0.0 for x in orm],
    right=judges.verify(solutions),
    held_out=_of_steps(judges.held_out, seen),
    answered=[judges.find_answer(s.steps) is not None for s in solutions],
  )


def num_scored(judged: Judged) -> int:
  """Returns how many steps reward models scored, each model's for itself."""
  told = [x for x in (judged.prm, judged.held_out) if x is not None]
  found = sum(len(row) for rows in told for row in rows)
  # An ORM says something at each of the policy's own steps.
  return found + (sum(map(len, judged.own_ends)) if judged.orm else 0)


def _of_steps(
  score: schema.Score | None, solutions: Sequence[schema.Solution]
) -> list[list[float]] | None:
  """Returns the scores; solutions without a step aren't shown to the model."""
  if score is None:
    return None
  found: list[list[float]] = [[] for _ in solutions]
  shown = [i for i, s in enumerate(solutions) if s.steps]
  if shown:
    for i, row in zip(shown, score([solutions[i] for i in shown]), strict=True):
      found[i] = row
  return found


def step_ends(
  ids: tokenizer_lib.Ids, tokenizer: tokenizer_lib.Tokenizer
) -> np.ndarray:
  """Returns the index of the token that closes each step of a completion.

  The separator that the policy emitted; of a last step without one, eos or the
  last token. There are as many as encoding.split_steps finds.
  """
  ids = np.asarray(ids)
  stops = np.flatnonzero(ids == tokenizer.eos)
  end = int(stops[0]) if len(stops) else len(ids)
  ends = np.flatnonzero(ids[:end] == tokenizer.separator)
  begun = int(ends[-1]) + 1 if len(ends) else 0
  if begun < end:
    ends = np.append(ends, min(end, len(ids) - 1))
  return ends.astype(np.int32)


def _cut(solutions, completions, tokenizer, how):
  """Returns the solutions in the PRM's own steps, and what closes each."""
  seen, ends = [], []
  for s, c in zip(solutions, completions, strict=True):
    own, _ = encoding.split_steps(c.tokens, tokenizer)
    text = "\n".join(own)
    steps, at = alignment.segments(text, how)
    closing = alignment.closing_tokens(
      alignment.token_ends(c.tokens, tokenizer), at
    )
    seen.append(dataclasses.replace(s, steps=tuple(steps)))
    ends.append(np.asarray(closing, np.int32))
  return seen, ends


def collect(
  judged: Judged,
  completions: Sequence[Completion],
  config: rl_config.RewardConfig,
  *,
  samples: int,
  max_tokens: int,
) -> tuple[credit.Rewards, dict[str, float]]:
  """Returns the weighed rewards, padded, and counts of what teaches nothing.

  A solution doesn't count where a reward that it needs is not finite or can't
  be told, or where its problem is too easy or too hard
  (config.accuracy_range).
  """
  N, S = len(completions), max_tokens
  per_step = [
    _merged(judged, i, len(c.tokens), config) for i, c in enumerate(completions)
  ]
  # A step takes a token at least: so many columns always do, twice as many
  # where two judges cut the text in their own ways.
  K = (
    2 * max_tokens if config.exact and config.prm_cut != "step" else max_tokens
  )
  steps = np.zeros((N, K), np.float32)
  ends = np.zeros((N, K), np.int32)
  step_mask = np.zeros((N, K), bool)
  token_mask = np.zeros((N, S), bool)
  outcome = np.zeros(N, np.float32)
  counts = np.ones(N, bool)
  why = dict(not_finite=0, unverifiable=0, empty=0, accuracy_out_of_range=0)
  for i, (rewards, at) in enumerate(per_step):
    length = len(completions[i].tokens)
    token_mask[i, :length] = True
    k = len(rewards)
    steps[i, :k], ends[i, :k], step_mask[i, :k] = rewards, at, True
    outcome[i] = _outcome(judged, i, completions[i], config, max_tokens)
    if config.verifier and judged.right[i] is None:
      why["unverifiable"] += 1
      counts[i] = False
    elif not (np.isfinite(rewards).all() and math.isfinite(outcome[i])):
      why["not_finite"] += 1
      counts[i] = False
    elif not length:
      why["empty"] += 1
      counts[i] = False
  low, high = config.accuracy_range
  if (low, high) != (0.0, 1.0):
    share = _share_right(judged.right, samples)
    outside = np.repeat((share < low) | (share > high), samples)
    why["accuracy_out_of_range"] = int((outside & counts).sum())
    counts &= ~outside
  steps[~counts], outcome[~counts] = 0, 0
  blank = np.zeros((N, S), np.float32)
  collected = credit.Rewards(
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
  judged: Judged, i: int, length: int, config: rl_config.RewardConfig
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rewards of a solution's steps and the tokens that close them.

  The exact verifier knows the policy's steps only: where the PRM sees others,
  both sets of steps are there, each with its own rewards. A solution without a
  step is scored as a wrong one: else to write nothing would be the best there
  is where scores are negative.
  """
  parts = []
  if config.prm and judged.prm is not None:
    scores, ends = _or_one_wrong(judged.prm[i], judged.ends[i], length)
    if config.prm_form == "signed":
      scores = 2 * scores - 1
    parts.append((config.prm * scores, ends))
  if config.exact and judged.exact is not None:
    scores, ends = _or_one_wrong(judged.exact[i], judged.own_ends[i], length)
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
  """Returns scores and ends; of no step, a score of 0 at the last token."""
  if not len(scores) and length:
    scores, ends = [0.0], np.asarray([length - 1], np.int32)
  return np.asarray(scores, np.float32), ends


def _outcome(judged, i, completion, config, max_tokens) -> float:
  """Returns the weighed reward of a whole solution."""
  past = max(0, len(completion.tokens) - config.length_from) / max_tokens
  found = -config.length * past
  if config.orm and judged.orm is not None:
    found += config.orm * judged.orm[i]
  found += config.verifier * bool(judged.right[i])
  return found + config.format * (completion.ended and judged.answered[i])


def _share_right(right: Sequence[bool | None], samples: int) -> np.ndarray:
  """Returns the share of right answers of each problem, NaN if none is told."""
  told = np.array([x is not None for x in right]).reshape(-1, samples)
  sure = np.array([bool(x) for x in right]).reshape(-1, samples)
  with np.errstate(invalid="ignore"):
    return (sure & told).sum(1) / told.sum(1)
