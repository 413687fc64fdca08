"""The records of a file of solutions: JSON Lines, indented JSON or a table.

A table is a Parquet or Arrow file, or all files of a split (dataset_folders),
and is read by a process of its own (table_worker); or it is CSV or TSV, whose
values are texts. The content decides, not the name, but for CSV and TSV, which
end with .csv or .tsv. Every record comes with its place, "FILE:LINE" of JSON
Lines and CSV, and else "FILE:N" for the Nth record, both counted from 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import contextlib
import csv
import importlib.util
import io
import json
import os
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.records import dataset_folders
from prm_jax.records import table_worker
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import json_text
from prm_jax.runtime import limited_process
from prm_jax.runtime import limits

_TABLES = (table_worker.PARQUET, table_worker.ARROW_FILE, b"\xff\xff\xff\xff")
_WORKER = pathlib.Path(table_worker.__file__)
# What stands between the cells of a row.
_CELLS = {".csv": ",", ".tsv": "\t"}

Record = tuple[str, dict[str, Any]]


def read_records(path: files.PathLike) -> Iterator[Record]:
  """Yields the place and the fields of each record of a file.

  A file whose first line begins with "[", or with "{" and ends with "{", "[" or
  a comma, is JSON that spans lines: a list of objects, or objects one after
  another. It is read whole.

  Args:
    path: The file, or the folder of a data set's split; a file of JSON may be
      compressed, if its name ends with .gz.

  Yields:
    The place and the fields of each record.

  Raises:
    InputError: The file can't be read, or a record isn't an object.
  """
  parts = dataset_folders.files_of(path)
  if parts is not None:
    return _read_tables(path, parts)
  suffix = pathlib.Path(str(path).removesuffix(".gz")).suffix.lower()
  if suffix in _CELLS:
    return _read_cells(path, _CELLS[suffix])
  if is_table(path):
    return _read_tables(path, [pathlib.Path(path)])
  first = _first_line(path)
  is_open = first.startswith("{") and first.endswith(("{", "[", ","))
  if is_open or first.startswith("["):
    return _read_documents(path)
  if first[:1].isalpha() and {*_CELLS.values()} & {*first}:  # as a header
    raise errors.InputError(
      f"{path}: not JSON: {first[:40]!r}; write one JSON object per line, or give"
      " a table as a file whose name ends with .csv or .tsv"
    )
  return files.read_records(path)


def is_table(path: files.PathLike) -> bool:
  """Returns whether a file begins as tables do; raises InputError."""
  if str(path).endswith(".gz"):
    return False
  with inputs.opened(path) as f:
    return f.read(8).startswith(_TABLES)


def _first_line(path: files.PathLike) -> str:
  """Returns the first line that isn't blank, or its beginning."""
  with files.open_text(path, bad_bytes="surrogateescape") as f:
    while line := f.readline(1 << 16):
      line = line.removeprefix("\ufeff").strip()
      if line:
        return line
  return ""


# --- JSON that spans lines --------------------------------------------------


def _read_documents(path: files.PathLike) -> Iterator[Record]:
  """Yields the objects of a list, or objects in sequence, decoded one by one."""
  text = files.read_text(path).removeprefix("\ufeff")
  with _named(path):
    json_text.check_nesting(text)
  start = _after_blanks(text, 0)
  is_list = text.startswith("[", start)
  if is_list:
    start = _after_blanks(text, start + 1)
    if text.startswith("]", start):
      start = _next_entry(text, start, path)
      is_list = False
  number = 0
  while is_list or start < len(text):
    number += 1
    where = f"{path}:{number}"
    value, end = _document(text, start, path, where)
    if not isinstance(value, dict):
      raise errors.InputError(
        f"{where}: expected a JSON object, found {type(value).__name__}"
      )
    yield where, value
    start = _after_blanks(text, end)
    if is_list:
      start = _next_entry(text, start, path)
      if start == len(text):
        return


def _document(
  text: str, start: int, path: files.PathLike, where: str
) -> tuple[Any, int]:
  """Returns the JSON value that starts there, and where it ends."""
  try:
    return json_text.parse_first(text, start)
  except json_text.JSONTextError as e:
    fix = e.fix or "write one list of objects, or one object per line"
    at = where if e.fix else f"{path}:{e.line}"
    raise errors.InputError(f"{at}: {e.reason}; {fix}") from None


def _next_entry(text: str, at: int, path: files.PathLike) -> int:
  """Returns where a list's next entry starts; the text's length after the last.

  Args:
    text: The file's text.
    at: Where the last entry ended.
    path: The file, for messages.
  """
  following = _after_blanks(text, at + 1)
  if text.startswith("]", at):
    if following == len(text):
      return following
    reason, at = "text after the end of the list; remove it", following
  elif text.startswith(",", at) and following < len(text):
    return following
  else:
    reason = (
      'expected "," or "]" after an entry, or an entry after ","; is the file'
      " cut?"
    )
  raise errors.InputError(f"{path}:{text.count(chr(10), 0, at) + 1}: {reason}")


def _after_blanks(text: str, at: int) -> int:
  while text[at : at + 1].isspace():
    at += 1
  return min(at, len(text))


# --- CSV --------------------------------------------------------------------


def _read_cells(path: files.PathLike, delimiter: str) -> Iterator[Record]:
  """Yields the rows of a table of texts, whose first row names the columns."""
  text = files.read_text(path).removeprefix("\ufeff")
  csv.field_size_limit(limits.LINE_BYTES)
  reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
  names: list[str] = []
  line = 1
  try:
    for cells in reader:
      where, line = f"{path}:{line}", reader.line_num + 1
      if not cells:
        continue  # a blank line
      errors.raise_first(_wrong_cells(cells, names), f"{where}: ")
      if not names:
        names = cells
        continue
      yield where, dict(zip(names, cells))
  except csv.Error as e:
    raise errors.InputError(
      f"{path}:{reader.line_num}: {e}; is a double quote not closed, or not"
      " doubled inside of a text?"
    ) from None
  if not names:
    raise errors.InputError(
      f"{path}: is empty; its first row names the columns"
    )


def _wrong_cells(cells: Sequence[str], names: Sequence[str]) -> Iterator[str]:
  """Yields what is wrong with a row, the header if there are no names yet."""
  if not names:
    twice = [name for name, n in Counter(cells).items() if n > 1]
    if twice:
      yield f"the header has the column {twice[0]!r} twice; rename one"
  elif len(cells) != len(names):
    yield (
      f"{len(cells)} cells, and the header has {len(names)}; put a text that"
      " holds the delimiter or a line break in double quotes"
    )


# --- Tables -----------------------------------------------------------------


def _read_tables(
  path: files.PathLike, parts: Sequence[pathlib.Path]
) -> Iterator[Record]:
  """Yields the records of files; their rows are numbered through all of them.

  Args:
    path: The file or the split, for the places.
    parts: Its files.
  """
  if importlib.util.find_spec("pyarrow") is None:
    raise errors.InputError(
      f"{path}: a Parquet or Arrow file; to read it,"
      f" {errors.to_install('parquet')}"
    )
  number = 0
  for part in parts:
    for record in _rows(part, path, number):
      number += 1
      yield f"{path}:{number}", record


def _rows(
  part: pathlib.Path, path: files.PathLike, before: int
) -> Iterator[dict[str, Any]]:
  """Yields the rows of a file, which a process with limits reads.

  Args:
    part: The file.
    path: The file or the split, for the places of rows.
    before: The number of rows in the files before it.
  """
  with inputs.opened(part) as f:
    size = os.fstat(f.fileno()).st_size
    cpu_s = int(limits.TABLE_CPU_S * (1 + size / limits.TABLE_CPU_BYTES))
    bounds = (
      cpu_s,
      limits.TABLE_MEMORY_BYTES + limits.TABLE_MEMORY_RATIO * size,
      limits.LINE_BYTES,
      limits.FILE_BYTES + limits.TABLE_RATIO * size,
    )
    number, line = 0, b""
    with limited_process.started(_WORKER, *bounds, stdin=f) as worker:
      assert worker.stdout is not None
      while (line := worker.stdout.readline(limits.LINE_BYTES)).startswith(
        b"{"
      ):
        number += 1
        with _named(f"{path}:{before + number}"):
          row = json_text.parse(line.decode())
        yield row
      if line.endswith(b"]\n"):
        last = json.loads(line)
      elif (how := limited_process.how_ended(worker)) == "SIGXCPU":
        text = f"takes more than {cpu_s:,} s of a processor's time to read, the"
        last = [
          "file",
          f"{text} limit for a file of its size; write it as JSON Lines",
        ]
      else:
        last = ["damaged", f"its reader ended ({how})"]
  # ["end"], or a kind of fault and what it is.
  kind, *said = last
  faults = dict(
    row=f"{path}:{before + number + 1}: ",
    file=f"{part}: ",
    damaged=f"{part}: damaged table after row {number}: ",
  )
  if kind in faults:
    fix = "; copy it again, or write it without the column"
    raise errors.InputError(
      faults[kind] + "".join(said) + fix * (kind == "damaged")
    )


@contextlib.contextmanager
def _named(where: files.PathLike) -> Iterator[None]:
  """Names the place of what isn't JSON that we read."""
  try:
    yield
  except json_text.JSONTextError as e:
    raise errors.InputError(f"{where}: {e}") from None
