"""Train: one path for configs, files and records, and what its border takes."""

import json

import jax
import ml_collections
import numpy as np
import pytest
import small_config
import using_prm_jax

import prm_jax
from prm_jax import errors
from prm_jax import trainer
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.runtime import verbs

# All different: those of a file count once.
SOLUTIONS = using_prm_jax.solutions()[::2]

pytestmark = pytest.mark.usefixtures("one_device", "equal_programs")


@pytest.fixture
def path(tmp_path):
  """A config file of a run on a file of solutions, which lies beside it."""
  data = tmp_path / "solutions.jsonl"
  jsonl.write_solutions(data, SOLUTIONS)
  text = small_config.text(
    data=dict(train=(f"jsonl:{data}",), evaluation=()),
    model=dict(d_model=8, head_dim=4, d_ff=8),
    eval_rows=8,
    fit=dict(steps=2, log_every=1),
  )
  (tmp_path / "c.py").write_text(text)
  return tmp_path / "c.py"


def _params(workdir):
  leaves = jax.tree.leaves(prm_jax.load(workdir).params)
  return [np.asarray(x).tobytes() for x in leaves]


def test_solutions_in_memory_are_trained_on_as_those_of_a_file(path, tmp_path):
  trainer.Train(path, tmp_path / "file").run()
  verb = trainer.Train(path, tmp_path / "memory")
  model = verb(SOLUTIONS)
  assert _params(tmp_path / "file") == _params(tmp_path / "memory")
  assert len(model.score(SOLUTIONS)) == 2
  configs = [
    json.loads((tmp_path / name / "config.json").read_text())
    for name in ("file", "memory")
  ]
  assert configs[0].pop("data") != configs[1].pop("data")
  assert configs[0] == configs[1]


def test_a_config_is_a_file_its_fields_or_what_it_returns(path):
  read = config_files.read(path)
  of_file = trainer.Train.filled(verbs.Config(path, ("seed=3",)))
  assert of_file.seed == 3
  for given in (read, read.to_dict()):
    config = trainer.Train(given, "x").config
    assert config == verbs.Config(given) and config.name == "config"
    assert trainer.Train.filled(verbs.Config(given, ("seed=3",))) == of_file
  # What was given stays as it was.
  assert read.seed == 0 and "best_metric" not in read.fit
  with pytest.raises(errors.InputError, match="config: no such field: sed"):
    trainer.Train.filled(verbs.Config(read.to_dict() | dict(sed=1)))


def test_a_run_isnt_resumed_if_it_may_not_be(path, tmp_path):
  trainer.Train(path, tmp_path / "run")(SOLUTIONS)
  for resume, fresh in ((True, False), (False, True)):
    trainer.Train(path, tmp_path / "run", resume, fresh)(SOLUTIONS)
  with pytest.raises(errors.InputError, match="`resume=False` was given"):
    trainer.Train(path, tmp_path / "run", resume=False)(SOLUTIONS)


def test_a_refused_run_of_records_leaves_no_workdir(path, tmp_path):
  config = ml_collections.ConfigDict(config_files.read(path))
  config.mesh = (999, 1, 1)
  with pytest.raises(errors.InputError, match="mesh"):
    trainer.Train(config, tmp_path / "run")(SOLUTIONS)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (dict(workdir="gs://b"), "gs://b: give gs://BUCKET/FOLDER"),
    (dict(workdir=3), "workdir must be a path, found 3"),
    (dict(workdir="gs://b/run"), "gs://b/run: remote paths"),
    (dict(config=dict(program="rl")), "config: program='rl' samples its own"),
    (dict(config="gs://b/c.py"), "gs://b/c.py: remote paths"),
    (dict(config="nowhere.py"), "`config=nowhere.py`: no such file"),
  ],
)
def test_what_cant_be_trained_is_refused_in_python(given, said, path):
  known = dict(config=path, workdir="run")
  with pytest.raises(errors.InputError) as error:
    trainer.Train(**known | given)(SOLUTIONS)
  assert said in str(error.value)
