"""The form of slime's remote reward."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms


class _Request(TypedDict):
  """A sample.

  Args:
    prompt: A rendered chat, the problem itself, or messages.
    response: The response.
    label: It has no effect.
  """

  prompt: str | forms.Messages
  response: str
  label: NotRequired[Any]


class _Reply(TypedDict):
  """The scores of a sample.

  Args:
    score: The solution's score.
    step_scores: Those of its steps.
    segments: Where each step begins and ends in the response, in characters.
  """

  score: declarations.Score
  step_scores: list[declarations.Score]
  segments: NotRequired[list[tuple[int, int]]]


def _read_slime(
  record: _Request, reader: chat_requests.Reader
) -> list[forms.Item]:
  prompt, response = record["prompt"], record["response"]
  if isinstance(prompt, list):
    (problem,) = forms.said(prompt, "prompt", "user")
    turns = chat_requests.Turns(
      problem, reader.read_response(response, "response")
    )
  else:
    turns = reader.read_pair(prompt, response, "prompt")
  return [forms.Item("response", turns)]


def _write_slime(asked: forms.Asked) -> _Reply:
  (row,), (score,) = asked.rows, asked.scores
  reply = _Reply(score=score, step_scores=list(row.scores))
  if row.spans is not None:
    reply["segments"] = list(row.spans)
  return reply


RM = forms.Form(
  declarations.Route(
    "/rm",
    "Returns the score of a solution and of its steps; the reward key is score.",
    declarations.schema(_Reply),
    declarations.schema(_Request),
    takes_aggregate=True,
    client="slime",
  ),
  _read_slime,
  _write_slime,
)
