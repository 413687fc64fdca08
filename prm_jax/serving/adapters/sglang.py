"""SGLang's form."""

from __future__ import annotations

from typing import Any

from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving.adapters import form


def _read_sglang(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  return form.rendered(record["text"], "text", reader)


def _write_sglang(record: form.Record, scored: form.Scored) -> Any:
  data = [
    dict(embedding=[score], meta_info=dict(prompt_tokens=num))
    for score, num in zip(scored.scores, scored.num_tokens, strict=True)
  ]
  return data[0] if isinstance(record["text"], str) else data


_META = fields.record(
  fields.Field("prompt_tokens", fields.INTEGER, "A number of tokens.", True)
)
_EMBEDDING = fields.record(
  fields.Field(
    "embedding",
    fields.several(fields.SCORE, 1, 1),
    "The solution's score.",
    True,
  ),
  fields.Field("meta_info", _META, "What was read.", True),
)
CLASSIFY = form.Form(
  fields.Route(
    "POST",
    "/classify",
    "Returns the score of each solution; of one text not in a list.",
    fields.one_of(_EMBEDDING, fields.several(_EMBEDDING)),
    fields.record(
      form.MODEL,
      fields.Field(
        "text",
        fields.one_of(
          *(
            fields.TEXT,
            fields.several(fields.TEXT, 1),
            fields.several(form.PAIR, 1),
          )
        ),
        "Rendered chats, or pairs of a problem and a response.",
        True,
      ),
      fields.Field("rid", form.TEXTS, "It has no effect."),
    ),
    form.AGGREGATE,
    client="SGLang",
  ),
  _read_sglang,
  _write_sglang,
  mark="text",
)
