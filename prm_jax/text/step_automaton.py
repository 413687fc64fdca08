"""Where a step ends inside a token: a table over a vocabulary, for a device.

A byte automaton reads the bytes of a text and says at which byte a step is
complete, or a stop text is. Composed with the bytes of each id, it is an array
[states, ids]: an entry is the next state times 4, plus an event. One gather a
token then replaces the host's decoding. Most ids do the same in every state, so
the array is kept as its different columns. What an automaton calls a step's end
is where text/segmenters.py ends it; segmenters that look ahead have none.

A byte of a character of several bytes is no blank, line break or ASCII letter,
so bytes and characters give the same events, half characters included.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from jaxtyping import Int, UInt
import numpy as np

from prm_jax import errors
from prm_jax.batch import ArrayLike
from prm_jax.text import paragraph_cuts
from prm_jax.text import segmenters
from prm_jax.text import token_bytes

# Events. A token with several has the largest: a solution that a stop text ends
# has no next step.
NONE, STEP, STOP = 0, 1, 2
# An entry of a table is `state * EVENTS + event`.
EVENTS = 4

_BLANKS = frozenset(f"{segmenters.BLANK}\n".encode())


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
  """A deterministic automaton over bytes; its first state is 0.

  Args:
    next: The state after each byte, int32.
    event: The event of each byte, int32.
  """

  next: Int[np.ndarray, "states 256"]
  event: Int[np.ndarray, "states 256"]

  @property
  def num_states(self) -> int:
    """The number of states."""
    return len(self.next)


class Table(NamedTuple):
  """What a device looks up: `table[state, kinds[id]]`.

  Args:
    table: `next state * EVENTS + event` of each state and kind of id.
    kinds: The kind of each id.
  """

  table: UInt[ArrayLike, "states kinds"]
  kinds: UInt[ArrayLike, " V"]


@dataclasses.dataclass(frozen=True, eq=False)
class StepStops:
  """An automaton composed with a vocabulary.

  Args:
    automaton: The automaton, for texts.
    table: `next state * EVENTS + event` after each kind of id, uint8 or uint16.
      Ids of a kind have the same entries.
    kinds: The kind of each id, uint16 or uint32.
  """

  automaton: Automaton
  table: UInt[np.ndarray, "states kinds"]
  kinds: UInt[np.ndarray, " V"]

  def state_after(self, text: str) -> int:
    """Returns the state that a text leaves, for what is written after it."""
    state = 0
    for byte in text.encode("utf-8", "replace"):
      state = int(self.automaton.next[state, byte])
    return state

  def entry(self, state: int, token: int) -> tuple[int, int]:
    """Returns the next state and the event after an id."""
    state, event = divmod(int(self.table[state, self.kinds[token]]), EVENTS)
    return state, event

  def for_ids(self, num_ids: int) -> Table:
    """Returns the table of at least `num_ids` ids; new ones add nothing."""
    missing = max(num_ids - len(self.kinds), 0)
    stay = np.arange(len(self.table), dtype=self.table.dtype) * EVENTS
    table = np.column_stack([self.table, stay])
    new = np.full(missing, table.shape[1] - 1, self.kinds.dtype)
    return Table(table, np.concatenate([self.kinds, new]))


def make(
  tokens: token_bytes.TokenBytes,
  steps: segmenters.Segmenter | str | int | None = None,
  stop: Sequence[str] = (),
  anew: Sequence[int] = (),
) -> StepStops:
  """Returns the table of what ends a step, and of stop texts.

  Args:
    tokens: The bytes of the ids.
    steps: What ends a step: a segmenter, a text (a separator, after a text that
      isn't blank), an id, or None for nothing.
    stop: Texts that end a solution.
    anew: Ids after which the text is read as if it began, such as that of
      `</think>`. A step that has begun before ends there.

  Raises:
    InputError: The segmenter looks ahead, a text is empty, or there is no such
      id.
  """
  automaton = stop_texts(stop)
  if isinstance(steps, segmenters.Segmenter):
    automaton = product(of_segmenter(steps), automaton)
  elif isinstance(steps, str):
    automaton = product(separator_text(steps), automaton)
  table, kinds = _compose(automaton, tokens.of)
  if isinstance(steps, int):
    if not 0 <= steps < len(tokens.of):
      raise errors.InputError(
        f"id {steps} can't end a step: the vocabulary has {len(tokens.of)} ids"
      )
    own = table[:, kinds[steps]] // EVENTS * EVENTS + STEP
    kinds[steps] = table.shape[1]
    table = np.column_stack([table, own])
  if anew:
    own = np.where(_has_begun(automaton), STEP, NONE).astype(table.dtype)
    kinds[list(anew)] = table.shape[1]
    table = np.column_stack([table, own])
  return StepStops(automaton, table, kinds)


def at_id(separator: int, num_ids: int) -> StepStops:
  """Returns the table of one id that ends a step, of a vocabulary of that many.

  It needs no bytes, so it serves every tokenizer.
  """
  nothing = (b"",) * num_ids
  return make(token_bytes.TokenBytes(nothing, nothing), separator)


def _has_begun(automaton: Automaton) -> np.ndarray:
  """Returns in which states a step has begun: more than blanks stand there."""
  ends = automaton.event == STEP
  blank = np.zeros(automaton.num_states, bool)
  if not ends.any():
    return blank
  left = [0, *automaton.next[ends].tolist()]
  while left:
    state = left.pop()
    if not blank[state]:
      blank[state] = True
      left += automaton.next[state, list(_BLANKS)].tolist()
  return ~blank


# --- Automata ---------------------------------------------------------------


def of_segmenter(segmenter: segmenters.Segmenter) -> Automaton:
  """Returns where a segmenter ends a step, without what comes after it.

  Raises:
    InputError: The segmenter looks ahead.
  """
  if segmenter.kind == "paragraph":
    own = paragraph_cuts.machine()
    return Automaton(
      own.next, np.where(own.is_cut, STEP, NONE).astype(np.int32)
    )
  if segmenter.kind == "line":
    return separator_text("\n")
  raise errors.InputError(
    f"segmenter {segmenter.kind!r} looks at what comes after a step, and a"
    " device can't stop there; cut the text after sampling, or take paragraph"
    " or line"
  )


def separator_text(separator: str) -> Automaton:
  """Returns the automaton of a text that ends a step that isn't blank.

  Separators are found from left to right and don't overlap, as regular
  expressions find them. (Knuth, Morris and Pratt 1977, with a bit in the state:
  whether the step holds a byte that isn't blank.)

  Raises:
    InputError: The text is empty.
  """
  (own,) = _encoded([separator])
  back = _borders(own)
  num = len(own)
  after = np.zeros((2 * num, 256), np.int32)
  event = np.zeros((2 * num, 256), np.int32)
  # A state is how much of the separator stands at the end, and the bit.
  for k in range(num):
    for byte in range(256):
      so_far = k
      while so_far and own[so_far] != byte:
        so_far = back[so_far]
      so_far += own[so_far] == byte
      # What can't be the separator's any more is the step's.
      left = (own[:k] + bytes([byte]))[: k + 1 - so_far]
      for seen in (False, True):
        is_text = seen or not _BLANKS.issuperset(left)
        if so_far == num:
          event[2 * k + seen, byte] = STEP if is_text else NONE
        else:
          after[2 * k + seen, byte] = 2 * so_far + is_text
  return Automaton(after, event)


def _borders(own: bytes) -> list[int]:
  """Returns how long a beginning of each beginning is also its end."""
  back = [0, 0]
  for k in range(1, len(own)):
    so_far = back[k]
    while so_far and own[so_far] != own[k]:
      so_far = back[so_far]
    back.append(so_far + (own[so_far] == own[k]))
  return back


def stop_texts(texts: Sequence[str]) -> Automaton:
  """Returns the automaton that finds any of the texts (Aho and Corasick 1975).

  Raises:
    InputError: A text is empty.
  """
  rows, found, back = [[-1] * 256], [False], [0]
  for own in _encoded(texts):
    state = 0
    for byte in own:
      if rows[state][byte] < 0:
        rows[state][byte] = len(rows)
        rows.append([-1] * 256)
        found.append(False)
        back.append(0)
      state = rows[state][byte]
    found[state] = True
  # By depth, so that the state to fall back to is complete.
  queue = [0]
  for state in queue:
    behind = rows[back[state]]
    for byte, child in enumerate(rows[state]):
      fallback = behind[byte] if state else 0
      if child < 0:
        rows[state][byte] = fallback
      else:
        back[child] = fallback
        found[child] = found[child] or found[fallback]
        queue.append(child)
  after = np.asarray(rows, np.int32)
  event = np.where(np.asarray(found)[after], STOP, NONE)
  return Automaton(after, event.astype(np.int32))


def product(a: Automaton, b: Automaton) -> Automaton:
  """Returns an automaton that makes the moves of two, with their larger event.

  Its states are those that a text reaches.
  """
  pairs = [(0, 0)]
  number = {(0, 0): 0}
  after, event = [], []
  for x, y in pairs:
    row = [*zip(a.next[x].tolist(), b.next[y].tolist(), strict=True)]
    for pair in row:
      if pair not in number:
        number[pair] = len(pairs)
        pairs.append(pair)
    after.append([number[pair] for pair in row])
    event.append(np.maximum(a.event[x], b.event[y]))
  return Automaton(np.asarray(after, np.int32), np.stack(event))


def _encoded(texts: Sequence[str]) -> list[bytes]:
  if not all(texts):
    raise errors.InputError(
      "a text that ends a step or a solution is empty; give it a character"
    )
  return [text.encode("utf-8", "replace") for text in texts]


# --- Over a vocabulary ------------------------------------------------------


def _compose(
  automaton: Automaton, of: Sequence[bytes]
) -> tuple[UInt[np.ndarray, "states kinds"], UInt[np.ndarray, " V"]]:
  """Returns the entries of each kind of id, and the kind of each id.

  Byte by byte of all ids at once: a kind and a byte give another kind, and few
  of these pairs are different.
  """
  S, most = automaton.num_states, np.iinfo(np.uint16).max
  if most < S * EVENTS:
    raise errors.InputError(
      f"the stop texts make {S:,} states, and a device's table holds"
      f" {most // EVENTS:,}; give fewer or shorter ones"
    )
  sizes = np.fromiter(map(len, of), np.int64, len(of))
  starts = np.cumsum(sizes) - sizes
  # The ids that still have a byte come first.
  order = np.argsort(-sizes, kind="stable")
  fewer, starts = -sizes[order], starts[order]
  text = np.frombuffer(b"".join(of), np.uint8)
  dtype = np.uint8 if np.iinfo(np.uint8).max >= S * EVENTS else np.uint16
  rows = np.arange(S, dtype=dtype)[None] * EVENTS
  number = {rows[0].tobytes(): 0}
  kinds = np.zeros(len(of), np.int32)
  for place in range(sizes.max(initial=0)):
    num = int(np.searchsorted(fewer, -place))
    pairs = kinds[:num] * 256 + text[starts[:num] + place]
    kind_after = np.zeros(len(rows) * 256, np.int32)
    kind_after[pairs] = 1
    different = np.flatnonzero(kind_after)
    new = _followed(automaton, rows[different // 256], different % 256)
    added = []
    for k, row in enumerate(new):
      key = row.tobytes()
      if key not in number:
        number[key] = len(number)
        added.append(k)
      kind_after[different[k]] = number[key]
    rows = np.concatenate([rows, new[added]])
    kinds[:num] = kind_after[pairs]
  out = np.empty(len(of), np.uint16 if len(rows) < most else np.uint32)
  out[order] = kinds
  return rows.T, out


def _followed(
  automaton: Automaton,
  rows: UInt[np.ndarray, "kinds states"],
  byte: Int[np.ndarray, " kinds"],
) -> UInt[np.ndarray, "kinds states"]:
  """Returns the entries of kinds of ids with a byte more each."""
  state, event = np.divmod(rows, EVENTS)
  event = np.maximum(event, automaton.event[state, byte[:, None]])
  after = automaton.next[state, byte[:, None]]
  return (after * EVENTS + event).astype(rows.dtype)
