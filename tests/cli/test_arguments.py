"""What the forms say, and what a start of the command line loads."""

import atexit
import gc
import subprocess
import sys
import typing

from prm_jax.cli import main
from prm_jax.evaluation import evaluate_steps
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import verbs
from prm_jax.text import encoding


def test_choices_are_those_of_the_modules_that_a_start_does_not_load():
  of_steps = {f.name: f for f in verbs.fields(evaluate_steps.EvaluateSteps)}
  assert of_steps["neutral"].choices == encoding.NEUTRAL
  names = typing.get_args(judge_prompts.TemplateName)
  assert [*judge_prompts.TEMPLATES] == [*names]


def test_a_start_loads_neither_numpy_nor_jax():
  code = (
    "import sys, prm_jax.cli.main; print({'numpy', 'jax'} & sys.modules.keys())"
  )
  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "set()\n"


def test_little_time_goes_to_cycles_among_what_is_imported(monkeypatch):
  """Neither at a command's start nor at its end: 0.6 s of a training run's."""
  at_end, thresholds = [], []
  monkeypatch.setattr(gc, "set_threshold", lambda *x: thresholds.append(x))
  monkeypatch.setattr(atexit, "register", at_end.append)
  monkeypatch.setattr(sys, "argv", ["prm-jax", "--version"])
  assert main.command() == 0 and at_end == [gc.freeze]
  assert thresholds == [(50_000, 20, 20)]
