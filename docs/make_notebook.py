"""Writes docs/quickstart.ipynb from docs/quickstart.md.

Each python block becomes a code cell; the text between them becomes Markdown
cells. tests/docs/test_quickstart.py fails if the two files differ.
"""

import json
import pathlib
import re

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER / "quickstart.md"
NOTEBOOK = FOLDER / "quickstart.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[tuple[str, str]]:
  """Returns ("markdown" or "code", text) of each cell of a page."""
  parts = _BLOCK.split(page)
  kinds = ["markdown", "code"] * len(parts)
  return [(k, p.strip("\n")) for k, p in zip(kinds, parts) if p.strip()]


def notebook(page: str) -> str:
  """Returns the text of a notebook with a page's cells, without outputs."""
  made = []
  for i, (kind, text) in enumerate(cells(page)):
    cell = dict(
      cell_type=kind,
      id=f"cell-{i}",
      metadata={},
      source=text.splitlines(keepends=True),
    )
    if kind == "code":
      cell |= dict(execution_count=None, outputs=[])
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


if __name__ == "__main__":
  NOTEBOOK.write_text(notebook(PAGE.read_text()))
