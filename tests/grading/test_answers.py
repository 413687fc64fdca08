"""Laws of final-answer extraction."""

import dataclasses
import gzip
import json
import pathlib
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import schema
from prm_jax.grading import equality
from prm_jax.text import answers

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "answers.md"


def forms():
  """Returns the rows of the page's table: form, text, answer or None."""
  table = PAGE.read_text().partition("| form |")[2].partition("\n\n")[0]
  rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
  found = []
  for form, text, answer in rows:
    text = re.fullmatch(r"(`+)(.*)\1", text)[2].replace("\u23ce", "\n")
    answer = answer.strip("`").replace("\u23ce", "\n")
    found.append((form, text, None if answer == "none" else answer))
  return found


@pytest.mark.parametrize(
  ("text", "answer"), [pytest.param(*row[1:], id=row[0]) for row in forms()]
)
def test_each_form_of_the_page_is_read_as_it_says(text, answer):
  assert answers.extract(text) == answer
  assert answers.extract(text.split("\n")) == answer


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("**Answer:** 7", "7"),
    ("# Answer\n\n\\begin{a}\n1\n\\end{a}", "\\begin{a}\n1\n\\end{a}"),
    ("## Final Answer\n12", "12"),
    (r"Hence $\boxed{\frac{1}{\sqrt{2}}}$.", r"\frac{1}{\sqrt{2}}"),
    (r"the set \boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"\boxed{4}, and \boxed{never closed", "4"),
    (r"nested \boxed{ \boxed{3} }", "3"),
    (r"The answer is: \boxed{5}. We see that the answer is correct.", "5"),
    ("#### 3\nwait\n#### 4", "4"),
    ("\\boxed{3}\n#### 4", "4"),
    ("The answer is x, where x > 3.", "x"),
    ("The answer is $x, where x > 3$.", "$x, where x > 3$"),
    ("The answer is not 5.\nSo the answer is 6.", "6"),
    ("The answer is 64 (since 8 * 8 = 64).", "64"),
    ("The answer is therefore 5.", "5"),
    ("> Answer: 5", "5"),
    ("The final answer is: **(C)**", "(C)"),
    ("Answer: _42_", "42"),
    ("**The answer is 12.**", "12"),
    ("so </think> the answer is 4 <think> or not", "4"),
    (
      "<|channel|>analysis<|message|>\\boxed{4}<|channel|>final<|message|>5",
      None,
    ),
    ("The answer is:\n\n$$\n42\n$$", "$$\n42\n$$"),
    ("The final answer is:\n\n\\[\n42\n\\]\nDone.", "\\[\n42\n\\]"),
    ("**Final Answer**\n\n$$\n\n42\n$$", "$$\n\n42\n$$"),
    ("The answer is given by\n$$x=5$$", "$$x=5$$"),
    ("The answer is as follows:\n42", "42"),
    ("So $\\boxed{9}$.\n\n#### Verification\n9 works.", "9"),
    ("#### Step 1\n2+2=4\n\nThe answer is 4.", "4"),
    ("#### Evelyn", "Evelyn"),
    ("The answer is 42.\n\nNote that the answer is an integer.", "42"),
    ("The answer is 42. This answer is obtained by adding.", "42"),
    ("The answer is a circle.", "a circle"),
    ("The answer is 42\nprint(f'The answer is {x}')", "42"),
    ("Answer: Let's think. 3+4=7.\nSo the answer is 7.", "7"),
    ("If the answer is 5, then x = 2.", None),
    ("The answer is a<b>c", "a<b>c"),
    ("The answer is $\\text{Mr. Smith}$.", "$\\text{Mr. Smith}$"),
    ("The answer is right triangle.", "right triangle"),
    ("The answer is, therefore, 3.", "3"),
    ("The correct answer is option (B).", "(B)"),
    ("The answer will be 42.", "42"),
    ("So the answer: 5.", "5"),
    ("**Answer:**\n- **42**", "42"),
    ("# Answer\n- 5", "- 5"),
    ("Answer: 42</s>", "42"),
    ("#### 42<|endoftext|>", "42"),
    ("<reasoning>#### 4</reasoning><answer>5</answer>", "5"),
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


def test_steps_of_a_draft_are_known_by_the_whole_text():
  text = "<think>\\boxed{4}\n\nwait</think>\n\nso the answer is 9"
  steps = ("\\boxed{4}", "wait", "so the answer is 9")
  spans = [(i := text.index(step), i + len(step)) for step in steps]
  whole = schema.Solution("a", "p", steps, raw_text=text, spans=tuple(spans))
  assert answers.extract(whole.steps) == "4"  # the names are in no step
  assert answers.of_solution(whole) == "9"
  draft = schema.first_steps(whole, 2)
  assert answers.of_solution(draft) is None
  # Steps that were given one by one have no draft that could be told.
  assert answers.of_solution(schema.Solution("a", "p", steps[2:])) == "9"
  assert answers.of_solution(schema.Solution("a", "p", steps)) == "4"


def test_what_ended_in_a_thought_that_the_prompt_began_has_no_answer():
  solution = schema.Solution("a", "p", ("#### 4",))
  thinking = dataclasses.replace(solution, extra={schema.THINKING: True})
  assert answers.of_solution(thinking) is None
  thought = dataclasses.replace(solution, extra={schema.THINKING: False})
  assert answers.of_solution(thought) == "4"


def test_steps_are_read_as_their_joined_text():
  steps = ["so 3 + 4 = 7", "so 7 * 2 = 4", "answer 4"]
  assert answers.extract(steps) == answers.extract("\n".join(steps)) == "4"
  assert answers.extract([]) is None


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
    "<think>", "</think>", "<answer>", ". ", ". answer: ", ", because ", "$, since ",
    "answer is correct ", "answer to ", "\u7b54\u6848\u3002", "answer is *\n",
    "the answer is a ", "$$", "\\[", "#### a\n", "</s>", "**", "<b>", "# ", "A: ",
  ],
)  # fmt: skip
def test_hostile_text_takes_linear_time(piece):
  text = piece * (300_000 // len(piece))
  for hostile in (text, text + "x", "# answer" + text + "x"):
    answers.extract(hostile)
    equality.equal(hostile, hostile + "1")
    equality.equal(hostile[:1_900], hostile[:1_901])


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
