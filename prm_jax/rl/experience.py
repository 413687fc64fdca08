"""One rollout: sampled, judged, credited, and packed into rows.

Everything is a function of the run's key, the state's parameters and its step:
a run that goes on from a checkpoint samples what it would have sampled.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.data import packing
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import sampler as sampler_lib
from prm_jax.models import transformer
from prm_jax.rl import config as rl_config
from prm_jax.rl import credit as credit_lib
from prm_jax.rl import losses as policy_losses
from prm_jax.rl import metrics
from prm_jax.rl import program as rl_program
from prm_jax.rl import rewards as rewards_lib
from prm_jax.training import loop
from prm_jax.training import program

State = program.TrainState


class Sampled(NamedTuple):
  """N solutions of one rollout, the samples of a problem side by side."""

  prompts: list[np.ndarray]
  completions: list[sampler_lib.Completion]
  solutions: list[schema.Solution]


class Packed(NamedTuple):
  """Rows of a rollout, and where each solution's new tokens are in them.

  places: index into the flat rows [B * T] of each new token, -1 behind the
  last. minibatch: that of each solution.
  """

  batch: batch_lib.Batch
  places: np.ndarray
  minibatch: np.ndarray


def segment(
  prompt: np.ndarray, completions: Sequence[np.ndarray]
) -> packing.Segment:
  """Returns a prompt and its completions: each sees the prompt and itself.

  Weights are 1 at the tokens of completions.
  """
  tokens = np.concatenate([prompt, *completions]).astype(np.int32)
  total, start = len(tokens), len(prompt)
  positions = np.arange(total, dtype=np.int32)
  parent = positions - 1
  until = np.full(total, total, np.int32)
  for completion in completions:
    end = start + len(completion)
    positions[start:end] = len(prompt) + np.arange(len(completion))
    parent[start] = len(prompt) - 1
    until[start:end] = end
    start = end
  weights = np.ones(total, np.float32)
  weights[: len(prompt)] = 0
  return packing.Segment(
    tokens=tokens,
    positions=positions,
    visible_until=until,
    parent=parent,
    labels=np.zeros(total, np.float32),
    weights=weights,
    step_end=np.zeros(total, bool),
  )


def num_microbatches(config: rl_config.RLConfig, prompt_tokens: int) -> int:
  """Returns how many a minibatch needs when each solution is of full length.

  Raises:
    InputError: a solution of full length doesn't fit a row.
  """
  longest = prompt_tokens + config.rollout.max_tokens
  if longest > config.sequence_length:
    raise errors.InputError(
      f"row_tokens={config.sequence_length}: the longest prompt has {prompt_tokens}"
      f" tokens and rollout.max_tokens is {config.rollout.max_tokens}; a"
      f" solution must fit a row: make it {longest} or more"
    )
  solutions = config.rollout.num_solutions // config.minibatches
  in_row = config.sequence_length // longest
  return -(-solutions // (in_row * config.rows))


def pack(
  sampled: Sampled, config: rl_config.RLConfig, microbatches: int
) -> Packed:
  """Returns the rows of a rollout in program.Rollout's order.

  A minibatch takes whole problems as far as it goes. Where they share their
  prompts, a row holds as many solutions of a problem as fit. Such pieces may
  leave more room behind than they save; if that takes more rows than there are,
  each solution is a piece of its own, for which they always suffice.
  """
  N, T = len(sampled.completions), config.sequence_length
  per = N // config.minibatches
  B = config.rows * config.minibatches * microbatches
  rows: list[list[packing.Segment]] = [[] for _ in range(B)]
  places = np.full((N, config.rollout.max_tokens), -1, np.int64)
  for m in range(config.minibatches):
    ours = range(m * per, (m + 1) * per)
    found, assigned = _in_rows(sampled, ours, config, config.shares_prompts)
    if len(assigned) > microbatches * config.rows:
      found, assigned = _in_rows(sampled, ours, config, False)
    for k, members in enumerate(assigned):
      j, r = divmod(k, config.rows)
      assert j < microbatches
      b = (r * config.minibatches + m) * microbatches + j
      start = 0
      for number in members:
        of_row, solutions = found[number]
        rows[b].append(of_row)
        at = start + len(sampled.prompts[solutions[0]])
        for i in solutions:
          length = len(sampled.completions[i].tokens)
          places[i, :length] = b * T + at + np.arange(length)
          at += length
        start += len(of_row)
  return Packed(packing.fill(rows, T), places, np.arange(N) // per)


def _in_rows(
  sampled: Sampled, solutions: range, config: rl_config.RLConfig, share: bool
) -> tuple[list[tuple[packing.Segment, list[int]]], list[list[int]]]:
  """Returns pieces with the numbers of their solutions, and rows of pieces."""
  found = _segments(sampled, solutions, config, share)
  lengths = [len(segment) for segment, _ in found]
  return found, packing.assign_rows(lengths, config.sequence_length)


def _segments(
  sampled: Sampled, solutions: range, config: rl_config.RLConfig, share: bool
) -> list[tuple[packing.Segment, list[int]]]:
  """Returns pieces with the numbers of their solutions."""
  groups: list[list[int]] = []
  open_: dict[int, tuple[int, int]] = {}  # problem -> its last group, its room
  for i in solutions:
    length = len(sampled.completions[i].tokens)
    problem = i // config.rollout.samples
    number, room = open_.get(problem, (0, -1))
    if not share or room < length:
      room = config.sequence_length - len(sampled.prompts[i])
      number = len(groups)
      groups.append([])
    groups[number].append(i)
    open_[problem] = number, room - length
  return [
    (
      segment(
        sampled.prompts[group[0]],
        [sampled.completions[i].tokens for i in group],
      ),
      group,
    )
    for group in groups
  ]


def normalised(
  token_mask: np.ndarray, minibatch: np.ndarray, config: rl_config.RLConfig
) -> np.ndarray:
  """Returns the weight of each token [N, S]: loss.normalise, per minibatch.

  token_mask: tokens of solutions that count; the others weigh 0.
  """
  mask = token_mask.astype(np.float64)
  lengths = mask.sum(1, keepdims=True)
  counts = (lengths > 0).astype(np.float64)
  of = np.arange(config.minibatches)[:, None] == minibatch

  def total(x):
    return np.maximum(of @ x, 1)[minibatch]

  if config.loss.normalise == "tokens":
    found = mask / total(lengths)
  elif config.loss.normalise == "solutions":
    found = mask / np.maximum(lengths, 1) / total(counts)
  else:
    found = mask / config.rollout.max_tokens / total(counts)
  return found.astype(np.float32)


def per_solution(token_mask: np.ndarray, minibatch: np.ndarray) -> np.ndarray:
  """Returns weights [N, S]: 1 / solutions of the minibatch that have a token.

  So that a sum over solutions is their mean; 0 where token_mask is.
  """
  counts = np.bincount(minibatch, token_mask.any(1))
  found = token_mask / np.maximum(counts, 1)[minibatch, None]
  return found.astype(np.float32)


def scatter(values: np.ndarray, packed: Packed) -> np.ndarray:
  """Returns values of new tokens [N, S] where they are in the rows, else 0."""
  rows, tokens = packed.batch.tokens.shape
  out = np.zeros(rows * tokens, np.float32)
  real = packed.places >= 0
  out[packed.places[real]] = np.asarray(values)[real]
  return out.reshape(rows, tokens)


def gather(rows: np.ndarray, packed: Packed) -> np.ndarray:
  """Returns the values at each solution's new tokens [N, S], 0 behind them."""
  flat = np.asarray(rows).reshape(-1)
  found = flat[np.maximum(packed.places, 0)]
  return np.where(packed.places >= 0, found, 0)


class Looks(NamedTuple):
  """What the models of the other roles say of rows [B, T], 0 where absent."""

  reference: np.ndarray
  values: np.ndarray
  implicit: np.ndarray


@functools.partial(jax.jit, static_argnames=("models", "temperature"))
def _look(params, batch, *, models: rl_program.Models, temperature: float):
  found = {}
  if models.reference is not None:
    found["reference"] = transformer.token_log_probs(
      models.reference,
      params[rl_program.REFERENCE],
      batch,
      temperature=temperature,
    )
  if models.critic is not None:
    found["values"] = transformer.token_values(
      models.critic, params[rl_program.CRITIC], batch
    )
  elif "value_head" in params:
    found["values"] = transformer.token_values(
      models.policy, rl_program.policy_of(params), batch
    )
  if models.implicit is not None:
    found["implicit"] = transformer.token_log_probs(
      models.implicit, params[rl_program.IMPLICIT], batch
    )
  return found


def look(
  params: Any,
  packed: Packed,
  models: rl_program.Models,
  config: rl_config.RLConfig,
) -> Looks:
  """Returns what reference, critic and implicit PRM say of the rows.

  Microbatches without a solution are left out.
  """
  batch = packed.batch
  B, T = batch.tokens.shape
  out = {
    name: np.zeros((B, T), np.float32)
    for name in ("reference", "values", "implicit")
  }
  # The order of rows doesn't matter here: those in use, a microbatch at a time.
  used = np.flatnonzero((np.asarray(batch.parent) >= 0).any(1))
  if not any(models[1:]) and "value_head" not in params:
    used = used[:0]
  for start in range(0, len(used), config.rows):
    # Spare rows repeat others.
    chosen = used[start : start + config.rows]
    padded = np.resize(chosen, config.rows)
    rows = jax.tree.map(lambda x, at=padded: np.asarray(x)[at], batch)
    found = jax.device_get(
      _look(params, rows, models=models, temperature=config.rollout.temperature)
    )
    for name, values in found.items():
      out[name][chosen] = values[: len(chosen)]
  return Looks(**out)


@dataclasses.dataclass(frozen=True, eq=False)
class Collector:
  """Makes the rollout of each state; `loop.NextRows` of a run.

  problems: what is sampled from; a pass over all of them in an order of its
  own comes before any is met again. sink: is given each rollout's solutions
  with their scores.
  """

  config: rl_config.RLConfig
  models: rl_program.Models
  tokenizer: tokenizer_lib.Tokenizer
  problems: Sequence[schema.Solution]
  judges: rewards_lib.Judges
  key: jax.Array
  sink: Any = None

  @functools.cached_property
  def prompts(self) -> list[np.ndarray]:
    return sampler_lib.prompts(self.problems, self.tokenizer)

  @functools.cached_property
  def prompt_tokens(self) -> int:
    return max(map(len, self.prompts))

  @functools.cached_property
  def microbatches(self) -> int:
    return num_microbatches(self.config, self.prompt_tokens)

  def chosen(self, step: int) -> np.ndarray:
    """Returns the problems of a step's rollout; a pass is a permutation."""
    want, have = self.config.rollout.problems, len(self.problems)
    numbers = np.arange(step * want, (step + 1) * want)
    return np.asarray(
      [
        _permutation(self.config.seed, int(n) // have, have)[int(n) % have]
        for n in numbers
      ]
    )

  def engine(self, params: Any) -> engine_lib.Engine:
    c = self.config.rollout
    return engine_lib.Engine(
      self.models.policy,
      rl_program.policy_of(params),
      self.tokenizer,
      slots=c.slots,
      chunk=c.chunk,
      prompt_tokens=self.prompt_tokens,
      reserve=True,
    )

  def sample(self, state: State) -> tuple[Sampled, engine_lib.Work]:
    """Returns the solutions that the state's policy samples."""
    step, c = int(state.step), self.config.rollout
    numbers = self.chosen(step)
    # One problem may come twice in a rollout of a small set.
    requests = [
      engine_lib.Request(
        f"{k}/{self.problems[i].id}", self.prompts[i], c.samples
      )
      for k, i in enumerate(numbers)
    ]
    rows, work = self.engine(state.params).complete(
      requests, c.sampling, jax.random.fold_in(self.key, step)
    )
    solutions = [
      sampler_lib.solution(self.problems[i], x, n, self.tokenizer)
      for i, row in zip(numbers, rows, strict=True)
      for n, x in enumerate(row)
    ]
    prompts = [self.prompts[i] for i in numbers for _ in range(c.samples)]
    return Sampled(prompts, [x for row in rows for x in row], solutions), work

  def __call__(
    self, state: State
  ) -> tuple[rl_program.Rollout, dict[str, float]]:
    """Returns a rollout's rows, and what is known of it."""
    clock = _Clock()
    sampled, work = self.sample(state)
    clock.tick("rollout_s")
    judged = rewards_lib.judge(
      sampled.solutions,
      sampled.completions,
      self.tokenizer,
      self.judges,
      self.config.rewards,
    )
    rewards, left_out = rewards_lib.collect(
      judged,
      sampled.completions,
      self.config.rewards,
      samples=self.config.rollout.samples,
      max_tokens=self.config.rollout.max_tokens,
    )
    clock.tick("scoring_s")
    packed = pack(sampled, self.config, self.microbatches)
    looks = look(state.params, packed, self.models, self.config)
    behaviour = _padded([c.log_probs for c in sampled.completions], rewards)
    controller = state.opt_state["controller"]
    rewards = self._with_looks(rewards, looks, packed, behaviour, controller)
    clock.tick("reference_s")
    credit = jax.device_get(
      credit_lib.assign(
        rewards,
        controller.mean,
        config=self.config.credit,
        samples=self.config.rollout.samples,
        implicit_weight=self.config.rewards.implicit,
      )
    )
    facts = metrics.of_rollout(
      sampled.solutions, judged, rewards, credit, self.config
    )
    if self.config.loss.kind == "imitate":
      counts, facts["kept"] = kept(sampled, rewards, credit, self.config)
      rewards = dataclasses.replace(rewards, counts=counts)
    rollout = self._rows(packed, rewards, credit, looks, behaviour, judged)
    clock.tick("credit_s")
    facts |= dict(
      sampled_tokens=float(work.decoded),
      prefilled_tokens=float(work.prefilled),
      scored_steps=float(rewards_lib.num_scored(judged)),
      update_tokens=float(loop.num_tokens(packed.batch) * self.config.epochs),
      slot_use=work.slot_use,
    )
    if self.sink is not None:
      self.sink(int(state.step), sampled.solutions, judged, rewards, credit)
    return rollout, facts | left_out | clock.seconds

  def _with_looks(self, rewards, looks, packed, behaviour, controller):
    """Returns the rewards with values, token rewards and the KL's penalty."""
    c = self.config
    values = gather(looks.values, packed)
    tokens = penalty = np.zeros_like(values)
    reference = gather(looks.reference, packed)
    if c.loss.kl_in == "reward":
      distance = policy_losses.kl(
        behaviour,
        reference,
        rewards.token_mask.astype(np.float32),
        estimator=c.loss.kl_estimator,
      )
      penalty = np.asarray(controller.kl_weight * distance)
    if c.rewards.implicit:
      ratio = gather(looks.implicit, packed) - reference
      tokens = c.implicit_beta * ratio
    return dataclasses.replace(
      rewards, values=values, tokens=tokens, penalty=penalty
    )

  def _rows(self, packed, rewards, credit, looks, behaviour, judged):
    mask = rewards.token_mask & rewards.counts[:, None]
    weights = normalised(mask, packed.minibatch, self.config)
    right = np.asarray([bool(x) for x in judged.right], np.float32)
    told = np.asarray([x is not None for x in judged.right])
    labels = np.where(mask, right[:, None], 0)
    summed = per_solution(mask & told[:, None], packed.minibatch)
    batch = dataclasses.replace(
      packed.batch,
      weights=scatter(weights, packed),
      labels=scatter(labels, packed),
    )
    return rl_program.Rollout(
      batch=batch,
      behaviour=scatter(behaviour, packed),
      reference=looks.reference,
      advantages=scatter(credit.advantages, packed),
      values=looks.values,
      returns=scatter(credit.returns, packed),
      implicit_weights=scatter(summed, packed),
      totals=scatter(_at_first(credit.total, mask), packed),
      firsts=scatter(_at_first(np.ones(len(mask)), mask), packed) > 0,
    )


def kept(
  sampled: Sampled,
  rewards: credit_lib.Rewards,
  credit: credit_lib.Credit,
  config: rl_config.RLConfig,
) -> tuple[np.ndarray, float]:
  """Returns which solutions are imitated, and how many: see LossConfig."""
  out = np.zeros(len(sampled.solutions), bool)
  texts: set[tuple[str, ...]] = set()
  of_problem: collections.Counter[str] = collections.Counter()
  good = np.asarray(credit.total) > config.loss.keep_above
  for i in np.flatnonzero(good & np.asarray(rewards.counts)).tolist():
    s = sampled.solutions[i]
    text = (s.problem, *s.steps)
    full = 0 < config.loss.keep_each <= of_problem[s.problem]
    if full or text in texts:
      continue
    out[i] = True
    texts.add(text)
    of_problem[s.problem] += 1
  return out, float(out.sum())


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
  return np.random.default_rng([seed, epoch]).permutation(size)


def _padded(rows: Sequence[np.ndarray], rewards) -> np.ndarray:
  out = np.zeros(rewards.token_mask.shape, np.float32)
  for i, row in enumerate(rows):
    out[i, : len(row)] = row
  return out


def _at_first(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns [N, S] with each solution's value at its first token, if any."""
  out = np.zeros(mask.shape, np.float32)
  out[:, 0] = np.where(mask[:, 0], values, 0)
  return out


class _Clock:
  """Seconds of the phases, by name."""

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._last = time.perf_counter()

  def tick(self, name: str) -> None:
    now = time.perf_counter()
    self.seconds[name] = now - self._last
    self._last = now
