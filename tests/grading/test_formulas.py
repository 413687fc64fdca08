r"""Laws of formulas: what is built to differ differs, what is built equal is."""

import cmath
import fractions
import random
import time

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax.grading import equality
from prm_jax.grading import formula_values
from prm_jax.grading import formulas
from prm_jax.grading import pool

pytestmark = pytest.mark.skipif(
  not pool.installed(), reason="needs the `verify` extra"
)

RIGHT = [
  ("2**(1/4)", r"\sqrt{\sqrt{2}}"),
  ("-1 + sqrt(3)", r"\sqrt3 - 1"),
  ("(3, pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
  ("-2, 1", "1,-2"),
  ("x=1 or x=2", "1, 2"),
  (r"1 + \sqrt{19}, 1 - \sqrt{19}", r"1 \pm \sqrt{19}"),
  (r"\{1\pm\sqrt{5},-2\}", r"-2, 1-\sqrt5, 1+\sqrt5"),
  ("4210", "4210_{5}"),
  ("-5x+7y-11z-4=0", "5x - 7y + 11z + 4 = 0"),
  ("2y = 4x + 6", "y = 2x + 3"),
  (r"(3,+\infty)\cup(-\infty,2)", r"(-\infty, 2) \cup (3, \infty)"),
  ("[-2,7]", r"x \in [-2,7]"),
  (r"1\frac{4}{5}", "9/5"),
  ("864", r"864 \mbox{ inches}^2"),
  (r"2 \pi cm", r"2\pi \text{ cm}"),
  (r"\frac{\cos x}{\sin x}", r"\cot x"),
  (r"\sin 2x", r"2\sin x\cos x"),
  ("x^7(x+1)", "x^8+x^7"),
  ("-5i+6", "6 - 5i"),
  ("1/sqrt(3)", r"\frac{\sqrt{3}}{3}"),
  ("1/a", "a^{-1}"),
  ("-2", r"\sqrt[3]{-8}"),
  ("3", r"\log_2 8"),
  ("10", r"\binom{5}{2}"),
  ("120", "5!"),
  ("|x-1|", "|1-x|"),
  ("q^{n}p^{m}", "p^{m}q^{n}"),
  ("5000", "10^{3}5"),
  ("yx^n", "x^{n}y"),
  ("r^{n}a_1", "a_{1}r^{n}"),
  ("(1000, 2)", "(1{,}000, 2)"),
  (r"\{1200\}", r"\{1{,}200\}"),
  ("y=x", "x=y"),
  ("y=x/2", "x=2y"),
  ("1/(xy)", r"\frac{1}{xy}"),
  (r"\sin\pi", "0"),
  ("y=2, x=1", "x=1, y=2"),
  ("x_1 + x_{12}", "x_{12} + x_1"),
  ("3 < x", "x > 3"),
  (r"5 \cdot 10^{3}", "5000"),
  ("x^2", "x²"),
  (
    r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}",
    r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}",
  ),
]
WRONG = [
  ("0.0", r"6.63\times10^{-34}"),
  (r"-1.6\times10^{-19}", r"1.6\times10^{-19}"),
  ("0.0000001", "0.0000004"),
  ("0.1234567", "0.1234569"),
  ("3 hours", "3 minutes"),
  ("10 kg", "10 g"),
  ("5 km", "5 m"),
  ("5 m", "5 g"),
  ("7.5 km/h", "7.5 m/s"),
  ("40200", "40, 200"),
  ("1200", "(1,200)"),
  ("0.5", "50%"),
  ("0.333333", "1/3"),
  ("3.141593", r"\pi"),
  (r"\pi", r"\pi + 10^{-20}"),
  ("[3,4)", "(3,4]"),
  ("(4,3]", "(3,4]"),
  ("(3,4)", "[3,4]"),
  ("4210_6", "4210_5"),
  ("4211_5", "4210_5"),
  ("5x+7y-11z-4=0", "5x - 7y + 11z + 4 = 0"),
  (r"x \ge 3", "x > 3"),
  ("x < 3", "x > 3"),
  ("y = 5", "x = 5"),
  ("seat", r"\text{east}"),
  ("(B)", r"\text{(C)}"),
  ("q - p", "p - q"),
  ("5x", "5"),
  ("1, 2", "1, 2, 3"),
  (r"\sqrt{2}", r"\sqrt[3]{2}"),
  ("x_1", "x_2"),
  ("2^{37}", "2^{3}7"),
  ("e^{xy}", "e^{x}y"),
  ("a_{nb}", "a_{n}b"),
  (r"\sqrt2+\sqrt3", r"\sqrt2-\sqrt3"),
  ("ACB", "ABC"),
  ("on", "no"),
  ("P(B)=0.6", "P(A)=0.5"),
  ("y=1, x=2", "x=1, y=2"),
]
# Two readings, values that can't be told, or another kind of answer.
NO_VERDICT = [
  ("1/2x", "x/2"),
  ("5m", "5"),
  ("18th", "18"),
  (r"\sqrt{x^2}", "x"),
  ("12 3", "123"),
  ("10^{10^{10}}", "1"),
  ("99999999!", "1"),
  ("3:2", "3/2"),
  (r"\log 100", "2"),
  ("10 pages", "10"),
  (r"$18,000/year", r"\$18,000"),
  ("-2 < x < 3", "(-2,3)"),
  ("(1,2)", "1,2"),
  ("e^xy", "e^{xy}"),
  ("2^nm", "2^{nm}"),
  ("1/xy", "y/x"),
  ("e^{-300}", "e^{-400}"),
  (r"(\frac{1}{\sqrt2})^{1000}", r"(\frac{1}{\sqrt2})^{1001}"),
  (r"\pm\sqrt2\pm\sqrt3", r"\sqrt2+\sqrt3,-\sqrt2-\sqrt3"),
  (r"\sin 30^\circ", r"\sin 30"),
  ("1,1,2", "1,2,2"),
  ("x=1, y=2", "2, 1"),
  ("x>2 and x<5", "x>2 or x<5"),
  ("1;2,3", "1,2;3"),
  (r"(2-\sqrt5)^{1/3}", r"\sqrt[3]{2-\sqrt5}"),
  (r"\cos(2\pi n)", "1"),
  ("P(A)=0.5", "P(B)=0.5"),
  ("|x|+x-2=0", "x=1"),
  (
    r"\begin{pmatrix}1&\\3&4\end{pmatrix}",
    r"\begin{pmatrix}&1\\3&4\end{pmatrix}",
  ),
]


@pytest.mark.parametrize(
  ("cases", "verdict"), [(RIGHT, True), (WRONG, False), (NO_VERDICT, None)]
)
def test_the_table_of_pairs_has_these_verdicts_both_ways_round(cases, verdict):
  for a, b in cases:
    assert formulas.same(a, b) is verdict, (a, b)
    assert formulas.same(b, a) is verdict, (b, a)


@pytest.mark.parametrize("name", pool.GRADERS)
def test_no_grader_calls_what_is_built_to_differ_right(name):
  with pool.Grader(name) as grader:
    grades = grader.grade(WRONG + [(b, a) for a, b in WRONG])
  assert {grade.verdict for grade in grades} == {"wrong"}


def test_math_verify_alone_doesnt_keep_that_law():
  # If it does one day, formulas.py has less to do.
  with pool.Grader("math_verify", exact_first=False) as grader:
    grades = grader.grade(WRONG[:8])
  assert {grade.verdict for grade in grades} == {"right"}


@pytest.mark.parametrize("name", ["math_verify", "both"])
def test_what_is_built_to_be_equal_is_right(name):
  with pool.Grader(name) as grader:
    grades = grader.grade(RIGHT)
  assert {grade.verdict for grade in grades} == {"right"}


# --- Random formulas, against another evaluation ------------------------------

LEAVES = (
  st.integers(1, 99)
  | st.integers(100, 99_999).map(lambda n: n / 100)
  | st.sampled_from(["x", "y", "pi"])
)
TREES = st.recursive(
  LEAVES,
  lambda parts: (
    st.tuples(st.sampled_from("+-*/"), parts, parts)
    | st.tuples(st.just("root"), parts)
    | st.tuples(st.just("^"), parts, st.integers(2, 4))
  ),
  max_leaves=6,
)


def _value(tree, point):
  """Python's own floating-point value of a tree."""
  if isinstance(tree, str):
    return point[tree]
  if not isinstance(tree, tuple):
    return tree
  kind, *parts = tree
  a, *rest = [_value(part, point) for part in parts]
  if kind == "root":
    return cmath.sqrt(a)
  (b,) = rest
  if kind == "+":
    return a + b
  if kind == "-":
    return a - b
  if kind == "*":
    return a * b
  return a**b if kind == "^" else a / b


def _differ(one, two):
  """Returns whether trees differ by far more than rounding at some point."""
  try:
    for x, y in ((1.37, 2.11), (0.61, 3.3)):
      point = dict(x=x, y=y, pi=cmath.pi)
      a, b = _value(one, point), _value(two, point)
      if abs(a - b) > 1e-6 * max(abs(a), abs(b)):
        return True
  except (ZeroDivisionError, OverflowError):
    assume(False)
  return False


def _tex(tree):
  if isinstance(tree, str):
    return r"\pi" if tree == "pi" else tree
  if not isinstance(tree, tuple):
    return f"{tree:,}".replace(",", "{,}")
  kind, *parts = tree
  a, *rest = map(_tex, parts)
  if kind == "root":
    return rf"\sqrt{{{a}}}"
  b = rest[0]
  if kind == "/":
    return rf"\dfrac{{{a}}}{{{b}}}"
  if kind == "^":
    return rf"\left({a}\right)^{{{b}}}"
  sign = {"*": r" \cdot "}.get(kind, f"\\, {kind} ")
  return rf"\left( {a}{sign}{b} \right)"


def _plain(tree):
  if not isinstance(tree, tuple):
    return f"{tree}"
  kind, *parts = tree
  a, *rest = map(_plain, parts)
  if kind == "root":
    return f"sqrt({a})"
  if kind == "^":
    return f"({a})**{rest[0]}"
  return f"(({a}){kind}({rest[0]}))"


def _turned(tree):
  """Returns a tree with the sides of its sums and products swapped."""
  if not isinstance(tree, tuple):
    return tree
  kind, *parts = tree
  parts = [_turned(part) for part in parts]
  return (kind, *(reversed(parts) if kind in "+*" else parts))


def _changed(tree, random):
  """Returns a tree with another digit, sign, operator, exponent or term."""
  if isinstance(tree, str):
    return dict(x="y", y="pi", pi="x")[tree]
  if not isinstance(tree, tuple):
    change = random.choice(["digit", "sign", "term", "tail"])
    if change == "digit":
      text = str(tree)
      places = [i for i, c in enumerate(text) if c.isdigit()]
      i = random.choice(places)
      digit = random.choice([c for c in "123456789" if c != text[i]])
      changed = text[:i] + digit + text[i + 1 :]
      return float(changed) if "." in text else int(changed)
    if change == "sign":
      return ("-", 0, tree)
    return ("+", tree, 1 if change == "term" else 0.0001)
  kind, *parts = tree
  if random.random() < 0.3 and kind in "+-*/":
    return (random.choice([c for c in "+-*/" if c != kind]), *parts)
  if kind == "^" and random.random() < 0.5:
    return (kind, parts[0], parts[1] + 1)
  i = 0 if kind == "^" else random.randrange(len(parts))
  parts[i] = _changed(parts[i], random)
  return (kind, *parts)


@settings(max_examples=100)
@given(tree=TREES)
def test_a_formula_is_itself_in_tex_in_plain_text_and_turned(tree):
  ways = [_tex(tree), _plain(tree), _tex(_turned(tree)), f"${_tex(tree)}$"]
  verdicts = [formulas.same(ways[0], way) for way in ways[1:]]
  # A root of what is negative at a point, or a division by 0, isn't told.
  assert False not in verdicts
  try:
    values = [_value(tree, dict(x=v, y=v, pi=3)) for v in (1.3, -1.7)]
  except (ZeroDivisionError, OverflowError):
    return
  if all(1e-6 < abs(value) < 1e6 for value in values):
    assert None not in verdicts or "x" in ways[1] or "y" in ways[1]


@settings(max_examples=100)
@given(tree=TREES, seed=st.integers(0, 10**6))
def test_a_formula_with_one_change_is_never_the_same(tree, seed):
  other = _changed(tree, random.Random(seed))
  assume(_differ(tree, other))
  one, two = _tex(tree), _tex(other)
  assert not formulas.same(one, two)
  assert not formulas.same(_plain(other), one)
  assert not equality.equal(one, two)


NOTATION = st.lists(
  st.sampled_from(
    [
      *"0123456789xyzie+-*/^_=<>!|,;:.()[]{} $%°",
      *(r"\frac", r"\sqrt", r"\pi", r"\{", r"\}", r"\cup", r"\pm", r"\infty"),
      *(r"\text{", "sin", "or", "cm", r"\begin{pmatrix}", r"\end{pmatrix}"),
      *(r"\\", "&", r"\in", "10^", "x_{"),
    ]
  ),
  max_size=12,
).map("".join)


@settings(max_examples=300)
@given(a=NOTATION | st.text(max_size=8), b=NOTATION)
def test_any_two_texts_have_a_verdict_that_is_the_same_both_ways_round(a, b):
  assert formulas.same(a, b) is formulas.same(b, a)
  assert formulas.same(a, a) is not False


UNITS = ["", "hours", "minutes", "kg", "g", "km", "m", "cm", "%", "dollars"]


@settings(max_examples=100)
@given(
  digits=st.integers(1, 10**9),
  power=st.integers(-40, 40),
  unit=st.sampled_from(UNITS),
  other=st.sampled_from(UNITS),
  change=st.sampled_from(["digit", "sign", "exponent", "unit"]),
)
def test_quantities_that_differ_are_never_right(
  digits, power, unit, other, change
):
  def written(digits, power, unit, sign=""):
    return rf"{sign}{digits}\times10^{{{power}}} \text{{ {unit}}}"

  one = written(digits, power, unit)
  two = dict(
    digit=written(digits + 1, power, unit),
    sign=written(digits, power, unit, "-"),
    exponent=written(digits, power + 1, unit),
    unit=written(digits, power, other),
  )[change]
  if change == "unit":
    assume(unit and other and unit != other)
  assert formulas.same(one, two) is False
  assert not equality.equal(one, two)
  plain = one.replace(r"\times10^", "e").replace("{", "").replace("}", "")
  plain = plain.replace(r"\text", "")
  assert formulas.same(one, plain)


@settings(max_examples=50)
@given(value=st.integers(1, 10**12), k=st.integers(2, 9))
def test_ways_to_write_one_quantity_are_right(value, k):
  ways = [
    f"{value:,}",
    f"{value:,}".replace(",", "{,}"),
    f"{value:,}".replace(",", r",\!"),
    f"{value:,}".replace(",", r"\,"),
    rf"\${value}",
    rf"\boxed{{{value}}}",
    rf"\text{{{value}}}",
    rf"\frac{{{k * value}}}{{{k}}}",
    rf"{value}^\circ",
    rf"{value}\%",
    f"€{value}",
    f"{value}.0",
    f"{value * 10}e-1",
    rf"{value * 100}\times 10^{{-2}}",
  ]
  for way in ways:
    assert equality.equal(way, str(value)), way
    assert formulas.same(way, str(value)), way


@pytest.mark.parametrize(
  "piece",
  [
    *(
      "(",
      "{",
      "1+",
      "a^",
      "-",
      "^-",
      "1/",
      "a ",
      "|",
      r"\frac{",
      r"\sqrt",
      "!",
    ),
    *("cm ", "1,", r"\pm ", "9^", "((1)", r"\sin ", r"\begin{pmatrix}", "x_"),
  ],
)
def test_hostile_formulas_take_no_time(piece):
  text = piece * (1_900 // len(piece))
  start = time.process_time()
  for other in ("1", text + "1", "1" + text):
    formulas.same(text, other)
    formulas.same(text[:600], other[:600])
  assert time.process_time() - start < 5


def test_a_root_of_a_complex_number_on_the_real_axis_is_the_real_ones():
  context = formula_values._context()
  for degree in map(fractions.Fraction, (2, 3)):
    found = formula_values._root(context.mpc(-8, 0), degree)
    assert found == formula_values._root(fractions.Fraction(-8), degree)
