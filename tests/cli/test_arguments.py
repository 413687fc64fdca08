"""What the forms say, and what a start of the command line loads."""

import subprocess
import sys

from prm_jax import voting
from prm_jax.cli import arguments
from prm_jax.testbed import judge as testbed_judge


def test_choices_are_those_of_the_modules_that_a_start_does_not_load():
  assert arguments.AGGREGATES == voting.AGGREGATES
  assert tuple(sorted(testbed_judge.TEMPLATES)) == arguments.TEMPLATES


def test_a_start_loads_neither_numpy_nor_jax():
  code = (
    "import sys, prm_jax.cli.main; print({'numpy', 'jax'} & sys.modules.keys())"
  )
  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "set()\n"
