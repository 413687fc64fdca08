"""An option's default is that of the Python call to which its value goes."""

import argparse
import inspect
import pathlib
import re

import command_options
import pytest

from prm_jax import remote
from prm_jax.cli import flags
from prm_jax.device_check import check_run
from prm_jax.evaluation import acceptance
from prm_jax.labelling import active_selection
from prm_jax.labelling import llm_judge
from prm_jax.policy import drawing
from prm_jax.policy import rollout_engine
from prm_jax.scoring import saved
from prm_jax.scoring import scorer
from prm_jax.search import adaptive
from prm_jax.search import chunks
from prm_jax.search import own_models
from prm_jax.search import rules
from prm_jax.search import search
from prm_jax.search import solutions
from prm_jax.serving import server_limits
from prm_jax.text import encoding

ROOT = pathlib.Path(__file__).parents[2]
COMMANDS = command_options.commands()
SAMPLES = (
  drawing.Sampling,
  rollout_engine.Engine,
  *(remote.Endpoint, remote.Template),
)
SEARCHES = (*SAMPLES, own_models.of_scorer, solutions.results)
SCORES = (saved.load, scorer.Scorer)
LABELS = (encoding.EncodingConfig, encoding.LabelPolicy)
# What is called with the options of a command, by the beginning of its name.
CALLED = {
  **{f"search {rule.name}": SEARCHES for rule in search.RULES},
  "search chunk_guidance": (chunks.of_policy, *SEARCHES),
  "search calibrate": (adaptive.fit, adaptive.AdaptiveBestOfN),
  "verify run": SEARCHES,
  "verify choose": (rules.AcceptFirst, acceptance.curve),
  "label monte_carlo": SAMPLES,
  "label omega_prm": SAMPLES,
  "label judge": (llm_judge.label, *SAMPLES),
  "label select": (active_selection.most_convincing, *SCORES),
  "sample": SAMPLES,
  "score": (*SCORES, saved.load_pair),
  "serve": (server_limits.Limits,),
  "check-device": (check_run.Options,),
  "data": LABELS,
  "eval": (*LABELS, *SCORES),
}


def _defaults(called):
  """Returns the defaults of a dataclass's fields or a function's arguments."""
  return {
    name: parameter.default
    for name, parameter in inspect.signature(called).parameters.items()
    if parameter.default not in (inspect.Parameter.empty, None)
  }


def _shown(action):
  """Returns an option's default, or the number that its help names as one."""
  if action.default is argparse.SUPPRESS:  # an option of a verb's field
    told = re.search(r"\(default: (\S+)\)$", action.help)
    is_number = told and re.fullmatch(r"\d+(\.\d+)?", told[1])
    return told and (float(told[1]) if is_number else told[1])
  if action.default is not None:
    return action.default
  number = re.search(r"default: (?:.* else )?([\d.]*\d)\)", action.help or "")
  return number and float(number[1])


def _both(name):
  """Yields the options with two defaults, and where the other one is."""
  for called in CALLED.get(name, CALLED.get(name.split()[0], ())):
    defaults = _defaults(called)
    for action in COMMANDS[name]._actions:
      shown = _shown(action)
      if action.dest in defaults and not (action.required or shown is None):
        where = f"{called.__module__}.{called.__qualname__}: {action.dest}"
        yield where, shown, defaults[action.dest]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_options_default_is_that_of_the_call_it_is_for(name):
  for where, shown, default in _both(name):
    assert shown == default, where


@pytest.mark.parametrize("rule", search.RULES, ids=lambda x: x.name)
def test_a_strategys_options_have_their_defaults_on_its_page(rule):
  page = (ROOT / "docs/search.md").read_text()
  row = re.search(rf"^\| `{rule.name}` \|.*\| `(.*)` \|$", page, re.MULTILINE)
  told = dict(x.removeprefix("--").split("=") for x in row[1].split())
  options = flags.options(rule)
  needed = {name for name, x in options.items() if x.is_required}
  assert needed <= told.keys() <= options.keys()
  for name in options.keys() - needed - {"draft_model"}:
    default = options[name].field.default
    assert type(default)(told[name]) == default
