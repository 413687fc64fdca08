"""Small jobs: `-` for the standard streams, --limit, --dtype, --step=best."""

import functools
import io
import json
import os
import subprocess
import sys

import pytest
import using_prm_jax

import prm_jax
from prm_jax import errors
from prm_jax.cli import main
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import progress

pytestmark = pytest.mark.usefixtures("one_device", "equal_programs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns a folder: prm/ with two saves, sft/, solutions.jsonl."""
  folder = tmp_path_factory.mktemp("streams")
  fit = dict(
    steps=4,
    eval_every=2,
    checkpoint_every=2,
    best_metric="loss_nats",
    best_mode="max",  # the loss falls, so the first save is the best
    tensorboard=False,
  )
  prm_jax.train(
    using_prm_jax.PRM | dict(fit=fit),
    using_prm_jax.solutions(),
    folder / "prm",
    evaluation=using_prm_jax.solutions(),
  )
  using_prm_jax.train_policy(folder / "sft")
  jsonl.write_solutions(folder / "solutions.jsonl", using_prm_jax.solutions())
  return folder


@pytest.fixture
def run(capfd, monkeypatch):
  """Returns a function: arguments and standard input -> code, stdout, stderr."""

  def call(*arguments, stdin=""):
    text = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    monkeypatch.setattr(sys, "stdin", text)
    inputs._copy_of_stdin.cache_clear()
    capfd.readouterr()
    code = main.main([str(x) for x in arguments])
    said = capfd.readouterr()
    return code, said.out, said.err

  yield call
  inputs._copy_of_stdin.cache_clear()


def test_scores_of_the_standard_input_go_to_the_standard_output(
  trained, tmp_path, run
):
  written = (trained / "solutions.jsonl").read_text()
  command = ("score", f"--checkpoint={trained / 'prm'}")
  output = tmp_path / "scores.jsonl"
  given = f"--input={trained / 'solutions.jsonl'}"
  assert run(*command, given, f"--output={output}")[0] == 0
  code, out, err = run(*command, "--input=-", "--output=-", stdin=written)
  assert (code, out) == (0, output.read_text())
  assert "<stdout>: 4 solutions\n" in err
  broken = written + "{\n"
  code, out, err = run(*command, "--input=-", "--output=-", stdin=broken)
  assert (code, out) == (1, "")
  assert err.startswith("prm-jax: <stdin>:5: not JSON")


@pytest.mark.faults
def test_a_second_call_loads_its_programs_and_writes_the_same_bytes(
  trained, tmp_path
):
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT", "XLA_"))
  } | dict(XDG_CACHE_HOME=str(tmp_path))
  command = [
    *(sys.executable, "-m", "prm_jax", "score", "--output=-"),
    f"--checkpoint={trained / 'prm'}",
    f"--input={trained / 'solutions.jsonl'}",
  ]
  written, kept = [], []
  for _ in range(2):
    done = subprocess.run(
      command, env=environment, capture_output=True, check=True
    )
    assert b"<stdout>: 4 solutions\n" in done.stderr
    written.append(done.stdout)
    kept.append(
      {p.name: p.stat().st_mtime_ns for p in tmp_path.rglob("*-cache")}
    )
  assert written[0] == written[1]
  # What was kept stays; more may come, if it took just too little to compile.
  assert kept[0].items() <= kept[1].items() and kept[0]


def test_samples_of_the_standard_input_go_to_the_standard_output(trained, run):
  problems = '{"id": "a", "problem": "1 + 1"}\n{"id": "b", "problem": "2"}\n'
  code, out, err = run(
    *("sample", f"--checkpoint={trained / 'sft'}", "--input=-", "--output=-"),
    *("--n=2", "--max_tokens=4", "--limit=1"),
    stdin=problems,
  )
  assert code == 0
  ids = [json.loads(line)["id"] for line in out.splitlines()]
  assert ids == ["a/0", "a/1"]
  # A slow machine also says how far it is.
  first, *_, last = err.splitlines()
  assert first == "<stdin>: the first 1 alone, see --limit"
  assert last.startswith("<stdout>: 2 solutions, ")


def test_an_evaluation_goes_to_the_standard_output(
  trained, tmp_path, run, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  command = ("eval", "steps", f"--checkpoint={trained / 'prm'}")
  code, out, err = run(
    *(*command, "--input=-", "--output=-", "--limit=3", "--dtype=bfloat16"),
    *("--batch_tokens=64", "--step=best"),
    stdin=(trained / "solutions.jsonl").read_text(),
  )
  assert code == 0, err
  results = json.loads(out)
  assert (results["num_solutions"], results["limit"]) == (3, 3)
  assert results["scored_by"]["compute_dtype"] == "bfloat16"
  assert results["scored_by"]["step"] == 2
  assert "prm: step 2 is the best of 2, 4: loss_nats " in err
  assert "auroc" in err
  assert not list(tmp_path.iterdir())


def test_the_limit_of_best_of_n_counts_whole_problems(tmp_path, run):
  rows = [
    dict(id=f"{p}{i}", problem=p, steps=["1"], answer="1", outcome=i == 0)
    for i in range(2)
    for p in "abc"
  ]
  pool, scores = tmp_path / "pool.jsonl", tmp_path / "scores.jsonl"
  files.write_records(pool, rows)
  files.write_records(
    scores, (dict(id=row["id"], step_scores=[0.5]) for row in rows)
  )
  code, out, err = run(
    *("eval", "best_of_n", f"--input={pool}", f"--scores={scores}"),
    *("--limit=2", "--output=-", f"--samples={tmp_path / 's.jsonl'}"),
  )
  assert code == 0, err
  assert json.loads(out)["limit"] == 2
  samples = files.read_records(tmp_path / "s.jsonl")
  ids = [record["id"] for _, record in samples]
  (first, second) = sorted({i[0] for i in ids})
  assert sorted(ids) == [f"{p}{i}" for p in (first, second) for i in range(2)]
  assert f"{pool}: 2 of 3, drawn by --seed=0, see --limit" in err


def test_data_commands_read_the_standard_input(trained, tmp_path, run):
  written = (trained / "solutions.jsonl").read_text()
  for kind in ("inspect", "stats", "doctor"):
    code, out, _ = run("data", kind, "-", stdin=written)
    assert code == 0
    assert out == run("data", kind, trained / "solutions.jsonl")[1]
    code, _, err = run("data", kind, "-", stdin="\n1\n")
    assert code == 1 and "<stdin>:2: expected a JSON object" in err
    for table in ("problem,steps\n1?,[]\n", "problem\tsteps\n1?\t[]\n"):
      code, _, err = run("data", kind, "-", stdin=table)
      assert code == 1 and "a file whose name ends with .csv or .tsv" in err
  there = tmp_path / "x.jsonl"
  command = ("data", "convert", "--to=stepwise")
  given = trained / "solutions.jsonl"
  assert run(*command, given, f"--output={there}")[0] == 0
  code, out, err = run(*command, "-", "--output=-", stdin=written)
  assert (code, out) == (0, there.read_text())
  assert err.startswith("<stdout>: 4 solutions of <stdin>")
  assert "they read back the same" in err


def test_scores_in_small_batches_or_another_type_are_the_same_to_rounding(
  trained, tmp_path, run
):
  found = {}
  for option in (
    "--batch_tokens=16384",
    "--batch_tokens=1",
    "--dtype=bfloat16",
  ):
    code, out, err = run(
      *("score", f"--checkpoint={trained / 'prm'}", "--output=-", option),
      f"--input={trained / 'solutions.jsonl'}",
    )
    assert code == 0, err
    rows = map(json.loads, out.splitlines())
    found[option] = [x for row in rows for x in row["step_scores"]]
  whole, alone, half = found.values()
  assert alone == pytest.approx(whole, abs=1e-6)
  assert half == pytest.approx(whole, abs=1e-2) and half != whole


def test_options_that_make_no_sense_are_refused_in_one_line(trained, run):
  score = ("score", f"--checkpoint={trained / 'prm'}", "--output=-")
  score = (*score, f"--input={trained / 'solutions.jsonl'}")
  evaluate = ("eval", "steps", "--output=-", "--scores=s.jsonl")
  evaluate = (*evaluate, f"--input={trained / 'solutions.jsonl'}")
  for command, words in (
    ((*score, "--limit=0"), "--limit=0: give 1 or more"),
    ((*score, "--dtype=int8"), "='int8': expected one of float32"),
    ((*score, "--batch_tokens=0"), "batch_tokens=0"),
    ((*score, "--step=first"), "'first' isn't 0, 1, 2, ... or best"),
    ((*evaluate, "--dtype=float32"), "--dtype=float32: give --checkpoint"),
    ((*evaluate, "--step=best"), "--step=best: give --checkpoint"),
  ):
    code, out, err = run(*command)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert words in err


def test_the_best_step_is_that_of_the_metric_that_training_recorded(
  trained, caplog
):
  caplog.set_level("INFO", "prm_jax")
  (s, *_) = using_prm_jax.solutions()
  first, last, best, latest = (
    prm_jax.load(trained / "prm", step=step).score(s.problem, s.steps)
    for step in (2, 4, "best", None)
  )
  assert best == first != last == latest
  assert "step 2 is the best of 2, 4" in caplog.text
  with pytest.raises(errors.InputError, match=r"no fit\.best_metric"):
    prm_jax.load(trained / "sft", step="best")


def test_a_full_standard_output_is_a_full_disk():
  before, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
  os.dup2(full, 1)
  try:
    with (
      pytest.raises(errors.DiskFullError, match="<stdout>: can't be written"),
      files.replacing(files.STDOUT) as f,
    ):
      f.write("a record\n")
  finally:
    os.dup2(before, 1)
    os.close(full)
    os.close(before)


def test_other_paths_are_no_streams(run):
  code, out, err = run(
    *("data", "split", "x.jsonl", "--train=-", "--test=test.jsonl")
  )
  assert (code, out) == (1, "")
  assert "--train: -: give a path" in err


def test_the_limit_of_a_labeller_is_the_number_of_its_solutions(
  trained, tmp_path, run
):
  given = f"--input={trained / 'solutions.jsonl'}"
  output = tmp_path / "agreed.jsonl"
  code, out, err = run(
    *("label", "consensus", given, given, "--limit=3", f"--output={output}"),
    *("--above_a=0.5", "--above_b=0.5"),
  )
  assert code == 0, err
  assert [s.id for s in jsonl.read_solutions(output)] == [
    *("right0", "right1", "wrong0")
  ]
  assert out.count("solutions.jsonl: the first 3 alone, see --limit") == 2


def test_training_and_data_commands_say_how_far_reading_is(
  trained, tmp_path, run, monkeypatch, capfd, printed_log
):
  always = functools.partial(progress.showing, every_s=0.0)
  monkeypatch.setattr(progress, "showing", always)
  prm = using_prm_jax.PRM
  packing = prm["packing"] | dict(share_prefixes=True)
  prm_jax.train(
    prm | dict(packing=packing),
    using_prm_jax.solutions(),
    tmp_path / "prm",
    evaluation=using_prm_jax.solutions(),
  )
  said = capfd.readouterr().err.splitlines()
  for phase in ("digest", "encode", "pack", "read", "evaluate"):
    assert any(line.startswith(f"{phase} 0/") for line in said), phase
  path = trained / "solutions.jsonl"
  for kind, phases in dict(
    inspect=("read",), stats=("read", "encode"), doctor=("check",)
  ).items():
    _, _, err = run("data", kind, path)
    for phase in phases:
      assert any(line.startswith(phase) for line in err.splitlines()), phase
  _, _, err = run(
    *("data", "convert", path, "--to=jsonl", f"--output={tmp_path / 'x'}")
  )
  assert "write 0 solutions" in err and "read back 0 solutions" in err
