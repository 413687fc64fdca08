"""The forms of `POST /v1/prm/score`, which score_api.py reads and answers."""

from __future__ import annotations

from prm_jax import voting
from prm_jax.serving import fields

_TEXT_OR_NULL = fields.one_of(fields.TEXT, fields.NULL)
_OBJECTS = fields.one_of(
  fields.several(fields.record(is_open=True)), fields.NULL
)
MESSAGE = fields.record(
  fields.Field(
    "role",
    fields.only("system", "developer", "user", "assistant", "tool"),
    "Who says it.",
    True,
  ),
  fields.Field(
    "content",
    fields.one_of(
      fields.TEXT, fields.several(fields.record(is_open=True)), fields.NULL
    ),
    "What is said: a text, or parts with a `text`.",
  ),
  fields.Field(
    "reasoning_content",
    _TEXT_OR_NULL,
    "What the assistant thought before; also `reasoning` or `thinking`.",
  ),
  fields.Field(
    "tool_calls",
    _OBJECTS,
    "The assistant's calls: each with a `function`, which has a `name` and"
    " `arguments`, an object or its JSON, and perhaps an `id`.",
  ),
  fields.Field(
    "tool_call_id", _TEXT_OR_NULL, "The id of the call whose result it is."
  ),
  is_open=True,
)
# What a message has that is a problem or a response.
PLAIN = fields.record(
  fields.Field("role", fields.only("user", "assistant"), "Who says it.", True),
  fields.Field("content", fields.TEXT, "What is said.", True),
)
ITEM = fields.record(
  fields.Field("problem", fields.TEXT, "The problem."),
  fields.Field("steps", fields.several(fields.TEXT, 1), "The steps."),
  fields.Field(
    "response",
    fields.TEXT,
    "A text that the model's segmenter cuts into steps, if it has one.",
  ),
  fields.Field(
    "messages",
    fields.several(MESSAGE, 1),
    "A user's message, the problem, and an assistant's, the response; or a"
    " conversation, whose steps are the assistant's turns.",
  ),
  fields.Field(
    "tools", _OBJECTS, "The declarations of a conversation's tools."
  ),
  fields.Field(
    "steps_are",
    fields.only("turns"),
    "It makes two plain messages a conversation of one turn; others are one"
    " without it.",
  ),
)
_TURN = fields.record(
  fields.Field(
    "message", fields.INTEGER, "The index of its message, from 0.", True
  ),
  fields.Field(
    "span",
    fields.one_of(fields.several(fields.INTEGER, 2, 2), fields.NULL),
    "Where it begins and ends in the message's content, in characters; null if"
    " it is tool calls alone.",
    True,
  ),
  fields.Field(
    "without_thinking",
    fields.FLAG,
    "Whether the model's template left out what the assistant thought in this"
    " turn. It isn't there if the model isn't a checkpoint.",
  ),
)
_ENTRY = fields.record(
  fields.Field("index", fields.INTEGER, "The number of the item.", True),
  fields.Field(
    "step_scores", fields.several(fields.SCORE), "The steps' scores.", True
  ),
  fields.Field("score", fields.SCORE, "The solution's score.", True),
  fields.Field(
    "segments",
    fields.several(fields.several(fields.INTEGER, 2, 2)),
    "Where each step begins and ends in the response, in characters. It isn't"
    " there if the item has steps or is a conversation.",
  ),
  fields.Field(
    "turns",
    fields.several(_TURN),
    "The turn that each step of a conversation is. It isn't there for others.",
  ),
  fields.Field(
    "judged",
    fields.several(fields.FLAG),
    "Whether the model was trained to judge each step.",
  ),
  fields.Field(
    "num_tokens",
    fields.INTEGER,
    "The item's tokens; 0 if the model isn't a checkpoint.",
    True,
  ),
  fields.Field("truncated", fields.only(False), "Nothing is ever cut.", True),
)
_USAGE = fields.record(
  fields.Field(
    "prompt_tokens", fields.INTEGER, "The tokens of all items.", True
  ),
  fields.Field(
    "cached_tokens",
    fields.INTEGER,
    "Those of them that the model had read before, for the same client.",
    True,
  ),
)
ROUTE = fields.Route(
  "POST",
  "/v1/prm/score",
  "Returns the scores of solutions and of their steps.",
  fields.record(
    fields.Field("object", fields.only("list"), "The kind of object.", True),
    fields.Field("model", fields.TEXT, "The name of the model.", True),
    fields.Field(
      "model_fingerprint",
      fields.TEXT,
      "A digest of all that the scores depend on.",
      True,
    ),
    fields.Field(
      "aggregate",
      fields.only(*voting.AGGREGATES),
      "How step scores became a solution's score.",
      True,
    ),
    fields.Field("data", fields.several(_ENTRY), "One for each item.", True),
    fields.Field("usage", _USAGE, "What was read.", True),
  ),
  fields.record(
    fields.Field(
      "model", fields.TEXT, "The name of a served model; the first by default."
    ),
    fields.Field(
      "items",
      fields.several(ITEM, 1),
      "The solutions: each with a problem and steps, with a problem and a"
      " response, or with messages.",
      True,
    ),
    fields.Field(
      "aggregate",
      fields.one_of(fields.only(*voting.AGGREGATES), fields.NULL),
      "How step scores become a solution's score; the model's own by default.",
    ),
  ),
)
