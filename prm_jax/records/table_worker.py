"""A process that reads one Parquet or Arrow file: `record_files` starts it.

A damaged table can make pyarrow read outside of its memory, and a few hundred
bytes can stand for billions of values. So a process of its own reads tables,
with limits of memory and of the processor's time that the kernel enforces, and
writes at most so many bytes. At the limit of time SIGXCPU ends it.

It reads stdin, and writes each row to stdout as a JSON object on a line of its
own. The last line is a list: ["end"], or why there are no more rows: ["file",
TEXT], ["row", TEXT] of the row that would come next, or ["damaged", TEXT]. It
imports nothing of prm_jax, so that it starts at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import datetime
import decimal
import json
import math
import os
import resource
import sys
from typing import Any, IO

PARQUET = b"PAR1"
# Of Arrow's file format; its stream format begins with four bytes of ones.
ARROW_FILE = b"ARROW1"
# Rows that are decoded, and bytes that become Python's objects, at a time.
_ROWS = 256
_BYTES = 8 << 20
# What a row counts at least: it takes time, however short it is.
_ROW_BYTES = 64


class RefusedError(Exception):
  """There are no more rows: its arguments are the last line."""


def main(
  cpu_s: int, memory_bytes: int, line_bytes: int, all_bytes: int
) -> None:
  """Writes the rows of stdin, within limits.

  Args:
    cpu_s: The seconds of a processor that it may take.
    memory_bytes: What it may allocate.
    line_bytes: The most bytes of a row.
    all_bytes: The most bytes of all rows.
  """
  # Soft and hard: at the hard one SIGKILL would end it. It may wait for long for
  # its reader, so the clock says nothing.
  resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  # Its other allocators reserve much more than they use.
  os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
  os.environ["OMP_NUM_THREADS"] = "1"
  import pyarrow
  import pyarrow.ipc
  import pyarrow.parquet

  pyarrow.set_cpu_count(1)
  pyarrow.set_io_thread_count(1)
  _limit_memory(memory_bytes)
  out = sys.stdout.buffer
  last = ["end"]
  try:
    for line in _lines(open(0, "rb"), line_bytes, all_bytes):  # noqa: SIM115
      out.write(line)
  except RefusedError as e:
    last = list(e.args)
  except (MemoryError, pyarrow.ArrowMemoryError):
    text = f"takes more than {memory_bytes >> 20:,} MiB to read"
    last = ["file", f"{text}; write it in smaller groups of rows"]
  # A value that Python has no form of is a ValueError or an OverflowError.
  except (
    *(pyarrow.ArrowException, OSError, ValueError, OverflowError),
    *(RecursionError, SystemError),
  ) as e:
    last = ["damaged", " ".join(str(e).split())]
  out.write(json.dumps(last).encode() + b"\n")
  out.flush()


def _limit_memory(more_bytes: int) -> None:
  if not sys.platform.startswith("linux"):
    return
  with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes,) * 2)


def _lines(f: IO[bytes], line_bytes: int, all_bytes: int) -> Iterator[bytes]:
  """Yields the line of each row."""
  total = 0
  for batch in _batches(f):
    # What a damaged table says of places in its buffers isn't checked before.
    batch.validate(full=True)
    for row in _rows(batch):
      plain = {name: _plain(x, name) for name, x in row.items()}
      line = json.dumps(plain, ensure_ascii=False).encode() + b"\n"
      total += max(len(line), _ROW_BYTES)
      if len(line) > line_bytes:
        raise RefusedError(
          "row", f"a row of more than {line_bytes >> 20:,} MiB"
        )
      if total > all_bytes:
        raise RefusedError(
          "file",
          f"stands for more than {all_bytes >> 20:,} MiB of rows, the limit for"
          " a file of its size; write it as JSON Lines",
        )
      yield line


def _batches(f: IO[bytes]) -> Iterator[Any]:
  """Yields a table's rows, some at a time."""
  from pyarrow import ipc
  from pyarrow import parquet

  f.seek(0)
  start = f.read(8)
  f.seek(0)
  if start.startswith(PARQUET):
    with parquet.ParquetFile(f) as table:
      _check_names(table.schema_arrow.names)
      yield from table.iter_batches(_ROWS, use_threads=False)
    return
  if start.startswith(ARROW_FILE):
    with ipc.open_file(f) as reader:
      _check_names(reader.schema.names)
      for i in range(reader.num_record_batches):
        yield reader.get_batch(i)
    return
  with ipc.open_stream(f) as reader:
    _check_names(reader.schema.names)
    yield from reader


def _check_names(names: Sequence[str]) -> None:
  twice = [x for i, x in enumerate(names) if x in names[:i]]
  if twice:
    raise RefusedError(
      "file", f'has two columns "{twice[0]}"; write one of them'
    )


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
  """Yields the rows of a batch, of which few become objects at a time."""
  size = max(batch.get_total_buffer_size(), 1)
  some = max(1, min(_ROWS, _BYTES * batch.num_rows // size))
  for start in range(0, batch.num_rows, some):
    yield from batch.slice(start, some).to_pylist()


def _plain(value: Any, name: str) -> Any:
  """Returns a value as JSON has it.

  NaN is what pandas writes where a number is missing; it becomes null.
  """
  if isinstance(value, float):
    if math.isinf(value):
      raise RefusedError(
        "row",
        f'column "{name}" holds {value}, which JSON has no form of; write null',
      )
    return None if math.isnan(value) else value
  if value is None or isinstance(value, str | bool | int):
    return value
  if isinstance(value, Mapping):
    return {key: _plain(x, name) for key, x in value.items()}
  if isinstance(value, Sequence) and not isinstance(value, bytes):
    # A map is a list of pairs.
    return [_plain(x, name) for x in value]
  if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
    return str(value)
  raise RefusedError(
    "row",
    f'column "{name}" holds {type(value).__name__}, which JSON has no form of;'
    " write the file without the column",
  )


if __name__ == "__main__":
  main(*map(int, sys.argv[1:]))
