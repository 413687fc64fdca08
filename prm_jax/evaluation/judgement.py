"""What a model's step scores say of one solution, beside its labels."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from prm_jax import schema

# Of each judgement, whether the model is right, and the sentence about it.
_JUDGEMENTS = dict(
  no_label=("open", "No step has an exact label: nothing to compare with."),
  doubt_without_label=(
    "open",
    "{model} doubts {doubted}, which has no exact label.",
  ),
  unjudged=("open", "{model} doesn't judge {wrong}, the first wrong one."),
  no_error=("right", "{model} is right: no step is wrong and it doubts none."),
  false_alarm=("wrong", "{model} is wrong: false alarm at {doubted}."),
  first_error=("right", "{model} finds the first error, {wrong}."),
  missed=("wrong", "{model} misses the error at {wrong}."),
  early_alarm=(
    "wrong",
    "{model} is wrong: false alarm at {doubted}, before the first error at step"
    " {first}.",
  ),
  late_alarm=(
    "wrong",
    "{model} misses the first error, {wrong}, and only doubts {doubted}.",
  ),
)
_LUCK = " The answer is right all the same, by luck."
# The judgements in which a wrong step isn't doubted, or a right one is.
MISSED = ("missed", "late_alarm")
FALSE_ALARM = ("false_alarm", "early_alarm")


@dataclasses.dataclass(frozen=True)
class Judgement:
  """What a model's scores say of a solution.

  Args:
    name: Which of the cases it is: no_label, doubt_without_label, unjudged,
      no_error, false_alarm, first_error, missed, early_alarm or late_alarm.
    kind: Whether the model is "right" or "wrong"; "open" if that isn't known.
    text: The same in words.
  """

  name: str
  kind: str
  text: str


def is_lucky(labels: Sequence[float | None], outcome: bool | None) -> bool:
  """Returns whether an answer is right after a wrong step.

  Args:
    labels: P(correct so far) of each step, in [0, 1]; None isn't known.
    outcome: Whether the answer is right; None if it isn't known.
  """
  return bool(outcome) and schema.first_error(labels) >= 0


def judge(
  labels: Sequence[float | None],
  scores: Sequence[float],
  outcome: bool | None = None,
  judged: Sequence[bool] = (),
  model: str = "The PRM",
) -> Judgement:
  """Returns what is to be said of a model's scores.

  It compares the first step whose label is below schema.THRESHOLD with the
  first that the model judges and whose score is.

  Args:
    labels: P(correct so far) of each step, in [0, 1]; None isn't known.
    scores: The score of each step, in [0, 1].
    outcome: Whether the answer is right; None if it isn't known.
    judged: Whether the model was trained to judge each step; by default all.
    model: What the sentence calls the model.
  """
  own = [
    s if j else None for s, j in zip(scores, judged or [True] * len(scores))
  ]
  error, doubt = schema.first_error(labels), schema.first_error(own)
  if all(label is None for label in labels):
    name = "no_label"
  elif doubt >= 0 and labels[doubt] is None and not 0 <= error < doubt:
    name = "doubt_without_label"
  elif error < 0:
    name = "false_alarm" if doubt >= 0 else "no_error"
  elif doubt == error:
    name = "first_error"
  elif 0 <= doubt < error:
    name = "early_alarm"
  elif own[error] is None:
    name = "unjudged"
  else:
    name = "missed" if doubt < 0 else "late_alarm"
  wrong, doubted = (
    f"step {i + 1} (score {scores[i]:.3f})" if i >= 0 else ""
    for i in (error, doubt)
  )
  kind, text = _JUDGEMENTS[name]
  values = dict(model=model, wrong=wrong, doubted=doubted, first=error + 1)
  text = text.format(**values) + _LUCK * is_lucky(labels, outcome)
  return Judgement(name, kind, text)
