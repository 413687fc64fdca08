"""A language model as an agent: it writes the next turn of a conversation.

The prompt is what the model's chat template writes up to the turn, and the turn's
own text is read back by what the template writes around a call. Both are data
(text/conversation_templates.py), so a call is read as it would be written.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import json
from typing import NamedTuple

import jax
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import json_text
from prm_jax.text import conversation_templates
from prm_jax.text import messages as messages_lib
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import token_bytes

Parts = Sequence[templates.TemplatePart]
_USER = schema.Message("user", "a")
_CALLS = tuple(
  schema.Call(f"Zqn{i}qZ", {f"Zqk{i}qZ": i}, f"Zqc{i}000qZ") for i in (0, 1)
)


class Written(NamedTuple):
  """What a template writes around the calls of a turn.

  Args:
    first: Before the name of a turn's only call.
    after_text: Between a turn's text and the name of its first call; None if a
      turn with calls has no text.
    middle: Between a call's name and its arguments.
    before_id: Between a call's arguments and its id; None if no id is written.
    between: Between a call and the name of the next one; None if there is one
      call at most.
    last: After the last call.
  """

  first: str
  after_text: str | None
  middle: str
  before_id: str | None
  between: str | None
  last: str


class TurnPolicy:
  """A policy of environments.turns: a Sampler that writes turns.

  A turn depends on the conversation and its seed alone. A text that isn't
  written as a call is a turn without calls. One that no file can hold or that
  the template doesn't write, such as one with a stray mark of thinking, ends
  its trajectory alone: the turn is empty, and its record has the text and why.

  Args:
    policy: The model, imported with its chat template.
    sampling: How it is sampled; what it doesn't say is as the model's defaults
      say.
    seed: The seed of all turns.

  Raises:
    InputError: The model reads no conversations, or its template writes calls
      one argument at a time, which isn't read back.
  """

  def __init__(
    self,
    policy: sampler_lib.Sampler,
    sampling: sampling_lib.Sampling | None = None,
    seed: int = 0,
  ):
    template = policy.template
    if (
      not isinstance(template, policy_text.PolicyTemplate)
      or template.conversation is None
    ):
      raise errors.InputError(
        "this policy reads no conversations; import one with its chat template"
        " (`prm-jax import --role=policy`)"
      )
    self.policy, self.template = policy, template
    self.conversation = template.conversation
    if self.conversation.arguments != "whole":
      raise errors.InputError(
        f"the chat template of this policy ({template.name}) writes the"
        " arguments of a call one by one, and such calls aren't read back; use"
        " another policy"
      )
    given = sampling or sampling_lib.Sampling()
    self.sampling = given.with_defaults(policy.defaults)
    self._key = jax.random.key(seed)
    self._engine = rollout_engine.of(policy)
    self._ends = {*template.end_ids(policy.tokenizer)}
    self._bytes = token_bytes.token_bytes(
      policy.tokenizer, visible=_names(self.conversation, template.ends)
    )

  def __call__(
    self, trajectories: Sequence[schema.Solution], seeds: Sequence[int]
  ) -> list[schema.Message]:
    """Returns the next turn of each trajectory.

    Args:
      trajectories: The trajectories.
      seeds: The seed of each turn.

    Returns:
      The turns. One is empty if the template doesn't write what the world said
      last; its record says why.

    Raises:
      InputError: The template doesn't write a trajectory, whatever the world
        said last.
    """
    prompts: dict[int, np.ndarray] = {}
    turns: dict[int, schema.Message] = {}
    for i, trajectory in enumerate(trajectories):
      try:
        prompts[i] = self.prompt(trajectory)
      except errors.InputError as e:
        # The words may be the policy's own: a tool's result repeats them.
        self.prompt(_with_other_replies(trajectory))
        turns[i] = _left_out("", e)
    while len(turns) < len(trajectories):
      # A request's random numbers follow from its id, which no other may have.
      left = (i for i in prompts if i not in turns)
      one_each = {seeds[i]: i for i in left}
      requests = [
        rollout_engine.Request(str(seed), prompts[i], 1)
        for seed, i in one_each.items()
      ]
      rows, _ = self._engine.complete(requests, self.sampling, self._key)
      for i, row in zip(one_each.values(), rows, strict=True):
        turns[i] = self.read(row[0].tokens.tolist(), trajectories[i])
    return [turns[i] for i in range(len(trajectories))]

  def prompt(self, trajectory: schema.Solution) -> np.ndarray:
    """Returns the ids up to the next turn's own, int32 [T].

    Args:
      trajectory: A trajectory whose last message is no turn.

    Raises:
      InputError: The template doesn't write it.
    """
    begun = (*(trajectory.messages or ()), schema.Message("assistant", "a"))
    parts = conversation_templates.parts_of(
      self.conversation, begun, trajectory.tools
    )
    last = max(i for i, (kind, _) in enumerate(parts) if kind == "step")
    ids, _, _ = templates.write_parts(
      self.template.name, parts[:last], self.policy.tokenizer
    )
    return np.asarray(ids, np.int32)

  def read(
    self, ids: Sequence[int], trajectory: schema.Solution
  ) -> schema.Message:
    """Returns the turn that the model wrote.

    Args:
      ids: The ids after the prompt.
      trajectory: The trajectory that the prompt is of.

    Returns:
      The turn; its text is empty if the model wrote nothing, and see
      `turn_after`.
    """
    own = next((i for i, x in enumerate(ids) if x in self._ends), len(ids))
    text = self._bytes.text(ids[:own])
    return turn_after(trajectory, text, self.conversation)


def _with_other_replies(trajectory: schema.Solution) -> schema.Solution:
  """Returns a trajectory with other texts after its last turn."""
  messages = trajectory.messages or ()
  turns = [i for i, x in enumerate(messages) if x.role == "assistant"]
  end = turns[-1] + 1 if turns else len(messages)
  others = (dataclasses.replace(x, text="a", record={}) for x in messages[end:])
  return dataclasses.replace(trajectory, messages=(*messages[:end], *others))


def _names(
  template: conversation_templates.ConversationTemplate, ends: Sequence[str]
) -> tuple[str, ...]:
  """Returns the names of the controls that a turn may hold, but its ends."""
  names = (
    content
    for between in template.between
    for kind, content in between.parts
    if kind == "control"
  )
  return tuple(x for x in dict.fromkeys(names) if x not in ends)


@functools.lru_cache(maxsize=16)
def written(
  template: conversation_templates.ConversationTemplate,
) -> Written | None:
  """Returns what a template writes around calls; None if it writes none.

  Args:
    template: The template.
  """
  one = _own(template, "", _CALLS[:1])
  if one is None:
    return None
  arguments = json.dumps(dict(_CALLS[0].arguments))
  call_id = str(_CALLS[0].id)
  first, rest = one.split(_CALLS[0].name)
  middle, last = rest.split(arguments)
  before_id = None
  if call_id in last:
    before_id, last = last.split(call_id)
  said = _own(template, "ZqtextqZ", _CALLS[:1])
  after_text = said and said.split("ZqtextqZ")[1].split(_CALLS[0].name)[0]
  two = _own(template, "", _CALLS)
  between = two and two.split(arguments)[1].split(_CALLS[1].name)[0]
  if between and before_id is not None:
    between = between.split(call_id)[1]
  return Written(first, after_text, middle, before_id, between, last)


def _own(
  template: conversation_templates.ConversationTemplate,
  text: str,
  calls: Sequence[schema.Call],
) -> str | None:
  """Returns a turn's own text, without its end; None if it isn't written."""
  turn = schema.Message("assistant", text, calls=tuple(calls))
  try:
    parts = conversation_templates.parts_of(template, (_USER, turn))
  except errors.InputError:
    return None
  kinds = [kind for kind, _ in parts]
  own = parts[kinds.index("step") + 1 : kinds.index("read") - 1]
  return "".join(content for _, content in own)


def turn_after(
  trajectory: schema.Solution,
  text: str,
  template: conversation_templates.ConversationTemplate,
) -> schema.Message:
  """Returns the turn that a text is after a trajectory.

  Args:
    trajectory: The trajectory.
    text: The turn's own text, without its end.
    template: The template that wrote the trajectory for the model.

  Returns:
    The turn that `read_turn` reads. If no file can hold it or the template
    doesn't write it, the whole text is the turn's, without calls. If that can't
    be, either, the turn is empty and its record has the text and why.
  """
  read = read_turn(text, written(template))
  if not read.text.strip() and not read.calls:
    return read
  refusal = None
  for turn in (read, schema.Message("assistant", text.strip("\n"))):
    try:
      _check(trajectory, turn, template)
    except errors.InputError as e:
      refusal = e
    else:
      return turn
  return _left_out(text, refusal)


def _check(
  trajectory: schema.Solution,
  turn: schema.Message,
  template: conversation_templates.ConversationTemplate,
) -> None:
  """Refuses a turn that no file can hold, or the template doesn't write."""
  before = trajectory.messages or ()
  record = dict(messages=[messages_lib.record_of(turn)])
  try:
    record = json_text.parse(json.dumps(record))
  except json_text.JSONTextError as e:
    raise errors.InputError(f"a turn of the policy: {e}") from None
  messages_lib.read((*before, *record["messages"]), "a turn of the policy")
  conversation_templates.parts_of(template, (*before, turn), trajectory.tools)


def _left_out(text: str, why: errors.InputError | None) -> schema.Message:
  """Returns an empty turn that says why a text can't be one."""
  return schema.Message(
    "assistant", "", record=dict(content=text, why=f"{why}")
  )


def read_turn(text: str, around: Written | None) -> schema.Message:
  """Returns the turn that a text is.

  Args:
    text: A turn's own text, without its end.
    around: What the template writes around calls.

  Returns:
    The turn. A block of thinking at the beginning is its thinking, unless there
    are further marks of it or white space beside them; what isn't written as
    calls is its text. `turn_after` looks whether a file can hold it.
  """
  try:
    thinking, said = conversation_templates.split_thinking(text)
  except errors.InputError:
    thinking, said = None, text
  plain = schema.Message("assistant", said.strip("\n"), thinking)
  if around is None:
    return plain
  before, start, rest = "", around.first, said
  if not said.startswith(start):
    if around.after_text is None:
      return plain
    before, start, rest = said.partition(around.after_text)
    if not start:
      return plain
    rest = start + rest
  calls = _read_calls(rest[len(start) :], around)
  if calls is None:
    return plain
  return dataclasses.replace(plain, text=before.strip("\n"), calls=calls)


def _read_calls(text: str, around: Written) -> tuple[schema.Call, ...] | None:
  """Returns the calls in a text that begins with a name; None if it isn't any."""
  calls: list[schema.Call] = []
  while True:
    name, found, rest = text.partition(around.middle)
    try:
      json_text.check_nesting(rest)
      arguments, end = json_text.parse_first(rest, 0)
    except json_text.JSONTextError:
      return None
    if not found or not name or not isinstance(arguments, dict):
      return None
    call_id, rest = f"call{len(calls):05}", rest[end:]
    if around.before_id is not None:
      if not rest.startswith(around.before_id):
        return None
      rest = rest[len(around.before_id) :]
      # What follows an id begins with a mark that no id holds.
      call_id = rest.partition(around.last[:1])[0]
      rest = rest[len(call_id) :]
    calls.append(schema.Call(name, arguments, call_id))
    if rest.strip() == around.last.strip():
      return tuple(calls)
    if around.between is None or not rest.startswith(around.between):
      return None
    text = rest[len(around.between) :]
