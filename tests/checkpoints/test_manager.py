"""Checkpoint folders: what comes back, and one line where nothing can."""

import dataclasses
import errno
import gc
import json
import math
import os
import pathlib
import shutil
import weakref

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax.checkpoints import held
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import leaves
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.text import tokenizer_files
from prm_jax.training import program
from prm_jax.training import skip_updates

pytestmark = pytest.mark.usefixtures("printed_log")

MODEL = model_config.ModelConfig(
  vocab_size=259,
  d_model=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  d_ff=8,
)
DESCRIPTION = model_json.Description(
  program="prm",
  model=MODEL,
  encoding={"score_position": "separator", "max_tokens": 64},
  tokenizer={"kind": "bytes"},
  aggregate="min",
)


def _params(head="step", seed=0):
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), MODEL, (head,)))
    ),
  )


def _state(step, seed=0):
  params = _params(seed=seed)
  moments = jax.tree.map(lambda x: x**2, params)
  opt_state = ({"count": jnp.asarray(step, jnp.int32), "mu": moments},)
  return program.TrainState(
    jnp.asarray(step, jnp.int32),
    params,
    opt_state,
    skip_updates.Skipped.none().replace(total=jnp.asarray(step, jnp.int32)),
  )


def _abstract(state):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    state,
  )


def _save(folder, *steps, metrics=(), **options):
  """Saves states of the given steps; each one's seed is its step."""
  checkpoints = manager.Checkpoints(folder, **options)
  for i, step in enumerate(steps):
    measured = metrics[i] if metrics else None
    checkpoints.save(_state(step, step), measured)
  checkpoints.wait()
  return checkpoints


def _assert_same(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def _assert_one_line(error, *words):
  said = str(error.value)
  assert "\n" not in said and len(said) < 500
  for word in words:
    assert word in said


def test_on_a_cpu_a_save_is_whole_before_the_next_update(tmp_path):
  """Its copy of the state would be in the memory that the update needs."""
  checkpoints = manager.Checkpoints(tmp_path)
  for step in (1, 2):
    checkpoints.save(_state(step, step))
    assert saves.saved_steps(tmp_path)[-1] == step
  checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Returns a folder with steps 2 and 5, for tests to copy and damage."""
  folder = tmp_path_factory.mktemp("saved") / "run"
  _save(folder, 2, 5).close()
  model_json.write_description(folder, DESCRIPTION)
  return folder


@pytest.fixture
def copy(saved, tmp_path):
  return pathlib.Path(shutil.copytree(saved, tmp_path / "copy"))


# --- The whole state --------------------------------------------------------


def test_a_state_comes_back_bit_by_bit(copy):
  checkpoints = manager.Checkpoints(copy)
  _assert_same(checkpoints.newest(_abstract(_state(0))), _state(5, 5))
  for step in (2, 5):
    found = checkpoints.restore(step, _abstract(_state(0)))
    _assert_same(found, _state(step, step))
  checkpoints.close()


def test_a_state_comes_back_on_another_mesh(copy):
  mesh = sharding.make_mesh((2, 2, 2))
  split = sharding.of_batch(mesh)

  def place(x):
    wide = x.ndim == 2 and x.shape[0] % 4 == 0
    where = split if wide else sharding.replicated(mesh)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

  abstract = jax.tree.map(place, _state(5, 5))
  checkpoints = manager.Checkpoints(copy)
  found = checkpoints.restore(5, abstract)
  checkpoints.close()
  _assert_same(found, _state(5, 5))
  jax.tree.map(lambda x, y: x.sharding == y.sharding or 1 / 0, found, abstract)


def test_a_save_holds_what_the_state_was_though_training_goes_on(tmp_path):
  """The next update donates the buffers that are being written."""
  forward = jax.jit(
    lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0
  )
  checkpoints = manager.Checkpoints(tmp_path, keep_last=3)
  state = _state(1, 1)
  for _ in range(3):
    checkpoints.save(state)
    state = forward(state)
  checkpoints.wait()
  expected = _state(1, 1)
  for step in (1, 2, 3):
    found = checkpoints.restore(step, _abstract(_state(0)))
    _assert_same(found, expected)
    expected = jax.tree.map(lambda x: x + 1, expected)
  checkpoints.close()


# --- Which steps are kept ---------------------------------------------------


def test_the_last_saves_are_kept(tmp_path):
  checkpoints = _save(tmp_path, 1, 2, 3, 4, keep_last=2)
  assert saves.saved_steps(tmp_path) == [3, 4]
  assert checkpoints.best() is None
  checkpoints.close()


@pytest.mark.parametrize(
  ("mode", "values", "best"),
  [
    # A save between evaluations has no metric: neither best nor kept.
    ("min", (3.0, 1.0, 2.0, None), 2),
    # Nor has one whose metric isn't defined.
    ("max", (3.0, 1.0, 5.0, math.nan), 3),
  ],
)
def test_the_best_save_is_kept_besides_the_last(tmp_path, mode, values, best):
  options = {"keep_last": 1, "best_metric": "loss", "best_mode": mode}
  metrics = [None if x is None else {"loss": x} for x in values]
  _save(tmp_path, 1, 2, 3, 4, metrics=metrics, **options).close()
  assert saves.saved_steps(tmp_path) == [best, 4]
  # A run that goes on still knows it.
  checkpoints = _save(
    tmp_path, 5, metrics=[{"loss": 9.0 if mode == "min" else 0.0}], **options
  )
  assert checkpoints.best() == best
  assert saves.saved_steps(tmp_path) == [best, 5]
  checkpoints.close()


def test_a_save_that_was_never_finished_is_no_save(tmp_path):
  _save(tmp_path, 1).close()
  unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
  shutil.copytree(tmp_path / "checkpoints" / "1", unfinished)
  assert saves.saved_steps(tmp_path) == [1]
  checkpoints = manager.Checkpoints(tmp_path)
  assert int(checkpoints.newest(_abstract(_state(0))).step) == 1
  checkpoints.close()


# --- Damage -----------------------------------------------------------------


def _truncate(step):
  for path in step.glob("params/**/d/*"):
    path.write_bytes(path.read_bytes()[:20])


DAMAGES = {
  "no parameters": lambda step: shutil.rmtree(step / "params"),
  "parameters cut short": _truncate,
  "no manifest": lambda step: [
    x.unlink() for x in step.glob("params/**/manifest*")
  ],
  "no metadata": lambda step: (step / "params" / "_METADATA").unlink(),
  "metadata cut short": lambda step: (step / "params" / "_METADATA").write_text(
    "{"
  ),
  "nothing in it": lambda step: [shutil.rmtree(step), step.mkdir()],
  "a file": lambda step: [shutil.rmtree(step), step.write_text("")],
}
ONLY_RESUMING = {
  "no optimizer state": lambda step: shutil.rmtree(step / "opt_state"),
  "no step": lambda step: shutil.rmtree(step / "meta"),
  "step cut short": lambda step: (step / "meta" / "metadata").write_text("{"),
}


# orbax's threads may still speak when their event loop is gone.
LATE_THREADS = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)


@LATE_THREADS
@pytest.mark.parametrize("damage", DAMAGES | ONLY_RESUMING)
def test_a_damaged_save_is_set_aside_and_the_one_before_it_is_used(
  copy, damage, capsys
):
  step = copy / "checkpoints" / "5"
  (DAMAGES | ONLY_RESUMING)[damage](step)
  before = sorted(x.relative_to(step) for x in step.rglob("*"))
  checkpoints = manager.Checkpoints(copy)
  _assert_same(checkpoints.newest(_abstract(_state(0))), _state(2, 2))
  # Its number is free, for the step that is made again.
  checkpoints.save(_state(5, 6))
  checkpoints.wait()
  _assert_same(checkpoints.newest(_abstract(_state(0))), _state(5, 6))
  checkpoints.close()
  said = capsys.readouterr().out.splitlines()
  assert len(said) == 2
  assert "WARNING" in said[0] and f"{step}: damaged" in said[0]
  aside = copy / "damaged" / "5"
  assert str(aside.parent) in said[0] and "step 2" in said[1]
  assert sorted(x.relative_to(aside) for x in aside.rglob("*")) == before


@LATE_THREADS
def test_where_no_save_is_whole_nothing_is_touched_and_all_are_named(copy):
  for step in (2, 5):
    _truncate(copy / "checkpoints" / str(step))
  before = {x: x.stat().st_mtime_ns for x in copy.rglob("*")}
  checkpoints = manager.Checkpoints(copy)
  with pytest.raises(errors.DamagedError) as e:
    checkpoints.newest(_abstract(_state(0)))
  checkpoints.close()
  said = str(e.value)
  assert e.value.exit_code == 3 and "\n" not in said
  for word in (
    "checkpoints/5: damaged",
    "checkpoints/2: damaged",
    "fresh=True",
  ):
    assert word in said
  assert {x: x.stat().st_mtime_ns for x in copy.rglob("*")} == before


@LATE_THREADS
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_no_damage_to_any_file_gives_other_weights(copy, how):
  files = [x for x in (copy / "checkpoints" / "5").rglob("*") if x.is_file()]
  assert len(files) > 10
  noticed = 0
  for path in files:
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle]
    if how == "flip":
      changed = b"".join(
        (whole[:middle], bytes([x ^ 1 for x in whole[middle : middle + 1]]))
      )
      changed += whole[middle + 1 :]
    path.write_bytes(changed)
    checkpoints = manager.Checkpoints(copy)
    try:
      found = checkpoints.restore(5, _abstract(_state(0)))
    except errors.DamagedError:
      noticed += 1
    else:
      _assert_same(found, _state(5, 5))
    checkpoints.close()
    path.write_bytes(whole)
  assert noticed >= 3


@LATE_THREADS
@pytest.mark.parametrize(
  ("how", "step"), [("a metric", 1), ("cut", 4), ("what was skipped", 4)]
)
def test_what_a_save_says_of_itself_is_damaged_like_the_rest(
  tmp_path, how, step, capsys
):
  """Metrics choose what is kept: a wrong one would throw the best away."""
  options = dict(keep_last=2, best_metric="loss")
  metrics = [{"loss": x} for x in (1.5, 2.5, 3.5, 4.5)]
  _save(tmp_path, 1, 2, 3, 4, metrics=metrics, **options).close()
  assert saves.saved_steps(tmp_path) == [1, 3, 4]
  path = tmp_path / "checkpoints" / str(step) / "meta" / "metadata"
  text = path.read_text()
  changed = dict(
    cut=text[: len(text) // 2],
    **{
      "a metric": text.replace('"loss": ', '"loss": 9'),
      "what was skipped": text.replace('"skipped": [', '"skipped": [7'),
    },
  )
  assert changed[how] != text
  path.write_text(changed[how])
  checkpoints = manager.Checkpoints(tmp_path, **options)
  whole = 4 if step == 1 else 3
  _assert_same(checkpoints.newest(_abstract(_state(0))), _state(whole, whole))
  assert f"checkpoints/{step}: damaged" in capsys.readouterr().out
  assert (tmp_path / "damaged" / str(step)).is_dir()
  # The best of the others is kept from here on.
  assert checkpoints.best() == (3 if step == 1 else 1)
  for new in (5, 6, 7):
    checkpoints.save(_state(new, new), {"loss": 9.0})
  checkpoints.close()
  assert saves.saved_steps(tmp_path) == [3 if step == 1 else 1, 6, 7]


def test_parameters_that_arent_what_was_saved_are_refused(copy):
  meta_path = copy / "checkpoints" / "5" / "meta" / "metadata"
  record = json.loads(meta_path.read_text())
  del record["digest"]
  said = record["fingerprints"]
  name = next(x for x in said if x.startswith("params/"))
  said[name] = said[name][:-1] + ("0" if said[name][-1] != "0" else "1")
  meta_path.write_text(json.dumps(integrity.sealed(record)))
  with pytest.raises(errors.DamagedError, match=f"{name} isn't what was saved"):
    parameters.load_params(copy)
  del record["fingerprints"]
  meta_path.write_text(json.dumps(integrity.sealed(record)))
  with pytest.raises(errors.DamagedError, match="isn't what was saved"):
    parameters.load_params(copy)
  # What has no digest was written by nobody.
  meta_path.write_text(json.dumps(dict(record, digest=None)))
  with pytest.raises(errors.DamagedError, match="meta isn't what was saved"):
    parameters.load_params(copy)


@LATE_THREADS
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_parameters_of_a_damaged_save_are_refused_in_one_line(
  copy, damage, apart
):
  step = copy / "checkpoints" / "5"
  DAMAGES[damage](step)
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(copy, apart=apart)
  _assert_one_line(e, str(step), "damaged")


def test_layers_are_read_apart_as_they_are_taken_apart(copy):
  stacked = parameters.load_params(copy)
  read = parameters.load_params(copy, apart=True)
  _assert_same(read, held.own_arrays(stacked))


def test_a_layer_in_the_place_of_another_is_found(copy):
  found = integrity.of(parameters.load_params(copy))
  params = parameters.load_params(copy, apart=True)
  assert integrity.of_params(params) == found
  assert integrity.of_params(parameters.load_params(copy)) == found
  turned = {**params, "layers": params["layers"][::-1]}
  others = integrity.of_params(turned)
  assert {k for k in found if others[k] != found[k]} >= {"layers/mlp/up/kernel"}
  assert others.keys() == found.keys()


def test_parameters_read_for_training_are_updated_in_place(copy):
  kernel = parameters.load_params(copy)["layers"]["mlp"]["up"]["kernel"]
  place = kernel.unsafe_buffer_pointer()
  doubled = jax.jit(lambda x: 2 * x, donate_argnums=0)(kernel)
  assert doubled.unsafe_buffer_pointer() == place


def test_each_layers_part_is_freed_with_it(copy, monkeypatch):
  mapped = []

  def counted(*args):
    mapped.append(weakref.ref(memory := mapping(*args)))
    return memory

  mapping = leaves.mmap.mmap
  monkeypatch.setattr(leaves.mmap, "mmap", counted)
  layers = parameters.load_params(copy, apart=True)["layers"]
  gc.collect()  # what jax copied it frees at its next call, or here
  held_before = sum(ref() is not None for ref in mapped)
  for leaf in jax.tree.leaves(layers[0]):
    leaf.delete()
  del leaf
  gc.collect()
  freed = held_before - sum(ref() is not None for ref in mapped)
  assert freed == len(jax.tree.leaves(layers[1]))


def test_too_little_memory_to_read_a_save_isnt_damage(copy, monkeypatch):
  def full(*args):
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

  monkeypatch.setattr(leaves.mmap, "mmap", full)
  with pytest.raises(errors.InputError, match="Cannot allocate memory") as e:
    parameters.load_params(copy, apart=True)
  assert not isinstance(e.value, errors.DamagedError)


def test_models_of_other_depths_have_fingerprints_together():
  layers = {"kernel": jnp.arange(12.0).reshape(4, 3)}
  stacks = dict(deep=dict(layers=layers))
  stacks["flat"] = dict(layers={"kernel": layers["kernel"][:2] + 1})
  found = integrity.of(stacks)
  own = held.own_arrays(jax.tree.map(jnp.copy, stacks))
  assert integrity.of_params(own) == found


def test_without_the_damaged_save_the_one_before_it_is_used(copy):
  shutil.rmtree(copy / "checkpoints" / "5")
  checkpoints = manager.Checkpoints(copy)
  assert int(checkpoints.newest(_abstract(_state(0))).step) == 2
  checkpoints.close()
  _assert_same(parameters.load_params(copy), _params(seed=2))


def test_a_state_of_another_shape_names_the_parameter(copy):
  other = _abstract(_state(0))
  other.params["step_head"]["kernel"] = jax.ShapeDtypeStruct(
    (16, 1), jnp.float32
  )
  checkpoints = manager.Checkpoints(copy)
  with pytest.raises(errors.InputError) as e:
    checkpoints.restore(5, other)
  checkpoints.close()
  _assert_one_line(e, "step_head/kernel", "(8, 1)", "(16, 1)", "fresh=True")


# --- Parameters alone -------------------------------------------------------


@pytest.mark.parametrize(("step", "seed"), [(None, 5), (5, 5), (2, 2)])
def test_load_params_returns_a_step_and_by_default_the_last(saved, step, seed):
  _assert_same(parameters.load_params(saved, step=step), _params(seed=seed))


def test_load_params_reads_nothing_but_parameters(copy):
  for item in ("opt_state", "meta"):
    shutil.rmtree(copy / "checkpoints" / "5" / item)
  found = parameters.load_params(copy)
  _assert_same(found, _params(seed=5))
  assert {x.sharding.num_devices for x in jax.tree.leaves(found)} == {1}


def test_load_params_changes_nothing_in_the_folder(copy):
  before = {x: x.stat().st_mtime_ns for x in copy.rglob("*")}
  parameters.load_params(copy)
  assert {x: x.stat().st_mtime_ns for x in copy.rglob("*")} == before


def test_load_params_refuses_what_is_not_there(saved, tmp_path):
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(tmp_path / "nowhere")
  _assert_one_line(e, "nowhere", "model.json", "`workdir`")
  model_json.write_description(tmp_path, DESCRIPTION)
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(tmp_path)
  _assert_one_line(e, str(tmp_path), "no checkpoint")
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(saved, step=3)
  _assert_one_line(e, "step 3", "2, 5")


def test_load_params_refuses_a_model_other_than_described(copy):
  for change in ({"num_layers": 3}, {"tie_embedding": False, "d_ff": 16}):
    model = dataclasses.replace(MODEL, **change)
    description = dataclasses.replace(DESCRIPTION, model=model)
    with pytest.raises(errors.InputError) as e:
      parameters.load_params(copy, description)
    _assert_one_line(e, "layers/", "model.json")
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(
      copy, dataclasses.replace(DESCRIPTION, program="orm")
    )
  _assert_one_line(e, "_head", "absent")
  with pytest.raises(errors.InputError) as e:
    parameters.load_params(
      copy, dataclasses.replace(DESCRIPTION, program="dpo")
    )
  _assert_one_line(e, "'dpo'", "sft, prm, orm, implicit, rl")


# --- Descriptions -----------------------------------------------------------


def test_a_fingerprint_is_one_models_wherever_it_is_taken(tmp_path):
  """A published number of ours: it must not change from release to release."""
  record = dict(
    format=1,
    program="prm",
    model=dict(
      vocab_size=259,
      d_model=8,
      num_layers=2,
      num_heads=2,
      num_kv_heads=1,
      head_dim=4,
      d_ff=8,
    ),
    encoding=dict(score_position="separator"),
    tokenizer=dict(kind="bytes"),
    aggregate="min",
  )
  (tmp_path / "model.json").write_text(json.dumps(record))
  params = {
    "b": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "a": np.float32(1),
  }
  found = model_json.fingerprint(tmp_path, params)
  assert (
    found
    == "sha256:56e2a297e1e72ee576056b8a80eb6767a597ce7d16ee79e76d6059ac569d1fda"
  )
  # The order of names, in the file or in the tree, the layout in memory and
  # the place say nothing.
  record = dict(reversed(record.items()))
  (tmp_path / "model.json").write_text(json.dumps(record, indent=2))
  other = {
    "a": jnp.float32(1),
    "b": {"kernel": np.asfortranarray(params["b"]["kernel"])},
  }
  assert model_json.fingerprint(tmp_path, other) == found
  mesh = sharding.make_mesh((2, 1, 1), jax.devices()[:2])
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  other["b"]["kernel"] = jax.device_put(params["b"]["kernel"], rows)
  assert model_json.fingerprint(tmp_path, other) == found


def test_a_fingerprint_sees_every_weight_name_shape_and_setting(copy):
  params = parameters.load_params(copy)
  found = {model_json.fingerprint(copy, params)}
  found.add(model_json.fingerprint(copy, parameters.load_params(copy, step=2)))
  weights = np.arange(4, dtype=np.float32)
  for tree in (
    {"a": weights},
    {"b": weights},
    {"a": weights.reshape(2, 2)},
    {"a": np.nextafter(weights, 9)},
  ):
    found.add(model_json.fingerprint(copy, tree))
  for change in (dict(aggregate="last"), dict(program="orm")):
    other = dataclasses.replace(DESCRIPTION, **change)
    model_json.write_description(copy, other)
    found.add(model_json.fingerprint(copy, params))
  assert len(found) == 8


def test_a_fingerprint_is_that_of_the_numbers_however_they_are_held(copy):
  params = jax.tree.map(
    lambda x: x.astype("bfloat16"), parameters.load_params(copy)
  )
  found = model_json.fingerprint(copy, params)
  wide = jax.tree.map(lambda x: x.astype("float32"), params)
  assert model_json.fingerprint(copy, wide) == found
  turned = {**wide, "final_norm": {"scale": -wide["final_norm"]["scale"]}}
  assert model_json.fingerprint(copy, held.own_arrays(turned)) != found
  own = held.own_arrays(params)
  assert model_json.fingerprint(copy, own) == found
  own["layers"][0]["mlp"]["up"], own["layers"][1]["mlp"]["up"] = (
    own["layers"][i]["mlp"]["up"] for i in (1, 0)
  )
  assert model_json.fingerprint(copy, own) != found


def test_a_description_comes_back_as_it_was(tmp_path):
  model_json.write_description(tmp_path, DESCRIPTION)
  assert model_json.read_description(tmp_path) == DESCRIPTION


@pytest.mark.parametrize("kind", ["splash", "tree", "reference"])
def test_attention_is_chosen_anew_by_who_uses_a_checkpoint(tmp_path, kind):
  # Splash would be wrong for the trees in which options are weighed.
  model = dataclasses.replace(MODEL, attention=kind)
  described = dataclasses.replace(DESCRIPTION, model=model)
  model_json.write_description(tmp_path, described)
  found = model_json.read_description(tmp_path).model
  assert found == dataclasses.replace(MODEL, attention="auto")


def test_adapters_come_back_with_the_description(tmp_path):
  model = dataclasses.replace(MODEL, lora_rank=2, lora_targets=("key", "up"))
  described = dataclasses.replace(DESCRIPTION, model=model)
  model_json.write_description(tmp_path, described)
  found = model_json.read_description(tmp_path)
  assert found == described
  assert hash(found.model) == hash(model)  # it's a static argument of jit


def test_the_tokenizer_comes_back_with_the_folder(tmp_path):
  tokenizer = tokenizer_files.train_sentencepiece(
    ["one and one is two", "two and two is four"] * 5, 280
  )
  description = dataclasses.replace(
    DESCRIPTION, tokenizer=tokenizer.save(tmp_path)
  )
  model_json.write_description(tmp_path, description)
  found = model_json.read_tokenizer(
    tmp_path, model_json.read_description(tmp_path)
  )
  text = "one is four"
  assert found.encode(text) == tokenizer.encode(text)
  assert found.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"format": 1}',
    b'{"format": 1, "program": "prm", "model": {"vocab_size": 3}}',
    b'{"format": 1, "program": "prm", "model": null}',
    *(
      json.dumps(
        dict(
          format=1,
          program="prm",
          model=dataclasses.asdict(MODEL),
          encoding={},
          tokenizer={},
        )
        | damage
      ).encode()
      for damage in (
        dict(encoding=None),
        dict(encoding=["last_token"]),
        dict(tokenizer="bytes"),
        dict(model=dataclasses.asdict(MODEL) | dict(d_model="8")),
      )
    ),
  ],
  ids=repr,
)
def test_a_damaged_description_is_refused_in_one_line(tmp_path, content):
  (tmp_path / "model.json").write_bytes(content)
  with pytest.raises(errors.InputError) as e:
    model_json.read_description(tmp_path)
  _assert_one_line(e, "model.json", "damaged")


@pytest.mark.parametrize(
  "spec",
  [
    {},
    {"kind": 3},
    {"kind": "sentencepiece"},
    {"kind": "sentencepiece", "file": 3},
    {"kind": "sentencepiece", "file": "model.json", "sha256": None},
    {"kind": "sentencepiece", "file": "a\0b", "sha256": ""},
  ],
  ids=repr,
)
def test_a_damaged_tokenizer_entry_is_refused_in_one_line(tmp_path, spec):
  description = dataclasses.replace(DESCRIPTION, tokenizer=spec)
  model_json.write_description(tmp_path, description)
  with pytest.raises(errors.InputError) as e:
    model_json.read_tokenizer(tmp_path, model_json.read_description(tmp_path))
  _assert_one_line(e, str(tmp_path))


def test_a_description_of_a_later_format_is_refused(tmp_path):
  model_json.write_description(tmp_path, DESCRIPTION)
  path = tmp_path / "model.json"
  record = json.loads(path.read_text()) | {"format": 2}
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError) as e:
    model_json.read_description(tmp_path)
  _assert_one_line(e, "newer format")
