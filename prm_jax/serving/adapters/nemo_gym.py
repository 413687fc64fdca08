"""The form of NeMo-Gym's verification."""

from __future__ import annotations

from prm_jax import voting
from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving import refusals
from prm_jax.serving.adapters import form

# What a policy's answer may hold besides its message.
_NO_MESSAGE = ("reasoning",)


def _read_gym(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  del reader
  asked = record["responses_create_params"]["input"]
  place = "responses_create_params.input"
  problem = (
    asked if isinstance(asked, str) else form.said(asked, place, "user")[0]
  )
  output = record["response"]["output"]
  messages = [x for x in output if x.get("type") not in _NO_MESSAGE]
  where = "response.output"
  if [x.get("type", "message") for x in messages] != ["message"]:
    raise refusals.invalid(
      "expected one message, and beside it only reasoning", where
    )
  fields.check(messages[0], form.MESSAGE, where)
  (response,) = form.said(messages, where, "assistant")
  return [form.Item(where, chats.Turns(problem, response))]


def _write_gym(record: form.Record, scored: form.Scored) -> form.Record:
  scores = scored.rows[0].scores
  components = {how: voting.aggregate(scores, how) for how in voting.AGGREGATES}
  return record | dict(reward=scored.scores[0], reward_components=components)


_ASKED = fields.record(
  fields.Field(
    "input",
    fields.one_of(fields.TEXT, fields.several(form.MESSAGE, 1)),
    "The problem: a text, or messages with one of the user.",
    True,
  ),
  is_open=True,
)
_OUTPUT = fields.record(
  fields.Field(
    "output",
    fields.several(fields.record(is_open=True), 1),
    "One message of the assistant; reasoning beside it isn't scored.",
    True,
  ),
  is_open=True,
)
_GYM = (
  fields.Field("responses_create_params", _ASKED, "What was asked.", True),
  fields.Field("response", _OUTPUT, "What the policy answered.", True),
)
VERIFY = form.Form(
  fields.Route(
    "POST",
    "/verify",
    "Returns the request with the score of its solution.",
    fields.record(
      *_GYM,
      fields.Field("reward", fields.SCORE, "The solution's score.", True),
      fields.Field(
        "reward_components",
        fields.record(
          *(
            fields.Field(how, fields.SCORE, f"The score by {how}.", True)
            for how in voting.AGGREGATES
          )
        ),
        "The score by each aggregate.",
        True,
      ),
      is_open=True,
    ),
    fields.record(*_GYM, is_open=True),
    form.AGGREGATE,
    client="NeMo-Gym",
  ),
  _read_gym,
  _write_gym,
)
