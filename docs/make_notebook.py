"""Writes docs/quickstart.ipynb from docs/quickstart.md, which it runs.

Each python block becomes a code cell with what it prints; the text between them
becomes Markdown cells. tests/docs/test_quickstart.py fails if the two files
differ.
"""

from collections.abc import Iterator, Sequence
import contextlib
import io
import json
import pathlib
import re
import tempfile
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER / "quickstart.md"
NOTEBOOK = FOLDER / "quickstart.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[tuple[str, str]]:
  """Returns ("markdown" or "code", text) of each cell of a page."""
  parts = _BLOCK.split(page)
  kinds = ["markdown", "code"] * len(parts)
  return [(k, p.strip("\n")) for k, p in zip(kinds, parts) if p.strip()]


def run(page: str) -> Iterator[str]:
  """Yields what each code cell of a page prints; it writes into the folder."""
  names: dict[str, Any] = {}
  for kind, text in cells(page):
    if kind == "code":
      with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(text, names)
      yield printed.getvalue()


def notebook(page: str, printed: Sequence[str]) -> str:
  """Returns the text of a notebook of a page's cells and what they print."""
  made = []
  outputs = enumerate(printed, 1)
  for i, (kind, text) in enumerate(cells(page)):
    cell = dict(
      cell_type=kind, id=f"cell-{i}", metadata={}, source=_lines(text)
    )
    if kind == "code":
      count, text = next(outputs)
      stream = dict(output_type="stream", name="stdout", text=_lines(text))
      cell |= dict(execution_count=count, outputs=[stream] if text else [])
    made.append(cell)
  language = dict(name="python")
  kernel = dict(name="python3", display_name="Python 3", language="python")
  whole = dict(
    cells=made,
    metadata=dict(kernelspec=kernel, language_info=language),
    nbformat=4,
    nbformat_minor=5,
  )
  return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _lines(text: str) -> list[str]:
  return text.splitlines(keepends=True)


if __name__ == "__main__":
  page = PAGE.read_text()
  with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    printed = list(run(page))
  NOTEBOOK.write_text(notebook(page, printed))
