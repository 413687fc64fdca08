"""Makes tests/golden/hf: tiny random checkpoints and transformers' logits.

  pip install -c constraints.txt -e '.[parity]'
  python tests/golden/make_hf.py

One folder for each case: config.json, safetensors (one file or shards), and
expected.npz with tokens [B, T] and logits [B, T, V], computed in float32 on a
CPU. The weights are far from an initialization's: no norm is 1, no bias 0, no
attention flat. The files are committed; run this again only to change a case.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "hf"
BATCH, TOKENS = 2, 24

_TINY = dict(
  vocab_size=53,
  hidden_size=24,
  intermediate_size=40,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=64,
  pad_token_id=0,
)

# Class in transformers, config, and how it is stored: dtype, bytes of a shard,
# and whether config.json is spelled as in released checkpoints.
CASES = {
  "llama2": (
    "Llama",
    dict(_TINY, num_key_value_heads=4, rms_norm_eps=1e-5),
    dict(dtype="float32", released=True),
  ),
  "llama3": (
    "Llama",
    dict(
      _TINY,
      head_dim=10,
      tie_word_embeddings=True,
      rope_parameters=dict(
        rope_type="llama3",
        rope_theta=10_000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        # Of five pairs one turns 10 times in it, one 1.6 times, three less
        # than once: kept, between and slowed.
        original_max_position_embeddings=64,
      ),
    ),
    dict(dtype="bfloat16", released=True),
  ),
  "llama_linear": (
    "Llama",
    dict(
      _TINY,
      num_key_value_heads=1,
      rope_parameters=dict(rope_type="linear", rope_theta=10_000.0, factor=4.0),
    ),
    dict(dtype="bfloat16"),
  ),
  "mistral": (
    "Mistral",
    dict(_TINY, num_hidden_layers=3, sliding_window=5, head_dim=12),
    dict(dtype="bfloat16", shard="12KB", released=True),
  ),
  "qwen2": (
    "Qwen2",
    dict(
      _TINY,
      num_key_value_heads=1,
      tie_word_embeddings=True,
      rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0),
    ),
    dict(dtype="float32", released=True),
  ),
  "qwen2_windows": (
    "Qwen2",
    dict(
      _TINY,
      num_hidden_layers=3,
      use_sliding_window=True,
      sliding_window=7,
      max_window_layers=1,
    ),
    dict(dtype="bfloat16"),
  ),
  "qwen3": (
    "Qwen3",
    dict(_TINY, head_dim=16, tie_word_embeddings=True),
    dict(dtype="bfloat16", released=True),
  ),
  "gemma2": (
    "Gemma2",
    dict(
      _TINY,
      head_dim=8,
      num_hidden_layers=3,
      sliding_window=5,
      query_pre_attn_scalar=20,
      attn_logit_softcapping=4.0,
      final_logit_softcapping=6.0,
    ),
    dict(dtype="bfloat16", released=True),
  ),
  "gemma3": (
    "Gemma3Text",
    dict(
      _TINY,
      head_dim=8,
      num_hidden_layers=4,
      num_key_value_heads=1,
      sliding_window=5,
      sliding_window_pattern=3,
      query_pre_attn_scalar=24,
      rope_parameters=dict(
        full_attention=dict(
          rope_type="linear", factor=8.0, rope_theta=1_000_000.0
        ),
        sliding_attention=dict(rope_type="default", rope_theta=10_000.0),
      ),
    ),
    dict(dtype="bfloat16"),
  ),
  "gemma3_released": (
    "Gemma3Text",
    dict(
      _TINY,
      head_dim=8,
      num_hidden_layers=3,
      sliding_window=6,
      sliding_window_pattern=2,
      query_pre_attn_scalar=8,
    ),
    dict(dtype="bfloat16", released=True),
  ),
}


def make_model(kind: str, config: dict, seed: int) -> torch.nn.Module:
  """Returns a model of the class with weights of bfloat16 values, in f32."""
  torch.manual_seed(seed)
  causal = kind.replace("Text", "")
  model = getattr(transformers, f"{causal}ForCausalLM")(
    getattr(transformers, f"{kind}Config")(**config)
  )
  with torch.no_grad():
    for name, x in model.named_parameters():
      fan_in = x.shape[-1] if x.ndim == 2 else 1
      x.normal_(0, 2.0 * fan_in**-0.5 if x.ndim == 2 else 0.3)
      if "norm" in name and "Gemma" not in kind:
        x.add_(1)
      x.copy_(x.to(torch.bfloat16))
  return model.eval().float()


def logits(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
  """Returns the model's logits [B, T, V] by its plain (eager) attention."""
  model.set_attn_implementation("eager")
  with torch.no_grad():
    return model(input_ids=torch.from_numpy(tokens).long()).logits.numpy()


def as_released(path: pathlib.Path) -> None:
  """Spells a config.json as transformers 4 did, and released models do."""
  record = json.loads(path.read_text())
  rope = record.pop("rope_parameters")
  if "full_attention" in rope:
    local = rope["sliding_attention"]
    record["rope_local_base_freq"] = local["rope_theta"]
    rope = rope["full_attention"]
  record["rope_theta"] = rope.pop("rope_theta")
  record["rope_scaling"] = rope if rope["rope_type"] != "default" else None
  record["torch_dtype"] = record.pop("dtype")
  record.pop("layer_types", None)
  if "_sliding_window_pattern" in record:
    record["sliding_window_pattern"] = record.pop("_sliding_window_pattern")
  path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def main() -> None:
  shutil.rmtree(FOLDER, ignore_errors=True)
  random = np.random.default_rng(0)
  for seed, (name, (kind, config, how)) in enumerate(CASES.items()):
    model = make_model(kind, config, seed)
    tokens = random.integers(0, config["vocab_size"], (BATCH, TOKENS))
    expected = logits(model, tokens)
    model.to(getattr(torch, how["dtype"])).save_pretrained(
      FOLDER / name, max_shard_size=how.get("shard", "1GB")
    )
    (FOLDER / name / "generation_config.json").unlink(missing_ok=True)
    if how.get("released"):
      as_released(FOLDER / name / "config.json")
    np.savez(
      FOLDER / name / "expected.npz",
      tokens=tokens.astype(np.int32),
      logits=expected.astype(np.float32),
    )
    print(f"{name}: logits up to {np.abs(expected).max():.2f}")
  size = sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file())
  print(f"{FOLDER}: {size:,} bytes")


if __name__ == "__main__":
  main()
