"""The Hub's fields of a card are what it reads, and come from import and user."""

import huggingface_hub
import pytest
import test_import_export

from prm_jax import errors
from prm_jax.cli import main
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import import_model
from prm_jax.runtime import files

THEIRS = """---
language: en
license: other
license_name: "tongyi-qianwen"
license_link: https://example.org/a/LICENSE
base_model: x/y
---
license: mit
"""


def _card(folder):
  return huggingface_hub.ModelCard.load(folder / "README.md").data


@pytest.fixture
def imported(tmp_path):
  """A model of the Hub whose config.json names a folder of its authors."""
  theirs = test_import_export._theirs(tmp_path / "theirs")
  record = files.read_json(theirs / "config.json")
  record["_name_or_path"] = "/home/someone/run"
  files.write_json(theirs / "config.json", record)
  (theirs / "README.md").write_text(THEIRS)
  ours = tmp_path / "ours"
  import_model.import_folder(theirs, ours, name="Qwen/Qwen2.5-Math-1.5B")
  # A run that started from it.
  (tmp_path / "trained").mkdir()
  import_model.pass_origin_on(ours, tmp_path / "trained")
  (tmp_path / "trained" / "origin").rename(tmp_path / "origin")
  return tmp_path


def test_a_card_has_the_imported_models_licence_and_name(imported, capsys):
  words = ["export", f"--checkpoint={imported / 'ours'}"]
  assert main.main([*words, f"--to={imported / 'back'}"]) == 0
  data = _card(imported / "back")
  assert data.base_model == "Qwen/Qwen2.5-Math-1.5B"
  assert data.license == "other"
  assert data.license_name == "tongyi-qianwen"
  assert data.license_link == "https://example.org/a/LICENSE"
  assert data.datasets is None
  raw = files.read_json(imported / "origin" / "config.json")
  kept = card_fields.fields_of(imported / "origin", raw)
  assert kept.base_model == data.base_model and kept.license == "other"
  more = ["--license=mit", "--base_model=a/b", "--dataset=c/d", "--dataset=e"]
  assert main.main([*words, f"--to={imported / 'again'}", *more]) == 0
  data = _card(imported / "again")
  assert (data.base_model, data.license) == ("a/b", "mit")
  assert data.get("license_name") is None and data.datasets == ["c/d", "e"]


def test_a_path_of_others_is_no_base_model(imported):
  for path in ("/home/someone/run", "./run", "run", 3, None):
    raw = dict(_name_or_path=path)
    assert card_fields.fields_of(imported / "none", raw).base_model is None


def test_a_licence_is_read_in_a_cards_fields_alone(tmp_path):
  for text, expected in (
    ("---\nlicense: mit\n---\n", "mit"),
    ("# A model\n\nlicense: mit\n", None),
    ("---\nlicense: [mit, x]\n---\n", None),
  ):
    (tmp_path / "README.md").write_text(text)
    assert card_fields.fields_of(tmp_path, {}).license == expected


def test_measured_values_are_where_the_hub_looks_for_them():
  metrics = {
    **dict(step=5, kind="eval", loss_nats=0.25, errors_found=None),
    "accuracy": 0.5,
    "gsm8k/accuracy": 0.75,
  }
  text = card_fields.front_matter(
    card_fields.Fields(datasets=("a/b",)),
    metrics,
    name='my: "prm"',
    architecture="Qwen2ForTokenClassification",
    kind="process",
  )
  data = huggingface_hub.ModelCard(f"---\n{text}\n---\n").data
  assert data.pipeline_tag == "token-classification"
  assert data.metrics == ["accuracy", "loss_nats"]
  assert data.model_name == 'my: "prm"'
  assert [(x.metric_type, x.metric_value) for x in data.eval_results] == [
    ("accuracy", 0.5),
    ("loss_nats", 0.25),
  ]
  assert data.eval_results[0].dataset_type == "a/b"


@pytest.mark.parametrize(
  ("architecture", "kind", "task", "tag"),
  [
    ("QwenForCausalLM", None, "text-generation", "prm_jax"),
    ("QwenForCausalLM", "process", None, "process-reward-model"),
    ("QwenForRewardModel", "outcome", None, "outcome-reward-model"),
    ("XForSequenceClassification", "outcome", "text-classification", "prm_jax"),
  ],
)
def test_a_card_says_what_kind_of_model_it_is(architecture, kind, task, tag):
  fields = card_fields.Fields()
  text = card_fields.front_matter(
    fields, {}, name="m", architecture=architecture, kind=kind
  )
  data = huggingface_hub.ModelCard(f"---\n{text}\n---\n").data
  assert data.pipeline_tag == task
  assert tag in data.tags


@pytest.mark.parametrize("value", ["a b", "a\nlicense: mit", "", "'x'", "#a"])
def test_a_field_that_would_break_a_card_is_refused(value):
  for name in ("license", "base_model"):
    with pytest.raises(errors.InputError, match=name):
      card_fields.Fields(**{name: value})
  with pytest.raises(errors.InputError, match="dataset"):
    card_fields.Fields(datasets=(value,))
