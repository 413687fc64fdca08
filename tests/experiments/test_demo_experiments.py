"""What the experiments on the demo's seeds compute themselves."""

import argparse
import importlib
import pathlib

import pytest

from prm_jax import schema
from prm_jax.testbed import arithmetic

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
PROBLEM = "Ann dials 3 up 4 times 3 ."


@pytest.fixture
def load(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return importlib.import_module


@pytest.mark.parametrize(
  ("steps", "kind", "line"),
  [
    (["so 3 + 4 = 7", "so 7 * 3 = 5", "answer 5"], "none", ""),
    (["so 3 + 4 = 7", "so 7 * 3 = 5"], "ends before its answer", ""),
    # 7 + 3 instead of 7 * 3, and 3 - 4 instead of 3 + 4.
    (
      ["so 3 + 4 = 7", "so 7 * 3 = 2", "answer 2"],
      "sign taken for another",
      "7: 7 * 3 = 2",
    ),
    (
      ["ok 3 + 4 = 7", "ok 7 * 3 = 6", "answer 6"],
      "result",
      "7: 7 * 3 = 6",
    ),
    (["so 3 - 4 = 7"], "another turn than the problem's", "3: 3 - 4 = 7"),
    (["answer 5"], "an answer before the last turn", "3: 5"),
    (["so 3 + 4 = 7 7"], "no line of the form", "3: 3 + 4 = 7 7"),
    (["so 3 + 4 = 7", "so 7 * 3 = 5", "answer 4"], "answer", "5: 4"),
    (
      ["so 3 + 4 = 7", "so 7 * 3 = 5", "so 5 + 1 = 6"],
      "a line after the last turn",
      "5: 5 + 1 = 6",
    ),
  ],
)
def test_the_kind_of_an_error_is_that_of_the_first_wrong_step(
  load, steps, kind, line
):
  module = load("demo_seeds")
  judged = arithmetic.judge(schema.Solution("a", PROBLEM, tuple(steps)))
  assert module.kind_of_error(judged) == kind
  assert module.wrong_line(judged) == line


def test_a_result_files_command_makes_all_of_its_points(load, monkeypatch):
  """Whatever commands have made them, one after another."""
  testbed = load("labelling_testbed")
  monkeypatch.setattr("sys.argv", ["experiments/x.py", "--seeds=2"])
  parser = argparse.ArgumentParser()
  parser.add_argument("--output", type=pathlib.Path, default="out.json")
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--only", default="a,b")
  parser.add_argument("--small", action="store_true")
  args = parser.parse_args(["--seeds=2", "--only=b"])
  points = [dict(seed=s, name=n) for s, n in ((0, "b"), (2, "b"))]

  def command(points):
    return testbed.command_of(points, ("a", "b"), args, parser)

  assert command(points) == "python experiments/x.py --seeds=0,2 --only=b"
  points.append(dict(seed=1, name="a"))
  assert command(points) == "python experiments/x.py --seeds=0,1,2"
  args = parser.parse_args(["--small", "--output=other.json"])
  assert command(points) == (
    "python experiments/x.py --output=other.json --seeds=0,1,2 --small"
  )
