"""No file of a Hugging Face folder leads out of it, and no number is NaN."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
import test_families
import test_import_export

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_model
from prm_jax.text import tokenizer_files

SMALL = import_model._COPIED
READ = (
  *("model.safetensors", "tokenizer.json"),
  *(how_read.ENCODING_FILE, *SMALL),
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """Returns a PRM's Hugging Face folder that has each of the files."""
  folder = tmp_path_factory.mktemp("theirs")
  ours = test_import_export._ours(folder / "ours")
  export_model.export_folder(ours, folder / "theirs")
  for name in SMALL:
    if not (folder / "theirs" / name).exists():
      (folder / "theirs" / name).write_text("{}")
  return folder / "theirs"


def _import(source, target):
  return main.main(["import", f"--from={source}", f"--to={target}"])


@pytest.mark.parametrize("name", READ)
def test_no_file_is_read_outside_of_the_folder(
  name, exported, tmp_path, capsys
):
  theirs = pathlib.Path(shutil.copytree(exported, tmp_path / "theirs"))
  # The same content: only the way to it is wrong.
  (theirs / name).rename(tmp_path / "elsewhere")
  (theirs / name).symlink_to(tmp_path / "elsewhere")
  assert _import(theirs, tmp_path / "ours") == 1
  said = capsys.readouterr().err
  assert f"{name}: a link out of its folder" in said
  assert said.count("\n") == 1
  assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
  "name", ["model.safetensors.index.json", "model-00001-of-00004.safetensors"]
)
def test_no_shard_is_read_outside_of_the_folder(name, tmp_path):
  theirs = test_families._copy("mistral", tmp_path)
  (theirs / name).rename(tmp_path / "elsewhere")
  (theirs / name).symlink_to(tmp_path / "elsewhere")
  with pytest.raises(errors.InputError, match=f"{name}: a link out of"):
    huggingface.open_tensors(theirs)


def test_no_other_tokenizer_is_read_outside_of_the_folder(exported, tmp_path):
  for name in ("tokenizer.model", "tokenizer.json"):
    (tmp_path / name).symlink_to("/etc/hosts")
    with pytest.raises(errors.InputError, match=f"{name}: a link out of"):
      tokenizer_files.from_folder(tmp_path)
  theirs = pathlib.Path(shutil.copytree(exported, tmp_path / "theirs"))
  where = theirs / how_read.ENCODING_FILE
  record = json.loads(where.read_text())
  record["tokenizer"]["file"] = "../../etc/hosts"
  where.write_text(json.dumps(record))
  with pytest.raises(errors.InputError, match="outside of its folder"):
    import_model.import_folder(theirs, tmp_path / "ours")


def test_no_origin_is_copied_from_outside_of_a_checkpoint(exported, tmp_path):
  ours = tmp_path / "ours"
  import_model.import_folder(exported, ours)
  (tmp_path / "secret").write_text("{}")
  for name in ("chat_template.jinja", "config.json"):
    path = ours / import_model.ORIGIN / name
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(errors.InputError, match=f"{name}: a link out of"):
      export_model.export_folder(ours, tmp_path / f"back_{name}")
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("role", [[], ["--role=policy"]])
def test_a_tokenizer_that_texts_set_off_ends_an_import_in_one_line(
  role, tmp_path, capfd
):
  theirs = test_import_export._theirs(tmp_path / "theirs")
  path = theirs / "tokenizer.json"
  spec = json.loads(path.read_text())
  pattern = spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]
  pattern["Regex"] = "((a+)+)+b"
  path.write_text(json.dumps(spec))
  words = ["import", f"--from={theirs}", f"--to={tmp_path / 'ours'}", *role]
  assert main.main(words) == 1
  said = capfd.readouterr().err
  assert "tokenizer.json: a tokenizer that fails on 'aaaa" in said
  assert said.count("\n") == 1
  assert not (tmp_path / "ours").exists()


# --- Numbers that aren't finite ---------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
  "name", ["model.layers.0.mlp.up_proj.weight", "score.bias"]
)
def test_a_number_that_isnt_finite_is_refused_by_its_name(
  name, value, tmp_path, capsys
):
  ours = test_import_export._ours(
    tmp_path / "ours", template="token_classification"
  )
  export_model.export_folder(ours, tmp_path / "theirs")

  path = tmp_path / "theirs" / "model.safetensors"
  tensors = dict(safetensors.numpy.load_file(path))
  tensors[name].reshape(-1)[-1] = value
  safetensors.numpy.save_file(tensors, path)
  assert _import(tmp_path / "theirs", tmp_path / "back") == 1
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  at = "1" if name == "score.bias" else "23, 15"
  assert f"{name}[{at}] is {value}" in said
  assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_isnt_finite_is_not_exported(value, tmp_path, capsys):
  ours = test_import_export._ours(tmp_path / "ours")
  shutil.rmtree(ours / "checkpoints")
  params = dict(test_import_export._params(test_import_export.MODEL, "step"))
  params["step_head"] = jax.tree.map(
    lambda x: x.at[0].set(value), params["step_head"]
  )
  saves.save_params(ours, params)
  words = ["export", f"--checkpoint={ours}", f"--to={tmp_path / 'theirs'}"]
  assert main.main(words) == 1
  said = capsys.readouterr().err
  assert "step_head/bias holds numbers that aren't finite" in said
  assert said.count("\n") == 1
  assert not (tmp_path / "theirs").exists()
  with pytest.raises(errors.InputError, match=r"x\[1, 0\] is"):
    huggingface.save(
      tmp_path / "direct",
      "qwen2",
      test_import_export.MODEL,
      [("x", np.array([[0], [value]], np.float32))],
    )
