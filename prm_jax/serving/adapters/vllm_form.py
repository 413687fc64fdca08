"""vLLM's forms; verl sends the second."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import refusals


class _Request(TypedDict):
  """Texts to score.

  Args:
    model: The name of a served model.
    input: Rendered chats; give this or messages.
    messages: One message of the user and one of the assistant.
    use_activation: It has no effect: a score is a probability.
    encoding_format: How numbers are sent.
    truncate_prompt_tokens: Nothing is cut, so only null.
    user: It has no effect.
    request_id: It has no effect.
    cache_salt: It has no effect.
    priority: It has no effect.
    add_special_tokens: It has no effect.
    add_generation_prompt: It has no effect.
    continue_final_message: It has no effect.
  """

  model: NotRequired[str | None]
  input: NotRequired[declarations.Texts]
  messages: NotRequired[forms.Messages]
  use_activation: NotRequired[bool | None]
  encoding_format: NotRequired[Literal["float"]]
  truncate_prompt_tokens: NotRequired[None]
  user: NotRequired[str | None]
  request_id: NotRequired[str | None]
  cache_salt: NotRequired[str | None]
  priority: NotRequired[int | None]
  add_special_tokens: NotRequired[bool | None]
  add_generation_prompt: NotRequired[bool | None]
  continue_final_message: NotRequired[bool | None]


class _Task(TypedDict):
  """What a request for steps has, too.

  Args:
    task: What is asked for.
  """

  task: NotRequired[Literal["token_classify"] | None]


class _Usage(TypedDict):
  """What was read.

  Args:
    prompt_tokens: A number of tokens.
    total_tokens: The same.
    completion_tokens: Always 0.
  """

  prompt_tokens: int
  total_tokens: int
  completion_tokens: int


class _Reply(TypedDict):
  """What replies have in common.

  Args:
    id: The kind of reply.
    object: The kind of object.
    created: Always 0.
    model: The name of the model.
    usage: What was read.
  """

  id: Literal["pooling", "classify"]
  object: Literal["list"]
  created: Literal[0]
  model: str
  usage: _Usage


class _PooledSteps(TypedDict):
  """The scores of a solution's steps.

  Args:
    index: The number of the input.
    object: The kind of object.
    data: [1 - p, p] of each step, p being its score.
  """

  index: int
  object: Literal["pooling"]
  data: list[tuple[declarations.Score, declarations.Score]]


class _Pooling(_Reply):
  """The scores of steps.

  Args:
    data: One for each input.
  """

  data: list[_PooledSteps]


class _Class(TypedDict):
  """A solution's score.

  Args:
    index: The number of the input.
    label: What the score is the probability of.
    probs: The solution's score.
    num_classes: How many probs there are.
  """

  index: int
  label: forms.Label
  probs: tuple[declarations.Score]
  num_classes: Literal[1]


class _Classes(_Reply):
  """The scores of solutions.

  Args:
    data: One for each input.
  """

  data: list[_Class]


def _read_vllm(
  record: _Request, reader: chat_requests.Reader
) -> list[forms.Item]:
  if ("input" in record) == ("messages" in record):
    raise refusals.invalid("give one of input and messages")
  if "input" in record:
    return forms.rendered(record["input"], "input", reader)
  texts = forms.said(record["messages"], "messages", "user", "assistant")
  return [forms.Item("messages", chat_requests.Turns(*texts))]


def _listed(kind: Literal["pooling", "classify"], asked: forms.Asked) -> _Reply:
  num = sum(asked.num_tokens)
  return _Reply(
    id=kind,
    object="list",
    created=0,
    model=asked.model.name,
    usage=_Usage(prompt_tokens=num, total_tokens=num, completion_tokens=0),
  )


def _write_pooling(asked: forms.Asked) -> _Pooling:
  data = [
    _PooledSteps(
      index=i, object="pooling", data=[(1 - p, p) for p in row.scores]
    )
    for i, row in enumerate(asked.rows)
  ]
  return {**_listed("pooling", asked), "data": data}


POOLING = forms.Form(
  declarations.Route(
    "/pooling",
    "Returns P(wrong) and P(right) of each step.",
    declarations.record(_Reply, _Pooling),
    declarations.record(_Request, _Task),
    client="vLLM",
  ),
  _read_vllm,
  _write_pooling,
)


def _write_classify(asked: forms.Asked) -> _Classes:
  data = [
    _Class(index=i, label=forms.LABEL, probs=(score,), num_classes=1)
    for i, score in enumerate(asked.scores)
  ]
  return {**_listed("classify", asked), "data": data}


CLASSIFY = forms.Form(
  declarations.Route(
    "/classify",
    "Returns the score of each solution.",
    declarations.record(_Reply, _Classes),
    declarations.schema(_Request),
    takes_aggregate=True,
    client="vLLM; verl reads the last of probs",
  ),
  _read_vllm,
  _write_classify,
)
