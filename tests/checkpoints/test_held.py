"""Parameters in memory: their types, their layout, and no second copy."""

import dataclasses
import functools

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import batch as batch_lib
from prm_jax import schema
from prm_jax.checkpoints import held
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.device_check import model_checks
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import engine_programs
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.scoring import saved as saved_lib
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib

MODEL = model_config.ModelConfig(
  512, 64, 3, 4, 2, 16, 128, tie_embedding=False, qkv_bias=True
)
# The matrices of a layer are a third of the weights, the two tables the rest.
WIDE = dataclasses.replace(
  MODEL, vocab_size=8192, d_model=128, d_ff=512, compute_dtype="bfloat16"
)
HEADS = ("lm", "step")
_SOLUTIONS = [
  schema.Solution("a", "1 + 1?", ("One and one.", "It is 2.")),
  schema.Solution("b", "2 + 2?", ("It is 5.",)),
]


def _params(model, dtype, heads=HEADS):
  made = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), model, heads))
  )
  leaves, tree = jax.tree.flatten(made)
  rng = np.random.default_rng(0)
  return tree.unflatten(
    [jnp.asarray(0.1 * rng.standard_normal(x.shape), dtype) for x in leaves]
  )


def _own(params):
  return held.own_arrays(jax.tree.map(jnp.copy, params))


def _rows(model):
  rng = np.random.default_rng(1)
  batch = batch_lib.empty(2, 24)
  tokens = rng.integers(0, model.vocab_size, (2, 24)).astype(np.int32)
  index = np.broadcast_to(np.arange(24, dtype=np.int32), (2, 24))
  return batch.replace(
    tokens=tokens,
    positions=index,
    visible_until=np.full((2, 24), 24, np.int32),
    parent=index - 1,
  )


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("method", ["step_logits", "lm_logits"])
def test_layers_as_own_arrays_compute_what_the_stack_does(method, window):
  model = dataclasses.replace(MODEL, window=window)
  params = _params(model, jnp.float32)
  compute = jax.jit(functools.partial(transformer.apply, model, method=method))
  stacked = compute(params, _rows(model))
  np.testing.assert_allclose(
    compute(_own(params), _rows(model)), stacked, rtol=2e-5, atol=2e-5
  )


def test_layers_of_equal_shapes_are_traced_once(monkeypatch):
  traced = []

  class Block(transformer.Block):
    def apply(self, *args, **kwargs):
      traced.append(self.config)
      return super().apply(*args, **kwargs)

  monkeypatch.setattr(transformer, "Block", Block)
  # No other test has traced it.
  model = dataclasses.replace(MODEL, num_layers=5, d_ff=96)
  params = _own(_params(model, jnp.float32))
  compute = functools.partial(transformer.apply, model, method="lm_logits")
  jax.jit(compute).trace(params, _rows(model))
  assert len(traced) == 1


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
  """Returns a function to the folder of a saved model; each is made once."""

  @functools.cache
  def made(*model):
    return _save(tmp_path_factory.mktemp("held") / "model", *model)

  return made


def _save(folder, program, dtype, compute_dtype):
  model = dataclasses.replace(MODEL, compute_dtype=compute_dtype)
  bytes_ = tokenizer_lib.Bytes()
  read = encoding_records.record_of(
    encoding.EncodingConfig(template=own_form.OWN)
  )
  folder.mkdir()
  description = model_json.Description(
    program, model, read, bytes_.save(folder)
  )
  model_json.write_description(folder, description)
  head = dict(sft="lm", prm="step")[program]
  saves.save_params(folder, _params(model, dtype, (head,)), description)
  return folder


@pytest.mark.parametrize(
  ("saved", "computed", "asked", "in_memory"),
  [
    ("bfloat16", "bfloat16", None, "bfloat16"),
    ("bfloat16", "float32", None, "float32"),
    ("bfloat16", "bfloat16", "float32", "float32"),
    ("bfloat16", "float32", "bfloat16", "bfloat16"),
    ("float32", "bfloat16", None, "float32"),
    ("float16", "float16", None, "float16"),
  ],
)
@pytest.mark.parametrize("program", ["sft", "prm"])
def test_a_weight_keeps_its_type_unless_float32_is_computed(
  folder_of, program, saved, computed, asked, in_memory
):
  folder = folder_of(program, saved, computed)
  load = dict(sft=sampler.load, prm=saved_lib.load)[program]
  loaded = load(folder, compute_dtype=asked)
  assert {str(x.dtype) for x in jax.tree.leaves(loaded.params)} == {in_memory}
  assert loaded.config.compute_dtype == (asked or computed)
  # What is decoded, and on a CPU what isn't float32, lies layer by layer.
  own = program == "sft" or in_memory != "float32"
  assert transformer.is_unstacked(loaded.params) == own


def test_a_bfloat16_model_scores_as_its_numbers_in_float32_do(folder_of):
  folder = folder_of("prm", "bfloat16", "bfloat16")
  narrow, wide = (
    saved_lib.load(folder, compute_dtype=t).score(_SOLUTIONS)
    for t in (None, "float32")
  )
  for a, b in zip(narrow, wide, strict=True):
    np.testing.assert_allclose(a.scores, b.scores, atol=0.02)


class _CompiledError(Exception):
  """Ends a call once its program is compiled: it need not run."""


def _decoding(params, model, slots):
  """Returns the compiled program of eight tokens in some slots."""
  engine = rollout_engine.Engine(
    model, params, model_checks.Endless(model.vocab_size), slots=slots
  )
  compiled = []
  jitted = engine_programs.decode_chunk

  def compile_(*args, **options):
    compiled.append(jitted.lower(*args, **options).compile())
    raise _CompiledError

  requests = [
    rollout_engine.Request(str(i), np.arange(4) + i, 1) for i in range(slots)
  ]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(engine_programs, "decode_chunk", compile_)
    sampling = sampler.Sampling(8, temperature=0.0)
    with pytest.raises(_CompiledError):
      engine.complete(requests, sampling, jax.random.key(0))
  return compiled[0]


@pytest.mark.parametrize("program", ["sft", "prm"])
def test_on_a_cpu_bfloat16_kernels_are_held_as_out_by_in(folder_of, program):
  folder = folder_of(program, "bfloat16", "bfloat16")
  load = dict(sft=sampler.load, prm=saved_lib.load)[program]
  params = load(folder).params
  up = params["layers"][0]["mlp"]["up"]
  assert {k: x.shape for k, x in up.items()} == {"transposed": (128, 64)}
  saved = parameters.load_params(folder)
  np.testing.assert_array_equal(
    up["transposed"], saved["layers"]["mlp"]["up"]["kernel"][0].T
  )
  # No head but that of the vocabulary is a product of this kind.
  assert program == "sft" or "kernel" in params["step_head"]
  assert model_json.fingerprint(folder, params) == model_json.fingerprint(
    folder, saved
  )


@pytest.mark.parametrize("rows", [1, 24])
@pytest.mark.parametrize("method", ["step_logits", "lm_logits"])
def test_transposed_kernels_compute_what_kernels_do(method, rows):
  model = dataclasses.replace(MODEL, compute_dtype="bfloat16")
  params = _params(model, jnp.bfloat16)
  batch = jax.tree.map(lambda x: x[:1, :rows], _rows(model))
  compute = jax.jit(functools.partial(transformer.apply, model, method=method))
  usual = compute(params, batch)
  found = compute(held.transposed(_own(params)), batch)
  np.testing.assert_allclose(found, usual, rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
  ("tied", "slots"),
  [(False, 4), (True, 4), (False, 1), (True, 1)],
)
def test_decoding_in_bfloat16_makes_no_second_copy_of_any_matrix(tied, slots):
  model = dataclasses.replace(WIDE, tie_embedding=tied)
  params = held.transposed(_own(_params(model, jnp.bfloat16, ("lm",))))
  memory = _decoding(params, model, slots).memory_analysis()
  smallest_matrix = min(
    x.nbytes for x in jax.tree.leaves(params) if x.ndim == 2 and x.size > 2**15
  )
  logits = 4 * slots * model.vocab_size  # bytes, in float32
  assert memory.temp_size_in_bytes < 2 * logits + smallest_matrix


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_stack_is_decoded_as_copies_in_the_type_of_the_matmuls(tied, scaled):
  model = dataclasses.replace(
    MODEL,
    compute_dtype="bfloat16",
    tie_embedding=tied,
    scale_embedding=scaled,
  )
  stack = _params(model, jnp.float32)
  found = held.for_decoding(model, stack)
  assert transformer.is_unstacked(found)
  # Once is enough.
  assert held.for_decoding(model, found) is found
  for path, x in jax.tree_util.tree_leaves_with_path(found):
    names = [str(getattr(key, "key", "")) for key in path]
    head = names[0] == "embedding" and tied and not scaled
    matrix = names[-1] == "kernel" and names[0] in ("layers", "lm_head")
    assert (x.dtype == jnp.bfloat16) == (head or matrix), names
  tokens = jnp.arange(6).reshape(2, 3)
  for read in (stack, found):
    assert not any(x.is_deleted() for x in jax.tree.leaves(read))
  as_one = functools.partial(transformer.apply, model, method="prefill")
  lengths = jnp.full(2, 3)
  for a, b in zip(
    jax.tree.leaves(as_one(found, tokens, lengths)),
    jax.tree.leaves(as_one(stack, tokens, lengths)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def test_a_policy_in_its_form_for_decoding_is_not_copied():
  params = _own(_params(MODEL, jnp.float32))
  assert held.for_decoding(MODEL, params) is params
  # Narrower than the matmuls: each token converts it, and no copy is larger.
  narrow = _own(_params(MODEL, jnp.bfloat16))
  assert held.for_decoding(MODEL, narrow) is narrow


def test_a_chunk_of_a_stacked_policy_copies_no_layer():
  model = dataclasses.replace(WIDE, compute_dtype="float32")
  params = _params(model, jnp.float32, ("lm",))
  memory = _decoding(params, model, 4).memory_analysis()
  stacks = jax.tree.leaves(params["layers"])
  layers = sum(x.nbytes for x in stacks) // model.num_layers
  logits = 4 * 4 * model.vocab_size
  assert memory.temp_size_in_bytes < 2 * logits + layers
