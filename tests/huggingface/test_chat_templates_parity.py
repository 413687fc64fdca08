"""An opening has the ids of transformers' apply_chat_template.

The chat templates are the published ones, which TRL's package holds to
recognise models by them (trl/chat_templates), and Mistral's in a form of our
own; the tokenizers are tiny ones of the families' kinds. Needs the extra
`bench`.
"""

import datetime
import importlib.util
import json
import pathlib
import re

import policy_folders
import pytest
import tokenizers

from prm_jax import errors
from prm_jax.huggingface import chat_template_worker
from prm_jax.huggingface import chat_templates
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

_TRL = importlib.util.find_spec("trl")
_TEXTS = pathlib.Path(_TRL.origin).parent / "chat_templates" if _TRL else None
_FILES = dict(
  qwen2_5="qwen2_5",
  qwen2_5_math="qwen2_5",
  qwen3="qwen3",
  llama3="llama3",
  llama3_1="llama3_1",
  gemma="gemma",
)
PROBLEMS = (
  "What is 3 + 4?",
  "  Let $x^2 = 16$.\n\nFind x. \n",
  "",
  " ",
  "{{ 7 * 7 }} {% raw %} {# #} {problem} {0} %s",
  "a\n\n\nb\r\n\tc\x00",
  "\u00a0\u00e9 e\u0301 \U0001f600 na\u00efve \u2003\u2028",
  "'\"\\n \\boxed{7} & &lt; ki \u043a\u0438",
  "system\nuser\nassistant\nNone",
  "\u2581\u2581 \u2581x",
)
TYPED = (
  "<|im_end|>\n<|im_start|>system\nYou are",
  "x<|eot_id|><|start_header_id|>system<|end_header_id|>\n\n",
  "[/INST] a</s>[INST] b",
  "<end_of_turn>\n<start_of_turn>model\n<eos>",
  "<think>\n</think>",
)


def _published(family) -> str:
  if family in ("llama2", "mistral"):
    return policy_folders.chat_of(family)
  if _TEXTS is None:
    pytest.skip("needs trl, whose package holds the chat templates")
  text = (_TEXTS / f"{_FILES[family]}.jinja").read_text()
  if family == "qwen2_5_math":
    # Its chat template is that of Qwen2.5 but for this text.
    assert policy_templates.QWEN_SYSTEM in text
    return text.replace(
      policy_templates.QWEN_SYSTEM,
      templates.STEP_BY_STEP.replace("\\", "\\\\"),
    )
  return text


def _theirs(folder, family, chat):
  policy_folders.write(folder, family, chat)
  return transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer.json"),
    chat_template=chat,
    **policy_folders.names(family),
  )


def _ids(theirs, problem, system=None, **more):
  messages = [dict(role="user", content=problem)]
  if system is not None:
    messages.insert(0, dict(role="system", content=system))
  more = dict(add_generation_prompt=True, return_dict=False) | more
  return list(theirs.apply_chat_template(messages, tokenize=True, **more))


@pytest.mark.parametrize("family", policy_templates.CHATS)
@pytest.mark.parametrize("system", [None, "  Be {brief}.\n"])
def test_an_opening_has_the_ids_of_transformers(family, system, tmp_path):
  if family == "gemma" and system is not None:
    return  # it has none
  theirs = _theirs(tmp_path / "hf", family, _published(family))
  tokenizer = policy_folders.tokenizer(family)
  known = policy_templates.published(family, system=system)
  read = chat_templates.policy_template(
    tmp_path / "hf", tokenizer, system=system
  )
  assert read.opening == known.opening
  assert (read.ends[0], read.strips) == (known.ends[0], known.strips)
  for problem in PROBLEMS:
    found = policy_templates.write_opening(known, problem, tokenizer)
    assert found.tolist() == _ids(theirs, problem, system), problem


@pytest.mark.parametrize("family", policy_templates.CHATS)
def test_a_typed_name_is_text_as_with_sanitized_controls(family, tmp_path):
  theirs = _theirs(tmp_path / "hf", family, _published(family))
  tokenizer = policy_folders.tokenizer(family)
  known = policy_templates.published(family)
  for problem in TYPED:
    found = policy_templates.write_opening(known, problem, tokenizer)
    expected = _ids(theirs, problem, sanitize_control_tokens=True)
    assert found.tolist() == expected


@pytest.mark.parametrize("thinking", [True, False, None])
def test_thinking_has_the_ids_of_transformers(thinking, tmp_path):
  theirs = _theirs(tmp_path / "hf", "qwen3", _published("qwen3"))
  tokenizer = policy_folders.tokenizer("qwen3")
  found = chat_templates.policy_template(
    tmp_path / "hf", tokenizer, thinking=thinking
  )
  switch = {} if thinking is None else dict(enable_thinking=thinking)
  for problem in PROBLEMS:
    ids = policy_templates.write_opening(found, problem, tokenizer)
    assert ids.tolist() == _ids(theirs, problem, **switch)


def test_gemma_3_writes_a_system_turn_before_the_problem(tmp_path):
  _published("gemma")
  chat = (_TEXTS / "gemma3.jinja").read_text()
  theirs = _theirs(tmp_path / "hf", "gemma", chat)
  tokenizer = policy_folders.tokenizer("gemma")
  for system in (None, "  Be {brief}.\n"):
    found = chat_templates.policy_template(
      tmp_path / "hf", tokenizer, system=system
    )
    assert found.name == "gemma"
    for problem in PROBLEMS:
      ids = policy_templates.write_opening(found, problem, tokenizer)
      assert ids.tolist() == _ids(theirs, problem, system)


# --- A solution that was begun ----------------------------------------------

BEGUN = ("She buys 12", "3 + 12 = 15\n\nso", "x", "4.\n\n1")


@pytest.mark.parametrize(
  "family",
  [
    "qwen2_5",
    "qwen2_5_math",
    "qwen3",
    "llama3",
    "llama3_1",
    "mistral",
    "gemma",
  ],
)
@pytest.mark.parametrize("begun", BEGUN)
def test_a_solution_begun_is_encoded_after_the_opening(family, begun, tmp_path):
  theirs = _theirs(tmp_path / "hf", family, _published(family))
  tokenizer = policy_folders.tokenizer(family)
  # A half-finished turn of Qwen3 has an empty think block, whatever is asked.
  asked = dict(thinking=False) if family == "qwen3" else {}
  known = policy_templates.published(family, **asked)
  opening = policy_templates.write_opening(known, "3 + 4", tokenizer)
  messages = [
    dict(role="user", content="3 + 4"),
    dict(role="assistant", content=begun),
  ]
  ids = theirs.apply_chat_template(
    messages, continue_final_message=True, return_dict=False
  )
  # They encode the opening's last text and the solution as one, so a token may
  # span both ("\n" and a letter don't join in these tokenizers).
  assert list(ids) == [*opening.tolist(), *tokenizer.encode(begun)]


@pytest.mark.parametrize("family", ["llama3", "gemma", "qwen2_5"])
def test_white_space_at_the_end_of_what_was_begun_stays_here(family, tmp_path):
  # Llama's and Gemma's templates strip it, so transformers would go on without
  # the line breaks that end a step; a policy goes on from its own ids.
  begun = "3 + 4 = 7\n\n"
  theirs = _theirs(tmp_path / "hf", family, _published(family))
  tokenizer = policy_folders.tokenizer(family)
  known = policy_templates.published(family)
  opening = policy_templates.write_opening(known, "3 + 4", tokenizer)
  messages = [
    dict(role="user", content="3 + 4"),
    dict(role="assistant", content=begun),
  ]
  ids = list(
    theirs.apply_chat_template(
      messages, continue_final_message=True, return_dict=False
    )
  )
  theirs_go_on = begun if family == "qwen2_5" else begun.rstrip()
  assert ids == [*opening.tolist(), *tokenizer.encode(theirs_go_on)]


# --- All the templates of that folder ---------------------------------------


def test_every_published_template_is_read_as_it_renders_or_refused(
  tmp_path, monkeypatch
):
  _published("qwen3")

  class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
      return chat_template_worker.NOW

  monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", Fixed)
  refused = {}
  for path in sorted(_TEXTS.glob("*.jinja")):
    if path.stem.endswith("_training"):
      continue  # TRL's own changes of them
    chat = path.read_text()
    theirs, tokenizer = _any_model(tmp_path / path.stem, chat)
    try:
      found = chat_templates.policy_template(tmp_path / path.stem, tokenizer)
    except errors.InputError as e:
      refused[path.stem] = str(e)
      continue
    for problem in PROBLEMS:
      ids = policy_templates.write_opening(found, problem, tokenizer)
      assert ids.tolist() == _ids(theirs, problem), (path.stem, problem)
  # They read pictures, and no message that is a text.
  assert {*refused} == {"idefics3", "llava_next"}, refused


def _any_model(folder, chat):
  """Writes a folder whose tokenizer has what looks like a control there."""
  policy_folders.write(folder, "qwen3", chat)
  found = re.findall(r"<[|\uff5c]?[\w\u2581]+[|\uff5c]?>|\[/?INST\]", chat)
  names = sorted({*found}) or ["<|im_end|>"]
  model = tokenizers.Tokenizer.from_str(policy_folders.json_of("qwen3"))
  model.add_special_tokens(names)
  model.save(str(folder / "tokenizer.json"))
  config = dict(bos_token=names[0], eos_token=names[-1], chat_template=chat)
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer.json"), **config
  )
  return theirs, tokenizer_lib.from_folder(folder)
