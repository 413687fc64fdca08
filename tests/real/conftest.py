"""Models that several tests import once."""

import published
import pytest


@pytest.fixture(scope="session")
def imported(real_weights, tmp_path_factory):
  """Returns a function from a model's name to its checkpoint and the import."""
  made = {}

  def of(name):
    theirs = published.folder_of(real_weights, name)
    if name not in made:
      ours = tmp_path_factory.mktemp("imported") / name
      words = ["import", f"--from={theirs}", f"--to={ours}", "--role=policy"]
      made[name] = ours, published.command(*words, "--verify")
    return made[name]

  return of
