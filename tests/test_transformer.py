"""The decoder: packed = alone, a forest = its solutions one by one."""

import dataclasses
import functools

from flax import linen as nn
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import batch as batch_lib
from prm_jax import losses
from prm_jax.data import encode, packing
from prm_jax.models import config as config_lib
from prm_jax.models import transformer

PLAIN = config_lib.ModelConfig(
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
    rope_theta=500.0,
  ),
}
ROW = 48
METHODS = ("step_logits", "outcome_logits", "lm_logits")
HEADS = ("step", "outcome", "lm")


@functools.cache
def _params(config):
  """Returns parameters of which none is 0, as the heads are at birth."""
  params = meta.unbox(transformer.init(jax.random.key(0), config, HEADS))
  leaves, treedef = jax.tree.flatten(params)
  random = np.random.default_rng(0)
  leaves = [x + 0.2 * random.normal(size=x.shape) for x in leaves]
  return jax.tree.unflatten(
    treedef, [jnp.asarray(x, jnp.float32) for x in leaves]
  )


@functools.cache
def _forward(config, method):
  return jax.jit(functools.partial(transformer.apply, config, method=method))


def _apply(config, batch, method):
  return np.asarray(_forward(config, method)(_params(config), batch))


def _totals(config):
  """Returns params, batch -> the summed loss of a head, to differentiate."""

  def step(params, batch):
    logits = transformer.apply(config, params, batch, method="step_logits")
    return losses.step_bce(logits, batch.labels, batch.weights)[0]

  def lm(params, batch):
    logits = transformer.apply(config, params, batch, method="lm_logits")
    weights = jnp.where(batch.parent >= 0, batch.weights, 0)
    return losses.language_model(logits, batch.tokens, weights)[0]

  return dict(step=step, lm=lm)


@functools.cache
def _gradient(config, head):
  return jax.jit(jax.value_and_grad(_totals(config)[head]))


def _device(batch):
  return jax.tree.map(jnp.asarray, batch)


def _fill(rows, tokens=ROW):
  return _device(packing.fill(rows, tokens))


def _example(tokens, random, weights=None):
  """Returns an example with targets at about every third token."""
  n = len(tokens)
  ends = random.random(n) < 0.35
  if weights is None:
    weights = ends * random.integers(1, 3, n)
  return encode.Example(
    tokens=np.asarray(tokens, np.int32),
    labels=(random.random(n) < 0.5).astype(np.float32) * (weights > 0),
    weights=np.asarray(weights, np.float32),
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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_solution_reads_the_same_packed_or_alone(config, method):
  random = np.random.default_rng(0)
  chains = [
    packing.chain(_example(random.integers(0, 37, n), random))
    for n in (9, 17, 1, 14)
  ]
  logits = _apply(config, _fill([chains, *([x] for x in chains)]), method)
  start = 0
  # Nothing predicts the first token of a solution.
  skip = method == "lm_logits"
  for row, chain in enumerate(chains, 1):
    n = len(chain)
    np.testing.assert_allclose(
      logits[0, start + skip : start + n],
      logits[row, skip:n],
      atol=1e-5,
    )
    start += n
  assert np.ptp(logits[0, :start]) > 0.1


# --- A forest = its solutions one by one ------------------------------------


def _paths(batch, row):
  """Returns the ids from the root to each token, following parent."""
  paths = []
  for k, parent in enumerate(np.asarray(batch.parent[row])):
    before = paths[parent] if parent >= 0 else ()
    paths.append((*before, int(batch.tokens[row, k])))
  return paths


@pytest.mark.parametrize("cut", [ROW, 27], ids=["whole", "cut"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_forest_scores_as_its_solutions_one_by_one(config, seed, cut):
  family = _family(seed)
  pieces = packing.trees(family, cut)
  assert len(pieces) == 1 or cut < ROW
  alone = _fill([[packing.chain(x)] for x in family])
  forest = _fill([[x] for x in pieces] + [[]] * (len(family) - len(pieces)))
  for method in METHODS:
    expected = _apply(config, alone, method)
    found = _apply(config, forest, method)
    by_path = {}
    for row, piece in enumerate(pieces):
      for k, path in enumerate(_paths(forest, row)[: len(piece)]):
        by_path.setdefault(path, []).append(found[row, k])
    for row, example in enumerate(family):
      for k in range(method == "lm_logits", len(example)):
        for logits in by_path[tuple(example.tokens[: k + 1].tolist())]:
          np.testing.assert_allclose(logits, expected[row, k], atol=1e-5)


@pytest.mark.parametrize("cut", [ROW, 27], ids=["whole", "cut"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_forest_learns_as_its_solutions_one_by_one(seed, cut):
  """The gradient of the summed loss, though solutions disagree on labels."""
  family = _family(seed)
  pieces = packing.trees(family, cut)
  twins = sum(
    len(set(x)) < len(x)
    for piece in pieces
    for x in [_paths(_fill([[piece]]), 0)[: len(piece)]]
  )
  assert twins, "no two solutions disagree: the test would show nothing"
  alone = _fill([[packing.chain(x)] for x in family])
  forest = _fill([[x] for x in pieces] + [[]] * (len(family) - len(pieces)))
  gradient = _gradient(CONFIGS["every_option"], "step")
  params = _params(CONFIGS["every_option"])
  _assert_trees_close(gradient(params, forest), gradient(params, alone))


@pytest.mark.parametrize("cut", [ROW, 27], ids=["whole", "cut"])
def test_a_forest_teaches_language_as_its_solutions_one_by_one(cut):
  random = np.random.default_rng(3)
  family = [
    _example(x.tokens, random, np.arange(len(x)) >= 3) for x in _family(3)
  ]
  family = [
    dataclasses.replace(x, labels=np.zeros_like(x.labels)) for x in family
  ]
  pieces = packing.trees(family, cut)
  alone = _fill([[packing.chain(x)] for x in family])
  forest = _fill([[x] for x in pieces] + [[]] * (len(family) - len(pieces)))
  gradient = _gradient(CONFIGS["every_option"], "lm")
  params = _params(CONFIGS["every_option"])
  expected = gradient(params, alone)
  assert float(expected[0]) > 1
  _assert_trees_close(gradient(params, forest), expected)


# --- Padding ----------------------------------------------------------------


def test_padding_never_influences_a_score_or_a_gradient():
  random = np.random.default_rng(0)
  chain = packing.chain(_example(random.integers(0, 37, 20), random))
  clean = _fill([[chain], []])
  padded = jax.tree.map(np.array, clean)
  for row, start in ((0, 20), (1, 0)):
    shape = (ROW - start,)
    padded.tokens[row, start:] = random.integers(0, 37, shape)
    padded.positions[row, start:] = random.integers(0, 99, shape)
  padded = _device(padded)
  for method in METHODS:
    found = _apply(PLAIN, padded, method)[0, :20]
    np.testing.assert_array_equal(found, _apply(PLAIN, clean, method)[0, :20])
  for head in ("step", "lm"):
    gradient = _gradient(PLAIN, head)
    found = gradient(_params(PLAIN), padded)
    _assert_trees_close(found, gradient(_params(PLAIN), clean), 1e-6)


def test_a_wider_row_and_more_rows_change_nothing():
  random = np.random.default_rng(0)
  chain = packing.chain(_example(random.integers(0, 37, 20), random))
  gradient = _gradient(PLAIN, "step")
  narrow = gradient(_params(PLAIN), _fill([[chain]], 20))
  wide = gradient(_params(PLAIN), _fill([[], [chain], []]))
  _assert_trees_close(wide, narrow)


# --- Variants of one computation --------------------------------------------


@pytest.mark.parametrize(
  "variant",
  [
    dict(scan=False),
    dict(remat="full"),
    dict(remat="dots"),
    dict(remat="full", scan=False),
  ],
  ids=str,
)
def test_scan_and_remat_change_neither_loss_nor_gradient(variant):
  config = dataclasses.replace(PLAIN, **variant)
  random = np.random.default_rng(0)
  chain = packing.chain(_example(random.integers(0, 37, 20), random))
  batch = _fill([[chain], [chain, chain]])
  _assert_trees_close(
    _gradient(config, "step")(_params(PLAIN), batch),
    _gradient(PLAIN, "step")(_params(PLAIN), batch),
  )


def test_remat_saves_the_memory_that_it_promises():
  memory = {
    remat: _gradient_memory(dataclasses.replace(PLAIN, remat=remat))
    for remat in config_lib.REMAT
  }
  assert memory["full"] < memory["dots"] < memory["none"]


def test_unused_keys_and_values_cost_training_no_memory(monkeypatch):
  """A layer returns them for the prefill; elsewhere XLA must drop them."""

  class Silent(transformer.Block):
    @nn.compact
    def __call__(self, *args):
      return super().__call__(*args)[0], None

  with_them = _gradient_memory(PLAIN)
  monkeypatch.setattr(transformer, "Block", Silent)
  assert with_them == _gradient_memory(PLAIN)


def _gradient_memory(config):
  """Returns the bytes that the compiled step gradient needs besides I/O."""
  config = dataclasses.replace(config, num_layers=6)
  params = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), config, HEADS))
  )
  gradient = jax.jit(jax.grad(_totals(config)["step"]))
  batch = _device(batch_lib.empty(2, 64))
  return (
    gradient.lower(params, batch).compile().memory_analysis().temp_size_in_bytes
  )


def test_bfloat16_computes_with_float32_parameters_and_logits():
  config = dataclasses.replace(
    CONFIGS["every_option"], compute_dtype="bfloat16"
  )
  random = np.random.default_rng(0)
  chain = packing.chain(_example(random.integers(0, 37, 20), random))
  batch = _fill([[chain]])
  born = meta.unbox(transformer.init(jax.random.key(0), config, HEADS))
  assert {x.dtype for x in jax.tree.leaves(born)} == {jnp.dtype("float32")}
  assert _apply(config, batch, "hidden").dtype == jnp.bfloat16
  for method in METHODS:
    found = _apply(config, batch, method)[0, :20]
    expected = _apply(CONFIGS["every_option"], batch, method)[0, :20]
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert np.abs(found - expected).max() > 0
  gradient = _gradient(config, "step")(_params(config), batch)[1]
  assert {x.dtype for x in jax.tree.leaves(gradient)} == {np.dtype("float32")}


def test_positions_enter_as_differences_only():
  random = np.random.default_rng(0)
  chain = packing.chain(_example(random.integers(0, 37, 20), random))
  batch = _fill([[chain]])
  shifted = batch.replace(positions=batch.positions + 100)
  stretched = batch.replace(positions=2 * batch.positions)
  expected = _apply(PLAIN, batch, "step_logits")[0, :20]
  found = _apply(PLAIN, shifted, "step_logits")[0, :20]
  np.testing.assert_allclose(found, expected, atol=1e-4)
  found = _apply(PLAIN, stretched, "step_logits")[0, :20]
  assert np.abs(found - expected).max() > 1e-2


# --- Heads ------------------------------------------------------------------


def test_a_new_head_gives_every_step_one_half():
  batch = _fill([[]])
  params = transformer.init(jax.random.key(1), PLAIN, ("step",))
  logits = transformer.apply(
    PLAIN, meta.unbox(params), batch, method="step_logits"
  )
  assert not logits.any()


@pytest.mark.parametrize("head", transformer.HEADS)
def test_only_the_named_head_gets_parameters(head):
  config = CONFIGS["every_option"]
  trunk = {"embedding", "layers", "final_norm"}
  params = transformer.init(jax.random.key(0), config, (head,))
  assert set(params) == trunk | {f"{head}_head"}


def test_three_classes_give_three_logits():
  config = dataclasses.replace(PLAIN, step_classes=3)
  assert _apply(config, _fill([[]]), "step_logits").shape == (1, ROW, 3)


def test_body_parameters_counts_the_layers_matrices():
  layers = _params(CONFIGS["every_option"])["layers"]
  kernels = [
    x.size
    for path, x in jax.tree_util.tree_flatten_with_path(layers)[0]
    if path[-1].key == "kernel"
  ]
  assert CONFIGS["every_option"].body_parameters == sum(kernels)
