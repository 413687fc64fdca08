"""The three programs: what an update must not depend on, and their metrics."""

import dataclasses
import functools

from flax.core import meta
import jax
from jax import numpy as jnp
from jax.extend import core
import numpy as np
import optax
import pytest

from prm_jax import errors as errors_lib
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.training import implicit_prm
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import programs

MODEL = model_config.ModelConfig(
  vocab_size=41,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
PROGRAMS = {k: programs.TRAINED[k] for k in ("sft", "prm", "orm")}
ROWS, ROW = 8, 32


def _examples(num=16, seed=0):
  """Returns examples with a label at about half of their tokens."""
  random = np.random.default_rng(seed)
  examples = []
  for n in random.integers(4, 16, num):
    weights = (random.random(n) < 0.5) * random.integers(1, 4, n)
    weights[-1] = 1
    examples.append(
      encoding.Example(
        tokens=random.integers(0, 41, n).astype(np.int32),
        labels=((random.random(n) < 0.6) & (weights > 0)).astype(np.float32),
        weights=weights.astype(np.float32),
        step_end=weights > 0,
      )
    )
  return examples


def _fill(rows):
  rows = [*rows, *([[]] * (ROWS - len(rows)))]
  return jax.tree.map(jnp.asarray, packing.fill(rows, ROW))


def _two_by_two(examples):
  chains = [packing.chain(x) for x in examples]
  return _fill([chains[i : i + 2] for i in range(0, len(chains), 2)])


@functools.cache
def _make(name, microbatches=1, model=MODEL, sources=(), **options):
  # Plain descent: the update is the gradient, not just its sign.
  return programs.make(
    PROGRAMS[name].objective(**options),
    model,
    optax.sgd(0.5),
    microbatches=microbatches,
    sources=sources,
  )


@functools.cache
def _step(name, **options):
  return jax.jit(_make(name, **options).step)


@functools.cache
def _evaluate(name, **options):
  return jax.jit(_make(name, **options).evaluate)


@functools.cache
def _state(name):
  """Returns a state with random parameters, none of them 0."""
  random = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda: meta.unbox(_make(name).init(jax.random.key(0)))
  )
  return jax.tree.map(
    lambda x: jnp.asarray(0.3 * random.normal(size=x.shape), x.dtype), shapes
  ).replace(step=jnp.zeros((), jnp.int32))


def _assert_same_update(name, found, expected, tolerance=1e-6):
  """Compares (state, metrics) of two updates of _state(name)."""
  moved = 0.0
  for a, b, old in zip(
    *(
      jax.tree.leaves(state.params)
      for state in (found[0], expected[0], _state(name))
    ),
    strict=True,
  ):
    a, b, old = map(np.asarray, (a, b, old))
    np.testing.assert_allclose(a, b, atol=tolerance)
    moved = max(moved, float(np.abs(b - old).max()))
  assert moved > 1e-2, "nothing was learned: the test would show nothing"
  assert found[1].keys() == expected[1].keys()
  for key, value in expected[1].items():
    np.testing.assert_allclose(found[1][key], value, rtol=1e-5, err_msg=key)


# --- No array over the vocabulary -------------------------------------------


def _shapes(jaxpr):
  """Yields the shape of every array in a jaxpr and all that it calls."""
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  for variable in [*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars]:
    yield variable.aval.shape
  for equation in jaxpr.eqns:
    for variable in [*equation.invars, *equation.outvars]:
      yield variable.aval.shape
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
    ):
      if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
        yield from _shapes(value)


@pytest.mark.parametrize(("remat", "microbatches"), [("none", 1), ("full", 2)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_language_model_builds_an_array_over_the_vocabulary(
  name, remat, microbatches
):
  model = dataclasses.replace(MODEL, vocab_size=997, remat=remat)
  made = programs.make(
    PROGRAMS[name].objective(),
    model,
    optax.adamw(1e-3),
    microbatches=microbatches,
  )
  state = jax.eval_shape(lambda: meta.unbox(made.init(jax.random.key(0))))
  batch = _two_by_two(_examples())
  step, evaluate = (
    set(_shapes(jax.make_jaxpr(function)(argument, batch)))
    for function, argument in (
      (made.step, state),
      (made.evaluate, state.params),
    )
  )
  rows = ROWS // microbatches
  if name == "sft":
    assert (rows, ROW, 997) in step and (ROWS, ROW, 997) in evaluate
  else:
    # The embedding table, its gradient and its moments are all there is.
    assert {x for x in step | evaluate if 997 in x} == {(997, 16)}
  # The walker does see what is inside the scan over layers.
  assert (rows, ROW, MODEL.d_ff) in step


# --- What an update must not depend on --------------------------------------


@pytest.mark.parametrize(("name", "microbatches"), [("sft", 2), ("prm", 4)])
def test_an_update_is_the_same_in_microbatches(name, microbatches):
  # The last rows are blank, so that the microbatches weigh differently.
  batch = _two_by_two(_examples(11))
  _assert_same_update(
    name,
    _step(name, microbatches=microbatches)(_state(name), batch),
    _step(name)(_state(name), batch),
  )


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_update_is_the_same_in_any_order_and_packing(name):
  examples = _examples(8)
  step, state = _step(name), _state(name)
  expected = step(state, _two_by_two(examples))
  alone = _fill([[packing.chain(x)] for x in examples])
  _assert_same_update(name, step(state, alone), expected)
  turned = _two_by_two(examples)
  order = jnp.asarray([5, 2, 7, 0, 4, 6, 1, 3])
  turned = jax.tree.map(lambda x: x[order], turned)
  _assert_same_update(name, step(state, turned), expected)
  _assert_same_update(name, step(state, _two_by_two(examples[::-1])), expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_batch_without_labels_gives_no_loss_and_no_update(name):
  state, batch = _state(name), _two_by_two(_examples())
  batch = batch.replace(weights=jnp.zeros((ROWS, ROW)))
  after, metrics = _step(name)(state, batch)
  assert np.isnan(float(metrics["loss_nats"]))
  assert float(metrics["grad_norm"]) == 0
  assert int(metrics["skipped_empty"]) == 1
  jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
  sums = _evaluate(name)(state.params, batch)
  finished = _make(name).finish({k: float(v) for k, v in sums.items()})
  assert np.isnan(list(finished.values())).all()


def test_labels_where_nothing_counts_may_be_nan():
  batch = _two_by_two(_examples())
  poisoned = batch.replace(
    labels=jnp.where(batch.weights > 0, batch.labels, jnp.nan)
  )
  for name in ("prm", "orm"):
    _assert_same_update(
      name,
      _step(name)(_state(name), poisoned),
      _step(name)(_state(name), batch),
    )


def test_error_weight_learns_as_if_errors_came_that_often():
  batch = _two_by_two(_examples())
  repeated = jnp.where(batch.labels < 0.5, 3, 1) * batch.weights
  found, _ = _step("prm", error_weight=3.0)(_state("prm"), batch)
  expected, _ = _step("prm")(_state("prm"), batch.replace(weights=repeated))
  for a, b in zip(
    jax.tree.leaves(found.params),
    jax.tree.leaves(expected.params),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_nothing_predicts_the_first_token_of_a_solution():
  """Its weight doesn't count, whatever the weights say."""
  batch = _two_by_two(_examples())
  heavy = batch.replace(
    weights=jnp.where(batch.parent < 0, 100.0, batch.weights)
  )
  light = batch.replace(weights=jnp.where(batch.parent < 0, 0.0, batch.weights))
  _assert_same_update(
    "sft",
    _step("sft")(_state("sft"), heavy),
    _step("sft")(_state("sft"), light),
  )


def test_the_step_counts_updates():
  state, batch = _state("orm"), _two_by_two(_examples())
  for n in (1, 2, 3):
    state, _ = _step("orm")(state, batch)
    assert int(state.step) == n


# --- Metrics ----------------------------------------------------------------


def test_prm_metrics_are_those_counted_by_hand():
  batch = _two_by_two(_examples())
  params = _state("prm").params
  sums = jax.tree.map(float, _evaluate("prm")(params, batch))
  scores, _ = jax.jit(functools.partial(kinds.KINDS["prm"].scores, MODEL))(
    params, batch
  )
  batch, scores = jax.tree.map(np.asarray, (batch, scores))
  right = found = kept = errors = rights = loss = 0.0
  for row, t in np.argwhere(np.asarray(batch.weights) > 0):
    weight, score = float(batch.weights[row, t]), float(scores[row, t])
    good = bool(batch.labels[row, t])
    hit = (score >= 0.5) == good
    right += weight * hit
    loss -= weight * np.log(score if good else 1 - score)
    rights, errors = rights + weight * good, errors + weight * (not good)
    kept, found = kept + weight * hit * good, found + weight * hit * (not good)
  finished = _make("prm").finish(sums)
  expected = {
    "loss_nats": loss / (rights + errors),
    "accuracy": right / (rights + errors),
    "balanced_accuracy": (kept / rights + found / errors) / 2,
    "errors_found": found / errors,
  }
  assert finished.keys() == expected.keys()
  for key, value in expected.items():
    np.testing.assert_allclose(finished[key], value, rtol=1e-5, err_msg=key)


@pytest.mark.parametrize("only", [0.0, 1.0, None])
def test_a_metric_of_a_class_that_is_missing_is_undefined(only):
  batch = _two_by_two(_examples())
  if only is not None:
    batch = batch.replace(labels=jnp.full_like(batch.labels, only))
  sums = _evaluate("prm")(_state("prm").params, batch)
  finished = _make("prm").finish(jax.tree.map(float, sums))
  undefined = {k for k, value in finished.items() if np.isnan(value)}
  expected = {
    0.0: {"balanced_accuracy"},
    1.0: {"balanced_accuracy", "errors_found"},
    None: set(),
  }[only]
  assert undefined == expected
  # The labels alone tell: the model isn't run.
  shapes = jax.eval_shape(lambda: _state("prm").params)
  label_sums = functools.partial(_make("prm").label_sums, shapes)
  sums = jax.jit(label_sums)(batch)
  by_labels = _make("prm").finish(jax.tree.map(float, sums))
  assert {k for k, value in by_labels.items() if np.isnan(value)} == expected


def test_orm_and_sft_metrics_are_those_counted_by_hand():
  batch = _two_by_two(_examples())
  weights = np.asarray(batch.weights)
  params = _state("orm").params
  apply = functools.partial(transformer.apply, MODEL)
  logits = jax.jit(functools.partial(apply, method="outcome_logits"))(
    params, batch
  )
  p, y = 1 / (1 + np.exp(-np.asarray(logits))), np.asarray(batch.labels)
  loss = -(y * np.log(p) + (1 - y) * np.log(1 - p))
  found = _make("orm").finish(
    jax.tree.map(float, _evaluate("orm")(params, batch))
  )
  np.testing.assert_allclose(
    [found["loss_nats"], found["accuracy"]],
    [
      (loss * weights).sum() / weights.sum(),
      (((p >= 0.5) == y) * weights).sum() / weights.sum(),
    ],
    rtol=1e-5,
  )
  scores, _ = jax.jit(functools.partial(kinds.KINDS["orm"].scores, MODEL))(
    params, batch
  )
  np.testing.assert_allclose(scores, p, rtol=1e-5)

  weights = np.where(np.asarray(batch.parent) >= 0, weights, 0)
  params = _state("sft").params
  logits = jax.jit(functools.partial(apply, method="lm_logits"))(params, batch)
  p = np.asarray(jax.nn.softmax(logits))
  tokens = np.asarray(batch.tokens)
  chosen = np.take_along_axis(p, tokens[..., None], axis=-1)[..., 0]
  found = _make("sft").finish(
    jax.tree.map(float, _evaluate("sft")(params, batch))
  )
  np.testing.assert_allclose(
    [found["loss_nats"], found["accuracy"]],
    [
      -(np.log(chosen) * weights).sum() / weights.sum(),
      ((p.argmax(-1) == tokens) * weights).sum() / weights.sum(),
    ],
    rtol=1e-5,
  )


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluation_sums_add_up_over_any_split(name):
  examples, evaluate = _examples(), _evaluate(name)
  whole, first, second = (
    evaluate(_state(name).params, _two_by_two(part))
    for part in (examples, examples[:6], examples[6:])
  )
  for key, value in whole.items():
    added = float(first[key]) + float(second[key])
    np.testing.assert_allclose(added, value, rtol=1e-5, err_msg=key)


# --- Losses by name ---------------------------------------------------------


def _prm(loss):
  neutral = "three_way" if loss == "three_way" else "good"
  return prm.PRMConfig(loss=loss, labels=encoding.LabelPolicy(neutral))


@pytest.mark.parametrize("loss", ["bce", "three_way"])
def test_a_prm_learns_its_labels(loss):
  model = dataclasses.replace(
    MODEL, step_classes=3 if loss == "three_way" else 1
  )
  made = programs.make(_prm(loss), model, optax.adam(1e-2))
  batch = _two_by_two(_examples())

  @jax.jit
  def run(key):
    state, metrics = jax.lax.scan(
      lambda state, _: made.step(state, batch),
      meta.unbox(made.init(key)),
      length=80,
    )
    sums = made.evaluate(state.params, batch)
    return sums, metrics["loss_nats"]

  sums, curve = jax.tree.map(np.asarray, run(jax.random.key(0)))
  assert curve[-1] < 0.2 * curve[0]
  finished = made.finish(jax.tree.map(float, sums))
  assert finished["balanced_accuracy"] > 0.95
  at_birth = {"bce": np.log(2), "three_way": np.log(3)}
  np.testing.assert_allclose(curve[0], at_birth[loss], rtol=1e-5)


def test_a_loss_that_does_not_exist_or_fit_is_refused_in_one_line():
  three = dataclasses.replace(MODEL, step_classes=3)
  for model, loss in ((MODEL, "bcd"), (MODEL, "three_way"), (three, "bce")):
    with pytest.raises(errors_lib.InputError, match=loss) as e:
      programs.make(_prm(loss), model, optax.sgd(1))
    assert "\n" not in str(e.value)


# --- Sources ----------------------------------------------------------------


def _of_two_sources():
  """Returns a batch of two sources, and each source's examples alone."""
  examples = _examples()
  batch = _two_by_two(examples)
  rows = np.arange(ROWS) % 3 == 0
  source = jnp.asarray(np.repeat(rows[:, None], ROW, 1).astype(np.int32))
  mine = [
    [x for i, x in enumerate(examples) if rows[i // 2] == bool(k)]
    for k in range(2)
  ]
  return dataclasses.replace(batch, source=source), mine


@pytest.mark.parametrize("name", ["sft", "prm"])
def test_each_sources_metrics_are_those_of_its_examples_alone(name):
  batch, mine = _of_two_sources()
  made = _make(name, sources=("a", "b"))
  params = _state(name).params
  evaluate, alone = _evaluate(name, sources=("a", "b")), _evaluate(name)
  found = made.finish(jax.tree.map(float, evaluate(params, batch)))
  plain = _make(name)
  for source, examples in zip(("a", "b"), mine):
    sums = alone(params, _two_by_two(examples))
    for key, value in plain.finish(jax.tree.map(float, sums)).items():
      np.testing.assert_allclose(found[f"{source}/{key}"], value, rtol=1e-4)
  both = alone(params, dataclasses.replace(batch, source=None))
  for key, value in plain.finish(jax.tree.map(float, both)).items():
    assert found[key] == value


@pytest.mark.parametrize("name", ["sft", "prm"])
def test_telling_sources_apart_changes_no_update(name):
  batch, _ = _of_two_sources()
  state, found = _step(name, sources=("a", "b"))(_state(name), batch)
  one = dataclasses.replace(batch, source=None)
  expected, plain = _step(name)(_state(name), one)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
    state,
    expected,
  )
  assert {k for k in found if "/" not in k} == set(plain)
  np.testing.assert_allclose(
    found["a/weight"] + found["b/weight"], plain["weight"], rtol=1e-6
  )


def test_one_source_costs_nothing():
  """The program of named sources on a batch without any is the plain one."""
  batch = _two_by_two(_examples())
  texts = [
    str(jax.make_jaxpr(_make("prm", **options).step)(_state("prm"), batch))
    for options in ({}, dict(sources=("a", "b")))
  ]
  assert texts[0] == texts[1]


def test_a_source_without_a_target_has_no_metrics():
  batch, _ = _of_two_sources()
  batch = dataclasses.replace(batch, source=jnp.zeros_like(batch.source))
  made = _make("prm", sources=("a", "b"))
  sums = _evaluate("prm", sources=("a", "b"))(_state("prm").params, batch)
  found = made.finish(jax.tree.map(float, sums))
  assert "a/loss_nats" in found
  assert not [key for key in found if key.startswith("b/")]


@pytest.mark.parametrize(
  ("objective", "name"),
  [
    (prm.PRMConfig(), "loss_nats"),
    (prm.PRMConfig("mse"), "loss"),
    (prm.PRMConfig("pqm"), "loss"),
    (prm.PRMConfig("bradley_terry"), "loss"),
    (orm.ORMConfig("bradley_terry", outcome_target="last_step"), "loss"),
    (implicit_prm.ImplicitConfig("implicit_dpo"), "loss_nats"),
  ],
)
def test_a_loss_names_its_unit_only_if_it_has_it(objective, name):
  made = programs.make(objective, MODEL, optax.sgd(0.1))
  names = ("total", "weight", "steps", "steps_right", "errors", "errors_found")
  sums = dict.fromkeys((*names, "right", "in_order"), 1.0)
  losses = {x for x in made.finish(sums) if x.startswith("loss")}
  assert losses == {name}
