"""docs/quickstart.md and docs/quickstart.ipynb: equal, and they run."""

import json
import os
import pathlib
import re
import subprocess
import sys

import make_notebook
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "docs" / "run_notebook.py"


PAGE = make_notebook.PAGE.read_text()
NOTEBOOK = make_notebook.NOTEBOOK.read_text()
CODE = [x for x in json.loads(NOTEBOOK)["cells"] if x["cell_type"] == "code"]
# What each code cell printed.
PRINTED = [
  "".join(line for output in cell["outputs"] for line in output["text"])
  for cell in CODE
]


def test_the_notebook_is_the_page():
  made = make_notebook.notebook(PAGE, PRINTED)
  assert made == NOTEBOOK, "run: python docs/make_notebook.py"
  assert len(CODE) == PAGE.count("```python") > 5


def test_the_notebook_has_what_its_cells_print():
  assert PRINTED[0] == next(make_notebook.run(PAGE))
  for cell, printed in zip(CODE, PRINTED, strict=True):
    assert ("print(" in "".join(cell["source"])) == bool(printed)
  whole = "".join(PRINTED)
  assert "first error: 0\n" in whole
  agree = re.search(r"same first error, or none: (\d+) of 200\n", whole)
  assert agree and int(agree[1]) > 150
  assert re.search(r"best: .*'Answer: 6'\)\n", whole)


def test_the_notebook_has_the_form_of_nbformat_4():
  notebook = json.loads(NOTEBOOK)
  assert notebook["nbformat"] == 4
  ids = [cell["id"] for cell in notebook["cells"]]
  assert len(set(ids)) == len(ids)


@pytest.mark.faults
def test_the_notebook_ends_with_a_right_answer_in_an_empty_folder(tmp_path):
  # A process of its own: the tests' simulated devices and unoptimized programs
  # would make the training slow.
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  environment |= dict(JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
  done = subprocess.run(
    # It also checks what the page says, and that the answer at its end is right.
    [sys.executable, RUN, make_notebook.NOTEBOOK],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2_000:]
  assert sorted(p.name for p in tmp_path.iterdir()) == ["quickstart"]
