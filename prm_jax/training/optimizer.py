"""The optax chain of every program."""

from __future__ import annotations

import dataclasses

import jax
import optax

from prm_jax.runtime import checks

MOMENTUM_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with linear warm-up, cosine decay and clipping by global norm.

  The rate falls from peak_lr to peak_lr * final_fraction at the last step.
  The warm-up takes a fifth of the run at most.
  weight_decay applies to matrices, adapters included: not to norms, biases or
  score heads. Frozen parameters never reach the optimizer.
  momentum_dtype: of AdamW's first moment as it is kept; the second one and the
  parameters are float32.
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


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
  """Returns the learning rate as a function of the step."""
  return optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=config.peak_lr,
    warmup_steps=min(config.warmup_steps, steps // 5),
    decay_steps=steps,
    end_value=config.peak_lr * config.final_fraction,
  )


def decay_mask(params):
  """Returns True for the matrices that weight decay applies to.

  Adapters decay, as with the Trainer of transformers on a model of peft: it
  excepts norms and biases.
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
