"""Laws of ProcessBench's form."""

import json

import pytest

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.datasets.formats import processbench
from prm_jax.runtime import files

ROW = {
  "id": "gsm8k-7",
  "generator": "Q",
  "problem": "1+1?",
  "steps": ["1+1=2", "So 3.", "Done."],
  "final_answer_correct": False,
  "label": 1,
}


@pytest.mark.parametrize(
  "label, labels",
  [
    (-1, (1.0, 1.0, 1.0)),
    (0, (0.0, None, None)),
    (1, (1.0, 0.0, None)),
    (2, (1.0, 1.0, 0.0)),
  ],
)
def test_steps_after_the_first_error_are_unknown(label, labels, read_row):
  row = ROW | {"label": label}
  assert read_row("processbench", row).labels == labels


def test_rows_of_an_array_know_their_numbers(folder):
  path = folder / "array.json"
  good = json.dumps([ROW], indent=2)
  path.write_text(good.removesuffix("\n]") + ',\n\n  {\n "id": 1}\n]\n')
  with pytest.raises(errors_lib.InputError) as caught:
    list(processbench.read(path))
  assert str(caught.value).startswith(f"{path}:2: field ")


@pytest.mark.parametrize(
  "text, message",
  [
    ("[{}", ':1: expected "," or "]"'),
    ("[\n", ":2: not JSON"),
    ("[{},\n]", ":2: not JSON"),
    ("[]\n", None),
    ("[]\n1", ":2: text after the end"),
    ("[{}]\n\n 1", ":3: text after the end"),
    ("[" * 100_000, ": nested too deeply"),
  ],
)
def test_a_broken_array_is_one_line(text, message, folder):
  row = json.dumps(ROW)
  path = folder / "broken.json"
  path.write_text(text.replace("{}", row))
  if message is None:
    assert list(processbench.read(path)) == []
    return
  with pytest.raises(errors_lib.InputError) as caught:
    list(processbench.read(path))
  assert f"{path}{message}" in str(caught.value)


def test_a_byte_that_is_not_utf_8_is_named_by_line_and_column(folder):
  path = folder / "latin.json"
  rows = json.dumps([ROW, ROW | {"id": "é"}], indent=2, ensure_ascii=False)
  path.write_bytes(rows.encode("latin-1"))
  lines = rows.splitlines()
  (line,) = [i for i, text in enumerate(lines, 1) if "é" in text]
  column = lines[line - 1].index("é") + 1
  with pytest.raises(errors_lib.InputError) as caught:
    list(processbench.read(path))
  assert str(caught.value).startswith(
    f"{path}:{line}: not UTF-8 at column {column};"
  )


@pytest.mark.real_data
@pytest.mark.parametrize(
  "subset, num_right, num_wrong", [("gsm8k", 193, 207), ("math", 406, 594)]
)
def test_processbench_is_written_back_letter_for_letter(
  subset, num_right, num_wrong, public_data, tmp_path
):
  source = public_data("processbench", f"{subset}.json.gz")
  found = list(processbench.read(source))
  errors = [schema.first_error(s.labels) for s in found]
  assert errors.count(-1) == num_right
  assert len(errors) - errors.count(-1) == num_wrong
  processbench.write(tmp_path / "out.json", found)
  written = (tmp_path / "out.json").read_text("utf-8")
  with files.open_text(source) as f:
    assert written.strip() == f.read().strip()
