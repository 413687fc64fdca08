"""A conversation of three turns, whose scores are written in them."""

import re

import scored

from prm_jax import schema
from prm_jax.integrations import turn_rewards

DECODE = scored.DECODE
PROMPT = [
  dict(role="system", content="Be brief."),
  dict(role="user", content="2 + 3?"),
]


def call(text, name, arguments, call_id="c1"):
  """An assistant's message with a tool call, as OpenAI writes it."""
  function = dict(name=name, arguments=arguments)
  calls = [dict(id=call_id, type="function", function=function)]
  return dict(role="assistant", content=text, tool_calls=calls)


COMPLETION = [
  call("look [0.75]", "add", '{"a": 2, "b": 3}'),
  dict(role="tool", tool_call_id="c1", name="add", content="5"),
  dict(role="assistant", content="it is 5 [0.25]"),
  dict(role="user", content="sure?"),
  dict(role="assistant", content="yes [0.5]"),
]
TOOLS = (dict(type="function", function=dict(name="add", parameters={})),)
# Of each own turn: a model judges those until its first error.
SCORES, REWARDS = (0.75, 0.25, 0.5), [0.75, 0.25, None]
DELTA = [0.5, 0.25, 0.0]


def recorded():
  """A schema.Score, and the list of what it is asked."""
  asked = []

  def score(solutions):
    out = []
    for solution in solutions:
      assert solution.messages is not None and solution.steps
      asked.append(solution)
      scores = [
        float(re.search(r"\[([0-9.]+)\]", x)[1]) for x in solution.steps
      ]
      judged = schema.judged_steps(scores, "until_first_error")
      out.append(schema.StepScores(tuple(scores), judged=judged))
    return out

  return score, asked


score = recorded()[0]
# What a template writes around what isn't the policy's.
_OPEN, _CLOSE = "user\n", "\nassistant\n"
BETWEEN = turn_rewards.between(_OPEN, _CLOSE)


def tokens():
  """The completion's ids, and which of them the policy wrote."""
  ids, mask = [], []
  for message in COMPLETION:
    is_own = message["role"] == "assistant"
    text = message["content"] if is_own else _OPEN + message["content"] + _CLOSE
    row = scored.TOKENIZER.encode(text)
    row += [scored.TOKENIZER.eos] if is_own else []
    ids += row
    mask += [int(is_own)] * len(row)
  return ids, mask


def ends():
  """The place of each turn's last token."""
  _, mask = tokens()
  return [
    i
    for i, x in enumerate(mask)
    if x and (i + 1 == len(mask) or not mask[i + 1])
  ]


def expected(rewards, num_tokens=None):
  """A row with a turn's reward at its last token."""
  row = [0.0] * (num_tokens or len(tokens()[0]))
  for place, reward in zip(ends(), rewards, strict=True):
    row[place] = reward or 0.0
  return row
