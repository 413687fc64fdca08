"""What a config file says of a supervised run."""

import pathlib
import types

import ml_collections
import pytest
import small_config

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.demo import quick_config
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.runtime import config_files
from prm_jax.runtime import verbs
from prm_jax.training import train_run_config

FIT = dict(steps=2, eval_every=1, log_every=1, checkpoint_every=2)


def _config(path, init_from: str) -> ml_collections.ConfigDict:
  text = small_config.text(data={}, model={}, eval_rows=8, fit=FIT)
  path.write_text(text)
  config = config_files.read(path)
  with config.unlocked():
    config.init_from = init_from
    config.data = dict(train=())
    del config["model"]
  return config


def test_without_model_the_fields_are_those_of_the_model_to_start_from(
  tmp_path, monkeypatch
):
  sizes = dict(d_model=24, num_layers=3, head_dim=12, d_ff=40)
  sizes |= dict(num_heads=2, num_kv_heads=1)
  start = model_config.ModelConfig(vocab_size=300, **sizes)
  described = types.SimpleNamespace(model=start)
  monkeypatch.setattr(model_json, "read_description", lambda _: described)
  complete = train_run_config.supervised(
    verbs.Config(_config(tmp_path / "c.py", "start"))
  )
  assert {name: complete.model[name] for name in sizes} == sizes


def test_without_model_and_init_from_both_are_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"model\.\w+; add .*init_from"):
    train_run_config.supervised(verbs.Config(_config(tmp_path / "c.py", "")))


EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


def test_our_configs_of_reward_models_say_how_texts_are_cut():
  """So that what they train reads texts. A policy's template says it."""
  paths = [EXPERIMENTS / "arithmetic.py", pathlib.Path(quick_config.__file__)]
  for path in EXPERIMENTS.glob("*.py"):
    text = path.read_text()
    if "def get_config()" in text and "def main()" not in text:
      paths.append(path)
  seen = set()
  for path in paths:
    config = config_files.read(path)
    for run in (config, *config.get("runs", {}).values()):
      if "program" in run:
        kind = kinds.KINDS[run.program]
        says = bool(run.get("segmenter"))
        assert says == (kind.scores is not None), (path.name, run.program)
        seen.add(run.program)
  assert {"prm", "orm", "sft"} <= seen


@pytest.mark.parametrize(
  ("fields", "aggregate"),
  [
    (dict(program="prm"), "product"),
    (dict(program="implicit"), "last"),
    (dict(program="orm"), "product"),
    (dict(program="orm", objective=dict(outcome_target="last_step")), "last"),
    (dict(program="implicit", aggregate="min"), "min"),
  ],
)
def test_a_run_of_records_counts_the_steps_that_it_learns(fields, aggregate):
  config = ml_collections.ConfigDict(fields)
  assert train_run_config.of_records(config).aggregate == aggregate
