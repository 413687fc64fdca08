"""The types that all stages share: problems, solutions, and functions on them.

Human ratings, Monte-Carlo labels, a judge's labels and published data sets all
become the same: steps with labels, where a label is P(correct so far) in [0,
1].
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
import numbers
import reprlib
from typing import Any, Literal, NamedTuple

from prm_jax import errors

# A step whose score or label is below this is wrong (ProcessBench's threshold).
THRESHOLD = 0.5

# Which steps a model is trained to judge: all; those up to the first that it
# finds wrong; or the last.
JUDGED = ("all", "until_first_error", "last")

# How the scores of steps become one score of their solution.
Aggregate = Literal["product", "min", "last", "mean"]

# Where a step is in a text: its first character, and the one after its last.
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question and, if it is known, its reference answer.

  Args:
    id: The name of the problem in files and messages.
    problem: The text of the question.
    answer: The reference answer, or None if it isn't known.
    extra: Further fields of the record; they are copied to outputs.

  Raises:
    InputError: A text isn't a str, or `extra` has a field of the problem.
  """

  id: str
  problem: str
  answer: str | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    # The name is made for a fault alone: there are millions of values.
    errors.raise_first(f"problem {_id(self.id)}: {x}" for x in self._faults())

  def _faults(self) -> Iterator[str]:
    yield from _wrong_texts(self, "id", "problem")
    yield from _wrong_texts(self, "answer", are_optional=True)
    yield from _hiding_extra(self)


# Who speaks in a conversation. An assistant's message is a turn.
Role = Literal["system", "user", "assistant", "tool"]


@dataclasses.dataclass(frozen=True)
class Call:
  """A tool call.

  Args:
    name: The name of the tool.
    arguments: The arguments, as JSON has them.
    id: The name that the tool's result refers to, or None.
  """

  name: str
  arguments: Mapping[str, Any]
  id: str | None = None


@dataclasses.dataclass(frozen=True)
class Message:
  """What is said at once in a conversation (text.messages reads it).

  Args:
    role: Who speaks.
    text: What is said, without a model's thinking.
    thinking: What the assistant thought before, or None.
    calls: The assistant's tool calls.
    answers: The id of the call that a tool's result answers, or None.
    record: The record that the message was read from, which is written as it
      is; {} writes a record of the other fields.
  """

  role: Role
  text: str
  thinking: str | None = None
  calls: tuple[Call, ...] = ()
  answers: str | None = None
  record: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False
  )

  @property
  def shown(self) -> str:
    """The text and the calls, each call on a line as NAME(ARGUMENTS)."""
    calls = (
      f"{x.name}({json.dumps(dict(x.arguments), ensure_ascii=False)})"
      for x in self.calls
    )
    return "\n".join(x for x in (self.text, *calls) if x)


# What isn't known of a solution that goes on in another way.
UNKNOWN: Mapping[str, Any] = dict(
  labels=None, ratings=None, answer=None, outcome=None
)

# What is between two turns in the raw_text of a trajectory.
BETWEEN_TURNS = "\n\n"


@dataclasses.dataclass(frozen=True)
class Solution:
  """The steps that solve a problem, and what is known about them.

  With `messages` it is a trajectory: its steps are the assistant's turns, and
  everything else is context (text.messages.trajectory makes it). Without
  raw_text and spans a step is a whole turn, as Message.shown writes it.

  Args:
    id: The name of the solution in files and messages.
    problem: The text of the question.
    steps: The text of each step. A list becomes a tuple.
    labels: P(correct so far) in [0, 1] of each step, None for an unlabelled
      one.
    answer: The final answer that the solution states.
    outcome: Whether that answer is right; None if it isn't known.
    source: Where the solution comes from.
    ratings: PRM800K's rating -1, 0 or +1 of each step, None for an unrated one.
      text.encoding.LabelPolicy turns ratings into labels; `labels` are ignored
      then.
    extra: Further fields of the record; they are copied to outputs.
    raw_text: The whole text that the steps were cut from, or None if the steps
      were given one by one.
    spans: The place of each step in raw_text, in characters: (first character,
      one after the last). Characters between steps belong to no step.
    messages: The conversation, or None. With raw_text and spans, raw_text is
      that of all turns with BETWEEN_TURNS between them, and each turn has one
      step or more.
    tools: The declarations of the tools, as JSON has them.

  Raises:
    InputError: A value has the wrong type or is out of range, labels, ratings
      or spans aren't one for each step, raw_text doesn't hold a step at its
      span, the steps aren't those of `messages`, or `extra` has a field of the
      solution.
  """

  id: str
  problem: str
  steps: tuple[str, ...]
  labels: tuple[float | None, ...] | None = None
  answer: str | None = None
  outcome: bool | None = None
  source: str = ""
  ratings: tuple[int | None, ...] | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  raw_text: str | None = None
  spans: tuple[Span, ...] | None = None
  messages: tuple[Message, ...] | None = None
  tools: tuple[Mapping[str, Any], ...] = ()

  def __post_init__(self):
    if not isinstance(self.steps, str):
      object.__setattr__(self, "steps", tuple(self.steps))
    errors.raise_first(f"solution {_id(self.id)}: {x}" for x in self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong with the fields."""
    yield from _wrong_texts(self, "id", "problem", "source")
    yield from _wrong_texts(self, "answer", "raw_text", are_optional=True)
    if isinstance(self.steps, str):
      yield "steps is one str; give a list of them, one per step"
    for i, step in enumerate(self.steps):
      if not isinstance(step, str):
        yield f"steps[{i}] must be a str, found {reprlib.repr(step)}"
    if self.outcome is not None and not isinstance(self.outcome, bool):
      yield (
        f"outcome must be True, False or None, found"
        f" {reprlib.repr(self.outcome)}"
      )
    probability = "P(correct so far) in [0, 1]"
    yield from self._wrong_values("labels", _is_probability, probability)
    yield from self._wrong_values("ratings", _is_rating, "-1, 0 or 1")
    if self.spans is not None:
      yield from self._wrong_spans(self.spans)
    if self.messages is not None:
      yield from self._wrong_messages(self.messages)
    elif self.tools:
      yield (
        "tools without messages; only a conversation has tools, so give its"
        " messages, or take them out"
      )
    yield from _hiding_extra(self)

  def _wrong_values(
    self, name: str, valid: Callable[[Any], bool], form: str
  ) -> Iterator[str]:
    """Yields labels or ratings that are out of range or of another number."""
    values = getattr(self, name)
    if values is None:
      return
    if isinstance(values, str) or not hasattr(values, "__len__"):
      yield f"{name} is {reprlib.repr(values)}; give a list, one per step"
    if len(values) != len(self.steps):
      yield (
        f"{len(values)} {name} for {len(self.steps)} steps; give one per step,"
        " null where unknown"
      )
    for i, value in enumerate(values):
      if value is not None and not valid(value):
        yield f"{name}[{i}] is {reprlib.repr(value)}; expected {form} or null"

  def _wrong_spans(self, spans: Sequence[Span]) -> Iterator[str]:
    """Yields spans at which raw_text doesn't hold the steps, in order."""
    text = self.raw_text
    if text is None:
      yield "spans without raw_text; give the text that they are of"
      return
    if len(spans) != len(self.steps):
      yield f"{len(spans)} spans for {len(self.steps)} steps; give one per step"
    last = 0
    for i, ((start, end), step) in enumerate(zip(spans, self.steps)):
      if not last <= start <= end or text[start:end] != step:
        yield (
          f"spans[{i}] is ({start}, {end}), where raw_text doesn't hold step"
          f" {i + 1}; give the step's first character and the one after its"
          " last"
        )
      last = end

  def _wrong_messages(self, messages: Sequence[Any]) -> Iterator[str]:
    """Yields what is wrong with a conversation whose turns aren't the steps."""
    for i, message in enumerate(messages):
      if not isinstance(message, Message):
        yield (
          f"messages[{i}] is {reprlib.repr(message)}; give a Message, or make"
          " the solution with prm_jax.trajectory"
        )
    turns = [x.shown for x in messages if x.role == "assistant"]
    if self.spans is None:
      is_same = list(self.steps) == turns
    else:
      is_same = self.raw_text == BETWEEN_TURNS.join(turns)
      is_same = is_same and {*turns_of(self)} == {*range(len(turns))}
    if not is_same:
      yield (
        f"its steps aren't those of its {len(turns)} assistant turns; make it"
        " with prm_jax.trajectory, which takes the steps from the messages"
      )


def turns_of(trajectory: Solution) -> tuple[int, ...]:
  """Returns the turn, from 0, that each step of a trajectory is in.

  Args:
    trajectory: A solution with messages.

  Returns:
    One number for each step, ascending; -1 for a step in no turn alone.
  """
  if trajectory.spans is None:
    return tuple(range(len(trajectory.steps)))
  turns = turn_spans(trajectory.messages or ())
  found = []
  for start, end in trajectory.spans:
    turn = bisect.bisect_left(turns, end, key=lambda span: span[1])
    is_within = turn < len(turns) and turns[turn][0] <= start
    found.append(turn if is_within else -1)
  return tuple(found)


def turn_spans(messages: Iterable[Message]) -> tuple[Span, ...]:
  """Returns where each turn is in the raw_text of a trajectory.

  Args:
    messages: The conversation.

  Returns:
    The place of each assistant's message, as Message.shown writes it.
  """
  spans, start = [], 0
  for message in messages:
    if message.role == "assistant":
      spans.append((start, start + len(message.shown)))
      start = spans[-1][1] + len(BETWEEN_TURNS)
  return tuple(spans)


def first_turns(trajectory: Solution, num_turns: int) -> Solution:
  """Returns a trajectory's beginning: some turns, and what comes before them.

  Args:
    trajectory: A solution with messages.
    num_turns: The number of turns.

  Returns:
    The beginning, without labels, ratings, answer and outcome. It ends with its
    last turn; without a turn, before the first one.
  """
  messages = trajectory.messages or ()
  at = [i for i, x in enumerate(messages) if x.role == "assistant"]
  end = at[num_turns - 1] + 1 if num_turns else [*at, len(messages)][0]
  num_steps = sum(turn < num_turns for turn in turns_of(trajectory))
  raw_text, spans = trajectory.raw_text, trajectory.spans
  if spans is not None:
    turns = [messages[i].shown for i in at[:num_turns]]
    raw_text, spans = BETWEEN_TURNS.join(turns), spans[:num_steps]
  return dataclasses.replace(
    trajectory,
    messages=messages[:end],
    steps=trajectory.steps[:num_steps],
    raw_text=raw_text,
    spans=spans,
    **UNKNOWN,
  )


def first_steps(solution: Solution, num_steps: int) -> Solution:
  """Returns a solution's beginning, as an unfinished solution.

  Args:
    solution: The solution.
    num_steps: The number of steps.

  Returns:
    The beginning, without labels, ratings, answer and outcome. Where the whole
    text is known, its raw_text goes on to the next step's beginning.

  Raises:
    InputError: A trajectory would end within a turn.
  """
  if solution.messages is not None:
    turns = turns_of(solution)
    before, after = turns[:num_steps][-1:], turns[num_steps:][:1]
    if num_steps and before == after:
      raise errors.InputError(
        f"solution {solution.id!r}: its first {num_steps} steps end within a"
        " turn; a trajectory begins with whole turns"
      )
    return first_turns(solution, turns[num_steps - 1] + 1 if num_steps else 0)
  raw_text, spans = solution.raw_text, None
  if raw_text is None or solution.spans is None or not num_steps:
    raw_text = None
  else:
    spans = solution.spans[:num_steps]
    if num_steps < len(solution.spans):
      raw_text = raw_text[: solution.spans[num_steps][0]]
  return dataclasses.replace(
    solution,
    steps=solution.steps[:num_steps],
    raw_text=raw_text,
    spans=spans,
    **UNKNOWN,
  )


@dataclasses.dataclass(frozen=True)
class StepScores:
  """The scores of the steps of one solution.

  Args:
    scores: The score of each step, in [0, 1]. A PRM's is P(correct so far), an
      ORM's is P(the answer is right) as estimated after the step.
    logits: The log-odds of the scores, in nats, or None if the scorer has none
      (a judge, a verifier). They differ even if scores round to 1.0.
    spans: The place of each step in the text that was scored, in characters, or
      None if the steps were given one by one.
    judged: Whether the model was trained to judge each step; by default all. A
      PRM whose training ignored the steps after a first error wasn't trained to
      judge the steps after its own first score below THRESHOLD.
    without_thinking: Of a trajectory, whether the model read a step's turn
      without what was thought before it, as its chat template leaves it out; by
      default none.
    graded: What a judge with a rubric says by each principle (docs/judge.md):
      `rubric`, its digest, and by name the `labels`, `scores` and `critiques` of
      each step as `principles`. None of others.

  Raises:
    InputError: logits, spans, judged or without_thinking aren't one for each
      score.
  """

  scores: tuple[float, ...]
  logits: tuple[float, ...] | None = None
  spans: tuple[Span, ...] | None = None
  judged: tuple[bool, ...] = ()
  without_thinking: tuple[bool, ...] = ()
  graded: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)

  def __post_init__(self):
    errors.raise_first(self._faults())
    for name, default in (("judged", True), ("without_thinking", False)):
      if not getattr(self, name):
        object.__setattr__(self, name, (default,) * len(self.scores))

  def _faults(self) -> Iterator[str]:
    if not hasattr(self.scores, "__len__") or isinstance(self.scores, str):
      yield (
        "StepScores: scores must be a list with a number for each step, found"
        f" {reprlib.repr(self.scores)}"
      )
    given = dict(
      logits=self.logits,
      spans=self.spans,
      judged=self.judged or None,
      without_thinking=self.without_thinking or None,
    )
    for name, values in given.items():
      if values is not None and len(values) != len(self.scores):
        yield (
          f"{len(values)} {name} for {len(self.scores)} scores; give one of"
          " each step"
        )

  def __len__(self) -> int:
    return len(self.scores)


def _id(value: Any) -> str:
  """Returns an id as a message shows it; one that is no text may be long."""
  return repr(value) if isinstance(value, str) else reprlib.repr(value)


def _wrong_texts(
  noun: Problem | Solution, *names: str, are_optional: bool = False
) -> Iterator[str]:
  """Yields fields that must be a text and aren't."""
  for name in names:
    value = getattr(noun, name)
    if not isinstance(value, str) and not (are_optional and value is None):
      yield f"{name} must be a str, found {reprlib.repr(value)}"


def _is_probability(value: Any) -> bool:
  # True and False are numbers, too.
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_number and 0 <= value <= 1


def _is_rating(value: Any) -> bool:
  return (
    isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2
  )


def _hiding_extra(noun: Problem | Solution) -> Iterator[str]:
  """Yields extra fields that would hide the noun's own fields in a file."""
  clash = (vars(noun).keys() & noun.extra.keys()) - {"extra"}
  if clash:
    yield (
      f"extra holds {', '.join(sorted(clash))}, a field of its own; give it"
      " another name"
    )


# Unfinished solutions (no step yet, or some), n -> n whole ones of each: the
# given steps and the continuation. A completion depends on the prefix's id and
# text and on its own index: who wants others asks under another id.
Generate = Callable[[Sequence[Solution], int], list[list[Solution]]]


# What a completion's extra says of its new tokens; log-probabilities in nats.
STATISTICS = (
  *("ended", "stopped", "num_tokens"),
  *("log_prob_mean", "log_prob_min"),
)


# Unfinished solutions and texts that may follow their last step, within it ->
# log-probabilities in nats, one row per solution, one column per text.
LogLikelihood = Callable[[Sequence[Solution], Sequence[str]], list[list[float]]]


class Weighed(NamedTuple):
  """How likely a text is after an unfinished solution.

  Args:
    log_prob: Its log-probability in nats.
    num_tokens: The number of its tokens there.
  """

  log_prob: float
  num_tokens: int


# Groups of unfinished solutions with texts that may follow the last step of
# each, within it -> a row for each solution of a group, a column for each text.
Weigh = Callable[
  [Sequence[tuple[Sequence[Solution], Sequence[str]]]],
  list[list[list[Weighed]]],
]


# Where a solution's extra holds the right answer to its problem.
REFERENCE = "reference_answer"


# Where a solution's extra names the person, or the labeller, that its labels or
# ratings are of. Several annotators' labels of one solution are as many
# solutions (datasets.annotators finds and merges them).
ANNOTATOR = "annotator"


# Where a solution's extra says what the annotator was given it for, and what it
# says of one who decided between others and saw what they said.
GIVEN_FOR, ADJUDICATION = "given_for", "adjudication"


# Where a solution's extra holds the ids that its raw_text was sampled as: an
# object of `tokenizer`, a digest, and `ids`.
SAMPLED = "sampled"


# Where a solution's extra says that its text ended while the model was thinking,
# in a block that the policy's opening had begun.
THINKING = "thinking"


# Does a whole solution end in the right answer; None where that can't be told
# (no reference, a grader that was killed).
Verify = Callable[[Sequence[Solution]], list[bool | None]]


# The tokens of the text of some steps, with what separates them.
CountTokens = Callable[[Sequence[str]], int]


# The final answer that a solution states, None if it states none.
FindAnswer = Callable[[Solution], str | None]


# The scores of each solution's steps, in the solutions' order.
Score = Callable[[Sequence[Solution]], list[StepScores]]


# A reward of each whole solution, any finite number, in the solutions' order.
OutcomeReward = Callable[[Sequence[Solution]], list[float]]


def judged_steps(scores: Sequence[float], which: str) -> tuple[bool, ...]:
  """Returns which steps count as judged, given their scores.

  Args:
    scores: The scores of a solution's steps, in [0, 1].
    which: One of JUDGED: all steps, those until the first score below THRESHOLD
      (included), or the last step alone.

  Returns:
    One bool for each step.
  """
  num, last = len(scores), len(scores) - 1
  if which == "last":
    return tuple(i == last for i in range(num))
  error = first_error(scores) if which == "until_first_error" else -1
  return tuple(error < 0 or i <= error for i in range(num))


def first_error(
  labels: Sequence[float | None], threshold: float = THRESHOLD
) -> int:
  """Returns the index of the first wrong step.

  Args:
    labels: The labels or scores of a solution's steps, in [0, 1]. None is never
      wrong.
    threshold: A step is wrong if its label is below this.

  Returns:
    The index, counted from 0, or -1 if no step is wrong.
  """
  for i, label in enumerate(labels):
    if label is not None and label < threshold:
      return i
  return -1
