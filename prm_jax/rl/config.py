"""A reinforcement-learning run as plain data.

What can be refused without reading a file is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import ml_collections

from prm_jax import errors
from prm_jax.data import alignment
from prm_jax.inference import sampler
from prm_jax.models import config as model_config
from prm_jax.rl import hacking_monitor
from prm_jax.rl import losses as policy_losses
from prm_jax.runtime import checks
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib

PRM_FORMS = ("probability", "signed")
PRM_CUTS = ("step", *alignment.CUTS)
SHAPES = ("none", "clip", "delta", "clip_delta")
RETURNS = ("sum", "min_soft", "min_strict")
STEP_BASELINES = ("leave_one_out_step", "leave_one_out_token", "group_step")
BASELINES = (
  *("none", "moving", "leave_one_out", "group"),
  *(*STEP_BASELINES, "gae", "prime", "keep"),
)
KINDS = ("reinforce", "ppo", "imitate")
NORMALISE = ("tokens", "solutions", "constant")
KL_IN = ("none", "reward", "loss")
CRITICS = ("none", "shared", "separate")


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  """What an update samples: so many solutions of so many problems.

  max_tokens: a solution's token budget. slots, chunk: see engine.Engine.
  """

  problems: int
  samples: int
  max_tokens: int
  temperature: float = 1.0
  slots: int = 64
  chunk: int = 8

  def __post_init__(self):
    counts = ("problems", "samples", "max_tokens", "slots", "chunk")
    checks.check_counts(self, counts, "rollout.")
    # Greedy samples have no other choice to learn from.
    checks.check_positive(self, ("temperature",), "rollout.")

  @property
  def num_solutions(self) -> int:
    return self.problems * self.samples

  @property
  def sampling(self) -> sampler.Sampling:
    return sampler.Sampling(self.max_tokens, self.temperature, tempered=True)


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """What is rewarded, and how much: a weight of 0 leaves a reward out.

  At the end of each step
    prm: the PRM's score; prm_form: probability p in [0, 1], or signed 2 p - 1
      (PURE). prm_cut: what the PRM takes for a step: the policy's own, or a
      line or paragraph of the text.
    exact: 1 while all is right so far, by the exact verifier of dial problems.
  At the end of the solution
    orm: P(right answer). verifier: 1 if the answer is right. format: 1 if the
      policy ended by itself and gave an answer. length: minus the tokens past
      length_from, as a share of the budget.
  implicit: token rewards of an implicit PRM (PRIME), trained online.
  accuracy_range: problems with a share of right answers outside teach nothing
    (PRIME keeps 0.2 to 0.8).
  """

  prm: float = 0.0
  exact: float = 0.0
  orm: float = 0.0
  verifier: float = 0.0
  format: float = 0.0
  length: float = 0.0
  implicit: float = 0.0
  prm_form: str = "probability"
  prm_cut: str = "step"
  length_from: int = 0
  accuracy_range: tuple[float, ...] = (0.0, 1.0)

  def __post_init__(self):
    weights = ("prm", "exact", "orm", "verifier", "format", "length")
    checks.check_natural(self, (*weights, "implicit"), "rewards.")
    checks.check_natural(self, ("length_from",), "rewards.")
    checks.check_choice("rewards.prm_form", self.prm_form, PRM_FORMS)
    checks.check_choice("rewards.prm_cut", self.prm_cut, PRM_CUTS)
    if not any(getattr(self, name) for name in (*weights, "implicit")):
      raise errors.InputError(
        "rewards: every weight is 0; set rewards.prm or rewards.verifier, say"
      )
    given = self.accuracy_range
    if len(given) != 2 or not 0 <= given[0] <= given[1] <= 1:
      raise errors.InputError(
        f"rewards.accuracy_range={self.accuracy_range}: expected two shares,"
        " the smaller one first"
      )

  @property
  def of_steps(self) -> bool:
    return bool(self.prm or self.exact)


@dataclasses.dataclass(frozen=True)
class CreditConfig:
  """How rewards become advantages; docs/returns.md has the formulas.

  shape: of step rewards: clip to min(r - threshold, 0), delta r_k - r_k+1
    (Gao et al. 2024), or both. returns: their sum, or PURE's minimum, soft at
    min_temperature or strict. discount: per token.
  baseline: what a return is compared with; keep: with a threshold, to imitate
    what is above it (LossConfig.kind). prime: PRIME's, of its token
    rewards. gae: a critic's, at trace (lambda). moving_decay: of the moving
    baseline. scale: group baselines divide by the standard deviation, too.
  whiten: advantages of a rollout get mean 0 and variance 1.
  """

  shape: str = "none"
  threshold: float = 0.5
  returns: str = "sum"
  min_temperature: float = 0.1
  discount: float = 1.0
  baseline: str = "leave_one_out"
  trace: float = 0.95
  moving_decay: float = 0.9
  scale: bool = True
  whiten: bool = False

  def __post_init__(self):
    checks.check_choice("credit.shape", self.shape, SHAPES)
    checks.check_choice("credit.returns", self.returns, RETURNS)
    checks.check_choice("credit.baseline", self.baseline, BASELINES)
    checks.check_shares(self, ("discount", "trace", "moving_decay"), "credit.")
    checks.check_positive(self, ("min_temperature",), "credit.")
    if self.returns == "min_strict" and (
      self.baseline in ("gae", "prime", *STEP_BASELINES) or self.discount != 1
    ):
      raise errors.InputError(
        f"credit.returns='min_strict' with credit.baseline={self.baseline!r},"
        f" credit.discount={self.discount}: a strict minimum isn't a sum of"
        " rewards; take 'min_soft', or baseline 'leave_one_out' and discount 1"
      )


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What an update minimises; rl/losses.py has the formulas.

  kind: imitate is expert iteration: the log-likelihood of the solutions whose
    return is above keep_above, distinct ones, at most keep_each of a problem
    (0: all). It needs no baseline.
  normalise: the mean over the tokens of a minibatch, over its solutions (each
    the mean over its own tokens, as GRPO), or the sum over rollout.max_tokens
    and solutions (constant: Dr. GRPO).
  kl: coefficient of the distance to the reference, kl_in the reward or the
    loss; kl_target: nats a token, to adapt the coefficient to
    (Ziegler et al. 2019), with kl_horizon in solutions.
  critic: none, a head on the policy's trunk (shared) or a model of its own.
  value, value_clip: weight of its loss; how far a value may go in an update.
  """

  kind: str = "ppo"
  keep_above: float = 0.5
  keep_each: int = 0
  clip_low: float = 0.2
  clip_high: float = 0.2
  normalise: str = "tokens"
  entropy: float = 0.0
  kl_in: str = "none"
  kl: float = 0.0
  kl_estimator: str = "k1"
  kl_target: float | None = None
  kl_horizon: float = 10_000.0
  critic: str = "none"
  value: float = 0.5
  value_clip: float | None = None

  def __post_init__(self):
    checks.check_choice("loss.kind", self.kind, KINDS)
    checks.check_choice("loss.normalise", self.normalise, NORMALISE)
    checks.check_choice("loss.kl_in", self.kl_in, KL_IN)
    checks.check_choice(
      "loss.kl_estimator", self.kl_estimator, policy_losses.KL_ESTIMATORS
    )
    checks.check_choice("loss.critic", self.critic, CRITICS)
    natural = ("entropy", "kl", "value", "keep_each")
    checks.check_natural(self, natural, "loss.")
    checks.check_shares(self, ("clip_low",), "loss.")
    positive = ("clip_low", "clip_high", "kl_horizon")
    checks.check_positive(self, positive, "loss.")
    if (self.kl_in != "none") != (self.kl > 0):
      raise errors.InputError(
        f"loss.kl_in={self.kl_in!r} with loss.kl={self.kl}: give both, or"
        " 'none' and 0"
      )
    if self.kl_in == "loss" and self.kl_estimator == "k1":
      raise errors.InputError(
        "loss.kl_estimator='k1' with loss.kl_in='loss': its gradient is 0 in"
        " expectation; take k2 or k3, or kl_in='reward'"
      )
    for name in ("kl_target", "value_clip"):
      if getattr(self, name) is not None:
        checks.check_positive(self, (name,), "loss.")
    if self.kl_target is not None and self.kl_in == "none":
      raise errors.InputError(
        f"loss.kl_target={self.kl_target}: there is no KL; set loss.kl_in"
      )


@dataclasses.dataclass(frozen=True)
class ProblemsConfig:
  """The problems, and who says which answer is right.

  train, evaluation: see run.read_problems. num_evaluation: how many of the
  latter are answered at each evaluation, greedily. grader: dial for the
  testbed's problems, else one of grading.pool.GRADERS.
  """

  train: str
  evaluation: str
  num_evaluation: int = 200
  grader: str = "rules"

  def __post_init__(self):
    checks.check_counts(self, ("num_evaluation",), "problems.")


@dataclasses.dataclass(frozen=True)
class RLConfig:
  """A whole run of reinforcement learning.

  init_from: the checkpoint folder of the policy. reference: of the model that
    the KL is measured by, the policy itself by default. prm, orm: those of
    reward models, each with its own tokenizer. held_out_prm: one that rewards
    nothing, for the monitor. critic: a PRM or policy whose trunk a separate
    critic starts from, the policy's by default.
  model: fields of the policy's ModelConfig to change (compute_dtype, remat).
  epochs, minibatches: passes over a rollout, and updates in each.
  rows, packing.sequence_length: of a microbatch; share_prompts: solutions of a problem
    share its tokens in a row.
  """

  seed: int
  init_from: str
  problems: ProblemsConfig
  rollout: RolloutConfig
  rewards: RewardConfig
  credit: CreditConfig
  loss: LossConfig
  rows: int
  sequence_length: int
  optimizer: optimizer_lib.OptimizerConfig
  critic_optimizer: optimizer_lib.OptimizerConfig
  implicit_optimizer: optimizer_lib.OptimizerConfig
  fit: loop.FitConfig
  monitor: hacking_monitor.MonitorConfig
  program: str = "rl"
  model: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
  reference: str = ""
  prm: str = ""
  orm: str = ""
  held_out_prm: str = ""
  critic: str = ""
  implicit_beta: float = 0.05
  epochs: int = 1
  minibatches: int = 1
  share_prompts: bool = True
  trainable: str = "all"
  mesh: tuple[int, ...] = (-1, 1, 1)

  def __post_init__(self):
    if self.seed < 0:
      raise errors.InputError(f"seed={self.seed}: give 0, 1, 2, ...")
    checks.check_counts(
      self, ("rows", "sequence_length", "epochs", "minibatches")
    )
    checks.check_positive(self, ("implicit_beta",))
    n = self.rollout.num_solutions
    if n % self.minibatches:
      raise errors.InputError(
        f"minibatches={self.minibatches}: {n} solutions (rollout.problems x"
        " rollout.samples) can't be split evenly"
      )
    if (self.loss.kind == "imitate") != (self.credit.baseline == "keep"):
      raise errors.InputError(
        f"loss.kind={self.loss.kind!r} with credit.baseline="
        f"{self.credit.baseline!r}: 'imitate' and 'keep' go together"
      )
    if self.loss.kind == "reinforce" and self.updates_per_rollout > 1:
      raise errors.InputError(
        f"loss.kind='reinforce' with epochs={self.epochs}, minibatches="
        f"{self.minibatches}: it has no ratio for samples of an older policy;"
        " take 'ppo', or 1 and 1"
      )
    if self.shares_prompts:
      kind = self.model.get("attention", "auto")
      model_config.check_trees(kind, "share_prompts=True")
    self._check_rollback()
    self._check_roles()

  def _check_rollback(self) -> None:
    """Refuses a monitor that would find no save to go back to."""
    reach = self.fit.checkpoint_every * self.fit.keep_last
    needed = 3 * self.monitor.window
    if self.monitor.action == "rollback" and reach < needed:
      raise errors.InputError(
        f"monitor.action='rollback': fit.checkpoint_every="
        f"{self.fit.checkpoint_every} and fit.keep_last={self.fit.keep_last}"
        f" keep the last {reach} updates, and what an alarm of windows of"
        f" {self.monitor.window} goes back to is farther; keep {needed} or more"
      )

  def _check_roles(self) -> None:
    rewards, loss, baseline = self.rewards, self.loss, self.credit.baseline
    for name in ("prm", "orm"):
      if getattr(rewards, name) and not getattr(self, name):
        raise errors.InputError(
          f"rewards.{name}={getattr(rewards, name)}: which one? set {name} to"
          " its checkpoint folder"
        )
    if (baseline == "gae") != (loss.critic != "none"):
      raise errors.InputError(
        f"credit.baseline={baseline!r} with loss.critic={loss.critic!r}: gae"
        " takes a critic, shared or separate, and nothing else does"
      )
    if self.critic and loss.critic != "separate":
      raise errors.InputError(
        f"critic={self.critic!r}: only loss.critic='separate' starts from it"
      )
    if (baseline == "prime") != (rewards.implicit > 0):
      raise errors.InputError(
        f"credit.baseline={baseline!r} with rewards.implicit="
        f"{rewards.implicit}: token rewards of an implicit PRM go with prime,"
        " and nothing else does"
      )
    if self.reference == "none" and (loss.kl_in != "none" or rewards.implicit):
      raise errors.InputError(
        "reference='none': the KL and an implicit PRM are measured by one; set"
        " loss.kl_in='none' and rewards.implicit=0, or reference=''"
      )
    if rewards.implicit and self.rollout.temperature != 1:
      raise errors.InputError(
        f"rollout.temperature={self.rollout.temperature}: an implicit PRM's"
        " log-ratios are those at 1; set it to 1"
      )
    if baseline == "prime" and rewards.of_steps:
      raise errors.InputError(
        "credit.baseline='prime': takes the implicit PRM's rewards and the"
        " outcome; set rewards.prm and rewards.exact to 0"
      )
    if baseline in STEP_BASELINES and not rewards.of_steps:
      raise errors.InputError(
        f"credit.baseline={baseline!r}: there is no step reward; take"
        " leave_one_out or group, or set rewards.prm"
      )
    compares = baseline.startswith(("leave_one_out", "group", "prime"))
    if compares and self.rollout.samples < 2:
      raise errors.InputError(
        f"credit.baseline={baseline!r} with rollout.samples=1: it compares"
        " solutions of a problem; take 2 or more"
      )

  @property
  def updates_per_rollout(self) -> int:
    return self.epochs * self.minibatches

  @property
  def shares_prompts(self) -> bool:
    """An implicit PRM sums over whole solutions, each in tokens of its own."""
    return self.share_prompts and not self.rewards.implicit


def from_config(c: ml_collections.ConfigDict) -> RLConfig:
  """Returns the run that a config's fields describe."""
  kinds = dict(
    problems=ProblemsConfig,
    rollout=RolloutConfig,
    rewards=RewardConfig,
    credit=CreditConfig,
    loss=LossConfig,
    optimizer=optimizer_lib.OptimizerConfig,
    critic_optimizer=optimizer_lib.OptimizerConfig,
    implicit_optimizer=optimizer_lib.OptimizerConfig,
    fit=loop.FitConfig,
    monitor=hacking_monitor.MonitorConfig,
  )

  def plain(fields):
    return {
      k: tuple(v) if isinstance(v, list) else v
      for k, v in fields.to_dict().items()
    }

  groups = {name: kind(**plain(c[name])) for name, kind in kinds.items()}
  rest = {
    f.name: c[f.name]
    for f in dataclasses.fields(RLConfig)
    if f.name not in {*kinds, "model", "mesh"}
  }
  return RLConfig(**groups, **rest, model=plain(c.model), mesh=tuple(c.mesh))
