"""The rollout engine: a fixed set of slots that never wait for each other.

Between two chunks of decoding the host takes out what has finished and gives
its slot to the next completion (engine_programs.py has what the device runs).

A completion may begin behind any token of a prompt that is in a buffer. So one
prefill of a solution serves rollouts from every one of its steps, and the K
rollouts of a step read the same keys. Which slot a completion gets, and beside
what, changes nothing in it but the rounding of its floats.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
import dataclasses
import hashlib
from typing import Any

import jax
from jaxtyping import Array, Key
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import packing
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.inference import engine_programs
from prm_jax.inference import page_table
from prm_jax.inference import sampler as sampler_lib
from prm_jax.models import config as model_config
from prm_jax.runtime import preemption

Params = Any


@dataclasses.dataclass(frozen=True)
class Request:
  """Completions of a prompt. The id says which luck their samples have.

  max_tokens: a budget of its own, below that of the sampling.
  """

  id: str
  prompt: tokenizer_lib.Ids
  num_samples: int
  max_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Work:
  """What completions took.

  prefilled: tokens of prompts that were computed once into a buffer, without
  padding. decoded: tokens drawn. slot_steps: slots times steps.
  """

  completions: int = 0
  prefilled: int = 0
  decoded: int = 0
  slot_steps: int = 0

  @property
  def slot_use(self) -> float:
    """Returns the share of all slots' steps that drew a token."""
    return self.decoded / max(self.slot_steps, 1)

  def __add__(self, other: Work) -> Work:
    pairs = zip(
      dataclasses.astuple(self), dataclasses.astuple(other), strict=True
    )
    return Work(*(a + b for a, b in pairs))


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
  """A policy with its tokenizer, and how much it does at a time.

  slots: completions that are drawn beside each other. chunk: steps between
  two looks of the host; a slot whose completion ends inside waits for the
  rest. stop_at_step: a completion ends with its first step. prompt_tokens: room
  for prompts so long, so that calls with shorter ones compile nothing anew.
  reserve: pages for the whole budget of every slot from the start, so that
  longer completions compile nothing anew either; each step then reads them all.
  """

  config: model_config.ModelConfig
  params: Params
  tokenizer: tokenizer_lib.Tokenizer
  slots: int = 64
  chunk: int = 8
  stop_at_step: bool = False
  prompt_tokens: int = 0
  reserve: bool = False

  def complete(
    self,
    requests: Sequence[Request],
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
    progress: Callable[[int], None] = lambda done: None,
  ) -> tuple[list[list[sampler_lib.Completion]], Work]:
    """Returns each request's completions, and what they took.

    A completion depends on the key, its request's id and prompt, and its own
    index. progress: is told how many completions there are so far.

    Raises:
      InputError: a prompt is empty, or an id comes twice.
    """
    seen = set()
    for r in requests:
      if not len(r.prompt):
        raise errors.InputError(f"{r.id}: an empty prompt; begin with bos")
      if r.id in seen:
        raise errors.InputError(
          f"{r.id}: comes twice in one call, and would be sampled alike"
        )
      seen.add(r.id)
    found: list[list[Any]] = [[None] * r.num_samples for r in requests]
    if not any(found):
      return found, Work()
    run = _Run(self, trunks(requests, sampling.max_tokens), sampling, key)
    total, done = sum(map(len, found)), 0
    while done < total:
      preemption.check()
      for request, sample, completion in run.advance():
        found[request][sample] = completion
        done += 1
      progress(done)
    return found, dataclasses.replace(run.work, completions=done)

  def generate(
    self,
    prefixes: Sequence[schema.Solution],
    num_samples: int,
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
    progress: Callable[[int], None] = lambda done: None,
  ) -> tuple[list[list[schema.Solution]], Work]:
    """Returns whole solutions, each prefix's steps and a continuation.

    Bind sampling and key, and drop the work, to get a schema.Generate.
    """
    requests = [
      Request(p.id, prompt, num_samples)
      for p, prompt in zip(
        prefixes, sampler_lib.prompts(prefixes, self.tokenizer), strict=True
      )
    ]
    rows, work = self.complete(requests, sampling, key, progress)
    return [
      [
        sampler_lib.solution(prefix, c, n, self.tokenizer)
        for n, c in enumerate(row)
      ]
      for prefix, row in zip(prefixes, rows, strict=True)
    ], work


@dataclasses.dataclass(frozen=True)
class Fork:
  """A request's place on a trunk: it goes on behind `length` of its tokens."""

  request: int
  length: int
  num_samples: int
  limit: int
  luck: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Trunk:
  """A prompt that begins no other one, with the requests along it."""

  tokens: np.ndarray
  forks: tuple[Fork, ...]

  @property
  def num_samples(self) -> int:
    return sum(fork.num_samples for fork in self.forks)


def trunks(requests: Sequence[Request], max_tokens: int) -> list[Trunk]:
  """Returns the prompts to prefill, those with most samples first.

  A request whose prompt begins another one's goes along with that. What takes
  longest must not begin last, when the other slots have nothing left to do.
  """
  asked = [
    (tuple(map(int, r.prompt)), number)
    for number, r in enumerate(requests)
    if r.num_samples
  ]
  chains: list[list[tuple[tuple[int, ...], int]]] = []
  # In this order whatever begins another prompt stands right behind it.
  for prompt, number in sorted(asked, reverse=True):
    if chains and chains[-1][0][0][: len(prompt)] == prompt:
      chains[-1].append((prompt, number))
    else:
      chains.append([(prompt, number)])
  found = []
  for chain in chains:
    forks = []
    for prompt, number in chain:
      r = requests[number]
      limit = min(r.max_tokens or max_tokens, max_tokens)
      forks.append(
        Fork(number, len(prompt), r.num_samples, limit, _rng_words(r.id))
      )
    found.append(Trunk(np.asarray(chain[0][0], np.int32), tuple(forks)))
  return sorted(found, key=lambda t: t.num_samples, reverse=True)


def _rng_words(request_id: str) -> tuple[int, int]:
  """Returns 64 bits of an id's digest, as two words."""
  digest = hashlib.sha256(request_id.encode("utf-8", "replace")).digest()
  return int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])


@dataclasses.dataclass(eq=False)
class _Held:
  """A prompt that waits for a group's buffer or is in one.

  pending: requests and numbers of samples that are still to begin.
  """

  tokens: np.ndarray
  pending: collections.deque[tuple[Fork, int]]
  buffer: int = -1
  running: int = 0

  @property
  def prefill_tokens(self) -> int:
    """Returns how many go into a buffer; each fork decodes the last one."""
    return len(self.tokens) - 1

  def can_spare(self) -> int:
    """Returns how many others may begin elsewhere: half, not its last hold."""
    num = len(self.pending)
    return (num + 1) // 2 if self.running else num // 2


@dataclasses.dataclass(eq=False)
class _Taken:
  """A slot's completion: whose it is, and its chunks so far."""

  fork: Fork
  sample: int
  held: _Held
  tokens: list[np.ndarray]
  log_probs: list[np.ndarray]


class _Run:
  """One call of Engine.complete: the host's side of slots, buffers, pages."""

  # A smaller page costs more for each token that is seen, a larger one has
  # more columns that aren't.
  PAGE_TOKENS = 16

  def __init__(
    self,
    engine: Engine,
    queue: Sequence[Trunk],
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
  ):
    self.engine, self.sampling, self.key = engine, sampling, key
    self.work = Work()
    self.queue = collections.deque(
      _Held(
        trunk.tokens,
        collections.deque(
          (fork, sample)
          for fork in trunk.forks
          for sample in range(fork.num_samples)
        ),
      )
      for trunk in queue
    )
    N = _group(sum(t.num_samples for t in queue) // len(queue), engine.slots)
    G = engine.slots // N
    self.buffers = min(2, N)
    longest = max(len(t.tokens) for t in queue)
    self.width = packing.padded_length(max(longest, engine.prompt_tokens))
    # Whole chunks, and no more than the budget needs.
    most = min(self.PAGE_TOKENS, sampling.max_tokens)
    self.page_tokens = -(-most // engine.chunk) * engine.chunk
    pages = -(-sampling.max_tokens // self.page_tokens) if engine.reserve else 1
    self.caches = engine_programs.empty_caches(
      engine.config,
      engine.config.compute_dtype,
      groups=G,
      slots=N,
      buffers=self.buffers,
      prompt_tokens=self.width,
      page_tokens=self.page_tokens,
      pages=pages,
    )
    self.column = 0
    self.pages = page_table.empty(G * N * pages)
    token, buffer, seen, drawn, limit = np.zeros((5, G, N), np.int32)
    running, luck = np.zeros((G, N), bool), np.zeros((G, N, 3), np.uint32)
    self.slots = engine_programs.Slots(
      token, buffer, seen, drawn, limit, running, luck
    )
    self.held: list[list[_Held]] = [[] for _ in range(G)]
    self.taken: list[list[_Taken | None]] = [[None] * N for _ in range(G)]

  def advance(self) -> list[tuple[int, int, sampler_lib.Completion]]:
    """Decodes a chunk; returns what finished: (request, sample, completion)."""
    self._begin()
    while waiting := self._open(starving=True):
      while len(self.queue) < len(waiting) and self._split():
        pass
      if not self.queue:
        break
      self._prefill()
      self._begin()
    engine = self.engine
    before = self.slots
    self.caches, after, tokens, log_probs, steps = engine_programs.decode_chunk(
      engine.params,
      self.caches,
      before,
      self.pages,
      self.key,
      config=engine.config,
      sampling=self.sampling,
      eos=engine.tokenizer.eos,
      separator=engine.tokenizer.separator,
      width=self.width,
      chunk=engine.chunk,
      stop_at_step=engine.stop_at_step,
    )
    after, tokens, log_probs, steps = jax.device_get(
      (after, tokens, log_probs, steps)
    )
    self.slots = jax.tree.map(np.array, after)
    drawn = after.drawn - before.drawn
    self.work += Work(
      decoded=int(drawn.sum()), slot_steps=int(steps) * drawn.size
    )
    finished = []
    for g, n in np.argwhere(before.running).tolist():
      taken = self.taken[g][n]
      assert taken is not None
      taken.tokens.append(tokens[g, n, : drawn[g, n]])
      taken.log_probs.append(log_probs[g, n, : drawn[g, n]])
      if not after.running[g, n]:
        self.taken[g][n] = None
        self._release(g, taken.held)
        slot = g * drawn.shape[1] + n
        self.pages = page_table.released(self.pages, slot)
        finished.append(
          (taken.fork.request, taken.sample, self._completion(taken))
        )
    self.column += int(steps)
    if self.column == self.page_tokens:
      self._turn_page()
    return finished

  def _turn_page(self) -> None:
    """Moves what running slots have in their tails into pages."""
    before = len(self.pages.owner)
    self.pages, page = page_table.turned(
      self.pages,
      np.asarray(self.slots.running).reshape(-1),
      np.asarray(self.slots.drawn).reshape(-1),
      self.page_tokens,
    )
    if more := len(self.pages.owner) - before:
      self.caches = engine_programs.add_pages(self.caches, more)
    self.caches = engine_programs.close_tails(self.caches, page)
    self.column = 0

  def _completion(self, taken: _Taken) -> sampler_lib.Completion:
    ids = np.concatenate(taken.tokens)
    stopped = "length"
    if ids[-1] == self.engine.tokenizer.eos:
      stopped = "end"
    elif (
      self.engine.stop_at_step and ids[-1] == self.engine.tokenizer.separator
    ):
      stopped = "step"
    return sampler_lib.Completion(ids, np.concatenate(taken.log_probs), stopped)

  def _begin(self) -> None:
    """Gives free slots to completions of their group's prompts."""
    for g, row in enumerate(self.taken):
      for n, taken in enumerate(row):
        if taken is not None:
          continue
        held = next((h for h in self.held[g] if h.pending), None)
        if held is None:
          break
        fork, sample = held.pending.popleft()
        held.running += 1
        row[n] = _Taken(fork, sample, held, [], [])
        new = dict(
          token=held.tokens[fork.length - 1],
          buffer=held.buffer,
          seen=fork.length - 1,
          drawn=0,
          limit=fork.limit,
          running=True,
          luck=(*fork.luck, sample),
        )
        for name, value in new.items():
          getattr(self.slots, name)[g, n] = value

  def _release(self, g: int, held: _Held) -> None:
    """Frees a buffer whose prompt nobody will look back on any more."""
    held.running -= 1
    if not held.running and not held.pending:
      self.held[g].remove(held)

  def _open(self, *, starving: bool) -> list[int]:
    """Returns groups with a free buffer; starving: and with a free slot."""
    return [
      g
      for g, held in enumerate(self.held)
      if len(held) < self.buffers and (None in self.taken[g]) == starving
    ]

  def _split(self) -> bool:
    """Puts half of what a prompt has still to begin into the queue.

    For groups that have nothing left to do, at the price of computing the
    prompt once more. False if all that there is has begun.
    """
    held = [h for group in self.held for h in group] + [*self.queue]
    most = max(held, key=_Held.can_spare)
    half = [most.pending.pop() for _ in range(most.can_spare())]
    if not half:
      return False
    self.queue.append(_Held(most.tokens, collections.deque(half[::-1])))
    return True

  def _prefill(self) -> None:
    """Puts the next prompts into buffers, as many as one row holds.

    Groups that wait come first; what room is left serves the others.
    """
    T = max(self.width, 256)
    tokens, positions = np.zeros((2, T), np.int32)
    until = np.arange(1, T + 1, dtype=np.int32)
    places: list[tuple[int, int, int]] = []
    start = 0
    for g in self._open(starving=True) + self._open(starving=False):
      # The last token of a prompt goes in when it is decoded.
      room = self.queue and self.queue[0].prefill_tokens <= T - start
      if not room or len(places) == engine_programs.PACKED:
        break
      held = self.queue.popleft()
      used = {h.buffer for h in self.held[g]}
      held.buffer = min(set(range(self.buffers)) - used)
      self.held[g].append(held)
      places.append((start, g, held.buffer))
      end = start + held.prefill_tokens
      tokens[start:end] = held.tokens[:-1]
      positions[start:end] = np.arange(end - start)
      until[start:end] = end
      self.work += Work(prefilled=end - start)
      start = end
    places += places[:1] * (engine_programs.PACKED - len(places))
    self.caches = engine_programs.prefill(
      self.engine.params,
      self.caches,
      tokens,
      positions,
      until,
      np.asarray(places, np.int32),
      config=self.engine.config,
      width=self.width,
    )


def _group(samples_of_a_prompt: int, slots: int) -> int:
  """Returns how many slots share buffers.

  While one prompt's last completions run in a group, the next one's must fill
  its other slots: a prompt needs about twice as many completions as a group
  has slots. Two have a buffer each; a slot on its own needs only one. There
  are few sizes: each is compiled.
  """
  if samples_of_a_prompt < 2:
    return 1
  return min(8 if samples_of_a_prompt >= 16 else 2, slots)
