"""Runs a notebook's code cells in one namespace, without Jupyter.

  python run_notebook.py NOTEBOOK

Of docs/quickstart.ipynb it also checks what the page says of the results. `make
package` runs this file outside of the checkout.
"""

import json
import pathlib
import sys
from typing import Any


def run(path: pathlib.Path) -> dict[str, Any]:
  """Returns the names that a notebook's code cells define, run in order."""
  names: dict[str, Any] = {}
  notebook = json.loads(path.read_text(encoding="utf-8"))
  for i, cell in enumerate(notebook["cells"]):
    if cell["cell_type"] == "code":
      text = "".join(cell["source"])
      exec(compile(text, f"{path.name}:cell {i}", "exec"), names)
  return names


def check_quickstart(names: dict[str, Any]) -> None:
  """Fails unless the quickstart's models do what its page says."""
  assert names["first_error"](names["result"]) == 0
  assert names["agree"] > 150, names["agree"]  # of 200
  assert names["best"] in names["samples"]
  assert names["best"].steps[-1] == "Answer: 6", names["best"].steps
  labels = [x for s in names["labelled"] for x in s.labels]
  assert labels and all(0 <= x <= 1 for x in labels)
  assert pathlib.Path("quickstart/tuned").is_dir()


def main() -> None:
  path = pathlib.Path(sys.argv[1])
  names = run(path)
  if path.name == "quickstart.ipynb":
    check_quickstart(names)


if __name__ == "__main__":
  main()
