"""Adapters: what they add, what they leave alone, and how they go away."""

import dataclasses
import functools

from flax import linen as nn
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.models import layers
from prm_jax.models import lora
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import sampler
from prm_jax.rows import packing
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib

TOKENIZER = tokenizer_lib.Bytes()
PLAIN = model_config.ModelConfig(
  vocab_size=TOKENIZER.vocab_size,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
ADAPTED = dataclasses.replace(PLAIN, lora_rank=3, lora_alpha=6.0)
HEADS = ("lm", "step", "outcome", "value")
METHODS = ("step_logits", "lm_logits")
VARIANTS = {
  "all": {},
  "two": dict(lora_targets=("value", "down"), remat="full"),
  "loop": dict(scan=False, remat="dots"),
  "options": dict(
    num_kv_heads=1,
    qkv_bias=True,
    qk_norm=True,
    tie_embedding=False,
    scale_embedding=True,
  ),
}


def _birth(config):
  init = functools.partial(transformer.init, config=config, heads=HEADS)
  return meta.unbox(jax.jit(init)(jax.random.key(0)))


@functools.cache
def _params(config, scale=0.3):
  """Returns random parameters, none of them 0, as lora_b is at birth."""
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(lambda: _birth(config)),
  )


def _flat(tree):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def _without_adapters(tree):
  if not isinstance(tree, dict):
    return tree
  return {
    name: _without_adapters(leaf)
    for name, leaf in tree.items()
    if name not in lora.NAMES
  }


def _batch():
  random = np.random.default_rng(1)
  examples = [
    encoding.Example(
      tokens=random.integers(0, PLAIN.vocab_size, n).astype(np.int32),
      labels=np.ones(n, np.float32),
      weights=np.ones(n, np.float32),
      step_end=np.ones(n, bool),
    )
    for n in (5, 9, 12)
  ]
  rows = [
    [packing.chain(x) for x in examples[:2]],
    [packing.chain(examples[2])],
  ]
  return jax.tree.map(jnp.asarray, packing.fill(rows, 16))


@functools.cache
def _forward(config):
  def forward(params, batch):
    return {
      method: transformer.apply(config, params, batch, method=method)
      for method in METHODS
    }

  return jax.jit(forward)


def _logits(config, params):
  return jax.tree.map(np.asarray, _forward(config)(params, _batch()))


def _assert_close(found, expected, tolerance=1e-5):
  for name, value in expected.items():
    np.testing.assert_allclose(
      found[name], value, atol=tolerance, rtol=tolerance, err_msg=name
    )


# --- What they add ----------------------------------------------------------


def test_a_matrix_with_an_adapter_is_the_sum_written_out_in_numpy():
  x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
  dense = layers.Dense(
    5, ("embed", "mlp"), "float32", True, lora=model_config.Lora(2, 1.5)
  )
  # Dense has a field named init.
  init = nn.init(lambda module, x: module(x), dense)
  shapes = jax.eval_shape(init, jax.random.key(0), x)
  random = np.random.default_rng(1)
  params = jax.tree.map(lambda s: random.normal(size=s.shape), shapes)
  p = meta.unbox(params)["params"]
  assert {k: v.shape for k, v in p.items()} == {
    "kernel": (4, 5),
    "bias": (5,),
    "lora_a": (4, 2),
    "lora_b": (2, 5),
  }
  expected = x @ p["kernel"] + p["bias"] + 1.5 * (x @ p["lora_a"] @ p["lora_b"])
  found = jax.jit(dense.apply)(params, jnp.asarray(x))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_scale_is_alpha_over_the_rank():
  assert ADAPTED.lora("query") == model_config.Lora(3, 2.0)
  assert PLAIN.lora("query") is None
  some = dataclasses.replace(ADAPTED, lora_targets=("up",))
  assert [n for n in model_config.LORA_TARGETS if some.lora(n)] == ["up"]


@pytest.mark.parametrize("targets", [("query",), model_config.LORA_TARGETS])
def test_the_named_matrices_get_adapters_and_no_others(targets):
  config = dataclasses.replace(ADAPTED, lora_targets=targets)
  found = _flat(jax.eval_shape(lambda: _birth(config)))
  plain = _flat(jax.eval_shape(lambda: _birth(PLAIN)))
  added = {name.split("/")[-2] for name in found.keys() - plain.keys()}
  assert added == {*targets}
  for name in found.keys() - plain.keys():
    kernel = found[name.rpartition("/")[0] + "/kernel"].shape
    expected = dict(
      lora_a=(2, kernel[1], config.lora_rank),
      lora_b=(2, config.lora_rank, kernel[2]),
    )
    assert found[name].shape == expected[name.split("/")[-1]]


def test_at_birth_adapters_add_nothing():
  config = dataclasses.replace(ADAPTED, d_model=48)
  params = jax.tree.map(np.asarray, _birth(config))
  for name, leaf in _flat(params).items():
    if name.endswith("lora_b"):
      assert not leaf.any()
    elif name.endswith("lora_a"):
      # Scaled by fan-in, another in each layer: variance 1 / in.
      assert 0.7 < leaf.std() * leaf.shape[1] ** 0.5 < 1.3, name
      assert (leaf[0] != leaf[1]).any()
  plain = dataclasses.replace(config, lora_rank=0)
  jax.tree.map(
    np.testing.assert_array_equal,
    _logits(config, params),
    _logits(plain, _without_adapters(params)),
  )


# --- How they go away -------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_merged_the_model_computes_the_same(changes):
  config = dataclasses.replace(ADAPTED, **changes)
  params = _params(config)
  model, merged = lora.merge(config, params)
  assert model == dataclasses.replace(
    PLAIN, **{k: v for k, v in changes.items() if k != "lora_targets"}
  )
  abstract = jax.eval_shape(lambda: _birth(model))
  assert jax.tree.structure(merged) == jax.tree.structure(abstract)
  found, expected = _logits(model, merged), _logits(config, params)
  _assert_close(found, expected)
  # Without them it's another model, so that the test says something.
  off = jax.tree.map_with_path(
    lambda path, x: np.zeros_like(x) if path[-1].key == "lora_b" else x, params
  )
  assert (
    np.abs(_logits(config, off)["lm_logits"] - expected["lm_logits"]).max()
    > 0.1
  )


def test_merging_changes_adapted_kernels_only_and_not_its_input():
  config = dataclasses.replace(ADAPTED, lora_targets=("gate",))
  params = _params(config)
  before = jax.tree.map(np.array, params)
  _, merged = lora.merge(config, params)
  jax.tree.map(np.testing.assert_array_equal, params, before)
  flat = _flat(before)
  changed = [
    name
    for name, x in _flat(merged).items()
    if (np.asarray(x) != flat[name]).any()
  ]
  assert changed == ["layers/mlp/gate/kernel"]
  p = before["layers"]["mlp"]["gate"]
  np.testing.assert_allclose(
    merged["layers"]["mlp"]["gate"]["kernel"],
    p["kernel"] + 2.0 * np.einsum("lir,lro->lio", p["lora_a"], p["lora_b"]),
    rtol=1e-5,
    atol=1e-6,
  )


def test_bfloat16_matrices_are_merged_in_float32():
  wide = _params(ADAPTED)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide)
  exact = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
  merged, expected = (lora.merge(ADAPTED, x)[1] for x in (narrow, exact))
  up = merged["layers"]["mlp"]["up"]["kernel"]
  assert up.dtype == jnp.float32
  np.testing.assert_array_equal(up, expected["layers"]["mlp"]["up"]["kernel"])
  # What no adapter changes is left as it was.
  assert merged["embedding"]["table"].dtype == jnp.bfloat16


def test_a_model_without_adapters_is_merged_already():
  params = _params(PLAIN)
  assert lora.merge(PLAIN, params) == (PLAIN, params)


# --- In use -----------------------------------------------------------------


def test_a_policy_writes_the_same_merged_or_not():
  """Its decoding goes layer by layer, on another path than training."""
  prompts = [TOKENIZER.encode(x) for x in ("1+1", "abcdefg")]
  sampling = sampler.Sampling(max_tokens=8, temperature=0.0)

  def complete(config, params):
    policy = sampler.Sampler(config, params, TOKENIZER)
    rows = policy.complete(prompts, 1, sampling, jax.random.key(0))
    return [row[0] for row in rows]

  found = complete(ADAPTED, _params(ADAPTED))
  expected = complete(*lora.merge(ADAPTED, _params(ADAPTED)))
  for a, b in zip(found, expected, strict=True):
    assert a.tokens.tolist() == b.tokens.tolist()
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
  alone = complete(PLAIN, _without_adapters(_params(ADAPTED)))
  assert any(
    a.tokens.tolist() != b.tokens.tolist()
    for a, b in zip(found, alone, strict=True)
  )


@pytest.mark.parametrize("program", ["prm", "orm"])
def test_a_scorer_scores_the_same_merged_or_not(program):
  solutions = [
    schema.Solution(id="a", problem="1+1", steps=("2", "so 2")),
    schema.Solution(id="b", problem="2+1", steps=("3",)),
  ]

  def score(config, params):
    encoding_config = encoding.EncodingConfig(
      max_tokens=64, template=own_form.OWN
    )
    return scorer.Scorer(
      program, config, params, TOKENIZER, encoding_config
    ).score(solutions)

  found = score(ADAPTED, _params(ADAPTED))
  expected = score(*lora.merge(ADAPTED, _params(ADAPTED)))
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
  assert np.ptp([x for row in found for x in row.scores]) > 1e-3


# --- The config -------------------------------------------------------------


def test_targets_are_a_set_in_one_order_with_a_hash():
  turned = dataclasses.replace(ADAPTED, lora_targets=("up", "query"))
  assert turned == dataclasses.replace(ADAPTED, lora_targets=("query", "up"))
  assert hash(turned)


@pytest.mark.parametrize(
  "changes",
  [
    dict(lora_rank=-1),
    dict(lora_alpha=0.0),
    dict(lora_alpha=float("nan")),
    dict(lora_targets=()),
    dict(lora_targets=("query", "query")),
    dict(lora_targets=("q_proj",)),
  ],
  ids=str,
)
def test_adapters_that_cant_be_are_refused_in_one_line(changes):
  ((name, _),) = changes.items()
  with pytest.raises(errors.InputError, match=f"model.{name}=") as e:
    dataclasses.replace(PLAIN, **changes)
  assert "\n" not in str(e.value)
