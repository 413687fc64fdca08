"""Laws of final-answer extraction and equality."""

import gzip
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax.grading import answers


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("She has 3 left.\n#### 1,200", "1,200"),
    ("so 3 + 4 = 7\nanswer 7", "7"),
    ("It works.\nAnswer: 7 apples.", "7 apples"),
    ("**Answer:** 7", "7"),
    ("That is right.\n\n# Answer\n\n7i - 2", "7i - 2"),
    ("# Answer\n\n\\begin{a}\n1\n\\end{a}", "\\begin{a}\n1\n\\end{a}"),
    ("## Final Answer\n12", "12"),
    ("Step 2: 3*4 = 12. The answer is: 12", "12"),
    ("So the answer is 3.5. I hope that this helps.", "3.5"),
    ("The answer is\n$\\frac{1}{2}$.", "$\\frac{1}{2}$"),
    (r"Hence $\boxed{\frac{1}{\sqrt{2}}}$.", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed{1} is wrong, it is \boxed{2}", "2"),
    (r"the set \boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"so $x = \boxed 9$.", "9"),
    (r"\boxed{4}, and \boxed{never closed", "4"),
    (r"nested \boxed{ \boxed{3} }", "3"),
    (r"The answer is: \boxed{5}. We see that the answer is correct.", "5"),
    ("#### 3\nwait\n#### 4", "4"),
    ("\\boxed{3}\n#### 4", "4"),
  ],
)
def test_the_last_stated_answer_is_extracted_as_written(text, expected):
  assert answers.extract(text) == expected


@pytest.mark.parametrize(
  "text",
  [
    "",
    "  \n",
    "so 3 + 4 = 7",
    "answer",
    "####",
    r"\boxed{}",
    "answer the call",
  ],
)
def test_a_solution_that_states_no_answer_has_none(text):
  assert answers.extract(text) is None


def test_steps_are_read_as_their_joined_text():
  steps = ["so 3 + 4 = 7", "so 7 * 2 = 4", "answer 4"]
  assert answers.extract(steps) == answers.extract("\n".join(steps)) == "4"
  assert answers.extract([]) is None


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
    assert answers.equal(a, b), (a, b)
  assert len({answers.canonical(a) for a in group}) == 1


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
  ],
)
def test_different_answers_differ_both_ways_round(a, b):
  assert not answers.equal(a, b)
  assert not answers.equal(b, a)


def test_no_answer_equals_nothing():
  assert not answers.equal(None, None)
  assert not answers.equal(None, "None")
  assert answers.canonical(None) is None


NOTATION = st.text(
  alphabet="0123456789 ,.-+/%$\\{}()x=fracboxedtext_^", max_size=30
)


@given(st.one_of(st.text(), NOTATION), st.one_of(st.text(), NOTATION))
def test_equality_is_reflexive_symmetric_and_implies_one_key(a, b):
  assert answers.equal(a, a)
  assert answers.equal(a, b) == answers.equal(b, a)
  if answers.equal(a, b):
    assert answers.canonical(a) == answers.canonical(b)


@given(st.fractions(), st.integers(1, 50))
def test_a_fraction_equals_itself_unreduced(value, k):
  top, bottom = value.numerator, value.denominator
  assert answers.equal(
    f"{top}/{bottom}", rf"\frac{{{k * top}}}{{{k * bottom}}}"
  )
  assert not answers.equal(f"{top}/{bottom}", f"{top + 1}/{bottom}")


@given(st.integers(-(10**12), 10**12), st.integers(0, 3))
def test_thousands_commas_and_trailing_zeros_change_nothing(value, zeros):
  plain = f"{value}" + ("." + "0" * zeros if zeros else "")
  assert answers.equal(f"{value:,}", plain)


@given(st.text(alphabet="0123456789/+-x,. ", min_size=1).map(str.strip))
def test_what_a_box_holds_is_found(content):
  found = answers.extract(f"thus \\boxed{{{content}}} follows")
  assert found == (content or None)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
  "piece",
  [
    "\\boxed{", "\\boxed", "\\boxed{1}", "{", "}", "\\", "#", "#### ", "# answer ",
    "answer is ", "answer", " ", "\n", "\\frac{", "$", "1,", "9", "- ", "1/",
    "\\text{", "\\boxed ", "answer is:\n", "*", "cm", "1 ",
  ],
)  # fmt: skip
def test_hostile_text_takes_linear_time(piece):
  text = piece * (300_000 // len(piece))
  for hostile in (text, text + "x", "# answer" + text + "x"):
    answers.extract(hostile)
    answers.equal(hostile, hostile + "1")
    answers.equal(hostile[:1_900], hostile[:1_901])


@pytest.mark.real_data
def test_reference_solutions_state_their_reference_answers(public_data):
  with gzip.open(public_data("math500/math500.jsonl.gz"), "rt") as f:
    for record in map(json.loads, f):
      assert answers.extract(record["solution"]) == record["answer"]
  with gzip.open(public_data("gsm8k/test.jsonl.gz"), "rt") as f:
    for record in map(json.loads, f):
      gold = record["answer"].rsplit("#### ", 1)[1]
      assert answers.extract(record["answer"]) == gold


@pytest.mark.real_data
def test_grades_agree_with_16000_published_ones(public_data):
  num_seen = 0
  path = public_data("best_of_n/gsm8k_pool_0000_0999.jsonl.gz")
  with gzip.open(path, "rt") as f:
    for problem in map(json.loads, f):
      for candidate in problem["candidates"]:
        num_seen += 1
        right = answers.equal(candidate["pred"], problem["gold"])
        assert right == candidate["correct"], candidate
  assert num_seen == 15_984


@pytest.mark.real_data
def test_every_prm800k_answer_heading_is_read(public_data):
  num_seen = 0
  with gzip.open(public_data("prm800k/phase2_sample.jsonl.gz"), "rt") as f:
    for record in map(json.loads, f):
      for step in record["label"]["steps"]:
        for completion in step["completions"] or []:
          _, heading, below = completion["text"].partition("# Answer\n")
          if heading:
            num_seen += 1
            expected = below.strip().removesuffix(".")
            assert answers.extract(completion["text"]) == expected
  assert num_seen == 252
