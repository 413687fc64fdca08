"""A chat template becomes data that writes the same, or is refused."""

import json
import time

import hostile_text
import policy_folders
import pytest
import tokenizers

from prm_jax import errors
from prm_jax.huggingface import chat_template_worker
from prm_jax.huggingface import chat_templates
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer_files

CHATS = policy_templates.CHATS
SYSTEM = "Answer {briefly}. <|im_end|>\n"


def _read(folder, family, chat=None, **asked):
  policy_folders.write(folder, family, chat)
  return chat_templates.policy_template(
    folder, policy_folders.tokenizer(family), **asked
  )


def _parts(template):
  return (template.name, template.opening, template.ends[0], template.strips)


# --- What is read -----------------------------------------------------------


@pytest.mark.parametrize("family", CHATS)
def test_a_known_template_is_what_its_family_renders(family, tmp_path):
  found = _read(tmp_path / "hf", family)
  known = policy_templates.published(family)
  assert _parts(found) == _parts(known)
  assert found.thinking == known.thinking


@pytest.mark.parametrize("family", [x for x in CHATS if x != "gemma"])
def test_a_system_turn_is_text_where_the_template_writes_it(family, tmp_path):
  found = _read(tmp_path / "hf", family, system=SYSTEM)
  # The name stays that of the family: only its system turn is another.
  expected = policy_templates.published(family, system=SYSTEM)
  if family == "qwen2_5_math":
    expected = policy_templates.published("qwen2_5", system=SYSTEM)
  assert _parts(found) == _parts(expected)


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_the_templates_own_switch(thinking, tmp_path):
  found = _read(tmp_path / "hf", "qwen3", thinking=thinking)
  assert _parts(found) == _parts(policy_templates.qwen3(thinking))
  controls = [name for kind, name in found.opening if kind == "control"]
  assert ("</think>" in controls) == (not thinking)


def test_a_template_may_leave_thinking_open(tmp_path):
  chat = policy_folders.QWEN3.replace("<think>\\n\\n</think>\\n\\n", "")
  chat = chat.replace("assistant\\n", "assistant\\n<think>\\n")
  found = _read(tmp_path / "hf", "qwen3", chat)
  assert found.name == "chat"
  assert found.opening[-2:] == (("control", "<think>"), ("text", "\n"))


def test_a_date_is_the_same_on_every_day(tmp_path):
  found = _read(tmp_path / "hf", "llama3_1")
  assert ("Today Date: 26 Jul 2024") in str(found.opening)


def test_the_file_comes_before_the_config(tmp_path):
  folder = policy_folders.write(tmp_path / "hf", "qwen3", "{{ nothing }}")
  (folder / "chat_template.jinja").write_text(policy_folders.QWEN3)
  assert chat_templates.source(folder) == policy_folders.QWEN3


def test_of_named_templates_the_default_is_read(tmp_path):
  listed = [
    dict(name="tool_use", template="{{ tools[0].name }}"),
    dict(name="default", template=policy_folders.QWEN3),
  ]
  assert _read(tmp_path / "hf", "qwen3", listed).name == "qwen3"
  with pytest.raises(errors.InputError, match="tool_use"):
    _read(tmp_path / "hf", "qwen3", listed[:1])


def test_a_marked_answer_is_read_as_its_content(tmp_path):
  chat = policy_folders.QWEN3.replace(
    "m.content ~ '<|im_end|>\\n' }}",
    "'' }}{% generation %}{{ m.content }}{% endgeneration %}"
    "{{- '<|im_end|>\\n' }}",
  )
  assert "endgeneration" in chat
  assert _read(tmp_path / "hf", "qwen3", chat).name == "qwen3"


# --- What is refused --------------------------------------------------------

OPEN, CLOSE = "<|im_start|>user\\n", "<|im_end|>\\n<|im_start|>assistant\\n"
_REST = "{{ messages[1].content ~ '<|im_end|>' if messages | length > 1 }}"


def _chat(written: str) -> str:
  """Returns a template of one question, with what is written of it."""
  return (
    "{%- set x = messages[0].content %}"
    f"{{{{- '{OPEN}' ~ ({written}) ~ '{CLOSE}' }}}}" + _REST
  )


def test_the_template_of_the_cases_below_is_read(tmp_path):
  assert _read(tmp_path / "hf", "qwen3", _chat("x")).name == "qwen3"


OTHER_FORMS = {
  "twice": ("x ~ x", "the problem 2 times"),
  "dropped": ("'a'", "the problem 0 times"),
  "of the problem's text": ("'4' if '4' in x else x", "more than the problem"),
  "of a typed name": ("x.split('</think>')[-1]", "more than the problem"),
  "changed": ("x | upper", "the problem 0 times"),
  "escaped": ("x | e", "more than the problem"),
  "joined": ("x.split() | join(' ')", "more than the problem"),
  "its own marks": ("x ~ x | length", "more than the problem"),
  "half stripped": ("x.lstrip()", "more than the problem"),
}


@pytest.mark.parametrize("case", OTHER_FORMS)
def test_a_template_of_another_form_is_refused(case, tmp_path):
  written, message = OTHER_FORMS[case]
  with pytest.raises(errors.InputError, match=message) as raised:
    _read(tmp_path / "hf", "qwen3", _chat(written))
  assert "policy_template" in str(raised.value)
  assert "\n" not in str(raised.value)


REFUSED = {
  "no end": (_chat("x").replace("<|im_end|>'", ".'"), "without a control"),
  "no answer": (_chat("x").replace(_REST, ""), "an assistant's turn 0 times"),
  "tools": ("{{ raise_exception('tools\nare needed') }}", "tools are needed"),
  "no jinja": ("{% for %}", "TemplateSyntaxError"),
  "undefined": ("{{ messages[0].content.x.y }}", "no attribute"),
  "not a text": (7, "expected a text"),
  "a class": ("{{ ''.__class__.__mro__ }}", "SecurityError|unsafe"),
  "a change": ("{{ messages.append(1) }}", "unsafe|not safely"),
  "a file": ("{% include '/etc/hosts' %}", "no loader"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_template_that_cant_be_used_is_refused_in_one_line(case, tmp_path):
  chat, message = REFUSED[case]
  with pytest.raises(errors.InputError, match=message) as raised:
    _read(tmp_path / "hf", "qwen3", chat)
  assert "\n" not in str(raised.value)
  assert len(str(raised.value)) < 700


HOSTILE = {
  "a long loop": "{% for i in range(99999) %}{% for j in range(99999) %}"
  "{% endfor %}{% endfor %}",
  "a large number": "{{ 9 ** 9 ** 9 ** 9 }}",
  "a large text": "{{ ('a' * 99999999) * 999 }}",
  "much output": "{% for i in range(99999) %}{{ 'a' * 99 }}{% endfor %}",
  "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
  "deep nesting": "{{ " + "(" * 9999 + ")" * 9999 + " }}",
  "too long": " " * (chat_templates.MOST_CHARACTERS + 1),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_template_neither_hangs_nor_fills_the_memory(
  case, tmp_path, monkeypatch
):
  monkeypatch.setattr(chat_templates, "TIME_S", 1)
  started = time.monotonic()
  with pytest.raises(errors.InputError) as raised:
    _read(tmp_path / "hf", "qwen3", HOSTILE[case])
  assert "\n" not in str(raised.value)
  assert len(str(raised.value)) < 700
  # The worker's own clock, not the parent's minute.
  assert time.monotonic() - started < 30


def test_a_template_has_the_memory_of_its_process_alone(tmp_path):
  megabytes = chat_templates.MEMORY_MIB + 200
  # Not a constant, which would become a part of the compiled template.
  chat = f"{{% set y = 'a' * (messages | length * {megabytes << 20}) %}}"
  chat += _chat("x")
  with pytest.raises(errors.InputError, match="in 10 s and 512 MiB"):
    _read(tmp_path / "hf", "qwen3", chat)


def test_a_namespace_stores_no_name_of_pythons(tmp_path):
  chat = "{% set ns = namespace(__x__=1) %}{{ ns.__x__ }}" + _chat("x")
  with pytest.raises(errors.InputError, match="in a namespace"):
    _read(tmp_path / "hf", "qwen3", chat)


def test_what_is_asked_for_and_not_there_is_refused(tmp_path):
  with pytest.raises(errors.InputError, match="no system turn: System role"):
    _read(tmp_path / "hf", "gemma", system="x")
  with pytest.raises(errors.InputError, match="a system turn 0 times"):
    chat = policy_folders.QWEN3.replace(
      "in messages %}", "in messages if m.role != 'system' %}"
    )
    _read(tmp_path / "hf", "qwen3", chat, system="x")
  with pytest.raises(errors.InputError, match="no switch for thinking"):
    _read(tmp_path / "hf", "llama3", thinking=True)


def test_a_tokenizer_that_drops_what_is_beside_a_control_is_refused(tmp_path):
  folder = policy_folders.write(tmp_path / "hf", "qwen3")
  spec = json.loads((folder / "tokenizer.json").read_text())
  for token in spec["added_tokens"]:
    token["rstrip"] = token["content"] == "<|im_end|>"
  (folder / "tokenizer.json").write_text(json.dumps(spec))
  tokenizer = tokenizer_files.from_folder(folder)
  with pytest.raises(errors.InputError, match="otherwise than the whole"):
    chat_templates.policy_template(folder, tokenizer)


def test_a_name_that_the_tokenizer_lacks_is_text(tmp_path):
  chat = policy_folders.QWEN3.replace("<|im_end|>", "<|eot_id|>")
  with pytest.raises(errors.InputError, match="without a control"):
    _read(tmp_path / "hf", "qwen3", chat)


def test_the_longest_name_is_cut_first():
  names = ("<a>", "<a><b>", "<b>")
  found = chat_templates.cut("x<a><b><a>y<b>", names)
  assert found == [
    *(("text", "x"), ("control", "<a><b>"), ("control", "<a>")),
    *(("text", "y"), ("control", "<b>")),
  ]
  whole = tokenizers.Tokenizer(tokenizers.models.BPE())
  whole.add_special_tokens(list(names))
  tokens = whole.encode("<a><b><a><b>").tokens
  assert tokens == ["<a><b>", "<a><b>"]


def test_a_rendering_is_what_jinja_writes():
  template = chat_template_worker.environment().from_string(
    "{% for m in messages %}\n  {% if m.a %}\n{{ m.a }}\n{% continue %}"
    "{% endif %}\n-{{ m | tojson }}\n{% endfor %}"
  )
  messages = [dict(a="é"), dict(b="<é>")]
  text = chat_template_worker.rendered(template, dict(messages=messages), 99)
  assert text == 'é\n-{"b": "<é>"}\n'
  with pytest.raises(ValueError, match="more than"):
    chat_template_worker.rendered(template, dict(messages=messages), 3)


def test_a_system_turn_of_llama_is_stripped_as_its_template_does(tmp_path):
  found = _read(tmp_path / "hf", "llama3_1", system="\n x \n")
  dates = templates.LLAMA_SYSTEM
  assert ("text", f"\n\n{dates}\n\nx") in found.opening


def test_a_sentencepiece_model_has_the_names_that_the_config_lists(tmp_path):
  model = hostile_text.sentencepiece_model("identity")
  (tmp_path / "tokenizer.model").write_bytes(model)
  config = dict(
    chat_template=policy_folders.QWEN3,
    eos_token="</s>",
    additional_special_tokens=["<|im_start|>", "<|im_end|>", "no control"],
  )
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  tokenizer = tokenizer_files.from_folder(tmp_path)
  found = chat_templates.policy_template(tmp_path, tokenizer)
  assert found.opening == policy_templates.qwen3().opening
  assert found.ends == ("<|im_end|>",)
