"""`import --verify` agrees with transformers on every kind of model, and sees
a model that was imported wrongly. Needs the extra `parity`.
"""

import json

import numpy as np
import pytest
import test_families
import test_import_export

from prm_jax import huggingface
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import verify

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
recipes = pytest.importorskip("test_import_export_parity")

pytestmark = pytest.mark.parity


def _import(theirs, ours, *more):
  words = ["import", f"--from={theirs}", f"--to={ours}", "--verify", *more]
  return main.main(words)


@pytest.mark.parametrize("name", recipes.MAKE)
def test_a_published_form_is_verified(name, tmp_path, capsys):
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  recipes.MAKE[name](theirs)
  more = [f"--template={name}"] if name in recipes.NAMED else []
  assert _import(theirs, tmp_path / "ours", *more) == 0
  said = capsys.readouterr().out
  assert "verified: 6 scores differ from transformers' by" in said


@pytest.mark.parametrize("case", test_families.CASES)
def test_a_language_model_of_every_family_is_verified(case, tmp_path, capsys):
  theirs = test_families._copy(case, tmp_path)
  # The goldens have no tokenizer, and fewer ids than bytes: give them more.
  source = huggingface.read_config(theirs)
  config = transformers.AutoConfig.from_pretrained(theirs)
  config.vocab_size = 420
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config)
  with torch.no_grad():
    for p in model.parameters():
      p.add_(0.2 * torch.randn_like(p))
  for path in theirs.glob("model*"):
    path.unlink()
  model.save_pretrained(theirs)
  text = test_import_export.recipes.json_of("qwen")
  (theirs / "tokenizer.json").write_text(text)
  assert _import(theirs, tmp_path / "ours") == 0
  assert "verified: " in capsys.readouterr().out
  assert huggingface.read_config(theirs).family == source.family


@pytest.mark.parametrize("kind", ["native_three_classes", "native_orm"])
def test_an_export_of_ours_is_verified(kind, tmp_path, capsys):
  fields = dict(test_import_export.KINDS[kind])
  model = test_import_export.dataclasses.replace(
    test_import_export.MODEL, **fields.pop("model", {})
  )
  ours = test_import_export._ours(tmp_path / "ours", model, **fields)
  export_model.export_folder(ours, tmp_path / "theirs")
  assert _import(tmp_path / "theirs", tmp_path / "back") == 0
  assert "scores differ from transformers' by" in capsys.readouterr().out


def test_another_model_than_the_imported_one_is_seen(tmp_path):
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  recipes.MAKE["token_classification"](theirs)
  assert _import(theirs, tmp_path / "ours") == 0
  path = theirs / "config.json"
  record = json.loads(path.read_text())
  record["rope_parameters"] = dict(rope_type="default", rope_theta=100.0)
  path.write_text(json.dumps(record))
  compared = verify.compare(theirs, tmp_path / "ours")
  assert compared.largest > 2 * compared.tolerance
  assert np.isfinite(compared.largest)
