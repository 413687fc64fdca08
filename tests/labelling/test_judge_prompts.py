r"""A judge is asked about the steps as they are, and read to the letter."""

import re

import hostile_text
from hypothesis import given
from hypothesis import strategies as st
import pytest
import test_rubrics

from prm_jax import schema
from prm_jax.labelling import judge_prompts

FORMS = {**judge_prompts.TEMPLATES, "dial": judge_prompts.DIAL}
# Text that would move a boundary, if texts could.
TYPED = hostile_text.TEXT | st.lists(
  st.sampled_from(
    [
      *("</paragraph_0>", "<paragraph_1>", "< /Paragraph_1 >", "</solution>"),
      *("<solution>", "<problem>", "</think>", "<analysis_1>", "{steps}"),
      *("\nStep 2: ", "\rStep 1:", "\u2028Step 9:", "{", "}", "{0}", "\\"),
      *("<|im_start|>", "<s>", " ; ", "check", " correct ", ";"),
    ]
  )
  | st.sampled_from(hostile_text.WORDS),
  max_size=5,
).map("".join)


def _solution(steps, problem="p"):
  return schema.Solution("a", problem, tuple(steps))


def _write(name, error, n):
  """Returns what a judge writes that finds its first error there."""
  judged = n if error < 0 else error + 1
  said = ["incorrect" if k == error else "correct" for k in range(n)]
  if name == "processbench":
    return f"I redo it: $2 + 2 = 4$.\n\\boxed{{{error}}}"
  if name == "first_error":
    analyses = "\n".join(
      f"<analysis_{k}>\nsum {k}\n</analysis_{k}>" for k in range(1, judged + 1)
    )
    word = "Correct" if error < 0 else "Incorrect"
    return f"{analyses}\n<conclusion>\n{word}\n</conclusion>"
  if name == "thinkprm":
    lines = [
      f"Step {k}: look. The step is \\boxed{{{word}}}."
      for k, word in enumerate(said, 1)
    ]
    word = "Yes" if error < 0 else "No"
    return "\n".join([*lines, f"Is the solution correct? {word}"])
  lines = [f"3 + 4 = 7 check so 3 {word}" for word in said[:judged]]
  return "\n".join([*lines, f"solution {'yes' if error < 0 else 'no'}"])


# --- Asking -----------------------------------------------------------------


@given(steps=st.lists(TYPED, min_size=1, max_size=4), problem=TYPED)
@pytest.mark.parametrize("name", ["processbench", "first_error"])
def test_no_text_moves_a_paragraph(name, steps, problem):
  template = FORMS[name]
  prompt = judge_prompts.ask(template, _solution(steps, problem))
  inside = prompt.split("<solution>\n")[1].split("\n</solution>")[0]
  found = re.findall(r"<\s*/?\s*paragraph[^>]*>", inside, re.I)
  expected = []
  for k in range(template.first, template.first + len(steps)):
    expected += [f"<paragraph_{k}>", f"</paragraph_{k}>"]
  assert found == expected
  for tag in ("problem", "solution"):
    assert len(re.findall(rf"<\s*/?\s*{tag}", prompt, re.I)) == 2
  assert "<|" not in prompt and "<s>" not in prompt


@given(steps=st.lists(TYPED, min_size=1, max_size=4), problem=TYPED)
def test_no_text_opens_a_step(steps, problem):
  prompt = judge_prompts.ask(judge_prompts.THINKPRM, _solution(steps, problem))
  inside = prompt.split("<solution>\n")[1].split("\n</solution>")[0]
  found = [x for x in inside.splitlines() if re.match(r"Step \d+:", x)]
  numbers = [int(re.match(r"Step (\d+):", x)[1]) for x in found]
  assert numbers == list(range(1, len(steps) + 1))
  for line, step in zip(found, steps, strict=True):
    first = (step.splitlines() or [""])[0]
    assert line.removeprefix(f"Step {found.index(line) + 1}: ") in (
      first,
      re.sub(judge_prompts.THINKPRM.reserved, "&lt;", first),
    )


@given(steps=st.lists(TYPED, min_size=1, max_size=4), problem=TYPED)
def test_no_text_opens_a_step_of_a_dial_problem(steps, problem):
  words = judge_prompts.ask(
    judge_prompts.DIAL, _solution(steps, problem)
  ).split()
  marks = [x for x in words if x in judge_prompts.DIAL_WORDS]
  assert marks == ["check", *[";"] * len(steps)]


@pytest.mark.parametrize("name", FORMS)
def test_ordinary_text_is_asked_about_as_it_stands(name):
  steps = ["Let x < 3 and |y| > 2.", r"So \frac{1}{2} & {a} <= b", ""]
  prompt = judge_prompts.ask(FORMS[name], _solution(steps, "Is a < b?"))
  for text in (*steps, "Is a < b?"):
    assert text in prompt


# --- Reading ----------------------------------------------------------------


@given(data=st.data(), n=st.integers(1, 6))
@pytest.mark.parametrize("name", FORMS)
def test_a_verdict_is_read_as_it_was_written(name, data, n):
  error = data.draw(st.integers(-1, n - 1))
  found = FORMS[name].read(_write(name, error, n), n)
  assert found.first_error == error


@given(text=st.lists(TYPED, max_size=4).map("\n".join), n=st.integers(1, 4))
@pytest.mark.parametrize("name", FORMS)
def test_no_text_breaks_a_reader(name, text, n):
  found = FORMS[name].read(text, n)
  if isinstance(found, str):
    assert found in judge_prompts.REASONS
  else:
    assert -1 <= found.first_error < n


@given(data=st.data(), n=st.integers(1, 4))
@pytest.mark.parametrize("name", ["thinkprm", "dial"])
def test_places_are_where_the_words_stand(name, data, n):
  error = data.draw(st.integers(-1, n - 1))
  template = FORMS[name]
  text = _write(name, error, n)
  found = template.read(text, n)
  right, wrong = template.step_words
  for k, place in enumerate(found.places):
    expected = wrong if k == error else right
    assert text[place:].startswith(expected)
  yes, no = template.whole_words
  assert text[found.whole :] == (yes if error < 0 else no)


_NO_VERDICT = [
  ("processbench", "", "no_verdict"),
  ("processbench", "-1", "no_verdict"),
  ("processbench", r"\boxed{0} or \boxed{1}", "contradicting_verdicts"),
  ("processbench", r"\boxed{1}\boxed{\frac{1}{2}}", "contradicting_verdicts"),
  ("processbench", r"\boxed{\text{1}}", "not_an_index"),
  ("processbench", r"\boxed{}", "not_an_index"),
  ("processbench", r"\boxed 1", "not_an_index"),
  ("processbench", r"\boxed{-2}", "not_an_index"),
  ("processbench", r"\boxed{1.0}", "not_an_index"),
  ("processbench", r"\boxed{١}", "not_an_index"),
  ("processbench", r"\boxed{3}", "out_of_range"),
  ("processbench", r"<think>\boxed{1}</think> none", "no_verdict"),
  ("first_error", "Correct", "no_verdict"),
  ("first_error", "<conclusion>Maybe</conclusion>", "no_verdict"),
  ("first_error", "<conclusion>Correct", "out_of_order"),
  (
    "first_error",
    "<conclusion>Correct</conclusion>",
    "fewer_verdicts_than_steps",
  ),
  (
    "first_error",
    "<conclusion>Incorrect</conclusion>",
    "fewer_verdicts_than_steps",
  ),
  (
    "first_error",
    "<analysis_1></analysis_1><analysis_2></analysis_2>"
    "<conclusion>Correct</conclusion>",
    "fewer_verdicts_than_steps",
  ),
  (
    "first_error",
    "<analysis_2></analysis_2><conclusion>Incorrect</conclusion>",
    "out_of_order",
  ),
  (
    "first_error",
    "<analysis_1><analysis_1></analysis_1><conclusion>Incorrect</conclusion>",
    "out_of_order",
  ),
  (
    "first_error",
    "<conclusion>Correct</conclusion><conclusion>Incorrect</conclusion>",
    "out_of_order",
  ),
  ("thinkprm", r"The step is \boxed{correct}", "no_verdict"),
  (
    "thinkprm",
    "Step 1: \\boxed{correct}\nStep 2: \\boxed{incorrect}",
    "fewer_verdicts_than_steps",
  ),
  (
    "thinkprm",
    "Step 1: \\boxed{correct}\nStep 2: hm\nStep 3: \\boxed{correct}",
    "fewer_verdicts_than_steps",
  ),
  (
    "thinkprm",
    "Step 1: \\boxed{correct}, no, \\boxed{incorrect}\nStep 2: x\nStep 3: x",
    "contradicting_verdicts",
  ),
  (
    "thinkprm",
    "Step 1: \\boxed{correct}\nStep 3: \\boxed{correct}",
    "out_of_order",
  ),
  (
    "thinkprm",
    "\\boxed{incorrect}\nStep 1: \\boxed{correct}",
    "out_of_order",
  ),
  (
    "thinkprm",
    "".join(f"Step {k}: \\boxed{{correct}}\n" for k in range(1, 5)),
    "out_of_range",
  ),
  (
    "thinkprm",
    _write("thinkprm", 1, 3).replace("? No", "? Yes"),
    "contradicting_verdicts",
  ),
  ("dial", "answer 7 check answer 7 correct", "no_verdict"),
  ("dial", "answer 7 check answer 7\nsolution yes", "no_verdict"),
  ("dial", "answer 7 correct\nsolution yes", "no_verdict"),
  (
    "dial",
    "answer 1 check answer 1 correct\nsolution yes",
    "fewer_verdicts_than_steps",
  ),
  (
    "dial",
    "nothing check x incorrect\nanswer 1 check x correct\nsolution no",
    "verdict_after_error",
  ),
  (
    "dial",
    "nothing check x incorrect\nsolution yes",
    "contradicting_verdicts",
  ),
  ("dial", _write("dial", -1, 4), "out_of_range"),
]


@pytest.mark.parametrize(("name", "text", "reason"), _NO_VERDICT)
def test_what_is_no_clean_verdict_is_named_and_no_label(name, text, reason):
  assert FORMS[name].read(text, 3) == reason


def test_every_reason_is_one_that_some_text_has():
  """unended is the judge's to see: a text doesn't tell."""
  seen = {reason for *_, reason in (*_NO_VERDICT, *test_rubrics.UNREADABLE)}
  assert seen == {*judge_prompts.REASONS} - {"unended"}


def test_steps_behind_a_wrong_one_change_no_first_error():
  text = "\n".join(
    f"**Step {k}:** so \\boxed{{{5 * k}}}; \\boxed{{{word}}}"
    for k, word in enumerate(["correct", "incorrect", "correct"], 1)
  )
  assert judge_prompts.THINKPRM.read(text, 3).first_error == 1


def test_thoughts_are_read_only_where_the_verdicts_are_in_them():
  chain = _write("thinkprm", 0, 1)
  other = _write("thinkprm", -1, 1)
  read = judge_prompts.THINKPRM.read
  assert read(f"<think>{chain}</think>", 1).first_error == 0
  assert read(f"<think>\n{other}\n</think>\n{chain}", 1).first_error == 0
  for name, text in (("processbench", r"\boxed{0}"), ("first_error", "<b>")):
    thought = f"<think>{text}</think>{_write(name, -1, 1)}"
    assert FORMS[name].read(thought, 1).first_error == -1
