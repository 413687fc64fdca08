"""The form of OpenRLHF's remote reward."""

from __future__ import annotations

from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving import refusals
from prm_jax.serving.adapters import form


def _read_openrlhf(
  record: form.Record, reader: chats.Reader
) -> list[form.Item]:
  queries = record["query"]
  for name in ("prompts", "labels"):
    if name in record and len(record[name]) != len(queries):
      raise refusals.invalid(f"expected one for each of {len(queries)}", name)
  if "prompts" not in record:
    return form.rendered(queries, "query", reader)
  items = []
  for i, (query, prompt) in enumerate(
    zip(queries, record["prompts"], strict=True)
  ):
    where = f"query[{i}]"
    if not query.startswith(prompt):
      raise refusals.invalid(
        "it doesn't begin with its prompt; a prompt that was cut can't be"
        " scored",
        where,
      )
    rest = query.removeprefix(prompt)
    items.append(form.Item(where, reader.read_pair(prompt, rest, where)))
  return items


def _write_openrlhf(record: form.Record, scored: form.Scored) -> form.Record:
  del record
  return dict(rewards=scored.scores, scores=scored.scores, extra_logs={})


GET_REWARD = form.Form(
  fields.Route(
    "POST",
    "/get_reward",
    "Returns the score of each solution.",
    fields.record(
      fields.Field(
        "rewards", fields.several(fields.SCORE), "The solutions' scores.", True
      ),
      fields.Field("scores", fields.several(fields.SCORE), "The same.", True),
      fields.Field("extra_logs", fields.record(), "Nothing.", True),
    ),
    fields.record(
      fields.Field(
        "query",
        fields.several(fields.TEXT),
        "A prompt and its response in one text, as the policy's ids decode."
        " None is possible: with several addresses OpenRLHF sends each sample"
        " to the first, and an empty list to the others.",
        True,
      ),
      fields.Field(
        "prompts",
        fields.several(fields.TEXT),
        "The prompts: rendered chats, or the problems themselves.",
      ),
      fields.Field("labels", fields.several(fields.ANY), "It has no effect."),
    ),
    form.AGGREGATE,
    client="OpenRLHF",
  ),
  _read_openrlhf,
  _write_openrlhf,
)
