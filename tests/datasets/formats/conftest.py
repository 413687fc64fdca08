"""What the tests of the formats share."""

from collections.abc import Callable
import json
import pathlib

import pytest

from prm_jax import schema
from prm_jax.datasets import formats


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """One folder for all tests of a file; also for hypothesis' many runs."""
  return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def write_rows(folder) -> Callable[..., pathlib.Path]:
  """Returns a function that writes rows, objects or raw lines, to a file."""

  def write(*rows):
    path = folder / "rows.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path

  return write


@pytest.fixture(scope="module")
def read_row(write_rows) -> Callable[..., schema.Solution]:
  """Returns a function from a form's name and a row to its one solution."""

  def read(name, row, **options):
    (solution,) = formats.FORMATS[name].read(write_rows(row), **options)
    return solution

  return read
