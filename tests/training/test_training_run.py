"""From a config and solutions to a checkpoint folder that can be used."""

import dataclasses
import itertools
import json
import pathlib
import shutil

import flat_config
import jax
import ml_collections
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.datasets import tfds_records
from prm_jax.models import lora
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.records import array_record
from prm_jax.rows import encoded_cache
from prm_jax.runtime import distributed
from prm_jax.scoring import saved as saved_lib
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files
from prm_jax.training import batches as batches_lib
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import programs
from prm_jax.training import train_config
from prm_jax.training import train_run
from prm_jax.training import train_run_config

pytestmark = pytest.mark.usefixtures(
  "one_device", "equal_programs", "printed_log"
)

# That of all eight devices.
MAKE_MESH = sharding.make_mesh

TOKENIZER = tokenizer_lib.Bytes()


def _config(program="prm", **changes):
  fields = {
    "program": program,
    "seed": 0,
    "model": {
      "d_model": 8,
      "num_layers": 1,
      "num_heads": 2,
      "num_kv_heads": 2,
      "head_dim": 4,
      "d_ff": 8,
    },
    "encoding": encoding.EncodingConfig(max_tokens=32, template=own_form.OWN),
    "rows": 8,
    "sequence_length": 32,
    "optimizer": optimizer.OptimizerConfig(peak_lr=1e-2, warmup_steps=1),
    "fit": loop.FitConfig(steps=2, checkpoint_every=1, tensorboard=False),
    "aggregate": "min",
  }
  return flat_config.run(**fields | changes)


def _solutions(num=12):
  """Returns short solutions, four to each problem, with shared steps."""
  random = np.random.default_rng(0)
  solutions = []
  for i in range(num):
    steps = tuple(
      f"{k}{'ab'[random.integers(2)]}" for k in range(random.integers(1, 4))
    )
    solutions.append(
      schema.Solution(
        id=str(i),
        problem=f"problem {i // 4}",
        steps=steps,
        labels=tuple(float("a" in step) for step in steps),
        outcome=bool(i % 3),
      )
    )
  return solutions


def _train(workdir, config=None, **options):
  return train_run.train(
    config or _config(), _solutions(), TOKENIZER, workdir, **options
  )


@pytest.fixture
def eight_devices(monkeypatch):
  monkeypatch.setattr(sharding, "make_mesh", MAKE_MESH)


def _assert_same(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns a finished PRM's folder, model and parameters."""
  workdir = tmp_path_factory.mktemp("trained") / "prm"
  return workdir, *_train(workdir)


# --- The folder -------------------------------------------------------------


def test_the_folder_says_how_its_model_is_used(trained):
  workdir, model, params = trained
  description = model_json.read_description(workdir)
  assert description == model_json.Description(
    program="prm",
    model=model,
    encoding=encoding_records.record_of(_config().encoding),
    tokenizer={"kind": "bytes"},
    aggregate="min",
    judged="until_first_error",
  )
  assert model.vocab_size == TOKENIZER.vocab_size
  _assert_same(parameters.load_params(workdir), params)
  found = saved_lib.load(workdir).score(_solutions())
  assert [len(x) for x in found] == [len(s.steps) for s in _solutions()]


def test_a_run_may_say_how_a_text_is_cut(trained):
  config = dataclasses.replace(_config(), segmenter="tokens:2")
  _, model, params = trained
  saved = train_run.stages_of(config, TOKENIZER, model.vocab_size).description
  prm_of_it = scorer.Scorer(
    *("prm", model, params, TOKENIZER),
    encoding_records.from_record(saved.encoding, ""),
    segmenter=saved.segmenter,
  )
  assert prm_of_it.score_text("?", "so 4").spans == ((0, 2), (3, 4))
  with pytest.raises(errors_lib.InputError, match="'words': expected"):
    dataclasses.replace(config, segmenter="words")


@pytest.mark.parametrize(
  "objective, judged",
  [
    (prm.PRMConfig(), "until_first_error"),
    (
      prm.PRMConfig(labels=encoding.LabelPolicy(after_first_error="bad")),
      "all",
    ),
    (
      prm.PRMConfig(labels=encoding.LabelPolicy(after_first_error="keep")),
      "all",
    ),
    # Whole solutions are compared by their last steps.
    (prm.PRMConfig(loss="bradley_terry", pairs="solutions"), "last"),
    (prm.PRMConfig(loss="bradley_terry"), "until_first_error"),
    (orm.ORMConfig(outcome_target="last_step"), "last"),
    (orm.ORMConfig(outcome_target="every_token"), "all"),
  ],
)
def test_a_model_judges_the_steps_that_its_training_has_targets_for(
  objective, judged
):
  assert objective.judged == judged


@pytest.mark.parametrize(
  "aggregate, later, warns",
  [
    ("last", "ignore", True),
    ("mean", "ignore", True),
    ("min", "ignore", False),
    ("last", "bad", False),
    ("last", "keep", False),  # Monte-Carlo values
  ],
)
def test_an_aggregate_of_steps_that_training_ignores_is_warned_of(
  aggregate, later, warns, caplog
):
  labels = encoding.LabelPolicy(after_first_error=later)
  config = dataclasses.replace(
    _config(), objective=prm.PRMConfig(labels=labels), aggregate=aggregate
  )
  train_config.warn(config)
  said = f"aggregate='{aggregate}' reads the steps after a first error"
  assert (said in caplog.text) == warns


@pytest.mark.parametrize(
  "target, aggregate, warns",
  [
    ("last_step", "min", True),
    ("last_step", "last", False),
    ("every_token", "min", False),
  ],
)
def test_an_orm_of_last_steps_is_warned_of_other_aggregates(
  target, aggregate, warns, caplog
):
  objective = orm.ORMConfig(outcome_target=target)
  train_config.warn(
    dataclasses.replace(_config(), objective=objective, aggregate=aggregate)
  )
  assert ("reads the steps before the last" in caplog.text) == warns


@pytest.mark.parametrize(
  "template, step_head, warns",
  [
    (policy_templates.qwen2_5(), "mlp", "template='policy'"),
    (own_form.OWN, "mlp", "template=None"),
    (
      templates.token_classification(),
      "mlp",
      "template='token_classification'",
    ),
    (templates.qwen_prm(), "mlp", ""),
    (policy_templates.qwen2_5(), "linear", ""),
  ],
)
def test_a_step_head_that_no_export_has_is_warned_of(
  template, step_head, warns, caplog
):
  config = dataclasses.replace(
    _config(),
    model=_config().model | dict(step_head=step_head, step_classes=2),
    encoding=encoding.EncodingConfig(max_tokens=32, template=template),
  )
  train_config.warn(config)
  assert ("can't be exported" in caplog.text) == bool(warns)
  assert f"encoding.{warns}" in caplog.text or not warns


def test_a_run_warns_of_its_step_head_when_it_starts(tmp_path, caplog):
  config = _config(model=_config().model | dict(step_head="mlp"))

  def on_start():
    assert "can't be exported" in caplog.text
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    _train(tmp_path / "run", config, on_start=on_start)


def test_every_program_trains_from_the_parameters_of_another(trained, tmp_path):
  _, _, base = trained
  for program, head in (("orm", "outcome_head"), ("sft", None)):
    config = _config(program)
    _, params = _train(tmp_path / program, config, init_from=base)
    trunk = {"embedding", "layers", "final_norm"}
    assert set(params) == trunk | ({head} - {None})
    _assert_same(parameters.load_params(tmp_path / program), params)
    description = model_json.read_description(tmp_path / program)
    assert description.program == program


def test_a_held_out_set_is_evaluated_at_the_end(tmp_path):
  _train(tmp_path, eval_solutions=_solutions(4))
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  last = json.loads(lines[-1])
  assert (last["kind"], last["step"]) == ("eval", 2)
  assert {"loss_nats", "accuracy", "balanced_accuracy"} <= last.keys()


@pytest.mark.parametrize(("eval_rows", "rows"), [(256, 8), (3, 2), (2, 2)])
def test_every_held_out_row_counts_once_though_batches_are_whole(
  eval_rows, rows
):
  config = _config(rows=rows, eval_rows=eval_rows)
  held_out, counts = flat_config.encode_rows(config, _solutions(), TOKENIZER, 0)
  batches = batches_lib.each_once(held_out, eval_rows)
  assert all(x.tokens.shape == (rows, 32) for x in batches)
  weights = np.concatenate([x.weights for x in batches])
  wanted = min(eval_rows, held_out.rows_per_epoch)
  assert np.count_nonzero(weights.any(axis=1)) == wanted
  if wanted == held_out.rows_per_epoch:
    assert weights.sum() == counts["targets"]


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("eval_rows", [3, 256])
def test_parts_of_held_out_rows_count_as_the_whole_batches_do(
  monkeypatch, eval_rows
):
  held_out, _ = flat_config.encode_rows(
    _config(rows=4, eval_rows=eval_rows), _solutions(), TOKENIZER, 0
  )
  whole = batches_lib.each_once(held_out, eval_rows)
  mesh = sharding.make_mesh((2, 2, 2))
  monkeypatch.setattr(distributed, "number", lambda: 2)
  own = np.array([3, 1])
  monkeypatch.setattr(sharding, "own_rows", lambda *_: own)
  for part, batch in zip(
    batches_lib.each_once(held_out, eval_rows, mesh), whole, strict=True
  ):
    jax.tree.map(
      np.testing.assert_array_equal,
      part.rows,
      jax.tree.map(lambda x: x[own], batch),
    )
    assert part.num_tokens == loop.num_tokens(batch) == loop.num_tokens(part)


# --- Resuming ---------------------------------------------------------------


def test_training_goes_on_with_the_same_bits(trained, tmp_path):
  workdir = pathlib.Path(shutil.copytree(trained[0], tmp_path / "copy"))
  # As if it had been killed before the last save.
  shutil.rmtree(workdir / "checkpoints" / "2")
  _, found = _train(workdir)
  _assert_same(found, trained[2])
  assert saves.saved_steps(workdir) == [1, 2]


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"program": "orm"}, "program"),
    (
      {
        "encoding": encoding.EncodingConfig(
          score_position="separator", max_tokens=32, template=own_form.OWN
        )
      },
      "encoding",
    ),
    ({"model": _config().model | {"d_ff": 16}}, "model"),
    ({"model": _config().model | {"rope_theta": 7.0}}, "model"),
  ],
  ids=str,
)
def test_a_run_of_another_model_is_refused_and_left_as_it_was(
  trained, changes, word
):
  workdir = trained[0]
  before = {x: x.stat().st_mtime_ns for x in workdir.rglob("*")}
  with pytest.raises(errors_lib.InputError, match=f"another {word}") as e:
    _train(workdir, _config(**changes))
  assert "\n" not in str(e.value) and "fresh=True" in str(e.value)
  assert {x: x.stat().st_mtime_ns for x in workdir.rglob("*")} == before


def test_a_run_doesnt_go_on_with_other_data(trained, tmp_path):
  workdir = pathlib.Path(shutil.copytree(trained[0], tmp_path / "copy"))
  shutil.rmtree(workdir / "checkpoints" / "2")
  solutions = _solutions()
  edited = dataclasses.replace(solutions[3], problem="another one")
  for other, said in (
    (solutions[:-1], "12 solutions, now 11"),
    (solutions[::-1], "another order"),
    ([*solutions[:3], edited, *solutions[4:]], "not the same"),
  ):
    with pytest.raises(errors_lib.InputError, match=said) as e:
      train_run.train(_config(), other, TOKENIZER, workdir)
    assert "\n" not in str(e.value) and "fresh=True" in str(e.value)
  assert saves.saved_steps(workdir) == [1]
  # Whoever means it says so.
  (workdir / train_run.DATA).unlink()
  train_run.train(_config(), solutions[:-1], TOKENIZER, workdir)
  assert saves.saved_steps(workdir) == [1, 2]


def test_no_changed_character_of_data_json_passes_unseen(trained, tmp_path):
  """It is refused, or it still says that the data is the same."""
  path = tmp_path / train_run.DATA
  content = (trained[0] / train_run.DATA).read_bytes()
  data = json.loads(content)
  del data["digest"]
  refused = 0
  for place in range(len(content)):
    changed = bytearray(content)
    changed[place] ^= 1 << place % 7
    path.write_bytes(changed)
    try:
      errors.raise_first(train_run._other_data(path, data))
    except errors_lib.InputError as e:
      refused += 1
      assert str(path.parent) in str(e) and "\n" not in str(e)
    else:
      assert {k: json.loads(changed)[k] for k in data} == data, bytes(changed)
  assert refused > 0.8 * len(content)


def test_a_trained_save_refuses_an_edited_model_json(trained, tmp_path):
  workdir = pathlib.Path(shutil.copytree(trained[0], tmp_path / "copy"))
  path = workdir / "model.json"
  record = json.loads(path.read_text())
  record["model"]["norm_epsilon"] *= 2
  path.write_text(json.dumps(record))
  for step in (1, 2):
    with pytest.raises(errors_lib.InputError, match=r"model\.norm_epsilon is"):
      parameters.load_params(workdir, step=step)


def test_another_tokenizer_is_refused(trained):
  other = tokenizer_files.train_sentencepiece(["a b c"] * 9, 270)
  with pytest.raises(errors_lib.InputError, match="another tokenizer"):
    train_run.train(_config(), _solutions(), other, trained[0])
  assert not (trained[0] / "tokenizer.model").exists()


def test_how_it_is_computed_may_change_on_the_way(trained):
  workdir, _, params = trained
  model = _config().model | {"remat": "full", "scan": False}
  config = dataclasses.replace(_config(), model=model)
  _, found = _train(workdir, config)
  _assert_same(found, params)


def test_fresh_replaces_a_run_of_another_model(trained, tmp_path):
  workdir = pathlib.Path(shutil.copytree(trained[0], tmp_path / "copy"))
  _, params = _train(workdir, _config("orm"), fresh=True)
  assert model_json.read_description(workdir).program == "orm"
  _assert_same(parameters.load_params(workdir), params)


def test_a_fresh_run_begins_when_nothing_can_be_refused_any_more(
  trained, tmp_path
):
  workdir = pathlib.Path(shutil.copytree(trained[0], tmp_path / "copy"))
  begun = []

  def on_start():
    begun.append(saves.saved_steps(workdir))

  before = {x: x.stat().st_mtime_ns for x in workdir.rglob("*")}
  for changes in (
    {"rows": 12},
    {"fit": loop.FitConfig(2, best_metric="loss_nats")},
    {"model": _config().model | {"d_model": 16}},
  ):
    config = _config(**changes)
    start = trained[2]
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(sharding, "make_mesh", MAKE_MESH)  # 12 rows don't fit it
      with pytest.raises(errors_lib.InputError):
        _train(workdir, config, fresh=True, on_start=on_start, init_from=start)
  assert {x: x.stat().st_mtime_ns for x in workdir.rglob("*")} == before
  assert not begun
  _train(workdir, fresh=True, on_start=on_start)
  assert begun == [[]]


def test_a_run_cant_begin_with_the_parameters_of_another_model():
  start = _config("sft")
  deeper = _config(model=_config().model | {"num_layers": 2})
  train_run.check_init(deeper, start, 16)
  with pytest.raises(errors_lib.InputError, match="init_from"):
    train_run.check_init(start, deeper, 16)


def _adapted(lora_alpha=4.0):
  adapters = dict(lora_rank=2, lora_alpha=lora_alpha, lora_targets=("up",))
  return _config(trainable="lora", model=_config().model | adapters)


def test_adapters_go_on_from_a_head_and_everything_from_adapters(
  trained, tmp_path, capsys
):
  """Each stage starts from the folder of the one before."""
  head = _config(trainable="head")
  adapted = _adapted()
  folder, seen = trained[0], [trained[2]]
  for name, config in (("head", head), ("lora", adapted)):
    start = train_run.read_init(config, folder)
    folder = tmp_path / name
    seen.append(_train(folder, config, init_from=start)[1])
  for old, new in itertools.pairwise(seen):
    assert (new["step_head"]["kernel"] != old["step_head"]["kernel"]).any()
    kernels = (x["layers"]["mlp"]["up"]["kernel"] for x in (old, new))
    np.testing.assert_array_equal(*kernels)
  assert seen[-1]["layers"]["mlp"]["up"]["lora_b"].any()
  # The folder says that it has adapters, and is used as it is.
  model = model_json.read_description(folder).model
  _assert_same(parameters.load_params(folder), seen[-1])
  assert [len(x) for x in saved_lib.load(folder).score(_solutions())]
  # A run without adapters begins with what they have learned.
  start = train_run.read_init(_config(), folder)
  _assert_same(start, lora.merge(model, seen[-1])[1])
  said = capsys.readouterr().out
  total = sum(x.size for x in jax.tree.leaves(seen[0]))
  assert f"head: trains 9 of {total:,} parameters" in said  # 8 and the bias
  assert f"init_from={folder}: its adapters are merged" in said


def test_adapters_arent_scaled_anew_without_a_word(trained, tmp_path):
  _train(tmp_path / "lora", _adapted(), init_from=trained[2])
  with pytest.raises(errors_lib.InputError, match=r"lora_alpha=4\.0") as e:
    train_run.read_init(_adapted(8.0), tmp_path / "lora")
  assert "\n" not in str(e.value)


def test_a_run_that_freezes_a_trunk_must_be_given_one():
  start = _config("sft")
  deeper = _config(model=_config().model | {"num_layers": 2})
  frozen = dataclasses.replace(deeper, trainable="head")
  train_run.check_init(deeper, start, 16)
  with pytest.raises(errors_lib.InputError, match="isn't trained"):
    train_run.check_init(frozen, start, 16)


# --- Data -------------------------------------------------------------------


# An implicit PRM refuses trees (tests/training/test_programs.py).
@pytest.mark.parametrize("program", ["sft", "prm", "orm"])
def test_trees_have_the_same_targets_in_fewer_tokens(program):
  totals = {}
  for share_prefixes in (False, True):
    config = _config(program, share_prefixes=share_prefixes)
    rows, counts = flat_config.encode_rows(config, _solutions(), TOKENIZER, 0)
    weight = sum(float(x.weights.sum()) for x in rows.segments)
    totals[share_prefixes] = (
      int(rows.lengths.sum()),
      weight,
      counts["targets"],
    )
  assert totals[True][0] < totals[False][0]
  np.testing.assert_allclose(totals[True][1], totals[False][1], rtol=1e-5)
  assert totals[True][2] == totals[False][2]


def test_the_counts_say_what_was_left_out():
  long = schema.Solution("x", "p" * 99, ("a",), labels=(1.0,), outcome=True)
  rows, counts = flat_config.encode_rows(
    _config(), [*_solutions(), long], TOKENIZER, 0
  )
  said = batches_lib.describe_counts(counts, rows)
  assert "13 solutions" in said and "1 solutions too long" in said
  assert "\n" not in said and "fill" in said


def test_no_data_is_refused_in_one_line(tmp_path):
  unlabelled = [dataclasses.replace(s, labels=None) for s in _solutions()]
  with pytest.raises(errors_lib.InputError) as e:
    train_run.train(_config(), unlabelled, TOKENIZER, tmp_path / "new")
  assert "\n" not in str(e.value)
  assert not (tmp_path / "new").exists()


# --- Data that stays in its files, and sources -------------------------------


def _stored(tmp_path, solutions):
  """Returns the same solutions, read when they are needed."""
  tfds_records.quiet(bars=False)
  folder = tfds_records.write(tmp_path, "x", dict(train=solutions))
  every = np.arange(len(solutions))
  return array_record.Chosen([array_record.Stored(folder)], every)


def _halves(num, weights=()):
  numbers = np.repeat(np.arange(2, dtype=np.int32), num // 2)
  return batches_lib.Sources(("a", "b"), numbers, weights)


@pytest.mark.parametrize("program", programs.TRAINED)
def test_stored_solutions_give_the_batches_of_those_in_memory(
  program, tmp_path
):
  solutions = _solutions(24)
  stored = _stored(tmp_path, solutions)
  for share_prefixes, sources in (
    (False, None),
    (True, None),
    (False, _halves(24)),
    (True, _halves(24, (1.0, 2.0))),
  ):
    if program == "implicit" and share_prefixes:
      continue  # it is of whole solutions
    config = _config(program, share_prefixes=share_prefixes, sequence_length=40)
    made = [
      flat_config.encode_rows(config, given, TOKENIZER, 3, sources)
      for given in (solutions, stored)
    ]
    assert made[0][1] == made[1][1]
    said = [batches_lib.describe_counts(counts, rows) for rows, counts in made]
    assert said[0] == said[1]
    for step in (0, 5, 2):
      batches = [rows.batch_at(step) for rows, _ in made]
      jax.tree.map(np.testing.assert_array_equal, *batches)
      assert (batches[0].source is None) == (sources is None)


def test_what_decides_an_example_decides_the_index(tmp_path):
  """A field that is added to the config counts until it's said not to."""
  stored = _stored(tmp_path, _solutions(24))

  def kept(**changes):
    flat_config.encode_rows(_config(**changes), stored, TOKENIZER, 0)
    return len(list(stored.stored[0].folder.glob(".prm_jax/index-*")))

  assert kept() == 1
  same = dict(
    seed=7,
    rows=16,
    sequence_length=64,
    microbatches=2,
    eval_rows=9,
    aggregate="last",
    fit=loop.FitConfig(steps=3),
    optimizer=optimizer.OptimizerConfig(peak_lr=1.0),
    model=_config().model | {"d_ff": 16},
  )
  assert kept(**same) == 1
  others = (
    dict(
      encoding=encoding.EncodingConfig("separator", 32, template=own_form.OWN)
    ),
    dict(labels=encoding.LabelPolicy(after_first_error="bad")),
    dict(program="orm"),
    dict(program="orm", outcome_target="last_step"),
    dict(share_prefixes=True),
  )
  for number, changes in enumerate(others, 2):
    assert kept(**changes) == number


@pytest.mark.usefixtures("eight_devices")
def test_a_run_keeps_its_encoded_data_and_encodes_anew_if_it_is_fresh(
  tmp_path, monkeypatch
):
  cache = encoded_cache.Cache(tmp_path / "cache")
  given = []

  class Reached(Exception):
    pass

  def encode_rows(*args, **fields):
    given.append(fields)
    raise Reached

  monkeypatch.setattr(train_run.batches, "encode_rows", encode_rows)
  for solutions, fresh in ((24, False), (24, True), (23, False)):
    with pytest.raises(Reached):
      train_run.train(
        *(_config(), _solutions(solutions), TOKENIZER, tmp_path / "run"),
        cache=cache,
        fresh=fresh,
      )
  assert all(x["cache"] is cache for x in given)
  assert [x["fresh"] for x in given] == [False, True, False]
  first, same, other = (x["digest"] for x in given)
  assert first == same != other and len(first) == 64


@pytest.mark.usefixtures("eight_devices")
def test_each_source_has_its_own_metrics(tmp_path, capsys):
  solutions = _solutions(24)
  config = _config(fit=loop.FitConfig(steps=3, log_every=1, tensorboard=False))
  train_run.train(
    config,
    solutions,
    TOKENIZER,
    tmp_path / "run",
    eval_solutions=solutions,
    sources=_halves(24, (1.0, 3.0)),
    eval_sources=_halves(24),
  )
  said = capsys.readouterr().out
  assert "rows of an epoch: " in said and " of b" in said
  text = (tmp_path / "run" / "metrics.jsonl").read_text()
  records = [json.loads(line) for line in text.splitlines()]
  assert len(records) == 4
  for record in records:
    for key in ("loss_nats", "accuracy"):
      low, high = sorted(record[f"{source}/{key}"] for source in "ab")
      assert low <= record[key] <= high if key in record else low <= high
    assert not [k for k in record if k.endswith(("/total", "/steps_right"))]
  of_eval = records[-1]
  assert of_eval["kind"] == "eval"
  # Each is what the source's solutions give alone.
  half = flat_config.encode_rows(config, solutions[:12], TOKENIZER, 0)[0]
  model, params = (
    model_json.read_description(tmp_path / "run").model,
    parameters.load_params(tmp_path / "run"),
  )
  program = train_config.make_program(config, model)
  sums = [
    jax.tree.map(float, jax.jit(program.evaluate)(params, batch))
    for batch in batches_lib.each_once(half, 99)
  ]
  whole = {k: sum(x[k] for x in sums) for k in sums[0]}
  alone = program.finish(whole)
  for key, value in alone.items():
    np.testing.assert_allclose(of_eval[f"a/{key}"], value, rtol=1e-4)


def _all_right():
  return [
    dataclasses.replace(s, labels=(1.0,) * len(s.steps)) for s in _solutions(4)
  ]


def test_a_share_of_steps_that_the_data_lack_is_null_and_said_so(
  tmp_path, capsys
):
  _train(tmp_path, eval_solutions=_all_right())
  last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
  assert last["balanced_accuracy"] is last["errors_found"] is None
  assert 0 <= last["accuracy"] <= 1 and last["loss_nats"] > 0
  said = capsys.readouterr().out.splitlines()[-1]
  assert "balanced_accuracy undefined errors_found undefined" in said


def test_a_best_metric_that_the_labels_cant_define_is_refused_at_the_start(
  tmp_path,
):
  fit = loop.FitConfig(
    steps=2,
    eval_every=1,
    checkpoint_every=1,
    best_metric="balanced_accuracy",
    tensorboard=False,
  )
  with pytest.raises(errors_lib.InputError, match="isn't defined") as e:
    _train(tmp_path, _config(fit=fit), eval_solutions=_all_right())
  assert "\n" not in str(e.value)
  assert str(e.value).endswith("another metric: loss_nats, accuracy")
  assert not (tmp_path / "metrics.jsonl").exists()


def test_the_metric_of_a_source_can_choose_what_is_kept(tmp_path):
  def fit(name):
    return loop.FitConfig(
      steps=2,
      eval_every=1,
      checkpoint_every=1,
      best_metric=name,
      tensorboard=False,
    )

  def train(name, folder):
    train_run.train(
      _config(fit=fit(name)),
      _solutions(24),
      TOKENIZER,
      tmp_path / folder,
      eval_solutions=_solutions(24),
      sources=_halves(24),
      eval_sources=dataclasses.replace(
        _halves(24), numbers=np.zeros(24, np.int32)
      ),
    )

  train("a/loss_nats", "run")
  assert saves.saved_steps(tmp_path / "run")
  # Of source b there is nothing to evaluate on.
  for name in ("c/loss_nats", "b/loss_nats"):
    with pytest.raises(
      errors_lib.InputError, match=r"expected one of .*a/accuracy"
    ) as e:
      train(name, "no")
    assert "b/accuracy" not in str(e.value)


# --- Configs ----------------------------------------------------------------


def _fields():
  c = ml_collections.ConfigDict()
  c.program, c.seed = "prm", 3
  c.packing = dict(batch_size=8, sequence_length=64, share_prefixes=True)
  c.model = _config().model
  c.encoding = {"score_position": "separator", "max_tokens": 64}
  c.optimizer = {"peak_lr": 0.1, "clip_norm": 2.0}
  c.fit = {"steps": 7, "best_metric": "loss_nats"}
  labels = {"neutral": "bad", "after_first_error": "keep"}
  c.objective = dict(loss="bce", error_weight=2.0, labels=labels)
  c.microbatches, c.eval_rows, c.aggregate = 2, 16, "last"
  c.mesh, c.trainable, c.segmenter = (2, 2, 2), "head", "sentence"
  return c


def test_from_config_reads_every_field():
  found = train_run_config.from_config(_fields())
  assert found == train_config.TrainConfig(
    objective=prm.PRMConfig(
      "bce", 2.0, labels=encoding.LabelPolicy("bad", "keep")
    ),
    seed=3,
    model=_config().model,
    encoding=encoding.EncodingConfig("separator", 64, template=own_form.OWN),
    packing=batches_lib.PackingConfig(8, 64, True),
    optimizer=optimizer.OptimizerConfig(peak_lr=0.1, clip_norm=2.0),
    fit=loop.FitConfig(steps=7, best_metric="loss_nats"),
    microbatches=2,
    eval_rows=16,
    aggregate="last",
    mesh=(2, 2, 2),
    trainable="head",
    segmenter="sentence",
  )


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    (
      {
        "encoding": encoding.EncodingConfig(
          max_tokens=33, template=own_form.OWN
        )
      },
      "sequence_length=32",
    ),
    ({"microbatches": 3}, "microbatches=3"),
    ({"microbatches": 0}, "microbatches=0"),
    ({"rows": 0}, "batch_size=0"),
    ({"sequence_length": -1}, "sequence_length=-1"),
    ({"eval_rows": 0}, "eval_rows=0"),
    ({"aggregate": "median"}, "aggregate='median': expected one of product"),
    (
      {"program": "orm", "outcome_target": "step"},
      "outcome_target='step': expected one of",
    ),
    ({"error_weight": 0.0}, "error_weight=0.0"),
    ({"error_weight": float("nan")}, "error_weight=nan"),
    ({"loss": "bcd"}, "loss='bcd'"),
    ({"model": _config().model | {"d_ff": 0}}, r"model\.d_ff=0"),
    # What nothing would read.
    ({"error_weight": 2.0, "loss": "mse"}, "error_weight=2.0: only loss='bce'"),
    (
      {
        "program": "sft",
        "encoding": encoding.EncodingConfig(
          "separator", 32, template=templates.published("qwen_prm")
        ),
      },
      "encoding.template='qwen_prm'",
    ),
    (
      {"labels": encoding.LabelPolicy("three_way")},
      "both to three_way, or neither",
    ),
    ({"loss": "three_way"}, "both to three_way, or neither"),
    (
      {
        "model": _config().model | {"attention": "splash"},
        "share_prefixes": True,
      },
      r"attention='splash' with packing\.share_prefixes",
    ),
  ],
  ids=str,
)
def test_a_config_that_makes_no_sense_is_refused_in_one_line(changes, word):
  with pytest.raises(errors_lib.InputError, match=word) as e:
    _config(**changes)
  assert "\n" not in str(e.value)


@pytest.mark.usefixtures("eight_devices")
def test_rows_that_do_not_fit_the_devices_are_refused_before_anything(tmp_path):
  with pytest.raises(errors_lib.InputError, match="multiple of 8") as e:
    _train(tmp_path / "new", _config(rows=12))
  assert "\n" not in str(e.value)
  assert not (tmp_path / "new").exists()


def test_a_loss_of_three_classes_needs_three():
  with pytest.raises(errors_lib.InputError, match="step_classes"):
    _config(loss="three_way", labels=encoding.LabelPolicy("three_way"))
  model = _config().model | {"step_classes": 3}
  _config(
    loss="three_way", labels=encoding.LabelPolicy("three_way"), model=model
  )


def test_the_program_gets_the_options_of_its_config():
  model = train_run.model_config.ModelConfig(
    vocab_size=TOKENIZER.vocab_size, **_config().model
  )
  rows, _ = flat_config.encode_rows(_config(), _solutions(), TOKENIZER, 0)
  batch = jax.tree.map(jax.numpy.asarray, rows.batch_at(0))
  params = jax.tree.map(
    jax.numpy.zeros_like,
    jax.eval_shape(
      lambda: train_run.meta.unbox(
        transformer.init(jax.random.key(0), model, ("step",))
      )
    ),
  )
  sums = [
    jax.jit(made.evaluate)(params, batch)
    for made in (
      train_config.make_program(_config(error_weight=w), model)
      for w in (1.0, 4.0)
    )
  ]
  errors, rights = sums[0]["errors"], sums[0]["steps"] - sums[0]["errors"]
  np.testing.assert_allclose(sums[1]["weight"], rights + 4 * errors)


def test_a_reading_that_takes_more_ids_than_the_model_has_is_refused(tmp_path):
  tokenizer = tokenizer_lib.Bytes()
  with pytest.raises(
    errors_lib.InputError, match="258 token ids and this reading"
  ) as e:
    train_run.train(
      _config(), _solutions(), tokenizer, tmp_path / "run", vocab_size=258
    )
  assert "\n" not in str(e.value)
  assert not (tmp_path / "run").exists()
