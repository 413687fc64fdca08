"""Imported weights keep their dtype, and nothing but the memory differs."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import jax
from jax import numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
import tensor_files
import test_import_export

import prm_jax
from prm_jax import errors
from prm_jax import huggingface
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import rounding
from prm_jax.models import transformer
from prm_jax.policy import sampler
from prm_jax.records import jsonl
from prm_jax.scoring import scorer
from prm_jax.training import programs

MODEL = test_import_export.MODEL


def _theirs(folder, dtype, template="token_classification"):
  """Writes a PRM's Hugging Face folder of that dtype."""
  ours = test_import_export._ours(folder / "made", template=template)
  export_model.export_folder(ours, folder / "theirs", dtype=dtype)
  return folder / "theirs"


def _dtypes(params):
  return {str(x.dtype) for x in jax.tree.leaves(params)}


def _computed_in(folder):
  return model_json.read_description(folder).model.compute_dtype


def _saved_dtypes(folder):
  params = folder / "checkpoints" / "0" / "params"
  return _dtypes(ocp.StandardCheckpointHandler().metadata(params).tree)


@pytest.mark.parametrize("dtype", huggingface.DTYPES)
def test_a_dtype_is_kept_in_the_checkpoint_and_the_export(dtype, tmp_path):
  theirs = _theirs(tmp_path, dtype)
  import_model.import_folder(theirs, tmp_path / "ours")
  assert _saved_dtypes(tmp_path / "ours") == {dtype}
  assert _computed_in(tmp_path / "ours") == dtype
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  tensor_files.assert_same(theirs, tmp_path / "back")


def test_float32_is_saved_if_it_is_asked_for(tmp_path, capsys):
  theirs = _theirs(tmp_path, "bfloat16")
  words = ["import", f"--from={theirs}", f"--to={tmp_path / 'ours'}"]
  assert main.main([*words, "--dtype=int8"]) == 1
  assert "dtype='int8': expected one of float32" in capsys.readouterr().err
  assert main.main([*words, "--dtype=float32"]) == 0
  assert _saved_dtypes(tmp_path / "ours") == {"float32"}
  assert _computed_in(tmp_path / "ours") == "float32"
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  tensor_files.assert_same(theirs, tmp_path / "back")


def test_a_model_computes_in_its_weights_type_or_in_that_it_is_loaded_in(
  tmp_path,
):
  theirs = _theirs(tmp_path, "bfloat16")
  import_model.import_folder(theirs, tmp_path / "ours")
  for folder in (theirs, tmp_path / "ours"):
    for given, expected in ((None, "bfloat16"), ("float32", "float32")):
      model = prm_jax.load(folder, compute_dtype=given)
      assert model.config.compute_dtype == expected


def test_scores_are_those_of_the_same_numbers_in_float32(tmp_path):
  theirs = _theirs(tmp_path, "bfloat16")
  for name, dtype in (("narrow", None), ("wide", "float32")):
    import_model.import_folder(theirs, tmp_path / name, dtype=dtype)
  wide = scorer.load(tmp_path / "wide")
  assert _dtypes(wide.params) == {"float32"}
  # Computing in float32 also holds it.
  for given, held in ((None, "bfloat16"), ("float32", "float32")):
    narrow = scorer.load(tmp_path / "narrow", compute_dtype=given)
    assert _dtypes(narrow.params) == {held}
  saved = programs.load_params(tmp_path / "narrow", dtype=None)
  narrow = dataclasses.replace(wide, params=saved)
  assert _dtypes(narrow.params) == {"bfloat16"}
  for compute in ("float32", "bfloat16"):
    rows = [
      dataclasses.replace(
        x, config=dataclasses.replace(x.config, compute_dtype=compute)
      ).score(test_import_export.SOLUTIONS)
      for x in (narrow, wide)
    ]
    assert [x.scores for x in rows[0]] == [x.scores for x in rows[1]]


@pytest.mark.parametrize(
  "fields",
  [
    dict(
      qkv_bias=False,
      norm_offset=True,
      scale_embedding=True,
      post_norms=True,
      qk_norm=True,
      tie_embedding=True,
    ),
    dict(tie_embedding=False),
  ],
  ids=["like Gemma", "like Qwen"],
)
def test_logits_are_those_of_the_same_numbers_in_float32(fields):
  model = dataclasses.replace(MODEL, **fields)
  narrow = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16), test_import_export._params(model, "lm")
  )
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 420, (2, 16)))
  compute = jax.jit(
    lambda params: transformer.apply(
      model, params, tokens, jnp.asarray([16, 9]), method="prefill"
    )[0]
  )
  np.testing.assert_array_equal(compute(narrow), compute(wide))


def test_parameters_keep_the_type_that_they_were_saved_in(tmp_path):
  theirs = test_import_export._theirs(tmp_path / "theirs")
  tensors = huggingface.open_tensors(theirs)
  values = {x: tensors.read(x) for x in tensors.names}
  for path in ("model.safetensors", "config.json"):
    (theirs / path).unlink()
  huggingface.save(theirs, "qwen2", MODEL, values.items(), dtype="bfloat16")
  import_model.import_folder(theirs, tmp_path / "ours")
  assert _saved_dtypes(tmp_path / "ours") == {"bfloat16"}
  params = programs.load_params(tmp_path / "ours")
  assert _dtypes(params) == {"bfloat16"}
  wide = programs.load_params(tmp_path / "ours", dtype="float32")
  assert _dtypes(wide) == {"float32"}
  assert jax.tree.all(
    jax.tree.map(lambda a, b: bool((a == b).all()), params, wide)
  )
  assert _dtypes(sampler.load(tmp_path / "ours").params) == {"bfloat16"}


def test_layers_of_several_dtypes_become_float32(tmp_path):
  theirs = _theirs(tmp_path, "bfloat16")
  tensors = huggingface.open_tensors(theirs)
  values = {x: tensors.read(x) for x in tensors.names}
  values["score.bias"] = values["score.bias"].astype(np.float32)
  safetensors.numpy.save_file(values, theirs / "model.safetensors")
  import_model.import_folder(theirs, tmp_path / "ours")
  params = programs.load_params(tmp_path / "ours", dtype=None)
  assert params["step_head"]["bias"].dtype == jnp.float32
  assert params["step_head"]["kernel"].dtype == jnp.bfloat16
  record = json.loads((tmp_path / "ours/origin/config.json").read_text())
  assert record["torch_dtype"] == "float32"  # the export holds each exactly
  assert _computed_in(tmp_path / "ours") == "float32"


# --- Export is what was evaluated -------------------------------------------


def _trained(folder, template="token_classification", program="prm"):
  """Writes a bfloat16 import whose weights a run has then moved a little."""
  if program == "sft":
    theirs = test_import_export._theirs(folder / "made")
    config, tensors = huggingface.read_config(theirs), {}
    opened = huggingface.open_tensors(theirs)
    tensors = {name: opened.read(name) for name in opened.names}
    theirs = folder / "theirs"
    huggingface.save(theirs, "qwen2", config.model, tensors.items())
    text = (folder / "made/tokenizer.json").read_text()
    (theirs / "tokenizer.json").write_text(text)
  else:
    theirs = _theirs(folder, "bfloat16", template)
  import_model.import_folder(theirs, folder / "run")
  params = programs.load_params(folder / "run")
  random = np.random.default_rng(0)
  moved = jax.tree.map(
    lambda x: x + 1e-3 * random.normal(size=x.shape).astype(np.float32), params
  )
  shutil.rmtree(folder / "run/checkpoints")
  saves.save_params(folder / "run", moved)
  _compute_in(folder / "run", "float32")
  return folder / "run"


def _compute_in(folder, dtype):
  path = folder / "model.json"
  record = json.loads(path.read_text())
  record["model"]["compute_dtype"] = dtype
  path.write_text(json.dumps(record))


def test_what_was_trained_leaves_as_it_was_evaluated(tmp_path):
  run = _trained(tmp_path)
  facts = export_model.export_folder(run, tmp_path / "out")
  assert (facts.dtype, facts.rounding) == ("float32", ())
  record = json.loads((tmp_path / "out/config.json").read_text())
  assert record["torch_dtype"] == "float32"
  import_model.import_folder(tmp_path / "out", tmp_path / "back")
  scores = [test_import_export._scores(x) for x in (run, tmp_path / "back")]
  assert scores[0] == scores[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_rounding_does_to_scores_is_measured_printed_and_on_the_card(
  dtype, tmp_path, capsys
):
  run = _trained(tmp_path)
  sample = tmp_path / "sample.jsonl"
  jsonl.write_solutions(sample, test_import_export.SOLUTIONS)
  words = [f"--checkpoint={run}", f"--to={tmp_path / 'out'}"]
  words += [f"--dtype={dtype}", f"--sample={sample}"]
  assert main.main(["export", *words]) == 0
  printed = capsys.readouterr().out
  import_model.import_folder(
    tmp_path / "out", tmp_path / "back", dtype="float32"
  )
  old, new = (
    np.concatenate(test_import_export._scores(x))
    for x in (run, tmp_path / "back")
  )
  moved = np.abs(new - old)
  assert moved.max() > 1e-5
  crossed = int(((old < 0.5) != (new < 0.5)).sum())
  said = (
    f"the scores of 5 steps, from {old.min():.4g} to {old.max():.4g}, move by"
    f" {moved.max():.2g} at most, {moved.mean():.2g} on average; {crossed} of 5"
    " change side of 0.5 (computed in float32)"
  )
  assert f"rounded to {dtype}: {said}" in printed
  assert said in (tmp_path / "out/README.md").read_text()


def test_the_sample_says_how_far_a_policys_log_probabilities_move(tmp_path):
  run = _trained(tmp_path, program="sft")
  facts = export_model.export_folder(run, tmp_path / "out", dtype="bfloat16")
  (moved,) = facts.rounding
  assert moved.what == "log-probabilities" and moved.num_crossed is None
  # As the help says of the sample that there is without an option.
  assert sum(len(x.steps) for x in jsonl.read(rounding.SAMPLE)) == 46
  assert moved.num_values > 1000 and 0 < moved.mean < moved.largest < 1
  assert moved.highest <= 0
  assert str(moved) in (tmp_path / "out/README.md").read_text()


def test_scores_are_also_compared_in_the_type_of_the_evaluation(tmp_path):
  run = _trained(tmp_path)
  _compute_in(run, "bfloat16")
  facts = export_model.export_folder(
    run,
    tmp_path / "out",
    dtype="bfloat16",
    sample=test_import_export.SOLUTIONS,
  )
  assert [x.compute_dtype for x in facts.rounding] == ["bfloat16", "float32"]
  assert {x.num_values for x in facts.rounding} == {5}
  assert facts.rounding[1].largest > 0


def test_a_sample_is_refused_or_unused_in_one_line(tmp_path, capsys):
  run = _trained(tmp_path)
  words = ["export", f"--checkpoint={run}", f"--to={tmp_path / 'out'}"]
  sample = tmp_path / "sample.jsonl"
  sample.write_text('{"id": "a", "problem": "1 + 1", "steps": []}\n')
  words.append(f"--sample={sample}")
  assert main.main([*words, "--dtype=bfloat16"]) == 1
  assert "--sample: has no steps" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()
  assert main.main(words) == 0
  assert "not scored: in float32 no number" in capsys.readouterr().out


def test_a_flipped_bit_of_a_bfloat16_save_is_damage(tmp_path):
  theirs = _theirs(tmp_path, "bfloat16")
  import_model.import_folder(theirs, tmp_path / "ours")
  params = programs.load_params(tmp_path / "ours", dtype=None)
  bias = params["step_head"]["bias"]
  params["step_head"]["bias"] = bias.at[0].add(0.5)
  meta = tmp_path / "ours/checkpoints/0/meta/metadata"
  kept = meta.read_bytes()
  shutil.rmtree(tmp_path / "ours/checkpoints")
  saves.save_params(tmp_path / "ours", params)
  meta.write_bytes(kept)
  with pytest.raises(errors.DamagedError, match="step_head/bias isn't what"):
    programs.load_params(tmp_path / "ours", dtype=None)


# --- Memory -----------------------------------------------------------------

_IMPORT = """
import pathlib, sys
from prm_jax.huggingface import import_model
from prm_jax.huggingface import rounding

def most():
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmHWM:"):
      return int(line.split()[1]) * 1024

small, large, target = map(pathlib.Path, sys.argv[1:])
import_model.import_folder(small, target / "small")  # what jax itself takes
before = most()
import_model.import_folder(large, target / "large")
print(most() - before)
"""


@pytest.mark.skipif(
  not pathlib.Path("/proc/self/status").exists(), reason="asks Linux"
)
def test_an_import_takes_its_checkpoint_and_two_leaves_at_most(tmp_path):
  random = np.random.default_rng(0)
  tokenizer = test_import_export.recipes.json_of("qwen")
  sizes = {}
  for name, d_model, layers in (("small", 16, 1), ("large", 1024, 4)):
    model = dataclasses.replace(
      MODEL, d_model=d_model, d_ff=4 * d_model, num_layers=layers
    )
    shapes = huggingface.tensor_shapes("qwen2", model)
    # Bits of bfloat16 numbers around 0.01.
    tensors = (
      (x, random.integers(0x3C00, 0x3C80, y, np.uint16).view(jnp.bfloat16))
      for x, y in shapes.items()
    )
    folder = tmp_path / name
    sizes[name] = huggingface.save(folder, "qwen2", model, tensors)
    (folder / "tokenizer.json").write_text(tokenizer)
  largest = 4 * 1024 * 4096 * 2
  run = subprocess.run(
    [
      sys.executable,
      "-c",
      _IMPORT,
      *map(str, (tmp_path / "small", tmp_path / "large", tmp_path / "ours")),
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  beyond = int(run.stdout.splitlines()[-1])
  # Compiling for other shapes takes memory, too.
  assert beyond < sizes["large"] + 2 * largest + (48 << 20)
  assert sizes["large"] > 3 * largest
