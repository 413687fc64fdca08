"""Which attention is checked: shapes, masks and number formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import zlib

import numpy as np

# What `--full` checks every combination of, and the others every pair.
FACTORS: dict[str, tuple] = dict(
  head_dim=(64, 128, 256),
  queries_per_key=(1, 4, 8),
  tokens=(1024, 4096, 16_384),
  mask=("causal", "packed", "tree", "padded", "window", "softcap"),
  dtype=("bfloat16", "float32"),
)
# Rows of a CPU: sixteen thousand tokens would take it minutes.
SMALL_TOKENS = dict(zip(FACTORS["tokens"], (512, 1024, 2048), strict=True))
# A cap that logits of size 1 feel; those of published models are 30 and 50.
SOFTCAP = 2.0


@dataclasses.dataclass(frozen=True)
class Case:
  """One attention.

  Attributes:
    name: of the shape, without kind and mask.
    head_dim: C. queries_per_key: G. kv_heads: K. tokens: T, of a row.
    mask: causal, one solution a row; packed, several; forest, trees; padded,
      one and padding; window, trees of which a query sees only what is near;
      softcap, several solutions and capped logits.
    dtype: of queries, keys and values.
  """

  name: str
  head_dim: int
  queries_per_key: int
  tokens: int
  mask: str
  dtype: str
  kv_heads: int = 2

  @property
  def num_rows(self) -> int:
    """Two, so that a row's number counts; the longest is alone."""
    return 2 if self.tokens <= 4096 else 1

  @property
  def softcap(self) -> float | None:
    return SOFTCAP if self.mask == "softcap" else None

  @property
  def seed(self) -> int:
    return zlib.crc32(self.name.encode())


def _case(
  head_dim: int, queries_per_key: int, tokens: int, mask: str, dtype: str
) -> Case:
  name = f"c{head_dim}_g{queries_per_key}_t{tokens}_{mask}_{dtype}"
  return Case(name, head_dim, queries_per_key, tokens, mask, dtype)


def _published(name: str, C: int, G: int, T: int, mask: str, K: int) -> Case:
  name = f"{name}_t{T}_{mask}_bfloat16"
  return Case(name, C, G, T, mask, "bfloat16", K)


# Attention of published models, which people run first.
PUBLISHED = (
  _published("qwen2_5_7b", 128, 7, 4096, "packed", 4),
  _published("qwen2_5_1_5b", 128, 6, 4096, "tree", 2),
  _published("llama3_8b", 128, 4, 4096, "packed", 8),
  _published("gemma2_9b", 256, 2, 4096, "window", 8),
  _published("gemma2_9b", 256, 2, 4096, "softcap", 8),
)


def every() -> list[Case]:
  """Returns all combinations of the factors."""
  return [
    _case(C, G, T, mask, dtype)
    for C, G, T, mask, dtype in itertools.product(*FACTORS.values())
  ]


def covering() -> list[Case]:
  """Returns few cases with every pair of levels of two factors.

  Greedily: each is the one with most pairs that none before it has.
  """
  left = {*_pairs_of(every())}
  found = []
  while left:
    best = max(every(), key=lambda case: len(left & {*_pairs_of([case])}))
    left -= {*_pairs_of([best])}
    found.append(best)
  return found


def _pairs_of(cases: Sequence[Case]) -> Iterator[tuple]:
  """Yields the pairs of (factor, level) of each case."""
  for case in cases:
    levels = [(name, getattr(case, name)) for name in FACTORS]
    yield from itertools.combinations(levels, 2)


def few() -> list[Case]:
  """Returns a case for each mask, of one shape: little is compiled for them."""
  dtypes = itertools.cycle(FACTORS["dtype"])
  return [
    _case(64, 4, FACTORS["tokens"][0], mask, dtype)
    for mask, dtype in zip(FACTORS["mask"], dtypes, strict=False)
  ]


def shrunk(case: Case) -> Case:
  """Returns the case with rows that a CPU can do."""
  tokens = SMALL_TOKENS[case.tokens]
  name = case.name.replace(f"t{case.tokens}", f"t{tokens}")
  kv_heads = min(case.kv_heads, 2)
  return dataclasses.replace(case, name=name, tokens=tokens, kv_heads=kv_heads)


# --- Rows -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rows:
  """Which keys a query sees, in two forms: as the code takes it, and as a mask.

  Attributes:
    visible_until: int [B, T], as in batch.Batch.
    positions: int [B, T], depth of a token on its own path.
    window: how far back a query sees on its path; None: all of it.
    sees: bool [B, T, T], query q sees key k: k is q or comes before it on its
      path, and near enough. Made by following parents.
  """

  visible_until: np.ndarray
  positions: np.ndarray
  window: int | None
  sees: np.ndarray


def make_rows(case: Case) -> Rows:
  """Returns the rows of a case, the same at every call."""
  rng = np.random.default_rng(case.seed)
  parents = np.stack([_parents(case, rng) for _ in range(case.num_rows)])
  window = max(16, case.tokens // 16) if case.mask == "window" else None
  B, T = parents.shape
  until = np.broadcast_to(np.arange(1, T + 1), (B, T)).copy()
  positions = np.zeros((B, T), np.int32)
  sees = np.zeros((B, T, T), bool)
  for b in range(B):
    for i in range(T):
      parent = parents[b, i]
      if parent >= 0:
        positions[b, i] = positions[b, parent] + 1
        sees[b, i] = sees[b, parent]
      sees[b, i, i] = True
    for i in range(T - 1, -1, -1):
      if parents[b, i] >= 0:
        last = max(until[b, parents[b, i]], until[b, i])
        until[b, parents[b, i]] = last
    if window is not None:
      for i in range(T):  # a row at a time: the whole square is large
        sees[b, i] &= positions[b, i] - positions[b] < window
  return Rows(until.astype(np.int32), positions, window, sees)


def _parents(case: Case, rng: np.random.Generator) -> np.ndarray:
  """Returns the index of the token before each one on its path; -1 at roots."""
  T = case.tokens
  parents = np.arange(-1, T - 1)
  if case.mask == "causal":
    return parents
  if case.mask == "padded":
    parents[T * 5 // 8 :] = -1  # each sees itself only
    return parents
  # Solutions, or trees, of any length; the last one ends with the row.
  start = 0
  while start < T:
    parents[start] = -1
    start += int(rng.integers(T // 32, T // 4))
  if case.mask in ("tree", "window"):
    _branch(parents, rng)
  return parents


def _branch(parents: np.ndarray, rng: np.random.Generator) -> None:
  """Has a token in fifty follow an earlier one of its path, as branches do."""
  path: list[int] = []
  for i in range(len(parents)):
    if parents[i] < 0:
      path = []
    elif rng.random() < 0.02:
      path = path[: int(rng.integers(1, len(path) + 1))]
      parents[i] = path[-1]
    path.append(i)
