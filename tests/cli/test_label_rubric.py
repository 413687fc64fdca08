"""`label judge --rubric`: asked at a server, journaled, measured, trained from."""

import json
import pathlib

import pytest
import stub_server

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.labelling import judge_prompts
from prm_jax.records import jsonl

SUMS = dict(name="sums", means="All sums are right.", fatal=True)
STYLE = dict(name="style", means="It is clear.")


def _grades(number, sums, style):
  return stub_server.graded(
    number, "I add.", sums=sums, style=style, overall=0.5
  )


@pytest.fixture
def stub():
  """A server that finds wrong sums in second steps; of one problem it raves."""

  def behave(handler, body, times):
    text = "sums | 7 | none\n</analysis_1>"
    if "5 + 5" not in body["messages"][0]["content"]:
      text = _grades(1, 1, 0) + _grades(2, 0.25, 1)
    return stub_server.reply(body, text)

  with stub_server.running(behave) as stub:
    yield stub


@pytest.fixture
def job(stub, tmp_path, monkeypatch):
  """The words of a job on people's labels, of three errors and a rave."""
  monkeypatch.chdir(tmp_path)
  jsonl.write_solutions(
    "in.jsonl",
    [
      schema.Solution(f"{i}", f"{n} + {n}?", ("2", "answer 3"), labels=labels)
      for i, (n, labels) in enumerate(
        [(1, (1.0, 0.0)), (2, (0.0, None)), (3, (1.0, 0.0)), (5, (1.0, 1.0))]
      )
    ],
  )
  _write("r.json", SUMS, STYLE)
  return [
    *("label", "judge", "--input=in.jsonl", "--output=out.jsonl"),
    *(f"--policy={stub.url}", "--model=m", "--chat", "--rubric=r.json"),
  ]


def _write(path, *principles):
  pathlib.Path(path).write_text(json.dumps(dict(principles=principles)))


def _head():
  text = pathlib.Path("out.jsonl.journal").read_text()
  return json.loads(text.splitlines()[0])["depends_on"]


def test_a_judge_grades_by_principle_and_people_are_compared(job, stub, capfd):
  assert main.main(job) == 0
  out = capfd.readouterr().out
  *found, unread = jsonl.read_solutions("out.jsonl")
  for solution in found:
    assert solution.labels == (0.5, 0) and solution.source == "judge"
    graded = solution.extra[judge_prompts.GRADED]["principles"]
    assert graded["sums"] == dict(
      labels=[1, 0], scores=[1, 0.25], critiques=[["I add."] * 2]
    )
    assert graded["style"]["labels"] == [0, 1]
    assert graded["overall"]["scores"] == [0.5, 0.5]
  # Of what can't be read, nothing is kept, and it is counted.
  assert unread.labels == (None, None)
  assert judge_prompts.GRADED not in unread.extra
  assert "no answer could be read" not in out
  lines = {x.split("  ")[-1]: x for x in out.splitlines()}
  assert lines["unparsable out of order"].split()[0] == "1"
  table = out.partition("first errors that are also")[2]
  rows = [" ".join(x.split()) for x in table.splitlines()]
  for row in (
    "all (3), % with an error (3), % without, %",
    "sums 66.7 [0.0, 100.0] 66.7 [0.0, 100.0] -",
    "style 33.3 [0.0, 100.0] 33.3 [0.0, 100.0] -",
    "overall 0.0 [0.0, 0.0] 0.0 [0.0, 0.0] -",
    "the label 66.7 [0.0, 100.0] 66.7 [0.0, 100.0] -",
    "always the same 66.7 [0.0, 100.0] 66.7 [0.0, 100.0] -",
  ):
    assert row in rows


def test_a_judge_that_cant_be_read_is_said_to_give_no_labels(job, stub, capfd):
  stub.behave = lambda handler, body, times: stub_server.reply(body, "")
  assert main.main(job) == 0
  out = capfd.readouterr().out
  assert "no answer could be read, so there are no labels" in out
  assert "first errors" not in out
  found = jsonl.read_solutions("out.jsonl")
  assert [s.labels for s in found] == [(None, None)] * 4


def test_a_rubric_is_a_part_of_what_a_job_depends_on(
  job, stub, capfd, monkeypatch
):
  assert main.main(job) == 0
  asked = len(stub.seen)
  assert main.main(job) == 0 and len(stub.seen) == asked
  _write("same.json", SUMS, STYLE | dict(weight=1.0))
  assert main.main([*job[:-1], "--rubric=same.json"]) == 0
  capfd.readouterr()
  _write("r.json", SUMS, STYLE | dict(weight=2))
  assert main.main(job) == 1
  assert "rubric was 'sha256:" in capfd.readouterr().err
  assert main.main(job[:-1]) == 1
  assert "template was 'rubric'" in capfd.readouterr().err
  assert len(stub.seen) == asked
  assert _head()["template"] == "rubric"


@pytest.mark.parametrize(
  ("more", "words"),
  [
    (["--template=thinkprm"], "a prompt of its own"),
    (["--vote=log_likelihood"], "no word per step"),
    (["--output=r.json"], "r.json: is read by this command"),
    (["--rubric=in.jsonl"], "ends in .json or .toml"),
    (["--rubric=none.json"], "none.json"),
  ],
)
def test_what_a_rubric_doesnt_go_with_is_refused_before_any_work(
  job, stub, capfd, more, words
):
  before = pathlib.Path("r.json").read_text()
  assert main.main([*job, *more]) == 1
  error = capfd.readouterr().err
  assert words in error and error.count("\n") == 1
  assert not stub.seen and pathlib.Path("r.json").read_text() == before


def test_without_a_rubric_a_job_depends_on_what_it_did(job, capfd):
  assert main.main(job[:-1]) == 0
  assert "first errors" not in capfd.readouterr().out
  depends_on = _head()
  assert depends_on["template"] == "processbench"
  assert "rubric" not in depends_on


def test_a_file_of_one_principles_labels_is_converted(job, capfd):
  assert main.main(job) == 0
  convert = ["data", "convert", "out.jsonl", "--to=jsonl", "--output=one.jsonl"]
  capfd.readouterr()
  assert main.main([*convert, "--principle=style"]) == 0
  out = capfd.readouterr().out
  assert "1 labels of solutions that no judge graded" in out
  found = jsonl.read_solutions("one.jsonl")
  assert [s.labels for s in found] == [(0, 1)] * 3 + [None]
  graded = jsonl.read_solutions("out.jsonl")
  assert prm_jax.Convert("jsonl", principle="style")(graded) == found
  assert main.main([*convert, "--principle=tone"]) == 1
  assert "no principle 'tone'; there are sums, style" in (
    capfd.readouterr().err
  )
