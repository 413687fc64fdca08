"""vLLM's forms; verl sends the second."""

from __future__ import annotations

from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving import refusals
from prm_jax.serving.adapters import form


def _no_effect(name: str, kind: fields.Schema) -> fields.Field:
  schema = fields.one_of(kind, fields.NULL)
  return fields.Field(name, schema, "It has no effect.")


_VLLM = (
  form.MODEL,
  fields.Field("input", form.TEXTS, "Rendered chats; give this or messages."),
  fields.Field(
    "messages",
    fields.several(form.MESSAGE, 1),
    "One message of the user and one of the assistant.",
  ),
  fields.Field(
    "use_activation",
    fields.one_of(fields.FLAG, fields.NULL),
    "It has no effect: a score is a probability.",
  ),
  fields.Field(
    "encoding_format", fields.only("float"), "How numbers are sent."
  ),
  fields.Field(
    "truncate_prompt_tokens", fields.NULL, "Nothing is cut, so only null."
  ),
  *(
    _no_effect(name, fields.TEXT)
    for name in ("user", "request_id", "cache_salt")
  ),
  _no_effect("priority", fields.INTEGER),
  *(
    _no_effect(name, fields.FLAG)
    for name in (
      *("add_special_tokens", "add_generation_prompt"),
      "continue_final_message",
    )
  ),
)


def _read_vllm(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  if ("input" in record) == ("messages" in record):
    raise refusals.invalid("give one of input and messages")
  if "input" in record:
    return form.rendered(record["input"], "input", reader)
  problem, response = form.said(
    record["messages"], "messages", "user", "assistant"
  )
  return [form.Item("messages", chats.Turns(problem, response))]


def _usage(scored: form.Scored) -> form.Record:
  num = sum(scored.num_tokens)
  return dict(prompt_tokens=num, total_tokens=num, completion_tokens=0)


_USAGE = fields.record(
  *(
    fields.Field(name, fields.INTEGER, "A number of tokens.", True)
    for name in ("prompt_tokens", "total_tokens", "completion_tokens")
  )
)


def _listed(kind: str, entry: fields.Schema) -> fields.Schema:
  """Returns the schema of a reply with an entry for each input."""
  return fields.record(
    fields.Field("id", fields.TEXT, f"Always {kind}.", True),
    fields.Field("object", fields.only("list"), "The kind of object.", True),
    fields.Field("created", fields.INTEGER, "Always 0.", True),
    fields.Field("model", fields.TEXT, "The name of the model.", True),
    fields.Field("data", fields.several(entry), "One for each input.", True),
    fields.Field("usage", _USAGE, "What was read.", True),
  )


def _list(
  kind: str, data: list[form.Record], scored: form.Scored
) -> form.Record:
  return dict(
    id=kind,
    object="list",
    created=0,
    model=scored.model,
    data=data,
    usage=_usage(scored),
  )


_INDEX = fields.Field("index", fields.INTEGER, "The number of the input.", True)


def _write_pooling(record: form.Record, scored: form.Scored) -> form.Record:
  del record
  data = [
    dict(index=i, object="pooling", data=[[1 - p, p] for p in row.scores])
    for i, row in enumerate(scored.rows)
  ]
  return _list("pooling", data, scored)


POOLING = form.Form(
  fields.Route(
    "POST",
    "/pooling",
    "Returns P(wrong) and P(right) of each step.",
    _listed(
      "pooling",
      fields.record(
        _INDEX,
        fields.Field(
          "object", fields.only("pooling"), "The kind of object.", True
        ),
        fields.Field(
          "data",
          fields.several(fields.several(fields.SCORE, 2, 2)),
          "[1 - p, p] of each step, p being its score.",
          True,
        ),
      ),
    ),
    fields.record(
      *_VLLM,
      fields.Field(
        "task", fields.only("token_classify", None), "What is asked for."
      ),
    ),
    client="vLLM",
  ),
  _read_vllm,
  _write_pooling,
)


def _write_classify(record: form.Record, scored: form.Scored) -> form.Record:
  del record
  data = [
    dict(index=i, label=form.LABEL, probs=[score], num_classes=1)
    for i, score in enumerate(scored.scores)
  ]
  return _list("classify", data, scored)


_ENTRY = fields.record(
  _INDEX,
  fields.Field(
    "label",
    fields.only(form.LABEL),
    "What the score is the probability of.",
    True,
  ),
  fields.Field(
    "probs", fields.several(fields.SCORE, 1, 1), "The solution's score.", True
  ),
  fields.Field(
    "num_classes", fields.only(1), "How many probs there are.", True
  ),
)
CLASSIFY = form.Form(
  fields.Route(
    "POST",
    "/classify",
    "Returns the score of each solution.",
    _listed("classify", _ENTRY),
    fields.record(*_VLLM),
    form.AGGREGATE,
    client="vLLM; verl reads the last of probs",
  ),
  _read_vllm,
  _write_classify,
)
