"""`POST /v1/prm/cut`: where the steps of a text are, by a segmenter of choice.

`/v1/prm/score` cuts a text as the model's training did. To score it in other
steps, or to change one, a client has it cut here and sends steps.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from prm_jax import errors
from prm_jax.serving import declarations
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import served_sources
from prm_jax.text import segmenters


class Request(TypedDict):
  """What is cut, and how.

  Args:
    model: The name of a served model; the first by default.
    text: The text.
    segmenter: paragraph, line, sentence, numbered, markers or tokens:NUMBER; the
      model's own by default.
  """

  model: NotRequired[str]
  text: str
  segmenter: NotRequired[str]


class Reply(TypedDict):
  """The steps of a text.

  Args:
    object: The kind of object.
    segmenter: How it was cut.
    segments: Where each step begins and ends in the text, in characters.
  """

  object: Literal["list"]
  segmenter: str
  segments: list[tuple[int, int]]


ROUTE = declarations.Route(
  "/v1/prm/cut",
  "Returns where the steps of a text are.",
  declarations.schema(Reply),
  declarations.schema(Request),
)


def reply(record: Request, model: served_sources.Served) -> Reply:
  """Returns the body of a reply.

  Args:
    record: The body of the request, which fits the route's schema.
    model: The model.

  Raises:
    RefusedError: There is no such segmenter, or none; or the text is too long.
  """
  text, given = record["text"], record.get("segmenter")
  try:
    segmenter = segmenters.parse(given) if given else model.segmenter
    if segmenter is None:
      raise models.uncut(model.name, "text")
    spans = model.spans(text, segmenter, "text")
  except errors.InputError as e:
    raise refusals.invalid(str(e), "segmenter") from e
  return Reply(
    object="list",
    segmenter=segmenters.name_of(segmenter),
    segments=[*spans],
  )
