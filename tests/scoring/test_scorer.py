"""Scores: one per step whatever the text, and the same in any company."""

import dataclasses
import functools

from flax.core import meta
import hostile_text
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import recipes

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import model_json
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.rows import packing
from prm_jax.scoring import saved
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files
from prm_jax.training import program
from prm_jax.training import skip_updates

BYTES = tokenizer_lib.Bytes()
MODEL = model_config.ModelConfig(
  vocab_size=BYTES.vocab_size,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
HEADS = {"prm": "step", "orm": "outcome"}
SCORES = {"prm": kinds.KINDS["prm"].scores, "orm": kinds.KINDS["orm"].scores}
HOSTILE = ("", *hostile_text.NAMES)


@functools.cache
def _params(program_name="prm", model=MODEL):
  random = np.random.default_rng(0)
  heads = (HEADS[program_name],)
  return jax.tree.map(
    lambda x: jnp.asarray(0.5 * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), model, heads))
    ),
  )


def _scorer(
  name="prm", *, encoding_config=None, model=MODEL, tokenizer=BYTES, **more
):
  encoding_config = encoding_config or encoding.EncodingConfig(
    max_tokens=64, template=own_form.OWN
  )
  return scorer.Scorer(
    name, model, _params(name, model), tokenizer, encoding_config, **more
  )


def _solution(problem, *steps):
  return schema.Solution(
    id="x",
    problem=problem,
    steps=steps,
    labels=(1.0,) * len(steps),
    outcome=True,
  )


def _solutions():
  """Returns solutions of 8 to 60 tokens."""
  return [
    _solution("1+1", "2"),
    _solution("a longer problem", "first", "second", "third"),
    _solution("1+1", "2", "", "3"),
    _solution("x" * 30, "y" * 14, "z" * 10),
    _solution("5", "five", "six"),
  ]


def _assert_same(found, expected):
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(_row(a), _row(b), atol=1e-5)


def _row(scores):
  return scores.scores if isinstance(scores, schema.StepScores) else scores


def _all(rows):
  return np.concatenate([_row(x) for x in rows])


@pytest.fixture(scope="module")
def scores():
  return _scorer().score(_solutions())


# --- In any company ---------------------------------------------------------


def test_batch_mates_order_and_batch_size_change_no_score(scores):
  solutions = _solutions()
  assert np.ptp(_all(scores)) > 0.05
  _assert_same(_scorer().score(solutions[::-1])[::-1], scores)
  for solution, expected in zip(solutions, scores, strict=True):
    _assert_same(_scorer().score([solution]), [expected])
  _assert_same(_scorer(batch_tokens=1).score(solutions), scores)
  repeated = _scorer(batch_tokens=128).score(solutions * 3)
  _assert_same(repeated, scores * 3)


def test_the_bucket_changes_no_score(scores, monkeypatch):
  monkeypatch.setattr(packing, "padded_length", lambda length: 96)
  _assert_same(_scorer().score(_solutions()), scores)


def test_later_steps_change_no_earlier_score(scores):
  for solution, expected in zip(_solutions(), scores, strict=True):
    for k in range(len(solution.steps)):
      part = dataclasses.replace(
        solution, steps=solution.steps[:k], labels=None
      )
      _assert_same(_scorer().score([part]), [expected.scores[:k]])


def test_rows_of_one_shape_for_sets_of_any_size_change_no_score(scores):
  shapes = set()
  forward = scorer._forward

  def watched(params, batch, **how):
    shapes.add(batch.tokens.shape)
    return forward(params, batch, **how)

  fixed = _scorer(sequence_length=32, batch_tokens=128)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(scorer, "_forward", watched)
    solutions = _solutions()
    found = [fixed.score([s])[0] for s in solutions]
    again = fixed.score(solutions)
  assert shapes == {(4, 32), (2, 64)}
  for one, other, expected in zip(found, again, scores, strict=True):
    _assert_same([one, other], [expected, expected])


def _tree():
  """Returns solutions that share prefixes, repeat and contain each other."""
  steps = ["one", "two", "three"]
  found = [
    _solution(f"problem {p}", *steps[:n], f"end {k}")
    for p in range(3)
    for n in range(4)
    for k in range(3)
  ]
  found += [_solution("problem 1", *steps), _solution("problem 1"), found[4]]
  return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


@pytest.mark.parametrize("sequence_length", [0, 64])
@pytest.mark.parametrize("name", HEADS)
def test_packed_rows_and_trees_score_as_padded_ones(name, sequence_length):
  solutions = _solutions() + _tree()
  expected = _scorer(name).score(solutions)
  for layout in scorer.LAYOUTS:
    how = dict(layout=layout, sequence_length=sequence_length, batch_tokens=128)
    seen = []
    found = _scorer(name, **how).score(solutions, progress=seen.append)
    _assert_same(found, expected)
    assert seen == sorted(set(seen)) and seen[-1] == len(solutions)
    assert _scorer(name, **how).score([]) == []


@functools.cache
def _deep():
  """Returns a scorer of eight layers, with log-odds of standard deviation 2."""
  model = dataclasses.replace(MODEL, d_model=64, num_layers=8, d_ff=128)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), model, ("step",)))
  )
  random = np.random.default_rng(0)
  # The sizes of a trained model's: a matrix keeps the scale of what it gets.
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: jnp.asarray(
      np.ones(x.shape)
      if path[-1].key == "scale"
      else random.normal(size=x.shape) * x.shape[-2] ** -0.5,
      x.dtype,
    ),
    dict(shapes, step_head=dict(shapes["step_head"], bias=None)),
  )
  params["step_head"]["bias"] = jnp.zeros(1)
  made = dataclasses.replace(_scorer(), config=model, params=params)
  spread = np.std(_log_odds(made, **ALONE))
  params["step_head"]["kernel"] *= 2 / spread
  return made


def _log_odds(made, **how):
  """Returns the log-odds of all steps of solutions that share prefixes."""
  rows = dataclasses.replace(made, **how).score(_solutions() + _tree())
  return np.concatenate([np.asarray(row.logits) for row in rows])


# Below what docs/python.md gives for published weights and log-odds of the same
# standard deviation. A kernel that sums in bfloat16 moves these by 0.21.
ROUNDING = dict(float32=3e-5, bfloat16=0.2)
ALONE = dict(sequence_length=64, batch_tokens=1)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_layout_moves_log_odds_by_the_documented_rounding_at_most(dtype):
  model = _deep()
  exact = _log_odds(model, **ALONE)
  config = dataclasses.replace(model.config, compute_dtype=dtype)
  typed = dataclasses.replace(model, config=config)
  alone = _log_odds(typed, **ALONE)
  how = dict(sequence_length=512, batch_tokens=1024)
  for layout in scorer.LAYOUTS:
    found = _log_odds(typed, layout=layout, **how)
    assert abs(found - alone).max() < ROUNDING[dtype]
    assert abs(found - exact).max() < ROUNDING[dtype]


def test_a_tree_computes_a_shared_prefix_once():
  slots = dict.fromkeys(scorer.LAYOUTS, 0)
  tokens = dict.fromkeys(scorer.LAYOUTS, 0)
  forward = scorer._forward
  for layout in scorer.LAYOUTS:

    def watched(params, batch, layout=layout, **how):
      slots[layout] += batch.tokens.size
      tokens[layout] += int((batch.tokens > 0).sum())
      return forward(params, batch, **how)

    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(scorer, "_forward", watched)
      _scorer(layout=layout, batch_tokens=1).score(_tree())
  assert tokens["packed"] == tokens["padded"]
  assert slots["packed"] < slots["padded"]
  assert slots["tree"] < slots["packed"] / 2
  distinct = set()
  for s in _tree():
    found = encoding.encode(
      s.problem, s.steps, BYTES, encoding.EncodingConfig(template=own_form.OWN)
    )
    ids = tuple(found.tokens.tolist())
    distinct |= {(s.problem, ids[:n]) for n in range(1, len(ids) + 1)}
  assert tokens["tree"] == len(distinct)


@pytest.mark.parametrize("step_score", ["cumulative", "increment"])
def test_an_implicit_prm_scores_packed_rows_as_padded_ones(step_score):
  random = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), MODEL, ("lm",)))
  )
  params, reference = (
    jax.tree.map(lambda x: 0.5 * random.normal(size=x.shape), shapes)
    for _ in range(2)
  )
  params = jax.tree.map(jnp.float32, {**params, kinds.REFERENCE: reference})
  scoring = dict(beta=0.1, step_score=step_score)
  padded, packed = (
    scorer.Scorer(
      *(
        "implicit",
        MODEL,
        params,
        BYTES,
        encoding.EncodingConfig(template=own_form.OWN),
      ),
      scoring=scoring,
      layout=layout,
    ).score(_solutions())
    for layout in ("padded", "packed")
  )
  assert np.ptp(_all(padded)) > 0.05
  _assert_same(packed, padded)


def test_an_implicit_prm_has_no_trees_and_layouts_have_names():
  with pytest.raises(errors.InputError, match="scores are sums over whole"):
    scorer.Scorer(
      "implicit",
      MODEL,
      {},
      BYTES,
      encoding.EncodingConfig(template=own_form.OWN),
      layout="tree",
    )
  with pytest.raises(errors.InputError, match="padded, packed, tree"):
    _scorer(layout="rows")
  splash = dataclasses.replace(MODEL, attention="splash")
  with pytest.raises(errors.InputError, match="splash' with layout='tree'"):
    _scorer(model=splash, layout="tree")


def test_buckets_are_few_and_at_most_a_quarter_too_long():
  found = [packing.padded_length(n) for n in range(1, 5_000)]
  for n, length in enumerate(found, 1):
    assert n <= length < max(n + 16, 1.25 * n)
  assert len(set(found)) < 40


# --- The same as in training ------------------------------------------------


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
@pytest.mark.parametrize("name", HEADS)
def test_scores_are_the_forward_of_the_packed_training_batch(name, place):
  encoding_config = encoding.EncodingConfig(
    score_position=place, max_tokens=64, template=own_form.OWN
  )
  solutions = _solutions()
  if name == "prm":
    examples, _ = encoding.prm_examples(
      solutions, BYTES, encoding_config, encoding.LabelPolicy()
    )
  else:
    examples, _ = encoding.orm_examples(
      solutions, BYTES, encoding_config, "every_token"
    )
  chains = [packing.chain(x) for x in examples]
  batch = packing.fill([chains[:3], chains[3:]], 128)
  found, log_odds = jax.jit(functools.partial(SCORES[name], MODEL))(
    _params(name), jax.tree.map(jnp.asarray, batch)
  )
  np.testing.assert_allclose(jax.nn.sigmoid(log_odds), found, atol=1e-6)
  in_training = [
    np.asarray(found[row])[np.asarray(batch.step_end[row])] for row in range(2)
  ]
  expected = _scorer(name, encoding_config=encoding_config).score(solutions)
  np.testing.assert_allclose(
    np.concatenate(in_training), _all(expected), atol=1e-5
  )


def test_three_classes_score_neutral_or_good():
  model = dataclasses.replace(MODEL, step_classes=3)
  encoding_config = encoding.EncodingConfig(
    max_tokens=64, template=own_form.OWN
  )
  solution = _solutions()[1]
  encoded = encoding.encode(
    solution.problem, solution.steps, BYTES, encoding_config
  )
  example, _ = encoding.prm_examples(
    [solution], BYTES, encoding_config, encoding.LabelPolicy()
  )
  batch = packing.fill([[packing.chain(example[0])]], 64)
  apply = functools.partial(transformer.apply, model, method="step_logits")
  logits = jax.jit(apply)(_params("prm", model), batch)
  p = np.asarray(jax.nn.softmax(logits[0, encoded.step_end]))
  (found,) = _scorer(model=model).score([solution])
  np.testing.assert_allclose(found.scores, p[:, 1] + p[:, 2], atol=1e-5)
  odds = np.log((p[:, 1] + p[:, 2]) / p[:, 0])
  np.testing.assert_allclose(found.logits, odds, atol=1e-4)


def test_a_longer_solution_than_any_in_training_is_scored_whole():
  long = _solution("why", *(f"step {k}" * 3 for k in range(12)))
  found = _scorer(
    encoding_config=encoding.EncodingConfig(
      max_tokens=16, template=own_form.OWN
    )
  ).score([long])
  expected = _scorer(
    encoding_config=encoding.EncodingConfig(
      max_tokens=4096, template=own_form.OWN
    )
  ).score([long])
  assert len(found[0]) == 12
  _assert_same(found, expected)


# --- Hostile text -----------------------------------------------------------


@functools.cache
def _segments():
  return tokenizer_files.train_sentencepiece(
    ["one and one is two", "<sep> </s> is text"] * 5, 280
  )


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_every_step_gets_one_score_whatever_the_text(kind, place):
  tokenizer = BYTES if kind == "bytes" else _segments()
  model = dataclasses.replace(MODEL, vocab_size=tokenizer.vocab_size)
  solutions = [_solution(text, *HOSTILE) for text in HOSTILE]
  solutions += [_solution(text, text, text) for text in HOSTILE]
  found = _scorer(
    model=model,
    tokenizer=tokenizer,
    encoding_config=encoding.EncodingConfig(
      score_position=place, template=own_form.OWN
    ),
  ).score(solutions)
  for solution, row in zip(solutions, found, strict=True):
    assert len(row) == len(solution.steps)
    assert all(isinstance(x, float) and 0 <= x <= 1 for x in row.scores)


def test_nothing_to_score_is_no_score():
  assert _scorer().score([]) == []
  assert _scorer().score([_solution("problem")])[0].scores == ()


def test_progress_counts_every_solution():
  seen = []
  _scorer(batch_tokens=64).score(_solutions() * 2, progress=seen.append)
  assert seen == sorted(set(seen)) and seen[-1] == 10


# --- From a folder ----------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_a_folder_gives_the_scorer_that_was_trained(tmp_path, name):
  encoding_config = encoding.EncodingConfig(
    score_position="separator", max_tokens=64, template=own_form.OWN
  )
  model_json.write_description(
    tmp_path,
    model_json.Description(
      program=name,
      model=MODEL,
      encoding=encoding_records.record_of(encoding_config),
      tokenizer=BYTES.save(tmp_path),
    ),
  )
  params = _params(name)
  checkpoints = manager.Checkpoints(tmp_path)
  zeros = jax.tree.map(jnp.zeros_like, params)
  for step, x in ((1, zeros), (2, params)):
    checkpoints.save(
      program.TrainState(
        jnp.asarray(step, jnp.int32), x, {"m": x}, skip_updates.Skipped.none()
      )
    )
  checkpoints.wait()
  checkpoints.close()
  expected = _scorer(name, encoding_config=encoding_config).score(_solutions())
  _assert_same(saved.load(tmp_path).score(_solutions()), expected)
  _assert_same(saved.load(tmp_path, 2).score(_solutions()), expected)
  first = saved.load(tmp_path, 1).score(_solutions())
  assert {x for row in first for x in row.scores} == {0.5}
  with pytest.raises(errors.InputError, match="of step 3; it has 1, 2"):
    saved.load(tmp_path, 3)


@pytest.mark.parametrize(
  "encoding_config",
  [{"score_position": "end"}, {"max_tokens": "many"}, {"plce": "last_token"}],
  ids=str,
)
def test_a_damaged_reading_is_refused_in_one_line(tmp_path, encoding_config):
  model_json.write_description(
    tmp_path,
    model_json.Description("prm", MODEL, encoding_config, BYTES.save(tmp_path)),
  )
  with pytest.raises(errors.InputError, match=r"model\.json: damaged") as e:
    saved.load(tmp_path)
  assert "\n" not in str(e.value)


def test_a_policy_has_no_scores(tmp_path):
  model_json.write_description(
    tmp_path,
    model_json.Description("sft", MODEL, {}, BYTES.save(tmp_path)),
  )
  with pytest.raises(errors.InputError, match="sft") as e:
    saved.load(tmp_path)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize("segmenter", ["paragraph", "line", "numbered"])
def test_a_text_has_the_steps_that_sampling_cuts_it_into(
  segmenter, monkeypatch
):
  names = ("<|im_start|>", "<extra_0>")  # as <think> and </think>
  template = dataclasses.replace(
    policy_templates.qwen2_5(),
    thinking=names,
    ends=("<|im_end|>",),
    segmenter=segmenters.parse(segmenter),
  )
  tokenizer = recipes.tokenizer("qwen")
  text = f"{names[0]}\n1. hm\n\n2. so{names[1]}\n\n1. seven\n2. eight"
  codec = codecs.of(template, tokenizer)
  ids, _ = template.encode_text(text, tokenizer)
  start = schema.Solution("0", "p", ())
  sampled = codec.read(start, codec.prompt(start), np.asarray(ids), "end")
  assert not any(name in step for step in sampled.steps for name in names)
  # What would be scored; no model is needed.
  scored = []

  def score_one(self, solution):
    scored.append(solution)
    return schema.StepScores((0.5,) * len(solution.steps))

  monkeypatch.setattr(scorer.Scorer, "_score_one", score_one)
  config = encoding.EncodingConfig(template=template)
  more = dict(tokenizer=tokenizer, segmenter=template.segmenter)
  _scorer(encoding_config=config, **more).score_text("p", text)
  (found,) = scored
  assert (found.steps, found.spans) == (sampled.steps, sampled.spans)


def test_a_text_is_cut_as_is_asked_unless_the_model_says_otherwise():
  text = "3 + 4 = 7\n\n7 - 2 = 5\nso 5"
  silent, line = _scorer(), segmenters.parse("line")
  saying = _scorer(segmenter=line)
  for word in (r"score_text\(.*segmenter=", r"score\(problem, steps\)"):
    with pytest.raises(errors.InputError, match=word):
      silent.score_text("p", text)
  for asks in (silent.cut, silent.score_text):
    with pytest.raises(errors.InputError, match=r"cut_by\('paragraph'\)"):
      asks("p", text)
  expected = saying.score_text("p", text)
  assert len(expected.scores) == 3
  assert silent.score_text("p", text, segmenter="line") == expected
  assert saying.score_text("p", text, segmenter="line") == expected
  assert silent.cut_by(line).score_text("p", text) == expected
  assert len(silent.score_text("p", text, segmenter="paragraph").scores) == 2
  assert silent.segmenter is None
  with pytest.raises(errors.InputError, match=r"`segmenter=paragraph`.*'line'"):
    saying.score_text("p", text, segmenter="paragraph")
  with pytest.raises(errors.InputError, match="segmenter='lines'"):
    silent.score_text("p", text, segmenter="lines")
  for other in (3, ["line"], b"line"):
    with pytest.raises(
      errors.InputError, match=r"segmenter must be str \| None, found"
    ):
      silent.score_text("p", text, segmenter=other)
