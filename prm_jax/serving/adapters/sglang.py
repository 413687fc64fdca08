"""SGLang's forms; verl sends the second."""

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


def _read_embeddings(
  record: form.Record, reader: chats.Reader
) -> list[form.Item]:
  return form.rendered(record["input"], "input", reader)


def _write_embeddings(record: form.Record, scored: form.Scored) -> form.Record:
  del record
  num = sum(scored.num_tokens)
  return dict(
    object="list",
    data=[
      dict(object="embedding", index=i, embedding=[score])
      for i, score in enumerate(scored.scores)
    ],
    model=scored.model,
    usage=dict(prompt_tokens=num, total_tokens=num),
  )


EMBEDDINGS = form.Form(
  fields.Route(
    "POST",
    "/v1/embeddings",
    "Returns the score of each solution as an embedding of length 1.",
    fields.record(
      fields.Field("object", fields.only("list"), "The kind of object.", True),
      fields.Field(
        "data",
        fields.several(
          fields.record(
            fields.Field(
              "object", fields.only("embedding"), "The kind of object.", True
            ),
            fields.Field(
              "index", fields.INTEGER, "The number of the input.", True
            ),
            fields.Field(
              "embedding",
              fields.several(fields.SCORE, 1, 1),
              "The solution's score.",
              True,
            ),
          )
        ),
        "One for each input.",
        True,
      ),
      fields.Field("model", fields.TEXT, "The name of the model.", True),
      fields.Field(
        "usage",
        fields.record(
          *(
            fields.Field(name, fields.INTEGER, "A number of tokens.", True)
            for name in ("prompt_tokens", "total_tokens")
          )
        ),
        "What was read.",
        True,
      ),
    ),
    fields.record(
      form.MODEL,
      fields.Field("input", form.TEXTS, "Rendered chats.", True),
      fields.Field(
        "encoding_format", fields.only("float"), "How numbers are sent."
      ),
      fields.Field("dimensions", fields.NULL, "Only null."),
      fields.Field(
        "user", fields.one_of(fields.TEXT, fields.NULL), "It has no effect."
      ),
      fields.Field(
        "rid", fields.one_of(form.TEXTS, fields.NULL), "It has no effect."
      ),
      fields.Field(
        "priority",
        fields.one_of(fields.INTEGER, fields.NULL),
        "It has no effect.",
      ),
    ),
    form.AGGREGATE,
    client="SGLang; verl reads the last of embedding",
  ),
  _read_embeddings,
  _write_embeddings,
)
