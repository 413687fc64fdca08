"""The fields of `POST /v1/prm/score`, which score_api.py reads and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from prm_jax import schema
from prm_jax.serving import declarations

_Objects = list[dict[str, Any]]


class Message(TypedDict):
  """A message of a conversation; it may have other fields, which aren't read.

  Args:
    role: Who says it.
    content: What is said: a text, or parts with a `text`.
    reasoning_content: What the assistant thought before.
    reasoning: The same, by another name.
    thinking: The same, by a third name.
    tool_calls: The assistant's calls: each with a `function`, which has a `name`
      and `arguments`, an object or its JSON, and perhaps an `id`.
    tool_call_id: The id of the call whose result it is.
  """

  role: declarations.Later[
    Literal["system", "developer", "user", "assistant", "tool"]
  ]
  content: NotRequired[declarations.Later[str | _Objects | None]]
  reasoning_content: NotRequired[declarations.Later[str | None]]
  reasoning: NotRequired[declarations.Later[str | None]]
  thinking: NotRequired[declarations.Later[str | None]]
  tool_calls: NotRequired[declarations.Later[_Objects | None]]
  tool_call_id: NotRequired[declarations.Later[str | None]]


_Messages = Annotated[
  list[Annotated[Message, declarations.OPEN]],
  declarations.SOME,
  (
    "title",
    "a list of messages: one message of the user, the problem, and one of the"
    " assistant, or a conversation",
  ),
]


class Item(TypedDict):
  """A solution.

  Args:
    problem: The text of the problem.
    steps: The text of each step; one or more.
    response: A text that the model's segmenter cuts into steps, if it has one.
    messages: The problem and the response as messages; or a conversation, whose
      steps are the assistant's turns.
    tools: The declarations of a conversation's tools.
    steps_are: It makes two plain messages a conversation of one turn; others are
      one without it.
  """

  problem: NotRequired[str]
  steps: NotRequired[list[str]]
  response: NotRequired[str]
  messages: NotRequired[_Messages]
  tools: NotRequired[declarations.Later[_Objects | None]]
  steps_are: NotRequired[Literal["turns"]]


class Request(TypedDict):
  """What is asked for.

  Args:
    model: The name of a served model; the first by default.
    items: The solutions: each with a problem and steps, with a problem and a
      response, or with messages.
    aggregate: How step scores become a solution's score; the model's own by
      default.
  """

  model: NotRequired[str]
  items: Annotated[
    list[Item], declarations.SOME, ("title", "a list with one item or more")
  ]
  aggregate: NotRequired[schema.Aggregate | None]


class Turn(TypedDict):
  """A turn of a conversation.

  Args:
    message: The index of its message, from 0.
    span: Where it begins and ends in the message's content, in characters; null
      if it is tool calls alone.
    without_thinking: Whether the model's template left out what the assistant
      thought in this turn. It isn't there if the model isn't a checkpoint.
  """

  message: int
  span: tuple[int, int] | None
  without_thinking: NotRequired[bool]


class Principle(TypedDict):
  """What a judge says by one principle of its rubric.

  Args:
    labels: The label of each step that this principle alone would give.
    scores: The score of each step, the mean over the judge's answers.
    critiques: What each answer says of each step.
  """

  labels: list[float]
  scores: list[float]
  critiques: list[list[str]]


class Graded(TypedDict):
  """What a judge says by its rubric.

  Args:
    rubric: The rubric's digest.
    principles: What it says by each principle, by name, and by `overall`.
  """

  rubric: str
  principles: dict[str, Principle]


class Entry(TypedDict):
  """The scores of an item.

  Args:
    index: The number of the item.
    step_scores: The score of each step.
    segments: Where each step begins and ends in the response, in characters. It
      isn't there if the item has steps or is a conversation.
    turns: The turn that each step of a conversation is. It isn't there for
      others.
    judged: Whether the model was trained to judge each step.
    graded: What a judge says by its rubric. It isn't there for others.
    score: The solution's score.
    num_tokens: The item's tokens; 0 if the model isn't a checkpoint.
    truncated: Nothing is ever cut.
  """

  index: int
  step_scores: list[declarations.Score]
  segments: NotRequired[list[tuple[int, int]]]
  turns: NotRequired[list[Turn]]
  judged: NotRequired[list[bool]]
  graded: NotRequired[Graded]
  score: declarations.Score
  num_tokens: int
  truncated: Literal[False]


class Usage(TypedDict):
  """What was read.

  Args:
    prompt_tokens: The tokens of all items.
    cached_tokens: Those of them that the model had read before, for the same
      client.
  """

  prompt_tokens: int
  cached_tokens: int


class Reply(TypedDict):
  """The scores of all items.

  Args:
    object: The kind of object.
    model: The name of the model.
    model_fingerprint: A digest of all that the scores depend on.
    aggregate: How step scores became a solution's score.
    data: One for each item.
    usage: What was read.
  """

  object: Literal["list"]
  model: str
  model_fingerprint: str
  aggregate: declarations.Aggregate
  data: list[Entry]
  usage: Usage


ROUTE = declarations.Route(
  "/v1/prm/score",
  "Returns the scores of solutions and of their steps.",
  declarations.schema(Reply),
  declarations.schema(Request),
)
