"""PRM800K's grading rules, rule by rule."""

import pytest

from prm_jax.grading import prm800k_rules

# What needs no sympy.
SAME_TEXT = [
  (r"\frac12", r"\dfrac{1}{2}"),
  ("0.5", r"\frac{1}{2}"),
  ("1/2", r"\frac{1}{2}"),
  (r"\text{Evelyn}", "evelyn"),
  (r"x = 5", "5"),
  (r"\sqrt3", r"\sqrt{3}"),
  (r"90^\circ", "90"),
  (r"\$32,\!348", "32348"),
  (r"18.0", "18"),
  (r"15\text{ cm}", "15 cm"),
  (r"50\%", "50"),
  ("5 feet", "5"),
  (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
  (".5", "0.5"),
  ("3 million", "3*10^6"),
  ("1 or 2", "1 and 2"),
]


@pytest.mark.parametrize(("given", "reference"), SAME_TEXT)
def test_what_differs_in_writing_only_is_right(given, reference):
  assert prm800k_rules.same(given, reference)
  assert prm800k_rules.same(reference, given)


@pytest.mark.parametrize(
  ("given", "reference"),
  [
    ("2/4", r"\frac{1}{2}"),  # not reduced
    ("4/2", "2"),  # an integer wants an integer
    ("2.5", "2"),
    ("(1, 2)", "[1, 2]"),
    ("(1, 2)", "(1, 2, 3)"),
    ("(1, 3)", "(1, 2)"),
    ("", "5"),
    ("abc", "cba"),  # more than two unknown letters
    ("2^10", "1024"),  # exponents of two digits aren't tried
    ("x^(2)*x", "x^3"),
    (r"(2, \sqrt{8})", r"(2, 2\sqrt{2})"),  # a tuple holds no brackets
    ("2^3^2", "512"),
    ("5", "6"),
    ("1 1/2", "11/2"),
  ],
)
def test_what_the_rules_cant_show_to_be_right_is_wrong(given, reference):
  assert not prm800k_rules.same(given, reference)


@pytest.mark.parametrize(
  ("given", "reference"),
  [
    ("7i - 2", "-2+7i"),
    (r"\frac{x+1}{2}", "x/2 + 1/2"),
    (r"\frac{\sqrt{12}}{2}", r"\sqrt{3}"),
    ("(x + 1)(x - 1)", "x^2 - 1"),
    ("(2, x+x)", "(2, 2x)"),
    ("x^{2}*x", "x^{3}"),
    (r"\sqrt[3]{x}", "x**(1/3)"),
    ("1 1/2", "1.5"),
  ],
)
def test_what_sympy_simplifies_to_no_difference_is_right(given, reference):
  pytest.importorskip("sympy")
  assert prm800k_rules.same(given, reference)


def test_text_that_is_no_formula_is_never_evaluated(monkeypatch):
  """sympy's parser runs Python; two letters are enough to call something."""
  sympy_parser = pytest.importorskip("sympy.parsing.sympy_parser")

  evaluated = []

  def parse(text, **_):
    evaluated.append(text)

  monkeypatch.setattr(sympy_parser, "parse_expr", parse)
  for text in ("a.__b__", "a['b']", "a\nb", "[a for a in b]", "a=b", "a;b"):
    assert not prm800k_rules.same(text, "x+1")
  assert not evaluated
  prm800k_rules.same("a+b", "b+a")
  assert evaluated == ["(b+a)-(a+b)"]


def test_fractions_are_read_from_the_inside_out():
  deep = r"\frac{" * 100 + "1" + "}{x}" * 100
  assert prm800k_rules.plain_form(deep).count("/x") == 100
  assert prm800k_rules.plain_form(r"\frac{\frac{1}{2}}{3}") == "(1/2)/3"
  assert prm800k_rules.plain_form(r"1\frac12") == "1+1/2"
