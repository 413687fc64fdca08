"""Live parity with transformers on random models, in both directions.

Needs the `parity` extra (make parity), and is skipped without it; test_families.py
holds frozen cases of the same law.
"""

import copy
import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from golden import make_hf  # noqa: E402
import test_families  # noqa: E402

from prm_jax import huggingface  # noqa: E402

torch.set_num_threads(1)  # other tests have the other cores
pytestmark = pytest.mark.parity
KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3Text")
SEEDS = range(3)


def _config(kind, draw):
  """Returns a config of the class with shapes and options drawn at random."""
  heads, layers = draw.choice([2, 4, 6]), draw.randint(1, 4)
  config = dict(
    vocab_size=draw.randint(20, 70),
    hidden_size=heads * draw.choice([6, 8, 10]),
    intermediate_size=draw.randint(16, 48),
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=draw.choice(
      [n for n in range(1, heads + 1) if heads % n == 0]
    ),
    max_position_embeddings=128,
    rms_norm_eps=draw.choice([1e-6, 1e-5]),
    tie_word_embeddings=draw.random() < 0.5,
    pad_token_id=0,
    rope_parameters=_rope(draw),
  )
  if kind != "Qwen2":  # it has no head_dim of its own
    config["head_dim"] = draw.choice([4, 8, 14])
  if kind == "Mistral":
    config["sliding_window"] = draw.choice([None, 1, 7])
  if kind.startswith("Qwen"):
    config |= dict(
      use_sliding_window=draw.random() < 0.7,
      sliding_window=draw.randint(1, 9),
      max_window_layers=draw.randint(0, layers),
    )
  if kind.startswith("Gemma"):
    types = ["full_attention", "sliding_attention"]
    config |= dict(
      sliding_window=draw.randint(1, 9),
      layer_types=[draw.choice(types) for _ in range(layers)],
      query_pre_attn_scalar=draw.randint(4, 40),
      final_logit_softcapping=draw.choice([None, 5.0]),
    )
  if kind == "Gemma2":
    config["attn_logit_softcapping"] = draw.choice([None, 3.0])
  if kind == "Gemma3Text":
    config["rope_parameters"] = dict(
      full_attention=_rope(draw),
      sliding_attention=dict(rope_type="default", rope_theta=1_000.0),
    )
  return config


def _rope(draw):
  rope = dict(rope_theta=draw.choice([500.0, 10_000.0, 1_000_000.0]))
  kind = draw.choice(["default", "linear", "llama3"])
  if kind != "default":
    rope["factor"] = draw.choice([2.0, 8.0])
  if kind == "llama3":
    rope |= dict(
      low_freq_factor=1.0,
      high_freq_factor=draw.choice([2.0, 4.0]),
      original_max_position_embeddings=draw.choice([16, 64]),
    )
  return dict(rope, rope_type=kind)


def _drawn(kind, seed):
  """Returns transformers' model of a random config, and random tokens."""
  draw = random.Random(f"{kind} {seed}")
  config = _config(kind, draw)
  tokens = np.random.default_rng(seed).integers(
    0, config["vocab_size"], (2, 33)
  )
  return make_hf.make_model(kind, config, seed), tokens.astype(np.int32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_models_give_transformers_logits_in_and_out(
  tmp_path, kind, seed
):
  model, tokens = _drawn(kind, seed)
  model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
  expected = make_hf.logits(model, tokens)
  assert np.abs(expected).max() > 1

  source = huggingface.read_config(tmp_path / "theirs")
  tensors = huggingface.open_tensors(tmp_path / "theirs")
  params, left = huggingface.load_params(tensors, source.family, source.model)
  assert not left
  found = test_families._logits(source.model, params, tokens)
  # Their float32 has been 1.05e-4 from their float64, on a CPU without AMX.
  exact = make_hf.logits(copy.deepcopy(model).double(), tokens)
  np.testing.assert_allclose(found, exact, atol=1e-4)

  # Nothing of their config.json but what the model says.
  huggingface.save(
    tmp_path / "ours",
    source.family,
    source.model,
    huggingface.export_tensors(source.family, source.model, params),
    dtype="float32",
    max_shard_bytes=20_000,
  )
  again, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "ours", dtype="float32", output_loading_info=True
  )
  assert type(again) is type(model)
  assert not any(report.values()), report
  np.testing.assert_array_equal(make_hf.logits(again.eval(), tokens), expected)


def test_the_goldens_are_what_transformers_gives_today():
  for case in test_families.CASES:
    model = transformers.AutoModelForCausalLM.from_pretrained(
      test_families.GOLDEN / case, dtype="float32"
    )
    golden = np.load(test_families.GOLDEN / case / "expected.npz")
    found = make_hf.logits(model.eval(), golden["tokens"])
    # Another CPU rounds otherwise.
    np.testing.assert_allclose(found, golden["logits"], atol=3e-5)


@pytest.mark.parametrize("more", [{}, dict(use_sliding_window=True)], ids=str)
@pytest.mark.parametrize("family", huggingface.FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes(
  tmp_path, family, more
):
  """transformers fills the gaps of a config and writes all of it."""
  sizes = dict(
    vocab_size=99,
    hidden_size=2048,
    intermediate_size=64,
    num_hidden_layers=31,
    num_attention_heads=32,
  )
  bare = json.dumps(dict(model_type=family, **sizes, **more))
  (tmp_path / "config.json").write_text(bare)
  full = transformers.AutoConfig.from_pretrained(tmp_path)
  full.save_pretrained(tmp_path / "full")
  written = json.loads((tmp_path / "full" / "config.json").read_text())
  assert len(written) > len(json.loads(bare)) + 5
  found, expected = (
    huggingface.read_config(folder).model
    for folder in (tmp_path, tmp_path / "full")
  )
  assert found == expected
  windowed = family.startswith(("mistral", "gemma")) or (
    bool(more) and family.startswith("qwen")
  )
  assert (found.window is not None) == windowed
