"""A policy keeps its template and sampling from a folder to a checkpoint."""

import dataclasses
import json
import re

import command_options
import policy_folders
import pytest
import small_config
import test_import_export
import tokenizers
from tokenizers import processors

from prm_jax import api
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import generation_config
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_model
from prm_jax.huggingface import import_policy
from prm_jax.models import kinds
from prm_jax.records import jsonl
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import few_shot
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import tokenizer_files
from prm_jax.training import train_run

Options = import_policy.Options


def _read(folder, family, options=None, chat=None, **generation):
  policy_folders.write(folder, family, chat, **generation)
  tokenizer = tokenizer_files.from_folder(folder)
  return import_policy.read(folder, tokenizer, options or Options())


def _id(family, name):
  return policy_folders.tokenizer(family).control(name)


# --- generation_config.json -------------------------------------------------


def test_the_ids_that_end_a_text_become_names_after_the_templates_end(tmp_path):
  names = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
  ids = [_id("llama3_1", name) for name in names]
  found = _read(tmp_path / "hf", "llama3_1", eos_token_id=ids)
  assert found.template.ends == ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")


@pytest.mark.parametrize("eos", ["<eos>", None])
def test_one_id_or_none_is_read_too(eos, tmp_path):
  config = {} if eos is None else dict(eos_token_id=_id("gemma", eos))
  found = _read(tmp_path / "hf", "gemma", **config)
  # Without the file it is the tokenizer's.
  assert found.template.ends == ("<end_of_turn>", "<eos>")


@pytest.mark.parametrize("eos", [7, 10**6, [2, 7]])
def test_an_id_that_a_text_yields_ends_nothing(eos, tmp_path):
  with pytest.raises(errors.InputError, match="is no control token"):
    _read(tmp_path / "hf", "qwen3", eos_token_id=eos)


def test_sampling_is_kept_as_it_is_given(tmp_path):
  given = dict(temperature=0.6, top_p=0.95, top_k=20, min_p=0.05)
  found = _read(
    tmp_path / "hf", "qwen3", do_sample=True, max_new_tokens=99, **given
  )
  assert found.sampling == given | dict(max_new_tokens=99)
  assert found.ignored == ()


def test_without_sampling_the_temperature_is_zero(tmp_path):
  found = _read(
    tmp_path / "hf", "qwen3", do_sample=False, top_p=0.8, max_new_tokens=9
  )
  assert found.sampling == dict(temperature=0, max_new_tokens=9)


def test_what_our_sampler_does_not_do_is_named(tmp_path):
  found = _read(
    *(tmp_path / "hf", "qwen3"),
    repetition_penalty=1.05,
    num_beams=1,
    typical_p=1.0,
    penalty_alpha=None,
  )
  assert found.ignored == ("repetition_penalty=1.05",)


@pytest.mark.parametrize(
  "fields",
  [
    *(dict(temperature=-1), dict(temperature="1"), dict(temperature=True)),
    *(dict(top_p=0), dict(top_p=1.1), dict(top_k=1.5), dict(top_k=-1)),
    *(dict(min_p=2), dict(max_new_tokens=0), dict(eos_token_id="</s>")),
    *(dict(eos_token_id=-1), dict(eos_token_id=[True])),
  ],
  ids=str,
)
def test_a_number_out_of_range_is_refused(fields, tmp_path):
  (tmp_path / "generation_config.json").write_text(json.dumps(fields))
  with pytest.raises(errors.InputError, match=next(iter(fields))):
    generation_config.read(tmp_path)


# --- Plain text -------------------------------------------------------------


def test_without_a_chat_template_a_problem_is_a_line(tmp_path):
  found = _read(tmp_path / "hf", "qwen3", chat="").template
  assert found.name == "plain"
  assert found.opening == (("problem", ""), ("text", "\n"))
  assert found.ends == ("<|im_end|>",)


@pytest.mark.parametrize("family", ["llama3", "mistral", "gemma"])
def test_plain_text_begins_as_the_tokenizer_begins_a_text(family, tmp_path):
  found = _read(tmp_path / "hf", family, Options("plain"))
  bos = policy_folders.names(family)["bos_token"]
  assert found.template.opening[0] == ("control", bos)
  folder = tmp_path / "other"
  policy_folders.write(folder, family)
  model = tokenizers.Tokenizer.from_str(policy_folders.json_of(family))
  model.post_processor = processors.Sequence([])
  (folder / "tokenizer.json").write_text(model.to_str())
  tokenizer = tokenizer_files.from_folder(folder)
  other = import_policy.read(folder, tokenizer, Options("plain")).template
  assert other.opening == found.template.opening[1:]


def test_a_prompt_replaces_the_chat_template(tmp_path):
  prompt = few_shot.prompt(few_shot.GSM8K)
  found = _read(tmp_path / "hf", "qwen3", Options(prompt=prompt)).template
  known = policy_templates.gsm8k_4_shot(["<|im_end|>"])
  assert (found.opening, found.stop) == (known.opening, known.stop)


def test_a_step_is_cut_as_asked(tmp_path):
  found = _read(tmp_path / "hf", "qwen3", Options(segmenter="line")).template
  assert (found.segmenter.kind, found.separator) == ("line", "\n")


def test_without_a_token_that_ends_a_text_plain_text_is_refused(tmp_path):
  folder = policy_folders.write(tmp_path / "hf", "qwen3", "")
  (folder / "tokenizer_config.json").write_text("{}")
  tokenizer = tokenizer_files.from_folder(folder)
  with pytest.raises(errors.InputError, match="add an eos_token"):
    import_policy.read(folder, tokenizer, Options())


@pytest.mark.parametrize(
  "options",
  [
    dict(policy_template="gpt"),
    dict(segmenter="chapter"),
    dict(prompt="{problem}", system="x"),
    dict(prompt="{problem}", thinking=False),
    dict(prompt="{problem}", policy_template="qwen3"),
  ],
  ids=str,
)
def test_options_that_contradict_are_refused(options):
  with pytest.raises(errors.InputError):
    Options(**options)


# --- The command ------------------------------------------------------------

GENERATION = dict(temperature=0.7, top_k=20, repetition_penalty=1.1)


@pytest.fixture
def theirs(tmp_path):
  folder = test_import_export._theirs(tmp_path / "theirs")
  policy_folders.write(folder, "qwen3", "", **GENERATION)
  # No byte of it may be changed by an export.
  chat = policy_folders.QWEN3 + "{#- \u00e9 -#}  \n\n"
  (folder / "chat_template.jinja").write_bytes(chat.encode())
  return folder


def _run(capsys, *words):
  code = main.main([str(word) for word in words])
  captured = capsys.readouterr()
  assert captured.err.count("\n") <= 1
  return code, captured.out + captured.err


@pytest.mark.parametrize("fields", [{}, dict(max_new_tokens=64)])
def test_an_import_says_at_which_temperature_a_chat_model_will_be_sampled(
  fields, theirs, tmp_path, capsys
):
  (theirs / "generation_config.json").write_text(json.dumps(fields))
  words = ["import", f"--from={theirs}", "--role=policy"]
  assert main.main([*words, f"--to={tmp_path / 'chat'}"]) == 0
  err = capsys.readouterr().err
  assert err.count("\n") == 1
  assert (
    "chat: will be sampled at temperature 1, since generation_config" in err
  )
  fields["temperature"] = 0.6
  (theirs / "generation_config.json").write_text(json.dumps(fields))
  assert main.main([*words, f"--to={tmp_path / 'warm'}"]) == 0
  assert capsys.readouterr().err == ""


def test_the_command_saves_a_template_and_an_export_gives_the_files_back(
  theirs, tmp_path, capsys
):
  ours, back = tmp_path / "ours", tmp_path / "back"
  words = ("import", f"--from={theirs}", f"--to={ours}", "--role=policy")
  code, said = _run(capsys, *words, "--no-thinking", "--segmenter=line")
  assert code == 0
  assert (
    "prompted as qwen3; a solution ends at <|im_end|>; steps are cut" in said
  )
  assert "repetition_penalty=1.1 of generation_config.json: our" in said
  described = model_json.read_description(ours)
  assert described.program == "sft"
  assert described.sampling == dict(temperature=0.7, top_k=20)
  template = encoding_records.from_record(described.encoding, "").template
  assert template.segmenter.kind == "line"
  assert template.opening == policy_templates.qwen3(False).opening

  export_model.export_folder(ours, back)
  for name in (
    *("chat_template.jinja", "tokenizer_config.json"),
    *("generation_config.json", "tokenizer.json"),
  ):
    assert (back / name).read_bytes() == (theirs / name).read_bytes(), name

  # Imported again, the export is read as the checkpoint was.
  import_model.import_folder(back, tmp_path / "again")
  again = model_json.read_description(tmp_path / "again")
  assert again.encoding == described.encoding
  assert again.sampling == described.sampling
  # As a policy, too; unless its chat template is asked for anew.
  _import(back, tmp_path / "kept", Options())
  kept = model_json.read_description(tmp_path / "kept")
  assert (kept.encoding, kept.sampling) == (again.encoding, again.sampling)
  anew = _import(back, tmp_path / "anew", Options("auto"))
  assert anew.opening == policy_templates.qwen3(True).opening
  assert anew.segmenter.kind == "paragraph"


def _import(source, target, options=None, segmenter=None):
  """Returns the template of the policy that a folder is imported as."""
  import_model.import_folder(
    source, target, policy=options, segmenter=segmenter
  )
  described = model_json.read_description(target)
  assert described.segmenter is None
  return encoding_records.from_record(described.encoding, "").template


@pytest.fixture
def exported(theirs, tmp_path):
  """Our export of a policy with a prompt of its own."""
  options = Options(prompt=few_shot.prompt(few_shot.GSM8K), segmenter="line")
  import_model.import_folder(theirs, tmp_path / "first", policy=options)
  export_model.export_folder(tmp_path / "first", tmp_path / "exported")
  return tmp_path / "exported"


def test_an_export_of_a_prompt_file_stays_prompted_so_as_a_policy(
  exported, tmp_path
):
  # The folder has a chat template, too, which isn't how it was prompted.
  template = _import(exported, tmp_path / "kept", Options())
  known = policy_templates.gsm8k_4_shot(["<|im_end|>"])
  assert template == dataclasses.replace(known, name="plain")
  policy = import_policy.read_saved(
    exported, template, dict(top_k=3), Options()
  )
  assert policy.sampling == dict(top_k=3)
  given = Options(prompt="{problem}")
  other = _import(exported, tmp_path / "other", given)
  assert other.opening == (("problem", ""),)
  for option in (dict(system="Be brief."), dict(thinking=False)):
    with pytest.raises(errors.InputError, match="give `policy_template=auto`"):
      _import(exported, tmp_path / "chat", Options(**option))
  assert not (tmp_path / "chat").exists()


@pytest.mark.parametrize(
  "given",
  [dict(segmenter="sentence"), dict(options=Options(segmenter="sentence"))],
)
def test_a_segmenter_cuts_the_steps_of_an_exported_policy(
  given, exported, tmp_path
):
  template = _import(exported, tmp_path / "ours", **given)
  assert template.segmenter.kind == "sentence"
  assert template.separator == segmenters.between(template.segmenter)
  assert template.stop == policy_templates.gsm8k_4_shot(["x"]).stop


def test_a_segmenter_is_refused_for_a_policy_of_our_own_form(theirs, tmp_path):
  _of_our_own_form(theirs)
  with pytest.raises(errors.InputError, match="in our own form") as e:
    _import(theirs, tmp_path / "ours", segmenter="line")
  assert "\n" not in str(e.value)
  assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("caller", ["command", "python"])
def test_a_policy_that_is_tuned_keeps_how_it_is_sampled_and_its_files(
  caller, theirs, tmp_path, monkeypatch
):
  ours, tuned = tmp_path / "ours", tmp_path / "tuned"
  import_model.import_folder(theirs, ours, policy=Options())
  config = dict(
    program="sft",
    seed=0,
    init_from=str(ours),
    encoding=dict(template="policy", max_tokens=128),
    packing=dict(batch_size=8, sequence_length=128),
    optimizer=dict(peak_lr=1e-3),
    fit=dict(steps=1, tensorboard=False),
  )
  # What a run writes when it begins is all that is asked for.
  monkeypatch.setattr(train_run.loop, "fit", _begin)
  solution = schema.Solution("a", "What is 3 + 4?", ("3 + 4 = 7",))
  with pytest.raises(_Begun):
    if caller == "python":
      api.train(config, [solution], tuned)
    else:
      jsonl.write_solutions(tmp_path / "a.jsonl", [solution])
      _train(tmp_path / "a.jsonl", ours, tuned)
  described = model_json.read_description(tuned)
  assert described.sampling == dict(temperature=0.7, top_k=20)
  for name in ("chat_template.jinja", "generation_config.json"):
    kept = tuned / import_model.ORIGIN / name
    assert kept.read_bytes() == (theirs / name).read_bytes()
  # A reward model that begins with its trunk writes nothing.
  assert train_run.read_sampling(kinds.KINDS["prm"], ours) == {}


def _train(path, start, workdir):
  """Runs the command on a file of solutions, from a policy on."""
  data = dict(train=(f"jsonl:{path}",))
  sizes = dict(d_model=8, head_dim=4, d_ff=8)
  text = small_config.text(
    "sft", data=data, model=sizes, eval_rows=8, fit=dict(steps=1)
  )
  config = path.with_name("config.py")
  config.write_text(text)
  main.main(
    [
      *("train", f"--config={config}", f"--workdir={workdir}"),
      *(f"--config.init_from={start}", "--config.encoding.template=policy"),
    ]
  )


class _Begun(Exception):
  """A run has begun."""


def _begin(program, rows, config, hooks):
  del program, rows, config
  hooks.on_start()
  raise _Begun


@pytest.mark.parametrize("heading", ["", "Solve these:\n"])
def test_a_prompt_file_is_the_same_with_windows_line_ends(
  heading, theirs, tmp_path, capsys
):
  prompt = heading + few_shot.prompt(few_shot.GSM8K)
  path, ours = tmp_path / "prompt.txt", tmp_path / "ours"
  path.write_bytes(b"\xef\xbb\xbf" + prompt.replace("\n", "\r\n").encode())
  words = ("import", f"--from={theirs}", f"--to={ours}", "--role=policy")
  code, said = _run(capsys, *words, f"--prompt_file={path}")
  assert code == 0 and "no text of it" not in said
  described = model_json.read_description(ours)
  template = encoding_records.from_record(described.encoding, "").template
  assert template.stop == (few_shot.STOP,)
  assert "".join(text for kind, text in template.opening if kind == "text") == (
    prompt.replace("{problem}", "")
  )


def test_a_prompt_file_without_a_stop_text_is_told_in_one_line(
  theirs, tmp_path, capsys
):
  path, ours = tmp_path / "prompt.txt", tmp_path / "ours"
  path.write_text("Solve.\n\nQ: {problem}\nA:")
  words = ("import", f"--from={theirs}", f"--to={ours}", "--role=policy")
  code, said = _run(capsys, *words, f"--prompt_file={path}")
  assert code == 0
  assert said.count(f"{path}: no text of it ends a solution") == 1


def test_without_a_role_a_language_model_is_imported_as_it_was(
  theirs, tmp_path
):
  import_model.import_folder(theirs, tmp_path / "ours")
  record = json.loads((tmp_path / "ours" / "model.json").read_text())
  assert record["encoding"]["template"] is None
  assert "sampling" not in record


def test_sampling_decides_no_score():
  encoded = encoding_records.record_of(
    encoding.EncodingConfig(template=own_form.OWN)
  )
  described = model_json.Description(
    *("sft", test_import_export.MODEL, encoded, dict(kind="bytes")),
    sampling=dict(temperature=0.7),
  )
  changed = dataclasses.replace(described, sampling={})
  assert model_json.differences(described, changed, "") == []


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--thinking"], "give --role=policy"),
    (["--policy_template=qwen3"], "give --role=policy"),
    (["--system=Be brief."], "give --role=policy too"),
    (["--segmenter=line"], "give --role=policy too, or leave it out"),
    (["--role=policy", "--template=rlhflow"], "reads a model as a PRM"),
    (["--role=policy", "--policy_template=gemma"], "no control token '<bos>'"),
    (["--role=policy", "--policy_template=llama"], "expected one of auto"),
    (["--role=policy", "--prompt_file=none.txt"], "none.txt"),
  ],
)
def test_what_a_policy_cant_be_is_refused_before_anything_is_written(
  words, message, theirs, tmp_path, capsys
):
  ours = tmp_path / "ours"
  code, said = _run(
    capsys, "import", f"--from={theirs}", f"--to={ours}", *words
  )
  assert code == 1
  assert message in said
  assert not ours.exists()


def test_a_reward_model_is_no_policy(theirs, tmp_path):
  path = theirs / "config.json"
  config = json.loads(path.read_text())
  config["architectures"] = ["Qwen2ForTokenClassification"]
  path.write_text(json.dumps(config))
  with pytest.raises(errors.InputError, match="has a score head"):
    import_model.import_folder(theirs, tmp_path / "ours", policy=Options())


def _of_our_own_form(folder):
  """Makes a folder an export of a policy without a template."""
  record = dict(
    program="sft",
    tokenizer=dict(kind="bytes"),
    encoding=encoding_records.record_of(
      encoding.EncodingConfig(template=own_form.OWN)
    ),
    aggregate="product",
    step_classes=1,
    step_tokens=[],
  )
  (folder / how_read.ENCODING_FILE).write_text(json.dumps(record))


def test_a_policy_of_our_own_keeps_its_format(theirs, tmp_path):
  _of_our_own_form(theirs)
  with pytest.raises(errors.InputError, match="leave `role` out"):
    import_model.import_folder(theirs, tmp_path / "ours", policy=Options())


def test_the_help_names_all_templates_and_segmenters():
  actions = command_options.commands()["import"]._actions
  texts = {action.dest: action.help for action in actions}
  for name in policy_templates.NAMES:
    assert re.search(rf"\b{name}\b", texts["policy_template"]), name
  for kind in segmenters.KINDS:
    assert re.search(rf"\b{kind}\b", texts["segmenter"]), kind
