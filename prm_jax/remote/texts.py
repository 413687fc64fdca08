"""Requests for text, and what is made of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import sampler as sampler_lib
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.text import solution_texts

Record = dict[str, Any]


def step_end(template: endpoint_lib.Template) -> str:
  """Returns the stop string that ends a step; raises InputError."""
  end = template.separator
  if len(template.cut(f"a{end}b")) != 2:
    raise errors.InputError(
      f"template: no step ends at the `separator` {end!r} with this segmenter,"
      " so a server can't stop there; give another separator, or complete whole"
      " solutions"
    )
  return end


def holds_blocks(template: endpoint_lib.Template) -> bool:
  """Returns whether a stop string in a block may be no step's end."""
  return len(template.cut("```\na\n\nb")) == 1


def check_begun(
  prefixes: Sequence[schema.Solution],
  template: endpoint_lib.Template,
  endpoint: endpoint_lib.Endpoint,
) -> None:
  """Refuses solutions that have begun, if the server can't continue them.

  Args:
    prefixes: Unfinished solutions.
    template: How they become text.
    endpoint: Where they are sent.

  Raises:
    InputError: One has begun.
  """
  if not endpoint.chat or endpoint.continues:
    return
  for prefix in prefixes:
    if template.begun(prefix):
      raise errors.InputError(
        f"prefix {prefix.id!r} has steps, and not every server continues a"
        " message of a chat: for vLLM, SGLang and llama.cpp give"
        " `continues=True`; for others (transformers serve, OpenAI) ask"
        " /completions, without `chat`"
      )


def written(
  completion: Record, endpoint: endpoint_lib.Endpoint, step: str | None
) -> str:
  """Returns what the policy wrote: new_text, and the stop string of a step.

  Most servers leave out the stop string; transformers leaves in a part of it
  whose beginning is in the prompt.
  """
  new = str(completion["new_text"])
  if step is None or stopped_by(completion, step) != "step":
    return new
  has_part = endpoint.stop_in_text and step not in completion["text"]
  return new if has_part else new + step


def prompt(
  prefix: schema.Solution,
  template: endpoint_lib.Template,
  endpoint: endpoint_lib.Endpoint,
  *,
  within: bool = False,
) -> Record:
  """Returns the fields of a request that say what to continue.

  Args:
    prefix: An unfinished solution.
    template: How it becomes text.
    endpoint: Where it is sent.
    within: Whether the text ends within the last step, not after it.
  """
  opening, begun = template.opening(prefix.problem), template.begun(prefix)
  fields = {**endpoint.options, "model": endpoint.model}
  if not endpoint.chat:
    if within and (places := template.places(prefix)):
      begun = begun[: places[-1][1]]
    return fields | dict(prompt=f"{opening}{template.separator}{begun}")
  messages = [dict(role="user", content=opening)]
  if template.system is not None:
    messages.insert(0, dict(role="system", content=template.system))
  if not begun:
    return fields | dict(messages=messages)
  messages.append(dict(role="assistant", content=begun))
  return fields | dict(
    messages=messages,
    add_generation_prompt=False,
    continue_final_message=True,
  )


def solution(
  prefix: schema.Solution,
  completion: Record,
  sample: int,
  template: endpoint_lib.Template,
  step: str | None,
  counted: Sequence[str] = (),
) -> schema.Solution:
  """Returns a prefix with its completion as a solution.

  Args:
    prefix: The unfinished solution.
    completion: What replies.completion read, and what was written.
    sample: The number of the completion, which the solution's id ends with.
    template: How text becomes steps.
    step: The stop string that ends a step, if it was to stop there.
    counted: Further fields of the completion that are kept.
  """
  new, stopped = completion["written"], stopped_by(completion, step)
  spans: Sequence[schema.Span] = template.cut(new, template.begun(prefix))
  if step is not None and len(spans) > 1:
    # A blank line with blanks in it, for example, ends a step as well.
    new, spans = solution_texts.first_step(new, spans)
    stopped = "step"
  text = solution_texts.continued(prefix, template.separator, new, spans)
  names = ("num_tokens", "log_prob_mean", "log_prob_min", "text")
  extra = {name: completion[name] for name in names}
  extra |= dict(stopped=stopped, ended=stopped == "end")
  extra |= {name: completion[name] for name in counted}
  return schema.Solution(
    id=f"{prefix.id}/{sample}",
    problem=prefix.problem,
    source="policy",
    extra={**prefix.extra, **extra},
    **text._asdict(),
  )


def completion(record: Record, step: str | None) -> sampler_lib.Completion:
  """Returns what replies.token_ids and replies.completion read as one.

  Args:
    record: What they read.
    step: The stop string that ends a step, if it was to stop there.
  """
  return sampler_lib.Completion(
    np.asarray(record["token_ids"], np.int32),
    np.asarray(record["log_probs"], np.float32),
    stopped_by(record, step),
  )


def stopped_by(completion: Record, step: str | None) -> str:
  """Returns why a completion stopped: end, length, or step."""
  matched = completion["matched"]
  if step is not None and matched == step:
    return "step"
  ended = matched or completion["finish_reason"] == "stop"
  return "end" if ended else "length"
