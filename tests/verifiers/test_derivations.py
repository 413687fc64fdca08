import importlib.util
import itertools
import pathlib
import re
import time

import numpy as np
import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import label_verify
from prm_jax.testbed import inferences
from prm_jax.verifiers import derivations
from prm_jax.verifiers import logic_reader
from prm_jax.verifiers import verdicts

needs_z3 = pytest.mark.skipif(
  importlib.util.find_spec("z3") is None, reason="needs the extra logic"
)


def _verify(premises, *steps, **limits):
  extra = dict(premises=premises)
  solution = schema.Solution("s", "?", steps, extra=extra)
  return derivations.verify(solution, **limits)


@needs_z3
@pytest.mark.parametrize(
  "premises, step, label, reason",
  [
    *[(["p -> q", "q -> r"], *x) for x in (
      ("p -> r", 1, "follows"),
      ("3. So r -> p, by 1 and 2.", 0, "false with p=0, q=0, r=1"),
      ("Hence: not (p and not r)", 1, "follows"),
      ("p and not r", 0, "contradicts the premises"),
      ("p ∧ ¬r", 0, "contradicts the premises"),
      ("NOT r Implies Not p", 1, "follows"),
      ("s or not s", 1, "follows"),
      ("true -> (p <-> p)", 1, "follows"),
    )],
    *[(["x + 2 <= y", "0 < x < 3"], *x) for x in (
      ("y >= 3", 1, "follows"),
      ("y > 3", 0, "false with x=1, y=3"),
      ("x = 1 or x = 2", 1, "follows"),
      ("2x < y + 3 and 2 * (x + 1) < 7", 1, "follows"),
      ("x = -1", 0, "contradicts"),
      ("x != 1 -> x = 2", 1, "follows"),
      ("b -> -x <= 3 - 2*2", 1, "follows"),
    )],
  ],
)  # fmt: skip
def test_a_step_follows_or_a_case_says_why_not(premises, step, label, reason):
  (verdict,) = _verify(premises, step)
  assert verdict.label == label and reason in verdict.reason, verdict


@needs_z3
@pytest.mark.parametrize(
  "step, reason",
  [
    *[("", "no formula"), ("p q", "isn't expected"), ("p and", "too early")],
    *[("(p", "isn't closed"), ("p $ q", "no sign"), ("x * y = 2", "linear")],
    *[("x + 2", "a number stands"), ("p + 1 = 2", "number and a statement")],
    *[("(p -> q) + 1 = 2", "a statement stands"), ("p = q", "p is a number")],
    *[("(" * 999 + "p" + ")" * 999, "too"), ("p" * 10**6, "longer")],
    *[
      ("not " * 300 + "(" * 60 + "p", "in each other"),
      ("9" * 40 + "=x", "long"),
    ],
    *[("p or " * 350 + "p", "too long a formula"), ("9^9^9 = x", "no sign")],
  ],
)
def test_a_step_that_is_no_formula_is_not_told(step, reason):
  (verdict,) = _verify(["p -> p"], step)
  assert verdict.label is None and reason in verdict.reason, verdict


@needs_z3
@pytest.mark.parametrize(
  "step",
  [
    *("It is false that: p or not p", "Not: p", "exists x: x > 0", "If p: q"),
    *("Assume: q", "for all x: x < x + 1", "Contradiction: p and not p"),
  ],
)
def test_words_that_change_what_a_formula_says_are_not_read_past(step):
  (verdict,) = _verify(["p -> q"], step)
  assert verdict.label is None, verdict


@needs_z3
def test_a_reason_does_not_depend_on_what_was_verified_before():
  premises = ["-2*x + 3*y + z < 4 or p", "q -> x + y + 2*z = 7", "p -> z != y"]
  (first,) = _verify(premises, "q and 3*x < y + z")
  for i in range(20):
    names = " + ".join(f"{k + 1}*{x}" for k, x in enumerate("zyx"))
    _verify([f"{names} < {i} or q", "p -> x > 3 * y"], "x > y + z", "q <-> p")
  assert _verify(premises, "q and 3*x < y + z") == [first]


@needs_z3
@pytest.mark.parametrize(
  "premises, reason",
  [
    (["p", "not p"], "contradict each other"),
    (["x < 0", "p", "x > 0"], "contradict each other"),
    (["p", "p ->"], "premise 2: it ends too early"),
    (["p", "p < 3"], "premise 2: p is a number and a statement"),
    ([3], "no list of formulas"),
    (None, "no list of formulas"),
    (["p"] * 999, "more than 200"),
  ],
)
def test_premises_that_tell_nothing_leave_no_label(premises, reason):
  verdicts_ = _verify(premises, "p", "q")
  assert [x.label for x in verdicts_] == [None, None]
  assert reason in verdicts_[0].reason


@needs_z3
def test_what_the_solver_cannot_decide_in_time_is_not_told():
  """Pigeons without enough holes: no short proof is known to such a solver."""
  num = 11
  pigeon = [
    " or ".join(f"p_{i}_{j}" for j in range(num - 1)) for i in range(num)
  ]
  alone = [
    f"not p_{a}_{j} or not p_{b}_{j}"
    for j in range(num - 1)
    for a, b in itertools.combinations(range(num), 2)
  ]
  start = time.perf_counter()
  rest = [
    " and ".join(f"({x})" for x in alone[k : k + 20])
    for k in range(0, len(alone), 20)
  ]
  (verdict,) = _verify([*pigeon, *rest], "false", time_s=0.3)
  assert time.perf_counter() - start < 20
  assert verdict.label is None and "not decided" in verdict.reason, verdict


@needs_z3
def test_planted_errors_are_found():
  random = np.random.default_rng(0)
  solutions = [inferences.solution(f"i{i}", random) for i in range(200)]
  for s in solutions:
    found = derivations.verify(s)
    assert verdicts.labels(found) == s.labels, (s, found)
    error = schema.first_error(s.labels)
    assert all(x.label == 1 for i, x in enumerate(found) if i != error)
  assert 60 < sum(0.0 in s.labels for s in solutions) < 140


_NAMES = ("p", "q", "r", "s")


def _statement(random, depth):
  """Returns a formula of statements, and the same in Python."""
  kind = random.integers(6) if depth else 0
  if kind == 0:
    name = str(random.choice(_NAMES))
    return name, name
  if kind == 1:
    a, in_python = _statement(random, depth - 1)
    return f"not ({a})", f"(not {in_python})"
  (a, x), (b, y) = (_statement(random, depth - 1) for _ in range(2))
  sign = ("and", "or", "->", "<->")[kind - 2]
  in_python = {"and": "and", "or": "or", "->": "<=", "<->": "=="}[sign]
  return f"({a}) {sign} ({b})", f"(({x}) {in_python} ({y}))"


@needs_z3
def test_statements_agree_with_tables_of_truth():
  random = np.random.default_rng(0)
  labels = []
  for _ in range(150):
    premises = [_statement(random, 2) for _ in range(2)]
    step, in_python = _statement(random, 2)
    rows = [
      dict(zip(_NAMES, row))
      for row in itertools.product([False, True], repeat=len(_NAMES))
    ]
    cases = [row for row in rows if all(eval(x, {}, row) for _, x in premises)]
    (verdict,) = _verify([x for x, _ in premises], step)
    expected = all(eval(in_python, {}, row) for row in cases) if cases else None
    assert verdict.label == expected, (premises, step, verdict)
    if expected is False and "false with" in verdict.reason:
      case = _case(verdict.reason)
      assert not eval(in_python, {}, {**dict.fromkeys(_NAMES, 0), **case})
    labels.append(expected)
  assert min(map(labels.count, (True, False))) > 15


def _case(reason):
  pairs = reason.partition("false with ")[2].split(", ")
  return {k: int(v) for k, v in (x.split("=") for x in pairs)}


@needs_z3
def test_numbers_agree_with_trying_all_of_a_box():
  random = np.random.default_rng(1)
  labels = []

  def comparison():
    a, b, c = (int(x) for x in random.integers(-3, 4, size=3))
    sign = str(random.choice(["<=", "<", "=", ">", "!="]))
    text = f"{a} * x + {b} * y {sign} {c}"
    return text, text.replace(" = ", " == ")

  box = ["0 <= x <= 3", "-2 <= y <= 2"]
  for _ in range(100):
    premise, in_python = comparison()
    step, of_step = comparison()
    rows = [dict(x=x, y=y) for x in range(4) for y in range(-2, 3)]
    cases = [row for row in rows if eval(in_python, {}, row)]
    (verdict,) = _verify([*box, premise], step)
    expected = all(eval(of_step, {}, row) for row in cases) if cases else None
    assert verdict.label == expected, (premise, step, verdict)
    labels.append(expected)
  assert min(map(labels.count, (True, False))) > 5


def test_a_name_is_read_in_one_way_and_signs_bind_as_said():
  read = logic_reader.read("a or b and not c -> d -> e <-> f")
  assert read.formula.kind == "<->"
  left = read.formula.parts[0]
  assert left.kind == "->" and left.parts[1].kind == "->"
  assert left.parts[0].kind == "or" and left.parts[0].parts[1].kind == "and"
  assert not any(read.are_numbers.values())


def test_without_the_solver_one_line_says_how_to_install_it(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.InputError, match=r"needs z3: .*\[logic\]"):
    label_verify.LabelVerify("logic")([schema.Solution("s", "?", ("p",))])


@needs_z3
def test_the_command_labels_derivations():
  solution = inferences.solution("s", np.random.default_rng(3))
  (labelled,) = label_verify.LabelVerify("logic")([solution])
  assert labelled.labels == solution.labels
  assert labelled.outcome is None


@needs_z3
def test_the_page_shows_what_it_says():
  page = pathlib.Path(prm_jax.__file__).parents[1] / "docs" / "verifiers.md"
  blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
  (block,) = (x for x in blocks if "premises" in x)
  exec(block, dict(prm_jax=prm_jax))
