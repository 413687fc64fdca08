"""Completions in parts: a stop string in a block of a step ends no step.

A server stops at a blank line, say, and doesn't know of fences. So the client
asks for the rest, until the step is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Generic, TypeVar

from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.remote import texts

Record = dict[str, Any]
# Of a completion in parts: the prompts of all requests together.
READ_TOKENS = "read_tokens"
# So many more requests than tokens are made for one completion, at most.
MOST_EMPTY = 16
# What is completed.
Asked = TypeVar("Asked")


@dataclasses.dataclass(frozen=True)
class Part:
  """A completion so far, which the next request continues.

  Args:
    sample: The number of the completion.
    number: The number of requests so far.
    before: What they gave, None at first.
  """

  sample: int
  number: int = 0
  before: Record | None = None

  @property
  def numbers(self) -> tuple[int, ...]:
    """The completion's number, and the request's if it isn't the first."""
    return (self.sample, self.number) if self.number else (self.sample,)

  @property
  def record(self) -> Record:
    """What the requests gave."""
    assert self.before is not None
    return self.before

  def then(self, record: Record, template: endpoint_lib.Template) -> Part:
    """Returns the completion with what one more request gave."""
    if self.before is not None:
      record = _joined(self.before, record, template)
    return Part(self.sample, self.number + 1, record)


def num_read(completion: Record) -> int:
  """Returns the tokens of the prompts of all requests for a completion."""
  if READ_TOKENS in completion:
    return completion[READ_TOKENS]
  return completion["prompt_tokens"]


def name_of(tag: Any) -> Any:
  """Returns what tells a request from others of the same id, for JSON."""
  if not isinstance(tag, Part):
    return tag
  return tag.numbers if tag.number else tag.sample


@dataclasses.dataclass(frozen=True)
class Whole(Generic[Asked]):
  """What a completion must be to end.

  Args:
    template: How text becomes steps.
    endpoint: Where the text is from.
    step: The stop string that ends a step; None if there is none.
    budget: Returns the most tokens of what was asked.
    begun: Returns the solution's text before the completion.
  """

  template: endpoint_lib.Template
  endpoint: endpoint_lib.Endpoint
  step: str | None
  budget: Callable[[Asked], int]
  begun: Callable[[Asked], str]


def completed(
  samples: Sequence[tuple[Asked, int]],
  ask: Callable[[Sequence[tuple[Asked, Part]], bool], list[Record]],
  whole: Whole[Asked],
) -> list[Record]:
  """Returns the completion of each sample, which ends as it must.

  Args:
    samples: What is asked, and the numbers of completions.
    ask: Returns what replies.completion read of each part. The flag says
      whether these are the first ones.
    whole: What a completion must be to end.

  Returns:
    The completions, with what the policy wrote as `written`.
  """
  done = [Part(n) for _, n in samples]
  todo = [*range(len(samples))]
  is_first = True
  while is_first or todo:
    records = ask([(samples[k][0], done[k]) for k in todo], is_first)
    is_first = False
    for k, record in zip(todo, records, strict=True):
      new = texts.written(record, whole.endpoint, whole.step)
      done[k] = done[k].then(dict(record, written=new), whole.template)
    todo = [k for k in todo if _goes_on(samples[k][0], done[k], whole)]
  return [part.record for part in done]


def _goes_on(asked: Asked, part: Part, whole: Whole[Asked]) -> bool:
  """Returns whether to continue; without budget left it has its length."""
  record = part.record
  if not _is_within_step(record, whole, whole.begun(asked)):
    return False
  # A server that counts no tokens isn't asked for ever. Between two blank lines
  # there may be none.
  asked_enough = part.number >= record["num_tokens"] + MOST_EMPTY
  if record["num_tokens"] < whole.budget(asked) and not asked_enough:
    return True
  record.update(matched=None, finish_reason="length")
  return False


def _is_within_step(completion: Record, whole: Whole[Any], begun: str) -> bool:
  """Returns whether a stop string is within a step that goes on after it.

  Such as a blank line in a block. A blank text ends no step, but is none.
  """
  if whole.step is None or texts.stopped_by(completion, whole.step) != "step":
    return False
  new, cut = completion["written"], whole.template.cut
  return len(cut(new, begun)) == len(cut(f"{new}x", begun)) == 1


def _joined(
  before: Record, after: Record, template: endpoint_lib.Template
) -> Record:
  """Returns a completion and its continuation as one.

  Args:
    before: What replies.completion read, and what was written.
    after: That of the continuation.
    template: Its stop texts end the completion, also where the first one
      begins one of them.
  """
  new, record = before["written"], dict(after)
  for name in ("text", "new_text", "written"):
    record[name] = new + after[name]
  if "prompt_tokens" in before:
    # The continuation's prompt is the prompt and what was written.
    record["prompt_tokens"] = before["prompt_tokens"]
    record[READ_TOKENS] = num_read(before) + after["prompt_tokens"]
  for name in ("num_tokens", "token_ids", "log_probs"):
    if name in before:
      record[name] = before[name] + after[name]
  means = [before["log_prob_mean"], after["log_prob_mean"]]
  if None in means:
    record |= dict(log_prob_mean=None, log_prob_min=None)
  else:
    parts, total = (before, after), max(record["num_tokens"], 1)
    record |= dict(
      log_prob_mean=sum(x["log_prob_mean"] * x["num_tokens"] for x in parts)
      / total,
      log_prob_min=min(x["log_prob_min"] for x in parts),
    )
  places = {record["written"].find(stop): stop for stop in template.stop}
  found = {place: stop for place, stop in places.items() if place >= 0}
  if found:
    own = record["written"][: min(found)]
    record |= dict(new_text=own, written=own, matched=found[min(found)])
  return record
