"""model.json belongs to its saves: no changed digit gives other scores."""

import dataclasses
import functools
import json
import re
import shutil

from flax.core import meta
import jax
import pytest

from prm_jax import errors
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import segmenters
from prm_jax.text import templates
from prm_jax.text import tokenizer_files

MODEL = model_config.ModelConfig(
  vocab_size=280,
  d_model=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  d_ff=8,
  query_scale=0.25,
  window=64,
  global_layers=(0,),
  rope_scaling="llama3",
  rope_factor=8.0,
)
# What may be edited: it changes no step's score, or by rounding.
FREE = ("aggregate", "judged", "segmenter")
FREE_OF_MODEL = ("remat", "scan", "attention")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Returns a checkpoint folder as an import writes it."""
  folder = tmp_path_factory.mktemp("saved") / "model"
  folder.mkdir()
  tokenizer = tokenizer_files.train_sentencepiece(["1 and 2 is 3"] * 9, 270)
  template = templates.published("rlhflow")
  description = model_json.Description(
    "prm",
    MODEL,
    encoding_records.record_of(
      encoding.EncodingConfig(max_tokens=256, template=template)
    ),
    tokenizer.save(folder),
    aggregate="mean",
    scoring=dict(beta=0.05),
    judged="all",
    segmenter=segmenters.Segmenter("line"),
  )
  init = functools.partial(transformer.init, config=MODEL, heads=("step",))
  params = meta.unbox(jax.jit(init)(jax.random.key(0)))
  saves.save_params(folder, params, description)
  model_json.write_description(folder, description)
  return folder


@pytest.fixture
def copy(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / "model")


def _check(folder, saved_record, content):
  """Returns the description in the content, checked as load_params does."""
  (folder / "model.json").write_bytes(content)
  description = model_json.read_description(folder)
  model_json.check_saved(folder, description, saved_record, 0)
  return description


def _decides(description):
  """Returns all of a description but what may be edited."""
  model = dataclasses.replace(
    description.model, **{k: getattr(MODEL, k) for k in FREE_OF_MODEL}
  )
  return dataclasses.replace(
    description, model=model, aggregate="product", judged=None, segmenter=None
  )


def _flips(content):
  """Yields the content with each digit changed, and a bit of others' bytes."""
  for place, byte in enumerate(content):
    digits = b"019" if chr(byte).isdigit() else b""
    bits = [byte ^ 1 << place % 7] if digits or place % 3 == 0 else []
    for other in {*digits, *bits} - {byte}:
      yield content[:place] + bytes([other]) + content[place + 1 :]


def test_no_change_of_a_character_gives_other_scores(copy):
  """Every digit to others, and bits: refused, or of no consequence."""
  saved_record = integrity.read_meta(copy / "checkpoints" / "0")["description"]
  path = copy / "model.json"
  content = path.read_bytes()
  expected = _decides(_check(copy, saved_record, content))
  refused = used = 0
  for changed in _flips(content):
    try:
      found = _decides(_check(copy, saved_record, changed))
    except errors.InputError as e:
      refused += 1
      assert "\n" not in str(e) and "model.json" in str(e), changed
    else:
      used += 1
      assert found == expected, changed
  assert refused > 700 > 10 * used, (refused, used)


def test_a_changed_model_json_is_refused_with_what_differs(copy):
  path = copy / "model.json"
  text = path.read_text()
  path.write_text(
    text.replace('"rope_theta": 10000.0', '"rope_theta": 10001.0')
  )
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(copy)
  assert str(e.value) == (
    f"{path}: isn't what step 0 was saved with: model.rope_theta is 10001.0 and"
    " was 10000.0; put the original back"
  )
  path.write_text(text)
  parameters.load_params(copy)


def test_what_changes_no_score_may_be_edited(copy):
  record = json.loads((copy / "model.json").read_text())
  record |= dict(
    aggregate="min", judged="last", segmenter=dict(kind="paragraph")
  )
  record["model"] |= dict(remat="full", scan=False, attention="blocks")
  (copy / "model.json").write_text(json.dumps(record))
  parameters.load_params(copy)
  assert set(FREE) <= record.keys() and set(FREE_OF_MODEL) <= {*record["model"]}


def test_a_save_without_a_description_is_used(copy):
  path = copy / "checkpoints" / "0" / "meta" / "metadata"
  record = json.loads(path.read_text())
  del record["description"], record["digest"]
  path.write_text(json.dumps(integrity.sealed(record)))
  description = (copy / "model.json").read_text()
  other = re.sub(r'"rope_theta": [\d.]*', '"rope_theta": 9.0', description)
  assert other != description
  (copy / "model.json").write_text(other)
  parameters.load_params(copy)


def test_every_changed_byte_of_the_tokenizer_is_refused(copy):
  description = model_json.read_description(copy)
  path = copy / "tokenizer.model"
  content = path.read_bytes()
  for place in range(0, len(content), 29):
    changed = bytearray(content)
    changed[place] ^= 1
    path.write_bytes(changed)
    with pytest.raises(errors.InputError, match="not the tokenizer"):
      model_json.read_tokenizer(copy, description)


def test_a_save_under_another_steps_name_is_damaged(copy):
  shutil.copytree(copy / "checkpoints" / "0", copy / "checkpoints" / "60")
  with pytest.raises(errors.DamagedError, match=r"/60: damaged .*of step 0\)"):
    parameters.load_params(copy)
  parameters.load_params(copy, step=0)


def test_training_saves_the_description(saved, copy):
  """What a run saves is compared like what an import saves."""
  record = model_json.read_record(saved)
  assert manager.Checkpoints(copy, description=record)._description == record
  assert model_json.read_record(copy / "checkpoints") is None
