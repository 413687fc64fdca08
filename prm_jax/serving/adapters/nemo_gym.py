"""The forms of NeMo-Gym's agents, which ask a resources server.

An agent begins an episode by /seed_session, has it rated by /verify, and after
all episodes asks for /aggregate_metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
import statistics
from typing import Any

from prm_jax import voting
from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving import refusals
from prm_jax.serving.adapters import form

# What a policy's answer may hold besides its message.
_NO_MESSAGE = ("reasoning",)


def _read_gym(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  del reader
  asked = record["responses_create_params"]["input"]
  place = "responses_create_params.input"
  problem = (
    asked if isinstance(asked, str) else form.said(asked, place, "user")[0]
  )
  output = record["response"]["output"]
  messages = [x for x in output if x.get("type") not in _NO_MESSAGE]
  where = "response.output"
  if [x.get("type", "message") for x in messages] != ["message"]:
    raise refusals.invalid(
      "expected one message, and beside it only reasoning; an episode of several"
      " turns is verified by prm_jax.integrations.nemo_gym, in the resources"
      " server",
      where,
    )
  fields.check(messages[0], form.MESSAGE, where)
  (response,) = form.said(messages, where, "assistant")
  return [form.Item(where, chats.Turns(problem, response))]


def _write_gym(record: form.Record, scored: form.Scored) -> form.Record:
  scores = scored.rows[0].scores
  components = {how: voting.aggregate(scores, how) for how in voting.AGGREGATES}
  return record | dict(reward=scored.scores[0], reward_components=components)


_ASKED = fields.record(
  fields.Field(
    "input",
    fields.one_of(fields.TEXT, fields.several(form.MESSAGE, 1)),
    "The problem: a text, or messages with one of the user.",
    True,
  ),
  is_open=True,
)
_OUTPUT = fields.record(
  fields.Field(
    "output",
    fields.several(fields.record(is_open=True), 1),
    "One message of the assistant; reasoning beside it isn't scored.",
    True,
  ),
  is_open=True,
)
_GYM = (
  fields.Field("responses_create_params", _ASKED, "What was asked.", True),
  fields.Field("response", _OUTPUT, "What the policy answered.", True),
)
VERIFY = form.Form(
  fields.Route(
    "POST",
    "/verify",
    "Returns the request with the score of its solution.",
    fields.record(
      *_GYM,
      fields.Field("reward", fields.SCORE, "The solution's score.", True),
      fields.Field(
        "reward_components",
        fields.record(
          *(
            fields.Field(how, fields.SCORE, f"The score by {how}.", True)
            for how in voting.AGGREGATES
          )
        ),
        "The score by each aggregate.",
        True,
      ),
      is_open=True,
    ),
    fields.record(*_GYM, is_open=True),
    form.AGGREGATE,
    client="NeMo-Gym",
  ),
  _read_gym,
  _write_gym,
)


def _read_nothing(record: form.Record, reader: chats.Reader) -> list[form.Item]:
  del record, reader
  return []


def _write_session(record: form.Record, scored: form.Scored) -> form.Record:
  del record, scored
  return {}


SEED_SESSION = form.Form(
  fields.Route(
    "POST",
    "/seed_session",
    "Returns an empty object: there is nothing to prepare for an episode.",
    fields.record(),
    fields.record(is_open=True),
    client="NeMo-Gym",
  ),
  _read_nothing,
  _write_session,
)

_TASK, _ROLLOUT = "_ng_task_index", "_ng_rollout_index"
# Larger numbers have no finite square.
_LARGEST = 1e100
_STATISTICS: Mapping[str, Any] = dict(
  mean=statistics.fmean,
  max=max,
  min=min,
  median=statistics.median,
  std=lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
)


def _numbers(verified: form.Record, where: str) -> dict[str, float]:
  """Returns the numbers of a verified episode, with those of its usage."""
  usage = (verified.get("response") or {}).get("usage") or {}
  numbers = {
    name: float(value)
    for name, value in (verified | usage).items()
    if isinstance(value, int | float)
    and name not in (_TASK, _ROLLOUT)
    and abs(value) <= _LARGEST
  }
  if "reward" not in numbers:
    raise refusals.invalid(f"expected a number up to {_LARGEST:g}", where)
  return numbers


def _metrics(episodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Returns statistics of each number that all episodes have."""
  names = [name for name in episodes[0] if all(name in x for x in episodes)]
  return {
    f"{statistic}/{name}": float(compute([x[name] for x in episodes]))
    for statistic, compute in _STATISTICS.items()
    for name in names
  }


def _write_metrics(record: form.Record, scored: form.Scored) -> form.Record:
  del scored
  of_task: dict[int, list[dict[str, float]]] = defaultdict(list)
  for i, verified in enumerate(record["verify_responses"]):
    where = f"verify_responses[{i}].reward"
    of_task[verified.get(_TASK, 0)].append(_numbers(verified, where))
  of_all = [x for episodes in of_task.values() for x in episodes]
  metrics = _metrics(of_all) if of_all else {}
  return dict(
    group_level_metrics=[
      {_TASK: task, "num_rollouts": len(of_task[task])}
      | _metrics(of_task[task])
      for task in sorted(of_task)
    ],
    agent_metrics=metrics,
    key_metrics={
      name: x for name, x in metrics.items() if name.startswith("mean/")
    },
  )


_USAGE = fields.record(
  fields.Field(
    "usage",
    fields.one_of(fields.record(is_open=True), fields.NULL),
    "Its numbers count, too.",
  ),
  is_open=True,
)
_VERIFIED = fields.record(
  fields.Field("reward", fields.NUMBER, "What /verify returned.", True),
  fields.Field(_TASK, fields.INTEGER, "The number of the task."),
  fields.Field("response", _USAGE, "What is left of the answer."),
  is_open=True,
)
AGGREGATE_METRICS = form.Form(
  fields.Route(
    "POST",
    "/aggregate_metrics",
    "Returns the mean, the largest, the least, the median and the standard"
    " deviation of the numbers of episodes, of each task and of all.",
    fields.record(
      fields.Field(
        "group_level_metrics",
        fields.several(fields.record(is_open=True)),
        "Those of each task, with its _ng_task_index.",
        True,
      ),
      fields.Field(
        "agent_metrics",
        fields.record(is_open=True),
        "Those of all episodes, such as mean/reward.",
        True,
      ),
      fields.Field(
        "key_metrics", fields.record(is_open=True), "The means of these.", True
      ),
    ),
    fields.record(
      fields.Field(
        "verify_responses",
        fields.several(_VERIFIED),
        "The replies of /verify, without their texts.",
        True,
      )
    ),
    client="NeMo-Gym",
  ),
  _read_nothing,
  _write_metrics,
)
