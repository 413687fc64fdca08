"""The form of slime's remote reward."""

from __future__ import annotations

from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving.adapters import form


def _read_slime(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  prompt, response = record["prompt"], record["response"]
  if isinstance(prompt, list):
    (problem,) = form.said(prompt, "prompt", "user")
    turns = chats.Turns(problem, reader.read_response(response, "response"))
    return [form.Item("response", turns)]
  return [form.Item("response", reader.read_pair(prompt, response, "prompt"))]


def _write_slime(record: form.Record, scored: form.Scored) -> form.Record:
  del record
  (row,) = scored.rows
  reply: form.Record = dict(
    score=scored.scores[0], step_scores=list(row.scores)
  )
  if row.spans is not None:
    reply["segments"] = [list(span) for span in row.spans]
  return reply


RM = form.Form(
  fields.Route(
    "POST",
    "/rm",
    "Returns the score of a solution and of its steps; the reward key is score.",
    fields.record(
      fields.Field("score", fields.SCORE, "The solution's score.", True),
      fields.Field(
        "step_scores", fields.several(fields.SCORE), "Those of its steps.", True
      ),
      fields.Field(
        "segments",
        fields.several(fields.several(fields.INTEGER, 2, 2)),
        "Where each step begins and ends in the response, in characters.",
      ),
    ),
    fields.record(
      fields.Field(
        "prompt",
        fields.one_of(fields.TEXT, fields.several(form.MESSAGE, 1)),
        "A rendered chat, the problem itself, or messages.",
        True,
      ),
      fields.Field("response", fields.TEXT, "The response.", True),
      fields.Field("label", fields.ANY, "It has no effect."),
    ),
    form.AGGREGATE,
    client="slime",
  ),
  _read_slime,
  _write_slime,
)
