"""The form of OpenRLHF's remote reward."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import refusals


class _Request(TypedDict):
  """Samples.

  Args:
    query: A prompt and its response in one text, as the policy's ids decode.
      None is possible: with several addresses OpenRLHF sends each sample to the
      first, and an empty list to the others.
    prompts: The prompts: rendered chats, or the problems themselves.
    labels: It has no effect.
  """

  query: list[str]
  prompts: NotRequired[list[str]]
  labels: NotRequired[list[Any]]


class _Nothing(TypedDict):
  """An empty object."""


class _Reply(TypedDict):
  """The scores of samples.

  Args:
    rewards: The solutions' scores.
    scores: The same.
    extra_logs: Nothing.
  """

  rewards: list[declarations.Score]
  scores: list[declarations.Score]
  extra_logs: _Nothing


def _read_openrlhf(
  record: _Request, reader: chat_requests.Reader
) -> list[forms.Item]:
  queries = record["query"]
  prompts, labels = record.get("prompts"), record.get("labels")
  for name, given in (("prompts", prompts), ("labels", labels)):
    if given is not None and len(given) != len(queries):
      raise refusals.invalid(f"expected one for each of {len(queries)}", name)
  if prompts is None:
    return forms.rendered(queries, "query", reader)
  items = []
  for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
    where = f"query[{i}]"
    if not query.startswith(prompt):
      raise refusals.invalid(
        "it doesn't begin with its prompt; a prompt that was cut can't be"
        " scored",
        where,
      )
    rest = query.removeprefix(prompt)
    items.append(forms.Item(where, reader.read_pair(prompt, rest, where)))
  return items


def _write_openrlhf(asked: forms.Asked) -> _Reply:
  scores = asked.scores
  return _Reply(rewards=scores, scores=scores, extra_logs=_Nothing())


GET_REWARD = forms.Form(
  declarations.Route(
    "/get_reward",
    "Returns the score of each solution.",
    declarations.schema(_Reply),
    declarations.schema(_Request),
    takes_aggregate=True,
    client="OpenRLHF",
  ),
  _read_openrlhf,
  _write_openrlhf,
)
