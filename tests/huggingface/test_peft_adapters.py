"""PEFT adapters come in beside their base, and go out so.

test_peft_adapters_parity.py compares with peft itself.
"""

import dataclasses
import json
import pathlib
import shutil

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import test_import_export

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import safetensors_io
from prm_jax.runtime import files
from prm_jax.text import encoding
from prm_jax.training import programs

LORA = dict(lora_rank=2, lora_alpha=6.0, lora_targets=("query", "down"))
HEADS = dict(prm="step", orm="outcome", sft="lm")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
  """The Hugging Face folder of a base, and what it was imported as."""
  folder = tmp_path_factory.mktemp("base")
  theirs = test_import_export._theirs(folder / "theirs")
  import_model.import_folder(theirs, folder / "ours")
  return theirs, folder / "ours"


def _adapted(folder, base, program="prm", template=None, **fields):
  """Writes a checkpoint of the base with random adapters and a head."""
  _, ours = base
  described = model_json.read_description(ours)
  model = dataclasses.replace(described.model, **LORA, **fields)
  tokenizer = model_json.read_tokenizer(ours, described)
  config = encoding.EncodingConfig(template=template, max_tokens=512)
  config = encoding.with_template(config, tokenizer)
  folder.mkdir()
  import_model.pass_origin_on(ours, folder)
  description = dataclasses.replace(
    described,
    program=program,
    model=model,
    encoding=dataclasses.asdict(config),
    tokenizer=tokenizer.save(folder),
  )
  params = dict(test_import_export._params(model, HEADS[program], seed=1))
  trunk = programs.load_params(ours)

  def choose(path, x):
    tree = trunk
    for entry in path:
      if entry.key not in tree:
        return x
      tree = tree[entry.key]
    return tree

  params = jax.tree_util.tree_map_with_path(choose, params)
  saves.save_params(folder, params, description)
  model_json.write_description(folder, description)
  return folder


def _leaves(folder):
  flat = jax.tree_util.tree_flatten_with_path(programs.load_params(folder))[0]
  return {jax.tree_util.keystr(path): np.asarray(x) for path, x in flat}


@pytest.mark.parametrize(
  ("program", "template", "fields", "task"),
  [
    ("prm", "token_classification", dict(step_classes=2), "TOKEN_CLS"),
    ("orm", None, dict(outcome_head="linear_no_bias"), "SEQ_CLS"),
    ("sft", None, {}, "CAUSAL_LM"),
  ],
)
def test_adapters_go_out_beside_their_base_and_come_back_to_the_bit(
  program, template, fields, task, base, tmp_path
):
  ours = _adapted(tmp_path / "ours", base, program, template, **fields)
  words = ["--base", str(base[0])]
  out = ["export", f"--checkpoint={ours}", f"--to={tmp_path / 'out'}"]
  assert main.main([*out, *words, "--base_model=a/b"]) == 0
  weights = safetensors.numpy.load_file(
    tmp_path / "out" / "adapter_model.safetensors"
  )
  stem = "base_model.model.model.layers.0"
  assert weights[f"{stem}.self_attn.q_proj.lora_A.weight"].shape == (2, 16)
  assert weights[f"{stem}.mlp.down_proj.lora_B.weight"].shape == (16, 2)
  rest = {x for x in weights if "lora_" not in x}
  names = dict(prm=["bias", "weight"], orm=["weight"], sft=[])[program]
  assert sorted(rest) == [f"base_model.model.score.{x}" for x in names]
  record = files.read_json(tmp_path / "out" / "adapter_config.json")
  assert record["task_type"] == task
  assert record["base_model_name_or_path"] == "a/b"
  assert (record["r"], record["lora_alpha"]) == (2, 6)
  assert record["target_modules"] == ["q_proj", "down_proj"]
  assert not (tmp_path / "out" / "model.safetensors").exists()
  back = ["import", f"--from={tmp_path / 'out'}", f"--to={tmp_path / 'back'}"]
  assert main.main([*back, *words]) == 0
  before, after = _leaves(ours), _leaves(tmp_path / "back")
  assert before.keys() == after.keys()
  for name, x in before.items():
    np.testing.assert_array_equal(after[name], x, err_msg=name)
  described = [
    model_json.read_description(x) for x in (ours, tmp_path / "back")
  ]
  assert described[0].model == described[1].model
  assert described[0].encoding == described[1].encoding
  card = (tmp_path / "out" / "README.md").read_text()
  assert "library_name: peft" in card and "base_model: a/b" in card
  assert ("peft.PeftModel.from_pretrained" in card) == (program != "sft")


@pytest.mark.parametrize(
  ("program", "fields"),
  [("sft", {}), ("orm", dict(outcome_head="linear_no_bias"))],
)
def test_names_of_classes_in_a_base_concern_no_head_without_classes(
  program, fields, base, tmp_path
):
  theirs = pathlib.Path(shutil.copytree(base[0], tmp_path / "theirs"))
  named = files.read_json(theirs / "config.json")
  named["id2label"] = {"0": "cat", "1": "dog", "2": "neutral"}
  files.write_json(theirs / "config.json", named)
  ours = _adapted(tmp_path / "ours", base, program, **fields)
  export_model.export_folder(ours, tmp_path / "out", base=theirs)
  assert (tmp_path / "out" / peft_adapters.WEIGHTS).exists()


# --- What is refused --------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
  folder = tmp_path_factory.mktemp("adapter")
  ours = _adapted(folder / "ours", base, "sft")
  export_model.export_folder(ours, folder / "out", base=base[0])
  return folder / "out"


def _config(**changes):
  return lambda record, tensors: record.update(changes)


def _tensors(change):
  return lambda record, tensors: change(tensors)


_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (_config(use_dora=True), "use_dora=True: ours are plain LoRA"),
    (_config(init_lora_weights="pissa"), "init_lora_weights=pissa: ours are"),
    (_config(rank_pattern={"q_proj": 4}), "rank_pattern="),
    (_config(peft_type="IA3"), "peft_type=IA3"),
    (_config(r=0), "r=0: expected above 0"),
    (_config(r=3), r"is \[2, 16\]; its rank and its base say \[3, 16\]"),
    (_config(lora_alpha="2"), "lora_alpha='2'"),
    (_config(task_type="SEQ_2_SEQ_LM"), "task_type='SEQ_2_SEQ_LM'"),
    (_tensors(lambda x: x.pop(_A)), f"lacks {_A}"),
    (_tensors(lambda x: x.update({"q.lora_A": x[_A]})), "no matrix that ours"),
    (
      _tensors(lambda x: [x.pop(k) for k in list(x)[1:]] and x.clear()),
      "adapts no matrix",
    ),
    (
      _tensors(lambda x: x.update({_A: x[_A] * np.float32(np.nan)})),
      "fetch the file again",
    ),
    (
      _tensors(lambda x: x.update({"base_model.model.new.weight": x[_A]})),
      "no place for: new.weight",
    ),
  ],
)
def test_an_adapter_that_isnt_plain_lora_is_refused_in_one_line(
  change, message, base, adapter, tmp_path
):
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  record = files.read_json(adapter / "adapter_config.json")
  tensors = safetensors.numpy.load_file(adapter / "adapter_model.safetensors")
  change(record, tensors)
  (theirs / "adapter_config.json").write_text(json.dumps(record))
  safetensors.numpy.save_file(tensors, theirs / "adapter_model.safetensors")
  with pytest.raises(errors.InputError, match=message) as e:
    import_model.import_folder(theirs, tmp_path / "ours", base=base[0])
  assert "\n" not in str(e.value)
  assert not (tmp_path / "ours").exists()


def test_an_adapter_and_its_base_need_each_other(base, adapter, tmp_path):
  with pytest.raises(errors.InputError, match=r"name of .*theirs"):
    import_model.import_folder(adapter, tmp_path / "x")
  with pytest.raises(errors.InputError, match="so it is no adapter"):
    import_model.import_folder(base[0], tmp_path / "x", base=base[0])
  (tmp_path / "pickled").mkdir()
  text = (adapter / "adapter_config.json").read_text()
  (tmp_path / "pickled" / "adapter_config.json").write_text(text)
  (tmp_path / "pickled" / "adapter_model.bin").touch()
  with pytest.raises(errors.InputError, match="never opened"):
    import_model.import_folder(
      tmp_path / "pickled", tmp_path / "x", base=base[0]
    )
  assert not (tmp_path / "x").exists()


def test_rank_stabilised_adapters_keep_their_scale(base, adapter, tmp_path):
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  for path in adapter.iterdir():
    (theirs / path.name).write_bytes(path.read_bytes())
  record = files.read_json(theirs / "adapter_config.json")
  files.write_json(
    theirs / "adapter_config.json", record | dict(use_rslora=True)
  )
  model = import_model.import_folder(
    theirs, tmp_path / "ours", base=base[0]
  ).description.model
  # alpha / sqrt(r), where ours is alpha / r.
  assert model.lora_alpha / model.lora_rank == pytest.approx(6 / 2**0.5)


@pytest.mark.parametrize(
  "kind", ["trunk", "rope", "none", "dtype", "head", "names"]
)
def test_what_isnt_a_base_with_adapters_isnt_exported_so(kind, base, tmp_path):
  options, message = {}, "more than the adapters was trained"
  theirs = base[0]
  if kind == "head":
    ours = _adapted(tmp_path / "ours", base, template="qwen_prm")
    message = "PEFT has no task for its head"
  elif kind == "names":
    template = "token_classification"
    ours = _adapted(tmp_path / "ours", base, template=template, step_classes=2)
    theirs = pathlib.Path(shutil.copytree(theirs, tmp_path / "theirs"))
    named = files.read_json(theirs / "config.json")
    named["id2label"] = {"0": "right", "1": "wrong"}
    files.write_json(theirs / "config.json", named)
    message = "names the class of right steps first"
  elif kind == "none":
    ours, message = base[1], "has no adapters"
  else:
    fields = dict(rope_theta=5e5) if kind == "rope" else {}
    ours = _adapted(tmp_path / "ours", base, "sft", **fields)
  if kind == "dtype":
    options, message = dict(dtype="bfloat16"), "exported in float32"
  if kind == "trunk":
    description = model_json.read_description(ours)
    params = dict(programs.load_params(ours))
    scale = params["final_norm"]["scale"]
    one_bit = jnp.nextafter(scale[3], jnp.float32(9))
    params["final_norm"] = dict(scale=scale.at[3].set(one_bit))
    saves.save_params(tmp_path / "trained", params, description)
    for path in ours.iterdir():
      if path.is_file():
        (tmp_path / "trained" / path.name).write_bytes(path.read_bytes())
    ours, message = tmp_path / "trained", "model.norm.weight isn't that of"
  with pytest.raises(errors.InputError, match=message) as e:
    export_model.export_folder(ours, tmp_path / "out", base=theirs, **options)
  assert "\n" not in str(e.value)
  assert not (tmp_path / "out" / peft_adapters.WEIGHTS).exists()


def test_weights_may_be_read_by_whoever_may_read_the_other_files(tmp_path):
  (tmp_path / "other").touch()
  tensors = [("x", np.zeros(2, np.float32))]
  safetensors_io.write_tensors(
    tmp_path, tensors, dtype="float32", max_shard_bytes=99
  )
  modes = {x.name: x.stat().st_mode for x in tmp_path.iterdir()}
  assert modes[safetensors_io.SINGLE] == modes["other"]
