"""The optimizer chain against AdamW written out in numpy."""

import dataclasses
import math

import jax
from jax import numpy as jnp
import numpy as np
import optax
import pytest

from prm_jax import errors
from prm_jax.training import optimizer as optimizer_lib

CONFIG = optimizer_lib.OptimizerConfig(
  peak_lr=0.1,
  warmup_steps=4,
  final_fraction=0.1,
  weight_decay=0.5,
  beta1=0.8,
  beta2=0.9,
  epsilon=1e-3,
  clip_norm=1.0,
)
STEPS = 20


def _rate(step):
  if step < 4:
    return 0.1 * step / 4
  share = (step - 4) / (STEPS - 4)
  return 0.01 + 0.09 * (1 + math.cos(math.pi * share)) / 2


def test_the_rate_warms_up_linearly_and_falls_as_a_cosine():
  schedule = optimizer_lib.schedule(CONFIG, STEPS)
  found = [float(schedule(step)) for step in range(STEPS + 1)]
  np.testing.assert_allclose(
    found, [_rate(step) for step in range(STEPS + 1)], atol=1e-7
  )


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("decay", ["linear", "constant"])
def test_the_rate_falls_linearly_or_stays_after_its_warm_up(decay, warmup):
  config = dataclasses.replace(CONFIG, decay=decay, warmup_steps=warmup)
  schedule = optimizer_lib.schedule(config, STEPS)

  def rate(step):
    if step < warmup:
      return 0.1 * step / warmup
    fallen = (step - warmup) / (STEPS - warmup) if decay == "linear" else 0
    return 0.1 - 0.09 * fallen

  np.testing.assert_allclose(
    [float(schedule(step)) for step in range(STEPS + 1)],
    [rate(step) for step in range(STEPS + 1)],
    atol=1e-7,
  )


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_run_of_few_steps_has_a_schedule_and_learns(steps):
  config = optimizer_lib.OptimizerConfig(peak_lr=0.1, warmup_steps=100)
  schedule = optimizer_lib.schedule(config, steps)
  rates = [float(schedule(step)) for step in range(steps)]
  assert all(0 <= rate <= 0.1 + 1e-6 for rate in rates)
  assert max(rates) > 0.05


def _params():
  random = np.random.default_rng(0)

  def normal(*shape):
    return random.normal(size=shape).astype(np.float32)

  return {
    "embedding": {"table": normal(3, 2)},
    "layers": {
      "mlp": {"up": {"kernel": normal(2, 2, 2), "bias": normal(2, 2)}},
      "attention": {
        "key": {"lora_a": normal(2, 2, 1), "lora_b": normal(2, 1, 2)}
      },
      "mlp_norm": {"scale": normal(2, 2)},
    },
    "lm_head": {"kernel": normal(2, 3)},
    "step_head": {"kernel": normal(2, 1), "bias": normal(1)},
    "value_head": {"kernel": normal(2, 1)},
  }


DECAYED = {
  "['embedding']['table']",
  "['layers']['mlp']['up']['kernel']",
  "['lm_head']['kernel']",
  "['layers']['attention']['key']['lora_a']",
  "['layers']['attention']['key']['lora_b']",
}


def test_weight_decay_is_for_matrices_not_norms_biases_or_score_heads():
  flat = jax.tree_util.tree_flatten_with_path(
    optimizer_lib.decay_mask(_params())
  )[0]
  assert {jax.tree_util.keystr(k) for k, decays in flat if decays} == DECAYED


def test_updates_are_adamw_with_clipping_by_the_global_norm():
  optimizer = optimizer_lib.make(CONFIG, STEPS)
  params = jax.tree.map(jnp.asarray, _params())
  state = jax.jit(optimizer.init)(params)

  @jax.jit
  def update(grads, state, params):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  random = np.random.default_rng(1)
  expected, paths = {}, {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    name = jax.tree_util.keystr(path)
    expected[name] = [np.asarray(leaf, np.float64), 0.0, 0.0]
    paths[name] = leaf.shape
  for step in range(6):
    # Steps 0 to 2 clip, the others don't.
    size = 3.0 if step < 3 else 0.01
    grads = {
      name: size * random.normal(size=shape) for name, shape in paths.items()
    }
    tree = jax.tree.unflatten(
      jax.tree.structure(params),
      [jnp.asarray(x, jnp.float32) for x in grads.values()],
    )
    params, state = update(tree, state, params)
    norm = math.sqrt(sum((g**2).sum() for g in grads.values()))
    assert (norm > 1) == (step < 3)
    for name, g in grads.items():
      g = g / max(norm, 1)
      x, m, v = expected[name]
      m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
      direction = (m / (1 - 0.8 ** (step + 1))) / (
        np.sqrt(v / (1 - 0.9 ** (step + 1))) + 1e-3
      )
      decay = 0.5 * x if name in DECAYED else 0
      expected[name] = [x - _rate(step) * (direction + decay), m, v]
    found = jax.tree_util.tree_flatten_with_path(params)[0]
    for path, leaf in found:
      np.testing.assert_allclose(
        leaf, expected[jax.tree_util.keystr(path)][0], atol=1e-5
      )


def test_a_momentum_of_half_the_bytes_takes_nearly_the_same_way():
  """What is kept is rounded; the second moment and parameters aren't."""
  params = dict(kernel=jnp.linspace(-1, 1, 64).reshape(8, 8))
  found = []
  for dtype in optimizer_lib.MOMENTUM_DTYPES:
    config = dataclasses.replace(CONFIG, momentum_dtype=dtype)
    optimizer = optimizer_lib.make(config, STEPS)
    new, state = params, optimizer.init(params)
    update = jax.jit(optimizer.update)
    for _ in range(STEPS):
      updates, state = update(jax.tree.map(jnp.sin, new), state, new)
      new = optax.apply_updates(new, updates)
    (adam,) = optax.tree.get_all_with_path(state, "mu")
    assert adam[1]["kernel"].dtype == dtype
    (second,) = optax.tree.get_all_with_path(state, "nu")
    assert second[1]["kernel"].dtype == new["kernel"].dtype == jnp.float32
    found.append(new["kernel"])
  np.testing.assert_allclose(*found, atol=5e-3)
  assert not np.array_equal(*found)


def test_no_gradient_at_all_leaves_everything_finite():
  optimizer = optimizer_lib.make(CONFIG, STEPS)
  params = jax.tree.map(jnp.asarray, _params())
  state = jax.jit(optimizer.init)(params)
  zeros = jax.tree.map(np.zeros_like, _params())
  update_fn = jax.jit(optimizer.update)
  for _ in range(2):
    updates, state = update_fn(zeros, state, params)
  updates = jax.tree.map(np.asarray, updates)
  for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
    assert np.isfinite(update).all()
    assert update.any() == (jax.tree_util.keystr(path) in DECAYED)


@pytest.mark.parametrize(
  "changes",
  [
    dict(peak_lr=float("nan")),
    dict(peak_lr=-1e-3),
    dict(warmup_steps=-1),
    dict(final_fraction=1.5),
    dict(weight_decay=-0.1),
    dict(beta1=1.0),
    dict(beta2=float("nan")),
    dict(epsilon=-1e-8),
    dict(clip_norm=0.0),
    dict(momentum_dtype="float16"),
  ],
  ids=str,
)
def test_numbers_that_make_no_sense_are_refused_in_one_line(changes):
  ((name, value),) = changes.items()
  with pytest.raises(errors.InputError) as e:
    dataclasses.replace(CONFIG, **changes)
  assert str(e.value).startswith(f"optimizer.{name}={value!r}: expected")
