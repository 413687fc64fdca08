"""From solutions to the rows of a program: encoded, packed, in an order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.data import array_record
from prm_jax.data import encoding
from prm_jax.data import lazy_segments
from prm_jax.data import loader
from prm_jax.data import packing
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import sharding
from prm_jax.runtime import distributed
from prm_jax.training import config as training_config
from prm_jax.training import programs


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
  """Which source each solution is of, where there are several.

  names: no two alike. numbers: int32, of each solution, its source's place in
  names. weights: see loader.Rows; by source, or none.
  """

  names: tuple[str, ...]
  numbers: np.ndarray
  weights: tuple[float, ...] = ()


def encode_rows(
  config: training_config.TrainConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  seed: int,
  sources: Sources | None = None,
) -> tuple[loader.Rows, Counter[str]]:
  """Returns the program's rows and the counts of what is in them.

  Solutions that stay in their files are read when a batch needs them; the
  batches are the same. With several sources a tree is of one of them. Where
  the objective compares, all are read, and sources aren't told apart.
  """
  # Once, not for every solution that a stream encodes.
  reading = encoding.with_dialect(config.reading, tokenizer)
  encoded = functools.partial(_examples, config, reading, tokenizer)
  kind = programs.compares(config.program, config.loss, config.options)
  if kind:
    if sources is not None and sources.weights:
      raise errors.InputError(
        f"data.weights: loss={config.loss!r} takes every pair once; leave the"
        " weights out"
      )
    examples, counts = encoded(list(solutions))
    pieces, compared = programs.paired(
      examples, kind, forest=config.forest, row_tokens=config.row_tokens
    )
    rows = loader.Rows(pieces, config.rows, config.row_tokens, seed)
    return rows, counts + compared
  numbers = np.zeros(len(solutions), np.int32)
  if sources is not None:
    numbers = sources.numbers
  tree_tokens = config.row_tokens if config.forest else None
  found: Sequence[packing.Piece]
  if isinstance(solutions, array_record.Chosen):
    table = lazy_segments.kept_index(
      solutions, encoded, numbers, tree_tokens, _encoding(config, tokenizer)
    )
    found = lazy_segments.Pieces(solutions, encoded, table, config.forest)
    of, counts = table.sources, table.counts
  else:
    found, of, counts = lazy_segments.made(
      solutions, encoded, numbers, tree_tokens
    )
  rows = loader.Rows(found, config.rows, config.row_tokens, seed)
  if sources is not None:
    rows = dataclasses.replace(rows, sources=of, weights=sources.weights)
  return rows, counts


def _examples(
  config: training_config.TrainConfig,
  reading: encoding.Reading,
  tokenizer: tokenizer_lib.Tokenizer,
  solutions: Sequence[schema.Solution],
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the program's examples and the counts of what is in them."""
  kind = programs.compares(config.program, config.loss, config.options)
  if config.program == "prm" and kind != "solutions":
    return encoding.prm_examples(solutions, tokenizer, reading, config.labels)
  if config.program in ("prm", "orm"):
    target = "last_step" if kind else config.outcome_target
    return encoding.orm_examples(solutions, tokenizer, reading, target)
  if config.program == "implicit":
    return encoding.implicit_examples(solutions, tokenizer, reading)
  return encoding.sft_examples(solutions, tokenizer, reading)


# What no example depends on.
_NOT_ENCODING = frozenset(
  ("seed", "rows", "optimizer", "fit", "model", "mesh", "microbatches")
) | {"eval_rows", "aggregate", "row_tokens"}


def _encoding(
  config: training_config.TrainConfig, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, Any]:
  """Returns what decides the examples of a solution, as plain data."""
  fields = dataclasses.asdict(config)
  with tempfile.TemporaryDirectory() as folder:
    words = tokenizer.save(pathlib.Path(folder))
  kept = {k: v for k, v in fields.items() if k not in _NOT_ENCODING}
  return kept | dict(tokenizer=words)


def describe_counts(counts: Counter[str], rows: loader.Rows) -> str:
  """Returns one line on the data: what is in it and what was left out."""
  said = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
  return (
    f"{said}; {len(rows.pieces):,} pieces, {int(rows.lengths.sum()):,} tokens,"
    f" {rows.rows_per_epoch:,} rows an epoch, fill {rows.fill:.1%}"
  )


def by_step(
  rows: loader.Rows, mesh: jax.sharding.Mesh
) -> Callable[[int], batch_lib.Batch | batch_lib.Part]:
  """Returns what makes the batch of a step; of several processes, their part.

  Each reads and makes the rows that lie on its devices, and no others.
  """
  if distributed.number() == 1:
    return rows.batch_at
  own = sharding.own_rows(rows.rows, mesh)
  return functools.partial(rows.part_at, numbers=own)


def each_once(
  rows: loader.Rows,
  max_rows: int,
  mesh: jax.sharding.Mesh | None = None,
) -> list[batch_lib.Batch | batch_lib.Part]:
  """Returns batches in which the first rows of an epoch count once each.

  mesh: of several processes, whose parts are made; one makes all.
  """
  wanted = min(max_rows, rows.rows_per_epoch)
  batch_at = rows.batch_at if mesh is None else by_step(rows, mesh)
  batches = [batch_at(step) for step in range(-(-wanted // rows.rows))]
  # The last batch runs over into rows that aren't wanted, or come again.
  extra = len(batches) * rows.rows - wanted
  batches[-1] = _without(batches[-1], rows.rows - extra)
  return batches


def _without(
  batch: batch_lib.Batch | batch_lib.Part, first: int
) -> batch_lib.Batch | batch_lib.Part:
  """Returns a batch whose rows from the first on have no weight."""
  if isinstance(batch, batch_lib.Part):
    counts = batch.numbers < first
    weights = batch.rows.weights * counts[:, None]
    rows = dataclasses.replace(batch.rows, weights=weights)
    return dataclasses.replace(batch, rows=rows)
  weights = np.array(batch.weights)
  weights[first:] = 0
  return dataclasses.replace(batch, weights=weights)
