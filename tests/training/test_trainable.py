"""Partial training: what is frozen stays, and costs nothing."""

import dataclasses
import functools

from flax.core import meta
import jax
from jax import numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from prm_jax import errors
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import prm
from prm_jax.training import programs
from prm_jax.training import sft
from prm_jax.training import trainable as trainable_lib

MODEL = model_config.ModelConfig(
  vocab_size=41,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
  tie_embedding=False,
)
ADAPTED = dataclasses.replace(
  MODEL, lora_rank=2, lora_alpha=4.0, lora_targets=("query", "down")
)
PROGRAMS = {k: programs.TRAINED[k] for k in ("sft", "prm", "orm")}
ADAPTERS = {
  f"layers/{where}/lora_{x}"
  for where in ("attention/query", "mlp/down")
  for x in "ab"
}
SCORE = dict(
  prm={"step_head/kernel", "step_head/bias"},
  orm={"outcome_head/kernel", "outcome_head/bias"},
  sft=set(),
)
# (program, trainable) -> the trained parameters.
TRAINED = {
  ("prm", "head"): SCORE["prm"],
  ("orm", "head"): SCORE["orm"],
  ("sft", "head"): {"lm_head/kernel"},
  **{(name, "lora"): ADAPTERS | SCORE[name] for name in PROGRAMS},
}
CASES = pytest.mark.parametrize(("name", "trainable"), TRAINED)
VARIANTS = {
  "plain": (1, {}),
  "microbatches_and_remat": (2, dict(remat="full")),
  "loop": (1, dict(scan=False)),
}
ROWS, ROW = 8, 16


def _make(name, trainable, optimizer=None, microbatches=1, **changes):
  model = MODEL if trainable != "lora" else ADAPTED
  return programs.make(
    PROGRAMS[name].objective(),
    dataclasses.replace(model, **changes),
    optimizer or optax.sgd(0.5),
    microbatches=microbatches,
    trainable=trainable,
  )


def _adamw():
  config = optimizer_lib.OptimizerConfig(1e-2, warmup_steps=1, weight_decay=0.1)
  return optimizer_lib.make(config, 10)


def _state(made):
  """Returns a state with random parameters, none of them 0."""
  random = np.random.default_rng(0)

  def fill(path, x):
    if "params" in jax.tree_util.keystr(path[:1]):
      return jnp.asarray(0.3 * random.normal(size=x.shape), x.dtype)
    return jnp.asarray(np.zeros(x.shape, x.dtype))

  shapes = jax.eval_shape(lambda: meta.unbox(made.init(jax.random.key(0))))
  return jax.tree_util.tree_map_with_path(fill, shapes)


@functools.cache
def _batch():
  random = np.random.default_rng(0)
  rows = []
  for n in random.integers(4, ROW, ROWS):
    weights = (random.random(n) < 0.5) * random.integers(1, 4, n)
    weights[-1] = 1
    example = encoding.Example(
      tokens=random.integers(0, 41, n).astype(np.int32),
      labels=((random.random(n) < 0.6) & (weights > 0)).astype(np.float32),
      weights=weights.astype(np.float32),
      step_end=weights > 0,
    )
    rows.append([packing.chain(example)])
  return jax.tree.map(jnp.asarray, packing.fill(rows, ROW))


def _flat(tree):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def _values(tree):
  return _flat(jax.tree.map(np.asarray, tree))


# --- What moves and what doesn't --------------------------------------------


# Each program and each part of it; the next test has all of them together.
@pytest.mark.parametrize(
  ("name", "trainable"), [("prm", "head"), ("sft", "head"), ("orm", "lora")]
)
def test_frozen_parameters_keep_every_bit_and_the_others_move(name, trainable):
  made = _make(name, trainable, _adamw())
  first = _state(made)
  state, step = first, jax.jit(made.step)
  for _ in range(3):
    state, _ = step(state, _batch())
  before, after = _values(first.params), _values(state.params)
  moved = {k for k, x in after.items() if (x != before[k]).any()}
  assert moved == TRAINED[name, trainable]


@CASES
def test_the_optimizer_holds_the_moments_of_what_is_trained(name, trainable):
  made = _make(name, trainable, _adamw())
  state = jax.eval_shape(lambda: meta.unbox(made.init(jax.random.key(0))))
  params = _flat(state.params)
  (adam,) = [
    x
    for x in jax.tree.leaves(
      state.opt_state,
      is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState),
    )
    if isinstance(x, optax.ScaleByAdamState)
  ]
  expected = {k: params[k].shape for k in TRAINED[name, trainable]}
  for moments in (adam.mu, adam.nu):
    assert {k: x.shape for k, x in _flat(moments).items()} == expected
  # Besides them there are counters only.
  others = len(jax.tree.leaves(state.opt_state)) - 2 * len(expected)
  counters = [x for x in jax.tree.leaves(state.opt_state) if x.shape == ()]
  assert others == len(counters) <= 2


@pytest.mark.parametrize(
  ("name", "trainable", "variant"),
  [("sft", "head", "plain"), *(("prm", "lora", v) for v in VARIANTS)],
)
def test_an_update_is_the_trained_part_of_the_whole_gradient(
  name, trainable, variant
):
  """Plain descent against the gradient in all parameters, frozen included."""
  microbatches, changes = VARIANTS[variant]
  made = _make(name, trainable, microbatches=microbatches, **changes)
  state = _state(made)
  found, metrics = jax.jit(made.step)(state, _batch())

  def mean_loss(params):
    sums = made.evaluate(params, _batch())
    return sums["total"] / sums["weight"]

  grads = _values(jax.jit(jax.grad(mean_loss))(state.params))
  trained = {k: grads[k] for k in TRAINED[name, trainable]}
  before, after = _values(state.params), _values(found.params)
  for path, grad in trained.items():
    assert np.abs(grad).max() > 1e-3
    np.testing.assert_allclose(
      after[path], before[path] - 0.5 * grad, atol=1e-5, err_msg=path
    )
  norm = np.sqrt(sum(float((g**2).sum()) for g in trained.values()))
  np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-4)


def test_clipping_looks_at_what_is_trained_alone():
  """A frozen matrix with a large gradient doesn't shorten the step."""
  limit = 100.0
  chain = optax.chain(optax.clip_by_global_norm(limit), optax.sgd(0.5))
  made, plain = _make("prm", "head", chain), _make("prm", "head")
  state = _state(made)
  # So that the gradient in the trunk is large and that in the head isn't.
  params = state.params
  head = jax.tree.map(lambda x: 1e4 * np.asarray(x), params["step_head"])
  state = state.replace(params=dict(params, step_head=head))
  sums = jax.jit(jax.grad(lambda p: made.evaluate(p, _batch())["total"]))
  grads = _values(sums(state.params)).values()
  assert sum((g**2).sum() for g in grads) > (100 * limit) ** 2
  found, metrics = jax.jit(made.step)(state, _batch())
  assert 0 < metrics["grad_norm"] < limit
  expected, _ = jax.jit(plain.step)(
    _state(plain).replace(params=state.params), _batch()
  )
  jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


# --- What it costs ----------------------------------------------------------


def _products(jaxpr):
  """Yields the output shape of every matrix product, inner jaxprs' too."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      yield equation.outvars[0].aval.shape
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
    ):
      if isinstance(value, core.ClosedJaxpr):
        yield from _products(value.jaxpr)
      elif isinstance(value, core.Jaxpr):
        yield from _products(value)


def _products_of(trainable, function="step"):
  made = _make("prm", trainable)
  state = _state(made)
  argument = state if function == "step" else state.params
  jaxpr = jax.make_jaxpr(getattr(made, function))(argument, _batch())
  return list(_products(jaxpr.jaxpr))


def test_a_head_alone_costs_a_forward_pass_and_one_product():
  forward = _products_of("head", "evaluate")
  assert len(forward) > 9
  assert len(_products_of("head")) == len(forward) + 1
  assert len(_products_of("all")) > 2 * len(forward)


@pytest.mark.parametrize("trainable", ["all", "lora"])
def test_adapters_need_no_gradient_of_the_kernels(trainable):
  kernels = {(16, 32), (16, 16), (32, 16), (16, 24), (24, 16)}
  found = {
    shape
    for shape in _products_of(trainable)
    if shape in kernels or shape[::-1] in kernels
  }
  assert bool(found) == (trainable == "all")


# --- On a mesh --------------------------------------------------------------


def _on(mesh, made):
  """Returns the state after two updates, and where its parameters lie."""
  abstract = jax.eval_shape(made.init, jax.random.key(0))
  shardings = sharding.of_state(abstract, mesh)
  step = sharding.jit(
    made.step,
    mesh,
    in_shardings=(shardings, sharding.of_batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
    donate_argnums=(0,),
  )
  # On the host first: what isn't copied would be donated.
  state = jax.device_put(jax.tree.map(np.array, _state(made)), shardings)
  for _ in range(2):
    rows = jax.tree.map(np.asarray, _batch())
    state, _ = step(state, sharding.put_batch(rows, mesh))
  return state, shardings


def test_four_devices_train_adapters_as_one_does():
  made = _make("prm", "lora", _adamw())
  alone, _ = _on(sharding.make_mesh((1, 1, 1), jax.devices()[:1]), made)
  mesh = sharding.make_mesh((1, 2, 2), jax.devices()[:4])
  found, shardings = _on(mesh, made)
  expected = _values(alone.params)
  before = _values(_state(made).params)
  for path, leaf in _values(found.params).items():
    np.testing.assert_allclose(leaf, expected[path], atol=1e-5, err_msg=path)
    assert (leaf != before[path]).any() == (path in TRAINED["prm", "lora"])
  # The kernel's own axes, the rank on every device.
  specs = {k: s.spec for k, s in _flat(shardings.params).items()}
  for where, a, b in (
    ("attention/query", "fsdp", "tensor"),
    ("mlp/down", "tensor", "fsdp"),
  ):
    assert specs[f"layers/{where}/kernel"] == P(None, a, b)
    assert specs[f"layers/{where}/lora_a"] == P(None, a, None)
    assert specs[f"layers/{where}/lora_b"] == P(None, None, b)


# --- What is refused --------------------------------------------------------


def test_split_and_join_are_inverses():
  params = _state(_make("prm", "lora")).params
  trains = trainable_lib.chosen("lora", ADAPTED, ("step",))
  trained, frozen = trainable_lib.split(params, trains)
  assert set(_flat(trained)) == TRAINED["prm", "lora"]
  assert not set(_flat(trained)) & set(_flat(frozen))
  jax.tree.map(
    np.testing.assert_array_equal, trainable_lib.join(trained, frozen), params
  )


@pytest.mark.parametrize(
  ("trainable", "changes", "said"),
  [
    ("heads", {}, "all, head, lora"),
    ("lora", {}, "model.lora_rank=0"),
    ("all", dict(lora_rank=2), "model.lora_rank=2"),
    ("head", dict(tie_embedding=True), "model.tie_embedding=False"),
  ],
)
def test_what_cant_be_trained_is_refused_in_one_line(trainable, changes, said):
  model = dataclasses.replace(MODEL, **changes)
  with pytest.raises(errors.InputError) as e:
    programs.make(sft.SFTConfig(), model, optax.sgd(1), trainable=trainable)
  message = str(e.value)
  assert message.startswith(f"trainable={trainable!r}: ")
  assert said in message and "\n" not in message


def test_a_score_that_is_the_lms_has_no_head_to_train():
  model = dataclasses.replace(MODEL, step_head="tokens", step_tokens=(3, 5))
  with pytest.raises(errors.InputError, match=r"'tokens' is the LM's"):
    programs.make(prm.PRMConfig(), model, optax.sgd(1), trainable="head")


def test_a_score_head_can_be_trained_on_a_tied_model():
  tied = dataclasses.replace(MODEL, tie_embedding=True)
  programs.make(prm.PRMConfig(), tied, optax.sgd(1), trainable="head")
