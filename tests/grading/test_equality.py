"""Laws of when two answers are the same by text or exact value."""

import gzip
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax.grading import equality

SAME = [
  ["1,200", "1200.0", "$1200", r"\$1,200", "1200 dollars", "+1200", "1{,}200"],
  ["1/2", "0.5", ".5", r"\frac{1}{2}", r"\dfrac12", "$\\frac 12$", "2/4"],
  ["-3", "\N{MINUS SIGN}3", r"\(-3\)", "x = -3", "-3.0", r"-\frac{6}{2}"],
  ["3/2", "1 1/2", r"1\frac{1}{2}", "1.5", "1.5 hours"],
  ["50%", "50 percent", r"50\%", "50"],
  ["90", r"90^\circ", "90 degrees", r"90^{\circ}"],
  ["15", r"15\mbox{ cm}^2", "15 square centimeters"],
  [r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"],
  [r"3\sqrt{13}", r"3 \sqrt{13}", r"3\sqrt {13}."],
  ["60 mph", "60 miles per hour", r"60\text{ miles}/\text{hour}"],
  [
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
  ],
  [r"\text{Evelyn}", "Evelyn", "evelyn"],
  [r"\text{(C)}", "C", "(C)"],
  ["4210_{5}", "4210_5"],
  ["y = 2x + 3", "2x+3"],
]


@pytest.mark.parametrize("group", SAME, ids=lambda group: group[0])
def test_ways_to_write_one_answer_are_equal_and_share_a_key(group):
  for a, b in itertools.product(group, group):
    assert equality.equal(a, b), (a, b)
  assert len({equality.canonical(a) for a in group}) == 1


@pytest.mark.parametrize(
  ("a", "b"),
  [
    ("1 1/2", "11/2"),
    ("1/3", "0.333333"),
    ("50%", "0.5"),
    ("5 cm", "5 m"),
    ("50%", "$50"),
    ("5 miles per hour", "5 hours per mile"),
    ("x = 5", "y = 5"),
    ("5x", "5"),
    ("5m", "5"),
    ("3 million", "3"),
    ("2\\pi", "2"),
    ("3!", "3"),
    ("5^2", "5"),
    ("52_8", "52"),
    ("2^{10}", "210"),
    ("1,2", "12"),
    ("(1,200)", "1200"),
    ("0,123", "123"),
    ("2 + 2", "4"),
    ("1/0", "2/0"),
    ("X", "x"),
    ("12 3", "123"),
    (r"2^\frac{1}{2}", "2^1/2"),
    (
      r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
      r"\begin{pmatrix}12\end{pmatrix}",
    ),
    ("9" * 99 + "1", "9" * 99 + "2"),
    ("40, 200", "40,200"),
    (r"\frac{1}{2}, 40, 200", r"\frac{1}{2}, 40,200"),
    ("5 square", "5"),
    ("6.63e-34", "0"),
    ("3 hours", "3 minutes"),
  ],
)
def test_different_answers_differ_both_ways_round(a, b):
  assert not equality.equal(a, b)
  assert not equality.equal(b, a)


def test_no_answer_equals_nothing():
  assert not equality.equal(None, None)
  assert not equality.equal(None, "None")
  assert equality.canonical(None) is None


NOTATION = st.text(
  alphabet="0123456789 ,.-+/%$\\{}()x=fracboxedtext_^", max_size=30
)


@given(st.one_of(st.text(), NOTATION), st.one_of(st.text(), NOTATION))
def test_equality_is_reflexive_symmetric_and_implies_one_key(a, b):
  assert equality.equal(a, a)
  assert equality.equal(a, b) == equality.equal(b, a)
  if equality.equal(a, b):
    assert equality.canonical(a) == equality.canonical(b)


@given(st.fractions(), st.integers(1, 50))
def test_a_fraction_equals_itself_unreduced(value, k):
  top, bottom = value.numerator, value.denominator
  assert equality.equal(
    f"{top}/{bottom}", rf"\frac{{{k * top}}}{{{k * bottom}}}"
  )
  assert not equality.equal(f"{top}/{bottom}", f"{top + 1}/{bottom}")


@given(st.integers(-(10**12), 10**12), st.integers(0, 3))
def test_thousands_commas_and_trailing_zeros_change_nothing(value, zeros):
  plain = f"{value}" + ("." + "0" * zeros if zeros else "")
  assert equality.equal(f"{value:,}", plain)


@pytest.mark.real_data
def test_grades_agree_with_16000_published_ones(public_data):
  num_seen = 0
  path = public_data("best_of_n/gsm8k_pool_0000_0999.jsonl.gz")
  with gzip.open(path, "rt") as f:
    for problem in map(json.loads, f):
      for candidate in problem["candidates"]:
        num_seen += 1
        right = equality.equal(candidate["pred"], problem["gold"])
        assert right == candidate["correct"], candidate
  assert num_seen == 15_984
