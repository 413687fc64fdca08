"""The rollout engine: a fixed set of slots that never wait for each other.

Between two chunks of decoding the host removes the completions that have ended
and gives their slots to the next ones (engine_programs.py has the programs of
the device).

A completion may begin after any token of a prompt that is in a buffer. So one
prefill of a solution serves rollouts from every one of its steps, and the K
rollouts of a step read the same keys. The slot of a completion, and the other
completions at that time, change only the rounding of its floats.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
import hashlib
import itertools
from typing import Any

import jax
from jaxtyping import Array, Key
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import held
from prm_jax.models import matmul
from prm_jax.models import model_config
from prm_jax.policy import codecs
from prm_jax.policy import engine_programs
from prm_jax.policy import page_table
from prm_jax.policy import sampler as sampler_lib
from prm_jax.rows import packing
from prm_jax.runtime import counts
from prm_jax.runtime import forks
from prm_jax.runtime import preemption
from prm_jax.text import step_automaton
from prm_jax.text import tokenizer as tokenizer_lib

Params = Any
# Is told how many completions have ended, and how many tokens are sampled.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Request:
  """A prompt to complete; its id seeds the random numbers of its samples.

  Args:
    id: The id, unique within a call.
    prompt: The token ids.
    num_samples: The number of completions.
    max_tokens: The request's own token budget, if below that of the sampling.
    stop_state: The state of the engine's `stops` that the text before the
      completions leaves (`StepStops.state_after`).
    begun: The prompt as the codec wrote it, which it counts steps on from; None
      is a problem alone.
  """

  id: str
  prompt: tokenizer_lib.Ids
  num_samples: int
  max_tokens: int | None = None
  stop_state: int = 0
  begun: codecs.Prompt | None = None


@dataclasses.dataclass(frozen=True)
class Work(counts.Counts):
  """Counts of the work that completions took.

  Args:
    completions: The number of completions.
    prefilled: The tokens of prompts that were computed into a buffer, without
      padding.
    decoded: The tokens that were sampled.
    slot_steps: The number of slots times the number of steps.
    encoded_anew: The number of prefixes that end within a sampled id, so that
      their text was encoded anew instead of continued from its ids.
    overshoot: The number of tokens that were sampled after the end of a step,
      and dropped, because the step's end showed in later tokens only.
  """

  completions: int = 0
  prefilled: int = 0
  decoded: int = 0
  slot_steps: int = 0
  encoded_anew: int = 0
  overshoot: int = 0

  @property
  def slot_use(self) -> float:
    """Returns the share of all slots' steps that sampled a token."""
    return self.decoded / max(self.slot_steps, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
  """A policy with its tokenizer, and how much it computes at a time.

  Args:
    config: The shape of the model.
    params: Its parameters.
    tokenizer: Its tokenizer.
    slots: The most completions that are sampled at the same time; a call that
      asks for fewer has as many slots as the next power of two.
    chunk: The steps that the device makes before the host refills slots; a slot
      whose completion ends earlier waits.
    stop_at_step: Whether a completion ends with its first step.
    prompt_tokens: The room for a prompt; calls with prompts up to this length
      compile nothing again.
    codec: How its prompts are written and its ids are read; None is our own
      form.
    reserve: Whether pages for the whole budget of every slot are allocated at
      the start, so that longer completions compile nothing again either; each
      step then reads all pages.
    ends: The ids that end a solution; None is the codec's.
    stops: Where else a completion ends; None is where the codec's steps do, with
      stop_at_step, and its stop texts.

  Raises:
    InputError: Both stops and stop_at_step are given.
  """

  config: model_config.ModelConfig
  params: Params
  tokenizer: tokenizer_lib.Tokenizer
  slots: int = 64
  chunk: int = 8
  stop_at_step: bool = False
  prompt_tokens: int = 0
  reserve: bool = False
  codec: codecs.Codec | None = None
  ends: tuple[int, ...] | None = None
  stops: step_automaton.StepStops | None = None

  def __post_init__(self):
    if self.codec is None:
      codec = codecs.SeparatorCodec(self.tokenizer)
      object.__setattr__(self, "codec", codec)
    if self.stop_at_step and self.stops is not None:
      raise errors.InputError(
        "`stop_at_step` stops where the policy's steps end, and `stops` where"
        " it says; give one of them"
      )

  @property
  def _codec(self) -> codecs.Codec:
    assert self.codec is not None  # __post_init__ has set one
    return self.codec

  @property
  def end_ids(self) -> tuple[int, ...]:
    """The ids that end a solution."""
    return self._codec.ends if self.ends is None else self.ends

  @functools.cached_property
  def all_stops(self) -> step_automaton.StepStops | None:
    """Where a completion ends besides: at a step or a stop text, or nowhere."""
    if self.stops is not None:
      return self.stops
    return self._codec.stops(self.stop_at_step)

  @functools.cached_property
  def decoding_params(self) -> Params:
    """The parameters as decoding reads them; see held.for_decoding."""
    return held.for_decoding(self.config, self.params)

  def complete(
    self,
    requests: Sequence[Request],
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
    progress: Progress = lambda done, tokens: None,
  ) -> tuple[list[list[sampler_lib.Completion]], Work]:
    """Returns each request's completions, and the work that they took.

    A completion depends on the key, its request's id and prompt, and its own
    index.

    Args:
      requests: The prompts to complete.
      sampling: How to sample.
      key: The random key.
      progress: Called after each chunk; 0 completions mean that its programs
        are compiled.

    Raises:
      InputError: A prompt is empty, an id comes twice, or `stops` has no such
        state.
    """
    forks.check()
    self._check(requests)
    rows: list[list[Any]] = [[None] * r.num_samples for r in requests]
    if not any(rows):
      return rows, Work()
    prompts = shared_prompts(requests, sampling.max_tokens)
    run = _Run(self, prompts, sampling, key)
    total, done = sum(map(len, rows)), 0
    while done < total:
      preemption.check()
      for request, sample, completion in run.advance():
        rows[request][sample] = completion
        done += 1
      progress(done, run.work.decoded)
    return rows, dataclasses.replace(run.work, completions=done)

  def _check(self, requests: Sequence[Request]) -> None:
    """Refuses requests that can't be completed in one call."""
    seen = set()
    stops = self.all_stops
    num_states = 1 if stops is None else len(stops.table)
    for r in requests:
      if not len(r.prompt):
        raise errors.InputError(f"{r.id}: an empty prompt; begin with bos")
      if r.id in seen:
        raise errors.InputError(
          f"{r.id}: comes twice in one call, and would be sampled alike"
        )
      if not 0 <= r.stop_state < num_states:
        raise errors.InputError(
          f"{r.id}: stop_state={r.stop_state}, and the engine's `stops` has"
          f" {num_states} states; take the state from its state_after"
        )
      seen.add(r.id)

  def stop_table(self) -> step_automaton.Table | None:
    """Returns where completions end, for each id of the model, or None."""
    if self.all_stops is None:
      return None
    return self.all_stops.for_ids(self.config.vocab_size)

  def generate(
    self,
    prefixes: Sequence[schema.Solution],
    num_samples: int,
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
    progress: Progress = lambda done, tokens: None,
  ) -> tuple[list[list[schema.Solution]], Work]:
    """Returns whole solutions, each prefix's steps and a continuation.

    Bind sampling and key, and drop the work, to get a schema.Generate.
    """
    codec, stops = self._codec, self.all_stops
    prompts = [codec.prompt(prefix) for prefix in prefixes]
    states = [
      0 if stops is None else stops.state_after(codec.begun(prefix))
      for prefix in prefixes
    ]
    requests = [
      Request(
        *(p.id, prompt.tokens, num_samples), stop_state=state, begun=prompt
      )
      for p, prompt, state in zip(prefixes, prompts, states, strict=True)
    ]
    rows, work = self.complete(requests, sampling, key, progress)
    work += Work(encoded_anew=sum(prompt.encoded_anew for prompt in prompts))
    return sampler_lib.solutions(prefixes, prompts, rows, codec), work


def of(policy: sampler_lib.Sampler, **options: Any) -> Engine:
  """Returns the engine of a policy.

  Args:
    policy: The policy.
    **options: Further fields of Engine.
  """
  return Engine(
    *(policy.config, policy.params, policy.tokenizer),
    codec=policy.codec,
    **options,
  )


@dataclasses.dataclass(frozen=True)
class Branch:
  """A request that continues the first `length` tokens of a shared prompt.

  Args:
    request: The request.
    length: The number of tokens.
    limit: Its token budget.
    rng_words: 64 bits of the digest of its id.
    stop_state: The state that the text before it leaves.
    begun: See Request.
  """

  request: int
  length: int
  limit: int
  rng_words: tuple[int, int]
  stop_state: int
  begun: codecs.Prompt | None = None


@dataclasses.dataclass(eq=False)
class SharedPrompt:
  """A prompt that isn't the beginning of another, with its requests.

  Args:
    tokens: The prompt.
    pending: The samples that haven't begun, as requests and indices.
    buffer: The buffer of its group that holds it; -1 if it waits for one.
    running: The number of its samples that are in slots.
  """

  tokens: np.ndarray
  pending: collections.deque[tuple[Branch, int]]
  buffer: int = -1
  running: int = 0

  @property
  def prefill_tokens(self) -> int:
    """Returns how many tokens go into a buffer; branches decode the last."""
    return len(self.tokens) - 1

  def num_spare(self, slots: int) -> int:
    """Returns how many samples may begin elsewhere: half of them.

    Those of a prompt that has no group yet may not, if one has slots for all.
    """
    num = len(self.pending)
    if self.running:
      return (num + 1) // 2
    return num // 2 if num > slots else 0


def shared_prompts(
  requests: Sequence[Request], max_tokens: int
) -> list[SharedPrompt]:
  """Returns the prompts to prefill, those with most samples first.

  A request whose prompt is the beginning of another's is a branch of the
  latter. The prompt that takes longest must not begin last, when other slots
  are idle.
  """
  asked = [
    (tuple(map(int, r.prompt)), number)
    for number, r in enumerate(requests)
    if r.num_samples
  ]
  prompts: list[SharedPrompt] = []
  longest: tuple[int, ...] = ()
  # In this order a prompt comes directly after those that it begins.
  for prompt, number in sorted(asked, reverse=True):
    if not prompts or longest[: len(prompt)] != prompt:
      longest = prompt
      tokens = np.asarray(prompt, np.int32)
      prompts.append(SharedPrompt(tokens, collections.deque()))
    r = requests[number]
    limit = min(r.max_tokens or max_tokens, max_tokens)
    words = _rng_words(r.id)
    branch = Branch(number, len(prompt), limit, words, r.stop_state, r.begun)
    samples = ((branch, sample) for sample in range(r.num_samples))
    prompts[-1].pending.extend(samples)
  return sorted(prompts, key=lambda p: len(p.pending), reverse=True)


def _rng_words(request_id: str) -> tuple[int, int]:
  """Returns 64 bits of an id's digest, as two words."""
  digest = hashlib.sha256(request_id.encode("utf-8", "replace")).digest()
  return int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])


@dataclasses.dataclass(eq=False)
class _Active:
  """A slot's completion: its request and prompt, and its chunks so far."""

  branch: Branch
  sample: int
  prompt: SharedPrompt
  tokens: list[np.ndarray]
  log_probs: list[np.ndarray]


# What the event of its last token says of a completion.
_STOPPED = {
  step_automaton.NONE: "length",
  step_automaton.STEP: "step",
  step_automaton.STOP: "stop",
}


class _Run:
  """One call of Engine.complete: the slots, buffers and pages on the host."""

  # A smaller page costs more for each token that is seen, a larger one has
  # more columns that aren't.
  PAGE_TOKENS = 16
  # From this many parameters on a call's slots become fewer (`_shrink`); with
  # fewer rows than these a step takes as long.
  SHRINKS_FROM, FEWEST_ROWS = 50_000_000, 8

  def __init__(
    self,
    engine: Engine,
    queue: Sequence[SharedPrompt],
    sampling: sampler_lib.Sampling,
    key: Key[Array, ""],
  ):
    self.engine, self.sampling, self.key = engine, sampling, key
    self.work = Work()
    self.queue = collections.deque(queue)
    samples = [len(p.pending) for p in queue]
    # Never more than the completions need, in few sizes: each is compiled.
    slots = min(engine.slots, packing.power_of_two(sum(samples)))
    N, self.buffers = grouping(samples, slots)
    G = slots // N
    longest = max(len(p.tokens) for p in queue)
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
    num_parameters = sum(x.size for x in jax.tree.leaves(engine.params))
    self.shrinks = (
      matmul.platform() == "cpu"
      and num_parameters >= self.SHRINKS_FROM
      and not engine.reserve
    )
    self.column = 0
    self.pages = page_table.empty(G * N * pages)
    token, buffer, seen, drawn, limit, *stop = np.zeros((7, G, N), np.int32)
    running, rng_words = np.zeros((G, N), bool), np.zeros((G, N, 3), np.uint32)
    self.slots = engine_programs.Slots(
      token, buffer, seen, drawn, limit, running, rng_words, *stop
    )
    # On the device once: a large vocabulary's table has megabytes.
    self.stops = jax.device_put(engine.stop_table())
    # Of each group the prompts in its buffers, and the completion in each slot.
    self.prompts: list[list[SharedPrompt]] = [[] for _ in range(G)]
    self.active: list[list[_Active | None]] = [[None] * N for _ in range(G)]

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
    self._shrink()
    engine = self.engine
    before = self.slots
    self.caches, after, tokens, log_probs, steps = engine_programs.decode_chunk(
      engine.decoding_params,
      self.caches,
      before,
      self.pages,
      self.key,
      self.stops,
      config=engine.config,
      sampling=self.sampling,
      ends=engine.end_ids,
      width=self.width,
      chunk=engine.chunk,
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
      active = self.active[g][n]
      assert active is not None
      active.tokens.append(tokens[g, n, : drawn[g, n]])
      active.log_probs.append(log_probs[g, n, : drawn[g, n]])
      self._stop_at_step(active, g, n)
      if not self.slots.running[g, n]:
        self.active[g][n] = None
        self._release(g, active.prompt)
        slot = g * drawn.shape[1] + n
        self.pages = page_table.release(self.pages, slot)
        finished.append(
          (
            *(active.branch.request, active.sample),
            self._completion(active, int(self.slots.event[g, n])),
          )
        )
    self.column += int(steps)
    if self.column == self.page_tokens:
      self._flush_tails()
    return finished

  def _shrink(self) -> None:
    """Drops groups whose completions have ended, once they are half of all.

    Nothing else may be waiting for their slots. On an accelerator a step takes
    as long with half of the rows, and a small model's steps are too short to
    compile a program for fewer.
    """
    waiting = self.queue or any(
      p.pending for p in itertools.chain(*self.prompts)
    )
    if waiting or not self.shrinks:
      return
    G, N = self.slots.token.shape
    idle = [not any(row) for row in self.active]
    busy = max(G - sum(idle), -(-self.FEWEST_ROWS // N))
    num_groups = packing.power_of_two(busy)
    if all(idle) or 2 * num_groups > G:
      return
    kept = sorted(range(G), key=lambda g: idle[g])[:num_groups]
    self.active = [self.active[g] for g in kept]
    self.prompts = [self.prompts[g] for g in kept]
    self.slots = jax.tree.map(lambda x: x[kept], self.slots)
    slots = np.arange(G * N).reshape(G, N)[kept].reshape(-1)
    self.pages, pages = page_table.keep(self.pages, slots)
    self.caches = engine_programs.keep(self.caches, np.asarray(kept), pages)

  def _stop_at_step(self, active: _Active, g: int, n: int) -> None:
    """Ends a completion after its first step where the device can't see it.

    Tokens after the step's end are dropped and counted.
    """
    codec = self.engine._codec
    if not (self.engine.stop_at_step and codec.steps_on_host()):
      return
    ids = np.concatenate(active.tokens)
    begun = active.branch.begun
    if not codec.completes_step(ids, begun):
      return
    # Once a step is complete it stays so.
    num = 1 + bisect.bisect_left(
      range(1, len(ids)),
      True,
      key=lambda k: codec.completes_step(ids[:k], begun),
    )
    self.work += Work(overshoot=len(ids) - num)
    active.tokens = [ids[:num]]
    active.log_probs = [np.concatenate(active.log_probs)[:num]]
    self.slots.running[g, n] = False
    self.slots.event[g, n] = step_automaton.STEP

  def _flush_tails(self) -> None:
    """Moves the tails of running slots into pages."""
    before = len(self.pages.owner)
    self.pages, page = page_table.allocate(
      self.pages,
      np.asarray(self.slots.running).reshape(-1),
      np.asarray(self.slots.drawn).reshape(-1),
      self.page_tokens,
    )
    if more := len(self.pages.owner) - before:
      self.caches = engine_programs.add_pages(self.caches, more)
    self.caches = engine_programs.flush_tails(self.caches, page)
    self.column = 0

  def _completion(self, active: _Active, event: int) -> sampler_lib.Completion:
    ids = np.concatenate(active.tokens)
    stopped = _STOPPED[event]
    if ids[-1] in self.engine.end_ids:
      stopped = "end"
    log_probs = np.concatenate(active.log_probs)
    return sampler_lib.Completion(ids, log_probs, stopped)

  def _begin(self) -> None:
    """Gives free slots to completions of their group's prompts."""
    for g, row in enumerate(self.active):
      for n, active in enumerate(row):
        if active is not None:
          continue
        prompt = next((p for p in self.prompts[g] if p.pending), None)
        if prompt is None:
          break
        branch, sample = prompt.pending.popleft()
        prompt.running += 1
        row[n] = _Active(branch, sample, prompt, [], [])
        new = dict(
          token=prompt.tokens[branch.length - 1],
          buffer=prompt.buffer,
          seen=branch.length - 1,
          drawn=0,
          limit=branch.limit,
          running=True,
          rng_words=(*branch.rng_words, sample),
          stop_state=branch.stop_state,
          event=step_automaton.NONE,
        )
        for name, value in new.items():
          getattr(self.slots, name)[g, n] = value

  def _release(self, g: int, prompt: SharedPrompt) -> None:
    """Frees a prompt's buffer if this was its last completion."""
    prompt.running -= 1
    if not prompt.running and not prompt.pending:
      self.prompts[g].remove(prompt)

  def _open(self, *, starving: bool) -> list[int]:
    """Returns groups with a free buffer and, if `starving`, a free slot."""
    return [
      g
      for g, prompts in enumerate(self.prompts)
      if len(prompts) < self.buffers and (None in self.active[g]) == starving
    ]

  def _split(self) -> bool:
    """Puts half of a prompt's pending samples into the queue, for idle groups.

    The prompt is then computed once more. Returns False if no prompt has
    samples to spare.
    """
    prompts = [*itertools.chain(*self.prompts), *self.queue]
    N = len(self.active[0])
    largest = max(prompts, key=lambda p: p.num_spare(N))
    half = [largest.pending.pop() for _ in range(largest.num_spare(N))]
    if not half:
      return False
    pending = collections.deque(half[::-1])
    self.queue.append(SharedPrompt(largest.tokens, pending))
    return True

  def _prefill(self) -> None:
    """Puts the next prompts into buffers, as many as fit into one row.

    Groups with a free slot come first; the remaining room serves others.
    """
    T = max(self.width, 256)
    tokens, positions = np.zeros((2, T), np.int32)
    until = np.arange(1, T + 1, dtype=np.int32)
    places: list[tuple[int, int, int]] = []
    start = 0
    for g in self._open(starving=True) + self._open(starving=False):
      # The last token of a prompt goes in when it is decoded.
      fits = (p for p in self.queue if p.prefill_tokens <= T - start)
      prompt = next(fits, None)
      if prompt is None or len(places) == engine_programs.PACKED:
        break
      self.queue.remove(prompt)
      used = {p.buffer for p in self.prompts[g]}
      prompt.buffer = min(set(range(self.buffers)) - used)
      self.prompts[g].append(prompt)
      places.append((start, g, prompt.buffer))
      end = start + prompt.prefill_tokens
      tokens[start:end] = prompt.tokens[:-1]
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


def grouping(samples: Sequence[int], slots: int) -> tuple[int, int]:
  """Returns how many slots share buffers, and how many buffers that is.

  Each step reads every buffer, and each group computes its own prompts. So
  large groups of one prompt are best, if there is one for each prompt and all
  samples begin at once. If not, a group's other slots must be filled from a
  second prompt while the last completions of the first run; small groups then
  keep more slots in use if the lengths of completions differ. There are few
  sizes: each is compiled.

  Args:
    samples: The number of samples of each prompt.
    slots: The number of slots.
  """
  sizes = [size for size in (8, 4, 2, 1) if size <= slots]
  mean = sum(samples) / len(samples)
  usual = next(size for size in sizes if mean >= _FEWEST[size])
  for size in sizes:
    num_groups = sum(-(-num // size) for num in samples)
    fits = num_groups <= slots // size
    if usual <= size < 2 * max(samples) and fits:
      return size, 1
  return usual, min(2, usual)


# The samples of a prompt, on average, from which on groups have a size.
_FEWEST = {8: 16, 4: 4, 2: 2, 1: 1}
