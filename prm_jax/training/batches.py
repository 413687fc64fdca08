"""Turns solutions into the rows of a program: encoded, packed and ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import functools
import hashlib
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import sharding
from prm_jax.records import array_record
from prm_jax.rows import encoded_cache
from prm_jax.rows import lazy_segments
from prm_jax.rows import loader
from prm_jax.rows import packing as packing_lib
from prm_jax.rows import preference_pairs
from prm_jax.runtime import checks
from prm_jax.runtime import distributed
from prm_jax.runtime import environment
from prm_jax.runtime import progress
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import token_memory
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import program as program_lib
from prm_jax.training import programs


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
  """The source of each solution, for data from several sources.

  Args:
    names: The sources' names, all different.
    numbers: The index in names of each solution's source, int32.
    weights: The share of each source, see loader.PackedDataset; None if sources
      aren't weighted.
  """

  names: tuple[str, ...]
  numbers: np.ndarray
  weights: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class PackingConfig:
  """How examples become the rows of a batch.

  Args:
    batch_size: The number of rows of an update.
    sequence_length: The number of tokens of a row.
    share_prefixes: Whether solutions of one problem share the tokens that they
      begin with, as a tree.
  """

  batch_size: int
  sequence_length: int
  share_prefixes: bool = False

  def __post_init__(self):
    checks.check_counts(self, ("batch_size", "sequence_length"), "packing.")


def encode_rows(
  objective: program_lib.Objective,
  packing: PackingConfig,
  encoding_config: encoding.EncodingConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  seed: int,
  sources: Sources | None = None,
  *,
  cache: encoded_cache.Cache | None = None,
  digest: str = "",
  fresh: bool = False,
) -> tuple[loader.PackedDataset, Counter[str]]:
  """Returns the program's rows, and counts of what is in them.

  Solutions that stay in their files are read when a batch needs them; the
  batches are the same. With several sources, each tree has solutions of one
  source. If the objective compares solutions, all are read, and sources aren't
  distinguished.

  Args:
    objective: What is trained.
    packing: How rows are made.
    encoding_config: How solutions are encoded.
    solutions: The solutions.
    tokenizer: The tokenizer.
    seed: The seed of the rows' order.
    sources: The source of each solution, if there are several.
    cache: Where the encoded data are kept; None keeps none. Those of solutions
      that stay in their files are kept beside them.
    digest: A digest of the solutions, for the cache.
    fresh: Whether to encode again what was kept.
  """
  make_rows = functools.partial(
    loader.PackedDataset,
    batch_size=packing.batch_size,
    sequence_length=packing.sequence_length,
    seed=seed,
  )
  trained = programs.TRAINED[programs.name_of(objective)]
  # Once, not for every solution that a stream encodes.
  encoding_config = encoding_records.with_template(encoding_config, tokenizer)
  encoded = functools.partial(
    trained.encoder(objective),
    # What solutions share is encoded once.
    tokenizer=token_memory.Remembering(tokenizer),
    encoding_config=encoding_config,
  )
  numbers = np.zeros(len(solutions), np.int32)
  if sources is not None and not objective.compares:
    numbers = sources.numbers
  tree_tokens = packing.sequence_length if packing.share_prefixes else None
  decides = functools.partial(
    _decides_examples,
    *(objective, encoding_config, tokenizer, packing.share_prefixes),
  )
  if not objective.compares and isinstance(solutions, array_record.Chosen):
    table = lazy_segments.kept_index(
      solutions, encoded, numbers, tree_tokens, decides(), fresh=fresh
    )
    stored = lazy_segments.Segments(
      solutions, encoded, table, packing.share_prefixes
    )
    rows, of, counts = make_rows(stored), table.sources, table.counts
  else:

    def compute() -> encoded_cache.Encoded:
      if objective.compares:
        return _compared(objective.compares, encoded, solutions, packing)
      return lazy_segments.made(solutions, encoded, numbers, tree_tokens)

    if cache is None:
      segments, of, counts = compute()
    else:
      fields = decides() | dict(
        solutions=digest,
        sources=hashlib.sha256(numbers.tobytes()).hexdigest(),
        # Of pairs, each of which is in one row, it matters without trees, too.
        tokens=packing.sequence_length if objective.compares else tree_tokens,
      )
      segments, of, counts = encoded_cache.kept(
        cache, fields, compute, fresh=fresh
      )
    rows = make_rows(segments)
  if sources is not None and not objective.compares:
    rows = dataclasses.replace(rows, sources=of, weights=sources.weights)
  return rows, counts


def _compared(
  kind: str,
  encoded: lazy_segments.Encode,
  solutions: Sequence[schema.Solution],
  packing: PackingConfig,
) -> encoded_cache.Encoded:
  """Returns the segments of `paired`, all of source 0, and all counts."""
  every = progress.through("encode", solutions, len(solutions))
  examples, counts = encoded(every)
  rivals, compared = paired(examples, kind, packing)
  return rivals, np.zeros(len(rivals), np.int32), counts + compared


def paired(
  examples: Sequence[encoding.Example], kind: str, packing: PackingConfig
) -> tuple[list[packing_lib.Segment], Counter[str]]:
  """Returns segments that hold both sides of each pair, and the counts.

  Raises:
    InputError: There is nothing to compare.
  """
  kept, counts = preference_pairs.group(examples, kind)
  if examples and not kept:
    raise errors.InputError(
      f"pairs={kind!r}: no two of {len(examples):,} solutions can be compared:"
      + (
        " no prefix has steps of different labels; add rated alternatives"
        if kind == "alternatives"
        else " no problem has both a right and a wrong one; add solutions"
      )
    )
  if packing.share_prefixes:
    segments = packing_lib.trees(kept, packing.sequence_length)
  else:
    segments = [packing_lib.chain(example) for example in kept]
  segments = preference_pairs.together(segments, packing.sequence_length)
  lost = counts["pairs"] - round(preference_pairs.num_pairs(segments))
  if lost and lost == counts["pairs"]:
    raise errors.InputError(
      f"pairs={kind!r}: no row of packing.sequence_length="
      f"{packing.sequence_length} tokens holds both sides of any of the"
      f" {lost:,} pairs; raise it"
    )
  counts["pairs lost: their group is longer than a row"] = lost
  return segments, counts


def _decides_examples(
  objective: program_lib.Objective,
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  share_prefixes: bool,
) -> dict[str, Any]:
  """Returns all that determines the examples of a solution, as plain data."""
  with tempfile.TemporaryDirectory() as folder:
    saved_tokenizer = tokenizer.save(pathlib.Path(folder))
  return dict(
    program=programs.name_of(objective),
    objective=repr(objective),
    encoding=encoding_records.record_of(encoding_config),
    share_prefixes=share_prefixes,
    tokenizer=saved_tokenizer,
    # A new version may have other ids.
    libraries={
      name: environment.version_of(name)
      for name in ("tokenizers", "sentencepiece")
    },
  )


def describe_counts(counts: Counter[str], rows: loader.PackedDataset) -> str:
  """Returns one line that says what the data holds and what was left out."""
  described = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
  return (
    f"{described}; {len(rows.segments):,} segments, {int(rows.lengths.sum()):,} tokens,"
    f" {rows.rows_per_epoch:,} rows an epoch, fill {rows.fill:.1%}"
  )


def by_step(
  rows: loader.PackedDataset, mesh: jax.sharding.Mesh
) -> Callable[[int], batch_lib.Batch | batch_lib.Part]:
  """Returns a function that makes the batch of a step.

  With several processes, each reads and makes only the rows of its own devices.
  """
  if distributed.number() == 1:
    return rows.batch_at
  own = sharding.own_rows(rows.batch_size, mesh)
  return functools.partial(rows.part_at, numbers=own)


def each_once(
  rows: loader.PackedDataset,
  max_rows: int,
  mesh: jax.sharding.Mesh | None = None,
) -> list[batch_lib.Batch | batch_lib.Part]:
  """Returns batches in which each of the first rows of an epoch counts once.

  Args:
    rows: The rows.
    max_rows: The most rows that count.
    mesh: The mesh of several processes, each of which makes its own part; None
      if one process makes all rows.
  """
  wanted = min(max_rows, rows.rows_per_epoch)
  batch_at = rows.batch_at if mesh is None else by_step(rows, mesh)
  steps = range(-(-wanted // rows.batch_size))
  read = progress.through("read", steps, len(steps), "evaluation part")
  batches = [batch_at(step) for step in read]
  # The last batch runs over into rows that aren't wanted, or come again.
  extra = len(batches) * rows.batch_size - wanted
  batches[-1] = _without(batches[-1], rows.batch_size - extra)
  return batches


def _without(
  batch: batch_lib.Batch | batch_lib.Part, first: int
) -> batch_lib.Batch | batch_lib.Part:
  """Returns the batch with weight 0 in the rows from `first` on."""
  if isinstance(batch, batch_lib.Part):
    counts = batch.numbers < first
    weights = batch.rows.weights * counts[:, None]
    rows = dataclasses.replace(batch.rows, weights=weights)
    return dataclasses.replace(batch, rows=rows)
  weights = np.array(batch.weights)
  weights[first:] = 0
  return dataclasses.replace(batch, weights=weights)
