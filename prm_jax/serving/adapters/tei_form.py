"""The form of Text Embeddings Inference."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms

_Sequence = Annotated[list[str], declarations.SOME, ("maxItems", 2)]


class _Request(TypedDict):
  """Texts to score.

  Args:
    inputs: A rendered chat, a pair of a problem and a response, or a list of
      lists: each with a rendered chat or a pair.
    raw_scores: Only probabilities.
    truncate: It has no effect: nothing is ever cut.
  """

  inputs: str | _Sequence | Annotated[list[_Sequence], declarations.SOME]
  raw_scores: NotRequired[Literal[False]]
  truncate: NotRequired[bool]


class _Prediction(TypedDict):
  """A score.

  Args:
    score: The solution's score.
    label: What the score is the probability of.
  """

  score: declarations.Score
  label: forms.Label


def _read_tei(
  record: _Request, reader: chat_requests.Reader
) -> list[forms.Item]:
  inputs = record["inputs"]
  if _is_batch(inputs):
    alone = [x[0] if len(x) == 1 else x for x in inputs]
    return forms.rendered(alone, "inputs", reader)
  if isinstance(inputs, list) and len(inputs) == 2:
    return [forms.Item("inputs", chat_requests.Turns(*inputs))]
  return forms.rendered(inputs, "inputs", reader)


def _write_tei(
  asked: forms.Asked,
) -> list[_Prediction] | list[list[_Prediction]]:
  data = [
    [_Prediction(score=score, label=forms.LABEL)] for score in asked.scores
  ]
  return data if _is_batch(asked.record["inputs"]) else data[0]


def _is_batch(inputs: object) -> bool:
  return isinstance(inputs, list) and isinstance(inputs[0], list)


PREDICT = forms.Form(
  declarations.Route(
    "/predict",
    "Returns the score of each solution; of a batch in a list.",
    declarations.schema(list[_Prediction] | list[list[_Prediction]]),
    declarations.schema(_Request),
    takes_aggregate=True,
    client="Text Embeddings Inference",
  ),
  _read_tei,
  _write_tei,
)
