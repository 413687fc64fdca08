"""`prm-jax serve`: what it refuses, and a real process from start to end."""

import dataclasses
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import random_models
import soak
import soak_client

import prm_jax
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import flags
from prm_jax.cli import main
from prm_jax.serving import models
from prm_jax.serving import serve
from prm_jax.serving import server as server_lib
from prm_jax.serving import server_limits
from prm_jax.text import segmenters

SMALL = ["--max_tokens=64", "--max_batch_tokens=64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return random_models.write(tmp_path_factory.mktemp("models"))


def _cut_by_line(folder):
  """Returns a copy of the PRM whose checkpoint says how a text is cut."""
  path = folder / "lines"
  if not path.exists():
    shutil.copytree(folder / "prm", path)
    description = model_json.read_description(path)
    line = segmenters.parse("line")
    model_json.write_description(
      path, dataclasses.replace(description, segmenter=line)
    )
  return path


@pytest.fixture
def no_server(monkeypatch):
  """Fails if a server is started."""
  monkeypatch.setattr(server_lib, "run", lambda *_: pytest.fail("it runs"))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (["--checkpoint=nothing"], "no such folder"),
    (["--checkpoint={policy}"], "an sft model, which has no scores"),
    (["--checkpoint={prm},"], "an entry is empty"),
    (["--checkpoint={prm},{prm}"], "two models are named 'prm'"),
    (["--checkpoint={prm}", "--host=0.0.0.0"], "without a key"),
    (["--checkpoint={prm}", "--host=192.0.2.1", "--insecure"], "can't listen"),
    (["--checkpoint={prm}", f"--host={'x' * 70}"], "without a key"),
    (
      ["--checkpoint={prm}", "--insecure", f"--host={'x' * 70}"],
      "can't listen",
    ),
    (["--checkpoint={prm}", "--port=99999"], "can't listen"),
    (["--checkpoint={prm}", "--key_variable=NO_KEY"], "holds no key"),
    (["--checkpoint={prm}", "--key_variable=HALF_KEY"], "an empty one"),
    (["--checkpoint={prm}", "--key_variable=LATIN_KEY"], "signs of ASCII"),
    (["--checkpoint=http://127.0.0.1:9/v1"], "give it a name"),
    (["--checkpoint=a=b.py"], "which function of it"),
    (["--checkpoint={prm},nothing.py:f"], "nothing.py"),
    (["--checkpoint=nothing.json"], "nothing.json"),
    (["--checkpoint=math:exp,math:exp"], "two models are named 'exp'"),
    (["--checkpoint={prm}", "--segmenter=lines"], "segmenter='lines'"),
    (["--checkpoint={lines}", "--segmenter=sentence"], "of 'lines' says that"),
    (["--checkpoint={prm}", "--insecure_key"], "--insecure_key is for what"),
    (["--checkpoint=math:exp", "--segmenter=lines"], "segmenter='lines'"),
    (["--checkpoint=math:exp", "--segmenter=tokens:4"], "no tokenizer"),
    (
      ["--checkpoint=x=http://192.0.2.1/v1", "--upstream_key_variable=HOME"],
      "--insecure_key",
    ),
    (["--checkpoint=math:exp", "--max_batch_solutions=0"], "max_batch_sol"),
    (["--checkpoint={prm}", "--max_tokens=0"], "max_tokens"),
    (["--checkpoint={prm}", "--reload_s=-1"], "reload_s"),
    (["--checkpoint={prm}", "--cache_tokens=-1"], "cache_tokens"),
  ],
  ids=lambda x: x[-1][-22:] if isinstance(x, list) else "",
)
def test_what_cant_be_served_is_refused_in_one_line(
  folder, no_server, monkeypatch, capsys, options, words
):
  monkeypatch.setenv("HALF_KEY", "a,,b")
  monkeypatch.setenv("LATIN_KEY", "secret,s\u00e9cret1")
  monkeypatch.delenv("NO_KEY", raising=False)
  places = dict(
    policy=folder / "policy", prm=folder / "prm", lines=_cut_by_line(folder)
  )
  argv = ["serve", *(option.format(**places) for option in options)]
  assert main.main(argv) == 1
  err = capsys.readouterr().err
  assert words in err
  assert err.count("\n") == 1


def test_a_limit_is_an_option_unless_it_is_for_python_alone():
  options = {*flags.options(serve.Serve)}
  names = {field.name for field in dataclasses.fields(server_limits.Limits)}
  alone = {"max_body_bytes", "max_bodies_bytes", "max_items", "max_steps"}
  assert names - options == {*alone, "read_s"}
  assert "limits" not in options


def test_a_port_in_use_is_refused(folder, no_server, capsys):
  with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    assert main.main(["serve", f"--checkpoint={folder}/prm", f"--port={port}"])
  assert f"--port={port}: can't listen there" in capsys.readouterr().err


def test_entries_of_every_kind_are_served_under_their_names(
  folder, monkeypatch
):
  served = []
  monkeypatch.setattr(
    server_lib, "run", lambda server, *_: served.append(server)
  )
  entries = f"math:exp,{folder}/prm, log=math:log"
  options = ["--port=0", "--segmenter=line", "--max_batch_solutions=3", *SMALL]
  assert main.main(["serve", f"--checkpoint={entries}", *options]) == 0
  exp, prm, log = served[0].models.values()
  assert len(prm.cut("1?", "a\nb", "").steps) == 2
  assert [*served[0].models] == ["exp", "prm", "log"]
  assert [x.kind for x in (exp, prm, log)] == ["function", "prm", "function"]
  assert [len(exp.cut("1?", text, "").steps) for text in ("a\nb", "c")] == [
    2,
    1,
  ]
  assert log.limits.max_batch_tokens == 3
  assert log.fingerprint != exp.fingerprint


@pytest.mark.parametrize("name", ["line", "sentence"])
def test_a_checkpoint_that_says_how_texts_are_cut_keeps_it(
  folder, monkeypatch, name
):
  served = []
  monkeypatch.setattr(
    server_lib, "run", lambda server, *_: served.append(server)
  )
  entries = f"{_cut_by_line(folder)},{folder}/prm,math:exp"
  words = [f"--checkpoint={entries}", "--port=0", f"--segmenter={name}"]
  assert main.main(["serve", *words, *SMALL]) == 0
  text = "One. Two.\nThree"
  steps = [
    len(model.cut("1?", text, "").steps) for model in served[0].models.values()
  ]
  given = dict(line=2, sentence=3)[name]
  assert steps == [2, given, given]


def test_a_segmenter_is_of_the_fingerprint_and_of_later_saves(folder):
  small = server_limits.Limits(max_tokens=64, max_batch_tokens=64)
  line = segmenters.parse("line")
  model = models.load(folder / "prm", small, segmenter=line)
  alone = models.load(folder / "prm", small)
  assert alone.fingerprint != model.fingerprint
  newer = models.load_newer(dataclasses.replace(model, step=-1))
  assert newer is not None
  assert (newer.segmenter, newer.fingerprint) == (line, model.fingerprint)
  said = models.load(_cut_by_line(folder), small)
  again = models.load(_cut_by_line(folder), small, segmenter=line)
  assert again.fingerprint == said.fingerprint


@pytest.mark.parametrize("aggregate", ["min", "last"])
def test_an_aggregate_of_steps_that_arent_judged_is_warned_of(
  folder, tmp_path, caplog, aggregate
):
  shutil.copytree(folder / "prm", tmp_path / "orm")
  described = model_json.read_description(tmp_path / "orm")
  described = dataclasses.replace(described, judged="last", aggregate=aggregate)
  model_json.write_description(tmp_path / "orm", described)
  small = server_limits.Limits(max_tokens=64, max_batch_tokens=64)
  assert models.load(tmp_path / "orm", small).aggregate == aggregate
  warned = "min, reads steps that it isn't trained to judge" in caplog.text
  assert warned == (aggregate == "min")


def test_a_name_ends_before_what_it_names(tmp_path, monkeypatch):
  """Folders and addresses may hold a "=", and names a "/"."""
  monkeypatch.chdir(tmp_path)
  for folder in ("runs/lr=1", "lr=2"):
    pathlib.Path(folder).mkdir(parents=True)
  pathlib.Path("runs/lr=1/f.py").touch()
  for entry, name, where in (
    ("runs/lr=1", None, "runs/lr=1"),
    ("lr=2", None, "lr=2"),
    ("a=runs/lr=1", "a", "runs/lr=1"),
    ("a=lr=2", "a", "lr=2"),
    ("org/a = lr=2", "org/a", "lr=2"),
    ("runs/lr=1/f.py:g", None, "runs/lr=1/f.py:g"),
    ("a=runs/lr=1/f.py:g", "a", "runs/lr=1/f.py:g"),
    ("a=math:exp", "a", "math:exp"),
    ("a=http://h/v1?x=1", "a", "http://h/v1?x=1"),
    ("http://h/v1?x=1", None, "http://h/v1?x=1"),
    (f"a=http://h/v1?x={'1' * 300}", "a", f"http://h/v1?x={'1' * 300}"),
    ("math:exp", None, "math:exp"),
    ("=lr", None, "lr"),
    ("a=", "a", ""),
  ):
    assert serve._entry(entry) == (name, where), entry


def test_only_a_later_save_of_the_folder_is_loaded_anew(folder):
  small = server_limits.Limits(max_tokens=64, max_batch_tokens=64)
  model = models.load(folder / "prm", small, name="tiny")
  assert models.load_newer(model) is None
  newer = models.load_newer(dataclasses.replace(model, step=-1))
  assert newer is not None
  assert (newer.name, newer.step) == ("tiny", 0)
  assert newer.fingerprint == model.fingerprint


def test_the_container_and_its_deployment_give_options_that_there_are():
  folder = pathlib.Path(__file__).parents[2] / "launch" / "serve"
  lines = (folder / "Dockerfile").read_text().splitlines()
  words = {
    line.split()[0]: json.loads(line.partition(" ")[2])
    for line in lines
    if line.startswith(("ENTRYPOINT", "CMD"))
  }
  deployed = [
    line.strip().removeprefix("- ")
    for line in (folder / "kubernetes.yaml").read_text().splitlines()
    if line.strip().startswith("- --")
  ]
  assert words["ENTRYPOINT"][0] == "prm-jax"
  for options in (words["CMD"], deployed):
    args = main._parser().parse_args([*words["ENTRYPOINT"][1:], *options])
    verb, _ = flags.value(serve.Serve, vars(args))
    assert (verb.host, verb.port) == ("0.0.0.0", 8000)
    assert verb.key_variable == "PRM_JAX_KEY"
  text = (folder / "kubernetes.yaml").read_text()
  grace = int(text.partition("terminationGracePeriodSeconds: ")[2].split()[0])
  assert grace > verb.limits.deadline_s + 10


@pytest.mark.faults
def test_a_process_answers_with_a_key_and_ends_with_0_at_sigterm(
  folder, tmp_path, monkeypatch
):
  monkeypatch.setenv("SERVE_KEY", "secret")
  solutions = [schema.Solution("a", "1 + 1?", ("1 + 1 = 2", "answer 2"))]
  (expected,) = prm_jax.load(folder / "prm").score(solutions)
  log = tmp_path / "log"
  with log.open("w") as file:
    process = subprocess.Popen(
      [
        *(sys.executable, "-m", "prm_jax", "serve", *SMALL),
        *(f"--checkpoint=tiny={folder}/prm", "--port=0"),
        "--key_variable=SERVE_KEY",
      ],
      stdout=subprocess.PIPE,
      stderr=file,
      text=True,
    )
    try:
      assert process.stdout is not None
      begun = process.stdout.readline() + process.stdout.readline()
      url = begun.split(": ")[0]
      score = prm_jax.load_score(url, key_variable="SERVE_KEY")
      (row,) = score(solutions)
      process.send_signal(signal.SIGTERM)
      out, _ = process.communicate(timeout=60)
    finally:
      process.kill()
  first, second = begun.splitlines()
  assert re.search(r"; compiling [1-9]\d* programs$", first)
  assert re.fullmatch(rf"{url}: compiled in \d+ s: ready", second)
  assert f"; {url.removesuffix('v1')} is a page to try it;" in first
  assert row.scores == pytest.approx(expected.scores, abs=1e-5)
  assert process.returncode == 0
  assert out == f"{url}: ended\n"
  assert "secret" not in begun + out + log.read_text()


@pytest.mark.faults
def test_clients_that_are_killed_leave_nothing_behind():
  """`make soak` in short."""
  counts = soak.run(minutes=0.1, num_clients=3, seed=0)
  assert counts["killed"] > 3
  assert counts["replies"] > 10


def test_a_wrong_reply_is_found():
  right = json.dumps(dict(data=[dict(step_scores=[0.5, 0.25])])).encode()
  assert soak_client.fault(200, right, [[0.5, 0.25]]) == ""
  assert "off" in soak_client.fault(200, right, [[0.5, 0.26]])
  assert "[2] scores, not [1]" in soak_client.fault(200, right, [[0.5]])
  assert "status 503" in soak_client.fault(503, b"{}", [[0.5]])
