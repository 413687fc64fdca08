"""The decoder: packed = alone, a tree = its solutions one by one."""

import dataclasses
import functools
import json

from flax import linen as nn
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.training import losses

PLAIN = model_config.ModelConfig(
  vocab_size=37,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
CONFIGS = {
  "plain": PLAIN,
  "every_option": dataclasses.replace(
    PLAIN,
    num_kv_heads=1,
    qkv_bias=True,
    qk_norm=True,
    tie_embedding=False,
    scale_embedding=True,
    rope_theta=500.0,
  ),
  "as_gemma": dataclasses.replace(
    PLAIN,
    num_layers=3,
    qk_norm=True,
    scale_embedding=True,
    activation="gelu_tanh",
    norm_offset=True,
    post_norms=True,
    query_scale=0.3,
    attention_softcap=2.0,
    final_softcap=3.0,
    window=4,
    global_layers=(1,),
    rope_local_theta=50.0,
    rope_scaling="linear",
    rope_factor=2.0,
  ),
}
ROW = 64
METHODS = ("step_logits", "outcome_logits", "lm_logits")
OUTPUTS = (*METHODS, "values")
HEADS = ("step", "outcome", "value", "lm")


@functools.cache
def _params(config):
  """Returns random parameters, none of them 0, as the heads are at birth."""
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(0.4 * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), config, HEADS))
    ),
  )


@functools.cache
def _forward(config):
  def forward(params, batch):
    outputs = {
      method: transformer.apply(config, params, batch, method=method)
      for method in METHODS
    }
    hidden = transformer.apply(config, params, batch, method="hidden")
    values = transformer.apply(config, params, hidden, method="value")
    return outputs | dict(values=values)

  return jax.jit(forward)


def _apply(config, batch):
  """Returns the logits of every head by the name of its method."""
  return jax.tree.map(np.asarray, _forward(config)(_params(config), batch))


@functools.cache
def _forward_step(config):
  return jax.jit(
    functools.partial(transformer.apply, config, method="step_logits")
  )


def _apply_step(config, batch):
  """Returns the step logits alone, which compile in a fifth of the time."""
  return np.asarray(_forward_step(config)(_params(config), batch))


def _step_total(config, params, batch):
  """Returns the summed step loss."""
  logits = transformer.apply(config, params, batch, method="step_logits")
  return losses.step_bce(logits, batch.labels, batch.weights)[0]


def _totals(config, params, batch):
  """Returns the summed step loss and the summed LM loss."""
  step = _step_total(config, params, batch)
  logits = transformer.apply(config, params, batch, method="lm_logits")
  weights = jnp.where(batch.parent >= 0, batch.weights, 0)
  lm, _ = losses.language_model(logits, batch.tokens, weights)
  return jnp.stack([step, lm])


@functools.cache
def _gradient(config):
  """Returns params, batch -> both totals, and the gradients of each."""

  def both(params, batch):
    totals, pullback = jax.vjp(
      lambda params: _totals(config, params, batch), params
    )
    return totals, jax.vmap(pullback)(jnp.eye(2))

  return jax.jit(both)


def _fill(rows, tokens=ROW):
  """Returns device rows; blank ones make up a shape that is compiled once."""
  rows = [*rows, *([[]] * (6 - len(rows)))]
  return jax.tree.map(jnp.asarray, packing.fill(rows, tokens))


def _chain(num_tokens=20):
  """Returns one solution's row."""
  random = np.random.default_rng(num_tokens)
  return packing.chain(_example(random.integers(0, 37, num_tokens), random))


def _example(tokens, random):
  """Returns an example with targets at about half of its tokens."""
  n = len(tokens)
  ends = random.random(n) < 0.5
  return encoding.Example(
    tokens=np.asarray(tokens, np.int32),
    labels=((random.random(n) < 0.5) & ends).astype(np.float32),
    weights=(ends * random.integers(1, 3, n)).astype(np.float32),
    step_end=ends,
  )


def _family(seed, size=6):
  """Returns examples of one group that branch off each other anywhere."""
  random = np.random.default_rng(seed)
  sequences = [list(random.integers(0, 37, 20))]
  while len(sequences) < size:
    parent = sequences[random.integers(len(sequences))]
    kept = parent[: random.integers(3, len(parent) + 1)]
    sequences.append(kept + list(random.integers(0, 37, random.integers(8))))
  return [_example(x, random) for x in sequences]


def _assert_trees_close(found, expected, tolerance=1e-5):
  """Compares leaf by leaf, relative to the leaf's largest entry."""
  for (path, a), b in zip(
    jax.tree_util.tree_flatten_with_path(found)[0],
    jax.tree.leaves(expected),
    strict=True,
  ):
    scale = max(float(np.abs(b).max()), 1.0)
    np.testing.assert_allclose(
      a, b, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path)
    )


# --- Packed = alone ---------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_solution_reads_the_same_packed_or_alone(config):
  chains = [_chain(n) for n in (9, 17, 1, 14)]
  logits = _apply(config, _fill([chains, *([x] for x in chains)]))
  for method, found in logits.items():
    # Nothing predicts the first token of a solution.
    first, start = int(method == "lm_logits"), 0
    assert np.ptp(found[0, :41]) > 0.1
    for row, n in enumerate(map(len, chains), 1):
      np.testing.assert_allclose(
        found[0, start + first : start + n], found[row, first:n], atol=1e-5
      )
      start += n


def test_a_row_of_solutions_learns_as_its_solutions_alone():
  chains = [_chain(n) for n in (9, 17, 1, 14)]
  gradient, params = _gradient(PLAIN), _params(PLAIN)
  _assert_trees_close(
    gradient(params, _fill([chains])),
    gradient(params, _fill([[x] for x in chains])),
  )


# --- A tree = its solutions one by one --------------------------------------


def _paths(batch, row, num_tokens):
  """Returns the ids from the root to each token, following parent."""
  paths = []
  for k, parent in enumerate(np.asarray(batch.parent[row, :num_tokens])):
    before = paths[parent] if parent >= 0 else ()
    paths.append((*before, int(batch.tokens[row, k])))
  return paths


@pytest.mark.parametrize("cut", [ROW, 27], ids=["whole", "cut"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_tree_scores_as_its_solutions_one_by_one(config, seed, cut):
  family = _family(seed)
  segments = packing.trees(family, cut)
  assert (len(segments) > 1) == (cut < ROW)
  trees = _fill([[x] for x in segments])
  alone = _apply(config, _fill([[packing.chain(x)] for x in family]))
  shared = _apply(config, trees)
  nodes = {}
  for row, segment in enumerate(segments):
    for k, path in enumerate(_paths(trees, row, len(segment))):
      nodes.setdefault(path, []).append((row, k))
  for method in OUTPUTS:
    for row, example in enumerate(family):
      for k in range(method == "lm_logits", len(example)):
        for node in nodes[tuple(example.tokens[: k + 1].tolist())]:
          np.testing.assert_allclose(
            shared[method][node], alone[method][row, k], atol=1e-5
          )


@pytest.mark.parametrize("cut", [ROW, 27], ids=["whole", "cut"])
@pytest.mark.parametrize(
  ("seed", "kind"),
  [(0, "every_option"), (1, "every_option"), (2, "as_gemma")],
)
def test_a_tree_learns_as_its_solutions_one_by_one(seed, kind, cut):
  """Step and LM loss and their gradients, though labels disagree."""
  family = _family(seed)
  segments = packing.trees(family, cut)
  trees = _fill([[x] for x in segments])
  nodes = [_paths(trees, row, len(x)) for row, x in enumerate(segments)]
  assert any(len(set(x)) < len(x) for x in nodes), "no two labels disagree"
  assert (len(segments) > 1) == (cut < ROW)
  config = CONFIGS[kind]
  gradient, params = _gradient(config), _params(config)
  alone = gradient(params, _fill([[packing.chain(x)] for x in family]))
  assert (alone[0] > 1).all()
  _assert_trees_close(gradient(params, trees), alone)


# --- Padding ----------------------------------------------------------------


def test_padding_never_influences_a_score_or_a_gradient():
  random = np.random.default_rng(0)
  clean = _fill([[_chain(20)]])
  padded = jax.tree.map(np.array, clean)
  for row, start in enumerate([20, 0, 0, 0, 0, 0]):
    shape = (ROW - start,)
    padded.tokens[row, start:] = random.integers(0, 37, shape)
    padded.positions[row, start:] = random.integers(0, 99, shape)
  padded = jax.tree.map(jnp.asarray, padded)
  found, expected = _apply(PLAIN, padded), _apply(PLAIN, clean)
  for method in OUTPUTS:
    np.testing.assert_array_equal(
      found[method][0, :20], expected[method][0, :20]
    )
  gradient, params = _gradient(PLAIN), _params(PLAIN)
  _assert_trees_close(gradient(params, padded), gradient(params, clean), 1e-6)


def test_a_wider_row_changes_no_score():
  wide = _apply(PLAIN, _fill([[_chain(20)]]))
  narrow = _apply(PLAIN, _fill([[_chain(20)]], tokens=20))
  for method in OUTPUTS:
    np.testing.assert_allclose(
      wide[method][0, :20], narrow[method][0], atol=1e-5
    )


# --- Variants of one computation --------------------------------------------


@pytest.mark.parametrize(
  "variant",
  [{"remat": "full"}, {"remat": "dots", "scan": False}],
  ids=str,
)
def test_scan_and_remat_change_neither_loss_nor_gradient(variant):
  config = dataclasses.replace(PLAIN, **variant)
  batch = _fill([[_chain(20)], [_chain(9), _chain(30)]])
  _assert_trees_close(
    _gradient(config)(_params(PLAIN), batch),
    _gradient(PLAIN)(_params(PLAIN), batch),
  )


@functools.cache
def _gradient_memory(config, block):
  """Returns the bytes that the compiled step gradient needs besides I/O."""
  batch = batch_lib.empty(2, 64)
  params = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), config, HEADS))
  )

  def step_loss(params, *arrays):
    return _step_total(config, params, batch_lib.Batch(*arrays))

  arrays = [getattr(batch, x.name) for x in dataclasses.fields(batch)]
  compiled = jax.jit(jax.grad(step_loss)).lower(params, *arrays).compile()
  return compiled.memory_analysis().temp_size_in_bytes


DEEP = dataclasses.replace(PLAIN, num_layers=6)


def test_remat_saves_the_memory_that_it_promises():
  none, dots, full = (
    _gradient_memory(dataclasses.replace(DEEP, remat=remat), "as it is")
    for remat in ("none", "dots", "full")
  )
  assert full < dots < none


def test_what_adapters_add_is_computed_again_rather_than_kept():
  wide = dataclasses.replace(DEEP, d_ff=1024, remat="dots")
  alone = _gradient_memory(wide, "as it is")
  adapted = _gradient_memory(
    dataclasses.replace(wide, lora_rank=2, lora_targets=("gate", "up")), "lora"
  )
  # Of each layer two results of 1,024 channels for the 2 x 64 tokens, float32.
  kept = DEEP.num_layers * 2 * (2 * 64) * 1024 * 4
  assert adapted - alone < kept / 4


def test_unused_keys_and_values_cost_training_no_memory(monkeypatch):
  """A layer returns them for the prefill; elsewhere XLA must drop them."""

  class Silent(transformer.Block):
    @nn.compact
    def __call__(self, *args):
      return super().__call__(*args)[0], None

  used = _gradient_memory(DEEP, "as it is")
  monkeypatch.setattr(transformer, "Block", Silent)
  assert used == _gradient_memory(DEEP, "without keys and values")


def test_bfloat16_computes_with_float32_parameters_and_logits():
  exact = CONFIGS["every_option"]
  config = dataclasses.replace(exact, compute_dtype="bfloat16")
  params, batch = _params(config), _fill([[_chain(20)]])
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
  hidden = jax.eval_shape(
    functools.partial(transformer.apply, config, method="hidden"),
    params,
    batch,
  )
  assert hidden.dtype == jnp.bfloat16
  found, expected = _apply(config, batch), _apply(exact, batch)
  for method in OUTPUTS:
    a, b = found[method][0, :20], expected[method][0, :20]
    assert a.dtype == np.float32
    assert 0 < np.abs(a - b).max() < 0.05 * np.abs(b).max()
    # Float32 sums, not bfloat16 ones in a wider type.
    assert (a != a.astype(jnp.bfloat16).astype(np.float32)).any()
  _, gradient = jax.eval_shape(_gradient(config), params, batch)
  assert {x.dtype for x in jax.tree.leaves(gradient)} == {np.dtype("float32")}


def test_positions_enter_as_differences_only():
  batch = _fill([[_chain(20)]])
  shifted = batch.replace(positions=batch.positions + 100)
  stretched = batch.replace(positions=2 * batch.positions)
  a, b, c = (_apply_step(PLAIN, x)[0, :20] for x in (batch, shifted, stretched))
  np.testing.assert_allclose(b, a, atol=1e-4)
  assert np.abs(c - a).max() > 1e-2


# --- Heads ------------------------------------------------------------------


def _init(config, heads):
  return jax.jit(lambda key: transformer.init(key, config, heads))(
    jax.random.key(0)
  )


def test_a_new_head_gives_every_step_one_half():
  born = meta.unbox(_init(PLAIN, ("step",)))
  logits = _forward_step(PLAIN)(born, _fill([[_chain(20)]]))
  assert not np.asarray(logits).any()


@pytest.mark.parametrize("head", HEADS)
def test_only_the_named_head_gets_parameters(head):
  config = CONFIGS["every_option"]
  params = jax.eval_shape(
    lambda: transformer.init(jax.random.key(0), config, (head,))
  )
  assert set(params) == {"embedding", "layers", "final_norm", f"{head}_head"}


def test_three_classes_give_three_logits():
  config = dataclasses.replace(PLAIN, step_classes=3)
  found = jax.eval_shape(
    functools.partial(transformer.apply, config, method="step_logits"),
    jax.eval_shape(lambda: meta.unbox(_init(config, ("step",)))),
    _fill([]),
  )
  assert found.shape == (6, ROW, 3)


def test_body_parameters_counts_the_layers_matrices():
  layers = _params(CONFIGS["every_option"])["layers"]
  kernels = [
    x.size
    for path, x in jax.tree_util.tree_flatten_with_path(layers)[0]
    if path[-1].key == "kernel"
  ]
  assert CONFIGS["every_option"].body_parameters == sum(kernels)


@pytest.mark.parametrize(
  "changes",
  [
    dict(vocab_size=0),
    dict(d_model=-8),
    dict(num_layers=0),
    dict(num_heads=0),
    dict(num_kv_heads=0),
    dict(head_dim=0),
    dict(d_ff=0),
    dict(step_classes=0),
    dict(rope_theta=0.0),
    dict(norm_epsilon=float("nan")),
    dict(compute_dtype="int8"),
    dict(activation="relu"),
    dict(query_scale=0.0),
    dict(attention_softcap=-1.0),
    dict(final_softcap=float("inf")),
    dict(window=0),
    dict(rope_local_theta=1e4),
    dict(global_layers=(0,)),
    dict(rope_scaling="yarn"),
    dict(rope_factor=0.0),
    dict(rope_low_freq_factor=4.0),
    dict(rope_original_tokens=0),
  ],
  ids=str,
)
def test_a_model_that_cant_be_is_refused_in_one_line(changes):
  ((name, value),) = changes.items()
  with pytest.raises(errors.InputError) as e:
    dataclasses.replace(PLAIN, **changes)
  lone = ("rope_local_theta", "global_layers")
  wanted = "set model.window too" if name in lone else "expected"
  assert str(e.value).startswith(f"model.{name}={value!r}: {wanted}")


@pytest.mark.parametrize("layers", [(2,), (-1,), (1, 0), (0, 0)])
def test_global_layers_are_layers_in_order(layers):
  with pytest.raises(errors.InputError, match=r"the layers 0 to 1, each once"):
    dataclasses.replace(PLAIN, window=4, global_layers=layers)


def test_layers_that_json_made_a_list_are_the_same_model():
  model = dataclasses.replace(PLAIN, window=4, global_layers=(1,))
  record = json.loads(json.dumps(dataclasses.asdict(model)))
  assert model_config.from_record(record) == model
  assert hash(model_config.from_record(record)) == hash(model)
  assert model.windowed == (True, False)


# --- Windows ----------------------------------------------------------------


def test_a_window_reaches_as_far_as_its_layers_add_up_to():
  """Two layers see 2 x 3 tokens back, one of them without a window all."""
  base = _fill([[_chain(20)]])
  first = base.replace(tokens=base.tokens.at[0, 0].add(1))
  for layers, reach in (((), 7), ((0,), 20)):
    config = dataclasses.replace(PLAIN, window=4, global_layers=layers)
    found, changed = (_apply_step(config, x)[0, :20] for x in (base, first))
    moved = np.flatnonzero(found != changed)
    assert moved.min() == 0
    assert moved.max() == reach - 1


def test_layers_without_a_window_are_those_of_a_model_without_any():
  batch = _fill([[_chain(20)]])
  everywhere = dataclasses.replace(PLAIN, window=4, global_layers=(0, 1))
  wide = dataclasses.replace(PLAIN, window=20)
  expected = _apply_step(PLAIN, batch)
  for config in (everywhere, wide):
    found = _apply_step(config, batch)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_local_base_turns_the_layers_with_a_window(layer):
  """And no others: a far window shows the same as another base there."""
  batch = _fill([[_chain(20)]])
  both = dataclasses.replace(PLAIN, window=20, rope_local_theta=50.0)
  one = dataclasses.replace(both, global_layers=(layer,))
  all_local = dataclasses.replace(PLAIN, rope_theta=50.0)
  np.testing.assert_allclose(
    _apply_step(both, batch),
    _apply_step(all_local, batch),
    atol=1e-5,
  )
  found = _apply_step(one, batch)
  for other in (both, PLAIN):
    assert np.abs(found - _apply_step(other, batch)).max() > 1e-3


# --- Step heads of published models -----------------------------------------


def _step_logits(**changes):
  """Returns step logits, the hidden states before them, and parameters."""
  config = dataclasses.replace(PLAIN, **changes)
  params = _params(config)

  @jax.jit
  def both(params, rows):
    return tuple(
      transformer.apply(config, params, rows, method=method)
      for method in ("step_logits", "hidden")
    )

  found = (*both(params, _fill([[_chain()]])), params)
  return jax.tree.map(np.asarray, found)


def test_two_classes_give_the_difference_of_their_logits():
  logits, x, params = _step_logits(step_classes=2)
  head = params["step_head"]
  both = x @ head["kernel"] + head["bias"]
  good = np.asarray(jax.nn.softmax(both, axis=-1))[..., 1]
  np.testing.assert_allclose(jax.nn.sigmoid(logits), good, atol=2e-6)


def test_the_mlp_head_is_linear_relu_linear():
  logits, x, params = _step_logits(step_head="mlp", step_classes=2)
  inner, outer = params["step_head"]["inner"], params["step_head"]["outer"]
  hidden = np.maximum(x @ inner["kernel"] + inner["bias"], 0)
  both = hidden @ outer["kernel"] + outer["bias"]
  np.testing.assert_allclose(logits, both[..., 1] - both[..., 0], atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_the_tokens_head_is_a_softmax_over_two_of_the_vocabulary(tied):
  changes = dict(step_head="tokens", step_tokens=(7, 30), tie_embedding=tied)
  logits, x, params = _step_logits(**changes)
  table = params["embedding"]["table"].T
  whole = x @ (table if tied else params["lm_head"]["kernel"])
  good = np.asarray(jax.nn.softmax(whole[..., [7, 30]], axis=-1))[..., 0]
  np.testing.assert_allclose(jax.nn.sigmoid(logits), good, atol=2e-6)


@pytest.mark.parametrize("head", ["step", "lm"])
def test_the_tokens_head_has_the_lm_heads_parameters(head):
  config = dataclasses.replace(
    CONFIGS["every_option"], step_head="tokens", step_tokens=(7, 30)
  )
  params = jax.eval_shape(
    lambda: transformer.init(jax.random.key(0), config, (head,))
  )
  assert set(params) == {"embedding", "layers", "final_norm", "lm_head"}


@pytest.mark.parametrize(
  "changes",
  [
    dict(step_head="quadratic"),
    dict(step_classes=4),
    dict(step_tokens=(1, 2)),
    dict(step_head="tokens"),
    dict(step_head="tokens", step_tokens=(5, 5)),
    dict(step_head="tokens", step_tokens=(5, 37)),
    dict(step_head="tokens", step_tokens=(5, 6), step_classes=2),
  ],
  ids=str,
)
def test_a_step_head_that_cant_be_is_refused_in_one_line(changes):
  with pytest.raises(errors.InputError, match=r"^model\.step_") as e:
    dataclasses.replace(PLAIN, **changes)
  assert "\n" not in str(e.value)
