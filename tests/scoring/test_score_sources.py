"""A name stands for one thing, and what it stands for gives its scores."""

import dataclasses
import pathlib

from flax.core import meta
import jax
import pytest
import using_prm_jax

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.scoring import score_sources
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

SOLUTIONS = using_prm_jax.solutions()
FUNCTIONS = """
def score(solutions):
  return [[1 / (1 + len(step)) for step in s.steps] for s in solutions]
def reward(solutions):
  return [-3.0 * len(s.steps) for s in solutions]
def verify(solutions):
  return [s.steps[-1:] == ("2 + 12 = 14",) for s in solutions]
"""


def _save(folder, seed):
  """Writes the checkpoint folder of a random PRM; returns it."""
  bytes_ = tokenizer_lib.Bytes()
  model = model_config.ModelConfig(bytes_.vocab_size, **using_prm_jax.MODEL)
  params = meta.unbox(transformer.init(jax.random.key(seed), model, ("step",)))
  read = dataclasses.asdict(encoding.EncodingConfig())
  model_json.write_description(
    folder, model_json.Description("prm", model, read, bytes_.save(folder))
  )
  saves.save_params(folder, params)
  return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return _save(tmp_path_factory.mktemp("prm"), 0)


@pytest.fixture
def inside(tmp_path, monkeypatch):
  """The current folder holds a file of functions."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path("f.py").write_text(FUNCTIONS)
  return tmp_path


def test_a_folder_scores_as_its_model_does(folder):
  expected = prm_jax.load(folder).score(SOLUTIONS)
  assert prm_jax.load_score(folder)(SOLUTIONS) == expected
  assert prm_jax.load_score(str(folder))(SOLUTIONS) == expected


def test_a_folders_identity_is_that_of_its_last_save_wherever_it_is(
  folder, tmp_path
):
  loaded = score_sources.load(str(folder))
  assert loaded.identity["checkpoint_step"] == saves.saved_steps(folder)[-1]
  link = tmp_path / "link"
  link.symlink_to(folder)
  assert score_sources.load(str(link)).identity == loaded.identity
  (tmp_path / "other").mkdir()
  other = score_sources.load(str(_save(tmp_path / "other", 1))).identity
  assert other["sha256"] != loaded.identity["sha256"]


def test_a_checkpoint_computes_in_the_type_it_is_asked_for(folder):
  loaded = score_sources.load(str(folder), compute_dtype="bfloat16")
  assert loaded.scorer.config.compute_dtype == "bfloat16"
  plain = score_sources.load(str(folder))
  assert plain.scorer.config.compute_dtype == "float32"
  assert loaded.identity == plain.identity | dict(compute_dtype="bfloat16")


def test_only_a_checkpoint_is_asked_for_a_type(inside):
  with pytest.raises(errors.InputError, match=r"dtype=float32: f\.py:score is"):
    prm_jax.load_score("f.py:score", compute_dtype="float32")


def test_a_function_scores_steps_solutions_and_answers(inside):
  score = prm_jax.load_score("f.py:score")
  assert [row.scores for row in score(SOLUTIONS[:1])] == [(1 / 11, 1 / 12)]
  reward, identity = score_sources.load_outcome_reward("f.py:reward")
  assert reward(SOLUTIONS[:1]) == [-6.0]
  assert identity["function"] == "reward"
  verify, _ = score_sources.load_verify("f.py:verify")
  assert verify(SOLUTIONS) == [True, True, False, False]
  best = prm_jax.best_of_n(SOLUTIONS, score, aggregate="last")
  assert best.id == "wrong0"  # it has the shortest last step


def test_a_functions_results_are_checked(inside):
  with pytest.raises(
    errors.InputError, match=r"f\.py:reward: returned -6\.0 for"
  ):
    prm_jax.load_score("f.py:reward")(SOLUTIONS[:1])
  with pytest.raises(
    errors.InputError, match=r"f\.py:verify: the reward of sol"
  ):
    score_sources.load_outcome_reward("f.py:verify")
  with pytest.raises(
    errors.InputError, match=r"f\.py:reward: the verdict on so"
  ):
    score_sources.load_verify("f.py:reward")


@pytest.mark.parametrize(
  ("name", "path"),
  [
    ("", None),
    ("http://host/v1", None),
    ("HTTPS://host/v1", None),
    ("module:function", None),
    ("a/f.py:function", "a/f.py"),
    ("runs/prm", "runs/prm"),
  ],
)
def test_what_a_command_reads_is_known_from_the_name(name, path):
  found = score_sources.path_of(name)
  assert found == (None if path is None else pathlib.Path(path))


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("", "'': expected a checkpoint folder, FILE.py:FUNCTION"),
    ("gs://bucket/prm", "'gs://bucket/prm': expected a checkpoint folder"),
    ("nowhere", "nowhere: there is no such folder; expected a checkpoint fold"),
    ("my-module:score", "my-module:score: there is no such folder; expected"),
    (".", r"\.: not a checkpoint folder: it has no model.json"),
  ],
)
def test_a_name_of_nothing_is_refused_with_the_forms(inside, name, said):
  with pytest.raises(errors.InputError, match=f"^{said}"):
    prm_jax.load_score(name)


def test_a_function_is_tried_without_steps_where_a_policy_may_write_none(
  inside,
):
  seen = []

  def reward(solutions):
    seen.extend(solutions)
    return [0.0] * len(solutions)

  pathlib.Path("g.py").write_text("def f(solutions):\n  return seen(solutions)")
  # It has all that a rollout's solutions have.
  with pytest.raises(errors.InputError, match="tried on a solution without a"):
    score_sources.load_verify("g.py:f")
  score_sources._try_without_steps(reward)
  (solution,) = seen
  assert not solution.steps
  expected = {schema.REFERENCE, *schema.STATISTICS}
  assert solution.extra.keys() == expected
