"""SIGTERM in every phase of the real commands: saved, 42, and the same end."""

import signal
import time

import fault_runs
import pytest

pytestmark = pytest.mark.faults

# Every program is compiled anew, as on a machine that is new to the run.
NOTHING_COMPILED = dict(JAX_ENABLE_COMPILATION_CACHE="false")


def _has_begun(workdir):
  return (workdir / "metrics.jsonl").exists()


def _is_saving(workdir):
  unfinished = list(workdir.glob("checkpoints/*tmp*"))
  return unfinished and fault_runs.num_records(workdir) > 25


def _terminated(process):
  """Sends SIGTERM; returns how the process ended, and after how long."""
  process.send_signal(signal.SIGTERM)
  begin = time.monotonic()
  ended = fault_runs.ended(process)
  return ended, time.monotonic() - begin


# --- Training ---------------------------------------------------------------

# When to send it, and what is saved then: what was made, but for one update.
PHASES = dict(
  compiling=(_has_begun, {0, 1}),
  update=(lambda w: fault_runs.num_records(w) >= 26, range(25, 60)),
  # Behind the records of 20 updates an evaluation begins.
  evaluation=(lambda w: fault_runs.num_records(w) == 20, {20}),
  save=(_is_saving, range(25, 60)),
)


@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_loses_no_update_and_changes_nothing(
  stage, whole, phase, tmp_path
):
  """F2, F3: in one process, whose handler is our own."""
  workdir = tmp_path / "run"
  condition, expected = PHASES[phase]
  words = stage.train(workdir)
  more = NOTHING_COMPILED if phase == "compiling" else {}
  process = stage.start(words, **more)
  fault_runs.until(lambda: condition(workdir), process)
  ended, seconds = _terminated(process)
  assert ended.code == 42 and seconds < 15, (ended, seconds)
  assert "SIGTERM: ending at the next safe place" in ended.err
  assert "Traceback" not in ended.err
  saved = max(fault_runs.saved(workdir), default=0)
  assert saved in expected
  steps = [x["step"] for x in fault_runs.records(workdir)]
  assert steps == list(range(1, saved + 1))
  if phase == "evaluation":
    assert not fault_runs.records(workdir, "eval")
  assert stage.run(words).code == 0
  fault_runs.assert_same_run(workdir, whole)


def test_a_second_sigterm_ends_a_run_at_once_though_it_compiles(
  stage, tmp_path
):
  """F2: no line of Python runs for seconds, on large machines for minutes."""
  workdir = tmp_path / "run"
  process = stage.start(
    stage.train(workdir, "model.num_layers=6", "model.d_model=64"),
    **NOTHING_COMPILED | dict(XLA_FLAGS="", JAX_LOG_COMPILES="1"),
  )
  # What is left of the update's compilation is all XLA's, some seconds of it.
  last = "Finished jaxpr to MLIR module conversion jit(train_step)"
  assert any(last in line for line in process.stderr)
  time.sleep(0.5)
  process.send_signal(signal.SIGTERM)
  time.sleep(0.2)
  ended, seconds = _terminated(process)
  assert ended.code == 128 + signal.SIGTERM and seconds < 1, (ended, seconds)
  assert ended.err.count("once more ends at once") == 1
  assert not fault_runs.num_records(workdir)


# --- The other long commands ------------------------------------------------


def test_sigterm_in_a_rollout_changes_nothing(policy, tmp_path):
  """F2: the rollout under way is dropped, and drawn again alike."""
  words = policy.train(tmp_path / "whole", config="rl.py")
  assert policy.run(words).code == 0
  workdir = tmp_path / "run"
  words = policy.train(workdir, config="rl.py")
  process = policy.start(words)
  # The evaluation of the first state, and three updates.
  fault_runs.until(lambda: fault_runs.num_records(workdir) == 4, process)
  ended, seconds = _terminated(process)
  assert ended.code == 42 and seconds < 15, (ended, seconds)
  assert fault_runs.saved(workdir)[-1] in (3, 4)
  assert policy.run(words).code == 0
  fault_runs.assert_same_run(workdir, tmp_path / "whole")
  names = [x / "samples.jsonl" for x in (workdir, tmp_path / "whole")]
  assert names[0].read_bytes() == names[1].read_bytes()


def _label(output):
  return [
    *("label", "monte_carlo", "--policy=policy", "--input=unlabelled.jsonl"),
    *(f"--output={output}", "--completions=4", "--batch=2"),
    *("--max_tokens=16", "--seed=0"),
  ]


def test_sigterm_in_labelling_loses_no_batch_and_changes_nothing(
  policy, tmp_path
):
  """F2: what the journal has is not drawn again."""
  assert policy.run(_label(tmp_path / "whole.jsonl")).code == 0
  output = tmp_path / "out.jsonl"
  journal = tmp_path / "out.jsonl.journal"

  def batches():
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0

  process = policy.start(_label(output))
  fault_runs.until(lambda: batches() >= 3, process)
  ended, seconds = _terminated(process)
  assert ended.code == 42 and seconds < 15, (ended, seconds)
  assert not output.exists()
  before = batches()
  assert 3 <= before < 12
  again = policy.run(_label(output))
  assert again.code == 0, again
  assert f"resumes after {2 * before} solutions" in again.out
  assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
