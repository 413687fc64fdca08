"""A file with any JSON in it is read, or refused in one line: never more.

Of each kind of file a valid one is taken, and each of its places is replaced by
each value of hostile_json.VALUES, or left out.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import time

import hostile_json
import jax
import numpy as np
import policy_folders
import pyarrow
from pyarrow import ipc
from pyarrow import parquet
import pytest
import safetensors.numpy
import tokenizers

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.datasets import tfds_records
from prm_jax.datasets.formats import processbench
from prm_jax.demo import demo_run
from prm_jax.device_check import check_results
from prm_jax.evaluation import prmbench_metrics
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import class_names
from prm_jax.huggingface import from_hf_config
from prm_jax.huggingface import generation_config
from prm_jax.huggingface import how_read
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import safetensors_io
from prm_jax.huggingface import token_names
from prm_jax.jobs import journal
from prm_jax.jobs import step_scores
from prm_jax.models import model_config
from prm_jax.plan import budgets
from prm_jax.records import array_record
from prm_jax.records import chosen_tokenizer
from prm_jax.records import dataset_folders
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.remote import replies
from prm_jax.remote import reply_journal
from prm_jax.rl import reward_record
from prm_jax.runtime import checked_lines
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import limited_process
from prm_jax.runtime import limits
from prm_jax.scoring import score_sources
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import foreign_tokenizers
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files
from prm_jax.text import tokenizer_worker
from prm_jax.text import trial_texts
from prm_jax.training import train_run
from prm_jax.view import site
from prm_jax.view import view_inputs

GOLDEN = pathlib.Path(__file__).parent / "golden" / "hf"
SOLUTION = schema.Solution("a", "p", ("s",), labels=(1.0,))


# --- Checkpoints and models -------------------------------------------------


def test_model_json(tmp_path):
  model = model_config.ModelConfig(
    *(300, 8, 2, 2, 1, 4, 8),
    window=4,
    global_layers=(0,),
    rope_local_theta=2.0,
    step_head="tokens",
    step_tokens=(1, 2),
  )
  encoded = encoding.EncodingConfig(
    template=templates.published("math_shepherd")
  )
  model_json.write_description(
    tmp_path,
    model_json.Description(
      "prm",
      model,
      encoding_records.record_of(encoded),
      dict(kind="bytes"),
      scoring=dict(beta=0.1),
    ),
  )
  path = tmp_path / "model.json"
  record = json.loads(path.read_text())
  record["model"]["lora_targets"] = ["query"]  # one is as the others
  hostile_json.check(lambda _: _use(tmp_path), path, record)


def test_model_json_of_a_policy(tmp_path):
  template = policy_templates.published("gsm8k_4_shot", ends=["</s>"])
  template = dataclasses.replace(
    template, opening=template.opening[-2:], thinking=("<a>", "</a>")
  )
  model_json.write_description(
    tmp_path,
    model_json.Description(
      "sft",
      model_config.ModelConfig(300, 8, 2, 2, 1, 4, 8),
      encoding_records.record_of(encoding.EncodingConfig(template=template)),
      dict(kind="bytes"),
      sampling=dict(temperature=0.7, top_k=20),
    ),
  )
  path = tmp_path / "model.json"
  record = json.loads(path.read_text())
  record["model"] = dict(list(record["model"].items())[:7])  # others: above
  hostile_json.check(lambda _: _use(tmp_path), path, record)


def test_what_says_how_a_policy_is_prompted_and_sampled(tmp_path):
  record = dict(eos_token_id=[1, 2], do_sample=False, temperature=0.5, top_k=2)
  record |= dict(max_new_tokens=9, repetition_penalty=1.5, top_p=0.5)
  path = tmp_path / "generation_config.json"
  hostile_json.check(lambda _: generation_config.read(tmp_path), path, record)
  templates_of = [dict(name="default", template="{{ messages }}")]
  config = dict(
    chat_template=templates_of,
    eos_token=dict(content="</s>"),
    added_tokens_decoder={"1": dict(content="<a>")},
    additional_special_tokens=["<b>"],
  )
  bytes_ = tokenizer_lib.Bytes()

  def read(_):
    chat_templates.source(tmp_path)
    token_names.special(tmp_path)
    token_names.controls(tmp_path, bytes_)

  hostile_json.check(read, tmp_path / "tokenizer_config.json", config)


def _use(folder):
  description = model_json.read_description(folder)
  model_json.read_tokenizer(folder, description)
  encoding_records.from_record(description.encoding, folder)


@pytest.mark.parametrize(
  "change",
  [
    dict(num_layers=10**9),
    dict(vocab_size=10**12),
    dict(d_model=10**12),
    dict(d_ff=2**24 + 1),
    dict(num_heads=True, num_kv_heads=True),
    dict(num_layers=2.0),
    dict(num_layers="2"),
    dict(num_layers=float("nan")),
    dict(window=2**31),
    dict(rope_theta="x"),
    dict(step_tokens=("a", "b"), step_head="tokens"),
  ],
  ids=str,
)
def test_no_model_is_larger_than_any_that_exists(change):
  sizes = dict(vocab_size=9, d_model=8, num_layers=2, num_heads=2)
  sizes |= dict(num_kv_heads=1, head_dim=4, d_ff=8)
  with pytest.raises(errors.InputError, match=f"model.{next(iter(change))}"):
    model_config.from_record({**sizes, **change})


@pytest.mark.parametrize("family", ["gemma3", "llama3", "qwen2_windows"])
def test_config_json_of_hugging_face(family, tmp_path):
  record = json.loads((GOLDEN / family / "config.json").read_text())
  hostile_json.check(
    lambda path: from_hf_config.read_config(path.parent),
    tmp_path / "config.json",
    record,
  )
  (tmp_path / "config.json").write_text(
    json.dumps(dict(record, num_hidden_layers=10**9))
  )
  with pytest.raises(errors.InputError, match="1,024"):
    from_hf_config.read_config(tmp_path)


def test_names_of_classes_in_config_json(tmp_path):
  hostile_json.check(
    lambda path: class_names.order(files.read_json(path), 2, tmp_path),
    tmp_path / "config.json",
    dict(id2label={"0": "bad", "1": "good"}, label2id={"bad": 0, "good": 1}),
  )


def test_the_index_of_shards(tmp_path):
  zeros = {"a": np.zeros(2, np.float32)}
  safetensors.numpy.save_file(zeros, tmp_path / "1.safetensors")
  hostile_json.check(
    lambda path: safetensors_io.open_tensors(path.parent),
    tmp_path / "model.safetensors.index.json",
    dict(metadata=dict(total_size=8), weight_map=dict(a="1.safetensors")),
  )


def test_tokenizers(tmp_path):
  model = tokenizers.models.BPE(vocab=dict(a=0, b=1, ab=2), merges=[("a", "b")])
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.add_special_tokens(["<s>"])
  hostile_json.check(
    lambda path: tokenizer_files.HuggingFace(path.read_text(), path=path),
    tmp_path / "tokenizer.json",
    json.loads(tokenizer.to_str()),
  )
  hostile_json.check(
    tokenizer_files._special_names,
    tmp_path / "tokenizer_config.json",
    dict(bos_token="a", eos_token=dict(content="b")),
  )


def _seal(path):
  """Puts the right digest into what a file holds, if it may have one."""
  with contextlib.suppress(ValueError, TypeError, RecursionError):
    path.write_text(json.dumps(integrity.sealed(json.loads(path.read_text()))))


def test_meta(tmp_path):
  meta = dict(step=5, fingerprints={"a": "x"}, metrics=dict(auc=1.0))
  save = tmp_path / "5"
  (save / "meta").mkdir(parents=True)

  def read(path):
    _seal(path)
    content = integrity.read_meta(save)
    integrity.check_leaves({}, content, save)

  path = save / "meta" / "metadata"
  hostile_json.check(read, path, dict(meta, skipped=[1, 2]))


# --- Runs -------------------------------------------------------------------


def test_config_and_data_of_a_run(tmp_path):
  config = dict(program="prm", a=dict(b=[1]))
  hostile_json.check(
    lambda path: environment.check_workdir(path.parent, config, fresh=True),
    tmp_path / "config.json",
    config,
  )
  data = dict(solutions=3, sha256="x", evaluation=dict(solutions=1, sha256="y"))

  def read(path):
    _seal(path)
    errors.raise_first(train_run._other_data(path, data))

  hostile_json.check(read, tmp_path / "data.json", data)


def test_the_journal_of_labels(tmp_path):
  output = tmp_path / "out.jsonl"
  path = journal.path_of(output)
  with journal.opened(output, [SOLUTION], dict(kind="x")):
    pass
  head = path.read_text()

  def read(content: str):
    output.unlink(missing_ok=True)
    path.write_text(content)
    with journal.opened(output, [SOLUTION], dict(kind="x")) as j:
      work = journal.in_turn(lambda b: (b, {"tokens": 1}))
      journal.run(j, [SOLUTION], work, batch_size=2)
      journal.finish(j, [SOLUTION], output)

  hostile_json.check(
    lambda file: read(file.read_text() + "\n"),
    tmp_path / "head",
    json.loads(head),
  )
  record = jsonl.record_from_solution(SOLUTION)
  hostile_json.check(
    lambda file: read(f"{head}{file.read_text()}\n"),
    tmp_path / "batch",
    dict(ids=["a"], work=dict(tokens=3), solutions=[record]),
  )


def test_the_journal_of_replies(tmp_path):
  def read(file):
    line = checked_lines.line_of(file.read_text())
    (tmp_path / "journal").write_text(line)
    opened = reply_journal.Journal(tmp_path / "journal", time.time)
    opened.get("k")
    opened.close()

  record = dict(key="k", found=dict(text="t"))
  hostile_json.check(read, tmp_path / "line", record)


def test_the_record_of_rewards(tmp_path):
  record = dict(prm=dict(function="f", sha256="0"))
  hostile_json.check(
    lambda file: reward_record.check_same(file.parent, record),
    tmp_path / reward_record.RECORD,
    record,
  )


def test_replies_of_a_server_of_scores(tmp_path):
  def read(file):
    try:
      reply = client_lib._json_object(file.read_bytes(), "json")
    except client_lib.PassingError as e:
      assert len(str(e)) < 2_000
      return
    client_lib._names(reply)
    for item in (dict(problem="p", steps=["s"]), dict(response="s")):
      client_lib._read(reply, [item], ["solution 'a'"], "http://x/v1")

  entry = dict(
    index=0,
    step_scores=[0.5],
    segments=[[0, 1]],
    judged=[True],
    truncated=False,
  )
  hostile_json.check(
    read,
    tmp_path / "reply",
    dict(model="m", model_fingerprint="f", data=[entry]),
  )


def test_replies(tmp_path):
  endpoint = endpoint_lib.Endpoint("http://x/v1", "m")

  def read(file):
    try:
      client_lib._message(file.read_bytes())
      reply = client_lib._json_object(file.read_bytes(), "json")
      sent = dict(stop=["\n"], prompt="p")
      replies.completion(reply, sent, endpoint, "\n")
      replies.log_prob(reply, " a", endpoint.url)
    except client_lib.PassingError as e:
      assert len(str(e)) < 2_000

  log_probs = dict(tokens=[" a"], token_logprobs=[-0.5])
  choice = dict(text=" a", finish_reason="stop", stop_reason="\n")
  usage = dict(prompt_tokens=1, completion_tokens=1)
  hostile_json.check(
    read,
    tmp_path / "reply",
    dict(choices=[choice | dict(logprobs=log_probs)], usage=usage),
  )


# --- Data, scores and reports -----------------------------------------------


def test_data(tmp_path):
  row = dict(id=1, problem="p", steps=["s"], label=0, final_answer_correct=True)
  hostile_json.check(
    lambda path: list(processbench.read(path)), tmp_path / "array.json", [row]
  )
  hostile_json.check(
    jsonl.read_solutions,
    tmp_path / "a.jsonl",
    jsonl.record_from_solution(SOLUTION) | dict(x=dict(y=[1])),
  )
  hostile_json.check(
    lambda path: array_record.solution_from_features(
      {"solution": path.read_text()}, "w"
    ),
    tmp_path / "record",
    jsonl.record_from_solution(SOLUTION),
  )
  hostile_json.check(
    lambda path: step_scores.read_scores(path, [SOLUTION]),
    tmp_path / "scores.jsonl",
    dict(id="a", step_scores=[0.5]),
  )


def test_what_names_the_files_of_a_data_set(tmp_path):
  (tmp_path / "a.arrow").write_bytes(b"")
  read = lambda path: dataset_folders.files_of(path.parent)  # noqa: E731
  state = dict(_data_files=[dict(filename="a.arrow")], _indices_data_files=None)
  hostile_json.check(read, tmp_path / "state.json", state)
  (tmp_path / "state.json").unlink()
  splits = dict(splits=["train"])
  hostile_json.check(read, tmp_path / "dataset_dict.json", splits)


def test_what_says_how_an_adapter_adapts(tmp_path):
  base = from_hf_config.read_config(GOLDEN / "llama3")
  record = dict(peft_type="LORA", r=2, lora_alpha=4, task_type="TOKEN_CLS")
  record |= dict(use_rslora=True, rank_pattern={}, bias="none")
  record["base_model_name_or_path"] = "a/b"

  def read(path):
    peft_adapters.base_name(tmp_path)
    peft_adapters.read_config(path, base)

  hostile_json.check(read, tmp_path / "adapter_config.json", record)


def test_fields_of_a_solution_that_stages_read(tmp_path):
  record = jsonl.record_from_solution(SOLUTION)
  record |= dict(ratings=[1], path_ratings=[], classification="redundency")
  record |= dict(original=dict(problem="p", steps=["s"]), group="g")

  def read(path):
    for solution in jsonl.read_solutions(path):
      encoding.step_labels(solution, encoding.LabelPolicy())
      if solution.extra.get("classification") == "redundency":
        prmbench_metrics.control(solution)

  hostile_json.check(read, tmp_path / "a.jsonl", record)


def test_the_page_of_an_rl_run(tmp_path):
  metrics, samples = tmp_path / "metrics.jsonl", tmp_path / "samples.jsonl"
  update = dict(kind="train", step=1, accuracy=0.5, kl_nats=None)
  update |= dict(sampled_tokens=9.0)
  sample = dict(step=0, id="a", problem="p", steps=["s"], right=True)
  sample |= dict(
    prm=[0.5], prm_judged=[True], exact=[1.0], total_return=0.5, counts=True
  )

  def read(path):
    path.write_text(checked_lines.line_of(path.read_text()))
    site.pages(view_inputs.read([tmp_path]))

  hostile_json.check(read, metrics, update)
  metrics.write_text(checked_lines.line_of(json.dumps(update)))
  hostile_json.check(read, samples, sample | dict(stopped="end"))


def test_other_records(tmp_path):
  hostile_json.check(
    lambda path: [b.peak_gib < 1 for b in budgets.read(path)],
    tmp_path / "budgets.jsonl",
    dict(config="c", topology="t", peak_gib=1, sent_gib=2.0, flops_ratio=1),
  )
  hostile_json.check(
    lambda path: demo_run.Phases(path).seconds(),
    tmp_path / "phases.json",
    dict(a=1.5),
  )
  record = check_results.Record(
    "quick",
    "c",
    dict(command="x"),
    planned=[check_results.Planned("a", "s", True)],
    results=[check_results.Result("a", "pass", True, number=1.0)],
  )
  record.write(tmp_path / "device.json")
  hostile_json.check(
    lambda path: [r.line() for r in check_results.read(path).results],
    tmp_path / "device.json",
    json.loads((tmp_path / "device.json").read_text()),
  )


# --- Tables -----------------------------------------------------------------


def _write_arrow(path, table, **options):
  how = ipc.IpcWriteOptions(**options)
  with ipc.new_file(path, table.schema, options=how) as writer:
    writer.write_table(table)


def test_a_flipped_bit_of_an_arrow_file_costs_no_process(tmp_path):
  path = tmp_path / "a.arrow"
  rows = [dict(problem=f"{i}?", steps=["s"] * i, n=i) for i in range(20)]
  _write_arrow(path, pyarrow.Table.from_pylist(rows))
  whole = path.read_bytes()
  # Where the fourth text ends, and the fourth list.
  for offsets in ([0, 2, 4, 6, 8], [0, 0, 1, 3, 6]):
    at = whole.index(np.array(offsets, np.int32).tobytes()) + 4 * 4 + 3
    damaged = bytearray(whole)
    damaged[at] ^= 0x40
    path.write_bytes(damaged)
    with pytest.raises(errors.InputError, match="damaged table") as caught:
      list(record_files.read_records(path))
    assert "\n" not in str(caught.value)


def test_few_bytes_of_a_table_dont_fill_the_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(limits, "TABLE_MEMORY_BYTES", 64 << 20)
  monkeypatch.setattr(limits, "FILE_BYTES", 1 << 20)
  text = pyarrow.array(["a" * (1 << 20)])
  places = pyarrow.array([0] * 100, pyarrow.int32())
  column = pyarrow.DictionaryArray.from_arrays(places, text)
  long, many = tmp_path / "long.parquet", tmp_path / "many.arrow"
  parquet.write_table(
    *(pyarrow.table(dict(problem=column)), long),
    compression="zstd",
    store_schema=False,
  )
  _write_arrow(many, pyarrow.table(dict(a=pyarrow.nulls(1 << 30))))
  for path, why in ((long, "64 MiB to read"), (many, "1 MiB of rows")):
    assert path.stat().st_size < 1_000
    with pytest.raises(errors.InputError, match=f"more than {why}"):
      for _ in record_files.read_records(path):
        pass


def test_a_table_that_takes_too_much_time_is_refused_in_one_line(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(limits, "TABLE_CPU_S", 1)
  path = tmp_path / "a.parquet"
  column = pyarrow.array(np.zeros(2_000_000, np.int8))
  parquet.write_table(pyarrow.table(dict(a=column)), path)
  with pytest.raises(
    errors.InputError, match=r"a\.parquet: takes more than 1 s"
  ):
    for _ in record_files.read_records(path):
      pass


def test_a_reader_of_tables_that_is_killed_is_one_line(tmp_path, monkeypatch):
  worker = tmp_path / "worker.py"
  worker.write_text(
    "import os\nprint('{}', flush=True)\nos.kill(os.getpid(), 11)\n"
  )
  monkeypatch.setattr(record_files, "_WORKER", worker)
  path = tmp_path / "a.parquet"
  parquet.write_table(pyarrow.table(dict(a=[1])), path)
  rows = record_files.read_records(path)
  assert next(rows) == (f"{path}:1", {})
  with pytest.raises(errors.InputError, match=r"after row 1: .*SIGSEGV"):
    next(rows)


# --- What is no file --------------------------------------------------------


def _pipes(folder: pathlib.Path):
  """Every file that a command opens, as a pipe that nobody writes to."""

  def pipe(name: str) -> pathlib.Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      os.mkfifo(path)
    return path

  def data_set(name: str) -> array_record.Stored:
    """Returns a data set of which one file is a pipe."""
    where = tfds_records.write(
      folder / f"of_{name[:12]}", "a", dict(train=[SOLUTION])
    )
    (replaced,) = where.glob(name)
    replaced.unlink()
    pipe(str(replaced.relative_to(folder)))
    return array_record.Stored(where)

  def save(name: str) -> pathlib.Path:
    """Returns a checkpoint folder of which one file is a pipe."""
    where = folder / f"of_{name[:4]}"
    saves.save_params(where, dict(a=np.zeros(2, np.float32)))
    (replaced,) = (where / "checkpoints" / "0").glob(name)
    replaced.unlink()
    pipe(str(replaced.relative_to(folder)))
    return where

  params = dict(a=jax.ShapeDtypeStruct((2,), np.float32))
  output = folder / "out.jsonl"
  os.mkfifo(journal.path_of(output))
  return {
    "data": lambda: jsonl.read_solutions(pipe("a.jsonl")),
    "packed": lambda: jsonl.read_solutions(pipe("a.jsonl.gz")),
    "model.json": lambda: model_json.read_description(
      pipe("model.json").parent
    ),
    "tokenizer": lambda: chosen_tokenizer.make_tokenizer(
      chosen_tokenizer.TokenizerConfig(kind="file", path=str(pipe("t.model"))), []
    ),
    "saved tokenizer": lambda: tokenizer_files.load(
      pipe("t.model").parent,
      dict(kind="sentencepiece", file="t.model", sha256="x"),
    ),
    "config.json": lambda: from_hf_config.read_config(
      pipe("hf/config.json").parent
    ),
    "weights": lambda: list(
      safetensors_io._entries(pipe("w/1.safetensors"))
    ),
    "records": lambda: data_set("*.array_record*")[0],
    "info of records": lambda: data_set("dataset_info.json")[0],
    "features of records": lambda: data_set("features.json")[0],
    "meta of a save": lambda: saves.load_params(
      save("meta/metadata"), params
    ),
    "parameters of a save": lambda: saves.load_params(
      save("params/_METADATA"), params
    ),
    "journal": lambda: journal.opened(output, [], {}).__enter__(),
    "replies": lambda: reply_journal.Journal(pipe("j"), time.time),
    "a function": lambda: score_sources.load(f"{pipe('f.py')}:f"),
    "rewards": lambda: reward_record.check_same(
      pipe(reward_record.RECORD).parent, {}
    ),
  }  # fmt: skip


def test_a_pipe_that_nobody_writes_to_never_hangs(tmp_path):
  for name, read in _pipes(tmp_path).items():
    with pytest.raises(errors.InputError, match="not a regular file"):
      read()
      pytest.fail(name)


def test_a_pipe_behind_a_link_to_a_folder_is_found_and_a_circle_ends(tmp_path):
  save, elsewhere = tmp_path / "save", tmp_path / "elsewhere"
  for folder in (save / "params", elsewhere):
    folder.mkdir(parents=True)
  (save / "params" / "ocdbt.process_0").symlink_to(elsewhere)
  (elsewhere / "again").symlink_to(elsewhere)
  (elsewhere / "save").symlink_to(save)
  integrity.check_files(save)
  os.mkfifo(elsewhere / "manifest.ocdbt")
  with pytest.raises(errors.DamagedError, match="is not a regular file"):
    integrity.check_files(save)


# --- Tokenizers that ordinary texts would be stopped by ---------------------


def _tokenizer_json(**changes) -> str:
  """Returns a tokenizer.json of Qwen's kind with other parts."""
  spec = json.loads(policy_folders.json_of("qwen2_5"))
  if "pattern" in changes:
    first = spec["pre_tokenizer"]["pretokenizers"][0]
    first["pattern"] = dict(Regex=changes.pop("pattern"))
  return json.dumps(spec | changes)


_TENFOLD = dict(type="Replace", pattern=dict(String="a"), content="a" * 10)
BOMBS = dict(
  backtracking=(dict(pattern="(a|aa)+$"), "fails on 'aaaa"),
  nested=(dict(pattern="((a+)+)+b"), "fails on 'aaaa"),
  normalizer=(
    dict(normalizer=dict(type="Sequence", normalizers=[_TENFOLD] * 3)),
    "makes 200,001 of the 201 characters",
  ),
  memory=(
    dict(normalizer=dict(type="Sequence", normalizers=[_TENFOLD] * 9)),
    "can't be used in 60 s and 300 MiB",
  ),
  decoder=(
    dict(decoder=dict(type="Sequence", decoders=[_TENFOLD] * 3)),
    "makes 200,001 of the 201 characters",
  ),
)


@pytest.mark.parametrize("name", BOMBS)
def test_a_foreign_tokenizer_that_texts_set_off_is_refused_in_one_line(
  name, tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(foreign_tokenizers, "MEMORY_MIB", 300)
  changes, message = BOMBS[name]
  (tmp_path / "tokenizer.json").write_text(_tokenizer_json(**changes))
  with pytest.raises(errors.InputError) as e:
    tokenizer_files.from_folder(tmp_path)
  assert f"tokenizer.json: a tokenizer that {message}" in str(e.value)
  assert "\n" not in str(e.value)
  assert not capfd.readouterr().err, "what the library says isn't shown"


def _replace(text, content, kind="String"):
  return dict(type="Replace", pattern={kind: text}, content=content)


def _rules(*rules):
  return dict(type="Sequence", normalizers=list(rules))


HUNDREDFOLD = [_replace("\u00a7", "\u00a7" * 100)] * 3


@pytest.mark.parametrize("text", trial_texts.ALL)
def test_the_texts_that_an_import_encodes_are_tried(text, tmp_path):
  rules = _rules(_replace(text, "a" * 200 * len(text)))
  (tmp_path / "tokenizer.json").write_text(_tokenizer_json(normalizer=rules))
  job = dict(path=str(tmp_path / "tokenizer.json"), most=64)
  job |= dict(texts=foreign_tokenizers.TEXTS)
  assert "characters of a text" in tokenizer_worker.error_of(job)


@pytest.mark.parametrize(
  "rules",
  [
    (_replace("What", "\u00a7" * 100), *HUNDREDFOLD),
    (_replace("Zebra", "\u00a7" * 100), *HUNDREDFOLD),
    (_replace("[Z]ebra", "\u00a7", "Regex"), *HUNDREDFOLD),
    # What it writes is changed before the next rule sees it.
    (
      _replace("\u03a9", "\uff21" * 50),
      dict(type="NFKC"),
      _replace("A", "b" * 9),
    ),
    [_replace("(?<=Z)", "Z", "Regex")] * 9,
  ],
)
def test_no_text_is_multiplied_by_rules_of_replacement(
  rules, tmp_path, monkeypatch
):
  monkeypatch.setattr(foreign_tokenizers, "MEMORY_MIB", 300)
  changes = dict(normalizer=_rules(*rules))
  (tmp_path / "tokenizer.json").write_text(_tokenizer_json(**changes))
  with pytest.raises(errors.InputError) as e:
    tokenizer_files.from_folder(tmp_path)
  assert "may make" in str(e.value) or "can't be used" in str(e.value)


@pytest.mark.parametrize(
  "rules",
  [
    [dict(type="Prepend", prepend="\u2581"), _replace(" ", "\u2581")],
    [_replace(x, f" {x} ") for x in ".,;:!?()[]"],
    [_replace(r"\s+", " ", "Regex"), _replace(" {2,}", " ", "Regex")] * 9,
    [_replace(" " * n, f"<|blank_{n}|>") for n in range(9, 1, -1)],
  ],
)
def test_rules_that_tokenizers_have_are_used(rules):
  assert tokenizer_worker.growth(_rules(*rules)) <= 12


def test_a_tokenizer_without_a_token_for_letters_is_used(tmp_path):
  words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"1": 0, "2": 1}))
  pieces = tokenizers.models.Unigram([("1", -1.0), ("2", -1.0)])
  for name, tokenizer in dict(
    words=words, pieces=tokenizers.Tokenizer(pieces)
  ).items():
    (tmp_path / name).mkdir()
    tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    found = tokenizer_files.from_folder(tmp_path / name)
    assert found.encode("2") == [1]
    with pytest.raises(errors.InputError, match="fails on 'ab'"):
      found.encode("ab")
    whole = token_names.as_published(tmp_path / name)
    with pytest.raises(errors.InputError, match="fails on 'ab'"):
      token_names.published_ids(tmp_path / name, whole, "ab")


def test_a_tokenizer_json_of_countless_lists_fills_no_memory(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(foreign_tokenizers, "MEMORY_MIB", 300)
  path = tmp_path / "tokenizer.json"
  path.write_text("[" + "[]," * (8 << 20) + "[]]")
  with pytest.raises(errors.InputError, match="can't be used in 60 s"):
    tokenizer_files.from_folder(tmp_path)


def test_the_tokenizer_of_an_export_is_tried_too(tmp_path, monkeypatch):
  record = dict(kind="huggingface", file="tokenizer.json", sha256="x")
  record |= dict(bos=None, eos=None, separator=None)
  (tmp_path / how_read.ENCODING_FILE).write_text(
    json.dumps(dict(tokenizer=record))
  )
  changes, message = BOMBS["backtracking"]
  (tmp_path / "tokenizer.json").write_text(_tokenizer_json(**changes))
  with pytest.raises(errors.InputError, match=message):
    how_read.tokenizer_of_export(tmp_path)


def test_a_text_that_sets_a_tokenizer_off_later_is_refused_by_its_record():
  """No trial has every text; `tokenizers` itself gives up, with a panic."""
  tokenizer = tokenizer_files.HuggingFace(_tokenizer_json(pattern="(q|qq)+$"))
  assert tokenizer.encode("So x = 4.")
  solution = schema.Solution("gsm8k/7", "p", ("q" * 99 + "!",))
  config = encoding.EncodingConfig(template=own_form.OWN)
  with pytest.raises(errors.InputError, match=r"'gsm8k/7': .*fails on 'qqqq"):
    encoding.encode_solution(solution, tokenizer, config)


def test_an_ordinary_tokenizer_is_tried_once(tmp_path, monkeypatch):
  run, runs = limited_process.run, []
  monkeypatch.setattr(
    limited_process, "run", lambda *a, **k: runs.append(a) or run(*a, **k)
  )
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    path = tmp_path / name / "tokenizer.json"
    path.write_text(_tokenizer_json(padding=None) + "\n\n")
    tokenizer_files.from_folder(tmp_path / name)
    tokenizer_files.from_folder(tmp_path / name)
  assert len(runs) == 1
