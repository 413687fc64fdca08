"""Conversations to the scores of their turns, and to the rewards of their tokens.

  conversation = turn_rewards.conversation(prompt, completion, tools)
  conversation = turn_rewards.decoded(prompt, ids, mask, decode)  no messages
  (scores,) = turn_rewards.score_turns(score, [conversation])
  rewards = scoring.judged(scores)                             a number a turn
  scored = turn_rewards.placed(scores, turn_rewards.run_lengths(mask))

token_credit takes what `placed` returns.

A turn is an assistant's message that the policy wrote; everything else is its
context. The reward of a turn is placed on the last of its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import logging
from typing import Any

from prm_jax import client
from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import trainer_chats
from prm_jax.text import messages as messages_lib

_LOG = logging.getLogger(__name__)
# A message as a record: an object with a role and a content.
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Conversation:
  """A conversation, and which of its messages the policy wrote.

  Args:
    messages: The messages, as OpenAI's or Hugging Face's records.
    own: The places in `messages` of the turns that are scored, ascending. An
      assistant's message elsewhere, such as an example, is context.
    tools: The declarations of the tools, as JSON has them.
  """

  messages: tuple[Record, ...]
  own: tuple[int, ...]
  tools: tuple[Record, ...] = ()


# --- What trainers hand over, as conversations -------------------------------


def conversation(
  prompt: Any, completion: Sequence[Any], tools: Sequence[Record] = ()
) -> Conversation:
  """Returns a prompt and what followed as a conversation.

  Args:
    prompt: A text, or the messages before the policy's first turn.
    completion: The messages after it: the policy's turns, and what tools and
      users say between them. Records, or objects of pydantic.
    tools: The declarations of the tools.

  Returns:
    The conversation, whose own turns are the completion's.
  """
  if isinstance(prompt, str):
    prompt = [dict(role="user", content=prompt)]
  first, rest = list(map(record_of, prompt)), list(map(record_of, completion))
  numbered = enumerate(rest, len(first))
  own = tuple(i for i, x in numbered if x.get("role") == "assistant")
  return Conversation((*first, *rest), own, tuple(tools))


def decoded(
  prompt: Any,
  ids: Any,
  mask: Any,
  decode: placement.Decode,
  *,
  between: Callable[[str], str] = str.strip,
) -> Conversation:
  """Returns a conversation of which the trainer hands over tokens alone.

  Each run of the policy's own tokens is a turn, tool calls included as the
  policy writes them; what comes before a run is said by the user. A turn that
  ends a thought which it doesn't begin continues a prompt that ends in <think>.

  Args:
    prompt: A text, or the messages before the policy's first turn.
    ids: The ids after the prompt.
    mask: Which of them the policy wrote.
    decode: Returns the text of ids, without special tokens.
    between: Returns what was said, of the text between two runs, such as
      turn_rewards.between("user\\n", "\\nassistant").

  Returns:
    The conversation, with one own turn for each run.

  Raises:
    InputError: The mask isn't as long as the ids.
  """
  scoring.token_ids(ids, mask)  # refuses a mask of another length
  completion: list[Record] = []
  last = 0
  for start, end in _runs(mask):
    said = between(decode(scoring.token_ids(ids[last:start])))
    if completion or said not in ("", "<think>"):
      completion.append(dict(role="user", content=said))
    text = decode(scoring.token_ids(ids[start:end]))
    if "</think>" in text.partition("<think>")[0]:
      text = f"<think>{text}"
    completion.append(dict(role="assistant", content=text))
    last = end
  return conversation(prompt, completion)


def between(start: str, end: str) -> Callable[[str], str]:
  """Returns a function that takes away what a template writes around a text.

  Args:
    start: What the template leaves before it, without special tokens.
    end: What it leaves after it.

  Returns:
    A function from a text to what stands between the last `start` and the `end`
    that follows; to the whole text, stripped, if they aren't there.
  """

  def find(text: str) -> str:
    _, found, rest = text.rpartition(start)
    said, closed, _ = rest.partition(end)
    return said if found and closed else text.strip()

  return find


def record_of(message: Any) -> Record:
  """Returns a message as a record.

  Args:
    message: A record, or an object of pydantic.

  Returns:
    The record, without fields that are None.

  Raises:
    InputError: It is neither.
  """
  if isinstance(message, Mapping):
    return {k: x for k, x in message.items() if x is not None}
  dump = getattr(message, "model_dump", None)
  if dump is None:
    raise errors.InputError(
      f"a message is of type {type(message).__name__}; give an object with a"
      " role and a content"
    )
  return dump(exclude_none=True)


# --- Scores ------------------------------------------------------------------


def score_turns(
  score: schema.Score, conversations: Sequence[Conversation]
) -> list[schema.StepScores]:
  """Returns the scores of conversations' own turns.

  What a policy writes must not end a run. So an empty turn, which no model
  judges, has score 0 and isn't judged. A conversation whose calls aren't of the
  form, such as arguments that are no object, or that the model refuses, is read
  as texts; if these are refused, too, none of its turns is judged. Both are
  logged.

  Args:
    score: Scores trajectories (prm_jax.load_score).
    conversations: The conversations. One without own turns isn't scored.

  Returns:
    One score for each own turn of each conversation.

  Raises:
    InputError: A conversation is refused whatever the policy had written, there
      isn't one score for each turn, or a server doesn't reply.
  """
  asked = [(str(i), x) for i, x in enumerate(conversations) if x.own]
  rows = iter(_rows(score, asked) if asked else ())
  return [next(rows) if x.own else schema.StepScores(()) for x in conversations]


def metrics(scores: Iterable[schema.StepScores]) -> dict[str, float]:
  """Returns what a trainer's log says of the scores of turns.

  Args:
    scores: The scores of the turns of each conversation.

  Returns:
    Means over the conversations with turns: `turn_mean` and `turn_min`, of the
    judged turns; `unjudged`, the share of other turns; `first_error`, the
    number of turns before the first below schema.THRESHOLD; and `num_turns`.
    All are 0 without turns.
  """
  rows = []
  for each in filter(len, scores):
    real = [x for x in scoring.judged(each) if x is not None]
    error = schema.first_error(scoring.judged(each))
    mean, least = sum(real) / max(len(real), 1), min(real, default=0.0)
    num_right = len(each) if error < 0 else error
    unjudged = 1 - len(real) / len(each)
    rows.append((mean, least, unjudged, num_right, len(each)))
  names = ("turn_mean", "turn_min", "unjudged", "first_error", "num_turns")
  columns = zip(*rows) if rows else [(0.0,)] * len(names)
  return {name: sum(x) / len(x) for name, x in zip(names, columns)}


# --- Tokens ------------------------------------------------------------------


def run_lengths(mask: Any) -> list[int]:
  """Returns how many tokens each turn has.

  Args:
    mask: Which tokens the policy wrote. Each run of them is a turn.

  Returns:
    The length of each run.
  """
  return [end - start for start, end in _runs(mask)]


def placed(
  scores: schema.StepScores, lengths: Sequence[int]
) -> scoring.ScoredResponse:
  """Returns turns as the steps of a response of the policy's own tokens.

  scoring.token_rewards then gives a turn's reward to its last token, and
  token_credit's functions give advantages, one for each own token;
  placement.align puts them at the mask's places.

  Args:
    scores: The scores of the turns.
    lengths: How many own tokens each turn has (run_lengths). None at all is a
      conversation that is kept from training: it has no steps then.

  Returns:
    The response. An own token takes the place of a character.

  Raises:
    InputError: There isn't a length for each turn.
  """
  if not lengths:
    return scoring.ScoredResponse(schema.StepScores(()), [])
  if len(lengths) != len(scores):
    raise errors.InputError(
      f"{len(lengths)} runs of own tokens for {len(scores)} turns; give the mask"
      " of the conversation that was scored, with context between its turns"
    )
  ends = list(itertools.accumulate(lengths))
  scores = dataclasses.replace(scores, spans=tuple(zip([0, *ends], ends)))
  return scoring.ScoredResponse(scores, list(range(1, ends[-1] + 1)))


# --- Private -----------------------------------------------------------------


def _runs(mask: Any) -> list[tuple[int, int]]:
  """Returns where each run of true places begins, and the place after it."""
  runs, place = [], 0
  for is_own, run in itertools.groupby(bool(x) for x in mask):
    start, place = place, place + len(list(run))
    if is_own:
      runs.append((start, place))
  return runs


def _rows(
  score: schema.Score, asked: Sequence[tuple[str, Conversation]]
) -> list[schema.StepScores]:
  """Returns the scores of conversations under names; finds those refused."""
  try:
    return _scored(score, asked)
  except (client.NoReplyError, client.OtherModelError):
    raise  # no conversation's doing
  except errors.InputError as e:
    if getattr(e, "status", 400) in (401, 403, 404):
      raise  # nor is a key or a model's name
    if len(asked) > 1:
      half = len(asked) // 2
      return _rows(score, asked[:half]) + _rows(score, asked[half:])
    ((name, given),) = asked
    try:
      _LOG.warning("conversation %s: %s; it is read as texts", name, e)
      return _scored(score, [(name, _written(given, _as_text))])
    except errors.InputError:
      # What isn't the policy's doing is refused again, and ends the run.
      _scored(score, [(name, _written(given, _without_text))])
      _LOG.warning("conversation %s: refused as texts; it isn't judged", name)
      none = (False,) * len(given.own)
      return [schema.StepScores((0.0,) * len(given.own), judged=none)]


def _scored(
  score: schema.Score, asked: Sequence[tuple[str, Conversation]]
) -> list[schema.StepScores]:
  """Returns the scores of conversations' own turns, all at once."""
  read = [_read(given, name) for name, given in asked]
  trajectories = [x for x, _ in read if x.steps]
  rows = iter(score(trajectories) if trajectories else ())
  out = []
  for trajectory, places in read:
    row = next(rows) if trajectory.steps else schema.StepScores(())
    if len(row) != len(trajectory.steps):
      raise errors.InputError(
        f"conversation {trajectory.id}: {len(row)} scores for"
        f" {len(trajectory.steps)} turns; give a score that judges whole turns"
      )
    scores = tuple(0.0 if i is None else row.scores[i] for i in places)
    judged = tuple(i is not None and row.judged[i] for i in places)
    out.append(schema.StepScores(scores, judged=judged))
  return out


def _read(
  given: Conversation, name: str
) -> tuple[schema.Solution, list[int | None]]:
  """Returns the trajectory and each own turn's step, None for an empty turn."""
  records, turns, place = [], {}, 0
  for i, record in enumerate(given.messages):
    if record.get("role") == "assistant":
      if (
        not record.get("tool_calls")
        and not trainer_chats.text_of(record).strip()
      ):
        continue
      turns[i], place = place, place + 1
    records.append(record)
  tools = list(map(_declared, given.tools))
  solution = messages_lib.trajectory(records, id=name, tools=tools)
  return solution, [turns.get(i) for i in given.own]


def _declared(tool: Record) -> Record:
  """Returns a tool's declaration as chats have it; others are flat."""
  if not isinstance(tool, Mapping) or "function" in tool or "name" not in tool:
    return tool
  function = {k: x for k, x in tool.items() if k not in ("type", "strict")}
  return dict(type="function", function=function)


def _written(
  given: Conversation, write: Callable[[Record, bool], Record]
) -> Conversation:
  """Returns a conversation with rewritten messages, each own or not."""
  own = {*given.own}
  messages = (write(x, i in own) for i, x in enumerate(given.messages))
  return dataclasses.replace(given, messages=tuple(messages))


def _as_text(record: Record, is_own: bool) -> Record:
  """Returns a message without calls: they are its text's last lines.

  What an own turn says up to its last </think> is its thought.
  """
  calls = record.get("tool_calls") or ()
  role = "user" if record.get("role") == "tool" else record.get("role")
  if not is_own and not calls:
    return dict(role=role, content=record.get("content"))
  calls = calls if isinstance(calls, list | tuple) else [calls]
  lines = (
    trainer_chats.text_of(record),
    *(json.dumps(x, default=str) for x in calls),
  )
  text = "\n".join(x for x in lines if x)
  if not is_own:
    return dict(role=role, content=text)
  thought, found, said = text.rpartition("</think>")
  said = said.replace("<think>", "").strip()
  if not found or not said:
    return dict(role=role, content=text)
  for mark in ("<think>", "</think>"):
    thought = thought.replace(mark, "")
  return dict(role=role, content=said, reasoning_content=thought.strip())


def _without_text(record: Record, is_own: bool) -> Record:
  """Returns a message as one that a policy's own words aren't in."""
  if is_own:
    return dict(role="assistant", content="a")
  return _as_text(record, is_own)
