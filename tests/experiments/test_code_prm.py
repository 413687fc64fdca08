"""Programs of a real policy: lines as steps, unit tests, outputs as votes."""

import pathlib

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.verifiers import sandbox

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
TASK = dict(
  task_id="T/0",
  prompt='def twice(xs):\n  """Doubles."""\n',
  entry_point="twice",
  canonical_solution="  return [2 * x for x in xs]\n",
  test=(
    "def check(f):\n  assert f([1, 2]) == [2, 4]\n  assert f([]) == []\n"
    "  xs = [3]\n  f(xs)\n  assert xs == [3]\n"
  ),
)


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


def _program(name, body, part="train"):
  import code_prm

  raw = schema.Solution(
    name, TASK["prompt"], (), raw_text=body, spans=(), extra=dict(part=part)
  )
  return code_prm.in_lines(raw)


def test_a_prefix_ends_with_a_line_and_does_not_say_how_the_next_is_indented():
  s = _program("a", "\n  for x in xs:\n\n    pass\n  return 1")
  assert s.steps == ("  for x in xs:\n\n", "    pass\n", "  return 1")
  begun = schema.first_steps(s, 1)
  assert begun.raw_text == "\n  for x in xs:\n\n"
  assert _program("b", " \n").steps == ()


@pytest.mark.skipif(
  sandbox.why_none() is not None, reason="the kernel allows no sandbox"
)
def test_outputs_are_equal_where_programs_return_the_same_whatever_is_expected():
  import code_prm

  bodies = dict(
    right="  return [2 * x for x in xs]\n",
    other="  ys = []\n  for x in xs:\n    ys.append(x + x)\n  return ys\n",
    wrong="  return xs\n",
    same_wrong="  return list(xs)\n",
    raises="  return xs[5]\n",
    broken="  return (\n",
  )
  assert code_prm.inputs_of(TASK) == [([1, 2],), ([],), ([3],)]
  with code_prm.tests_of([TASK]) as tests:
    programs = {k: _program(k, body) for k, body in bodies.items()}
    passed = tests.passes(list(programs.values()))
    outputs = {k: tests.outputs(s) for k, s in programs.items()}
  assert passed == [True, True, False, False, False, False]
  assert outputs["right"] == outputs["other"] != outputs["wrong"]
  assert outputs["wrong"] == outputs["same_wrong"] != outputs["raises"]
  assert None not in [outputs[k] for k in bodies if k != "broken"]
  assert outputs["broken"] is None


def test_each_text_of_a_training_problem_is_labelled_once():
  import code_prm

  same = [_program(f"a{i}", "  return 1\n") for i in range(3)]
  others = [_program(f"b{i}", f"  return {i}\n") for i in range(9)]
  (chosen,) = code_prm.to_label(
    [*same, *others, _program("c", "  return 7\n", "test"), _program("d", "")]
  ).values()
  assert [s.id for s in chosen] == ["a0", "b0", "b2", "b3", "b4", "b5"]


def test_within_problems_those_with_one_outcome_alone_do_not_count():
  import code_prm

  passes = np.array([True, False, True, True, False, True])
  scores = dict(
    prm_min=[0.9, 0.1, 0.0, 1.0, 0.5, 0.5], shortest_text=[0, 1, 9, 9, 0, 0]
  )
  found = code_prm.within(scores, passes, list("aabbcc"))
  assert found["prm_min"]["mean"] == 0.75
  assert found["shortest_text"]["mean"] == 0.25
  assert found["prm_min_minus_shortest_text"]["mean"] == 0.5
  assert found["prm_min"]["problems"] == 2
