"""A reinforcement-learning run as plain data: the configs of all its stages.

Whatever can be refused without reading a file is refused here or in the config
of a stage. Only rl/rl_run.py takes the whole config; a stage gets its own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.models import model_config
from prm_jax.rl import credit as credit_lib
from prm_jax.rl import hacking_monitor
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import roles as roles_lib
from prm_jax.rl import rollout as rollout_lib
from prm_jax.rl import rows as rows_lib
from prm_jax.rl import updates
from prm_jax.runtime import checks
from prm_jax.scoring import score_sources
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib

# The fields that name what scores steps.
_SCORES = ("prm", "orm", "held_out_prm")
# What a field may name.
_NAMES = dict(
  prm="its checkpoint folder, a function or a server's address",
  orm="its checkpoint folder, a function or a server's address",
  outcome="the function, FILE.py:FUNCTION or MODULE:FUNCTION",
)


@dataclasses.dataclass(frozen=True)
class RLConfig:
  """A whole run of reinforcement learning, except its problems.

  Args:
    seed: The seed of everything random.
    init_from: The checkpoint folder of the policy.
    rollout: How many solutions are sampled, and how.
    rewards: What is rewarded.
    credit: How rewards become advantages.
    loss: What an update minimises.
    packing: The rows of a microbatch; with share_prefixes, the solutions of a
      problem share its tokens in a row.
    optimizer: The policy's optimizer.
    critic_optimizer: The critic's optimizer.
    implicit_optimizer: The implicit PRM's optimizer.
    fit: How long to train, and when to evaluate and save.
    monitor: When the hacking monitor gives an alarm.
    program: Always "rl".
    model: Fields of the policy's ModelConfig to change (compute_dtype, remat).
      Reference and critic compute in its compute_dtype, too.
    reference: The folder of the model that the KL is measured against; "" is
      the policy itself.
    prm: What scores the steps: a PRM's checkpoint folder, FILE.py:FUNCTION,
      MODULE:FUNCTION or a server's address; see score_sources.load_score.
    orm: As prm, of an ORM: the score of the last step counts.
    held_out_prm: As prm, but it rewards nothing; it is for the monitor.
    outcome: The function that rewards whole solutions, FILE.py:FUNCTION or
      MODULE:FUNCTION; see score_sources.load_outcome_reward.
    key_variable: The environment variable with the key that each server gets.
    insecure_key: Whether the key may be sent unencrypted, over http, to another
      machine.
    score_dtype: The type in which prm, orm and held_out_prm compute, if they are
      checkpoint folders: float32, bfloat16 or float16; None is each one's own.
    critic: The folder of the PRM or policy whose trunk a separate critic starts
      from; "" is the policy's.
    implicit_beta: The beta of an implicit PRM.
    epochs: The number of passes over a rollout.
    minibatches: The number of updates in a pass.
    trainable: Which parameters are trained; see trainable.chosen.
    mesh: The number of devices on the axes data, fsdp and tensor.
  """

  seed: int
  init_from: str
  rollout: rollout_lib.RolloutConfig
  rewards: rewards_lib.RewardConfig
  credit: credit_lib.CreditConfig
  loss: policy_losses.LossConfig
  packing: batches.PackingConfig
  optimizer: optimizer_lib.OptimizerConfig
  critic_optimizer: optimizer_lib.OptimizerConfig
  implicit_optimizer: optimizer_lib.OptimizerConfig
  fit: loop.FitConfig
  monitor: hacking_monitor.MonitorConfig = dataclasses.field(
    default_factory=hacking_monitor.MonitorConfig
  )
  program: str = "rl"
  model: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
  reference: str = ""
  prm: str = ""
  orm: str = ""
  held_out_prm: str = ""
  outcome: str = ""
  key_variable: str | None = None
  insecure_key: bool = False
  score_dtype: str | None = None
  critic: str = ""
  implicit_beta: float = 0.05
  epochs: int = 1
  minibatches: int = 1
  trainable: str = "all"
  mesh: tuple[int, ...] = (-1, 1, 1)

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    checks.check_seed(self.seed)
    # They check their own fields.
    shape, update = self.shape, self.update
    n = self.rollout.num_solutions
    if n % shape.minibatches:
      yield (
        f"minibatches={self.minibatches}: {n} solutions (rollout.problems x"
        " rollout.samples) can't be split evenly"
      )
    policy_loss = policy_losses.POLICY_LOSSES[self.loss.kind]
    if policy_loss.selects and self.credit.baseline != "none":
      yield (
        f"loss.kind={self.loss.kind!r} with credit.baseline="
        f"{self.credit.baseline!r}: its solutions are selected by their return,"
        " and not compared; take 'none'"
      )
    if not policy_loss.off_policy and update.epochs * shape.minibatches > 1:
      yield (
        f"loss.kind={self.loss.kind!r} with epochs={self.epochs}, minibatches="
        f"{self.minibatches}: it has no ratio for samples of an older policy;"
        " take 'ppo', or 1 and 1"
      )
    if shape.share_prefixes:
      kind = self.model.get("attention", "auto")
      model_config.check_trees(kind, "packing.share_prefixes=True")
    yield from self._rollback_faults()
    yield from self._name_faults()
    yield from self._role_faults()
    yield from self._credit_faults()

  @property
  def key(self) -> score_sources.Key:
    """The key of the servers that score."""
    return score_sources.Key(self.key_variable, self.insecure_key)

  @property
  def roles(self) -> roles_lib.Names:
    """What the run's models and scores are."""
    return roles_lib.Names(
      init_from=self.init_from,
      model=self.model,
      reference=self.reference,
      critic=self.critic,
      prm=self.prm,
      orm=self.orm,
      held_out_prm=self.held_out_prm,
      outcome=self.outcome,
      key=self.key,
      score_dtype=self.score_dtype,
      has_critic=self.loss.critic == "separate",
      has_implicit=self.rewards.implicit > 0,
      shares_reference=self.trainable == "lora",
    )

  @property
  def shape(self) -> rows_lib.RowsConfig:
    """The shape of a rollout's rows.

    An implicit PRM sums over whole solutions, each in tokens of its own.
    """
    return rows_lib.RowsConfig(
      batch_size=self.packing.batch_size,
      sequence_length=self.packing.sequence_length,
      minibatches=self.minibatches,
      share_prefixes=self.packing.share_prefixes and not self.rewards.implicit,
    )

  @property
  def update(self) -> updates.UpdateConfig:
    """The updates of the run, except what each of them minimises."""
    return updates.UpdateConfig(
      policy=self.optimizer,
      critic=self.critic_optimizer,
      implicit=self.implicit_optimizer,
      rollouts=self.fit.steps,
      epochs=self.epochs,
      trainable=self.trainable,
      temperature=self.rollout.temperature,
      num_solutions=self.rollout.num_solutions,
      moving_decay=self.credit.moving_decay,
      implicit_beta=self.implicit_beta,
    )

  def _rollback_faults(self) -> Iterator[str]:
    """Yields how a monitor couldn't find a checkpoint to go back to."""
    reach = self.fit.checkpoint_every * self.fit.keep_last
    needed = 3 * self.monitor.window
    if self.monitor.action == "rollback" and reach < needed:
      yield (
        f"monitor.action='rollback': fit.checkpoint_every="
        f"{self.fit.checkpoint_every} and fit.keep_last={self.fit.keep_last}"
        f" keep the last {reach} updates, and what an alarm of windows of"
        f" {self.monitor.window} goes back to is farther; keep {needed} or more"
      )

  def _name_faults(self) -> Iterator[str]:
    """Yields which names of what scores have no form of one."""
    given = {name: getattr(self, name) for name in _SCORES}
    for field, name in given.items():
      with _of_field(field):
        if name:
          score_sources.check(name, self.key)
    if self.outcome:
      with _of_field("outcome"):
        score_sources.check_function(self.outcome)
    asks = any(map(score_sources.is_url, given.values()))
    if self.key_variable is not None and not asks:
      yield (
        f"key_variable={self.key_variable!r}: none of {', '.join(_SCORES)} is"
        " at a server; leave it out"
      )
    if self.score_dtype is None:
      return
    checks.check_choice(
      "score_dtype", self.score_dtype, model_config.COMPUTE_DTYPES
    )
    if not any(
      name and score_sources.is_checkpoint(name) for name in given.values()
    ):
      yield (
        f"score_dtype={self.score_dtype!r}: none of {', '.join(_SCORES)} is a"
        " checkpoint folder; leave it out"
      )

  def _role_faults(self) -> Iterator[str]:
    """Yields which rewards and losses have no model."""
    rewards, loss = self.rewards, self.loss
    for name in ("prm", "orm", "outcome"):
      if getattr(rewards, name) and not getattr(self, name):
        yield (
          f"rewards.{name}={getattr(rewards, name)}: which one? set {name} to"
          f" {_NAMES[name]}"
        )
    if self.critic and loss.critic != "separate":
      yield (
        f"critic={self.critic!r}: only loss.critic='separate' starts from it"
      )
    has_kl = loss.kl_placement != "none"
    if self.reference == "none" and (has_kl or rewards.implicit):
      yield (
        "reference='none': the KL and an implicit PRM are measured by one; set"
        " loss.kl_placement='none' and rewards.implicit=0, or reference=''"
      )
    if rewards.implicit and self.rollout.temperature != 1:
      yield (
        f"rollout.temperature={self.rollout.temperature}: an implicit PRM's"
        " log-ratios are those at 1; set it to 1"
      )

  def _credit_faults(self) -> Iterator[str]:
    """Yields why a baseline can't compare."""
    rewards, loss, needs = self.rewards, self.loss, self.credit.needs
    where = f"credit.baseline={self.credit.baseline!r}"
    if needs.critic != (loss.critic != "none"):
      yield (
        f"{where} with loss.critic={loss.critic!r}: gae takes a critic, shared"
        " or separate, and nothing else does"
      )
    if needs.implicit != (rewards.implicit > 0):
      yield (
        f"{where} with rewards.implicit={rewards.implicit}: token rewards of an"
        " implicit PRM go with prime, and nothing else does"
      )
    if needs.implicit and rewards.of_steps:
      yield (
        f"{where}: takes the implicit PRM's rewards and the outcome; set"
        " rewards.prm and rewards.exact to 0"
      )
    if needs.compares_steps and not rewards.of_steps:
      yield (
        f"{where}: there is no step reward; take leave_one_out or group, or set"
        " rewards.prm"
      )
    if needs.compares_solutions and self.rollout.samples < 2:
      yield (
        f"{where} with rollout.samples=1: it compares solutions of a problem;"
        " take 2 or more"
      )


@contextlib.contextmanager
def _of_field(field: str) -> Iterator[None]:
  """Names the field in an error; the value may hold a password."""
  try:
    yield
  except errors.InputError as e:
    raise errors.InputError(f"{field}: {e}") from None
