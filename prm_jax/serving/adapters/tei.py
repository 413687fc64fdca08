"""The form of Text Embeddings Inference."""

from __future__ import annotations

from typing import Any

from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving.adapters import form


def _read_tei(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  inputs = record["inputs"]
  if isinstance(inputs, list) and isinstance(inputs[0], list):
    alone = [x[0] if len(x) == 1 else x for x in inputs]
    return form.rendered(alone, "inputs", reader)
  if isinstance(inputs, list) and len(inputs) == 2:
    return [form.Item("inputs", chats.Turns(*inputs))]
  return form.rendered(inputs, "inputs", reader)


def _write_tei(record: form.Record, scored: form.Scored) -> Any:
  inputs = record["inputs"]
  data = [[dict(score=score, label=form.LABEL)] for score in scored.scores]
  is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
  return data if is_batch else data[0]


_PREDICTION = fields.several(
  fields.record(
    fields.Field("score", fields.SCORE, "The solution's score.", True),
    fields.Field(
      "label",
      fields.only(form.LABEL),
      "What the score is the probability of.",
      True,
    ),
  )
)
_SEQUENCE = fields.several(fields.TEXT, 1, 2)
PREDICT = form.Form(
  fields.Route(
    "POST",
    "/predict",
    "Returns the score of each solution; of a batch in a list.",
    fields.one_of(_PREDICTION, fields.several(_PREDICTION)),
    fields.record(
      fields.Field(
        "inputs",
        fields.one_of(fields.TEXT, _SEQUENCE, fields.several(_SEQUENCE, 1)),
        "A rendered chat, a pair of a problem and a response, or a list of"
        " lists: each with a rendered chat or a pair.",
        True,
      ),
      fields.Field("raw_scores", fields.only(False), "Only probabilities."),
      fields.Field(
        "truncate", fields.FLAG, "It has no effect: nothing is ever cut."
      ),
    ),
    form.AGGREGATE,
    client="Text Embeddings Inference",
  ),
  _read_tei,
  _write_tei,
)
