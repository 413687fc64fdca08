"""Tiny folders of published policies: tokenizers, and chat templates.

The tokenizers are of the families' kinds and have their control tokens. The
chat templates are ours: they write what the published ones write for a system
turn, questions and answers, without tools.
"""

import functools
import json

import recipes
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from prm_jax.text import tokenizer as tokenizer_lib

QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = (
  *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
  *("<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
)
LLAMA2 = ("<unk>", "<s>", "</s>")
MISTRAL = (
  *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
  *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
  *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
THINK = ("<think>", "</think>")


def _first(model: tokenizers.Tokenizer, bos: str) -> None:
  """Makes a tokenizer write bos before a text."""
  model.post_processor = processors.TemplateProcessing(
    single=f"{bos} $A", special_tokens=[(bos, model.token_to_id(bos))]
  )


def _byte_level(controls, more=(), bos=None) -> str:
  text = recipes._byte_level(controls, recipes._WORDS)
  model = tokenizers.Tokenizer.from_str(text)
  # <think> is an added token that isn't special, as in Qwen3.
  model.add_tokens([tokenizers.AddedToken(x, normalized=False) for x in more])
  if bos:
    _first(model, bos)
  return model.to_str()


def _byte_fallback(controls, bos: str) -> tokenizers.Tokenizer:
  model = tokenizers.Tokenizer(
    models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
  )
  trainer = trainers.BpeTrainer(
    vocab_size=560,
    special_tokens=[*controls, *(f"<0x{i:02X}>" for i in range(256))],
    initial_alphabet=["\u2581", "\n"],
    show_progress=False,
  )
  words = [f"\u2581{word}" for x in recipes.LESSONS for word in x.split()]
  model.train_from_iterator([*words, "\u2581\u2581", "\n\n"] * 9, trainer)
  # The bytes are pieces of the model and no added tokens.
  spec = json.loads(model.to_str())
  kept = [x for x in spec["added_tokens"] if x["content"] in controls]
  model = tokenizers.Tokenizer.from_str(
    json.dumps(spec | dict(added_tokens=kept))
  )
  _first(model, bos)
  return model


def _strips_first_space() -> decoders.Decoder:
  return decoders.Sequence(
    [
      *(decoders.Replace("\u2581", " "), decoders.ByteFallback()),
      *(decoders.Fuse(), decoders.Strip(" ", 1, 0)),
    ]
  )


def _mistral() -> str:
  model = _byte_fallback(MISTRAL, "<s>")
  model.pre_tokenizer = pre_tokenizers.Metaspace(
    prepend_scheme="first", split=False
  )
  model.decoder = _strips_first_space()
  return model.to_str()


def _llama2() -> str:
  """Llama 2 and Mistral 7B v0.1: a space before every text after a control."""
  model = _byte_fallback(LLAMA2, "<s>")
  model.normalizer = normalizers.Sequence(
    [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
  )
  model.decoder = _strips_first_space()
  return model.to_str()


def _gemma() -> str:
  model = _byte_fallback(GEMMA, "<bos>")
  model.normalizer = normalizers.Replace(" ", "\u2581")
  model.decoder = decoders.Sequence(
    [
      *(decoders.Replace("\u2581", " "), decoders.ByteFallback()),
      decoders.Fuse(),
    ]
  )
  # White space of several characters, as in Gemma.
  model.add_tokens(
    [tokenizers.AddedToken(x, normalized=False) for x in ("\n\n", "\n\n\n")]
  )
  return model.to_str()


@functools.cache
def json_of(family: str) -> str:
  """Returns a tiny tokenizer.json of a family."""
  if family in ("qwen2_5", "qwen2_5_math"):
    return _byte_level(QWEN)
  if family == "qwen3":
    return _byte_level(QWEN, THINK)
  if family in ("llama3", "llama3_1"):
    return _byte_level(LLAMA, bos="<|begin_of_text|>")
  if family == "llama2":
    return _llama2()
  return _mistral() if family == "mistral" else _gemma()


NAMES = dict(
  qwen=dict(eos_token="<|im_end|>"),
  llama2=dict(bos_token="<s>", eos_token="</s>"),
  llama=dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
  mistral=dict(bos_token="<s>", eos_token="</s>"),
  gemma=dict(bos_token="<bos>", eos_token="<eos>"),
)


def names(family: str) -> dict[str, str]:
  """Returns the special tokens of a family's tokenizer_config.json."""
  return next(x for key, x in NAMES.items() if family.startswith(key))


@functools.cache
def tokenizer(family: str) -> tokenizer_lib.HuggingFace:
  """Returns our tokenizer of a family."""
  special = names(family)
  return tokenizer_lib.HuggingFace(
    json_of(family), bos=special.get("bos_token"), eos=special["eos_token"]
  )


# --- Chat templates ---------------------------------------------------------

_CHATML = (
  "{%- for m in messages %}"
  "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
  "{%- endfor %}"
  "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)
_ALTERNATES = (
  "{%- for m in turns %}"
  "{%- if (m.role == 'user') != loop.index0 is even %}"
  "{{- raise_exception('the roles must alternate') }}{% endif %}{% endfor %}"
)


def qwen2_5(system: str) -> str:
  return (
    "{%- if messages[0].role != 'system' %}"
    f"{{{{- '<|im_start|>system\\n{system}<|im_end|>\\n' }}}}"
    "{%- endif %}" + _CHATML
  )


QWEN3 = _CHATML.replace(
  "assistant\\n' }}",
  "assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}"
  "{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
)
# As those of later Qwen models: reasoning comes first, in a block of its own,
# which is empty if a turn has none.
REASONS = _CHATML.replace(
  "{{- '<|im_start|>' ~ m.role",
  "{%- set parts = m.content.split('</think>') %}"
  "{%- if m.role == 'assistant' %}"
  "{{- '<|im_start|>assistant\\n<think>\\n' }}"
  "{{- parts[0].split('<think>')[-1] | trim if parts | length > 1 }}"
  "{{- '\\n</think>\\n\\n' ~ parts[-1] | trim ~ '<|im_end|>\\n' }}"
  "{%- else %}{{- '<|im_start|>' ~ m.role",
).replace(
  "'<|im_end|>\\n' }}{%- endfor", "'<|im_end|>\\n' }}{%- endif %}{%- endfor"
)
_LLAMA_TURNS = (
  "{%- for m in turns %}{{- '<|start_header_id|>' ~ m.role ~"
  " '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}"
  "{%- if add_generation_prompt %}"
  "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA3 = "{{- bos_token }}{% set turns = messages %}" + _LLAMA_TURNS
LLAMA3_1 = (
  "{{- bos_token }}{% set turns = messages %}{% set system = '' %}"
  "{%- if messages[0].role == 'system' %}"
  "{%- set turns = messages[1:] %}{% set system = messages[0].content | trim %}"
  "{%- endif %}"
  "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
  "{{- 'Cutting Knowledge Date: December 2023\\n' }}"
  "{{- 'Today Date: ' ~ strftime_now('%d %b %Y') ~ '\\n\\n' }}"
  "{{- system ~ '<|eot_id|>' }}" + _LLAMA_TURNS
)
LLAMA2_CHAT = (
  "{{- bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
  "{{- '[INST] ' ~ m.content | trim ~ ' [/INST]' }}"
  "{%- else %}{{- ' ' ~ m.content | trim ~ ' ' ~ eos_token }}{% endif %}"
  "{%- endfor %}"
)
MISTRAL_CHAT = (
  "{%- set turns = messages %}{% set before = '' %}"
  "{%- if messages[0].role == 'system' %}"
  "{%- set turns = messages[1:] %}"
  "{%- set before = messages[0].content ~ '\\n\\n' %}{% endif %}"
  + _ALTERNATES
  + "{{- bos_token }}{% for m in turns %}{% if m.role == 'user' %}"
  "{{- '[INST] ' ~ (before if loop.last) ~ m.content ~ '[/INST]' }}"
  "{%- else %}{{- ' ' ~ m.content | trim ~ eos_token }}{% endif %}{% endfor %}"
)
GEMMA_CHAT = (
  "{%- if messages[0].role == 'system' %}"
  "{{- raise_exception('System role not supported') }}{% endif %}"
  "{%- set turns = messages %}"
  + _ALTERNATES
  + "{{- bos_token }}{% for m in turns %}"
  "{%- set role = 'model' if m.role == 'assistant' else m.role %}"
  "{{- '<start_of_turn>' ~ role ~ '\\n' ~ m.content | trim }}"
  "{{- '<end_of_turn>\\n' }}{% endfor %}"
  "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"
)


def chat_of(family: str) -> str:
  """Returns the text of a family's chat template."""
  return dict(
    qwen2_5=qwen2_5(
      "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    ),
    qwen2_5_math=qwen2_5(
      "Please reason step by step, and put your final answer within"
      " \\\\boxed{}."
    ),
    qwen3=QWEN3,
    llama2=LLAMA2_CHAT,
    llama3=LLAMA3,
    llama3_1=LLAMA3_1,
    mistral=MISTRAL_CHAT,
    gemma=GEMMA_CHAT,
  )[family]


def write(folder, family: str, chat: str | None = None, **generation):
  """Writes a folder's tokenizer, chat template and generation_config.json.

  Args:
    folder: The folder, which is made if it isn't there.
    family: One of policy_templates.CHATS, or llama2.
    chat: Another chat template than the family's; "" for none.
    **generation: The fields of generation_config.json.
  """
  folder.mkdir(exist_ok=True)
  (folder / "tokenizer.json").write_text(json_of(family))
  record = dict(names(family))
  chat = chat_of(family) if chat is None else chat
  if chat:
    record["chat_template"] = chat
  (folder / "tokenizer_config.json").write_text(json.dumps(record))
  if generation:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(generation))
  return folder


# --- Chat templates with tools -------------------------------------------------

# As those of Qwen write them: tools in the system turn, results of one turn in
# one user's.
QWEN_TOOLS = (
  "{%- if tools %}{{- '<|im_start|>system\\n' }}"
  "{%- if messages[0].role == 'system' %}"
  "{{- messages[0].content ~ '\\n\\n' }}{% endif %}"
  "{{- '# Tools in <tools></tools>:\\n<tools>' }}"
  "{%- for tool in tools %}{{- '\\n' ~ tool | tojson }}{% endfor %}"
  "{{- '\\n</tools><|im_end|>\\n' }}"
  "{%- elif messages[0].role == 'system' %}"
  "{{- '<|im_start|>system\\n' ~ messages[0].content ~ '<|im_end|>\\n' }}"
  "{%- endif %}"
  "{%- for m in messages %}"
  "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
  "{%- if m.content %}{{- '\\n' ~ m.content }}{% endif %}"
  "{%- for call in m.tool_calls or [] %}"
  '{{- \'\\n<tool_call>\\n{"name": "\' ~ call.function.name }}'
  '{{- \'", "arguments": \' ~ call.function.arguments | tojson }}'
  "{{- '}\\n</tool_call>' }}{% endfor %}{{- '<|im_end|>\\n' }}"
  "{%- elif m.role == 'tool' %}"
  "{%- if messages[loop.index0 - 1].role != 'tool' %}"
  "{{- '<|im_start|>user' }}{% endif %}"
  "{{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}"
  "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
  "{{- '<|im_end|>\\n' }}{% endif %}"
  "{%- elif m.role == 'user' %}"
  "{{- '<|im_start|>user\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endif %}"
  "{%- endfor %}"
  "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)
# As Qwen3's: thoughts stay after the last user's message alone.
QWEN_THINKS = QWEN_TOOLS.replace(
  "{%- for m in messages %}",
  "{%- set ns = namespace(last=0) %}{%- for m in messages %}"
  "{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
  "{%- endfor %}{%- for m in messages %}",
).replace(
  "{%- if m.content %}{{- '\\n' ~ m.content }}{% endif %}",
  "{%- set parts = m.content.split('</think>') %}"
  "{%- set thought = m.reasoning_content or"
  " (parts[0].split('<think>')[-1] if parts | length > 1) %}"
  "{%- if thought and loop.index0 > ns.last %}"
  "{{- '\\n<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n' }}{% endif %}"
  "{{- '\\n' ~ parts[-1].lstrip('\\n') if parts[-1] }}",
)
# As Llama 3.1's: one call at a time without a text beside it, results in JSON.
LLAMA_TOOLS = (
  "{{- bos_token }}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
  "{%- if tools %}{{- 'Environment: ipython\\n' }}{% endif %}"
  "{%- set turns = messages %}"
  "{%- if messages[0].role == 'system' %}{% set turns = messages[1:] %}"
  "{{- messages[0].content | trim }}{% endif %}{{- '<|eot_id|>' }}"
  "{%- for m in turns %}"
  "{%- set role = 'ipython' if m.role == 'tool' else m.role %}"
  "{%- if tools and loop.first %}{% set role = 'user' %}{% endif %}"
  "{{- '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}"
  "{%- if tools and loop.first %}"
  "{%- for tool in tools %}{{- tool | tojson(indent=4) ~ '\\n\\n' }}{% endfor %}"
  "{%- endif %}"
  "{%- if m.tool_calls %}{%- if m.tool_calls | length > 1 %}"
  "{{- raise_exception('one call at a time') }}{% endif %}"
  "{%- set call = m.tool_calls[0].function %}"
  '{{- \'{"name": "\' ~ call.name ~ \'", "parameters": \' }}'
  "{{- call.arguments | tojson ~ '}' }}"
  "{%- elif m.role == 'tool' %}{{- m.content | tojson }}"
  "{%- else %}{{- m.content | trim }}{% endif %}{{- '<|eot_id|>' }}{% endfor %}"
  "{%- if add_generation_prompt %}"
  "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
# As Mistral's: tools before the last user's message, found by its text; ids.
MISTRAL_TOOLS = (
  "{{- bos_token }}{%- set last = messages | selectattr('role', 'equalto',"
  " 'user') | list | last %}"
  "{%- for m in messages %}{%- if m.role == 'user' %}"
  "{%- if tools and m == last %}{{- '[AVAILABLE_TOOLS] [' }}"
  "{%- for tool in tools %}"
  '{{- \'{"type": "function", "function": {\' }}'
  "{%- for key, value in tool.function.items() %}"
  "{{- '\"' ~ key ~ '\": ' ~ ('\"' ~ value ~ '\"' if value is string"
  " else value | tojson) ~ (', ' if not loop.last else '') }}{% endfor %}"
  "{{- '}}' ~ (', ' if not loop.last else ']') }}{% endfor %}"
  "{{- '[/AVAILABLE_TOOLS]' }}{% endif %}"
  "{{- '[INST] ' ~ m.content ~ '[/INST]' }}"
  "{%- elif m.tool_calls %}{{- '[TOOL_CALLS] [' }}"
  "{%- for call in m.tool_calls %}"
  "{%- if call.id | length != 9 %}{{- raise_exception('nine letters') }}"
  '{%- endif %}{{- (call.function | tojson)[:-1] ~ \', "id": "\' ~ call.id }}'
  "{{- '\"}' ~ (', ' if not loop.last else '') }}{% endfor %}"
  "{{- ']' ~ eos_token }}"
  "{%- elif m.role == 'tool' %}"
  "{{- '[TOOL_RESULTS] {\"content\": ' ~ m.content }}"
  "{{- ', \"call_id\": \"' ~ m.tool_call_id ~ '\"}[/TOOL_RESULTS]' }}"
  "{%- elif m.role == 'assistant' %}{{- ' ' ~ m.content | trim ~ eos_token }}"
  "{%- else %}{{- raise_exception('no such role') }}{% endif %}{% endfor %}"
)
TOOLS = dict(
  qwen2_5=QWEN_TOOLS,
  qwen3=QWEN_THINKS,
  llama3_1=LLAMA_TOOLS,
  mistral=MISTRAL_TOOLS,
)
