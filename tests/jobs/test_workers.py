"""Who does the batches of a job, and what becomes of those that fail."""

import contextlib
import dataclasses
import logging
import os
import pickle
import signal
import sys
import types

import pytest
import random_models

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import ray_workers
from prm_jax.jobs import workers
from prm_jax.labelling import label_job
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.runtime import preemption
from prm_jax.runtime import progress

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
    (dict(where="ray", worker_resource=("a=1", "a=2")), "a is given twice"),
    (
      dict(where="ray", worker_resource=("GPU=1",)),
      "give `worker_gpus` in its",
    ),
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

  return workers.Worker(lambda: dict(model="m"), lambda tell: work)


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


# --- What dies, by a Ray of this process ---------------------------------------------


@dataclasses.dataclass(eq=False)
class _Ref:
  """What a call of an actor will return."""

  actor: types.SimpleNamespace
  batch: list[schema.Solution] | None
  is_done: bool = False
  value: object = None
  error: Exception | None = None


class _FakeRay:
  """Ray as far as the driver knows it: actors whose work a test gives.

  What an actor has to do it does while it is waited for. It dies of a work that
  raises SystemExit. Of what is there the last is told first.
  """

  def __init__(self, work, refuses=None):
    base = type("RayError", (Exception,), {})
    names = ("RayTaskError", "RayActorError", "WorkerCrashedError")
    names += ("NodeDiedError", "OutOfMemoryError", "ObjectLostError")
    names += ("ObjectStoreFullError", "OutOfDiskError", "GetTimeoutError")
    self.exceptions = types.SimpleNamespace(
      RayError=base, **{name: type(name, (base,), {}) for name in names}
    )
    self.cloudpickle = pickle
    self.is_initialized = lambda: True
    self._work, self._refuses = work, refuses

  def remote(self, **options):
    if self._refuses:
      raise self._refuses
    return lambda kind: types.SimpleNamespace(remote=self._actor)

  def _actor(self):
    actor = types.SimpleNamespace(is_dead=False)
    about = dict(depends_on={}, compute_dtype={}, host="here", said=[])

    def ref(batch=None):
      return _Ref(actor, batch)

    def opened(*_):
      made = ref()
      made.is_done, made.value = True, about
      return made

    actor.open = types.SimpleNamespace(remote=opened)
    actor.work = types.SimpleNamespace(remote=ref)
    return actor

  def wait(self, refs, num_returns, timeout):
    for ref in refs:
      if not ref.is_done:
        self._do(ref)
    return refs[-1:], refs[:-1]

  def _do(self, ref):
    ref.is_done = True
    try:
      if ref.actor.is_dead:
        raise SystemExit
      ref.value = self._work(ref.batch), {}
    except SystemExit:
      ref.actor.is_dead = True
      ref.error = self.exceptions.RayActorError("died")
    except ValueError as e:
      ref.error = self.exceptions.RayTaskError(str(e))
      ref.error.cause = e

  def get(self, ref, timeout=None):
    if ref.error is not None:
      raise ref.error
    return ref.value

  def kill(self, actor):
    actor.is_dead = True

  def cluster_resources(self):
    return {"CPU": 8.0, "GPU": 1.0, "memory": 1e9, "node:here": 1.0}

  def available_resources(self):
    return {"CPU": 2.0, "memory": 1e9}


@pytest.fixture
def on_ray(monkeypatch):
  """Returns what is done of batches, and the ids of each call."""

  def run(batches, raises=(), kills=(), **options):
    calls = []

    def work(batch):
      calls.append([s.id for s in batch])
      for s in batch:
        if s.id in kills:
          raise SystemExit
        if s.id in raises:
          raise ValueError(f"no {s.id}")
      return batch

    fake = _FakeRay(work)
    monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
    engine = workers.Engine("ray", workers=1, **options)
    verb = prm_jax.LabelVerify("arithmetic")
    with ray_workers._Pool(engine, verb) as pool:
      pool.opened()
      return list(pool.work(iter(batches))), calls

  return run


def _of(*ids):
  return [schema.Solution(str(i), f"problem {i}", ("a",)) for i in ids]


def _ids(done, kind):
  return sorted(int(s.id) for x in done if isinstance(x, kind) for s in x.batch)


@pytest.mark.parametrize("deaths", [3, 15])
def test_one_worker_finds_the_records_of_a_large_batch_that_kill_it(
  on_ray, deaths
):
  kills = ("0", "1") if deaths == 3 else ("0",)
  done, _ = on_ray([_of(*range(2048))], kills=kills, worker_deaths=deaths)
  assert _ids(done, journal.Failed) == [int(x) for x in kills]
  assert _ids(done, journal.Finished) == [
    i for i in range(2048) if str(i) not in kills
  ]


def test_workers_that_all_die_end_the_job(on_ray):
  with pytest.raises(errors.InputError, match="workers died in a row"):
    on_ray([_of(i) for i in range(90)], kills=list(map(str, range(90))))


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_to_a_record_only_deaths_of_its_own_are_counted(on_ray, deaths):
  done, calls = on_ray([_of(0, 1)], kills=("1",), worker_deaths=deaths)
  assert _ids(done, journal.Failed) == [1]
  assert calls.count(["1"]) == deaths


def test_what_raised_isnt_blamed_for_a_death_after_it(on_ray):
  done, calls = on_ray([_of(0), _of(1)], raises=("0",), kills=("1",))
  reasons = {x.batch[0].id: x.reason for x in done}
  assert reasons["0"] == "ValueError: no 0" and "died" in reasons["1"]
  assert calls.count(["0"]) == 1


def test_workers_load_while_the_input_is_read(monkeypatch, models, tmp_path):
  fake, order = _FakeRay(lambda batch: pytest.fail("no input yet")), []
  start, wait = fake._actor, fake.wait
  fake._actor = lambda: order.append("begin") or start()
  fake.wait = lambda *a, **k: order.append("wait") or wait(*a, **k)
  monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
  path = tmp_path / "given.jsonl"
  path.write_text("{}\n")
  verb = prm_jax.Score(str(models / "prm"))
  job = prm_jax.Score.job(
    path, output=tmp_path / "out", engine=workers.Engine("ray")
  )
  with pytest.raises(errors.InputError, match=r"given\.jsonl:1"):
    verb.run(job)
  assert order == ["begin", "begin"]


def test_in_one_process_nothing_is_loaded_before_it_is_asked_for():
  order = []

  @contextlib.contextmanager
  def opening():
    order.append("opened")
    yield workers.here(dict, lambda batch, tell: (batch, {}), dict(a="float32"))
    order.append("closed")

  with workers.when_asked(opening()) as worker:
    assert not order
    assert worker.compute_dtype() == dict(a="float32")
    assert worker.do(_of(1)).results == _of(1)
    assert order == ["opened"]
  assert order == ["opened", "closed"]


def test_what_is_done_waits_for_no_worker_in_a_dead_ones_place(monkeypatch):
  def dies(batch):
    raise SystemExit

  fake = _FakeRay(dies)
  monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
  engine = workers.Engine("ray", workers=1, worker_deaths=1)
  with ray_workers._Pool(engine, prm_jax.LabelVerify("arithmetic")) as pool:
    pool.opened()
    done = pool.work(iter([_of(0)]))
    assert isinstance(next(done), journal.Failed)
    fake.wait = lambda *_, **__: pytest.fail("waited")
    assert list(done) == []


def test_what_no_worker_can_begin_without_is_said(monkeypatch):
  monkeypatch.setattr(ray_workers, "_ray", lambda: _FakeRay(None))
  engine = workers.Engine(
    "ray", worker_gpus=2, worker_resource=("spot=1", "TPU=4")
  )
  pool = ray_workers._Pool(engine, prm_jax.LabelVerify("arithmetic"))
  assert (
    "or waits for 1 CPU, 2 GPU, 4 TPU, 1 spot; free in the cluster: 2 CPU, of"
    " 8 CPU, 1 GPU"
  ) in pool._waiting()


def test_what_ray_cant_reserve_is_one_line(monkeypatch):
  refuses = ValueError("GPU quantities >1 must", " be whole\nnumbers")
  monkeypatch.setattr(ray_workers, "_ray", lambda: _FakeRay(None, refuses))
  engine = workers.Engine("ray", worker_gpus=1.5)
  pool = ray_workers._Pool(engine, prm_jax.LabelVerify("arithmetic"))
  with (
    pytest.raises(
      errors.InputError,
      match=r"can't reserve 1 CPU, 1.5 GPU .*: GPU quantities >1 must be whole$",
    ),
    pool,
  ):
    pass


def test_another_cluster_than_the_connected_one_is_refused(monkeypatch):
  fake = types.SimpleNamespace(is_initialized=lambda: True)
  monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
  with ray_workers._connected("ray"):
    pass
  with (
    pytest.raises(errors.InputError, match="is connected to a Ray cluster"),
    ray_workers._connected("ray://elsewhere:10001"),
  ):
    pass


def _until_sigterm(monkeypatch, **replaced):
  """Opens workers of a Ray that has its own handler of SIGTERM."""
  fake = _FakeRay(None)
  connected = []
  fake.is_initialized, fake.shutdown = lambda: bool(connected), connected.clear

  def init(*_, **__):
    connected.append(1)
    signal.signal(signal.SIGTERM, _exit)

  fake.init = init
  vars(fake).update(replaced)
  monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
  before = signal.getsignal(signal.SIGTERM)
  verb = prm_jax.LabelVerify("arithmetic")
  with (
    pytest.raises(preemption.PreemptedError),
    ray_workers.opened(workers.Engine("ray"), verb) as worker,
  ):
    worker.depends_on()
  assert signal.getsignal(signal.SIGTERM) is before


def _exit(*_):
  sys.exit(15)


def _asked(refs, **_):
  os.kill(os.getpid(), signal.SIGTERM)
  return [], refs


def test_sigterm_while_a_worker_is_waited_for_is_notice(monkeypatch):
  _until_sigterm(monkeypatch, wait=_asked)


def test_sigterm_while_ray_connects_is_notice(monkeypatch):
  _until_sigterm(monkeypatch, init=lambda *_, **__: _exit())


@pytest.mark.parametrize("said", ["the client is shut down", "Ray has ended"])
def test_a_lost_connection_is_one_line_and_begins_no_other_cluster(
  said, monkeypatch
):
  fake = _FakeRay(None)
  connected = []

  def lose(refs, **_):
    assert connected, "Ray would begin a cluster here"
    connected.clear()
    if "client" in said:
      raise ConnectionError(said)
    return [], refs

  fake.init = lambda *_, **__: connected.append(1)
  fake.is_initialized = lambda: bool(connected)
  fake.wait, fake.shutdown = lose, connected.clear
  fake.kill = lambda actor: pytest.fail("Ray would begin a cluster here")
  monkeypatch.setattr(ray_workers, "_ray", lambda: fake)
  engine = workers.Engine("ray://host:10001")
  with (
    pytest.raises(
      errors.InputError, match=f"was lost: {said}.*; what was done is kept"
    ),
    ray_workers.opened(engine, prm_jax.LabelVerify("arithmetic")) as worker,
  ):
    worker.depends_on()


@dataclasses.dataclass
class _Says:
  """A verb that says something when its models are loaded."""

  @contextlib.contextmanager
  def working(self):
    progress.log("all samples are equal")
    yield workers.here(dict, lambda batch, tell: (batch, {}))


def test_what_a_worker_says_when_it_opens_comes_to_the_driver(monkeypatch):
  logger = logging.getLogger("prm_jax")
  level = logger.level
  try:
    found = ray_workers._Process().open(pickle.dumps(_Says()), {}, "")
  finally:
    logger.setLevel(level)
  assert found["said"] == ["all samples are equal"]


def test_other_code_of_the_same_version_is_another_version(
  monkeypatch, tmp_path
):
  found = []
  for text in ("a = 1", "a = 2", "a = 1"):
    (tmp_path / "part.py").write_text(text)
    monkeypatch.setattr(
      ray_workers._version, "__file__", str(tmp_path / "_version.py")
    )
    found.append(ray_workers.about()["prm_jax"])
  assert found[0] == found[2] != found[1]


# --- A pipeline's table ---------------------------------------------------------------


def test_a_field_that_only_later_records_have_is_a_column_too():
  pyarrow = pytest.importorskip("pyarrow")
  from prm_jax.integrations import ray as prm_ray

  names = dict(id=["a", "b"], problem=["p", "q"], steps=[["1 + 1 = 2"], ["x"]])
  table = pyarrow.table({**names, "made_by": [None, dict(name="me", age=None)]})
  found = prm_ray.Worker(prm_jax.LabelVerify("arithmetic"))(table).to_pylist()
  assert [x["made_by"] for x in found] == [None, dict(name="me", age=None)]
  assert found[0]["verified"]["labels"] == [1.0]


def test_what_sigterm_keeps_is_counted_in_the_unit_of_the_job(tmp_path, caplog):
  def work(batches):
    for batch in batches:
      yield journal.Finished(batch, batch, {})
      os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(preemption.PreemptedError):
    journaled.run(
      *(journaled.Job(batch=3), tmp_path / "out.jsonl", SOLUTIONS, {}),
      workers.Worker(dict, lambda tell: work),
      doing="work",
      unit="problem",
      first="first",
      so_far=str,
    )
  assert "SIGTERM: keeps 3 of 7 problems" in caplog.text


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


def test_weights_are_read_for_a_fingerprint_only_where_a_journal_needs_it(
  models, tmp_path, monkeypatch
):
  def refused(folder, params):
    raise AssertionError("all weights were read")

  monkeypatch.setattr(model_json, "fingerprint", refused)
  solutions, problems = (
    tmp_path / "solutions.jsonl",
    tmp_path / "problems.jsonl",
  )
  jsonl.write_solutions(solutions, SOLUTIONS)
  jsonl.write_problems(problems, [schema.Problem("0", "what", None)])
  score = prm_jax.Score(str(models / "prm"))
  score.run(prm_jax.Score.job(solutions, output=tmp_path / "scores.jsonl"))
  sampling = prm_jax.Sampling(max_tokens=8, temperature=1.0)
  sample = prm_jax.Sample(str(models / "policy"), n=1, sampling=sampling)
  sample.run(prm_jax.Sample.job(problems, output=tmp_path / "samples.jsonl"))
  for verb in (score, sample):
    with verb.working() as worker, pytest.raises(AssertionError):
      worker.depends_on()
