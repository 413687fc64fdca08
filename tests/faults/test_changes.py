"""What changed under a run: refused by name, or it changes nothing."""

import json
import shutil

import fault_runs
import pytest

from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.text import tokenizer as tokenizer_lib

SHORT = ("fit.steps=4", "fit.checkpoint_every=2", "fit.eval_every=0")


@pytest.fixture(scope="module")
def half(stage, one_device, tmp_path_factory):
  """A stage with a run whose last save is gone, as if it had been killed."""
  folder = tmp_path_factory.mktemp("changes")
  for name in ("train.jsonl", "config.py"):
    shutil.copy(stage.folder / name, folder)
  some = jsonl.read_solutions(stage.folder / "evaluation.jsonl")[:8]
  jsonl.write_solutions(folder / "evaluation.jsonl", some)
  found = fault_runs.Stage(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    assert main.main(found.train("half", *SHORT)) == 0
  shutil.copytree(folder / "half", folder / "whole")
  shutil.rmtree(folder / "half" / "checkpoints" / "4")
  return found


@pytest.fixture
def copy(half, tmp_path, monkeypatch):
  """A copy of that stage, which is the current folder."""
  folder = shutil.copytree(half.folder, tmp_path / "copy")
  monkeypatch.chdir(folder)
  return fault_runs.Stage(folder)


def _other(line, **changes):
  return json.dumps(json.loads(line) | changes)


DATA = dict(
  appended=lambda lines: [*lines, _other(lines[0], id="new", source="new")],
  shortened=lambda lines: lines[:-1],
  reordered=lambda lines: lines[::-1],
  edited=lambda lines: [_other(lines[0], labels=None), *lines[1:]],
)


@pytest.mark.parametrize("name", ["train", "evaluation"])
@pytest.mark.parametrize("change", DATA)
def test_other_data_under_a_run_is_refused_and_nothing_is_touched(
  copy, name, change, capfd
):
  """F12."""
  path = copy.folder / f"{name}.jsonl"
  lines = DATA[change](path.read_text().splitlines())
  path.write_text("\n".join(lines) + "\n")
  before = fault_runs.files(copy.folder)
  assert main.main(copy.train("half", *SHORT)) == 1
  (said,) = capfd.readouterr().err.splitlines()
  kind = dict(train="learns from", evaluation="is evaluated on")[name]
  assert f"half: its run {kind} other data: " in said
  assert "--fresh" in said and "data.json" in said
  assert fault_runs.files(copy.folder) == before


@pytest.mark.parametrize(
  "override",
  [
    "packing.batch_size=16",
    "packing.sequence_length=128",
    "seed=1",
    "tokenizer.vocab_size=48",
    "data.train=('jsonl:evaluation.jsonl',)",
  ],
)
def test_a_config_that_decides_the_run_is_refused_by_its_fields_name(
  copy, override, capfd
):
  """F19: solutions would be seen twice or never, or mean something else."""
  before = fault_runs.files(copy.folder)
  words = copy.train("half", *SHORT, override)
  assert main.main(words) == 1
  (said,) = capfd.readouterr().err.splitlines()
  field = override.partition("=")[0]
  assert f"half: holds a run with other values of {field};" in said
  assert "--fresh" in said
  assert fault_runs.files(copy.folder) == before


@pytest.mark.faults
def test_another_file_of_a_tokenizer_is_refused(copy, capfd):
  """F19: the config names a path, and what is there is another one."""
  (words,) = (copy.folder / "half").glob("tokenizer.*")
  shutil.copy(words, copy.folder / "words.model")
  more = (*SHORT, "tokenizer.kind=file", "tokenizer.path=words.model")
  assert main.main(copy.train("by_file", *more)) == 0
  shutil.rmtree(copy.folder / "by_file" / "checkpoints" / "4")
  solutions = [x.problem for x in fault_runs.solutions(9, seed=5)]
  other = tokenizer_lib.train_sentencepiece(solutions, 30, model_type="word")
  record = other.save(copy.folder)
  shutil.move(copy.folder / record["file"], copy.folder / "words.model")
  capfd.readouterr()
  assert main.main(copy.train("by_file", *more)) == 1
  assert "another tokenizer" in capfd.readouterr().err


@pytest.mark.faults
def test_how_a_run_is_computed_may_change_on_the_way(copy):
  """F18, F19: a machine may be another one."""
  words = copy.train(
    "half", *SHORT, "mesh=(1, -1, 1)", "microbatches=2", "model.remat=full"
  )
  assert main.main(words) == 0
  found, expected = (
    [x["loss_nats"] for x in fault_runs.records(copy.folder / name)]
    for name in ("half", "whole")
  )
  assert found == pytest.approx(expected, rel=1e-5)
  saved = files.read_json(copy.folder / "half" / "config.json")
  assert saved["mesh"] == [1, -1, 1] and saved["microbatches"] == 2
  assert saves.saved_steps(copy.folder / "half") == [2, 4]


@pytest.mark.faults
def test_the_command_in_a_process_of_its_own_refuses_alike(
  stage, whole, tmp_path
):
  """F12, F19."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  before = fault_runs.files(workdir)
  for override, word in (
    ("packing.batch_size=16", "other values of packing.batch_size;"),
    ("seed=3", "other values of seed;"),
  ):
    ended = stage.run(stage.train(workdir, override))
    assert ended.code == 1 and word in ended.refusal
  assert fault_runs.files(workdir) == before


@pytest.mark.faults
def test_no_secret_of_the_environment_is_written_anywhere(stage, whole):
  """F34: config, records, logs, checkpoints, model card."""
  words = ["export", f"--checkpoint={whole}", "--to=exported"]
  exported = stage.run(words)
  assert exported.code == 0, exported
  card = stage.folder / "exported" / "README.md"
  names = fault_runs.files(stage.folder)
  assert card.is_file() and len(names) > 20
  secret = fault_runs.SECRET.encode()
  assert not [name for name, content in names.items() if secret in content]
  said = (whole.parent / "whole.log").read_text()
  for text in (said, exported.out, exported.err):
    assert fault_runs.SECRET not in text
