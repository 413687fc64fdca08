"""Who may use a workdir, and what a run says of its surroundings."""

import json
import os
import pathlib
import platform
import subprocess
import tomllib

import ml_collections
import pytest

import prm_jax
from prm_jax import errors
from prm_jax.runtime import environment

CONFIG = dict(
  program="prm", rows=8, model=dict(d_model=16, scan=False), mesh=[-1, 1, 1]
)


def test_a_workdir_is_claimed_by_its_first_config(tmp_path):
  workdir = tmp_path / "deep" / "run"
  environment.check_workdir(workdir, CONFIG)
  assert json.loads((workdir / "config.json").read_text()) == CONFIG
  (workdir / "metrics.jsonl").write_text("")
  environment.check_workdir(workdir, CONFIG)


def test_an_empty_folder_can_be_claimed(tmp_path):
  environment.check_workdir(tmp_path, CONFIG, fresh=True)
  assert not any(tmp_path.iterdir())
  environment.check_workdir(tmp_path, CONFIG)
  assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
  "other, fields",
  [
    (CONFIG | dict(rows=16), "rows"),
    (
      CONFIG | dict(model=dict(d_model=8, scan=True)),
      "model.d_model, model.scan",
    ),
    (CONFIG | dict(model=dict(d_model=16)), "model.scan"),
    (CONFIG | dict(seed=0), "seed"),
    (CONFIG | dict(mesh=[1, 1, 1]), "mesh"),
    (CONFIG | dict(model=3), "model"),
  ],
)
def test_another_config_is_refused_with_all_fields_that_differ(
  other, fields, tmp_path
):
  workdir = tmp_path / "run"
  environment.check_workdir(workdir, CONFIG)
  with pytest.raises(errors.InputError) as caught:
    environment.check_workdir(workdir, other)
  assert f"{workdir}: holds a run with other values of {fields};" in str(
    caught.value
  )
  assert json.loads((workdir / "config.json").read_text()) == CONFIG
  environment.check_workdir(workdir, other, fresh=True)
  assert json.loads((workdir / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize("fresh", [False, True])
def test_what_isnt_ours_is_refused_fresh_or_not(fresh, tmp_path):
  file, folder = tmp_path / "file", tmp_path / "folder"
  file.write_text("x")
  folder.mkdir()
  (folder / "notes.txt").write_text("x")
  for path, message in ((file, "is a file"), (folder, "isn't empty")):
    with pytest.raises(errors.InputError, match=message):
      environment.check_workdir(path, CONFIG, fresh=fresh)
  assert os.listdir(folder) == ["notes.txt"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_damaged_config_is_named_by_line_fresh_or_not(fresh, tmp_path):
  (tmp_path / "config.json").write_text('{\n"rows": }')
  with pytest.raises(errors.InputError, match=r"config\.json:2: damaged"):
    environment.check_workdir(tmp_path, CONFIG, fresh=fresh)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("config", [CONFIG, dict(runs={}, seed=0)])
def test_a_config_of_another_program_isnt_ours_fresh_or_not(
  config, fresh, tmp_path
):
  """Such as that of a Hugging Face model's folder."""
  path = tmp_path / "config.json"
  other = dict(runs={}) if "program" in config else dict(program="prm")
  for saved in (dict(model_type="qwen2", vocab_size=3), [], 3, None, other):
    path.write_text(json.dumps(saved))
    with pytest.raises(errors.InputError, match="isn't the config") as e:
      environment.check_workdir(tmp_path, config, fresh=fresh)
    assert str(path) in str(e.value) and "\n" not in str(e.value)
    assert json.loads(path.read_text()) == saved


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("saved", [None, "{}", '{"program": "prm"}'])
def test_a_config_without_a_program_is_refused_before_a_folder_is_claimed(
  saved, fresh, tmp_path
):
  workdir = tmp_path / "run"
  if saved is not None:
    workdir.mkdir()
    (workdir / "config.json").write_text(saved)
  with pytest.raises(errors.InputError, match="has no `program`") as e:
    environment.check_workdir(workdir, dict(rows=8), fresh=fresh)
  assert str(workdir) in str(e.value) and "\n" not in str(e.value)
  assert workdir.exists() == (saved is not None)


def test_a_run_describes_itself_in_plain_data():
  config = ml_collections.ConfigDict(dict(CONFIG, mesh=(-1, 1, 1)))
  found = environment.describe(config)
  assert json.loads(json.dumps(found)) == found
  assert found["config"] == CONFIG
  assert found["versions"]["prm_jax"] == prm_jax.__version__
  assert "missing" not in found["versions"].values()
  assert {"python", "jax", "revision"} <= set(found["versions"])
  assert found["machine"]["devices"] == "8 x cpu"
  assert found["machine"]["cores"] >= 1
  assert found["command"].startswith("prm-jax")


def test_a_processor_is_named_with_the_instructions_that_change_rounding(
  tmp_path,
):
  path = tmp_path / "cpuinfo"
  path.write_text(
    "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 amx_tile x\n\n"
  )
  assert environment.cpu(path) == "Some CPU, avx2, amx_tile"
  other = platform.processor() or "unknown"
  assert environment.cpu(tmp_path / "none") == other


def test_a_revision_is_unknown_without_git(monkeypatch):
  def no_git(*_, **__):
    raise FileNotFoundError("git")

  monkeypatch.setattr(subprocess, "run", no_git)
  assert environment.revision() == "unknown"


def test_a_package_that_is_missing_is_said(monkeypatch):
  monkeypatch.setattr(environment, "PACKAGES", ("jax", "no-such-package"))
  found = environment.versions()
  assert found["no-such-package"] == "missing"
  assert found["jax"] != "missing"


def test_the_doctor_has_a_line_for_each_extra(monkeypatch):
  extras = dict(here=("json", "a"), away=("no_such_module", "b"))
  monkeypatch.setattr(environment, "EXTRAS", extras)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  lines = prm_jax.Doctor()().splitlines()
  assert "extra here             installed (a)" in lines
  assert (
    "extra away             missing (b): pip install -e '.[away]' in a checkout"
    " of prm_jax"
  ) in lines
  assert "PRM_JAX_DATA           not set" in lines


def test_the_doctor_survives_a_broken_backend(monkeypatch):
  def broken():
    raise RuntimeError("no backend")

  monkeypatch.setattr(environment, "machine", broken)
  assert "unusable: no backend" in prm_jax.Doctor()()


def test_every_extra_of_the_doctor_is_one_of_the_project():
  root = pathlib.Path(__file__).parents[2]
  project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
  assert set(environment.EXTRAS) == set(project["optional-dependencies"])
