"""Hugging Face folders: goldens of transformers, round trips, refusals."""

import ast
import dataclasses
import functools
import json
import pathlib
import shutil

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import families as families_lib
from prm_jax.models import sharding
from prm_jax.models import transformer

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "hf"
CASES = sorted(path.name for path in GOLDEN.iterdir())


def _logits(model, params, tokens):
  """Returns the next token's logits [B, T, V] after each token."""
  B, T = tokens.shape
  index = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
  row = batch_lib.empty(B, T).replace(
    tokens=tokens, positions=index, visible_until=np.full((B, T), T, np.int32)
  )

  @jax.jit
  def apply(params, batch):
    x = transformer.apply(model, params, batch, method="hidden")
    return transformer.apply(model, params, x, method="vocabulary")

  return np.asarray(apply(params, jax.tree.map(jnp.asarray, row)))


@functools.cache
def _loaded(case):
  """Returns the source, the tensors, parameters and names left of a case."""
  source = huggingface.read_config(GOLDEN / case)
  tensors = huggingface.open_tensors(GOLDEN / case)
  return (
    source,
    tensors,
    *huggingface.load_params(tensors, source.family, source.model),
  )


# --- Goldens ----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case):
  source, _, params, left = _loaded(case)
  assert not left
  expected = np.load(GOLDEN / case / "expected.npz")
  found = _logits(source.model, params, expected["tokens"])
  assert np.abs(expected["logits"]).max() > 5
  np.testing.assert_allclose(found, expected["logits"], atol=1e-4)


def test_the_goldens_hold_every_family_and_what_is_odd_about_it():
  sources = {case: _loaded(case)[0] for case in CASES}
  models = {case: source.model for case, source in sources.items()}
  assert {x.family for x in sources.values()} == set(huggingface.FAMILIES)
  assert {x.architecture for x in sources.values()} == {
    x.classes["CausalLM"] for x in huggingface.FAMILIES.values()
  }
  tokens = np.load(GOLDEN / CASES[0] / "expected.npz")["tokens"].shape[1]
  windows = [x.window for x in models.values() if x.window is not None]
  assert len(windows) == 5
  assert max(windows) < tokens / 2
  assert {x.rope_scaling for x in models.values()} == {
    *("none", "linear", "llama3")
  }
  for odd in (
    lambda x: x.num_kv_heads == x.num_heads,
    lambda x: 1 < x.num_kv_heads < x.num_heads,
    lambda x: x.num_kv_heads == 1,
    lambda x: x.head_dim * x.num_heads != x.d_model,
    lambda x: x.tie_embedding,
    lambda x: not x.tie_embedding,
    lambda x: x.query_scale is not None,
    lambda x: x.rope_local_theta is not None and x.rope_scaling == "linear",
    lambda x: x.attention_softcap and x.final_softcap,
    lambda x: 0 < len(x.global_layers) < x.num_layers,
  ):
    assert any(odd(x) for x in models.values())
  dtypes = {x.dtype for c in CASES for x in _loaded(c)[1].entries.values()}
  assert dtypes == {"F32", "BF16"}


def test_both_spellings_of_a_config_are_the_same_model(tmp_path):
  """transformers 5 writes rope_parameters where released models have more."""
  released = json.loads((GOLDEN / "llama3" / "config.json").read_text())
  new = {k: v for k, v in released.items() if not k.startswith("rope_")}
  new["rope_parameters"] = released["rope_scaling"] | dict(
    rope_theta=released["rope_theta"]
  )
  (tmp_path / "config.json").write_text(json.dumps(new))
  assert huggingface.read_config(tmp_path).model == _loaded("llama3")[0].model
  assert "rope_parameters" not in released


# --- Loading ----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_familys_table_names_every_parameter_once(case):
  source = _loaded(case)[0]
  flat = jax.tree_util.tree_flatten_with_path(
    meta.unbox(huggingface.abstract_params(source.model))
  )[0]
  ours = sorted(tuple(x.key for x in path) for path, _ in flat)
  table = families_lib.rows(source.family, source.model)
  assert sorted(row.path for row in table) == ours
  assert len({row.name for row in table}) == len(ours)


def test_no_code_asks_for_the_name_of_a_family():
  """What differs between families is in their table, families.FAMILIES."""

  def is_name(node):
    value = node.value if isinstance(node, ast.Constant) else ""
    text = value if isinstance(value, str) and len(value) > 2 else "-"
    return any(x.startswith(text) for x in huggingface.FAMILIES)

  asking = ("startswith", "endswith", "removeprefix")
  found, num = [], 0
  for folder in ("prm_jax", "experiments", "benchmarks"):
    for path in (pathlib.Path(__file__).parents[2] / folder).rglob("*.py"):
      for node in ast.walk(ast.parse(path.read_text())):
        is_call = isinstance(node, ast.Call) and (
          isinstance(node.func, ast.Attribute) and node.func.attr in asking
        )
        if is_call or isinstance(node, ast.Compare | ast.match_case):
          num += 1
          named = [x for x in ast.walk(node) if is_name(x)]
          found += [f"{path.name}:{x.lineno}" for x in named]
  assert not found
  assert num > 3_000


@pytest.mark.parametrize("case", ["qwen2_windows", "gemma3"])
def test_on_a_mesh_parameters_are_split_and_the_same(case):
  source, tensors, expected, _ = _loaded(case)
  mesh = sharding.make_mesh((1, 4, 2))
  places = sharding.of_state(huggingface.abstract_params(source.model), mesh)
  params, _ = huggingface.load_params(
    tensors, source.family, source.model, shardings=places
  )
  assert jax.tree.structure(params) == jax.tree.structure(expected)
  split = 0
  for x, y, place in zip(
    *map(jax.tree.leaves, (params, expected, places)), strict=True
  ):
    np.testing.assert_array_equal(x, y)
    assert x.sharding == place
    split += x.sharding.shard_shape(x.shape) != x.shape
  assert split > 5


def test_only_one_tensor_is_read_at_a_time(monkeypatch):
  """And every one of them once, whole: the parameters hold the rest."""
  source, tensors, _, _ = _loaded("mistral")
  read, seen = type(tensors).read, []

  def counted(self, name, index=None):
    seen.append((name, read(self, name, index).shape))
    return read(self, name, index)

  monkeypatch.setattr(type(tensors), "read", counted)
  huggingface.load_params(tensors, source.family, source.model)
  shapes = {name: x.shape for name, x in tensors.entries.items()}
  assert len(seen) == len(shapes)
  assert dict(seen) == shapes


def test_a_head_that_is_not_ours_is_named(tmp_path):
  folder = _copy("qwen2_windows", tmp_path)
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  score = dict(tensors) | {"score.weight": np.zeros((2, 24), np.float32)}
  inv = "model.layers.1.self_attn.rotary_emb.inv_freq"
  score[inv] = np.zeros(3, np.float32)
  safetensors.numpy.save_file(score, folder / "model.safetensors")
  source, opened = (
    huggingface.read_config(folder),
    huggingface.open_tensors(folder),
  )
  load = functools.partial(
    huggingface.load_params, opened, source.family, source.model
  )
  params, left = load()
  assert left == ["score.weight"]
  trunk, left = load(lm_head=False)
  assert sorted(left) == ["lm_head.weight", "score.weight"]
  assert set(params) - set(trunk) == {"lm_head"}


def _copy(case, tmp_path):
  return pathlib.Path(shutil.copytree(GOLDEN / case, tmp_path / case))


# --- Refusals ---------------------------------------------------------------


def _refused(call, *said):
  with pytest.raises(errors.InputError) as e:
    call()
  assert "\n" not in str(e.value)
  for words in said:
    assert words in str(e.value)


@pytest.mark.parametrize(
  ("case", "changes", "said"),
  [
    ("llama2", dict(mlp_bias=True), "mlp_bias=True"),
    ("llama2", dict(attention_bias=True), "attention_bias=True"),
    ("llama2", dict(model_type="qwen3_moe"), "model_type='qwen3_moe'"),
    ("llama2", dict(model_type="gemma3"), "can be imported are llama,"),
    ("llama2", dict(model_type=None), "model_type=None"),
    ("llama2", dict(model_type=["llama"]), "model_type=['llama']"),
    ("llama2", dict(vision_config={"a": 1}), "vision_config={'a': 1}"),
    ("llama2", dict(quantization_config={}), "quantization_config={}"),
    ("llama2", dict(hidden_act="relu"), "hidden_act='relu'"),
    ("llama2", dict(hidden_size="24"), "hidden_size='24': expected int"),
    ("llama2", dict(hidden_size=True), "hidden_size=True: expected int"),
    ("llama2", dict(hidden_size=23, head_dim=None), "give head_dim"),
    ("llama2", dict(num_attention_heads=0, head_dim=None), "heads=0"),
    ("llama2", dict(vocab_size=0), "model.vocab_size=0: expected 1 or more"),
    ("llama2", dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
    ("llama3", dict(rope_scaling={"type": "yarn"}), "rope_type='yarn'"),
    ("llama3", dict(rope_scaling={"type": "linear"}), "has no factor"),
    ("llama3", dict(rope_scaling="linear"), "rope_parameters='linear'"),
    ("mistral", dict(layer_types=["full_attention"] * 3), "layer_types"),
    ("qwen2_windows", dict(layer_types=["full_attention"]), "expected 3"),
    ("qwen2_windows", dict(layer_types=["odd"] * 3), "'odd': expected one of"),
    ("qwen2_windows", dict(sliding_window=None), "without a window"),
    (
      "qwen2_windows",
      dict(sliding_window="7", use_sliding_window=False),
      "sliding_window='7': expected int",
    ),
    ("gemma2", dict(query_pre_attn_scalar=0), "query_pre_attn_scalar=0"),
    ("gemma3", dict(attn_logit_softcapping=50.0), "our gemma3_text doesn't"),
    ("gemma3", dict(use_bidirectional_attention=True), "bidirectional"),
    ("gemma3_released", dict(sliding_window_pattern=0), "give 1 or more"),
  ],
  ids=str,
)
def test_a_config_that_we_cant_represent_is_refused_by_name(
  tmp_path, case, changes, said
):
  raw = json.loads((GOLDEN / case / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps(raw | changes))
  _refused(
    lambda: huggingface.read_config(tmp_path), f"{tmp_path}/config.json: ", said
  )


@pytest.mark.parametrize(
  "text", ["", "[]", "{", "[" * 100_000, '{"model_type": "llama"}', "\xff"]
)
def test_a_damaged_config_is_refused_in_one_line(tmp_path, text):
  _refused(
    lambda: huggingface.read_config(tmp_path), f"{tmp_path}: has no config.json"
  )
  (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
  # With its line, where there is one.
  _refused(
    lambda: huggingface.read_config(tmp_path), f"{tmp_path}/config.json:"
  )


def test_code_that_a_config_names_is_never_run(tmp_path):
  canary = tmp_path / "canary"
  folder = _copy("qwen2", tmp_path)
  (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
  raw = json.loads((folder / "config.json").read_text())
  raw["auto_map"] = {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}
  (folder / "config.json").write_text(json.dumps(raw))
  source = huggingface.read_config(folder)
  huggingface.load_params(
    huggingface.open_tensors(folder), source.family, source.model
  )
  assert not canary.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.pth"])
def test_a_pickle_is_refused_before_it_is_opened(tmp_path, name):
  # Nobody could read it: opening it would be another error.
  (tmp_path / name).symlink_to(tmp_path / "nowhere")
  _refused(lambda: huggingface.open_tensors(tmp_path), name, "never opened")


def _spoil(folder, kind):
  """Damages the folder of the mistral case (shards)."""
  index = folder / "model.safetensors.index.json"
  shard = folder / "model-00002-of-00004.safetensors"
  record = json.loads(index.read_text())
  if kind == "cut":
    shard.write_bytes(shard.read_bytes()[:-7])
  elif kind == "header":
    shard.write_bytes(b"\xff" * 8 + shard.read_bytes()[8:])
  elif kind == "empty":
    shard.write_bytes(b"")
  elif kind == "gone":
    shard.unlink()
  elif kind == "outside":
    record["weight_map"]["lm_head.weight"] = "../other.safetensors"
  elif kind == "pickle":
    record["weight_map"]["lm_head.weight"] = "pytorch_model-1.bin"
  elif kind == "not there":
    record["weight_map"]["more.weight"] = shard.name
  elif kind == "no map":
    record.pop("weight_map")
  elif kind == "neither":
    index.unlink()
  index.write_text(json.dumps(record)) if kind != "neither" else None


@pytest.mark.parametrize(
  ("kind", "said"),
  [
    ("cut", "model-00002-of-00004.safetensors: damaged or cut off"),
    ("header", "model-00002-of-00004.safetensors: damaged or cut off"),
    ("empty", "model-00002-of-00004.safetensors: damaged or cut off"),
    ("gone", "names model-00002-of-00004.safetensors, which isn't there"),
    ("outside", "names a file outside of its folder"),
    ("pickle", "pytorch_model-1.bin: expected *.safetensors"),
    ("not there", "more.weight isn't in model-00002"),
    ("no map", "index.json: damaged"),
    ("neither", "holds neither model.safetensors nor"),
  ],
)
def test_damaged_shards_are_refused_in_one_line(tmp_path, kind, said):
  folder = _copy("mistral", tmp_path)
  huggingface.open_tensors(folder)
  _spoil(folder, kind)
  _refused(lambda: huggingface.open_tensors(folder), said)


@pytest.mark.parametrize(
  ("name", "value", "said"),
  [
    ("model.norm.weight", None, "model.norm.weight is missing"),
    ("model.norm.weight", np.ones(23, np.float32), "[23]; config.json says [2"),
    ("model.norm.weight", np.ones(24), "model.norm.weight is F64; expected"),
    ("lm_head.weight", np.ones((53, 24), np.float32), "isn't the embedding"),
    ("lm_head.weight", np.ones((9, 24), np.float32), "isn't the embedding"),
  ],
)
def test_tensors_that_dont_fit_the_config_are_refused(
  tmp_path, name, value, said
):
  folder = _copy("qwen2", tmp_path)
  tensors = dict(safetensors.numpy.load_file(folder / "model.safetensors"))
  assert not {"lm_head.weight"} & set(tensors)
  source = huggingface.read_config(folder)
  if value is None:
    tensors.pop(name)
  else:
    tensors[name] = value
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  _refused(
    lambda: huggingface.load_params(
      huggingface.open_tensors(folder), source.family, source.model
    ),
    said,
  )


def test_a_tied_head_that_repeats_the_embedding_is_no_news(tmp_path):
  folder = _copy("qwen2", tmp_path)
  tensors = dict(safetensors.numpy.load_file(folder / "model.safetensors"))
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  source = huggingface.read_config(folder)
  params, left = huggingface.load_params(
    huggingface.open_tensors(folder), source.family, source.model
  )
  assert not left
  assert "lm_head" not in params


# --- Export -----------------------------------------------------------------


def _export(case, folder, **how):
  source, _, params, _ = _loaded(case)
  tensors = huggingface.export_tensors(source.family, source.model, params)
  return huggingface.save(folder, source.family, source.model, tensors, **how)


@pytest.mark.parametrize("case", CASES)
def test_in_and_out_again_is_the_same_to_the_bit(tmp_path, case):
  source, tensors, _, _ = _loaded(case)
  (dtype,) = {x.dtype for x in tensors.entries.values()}
  names = dict(F32="float32", BF16="bfloat16")
  written = _export(case, tmp_path, dtype=names[dtype], extra=source.raw)
  found = huggingface.open_tensors(tmp_path)
  assert set(found.names) == set(tensors.names)
  assert written == found.num_bytes == tensors.num_bytes
  for name in tensors.names:
    a, b = found.read(name), tensors.read(name)
    assert a.dtype == b.dtype
    assert a.tobytes() == b.tobytes()
  again = huggingface.read_config(tmp_path)
  assert again.model == source.model
  assert again.architecture == source.architecture
  kept = "max_position_embeddings", "bos_token_id", "eos_token_id"
  assert all(again.raw[x] == source.raw[x] for x in kept if x in source.raw)


@pytest.mark.parametrize("dtype", huggingface.DTYPES)
def test_shards_hold_what_one_file_holds(tmp_path, dtype):
  _export("gemma2", tmp_path / "one", dtype=dtype)
  _export("gemma2", tmp_path / "more", dtype=dtype, max_shard_bytes=9_000)
  one, more = (
    huggingface.open_tensors(tmp_path / "one"),
    huggingface.open_tensors(tmp_path / "more"),
  )
  files = {entry.file.name for entry in more.entries.values()}
  assert len(files) > 3
  assert {path.name for path in (tmp_path / "more").iterdir()} == {
    *files,
    "config.json",
    "model.safetensors.index.json",
  }
  assert all(
    (tmp_path / "more" / file).stat().st_size < 9_000 + 4_000 for file in files
  )
  index = json.loads(
    (tmp_path / "more" / "model.safetensors.index.json").read_text()
  )
  assert index["metadata"]["total_size"] == one.num_bytes
  assert one.names and set(one.names) == set(more.names)
  for name in one.names:
    assert one.read(name).tobytes() == more.read(name).tobytes()


def test_a_head_that_params_lack_is_not_written():
  source, _, params, _ = _loaded("llama2")
  trunk = {k: v for k, v in params.items() if k != "lm_head"}
  all_names, names = (
    {
      name
      for name, _ in huggingface.export_tensors(source.family, source.model, x)
    }
    for x in (params, trunk)
  )
  assert all_names - names == {"lm_head.weight"}


@pytest.mark.parametrize(
  ("case", "changes", "families"),
  [
    ("llama2", {}, ["llama", "mistral"]),
    ("llama3", dict(qkv_bias=True), ["qwen2"]),
    ("llama2", dict(qk_norm=True), ["qwen3"]),
    ("llama2", dict(qk_norm=True, qkv_bias=True), []),
    ("llama2", dict(window=4), ["mistral"]),
    ("qwen2_windows", dict(global_layers=(2,)), ["qwen2"]),
    ("gemma2", dict(attention_softcap=None), ["gemma2"]),
    ("gemma2", dict(query_scale=0.3), []),
    ("gemma2", dict(norm_offset=False), []),
    ("gemma2", dict(qk_norm=True), []),
    (
      "gemma3",
      dict(compute_dtype="bfloat16", scan=False, remat="full", step_classes=3),
      ["gemma3_text"],
    ),
    (
      "gemma3",
      dict(window=None, global_layers=(), rope_local_theta=None),
      ["gemma3_text"],
    ),
    ("gemma3", dict(rope_local_theta=None), []),
  ],
  ids=str,
)
def test_a_model_goes_out_as_a_family_that_has_it(
  tmp_path, case, changes, families
):
  source = _loaded(case)[0]
  model = dataclasses.replace(source.model, **changes)
  assert huggingface.families_of(model) == families
  for family in huggingface.FAMILIES:
    save = functools.partial(
      huggingface.save, tmp_path / family, family, model, []
    )
    if family in families:
      save()
    else:
      _refused(save, f"{family} has no model.", "it fits")
      assert not (tmp_path / family).exists()


def test_a_folder_that_holds_a_model_is_left_alone(tmp_path):
  folder = _copy("qwen2", tmp_path)
  before = {p.name: p.read_bytes() for p in folder.iterdir()}
  _refused(lambda: _export("qwen2", folder), "already; give a new folder")
  assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_nothing_is_left_of_an_export_that_fails(tmp_path):
  def tensors():
    yield "a", np.ones((9, 9), np.float32)
    yield "b", np.full((9, 9), 1e6, np.float32)

  model = _loaded("llama2")[0].model
  save = functools.partial(
    huggingface.save, tmp_path, "llama", model, tensors(), max_shard_bytes=1
  )
  _refused(lambda: save(dtype="float16"), "b: 1e+06 doesn't fit float16")
  assert not list(tmp_path.iterdir())
  _refused(lambda: save(dtype="int8"), "dtype='int8': expected one of")
