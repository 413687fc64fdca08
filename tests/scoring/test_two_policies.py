"""Two policies are an implicit PRM: their log-ratio, by the tokens of steps."""

import dataclasses
import json

from flax.core import meta
import jax
import numpy as np
import pytest
import random_models

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.models import lora
from prm_jax.models import transformer
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampler
from prm_jax.records import jsonl
from prm_jax.scoring import saved

BETA = 0.5
SOLUTIONS = [
  schema.Solution("a", "1 + 1?", ("It is", "2.")),
  schema.Solution("b", "1 + 2?", ("3",)),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """policy/ and prm/, and other/: policy's shape, other weights."""
  folder = random_models.write(tmp_path_factory.mktemp("models"))
  described = model_json.read_description(folder / "policy")
  params = parameters.load_params(folder / "policy", described, apart=False)
  other = folder / "other"
  other.mkdir()
  random_models.BYTES.save(other)
  model_json.write_description(other, described)
  saves.save_params(other, jax.tree.map(lambda x: x * 0.9 + 0.01, params))
  return folder


def _step_ratios(folders):
  """Returns log pi - log pi_ref of each step's tokens, one step at a time.

  They end where the step is read, at its last token, so that the separator
  before a step is the step's.
  """
  policies = [sampler.load(folders / name) for name in ("policy", "other")]
  out = []
  for s in SOLUTIONS:
    rows = []
    for k, step in enumerate(s.steps):
      shown = schema.Solution("x", s.problem, s.steps[: k + 1])
      ids = np.array(policies[0].codec.within(shown, ""))
      num = len(step) + (k > 0)
      own, other = (
        log_likelihood.of_ids(p.config, p.params, [ids])[0][-num:]
        for p in policies
      )
      rows.append(own - other)
    out.append(rows)
  return out


def test_a_steps_log_odds_are_beta_times_its_log_ratio(folders):
  ratios = _step_ratios(folders)
  for how, of_step in (
    ("increment", lambda rows, k: rows[k].sum()),
    ("mean", lambda rows, k: rows[k].mean()),
    ("cumulative", lambda rows, k: sum(x.sum() for x in rows[: k + 1])),
  ):
    for layout in ("padded", "packed"):
      scorer = saved.load_pair(
        *(folders / "policy", folders / "other"),
        layout=layout,
        beta=BETA,
        step_score=how,
      )
      for row, rows in zip(scorer.score(SOLUTIONS), ratios, strict=True):
        expected = [BETA * of_step(rows, k) for k in range(len(rows))]
        np.testing.assert_allclose(row.logits, expected, atol=1e-5)
        assert max(map(abs, expected)) > 1e-3 and all(row.judged)


def test_the_command_writes_what_the_value_scores(folders, tmp_path):
  path = tmp_path / "in.jsonl"
  jsonl.write_solutions(path, SOLUTIONS)
  command = [
    *("score", f"--checkpoint={folders / 'policy'}", "--beta=0.5"),
    *(f"--reference={folders / 'other'}", "--step_score=mean"),
    *(f"--input={path}", f"--output={tmp_path / 'out.jsonl'}"),
  ]
  assert main.main(command) == 0
  value = prm_jax.Score(
    folders / "policy",
    reference=prm_jax.ReferencePolicy(folders / "other", 0.5, "mean"),
  )
  lines = (tmp_path / "out.jsonl").read_text().splitlines()
  for line, row in zip(lines, value(SOLUTIONS), strict=True):
    assert json.loads(line)["step_logits"] == list(row.logits)


def test_a_policy_against_itself_says_nothing(folders):
  value = prm_jax.Score(folders / "policy", reference=folders / "policy")
  assert [x.scores for x in value(SOLUTIONS)] == [(0.5, 0.5), (0.5,)]


def _written(folder, described, model, params):
  """Writes a policy of another shape."""
  folder.mkdir()
  random_models.BYTES.save(folder)
  described = dataclasses.replace(described, model=model)
  model_json.write_description(folder, described)
  saves.save_params(folder, params)
  return folder


def test_adapters_may_be_in_one_of_the_two_alone(folders, tmp_path):
  base = folders / "policy"
  described = model_json.read_description(base)
  model = dataclasses.replace(described.model, lora_rank=2)
  random = np.random.default_rng(1)
  params = jax.tree.map(
    lambda x: random.normal(size=x.shape).astype(np.float32),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), model, ()))
    ),
  )
  adapted = _written(tmp_path / "adapted", described, model, params)
  merged = _written(tmp_path / "merged", described, *lora.merge(model, params))
  plain = _written(
    tmp_path / "plain", described, described.model, lora.without(params)
  )

  def log_odds(*pair):
    scored = saved.load_pair(*pair).score(SOLUTIONS[:1])
    return np.asarray(scored[0].logits)

  expected = log_odds(merged, plain)
  np.testing.assert_allclose(log_odds(adapted, plain), expected, atol=1e-4)
  np.testing.assert_allclose(log_odds(plain, adapted), -expected, atol=1e-4)
  assert abs(expected).max() > 0.1
  # None that add nothing change nothing.
  none = jax.tree.map(np.zeros_like, params)
  idle = lora.with_none(lora.without(params), none)
  idle = _written(tmp_path / "idle", described, model, idle)
  assert not log_odds(idle, plain).any()


def test_what_is_no_pair_of_one_policy_is_refused(folders, tmp_path):
  described = model_json.read_description(folders / "policy")

  def written(name, **fields):
    folder = tmp_path / name
    folder.mkdir()
    random_models.BYTES.save(folder)
    model_json.write_description(
      folder, dataclasses.replace(described, **fields)
    )
    return folder

  deeper = dataclasses.replace(described.model, num_layers=2)
  read_elsewhere = {**described.encoding, "score_position": "separator"}
  for first, second, word in (
    (folders / "prm", folders / "policy", "holds a prm model"),
    (folders / "policy", folders / "prm", "holds a prm model"),
    (folders / "policy", written("deep", model=deeper), "another shape"),
    (
      folders / "policy",
      written("encoding", encoding=read_elsewhere),
      "another encoding",
    ),
    (folders / "policy", tmp_path / "none", "not a checkpoint folder"),
  ):
    with pytest.raises(errors.InputError, match=word) as e:
      saved.load_pair(first, second)
    assert "\n" not in str(e.value)
