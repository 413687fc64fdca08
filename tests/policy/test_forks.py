"""A child of a process that computes is refused, and doesn't hang."""

import os
import pathlib
import subprocess
import sys

import pytest
import random_models


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_is_refused_if_and_only_if_jax_ran_before_the_fork(tmp_path):
  random_models.write(tmp_path)
  script = pathlib.Path(__file__).with_name("forked.py")
  done = subprocess.run(
    [sys.executable, script, "30", tmp_path],
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
    env=os.environ | dict(JAX_PLATFORMS="cpu"),
  )
  said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
  assert said.pop("after a failed load") == "done"
  assert list(said) == [
    *("after other work", "load", "score", "cached", "sample"),
    *("log_likelihood", "engine", "label", "train", "export"),
  ]
  for line in said.values():
    assert "forked" in line and "spawn" in line
