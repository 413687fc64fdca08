"""What a world is to an agent, and trajectories that a policy writes in it.

`generate` and `verifier` make a Generate and a Verify of a world, so all that
takes these works on turns, too: labelling.monte_carlo labels turns, best of N
chooses among trajectories, and RL samples them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import itertools
import json
import reprlib
from typing import Protocol, runtime_checkable, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import messages as messages_lib

State = TypeVar("State")

# Writes the next turn of each trajectory, given a seed for each. A turn depends
# on its trajectory and its seed alone. An empty one ends the trajectory; its
# record may say what was written that can't be a turn.
Policy = Callable[
  [Sequence[schema.Solution], Sequence[int]], Sequence[schema.Message]
]


@runtime_checkable
class Environment(Protocol[State]):
  """A world without chance: what it says depends on the turns alone.

  A seed of the world is a field of the world or part of the opening. `act`
  changes no state that it is given, so many rollouts begin in one state.
  """

  def begin(self, opening: schema.Solution) -> State:
    """Returns the state before the first turn.

    Args:
      opening: A trajectory without a turn.

    Returns:
      The state.

    Raises:
      InputError: It isn't an opening of this world.
    """

  def act(
    self, state: State, turn: schema.Message
  ) -> tuple[State, tuple[schema.Message, ...]]:
    """Returns the state after a turn, and what the world says to it.

    Args:
      state: The state before the turn.
      turn: The assistant's message.

    Returns:
      The state, and results of tools or a user's messages; without messages the
      trajectory has ended.
    """

  def answer(self, trajectory: schema.Solution) -> str | None:
    """Returns what a trajectory states.

    Args:
      trajectory: The trajectory, ended or not.

    Returns:
      The answer, or None.
    """

  def outcome(self, trajectory: schema.Solution) -> bool | None:
    """Returns whether a trajectory succeeded.

    Args:
      trajectory: The trajectory, ended or not.

    Returns:
      True or False; None if it isn't known.
    """


def reset(
  environment: Environment[State], prefix: schema.Solution
) -> tuple[State, schema.Solution]:
  """Returns a prefix's state, by acting out its turns again.

  Args:
    environment: The world.
    prefix: A trajectory without a turn, or one that ends with a turn or with
      what the world said to it.

  Returns:
    The state after the prefix, and the prefix with what the world says to its
    last turn.

  Raises:
    InputError: It isn't a trajectory of this world, or the world doesn't say
      what the prefix has.
  """
  if prefix.messages is None:
    raise errors.InputError(
      f"solution {prefix.id!r}: no messages; only a trajectory can be played"
      " in an environment"
    )
  messages = prefix.messages
  at = [i for i, x in enumerate(messages) if x.role == "assistant"]
  state = environment.begin(schema.first_turns(prefix, 0))
  replies: tuple[schema.Message, ...] = ()
  for i, end in itertools.pairwise([*at, len(messages)]):
    state, replies = environment.act(state, messages[i])
    recorded = messages[i + 1 : end]
    is_cut = end == len(messages) and not recorded
    if recorded != replies and not is_cut:
      raise errors.InputError(
        f"solution {prefix.id!r}: after messages[{i}] the environment says"
        f" {_shown(replies)}, but the trajectory has {_shown(recorded)}; give"
        " trajectories of this environment, unchanged"
      )
  if not at:
    return state, prefix
  return state, _with(prefix, (*messages[: at[-1] + 1], *replies))


def generate(
  environment: Environment[State],
  policy: Policy,
  *,
  seed: int,
  max_turns: int = 8,
) -> schema.Generate:
  """Returns the function that finishes trajectories in a world.

  A trajectory ends when the world says nothing, when the policy writes an empty
  turn, or after max_turns. Rollouts have answer and outcome, and in extra
  whether they `ended`; the record of an empty turn, which says what was written
  instead, is extra["left_out"]. Rollout i of a prefix depends on the seed, the
  prefix's id and i alone. The policy is called once for the next turns of all
  rollouts.

  Args:
    environment: The world.
    policy: Writes turns.
    seed: The seed of the policy's seeds.
    max_turns: The most turns of a trajectory, those of its prefix included.

  Returns:
    The function. It raises an InputError for a prefix of another world (see
    `reset`), and for a policy that doesn't write turns.

  Raises:
    InputError: max_turns isn't 1 or more.
  """
  if max_turns < 1:
    raise errors.InputError(f"max_turns={max_turns}: expected 1 or more")

  def finish(
    prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    rollouts: list[schema.Solution] = []
    states: list[State] = []
    ended: list[bool] = []
    for prefix in prefixes:
      state, begun = reset(environment, prefix)
      extra = {k: v for k, v in begun.extra.items() if k != "left_out"}
      rollouts += [
        dataclasses.replace(begun, id=f"{prefix.id}/{i}", extra=extra)
        for i in range(num)
      ]
      states += [state] * num
      ended += [bool(begun.steps) and _last(begun).role == "assistant"] * num
    going = [i for i, has_ended in enumerate(ended) if not has_ended]
    while going := [i for i in going if _num_turns(rollouts[i]) < max_turns]:
      seeds = [_seed(seed, rollouts[i]) for i in going]
      turns = _written(policy, [rollouts[i] for i in going], seeds)
      still = []
      for i, turn in zip(going, turns, strict=True):
        if not turn.text.strip() and not turn.calls:
          if turn.record:
            extra = dict(rollouts[i].extra, left_out=dict(turn.record))
            rollouts[i] = dataclasses.replace(rollouts[i], extra=extra)
          continue
        states[i], replies = environment.act(states[i], turn)
        before = rollouts[i].messages or ()
        rollouts[i] = _with(rollouts[i], (*before, turn, *replies))
        ended[i] = not replies
        if replies:
          still.append(i)
      going = still
    done = [
      dataclasses.replace(
        x,
        answer=environment.answer(x),
        outcome=environment.outcome(x),
        extra={**x.extra, "ended": has_ended},
      )
      for x, has_ended in zip(rollouts, ended, strict=True)
    ]
    return [done[k * num : (k + 1) * num] for k in range(len(prefixes))]

  return finish


def verifier(environment: Environment[State]) -> schema.Verify:
  """Returns a world's outcomes as a function of many trajectories.

  Args:
    environment: The world.

  Returns:
    The function.
  """
  return lambda trajectories: [environment.outcome(x) for x in trajectories]


def _with(
  trajectory: schema.Solution, messages: Sequence[schema.Message]
) -> schema.Solution:
  """Returns a trajectory with other messages, whose steps are whole turns."""
  checked = messages_lib.read(messages, f"solution {trajectory.id!r}")
  return dataclasses.replace(
    trajectory,
    messages=checked,
    steps=tuple(x.shown for x in checked if x.role == "assistant"),
    raw_text=None,
    spans=None,
    **schema.UNKNOWN,
  )


def _written(
  policy: Policy, trajectories: Sequence[schema.Solution], seeds: Sequence[int]
) -> Sequence[schema.Message]:
  """Returns a policy's turns; refuses what isn't one for each trajectory."""
  turns = policy(trajectories, seeds)
  if len(turns) != len(trajectories):
    raise errors.InputError(
      f"the policy wrote {len(turns)} turns for {len(trajectories)}"
      " trajectories; return one for each"
    )
  for turn in turns:
    if not isinstance(turn, schema.Message) or turn.role != "assistant":
      raise errors.InputError(
        f"the policy wrote {reprlib.repr(turn)}; return Messages of the role"
        " assistant"
      )
  return turns


def _seed(seed: int, rollout: schema.Solution) -> int:
  """Returns the seed of a rollout's next turn, of 32 bits."""
  text = json.dumps([seed, rollout.id, _num_turns(rollout)])
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _num_turns(trajectory: schema.Solution) -> int:
  return sum(x.role == "assistant" for x in trajectory.messages or ())


def _last(trajectory: schema.Solution) -> schema.Message:
  assert trajectory.messages
  return trajectory.messages[-1]


def _shown(messages: Sequence[schema.Message]) -> str:
  return reprlib.repr([f"{x.role}: {x.text}" for x in messages])
