"""The stage of all faults, and the run that nothing hit."""

import fault_runs
import pytest


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
  """A folder with data and config, where commands are run."""
  return fault_runs.furnish(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def whole(stage):
  """The workdir of a run of 60 steps that nothing stopped."""
  ended = stage.run(stage.train("whole"))
  assert ended.code == 0, ended.err
  (stage.folder / "whole.log").write_text(ended.out + ended.err)
  return stage.folder / "whole"


@pytest.fixture(scope="session")
def policy(stage):
  """The stage with a policy, solutions to label and an RL config on it."""
  fault_runs.furnish_policy(stage)
  return stage
