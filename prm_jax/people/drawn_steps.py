"""Next steps that a policy draws while people judge.

PRM800K's phase 1 (Lightman et al. 2023, arXiv 2305.20050, section 2.4): people
rate several next steps at each step of a solution, take one, and the policy
goes on from it. What is drawn is a function of the seed, the item, the path and
how often it was asked there before.

A drawer has one thread, in which the policy writes: people who ask at the same
time are one batch, and nobody's other requests wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import json
import logging
import threading

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.people import judgements
from prm_jax.policy import sampling as sampling_lib

_logger = logging.getLogger(__name__)

# A policy that writes the same again isn't asked for ever.
_ATTEMPTS = 3
# People wait for what a server draws.
_TRIES, _READ_S = 3, 60.0
# A step that is being written isn't waited for when the server ends.
_LONGEST_END_S = 2.0

# Is told what was drawn for an item.
Keep = Callable[[judgements.Item, judgements.Draw], None]


@dataclasses.dataclass(frozen=True)
class Asked:
  """A path of an item at which next steps are wanted.

  Args:
    item: The item.
    path: The steps so far.
  """

  item: judgements.Item
  path: tuple[str, ...]

  @property
  def key(self) -> tuple[str, tuple[str, ...], int]:
    """What tells it from others: also how often was drawn there before."""
    return self.item.id, self.path, len(self.item.draws(self.path))


class Drawer:
  """Draws next steps in a thread of its own.

  Args:
    generate: Continues unfinished solutions by one step.
    num: How many different steps are wanted at a path, besides those of the
      solutions that are there.
    keep: Keeps what was drawn. An error of its own is one of drawing.
  """

  def __init__(self, generate: schema.Generate, num: int, keep: Keep):
    self._generate, self._num, self._keep = generate, num, keep
    self._changed = threading.Condition()
    self._wanted: dict[tuple, Asked] = {}
    self._failed: set[tuple] = set()
    self._is_closed = False
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()

  def ask(self, item: judgements.Item, path: Sequence[str]) -> None:
    """Has next steps drawn soon, once however often it is asked for.

    Args:
      item: The item.
      path: The steps so far.
    """
    asked = Asked(item, tuple(path))
    with self._changed:
      self._failed.discard(asked.key)
      self._wanted.setdefault(asked.key, asked)
      self._changed.notify()

  def draw_now(self, item: judgements.Item, path: Sequence[str]) -> None:
    """Draws next steps before anybody asks, in this thread.

    Args:
      item: The item.
      path: The steps so far.

    Raises:
      InputError: The policy can't be asked.
    """
    asked = Asked(item, tuple(path))
    _logger.info("the policy writes first next steps; the page is there then")
    (draw,) = draws(self._generate, [asked], self._num)
    self._keep(item, draw)

  def is_drawing(self, item: judgements.Item, path: Sequence[str]) -> bool:
    """Returns whether next steps are being drawn.

    Args:
      item: The item.
      path: The steps so far.
    """
    return Asked(item, tuple(path)).key in self._wanted

  def has_failed(self, item: judgements.Item, path: Sequence[str]) -> bool:
    """Returns whether the policy couldn't be asked when that was wanted last.

    Args:
      item: The item.
      path: The steps so far.
    """
    return Asked(item, tuple(path)).key in self._failed

  def close(self) -> None:
    """Draws nothing more."""
    with self._changed:
      self._is_closed = True
      self._changed.notify()
    self._thread.join(_LONGEST_END_S)

  def _work(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._is_closed or self._wanted)
        if self._is_closed:
          return
        batch = [*self._wanted.values()]
      if not self._draw(batch, is_last=len(batch) == 1):
        # One of them may be what the policy can't do.
        for asked in batch:
          self._draw([asked], is_last=True)

  def _draw(self, batch: Sequence[Asked], is_last: bool) -> bool:
    """Draws and keeps next steps; returns whether that is settled."""
    try:
      for asked, draw in zip(
        batch, draws(self._generate, batch, self._num), strict=True
      ):
        self._keep(asked.item, draw)
    except Exception as e:
      if not is_last or self._is_closed:
        return False
      _logger.error(f"no next step was drawn: {_why(e, batch[0])}")
      failed = True
    else:
      failed = False
    with self._changed:
      for asked in batch:
        del self._wanted[asked.key]
        if failed:
          self._failed.add(asked.key)
    return True


def checked(policy: policies.Policy) -> policies.Policy:
  """Returns a policy that can draw; one at a server has little time for it.

  Args:
    policy: The policy.

  Raises:
    InputError: Its options don't fit, or it can't go on from a step.
  """
  policy.check()
  server = policy.server
  if server.chat and not server.continues:
    raise errors.InputError(
      "`chat=True`: next steps follow others, and such a chat begins anew; give"
      " `continues=True` if the server can, or leave out `chat`"
    )
  if not policy.is_server:
    return policy
  server = dataclasses.replace(
    server, tries=server.tries or _TRIES, read_s=server.read_s or _READ_S
  )
  return dataclasses.replace(policy, server=server)


def check_solutions(solutions: Sequence[schema.Solution]) -> None:
  """Refuses what no policy goes on with.

  Args:
    solutions: What next steps are wanted for.

  Raises:
    InputError: One is a conversation.
  """
  for s in solutions:
    if s.messages is not None:
      raise errors.InputError(
        f"solution {s.id!r} is a conversation, which no policy goes on with"
        " here; leave out `policy`"
      )


@contextlib.contextmanager
def opened(
  policy: policies.Policy | None, sampling: sampling_lib.Sampling, seed: int
) -> Iterator[schema.Generate | None]:
  """Yields what goes on by one step; None without a policy.

  Args:
    policy: What `checked` returned.
    sampling: How it samples.
    seed: The seed of all that is drawn.
  """
  if policy is None:
    yield None
    return
  from prm_jax.search import writers

  how = writers.How(sampling, seed)
  with writers.opened(policy, how, None, Counter()) as (found, _):
    yield found.step


def draws(
  generate: schema.Generate, batch: Sequence[Asked], num: int
) -> list[judgements.Draw]:
  """Returns different next steps of a policy at each of several paths.

  A step that is blank or has no end isn't one, nor is one that is there before
  but for its white space.

  Args:
    generate: Continues unfinished solutions by one step.
    batch: The paths, each once.
    num: The number of steps that are wanted; there may be fewer.
  """
  known = [x.item.alternatives(x.path) for x in batch]
  seen = [{_plain(text) for text in of} for of in known]
  found: list[dict[str, bool]] = [{} for _ in batch]
  ended = [False for _ in batch]
  for attempt in range(_ATTEMPTS):
    lacking = [i for i, steps in enumerate(found) if len(steps) < num]
    if not lacking:
      break
    starts = [_prefix(batch[i], attempt) for i in lacking]
    for i, row in zip(lacking, generate(starts, num), strict=True):
      for solution in row:
        new = solution.steps[len(batch[i].path) :]
        is_end = bool(solution.extra.get("ended"))
        ended[i] |= is_end and not new
        plain = _plain(new[0]) if new else ""
        if (
          not plain
          or plain in seen[i]
          or len(found[i]) == num
          or solution.extra.get("stopped") == "length"
          or judgements.SURROGATE.search(new[0])
        ):
          continue
        seen[i].add(plain)
        found[i][new[0]] = is_end and len(new) == 1
  return [
    judgements.Draw(asked.path, of, steps, end and not steps and not of)
    for asked, of, steps, end in zip(batch, known, found, ended, strict=True)
  ]


def _prefix(asked: Asked, attempt: int) -> schema.Solution:
  """Returns what is continued; its id seeds what is written."""
  item_id, path, number = asked.key
  text = json.dumps([item_id, path, number, attempt])
  digest = hashlib.sha256(text.encode()).hexdigest()[:24]
  return schema.Solution(digest, asked.item.solutions[0].problem, path)


def _plain(text: str) -> str:
  return " ".join(text.split())


def _why(error: Exception, asked: Asked) -> str:
  """Returns why nothing was drawn, in a line without a text of people."""
  if not isinstance(error, errors.InputError):
    return type(error).__name__
  # A server's refusal may quote what it was asked.
  for i, step in enumerate(asked.path):
    if step not in asked.item.alternatives(asked.path[:i]):
      return "the policy refused a path on which a person wrote a step"
  return str(error).splitlines()[0]
