"""A conversation has the ids of transformers' apply_chat_template.

The chat templates are the published ones that TRL's package holds, and Mistral's
in a form of our own; the tokenizers are tiny ones of the families' kinds, so this
is about what is written, not about published vocabularies (tests/real has
those). Needs the extra `bench`.
"""

import importlib.util
import pathlib

import conversation_ids
import policy_folders
import pytest

from prm_jax.huggingface import import_policy

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

_TRL = importlib.util.find_spec("trl")
_TEXTS = pathlib.Path(_TRL.origin).parent / "chat_templates" if _TRL else None
# A published template -> the family of its tokenizer, and how many of the trials
# it writes at least.
PUBLISHED = dict(
  qwen2_5=("qwen2_5", 150),
  qwen3=("qwen3", 150),
  llama3_1=("llama3_1", 50),
  mistral=("mistral", 40),
  # Their arguments are written one by one.
  qwen3_5_think=("qwen3", 80),
  qwen3_6=("qwen3", 80),
  gemma3=("gemma", 5),
)


def _chat(name):
  if name == "mistral":
    return policy_folders.MISTRAL_TOOLS
  if _TEXTS is None:
    pytest.skip("needs trl, whose package holds the chat templates")
  return (_TEXTS / f"{name}.jinja").read_text()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_conversation_has_the_ids_of_transformers(name, tmp_path):
  family, least = PUBLISHED[name]
  chat = _chat(name)
  folder = policy_folders.write(tmp_path / "hf", family, chat)
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer.json"),
    chat_template=chat,
    **policy_folders.names(family),
  )
  tokenizer = policy_folders.tokenizer(family)
  template = import_policy.read(
    folder, tokenizer, import_policy.Options()
  ).template
  num = conversation_ids.assert_equal(
    theirs, tokenizer, template, 200, sanitize_control_tokens=True
  )
  assert num >= least, num
