"""Published outcome reward models become ORMs, read at the end of their chat.

test_outcome_models_parity.py compares their scores with those of transformers.
"""

import dataclasses
import json

import ml_collections
import numpy as np
import policy_folders
import pytest
import tensor_files
import test_import_export
import tokenizers

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import model_card
from prm_jax.huggingface import outcome_chat
from prm_jax.huggingface import token_names
from prm_jax.rows import preference_pairs
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import templates
from prm_jax.text import tokenizer_files
from prm_jax.training import train_run_config

SOLUTION = schema.Solution("a", "What is 3 + 4?", ("3 + 4 = 7", "It is 7."))
MODEL = dataclasses.replace(
  test_import_export.MODEL,
  vocab_size=policy_folders.tokenizer("qwen2_5").text_ids + 3,
)
HEADS = {
  "SequenceClassification": {"score.weight": (1, 16)},
  "RewardModel": {
    "score.0.weight": (16, 16),
    "score.0.bias": (16,),
    "score.2.weight": (1, 16),
    "score.2.bias": (1,),
  },
}


# What their chats write for SOLUTION.
TEXTS = dict(
  qwen2_5=(
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a"
    " helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is 3 + 4?<|im_end|>"
    "\n<|im_start|>assistant\n3 + 4 = 7\n\nIt is 7.<|im_end|>\n"
  ),
  llama2="<s>[INST] What is 3 + 4? [/INST] 3 + 4 = 7\n\nIt is 7. </s>",
  mistral="<s>[INST] What is 3 + 4?[/INST] 3 + 4 = 7\n\nIt is 7.</s>",
)


def _theirs(
  folder,
  kind="SequenceClassification",
  head=None,
  family="qwen2_5",
  **config,
):
  """Writes a published ORM of Qwen2's shape, with random weights.

  family: That of its tokenizer and chat.
  """
  size = policy_folders.tokenizer(family).text_ids + 3
  model = dataclasses.replace(MODEL, vocab_size=size)
  policy_folders.write(folder, family, config.pop("chat", None))
  random = np.random.default_rng(0)
  tensors = {
    name: random.normal(size=shape).astype(np.float32)
    for name, shape in (head or HEADS[kind]).items()
  }
  params = test_import_export._params(model, "lm")
  trunk = {k: v for k, v in params.items() if k != "lm_head"}
  trunk = huggingface.export_tensors("qwen2", model, trunk)
  huggingface.save(
    *(folder, "qwen2", model, [*trunk, *tensors.items()]),
    dtype="float32",
    architecture=f"Qwen2For{kind}",
    extra=config,
  )
  return folder


def _id_of(name):
  return policy_folders.tokenizer("qwen2_5").control(name)


def _encoded(folder, solution=SOLUTION):
  description = model_json.read_description(folder)
  return encoding.encode_solution(
    solution,
    model_json.read_tokenizer(folder, description),
    encoding_records.from_record(description.encoding, folder),
  )


# --- In ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
def test_a_whole_solution_is_read_at_the_end_of_its_chat(kind, tmp_path):
  theirs = _theirs(tmp_path / "theirs", kind)
  found = import_model.import_folder(theirs, tmp_path / "ours")
  described = found.description
  assert (described.program, described.aggregate) == ("orm", "last")
  assert described.judged == "last"
  assert described.segmenter == segmenters.PARAGRAPH
  text = TEXTS["qwen2_5"]
  published = token_names.as_published(theirs)
  expected = published.encode(text, add_special_tokens=False)
  encoded = _encoded(tmp_path / "ours")
  assert encoded.tokens.tolist() == expected.ids
  at = [text[: expected.offsets[i][1]][-9:] for i in encoded.step_end]
  assert at == ["3 + 4 = 7", text[-9:]]


@pytest.mark.parametrize(
  "pad, closing",
  [
    ("<|endoftext|>", (("control", "<|im_end|>"), ("text", "\n"))),
    ("<|im_end|>", (("control", "<|im_end|>"), ("text", "\n"))),
    (None, (("control", "<|im_end|>"), ("text", "\n"))),
  ],
)
def test_padding_that_ends_nothing_moves_no_score(pad, closing, tmp_path):
  config = dict(pad_token_id=None if pad is None else _id_of(pad))
  theirs = _theirs(tmp_path / "theirs", **config)
  import_model.import_folder(theirs, tmp_path / "ours")
  description = model_json.read_description(tmp_path / "ours")
  read = encoding_records.from_record(description.encoding, "").template
  assert read.closing == closing


@pytest.mark.parametrize("last", ["It is 7.", "It is \U0001f600", "It is 7.\n"])
def test_where_padding_ends_the_chat_the_token_before_it_is_read(
  last, tmp_path
):
  """Also of a character of several tokens, and of white space after a step."""
  chat = policy_folders.chat_of("qwen2_5").replace(
    "'<|im_end|>\\n' }}", "'<|im_end|>' }}"
  )
  pad = _id_of("<|im_end|>")
  theirs = _theirs(tmp_path / "theirs", chat=chat, pad_token_id=pad)
  import_model.import_folder(theirs, tmp_path / "ours")
  text = f"3 + 4 = 7\n\n{last}"
  spans = ((0, 9), (11, 11 + len(last.strip())))
  steps = tuple(text[a:b] for a, b in spans)
  solution = schema.Solution(
    "a", SOLUTION.problem, steps, raw_text=text, spans=spans
  )
  encoded = _encoded(tmp_path / "ours", solution)
  tokenizer = policy_folders.tokenizer("qwen2_5")
  assert tokenizer.decode(encoded.tokens.tolist()).endswith(last)
  assert encoded.step_end[-1] == len(encoded.tokens) - 1
  assert encoded.tokens[-1] != pad


def test_a_text_of_its_own_is_read_as_it_is(tmp_path):
  import_model.import_folder(_theirs(tmp_path / "theirs"), tmp_path / "ours")
  text = "3 + 4 = 7\n \nIt is 7.\n"
  spans = ((0, 9), (12, 20))
  whole = dataclasses.replace(SOLUTION, raw_text=text, spans=spans)
  encoded = _encoded(tmp_path / "ours", whole)
  ids = policy_folders.tokenizer("qwen2_5").encode(text)
  start = encoded.prompt_tokens
  assert encoded.tokens[start : start + len(ids)].tolist() == ids
  assert encoded.step_end[-1] == len(encoded.tokens) - 1
  # A beginning is read as a whole solution, at the end of a chat of its own.
  begun = _encoded(tmp_path / "ours", schema.first_steps(whole, 1))
  assert begun.step_end.tolist() == [len(begun.tokens) - 1]


@pytest.mark.parametrize("family", TEXTS)
def test_white_space_around_a_solution_has_the_ids_of_the_whole_chat(
  family, tmp_path
):
  folder = _theirs(tmp_path / "hf", family=family)
  import_model.import_folder(folder, tmp_path / "ours")
  whole = token_names.as_published(folder)
  for text in ("\nIt is 7.", "It is 7.\n\n", "  7 ", "\n"):
    chat = TEXTS[family].replace("3 + 4 = 7\n\nIt is 7.", text)
    solution = schema.Solution(
      *("a", SOLUTION.problem, (text,)), raw_text=text, spans=((0, len(text)),)
    )
    encoded = _encoded(tmp_path / "ours", solution)
    expected = whole.encode(chat, add_special_tokens=False).ids
    assert encoded.tokens.tolist() == expected, text


def test_a_sentencepiece_model_reads_the_chat_as_one_text_too(tmp_path):
  """As a folder of Llama 2 without tokenizer.json."""
  folder = _theirs(tmp_path / "hf")
  (folder / "tokenizer.json").unlink()
  words = ["[INST] What is 3 + 4? [/INST] 3 + 4 = 7 It is 7."] * 20
  own = tokenizer_files.train_sentencepiece(words, 300)
  own.save(folder)
  (folder / "tokenizer_config.json").write_text(
    json.dumps(
      dict(
        bos_token="<s>",
        eos_token="</s>",
        chat_template=policy_folders.LLAMA2_CHAT,
      )
    )
  )
  import_model.import_folder(folder, tmp_path / "ours")
  encoded = _encoded(tmp_path / "ours")
  text = "[INST] What is 3 + 4? [/INST] 3 + 4 = 7\n\nIt is 7. "
  assert encoded.tokens.tolist() == [own.bos, *own.encode(text), own.eos]


def _without_an_end():
  """Returns a chat template of Qwen's that writes nothing after a solution."""
  return policy_folders.chat_of("qwen2_5").replace(
    "m.content ~ '<|im_end|>\\n' }}",
    "m.content }}{% if m.role != 'assistant' %}<|im_end|>{% endif %}",
  )


@pytest.mark.parametrize("pad", ["$", "\n"])
def test_padding_that_may_end_a_chat_is_refused(pad, tmp_path):
  """$ may end a solution if nothing follows it; Qwen's chat ends with a line break."""
  (pad_id,) = policy_folders.tokenizer("qwen2_5").encode(pad)
  chat = _without_an_end() if pad == "$" else None
  theirs = _theirs(tmp_path / "theirs", chat=chat, pad_token_id=pad_id)
  with pytest.raises(errors.InputError, match=f"pad_token_id={pad_id} is a"):
    import_model.import_folder(theirs, tmp_path / "ours")


@pytest.mark.parametrize("pad", [-1, 10**6])
def test_padding_that_is_no_token_ends_no_chat(pad, tmp_path):
  theirs = _theirs(tmp_path / "hf", chat=_without_an_end(), pad_token_id=pad)
  import_model.import_folder(theirs, tmp_path / "ours")
  encoded = _encoded(tmp_path / "ours")
  assert encoded.step_end[-1] == len(encoded.tokens) - 1


def test_a_control_that_takes_the_white_space_beside_it_is_refused(tmp_path):
  folder = _theirs(tmp_path / "hf")
  path = folder / "tokenizer.json"
  spec = json.loads(path.read_text())
  for token in spec["added_tokens"]:
    token["lstrip"] = token["content"] == "<|im_end|>"
  path.write_text(json.dumps(spec))
  with pytest.raises(errors.InputError, match="encodes the parts"):
    import_model.import_folder(folder, tmp_path / "ours")


def test_reasoning_that_is_encoded_otherwise_in_the_whole_is_refused(tmp_path):
  """The whole has no space after <think>, a text of its own begins with one."""
  folder = _theirs(tmp_path / "hf", family="mistral")
  path = folder / "tokenizer.json"
  tokenizer = tokenizers.Tokenizer.from_file(str(path))
  tokenizer.add_special_tokens(list(policy_folders.THINK))
  tokenizer.save(str(path))
  with pytest.raises(errors.InputError, match="encodes the parts"):
    import_model.import_folder(folder, tmp_path / "ours")


def test_other_steps_are_joined_as_they_are_cut(tmp_path):
  theirs = _theirs(tmp_path / "theirs")
  words = ["import", f"--from={theirs}", f"--to={tmp_path / 'ours'}"]
  assert main.main([*words, "--segmenter=line", "--system=Be brief."]) == 0
  encoded = _encoded(tmp_path / "ours")
  tokenizer = policy_folders.tokenizer("qwen2_5")
  text = tokenizer.decode(encoded.tokens.tolist())
  assert "3 + 4 = 7\nIt is 7." in text
  assert "Be brief." in text and "Alibaba" not in text


def _changing(content):
  """Returns a chat template that writes other texts than it is given."""
  return dict(chat=policy_folders.QWEN3.replace("m.content", content))


@pytest.mark.parametrize(
  ("fields", "arguments", "message"),
  [
    (dict(head={"score.weight": (3, 16)}), [], "classifier of 3 labels"),
    (dict(head={"other.weight": (1, 16)}), [], "lacks score.weight"),
    (dict(chat=""), [], "without a chat template"),
    (_changing("m.content | upper"), [], "writes the problem 0 times"),
    (
      _changing("m.content | replace('= 7', '= 8')"),
      [],
      "changes a problem or a solution",
    ),
    ({}, ["--template=qwen_prm"], "the chat template of its folder is"),
    ({}, ["--role=policy"], "has a score head"),
  ],
)
def test_an_orm_that_cant_be_read_is_refused_in_one_line(
  fields, arguments, message, tmp_path, capsys
):
  theirs = _theirs(tmp_path / "theirs", **fields)
  target = tmp_path / "ours"
  words = ["import", f"--from={theirs}", f"--to={target}", *arguments]
  assert main.main(words) == 1
  said = capsys.readouterr().err
  assert message in said
  assert said.count("\n") == 1
  assert not target.exists()


@pytest.mark.parametrize("family", ["llama2", "mistral"])
def test_where_texts_begin_with_a_space_the_chat_is_one_text(family, tmp_path):
  folder, text = _theirs(tmp_path / "hf", family=family), TEXTS[family]
  import_model.import_folder(folder, tmp_path / "ours")
  whole = token_names.as_published(folder)
  encoded = _encoded(tmp_path / "ours")
  expected = whole.encode(text, add_special_tokens=False)
  assert encoded.tokens.tolist() == expected.ids
  ends = [stop for _, stop in expected.offsets]
  first = ends[encoded.step_end[0]]
  assert text[:first].endswith("3 + 4 = 7")
  assert encoded.step_end[-1] == len(expected.ids) - 1
  assert text[: ends[encoded.prompt_tokens - 1]].endswith("[/INST]")


def test_a_tokenizer_that_begins_only_the_whole_with_a_space_is_refused(
  tmp_path,
):
  """A text right after <s> has a space on its own, and none in the whole."""
  chat = policy_folders.MISTRAL_CHAT.replace("'[INST] '", "'Ask: '")
  folder = _theirs(tmp_path / "hf", family="mistral", chat=chat)
  with pytest.raises(errors.InputError, match="encodes the parts"):
    import_model.import_folder(folder, tmp_path / "ours")


# --- Words that a chat template looks for -----------------------------------


@pytest.fixture(scope="module")
def reasoning(tmp_path_factory):
  """An ORM whose chat template moves a model's reasoning."""
  folder = tmp_path_factory.mktemp("reasoning")
  chat = policy_folders.REASONS
  _theirs(folder / "hf", family="qwen3", chat=chat)
  import_model.import_folder(folder / "hf", folder / "ours")
  return folder / "ours"


@pytest.mark.parametrize(
  "text",
  [
    "<think>\n3 + 4 = 7\n</think>\n\nIt is 7.",
    "3 + 4 = 7\n</think>\n\nIt is 7.",
    "It is 7, </think>so 7.",
    "It is 7.</think>",
  ],
)
def test_a_solution_that_a_chat_template_would_change_is_refused_by_its_id(
  text, reasoning
):
  spans = ((0, len(text)),)
  solution = schema.Solution(
    "gsm8k/7", "p", (text,), raw_text=text, spans=spans
  )
  with pytest.raises(errors.InputError) as e:
    _encoded(reasoning, solution)
  said = "solution 'gsm8k/7': the solution holds '</think>', which"
  assert str(e.value).startswith(said)
  # Steps without a text of their own are refused as well, and a problem is.
  for other in (
    schema.Solution("b", "p", ("3 + 4 = 7", text)),
    schema.Solution("b", text, ("3 + 4 = 7",)),
  ):
    with pytest.raises(errors.InputError, match=r"'b': the (problem|solution)"):
      _encoded(reasoning, other)


@pytest.mark.parametrize("text", ["It is 7.", "<think>\nIt is 7", "< /think>7"])
def test_other_solutions_are_read_as_the_chat_template_writes_them(
  text, reasoning
):
  chat = (
    "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    f"<think>\n\n</think>\n\n{text}<|im_end|>\n"
  )
  whole = token_names.as_published(reasoning.parent / "hf")
  solution = schema.Solution(
    *("a", SOLUTION.problem, (text,)), raw_text=text, spans=((0, len(text)),)
  )
  expected = whole.encode(chat, add_special_tokens=False).ids
  assert _encoded(reasoning, solution).tokens.tolist() == expected


@pytest.mark.parametrize(
  ("content", "words"),
  [
    ("m.content | replace('[calc]', '')", ("[calc]",)),
    ("m.content | replace(' so\\n\\nthen ', ' ')", ("so\n\nthen",)),
    ("(m.content[2:] if m.content.startswith('$$') else m.content)", ("$$",)),
    ("(m.content[:-1] if m.content.endswith('##') else m.content)", ("##",)),
    (
      "('' if m.content.startswith('<calc>') and m.content.endswith('</calc>')"
      " else m.content)",
      ("<calc>",),
    ),
    (
      "(raise_exception('no') if m.role == 'user' and '[x]' in m.content else"
      " m.content)",
      ("[x]",),
    ),
    ("m.content | replace('\\n\\n\\n', '\\n\\n')", ("\n\n\n",)),
    (
      "('' if 'so it is' in m.content.lower() else m.content)",
      ("SO IT IS", "So It Is", "So it is", "so it is"),
    ),
    (
      "('' if m.content.upper().startswith('SO') else m.content)",
      ("SO", "So", "so"),
    ),
  ],
)
def test_any_text_that_a_chat_template_looks_for_is_refused(
  content, words, tmp_path
):
  chat = policy_folders.QWEN3.replace("m.content", content)
  theirs = _theirs(tmp_path / "hf", chat=chat)
  template = outcome_chat.template(
    theirs, tokenizer_files.from_folder(theirs), pad=None
  )
  assert template.refuses == words


def test_words_that_change_a_text_only_together_refuse_the_folder(tmp_path):
  chat = policy_folders.QWEN3.replace(
    "m.content",
    "(m.content | upper if '[a]' in m.content and '[b]' in m.content"
    " else m.content)",
  )
  theirs = _theirs(tmp_path / "hf", chat=chat)
  with pytest.raises(errors.InputError, match="several words of its code"):
    import_model.import_folder(theirs, tmp_path / "ours")


def test_what_is_exported_refuses_the_same_words(reasoning, tmp_path):
  export_model.export_folder(reasoning, tmp_path / "back")
  card = (tmp_path / "back" / "README.md").read_text()
  assert "No problem or solution may hold `</think>`" in card
  import_model.import_folder(tmp_path / "back", tmp_path / "again")
  description = model_json.read_description(tmp_path / "again")
  assert tuple(description.encoding["template"]["refuses"]) == ("</think>",)


def test_a_prm_that_starts_from_an_orm_refuses_no_word(reasoning):
  config = ml_collections.ConfigDict(
    dict(
      program="prm",
      init_from=str(reasoning),
      encoding=dict(template="policy"),
    )
  )
  assert train_run_config._encoding(config).template.refuses == ()


# --- Out --------------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
def test_an_orm_comes_back_to_the_bit(kind, tmp_path):
  theirs = _theirs(tmp_path / "theirs", kind, pad_token_id=3)
  import_model.import_folder(theirs, tmp_path / "ours")
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  tensor_files.assert_same(tmp_path / "theirs", tmp_path / "back")
  before, after = (
    json.loads((tmp_path / x / "config.json").read_text())
    for x in ("theirs", "back")
  )
  one_label = dict(
    num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}
  )
  is_class = kind == "SequenceClassification"
  assert after == before | (one_label if is_class else {})
  # The copy is read as the original, closing and all.
  import_model.import_folder(tmp_path / "back", tmp_path / "again")
  described = [
    model_json.read_description(tmp_path / x) for x in ("ours", "again")
  ]
  assert described[0] == described[1]


@pytest.mark.parametrize("family", ["qwen2_5", "llama2"])
def test_the_parts_in_a_card_are_what_an_orm_reads(family, tmp_path):
  folder = _theirs(tmp_path / "hf", family=family)
  import_model.import_folder(folder, tmp_path / "ours")
  facts = export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  card = (tmp_path / "back" / "README.md").read_text()
  assert "The last step is read where `closing` has its `read`." in card
  example, tokenizer = model_card.EXAMPLE, policy_folders.tokenizer(family)
  read = templates.from_record(dict(facts.parts, name="card"))
  parts = read._filled(example.problem, example.steps, end=True)
  ids, reads, _ = templates.write_parts("card", parts, tokenizer)
  *others, _, last = reads
  assert ids == facts.example.tokens
  assert [n - 1 for n in (*others, last)] == facts.example.places


def test_an_mlp_of_another_family_has_no_place(tmp_path):
  model = dataclasses.replace(
    test_import_export.MODEL, qkv_bias=False, outcome_head="mlp"
  )
  ours = test_import_export._ours(tmp_path / "ours", model, program="orm")
  with pytest.raises(errors.InputError, match="is an architecture of qwen2"):
    export_model.export_folder(ours, tmp_path / "theirs")


# --- Training from one ------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2_5", "llama2"])
@pytest.mark.parametrize("program", ["orm", "prm"])
def test_what_learns_outcomes_alone_keeps_the_end_of_the_chat(
  program, family, tmp_path
):
  folder = _theirs(tmp_path / "hf", family=family)
  import_model.import_folder(folder, tmp_path / "ours")
  config = ml_collections.ConfigDict(
    dict(
      program=program,
      init_from=str(tmp_path / "ours"),
      encoding=dict(template="policy"),
    )
  )
  read = train_run_config._encoding(config).template
  assert isinstance(read, policy_text.PolicyTemplate)
  assert bool(read.closing) == read.one_text == (program == "orm")


def test_right_and_wrong_solutions_in_one_text_are_compared(tmp_path):
  """Their first tokens may begin inside of what is before them."""
  folder = _theirs(tmp_path / "hf", family="llama2")
  import_model.import_folder(folder, tmp_path / "ours")
  description = model_json.read_description(tmp_path / "ours")
  tokenizer = policy_folders.tokenizer("llama2")
  config = encoding_records.from_record(description.encoding, "")
  solutions = [
    schema.Solution(text, "What is 3 + 4?", (text,), outcome=right)
    for text, right in (("3 + 4 = 7", True), ("It is 8", False))
  ]
  examples, _ = encoding.orm_examples(solutions, tokenizer, config, "last_step")
  # So the numbers of their prompts' tokens differ.
  assert len({x.prompt_tokens for x in examples}) == 2
  _, counts = preference_pairs.group(examples, "solutions")
  assert counts["pairs"] == 1


def test_a_closing_holds_no_problem():
  for kind in ("problem", "read"):
    with pytest.raises(errors.InputError, match=f"closing has {kind}"):
      policy_text.PolicyTemplate(
        "x", (templates.PROBLEM,), ("a",), closing=((kind, ""),)
      )
