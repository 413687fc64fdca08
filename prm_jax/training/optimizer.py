"""The optimizer of every program, as a chain of optax transformations."""

from __future__ import annotations

import dataclasses

import jax
import optax

from prm_jax.runtime import checks

MOMENTUM_DTYPES = ("float32", "bfloat16")
DECAYS = ("cosine", "linear", "constant")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with linear warm-up, decay and clipping by global norm.

  Args:
    peak_lr: The learning rate after the warm-up.
    warmup_steps: The updates of the warm-up; at most a fifth of the run.
    final_fraction: The learning rate at the end of the decay, as a fraction of
      peak_lr.
    weight_decay: The decay of matrices, adapters included; norms, biases and
      score heads don't decay.
    beta1: The decay of AdamW's first moment.
    beta2: The decay of AdamW's second moment.
    epsilon: AdamW's epsilon.
    clip_norm: The largest global norm of the gradient.
    momentum_dtype: The type in which AdamW's first moment is kept. The second
      moment and the parameters are float32.
    decay: How the learning rate falls after the warm-up: as a cosine, linearly,
      or not at all (constant, which ignores final_fraction).
  """

  peak_lr: float
  warmup_steps: int = 100
  final_fraction: float = 0.1
  weight_decay: float = 0.1
  beta1: float = 0.9
  beta2: float = 0.98
  epsilon: float = 1e-8
  clip_norm: float = 1.0
  momentum_dtype: str = "float32"
  decay: str = "cosine"

  def __post_init__(self):
    group = "optimizer."
    at_least_0 = ("peak_lr", "warmup_steps", "weight_decay", "epsilon")
    checks.check_natural(self, at_least_0, group)
    checks.check_shares(self, ("final_fraction",), group)
    betas = ("beta1", "beta2")
    checks.check(self, betas, lambda x: 0 <= x < 1, "[0, 1), 1 excluded", group)
    checks.check_positive(self, ("clip_norm",), group)
    checks.check_choice(
      "optimizer.momentum_dtype", self.momentum_dtype, MOMENTUM_DTYPES
    )
    checks.check_choice("optimizer.decay", self.decay, DECAYS)


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
  """Returns the learning rate as a function of the step."""
  peak, warmup = config.peak_lr, min(config.warmup_steps, steps // 5)
  end = peak * config.final_fraction
  if config.decay == "cosine":
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, end)
  if config.decay == "constant":
    end = peak
  after = optax.linear_schedule(peak, end, steps - warmup)
  if not warmup:
    return after
  return optax.join_schedules(
    [optax.linear_schedule(0.0, peak, warmup), after], [warmup]
  )


def decay_mask(params):
  """Returns True for the matrices that weight decay applies to.

  Adapters decay, as they do in the Trainer of transformers with peft, which
  excepts only norms and biases.
  """

  def decays(path, _):
    # A boxed parameter adds an attribute to the path.
    names = [x.key for x in path if isinstance(x, jax.tree_util.DictKey)]
    head = any(name.endswith("_head") for name in names if name != "lm_head")
    matrix = names[-1] in ("kernel", "table", "lora_a", "lora_b")
    return matrix and not head

  return jax.tree_util.tree_map_with_path(decays, params)


def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
  """Returns the optimizer of a run of `steps` updates."""
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule(config, steps),
      b1=config.beta1,
      b2=config.beta2,
      eps=config.epsilon,
      mu_dtype=config.momentum_dtype,
      weight_decay=config.weight_decay,
      mask=decay_mask,
    ),
  )
