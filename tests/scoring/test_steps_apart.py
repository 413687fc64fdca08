"""A template that reads steps apart: what a step sees, in training and scoring."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import random_policies

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import preview
from prm_jax.demo import default_config
from prm_jax.huggingface import verify
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import saved
from prm_jax.scoring import scorer
from prm_jax.search import own_models
from prm_jax.text import encoding
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import losses
from prm_jax.training import train_run
from prm_jax.training import train_run_config

BYTES = tokenizer_lib.Bytes()
MODEL = random_policies.model(BYTES.vocab_size)
FORMS = ("step_pairs", "context_prm")
PROBLEM, STEPS = "7 + 5 - 3", ("7 + 5 = 12", "12 - 3 = 8", "so 8", "")
LABELS = (1.0, 0.0, 0.0, 0.0)


def _solution(*steps, problem=PROBLEM, id_="x"):
  labels = LABELS[: len(steps)]
  return schema.Solution(id_, problem, steps, labels)


@functools.cache
def _params():
  return random_policies.params(MODEL, "step", 0.5)


def _encoding(form="step_pairs"):
  return encoding.EncodingConfig(template=templates.published(form))


def _scorer(form="step_pairs", **more):
  # One shape, which is compiled once.
  sizes = dict(sequence_length=256, batch_tokens=1024)
  return scorer.Scorer(
    "prm", MODEL, _params(), BYTES, _encoding(form), **sizes | more
  )


def _log_odds(solutions, **how):
  return [np.asarray(x.logits) for x in _scorer(**how).score(solutions)]


def _examples(form, solutions):
  found, _ = encoding.prm_examples(
    solutions, BYTES, _encoding(form), encoding.LabelPolicy()
  )
  return found


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_trained_on_the_ids_that_it_is_scored_on(form):
  solution = _solution(*STEPS)
  (example,) = _examples(form, [solution])
  read = _scorer(form).encode(solution)
  n = len(example)
  np.testing.assert_array_equal(example.tokens, read.tokens[:n])
  targets = np.flatnonzero(example.weights)
  np.testing.assert_array_equal(targets, read.step_end[:2])
  # What a token sees is the same, too.
  trained, scored = (
    packing.chain(x) for x in (example, encoding.untargeted(read))
  )
  np.testing.assert_array_equal(trained.positions, scored.positions[:n])
  np.testing.assert_array_equal(trained.parent, scored.parent[:n])
  np.testing.assert_array_equal(
    trained.visible_until, scored.visible_until[:n].clip(max=n)
  )


@pytest.mark.parametrize("form", FORMS)
def test_no_step_after_the_first_error_has_a_label(form):
  (example,) = _examples(form, [_solution(*STEPS)])
  assert example.labels[example.weights > 0].tolist() == [1, 0]
  assert "so 8" not in BYTES.decode(example.tokens)


def test_a_step_scores_as_the_only_step_after_the_one_before_it():
  (whole,) = _log_odds([_solution(*STEPS)])
  befores = (PROBLEM, *STEPS)
  alone = _log_odds(
    [_solution(x, problem=before) for before, x in zip(befores, STEPS)]
  )
  np.testing.assert_allclose(whole, np.concatenate(alone), rtol=1e-4, atol=1e-5)
  assert np.ptp(whole) > 0.01


@pytest.mark.parametrize("changed", range(len(STEPS)))
def test_a_changed_step_moves_its_own_score_and_the_next_one_alone(changed):
  steps = [*STEPS[:changed], "then 99", *STEPS[changed + 1 :]]
  before, after = _log_odds([_solution(*STEPS), _solution(*steps)])
  is_moved = abs(after - before) > 1e-4
  expected = [i in (changed, changed + 1) for i in range(len(STEPS))]
  assert is_moved.tolist() == expected


def test_where_all_is_seen_a_changed_step_moves_all_later_scores():
  steps = ["then 99", *STEPS[1:]]
  solutions = [_solution(*STEPS), _solution(*steps)]
  before, after = _log_odds(solutions, form="context_prm")
  assert (abs(after - before) > 1e-4).all()


def test_the_loss_is_that_of_the_steps_one_by_one_however_they_are_packed():
  solutions = [_solution(*STEPS), _solution(*STEPS[:1]), _solution("2", "4")]
  pairs = [
    dataclasses.replace(_solution(step, problem=before), labels=(label,))
    for s in solutions
    for before, step, label in zip(
      (s.problem, *s.steps),
      s.steps,
      encoding.step_labels(s, encoding.LabelPolicy()),
    )
  ]

  @jax.jit
  def of_batch(batch):
    logits = transformer.apply(MODEL, _params(), batch, method="step_logits")
    return losses.step_bce(logits, batch.labels, batch.weights)

  def loss(rows):
    filled = [*rows, *([[]] * (5 - len(rows)))]
    return np.asarray(of_batch(packing.fill(filled, 512)))

  segments = [packing.chain(x) for x in _examples("step_pairs", solutions)]
  alone = [packing.chain(x) for x in _examples("step_pairs", pairs)]
  one_row = loss([segments])
  rows = loss([[x] for x in segments[::-1]])
  by_pairs = loss([[x] for x in alone])
  assert one_row[1] == by_pairs[1] == 5
  np.testing.assert_allclose(rows, one_row, rtol=1e-5)
  np.testing.assert_allclose(by_pairs, one_row, rtol=1e-5)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_solution_without_steps_has_no_scores(layout):
  none, one = _solution(), _solution(*STEPS[:1])
  assert len(_scorer().encode(none).tokens) == 0
  scored = _scorer(layout=layout, sequence_length=0)
  for solutions in ([none], [none, one]):
    rows = scored.score(solutions)
    assert [len(x.scores) for x in rows] == [len(x.steps) for x in solutions]
  text = preview.show(none, BYTES, _encoding(), encoding.LabelPolicy())
  assert "problem" not in text


def test_solutions_share_no_prefixes():
  solutions = [_solution(*STEPS[:k], id_=str(k)) for k in (1, 2, 3)]
  padded, packed = (
    _log_odds(solutions, layout=layout) for layout in ("padded", "packed")
  )
  for a, b in zip(padded, packed, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  for make in (
    lambda: _scorer(layout="tree"),
    lambda: cached_scorer.CachedScorer(_scorer()),
  ):
    with pytest.raises(
      errors.InputError, match="'step_pairs' reads steps apart"
    ):
      make()
  verifier = own_models.of_scorer(_scorer())
  found = [np.asarray(x.logits) for x in verifier.score(solutions)]
  for a, b in zip(padded, found, strict=True):
    np.testing.assert_array_equal(a, b)


def _run(**fields):
  c = default_config.training("prm", steps=1, peak_lr=1e-3)
  c.model.update(d_model=8, num_layers=1, num_heads=1, num_kv_heads=1)
  c.model.update(head_dim=8, d_ff=8)
  c.encoding.template = "step_pairs"
  c.encoding.max_tokens = c.packing.sequence_length = 256
  c.packing.batch_size = 8  # one for each simulated device
  c.update(fields)
  return c


def test_a_checkpoint_says_that_it_reads_steps_apart(tmp_path, one_device):
  config = train_run_config.from_config(_run())
  solutions = [_solution(*STEPS, id_="a"), _solution(*STEPS[1:], id_="b")]
  model, params = train_run.train(config, solutions, BYTES, tmp_path / "prm")
  loaded = saved.load(tmp_path / "prm")
  assert loaded.encoding.template == templates.step_pairs().fitted(BYTES)
  trained = scorer.Scorer("prm", model, params, BYTES, config.encoding)
  assert loaded.score(solutions) == trained.score(solutions)
  # transformers, with which an import is compared, gets each step alone.
  texts, places, _ = verify._our_scores(tmp_path / "prm")
  befores = [x for s in verify.SOLUTIONS for x in (s.problem, *s.steps[:-1])]
  assert [BYTES.decode(x[:11]) for x in texts] == ["[CONTEXT]: "] * len(befores)
  assert [x.tolist() for x in places] == [[len(x) - 1] for x in texts]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(objective=dict(loss="pqm")), "of whole solutions"),
    (dict(packing=dict(share_prefixes=True)), "share_prefixes to False"),
  ],
)
def test_what_needs_a_whole_solution_in_one_sequence_is_refused(
  fields, message
):
  with pytest.raises(errors.InputError, match="reads steps apart") as e:
    train_run_config.from_config(_run(**fields))
  assert message in str(e.value)


@pytest.mark.parametrize(
  "parts",
  [
    dict(opening=(("problem", ""),)),
    dict(first_step=(("step", ""), ("read", ""))),
  ],
)
def test_a_step_that_begins_a_sequence_has_nothing_before_it(parts):
  with pytest.raises(errors.InputError, match="sees no opening"):
    dataclasses.replace(templates.step_pairs(), **parts)
