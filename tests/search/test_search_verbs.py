"""What is made of searches: as values on results in memory, and on files."""

import dataclasses
import json

import numpy as np
import pytest

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.data.formats import jsonl
from prm_jax.reports import compare
from prm_jax.search import adaptive
from prm_jax.search import rules
from prm_jax.search import solutions
from prm_jax.search import thresholds
from prm_jax.testbed import arithmetic
from tests.search import searches

COSTS = dict(policy=searches.COST, scorer=searches.COST)


def _results(rule):
  """Returns what a search of 20 problems finds."""
  random = np.random.default_rng(3)
  problems = [
    schema.Solution(p.id, p.problem, (), extra={schema.REFERENCE: p.answer})
    for p in arithmetic.problems(20, "test", searches.TASK, random)
  ]
  return solutions.results(
    searches.search(rule, problems, noise=0.7),
    COSTS,
    verify=lambda chosen: [
      s.steps[-1].split()[-1] == s.extra[schema.REFERENCE] for s in chosen
    ],
  )


@pytest.fixture(scope="module")
def found():
  return dict(bon=_results(rules.BestOfN(8)), beam=_results(rules.Beam(2, 3)))


@pytest.fixture
def written(found, tmp_path):
  for name, results in found.items():
    jsonl.write_solutions(tmp_path / f"{name}.jsonl", results)
  return tmp_path


def _ran(folder, *words):
  output = folder / "output.json"
  assert main.main([*words, f"--output={output}"]) == 0
  return output


def test_a_calibration_is_that_of_the_command(found, written):
  fitted = prm_jax.Calibrate(pilot=3)(found["bon"])
  words = ["search", "calibrate", "--pilot=3", f"--input={written}/bon.jsonl"]
  output = _ran(written, *words)
  assert adaptive.read(output) == fitted
  assert fitted.slope > 0


def test_a_comparison_is_that_of_the_command(found, written):
  compared = prm_jax.Compare(seed=5)(found)
  inputs = [f"--input={written / name}.jsonl" for name in found]
  output = _ran(written, "search", "compare", "--seed=5", *inputs)
  saved = json.loads(output.read_text())
  del saved["run"]
  assert saved == json.loads(json.dumps(compared))


def test_a_threshold_is_that_of_the_command(found, written):
  chosen = prm_jax.ChooseThreshold(0.5, attempts=4)(found["bon"])
  words = ["--precision=0.5", "--attempts=4", f"--input={written}/bon.jsonl"]
  output = _ran(written, "verify", "choose", *words)
  assert thresholds.read_threshold(str(output)) == chosen
  assert 0 < chosen.value < 1 and chosen.attempts == 4


def _of_two_types(results):
  first, *rest = results
  bill = dict(first.extra["bill"], compute_dtype=dict(policy="float16"))
  extra = dict(first.extra, bill=bill)
  return [dataclasses.replace(first, extra=extra), *rest]


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (lambda r: prm_jax.Calibrate(pilot=8)(r["bon"]), "`pilot=8`: a problem"),
    (lambda r: prm_jax.Calibrate()([]), "a problem has 0 samples"),
    (lambda r: prm_jax.Calibrate()(r["beam"]), "was searched step by step"),
    (lambda r: prm_jax.Calibrate(quantile=1.0)(r["bon"]), "`quantile=1.0`"),
    (lambda r: prm_jax.Compare()({}), "no search to compare"),
    (
      lambda r: prm_jax.Compare()(dict(r, less=r["bon"][1:])),
      "less: has other problems",
    ),
    (
      lambda r: compare.CompareJob(("a.jsonl", "a=b.jsonl"), "c.json"),
      "`input=a=b.jsonl`: the name 'a' comes twice",
    ),
    (lambda r: prm_jax.ChooseThreshold(2.0)(r["bon"]), "`precision=2.0`"),
    (
      lambda r: prm_jax.ChooseThreshold(0.5)(_of_two_types(r["bon"])),
      "computed in different types",
    ),
    (
      lambda r: prm_jax.SearchPage(("x",))(r["bon"]),
      "`problem=x`: no such problem",
    ),
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cant_be_made_is_refused_in_python(found, call, words):
  with pytest.raises(prm_jax.InputError, match=words):
    call(found)
