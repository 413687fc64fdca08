"""`prm-jax label cpmi`: the value's labels, saved, resumed, and refused."""

import dataclasses

import numpy as np
import pytest
import random_models

import prm_jax
from prm_jax.cli import main
from prm_jax.jobs import journal
from prm_jax.records import jsonl
from prm_jax.testbed import arithmetic


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return random_models.write(tmp_path_factory.mktemp("models")) / "policy"


def _solutions():
  random = np.random.default_rng(0)
  task = arithmetic.Task(max_turns=3)
  return [
    dataclasses.replace(
      arithmetic.solve(p, random, task),
      id=f"{p.id}/{n}",
      labels=None,
      extra=dict(reference_answer=arithmetic.answer(p.problem)),
    )
    for p in arithmetic.problems(4, "train", task, random)
    for n in range(3)
  ]


@pytest.fixture
def files(tmp_path):
  jsonl.write_solutions(tmp_path / "in.jsonl", _solutions())
  return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def _command(files, model, *more):
  return [
    *("label", "cpmi", f"--input={files[0]}", f"--output={files[1]}"),
    *(f"--policy={model}", "--batch=3", *more),
  ]


def test_the_command_writes_the_values_labels_and_a_killed_run_the_same(
  files, model, capfd
):
  assert main.main(_command(files, model)) == 0
  assert "forward tokens" in capfd.readouterr().out
  found = jsonl.read_solutions(files[1])
  expected = prm_jax.CPMI(model)(_solutions())
  assert [s.id for s in found] == [s.id for s in expected]
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a.labels, b.labels, atol=1e-5)
  whole = files[1].read_bytes()
  # A killed run: the output is gone, and of the journal all but two lines.
  path = journal.path_of(files[1])
  lines = path.read_bytes().splitlines(keepends=True)
  assert len(lines) == 1 + 4
  path.write_bytes(b"".join(lines[:3]))
  files[1].unlink()
  assert main.main(_command(files, model)) == 0
  assert files[1].read_bytes() == whole
  # Other labels of the same rewards take no model's work.
  capfd.readouterr()
  assert main.main(_command(files, model, "--map=quantile")) == 0
  assert "resumes after 12 solutions" in capfd.readouterr().out
  assert files[1].read_bytes() != whole
  assert path.read_bytes().splitlines(keepends=True) == lines


@pytest.mark.parametrize(
  ("more", "words"),
  [
    (["--shard=0/2"], ("--map=zscore", "--shard=0/2", "--map=none")),
    (["--phrasing=no"], ("--phrasing=no", "{problem}")),
    (["--temperature=1"], ("--temperature",)),
    (["--slots=3"], ("--slots=3", "nothing is sampled")),
  ],
)
def test_what_cant_be_is_one_line_and_writes_nothing(
  files, model, capfd, more, words
):
  assert main.main(_command(files, model, *more)) == 1
  error = capfd.readouterr().err
  assert error.count("\n") == 1 and all(x in error for x in words), error
  assert [x.name for x in files[0].parent.iterdir()] == ["in.jsonl"]


def test_a_chat_is_refused_before_it_is_asked(files, capfd):
  url = "http://127.0.0.1:9/v1"
  assert main.main(_command(files, url, "--model=x", "--chat")) == 1
  error = capfd.readouterr().err
  assert error.count("\n") == 1 and "--chat" in error


def test_shards_of_plain_sigmoids_are_the_whole(files, model):
  assert main.main(_command(files, model, "--map=none")) == 0
  parts = []
  for i in range(2):
    part = files[0], files[1].with_name(f"{i}.jsonl")
    more = ("--map=none", f"--shard={i}/2")
    assert main.main(_command(part, model, *more)) == 0
    parts += jsonl.read_solutions(part[1])
  whole = {s.id: s for s in jsonl.read_solutions(files[1])}
  assert len(parts) == len(whole)
  for s in parts:
    np.testing.assert_allclose(s.labels, whole[s.id].labels, atol=1e-5)
