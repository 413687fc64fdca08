"""Objectives by config: what an update must not depend on, what is refused."""

import dataclasses
import functools
import itertools
import json

import flat_config
from flax.core import meta
import jax
from jax import numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.records import jsonl
from prm_jax.rows import packing
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.scoring import saved as saved_lib
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import implicit_prm
from prm_jax.training import loop
from prm_jax.training import losses
from prm_jax.training import optimizer
from prm_jax.training import prm
from prm_jax.training import program as program_lib
from prm_jax.training import programs
from prm_jax.training import train_config
from prm_jax.training import train_run
from prm_jax.training import train_run_config
from prm_jax.training import warm_start

pytestmark = pytest.mark.usefixtures("one_device")

# That of all eight devices.
MAKE_MESH = sharding.make_mesh

BYTES = tokenizer_lib.Bytes()
MODEL = model_config.ModelConfig(
  vocab_size=BYTES.vocab_size,
  d_model=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=2,
  head_dim=4,
  d_ff=8,
)
ROWS, ROW = 8, 64
OBJECTIVES = {
  "pqm": dict(program="prm", loss="pqm"),
  "alternatives": dict(program="prm", loss="bradley_terry", margin=0.5),
  "solutions": dict(program="prm", loss="bradley_terry", pairs="solutions"),
  "orm": dict(program="orm", loss="bradley_terry", outcome_target="last_step"),
  "implicit_ce": dict(program="implicit", loss="implicit_ce", beta=0.5),
  "implicit_dpo": dict(program="implicit", loss="implicit_dpo"),
}


def _config(**changes):
  shape = dataclasses.asdict(MODEL)
  fields = dict(
    program="prm",
    seed=0,
    model={
      k: shape[k]
      for k in ("d_model", "num_layers", "num_heads", "num_kv_heads")
    }
    | dict(head_dim=4, d_ff=8),
    encoding=encoding.EncodingConfig(max_tokens=16, template=own_form.OWN),
    labels=encoding.LabelPolicy(after_first_error="keep"),
    rows=ROWS,
    sequence_length=ROW,
    optimizer=optimizer.OptimizerConfig(peak_lr=1e-2, warmup_steps=1),
    fit=loop.FitConfig(steps=2, checkpoint_every=1, tensorboard=False),
  )
  return flat_config.run(**fields | changes)


@functools.cache
def _solutions(num=24):
  """Returns short solutions of six problems, with steps in common."""
  random = np.random.default_rng(1)
  made = []
  for i in range(num):
    steps = tuple(
      "ab"[random.integers(2)] for _ in range(1 + random.integers(3))
    )
    labels = tuple(float(random.random() < 0.6) for _ in steps)
    made.append(
      schema.Solution(
        id=str(i),
        problem=f"p{i % 6}",
        steps=steps,
        labels=labels,
        outcome=bool(random.random() < 0.5),
      )
    )
  return made


@functools.cache
def _segments(name):
  """Returns companies of rivals, none of them cut."""
  config = _config(**OBJECTIVES[name])
  rows, counts = flat_config.encode_rows(config, _solutions(), BYTES, 0)
  assert not counts["pairs lost: their group is longer than a row"]
  return rows.segments[:ROWS]


def _fill(rows):
  filled = packing.fill([*rows, *([[]] * (ROWS - len(rows)))], 2 * ROW)
  return jax.tree.map(jnp.asarray, filled)


def _descend(patch):
  """Plain descent: the update is the gradient, not just its sign."""
  patch.setattr(optimizer, "make", lambda *_: optax.sgd(0.5))


@functools.cache
def _step(name):
  config = _config(**OBJECTIVES[name], microbatches=2)
  with pytest.MonkeyPatch.context() as patch:
    _descend(patch)
    made = train_config.make_program(config, MODEL)
  shapes = jax.eval_shape(lambda: meta.unbox(made.init(jax.random.key(0))))
  random = np.random.default_rng(0)
  state = jax.tree.map(
    lambda x: jnp.asarray(0.3 * random.normal(size=x.shape), x.dtype), shapes
  )
  state = dataclasses.replace(state, step=jnp.zeros((), jnp.int32))
  return jax.jit(made.step), state


def _assert_same_update(name, found, expected):
  _, old = _step(name)
  moved = 0.0
  for a, b, c in zip(
    *(jax.tree.leaves(s.params) for s in (found[0], expected[0], old)),
    strict=True,
  ):
    a, b, c = map(np.asarray, (a, b, c))
    np.testing.assert_allclose(a, b, atol=2e-6)
    moved = max(moved, float(np.abs(b - c).max()))
  assert moved > 1e-3, "nothing was learned: the test would show nothing"
  for key, value in expected[1].items():
    np.testing.assert_allclose(found[1][key], value, rtol=1e-4, err_msg=key)


# --- What an update must not depend on --------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_update_is_the_same_however_it_is_packed_and_accumulated(name):
  segments = _segments(name)
  step, state = _step(name)
  # Every second row is a microbatch's: each has half of these, and the first
  # has all of those below.
  alone = _fill([[x] for x in segments])
  expected = step(state, alone)
  assert float(expected[1]["weight"]) > 3
  pairs = [list(segments[i : i + 2]) for i in range(0, len(segments), 2)]
  together = _fill([row for pair in pairs[::-1] for row in (pair, [])])
  _assert_same_update(name, step(state, together), expected)


def test_eight_devices_train_as_one_does(tmp_path, monkeypatch):
  _descend(monkeypatch)
  # It has both pairs and a reference.
  config = _config(**OBJECTIVES["implicit_dpo"])

  def train(folder):
    return train_run.train(
      config, _solutions(), BYTES, tmp_path / folder, init_from=_base()
    )[1]

  on_one = train("one")
  monkeypatch.setattr(sharding, "make_mesh", MAKE_MESH)
  on_eight = train("eight")
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), on_eight, on_one
  )


# --- Soft labels ------------------------------------------------------------


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_a_label_of_0_9_reaches_the_loss_as_0_9(share_prefixes, tmp_path):
  """TRL casts it to an integer, which makes it 0."""
  path = tmp_path / "soft.jsonl"
  record = dict(id="1", problem="p", steps=["a", "b"], labels=[0.9, 0.3])
  path.write_text(json.dumps(record) + "\n")
  config = _config(loss="mse", share_prefixes=share_prefixes)
  rows, _ = flat_config.encode_rows(
    config, jsonl.read_solutions(path), BYTES, 0
  )
  batch = rows.batch_at(0)
  held = batch.labels[batch.weights > 0]
  np.testing.assert_array_equal(
    held.reshape(-1, 2), np.float32([[0.9, 0.3]] * ROWS)
  )
  batch = jax.tree.map(jnp.asarray, batch)
  logits = jnp.full(batch.tokens.shape, 0.0)
  slope = jax.grad(
    lambda x: losses.step_bce(x, batch.labels, batch.weights)[0]
  )(logits)
  # d/dx = p - label
  np.testing.assert_allclose(
    slope[batch.weights > 0].reshape(-1, 2), [[-0.4, 0.2]] * ROWS, atol=1e-6
  )


# --- The implicit PRM -------------------------------------------------------


@functools.cache
def _base():
  """Returns parameters of a language model, none of them 0."""
  random = np.random.default_rng(2)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), MODEL, ("lm",)))
  )
  return jax.tree.map(
    lambda x: np.asarray(0.3 * random.normal(size=x.shape), x.dtype), shapes
  )


@pytest.fixture(scope="module")
def implicit_run(tmp_path_factory):
  """Returns a trained implicit PRM's folder and parameters."""
  folder = tmp_path_factory.mktemp("implicit") / "run"
  config = _config(**OBJECTIVES["implicit_ce"])
  _, params = train_run.train(
    config, _solutions(), BYTES, folder, init_from=_base()
  )
  return folder, params


def test_the_reference_stays_what_training_began_with(implicit_run):
  folder, params = implicit_run
  reference = params["reference"]
  jax.tree.map(np.testing.assert_array_equal, reference, _base())
  policy = implicit_prm.begin_from(params)
  moved = jax.tree.map(
    lambda a, b: float(np.abs(a - b).max()), policy["reference"], _base()
  )
  assert max(jax.tree.leaves(moved)) > 1e-3
  # Two saved arrays a trained parameter (Adam's), none for the reference.
  made = train_config.make_program(_config(**OBJECTIVES["implicit_ce"]), MODEL)
  state = jax.eval_shape(lambda: meta.unbox(made.init(jax.random.key(0))))
  names = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
  ]
  assert any("embedding" in x for x in names)
  assert not any("reference" in x for x in names)
  saved = parameters.load_params(folder)
  jax.tree.map(np.testing.assert_array_equal, saved, params)


def test_it_begins_at_even_odds_for_every_solution_and_pair(implicit_run):
  lines = (implicit_run[0] / "metrics.jsonl").read_text().splitlines()
  assert lines
  for name in ("implicit_ce", "implicit_dpo"):
    made = train_config.make_program(_config(**OBJECTIVES[name]), MODEL)
    batch = _fill([[x] for x in _segments(name)])
    sums = jax.jit(made.evaluate)(implicit_prm.begin_from(_base()), batch)
    found = made.finish({k: float(v) for k, v in sums.items()})
    np.testing.assert_allclose(found["loss_nats"], np.log(2), rtol=1e-5)


def test_it_goes_on_with_the_same_bits(implicit_run, tmp_path):
  config = _config(**OBJECTIVES["implicit_ce"])
  short = dataclasses.replace(
    config, fit=dataclasses.replace(config.fit, steps=1)
  )
  # The schedule depends on the steps: both run the same one.
  with pytest.MonkeyPatch.context() as patch:
    make = optimizer.make
    patch.setattr(optimizer, "make", lambda c, _: make(c, 2))
    train_run.train(short, _solutions(), BYTES, tmp_path, init_from=_base())
  _, params = train_run.train(
    config, _solutions(), BYTES, tmp_path, init_from=_base()
  )
  jax.tree.map(np.testing.assert_array_equal, params, implicit_run[1])


@jax.jit
def _log_softmax(params, batch):
  logits = transformer.apply(MODEL, params, batch, method="lm_logits")
  return jax.nn.log_softmax(logits)


def _log_ratios_by_hand(params, tokens):
  """Returns log pi - log pi_ref of a solution's tokens, all at once."""
  batch = packing.fill([[packing.chain(_example(tokens))]], len(tokens))
  batch = jax.tree.map(jnp.asarray, batch)
  model = {k: v for k, v in params.items() if k != "reference"}
  log_p = [
    np.asarray(_log_softmax(x, batch))[0, np.arange(len(tokens)), tokens]
    for x in (model, params["reference"])
  ]
  return log_p[0] - log_p[1]


def _example(tokens):
  zeros = np.zeros(len(tokens), np.float32)
  return encoding.Example(
    np.asarray(tokens, np.int32), zeros, zeros, zeros.astype(bool)
  )


def test_scores_are_the_summed_log_ratio_and_its_increment(implicit_run):
  folder, params = implicit_run
  loaded = saved_lib.load(folder)
  assert loaded.scoring == dict(beta=0.5, step_score="cumulative")
  by_step = dataclasses.replace(
    loaded, scoring=dict(beta=0.5, step_score="increment")
  )
  solutions = [s for s in _solutions() if len(s.steps) == 3][:3]
  solutions.append(
    schema.Solution(id="x", problem="p1", steps=("ab", "", "b\n"))
  )
  found = (
    [x.scores for x in model.score(solutions)] for model in (loaded, by_step)
  )
  spread = []
  for s, cumulative, increments in zip(solutions, *found, strict=True):
    encoded = encoding.encode(s.problem, s.steps, BYTES, loaded.encoding)
    ratios = _log_ratios_by_hand(params, encoded.tokens)
    ends = [encoded.prompt_tokens - 1, *encoded.step_end]
    q = [0.5 * ratios[encoded.prompt_tokens : end + 1].sum() for end in ends]
    spread += q[1:]
    np.testing.assert_allclose(
      cumulative, [1 / (1 + np.exp(-x)) for x in q[1:]], atol=1e-5
    )
    np.testing.assert_allclose(
      increments,
      [1 / (1 + np.exp(a - b)) for a, b in itertools.pairwise(q)],
      atol=1e-5,
    )
  assert np.ptp(spread) > 1e-2


def test_a_deeper_model_begins_as_the_reference_it_grew_from():
  config = _config(**OBJECTIVES["implicit_ce"])
  deeper = dataclasses.replace(MODEL, num_layers=2)
  made = train_config.make_program(config, deeper)
  init = meta.unbox(jax.jit(made.init)(jax.random.key(0))).params
  params = warm_start.warm_start(init, implicit_prm.begin_from(_base()))
  batch = _fill([[x] for x in _segments("implicit_ce")])

  @functools.partial(jax.jit, static_argnums=0)
  def log_probs(model, params):
    return transformer.token_log_probs(model, params, batch)

  expected = log_probs(MODEL, _base())
  assert np.ptp(expected) > 1
  for grown in (params, params["reference"]):
    np.testing.assert_allclose(log_probs(deeper, grown), expected, atol=1e-5)


def test_it_needs_a_model_to_begin_with(tmp_path):
  config = _config(**OBJECTIVES["implicit_ce"])
  with pytest.raises(errors.InputError, match="init_from") as e:
    train_run.train(config, _solutions(), BYTES, tmp_path / "new")
  assert "\n" not in str(e.value) and not (tmp_path / "new").exists()


def test_its_reference_is_what_was_trained_where_it_starts_from_another(
  implicit_run,
):
  _, params = implicit_run
  begun = implicit_prm.begin_from(params)
  own = {k: v for k, v in params.items() if k != "reference"}
  assert begun.keys() == params.keys()
  jax.tree.map(np.testing.assert_array_equal, begun["reference"], own)
  jax.tree.map(np.testing.assert_array_equal, begun, own | {"reference": own})


def test_other_beta_or_step_score_is_another_run(implicit_run):
  for changes in (dict(beta=0.1), dict(step_score="increment")):
    config = _config(**OBJECTIVES["implicit_ce"] | changes)
    with pytest.raises(errors.InputError, match="another scoring"):
      train_run.train(
        config, _solutions(), BYTES, implicit_run[0], init_from=_base()
      )


# --- Folders ----------------------------------------------------------------


def test_a_folder_without_an_implicit_prm_says_nothing_new(tmp_path):
  described = model_json.Description("prm", MODEL, {}, {"kind": "bytes"})
  model_json.write_description(tmp_path, described)
  record = json.loads((tmp_path / model_json.DESCRIPTION).read_text())
  assert "scoring" not in record
  assert model_json.read_description(tmp_path) == described


# --- Configs ----------------------------------------------------------------


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"program": "orm", "loss": "pqm"}, "loss='pqm': expected one of bce"),
    (
      {"program": "implicit", "loss": "bce"},
      "loss='bce': expected one of implicit_ce",
    ),
    ({"loss": "implicit_ce"}, "expected one of bce, mse"),
    ({"margin": 1.0}, "margin=1.0: only loss=pqm and bradley_terry"),
    ({"loss": "mse", "error_weight": 2.0}, "only loss='bce' weights"),
    ({"loss": "pqm", "pairs": "solutions"}, "only loss=bradley_terry reads"),
    ({"loss": "pqm", "margin": -1.0}, "margin=-1.0: expected 0 or more"),
    ({"loss": "pqm", "margin": float("nan")}, "margin=nan"),
    (
      {"loss": "pqm", "share_prefixes": True},
      "share_prefixes=True: the objective",
    ),
    ({"loss": "bradley_terry", "pairs": "all"}, "pairs='all': expected"),
    (OBJECTIVES["orm"] | {"outcome_target": "every_token"}, "'last_step'"),
    (
      OBJECTIVES["implicit_ce"] | {"share_prefixes": True},
      "share_prefixes=True",
    ),
    (OBJECTIVES["implicit_ce"] | {"beta": 0.0}, "beta=0.0: expected a number"),
    (OBJECTIVES["implicit_ce"] | {"step_score": "sum"}, "step_score='sum'"),
  ],
  ids=str,
)
def test_what_an_objective_has_no_use_for_is_refused_in_one_line(changes, word):
  with pytest.raises(errors.InputError, match=word) as e:
    _config(**changes)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  ("program", "field"),
  [
    *(("prm", "beta"), ("sft", "loss"), ("sft", "margin"), ("sft", "labels")),
    *(("orm", "pairs"), ("orm", "labels"), ("orm", "error_weight")),
    *(("implicit", "margin"), ("implicit", "labels")),
  ],
)
def test_a_field_that_an_objective_has_not_is_refused_by_its_name(
  program, field
):
  config = ml_collections.ConfigDict(dict(program=program, objective={}))
  config.objective[field] = 1.0
  with pytest.raises(
    errors.InputError, match=f"no such field: objective.{field}"
  ):
    config_files.check(config, train_run_config.run_form, "a.py")


@pytest.mark.parametrize(
  ("pairs", "word"), [("alternatives", "rated"), ("solutions", "both a right")]
)
def test_data_without_rivals_are_refused_in_one_line(pairs, word):
  config = _config(loss="bradley_terry", pairs=pairs)
  right = [
    schema.Solution(s, "p", (s,), labels=(1.0,), outcome=True) for s in "ab"
  ]
  with pytest.raises(errors.InputError, match=f"of 2 solutions.*{word}") as e:
    flat_config.encode_rows(config, right, BYTES, 0)
  assert "\n" not in str(e.value)


def test_ratings_may_be_three_ranks_of_alternatives():
  labels = encoding.LabelPolicy("three_way")
  config = _config(loss="bradley_terry", labels=labels)
  solutions = [
    schema.Solution(str(r), "p", (f"s{r}",), ratings=(r,)) for r in (-1, 0, 1)
  ]
  _, counts = flat_config.encode_rows(config, solutions, BYTES, 0)
  assert counts["pairs"] == 3
  with pytest.raises(errors.InputError, match="both to three_way, or neither"):
    _config(loss="pqm", labels=labels)


def _three_way(**options):
  labels = encoding.LabelPolicy("three_way", **options)
  return prm.encoder(prm.PRMConfig("three_way", labels=labels))


@pytest.mark.parametrize("label", [0.2, 0.3, 0.75])
def test_three_way_refuses_a_soft_label_and_names_it(label):
  steps = ("a", "b", "c", "d", "e")
  classes = schema.Solution("fine", "p", steps, labels=(1, 0.5, None, 1, 0))
  soft = schema.Solution("soft", "p", steps[:2], labels=(1, label))
  how = dict(
    tokenizer=BYTES,
    encoding_config=encoding.EncodingConfig(template=own_form.OWN),
  )
  _, counts = _three_way()([classes], **how)
  assert counts["targets"] == 4
  with pytest.raises(errors.InputError) as e:
    _three_way()([classes, soft], **how)
  assert f"solution 'soft': the label of step 1 (from 0) is {label:g}" in str(
    e.value
  )
  assert "\n" not in str(e.value) and "'bce'" in str(e.value)
  (hard,), _ = _three_way(harden_above=0.25)([soft], **how)
  targets = hard.labels[hard.weights > 0].tolist()
  assert targets == [1, float(label > 0.25)]


CONFIG = """
import ml_collections
def get_config():
  c = ml_collections.ConfigDict(dict(program="prm", seed=0))
  c.packing = dict(batch_size=8, sequence_length=16)
  c.model = dict(d_model=8, num_layers=1, num_heads=1, num_kv_heads=1,
                 head_dim=8, d_ff=8)
  c.encoding, c.objective = dict(max_tokens=16), dict(loss="pqm")
  c.microbatches, c.eval_rows = 1, 8
  c.aggregate, c.mesh, c.init_from = "min", (-1, 1, 1), ""
  c.optimizer, c.fit = dict(peak_lr=1e-2), dict(steps=1)
  c.data, c.tokenizer = dict(train=("jsonl:x.jsonl",)), dict()
  return c
"""


def test_fields_that_a_config_leaves_out_are_those_of_before(tmp_path):
  path = tmp_path / "old.py"
  path.write_text(CONFIG)
  form = train_run_config.form
  config = config_files.load(path, (), form)
  objective = train_run_config.from_config(config).objective
  assert objective == prm.PRMConfig(loss="pqm")
  # Its workdir too: what it saved then isn't another config now.
  new = config_files.resolved(config)
  unset = ("margin", "pairs")
  objective = {k: v for k, v in new["objective"].items() if k not in unset}
  old = new | dict(objective=objective)
  workdir = tmp_path / "run"
  files.write_json(workdir / "config.json", old)
  environment.check_workdir(workdir, new)
  fields = ("objective.margin=2",)
  other = config_files.resolved(config_files.load(path, fields, form))
  assert other["objective"]["margin"] == 2
  with pytest.raises(
    errors.InputError, match=r"other values of objective\.marg"
  ):
    environment.check_workdir(workdir, other)


def _made(**objective):
  return programs.make(prm.PRMConfig(**objective), MODEL, optax.identity())


def test_published_values_are_the_defaults():
  assert implicit_prm.ImplicitConfig().scoring == dict(
    beta=0.05, step_score="cumulative"
  )
  batch = _fill([[x] for x in _segments("pqm")])
  params = _step("pqm")[1].params
  sums = [
    jax.jit(_made(loss="pqm", margin=m).evaluate)(params, batch)
    for m in (None, 4.0, 0.0)
  ]
  assert float(sums[0]["total"]) == float(sums[1]["total"])
  assert float(sums[0]["total"]) > float(sums[2]["total"]) + 1


def test_rows_without_pairs_are_refused():
  made = _made(loss="bradley_terry")
  state = jax.eval_shape(
    lambda: program_lib.TrainState(
      0,
      meta.unbox(transformer.init(jax.random.key(0), MODEL, ("step",))),
      None,
      None,
    )
  )
  batch = _fill([[x] for x in _segments("pqm")])
  with pytest.raises(errors.InputError, match=r"preference_pairs\.group"):
    jax.eval_shape(made.evaluate, state.params, batch)


# --- No array over the vocabulary -------------------------------------------


def test_token_log_probs_are_the_language_models_in_blocks_or_not():
  params = jax.tree.map(jnp.asarray, _base())
  batch = _fill([[x] for x in _segments("implicit_ce")])
  tokens = batch.tokens.shape[1]

  def by_hand(params):
    logits = transformer.apply(MODEL, params, batch, method="lm_logits")
    found = jnp.take_along_axis(
      jax.nn.log_softmax(logits), batch.tokens[..., None], axis=-1
    )[..., 0]
    return jnp.where(batch.parent >= 0, found, 0)

  def in_blocks(params):
    return transformer.token_log_probs(MODEL, params, batch, block=24)

  mixed = jnp.sin(jnp.arange(batch.tokens.size)).reshape(batch.tokens.shape)
  expected, found = (
    jax.jit(jax.value_and_grad(lambda p, f=f: (f(p) * mixed).sum()))(params)
    for f in (by_hand, in_blocks)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    found,
    expected,
  )
  text = str(jax.make_jaxpr(jax.grad(lambda p: in_blocks(p).sum()))(params))
  assert f"{ROWS},24,{MODEL.vocab_size}]" in text
  assert f"{ROWS},{tokens},{MODEL.vocab_size}]" not in text
