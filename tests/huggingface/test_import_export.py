"""What goes through a Hugging Face folder comes back, and is read the same."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import policy_folders
import pytest
import recipes
import tensor_files

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.datasets.formats import prm800k
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import export_model
from prm_jax.huggingface import heads
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_model
from prm_jax.huggingface import model_card
from prm_jax.huggingface import origin_digests
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files
from prm_jax.scoring import saved
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import step_spans
from prm_jax.text import templates
from prm_jax.text import tokenizer_files

ROOT = pathlib.Path(__file__).parents[2]
MODEL = model_config.ModelConfig(
  vocab_size=420,
  d_model=16,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  d_ff=24,
  qkv_bias=True,
)
SOLUTIONS = [
  model_card.EXAMPLE,
  schema.Solution("b", "x^2 = 16", ("so x = 4", "or x = -4.")),
]


@functools.cache
def _params(model, head, seed=0):
  random = np.random.default_rng(seed)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), model, (head,)))
  )
  return jax.tree.map(
    lambda x: jnp.asarray(0.5 * random.normal(size=x.shape), x.dtype), shapes
  )


def _ours(folder, model=MODEL, program="prm", template=None, tokenizer=None):
  """Writes a checkpoint folder of ours with random parameters."""
  tokenizer = tokenizer or recipes.tokenizer("qwen")
  folder.mkdir()
  head = dict(prm="step", orm="outcome", sft="lm")[program]
  if isinstance(template, str | None):
    template = encoding_records.named(template)
  encoding_config = encoding.EncodingConfig(template=template, max_tokens=512)
  encoding_config = encoding_records.with_template(encoding_config, tokenizer)
  description = model_json.Description(
    program,
    model,
    encoding_records.record_of(encoding_config),
    tokenizer.save(folder),
  )
  saves.save_params(folder, _params(model, head))
  model_json.write_description(folder, description)
  return folder


def _theirs(folder, tokenizer="qwen"):
  """Writes a language model's Hugging Face folder with random weights."""
  params = _params(MODEL, "lm")
  tensors = huggingface.export_tensors("qwen2", MODEL, params)
  huggingface.save(folder, "qwen2", MODEL, tensors, dtype="float32")
  (folder / "tokenizer.json").write_text(recipes.json_of(tokenizer))
  names = dict(eos_token="<|im_end|>", chat_template="{{ messages }}")
  (folder / "tokenizer_config.json").write_text(json.dumps(names))
  return folder


def _scores(folder):
  """Returns scores one by one, as an export scores its example."""
  model = saved.load(folder)
  return [model.score([s])[0].scores for s in SOLUTIONS]


# --- Round trips ------------------------------------------------------------

KINDS = {
  "native": {},
  "native_three_classes": dict(model=dict(step_classes=3)),
  "native_orm": dict(program="orm"),
  "native_orm_of_a_classifier": dict(
    program="orm", model=dict(outcome_head="linear_no_bias")
  ),
  "native_orm_of_an_mlp": dict(program="orm", model=dict(outcome_head="mlp")),
  "token_classification": dict(template="token_classification"),
  "two_classes": dict(
    template="token_classification",
    model=dict(step_classes=2),
  ),
  "qwen_prm_of_a_linear_head": dict(template="qwen_prm"),
  "qwen_prm_of_two_classes": dict(
    template="qwen_prm", model=dict(step_classes=2)
  ),
  "qwen_prm": dict(template="qwen_prm", model=dict(step_head="mlp")),
  "adapters": dict(
    template="token_classification",
    model=dict(lora_rank=2, lora_alpha=4.0),
  ),
  "skywork": dict(template="skywork"),
  "skywork_of_two_classes": dict(
    template="skywork", model=dict(step_classes=2)
  ),
  "signs": dict(
    template="qwen_prm",
    model=dict(step_head="tokens", step_tokens=(3, 7)),
  ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_imported_with_the_same_scores(kind, tmp_path):
  fields = dict(KINDS[kind])
  model = dataclasses.replace(MODEL, **fields.pop("model", {}))
  ours = _ours(tmp_path / "ours", model, **fields)
  if kind == "signs":
    # Its architecture has no score head: it is a language model's.
    kind_of, head = heads.tensors(
      kinds.KINDS["prm"], "rlhflow", model, {}, ours
    )
    assert (kind_of, head) == ("CausalLM", {})
    return
  # A name of letters that JSON would escape otherwise than Python.
  theirs = tmp_path / "theirs \U0001d4b3"
  facts = export_model.export_folder(ours, theirs)
  import_model.import_folder(theirs, tmp_path / "back")
  scores = _scores(ours)
  for before, after in zip(scores, _scores(tmp_path / "back"), strict=True):
    np.testing.assert_allclose(after, before, atol=1e-5)
  np.testing.assert_allclose(facts.example.scores, scores[0], atol=1e-6)
  # Its card has Python whose ids are those of the example.
  assert facts.snippet is not None
  descriptions = [
    model_json.read_description(tmp_path / x) for x in ("ours", "back")
  ]
  encoding_configs = [
    encoding_records.from_record(x.encoding, "") for x in descriptions
  ]
  assert encoding_configs[0] == encoding_configs[1]
  assert descriptions[0].program == descriptions[1].program


def test_a_language_model_comes_back_to_the_bit(tmp_path):
  theirs = _theirs(tmp_path / "theirs")
  import_model.import_folder(theirs, tmp_path / "ours")
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  tensor_files.assert_same(tmp_path / "theirs", tmp_path / "back")
  configs = [
    json.loads((tmp_path / x / "config.json").read_text())
    for x in ("theirs", "back")
  ]
  assert configs[0] == configs[1]
  text = (tmp_path / "back" / "tokenizer.json").read_text()
  assert text == recipes.json_of("qwen")


@pytest.mark.parametrize("said", ["bfloat16", None])
def test_no_bit_is_lost_where_a_config_says_another_dtype(said, tmp_path):
  theirs = _theirs(tmp_path / "theirs")
  record = json.loads((theirs / "config.json").read_text())
  files.write_json(theirs / "config.json", record | dict(torch_dtype=said))
  import_model.import_folder(theirs, tmp_path / "ours")
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  old, new = (
    huggingface.open_tensors(tmp_path / x) for x in ("theirs", "back")
  )
  for name in old.names:
    np.testing.assert_array_equal(old.read(name), new.read(name))


def test_what_is_exported_in_fewer_bits_says_the_scores_of_those(tmp_path):
  ours = _ours(tmp_path / "ours")
  facts = export_model.export_folder(
    ours, tmp_path / "theirs", dtype="bfloat16"
  )
  # The numbers in bfloat16, computed in float32.
  import_model.import_folder(
    tmp_path / "theirs", tmp_path / "back", dtype="float32"
  )
  found = _scores(tmp_path / "back")[0]
  np.testing.assert_allclose(facts.example.scores, found, atol=1e-6)
  assert np.abs(np.subtract(found, _scores(ours)[0])).max() > 1e-5


def test_a_number_that_doesnt_fit_the_dtype_is_refused(tmp_path):
  ours = _ours(tmp_path / "ours")
  shutil.rmtree(ours / "checkpoints")
  params = dict(_params(MODEL, "step"))
  params["step_head"] = jax.tree.map(
    lambda x: jnp.asarray(np.asarray(x) + 1e5), params["step_head"]
  )
  saves.save_params(ours, params)
  with pytest.raises(errors.InputError, match=r"step_head/.*use bfloat16"):
    export_model.export_folder(ours, tmp_path / "theirs", dtype="float16")
  assert not (tmp_path / "theirs").exists()
  export_model.export_folder(ours, tmp_path / "theirs", dtype="bfloat16")


def test_an_export_never_begins_from_a_changed_file(tmp_path):
  """What an import kept: each file has a digest, and so have the digests."""
  export_model.export_folder(_ours(tmp_path / "ours"), tmp_path / "theirs")
  import_model.import_folder(tmp_path / "theirs", tmp_path / "back")
  origin = tmp_path / "back" / "origin"
  trained = tmp_path / "trained"
  trained.mkdir()
  import_model.pass_origin_on(tmp_path / "back", trained)
  for folder in (origin, trained / "origin"):
    for path in folder.iterdir():
      content = path.read_bytes()
      path.write_bytes(content.replace(b"e", b"f", 1))
      assert path.read_bytes() != content
      with pytest.raises(errors.InputError, match=path.name) as e:
        origin_digests.check(folder)
      assert str(e.value).startswith(f"{folder}: ")
      if folder == origin:
        with pytest.raises(errors.InputError, match=path.name):
          export_model.export_folder(tmp_path / "back", tmp_path / "again")
      path.write_bytes(content)
  (origin / "sha256.json").unlink()
  with pytest.raises(errors.InputError, match=r"sha256\.json"):
    origin_digests.check(origin)


def test_a_card_never_names_a_damaged_config(tmp_path):
  ours = _ours(tmp_path / "ours", template="token_classification")
  config = dict(optimizer=dict(peak_lr=1e-5))
  files.write_json(ours / "environment.json", dict(config=config))
  files.write_json(ours / "config.json", dict(optimizer=dict(peak_lr=1e-4)))
  with pytest.raises(errors.InputError, match=r"values of optimizer\.peak_lr"):
    export_model.export_folder(ours, tmp_path / "theirs")


def test_the_card_says_how_to_read_and_what_comes_out(tmp_path):
  ours = _ours(tmp_path / "ours", template="token_classification")
  files.write_json(ours / "config.json", dict(data=dict(train=["jsonl:a"])))
  metrics = [
    dict(step=0, kind="eval", loss_nats=0.25, errors_found=None),
    dict(step=5, kind="eval", loss_nats=0.75),
  ]
  lines = (checked_lines.line_of(json.dumps(x)) for x in metrics)
  (ours / "metrics.jsonl").write_text("".join(lines))
  facts = export_model.export_folder(ours, tmp_path / "theirs")
  text = (tmp_path / "theirs" / "README.md").read_text()
  assert text.startswith("---\nlibrary_name: transformers\n")
  assert "pipeline_tag: token-classification" in text
  assert "| errors_found | undefined |\n| loss_nats | 0.25 |" in text
  # What was measured later was measured on other parameters.
  assert "after 0 updates" in text and "0.75" not in text
  assert "`jsonl:a`" in text
  assert str([round(x, 4) for x in facts.example.scores]) in text
  assert json.dumps(facts.parts["step"]) in text


@pytest.mark.parametrize(
  "judged, said",
  [
    ("until_first_error", "Scores after a first error mean nothing."),
    (None, "Scores after a first error mean nothing."),
    ("last", "Only the last step's score was trained."),
    ("all", None),
  ],
)
def test_a_card_says_which_steps_are_judged_and_an_import_keeps_it(
  judged, said, tmp_path
):
  ours = _ours(tmp_path / "ours", template="token_classification")
  described = model_json.read_description(ours)
  model_json.write_description(
    ours, dataclasses.replace(described, judged=judged, aggregate="last")
  )
  export_model.export_folder(ours, tmp_path / "theirs")
  text = (tmp_path / "theirs" / "README.md").read_text()
  for sentence in ("Scores after a first error", "Only the last step's"):
    assert (sentence in text) == (said is not None and sentence in said)
  warns = "The last includes such scores" in text
  assert warns == (judged in (None, "until_first_error"))
  back = import_model.import_folder(tmp_path / "theirs", tmp_path / "back")
  assert back.description.judged == judged


def test_a_card_marks_the_steps_of_its_example_that_arent_judged():
  example = model_card.Example([1], [0], [0.9, 0.2, 0.999], [True, True, False])
  facts = model_card.Facts(
    *("m", "XForTokenClassification", "native", "float32", "min"),
    parts={},
    example=example,
    snippet=None,
    is_outcome=False,
    config={},
    metrics={},
    fields=card_fields.Fields(),
    judged="until_first_error",
  )
  assert "Not judged (see above): step 3." in model_card.write(facts)


# --- Import -----------------------------------------------------------------


def test_a_language_model_may_be_read_as_a_prm_by_its_signs(tmp_path):
  theirs = _theirs(tmp_path / "theirs")
  tokenizer = recipes.tokenizer("qwen")
  with pytest.raises(errors.InputError, match="no control token '<s>'"):
    import_model.import_folder(theirs, tmp_path / "a", template="math_shepherd")
  assert tokenizer.control("<s>") is None
  assert not (tmp_path / "a").exists()


def test_an_export_of_ours_is_read_in_no_other_dialect(tmp_path):
  theirs = tmp_path / "theirs"
  export_model.export_folder(_ours(tmp_path / "ours"), theirs)
  with pytest.raises(errors.InputError, match="says native; leave"):
    import_model.import_folder(
      theirs, tmp_path / "back", template="token_classification"
    )
  assert not (tmp_path / "back").exists()
  import_model.import_folder(theirs, tmp_path / "back", template="native")


@pytest.mark.parametrize("name", ["markers", "tokens:5"])
def test_a_prm_keeps_how_a_text_is_cut(name, tmp_path):
  ours = _ours(tmp_path / "ours", template="qwen_prm")
  export_model.export_folder(ours, tmp_path / "theirs")
  first = ["import", f"--from={tmp_path / 'theirs'}", f"--to={tmp_path / 'a'}"]
  assert main.main([*first, f"--segmenter={name}"]) == 0
  export_model.export_folder(tmp_path / "a", tmp_path / "again")
  import_model.import_folder(tmp_path / "again", tmp_path / "b")
  prm = saved.load(tmp_path / "b")
  assert segmenters.name_of(prm.segmenter) == name
  text = "So x = 3.14. So y = 2."
  spans = step_spans.spans(text, prm.segmenter, prm.tokenizer)
  assert spans
  assert prm.score_text("x?", text).spans == spans


def test_a_prm_in_a_policys_template_comes_back_with_the_same_scores(tmp_path):
  template = policy_templates.plain(("<|im_end|>",), "{problem}\n")
  ours = _ours(tmp_path / "ours", template=template)
  export_model.export_folder(ours, tmp_path / "theirs")
  import_model.import_folder(tmp_path / "theirs", tmp_path / "back")
  solution = schema.Solution("a", "What is 3 + 4?", ("3 + 4 = 7", "It is 7."))
  before, after = (
    saved.load(tmp_path / name).score([solution])[0].scores
    for name in ("ours", "back")
  )
  np.testing.assert_allclose(before, after, atol=1e-6)
  assert len(before) == 2
  card = (tmp_path / "theirs" / "README.md").read_text()
  assert "`plain`" in card
  assert "is left out" not in card and "In a solution" not in card


def test_a_card_says_what_a_policys_template_does_with_texts(tmp_path):
  tokenizer = policy_folders.tokenizer("qwen3")
  template = dataclasses.replace(policy_templates.qwen3(), strips=True)
  model = dataclasses.replace(MODEL, vocab_size=tokenizer.vocab_size)
  ours = _ours(tmp_path / "ours", model, template=template, tokenizer=tokenizer)
  facts = export_model.export_folder(ours, tmp_path / "theirs")
  card = (tmp_path / "theirs" / "README.md").read_text()
  assert "White space at both ends of the problem is left out." in card
  assert "In a solution `<think>` and `</think>` are the ids of" in card
  # And so they are read.
  encoding_config = encoding.EncodingConfig(template=template)
  solution = dataclasses.replace(
    model_card.EXAMPLE, problem=f" {model_card.EXAMPLE.problem}\n"
  )
  encoded = encoding.encode_solution(solution, tokenizer, encoding_config)
  assert encoded.tokens.tolist() == facts.example.tokens
  for problem, step, times in (("<think>", "a", 0), ("?", "<think>a", 1)):
    solution = schema.Solution("a", problem, (step,))
    ids = encoding.encode_solution(solution, tokenizer, encoding_config).tokens
    assert ids.tolist().count(tokenizer.control("<think>")) == times


def test_another_system_turn_is_kept_with_the_checkpoint(tmp_path):
  ours = _ours(tmp_path / "ours", template="qwen_prm")
  export_model.export_folder(ours, tmp_path / "theirs")
  (tmp_path / "theirs" / how_read.ENCODING_FILE).unlink()
  found = import_model.import_folder(
    tmp_path / "theirs", tmp_path / "back", system="Be brief."
  )
  encoding_config = encoding_records.from_record(found.description.encoding, "")
  assert encoding_config.template == templates.qwen_prm("Be brief.")


def _change(folder, name, change):
  """Rewrites a folder's tensors: change(name -> array)."""
  tensors = huggingface.open_tensors(folder)
  values = {x: tensors.read(x) for x in tensors.names}
  change(values)
  (folder / "model.safetensors").unlink()
  config = (folder / "config.json").read_text()
  (folder / "config.json").unlink()
  source = json.loads(config)
  huggingface.save(folder, "qwen2", MODEL, values.items(), dtype="float32")
  (folder / "config.json").write_text(json.dumps(source))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda x: x.pop("score.bias"), "lacks score.bias"),
    (lambda x: x.update({"score.bias": np.zeros(3, "f4")}), r"\(3,\)"),
    (lambda x: x.update({"extra.weight": np.zeros(3, "f4")}), "extra.weight"),
  ],
)
def test_a_head_that_isnt_one_is_refused_in_one_line(change, message, tmp_path):
  ours = _ours(tmp_path / "ours", template="token_classification")
  export_model.export_folder(ours, tmp_path / "theirs")
  _change(tmp_path / "theirs", "score.bias", change)
  with pytest.raises(errors.InputError, match=message) as e:
    import_model.import_folder(tmp_path / "theirs", tmp_path / "back")
  assert "\n" not in str(e.value)
  assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--template=skywork"], "isn't how"),
    (["--template=quen"], "isn't how"),
    (["--system=Be brief."], "only a chat has one"),
  ],
)
def test_an_import_that_cant_be_is_refused_and_leaves_nothing(
  arguments, message, tmp_path, capsys
):
  theirs = _theirs(tmp_path / "theirs")
  target = tmp_path / "ours"
  words = ["import", f"--from={theirs}", f"--to={target}", *arguments]
  assert main.main(words) == 1
  said = capsys.readouterr().err
  assert message in said
  assert said.count("\n") == 1
  assert not target.exists()


def test_nothing_is_written_over(tmp_path, capsys):
  theirs = _theirs(tmp_path / "theirs")
  ours = _ours(tmp_path / "ours")
  assert main.main(["import", f"--from={theirs}", f"--to={ours}"]) == 1
  assert main.main(["export", f"--checkpoint={ours}", f"--to={theirs}"]) == 1
  assert capsys.readouterr().err.count("isn't empty") == 2
  file = tmp_path / "file"
  file.touch()
  for target in (file, file / "in_it"):
    assert main.main(["import", f"--from={theirs}", f"--to={target}"]) == 1
    assert main.main(["export", f"--checkpoint={ours}", f"--to={target}"]) == 1
  said = capsys.readouterr().err
  assert said.count("\n") == 4 and said.count("is a file") == 2
  assert file.read_bytes() == b""


# --- Export -----------------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "arguments", "message"),
  [
    ({}, dict(template="qwen_prm"), "is read as 'native'"),
    ({}, dict(dtype="int8"), "expected one of"),
    (dict(model=dict(step_head="mlp")), {}, "an mlp step head"),
    (dict(model=dict(scale_embedding=True)), {}, "no published family"),
    (
      dict(
        template="qwen_prm",
        model=dict(qkv_bias=False, qk_norm=True),
      ),
      {},
      "is an architecture of qwen2",
    ),
  ],
)
def test_an_export_that_others_would_misread_is_refused(
  fields, arguments, message, tmp_path
):
  fields = dict(fields)
  model = dataclasses.replace(MODEL, **fields.pop("model", {}))
  ours = _ours(tmp_path / "ours", model, **fields)
  with pytest.raises(errors.InputError, match=message) as e:
    export_model.export_folder(ours, tmp_path / "theirs", **arguments)
  assert "\n" not in str(e.value)


def test_an_implicit_prm_has_no_architecture_to_go_to(tmp_path):
  with pytest.raises(errors.InputError, match="its reference"):
    heads.tensors(kinds.KINDS["implicit"], "native", MODEL, {}, tmp_path)


def test_a_linear_head_as_an_mlp_has_the_same_logits():
  random = np.random.default_rng(0)
  head = dict(
    kernel=random.normal(size=(8, 2)).astype(np.float32),
    bias=random.normal(size=2).astype(np.float32),
  )
  x = random.normal(size=(50, 8)).astype(np.float32)
  mlp = heads._as_mlp(head)
  inner = np.maximum(x @ mlp["inner"]["kernel"] + mlp["inner"]["bias"], 0)
  found = inner @ mlp["outer"]["kernel"] + mlp["outer"]["bias"]
  np.testing.assert_allclose(
    found, x @ head["kernel"] + head["bias"], rtol=1e-5, atol=1e-6
  )


def test_a_sentencepiece_model_goes_along(tmp_path):
  tokenizer = tokenizer_files.train_sentencepiece(recipes.LESSONS, 320)
  model = dataclasses.replace(MODEL, vocab_size=tokenizer.vocab_size)
  ours = _ours(tmp_path / "ours", model, tokenizer=tokenizer)
  export_model.export_folder(ours, tmp_path / "theirs")
  import_model.import_folder(tmp_path / "theirs", tmp_path / "back")
  for before, after in zip(
    _scores(ours), _scores(tmp_path / "back"), strict=True
  ):
    np.testing.assert_allclose(after, before, atol=1e-5)


# --- The page ---------------------------------------------------------------


def _rated(number):
  """Returns a solution as PRM800K holds them."""
  steps = (f"{number} + 1 = {number + 1}", f"So it is {number + 1}.")
  return schema.Solution(
    f"s{number}",
    f"What comes after {number}?",
    steps,
    ratings=(1, -1 if number % 3 == 0 else 1),
  )


@pytest.mark.usefixtures("one_device")
def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
  page = (ROOT / "docs" / "bring_your_own.md").read_text()
  commands = re.findall(r"```sh\n(.*?)```", page, re.S)
  lines = [x for block in commands for x in block.strip().splitlines()]
  assert len(lines) == 7
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  _theirs(tmp_path / "Qwen2.5-Math-1.5B")
  for name, numbers in (("train", range(24)), ("test", range(30, 36))):
    prm800k.write(f"phase1_{name}.jsonl.gz", map(_rated, numbers))
  # The configs as they are, but for their sizes.
  os.makedirs("experiments")
  for name, sizes in (
    (
      "bring_your_own.py",
      {"bfloat16": "float32", "steps = 1_000": "steps = 4"},
    ),
    (
      "prm800k_qwen2_5_math_7b.py",
      {
        "batch_size=16, sequence_length=4096": "batch_size=8, sequence_length=256",
        "max_tokens=4096": "max_tokens=256",
        "_every=250": "_every=2",
      },
    ),
    ("bring_your_own_small.py", {}),
  ):
    text = (ROOT / "experiments" / name).read_text()
    for old, new in sizes.items():
      assert old in text
      text = text.replace(old, new)
    pathlib.Path("experiments", name).write_text(text)
  for line in lines:
    program, *words = line.split()
    assert program == "prm-jax"
    assert main.main(words) == 0, capsys.readouterr().err
    if "--workdir=runs/trial" in words:
      # What is said to be small is small, by one override.
      assert [x for x in words if x.startswith("--config.")] == [
        "--config.init_from=runs/base"
      ]
      assert (tmp_path / "runs/trial/checkpoints/4").is_dir()
  record = json.loads(pathlib.Path("my-prm/config.json").read_text())
  assert record["architectures"] == ["Qwen2ForTokenClassification"]
  assert record["id2label"] == {"0": "bad", "1": "good"}
  names = json.loads(pathlib.Path("my-prm/tokenizer_config.json").read_text())
  assert names["chat_template"] == "{{ messages }}"
  assert "bring_your_own" not in capsys.readouterr().err
