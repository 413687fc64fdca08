r"""How an LLM judge is asked about a solution's steps, and its answer read.

A template is data: the prompt, how a step is written in it, and the strict
reader of the answer. An answer without a clear verdict gets a reason
(`REASONS`) and never becomes a label. The wording is ours; the forms are

  processbench  the critic of ProcessBench (Zheng et al. 2024): tagged
      paragraphs from 0, \boxed{index of the first wrong one}, -1 for none.
  first_error   of Zhang et al. 2025 (arXiv 2501.07301, App. C): an analysis
      per paragraph, from 1, up to the first wrong one, then a conclusion.
  thinkprm      of Khalifa et al. 2025 (arXiv 2504.16828): `Step i: ... The
      step is \boxed{correct}` for every step, then "Is the solution correct?".
  dial          thinkprm's form in the few words of a dial problem of the testbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import fractions
import re
from typing import Literal

from prm_jax import schema

# Our tags, and the control tokens that a server may look for in a text.
_RESERVED = re.compile(
  r"<(?=\||/?s>|\s*/?\s*(?:problem|solution|paragraph|analysis|conclusion"
  r"|think))",
  re.I,
)

# Why a judge's text is no verdict.
REASONS = (
  "unended",  # the token budget cut it
  "no_verdict",
  "contradicting_verdicts",
  "not_an_index",
  "out_of_range",
  "out_of_order",
  "fewer_verdicts_than_steps",
  "verdict_after_error",
  "missing_principle",
  "not_a_score",
  "score_out_of_range",
)

# Where a solution's extra holds what a judge with a rubric says: `rubric`, its
# digest, and `principles`.
GRADED = "graded"


@dataclasses.dataclass(frozen=True)
class Grades:
  """What a judge's text says of each step by one principle of a rubric.

  Args:
    labels: The labels that this principle alone would give.
    scores: The scores, in [0, 1].
    critiques: The critiques.
  """

  labels: tuple[float, ...]
  scores: tuple[float, ...]
  critiques: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The verdict that a judge's text gives.

  Args:
    first_error: The index of the first wrong step from 0, -1 for none.
    places: Where in the text each step's verdict begins, for the steps that
      have one.
    whole: Where the answer about the whole solution begins, or would begin.
    labels: The label of each step, by a rubric.
    principles: The grades by the name of a principle, by a rubric.
  """

  first_error: int
  places: tuple[int, ...] = ()
  whole: int | None = None
  labels: tuple[float, ...] | None = None
  principles: Mapping[str, Grades] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Template:
  """A prompt for a judge, and how its answer is read.

  Args:
    name: The name of the template.
    prompt: The prompt, with {problem}, {steps} and {count}.
    step: How a step is written, with {number} and {text}.
    read: Returns the verdict, or a reason, given a judge's text and the number
      of steps.
    between: The text between steps.
    first: The number of the first step.
    reserved: What a text may not hold, because the template uses it.
    instead: What is written in its place.
    indent: What precedes each further line of a step, so that no line can look
      like another step.
    step_words: The words for right and wrong whose probabilities are compared
      at a step's place.
    whole_words: The same for the whole solution: yes and no.
    whole_question: The text before them.
    rubric: The digest of the rubric that it asks by.
  """

  name: str
  prompt: str
  step: str
  read: Callable[[str, int], Verdict | str]
  between: str = "\n\n"
  first: int = 1
  reserved: re.Pattern[str] = _RESERVED
  instead: str = "&lt;"
  indent: str | None = None
  step_words: tuple[str, str] | None = None
  whole_words: tuple[str, str] | None = None
  whole_question: str = ""
  rubric: str | None = None


def ask(template: Template, solution: schema.Solution) -> str:
  """Returns the prompt about a solution."""
  steps = template.between.join(
    template.step.format(number=number, text=plain(template, text))
    for number, text in enumerate(solution.steps, template.first)
  )
  return template.prompt.format(
    problem=plain(template, solution.problem),
    steps=steps,
    count=len(solution.steps),
  )


def plain(template: Template, text: str) -> str:
  """Returns the text without anything that the template reads as its own."""
  if template.indent is not None:
    text = f"\n{template.indent}".join(text.splitlines())
  return template.reserved.sub(template.instead, text)


def settle(right: Sequence[bool], num_steps: int, *, stops: bool) -> int | str:
  """Returns the first error of step verdicts, or a reason why there is none.

  Args:
    right: The verdict of each step.
    num_steps: The number of steps.
    stops: Whether the template ends at the first wrong step; otherwise every
      step needs a verdict.
  """
  if len(right) > num_steps:
    return "out_of_range"
  error = list(right).index(False) if False in right else -1
  if stops and error >= 0:
    return error if error == len(right) - 1 else "verdict_after_error"
  return error if len(right) == num_steps else "fewer_verdicts_than_steps"


def mean(
  values: Sequence[float], weights: Sequence[float] | None = None
) -> float:
  """Returns the mean of numbers as they are written, in any order.

  In binary the mean of 0.7, 0.6 and 0.2 is below 0.5, which would be an error.

  Args:
    values: The numbers.
    weights: Their weights, by default equal ones.
  """
  shares = [fractions.Fraction(str(x)) for x in weights or [1] * len(values)]
  total = sum(
    share * fractions.Fraction(str(x))
    for share, x in zip(shares, values, strict=True)
  )
  return float(total / sum(shares))


# --- Readers ----------------------------------------------------------------

# A box that is left open or holds braces has no text here.
_BOX = re.compile(r"\\f?boxed(?:\s*\{([^{}]*)\})?")
_INDEX = re.compile(r"-1|[0-9]{1,6}")
_TAG = re.compile(r"</?(?:analysis_[0-9]+|conclusion)>")
_STEP = re.compile(
  r"^(?:<think>)?[ \t#*]*Step[ \t]+([0-9]{1,6})[ \t]*[:.]", re.M
)
_STEP_VERDICT = re.compile(
  r"\\boxed\s*\{\s*(?:\\text\s*\{)?(correct|incorrect)\b"
)
_WHOLE = re.compile(r"Is the solution correct\?(?:[ \t*]*([A-Za-z]+))?")


def _read_index(text: str, num_steps: int) -> Verdict | str:
  """Reads the one box of a critic's answer, after its thoughts."""
  answer = text.rpartition("</think>")[2]
  boxes = {
    None if x[1] is None else x[1].strip() for x in _BOX.finditer(answer)
  }
  if not boxes:
    return "no_verdict"
  if len(boxes) > 1:
    return "contradicting_verdicts"
  (box,) = boxes
  if box is None or not _INDEX.fullmatch(box):
    return "not_an_index"
  return Verdict(int(box)) if int(box) < num_steps else "out_of_range"


def _read_analyses(text: str, num_steps: int) -> Verdict | str:
  """Reads analyses up to the first wrong paragraph, and the conclusion."""
  answer = text.rpartition("</think>")[2]
  tags = list(_TAG.finditer(answer))
  names = [tag[0] for tag in tags]
  if "<conclusion>" not in names:
    return "no_verdict"
  count = (len(names) - 2) // 2
  expected = [
    tag
    for i in range(1, count + 1)
    for tag in (f"<analysis_{i}>", f"</analysis_{i}>")
  ]
  if names != [*expected, "<conclusion>", "</conclusion>"]:
    return "out_of_order"
  word = answer[tags[-2].end() : tags[-1].start()].strip().lower()
  if word not in ("correct", "incorrect"):
    return "no_verdict"
  right = [True] * count
  if word == "incorrect" and right:
    right[-1] = False
  elif word == "incorrect":
    return "fewer_verdicts_than_steps"
  error = settle(right, num_steps, stops=True)
  return error if isinstance(error, str) else Verdict(error)


def _read_steps(text: str, num_steps: int) -> Verdict | str:
  """Reads a verdict for every step, and the answer about the whole."""
  # A chain is within the thoughts, or after them.
  start = text.rfind("</think>")
  if start < 0 or not _STEP.search(text, start):
    start = 0
  steps = list(_STEP.finditer(text, start))
  if not steps:
    return "no_verdict"
  if len(steps) > num_steps:
    return "out_of_range"
  before = _STEP_VERDICT.search(text, start, steps[0].start())
  if before or [int(x[1]) for x in steps] != [*range(1, len(steps) + 1)]:
    return "out_of_order"
  right, places = [], []
  ends = [*(x.start() for x in steps[1:]), len(text)]
  for step, end in zip(steps, ends, strict=True):
    verdicts = list(_STEP_VERDICT.finditer(text, step.end(), end))
    if not verdicts:
      return "fewer_verdicts_than_steps"
    if len({x[1] for x in verdicts}) > 1:
      return "contradicting_verdicts"
    right.append(verdicts[-1][1] == "correct")
    places.append(verdicts[-1].start(1))
  error = settle(right, num_steps, stops=False)
  if isinstance(error, str):
    return error
  return _with_whole(text, start, error, tuple(places))


def _with_whole(
  text: str, start: int, error: int, places: tuple[int, ...]
) -> Verdict | str:
  """Returns the verdict if the answers about the whole solution agree."""
  questions = list(_WHOLE.finditer(text, start))
  replies = {x[1].lower() for x in questions if x[1]}
  if not replies <= {"yes" if error < 0 else "no"}:
    return "contradicting_verdicts"
  if not questions:
    return Verdict(error, places)
  return Verdict(error, places, questions[-1].start() + len(_QUESTION))


_CHAIN_LINE = re.compile(
  r"(?:[0-7] [-+*] [0-9] = [0-7]|answer [0-7]|nothing) check(?: .*)?"
  r"( correct| incorrect)"
)
_CHAIN_END = re.compile(r"solution( yes| no)")


def _read_chain(text: str, num_steps: int) -> Verdict | str:
  """Reads a chain: a line with a verdict per step, then the whole's."""
  *lines, last = text.split("\n")
  of_whole = _CHAIN_END.fullmatch(last)
  if of_whole is None:
    return "no_verdict"
  right, places, start = [], [], 0
  for line in lines:
    match = _CHAIN_LINE.fullmatch(line)
    if match is None:
      return "no_verdict"
    right.append(match[1] == " correct")
    places.append(start + match.start(1))
    start += len(line) + 1
  error = settle(right, num_steps, stops=True)
  if isinstance(error, str):
    return error
  if (of_whole[1] == " yes") != (error < 0):
    return "contradicting_verdicts"
  return Verdict(error, tuple(places), start + of_whole.start(1))


# What the vocabulary of a judge of dial problems must have besides theirs.
DIAL_WORDS = (
  "check",
  ";",
  "nothing",
  "correct",
  "incorrect",
  "solution",
  "yes",
  "no",
)

# --- Templates --------------------------------------------------------------

_QUESTION = "Is the solution correct?"
TASK = """\
<problem>
{problem}
</problem>

<solution>
{steps}
</solution>

"""

PROCESSBENCH = Template(
  name="processbench",
  prompt="Here are a problem in mathematics and somebody's solution. The"
  " solution was cut into {count} paragraphs; tags give each its number,"
  " counted from 0.\n\n" + TASK + "Go through the paragraphs in their order."
  " Redo the calculations, and ask of every claim whether it follows from what"
  " was given or shown before. You are looking for the earliest paragraph with"
  " a mistake in it. An unusual or clumsy way is no mistake, and what is wrong"
  " only because it builds on an earlier mistake doesn't count.\n\n"
  "Close with the number of that paragraph in \\boxed{{}}, or with"
  " \\boxed{{-1}} if you found no mistake. Use \\boxed{{}} for this number"
  " alone, and once.",
  step="<paragraph_{number}>\n{text}\n</paragraph_{number}>",
  first=0,
  read=_read_index,
)

FIRST_ERROR = Template(
  name="first_error",
  prompt="Here are a problem in mathematics and somebody's solution, cut into"
  " {count} paragraphs that are numbered from 1.\n\n" + TASK + "Check one"
  " paragraph after the other: redo its calculations, look for another way to"
  " confirm it, and reconsider where you aren't sure. Write what you find about"
  " paragraph 1 between <analysis_1> and </analysis_1>, about paragraph 2"
  " between <analysis_2> and </analysis_2>, and so on. As soon as a paragraph"
  " has a mistake, say what it is, close its analysis, and leave out all later"
  " paragraphs: they may rest on it.\n\n"
  "Then conclude. If a mistake was found, the last analysis is that of the"
  " paragraph with the mistake, followed by <conclusion>Incorrect"
  "</conclusion>. If all {count} paragraphs are right, their {count} analyses"
  " are followed by <conclusion>Correct</conclusion>. Write nothing else, and"
  " use these tags for nothing else.",
  step="<paragraph_{number}>\n{text}\n</paragraph_{number}>",
  read=_read_analyses,
)

THINKPRM = Template(
  name="thinkprm",
  prompt="Here are a problem in mathematics and somebody's solution of {count}"
  " steps, which may be unfinished.\n\n" + TASK + "Examine every step, also"
  " those behind a wrong one, in this form: a new line that opens with `Step"
  " 1:`, your examination of it, and at its end `The step is \\boxed{{correct}}`"
  " or `The step is \\boxed{{incorrect}}`; then a new line with `Step 2:`, and"
  " so on for all {count}. A step is correct if it is right in itself and"
  " nothing that it rests on is wrong. If the solution is unfinished, judge the"
  " steps that are there.\n\n"
  f"Last of all write `{_QUESTION} Yes` if every step is correct, and"
  f" `{_QUESTION} No` otherwise.",
  step="Step {number}: {text}",
  between="\n",
  read=_read_steps,
  indent="  ",
  step_words=("correct", "incorrect"),
  whole_words=(" Yes", " No"),
  whole_question=_QUESTION,
)

# The prompt holds the steps and then the problem, so that the chain follows it as
# a solution does in the texts that a base model knows:
#   check so 3 + 4 = 7 ; then 7 * 7 = 2 ; answer 2 ; Ann dials 3 up 4 times 7 .
#   3 + 4 = 7 check 3 + 4 = 7 correct
#   7 * 7 = 1 check 7 * 7 = 2 incorrect
#   solution no
DIAL = Template(
  name="dial",
  prompt="check {steps} {problem}",
  step="{text} ;",
  between=" ",
  # Not in the vocabulary: it is read as an unknown word.
  reserved=re.compile(rf"(?<!\S)(?:{'|'.join(DIAL_WORDS)})(?!\S)"),
  instead="?",
  read=_read_chain,
  step_words=(" correct", " incorrect"),
  whole_words=(" yes", " no"),
  whole_question="solution",
)

TEMPLATES = {t.name: t for t in (DIAL, FIRST_ERROR, PROCESSBENCH, THINKPRM)}
TemplateName = Literal["dial", "first_error", "processbench", "thinkprm"]
