"""What the forms say, and what a start of the command line loads."""

import subprocess
import sys

from prm_jax import forms
from prm_jax import voting
from prm_jax.labelling import dial


def test_choices_are_those_of_the_modules_that_a_start_does_not_load():
  assert forms.AGGREGATES == voting.AGGREGATES
  assert tuple(sorted(dial.TEMPLATES)) == forms.TEMPLATES


def test_a_start_loads_neither_numpy_nor_jax():
  code = "import sys, prm_jax.cli; print({'numpy', 'jax'} & sys.modules.keys())"
  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "set()\n"
