import json
import signal
import subprocess
import sys

import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import label_verify
from prm_jax.records import jsonl

SOLUTION = schema.Solution(
  "s", "?", ("2 + 2 = 4", "so it is", "3 * 4 = 13", "13 - 1 = 12")
)
OWN = """
from prm_jax import Verdict
def right(solution):
  return [Verdict(1, "always") for _ in solution.steps]
def short(solution):
  return [Verdict(1, "always")]
def pairs(solution):
  return [(1, "always") for _ in solution.steps]
def number(solution):
  return 1
def fails(solution):
  return [Verdict(0.5, "no") for _ in solution.steps]
"""


def _run(verifier, tmp_path, solutions=(SOLUTION,), **job):
  path = tmp_path / "in.jsonl"
  jsonl.write_solutions(path, solutions)
  verb = label_verify.LabelVerify(verifier)
  verb.run(verb.job(path, tmp_path / "out.jsonl", **job))
  return [*jsonl.read_solutions(tmp_path / "out.jsonl")]


def test_labels_say_correct_so_far_and_reasons_what_of_each_step(tmp_path):
  (labelled,) = _run("arithmetic", tmp_path)
  assert labelled.labels == (1, None, 0, 0)
  verified = labelled.extra["verified"]
  assert verified["labels"] == [1, None, 0, 1]
  assert verified["reasons"][2] == "3 * 4 = 13 is wrong: 3 * 4 is 12"
  assert verified["verifier"] == "arithmetic" and verified["version"]
  (in_memory,) = prm_jax.LabelVerify("arithmetic")([SOLUTION])
  assert in_memory.labels == labelled.labels
  assert in_memory.extra["verified"] == verified


def test_what_labels_it_had_are_replaced(tmp_path):
  rated = schema.Solution("s", "?", ("2 + 2 = 5",), ratings=(1,), outcome=True)
  (labelled,) = _run("arithmetic", tmp_path, [rated])
  assert labelled.ratings is None and labelled.labels == (0,)
  assert labelled.outcome is True


def test_a_solution_without_steps_has_no_labels(tmp_path):
  (labelled,) = _run("arithmetic", tmp_path, [schema.Solution("s", "?", ())])
  assert labelled.labels is None


def test_what_it_did_is_said(tmp_path, caplog):
  caplog.set_level("INFO")
  _run("arithmetic", tmp_path)
  said = [" ".join(x.getMessage().split()) for x in caplog.records]
  for words in ("2 steps right", "1 steps wrong", "1 steps not told"):
    assert words in said, said


def test_a_function_of_ones_own_labels(tmp_path):
  (tmp_path / "own.py").write_text(OWN)
  name = f"{tmp_path}/own.py:right"
  (labelled,) = _run(name, tmp_path)
  assert labelled.labels == (1, 1, 1, 1)
  assert labelled.extra["verified"]["version"]["sha256"]


@pytest.mark.parametrize(
  "function, words",
  [
    ("short", "1 verdicts for 4 steps"),
    ("pairs", r"the verdict on step 0 \(from 0\) is \(1, 'always'\)"),
    ("number", "returned 1; expected a list"),
    ("fails", "label is 0.5; expected 1, 0 or None"),
    ("absent", "no such function there"),
  ],
)
def test_a_function_that_is_none_is_refused(function, words, tmp_path):
  (tmp_path / "own.py").write_text(OWN)
  with pytest.raises(errors.InputError, match=words) as e:
    _run(f"{tmp_path}/own.py:{function}", tmp_path)
  assert "\n" not in str(e.value)
  assert not (tmp_path / "out.jsonl").exists()


def test_an_error_says_at_which_solution(tmp_path):
  text = "def f(solution):\n  raise ValueError('no')"
  (tmp_path / "own.py").write_text(text)
  with pytest.raises(
    errors.InputError, match=r"solution 's': .*ValueError: no"
  ):
    _run(f"{tmp_path}/own.py:f", tmp_path)


@pytest.mark.parametrize(
  "limit", [dict(time_s=1e300), dict(time_s=86_401.0), dict(memory_mib=31)]
)
def test_limits_that_no_clock_or_process_can_keep_are_refused(limit):
  with pytest.raises(errors.InputError, match=f"{next(iter(limit))}="):
    label_verify.LabelVerify("code", **limit)


@pytest.mark.parametrize("name", ["arithmetics", "no such", "a.py", ""])
def test_another_name_is_refused(name):
  with pytest.raises(errors.InputError, match=r"arithmetic|FILE\.py:FUNCTION"):
    label_verify.LabelVerify(name)


def test_input_without_solutions_is_refused(tmp_path):
  with pytest.raises(errors.InputError, match="no solution"):
    _run("arithmetic", tmp_path, [])


KILLED = """
import os, signal
from prm_jax import Verdict
def judge(solution):
  if solution.id == "s5" and not os.path.exists("again"):
    open("again", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
  return [Verdict(1, "right") for _ in solution.steps]
"""


def test_a_killed_run_goes_on_and_writes_the_same(tmp_path):
  solutions = [schema.Solution(f"s{i}", f"{i}?", ("1",)) for i in range(8)]
  jsonl.write_solutions(tmp_path / "in.jsonl", solutions)
  (tmp_path / "own.py").write_text(KILLED)
  command = [
    *(sys.executable, "-m", "prm_jax", "label", "verify", "--batch=2"),
    *("--verifier=own.py:judge", "--input=in.jsonl", "--output=out.jsonl"),
  ]
  first = subprocess.run(command, cwd=tmp_path, capture_output=True)
  assert first.returncode == -signal.SIGKILL
  again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert "resumes after 4" in again.stdout + again.stderr
  lines = (tmp_path / "out.jsonl").read_text().splitlines()
  assert [json.loads(x)["id"] for x in lines] == [s.id for s in solutions]
