"""Who does the batches of a job, and what becomes of those that fail."""

import sys

import pytest
import random_models

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import workers
from prm_jax.labelling import label_job
from prm_jax.records import jsonl
from prm_jax.runtime import files

SOLUTIONS = [
  schema.Solution(str(i), f"problem {i % 3}", ("a", "b"), extra=dict(group="g"))
  for i in range(7)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  return random_models.write(tmp_path_factory.mktemp("models"))


# --- Which engine ------------------------------------------------------------------


@pytest.mark.parametrize(
  "options, said",
  [
    (dict(workers=3), "`workers` is for `engine=ray`; take it out"),
    (dict(worker_gpus=0.0), "`worker_gpus` is for `engine=ray`; take it out"),
    (dict(worker_resource=("TPU=4",)), "`worker_resource` is for"),
    (dict(where="ray://host"), "give local, ray, or ray://HOST:PORT"),
    (dict(where="spark"), "give local, ray, or ray://HOST:PORT"),
    (dict(where="ray", worker_resource=("TPU=no",)), "isn't NAME=NUMBER"),
    (dict(where="ray", worker_resource=("TPU=0",)), "isn't NAME=NUMBER"),
  ],
)
def test_an_engine_that_isnt_one_is_refused(options, said):
  with pytest.raises(errors.InputError, match=said.replace("(", r"\(")):
    workers.Engine(**options)


def test_a_cluster_without_ray_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  monkeypatch.delitem(sys.modules, "prm_jax.jobs.ray_workers", raising=False)
  given = tmp_path / "given.jsonl"
  jsonl.write_solutions(given, SOLUTIONS)
  job = label_job.LabelJob(
    given, tmp_path / "out.jsonl", engine=workers.Engine("ray")
  )
  with pytest.raises(errors.InputError, match="`engine=ray` needs the extra"):
    prm_jax.LabelVerify("arithmetic").run(job)


def test_what_is_saved_by_a_cluster_alone_is_refused_without():
  with pytest.raises(errors.InputError, match="`fresh` is for `engine=ray`"):
    prm_jax.Score.job("in.jsonl", "out.jsonl", fresh=True)
  with pytest.raises(errors.InputError, match="`output=-`: give a file"):
    prm_jax.Score.job("in.jsonl", "-", engine=workers.Engine("ray"))


# --- What fails --------------------------------------------------------------------


def _failing(ids):
  """Returns a worker whose work on some solutions fails."""

  def work(batches):
    for batch in batches:
      # One that fails is told before what was done.
      for s in batch:
        if s.id in ids:
          yield journal.Failed([s], f"no {s.id}")
      if done := [s for s in batch if s.id not in ids]:
        yield journal.Finished(done, done, dict(done=len(done)))

  return workers.Worker(dict(model="m"), lambda tell: work)


def _run(output, ids):
  return journaled.run(
    *(journaled.Job(batch=2), output, SOLUTIONS, dict(kind="k"), _failing(ids)),
    doing="work",
    first="first",
    so_far=str,
  )


def test_what_fails_is_set_aside_and_the_rest_is_written(tmp_path):
  output = tmp_path / "out.jsonl"
  with pytest.raises(
    errors.InputError, match=r"2 of 7 solutions failed .*no 1"
  ):
    _run(output, {"1", "4"})
  aside = tmp_path / "out.jsonl.set_aside.jsonl"
  records = [x for _, x in files.read_records(aside)]
  assert sorted(x["id"] for x in records) == ["1", "4"]
  assert all(x["reason"] == f"no {x['id']}" for x in records)
  assert [s.id for s in jsonl.read(output)] == ["0", "2", "3", "5", "6"]
  # Mended, these alone are done.
  done = _run(output, set())
  assert done.before == dict(done=5) and done.work == dict(done=7)
  assert list(jsonl.read(output)) == SOLUTIONS and not aside.exists()


# --- The same in batches -----------------------------------------------------------


def test_scores_in_batches_are_those_at_once_in_the_order_of_the_input(
  models, tmp_path
):
  given = tmp_path / "given.jsonl"
  jsonl.write_solutions(given, SOLUTIONS)
  verb = prm_jax.Score(str(models / "prm"))
  verb.run(prm_jax.Score.job(given, output=tmp_path / "out.jsonl", batch=2))
  found = [x for _, x in files.read_records(tmp_path / "out.jsonl")]
  assert [x["id"] for x in found] == [s.id for s in SOLUTIONS]
  for x, at_once in zip(found, verb(SOLUTIONS)):
    assert x["step_logits"] == pytest.approx(at_once.logits, abs=1e-5)


def test_samples_in_batches_are_those_at_once(models, tmp_path):
  problems = [schema.Problem(str(i), f"what {i % 3}", str(i)) for i in range(5)]
  given = tmp_path / "problems.jsonl"
  jsonl.write_problems(given, problems)
  sampling = prm_jax.Sampling(max_tokens=8, temperature=1.0)
  verb = prm_jax.Sample(str(models / "policy"), n=2, sampling=sampling)
  verb.run(prm_jax.Sample.job(given, output=tmp_path / "out.jsonl", batch=2))
  found = list(jsonl.read(tmp_path / "out.jsonl"))
  assert [s.id for s in found] == [f"{i}/{k}" for i in range(5) for k in (0, 1)]
  at_once = verb(problems)
  assert [s.steps for s in found] == [s.steps for s in at_once]
  assert len({s.steps for s in found}) > 5  # no two alike by their place
