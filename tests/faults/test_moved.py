"""A workdir renamed or copied while a run writes to it, or after."""

import shutil
import signal

import fault_runs
import pytest

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("terminated", [False, True])
def test_a_workdir_renamed_in_mid_run_ends_the_run_and_resumes(
  stage, whole, terminated, tmp_path
):
  """The run is where it was moved to, whole.

  What a save that was under way leaves under the old name is no folder to use.
  A SIGTERM after it changes nothing: 42 would say that the same command helps.
  """
  workdir, other = tmp_path / "run", tmp_path / "other"
  process = stage.start(stage.train(workdir))
  fault_runs.until(lambda: 20 in fault_runs.saved(workdir), process)
  workdir.rename(other)
  if terminated:
    process.send_signal(signal.SIGTERM)
  ended = fault_runs.ended(process)
  assert ended.code == 1, ended
  assert ended.refusal.startswith(
    f"prm-jax: {workdir}: was renamed during the run"
  )
  assert f"is in {other}: " in ended.refusal
  assert len(fault_runs.saved(workdir)) <= 1
  assert not (workdir / "model.json").exists()
  assert fault_runs.saved(other)[-1] < 60
  assert stage.run(stage.train(other)).code == 0
  fault_runs.assert_same_run(other, whole)


def test_a_save_copied_under_another_steps_name_is_never_used(
  stage, whole, tmp_path
):
  """`cp -r checkpoints/50 checkpoints/60`: damage, in score and in train."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  step = workdir / "checkpoints" / "60"
  shutil.rmtree(step)
  shutil.copytree(workdir / "checkpoints" / "50", step)
  output = tmp_path / "scores.jsonl"
  score = ["score", f"--checkpoint={workdir}", "--input=evaluation.jsonl"]
  ended = stage.run([*score, f"--output={output}"])
  assert ended.code == 3 and not output.exists()
  assert f"{step}: damaged (it is the save of step 50)" in ended.refusal
  ended = stage.run(stage.train(workdir))
  assert ended.code == 0, ended
  assert f"WARNING: {step}: damaged (" in ended.out
  fault_runs.assert_same_run(workdir, whole)


def test_a_bad_byte_in_the_records_costs_one_record(stage, whole, tmp_path):
  """The others stay, the bad one is set aside, and the run goes on."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  shutil.rmtree(workdir / "checkpoints" / "60")
  path = workdir / "metrics.jsonl"
  content = bytearray(path.read_bytes())
  lines = bytes(content).splitlines(keepends=True)
  content[len(b"".join(lines[:30])) + 20] ^= 1
  path.write_bytes(content)
  step = fault_runs.records(whole)[30]["step"] - 1  # an evaluation precedes it
  ended = stage.run(stage.train(workdir))
  assert ended.code == 0, ended
  assert f"{path}:31: WARNING: damaged; put into metrics.damaged" in ended.out
  assert f"lacks the records of updates {step}\n" in ended.out
  found, expected = fault_runs.records(workdir), fault_runs.records(whole)
  assert found == [x for x in expected if x["step"] != step]
  aside = (workdir / "metrics.damaged.jsonl").read_bytes()
  assert aside.count(b"\n") == 1 and aside != lines[30]
  assert fault_runs.model(workdir) == fault_runs.model(whole)


def test_a_changed_digit_of_model_json_is_never_used(stage, whole, tmp_path):
  """Training names the field or heals it; score refuses it by name."""
  workdir = shutil.copytree(whole, tmp_path / "run")
  path = workdir / "model.json"
  text = path.read_text()
  path.write_text(
    text.replace('"norm_epsilon": 1e-06', '"norm_epsilon": 2e-06')
  )
  assert path.read_text() != text
  output = tmp_path / "scores.jsonl"
  score = ["score", f"--checkpoint={workdir}", "--input=evaluation.jsonl"]
  ended = stage.run([*score, f"--output={output}"])
  assert ended.code == 1 and not output.exists(), ended
  assert "model.norm_epsilon is 2e-06 and was 1e-06" in ended.refusal
  assert stage.run(stage.train(workdir)).code == 1
  path.write_text(text)
  assert stage.run([*score, f"--output={output}"]).code == 0
