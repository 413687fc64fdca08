"""Updates on a rollout: against plain loops, and what they don't depend on."""

import dataclasses
import functools

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import rl_tiny

from prm_jax import schema
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.rl import policy_losses
from prm_jax.rl import rl_run
from prm_jax.rl import rollout as rollout_lib
from prm_jax.rl import rows as rows_lib
from prm_jax.rl import updates
from prm_jax.rows import packing
from prm_jax.training import skip_updates


def _models(**more):
  model = rl_tiny.model()
  return updates.Models(model, **dict(reference=model) | more)


@functools.cache
def _sampled(temperature=1.0):
  """Eight solutions of four problems from the tiny policy."""
  words = rl_tiny.tokenizer()
  starts = [
    schema.Solution(p.id, p.problem, ()) for p in rl_tiny.problems(num=4)
  ]
  codec = codecs.SeparatorCodec(words)
  prompts = [codec.prompt(s) for s in starts]
  engine = rollout_engine.Engine(
    rl_tiny.model(), rl_tiny.params(), words, slots=8, chunk=4
  )
  requests = [
    rollout_engine.Request(s.id, p.tokens, 2)
    for s, p in zip(starts, prompts, strict=True)
  ]
  sampling = sampler.Sampling(rl_tiny.MAX_TOKENS, temperature, tempered=True)
  rows, _ = engine.complete(requests, sampling, jax.random.key(0))
  solutions = [
    sampler.solution(s, p, c, n, codec)
    for s, p, row in zip(starts, prompts, rows, strict=True)
    for n, c in enumerate(row)
  ]
  return rollout_lib.Sampled(
    [p.tokens for p in prompts for _ in range(2)],
    [c for row in rows for c in row],
    solutions,
  )


def _per_token(seed):
  random = np.random.default_rng(seed)
  return random.normal(size=(8, rl_tiny.MAX_TOKENS)).astype(np.float32)


def _mask():
  lengths = [len(c.tokens) for c in _sampled().completions]
  return np.arange(rl_tiny.MAX_TOKENS) < np.asarray(lengths)[:, None]


def _old_log_probs():
  """What the tokens were drawn with, off by a little: an older policy's."""
  out = 0.3 * _per_token(5)
  for row, c in zip(out, _sampled().completions, strict=True):
    row[: len(c.tokens)] += c.log_probs
  return out


def _rollout(config, advantages=None):
  sampled = _sampled()
  longest = max(map(len, sampled.prompts))
  micro = rows_lib.num_microbatches(config.shape, config.rollout, longest)
  packed = rows_lib.pack(sampled, config.shape, config.rollout, micro)
  mask = _mask()
  weights = rows_lib.loss_weights(
    mask,
    packed.minibatch,
    loss_aggregation=config.loss.loss_aggregation,
    max_tokens=rl_tiny.MAX_TOKENS,
  )
  place = functools.partial(rows_lib.scatter, packed=packed)
  return updates.Rollout(
    batch=dataclasses.replace(packed.batch, weights=place(weights)),
    old_log_probs=place(_old_log_probs()),
    reference=place(_per_token(1) - 4),
    advantages=place(_per_token(2) if advantages is None else advantages),
    values=place(_per_token(3)),
    returns=place(_per_token(4)),
    implicit_weights=place(mask.astype(np.float32)),
    totals=np.zeros(packed.batch.tokens.shape, np.float32),
    firsts=np.zeros(packed.batch.tokens.shape, bool),
  )


def _state(program):
  state = meta.unbox(program.init(jax.random.key(0)))
  given = {**rl_tiny.params(), "reference": rl_tiny.params(seed=1)}
  given = {k: v for k, v in given.items() if k in state.params}
  params = {**state.params, **jax.tree.map(jnp.asarray, given)}
  return state.replace(params=params)


@functools.cache
def _compiled(config, roles):
  """Returns a program and its jitted step; one for all tests of a config."""
  program = rl_run.make_program(config, _models(**dict(roles)))
  return program, jax.jit(program.step)


def _step(config, rollout=None, **roles):
  program, step = _compiled(config, tuple(roles.items()))
  state = _state(program)
  return state, *step(state, _rollout(config) if rollout is None else rollout)


# --- Against a loop over solutions -------------------------------------------


def _plain_loss(params, config):
  """The same loss and its gradient, solution by solution, by the definitions."""
  c, model = config.loss, rl_tiny.model()
  sampled, mask = _sampled(), _mask()
  lengths = mask.sum(1)

  # One program for all of them: they differ in their numbers alone.
  @jax.jit
  @jax.value_and_grad
  def of_one(params, batch, start, ids, mask, weight, given):
    logits = transformer.apply(model, params, batch, method="lm_logits")[0]
    log_p = jax.nn.log_softmax(logits, axis=-1)
    log_p = jax.lax.dynamic_slice_in_dim(log_p, start, len(ids))
    chosen = log_p[np.arange(len(ids)), ids]
    advantage = given["advantage"]
    if c.kind == "ppo":
      ratio = jnp.exp(chosen - given["old"])
      near = jnp.clip(ratio, 1 - c.clip_low, 1 + c.clip_high)
      loss = -jnp.minimum(ratio * advantage, near * advantage)
    else:
      loss = -(chosen if c.kind == "rejection_sampling" else advantage * chosen)
    loss += c.entropy * (jnp.exp(log_p) * log_p).sum(-1)
    if c.kl_placement == "loss":
      apart = chosen - given["reference"]
      loss += c.kl * (jnp.exp(-apart) - 1 + apart)
    return jnp.where(mask, loss, 0).sum() * weight

  value, gradient = 0.0, jax.tree.map(np.zeros_like, params)
  for i, completion in enumerate(sampled.completions):
    # One row, without what packing knows; padding sees itself alone.
    segment = packing.branches(sampled.prompts[i], [completion.tokens])
    ids = np.zeros(rl_tiny.MAX_TOKENS, np.int32)
    ids[: lengths[i]] = completion.tokens
    weight = dict(
      tokens=1 / lengths.sum(),
      solutions=1 / (lengths[i] * 8),
      constant=1 / (config.rollout.max_tokens * 8),
    )
    given = dict(
      advantage=_per_token(2)[i],
      old=_old_log_probs()[i],
      reference=_per_token(1)[i] - 4,
    )
    more = of_one(
      params,
      packing.fill([[segment]], config.packing.sequence_length),
      len(sampled.prompts[i]),
      ids,
      mask[i],
      weight[c.loss_aggregation],
      given,
    )
    value, gradient = jax.tree.map(np.add, (value, gradient), more)
  return value, gradient


@pytest.mark.parametrize(
  "loss",
  [
    dict(kind="reinforce", loss_aggregation="constant", entropy=0.1),
    dict(kind="ppo", loss_aggregation="solutions", clip_high=0.1),
    dict(
      kind="rejection_sampling", kl_placement="loss", kl=0.5, kl_estimator="k3"
    ),
  ],
  ids=str,
)
def test_an_update_follows_the_gradient_of_the_loss_by_its_definition(loss):
  more = (
    dict(credit=dict(baseline="none"))
    if loss["kind"] == "rejection_sampling"
    else {}
  )
  config = rl_tiny.config(loss=loss, **more)
  state, _, metrics = _step(config)
  policy = updates.policy_of(state.params)
  value, grads = _plain_loss(policy, config)
  assert float(metrics["loss"]) == pytest.approx(float(value), rel=2e-5)
  norm = np.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(grads)))
  assert float(metrics["grad_norm"]) == pytest.approx(float(norm), rel=2e-5)


# --- What an update doesn't depend on ----------------------------------------


KL = dict(kl_placement="loss", kl=0.1, kl_estimator="k2")


@functools.cache
def _usual():
  return _step(rl_tiny.config(loss=KL))


def test_an_update_is_the_same_in_any_layout_of_rows():
  layout = dict(share_prompts=False, sequence_length=48, rows=2)
  _, state, metrics = _step(rl_tiny.config(loss=KL, **layout))
  _, usual, expected = _usual()
  for name in ("loss", "policy_loss", "grad_norm", "kl_nats", "clipped"):
    assert float(metrics[name]) == pytest.approx(
      float(expected[name]), rel=2e-5, abs=1e-6
    )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5),
    state.params,
    usual.params,
  )


def test_an_update_is_the_same_on_a_mesh_of_devices():
  config = rl_tiny.config(loss=KL)
  program = rl_run.make_program(config, _models())
  mesh = sharding.make_mesh((2, 2, 1), jax.devices()[:4])
  abstract = jax.eval_shape(program.init, jax.random.key(0))
  shardings = sharding.of_state(abstract, mesh)
  step = sharding.jit(
    program.step,
    mesh,
    in_shardings=(shardings, sharding.of_batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )
  state = jax.tree.map(jax.device_put, _state(program), shardings)
  _, metrics = step(state, sharding.put_batch(_rollout(config), mesh))
  _, _, expected = _usual()
  for name in ("loss", "grad_norm", "kl_nats"):
    assert float(metrics[name]) == pytest.approx(
      float(expected[name]), rel=2e-5
    )


TWO_BY_TWO = rl_tiny.config(minibatches=2, epochs=2)


def test_minibatches_and_epochs_are_updates_one_after_another():
  """Two minibatches, two epochs: as four programs of one update each."""
  config = TWO_BY_TWO
  _, whole, metrics = _step(config)
  rollout = _rollout(config)
  program, step = _compiled(rl_tiny.config(), ())
  state = _state(program)
  for m in (0, 1, 0, 1):

    def own(x, m=m):
      x = np.asarray(x)
      parts = x.reshape(config.packing.batch_size, 2, -1, x.shape[-1])
      return parts[:, m].reshape(-1, x.shape[-1])

    state, _ = step(state, jax.tree.map(own, rollout))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    whole.params,
    state.params,
  )
  assert int(metrics["skipped_in_a_row"]) == 0


# --- What the policy says of its own samples ---------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_trainer_agree_on_log_probabilities(temperature):
  sampled = _sampled(temperature)
  config = rl_tiny.config(rollout=dict(temperature=temperature))
  packed = rows_lib.pack(sampled, config.shape, config.rollout, 8)
  outputs = functools.partial(
    transformer.token_outputs,
    rl_tiny.model(),
    values=False,
    temperature=temperature,
  )
  found = jax.jit(outputs)(rl_tiny.params(), packed.batch)
  by_trainer = rows_lib.gather(np.asarray(found.log_probs), packed)
  for row, c in zip(by_trainer, sampled.completions, strict=True):
    np.testing.assert_allclose(row[: len(c.tokens)], c.log_probs, atol=1e-4)


def test_an_entropy_is_that_of_the_distribution_at_the_temperature():
  sampled, config = _sampled(), rl_tiny.config()
  packed = rows_lib.pack(sampled, config.shape, config.rollout, 8)
  batch = jax.tree.map(jnp.asarray, packed.batch)
  model = rl_tiny.model()
  params = jax.tree.map(jnp.asarray, rl_tiny.params())
  outputs = functools.partial(
    transformer.token_outputs, model, values=False, temperature=0.5, block=40
  )
  found = jax.jit(outputs)(params, batch)
  apply = functools.partial(transformer.apply, model, method="lm_logits")
  logits = jax.jit(apply)(params, batch) / 0.5
  log_p = np.asarray(jax.nn.log_softmax(logits, axis=-1), np.float64)
  expected = -(np.exp(log_p) * log_p).sum(-1)
  real = np.asarray(batch.parent) >= 0
  np.testing.assert_allclose(
    np.asarray(found.entropies)[real], expected[real], atol=1e-4
  )


# --- Gradients that aren't finite ---------------------------------------------


def _bits(tree):
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def test_an_update_without_a_finite_gradient_changes_nothing_and_is_counted():
  config = rl_tiny.config()
  broken = _per_token(2)
  broken[3, 0] = np.nan
  rollout = _rollout(config, broken)
  state, after, metrics = _step(config, rollout)
  assert float(metrics["skipped_updates"]) == 1
  assert int(metrics["skipped_in_a_row"]) == 1
  assert _bits(after.params) == _bits(state.params)
  assert _bits(after.opt_state["optimizer"]) == _bits(
    state.opt_state["optimizer"]
  )
  assert int(after.step) == int(state.step) + 1


def test_a_good_minibatch_is_learned_from_beside_a_broken_one():
  config = TWO_BY_TWO
  broken = _per_token(2)
  broken[3, 0] = np.inf
  state, after, metrics = _step(config, _rollout(config, broken))
  assert float(metrics["skipped_updates"]) == 2  # in each epoch
  assert int(metrics["skipped_in_a_row"]) == 0  # the last one was fine
  assert np.isfinite(float(metrics["loss"]))
  assert _bits(after.params) != _bits(state.params)


def test_nothing_to_learn_leaves_the_policy_as_it_is():
  config = rl_tiny.config()
  rollout = _rollout(config, np.zeros((8, rl_tiny.MAX_TOKENS), np.float32))
  state, after, metrics = _step(config, rollout)
  assert float(metrics["grad_norm"]) == 0
  assert _bits(after.params) == _bits(state.params)


def _step_after(losses, norms, rollout=None):
  """Makes an update in a run whose last ones had these losses and norms."""
  config = rl_tiny.config()
  program, step = _compiled(config, ())
  values = np.zeros((2, skip_updates.WINDOW), np.float32)
  values[:, : len(losses)] = losses, norms
  skipped = skip_updates.Skipped.none(6.0)
  recent = skipped.recent.replace(
    values=jnp.asarray(values), number=jnp.asarray(len(losses), jnp.int32)
  )
  state = _state(program).replace(skipped=skipped.replace(recent=recent))
  return state, *step(state, _rollout(config) if rollout is None else rollout)


def _around(value):
  return value + 0.01 * abs(value) * np.random.default_rng(0).normal(size=100)


@pytest.mark.parametrize("times", [1, 10])
def test_an_update_with_a_gradient_far_above_the_last_ones_is_skipped(times):
  _, learned, usual = _step(rl_tiny.config())
  loss, norm = (_around(float(usual[k])) for k in ("loss", "grad_norm"))
  state, after, metrics = _step_after(loss, norm / times)
  skips = times > 1
  assert float(metrics["skipped_updates"]) == skips
  assert (
    int(metrics["skipped_outliers"]) == int(metrics["skipped_total"]) == skips
  )
  assert _bits(after.params) == _bits((state if skips else learned).params)
  assert _bits(after.opt_state["optimizer"]) == _bits(
    (state if skips else learned).opt_state["optimizer"]
  )


def test_a_minibatch_without_anything_to_learn_from_is_no_spike():
  config = rl_tiny.config()
  empty = _without(_rollout(config), config, [0])
  # Its loss, 0, is far above.
  state, after, metrics = _step_after(_around(-9.0), _around(1.0), empty)
  assert float(metrics["empty_updates"]) == 1
  assert int(metrics["skipped_outliers"]) == int(metrics["skipped_total"]) == 0
  assert _bits(after.skipped.recent) == _bits(state.skipped.recent)


def _without(rollout, config, minibatches):
  """Returns the rollout with no solution that counts in these minibatches."""
  weights = np.array(rollout.batch.weights)
  parts = weights.reshape(config.packing.batch_size, config.minibatches, -1)
  for m in minibatches:
    parts[:, m] = 0
  return dataclasses.replace(
    rollout, batch=dataclasses.replace(rollout.batch, weights=weights)
  )


def test_a_minibatch_of_nothing_makes_no_update_and_is_no_measurement():
  """Not even by what the optimizer remembers of earlier ones."""
  config = dataclasses.replace(
    rl_tiny.config(
      minibatches=2, loss=KL | dict(kl_target=1.0, kl_horizon=80.0)
    ),
    optimizer=dataclasses.replace(rl_tiny.OPTIMIZER, weight_decay=0.1),
  )
  _, state, usual = _step(config)
  program, step = _compiled(config, ())
  assert program.updates_per_step == 2
  rollout = _rollout(config)
  after, metrics = step(state, _without(rollout, config, (0, 1)))
  assert float(metrics["empty_updates"]) == 2
  before = int(state.skipped.empty)
  assert int(metrics["skipped_empty"]) == before + 2 == int(after.skipped.empty)
  assert int(metrics["skipped_in_a_row"]) == 0
  assert _bits(after.params) == _bits(state.params)
  assert _bits(after.opt_state) == _bits(
    state.opt_state
  )  # the KL's weight, too
  assert np.isnan(float(metrics["kl_nats"]))
  # A mean over the one that learned, not half of it.
  first, _ = _step(config)[:2]
  _, half = step(first, _without(rollout, config, (1,)))
  assert float(half["empty_updates"]) == 1
  assert float(half["entropy_nats"]) > 0.8 * float(usual["entropy_nats"])


# --- The other roles ----------------------------------------------------------


def test_each_role_learns_its_own_and_the_reference_nothing():
  loss = dict(critic="separate", kl_placement="reward", kl=0.1, kl_horizon=80.0)
  config = rl_tiny.config(
    loss=loss | dict(value=1.0, kl_target=1e-6), credit=dict(baseline="gae")
  )
  critic = rl_tiny.model(num_layers=2)
  first, state, metrics = _step(config, critic=critic)
  changed = {
    name: _bits(first.params[name]) != _bits(state.params[name])
    for name in ("reference", "critic", "layers")
  }
  assert changed == dict(reference=False, critic=True, layers=True)
  # The KL is far above its target.
  assert float(metrics["kl_weight"]) == pytest.approx(0.1 * (1 + 0.2 * 8 / 80))
  # And the critic learns the returns.
  _, step = _compiled(config, (("critic", critic),))
  losses = []
  for _ in range(40):
    state, metrics = step(state, _rollout(config))
    losses.append(float(metrics["value_loss"]))
  assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
  ("kl", "expected"), [(1.0, 0.102), (0.0, 0.098), (0.5, 0.1), (0.55, 0.101)]
)
def test_the_kl_coefficient_follows_its_target(kl, expected):
  found = policy_losses.adapted(0.1, kl, target=0.5, horizon=80.0, solutions=8)
  assert float(found) == pytest.approx(expected)


def test_an_implicit_prm_learns_the_outcome_of_each_solution_by_its_sum():
  config = rl_tiny.config(
    rewards=dict(implicit=1.0, verifier=1.0),
    credit=dict(baseline="prime"),
    minibatches=2,
  )
  right = np.array([1, 0, 0, 1, 1, 0, 1, 0], np.float32)
  counts = np.array([1, 1, 1, 0, 1, 1, 1, 1], bool)
  sampled = _sampled()
  longest = max(map(len, sampled.prompts))
  micro = rows_lib.num_microbatches(config.shape, config.rollout, longest)
  packed = rows_lib.pack(sampled, config.shape, config.rollout, micro)
  mask = _mask() & counts[:, None]
  rollout = _rollout(config)
  rows = dataclasses.replace(
    rollout,
    batch=dataclasses.replace(
      packed.batch,
      labels=rows_lib.scatter(np.where(mask, right[:, None], 0), packed),
    ),
    implicit_weights=rows_lib.scatter(
      rows_lib.per_solution(mask, packed.minibatch), packed
    ),
  )
  rows = jax.tree.map(jnp.asarray, rows)
  model = rl_tiny.model()
  params = jax.tree.map(jnp.asarray, rl_tiny.params(seed=2))
  loss = functools.partial(updates._implicit_loss, model, config.implicit_beta)
  found = jax.jit(loss)(dict(implicit=params), rows)
  log_probs = functools.partial(transformer.token_log_probs, model)
  log_p = jax.jit(log_probs)(params, rows.batch)
  ratios = rows_lib.gather(np.asarray(log_p), packed) - (_per_token(1) - 4)
  logits = config.implicit_beta * np.where(mask, ratios, 0).sum(1)
  losses = np.logaddexp(0, np.where(right > 0, -logits, logits))
  # Of both minibatches together; solutions that don't count aren't in a mean.
  expected = losses[:4][counts[:4]].mean() + losses[4:][counts[4:]].mean()
  assert float(found) == pytest.approx(expected, rel=1e-4)


def test_a_value_is_of_the_path_before_its_token_from_either_critic():
  model = rl_tiny.model()
  params = jax.tree.map(jnp.asarray, rl_tiny.params(heads=("lm", "value")))
  prompt, drawn = np.array([1, 5, 6], np.int32), np.array([7, 8], np.int32)

  @jax.jit
  def from_either(batch):
    own = transformer.token_outputs(model, params, batch, values=True).values
    return own, transformer.token_values(model, params, batch)

  def values(drawn):
    segment = packing.branches(prompt, [drawn])
    own, separate = from_either(packing.fill([[segment]], 5))
    np.testing.assert_allclose(own, separate, atol=1e-6)
    return np.asarray(own)[0, 3:]

  one, two = np.array([1, 0], np.int32), np.array([0, 1], np.int32)
  found, first, last = map(values, (drawn, drawn + one, drawn + two))
  assert found[0] != 0
  np.testing.assert_allclose(first[0], found[0], rtol=1e-6)
  assert first[1] != pytest.approx(found[1], rel=1e-3)
  np.testing.assert_allclose(last, found, rtol=1e-6)
