"""--plot and --table of the commands: outputs like the others."""

import csv
import json
import os
import sys

import pytest

from prm_jax import schema
from prm_jax.cli import main
from prm_jax.evaluation import prmbench_metrics
from prm_jax.records import jsonl
from prm_jax.runtime import files

KINDS = ("steps", "best_of_n", "prmbench", "turns", "processbench")
WORDS = ("eval", "steps", "--input=in.jsonl", "--scores=scores.jsonl")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """The current folder, with labelled solutions and their scores in files."""
  monkeypatch.chdir(tmp_path)
  _write(lambda i: (1.0, float(i % 2)))
  return tmp_path


def _write(labels, last=0.75):
  solutions = [
    schema.Solution(
      f"s{i}",
      f"{i // 3} + 1?",
      ("a", "b"),
      labels=labels(i),
      answer=str(i % 3),
      outcome=i % 3 == 1,
      extra=dict(classification=[*prmbench_metrics.SHORT][i % 8]),
    )
    for i in range(12)
  ]
  jsonl.write_solutions("in.jsonl", solutions)
  files.write_records(
    "scores.jsonl",
    (dict(id=s.id, step_scores=[0.9, last]) for s in solutions),
  )
  rows = [
    dict(id=s.id, problem=s.problem, steps=s.steps, label=i % 3 - 1)
    for i, s in enumerate(solutions)
  ]
  with open("gsm8k.json", "w") as f:
    json.dump(rows, f)


def _run(*more, words=WORDS):
  return main.main([*words, *more])


def _refused(capsys, *more, said):
  """Asserts that one line refuses a command, which writes nothing."""
  before = {x: files.read_bytes(x) for x in os.listdir() if os.path.isfile(x)}
  capsys.readouterr()
  assert _run(*more) == 1
  error = capsys.readouterr().err
  assert error.startswith("prm-jax: ") and error.count("\n") == 1
  assert said in error
  after = {x: files.read_bytes(x) for x in os.listdir() if os.path.isfile(x)}
  assert after == before


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_its_results_and_writes_them_as_a_table(kind, capsys):
  given = ["--input=gsm8k=gsm8k.json"]
  if kind != "processbench":
    given = ["--input=in.jsonl", "--format=jsonl"]
  words = ("eval", kind, *given, "--scores=scores.jsonl")
  assert _run("--plot=p.svg", "--table=t.csv", words=words) == 0
  shown = capsys.readouterr().out
  assert "plot: p.svg" in shown and "table: t.csv" in shown
  results = files.read_json("results.json")
  for name, path in (("plot", "p.svg"), ("table", "t.csv")):
    assert results["run"][f"{name}_sha256"] == files.digest_of(path)
  with open("t.csv", newline="") as f:
    rows = [*csv.DictReader(f)]
  assert len(rows) > 3
  for row in rows:
    assert row["value"] in {"", *_texts(results)}
  before = files.read_bytes("p.svg"), files.read_bytes("t.csv")
  # The same evaluation replaces its own files, by the same bytes.
  assert _run("--plot=p.svg", "--table=t.csv", words=words) == 0
  assert before == (files.read_bytes("p.svg"), files.read_bytes("t.csv"))


def _texts(value):
  """Yields each number of a JSON value as JSON writes it."""
  if isinstance(value, dict | list):
    for x in value.values() if isinstance(value, dict) else value:
      yield from _texts(x)
  elif not isinstance(value, str | bool | None):
    yield json.dumps(value)


@pytest.mark.parametrize("name", ["p.png", "t.md", "t.tex"])
def test_the_ending_says_the_form(name):
  option = "plot" if name.startswith("p") else "table"
  assert _run(f"--{option}={name}") == 0
  starts = dict(png=b"\x89PNG", md=b"<!-- prm", tex=b"% prm-jax")
  assert files.read_bytes(name).startswith(starts[name[2:]])


@pytest.mark.parametrize(
  ("word", "said"),
  [
    ("--plot=p.pdf", "--plot=p.pdf: its name must end in .svg or .png"),
    ("--plot=svg", "--plot=svg: its name must end in .svg or .png"),
    ("--table=t.txt", "its name must end in .md or .tex or .csv"),
    ("--table=in.jsonl/t.md", "t.md: can't be written: "),
    ("--plot=in.jsonl/p.svg", "p.svg: can't be written: "),
    ("--plot=samples.svg", "samples.svg: can't be written: is a folder"),
  ],
)
def test_an_output_that_cant_be_is_refused_before_the_work(word, said, capsys):
  os.mkdir("samples.svg")
  _refused(capsys, word, said=said)


@pytest.mark.parametrize(
  ("word", "path"), [("--plot", "p.svg"), ("--table", "t.md")]
)
def test_what_no_evaluation_wrote_is_never_replaced(word, path, capsys, folder):
  for content in ("", "<svg></svg>", "| a |\n"):
    (folder / path).write_text(content)
    for more in ((), ("--fresh",)):
      said = f"{path}: is there already and wasn't written by an evaluation"
      _refused(capsys, f"{word}={path}", *more, said=said)


@pytest.mark.parametrize(
  ("word", "path"), [("--plot", "p.svg"), ("--table", "t.md")]
)
def test_those_of_another_evaluation_are_replaced_if_one_says_so(
  word, path, capsys
):
  other = "--output=other.json"
  assert _run(other, f"{word}={path}") == 0
  before = files.read_bytes(path)
  _write(lambda i: (1.0, float(i % 3 > 0)), last=0.25)
  said = "that isn't the one of the results in results.json"
  _refused(capsys, f"{word}={path}", said=said)
  assert _run(f"{word}={path}", "--fresh") == 0
  assert files.read_bytes(path) != before


def test_without_matplotlib_a_plot_is_refused_before_the_work(
  monkeypatch, capsys
):
  monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
  said = "pip install -e '.[plot]' in a checkout of prm_jax"
  _refused(capsys, "--plot=p.svg", said=said)
  assert _run("--table=t.md") == 0


def test_results_with_nothing_to_draw_are_written_all_the_same(capsys, folder):
  _write(lambda i: (1.0, 1.0))
  words = ("eval", "turns", "--format=jsonl", *WORDS[2:])
  assert _run("--plot=p.svg", "--table=t.md", words=words) == 1
  error = capsys.readouterr().err
  assert error == (
    "prm-jax: p.svg: not written, as there is nothing to draw; leave out --plot\n"
  )
  assert not (folder / "p.svg").exists()
  assert files.read_json("results.json")["run"]["table_sha256"]


def test_results_on_the_standard_output_have_plots_beside_them(capfd):
  assert _run("--output=-", "--plot=p.svg", "--table=t.csv") == 0
  shown = capfd.readouterr()
  results = json.loads(shown.out)
  assert results["run"]["plot_sha256"] == files.digest_of("p.svg")
  assert "table: t.csv" in shown.err
