"""kill -9 to a search: what resumes writes the bytes of a run that wasn't hit."""

import json

import fault_runs
import jax
import numpy as np
import pytest
import random_models

from prm_jax.cli import main
from prm_jax.jobs import journal
from prm_jax.testbed import arithmetic

pytestmark = pytest.mark.faults

NUM_PROBLEMS = 9
COMMANDS = dict(
  beam=("search", "beam", "--keep=2", "--expand=2", "--max_step_tokens=16"),
  verify=("verify", "run", "--threshold=0.9", "--attempts=3"),
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
  """A folder with policy/, prm/ and problems, where commands are run."""
  folder = random_models.write(tmp_path_factory.mktemp("searched"), 256)
  made = arithmetic.problems(
    NUM_PROBLEMS, "test", arithmetic.Task(), np.random.default_rng(0)
  )
  (folder / "problems.jsonl").write_text(
    "".join(
      json.dumps(dict(id=p.id, problem=p.problem, answer=p.answer)) + "\n"
      for p in made
    )
  )
  return fault_runs.Stage(folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_search_that_was_killed_resumes_to_the_same_bytes(
  name, searched, monkeypatch, capsys
):
  def words(output):
    return [
      *(
        *COMMANDS[name],
        "--policy=policy",
        "--scorer=prm",
        "--batch=1",
        "--slots=4",
      ),
      *("--input=problems.jsonl", "--max_tokens=32", f"--output={output}"),
    ]

  output = searched.folder / f"{name}.jsonl"
  log = journal.path_of(output)
  # As many devices as this process has, which then resumes.
  process = searched.start(words(output.name), devices=jax.device_count())
  fault_runs.until(
    lambda: log.exists() and log.read_bytes().count(b"\n") > 2, process
  )
  process.kill()
  assert fault_runs.ended(process).code == -9
  saved = log.read_bytes().count(b"\n") - 1
  assert 2 <= saved < NUM_PROBLEMS and not output.exists()
  monkeypatch.chdir(searched.folder)
  assert main.main(words(output.name)) == 0
  assert f"resumes after {saved} problems" in capsys.readouterr().out
  whole = searched.folder / f"{name}_whole.jsonl"
  assert main.main(words(whole.name)) == 0
  assert output.read_bytes() == whole.read_bytes()
