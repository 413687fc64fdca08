"""Published files to ArrayRecord and back: nothing lost, nothing unsaid."""

import hashlib
import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.scripts.cli import build
from tensorflow_datasets.scripts.cli import cli_utils

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.datasets import tfds_builders
from prm_jax.datasets import tfds_records
from prm_jax.records import array_record
from prm_jax.records import sources
from prm_jax.runtime import files as files_lib

pytestmark = pytest.mark.usefixtures("printed_log")


@pytest.fixture(autouse=True)
def _quiet():
  tfds_records.quiet(bars=False)


def _row(problem, rating):
  """Returns a raw row of PRM800K: a step taken, then one with an error."""

  def step(*texts_and_ratings, chosen):
    completions = [
      dict(text=text, rating=r, flagged=None) for text, r in texts_and_ratings
    ]
    return dict(completions=completions, chosen_completion=chosen)

  return dict(
    question=dict(problem=problem),
    label=dict(
      steps=[
        step(("a", 1), ("b", rating), chosen=0),
        step(("c", 0), chosen=None),
      ],
      finish_reason="solution",
    ),
  )


PUBLISHED = {
  "prm800k": {
    "phase1_train.jsonl": [_row("p", -1), _row("q é ки", 1)],
    "phase1_test.jsonl": [_row("r", 0)],
    "phase2_train.jsonl": [_row("s", -1), dict(_row("t", 1), generation=-1)],
    "phase2_test.jsonl": [_row("u", -1)],
  },
  "math_shepherd": {
    "math-shepherd.jsonl": [
      dict(
        input="1+1? Step 1: 2 ки\nStep 2: The answer is: 2 ки",
        label="1+1? Step 1: 2 +\nStep 2: The answer is: 2 -",
        task="GSM8K",
      )
    ]
  },
  "processbench": {
    f"{name}.json": [
      dict(
        id=f"{name}-0",
        generator="g",
        problem="p",
        steps=["a", "b"],
        final_answer_correct=False,
        label=1,
      )
    ]
    for name in ("gsm8k", "math", "olympiadbench", "omnimath")
  },
  "gsm8k": {
    "train.jsonl": [dict(question="q", answer="1+1=<<1+1=2>>2\n#### 2")],
    "test.jsonl": [dict(question="r", answer="x\n#### 3")],
  },
}


def _put(folder: pathlib.Path, files) -> pathlib.Path:
  for name, rows in files.items():
    files_lib.write_records(folder / name, rows)
  return folder


def _solutions(folder, split):
  """Returns what the read side gives: no class of ours is needed there."""
  rows = tfds.builder_from_directory(str(folder)).as_data_source(split=split)
  return [
    array_record.solution_from_features(rows[i], "x") for i in range(len(rows))
  ]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_dataset_holds_what_the_reader_of_its_format_gives(
  name, gzipped, tmp_path, capsys
):
  ending = ".gz" if gzipped else ""
  files = {f"{n}{ending}": rows for n, rows in PUBLISHED[name].items()}
  manual = _put(tmp_path / "manual", files)
  folders = tfds_builders.build(name, tmp_path / "out", manual=manual)
  told = capsys.readouterr().out
  left_out = 0
  for folder in folders:
    info = tfds.builder_from_directory(str(folder)).info
    assert info.file_format.value == "array_record"
    assert info.citation.startswith("@article{") and info.homepage
    for split in info.splits:
      stem = dict(math_shepherd="math-shepherd").get(name, split)
      if name == "prm800k":
        stem = f"{info.config_name}_{split}"
      (file,) = manual.glob(f"{stem}.json*")
      expected, counts = sources.read(name, file)
      found = _solutions(folder, split)
      assert found == expected and found
      left_out += sum(counts.values())
      for why, count in counts.items():
        assert f"{count} {why}" in told
  assert bool(left_out) == (name == "prm800k")
  splits = dict(prm800k=4, math_shepherd=1, processbench=4, gsm8k=2)[name]
  assert told.count(" solutions") == splits


@pytest.mark.parametrize(
  "solution",
  [
    schema.Solution("é", "p\n", ("", "ки"), (None, 0.25), "2", False, "s"),
    schema.Solution("1", "p", (), ratings=(), extra=dict(a=[None, {"b": 1}])),
    schema.Solution("2", "p", ("a",), ratings=(None,), outcome=True),
    schema.Solution("3", "p", ("a",) * 99, labels=(0.1,) * 99),
  ],
)
def test_a_record_loses_nothing_of_a_solution(solution, tmp_path):
  folder = tfds_records.write(tmp_path, "x", dict(train=[solution] * 3))
  assert _solutions(folder, "train") == [solution] * 3
  assert folder == tmp_path / "solutions" / "x" / "1.0.0"


def test_records_keep_their_order(tmp_path):
  rows = [schema.Solution(str(i), "p", ("a",)) for i in range(300)]
  folder = tfds_records.write(tmp_path, "x", dict(test=iter(rows)))
  assert _solutions(folder, "test") == rows


def test_tfds_build_builds_them_by_name(tmp_path):
  """As `tfds build`, whose own script alone needs TensorFlow."""
  manual = _put(tmp_path / "manual", PUBLISHED["prm800k"])
  words = [
    "tfds build",
    "prm800k/phase2",
    "--imports=prm_jax.datasets.tfds_builders",
    "--file_format=array_record",
    f"--manual_dir={manual}",
    f"--data_dir={tmp_path / 'out'}",
  ]
  cli_utils.make_flags_parser(build.Args, "tfds build")(words).execute()
  folder = tmp_path / "out" / "prm800k" / "phase2" / "1.0.0"
  expected, _ = sources.read("prm800k", manual / "phase2_train.jsonl")
  assert _solutions(folder, "train") == expected
  # By name too: the registered class reads what it wrote.
  rows = tfds.data_source(
    "prm800k/phase2", split="test", data_dir=str(tmp_path / "out")
  )
  assert array_record.solution_from_features(rows[0], "x").problem == "u"


def test_no_tensorflow_is_loaded(tmp_path):
  code = (
    "import sys; from prm_jax import schema; from prm_jax.datasets import tfds_records as records;"
    f"records.write({str(tmp_path)!r}, 'x',"
    " dict(train=[schema.Solution('1', 'p', ('a',))]));"
    "sys.exit('tensorflow' in sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "solutions" / "x").is_dir()


def test_a_manual_folder_may_hold_some_splits_and_says_what_it_lacks(
  tmp_path, capsys
):
  files = PUBLISHED["processbench"]
  some = {k: files[k] for k in ("gsm8k.json", "math.json")}
  manual = _put(tmp_path / "manual", some)
  (folder,) = tfds_builders.build(
    "processbench", tmp_path / "out", manual=manual
  )
  info = tfds.builder_from_directory(str(folder)).info
  assert sorted(info.splits) == ["gsm8k", "math"]
  assert "has no olympiadbench.json, omnimath.json" in capsys.readouterr().out
  phase1 = {k: v for k, v in PUBLISHED["prm800k"].items() if "phase1" in k}
  manual = _put(tmp_path / "prm", phase1)
  (folder,) = tfds_builders.build("prm800k", tmp_path / "out", manual=manual)
  assert folder.parts[-3:] == ("prm800k", "phase1", "1.0.0")
  assert "not built: " in capsys.readouterr().out


def test_what_cant_be_built_is_one_line_and_leaves_nothing(tmp_path):
  def fails(pattern, call):
    with pytest.raises(errors.InputError, match=pattern) as caught:
      call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.array_record*"))

  empty = _put(tmp_path / "manual", {"other.jsonl": []})
  fails(
    r"holds none of train\.jsonl, test\.jsonl",
    lambda: tfds_builders.build("gsm8k", tmp_path / "out", manual=empty),
  )
  bad = _put(tmp_path / "bad", {"train.jsonl": [dict(question="q")]})
  fails(
    r'train\.jsonl:1: field "answer" is missing',
    lambda: tfds_builders.build("gsm8k", tmp_path / "out", manual=bad),
  )
  fails(
    "a split would hold no solution",
    lambda: tfds_records.write(tmp_path / "out", "x", dict(train=[])),
  )
  nan = schema.Solution("1", "p", ("a",), extra=dict(mean=float("nan")))
  fails(
    "can't be written as JSON",
    lambda: tfds_records.write(tmp_path / "out", "x", dict(train=[nan])),
  )


def test_a_dataset_isnt_overwritten(tmp_path):
  rows = [schema.Solution("1", "p", ("a",))]
  tfds_records.write(tmp_path, "x", dict(train=rows))
  with pytest.raises(errors.InputError, match="is there already; remove"):
    tfds_records.write(tmp_path, "x", dict(train=rows * 2))
  (folder,) = tmp_path.glob("solutions/x/1.0.0")
  assert _solutions(folder, "train") == rows


def test_another_datasets_records_are_refused():
  for features in (dict(text=b"{}"), dict(solution=b"{"), dict(solution=3)):
    with pytest.raises(errors.InputError, match='here: no feature "solution"'):
      array_record.solution_from_features(features, "here")


def test_checksums_are_found_and_are_of_addresses_in_use():
  known = tfds_builders.Prm800k.url_infos
  assert len(known) == 7
  used = {
    tfds_builders.BUILDERS[name].base + file
    for name in ("prm800k", "gsm8k", "processbench")
    for file in PUBLISHED[name]
  }
  assert known.keys() <= used


@pytest.mark.real_data
@pytest.mark.parametrize(
  "folder, name",
  [
    ("gsm8k", "train.jsonl"),
    ("gsm8k", "test.jsonl"),
    ("processbench", "gsm8k.json"),
  ],
)
def test_the_public_files_have_their_checksums(folder, name, public_data):
  with files_lib.open_text(public_data(folder, f"{name}.gz")) as f:
    content = f.read().encode()
  url = tfds_builders.BUILDERS[folder].base + name
  known = tfds_builders.Gsm8k.url_infos[url]
  assert known.checksum == hashlib.sha256(content).hexdigest()
  assert known.size == len(content)


def test_the_command_builds_a_folder_or_one_file(tmp_path, capsys):
  manual = _put(tmp_path / "manual", PUBLISHED["gsm8k"])
  out = tmp_path / "out"
  assert not main.main(
    ["data", "build", "gsm8k", f"--input={manual}", f"--output={out}"]
  )
  assert f"dataset: {out}/gsm8k_solutions/1.0.0" in capsys.readouterr().out
  file = manual / "train.jsonl"
  assert not main.main(
    ["data", "build", "gsm8k", f"--input={file}", f"--output={out}"]
  )
  folder = out / "solutions" / "train" / "1.0.0"
  assert f"dataset: {folder}" in capsys.readouterr().out
  assert _solutions(folder, "train") == sources.read("gsm8k", file)[0]
  for words in (
    ["jsonl"],
    ["jsonl", f"--input={out}"],
    ["x", f"--input={file}"],
  ):
    assert main.main(["data", "build", *words, f"--output={out}"]) == 1
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 3
  assert "give --input=FILE" in lines[0] and "expected one of" in lines[2]
  json.loads((folder / "dataset_info.json").read_text())


def test_a_file_without_an_ending_and_a_formats_folder_are_built(
  tmp_path, monkeypatch, capsys
):
  out, root = tmp_path / "out", tmp_path / "data"
  monkeypatch.setenv("PRM_JAX_DATA", str(root))
  row = dict(problem="1+1?", level="Level 1", type="Algebra", solution="2")
  files_lib.write_json(root / "MATH" / "algebra" / "1.json", row)
  _put(root, {"train": PUBLISHED["gsm8k"]["train.jsonl"]})
  for words, name in (
    (("gsm8k", "--input=train"), "train"),
    (("math", "--input=MATH"), "MATH"),
  ):
    command = ["data", "build", *words, f"--output={out}"]
    assert main.main(command) == 0, capsys.readouterr().err
    (found,) = _solutions(out / "solutions" / name / "1.0.0", "train")
    assert found.outcome
