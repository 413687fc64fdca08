"""What a person at a browser is given and may say: the routes as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import hmac
import threading
import time
from typing import Any

from prm_jax import errors
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.people import work_queue
from prm_jax.runtime import checks

# No person works so long for one judgement; more is a page that was left open.
_MOST_SECONDS = 3_600.0
_MOST_ID = 64
# So many judgements at once, and so many more each second.
_BURST, _RATE = 60.0, 10.0


class Refused(errors.InputError):
  """A request that is refused.

  Args:
    status: The status of HTTP that says so.
    text: Why.
  """

  def __init__(self, status: int, text: str):
    super().__init__(text)
    self.status = status


@dataclasses.dataclass(frozen=True)
class Work:
  """All items, and how they are shared.

  Args:
    task: What is asked of each item.
    items: The items by their ids.
    pool: Which are gold, and the order of the others.
    design: How they are shared.
    scores: What models say of the steps of an item: {item: {model: scores}}.
  """

  task: judgements.Task
  items: Mapping[str, judgements.Item]
  pool: work_queue.Pool
  design: work_queue.Design
  scores: Mapping[str, Mapping[str, Sequence[float]]] = dataclasses.field(
    default_factory=dict
  )


class Desk:
  """Gives items to people and keeps what they say.

  Args:
    work: The items.
    store: Where judgements are kept.
    keys: The name of each person by the key that they send.
  """

  def __init__(
    self,
    work: Work,
    store: judgement_store.JudgementStore,
    keys: Mapping[str, str],
  ):
    self._work, self._store = work, store
    self._keys = {key.encode(): name for key, name in keys.items()}
    # One person's two tabs, or two people, get no item at the same moment.
    self._giving = threading.Lock()
    self._budgets: dict[str, tuple[float, float]] = {}
    self._ended: dict[str, set[str]] = {}
    # Of each item what each person says, once it has ended.
    self._said: dict[str, dict[str, judgements.State]] = {}
    for event in store.events():
      self._note(event.annotator, event.item)

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
    with self._giving:
      given = self._store.given()
      found = work_queue.next_item(
        *(self._work.design, self._work.pool, given, self._ended, annotator),
        self._disputed(),
      )
      if found is not None and found not in given:
        self._store.give(found, time.time())
    ended = self._ended.get(annotator, ())
    return dict(
      task=self._work.task,
      ended=len(ended),
      item=None if found is None else self.item(annotator, found.item),
    )

  def item(self, annotator: str, id: str) -> dict[str, Any]:
    """Returns an item as the page has it.

    Args:
      annotator: The person who asks.
      id: The id of the item.

    Raises:
      Refused: It wasn't given to this person (404).
    """
    item, why = self._given_item(annotator, id)
    events = self._store.events(annotator, id)
    state = judgements.state_of(item, [x.event for x in events])
    last = events[-1].number if events else 0
    return self._shown(item, state, last, self._others(annotator, id, why))

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
    kinds = dict(item=str, id=str, after=int, seconds=float)
    wanted = [*kinds, "event"]
    if not isinstance(body, dict) or body.keys() != {*wanted}:
      raise Refused(400, f"expected an object of {', '.join(wanted)}")
    for name, kind in kinds.items():
      if not checks.is_a(body[name], kind):
        raise Refused(400, f"{name} must be {checks.type_name(kind)}")
    if not isinstance(body["event"], dict):
      raise Refused(400, "event must be an object")
    if not 0 < len(body["id"]) <= _MOST_ID:
      raise Refused(400, f"id must have 1 to {_MOST_ID} characters")
    item, why = self._given_item(annotator, body["item"])
    seconds = min(max(float(body["seconds"]), 0.0), _MOST_SECONDS)
    try:
      kept, state = self._store.add(
        *(item, annotator, body["event"]),
        id=body["id"],
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
    self._note(annotator, item.id)
    del kept
    last = self._store.events(annotator, item.id)[-1].number
    return self._shown(item, state, last, self._others(annotator, item.id, why))

  def _note(self, annotator: str, id: str) -> None:
    """Keeps in mind whether a person has ended an item."""
    item = self._work.items.get(id)
    if item is None:  # of a pool that was given in an earlier call
      return
    events = [x.event for x in self._store.events(annotator, id)]
    ended = self._ended.setdefault(annotator, set())
    said = self._said.setdefault(id, {})
    state = judgements.state_of(item, events)
    if state.reason is None:
      ended.discard(id)
      said.pop(annotator, None)
    else:
      ended.add(id)
      said[annotator] = state

  def _disputed(self) -> list[str]:
    """Returns the items of the pool on which people disagree."""
    return [
      id for id in self._work.pool.ranked if judgements.differ(self._judged(id))
    ]

  def _judged(self, id: str) -> list[judgements.State]:
    """Returns what people say of an item, without who they are."""
    return [
      state
      for _, state in sorted(
        self._said.get(id, {}).items(),
        key=lambda x: hashlib.sha256(f"{id}\0{x[0]}".encode()).digest(),
      )
      if state.reason not in judgements.NOT_JUDGED
    ]

  def _others(
    self, annotator: str, id: str, why: str
  ) -> list[list[int | None]]:
    """Returns the ratings of those between whom a person decides."""
    if why != work_queue.ADJUDICATION:
      return []
    own = self._said.get(id, {}).get(annotator)
    num = len(self._work.items[id].steps)
    return [
      [state.rating(i) for i in range(num)]
      for state in self._judged(id)
      if state is not own
    ]

  def _given_item(self, annotator: str, id: str) -> tuple[judgements.Item, str]:
    """Returns an item that was given to a person, and for what."""
    for x in self._store.given():
      if (x.annotator, x.item) == (annotator, id) and id in self._work.items:
        return self._work.items[id], x.why
    raise Refused(404, "no such item among those that were given to you")

  def _shown(
    self,
    item: judgements.Item,
    state: judgements.State,
    last: int,
    others: Sequence[Sequence[int | None]],
  ) -> dict[str, Any]:
    """Returns an item as the page has it; scores only once it has ended."""
    scores = self._work.scores.get(item.id)
    alternatives: Sequence[str] = ()
    if item.task == "alternatives":
      alternatives = item.alternatives(state.path)
    return dict(
      id=item.id,
      task=item.task,
      problem=item.solutions[0].problem,
      # Of alternatives the later steps aren't known yet.
      solutions=[
        dict(
          steps=list(s.steps),
          messages=[[x.role, x.shown] for x in s.messages or ()],
        )
        for s in (() if item.task == "alternatives" else item.solutions)
      ],
      alternatives=list(alternatives),
      state=dict(
        ratings=[[*place, x] for place, x in sorted(state.ratings.items())],
        flags=[list(place) for place in sorted(state.flags)],
        path=list(state.path),
        written=sorted(state.written),
        preferred=state.preferred,
        reason=state.reason,
      ),
      last=last,
      others=[list(x) for x in others],
      scores=scores if scores and state.reason is not None else None,
    )
