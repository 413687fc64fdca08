"""A reader that goes away, a full log and too few open files, in long work."""

import pathlib

import fault_runs
import pytest

from prm_jax.jobs import journal

pytestmark = pytest.mark.faults


def _through(script: str) -> tuple[str, ...]:
  """Returns what runs a command's words by a shell's script."""
  return ("bash", "-c", script, "bash")


@pytest.mark.parametrize(
  "script",
  [
    'exec "$@" >&- 2>&-',
    '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}',
    '"$@" | head -2; exit ${PIPESTATUS[0]}',
  ],
)
def test_training_without_a_reader_is_done(script, stage, whole):
  """F41."""
  name = f"reader{len(script)}"
  ended = stage.run(stage.train(name), before=_through(script))
  assert ended.code == 0, ended
  assert "Traceback" not in ended.err
  fault_runs.assert_same_run(stage.folder / name, whole)


def test_labelling_without_a_reader_is_done(policy):
  """F41."""
  words = [
    *("label", "monte_carlo", "--policy=policy", "--completions=2"),
    *("--input=unlabelled.jsonl", "--max_tokens=8", "--batch=4"),
  ]
  outputs = []
  for script in ('"$@"', '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}'):
    output = policy.folder / f"labelled{len(script)}.jsonl"
    ended = policy.run([*words, f"--output={output}"], before=_through(script))
    assert ended.code == 0, ended
    outputs.append(output.read_bytes())
    assert journal.path_of(output).exists()
  assert outputs[0] == outputs[1]


def test_a_full_disk_under_the_log_is_4_and_the_run_resumes(stage, whole):
  """F42."""
  words = stage.train("full_log")
  ended = stage.run(words, before=_through('exec "$@" >/dev/full'))
  assert ended.code == 4, ended
  assert "standard output: can't be written" in ended.refusal
  assert "Traceback" not in ended.err
  again = stage.run(words)
  assert again.code == 0, again
  fault_runs.assert_same_run(stage.folder / "full_log", whole)


def test_too_few_open_files_are_no_full_disk_and_no_damage(stage, whole):
  """F43."""
  workdir = pathlib.Path("few_files")
  words = stage.train(workdir)
  # At 30 it can't start; some more let it train, and fail in a save.
  codes = []
  for limit in (24, 30, 40, 50):
    ended = stage.run(words, before=_through(f'ulimit -n {limit}; exec "$@"'))
    assert "full" not in ended.err and "damaged" not in ended.err, ended
    assert ended.code in (0, 1), ended
    codes.append(ended.code)
    if ended.code:
      assert "ulimit -n" in ended.refusal, ended
  assert codes[0] == 1
  ended = stage.run(words)
  assert ended.code == 0, ended
  fault_runs.assert_same_run(stage.folder / workdir, whole)
