"""docs/quickstart.md and docs/quickstart.ipynb: equal, and they run."""

import json
import os
import pathlib
import subprocess
import sys

import make_notebook
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "docs" / "run_notebook.py"


def test_the_notebook_is_the_page():
  page = make_notebook.PAGE.read_text()
  assert make_notebook.NOTEBOOK.read_text() == make_notebook.notebook(page), (
    "run: python docs/make_notebook.py"
  )
  kinds = [kind for kind, _ in make_notebook.cells(page)]
  assert kinds.count("code") == page.count("```python") > 5


def test_the_notebook_has_the_form_of_nbformat_4():
  notebook = json.loads(make_notebook.NOTEBOOK.read_text())
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
