"""A reward model that keeps what it has read: scores of solutions that grow.

A search asks for the score of the next step again and again. `CachedScorer`
keeps the keys and values of every token in pages. It computes a token again only
if another prefix comes before it.

The host encodes the whole solution each time and looks up the longest prefix of
its ids. So the scores are those of whole scoring for every template, also where
a further step changes earlier ids, as in a text that is encoded as one. Tokens
after the last score, as the end of a chat's turn, aren't computed.

prefix_cache.py knows which tokens are in which page, prefix_rows.py plans what
is computed together, prefix_shapes.py in which batches, and prefix_programs.py
computes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import sys
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.rows import packing
from prm_jax.runtime import arguments
from prm_jax.runtime import checks
from prm_jax.runtime import counts
from prm_jax.runtime import forks
from prm_jax.scoring import prefix_cache
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import prefix_rows
from prm_jax.scoring import prefix_shapes
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding

# The cache begins with pages for so many tokens; more are made as they are needed.
FIRST_TOKENS = 8_192


@dataclasses.dataclass(frozen=True)
class Work(counts.Counts):
  """What scoring took.

  tokens = computed + reused, and changed is a part of computed. A call that
  raises counts nothing.

  Args:
    tokens: The tokens of all solutions, each up to its last score: those that
      scoring one by one, whole, would compute. With most_tokens it also has the
      part of a solution that was read before others of the call took the room
      for its rest.
    computed: The tokens that the model read.
    reused: The tokens that it had read before, or that solutions of one call
      have in common.
    changed: The tokens that were computed because the same problem with fewer of
      the steps, which an earlier call scored, had other ids at their place. None
      are counted of conversations.
    calls: The forward passes; those of scoring without the cache count as one.
    evicted: The pages that were given to other tokens.
  """

  tokens: int = 0
  computed: int = 0
  reused: int = 0
  changed: int = 0
  calls: int = 0
  evicted: int = 0


class Scored(NamedTuple):
  """A solution's scores.

  Args:
    scores: The scores.
    reused: How many of its tokens up to the last score weren't computed for it.
  """

  scores: schema.StepScores
  reused: int


@dataclasses.dataclass(eq=False)
class _Request:
  """A solution that is being scored.

  Args:
    solution: The solution.
    encoded: Its ids.
    owner: Whose it is.
    tokens: The ids up to the last score.
    changed: The positions at which the solution, when it had fewer steps, had
      other ids.
    computed: The number of tokens computed for it so far.
    path: Where its first ids are.
    scores: The score and the log-odds of each step.
  """

  solution: schema.Solution
  encoded: encoding.EncodedSolution
  owner: str
  tokens: Int[np.ndarray, " T"]
  changed: range = range(0)
  computed: int = 0
  path: prefix_cache.Path = dataclasses.field(default_factory=list)
  scores: Float[np.ndarray, "2 K"] = dataclasses.field(
    default_factory=lambda: np.zeros((2, 0))
  )

  @functools.cached_property
  def ids(self) -> list[int]:
    """The tokens as ints, which pages are looked up by."""
    return self.tokens.tolist()


class CachedScorer:
  """A reward model that keeps the keys and values of what it has scored.

  Scores are those of the scorer, up to rounding, whatever was scored before. It
  isn't for several threads at a time.

  Args:
    scorer: The reward model; its layout and batches aren't used.
    cache_tokens: The most tokens whose keys and values are kept; memory is
      taken as they come, or with `most_tokens` at once. The least recently used
      make room. A solution that has to be read again, or is
      longer than the cache, gets its scores all the same.
    page_tokens: The number of tokens of a page.
    row_tokens: The most new tokens of a row, a power of 2; more are read in
      several calls.
    most_tokens: The most tokens of a solution if few programs shall do, those of
      `shapes.all()`; a longer one is read without the cache, and so is one that
      too many others leave early. 0 is no limit: programs are compiled as they
      are needed.

  Raises:
    InputError: Solutions share no prefixes with this reward model (see
      Scorer.shares_nothing), or a number is out of range.
  """

  @arguments.checked
  def __init__(
    self,
    scorer: scorer_lib.Scorer,
    *,
    cache_tokens: int = 65_536,
    page_tokens: int = 16,
    row_tokens: int = 256,
    most_tokens: int = 0,
  ):
    if reason := scorer.shares_nothing:
      raise errors.InputError(
        f"a cache of prefixes: {reason}; score without it"
      )
    self.scorer = scorer
    self.cache_tokens = cache_tokens
    self.page_tokens = page_tokens
    self.row_tokens = row_tokens
    self.most_tokens = most_tokens
    checks.check_counts(self, ("cache_tokens", "page_tokens", "row_tokens"))
    if row_tokens & (row_tokens - 1):
      raise errors.InputError(f"row_tokens={row_tokens}: give a power of 2")
    checks.check_natural(self, ("most_tokens",))
    # Paths that are left early have more pages than their tokens fill.
    most_pages = most_tokens and 5 * -(-most_tokens // page_tokens) // 4 + 2
    self.shapes = prefix_shapes.Shapes(row_tokens, page_tokens, most_pages)
    self.work = Work()
    # Of the pages, those that are in memory.
    self._num_made = -(-FIRST_TOKENS // page_tokens)
    self.clear()

  def __repr__(self) -> str:
    return f"CachedScorer({self.scorer!r}, {self.cache_tokens:,} tokens)"

  def clear(self) -> None:
    """Empties the cache. `work` stays as it is."""
    forks.check()
    num_pages = -(-self.cache_tokens // self.page_tokens)
    self._cache = prefix_cache.PrefixCache(num_pages, self.page_tokens)
    self._pages: prefix_programs.Pages | None
    self._pages = None  # the old ones make room first
    if self.most_tokens:
      self._num_made = num_pages  # few programs, for pages of one number
    self._num_made = min(self._num_made, num_pages)
    self._pages = prefix_programs.empty_pages(
      self.scorer.config, pages=self._num_made, page_tokens=self.page_tokens
    )
    # The score and the log-odds of every token in the pages.
    self._scores = np.zeros((2, num_pages * self.page_tokens), np.float32)
    # The ids of solutions that were scored, as many ids as the cache holds, from
    # the least to the most recently used.
    self._ids: OrderedDict[tuple[str, str, tuple[str, ...]], np.ndarray]
    self._ids = OrderedDict()
    self._num_ids = 0

  @arguments.checked
  def score(
    self, solutions: Iterable[schema.Solution], /
  ) -> list[schema.StepScores]:
    """Returns the scores of the steps of each solution, in their order.

    It is a schema.Score. What solutions have in common, with each other or with
    what was scored before, is computed once.

    Args:
      solutions: The solutions, whole or begun.

    Returns:
      The scores of each solution.

    Raises:
      InputError: An entry isn't a Solution, or can't be encoded.
    """
    scores: list[schema.StepScores] = []
    for chunk in scorer_lib.chunks(solutions, self.scorer.chunk_solutions):
      encoded = list(map(self.scorer.encode, chunk))
      owners = [""] * len(chunk)
      scores += (x.scores for x in self.score_encoded(chunk, encoded, owners))
    return scores

  def score_encoded(
    self,
    solutions: Sequence[schema.Solution],
    encoded: Sequence[encoding.EncodedSolution],
    owners: Sequence[str],
  ) -> list[Scored]:
    """Returns the scores of solutions whose ids are known.

    Args:
      solutions: The solutions.
      encoded: What the scorer's `encode` returns for each.
      owners: Whose each is. An owner's solutions share nothing with another's.

    Returns:
      The scores of each solution, in their order.
    """
    requests = [
      self._request(*of) for of in zip(solutions, encoded, owners, strict=True)
    ]
    counted, evicted = self.work, self._cache.evicted
    try:
      self._compute([request for request in requests if request.ids])
    except BaseException:
      # The pages lack tokens that were planned, or were donated and are lost.
      self.work = counted
      self.clear()
      raise
    self.work += Work(evicted=self._cache.evicted - evicted)
    for request in requests:
      self._remember(request)
    return [
      Scored(
        self.scorer.step_scores(request.solution, request.scores),
        max(0, len(request.ids) - request.computed),
      )
      for request in requests
    ]

  def compile_shape(self, shape: prefix_shapes.Shape) -> None:
    """Compiles the program for batches of a shape, so that none waits for it.

    Args:
      shape: The shape.
    """
    counted = self.work
    self._extend(prefix_rows.fill([], self._cache, **shape._asdict()))
    self.work = counted

  def _request(
    self,
    solution: schema.Solution,
    encoded: encoding.EncodedSolution,
    owner: str,
  ) -> _Request:
    """Returns what to compute, and where the solution had other ids before."""
    step_end = encoded.step_end
    last = int(step_end[-1]) + 1 if len(step_end) else 0
    request = _Request(solution, encoded, owner, encoded.tokens[:last])
    problem, steps = solution.problem, solution.steps
    if solution.messages is not None:
      return request  # its problem and steps don't say what is between them
    for num in range(len(steps) - 1, 0, -1):
      key = owner, problem, steps[:num]
      before = self._ids.get(key)
      if before is not None:
        self._ids.move_to_end(key)
        same = packing.num_common(before, request.tokens)
        request.changed = range(same, len(before))
        break
    return request

  def _remember(self, request: _Request) -> None:
    """Keeps a solution's ids, to count those that a further step changes."""
    if not request.ids or request.solution.messages is not None:
      return
    key = request.owner, request.solution.problem, request.solution.steps
    self._num_ids += len(request.ids) - len(self._ids.get(key, ()))
    self._ids[key] = request.tokens
    self._ids.move_to_end(key)
    while self._num_ids > self.cache_tokens:
      _, ids = self._ids.popitem(last=False)
      self._num_ids -= len(ids)

  def _compute(self, requests: Sequence[_Request]) -> None:
    """Fills in the scores of all requests."""
    fit = [self._fits(request) for request in requests]
    self._score_whole([x for x, fits in zip(requests, fit) if not fits])
    rest = [x for x, fits in zip(requests, fit) if fits]
    rest.sort(key=lambda request: (request.owner, request.ids))
    for pending in self._groups(rest):
      for request in pending:
        request.path = self._cache.match(request.ids, owner=request.owner)
        self._cache.use(request.path)
      while pending:
        pending = self._wave(pending)

  def _fits(self, request: _Request) -> bool:
    """Returns whether the pages, and the programs, have room for a request."""
    most = self._cache.num_pages * self.page_tokens
    if len(request.ids) > most:
      return False
    if not self.most_tokens:
      return True
    path = self._cache.match(request.ids, owner=request.owner)
    new = self._cache.pages_of(len(request.ids) - prefix_cache.length(path))
    return len(path) + new < self.shapes.most_pages

  def _score_whole(self, requests: Sequence[_Request]) -> None:
    """Scores solutions without the cache."""
    if not requests:
      return
    rows = self.scorer.score_encoded(
      [request.solution for request in requests],
      [request.encoded for request in requests],
      # No two share anything: what each takes is its own.
      groups=[str(i) for i in range(len(requests))],
    )
    for request, row in zip(requests, rows, strict=True):
      assert row.logits is not None
      request.scores = np.asarray([row.scores, row.logits])
      self.work += Work(tokens=request.computed + len(request.ids))
      self._count(request, range(len(request.ids)))
    self.work += Work(calls=1)

  def _groups(
    self, requests: Sequence[_Request]
  ) -> Iterator[Sequence[_Request]]:
    """Yields requests for which there are pages together, in their order.

    So nothing that a request needs is evicted before it is done.
    """
    start = 0
    while start < len(requests):
      matched: set[prefix_cache.Page] = set()
      needed, end = 0, start
      for i in range(start, len(requests)):
        ids, owner = requests[i].ids, requests[i].owner
        path = self._cache.match(ids, owner=owner)
        known = prefix_cache.length(path)
        if i > start and requests[i - 1].owner == owner:
          before = requests[i - 1].tokens
          known = max(known, packing.num_common(before, requests[i].tokens))
        matched.update(page for page, _ in path)
        if len(ids) > known:
          # A branch leaves a page unfinished, once.
          needed += self._cache.pages_of(len(ids) - known) + 1
        if i > start and len(matched) + needed > self._cache.num_pages:
          break
        end = i + 1
      if end == start + 1:
        first = requests[start]
        self._cache.make_room(first.ids, owner=first.owner)
      yield requests[start:end]
      start = end

  def _wave(self, pending: Sequence[_Request]) -> list[_Request]:
    """Computes one set of rows, and returns the requests that aren't done."""
    most_pages = self.shapes.most_pages or sys.maxsize
    plan = prefix_rows.Plan(self._cache, self.row_tokens, most_pages)
    done: list[_Request] = []
    left: list[_Request] = []
    whole: list[_Request] = []
    for request in pending:
      # The others may leave its path early, which takes pages.
      if not self._fits(request):
        whole.append(request)
        continue
      placed = plan.place(request.ids, request.path, owner=request.owner)
      if placed is None:
        left.append(request)
        continue
      request.path = placed.path
      end = prefix_cache.length(placed.path)
      self._count(request, range(end - placed.new, end))
      (done if end == len(request.ids) else left).append(request)
    for rows, shape in self.shapes.batches(plan.rows):
      self._extend(prefix_rows.fill(rows, self._cache, **shape._asdict()))
    self._cache.commit()
    for request in done:
      read = prefix_cache.places(
        request.path, request.encoded.step_end.tolist()
      )
      numbers = prefix_rows.numbers_of(read, self.page_tokens)
      request.scores = self._scores[:, numbers]
      num = len(request.ids)
      self.work += Work(tokens=num, reused=num - request.computed)
    self._score_whole(whole)
    return left

  def _count(self, request: _Request, new: range) -> None:
    """Counts a request's new tokens, which are at these positions."""
    request.computed += len(new)
    changed = range(
      max(new.start, request.changed.start), min(new.stop, request.changed.stop)
    )
    self.work += Work(computed=len(new), changed=len(changed))

  def _extend(self, rows: prefix_programs.Rows) -> None:
    """Computes a batch, and keeps the scores of its tokens."""
    forks.check()
    assert self._pages is not None
    real = np.asarray(rows.places) < self._scores.shape[1]
    self._make(int(rows.places[real].max(initial=0)) // self.page_tokens + 1)
    new, scores = prefix_programs.extend(
      self.scorer.params,
      self._pages,
      rows,
      config=self.scorer.config,
      program=self.scorer.program,
    )
    self._pages = prefix_programs.put(self._pages, new, rows.places)
    self._scores[:, rows.places[real]] = np.asarray(scores)[:, real]
    self.work += Work(calls=1)

  def _make(self, num_pages: int) -> None:
    """Makes so many of the pages at least, twice as many as there are."""
    while self._num_made < num_pages:
      most = self._cache.num_pages
      more = min(self._num_made, most - self._num_made)
      assert self._pages is not None
      self._pages = prefix_programs.with_more(self._pages, more)
      self._num_made += more
