"""Configs of TRL's PRMTrainer and of axolotl become ours, or are refused."""

import dataclasses
import importlib
import json
import math
import pathlib
import re
import sys

from flax.core import meta
import jax
import numpy as np
import pytest
import recipes
import yaml

from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.records import sources
from prm_jax.runtime import verbs
from prm_jax.text import encoding
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import train_run_config

ROOT = pathlib.Path(__file__).parents[2]
MODEL = dict(d_model=16, num_layers=1, num_heads=2, num_kv_heads=1)
MODEL |= dict(head_dim=8, d_ff=32, qkv_bias=True)

TRL = """
model_name_or_path: Qwen/Qwen2.5-Math-1.5B
dataset_name: trl-lib/math_shepherd
output_dir: out
learning_rate: 1e-3
lr_scheduler_type: linear
warmup_steps: 1
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_train_epochs: 2
max_length: 64
bf16: false
gradient_checkpointing: false
report_to: wandb
logging_steps: 1
eval_steps: 3
save_steps: 0.5
"""
AXOLOTL = r"""
base_model: Qwen/Qwen2.5-3B
model_type: AutoModelForTokenClassification
num_labels: 2
process_reward_model: true
chat_template:
datasets:
  - path: trl-lib/math_shepherd
    type: stepwise_supervised
    step_separator: "\n"
    max_completion_length:
    train_on_last_step_only: false
val_set_size: 0.25
output_dir: ./outputs/out
sequence_len: 64
sample_packing: false
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 4
num_epochs: 3
optimizer: adamw_torch
lr_scheduler: cosine
cosine_min_lr_ratio: 0.1
learning_rate: 2e-4
bf16:
gradient_checkpointing: true
warmup_ratio: 0.2
evals_per_epoch: 2
weight_decay: 0.01
flash_attention: true
adapter: lora
lora_r: 2
lora_alpha: 4
lora_target_linear: true
seed: 3
"""


@pytest.fixture
def script(monkeypatch):
  """Returns a function that imports one of the two scripts."""
  monkeypatch.syspath_prepend(str(ROOT / "experiments"))
  yield importlib.import_module
  for name in ("carried_over", "written_config", "from_trl", "from_axolotl"):
    sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
  """Returns a language model with random weights, as it is imported."""
  folder = tmp_path_factory.mktemp("base")
  tokenizer = recipes.tokenizer("qwen")
  model = model_config.ModelConfig(tokenizer.text_ids + 3, **MODEL)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), model, ("lm",)))
  )
  random = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: random.normal(size=x.shape).astype(x.dtype), shapes
  )
  saves.save_params(folder, params)
  form = dataclasses.asdict(encoding.EncodingConfig())
  saved = tokenizer.save(folder)
  described = model_json.Description("sft", model, form, saved)
  model_json.write_description(folder, described)
  return folder


def _rows(num=40):
  for i in range(num):
    steps = [f"{i} + 1 is {i + 1}.", f"So it is {i + 2}.", "Done."]
    yield dict(
      prompt=f"What is {i} + 2?",
      completions=steps,
      labels=[True, i % 3 > 0, True],
    )


@pytest.fixture
def carry(script, base, tmp_path, monkeypatch):
  """Returns a function that runs a script on the text of a file."""
  monkeypatch.chdir(tmp_path)
  data = tmp_path / "train.jsonl"
  data.write_text("".join(json.dumps(x) + "\n" for x in _rows()))

  def run(name, text, *more, data="train.jsonl"):
    pathlib.Path("theirs.yaml").write_text(text)
    words = ["theirs.yaml", "ours.py", f"--data={data}", f"--init_from={base}"]
    module = script(name)
    module.carried_over.main(name, module.read, [*words, *more])
    return train_run_config.supervised(verbs.Config("ours.py"))

  return run


@pytest.mark.usefixtures("one_device")
def test_a_config_of_trl_becomes_a_run_of_as_many_updates(
  carry, capsys, tmp_path
):
  config = carry("from_trl", TRL)
  # Two epochs of 40 solutions, 8 to an update.
  assert "10 updates of some 8 of 40 solutions" in capsys.readouterr().out
  assert (
    config.fit.to_dict()
    | dict(steps=10, log_every=1, eval_every=0, checkpoint_every=5)
    == config.fit.to_dict()
  )
  run = train_run_config.from_config(config)
  assert run.optimizer == optimizer_lib.OptimizerConfig(
    peak_lr=1e-3,
    warmup_steps=1,
    final_fraction=0.0,
    weight_decay=0.0,
    beta2=0.999,
    decay="linear",
  )
  text = pathlib.Path("ours.py").read_text()
  assert "Left out, as it changes no result: output_dir, report_to." in text
  words = ["--config=ours.py", "--workdir=runs/prm"]
  words += ["--config.fit.steps=1", "--config.optimizer.warmup_steps=0"]
  assert main.main(["train", *words]) == 0, capsys.readouterr().err
  assert (tmp_path / "runs/prm/checkpoints/1").is_dir()


@pytest.mark.usefixtures("one_device")
def test_an_axolotl_config_becomes_a_run_with_its_adapters(carry, capsys):
  config = carry("from_axolotl", AXOLOTL, "--devices=1")
  # 30 of 40 solutions, 8 to an update, three times: 11.25.
  assert "12 updates of some 8 of 30 solutions" in capsys.readouterr().out
  assert config.data.holdout == 0.25 and config.seed == 3
  assert config.trainable == "lora" and config.model.lora_rank == 2
  assert {*config.model.lora_targets} == {*model_config.LORA_TARGETS}
  assert (config.model.compute_dtype, config.model.remat) == ("float32", "full")
  assert config.fit.eval_every == 2 and config.fit.checkpoint_every == 4
  assert train_run_config.from_config(config).optimizer == (
    optimizer_lib.OptimizerConfig(
      peak_lr=2e-4,
      warmup_steps=2,
      final_fraction=0.1,
      weight_decay=0.01,
      beta2=0.999,
    )
  )


def _multiplier(kind, step, warmup, steps):
  """Returns the factor of the learning rate in transformers' schedules."""
  if kind != "constant" and step < warmup:
    return step / warmup
  share = (step - warmup) / (steps - warmup)
  cosine = (1 + math.cos(math.pi * share)) / 2
  return dict(
    linear=1 - share,
    cosine=cosine,
    cosine_with_min_lr=0.25 + 0.75 * cosine,
    constant_with_warmup=1,
    constant=1,
  )[kind]


@pytest.mark.parametrize(
  "kind",
  [
    *("linear", "cosine", "cosine_with_min_lr"),
    *("constant_with_warmup", "constant"),
  ],
)
def test_each_update_has_the_learning_rate_that_transformers_gives_it(
  carry, kind
):
  text = TRL.replace("linear", kind).replace(
    "warmup_steps: 1", "warmup_ratio: 0.2"
  )
  if kind == "cosine_with_min_lr":
    text += "lr_scheduler_kwargs: {min_lr_rate: 0.25}\n"
  run = train_run_config.from_config(carry("from_trl", text))
  schedule = optimizer_lib.schedule(run.optimizer, run.fit.steps)
  np.testing.assert_allclose(
    [float(schedule(step)) for step in range(10)],
    [1e-3 * _multiplier(kind, step, 2, 10) for step in range(10)],
    rtol=1e-5,
    atol=1e-9,
  )


@pytest.mark.parametrize("max_length", [22, 33, 64])
def test_a_solution_cut_in_a_step_has_the_targets_that_trl_gives_it(
  carry, max_length
):
  text = TRL.replace("max_length: 64", f"max_length: {max_length}")
  run = train_run_config.from_config(carry("from_trl", text))
  tokenizer = recipes.tokenizer("qwen")
  form = encoding.with_template(run.encoding, tokenizer)
  solutions = sources.read_sources(["stepwise:train.jsonl"])[:12]
  examples, _ = encoding.prm_examples(
    solutions, tokenizer, form, run.objective.labels
  )
  expected = []
  for row in list(_rows())[:12]:
    # As PRMTrainer.tokenize_row does: the ids are cut, wherever a step is.
    ids = tokenizer.encode(row["prompt"])
    labels = [-100] * len(ids)
    for step, label in zip(row["completions"], row["labels"], strict=True):
      own = tokenizer.encode(step) + tokenizer.encode("\n")
      ids += own
      labels += [-100] * (len(own) - 1) + [int(label)]
    labels = labels[:max_length]
    while labels and labels[-1] == -100:  # what no target sees
      labels.pop()
    if labels:
      expected.append((ids[: len(labels)], labels))
  found = [
    (x.tokens.tolist(), np.where(x.weights > 0, x.labels, -100).tolist())
    for x in examples
  ]
  assert found == expected
  # Of 64 tokens none is cut; of 22 and 33 each solution is, inside a step.
  num_steps = {sum(label >= 0 for label in labels) for _, labels in found}
  assert num_steps == {64: {3}, 33: {2}, 22: {1}}[max_length]


def test_an_empty_file_of_trl_is_trained_by_what_benchmarks_vs_trl_compares(
  carry, monkeypatch
):
  monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
  before = {*sys.modules}
  vs_trl = importlib.import_module("vs_trl")
  for name in ({*sys.modules} - before) & {
    "vs_trl",
    "peer",
    "results",
    "train_step",
  }:
    del sys.modules[name]
  # Theirs has 1,024 tokens and 8 solutions: too few here to fill a row.
  run = train_run_config.from_config(carry("from_trl", "max_length: 64\n"))
  plain = dict(
    decay="cosine", final_fraction=0.1
  )  # the first update's is equal
  assert dataclasses.replace(run.optimizer, **plain) == vs_trl.OPTIMIZER
  assert run.encoding.template == vs_trl.peer.DIALECT
  assert run.model["step_classes"] == 2
  assert (run.objective.loss, run.objective.error_weight) == ("bce", 1.0)
  assert run.objective.labels.after_first_error == "keep"
  assert (run.seed, run.fit.steps) == (42, 15)


REFUSED = {
  "step_separator: '\\n\\n'": "step_separator=",
  "train_on_last_step_only: true": "write null for all but the last",
  "max_completion_length: 100": "max_completion_length=100: a solution is cut",
  "disable_dropout: false": "no layer here has dropout",
  "fp16: true": "use bf16",
  "optim: adafactor": "AdamW alone",
  "lr_scheduler_type: polynomial": "'polynomial' has no counterpart",
  "neftune_noise_alpha: 5": "neftune_noise_alpha=5: has no counterpart",
  "label_smoothing_factor: 0.1": "label_smoothing_factor=0.1: has no",
  "load_best_model_at_end: true": "fit.best_metric",
  "max_length: null": "a row has a length here",
  "max_length: 2048": "allow shorter ones (the longest here has",
  "warmup_steps: 9": "a warm-up of 9 of 10 updates",
  "use_peft: true": "lora_dropout isn't 0",
  "learning_rate: fast": "learning_rate='fast': expected float",
  "bf16: 1": "bf16=1: expected boolean",
  "per_device_train_batch_size: 0": "an update of 0 solutions",
  "num_train_epochs: 0": "no update is made",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_changes_the_result_and_has_no_counterpart_is_refused_in_one_line(
  carry, capsys, line
):
  values = yaml.safe_load(TRL) | yaml.safe_load(line)
  with pytest.raises(SystemExit) as e:
    carry("from_trl", yaml.safe_dump(values))
  said = capsys.readouterr().err
  assert e.value.code == 1 and said.count("\n") == 1
  assert "theirs.yaml: " in said and REFUSED[line] in said
  assert not pathlib.Path("ours.py").exists()


@pytest.mark.parametrize(
  ("old", "new", "expected"),
  [
    (
      "process_reward_model: true",
      "reward_model: true",
      "process_reward_model",
    ),
    ("stepwise_supervised", "alpaca", "datasets[0]: type='alpaca'"),
    ("sample_packing: false", "sample_packing: true", "sample_packing=True"),
    ("step_only: false", "step_only: true", "datasets[0]: train_on_last_step"),
    ("adapter: lora", "adapter: qlora", "adapter='qlora'"),
    ("lora_r: 2", "lora_r: 2\npeft_use_dora: true", "peft_use_dora=True"),
    ("num_epochs: 3", "num_epochs: 3\nlr_groups: [a]", "lr_groups"),
    ("adamw_torch", "muon", "AdamW alone"),
    ("val_set_size: 0.25", "val_set_size: 40", "none is left to train on"),
  ],
)
def test_what_axolotl_has_alone_is_refused_in_one_line(
  carry, capsys, old, new, expected
):
  assert old in AXOLOTL
  with pytest.raises(SystemExit) as e:
    carry("from_axolotl", AXOLOTL.replace(old, new))
  said = capsys.readouterr().err
  assert e.value.code == 1 and said.count("\n") == 1
  assert "theirs.yaml: " in said and expected in said


def test_a_file_that_is_there_or_no_yaml_is_refused_and_kept(carry, capsys):
  carry("from_trl", TRL)
  before = pathlib.Path("ours.py").read_text()
  for text, expected in ((TRL, "is there already"), ("a: [", "ours.py")):
    with pytest.raises(SystemExit):
      carry("from_trl", text)
    assert expected in capsys.readouterr().err
    assert pathlib.Path("ours.py").read_text() == before
  pathlib.Path("ours.py").unlink()
  for text in ("a: [", "- a"):
    with pytest.raises(SystemExit):
      carry("from_trl", text)
    assert "YAML" in capsys.readouterr().err


def test_no_text_of_theirs_runs_when_our_file_is_read(carry):
  evil = 'x"""; import nothing_at_all; """\\'
  values = yaml.safe_load(TRL) | {"model_name_or_path": evil, 'hub_"""+1': 1}
  assert carry("from_trl", yaml.safe_dump(values)).program == "prm"
  assert "nothing_at_all" in pathlib.Path("ours.py").read_text()


def test_the_page_keeps_the_last_label_alone(carry, tmp_path):
  page = (ROOT / "docs" / "from_trl.md").read_text()
  (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
  exec(block, {})
  config = carry("from_trl", TRL, data="jsonl:last.jsonl")
  assert config.data.train == ("jsonl:last.jsonl",)
  solutions = sources.read_sources(config.data.train)
  assert len(solutions) == 40
  policy = train_run_config.from_config(config).objective.labels
  for solution, row in zip(solutions, _rows(), strict=True):
    assert solution.steps == tuple(row["completions"])
    labels = encoding.step_labels(solution, policy)
    assert labels == [None, None, float(row["labels"][-1])]


def test_soft_labels_become_what_int_makes_of_them(carry, tmp_path):
  row = dict(prompt="a", completions=["b", "c", "d"], labels=[1.0, 0.9, 0.2])
  rows = [*_rows(), row]
  (tmp_path / "soft.jsonl").write_text(
    "".join(json.dumps(x) + "\n" for x in rows)
  )
  run = train_run_config.from_config(carry("from_trl", TRL, data="soft.jsonl"))
  solution = sources.read_sources(["stepwise:soft.jsonl"])[-1]
  labels = encoding.step_labels(solution, run.objective.labels)
  assert labels == [int(x) for x in row["labels"]]


@pytest.mark.parity
def test_a_file_that_spells_out_what_trl_sets_is_as_an_empty_one(carry):
  prm = pytest.importorskip("trl.experimental.prm")
  import trl

  values = {}
  for theirs in (trl.ScriptArguments(), trl.ModelConfig()):
    values |= dataclasses.asdict(theirs)
  values |= prm.PRMConfig(output_dir="out", use_cpu=True).to_dict()
  values["max_length"] = 64  # too few tokens here to fill 1,024
  empty = carry("from_trl", "max_length: 64\n").to_dict()
  pathlib.Path("ours.py").unlink()
  plain = json.loads(json.dumps(values, default=str))
  assert len(plain) > 100
  assert carry("from_trl", yaml.safe_dump(plain)).to_dict() == empty


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["linear", "cosine", "cosine_with_min_lr"])
def test_the_rates_are_those_of_transformers_own_schedules(carry, kind):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  text = TRL.replace("linear", kind).replace("warmup_steps", "warmup_ratio")
  text = text.replace("warmup_ratio: 1", "warmup_ratio: 0.11")
  more = dict(min_lr_rate=0.25) if kind == "cosine_with_min_lr" else {}
  text += f"lr_scheduler_kwargs: {json.dumps(more)}\n"
  run = train_run_config.from_config(carry("from_trl", text))
  theirs = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
  scheduler = transformers.get_scheduler(kind, theirs, 2, 10, more)
  schedule = optimizer_lib.schedule(run.optimizer, run.fit.steps)
  for step in range(10):
    (rate,) = scheduler.get_last_lr()
    assert float(schedule(step)) == pytest.approx(rate, rel=1e-5, abs=1e-9)
    theirs.step()
    scheduler.step()
