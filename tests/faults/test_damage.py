"""Damaged saves: seen, set aside, and never used; where all are, nothing."""

import shutil

import fault_runs
from flax.core import meta
import jax
import ml_collections
import numpy as np
import pytest

from prm_jax import errors
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import model_json
from prm_jax.cli import main
from prm_jax.runtime import files as files_lib
from prm_jax.training import programs
from prm_jax.training import train_config
from prm_jax.training import train_run_config

# orbax's threads may still speak when their event loop is gone.
LATE_THREADS = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)


def _damages(content):
  """Yields what becomes of a file: cut short, or one byte of it flipped."""
  for length in (0, len(content) // 2, max(len(content) - 10, 0)):
    yield f"cut to {length}", content[:length]
  for place in (0, len(content) // 2, len(content) - 1):
    if 0 <= place < len(content):
      flipped = bytes([content[place] ^ 1])
      whole = content[:place] + flipped + content[place + 1 :]
      yield f"byte {place} flipped", whole


def _target(workdir):
  """Returns the shapes of a run's state, on one device."""
  config = ml_collections.ConfigDict(
    files_lib.read_json(workdir / "config.json")
  )
  described = model_json.read_description(workdir)
  program = train_config.make_program(
    train_run_config.from_config(config), described.model
  )
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
    meta.unbox(jax.eval_shape(program.init, jax.random.key(0))),
  )


def _bits(tree):
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@LATE_THREADS
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_no_damage_to_any_file_of_a_save_gives_another_state(whole, tmp_path):
  """F6, F7: every file, cut at three places and with a byte flipped at three."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  target = _target(workdir)
  step = workdir / "checkpoints" / "60"
  names = sorted(x for x in step.rglob("*") if x.is_file())
  assert len(names) > 10

  def read():
    checkpoints = manager.Checkpoints(workdir)
    try:
      state = _bits(checkpoints.restore(60, target))
    except errors.DamagedError:
      state = None
    finally:
      checkpoints.close()
    try:
      params = _bits(programs.load_params(workdir))
    except errors.DamagedError:
      params = None
    return state, params

  expected = read()
  assert None not in expected
  tried, noticed, silent = 0, 0, []
  for path in names:
    content = path.read_bytes()
    for what, damaged in _damages(content):
      path.write_bytes(damaged)
      found = read()
      tried += 1
      noticed += None in found
      silent += [
        (str(path.relative_to(step)), what)
        for a, b in zip(found, expected)
        if a is not None and a != b
      ]
    path.write_bytes(content)
  assert read() == expected
  print(f"{tried} damages to {len(names)} files: {noticed} were noticed")
  assert not silent and noticed > tried // 3


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def _largest(step, item):
  """Returns the file of a save's item that holds the arrays."""
  files = [x for x in (step / item).rglob("*") if x.is_file()]
  return max(files, key=lambda x: x.stat().st_size)


@pytest.mark.faults
@pytest.mark.parametrize("item", ["params", "opt_state", "meta"])
def test_the_command_goes_on_from_the_save_before_a_damaged_one(
  stage, whole, item, tmp_path
):
  """F6, F7, with the real command: said, set aside, made again."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  step = workdir / "checkpoints" / "60"
  _flip(_largest(step, item))
  damaged = fault_runs.files(step)
  ended = stage.run(stage.train(workdir))
  assert ended.code == 0, ended
  assert f"WARNING: {step}: damaged (" in ended.out
  assert "WARNING: resumes from step 50" in ended.out
  assert fault_runs.files(workdir / "damaged" / "60") == damaged
  fault_runs.assert_same_run(workdir, whole)


@pytest.mark.faults
def test_where_every_save_is_damaged_commands_end_with_3(
  stage, whole, tmp_path
):
  """F8: training and scoring, each in a process of its own."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  for step in (50, 60):
    _flip(_largest(workdir / "checkpoints" / str(step), "params"))

  def files():
    # Who had it last, and on what machine, is of the last start.
    of_start = (".lock", "environment.json")
    found = fault_runs.files(workdir)
    return {k: v for k, v in found.items() if k not in of_start}

  before = files()
  ended = stage.run(stage.train(workdir))
  assert ended.code == 3, ended
  for word in ("checkpoints/60: damaged", "checkpoints/50: damaged", "--fresh"):
    assert word in ended.refusal
  assert files() == before
  output = tmp_path / "scores.jsonl"
  score = ["score", f"--checkpoint={workdir}", "--input=evaluation.jsonl"]
  ended = stage.run([*score, f"--output={output}"])
  assert ended.code == 3 and "checkpoints/60: damaged" in ended.refusal
  assert files() == before and not output.exists()


@LATE_THREADS
def test_where_every_save_is_damaged_nothing_is_used_or_removed(
  stage, one_device, tmp_path, monkeypatch, capfd
):
  """F8, in this process: exit code 3, one line, and no file touched."""
  monkeypatch.chdir(stage.folder)
  workdir = tmp_path / "run"
  train = stage.train(
    workdir, "fit.steps=2", "fit.checkpoint_every=1", "data.evaluation=()"
  )
  assert main.main(train) == 0
  for step in (1, 2):
    _flip(_largest(workdir / "checkpoints" / str(step), "params"))
  before = fault_runs.files(workdir)
  output = f"--output={tmp_path / 'scores.jsonl'}"
  score = ["score", f"--checkpoint={workdir}", "--input=train.jsonl", output]
  capfd.readouterr()
  for words, steps in ((train, (1, 2)), (score, (2,))):
    assert main.main(words) == 3
    said = capfd.readouterr().err
    assert said.startswith("prm-jax: ") and said.count("\n") == 1, said
    for step in steps:
      assert f"{workdir}/checkpoints/{step}: damaged" in said
    assert fault_runs.files(workdir) == before
