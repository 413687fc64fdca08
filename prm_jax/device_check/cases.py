"""Which attention is checked: shapes, masks and number formats."""

from __future__ import annotations

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
  """One attention to check.

  Args:
    name: The name of the shape, without kind and mask.
    head_dim: C.
    queries_per_key: G.
    tokens: T, the number of tokens of a row.
    mask: causal (one solution in a row), packed (several), tree (trees), padded
      (one solution and padding), window (trees in which a query sees only what
      is near) or softcap (several solutions and capped logits).
    dtype: The type of queries, keys and values.
    kv_heads: K.
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


# Attention of published models, which people run first.
PUBLISHED = tuple(
  Case(f"{model}_t4096_{mask}_bfloat16", C, G, 4096, mask, "bfloat16", K)
  for model, C, G, K, mask in (
    ("qwen2_5_7b", 128, 7, 4, "packed"),
    ("qwen2_5_1_5b", 128, 6, 2, "tree"),
    ("llama3_8b", 128, 4, 8, "packed"),
    ("gemma2_9b", 256, 2, 8, "window"),
    ("gemma2_9b", 256, 2, 8, "softcap"),
  )
)


def every() -> list[Case]:
  """Returns all combinations of the factors."""
  return [
    Case(f"c{C}_g{G}_t{T}_{mask}_{dtype}", C, G, T, mask, dtype)
    for C, G, T, mask, dtype in itertools.product(*FACTORS.values())
  ]


def covering() -> list[Case]:
  """Returns few cases with every pair of levels of two factors.

  Greedily: each is the one with most pairs that none before it has.
  """
  left = set().union(*map(_pairs, every()))
  chosen = []
  while left:
    best = max(every(), key=lambda case: len(left & _pairs(case)))
    left -= _pairs(best)
    chosen.append(best)
  return chosen


def _pairs(case: Case) -> set[tuple]:
  """Returns the pairs of (factor, level) of a case."""
  levels = [(name, getattr(case, name)) for name in FACTORS]
  return {*itertools.combinations(levels, 2)}


def few() -> list[Case]:
  """Returns a case for each mask, of one shape: little is compiled for them."""
  dtypes = dict(zip(FACTORS["mask"], itertools.cycle(FACTORS["dtype"])))
  return [
    case
    for case in every()
    if (case.head_dim, case.queries_per_key, case.tokens) == (64, 4, 1024)
    and case.dtype == dtypes[case.mask]
  ]


def shrunk(case: Case) -> Case:
  """Returns the case with rows that a CPU can do."""
  kv_heads = min(case.kv_heads, 2)
  small = dataclasses.replace(case, kv_heads=kv_heads)
  return with_tokens(small, SMALL_TOKENS[case.tokens])


def with_tokens(case: Case, tokens: int) -> Case:
  """Returns the case with rows of another length, also by its name."""
  name = case.name.replace(f"t{case.tokens}", f"t{tokens}")
  return dataclasses.replace(case, name=name, tokens=tokens)


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
  positions = np.zeros((B, T), np.int32)
  sees = np.zeros((B, T, T), bool)
  for b, i in np.ndindex(B, T):
    parent = parents[b, i]
    if parent >= 0:
      positions[b, i] = positions[b, parent] + 1
      sees[b, i] = sees[b, parent]
    sees[b, i, i] = True
  until = T - sees[:, ::-1].argmax(1)  # after the last query that sees it
  if window is not None:
    for b, i in np.ndindex(B, T):  # a row at a time: the square is large
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
