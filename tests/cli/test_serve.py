"""`prm-jax serve`: what it refuses, and a real process from start to end."""

import dataclasses
import signal
import socket
import subprocess
import sys

import pytest
import random_models

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.serving import limits
from prm_jax.serving import models
from prm_jax.serving import server as server_lib

SMALL = ["--max_tokens=64", "--max_batch_tokens=64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return random_models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture
def no_server(monkeypatch):
  """Fails if a server is started."""
  monkeypatch.setattr(server_lib, "run", lambda *_: pytest.fail("it runs"))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (["--checkpoint=nothing"], "no such folder"),
    (["--checkpoint={policy}"], "sft model, which has no scores"),
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
    (["--checkpoint={prm}", "--max_tokens=0"], "max_tokens"),
    (["--checkpoint={prm}", "--reload_s=-1"], "reload_s"),
  ],
  ids=lambda x: x[-1][-22:] if isinstance(x, list) else "",
)
def test_what_cant_be_served_is_refused_in_one_line(
  folder, no_server, monkeypatch, capsys, options, words
):
  monkeypatch.setenv("HALF_KEY", "a,,b")
  monkeypatch.delenv("NO_KEY", raising=False)
  places = dict(policy=folder / "policy", prm=folder / "prm")
  argv = ["serve", *(option.format(**places) for option in options)]
  assert main.main(argv) == 1
  err = capsys.readouterr().err
  assert words in err
  assert err.count("\n") == 1


def test_a_port_in_use_is_refused(folder, no_server, capsys):
  with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    assert main.main(["serve", f"--checkpoint={folder}/prm", f"--port={port}"])
  assert f"--port={port}: can't listen" in capsys.readouterr().err


def test_only_a_later_save_of_the_folder_is_loaded_anew(folder):
  small = limits.Limits(max_tokens=64, max_batch_tokens=64)
  model = models.load(folder / "prm", small, name="tiny")
  assert models.load_newer(model) is None
  newer = models.load_newer(dataclasses.replace(model, step=-1))
  assert newer is not None
  assert (newer.name, newer.step) == ("tiny", 0)
  assert newer.fingerprint == model.fingerprint


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
  assert begun.endswith("ready\n")
  assert row.scores == pytest.approx(expected.scores, abs=1e-5)
  assert process.returncode == 0
  assert out == f"{url}: ended\n"
  assert "secret" not in begun + out + log.read_text()
