"""A child of a process that computes is refused, and doesn't hang."""

import os
import pathlib
import subprocess
import sys

import pytest

from prm_jax import errors
from prm_jax.runtime import forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_no_call_of_a_loaded_model_hangs_in_a_forked_child():
  script = pathlib.Path(__file__).with_name("forked.py")
  done = subprocess.run(
    [sys.executable, script, "30"],
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
    env=os.environ
    | dict(
      JAX_PLATFORMS="cpu",
      PYTHONPATH=os.pathsep.join(
        [str(script.parents[1] / "cli"), os.environ.get("PYTHONPATH", "")]
      ),
    ),
  )
  said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
  assert list(said) == [
    *("load", "score", "cached", "sample", "log_likelihood", "engine"),
    *("label", "train"),
  ]
  for line in said.values():
    assert "forked" in line and "spawn" in line


def test_who_computes_first_may_compute_again(monkeypatch):
  monkeypatch.setattr(forks, "_first", [])
  forks.check()
  forks.check()
  monkeypatch.setattr(os, "getpid", lambda: -1)
  with pytest.raises(errors.InputError, match="forked"):
    forks.check()
