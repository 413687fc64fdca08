"""SGLang's forms; verl sends the second."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms


class _Classify(TypedDict):
  """Texts to score.

  Args:
    model: The name of a served model.
    text: Rendered chats, or pairs of a problem and a response.
    rid: It has no effect.
  """

  model: NotRequired[str | None]
  text: declarations.Texts | Annotated[list[tuple[str, str]], declarations.SOME]
  rid: NotRequired[declarations.Texts]


class _Meta(TypedDict):
  """What was read.

  Args:
    prompt_tokens: A number of tokens.
  """

  prompt_tokens: int


class _Scored(TypedDict):
  """A score.

  Args:
    embedding: The solution's score.
    meta_info: What was read.
  """

  embedding: tuple[declarations.Score]
  meta_info: _Meta


def _read_sglang(
  record: _Classify, reader: chat_requests.Reader
) -> list[forms.Item]:
  return forms.rendered(record["text"], "text", reader)


def _write_sglang(asked: forms.Asked) -> _Scored | list[_Scored]:
  data = [
    _Scored(embedding=(score,), meta_info=_Meta(prompt_tokens=num))
    for score, num in zip(asked.scores, asked.num_tokens, strict=True)
  ]
  return data[0] if isinstance(asked.record["text"], str) else data


CLASSIFY = forms.Form(
  declarations.Route(
    "/classify",
    "Returns the score of each solution; of one text not in a list.",
    declarations.schema(_Scored | list[_Scored]),
    declarations.schema(_Classify),
    takes_aggregate=True,
    client="SGLang",
  ),
  _read_sglang,
  _write_sglang,
  mark="text",
)


class _Embed(TypedDict):
  """Texts to embed.

  Args:
    model: The name of a served model.
    input: Rendered chats.
    encoding_format: How numbers are sent.
    dimensions: Only null.
    user: It has no effect.
    rid: It has no effect.
    priority: It has no effect.
  """

  model: NotRequired[str | None]
  input: declarations.Texts
  encoding_format: NotRequired[Literal["float"]]
  dimensions: NotRequired[None]
  user: NotRequired[str | None]
  rid: NotRequired[declarations.Texts | None]
  priority: NotRequired[int | None]


class _Embedding(TypedDict):
  """A score as an embedding.

  Args:
    object: The kind of object.
    index: The number of the input.
    embedding: The solution's score.
  """

  object: Literal["embedding"]
  index: int
  embedding: tuple[declarations.Score]


class _Usage(TypedDict):
  """What was read.

  Args:
    prompt_tokens: A number of tokens.
    total_tokens: The same.
  """

  prompt_tokens: int
  total_tokens: int


class _Embedded(TypedDict):
  """The embeddings.

  Args:
    object: The kind of object.
    data: One for each input.
    model: The name of the model.
    usage: What was read.
  """

  object: Literal["list"]
  data: list[_Embedding]
  model: str
  usage: _Usage


def _read_embeddings(
  record: _Embed, reader: chat_requests.Reader
) -> list[forms.Item]:
  return forms.rendered(record["input"], "input", reader)


def _write_embeddings(asked: forms.Asked) -> _Embedded:
  num = sum(asked.num_tokens)
  return _Embedded(
    object="list",
    data=[
      _Embedding(object="embedding", index=i, embedding=(score,))
      for i, score in enumerate(asked.scores)
    ],
    model=asked.model.name,
    usage=_Usage(prompt_tokens=num, total_tokens=num),
  )


EMBEDDINGS = forms.Form(
  declarations.Route(
    "/v1/embeddings",
    "Returns the score of each solution as an embedding of length 1.",
    declarations.schema(_Embedded),
    declarations.schema(_Embed),
    takes_aggregate=True,
    client="SGLang; verl reads the last of embedding",
  ),
  _read_embeddings,
  _write_embeddings,
)
