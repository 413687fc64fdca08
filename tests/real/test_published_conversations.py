"""Conversations have transformers' ids with real tokenizers and chat templates."""

import importlib.util
import pathlib
import shutil

import conversation_ids
import published
import pytest

from prm_jax.huggingface import import_policy
from prm_jax.text import tokenizer as tokenizer_lib

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real_weights

_FILES = (
  *("config.json", "generation_config.json", "tokenizer.json"),
  *("tokenizer_config.json", "chat_template.jinja"),
)


def _folder(weights, name, tmp_path):
  """Returns a folder of a model's files without its weights.

  The copy of Gemma's weights has no chat template; TRL's package holds it.
  """
  theirs = published.folder_of(weights, name)
  for file in _FILES:
    if (theirs / file).is_file():
      shutil.copy(theirs / file, tmp_path / file)
  if not (tmp_path / "chat_template.jinja").is_file():
    trl = importlib.util.find_spec("trl")
    if trl is None:
      pytest.skip("needs trl, whose package holds Gemma 3's chat template")
    texts = pathlib.Path(str(trl.origin)).parent / "chat_templates"
    shutil.copy(texts / "gemma3.jinja", tmp_path / "chat_template.jinja")
  return tmp_path


# A model, and how many of the trials it writes at least: two have no tools.
@pytest.mark.parametrize(
  ("name", "least"),
  [(published.SMOL, 20), (published.QWEN, 250), (published.GEMMA, 20)],
)
def test_a_whole_conversation_has_the_ids_of_transformers(
  name, least, real_weights, tmp_path
):
  folder = _folder(real_weights, name, tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  tokenizer = tokenizer_lib.from_folder(folder)
  template = import_policy.read(
    folder, tokenizer, import_policy.Options()
  ).template
  num = conversation_ids.assert_equal(
    theirs, tokenizer, template, 600, tools=name == published.QWEN
  )
  print(f"{name}: {num} conversations, all ids equal")
  assert num >= least, num
