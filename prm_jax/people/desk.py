"""What a person at a browser is given and may say: the routes as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import hmac
import math
import threading
import time
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.people import drawn_steps
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.people import work_queue
from prm_jax.runtime import checks

# No person works so long for one judgement; more is a page that was left open.
_MOST_SECONDS = 3_600.0
_MOST_ID = 64
# Of the name of an item.
_NAME_DIGITS = 24
# So many judgements at once, and so many more each second.
_BURST, _RATE = 60.0, 10.0
# What models say of the steps of items: {item: {model: scores}}.
Scores = Mapping[str, Mapping[str, Sequence[float]]]


class Refused(errors.InputError):
  """A request that is refused.

  Args:
    status: The status of HTTP that says so.
    text: Why.
  """

  def __init__(self, status: int, text: str):
    super().__init__(text)
    self.status = status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
  """All items, and how they are shared.

  Args:
    task: What is asked of each item.
    items: The items by their ids.
    pool: Which are gold, and the order of the others.
    design: How they are shared.
    scores: What models say of the items.
    secret: What the names that browsers have for items are made with.
    hold_hours: An item that its person leaves open for so many hours is given
      to another person, too.
    news: Returns another pool, with the same items, and scores; None if there
      are none.
  """

  task: judgements.Task
  items: Mapping[str, judgements.Item]
  pool: work_queue.Pool
  design: work_queue.Design
  scores: Scores = dataclasses.field(default_factory=dict)
  secret: str = ""
  hold_hours: float = math.inf
  news: Callable[[], tuple[work_queue.Pool, Scores] | None] = lambda: None


class Desk:
  """Gives items to people and keeps what they say.

  Args:
    work: The items.
    store: Where judgements are kept.
    keys: The name of each person by the key that they send.
    generate: Of `alternatives`, a policy that goes on by one step.
    num_drawn: How many next steps it draws at a path.
  """

  def __init__(
    self,
    work: Work,
    store: judgement_store.JudgementStore,
    keys: Mapping[str, str],
    generate: schema.Generate | None = None,
    num_drawn: int = 4,
  ):
    self._work, self._store = work, store
    drawn = store.drawn()
    self._now = {
      id: dataclasses.replace(item, drawn=drawn.get(id, ()))
      for id, item in work.items.items()
    }
    self._drawer = None
    if generate is not None:
      self._drawer = drawn_steps.Drawer(generate, num_drawn, self._keep_drawn)
    self._keys = {key.encode(): name for key, name in keys.items()}
    # One person's two tabs, or two people, change nothing at the same moment.
    self._changing = threading.RLock()
    self._budgets: dict[str, tuple[float, float]] = {}
    self._given: list[judgement_store.Given] = []
    # What each person was given, by the name that the person's browser has for
    # it: an id could tell gold from the rest, or a solution from another one.
    self._items: dict[str, dict[str, judgement_store.Given]] = {}
    self._ended: dict[str, set[str]] = {}
    # When what is open was given or last judged, by person and item.
    self._open: dict[tuple[str, str], float] = {}
    self._given_up: set[tuple[str, str]] = set()
    # Of each item what each person says, once it has ended.
    self._said: dict[str, dict[str, judgements.State]] = {}
    self._disputed: set[str] = set()
    for given, at in store.given():
      if given.item in work.items:  # not of a pool of an earlier call
        self._give(given, at)
    events: dict[tuple[str, str], list[judgement_store.Kept]] = {}
    for x in store.events():
      events.setdefault((x.annotator, x.item), []).append(x)
    for (annotator, id), said in events.items():
      if id in work.items:
        state = judgements.state_of(self._now[id], [x.event for x in said])
        self._note(annotator, id, state, said[-1].at)

  def annotator(self, key: str) -> str:
    """Returns whose key it is.

    Args:
      key: What a browser sent.

    Raises:
      Refused: It is nobody's (401), or its owner asks too often (429).
    """
    sent = key.encode("utf-8", "surrogatepass")
    found = [n for k, n in self._keys.items() if hmac.compare_digest(k, sent)]
    if not found:
      raise Refused(401, "this key is nobody's; ask for another link")
    left, at = self._budgets.get(found[0], (_BURST, time.monotonic()))
    now = time.monotonic()
    left = min(_BURST, left + _RATE * (now - at)) - 1
    if left < 0:
      raise Refused(429, "too many requests; wait a second")
    self._budgets[found[0]] = left, now
    return found[0]

  def next(self, annotator: str) -> dict[str, Any]:
    """Returns the item that a person works on, as the page has it.

    Args:
      annotator: The person.
    """
    with self._changing:
      if (news := self._work.news()) is not None:
        pool, scores = news
        self._work = dataclasses.replace(self._work, pool=pool, scores=scores)
      work = self._work
      found = work_queue.next_item(
        work.design,
        work.pool,
        self._given,
        self._ended,
        annotator,
        disputed=[x for x in work.pool.ranked if x in self._disputed],
        dropped=self._dropped(),
      )
      if found is not None and self._name(found) not in self._items.get(
        annotator, {}
      ):
        now = time.time()
        self._store.give(found, now)
        self._give(found, now)
      return dict(
        task=work.task,
        ended=len(self._ended.get(annotator, ())),
        item=None if found is None else self._item(found),
      )

  def item(self, annotator: str, id: str) -> dict[str, Any]:
    """Returns an item as the page has it.

    Args:
      annotator: The person who asks.
      id: The name that this person's browser has for the item.

    Raises:
      Refused: It wasn't given to this person (404).
    """
    with self._changing:
      return self._item(self._found(annotator, id))

  def _item(self, given: judgement_store.Given) -> dict[str, Any]:
    """Returns an item that was given, as the page has it."""
    return self._shown(given, *self._stands(given))

  def _stands(
    self, given: judgement_store.Given
  ) -> tuple[judgements.State, int]:
    """Returns what a person says of an item, and the number of the last event."""
    events = self._store.events(given.annotator, given.item)
    item = self._now[given.item]
    state = judgements.state_of(item, [x.event for x in events])
    return state, events[-1].number if events else 0

  def add(self, annotator: str, body: Any) -> dict[str, Any]:
    """Keeps what a person says, and returns the item after it.

    Args:
      annotator: The person.
      body: item, event, id, after, seconds; see JudgementStore.add.

    Raises:
      Refused: The body isn't one, or its event doesn't fit (400), the item
        wasn't given to this person (404), or something else was said in between
        (409).
    """
    kinds = dict(item=str, id=str, after=int, seconds=float, event=dict)
    _check_body(body, kinds)
    if not isinstance(body["event"], dict):
      raise Refused(400, "event must be an object")
    if not 0 < len(body["id"]) <= _MOST_ID or not body["id"].isascii():
      raise Refused(400, f"id must have 1 to {_MOST_ID} characters of ASCII")
    seconds = min(max(float(body["seconds"]), 0.0), _MOST_SECONDS)
    with self._changing:
      given = self._found(annotator, body["item"])
      try:
        added, state = self._store.add(
          *(self._now[given.item], annotator),
          self._turned(given, body["event"]),
          id=f"{annotator}/{body['id']}",
          after=body["after"],
          seconds=seconds,
          at=time.time(),
        )
      except judgement_store.Conflict as e:
        raise Refused(409, str(e)) from None
      except judgement_store.Unkept:
        raise
      except errors.InputError as e:
        raise Refused(400, str(e)) from None
      self._note(annotator, given.item, state, added.at)
      last = self._store.events(annotator, given.item)[-1].number
      return self._shown(given, state, last)

  def draw(self, annotator: str, body: Any) -> dict[str, Any]:
    """Has more next steps drawn where a person is; returns the item as it is.

    Args:
      annotator: The person.
      body: item, and number, how often was drawn there as the person knows.

    Raises:
      Refused: The body isn't one, or no policy is there (400), or the item
        wasn't given to this person (404).
    """
    _check_body(body, dict(item=str, number=int))
    if self._drawer is None:
      raise Refused(400, "no policy draws steps here")
    with self._changing:
      given = self._found(annotator, body["item"])
      item = self._now[given.item]
      state, last = self._stands(given)
      # What is sent again, or by two people at once, is one draw.
      is_new = body["number"] == len(item.draws(state.path))
      if is_new and state.reason is None:
        self._drawer.ask(item, state.path)
      return self._shown(given, state, last)

  def begin_drawing(self) -> None:
    """Draws the first next steps of all, unless they are there.

    So a policy that can't write is refused before anybody waits for it.
    """
    first = next((self._now[x] for x in self._work.pool.ranked), None)
    if self._drawer is not None and first is not None and not first.draws(()):
      self._drawer.draw_now(first, ())

  def close(self) -> None:
    """Draws nothing more."""
    if self._drawer is not None:
      self._drawer.close()

  def _keep_drawn(self, asked: judgements.Item, draw: judgements.Draw) -> None:
    """Keeps what a policy drew, unless it is there."""
    with self._changing:
      item = self._now[asked.id]
      if len(item.draws(draw.path)) == len(asked.draws(draw.path)):
        self._now[item.id] = self._store.draw(item, draw, time.time())

  def _draws(
    self, item: judgements.Item, state: judgements.State
  ) -> dict[str, Any] | None:
    """Returns how drawing stands where a person is; begins it there."""
    drawer, path = self._drawer, state.path
    if drawer is None:
      return None
    draws, has_failed = item.draws(path), drawer.has_failed(item, path)
    is_settled = draws or has_failed or item.ends(path)
    if state.reason is None and not is_settled:
      drawer.ask(item, path)
    return dict(
      number=len(draws),
      is_drawing=drawer.is_drawing(item, path),
      has_failed=has_failed,
      is_empty=bool(draws) and not draws[-1].steps,
    )

  def _give(self, given: judgement_store.Given, at: float) -> None:
    """Keeps in mind what a person was given, and when."""
    self._given.append(given)
    self._open[given.annotator, given.item] = at
    self._items.setdefault(given.annotator, {})[self._name(given)] = given

  def _name(self, given: judgement_store.Given) -> str:
    """Returns what a person's browser calls an item."""
    text = f"{given.annotator}\0{given.item}".encode("utf-8", "surrogatepass")
    digest = hmac.new(self._work.secret.encode(), text, hashlib.sha256)
    return digest.hexdigest()[:_NAME_DIGITS]

  def _found(self, annotator: str, name: str) -> judgement_store.Given:
    """Returns what a person was given, by the browser's name for it."""
    given = self._items.get(annotator, {}).get(name)
    if given is None:
      raise Refused(404, "no such item among those that were given to you")
    return given

  def _dropped(self) -> set[tuple[str, str]]:
    """Returns who was given what that won't be judged, as it seems."""
    since = time.time() - 3_600 * self._work.hold_hours
    left = {key for key, at in self._open.items() if at < since}
    return left | self._given_up

  def _turned(
    self, given: judgement_store.Given, event: judgements.Event
  ) -> judgements.Event:
    """Returns an event of a browser, where a pair's order is another."""
    if self._is_turned(given) and checks.is_a(event.get("solution"), int):
      return dict(event, solution=1 - event["solution"])
    return event

  def _is_turned(self, given: judgement_store.Given) -> bool:
    """Returns whether a person sees the second of two solutions first."""
    return self._work.task == "pairs" and work_queue.shows_second_first(
      self._work.design, given.item, given.annotator
    )

  def _note(
    self, annotator: str, id: str, state: judgements.State, at: float
  ) -> None:
    """Keeps in mind what a person says of an item, and when."""
    ended = self._ended.setdefault(annotator, set())
    said = self._said.setdefault(id, {})
    self._given_up.discard((annotator, id))
    if state.reason is None:
      ended.discard(id)
      said.pop(annotator, None)
      self._open[annotator, id] = at
    else:
      ended.add(id)
      said[annotator] = state
      self._open.pop((annotator, id), None)
      if state.reason == judgements.GIVE_UP:
        self._given_up.add((annotator, id))
    if judgements.differ([x for _, x in self._judged(id)]):
      self._disputed.add(id)
    else:
      self._disputed.discard(id)

  def _judged(self, id: str) -> list[tuple[str, judgements.State]]:
    """Returns who judged an item and how, in an order that says nothing."""
    return sorted(
      (
        (name, state)
        for name, state in self._said.get(id, {}).items()
        if state.reason not in judgements.NOT_JUDGED
      ),
      key=lambda x: self._name(judgement_store.Given(x[0], id, "")),
    )

  def _others(self, given: judgement_store.Given) -> list[list[int | None]]:
    """Returns the ratings of those between whom a person decides."""
    if given.why != work_queue.ADJUDICATION:
      return []
    num = len(self._work.items[given.item].steps)
    return [
      [state.rating(i) for i in range(num)]
      for name, state in self._judged(given.item)
      if name != given.annotator
    ]

  def _shown(
    self, given: judgement_store.Given, state: judgements.State, last: int
  ) -> dict[str, Any]:
    """Returns an item as the page has it; scores only once it has ended."""
    item = self._now[given.item]
    scores = self._work.scores.get(item.id)
    # Who gives up could undo that and judge, with the scores in mind.
    is_judged = state.reason not in (None, *judgements.NOT_JUDGED)
    alternatives: Sequence[str] = ()
    if item.task == "alternatives":
      alternatives = item.alternatives(state.path)
    # Of alternatives the later steps aren't known yet.
    solutions = () if item.task == "alternatives" else item.solutions
    preferred = state.preferred
    if self._is_turned(given):
      solutions = solutions[::-1]
      preferred = None if preferred is None else 1 - preferred
    return dict(
      id=self._name(given),
      task=item.task,
      problem=item.solutions[0].problem,
      solutions=[
        dict(
          steps=list(s.steps),
          messages=[[x.role, x.shown] for x in s.messages or ()],
        )
        for s in solutions
      ],
      alternatives=list(alternatives),
      ends=[item.ends((*state.path, x)) for x in alternatives],
      is_end=item.ends(state.path),
      draws=self._draws(item, state),
      state=dict(
        ratings=[[*place, x] for place, x in sorted(state.ratings.items())],
        flags=[list(place) for place in sorted(state.flags)],
        path=list(state.path),
        written=sorted(state.written),
        preferred=preferred,
        reason=state.reason,
      ),
      last=last,
      others=self._others(given),
      scores=scores if scores and is_judged else None,
    )


def _check_body(body: Any, kinds: Mapping[str, type]) -> None:
  """Refuses what isn't an object of these fields of these types alone."""
  if not isinstance(body, dict) or body.keys() != kinds.keys():
    raise Refused(400, f"expected an object of {', '.join(kinds)}")
  for name, kind in kinds.items():
    if not checks.is_a(body[name], kind):
      raise Refused(400, f"{name} must be {checks.type_name(kind)}")
