"""Scores that grow are those of whole scoring, and each token is read once."""

import dataclasses
import functools

from flax.core import meta
import hostile_text
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import policy_folders
import pytest
import recipes
import tokenizers
from tokenizers import decoders
from tokenizers import pre_tokenizers
from tokenizers import trainers

from prm_jax import errors
from prm_jax import schema
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import prefix_shapes
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

MODEL = model_config.ModelConfig(
  vocab_size=700,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
MODELS = {
  "llama": MODEL,
  "qwen": dataclasses.replace(
    *(MODEL,),
    num_kv_heads=1,
    qkv_bias=True,
    qk_norm=True,
    step_head="mlp",
    step_classes=2,
  ),
  "gemma": dataclasses.replace(
    MODEL,
    norm_offset=True,
    post_norms=True,
    query_scale=0.3,
    attention_softcap=2.0,
    window=5,
    global_layers=(1,),
    rope_local_theta=50.0,
    step_classes=3,
  ),
  "tokens": dataclasses.replace(MODEL, step_head="tokens", step_tokens=(3, 5)),
}
# A whole text; a further step makes one id of "?" and the line break before it.
ASKED = (templates.STEP, ("text", "?"), templates.READ)
JOINT = templates.PromptTemplate(
  "joint",
  (templates.PROBLEM, ("text", " ")),
  (("text", "\n"), *ASKED),
  first_step=ASKED,
)
ENDS = ("", "?", "? ", ".", "15 к", "\n", " ", "e", "\u0301", "x^2", " eggs")
STEP = st.builds(
  lambda *parts: "".join(parts), hostile_text.TEXT, st.sampled_from(ENDS)
)
PLAIN_STEP = st.sampled_from(
  ["so 3 + 4 = 7", "x", "then é", "answer 42", "(a)"]
)
# Calls, each with solutions: a step after one that was scored before.
CALLS = st.lists(
  st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=2, max_size=6
)


@functools.cache
def _params(name="llama", head="step"):
  random = np.random.default_rng(0)
  model = MODELS[name]
  heads = ("lm",) if model.step_head == "tokens" else (head,)
  return jax.tree.map(
    lambda x: jnp.asarray(0.5 * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), model, heads))
    ),
  )


@functools.cache
def _one_merge():
  """Returns a byte-level tokenizer with one longer token, of "?" and "\\n"."""
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=258,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    special_tokens=["</s>"],
    show_progress=False,
  )
  model.train_from_iterator(["?\n"] * 9, trainer)
  return tokenizer_files.HuggingFace(model.to_str(), eos="</s>")


@functools.cache
def _dialect(name):
  """Returns the tokenizer and the encoding of a dialect."""
  if name in encoding.SCORE_POSITIONS:
    config = encoding.EncodingConfig(score_position=name, template=own_form.OWN)
    return tokenizer_lib.Bytes(), config
  if name == "joint":
    return _one_merge(), encoding.EncodingConfig(template=JOINT)
  if name == "policy":
    tokenizer = policy_folders.tokenizer("qwen2_5")
    policy = policy_templates.published("qwen2_5")
    return tokenizer, encoding.EncodingConfig(template=policy)
  tokenizer = recipes.tokenizer(recipes.RECIPES[name][0])
  template = templates.published(name).fitted(tokenizer)
  return tokenizer, encoding.EncodingConfig(template=template)


# Skywork's and TRL's templates encode texts apart, as Qwen's does.
DIALECTS = (
  *encoding.SCORE_POSITIONS,
  *("qwen_prm", "math_shepherd", "rlhflow", "joint", "policy"),
)


def _scorer(dialect="last_token", model="llama", program="prm", **fields):
  tokenizer, encoding_config = _dialect(dialect)
  head = dict(prm="step", orm="outcome")[program]
  return scorer_lib.Scorer(
    program,
    dataclasses.replace(MODELS[model], **fields),
    _params(model, head),
    tokenizer,
    encoding_config,
    batch_tokens=2048,
    sequence_length=512,
  )


def _cached(scorer, pages=500, row_tokens=16):
  return cached_scorer.CachedScorer(
    scorer, cache_tokens=4 * pages, page_tokens=4, row_tokens=row_tokens
  )


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
  """Few programs are compiled: batches are small, and read 32 pages or more."""
  monkeypatch.setattr(prefix_shapes, "_LEAST_TOKENS", 16)
  monkeypatch.setattr(prefix_shapes, "_LEAST_PAGES", 32)
  monkeypatch.setattr(prefix_shapes, "_ROWS", (4, 1))


def _grown(calls, texts):
  """Yields lists of solutions that continue earlier ones, or begin."""
  known = [schema.Solution("x", f"1+{i}", ()) for i in range(2)]
  texts = iter(texts)
  for call in calls:
    batch = []
    for number in call:
      before = known[number % len(known)]
      steps = (*before.steps, next(texts))
      batch.append(dataclasses.replace(before, steps=steps))
    known += batch
    yield batch


def _assert_same(found, expected, atol=1e-5):
  for one, other in zip(found, expected, strict=True):
    assert len(one.scores) == len(other.scores)
    np.testing.assert_allclose(one.scores, other.scores, atol=atol)
    np.testing.assert_allclose(one.logits, other.logits, atol=10 * atol)
    assert one.judged == other.judged or atol > 1e-4


# --- Exact ------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=4)
@given(calls=CALLS, data=st.data())
def test_growing_in_any_order_is_whole_scoring(dialect, calls, data):
  scorer = _scorer(dialect)
  num = sum(map(len, calls))
  step = PLAIN_STEP if dialect == "policy" else STEP
  texts = data.draw(st.lists(step, min_size=num, max_size=num))
  wide, narrow = _cached(scorer), _cached(scorer, pages=32)
  every = [x for batch in _grown(calls, texts) for x in batch]
  expected = iter(scorer.score(every))
  for batch in _grown(calls, texts):
    whole = [next(expected) for _ in batch]
    _assert_same(wide.score(batch), whole)
    _assert_same(narrow.score(batch), whole)


@pytest.mark.parametrize(
  "model,program",
  [*((model, "prm") for model in MODELS if model != "llama"), ("llama", "orm")],
)
def test_growing_is_whole_scoring_for_every_model(model, program):
  scorer = _scorer(model=model, program=program)
  cached = _cached(scorer, pages=40)
  random = np.random.default_rng(0)
  calls = random.integers(0, 99, (8, 3)).tolist()
  texts = ["".join(random.choice([*"abc "], 9)) for _ in range(24)]
  for batch in _grown(calls, texts):
    _assert_same(cached.score(batch), scorer.score(batch))
  assert cached.work.evicted > 0
  assert cached.work.reused > cached.work.computed


# Over 20 seeds the largest difference was 0.004; bfloat16 itself moves scores of
# these models by up to 0.006.
BFLOAT16 = 0.01


def test_bfloat16_differs_from_whole_scoring_by_rounding():
  scorer = _scorer(compute_dtype="bfloat16")
  cached = _cached(scorer)
  random = np.random.default_rng(0)
  calls = random.integers(0, 99, (8, 3)).tolist()
  texts = ["".join(random.choice([*"abc "], 9)) for _ in range(24)]
  for batch in _grown(calls, texts):
    _assert_same(cached.score(batch), scorer.score(batch), atol=BFLOAT16)


# --- Counted ----------------------------------------------------------------


class Oracle:
  """Counts tokens from sets of prefixes and lists of texts alone."""

  def __init__(self, scorer):
    self.scorer = scorer
    self.prefixes = set()
    self.texts = []
    self.counts = dict(tokens=0, computed=0, reused=0, changed=0)

  def ids(self, solution):
    encoded = self.scorer.encode(solution)
    return tuple(encoded.tokens[: max(encoded.step_end) + 1].tolist())

  def add(self, batch):
    """Counts solutions in the order in which their prefixes are computed."""
    known = list(self.texts)
    for solution in batch:
      self.texts.append(solution)
    for solution in sorted(batch, key=self.ids):
      ids = self.ids(solution)
      new = [n for n in range(len(ids)) if ids[: n + 1] not in self.prefixes]
      self.prefixes |= {ids[: n + 1] for n in new}
      shorter = [
        x
        for x in known
        if x.problem == solution.problem
        and len(x.steps) < len(solution.steps)
        and x.steps == solution.steps[: len(x.steps)]
      ]
      before = (
        self.ids(max(shorter, key=lambda x: len(x.steps))) if shorter else ()
      )
      self.counts["tokens"] += len(ids)
      self.counts["computed"] += len(new)
      self.counts["reused"] += len(ids) - len(new)
      self.counts["changed"] += sum(
        n < len(before) and ids[: n + 1] != before[: n + 1] for n in new
      )


@pytest.mark.parametrize("dialect", ["separator", "joint"])
@settings(max_examples=4)
@given(calls=CALLS, data=st.data())
def test_the_count_is_that_of_distinct_prefixes(dialect, calls, data):
  scorer = _scorer(dialect)
  num = sum(map(len, calls))
  texts = data.draw(st.lists(STEP, min_size=num, max_size=num))
  cached, oracle = _cached(scorer), Oracle(scorer)
  for batch in _grown(calls, texts):
    cached.score(batch)
    oracle.add(batch)
    found = dataclasses.asdict(cached.work)
    assert {name: found[name] for name in oracle.counts} == oracle.counts


def test_a_further_step_that_changes_an_id_is_counted():
  cached = _cached(_scorer("joint"))
  whole = schema.Solution("x", "How many?", ("has she now?", "15"))
  cached.score([schema.first_steps(whole, 1)])
  before = cached.work
  cached.score([whole])
  work = cached.work - before
  ids = [cached.scorer.encode(schema.first_steps(whole, n)) for n in (1, 2)]
  assert ids[0].tokens[ids[0].step_end[0]] != ids[1].tokens[ids[1].step_end[0]]
  assert work.changed == 1
  assert work.computed + work.reused == work.tokens


def test_a_beam_computes_each_step_once():
  scorer = _scorer()
  cached = _cached(scorer, row_tokens=64)
  beams = [schema.Solution("x", "2+2", ())] * 4
  computed = []
  for depth in range(8):
    grown = [
      dataclasses.replace(x, steps=(*x.steps, f"{depth}{beam}{i}" * 2))
      for beam, x in enumerate(beams)
      for i in range(4)
    ]
    before = cached.work
    cached.score(grown)
    computed.append((cached.work - before).computed)
    beams = grown[::4]
  # The separator before a beam's steps and their first two bytes, once for all
  # four, and four more bytes of each.
  assert computed[1:] == [4 * (1 + 2 + 4 * 4)] * 7


# --- Room -------------------------------------------------------------------


def test_the_cache_takes_memory_as_tokens_come_and_scores_stay(monkeypatch):
  monkeypatch.setattr(cached_scorer, "FIRST_TOKENS", 16)
  scorer = _scorer()
  cached = _cached(scorer, pages=512)
  solutions = [
    schema.Solution(str(i), f"{i}+2", ("a" * 20, "b")) for i in range(9)
  ]
  made = []
  for solution in solutions:
    _assert_same(cached.score([solution]), scorer.score([solution]))
    made.append(cached._pages.k.shape[1])
  used = len(cached._cache._used)
  assert made == sorted(made) and made[0] < made[-1] < 2 * used < 512
  # What an emptied cache had is kept: its programs are compiled.
  cached.clear()
  assert cached._pages.k.shape[1] == made[-1]
  _assert_same(cached.score(solutions), scorer.score(solutions))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reading_and_writing_a_few_tokens_copies_no_pages(dtype):
  scorer = _scorer(compute_dtype=dtype)
  config = scorer.config
  pages = prefix_programs.empty_pages(config, pages=4096, page_tokens=16)
  new = jax.ShapeDtypeStruct(
    (config.num_layers, 1, 16, config.num_kv_heads, config.head_dim), dtype
  )
  put = prefix_programs.put.lower(pages, (new, new), np.zeros((1, 16), int))
  row, page = np.zeros((1, 16), np.int32), np.zeros((1, 32), np.int32)
  seen = np.zeros((1, 16, 32), np.int32)
  rows = prefix_programs.Rows(row, row, row, page, page, seen, row)
  extend = prefix_programs.extend.lower(
    scorer.params, pages, rows, config=config, program="prm"
  )
  for program in (put, extend):
    memory = program.compile().memory_analysis()
    assert memory.temp_size_in_bytes < pages.k.nbytes / 4


def test_a_solution_longer_than_the_cache_is_scored_whole():
  scorer = _scorer()
  cached = _cached(scorer, pages=4)
  long = schema.Solution("x", "2+2", ("a" * 40, "b"))
  short = schema.Solution("y", "2+2", ("a",))
  for _ in range(2):
    _assert_same(cached.score([long, short]), scorer.score([long, short]))
  num = int(scorer.encode(long).step_end[-1]) + 1
  assert cached.work.computed > 2 * num
  assert cached.work.reused > 0


def test_a_path_without_room_for_its_rest_is_scored_whole():
  # Page 0 is left after one token, and the rest needs all four pages.
  scorer = _scorer()
  cached = _cached(scorer, pages=4)
  first = schema.Solution("x", "2", ("b",))
  second = schema.Solution("x", "2", ("c" * 12,))
  cached.score([first])
  ids = [scorer.encode(x).tokens.tolist() for x in (first, second)]
  assert ids[0][:3] == ids[1][:3]
  _assert_same(cached.score([second]), scorer.score([second]))


def test_nothing_is_read_for_a_solution_without_steps():
  cached = _cached(_scorer())
  (scores,) = cached.score([schema.Solution("x", "2+2", ())])
  assert scores.scores == ()
  assert cached.work == cached_scorer.Work()
  assert cached.score([]) == []


def test_an_interrupted_call_leaves_no_unread_token(monkeypatch):
  scorer = _scorer()
  cached = _cached(scorer)
  solutions = [schema.Solution("x", "2+2", ("a", "b"))]

  def interrupted(*args, **how):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(prefix_programs, "extend", interrupted)
    with pytest.raises(KeyboardInterrupt):
      cached.score(solutions)
  _assert_same(cached.score(solutions), scorer.score(solutions))


# --- For a server -----------------------------------------------------------


def _owned(cached, solutions, owners):
  encoded = list(map(cached.scorer.encode, solutions))
  return cached.score_encoded(solutions, encoded, owners)


@pytest.mark.parametrize("pages", [500, 8])
def test_an_owner_reuses_its_own_tokens_and_none_of_another(pages):
  """Also of one call, of evicted pages and of what is read whole."""
  scorer = _scorer()
  cached = _cached(scorer, pages)
  begun, longer = (
    schema.Solution("x", "2+2", steps) for steps in (("ab",), ("ab", "c"))
  )
  alone = _owned(cached, [begun], ["a"])[0]
  assert alone.reused == 0
  rows = _owned(cached, [longer, begun, begun, longer], ["b", "c", "c", "a"])
  first, *twins, again = [row.reused for row in rows]
  length = len(scorer.encode(begun).tokens)
  assert first == 0
  # The steps' ends differ, so a step more changes the last ids.
  assert sum(twins) == again == length - 1
  _assert_same(
    [alone.scores, *(row.scores for row in rows)],
    scorer.score([begun, longer, begun, begun, longer]),
  )


def test_after_all_shapes_no_solution_needs_another_program(monkeypatch):
  """test_prefix_rows.py has more solutions; longer ones are read whole."""
  monkeypatch.setattr(prefix_shapes, "_FEW_ROWS", (1,))
  scorer = _scorer()
  cached = cached_scorer.CachedScorer(
    *(scorer,), cache_tokens=400, page_tokens=4, row_tokens=16, most_tokens=20
  )
  for shape in cached.shapes.all():
    cached.compile_shape(shape)
  assert cached.work == cached_scorer.Work()
  num = prefix_programs.extend._cache_size()
  random = np.random.default_rng(0)
  calls = random.integers(0, 99, (5, 3)).tolist()
  texts = ["".join(random.choice([*"ab "], 5)) for _ in range(15)]
  for batch in _grown(calls, texts):
    _assert_same(cached.score(batch), scorer.score(batch))
  assert cached.work.reused > 0
  before = cached.work
  cached.score([schema.Solution("x", "1", ("ab" * 30,))] * 2)
  assert (cached.work - before).reused == 0
  assert num == prefix_programs.extend._cache_size()


# --- Refused ----------------------------------------------------------------


def test_an_implicit_prm_is_refused():
  implicit = dataclasses.replace(_scorer(), program="implicit")
  with pytest.raises(
    errors.InputError, match="cache of prefixes: an implicit PRM"
  ):
    cached_scorer.CachedScorer(implicit)


@pytest.mark.parametrize(
  "field,value", [("cache_tokens", 0), ("page_tokens", 0), ("row_tokens", 48)]
)
def test_a_number_out_of_range_is_refused(field, value):
  with pytest.raises(errors.InputError, match=field):
    cached_scorer.CachedScorer(_scorer(), **{field: value})


def test_every_kind_with_scores_of_hidden_states_has_both():
  reads = [k for k, x in kinds.KINDS.items() if x.scores_at is not None]
  assert reads == ["prm", "orm"]
  assert all(kinds.KINDS[k].scores is not None for k in reads)
