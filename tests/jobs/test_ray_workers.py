"""Jobs on a real Ray cluster of this machine: the same bytes, and what dies."""

from concurrent import futures
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import random_models

import prm_jax
from prm_jax import errors
from prm_jax.jobs import journal
from prm_jax.labelling import label_job
from prm_jax.runtime import files
from prm_jax.search import rules
from prm_jax.search import search

ray = pytest.importorskip("ray")

from prm_jax.integrations import ray as prm_ray  # noqa: E402
from prm_jax.jobs import ray_workers  # noqa: E402

pytestmark = pytest.mark.ray

# Right or wrong by the text; waits, raises, dies or never ends if it is told so;
# and tells which process it was.
VERIFIER = """
import os, pathlib, time
import prm_jax

LOG = pathlib.Path(__file__).with_name("calls")

def check(s):
  with open(LOG, "a") as f:
    f.write(f"{os.getpid()} {s.id}\\n")
  what = s.problem.split()[0]
  if what == "slow":
    time.sleep(0.05)
  while what == "waits":  # for another process
    if any(int(x.split()[0]) != os.getpid() for x in open(LOG)):
      break
    time.sleep(0.05)
  if pathlib.Path(__file__).with_name("mended").exists():
    what = "fine"
  if what == "raises":
    raise ValueError("no")
  if what == "kills":
    os._exit(9)
  if what == "hangs":
    time.sleep(1000)
  return [prm_jax.Verdict(len(x) % 2, "by its length") for x in s.steps]
"""


@pytest.fixture(scope="module")
def cluster():
  """A cluster with a machine of one CPU; each test may add others."""
  from ray import cluster_utils

  made = cluster_utils.Cluster(
    initialize_head=True,
    head_node_args=dict(num_cpus=1, include_dashboard=False),
  )
  ray.init(made.address, log_to_driver=False)
  yield made
  ray.shutdown()
  made.shutdown()


@pytest.fixture(scope="module")
def two(cluster):
  """A cluster with room for two workers."""
  if ray.cluster_resources()["CPU"] < 3:
    cluster.add_node(num_cpus=2)
  return cluster


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  return random_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture
def verifier(tmp_path):
  path = tmp_path / "verifier.py"
  path.write_text(VERIFIER)
  return path


def _solutions(path, names):
  """Writes a solution for each name, and returns its file."""
  files.write_records(
    path,
    [
      dict(id=str(i), problem=f"{name} {i // 2}", steps=["a", "b" * (i % 3)])
      for i, name in enumerate(names)
    ],
  )
  return path


def _calls(verifier):
  """Returns process and id of each call of the verifier."""
  log = verifier.with_name("calls")
  lines = log.read_text().splitlines() if log.exists() else []
  return [tuple(line.split()) for line in lines]


def _verified(verifier, output, solutions, **options):
  verb = prm_jax.LabelVerify(f"{verifier}:check")
  verb.run(label_job.LabelJob(solutions, output, **options))
  return output.read_bytes()


def _meanwhile(work):
  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  return thread


def _until(condition, seconds=60):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "waited in vain"
    time.sleep(0.02)


# --- A cluster that grows, before any test makes it grow ---------------------


@pytest.mark.slow
def test_a_worker_that_is_added_takes_its_part(cluster, verifier, tmp_path):
  names = ["slow"] * 60
  names[20] = "waits"
  given = _solutions(tmp_path / "given.jsonl", names)
  output = tmp_path / "out.jsonl"

  # Ray adds a machine in the main thread alone.
  with futures.ThreadPoolExecutor() as pool:
    job = pool.submit(
      *(_verified, verifier, output, given),
      batch=4,
      engine=_engine(workers=2),
    )
    _until(lambda: len(_calls(verifier)) > 10)
    cluster.add_node(num_cpus=2)
    got = job.result()
  calls = _calls(verifier)
  assert len({pid for pid, _ in calls}) == 2 and len(calls) == 60
  assert got == _verified(verifier, tmp_path / "local.jsonl", given, batch=4)


# --- The same bytes --------------------------------------------------------------


RULES = dict(
  best_of_n=rules.BestOfN(num=2),
  beam=rules.Beam(keep=2, expand=2),
  rebase=rules.Rebase(width=4),
)


def _verb(name, models):
  sampling = prm_jax.Sampling(max_tokens=12, temperature=1.0)
  policy = str(models / "policy")
  if name == "score":
    return prm_jax.Score(str(models / "prm"))
  if name == "sample":
    return prm_jax.Sample(policy, n=3, sampling=sampling)
  if name == "monte_carlo":
    return prm_jax.MonteCarlo(policy, sampling=sampling, completions=2)
  if name == "cpmi":
    return prm_jax.CPMI(policy, force="answer")
  if name == "omega_prm":
    return prm_jax.OmegaPRM(
      policy, sampling=sampling, completions=2, root_rollouts=4
    )
  if name == "judge":
    return prm_jax.Judge(policy, sampling=sampling, votes=2, keep_texts=True)
  if name == "verify":
    return prm_jax.LabelVerify("arithmetic")
  models_of = dict(policy=policy, scorer=str(models / "prm"), sampling=sampling)
  if name == "verify run":
    return prm_jax.Verify(threshold=0.5, attempts=3, **models_of)
  return search.by(type(RULES[name]))(rule=RULES[name], **models_of)


@pytest.mark.parametrize(
  "name",
  [
    *("verify", "score"),
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in (
        *("sample", "monte_carlo", "omega_prm", "cpmi", "judge"),
        *("verify run", *RULES),
      )
    ),
  ],
)
def test_a_cluster_writes_the_bytes_of_one_process(name, two, models, tmp_path):
  given = tmp_path / "given.jsonl"
  records = [
    dict(id=str(i), problem=f"what is {i // 2}", reference_answer=str(i // 2))
    | dict(steps=["1 + 1 = 2", "2 + 2 = 5", f"Answer: {i // 2 * (i % 2)}"])
    for i in range(8)
  ]
  if name in ("sample", "verify run", *RULES):
    records = [dict(x, steps=None) for x in records]
    records = [{k: v for k, v in x.items() if v is not None} for x in records]
    for x in records:
      x.pop("reference_answer")
      x["problem"] += f" and {x['id']}"
  files.write_records(given, records)
  found = []
  for engine in ("local", "ray"):
    output = tmp_path / f"{engine}.jsonl"
    verb = _verb(name, models)
    # Another number of workers: what is written doesn't depend on it.
    more = dict(engine=_engine(workers=2)) if engine == "ray" else {}
    verb.run(type(verb).job(given, output=output, batch=2, **more))
    found.append(output.read_bytes())
  assert found[0] == found[1] and len(found[0].splitlines()) >= 3


def _engine(**options):
  from prm_jax.jobs import workers

  return workers.Engine("ray", **options)


@pytest.mark.slow
def test_a_pipeline_of_rays_has_the_scores_of_the_command(
  two, models, tmp_path
):
  given = _solutions(tmp_path / "given.jsonl", ["what"] * 9)
  verb = prm_jax.Score(str(models / "prm"))
  verb.run(prm_jax.Score.job(given, output=tmp_path / "scores.jsonl"))
  expected = [x for _, x in files.read_records(tmp_path / "scores.jsonl")]
  scored = prm_ray.mapped(
    ray.data.read_json(str(given)), verb, workers=1, batch=16
  )
  scored.write_parquet(str(tmp_path / "parquet"))
  rows = ray.data.read_parquet(str(tmp_path / "parquet")).take_all()
  found = sorted(rows, key=lambda x: int(x["id"]))
  assert [x["id"] for x in found] == [x["id"] for x in expected]
  for a, b in zip(found, expected):
    assert list(a["step_scores"]) == pytest.approx(b["step_scores"], abs=1e-6)


# --- What dies ----------------------------------------------------------------------


def test_a_killed_worker_costs_its_batch_alone(two, verifier, tmp_path, caplog):
  given = _solutions(tmp_path / "given.jsonl", ["slow"] * 80)
  output = tmp_path / "out.jsonl"

  def kill():
    _until(lambda: len(_calls(verifier)) > 20)
    os.kill(int(_calls(verifier)[-1][0]), signal.SIGKILL)

  thread = _meanwhile(kill)
  got = _verified(
    *(verifier, output, given), batch=4, engine=_engine(workers=2)
  )
  thread.join()
  assert "a worker died" in caplog.text
  # Its batch, and the next one, which may have begun.
  assert 80 < len(_calls(verifier)) <= 88
  assert got == _verified(verifier, tmp_path / "local.jsonl", given, batch=4)


@pytest.mark.slow
def test_a_killed_driver_loses_nothing_and_does_nothing_twice(
  two, verifier, tmp_path
):
  given = _solutions(tmp_path / "given.jsonl", ["slow"] * 120)
  output = tmp_path / "out.jsonl"
  command = (
    f"-m prm_jax label verify --verifier={verifier}:check --input={given}"
    f" --output={output} --batch=4 --engine=ray"
  )
  environment = os.environ | dict(RAY_ADDRESS=two.address)
  driver = subprocess.Popen(
    [sys.executable, *command.split()],
    env=environment,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  path = journal.path_of(output)
  _until(lambda: path.exists() and path.read_bytes().count(b"\n") > 5)
  driver.kill()
  driver.wait()
  kept = [x for _, x in files.read_records(path)][1:]
  done = {id_ for x in kept if "ids" in x for id_ in x["ids"]}
  before = len(_calls(verifier))
  got = _verified(
    *(verifier, output, given), batch=4, engine=_engine(workers=2)
  )
  after = {id_ for _, id_ in _calls(verifier)[before:]}
  assert done and not done & after
  assert got == _verified(verifier, tmp_path / "local.jsonl", given, batch=4)


@pytest.mark.slow
def test_what_is_at_fault_is_set_aside_with_its_reason(two, verifier, tmp_path):
  names = ["fine"] * 24
  names[3], names[9], names[17] = "raises", "kills", "hangs"
  given = _solutions(tmp_path / "given.jsonl", names)
  output = tmp_path / "out.jsonl"
  options = dict(
    batch=4, engine=_engine(workers=2, worker_batch_s=3, worker_deaths=2)
  )
  with pytest.raises(errors.InputError, match="3 of 24 solutions failed"):
    _verified(verifier, output, given, **options)
  aside = tmp_path / "out.jsonl.set_aside.jsonl"
  reasons = {x["id"]: x["reason"] for _, x in files.read_records(aside)}
  assert set(reasons) == {"3", "9", "17"}
  assert "ValueError: no" in reasons["3"]
  assert "died" in reasons["9"] and "3 s of" in reasons["17"]
  assert len(output.read_bytes().splitlines()) == 21
  verifier.with_name("mended").touch()
  before = len(_calls(verifier))
  got = _verified(verifier, output, given, **options)
  assert {x for _, x in _calls(verifier)[before:]} == {"3", "9", "17"}
  assert not aside.exists()
  assert got == _verified(verifier, tmp_path / "local.jsonl", given, batch=4)


# --- Refused ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_all_of_whose_records_fail_ends_early(two, verifier, tmp_path):
  given = _solutions(tmp_path / "given.jsonl", ["raises"] * 60)
  with pytest.raises(errors.InputError, match="17 records failed in a row"):
    _verified(
      *(verifier, tmp_path / "out.jsonl", given),
      batch=8,
      engine=_engine(workers=2),
    )
  assert len(_calls(verifier)) < 60


def test_a_worker_of_another_version_is_refused(
  two, verifier, tmp_path, monkeypatch
):
  given = _solutions(tmp_path / "given.jsonl", ["fine"])
  known = ray_workers.about()
  monkeypatch.setattr(ray_workers, "about", lambda: known | dict(jax="0.1"))
  with pytest.raises(errors.InputError, match=r"has jax .*, and this process"):
    _verified(
      *(verifier, tmp_path / "out.jsonl", given), engine=_engine(workers=1)
    )


def test_what_a_worker_cant_open_is_said_as_in_one_process(two, tmp_path):
  given = _solutions(tmp_path / "given.jsonl", ["fine"])
  verb = prm_jax.Score(str(tmp_path / "none"))
  said = []
  for more in ({}, dict(engine=_engine(workers=1))):
    with pytest.raises(errors.InputError) as error:
      verb.run(prm_jax.Score.job(given, output=tmp_path / "out", **more))
    said.append(str(error.value))
  assert said[0] == said[1]


@pytest.mark.slow
def test_no_cluster_at_an_address_is_one_line(verifier, tmp_path):
  given = _solutions(tmp_path / "given.jsonl", ["fine"])
  command = (
    f"-m prm_jax label verify --verifier={verifier}:check --input={given}"
    f" --output={tmp_path / 'out'} --engine=ray://localhost:1"
  )
  environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
  done = subprocess.run(
    [sys.executable, *command.split()],
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 1
  (line,) = done.stderr.strip().splitlines()
  assert "no Ray cluster answers there" in line and "Traceback" not in line
