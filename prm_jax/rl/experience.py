"""Makes the rows of the next update from a state: rollout, rewards and credit.

Everything is a function of the run's key, the state's parameters and its step.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from prm_jax import schema
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.policy import rollout_engine
from prm_jax.rl import baselines
from prm_jax.rl import credit as credit_lib
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rollout as rollout_lib
from prm_jax.rl import rollout_metrics
from prm_jax.rl import rows as rows_lib
from prm_jax.rl import updates
from prm_jax.training import loop
from prm_jax.training import program

State = program.TrainState


class AuxOutputs(NamedTuple):
  """What the models of the other roles return for rows [B, T]; 0 if absent."""

  reference: np.ndarray
  values: np.ndarray
  implicit: np.ndarray


@functools.partial(jax.jit, static_argnames=("models", "temperature"))
def _of_microbatch(
  params, batch, *, models: updates.Models, temperature: float
):
  outputs = {}
  if models.reference is not None:
    outputs["reference"] = transformer.token_log_probs(
      models.reference,
      updates.reference_of(params),
      batch,
      temperature=temperature,
    )
  if models.critic is not None:
    outputs["values"] = transformer.token_values(
      models.critic, params[updates.CRITIC], batch
    )
  elif "value_head" in params:
    outputs["values"] = transformer.token_values(
      models.policy, updates.policy_of(params), batch
    )
  if models.implicit is not None:
    outputs["implicit"] = transformer.token_log_probs(
      models.implicit, params[updates.IMPLICIT], batch
    )
  return outputs


def aux_outputs(
  params: Any,
  packed: rows_lib.Packed,
  models: updates.Models,
  *,
  rows: int,
  temperature: float,
) -> AuxOutputs:
  """Returns what reference, critic and implicit PRM compute for the rows.

  Microbatches without a solution aren't computed.

  Args:
    params: The parameters of all roles.
    packed: The rows.
    models: The models of the roles.
    rows: The number of rows of a microbatch.
    temperature: The temperature of the reference's log-probabilities.
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
  for start in range(0, len(used), rows):
    # Spare rows repeat others.
    chosen = used[start : start + rows]
    padded = np.resize(chosen, rows)
    part = jax.tree.map(lambda x, at=padded: np.asarray(x)[at], batch)
    outputs = jax.device_get(
      _of_microbatch(params, part, models=models, temperature=temperature)
    )
    for name, values in outputs.items():
      out[name][chosen] = values[: len(chosen)]
  return AuxOutputs(**out)


# (step, solutions, reward outputs, rewards, credit) of each rollout.
Writer = Callable[
  [
    int,
    Sequence[schema.Solution],
    rewards_lib.RewardOutputs,
    baselines.Rewards,
    credit_lib.Credit,
  ],
  None,
]


@dataclasses.dataclass(frozen=True, eq=False)
class Collector:
  """Makes the rollout of each state; it is a run's `loop.NextRows`.

  Args:
    rollout: How many solutions are sampled, and how.
    shape: The shape of the rows.
    rewards: What is rewarded.
    credit: How rewards become advantages.
    loss: What an update minimises.
    models: The models of the roles.
    codec: How the policy's prompts are written and its ids are read.
    problems: The problems to sample solutions of. All of them come, in random
      order, before any comes again.
    functions: The reward functions.
    key: The run's random key.
    seed: The run's seed.
    epochs: The number of passes over a rollout.
    implicit_beta: The beta of an implicit PRM.
    writer: Called with each rollout's solutions and their scores.
  """

  rollout: rollout_lib.RolloutConfig
  shape: rows_lib.RowsConfig
  rewards: rewards_lib.RewardConfig
  credit: credit_lib.CreditConfig
  loss: policy_losses.LossConfig
  models: updates.Models
  codec: codecs.Codec
  problems: Sequence[schema.Solution]
  functions: rewards_lib.RewardFunctions
  key: jax.Array
  seed: int = 0
  epochs: int = 1
  implicit_beta: float = 0.05
  writer: Writer | None = None

  @functools.cached_property
  def prompts(self) -> list[codecs.Prompt]:
    return [self.codec.prompt(problem) for problem in self.problems]

  @functools.cached_property
  def prompt_tokens(self) -> int:
    return max(len(prompt.tokens) for prompt in self.prompts)

  @functools.cached_property
  def microbatches(self) -> int:
    return rows_lib.num_microbatches(
      self.shape, self.rollout, self.prompt_tokens
    )

  def describe(self) -> str:
    """Returns one line that says how large a rollout is."""
    shape = self.shape
    return (
      f"the longest prompt has {self.prompt_tokens} tokens; an update takes"
      f" {self.rollout.num_solutions} solutions in up to"
      f" {self.microbatches * shape.minibatches} microbatches of"
      f" {shape.batch_size} x {shape.sequence_length} tokens"
    )

  def engine(self, params: Any) -> rollout_engine.Engine:
    return rollout_engine.Engine(
      self.models.policy,
      updates.policy_of(params),
      self.codec.tokenizer,
      slots=self.rollout.slots,
      chunk=self.rollout.chunk,
      prompt_tokens=self.prompt_tokens,
      codec=self.codec,
    )

  def sample(
    self, state: State
  ) -> tuple[rollout_lib.Sampled, rollout_engine.Work]:
    """Returns the solutions that the state's policy samples."""
    step = int(state.step)
    numbers = rollout_lib.chosen(
      step, self.rollout.problems, len(self.problems), self.seed
    )
    return rollout_lib.sample(
      self.engine(state.params),
      [self.problems[i] for i in numbers],
      [self.prompts[i] for i in numbers],
      self.codec,
      self.rollout.samples,
      self.rollout.sampling,
      jax.random.fold_in(self.key, step),
    )

  def __call__(self, state: State) -> tuple[updates.Rollout, dict[str, float]]:
    """Returns the rows of a rollout, and its metrics."""
    clock = _Clock()
    sampled, work = self.sample(state)
    clock.tick("rollout_s")
    outputs, rewards, left_out = self._scored(sampled)
    clock.tick("scoring_s")
    packed = rows_lib.pack(sampled, self.shape, self.rollout, self.microbatches)
    aux = aux_outputs(
      state.params,
      packed,
      self.models,
      rows=self.shape.batch_size,
      temperature=self.rollout.temperature,
    )
    old_log_probs = _padded(
      [c.log_probs for c in sampled.completions], self.rollout.max_tokens
    )
    controller = state.opt_state["controller"]
    rewards = self._with_aux(rewards, aux, packed, old_log_probs, controller)
    clock.tick("reference_s")
    credit = jax.device_get(
      credit_lib.assign(
        rewards,
        controller.mean,
        config=self.credit,
        samples=self.rollout.samples,
        max_tokens=self.rollout.max_tokens,
        implicit_weight=self.rewards.implicit,
      )
    )
    facts = rollout_metrics.of_rollout(
      sampled.solutions,
      outputs,
      rewards,
      credit,
      rewards_steps=self.rewards.of_steps,
      has_critic=self.loss.critic != "none",
    )
    if policy_losses.POLICY_LOSSES[self.loss.kind].selects:
      selected = select(sampled, rewards, credit, self.loss)
      facts["selected"] = float(selected.sum())
      rewards = dataclasses.replace(rewards, counts=selected)
    else:
      facts["zero_advantages"] = rollout_metrics.zero_advantages(
        rewards, credit
      )
    rows = self._rows(packed, rewards, credit, aux, old_log_probs, outputs)
    clock.tick("credit_s")
    facts |= dict(
      sampled_tokens=float(work.decoded),
      prefilled_tokens=float(work.prefilled),
      scored_steps=float(rewards_lib.num_scored(outputs)),
      update_tokens=float(loop.num_tokens(packed.batch) * self.epochs),
      slot_use=work.slot_use,
    )
    if self.writer is not None:
      self.writer(int(state.step), sampled.solutions, outputs, rewards, credit)
    return rows, facts | left_out | clock.seconds

  def _scored(self, sampled):
    """Returns the reward functions' outputs, the rewards, and what is left out."""
    outputs = rewards_lib.score(
      sampled.solutions,
      sampled.completions,
      self.codec,
      self.functions,
      prm_cut=self.rewards.prm_cut,
    )
    rewards, left_out = rewards_lib.collect(
      outputs,
      sampled.completions,
      self.rewards,
      samples=self.rollout.samples,
      max_tokens=self.rollout.max_tokens,
    )
    return outputs, rewards, left_out

  def _with_aux(self, rewards, aux, packed, old_log_probs, controller):
    """Returns the rewards with values, token rewards and the KL penalty."""
    values = rows_lib.gather(aux.values, packed)
    tokens = penalty = np.zeros_like(values)
    reference = rows_lib.gather(aux.reference, packed)
    if self.loss.kl_placement == "reward":
      distance = policy_losses.kl(
        old_log_probs,
        reference,
        rewards.token_mask.astype(np.float32),
        estimator=self.loss.kl_estimator,
      )
      penalty = np.asarray(controller.kl_weight * distance)
    if self.rewards.implicit:
      ratio = rows_lib.gather(aux.implicit, packed) - reference
      tokens = self.implicit_beta * ratio
    return dataclasses.replace(
      rewards, values=values, tokens=tokens, penalty=penalty
    )

  def _rows(self, packed, rewards, credit, aux, old_log_probs, outputs):
    scatter = functools.partial(rows_lib.scatter, packed=packed)
    mask = rewards.token_mask & rewards.counts[:, None]
    weights = rows_lib.loss_weights(
      mask,
      packed.minibatch,
      loss_aggregation=self.loss.loss_aggregation,
      max_tokens=self.rollout.max_tokens,
    )
    right = np.asarray([bool(x) for x in outputs.right], np.float32)
    known = np.asarray([x is not None for x in outputs.right])
    labels = np.where(mask, right[:, None], 0)
    summed = rows_lib.per_solution(mask & known[:, None], packed.minibatch)
    batch = dataclasses.replace(
      packed.batch, weights=scatter(weights), labels=scatter(labels)
    )
    return updates.Rollout(
      batch=batch,
      old_log_probs=scatter(old_log_probs),
      reference=aux.reference,
      advantages=scatter(credit.advantages),
      values=aux.values,
      returns=scatter(credit.returns),
      implicit_weights=scatter(summed),
      totals=scatter(_at_first(credit.total, mask)),
      firsts=scatter(_at_first(np.ones(len(mask)), mask)) > 0,
    )


def select(
  sampled: rollout_lib.Sampled,
  rewards: baselines.Rewards,
  credit: credit_lib.Credit,
  config: policy_losses.LossConfig,
) -> np.ndarray:
  """Returns which solutions [N] rejection sampling keeps; see LossConfig."""
  selected = np.zeros(len(sampled.solutions), bool)
  texts: set[tuple[str, ...]] = set()
  of_problem: collections.Counter[str] = collections.Counter()
  good = np.asarray(credit.total) > config.return_threshold
  for i in np.flatnonzero(good & np.asarray(rewards.counts)).tolist():
    s = sampled.solutions[i]
    text = (s.problem, *s.steps)
    full = 0 < config.max_per_problem <= of_problem[s.problem]
    if full or text in texts:
      continue
    selected[i] = True
    texts.add(text)
    of_problem[s.problem] += 1
  return selected


def _padded(rows: Sequence[np.ndarray], length: int) -> np.ndarray:
  out = np.zeros((len(rows), length), np.float32)
  for i, row in enumerate(rows):
    out[i, : len(row)] = row
  return out


def _at_first(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns [N, S] with each solution's value at its first token, if any."""
  out = np.zeros(mask.shape, np.float32)
  out[:, 0] = np.where(mask[:, 0], values, 0)
  return out


class _Clock:
  """The seconds that each phase took, by name."""

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._last = time.perf_counter()

  def tick(self, name: str) -> None:
    now = time.perf_counter()
    self.seconds[name] = now - self._last
    self._last = now
