"""A run takes its rewards from functions, files, folders and URLs.

The functions, the server and the config are those of docs/rewards.md.
"""

import http.server
import json
import pathlib
import re
import shutil
import socket
import sys
import threading

import ml_collections
import pytest
import rl_tiny

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import saves
from prm_jax.rl import experience
from prm_jax.rl import reward_record
from prm_jax.rl import rl_run
from prm_jax.rl import roles as roles_lib
from prm_jax.rl import tasks
from prm_jax.runtime import files

pytestmark = pytest.mark.usefixtures("one_device", "equal_programs")

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "rewards.md"
FUNCTIONS, *SETTINGS, SERVER, FROM_PYTHON = re.findall(
  r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S
)


@pytest.fixture(scope="module")
def server():
  """The page's server, of a model whose name can be changed."""
  names = {}
  exec(SERVER, names)
  handler = names["Handler"]
  handler.log_message = lambda *_: None
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = free.getsockname()
  served = http.server.ThreadingHTTPServer(address, handler)
  served.url = f"http://127.0.0.1:{address[1]}/v1"
  threading.Thread(
    target=served.serve_forever, args=(0.01,), daemon=True
  ).start()
  yield served
  served.shutdown()
  served.server_close()


@pytest.fixture(scope="module")
def world(tmp_path_factory, server):
  """A folder with all that the page's names stand for, and its config."""
  folder = tmp_path_factory.mktemp("world")
  (folder / "my_rewards.py").write_text(FUNCTIONS)
  (folder / "src" / "my_package").mkdir(parents=True)
  (folder / "src" / "my_package" / "rewards.py").write_text(FUNCTIONS)
  rl_tiny.save(folder / "runs" / "demo" / "prm", "prm", "step", seed=1)
  c = ml_collections.ConfigDict(dict(rewards={}, problems={}))
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setenv("PRM_KEY", "sk-secret")
    patch.syspath_prepend("src")
    for lines in SETTINGS:
      exec(lines.replace("http://localhost:8000/v1", server.url), dict(c=c))
    fields = c.to_dict()
    grader = fields.pop("problems")["grader"]
    fields["init_from"] = rl_tiny.save(folder / "policy")
    sources = rl_tiny.write_problems(folder)
    yield fields, sources, grader
  sys.modules.pop("my_package.rewards", None)


@pytest.fixture(scope="module")
def workdir(world, tmp_path_factory):
  """The workdir of a run of the page's config."""
  return _train(world, tmp_path_factory.mktemp("run"))


def _train(world, workdir, **changes):
  fields, sources, grader = world
  grader = changes.pop("grader", grader)
  config = rl_tiny.config(**dict(fit=dict(steps=2)) | fields | changes)
  rl_tiny.train(config, workdir, sources, grader)
  return workdir


def test_a_run_takes_its_rewards_from_all_kinds_of_names(world, workdir):
  fields, _, grader = world
  assert len(SETTINGS) == 4
  assert grader == "my_package.rewards:is_right"
  assert fields["rewards"] == dict(prm=1.0, outcome=0.5, verifier=1.0, orm=0.25)
  names = {}
  exec(FUNCTIONS, names)
  lines = (workdir / "samples.jsonl").read_text().splitlines()
  for record in map(json.loads, lines):
    s = schema.Solution(record["id"], record["problem"], tuple(record["steps"]))
    (scores,), (brevity,) = names["has_equation"]([s]), names["brevity"]([s])
    assert record["prm"] == scores
    reward = 0.25 * 0.5 * bool(s.steps) + 0.5 * brevity + record["right"]
    assert record["outcome_reward"] == pytest.approx(reward, rel=1e-5)
  for record in map(
    json.loads, (workdir / "metrics.jsonl").read_text().splitlines()
  ):
    assert record["outcome_score"] <= 0
    if record["kind"] == "train":
      assert 0 < record["heldout_prm"] < 1  # the checkpoint's
      assert record["prm_score"] != record["heldout_prm"]


def test_the_pages_function_ranks_solutions_from_python(world):
  names = dict(
    solutions=[
      schema.Solution(str(i), "p", (step,)) for i, step in enumerate(["a", "="])
    ]
  )
  exec(FROM_PYTHON, names)
  assert names["best"].id == "1"


def test_a_run_resumes_with_the_same_rewards_and_no_others(
  world, workdir, tmp_path, server, monkeypatch
):
  """A run that is refused makes no rollout, and leaves its files alone."""
  run = shutil.copytree(workdir, tmp_path / "run")
  rollouts = []
  monkeypatch.setattr(
    experience.Collector, "__call__", lambda *_: rollouts.append(1)
  )
  _train(world, run)  # nothing is left to do
  record = files.read_json(run / reward_record.RECORD)
  assert record.keys() == {*prm_fields(world), "problems.grader"}
  assert record["orm"]["model"] == "half"

  def refused(said, **changes):
    with pytest.raises(errors.InputError, match=said) as caught:
      _train(world, run, fit=dict(steps=3), **changes)
    assert "\n" not in str(caught.value)
    assert files.read_json(run / reward_record.RECORD) == record
    assert saves.saved_steps(run)[-1] == 2

  refused(r"run: prm\.function differ", prm="my_rewards.py:brevity")
  refused(r"problems\.grader differ", grader="rules")
  refused(r"run: held_out_prm differ", held_out_prm="")
  other = rl_tiny.save(tmp_path / "other", "prm", "step", seed=2)
  refused(r"run: held_out_prm\.sha256 differ", held_out_prm=other)
  monkeypatch.setattr(
    server.RequestHandlerClass, "do_POST", _as_model("another")
  )
  refused(r"run: orm\.model differ")
  monkeypatch.undo()
  path = pathlib.Path("my_rewards.py")
  path.write_text(f"{FUNCTIONS}# a word more\n")
  refused(r"run: outcome\.sha256, prm\.sha256 differ")
  path.write_text(FUNCTIONS)
  assert not rollouts
  # A file may be moved, but not taken away.
  moved = shutil.copy(path, tmp_path / "moved.py")
  _train(world, run, prm=f"{moved}:has_equation")
  assert files.read_json(run / reward_record.RECORD) == record
  (run / reward_record.RECORD).unlink()
  with pytest.raises(errors.InputError, match=reward_record.RECORD):
    _train(world, run)


def prm_fields(world):
  fields, _, _ = world
  return fields.keys() & {"prm", "orm", "held_out_prm", "outcome"}


def _as_model(name):
  def do_post(handler):
    body = handler.rfile.read(int(handler.headers["Content-Length"]))
    items = json.loads(body)["items"]
    data = [
      dict(index=i, step_scores=[0.5] * len(x["steps"]))
      for i, x in enumerate(items)
    ]
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(json.dumps(dict(model=name, data=data)).encode())

  return do_post


# --- What is refused ----------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "said"),
  [
    (
      dict(outcome="", rewards=dict(outcome=1.0)),
      "set outcome to the function",
    ),
    (dict(prm="rewards.py"), r"^prm: rewards\.py: which function of it"),
    (dict(prm="ftp://host/prm"), r"^prm: 'ftp://host/prm': expected a check"),
    (dict(orm="http://me:word@host/v1"), r"^orm: endpoint\.url: "),
    (dict(outcome="runs/prm"), r"^outcome: runs/prm: expected the name of a f"),
    (dict(outcome="http://host/v1"), "^outcome: http://host/v1: expected the"),
    (dict(prm="f.py:g", key_variable="K"), "key_variable='K': none of prm"),
    (
      dict(held_out_prm="http://host/v1", key_variable="K"),
      "^held_out_prm: .*K unencrypted",
    ),
    (dict(rewards=dict(outcome=-1.0)), r"rewards\.outcome=-1"),
    (dict(prm="p", score_dtype="int8"), "score_dtype='int8': expected one of"),
    (dict(prm="f.py:g", score_dtype="float32"), "'float32': none of prm, orm"),
  ],
)
def test_a_name_that_cant_be_meant_is_refused_before_anything_is_read(
  fields, said
):
  with pytest.raises(errors.InputError, match=said) as caught:
    rl_tiny.config(**fields)
  assert "word" not in str(caught.value)
  rl_tiny.config(
    held_out_prm="http://host/v1", key_variable="K", insecure_key=True
  )


def test_a_role_that_isnt_there_is_refused_in_one_line(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("f.py").write_text(
    "def last(solutions):\n  return [s.steps[-1] == 'a' for s in solutions]\n"
  )
  policy = rl_tiny.save(tmp_path / "policy")
  for fields, said in (
    (dict(prm="no/folder"), "no/folder: there is no such folder; expected a c"),
    (dict(prm="no.py:f"), "no.py: no such file"),
    (dict(outcome="f.py:first"), "f.py:first: no such function there"),
    (
      dict(outcome="f.py:last"),
      r"f\.py:last: f\.py:2: IndexError: tuple index out of range \(tried on a"
      " solution without a step",
    ),
    (dict(prm="policy"), "prm=policy: holds an sft"),
  ):
    config = rl_tiny.config(init_from=policy, **fields)
    with pytest.raises(errors.InputError, match=said):
      roles_lib.read_roles(config.roles)
  with (
    pytest.raises(errors.InputError, match=r"f\.py:last: f\.py:2: IndexError"),
    tasks.open_verifier("f.py:last"),
  ):
    pass


def test_a_verifier_of_ones_own_needs_no_right_answers(world, tmp_path):
  _, _, grader = world
  path = tmp_path / "problems.jsonl"
  files.write_records(path, [dict(id="a", problem="p")])
  config = rl_tiny.config(rewards=dict(verifier=1.0))
  problems, _ = tasks.read_problems(f"problems:{path}")
  with tasks.open_verifier(grader) as verifier:
    errors.raise_first(rl_run._misfits(config.rewards, problems, verifier))
    solution = schema.Solution(
      "a", "p", ("so", "answer 7"), extra=dict(reference_answer="7")
    )
    assert verifier.verify([solution]) == [True]
    assert verifier.find_answer(solution) == "7"


def test_the_public_name_is_the_one_of_the_page():
  assert prm_jax.load_score.__name__ in FROM_PYTHON
