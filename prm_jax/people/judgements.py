"""What a person says of an item of work, as events, and what they add up to.

Each key that a person presses is an event. Events are never changed: an undo is
one more of them, which takes back the last that stands. So the history stays,
and what a person says of an item is a function of its events.

  first_error   PRM800K's phase 2: each step is rated up to the first -1
  per_step      each step is rated, in any order, neutral ones too
  alternatives  PRM800K's phase 1: at each step its alternatives are rated, and
                one of them is taken, or a step of one's own written
  pairs         one of two solutions is preferred, or neither

(Lightman et al. 2023, arXiv 2305.20050, section 2.4 and appendix D.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import re
from typing import Any, get_args, Literal, NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks

Task = Literal["first_error", "per_step", "alternatives", "pairs"]
TASKS: tuple[Task, ...] = get_args(Task)

RATINGS = (-1, 0, 1)
# How an item ends. The first two are reached by ratings, too.
SOLUTION, FOUND_ERROR = "solution", "found_error"
BAD_PROBLEM, GIVE_UP = "bad_problem", "give_up"
REASONS = (SOLUTION, FOUND_ERROR, BAD_PROBLEM, GIVE_UP)
# Of an item that ends so nothing is said of its steps.
NOT_JUDGED = (BAD_PROBLEM, GIVE_UP)
UNDO = "undo"

# Half of a character, which no file can hold.
SURROGATE = re.compile("[\ud800-\udfff]")

Event = Mapping[str, Any]
# Where a step stands: its number, and of several alternatives which.
Place = tuple[int, int]


class Draw(NamedTuple):
  """Next steps that a policy wrote at a path of an item; see drawn_steps.

  Args:
    path: The steps so far.
    known: The alternatives that were there before, which keep their numbers so
      if the pool grows.
    steps: Those that are new, and of each whether the solution ends with it.
    is_end: Whether the policy ended the solution there, without a further step.
  """

  path: tuple[str, ...]
  known: tuple[str, ...]
  steps: Mapping[str, bool]
  is_end: bool


@dataclasses.dataclass(frozen=True)
class Item:
  """A piece of work.

  Args:
    id: Its id.
    task: What is asked of it.
    solutions: One solution; of `pairs` two, of `alternatives` all that are known
      of the problem, whose steps may begin alike.
    drawn: Of `alternatives`, what a policy wrote, in the order in which it did.
  """

  id: str
  task: Task
  solutions: tuple[schema.Solution, ...]
  drawn: tuple[Draw, ...] = ()

  @property
  def steps(self) -> tuple[str, ...]:
    """The steps of the first solution."""
    return self.solutions[0].steps

  def draws(self, path: Sequence[str]) -> list[Draw]:
    """Returns what a policy wrote after some steps.

    Args:
      path: The steps so far.
    """
    return [x for x in self.drawn if x.path == tuple(path)]

  def alternatives(self, path: Sequence[str]) -> tuple[str, ...]:
    """Returns what the solutions and a policy go on with.

    Args:
      path: The steps so far.

    Returns:
      The different next steps. More of them come last, whatever is drawn and
      however the pool grows: they are named by their numbers.
    """
    num = len(path)
    drawn = (text for x in self.draws(path) for text in (*x.known, *x.steps))
    known = (
      s.steps[num]
      for s in self.solutions
      if len(s.steps) > num and s.steps[:num] == tuple(path)
    )
    return tuple(dict.fromkeys((*drawn, *known)))

  def ends(self, path: Sequence[str]) -> bool:
    """Returns whether a solution, or what a policy wrote, ends there.

    Args:
      path: The steps so far.
    """
    if not path or any(x.is_end for x in self.draws(path)):
      return bool(path)
    return any(x.steps.get(path[-1]) for x in self.draws(path[:-1])) or any(
      s.steps == tuple(path) and s.extra.get("ended") is not False
      for s in self.solutions
    )


@dataclasses.dataclass(frozen=True)
class State:
  """What a person says of an item.

  Args:
    ratings: -1, 0 or 1 by place; of one solution the alternative is 0.
    flags: The places whose step is split badly.
    path: Of `alternatives`, the steps that were taken.
    written: The numbers of the steps of the path that the person wrote.
    preferred: Of `pairs`, 0 or 1, or None for neither.
    reason: How the item ended, one of REASONS; None while it is open.
  """

  ratings: Mapping[Place, int] = dataclasses.field(default_factory=dict)
  flags: frozenset[Place] = frozenset()
  path: tuple[str, ...] = ()
  written: frozenset[int] = frozenset()
  preferred: int | None = None
  reason: str | None = None

  def rating(self, step: int, alternative: int = 0) -> int | None:
    """Returns the rating of a step, None without one.

    Args:
      step: The number of the step.
      alternative: Which of its alternatives.
    """
    return self.ratings.get((step, alternative))


def standing(events: Sequence[Event]) -> list[Event]:
  """Returns the events that no undo took back.

  Args:
    events: All events of a person on an item, in their order.
  """
  kept: list[Event] = []
  for event in events:
    if event["kind"] != UNDO:
      kept.append(event)
    elif kept:
      kept.pop()
  return kept


def state_of(item: Item, events: Sequence[Event]) -> State:
  """Returns what a person says of an item.

  Args:
    item: The item.
    events: All events of the person on it, in their order.

  Raises:
    InputError: An event doesn't fit what stood before it.
  """
  state = State()
  for event in standing(events):
    state = _after(item, state, event)
  return state


def differ(states: Sequence[State]) -> bool:
  """Returns whether people disagree: on the first error, or on a preference.

  Args:
    states: What each says of an item that has ended.
  """

  def verdict(state: State) -> tuple[Any, Any]:
    wrong = [place for place, x in sorted(state.ratings.items()) if x < 0]
    return wrong[:1], state.preferred

  verdicts = [verdict(x) for x in states]
  return any(x != verdicts[0] for x in verdicts)


def check(item: Item, events: Sequence[Event], event: Any) -> State:
  """Returns what is said after one more event.

  Args:
    item: The item.
    events: The events before, which fit.
    event: The further one.

  Raises:
    InputError: It isn't an event, or doesn't fit what stands.
  """
  errors.raise_first(_faults(event))
  if event["kind"] == UNDO and not standing(events):
    raise errors.InputError("there is nothing to undo")
  return state_of(item, [*events, event])


# --- Private ----------------------------------------------------------------

_FIELDS: dict[str, dict[str, Any]] = dict(
  rate=dict(step=int, alternative=int, rating=int),
  error=dict(step=int),
  right={},
  take=dict(alternative=int),
  write=dict(text=str),
  prefer=dict(solution=int | None),
  flag=dict(step=int, alternative=int),
  end=dict(reason=str),
  undo={},
)


def _faults(event: Any) -> Iterator[str]:
  """Yields why something is no event."""
  kind = event.get("kind") if isinstance(event, dict) else None
  if not isinstance(kind, str) or kind not in _FIELDS:
    yield f"kind is {kind!r}; expected one of {', '.join(_FIELDS)}"
    return
  wanted = _FIELDS[kind]
  if event.keys() != {"kind", *wanted}:
    named = ", ".join(wanted) or "nothing else"
    yield f"{kind} has {', '.join(sorted(event))}; expected kind, {named}"
    return
  for name, of in wanted.items():
    if not checks.is_a(event[name], of):
      yield f"{name} is {event[name]!r}; expected {checks.type_name(of)}"
  if kind == "rate" and event["rating"] not in RATINGS:
    yield f"rating is {event['rating']!r}; expected -1, 0 or 1"
  if kind == "end" and event["reason"] not in REASONS:
    yield f"reason is {event['reason']!r}; expected {', '.join(REASONS)}"


def _after(item: Item, state: State, event: Event) -> State:
  """Returns the state after an event."""
  kind = event["kind"]
  if state.reason is not None:
    raise errors.InputError(
      f"{kind}: the item has ended ({state.reason}); undo that first"
    )
  if kind == "end":
    judged = event["reason"] not in NOT_JUDGED
    if judged and item.task != "alternatives":
      raise errors.InputError("end: rate the steps, or take the problem as bad")
    return dataclasses.replace(state, reason=event["reason"])
  if kind not in _OF_TASK[item.task]:
    raise errors.InputError(f"{kind} is no event of the task {item.task}")
  return _OF_TASK[item.task][kind](item, state, event)


def _place(item: Item, state: State, event: Event) -> Place:
  """Returns the place that an event names, which must be there."""
  step, alternative = event["step"], event["alternative"]
  if item.task == "alternatives":
    num, last = len(item.alternatives(state.path)), len(state.path)
    is_there = step == last and 0 <= alternative < num
  else:
    is_there = 0 <= step < len(item.steps) and alternative == 0
  if not is_there:
    raise errors.InputError(
      f"{event['kind']}: there is no step {step}, alternative {alternative}"
    )
  return step, alternative


def _flag(item: Item, state: State, event: Event) -> State:
  """Marks a step as split badly, or no longer."""
  flags = state.flags ^ {_place(item, state, event)}
  return dataclasses.replace(state, flags=flags)


def _rated(state: State, place: Place, rating: int) -> State:
  return dataclasses.replace(state, ratings={**state.ratings, place: rating})


def _rate_next(item: Item, state: State, event: Event) -> State:
  """Rates the first step without a rating; a -1, or the last, ends the item."""
  place = _place(item, state, event)
  if place[0] != len(state.ratings):
    raise errors.InputError(
      f"rate: step {place[0]} isn't the next one, {len(state.ratings)}"
    )
  state = _rated(state, place, event["rating"])
  if event["rating"] == -1:
    return dataclasses.replace(state, reason=FOUND_ERROR)
  done = len(state.ratings) == len(item.steps)
  return dataclasses.replace(state, reason=SOLUTION if done else None)


def _found(item: Item, state: State, event: Event) -> State:
  """Rates a step -1, and those before it that have no rating 1."""
  step, _ = _place(item, state, dict(event, alternative=0))
  if step < len(state.ratings):
    raise errors.InputError(
      f"error: step {step} has its rating; undo that first"
    )
  before = {(i, 0): 1 for i in range(step)}
  ratings = {**before, **state.ratings, (step, 0): -1}
  return dataclasses.replace(state, ratings=ratings, reason=FOUND_ERROR)


def _all_right(item: Item, state: State, event: Event) -> State:
  """Rates the steps without a rating 1, which ends the item."""
  del event
  right = {(i, 0): 1 for i in range(len(item.steps))}
  ratings = {**right, **state.ratings}
  return dataclasses.replace(state, ratings=ratings, reason=SOLUTION)


def _rate_any(item: Item, state: State, event: Event) -> State:
  """Rates a step, in place of its rating before; the last one ends the item."""
  state = _rated(state, _place(item, state, event), event["rating"])
  done = len(state.ratings) == len(item.steps)
  return dataclasses.replace(state, reason=SOLUTION if done else None)


def _rate_alternative(item: Item, state: State, event: Event) -> State:
  """Rates an alternative of the next step, in place of its rating before."""
  return _rated(state, _place(item, state, event), event["rating"])


def _take(item: Item, state: State, event: Event) -> State:
  """Goes on with an alternative that isn't wrong."""
  step = len(state.path)
  place = _place(item, state, dict(event, step=step))
  if state.ratings.get(place, -1) < 0:
    raise errors.InputError(
      f"take: alternative {place[1]} isn't rated 0 or 1; rate it, or take another"
    )
  text = item.alternatives(state.path)[place[1]]
  return dataclasses.replace(state, path=(*state.path, text))


def _write(item: Item, state: State, event: Event) -> State:
  """Goes on with a step that the person writes."""
  del item
  if not event["text"].strip():
    raise errors.InputError("write: the step is empty")
  if SURROGATE.search(event["text"]):
    raise errors.InputError("write: the step has half a character")
  written = state.written | {len(state.path)}
  path = (*state.path, event["text"])
  return dataclasses.replace(state, path=path, written=written)


def _prefer(item: Item, state: State, event: Event) -> State:
  """Prefers one of two solutions, or neither, which ends the item."""
  preferred = event["solution"]
  if preferred not in (None, 0, 1):
    raise errors.InputError(f"prefer: there is no solution {preferred}")
  del item
  return dataclasses.replace(state, preferred=preferred, reason=SOLUTION)


_Rule = Callable[[Item, State, Event], State]
_OF_TASK: dict[str, dict[str, _Rule]] = dict(
  first_error=dict(rate=_rate_next, error=_found, right=_all_right, flag=_flag),
  per_step=dict(rate=_rate_any, flag=_flag),
  alternatives=dict(
    rate=_rate_alternative, take=_take, write=_write, flag=_flag
  ),
  pairs=dict(prefer=_prefer),
)
