"""A model of the Hub is fetched by huggingface_hub, as data and nothing else.

No test has a network: what huggingface_hub would download is laid out as it
lays it out, or it is told to stay offline.
"""

import fnmatch
import itertools
import pathlib
import re
import shlex

import huggingface_hub
from huggingface_hub import constants
import numpy as np
import pytest
import test_import_export

import prm_jax
from prm_jax import errors
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import hub

NAME = "Some-Org/a.PRM_7B"


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Returns a snapshot of a PRM in the Hub's cache, which is offline."""
  ours = test_import_export._ours(
    tmp_path / "ours", template="token_classification"
  )
  theirs = tmp_path / "theirs"
  export_model.export_folder(ours, theirs)
  model = tmp_path / "cache" / "models--Some-Org--a.PRM_7B"
  snapshot = model / "snapshots" / ("0" * 40)
  for folder in (snapshot, model / "blobs", model / "refs"):
    folder.mkdir(parents=True)
  (model / "refs" / "main").write_text("0" * 40)
  for number, path in enumerate(sorted(theirs.iterdir())):
    path.rename(model / "blobs" / f"{number:040}")
    (snapshot / path.name).symlink_to(f"../../blobs/{number:040}")
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  monkeypatch.chdir(tmp_path)
  return snapshot


def test_a_model_in_the_cache_is_imported_and_loaded_offline(cached, capsys):
  trained = test_import_export._scores(pathlib.Path("ours"))
  assert main.main(["import", f"--from={NAME}", "--to=mine"]) == 0
  assert "read as token_classification" in capsys.readouterr().out
  scores = test_import_export._scores(pathlib.Path("mine"))
  for before, after in zip(trained, scores, strict=True):
    np.testing.assert_allclose(after, before, atol=1e-5)
  scorer = prm_jax.load(NAME)
  rows = scorer.score(test_import_export.SOLUTIONS)
  assert [x.scores for x in rows] == scores


def test_only_data_is_asked_for(cached, monkeypatch):
  asked = {}

  def snapshot_download(name, **arguments):
    asked.update(arguments, name=name)
    return str(cached)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  folder = hub.local_folder(NAME, "v1")
  assert folder == cached
  assert (asked["name"], asked["revision"]) == (NAME, "v1")

  def fetched(name):
    allowed, ignored = (
      any(fnmatch.fnmatch(name, x) for x in asked[f"{kind}_patterns"])
      for kind in ("allow", "ignore")
    )
    return allowed and not ignored

  for name in (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"),
    *("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("tokenizer_config.json", "prm_jax.json", "chat_template.jinja"),
    "README.md",  # it names the licence
  ):
    assert fetched(name), name
  for name in (
    *("pytorch_model.bin", "modeling_qwen2_rm.py", "model.pt", "x.md"),
    *("original/model.safetensors", "consolidated.safetensors"),
  ):
    assert not fetched(name), name


def test_a_model_that_cant_be_fetched_is_refused_in_one_line(
  cached, monkeypatch, capsys
):
  assert main.main(["import", "--from=Other/model", "--to=mine"]) == 1
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  assert "Other/model: no such folder, and it can't be fetched" in said
  (command,) = re.findall(r"`(hf download .*?)`", said)
  words = shlex.split(command)
  assert words[:3] == ["hf", "download", "Other/model"]
  assert words[-2:] == ["--local-dir", "model"]
  given = {b for a, b in itertools.pairwise(words) if a == "--include"}
  assert given == {*hub.PATTERNS}
  assert not pathlib.Path("mine").exists()
  with pytest.raises(errors.InputError, match=r"hf download .*--revision v2"):
    prm_jax.load(NAME, revision="v2")


def test_a_path_of_this_machine_is_looked_up_nowhere_else(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  asked = []
  monkeypatch.setattr(
    huggingface_hub, "snapshot_download", lambda *a, **b: asked.append(a)
  )
  (tmp_path / "Some-Org" / "here").mkdir(parents=True)
  for name in (
    *("Some-Org/here", "Some-Org/mistyped", "../a/b"),
    *("model", "a/b/c", str(tmp_path / "a")),
  ):
    assert main.main(["import", f"--from={name}", "--to=mine"]) == 1
  assert not asked
  said = capsys.readouterr().err.splitlines()
  assert len(said) == 6
  assert ["no such folder; give" in line for line in said] == [
    False,
    *[True] * 5,
  ]
  with pytest.raises(errors.InputError, match="a folder has no revisions"):
    prm_jax.load("Some-Org/here", revision="v2")


def test_a_full_target_is_refused_before_anything_is_fetched(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
  (tmp_path / "file").touch()
  words = ["import", f"--from={NAME}", f"--to={tmp_path}"]
  assert main.main(words) == 1
  assert "isn't empty" in capsys.readouterr().err


def test_a_missing_base_is_named_and_no_adapter_is_looked_for(tmp_path, capsys):
  words = [f"--from={tmp_path}", f"--base={tmp_path / 'a'}", "--to=mine"]
  assert main.main(["import", *words]) == 1
  assert f"{tmp_path / 'a'}: no such folder" in capsys.readouterr().err
