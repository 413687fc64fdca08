"""The forms of NeMo-Gym's agents, which ask a resources server.

An agent begins an episode by /seed_session, has it rated by /verify, and after
all episodes asks for /aggregate_metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
import statistics
from typing import Annotated, Any, NotRequired, TypedDict

from prm_jax import voting
from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import refusals

# What a policy's answer may hold besides its message.
_NO_MESSAGE = ("reasoning",)


class _Asked(TypedDict):
  """What was asked.

  Args:
    input: The problem: a text, or messages with one of the user.
  """

  input: str | forms.Messages


class _Answered(TypedDict):
  """What the policy answered.

  Args:
    output: One message of the assistant; reasoning beside it isn't scored.
  """

  output: Annotated[list[dict[str, Any]], declarations.SOME]


class _Episode(TypedDict):
  """An episode.

  Args:
    responses_create_params: What was asked.
    response: What the policy answered.
  """

  responses_create_params: Annotated[_Asked, declarations.OPEN]
  response: Annotated[_Answered, declarations.OPEN]


class _Components(TypedDict):
  """The score by each aggregate.

  Args:
    product: The score by product.
    min: The score by min.
    last: The score by last.
    mean: The score by mean.
  """

  product: declarations.Score
  min: declarations.Score
  last: declarations.Score
  mean: declarations.Score


class _Reward(TypedDict):
  """What an episode is rated.

  Args:
    reward: The solution's score.
    reward_components: The score by each aggregate.
  """

  reward: declarations.Score
  reward_components: _Components


def _read_gym(
  record: _Episode, reader: chat_requests.Reader
) -> list[forms.Item]:
  del reader
  problem = record["responses_create_params"]["input"]
  if not isinstance(problem, str):
    place = "responses_create_params.input"
    (problem,) = forms.said(problem, place, "user")
  output = record["response"]["output"]
  messages: list[Any] = [x for x in output if x.get("type") not in _NO_MESSAGE]
  where = "response.output"
  if [x.get("type", "message") for x in messages] != ["message"]:
    raise refusals.invalid(
      "expected one message, and beside it only reasoning; an episode of several"
      " turns is verified by prm_jax.integrations.nemo_gym, in the resources"
      " server",
      where,
    )
  declarations.check(messages[0], _MESSAGE, where)
  (response,) = forms.said(messages, where, "assistant")
  return [forms.Item(where, chat_requests.Turns(problem, response))]


_MESSAGE = declarations.schema(forms.Message)


def _write_gym(asked: forms.Asked) -> forms.Record:
  scores = asked.rows[0].scores
  components = {how: voting.aggregate(scores, how) for how in voting.AGGREGATES}
  return asked.record | dict(
    reward=asked.scores[0], reward_components=components
  )


VERIFY = forms.Form(
  declarations.Route(
    "/verify",
    "Returns the request with the score of its solution.",
    declarations.record(_Episode, _Reward) | dict([declarations.OPEN]),
    declarations.schema(Annotated[_Episode, declarations.OPEN]),
    takes_aggregate=True,
    client="NeMo-Gym",
  ),
  _read_gym,
  _write_gym,
)


class _Nothing(TypedDict):
  """An empty object."""


def _read_nothing(
  record: Any, reader: chat_requests.Reader
) -> list[forms.Item]:
  del record, reader
  return []


SEED_SESSION = forms.Form(
  declarations.Route(
    "/seed_session",
    "Returns an empty object: there is nothing to prepare for an episode.",
    declarations.schema(_Nothing),
    declarations.schema(dict),
    client="NeMo-Gym",
  ),
  _read_nothing,
  lambda asked: _Nothing(),
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


def _numbers(verified: forms.Record, where: str) -> dict[str, float]:
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
  first, *others = episodes or [{}]
  names = [name for name in first if all(name in x for x in others)]
  return {
    f"{statistic}/{name}": float(compute([x[name] for x in episodes]))
    for statistic, compute in _STATISTICS.items()
    for name in names
  }


class _Left(TypedDict):
  """What is left of an answer.

  Args:
    usage: Its numbers count, too.
  """

  usage: NotRequired[dict[str, Any] | None]


class _Verified(TypedDict):
  """What is left of a rated episode.

  Args:
    reward: What /verify returned.
    _ng_task_index: The number of the task.
    response: What is left of the answer.
  """

  reward: float
  _ng_task_index: NotRequired[int]
  response: NotRequired[Annotated[_Left, declarations.OPEN]]


class _Rollouts(TypedDict):
  """Rated episodes.

  Args:
    verify_responses: The replies of /verify, without their texts.
  """

  verify_responses: list[Annotated[_Verified, declarations.OPEN]]


class _Metrics(TypedDict):
  """Statistics of episodes.

  Args:
    group_level_metrics: Those of each task, with its _ng_task_index.
    agent_metrics: Those of all episodes, such as mean/reward.
    key_metrics: The means of these.
  """

  group_level_metrics: list[dict[str, Any]]
  agent_metrics: dict[str, Any]
  key_metrics: dict[str, Any]


def _write_metrics(asked: forms.Asked) -> _Metrics:
  of_task: dict[int, list[dict[str, float]]] = defaultdict(list)
  for i, verified in enumerate(asked.record["verify_responses"]):
    where = f"verify_responses[{i}].reward"
    of_task[verified.get(_TASK, 0)].append(_numbers(verified, where))
  metrics = _metrics([x for episodes in of_task.values() for x in episodes])
  return _Metrics(
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


AGGREGATE_METRICS = forms.Form(
  declarations.Route(
    "/aggregate_metrics",
    "Returns the mean, the largest, the least, the median and the standard"
    " deviation of the numbers of episodes, of each task and of all.",
    declarations.schema(_Metrics),
    declarations.schema(_Rollouts),
    client="NeMo-Gym",
  ),
  _read_nothing,
  _write_metrics,
)
